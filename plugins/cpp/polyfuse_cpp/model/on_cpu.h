// The memory of the tensors of a model that runs without Python: the CPU's. on_device.h has the same functions
// for a device. Above message.h and host/memory.h.

// Memory that several tensors may show; who holds the last share frees it.
struct pf_memory {
  int64_t shares;
  void* base;
  size_t mapped;  // bytes of a mapping, 0: from the heap
};

namespace {
const char device_type[] = "cpu";

void share(pf_memory* memory) {
  if (memory) __atomic_add_fetch(&memory->shares, 1, __ATOMIC_RELAXED);
}
void unshare(pf_memory* memory) {
  if (!memory || __atomic_sub_fetch(&memory->shares, 1, __ATOMIC_ACQ_REL)) return;
  if (memory->mapped) munmap(memory->base, memory->mapped);
  else free(memory->base);
  free(memory);
}

// Memory with one share; null and a message where there is none.
pf_memory* new_memory(int64_t bytes) {
  pf_memory* memory = (pf_memory*)calloc(1, sizeof(pf_memory));
  if (memory && (memory->base = fresh_block(bytes < 64 ? 64 : bytes))) {
    memory->shares = 1;
    return memory;
  }
  free(memory);
  fail("memory for a tensor of %lld bytes could not be had; use smaller inputs", (long long)bytes);
  return nullptr;
}
// The same for a number, which callers read.
pf_memory* new_number() { return new_memory(8); }

void copy_elements(char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides, int32_t rank,
                   const int64_t* sizes, int64_t item) {
  copy_on_cpu(to, to_strides, from, from_strides, rank, sizes, item);
}

// The device on which a model computes: the CPU, which needs nothing.
struct model_device {
  int open() { return 0; }
  void close() { block_cache.clear(); }
  int use_stream(void*) { return fail("a model that computes on the CPU has no stream"); }
};

// A thread's use of that device, as for a call.
struct visit {
  explicit visit(model_device&) {}
  int begin() { return 0; }
  bool broke() { return false; }
  int end() { return 0; }
  // Whether kernels, and whether the CPU, can use what lies at an address.
  bool reaches(const void*) { return true; }
  bool reads(const void*) { return true; }
  pf_memory* bring(const char*, int64_t) { return nullptr; }
  // Weights as the program reads them.
  pf_memory* moved(pf_memory* mapped, char*&, int64_t) { return mapped; }
  // Releases the pages of a mapping, until somebody reads them.
  void unread(pf_memory* mapped) { madvise(mapped->base, mapped->mapped, MADV_DONTNEED); }
};
}  // namespace
