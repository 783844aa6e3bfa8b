// Where a block of attention is, and which tiles it walks through. Functions that are generated behind this say how
// arguments are read, and give scores and their gradients.
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int ROW_BYTES = 128;  // of a slab of a tile: what the copy engine swizzles
constexpr int LANES = ROW_BYTES / 2;

// A batch and head, and the first of a block's queries (of its keys in the backward).
struct Coord {
  int batch, head, row;
};
// Which of the tiles of which head a block has. A few heads go together, whose operands fit in the second cache: first
// the tiles with the longest lists of all of these, so that short ones are left for the end.
constexpr int BLOCKS_TOGETHER = 264;  // two for each multiprocessor
struct Turn {
  int tile, head;
  PF_INLINE Turn(int block, int tiles, int heads) {
    const int together = max(1, BLOCKS_TOGETHER / tiles), first = block / (together * tiles) * together;
    const int rest = block - first * tiles, width = min(together, heads - first);
    tile = rest / width;
    head = first + rest % width;
  }
};
// How many tiles of keys (of queries) a block needs, of each list.
struct Steps {
  int count[LISTS];
  PF_INLINE int all() const {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < LISTS; ++i) sum += count[i];
    return sum;
  }
};
// A tile: its first key or query, and whether the mask says which count. As one number, for shared memory.
struct Tile {
  int packed;
  PF_INLINE Tile(int packed) : packed(packed) {}
  PF_INLINE Tile(int first, bool masked) : packed(first << 1 | (int)masked) {}
  PF_INLINE int first() const { return packed >> 1; }
  PF_INLINE bool masked() const { return packed & 1; }
};
