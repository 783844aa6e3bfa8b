// How results of 16 bits leave registers: they are computed and rounded where the multiplier left them, a warp lays
// fragments of 16 rows and 64 columns into shared memory, and the copy engine takes them to memory while the next tile
// is multiplied. It leaves out what lies beyond an edge.
constexpr int FRAGMENT_COLUMNS = 64, FRAGMENT_BYTES = 16 * FRAGMENT_COLUMNS * 2, FRAGMENT_BUFFERS = STAGING / FRAGMENT_BYTES;
// The last fragment may overlap the one before, and then stores some results twice.
constexpr int FRAGMENTS_ACROSS = (BY + FRAGMENT_COLUMNS - 1) / FRAGMENT_COLUMNS;

// Buffers of a warp, and which is next.
struct Staging {
  u32 base;
  const TensorMap* map;
  int next = 0;
  PF_INLINE Staging(u32 base, const TensorMap* map) : base(base), map(map) {}
  // Where the next fragment has room. One thread of the warp deals with the copy engine.
  PF_INLINE u32 room() const {
    if (threadIdx.x % 32 == 0) stores_wait<FRAGMENT_BUFFERS - 1>();
    __syncwarp();
    return base + next * FRAGMENT_BYTES;
  }
  PF_INLINE void store(int x, int y, const int (&batch)[RESULT_BATCHES]) {
    copies_see_writes();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      store_tile(base + next * FRAGMENT_BYTES, map, y, x, batch);
      stores_commit();
    }
    next = next + 1 == FRAGMENT_BUFFERS ? 0 : next + 1;
  }
  PF_INLINE void done() const {
    if (threadIdx.x % 32 == 0) stores_wait<0>();
  }
};

// A thread holds two neighbouring columns of every eight, in two rows of sixteen.
struct Corner {
  int lane, first, row, column;  // `first`: the warp's first row
  PF_INLINE Corner(u32 thread)
      : lane(thread % 32), first(thread / 32 % 4 * 16), row(first + lane / 4), column(lane % 4 * 2) {}
};
// Beyond an edge, what belongs to the last pair of columns serves as well: it is not stored.
PF_INLINE void fetch_fragment(const Args& args, OfColumns (&of)[8], int batch, int y) {
#pragma unroll
  for (int j = 0; j < 8; ++j) fetch_columns(args, batch, min(y + j * 8, extent_y(args) - 2), of[j]);
}

// What a tile needs besides its sums, as far as it is loaded before they are there: for all rows, and for the first
// fragment. `end`: where the rows of use end.
// That is before they are multiplied, if registers hold it beside the sums.
constexpr int LIVE_REGISTERS = BLOCKS * BY / 2 * (PROMOTES ? ACCUMULATOR_SPLITS + 1 : ACCUMULATOR_SPLITS) / ACCUMULATOR_SPLITS;
constexpr bool PREFETCHES = LIVE_REGISTERS + (8 * FETCHED + 2 * BLOCKS * FETCHED_OF_ROW) / 4 <= 196;
struct Prefetched {
  OfRow rows[BLOCKS][2];
  OfColumns columns[8];
  PF_INLINE void load(const Args& args, int batch, int x0, int y0, int end) {
    const Corner at(thread_here());
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        fetch_row(args, batch, min(x0 + m * 64 + at.row + h * 8, end - 1), rows[m][h]);
    fetch_fragment(args, columns, batch, y0 + at.column);
  }
};

PF_INLINE void finish_tile(const Args& args, Staging& staging, Prefetched& prefetched, Results& sum, int batch, int x0, int y0,
                           int end) {
  const Corner at(thread_here());
  int batches[RESULT_BATCHES];
  result_batches(args, batch, batches);
  OfColumns columns[2][8];
#pragma unroll
  for (int j = 0; j < 8; ++j) columns[0][j] = prefetched.columns[j];
#pragma unroll
  for (int p = 0; p < FRAGMENTS_ACROSS; ++p) {
    const int first = min(p * FRAGMENT_COLUMNS, BY - FRAGMENT_COLUMNS);
    if (p + 1 < FRAGMENTS_ACROSS)
      fetch_fragment(args, columns[(p + 1) % 2], batch, y0 + at.column + min((p + 1) * FRAGMENT_COLUMNS, BY - FRAGMENT_COLUMNS));
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
      const int x = x0 + m * 64, y = y0 + first;
      if (x + at.first >= end || y >= extent_y(args)) continue;
      u32 pair[8][2];
      PF_REDUCE(Reduced reduced[8][2];)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Acc* from = &sum[m][(first / 8 + j) * 4 + h * 2];
          const Acc two[2] = {from[0], from[1]};
          f32 to[2];
          finish(args, batch, x + at.row + h * 8, y + at.column + j * 8, two, prefetched.rows[m][h], columns[p % 2][j], to
                 PF_REDUCE(, reduced[j][h]));
          pair[j][h] = pair_of<Result>(to[0], to[1]);
        }
      PF_REDUCE(reduce_all(args, batch, ReducedFragment{reduced, x + at.first, y, end});)
      const u32 fragment = staging.room();
      // each thread names one row of eight results; neighbours of 16 bytes are swizzled as the copy engine does
      const int row = at.lane % 16, half = at.lane / 16;
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        put_matrices(fragment + row * 128 + ((j + half) ^ (row % 8)) * 16, pair[j][0], pair[j][1], pair[j + 1][0],
                     pair[j + 1][1]);
      staging.store(x + at.first, y, batches);
    }
  }
}
