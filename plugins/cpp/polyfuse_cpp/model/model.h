// A model that runs without Python: what polyfuse_model.h promises, over the tables that model_text.py prints. It prints
// them between tensors.h and this file, with the functions `find_sizes`, `find_strides`, `answer` and `lacking`.

struct pf_model {
  pf_runtime runtime;
  pf_ref weights[weight_count + 1];
  pf_ref constants[constant_count + 1];
  pthread_mutex_t turn;  // taken where the model writes to its own buffers
  model_device device;
};

namespace {
// Weights.

// The offset of the weights in a package, whose first member they are; -1: it is no package, or another one.
int64_t offset_in_package(int file) {
  unsigned char head[30];
  const size_t expected = strlen(weight_member);
  char name[sizeof weight_member];
  if (pread(file, head, 30, 0) != 30 || memcmp(head, "PK\3\4", 4) || head[8] || head[9]) return -1;
  const size_t length = head[26] | head[27] << 8, extra = head[28] | head[29] << 8;
  if (length != expected || pread(file, name, length, 30) != (ssize_t)length) return -1;
  return memcmp(name, weight_member, length) ? -1 : (int64_t)(30 + length + extra);
}

// The memory of all weights, mapped from a file; null and a message where that fails.
pf_memory* map_file(const char* path, int file, int64_t start) {
  struct stat facts;
  if (fstat(file, &facts) || start < 0 || facts.st_size < start + weight_bytes) {
    fail("%s does not hold the weights of %s; give the package that this library comes from", path, model_name);
    return nullptr;
  }
  const int64_t before = start % sysconf(_SC_PAGESIZE);
  const size_t size = weight_bytes + before;
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, start - before);
  pf_memory* memory = at == MAP_FAILED ? nullptr : (pf_memory*)calloc(1, sizeof(pf_memory));
  if (!memory) {
    if (at != MAP_FAILED) munmap(at, size);
    fail("the weights in %s cannot be mapped into memory; copy it to a local file system", path);
    return nullptr;
  }
  memory->shares = 1;
  memory->base = at;
  memory->mapped = size;
  return memory;
}

pf_memory* open_weights(const char* path, char** first) {
  struct stat facts;
  char whole[4096];
  if (!path || stat(path, &facts)) {
    fail("there is no file or folder %s; give the package, or the folder that it was extracted to", path ? path : "(null)");
    return nullptr;
  }
  const bool folder = S_ISDIR(facts.st_mode);
  if (snprintf(whole, sizeof whole, folder ? "%s/%s" : "%s", path, weight_member) >= (int)sizeof whole) {
    fail("the path %s is too long", path);
    return nullptr;
  }
  const int file = open(whole, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    fail("%s cannot be read", whole);
    return nullptr;
  }
  const int64_t start = folder ? 0 : offset_in_package(file);
  pf_memory* memory = map_file(whole, file, start);
  close(file);
  if (memory) *first = (char*)memory->base + start % sysconf(_SC_PAGESIZE);
  return memory;
}

void destroy_model(pf_model* model) {
  if (!model) return;
  for (pf_ref weight : model->weights) release_value(nullptr, weight);
  pthread_mutex_destroy(&model->turn);
  model->device.close();
  free(model);
}

// A weight as kernels read it: all of these in one block, `at` where the next one begins.
pf_ref packed_weight(pf_ref seen, pf_memory* block, int64_t& at) {
  int64_t strides[PF_MAX_RANK], count = 1;
  for (int d = seen->rank; d-- > 0; count *= seen->sizes[d]) strides[d] = count;
  pf_ref made = describe(block, (char*)block->base + at, seen->dtype, seen->rank, seen->sizes, strides);
  if (made) copy_tensor(made, seen);
  at += (count * item_bytes[seen->dtype] + 63) & ~INT64_C(63);
  return made;
}

int64_t packed_bytes() {
  int64_t bytes = 0;
  for (int i = 0; i < weight_count; ++i) {
    const weight_row& row = weight_rows[i];
    int64_t count = row.packed ? item_bytes[row.dtype] : 0;
    for (int d = 0; d < row.rank; ++d) count *= row.sizes[d];
    bytes += (count + 63) & ~INT64_C(63);
  }
  return bytes;
}

int fill_weights(pf_model* model, pf_memory* memory, char* first, pf_memory* block) {
  int64_t packed = 0;
  for (int i = 0; i < weight_count; ++i) {
    const weight_row& row = weight_rows[i];
    // one without elements still has an address
    char* at = memory && row.bytes ? first + row.offset : (char*)model;
    pf_ref seen = describe(row.bytes ? memory : nullptr, at, row.dtype, row.rank, row.sizes, row.strides);
    if (seen && (row.written || row.packed)) {
      pf_ref own = row.packed ? packed_weight(seen, block, packed) : copied(seen, row.rank, row.sizes, row.strides);
      release_value(nullptr, seen);
      seen = own;
    }
    if (!seen) return 1;
    model->weights[i] = seen;
  }
  for (int i = 0; i < constant_count; ++i) model->constants[i] = model->weights[constant_rows[i]];
  return 0;
}

int prepare_weights(const char* path, pf_model* model) {
  visit time(model->device);
  if (time.begin()) return 1;
  char* first = nullptr;
  pf_memory* memory = weight_bytes ? open_weights(path, &first) : nullptr;
  if (weight_bytes && !memory) return 1;
  memory = time.moved(memory, first, weight_bytes);
  const int64_t bytes = packed_bytes();
  pf_memory* block = bytes ? new_memory(bytes) : nullptr;
  const bool failed = (weight_bytes && !memory) || (bytes && !block) || fill_weights(model, memory, first, block);
  // what was packed is read there alone: pages of the file that something else reads come back
  if (block && memory) time.unread(memory);
  unshare(block);
  unshare(memory);
  return time.end() || failed;
}

int build_model(const char* path, pf_model** made) {
  pf_model* model = (pf_model*)calloc(1, sizeof(pf_model));
  if (!model) return fail("memory for the model could not be had");
  if (model->device.open()) {
    free(model);
    return 1;
  }
  pthread_mutex_init(&model->turn, nullptr);
  if (prepare_weights(path, model)) {
    destroy_model(model);
    return 1;
  }
  model->runtime = {PF_HOST_ABI,   model,      kernel_rows, model->constants, answer, tensor_data,
                   release_value, no_pause, no_resume};
  *made = model;
  return 0;
}

// Compiled for any CPU, because it finds out which one this is.
PF_ANY_CPU int create_model(const char* path, pf_model** made) {
  const char* missing = lacking();
  if (missing)
    return fail("%s was compiled for CPUs with %s, which this one lacks; make the package on a machine like this one",
                model_name, missing);
  return build_model(path, made);
}

// Calls.

int check_arguments(const pf_tensor* in, visit& time) {
  for (int i = 0; i < argument_count; ++i) {
    const pf_description& wanted = input_descriptions[i];
    if (in[i].dtype != wanted.dtype)
      return fail("%s: %s is of type %s where %s was compiled", model_name, wanted.name, type_name(in[i].dtype),
                  type_name(wanted.dtype));
    if (in[i].rank != wanted.rank)
      return fail("%s: %s has %d dimensions where %d were compiled", model_name, wanted.name, in[i].rank, wanted.rank);
    bool empty = false;
    for (int d = 0; d < in[i].rank; ++d) {
      if (in[i].sizes[d] < 0) return fail("%s: size %d of %s is negative", model_name, d, wanted.name);
      empty |= in[i].sizes[d] == 0;
    }
    if (!in[i].data && !empty) return fail("%s: %s has no data", model_name, wanted.name);
  }
  for (const input_row& row : input_rows)
    if (row.origin == 'i' && !time.reads(in[row.position].data))
      return fail("%s: %s is a number, and in memory of a device; pass it in the CPU's", model_name,
                  input_descriptions[row.position].name);
  return 0;
}

struct span { const char *first, *last; };
span reach(const pf_tensor& tensor) {
  int64_t low = 0, high = 1;
  for (int d = 0; d < tensor.rank; ++d) {
    if (!tensor.sizes[d]) return {nullptr, nullptr};
    const int64_t far = (tensor.sizes[d] - 1) * tensor.strides[d];
    (far < 0 ? low : high) += far;
  }
  const int64_t item = item_bytes[tensor.dtype];
  return {(const char*)tensor.data + low * item, (const char*)tensor.data + high * item};
}

// What others show of memory that is written to would be stale.
int check_apart(const pf_tensor* in) {
  for (int i = 0; i < argument_count; ++i) {
    if (!input_descriptions[i].written) continue;
    const span one = reach(in[i]);
    for (int k = 0; k < argument_count; ++k) {
      const span other = reach(in[k]);
      if (k != i && one.first < other.last && other.first < one.last)
        return fail("%s: %s and %s share memory, and one is written to; pass a copy of the other", model_name,
                    input_descriptions[i].name, input_descriptions[k].name);
    }
  }
  return 0;
}

// An argument in memory that kernels reach: where it is, or a copy of all that lies between its first and last element.
pf_ref reached(const pf_tensor& in, visit& time) {
  if (time.reaches(in.data)) return describe(nullptr, (char*)in.data, in.dtype, in.rank, in.sizes, in.strides);
  const span all = reach(in);
  pf_memory* memory = time.bring(all.first, all.last - all.first);
  if (!memory) return nullptr;
  const int64_t before = all.first ? (const char*)in.data - all.first : 0;
  pf_ref seen = describe(memory, (char*)memory->base + before, in.dtype, in.rank, in.sizes, in.strides);
  unshare(memory);
  return seen;
}

// An argument as the program reads it: where it is, or a copy with the layout and at an address as compiled.
pf_ref as_compiled(const pf_tensor& in, const int64_t* strides, int64_t alignment, const char* name, visit& time) {
  pf_ref seen = reached(in, time);
  if (!seen) return nullptr;
  const bool there = alignment < 2 || (uintptr_t)seen->data % alignment == 0;
  const bool same = same_layout(seen, in.rank, in.sizes, strides);
  if (there && same) {
    for (int d = 0; d < in.rank; ++d) seen->strides[d] = strides[d];
    return seen;
  }
  if (!same && overlapping(in.rank, in.sizes, strides)) {
    release_value(nullptr, seen);
    fail("%s: %s was compiled with elements that share memory, and cannot be laid out so; make the package again, with "
         "an example of this layout",
         model_name, name);
    return nullptr;
  }
  pf_ref copy = copied(seen, in.rank, in.sizes, strides);
  release_value(nullptr, seen);
  return copy;
}

struct call {
  const pf_tensor* in;
  visit& time;
  int64_t symbols[symbol_count + 1], strides[argument_count + 1][PF_MAX_RANK];
  pf_ref values[argument_count + 1] = {};  // null for numbers

  call(const pf_tensor* given, visit& at) : in(given), time(at) {}
  ~call() {
    for (pf_ref value : values) release_value(nullptr, value);
  }

  int take_inputs() {
    for (int k = 0; k < input_count; ++k) {
      const input_row& row = input_rows[k];
      if (row.origin != 't') continue;
      values[row.position] = as_compiled(in[row.position], strides[row.position], row.alignment,
                                    input_descriptions[row.position].name, time);
      if (!values[row.position]) return 1;
    }
    return 0;
  }

  void inputs(pf_model* model, pf_word* words) {
    for (int k = 0; k < input_count; ++k) {
      const input_row& row = input_rows[k];
      if (row.origin == 'i') words[k].i = *(const int64_t*)in[row.position].data;
      else if (row.origin == 't') words[k].ref = shared(values[row.position]);
      else words[k].ref = row.origin == 'w' ? shared(model->weights[row.position]) : nullptr;
    }
  }

  bool is_copy(int i) { return values[i] && values[i]->memory; }

  void copy_back() {
    for (int i = 0; i < argument_count; ++i)
      if (input_descriptions[i].written && is_copy(i))
        copy_elements((char*)in[i].data, in[i].strides, values[i]->data, values[i]->strides, in[i].rank, in[i].sizes,
                      item_bytes[in[i].dtype]);
  }

  // A result as the caller sees it; the share of `value` is used up.
  int deliver(pf_ref value, int position, pf_tensor* out) {
    pf_tensor found = {nullptr, PF_NONE, 0, {}, {}, nullptr};
    if (value) {
      found = {value->data, value->dtype, value->rank, {}, {}, value->memory};
      memcpy(found.sizes, value->sizes, sizeof found.sizes);
      memcpy(found.strides, value->strides, sizeof found.strides);
      for (int i = 0; i < argument_count; ++i)
        if (value == values[i]) {
          found = in[i];
          found.owner = nullptr;
        }
      share((pf_memory*)found.owner);
      release_value(nullptr, value);
    }
    if (!out->data) {
      *out = found;
      return 0;
    }
    const int failed = found.dtype == PF_NONE ? 0 : copy_out(found, position, *out);
    unshare((pf_memory*)found.owner);
    return failed;
  }

  int copy_out(const pf_tensor& found, int position, const pf_tensor& out) {
    bool fits = out.dtype == found.dtype && out.rank == found.rank;
    for (int d = 0; fits && d < found.rank; ++d) fits = out.sizes[d] == found.sizes[d];
    if (!fits)
      return fail("%s: the memory given for the result %s has another type or size than it; see `outputs`", model_name,
                  output_descriptions[position].name);
    if (out.data == found.data) return 0;
    for (int d = 0; d < found.rank; ++d)
      if (!found.sizes[d]) return 0;
    copy_elements((char*)out.data, out.strides, (const char*)found.data, found.strides, found.rank, found.sizes,
                  item_bytes[found.dtype]);
    return 0;
  }
};

pf_ref scalar(int32_t dtype, const void* value) {
  pf_memory* memory = new_number();
  if (!memory) return nullptr;
  memcpy(memory->base, value, item_bytes[dtype]);
  pf_ref made = describe(memory, (char*)memory->base, dtype, 0, nullptr, nullptr);
  unshare(memory);
  return made;
}

void release_output(pf_tensor* output) {
  if (!output || !output->owner) return;
  unshare((pf_memory*)output->owner);
  output->owner = nullptr;
  output->data = nullptr;
}

void release_words(pf_word* words) {
  for (int k = 0; k < word_count; ++k)
    if (word_kinds[k] == 'r') release_value(nullptr, words[k].ref);
}

// The results, and which of them have memory of the model's.
int deliver_all(pf_model* model, call& one, pf_word* words, pf_tensor* out, bool* ours) {
  // words may be returned twice: each result takes a share of its own
  for (int i = 0; i < result_count; ++i) {
    const result_row& row = result_rows[i];
    const bool given = out[i].data;
    pf_ref value = nullptr;
    if (row.kind == 'r') value = shared(words[row.position].ref);
    else if (row.kind == 'c') value = shared(model->weights[row.position]);
    else if (row.kind == 'i') value = scalar(PF_INT64, &words[row.position].i);
    else if (row.kind == 'v') value = scalar(row.dtype, row.value);
    if (!value && (row.kind == 'i' || row.kind == 'v')) return 1;
    if (one.deliver(value, i, out + i)) return 1;
    ours[i] = !given;
  }
  return one.time.end();
}

int run_model(pf_model* model, const pf_tensor* in, pf_tensor* out) {
  visit time(model->device);
  if (time.begin()) return 1;
  call one(in, time);
  if (check_arguments(in, time) || find_sizes(in, one.symbols) || check_apart(in)) return 1;
  find_strides(one.symbols, one.strides);
  message[0] = 0;
  if (one.take_inputs() || time.broke()) return 1;
  pf_word words[input_count + 1], results[word_count + 1];
  if (takes_turns) pthread_mutex_lock(&model->turn);
  one.inputs(model, words);
  const int status = program(&model->runtime, words, results);
  if (takes_turns) pthread_mutex_unlock(&model->turn);
  if (status == PF_NO_MEMORY)
    return fail("%s: memory for intermediate values could not be had; use smaller inputs", model_name);
  if (status != PF_OK) return message[0] ? 1 : fail("%s could not be computed", model_name);
  bool ours[result_count + 1] = {};
  int failed = time.broke();
  if (!failed) {
    one.copy_back();
    failed = deliver_all(model, one, results, out, ours);
  }
  release_words(results);
  for (int i = 0; failed && i < result_count; ++i)
    if (ours[i]) release_output(out + i);
  return failed;
}

int use_stream(pf_model* model, void* stream) { return model->device.use_stream(stream); }

const char* last_error(void) { return message; }

const pf_model_api api = {PF_MODEL_ABI, model_name,   argument_count, result_count,  input_descriptions, output_descriptions,
                          create_model, run_model, release_output, destroy_model, last_error, device_type, use_stream};
}  // namespace

extern "C" const pf_model_api* polyfuse_model(void) { return &api; }
