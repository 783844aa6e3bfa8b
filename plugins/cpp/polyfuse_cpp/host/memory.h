// The memory of printed host programs, above host.h: the CPU's.
#include <stdlib.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
typedef int64_t i64;
namespace {
// Blocks that nothing uses, cached from call to call: fresh memory costs a fault for each page of 4096 bytes. Calls of
// several threads find blocks of their own.
struct cached_blocks {
  enum : i64 { least = i64(128) << 10, in_all = i64(1) << 30 };
  enum { most = 64 };
  bool taken;
  int count;
  i64 bytes;
  struct { void* at; i64 bytes; } blocks[most];

  ~cached_blocks() { clear(); }
  void lock() { while (__atomic_test_and_set(&taken, __ATOMIC_ACQUIRE)) {} }
  void unlock() { __atomic_clear(&taken, __ATOMIC_RELEASE); }
  // The smallest block with room for so many bytes, whose size it tells, unless that is more than twice as large.
  void* find(i64& wanted) {
    void* found = nullptr;
    lock();
    int best = -1;
    for (int i = 0; i < count; ++i) {
      const bool fits = blocks[i].bytes >= wanted && blocks[i].bytes / 2 <= wanted;
      if (fits && (best < 0 || blocks[i].bytes < blocks[best].bytes)) best = i;
    }
    if (best >= 0) {
      found = blocks[best].at;
      wanted = blocks[best].bytes;
      bytes -= wanted;
      blocks[best] = blocks[--count];
    }
    unlock();
    return found;
  }
  // Whether a block is cached from now on.
  bool put(void* at, i64 size) {
    lock();
    const bool room = count < most && bytes + size <= in_all;
    if (room) {
      blocks[count++] = {at, size};
      bytes += size;
    }
    unlock();
    return room;
  }
  void clear() {
    lock();
    while (count > 0) free(blocks[--count].at);
    bytes = 0;
    unlock();
  }
};
cached_blocks block_cache;

// Memory of the system's, on large pages where it has some and they fill one: kernels go through all of it, and each
// page costs a lookup.
inline void* fresh_block(i64 size) {
  const i64 page = i64(2) << 20;
  void* at = nullptr;
  if (posix_memalign(&at, size < page ? 64 : page, size) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
  if (size >= page) madvise(at, size / page * page, MADV_HUGEPAGE);
#endif
  return at;
}

// Memory that only kernels see.
struct memory {
  void* at = nullptr;
  i64 size = 0;
  memory() = default;
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() { discard(); }
  bool reserve(i64 bytes) {
    discard();
    // room for a vector where nothing was asked for, so that there is an address
    size = bytes < 64 ? 64 : bytes;
    at = size < cached_blocks::least ? nullptr : block_cache.find(size);
    if (!at) at = fresh_block(size);
    return at != nullptr;
  }
  void discard() {
    if (!at || size < cached_blocks::least || !block_cache.put(at, size)) free(at);
    at = nullptr;
  }
};
}  // namespace
