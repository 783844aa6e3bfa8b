// What printed host programs are made of, above host.h.
#include <stdlib.h>
typedef int64_t i64;
namespace {
// Rounded towards minus infinity, as sizes are computed everywhere; divisors are never 0.
inline i64 index_div(i64 a, i64 b) { i64 q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); }
inline i64 index_mod(i64 a, i64 b) { i64 r = a % b; return r + (((r != 0) & ((r < 0) != (b < 0))) ? b : 0); }
inline i64 index_min(i64 a, i64 b) { return a < b ? a : b; }
inline i64 index_max(i64 a, i64 b) { return a > b ? a : b; }
inline i64 index_root(i64 n) {
  i64 low = 0, high = 3037000499;  // its square is the last one below 2^63
  while (low < high) {
    const i64 middle = low + (high - low + 1) / 2;
    if (middle * middle <= n) low = middle; else high = middle - 1;
  }
  return low;
}

// A reference that the program owns.
struct owner {
  const pf_runtime* runtime;
  pf_ref ref;
  explicit owner(const pf_runtime* s, pf_ref r = nullptr) : runtime(s), ref(r) {}
  owner(const owner&) = delete;
  owner& operator=(const owner&) = delete;
  ~owner() { drop(); }
  void drop() {
    if (ref) runtime->release(runtime->context, ref);
    ref = nullptr;
  }
  void take(pf_word word) { drop(); ref = word.ref; }
  pf_word give() { pf_word word; word.ref = ref; ref = nullptr; return word; }
};

// Blocks that nothing uses, kept from call to call: fresh memory costs a fault for each page of 4096 bytes. Calls of
// several threads find blocks of their own.
struct kept_blocks {
  enum : i64 { least = i64(128) << 10, in_all = i64(1) << 30 };
  enum { most = 64 };
  bool taken;
  int count;
  i64 bytes;
  struct { void* at; i64 bytes; } blocks[most];

  ~kept_blocks() { forget(); }
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
  // Whether a block is kept.
  bool keep(void* at, i64 size) {
    lock();
    const bool room = count < most && bytes + size <= in_all;
    if (room) {
      blocks[count++] = {at, size};
      bytes += size;
    }
    unlock();
    return room;
  }
  void forget() {
    lock();
    while (count > 0) free(blocks[--count].at);
    bytes = 0;
    unlock();
  }
};
kept_blocks kept;

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
    at = size < kept_blocks::least ? nullptr : kept.find(size);
    if (at || posix_memalign(&at, 64, size) == 0) return true;
    at = nullptr;
    return false;
  }
  void discard() {
    if (!at || size < kept_blocks::least || !kept.keep(at, size)) free(at);
    at = nullptr;
  }
};

inline bool fetch(const pf_runtime* s, pf_ref tensor, char*& at) {
  void* found = nullptr;
  if (s->data(s->context, tensor, &found)) return false;
  at = (char*)found;
  return true;
}
inline pf_word word(i64 i) { pf_word w; w.i = i; return w; }
inline pf_word lent(const owner& o) { pf_word w; w.ref = o.ref; return w; }
inline pf_word lent(pf_ref r) { pf_word w; w.ref = r; return w; }
}  // namespace
