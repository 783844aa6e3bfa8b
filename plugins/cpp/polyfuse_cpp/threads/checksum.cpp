// Checksums of memory at the speed at which it is read, by which a change of a parameter is seen.
//
// Each eight bytes are a pair of 32-bit numbers. To both of a pair its key is added, and their product, of 64 bits, is added
// to one of some sums: another content has the same sum with a probability of 2^-32. Keys are there for 1 KB; after that
// the sums are mixed, so that positions count beyond it, too.
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_get_max_threads(void);
int omp_in_parallel(void);
}

namespace {

constexpr int64_t kWidth = 16;  // what every 64-bit machine has: wider vectors wait for memory as these do
typedef uint64_t Pairs __attribute__((vector_size(kWidth)));
typedef uint32_t Words __attribute__((vector_size(kWidth)));

constexpr int64_t kLine = 64, kStretch = 1024;              // bytes that are fetched at once, and of all keys
constexpr int64_t kParts = 4, kPart = kStretch / kParts;    // parts of a block that are read side by side
constexpr int64_t kAhead = 1024;                            // bytes ahead that are fetched
constexpr int64_t kBlock = 64 << 10, kMost = 1024;          // bytes that one thread takes at once, and blocks of a region
constexpr int64_t kShared = 256 << 10;                      // bytes from which on threads share the work

inline uint64_t mixed(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

struct Keys {
  Words of[kStretch / kWidth];
  Keys() {
    uint64_t at = 1;
    for (Words& words : of)
      for (int j = 0; j < kWidth / 4; ++j) words[j] = uint32_t(mixed(at += 0xd1342543de82ef95u) >> 16);
  }
};

const Keys keys;

// The products of the lower and the upper halves of pairs.
inline Pairs product(Words x) {
  const Pairs high = (Pairs)x >> 32;
#if defined(__x86_64__) && !defined(__clang__)
  typedef int Native __attribute__((vector_size(kWidth)));
  return (Pairs)__builtin_ia32_pmuludq128((Native)x, (Native)high);
#else
  return ((Pairs)x & 0xffffffffu) * high;
#endif
}

inline Words words_at(const char* at) {
  Words found;
  memcpy(&found, at, sizeof found);
  return found;
}

uint64_t of_block(const char* at, int64_t bytes) {
  Pairs sum = {1, 2};
  // several parts are read at once: of one alone, the machine fetches too little ahead
  const int64_t apart = bytes / kStretch * kPart;
  for (int64_t from = 0; from < apart; from += kPart) {
    Pairs other = {};
    const Words* key = keys.of;
    for (int64_t k = 0; k < kParts; ++k) {
      const char* const part = at + k * apart + from;
      for (int64_t i = 0; i < kPart; i += kLine) __builtin_prefetch(part + i + kAhead);
      for (int64_t i = 0; i < kPart; i += 2 * kWidth, key += 2) {
        sum += product(words_at(part + i) + key[0]);
        other += product(words_at(part + i + kWidth) + key[1]);
      }
    }
    sum += other;
    sum ^= sum >> 37;
    sum *= 0x9e3779b97f4a7c15u;
  }
  at += kParts * apart;
  bytes -= kParts * apart;
  for (int64_t i = 0; bytes > 0; ++i, bytes -= kWidth, at += kWidth) {
    char rest[kWidth] = {};
    memcpy(rest, at, size_t(bytes < kWidth ? bytes : kWidth));
    sum += product(words_at(rest) + keys.of[i]);
  }
  uint64_t all = 0;
  for (int64_t i = 0; i < kWidth / 8; ++i) all = mixed(all ^ mixed(sum[i]));
  return all;
}

struct Region {
  const char* at;
  long long bytes;
  int64_t block() const {  // bytes of its blocks
    const int64_t least = (bytes + kMost - 1) / kMost;
    return least < kBlock ? kBlock : (least + kStretch - 1) / kStretch * kStretch;
  }
  int64_t count() const { return (bytes + block() - 1) / block(); }
};

struct Work {
  const Region* regions;
  int64_t many, blocks;
  uint64_t* found;  // one for each block of all regions, one region after the other
};

void share_of(const void* work, long long at, long long of) {
  const Work& all = *static_cast<const Work*>(work);
  const int64_t begin = all.blocks * at / of, end = all.blocks * (at + 1) / of;
  int64_t before = 0;
  for (int64_t r = 0; r < all.many && before < end; ++r) {
    const Region& region = all.regions[r];
    const int64_t block = region.block(), count = region.count();
    const int64_t last = end - before < count ? end - before : count;
    for (int64_t i = begin > before ? begin - before : 0; i < last; ++i) {
      const int64_t from = i * block, left = region.bytes - from;
      all.found[before + i] = of_block(region.at + from, left < block ? left : block);
    }
    before += count;
  }
}

}  // namespace

using Share = void (*)(const void* work, long long at, long long of);

// A number that the bytes of some regions give, whatever the number of threads. `share` is `polyfuse_share` of pool.cpp, which
// has `team` threads do it, or null: then OpenMP's do.
extern "C" __attribute__((visibility("default"))) uint64_t polyfuse_checksum(
    const Region* regions, long long many, int team, void (*share)(int of, Share share, const void* work)) {
  int64_t blocks = 0, bytes = 0;
  for (int64_t r = 0; r < many; ++r) {
    blocks += regions[r].count();
    bytes += regions[r].bytes;
  }
  std::vector<uint64_t> found(static_cast<size_t>(blocks));
  const Work work{regions, many, blocks, found.data()};
  if (!share) team = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (bytes < kShared || team < 2) {
    share_of(&work, 0, 1);
  } else if (share) {
    share(team, share_of, &work);
  } else {
#pragma omp parallel
    share_of(&work, omp_get_thread_num(), omp_get_num_threads());
  }
  uint64_t all = mixed(uint64_t(many));
  const uint64_t* next = found.data();
  for (int64_t r = 0; r < many; ++r) {
    all = mixed(all ^ mixed(uint64_t(regions[r].bytes)));
    for (int64_t i = regions[r].count(); i; --i) all = mixed(all ^ *next++);
  }
  return all;
}
