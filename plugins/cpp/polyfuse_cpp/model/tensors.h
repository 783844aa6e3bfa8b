// The tensors of a model that runs without Python: what references of its host program stand for. Above polyfuse_model.h and
// on_cpu.h or on_device.h, which allocate memory, like all files here that the plugin puts into one unit.
struct pf_value {
  int64_t shares;
  pf_memory* memory;  // null: the caller's
  char* data;
  int32_t dtype, rank;
  int64_t sizes[PF_MAX_RANK], strides[PF_MAX_RANK];
};

// Rows of the tables that model_text.py prints.
struct weight_row {
  int32_t dtype, rank;
  const int64_t *sizes, *strides;
  int64_t offset, bytes;
  bool written, packed;
};
struct input_row {
  char origin;  // t tensor or i integer among the arguments, w weight, f compiled in
  int32_t position;
  int64_t alignment;
};
struct result_row {
  char kind;  // r tensor or i integer among the program's results, c weight, v value, n nothing
  int32_t position, dtype;
  unsigned char value[8];
};

namespace {
const int64_t item_bytes[] = {0, 1, 1, 1, 2, 4, 8, 2, 2, 4, 8};
const char* const type_names[] = {"nothing", "bool",    "uint8",    "int8",    "int16",  "int32",
                                  "int64",   "float16", "bfloat16", "float32", "float64"};
const char* type_name(int32_t dtype) {
  return dtype >= 0 && dtype <= PF_FLOAT64 ? type_names[dtype] : "an unknown type";
}

pf_ref shared(pf_ref value) {
  if (value) __atomic_add_fetch(&value->shares, 1, __ATOMIC_RELAXED);
  return value;
}
void release_value(void*, pf_ref value) {
  if (!value || __atomic_sub_fetch(&value->shares, 1, __ATOMIC_ACQ_REL)) return;
  unshare(value->memory);
  free(value);
}

// A description of memory that `memory` holds, of which it takes one more share.
pf_ref describe(pf_memory* memory, char* data, int32_t dtype, int32_t rank, const int64_t* sizes,
                const int64_t* strides) {
  pf_ref made = (pf_ref)calloc(1, sizeof(pf_value));
  if (!made) {
    fail("memory for a tensor could not be had");
    return nullptr;
  }
  share(memory);
  *made = {1, memory, data, dtype, rank, {}, {}};
  for (int32_t d = 0; d < rank; ++d) made->sizes[d] = sizes[d], made->strides[d] = strides[d];
  return made;
}

// Elements that a layout reaches from its first one on.
int64_t extent_of(int32_t rank, const int64_t* sizes, const int64_t* strides) {
  int64_t last = 0;
  for (int32_t d = 0; d < rank; ++d) {
    if (!sizes[d]) return 0;
    if (strides[d] > 0) last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

pf_ref make_tensor(int32_t dtype, int32_t rank, const int64_t* sizes, const int64_t* strides) {
  const int64_t bytes = extent_of(rank, sizes, strides) * item_bytes[dtype];
  pf_memory* memory = new_memory(bytes);
  if (!memory) return nullptr;
  pf_ref made = describe(memory, (char*)memory->base, dtype, rank, sizes, strides);
  unshare(memory);
  return made;
}

// Another layout of a tensor's memory; the offset counts elements of `dtype`.
pf_ref view_tensor(pf_ref base, int32_t rank, const int64_t* sizes, const int64_t* strides, int64_t offset,
                   int32_t dtype) {
  return describe(base->memory, base->data + offset * item_bytes[dtype], dtype, rank, sizes, strides);
}

bool same_layout(pf_ref tensor, int32_t rank, const int64_t* sizes, const int64_t* strides) {
  bool same = tensor->rank == rank, empty = false;
  for (int32_t d = 0; same && d < rank; ++d) {
    same = tensor->sizes[d] == sizes[d] && (sizes[d] < 2 || tensor->strides[d] == strides[d]);
    empty |= sizes[d] == 0;
  }
  if (same || tensor->rank != rank || !empty) return same;
  for (int32_t d = 0; d < rank; ++d)
    if (tensor->sizes[d] != sizes[d]) return false;
  return true;
}

// Copies of one size; an element after the other as their dimensions come.
void copy_tensor(pf_ref to, pf_ref from) {
  for (int32_t d = 0; d < to->rank; ++d)
    if (!to->sizes[d]) return;
  copy_elements(to->data, to->strides, from->data, from->strides, to->rank, to->sizes, item_bytes[to->dtype]);
}

// Whether a dimension begins again before those with smaller strides have ended.
bool overlapping(int32_t rank, const int64_t* sizes, const int64_t* strides) {
  for (int32_t d = 0; d < rank; ++d)
    if (!sizes[d]) return false;
  for (int32_t d = 0; d < rank; ++d) {
    if (sizes[d] < 2) continue;
    int64_t last = 0;
    for (int32_t k = 0; k < rank; ++k) {
      const bool smaller = strides[k] < strides[d] || (strides[k] == strides[d] && k < d);
      if (sizes[k] > 1 && smaller) last += (sizes[k] - 1) * strides[k];
    }
    if (strides[d] <= last) return true;
  }
  return false;
}

pf_ref copied(pf_ref tensor, int32_t rank, const int64_t* sizes, const int64_t* strides) {
  pf_ref made = make_tensor(tensor->dtype, rank, sizes, strides);
  if (made) copy_tensor(made, tensor);
  return made;
}

// What host programs ask for (HostProgram.requests): 0, or 1 and a message.

int give(pf_ref made, pf_word* results) {
  results[0].ref = made;
  return made == nullptr;
}

int conform(pf_ref tensor, int32_t rank, const int64_t* sizes, const int64_t* strides, int64_t alignment, int32_t dtype,
            pf_word* results) {
  bool fits = tensor->rank == rank && (!dtype || dtype == tensor->dtype);
  for (int32_t d = 0; fits && d < rank; ++d) fits = tensor->sizes[d] == sizes[d];
  if (!fits) return fail("an operator returned another type or size than it announced when the model was compiled");
  const bool aligned = alignment < 2 || (uintptr_t)tensor->data % alignment == 0;
  if (aligned && same_layout(tensor, rank, sizes, strides)) return give(shared(tensor), results);
  return give(copied(tensor, rank, sizes, strides), results);
}

int check_layout(pf_ref tensor, int32_t rank, const int64_t* sizes, const int64_t* strides, const char* name) {
  if (same_layout(tensor, rank, sizes, strides)) return 0;
  return fail("%s has another layout than it was compiled for", name);
}

// Parts one after another in memory that is there already; a part of one dimension without elements joins with anything.
int join(int count, const pf_ref* parts, int64_t dim, pf_ref whole) {
  if (dim < 0) dim += whole->rank;
  pf_value slice = *whole;
  for (int i = 0; i < count; ++i) {
    if (parts[i]->rank != whole->rank) continue;
    slice.sizes[dim] = parts[i]->sizes[dim];
    copy_tensor(&slice, parts[i]);
    slice.data += slice.sizes[dim] * slice.strides[dim] * item_bytes[whole->dtype];
  }
  return 0;
}

int tensor_data(void*, pf_ref tensor, void** address) {
  if (!tensor) return fail("a tensor with memory was expected");
  *address = tensor->data;
  return 0;
}
void* no_pause(void*) { return nullptr; }
void no_resume(void*, void*) {}

// Sizes; a division by nothing has no meaning and is never what was compiled.
inline int64_t size_div(int64_t a, int64_t b) { return b ? index_div(a, b) : -1; }
inline int64_t size_mod(int64_t a, int64_t b) { return b ? index_mod(a, b) : -1; }
inline int64_t size_ceil(int64_t a, int64_t b) { return b ? -index_div(-a, b) : -1; }
inline int64_t size_power(int64_t a, int64_t b) {
  int64_t power = 1;
  for (; b > 0; --b) power *= a;
  return power;
}
inline int64_t size_abs(int64_t a) { return a < 0 ? -a : a; }

// The x at which a linear function has a value; false where it is no integer.
template <class F> bool solve(F function, int64_t value, int64_t* x) {
  const int64_t zero = function(0), factor = function(1) - zero;
  if (!factor || function(2) - zero != 2 * factor || index_mod(value - zero, factor)) return false;
  *x = index_div(value - zero, factor);
  return true;
}
}  // namespace
