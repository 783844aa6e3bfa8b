// Attention: one thread feeds tiles of keys and values to groups of four warps. Each of those keeps 64 queries, multiplies
// them by a tile of keys, turns scores to weights, and adds up values by weight. While one group makes weights
// another one multiplies, and within a group a tile's values are multiplied beside the next tile's keys.
//
// What is generated between this and the rest: how arguments are read, and the functions of a score.
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int ROWS = 64 * GROUPS;  // queries of a block
constexpr int ROW_BYTES = 128;     // of a slab of a tile: what the copy engine swizzles
constexpr int LANES = ROW_BYTES / 2;
constexpr int QUERY_BYTES = ROWS * DEPTH * 2, KEY_BYTES = KEYS * DEPTH * 2, VALUE_BYTES = KEYS * VALUES * 2;

// A block's queries.
struct Place {
  int batch, head, row;
};
// How many tiles of keys they need, of each list.
struct Steps {
  int count[LISTS];
  PF_INLINE int all() const {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < LISTS; ++i) sum += count[i];
    return sum;
  }
};
// A tile of keys: the first, and whether the mask says which count. As one number, for shared memory.
struct Tile {
  int packed;
  PF_INLINE Tile(int packed) : packed(packed) {}
  PF_INLINE Tile(int first, bool masked) : packed(first << 1 | (int)masked) {}
  PF_INLINE int first() const { return packed >> 1; }
  PF_INLINE bool masked() const { return packed & 1; }
};
