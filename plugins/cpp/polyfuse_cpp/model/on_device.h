// Where the tensors of a model lie that computes on a device: there, like all memory of its host program. Above device.h, the
// device's runtime, and the tables of kernels that device_text.py prints.

// A device with blocks of its memory that nothing uses. Work is in one stream, so memory that is given back while kernels that
// use it are on their way serves what is launched behind them.
struct device_memory {
  enum { most = 4096 };
  int64_t shares;  // of the model, and of each pf_memory
  device_state* device;
  bool taken;
  int count;
  struct { void* at; int64_t bytes; } blocks[most];
};

// Memory that several tensors may show; who holds the last share gives it back.
struct pf_memory {
  int64_t shares;
  void* base;
  size_t mapped;  // bytes of a mapping, or 0
  device_memory* owner;  // null: a mapping, or the CPU's heap
  int64_t bytes;
};

namespace {
thread_local device_memory* now;  // what this thread works with
thread_local bool broken;         // something failed meanwhile
thread_local bool waits;          // the CPU's memory is read or written to

void failed(int status) { broken |= status != 0; }

void lock(device_memory* memory) { while (__atomic_test_and_set(&memory->taken, __ATOMIC_ACQUIRE)) {} }
void unlock(device_memory* memory) { __atomic_clear(&memory->taken, __ATOMIC_RELEASE); }

void give_up_blocks(device_memory* memory) {
  lock(memory);
  while (memory->count > 0) device_free(memory->device, memory->blocks[--memory->count].at);
  unlock(memory);
}
void drop_device(device_memory* memory) {
  if (!memory || __atomic_sub_fetch(&memory->shares, 1, __ATOMIC_ACQ_REL)) return;
  if (!device_enter(memory->device)) {
    give_up_blocks(memory);
    device_leave(memory->device);
  }
  device_close(memory->device);
  free(memory);
}

// The smallest block with room for so many bytes, unless that is more than twice as large; how large it is, it tells.
void* find_block(device_memory* memory, int64_t& bytes) {
  lock(memory);
  int best = -1;
  for (int i = 0; i < memory->count; ++i) {
    const int64_t size = memory->blocks[i].bytes;
    if (size >= bytes && size / 2 <= bytes && (best < 0 || size < memory->blocks[best].bytes)) best = i;
  }
  void* found = nullptr;
  if (best >= 0) {
    found = memory->blocks[best].at;
    bytes = memory->blocks[best].bytes;
    memory->blocks[best] = memory->blocks[--memory->count];
  }
  unlock(memory);
  return found;
}
void* take_block(device_memory* memory, int64_t& bytes) {
  // room for something where nothing was asked for, so that there is an address
  bytes = (bytes < 1 ? 512 : bytes + 511) / 512 * 512;
  void* at = find_block(memory, bytes);
  if (at || !device_allocate(memory->device, bytes, &at)) return at;
  if (device_wait(memory->device)) return nullptr;
  give_up_blocks(memory);
  return device_allocate(memory->device, bytes, &at) ? nullptr : at;
}
void keep_block(device_memory* memory, void* at, int64_t bytes) {
  lock(memory);
  const bool room = memory->count < device_memory::most;
  if (room) memory->blocks[memory->count++] = {at, bytes};
  unlock(memory);
  if (room || device_enter(memory->device)) return;
  device_free(memory->device, at);
  device_leave(memory->device);
}

void share(pf_memory* memory) {
  if (memory) __atomic_add_fetch(&memory->shares, 1, __ATOMIC_RELAXED);
}
void unshare(pf_memory* memory) {
  if (!memory || __atomic_sub_fetch(&memory->shares, 1, __ATOMIC_ACQ_REL)) return;
  if (memory->owner) {
    keep_block(memory->owner, memory->base, memory->bytes);
    drop_device(memory->owner);
  } else if (memory->mapped) {
    munmap(memory->base, memory->mapped);
  } else {
    free(memory->base);
  }
  free(memory);
}

pf_memory* new_memory(int64_t bytes) {
  pf_memory* memory = (pf_memory*)calloc(1, sizeof(pf_memory));
  int64_t size = bytes;
  void* at = memory ? take_block(now, size) : nullptr;
  if (!at) {
    free(memory);
    fail("memory of the device for a tensor of %lld bytes could not be had; use smaller inputs", (long long)bytes);
    return nullptr;
  }
  __atomic_add_fetch(&now->shares, 1, __ATOMIC_RELAXED);
  *memory = {1, at, 0, now, size};
  return memory;
}
// The CPU's, for a number, which callers read.
pf_memory* new_number() {
  pf_memory* memory = (pf_memory*)calloc(1, sizeof(pf_memory));
  void* at = memory ? calloc(1, 8) : nullptr;
  if (!at) {
    free(memory);
    fail("memory for a number could not be had");
    return nullptr;
  }
  *memory = {1, at, 0, nullptr, 8};
  return memory;
}

void copy_rows(char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides, int32_t rank,
               const int64_t* sizes, int64_t item) {
  if (rank > 2 || (rank == 2 && !(to_strides[1] == 1 && from_strides[1] == 1))) {
    for (int64_t i = 0; i < *sizes; ++i)
      copy_rows(to + i * *to_strides * item, to_strides + 1, from + i * *from_strides * item, from_strides + 1, rank - 1,
                sizes + 1, item);
    return;
  }
  // rows of elements side by side, or single ones
  const bool packed = rank == 2 || (rank == 1 && *to_strides == 1 && *from_strides == 1) || rank == 0;
  const int64_t width = (packed && rank > 0 ? sizes[rank - 1] : 1) * item;
  const int64_t rows = rank == 2 || (rank == 1 && !packed) ? *sizes : 1;
  const int64_t to_step = rows > 1 ? *to_strides * item : width, from_step = rows > 1 ? *from_strides * item : width;
  // a step that is shorter than a row is one of elements that share memory
  if (to_step >= width && from_step >= width) {
    failed(device_copy(now->device, to, to_step, from, from_step, width, rows));
    return;
  }
  for (int64_t i = 0; i < rows; ++i)
    failed(device_copy(now->device, to + i * to_step, width, from + i * from_step, width, width, 1));
}
bool dense(const int64_t* to_strides, const int64_t* from_strides, int32_t rank, const int64_t* sizes, int64_t* count) {
  *count = 1;
  for (int32_t d = rank - 1; d >= 0; --d) {
    if (sizes[d] != 1 && (to_strides[d] != *count || from_strides[d] != *count)) return false;
    *count *= sizes[d];
  }
  return true;
}
void copy_elements(char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides, int32_t rank,
                   const int64_t* sizes, int64_t item) {
  device_state* const device = now->device;
  const bool to_device = device_holds(device, to), from_device = device_holds(device, from);
  waits |= !to_device || !from_device;
  int64_t count;
  if (!to_device && !from_device)
    copy_on_cpu(to, to_strides, from, from_strides, rank, sizes, item);
  else if (dense(to_strides, from_strides, rank, sizes, &count))
    failed(device_copy(device, to, count * item, from, count * item, count * item, 1));
  else
    copy_rows(to, to_strides, from, from_strides, rank, sizes, item);
}

// Memory of printed host programs.
struct memory {
  void* at = nullptr;
  int64_t size = 0;
  memory() = default;
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() { discard(); }
  bool reserve(int64_t bytes) {
    discard();
    size = bytes;
    at = take_block(now, size);
    return at != nullptr;
  }
  void discard() {
    if (at) keep_block(now, at, size);
    at = nullptr;
  }
};

// Launches a kernel with memory of its own: `words` zeros of 64 bits at `*zeroed`, and what its code wants at `*scratch`.
void start(int kernel, const int64_t* grid, void** parameters, int64_t words, void** zeroed, void** scratch) {
  if (broken || grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return;
  const device_code& code = device_code_of(now->device, kernel);
  memory zeros, room;
  bool there = true;
  if (words > 0) {
    there = zeros.reserve(words * 8);
    if (there) failed(device_clear(now->device, zeros.at, words * 8));
    *zeroed = zeros.at;
  }
  if (code.scratch && there) {
    there = room.reserve(grid[0] * grid[1] * grid[2] * device_kernels[kernel].cluster * code.scratch + code.scratch_align);
    *scratch = (void*)(((uintptr_t)room.at + code.scratch_align - 1) / code.scratch_align * code.scratch_align);
  }
  failed(there ? device_launch(now->device, kernel, grid, parameters)
               : fail("memory of the device for kernel %s could not be had; use smaller inputs", device_kernels[kernel].name));
}
// Why a kernel is not launched with the numbers that it is given; false.
bool refused(int kernel, const char* reason) {
  failed(fail("kernel %s was compiled for sizes of which %s; use smaller sizes", device_kernels[kernel].name, reason));
  return false;
}

// The device on which a model computes.
struct model_device {
  device_memory* memory;

  int open() {
    device_memory* made = (device_memory*)calloc(1, sizeof(device_memory));
    if (!made) return fail("memory for the model could not be had");
    made->shares = 1;
    made->device = device_open(device_kernels, device_kernel_count);
    if (!made->device) {
      free(made);
      return 1;
    }
    memory = made;
    return 0;
  }
  void close() { drop_device(memory); }
  int use_stream(void* stream) {
    if (device_enter(memory->device)) return 1;
    // memory that is given back is for what comes behind in the same stream
    const int status = device_wait(memory->device);
    if (!status) device_stream(memory->device, stream);
    device_leave(memory->device);
    return status;
  }
};

// A thread's time with a model's device.
struct visit {
  model_device& device;
  bool entered = false;

  explicit visit(model_device& of) : device(of) {}
  ~visit() {
    if (!entered) return;
    device_leave(device.memory->device);
    now = nullptr;
  }
  int begin() {
    if (device_enter(device.memory->device)) return 1;
    entered = true;
    now = device.memory;
    broken = waits = false;
    return 0;
  }
  bool broke() { return broken; }
  int end() {
    if (waits) failed(device_wait(now->device));
    return broken;
  }
  // Whether kernels, and whether the CPU, can use what lies at an address.
  bool reaches(const void* at) { return device_holds(now->device, at); }
  bool reads(const void* at) { return !device_holds(now->device, at); }
  // A copy of the CPU's memory.
  pf_memory* bring(const char* from, int64_t bytes) {
    waits = true;
    pf_memory* made = new_memory(bytes);
    if (made && bytes) failed(device_copy(now->device, made->base, bytes, from, bytes, bytes, 1));
    return made;
  }
  // Weights as the program reads them: copied to the device, where `first` then begins.
  pf_memory* moved(pf_memory* mapped, char*& first, int64_t bytes) {
    pf_memory* made = mapped ? bring(first, bytes) : nullptr;
    // the mapping goes
    if (made) failed(device_wait(now->device));
    unshare(mapped);
    if (made) first = (char*)made->base;
    return made;
  }
  void unread(pf_memory*) {}
};
}  // namespace
