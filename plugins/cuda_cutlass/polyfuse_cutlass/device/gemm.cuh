// The kernel: one group of four warps feeds tiles to the others through a ring in shared memory; those multiply
// and finish the results. Blocks stay and take tile after tile.
//
// In terms of the result, x are the rows and y the columns of what the multiplier makes.
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int GROUP_ROWS = 64 * BLOCKS;                               // rows of a group of warps
constexpr int BX = PINGPONG ? GROUP_ROWS : GROUP_ROWS * CONSUMERS;  // rows of a tile
constexpr int DEPTH = 128 / BYTES;                                    // of a stage
// Of the rows that are multiplied, the first TAKEN are of use: only these are in memory, stored, and stepped over.
constexpr int X_BYTES = TAKEN * 128, Y_BYTES = BY * 128;
constexpr int STEPS = 4;                                              // MMA instructions in a stage, of 32 bytes each
constexpr int CLUSTER = CX * CY * SPLIT;
constexpr int SHARERS = CX + CY - 1;
constexpr int LAYER = CX * CY;  // blocks that share operands; a cluster has one such layer for each split of the depth
constexpr bool ALTERNATES = CONSUMERS > 1 && PINGPONG;

struct Ring {
  u32 full, empty, order, x, y;  // addresses: barriers, tiles
  int stage = 0;
  u32 phase = 0, order_phase = 0;
  PF_INLINE void next() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  PF_INLINE void skip(int count) {
    stage += count;
    phase ^= (stage / STAGES) & 1;
    stage %= STAGES;
  }
  PF_INLINE u32 full_bar() const { return full + 8 * stage; }
  PF_INLINE u32 empty_bar() const { return empty + 8 * stage; }
  PF_INLINE u32 x_tile() const { return x + X_BYTES * stage; }
  PF_INLINE u32 y_tile() const { return y + Y_BYTES * stage; }
};

// The tiles of one block, in an order that keeps what they share in the cache.
struct Tiles {
  int across, down, count, at;
  int x, y, batch;
  PF_INLINE Tiles(const Args& args) {
    across = (extent_x(args) + TAKEN * CX - 1) / (TAKEN * CX);
    down = (extent_y(args) + BY * CY - 1) / (BY * CY);
    count = across * down * batches(args);
    at = blockIdx.x / CLUSTER;
    locate();
  }
  PF_INLINE bool valid() const { return at < count; }
  PF_INLINE void next() {
    at += gridDim.x / CLUSTER;
    locate();
  }
  PF_INLINE void locate() {
    const int each = across * down, width = RASTER * down;
    batch = at / each;
    const int rest = at - batch * each, group = rest / width, in = rest - group * width;
    const int first = group * RASTER, size = min(across - first, RASTER);
    x = first + in % size;
    y = in / size;
  }
};

// Copies what a stage holds of one operand: rows `first` to `first + COUNT` of the tile at `tile`.
template <bool ALONG, int COUNT, int B>
PF_INLINE void feed(u32 tile, const TensorMap* map, u32 bar, u16 others, int first, int row, int k, const int (&b)[B]) {
  if constexpr (ALONG) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 64)
      copy_tile(tile + (first + i) * 128, map, bar, others, row + first + i, k, b);
  } else {
    copy_tile(tile + first * 128, map, bar, others, k, row + first, b);
  }
}

PF_INLINE void produce(Ring ring, const TensorMap* map_x, const TensorMap* map_y, const Args& args, u32 block,
                       int begin, int end) {
  const int rx = block % CX, ry = block / CX % CY;
  const int layer = block / LAYER * LAYER;
  u16 row_blocks = 0, column_blocks = 0;  // with which blocks the tiles of x, of y are shared
#pragma unroll
  for (int i = 0; i < CY; ++i) row_blocks |= CY > 1 ? 1 << (layer + rx + i * CX) : 0;
#pragma unroll
  for (int i = 0; i < CX; ++i) column_blocks |= CX > 1 ? 1 << (layer + i + ry * CX) : 0;
  for (Tiles tiles(args); tiles.valid(); tiles.next()) {
    int bx[X_BATCHES], by[Y_BATCHES];
    operand_batches(args, tiles.batch, bx, by);
    const int x = (tiles.x * CX + rx) * TAKEN, y = (tiles.y * CY + ry) * BY;
    for (int k = begin; k < end; ++k, ring.next()) {
      barrier_wait(ring.empty_bar(), ring.phase ^ 1);
      barrier_expect(ring.full_bar(), X_BYTES + Y_BYTES);
      feed<X_ALONG, TAKEN / CY>(ring.x_tile(), map_x, ring.full_bar(), row_blocks, ry * (TAKEN / CY), x, k * DEPTH, bx);
      feed<Y_ALONG, BY / CX>(ring.y_tile(), map_y, ring.full_bar(), column_blocks, rx * (BY / CX), y, k * DEPTH, by);
    }
  }
}

// The tile may be overwritten, as far as this group of warps is concerned.
PF_INLINE void release(u32 bar, u32 block) {
  const u32 thread = threadIdx.x % 128;
  if constexpr (CX * CY == 1) {
    if (thread == 0) barrier_arrive(bar);
  } else {
    const bool shares = thread % CX == block % CX || thread / CX == block % LAYER / CX;
    if (thread < LAYER && shares) barrier_arrive_at(bar, block / LAYER * LAYER + thread);
  }
}

typedef Acc Results[BLOCKS][BY / 2];
typedef Acc PartialSum[BLOCKS][BY / ACCUMULATOR_SPLITS / 2];

template <int N> PF_INLINE void keep(Acc (&r)[BLOCKS][N]) {
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : PF_ACC_OPERAND(r[m][i])::"memory");
}

// Starts the MMA instructions of a stage with the columns from `column`. `more`: they are added to what is in `sum`.
PF_INLINE void issue(const Ring& ring, PartialSum& sum, int row, int column, bool more) {
  const u64 x = tile_descriptor<X_ALONG, DEPTH>(ring.x_tile() + row * 128);
  const u64 y = tile_descriptor<Y_ALONG, DEPTH>(ring.y_tile() + column * 128);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m)
      mma(sum[m], x + m * (64 * 128 / 16) + s * (X_ALONG ? 128 : 2), y + s * (Y_ALONG ? 128 : 2), s > 0 || more);
  wgmma_commit();
}

// The sum over the stages of a tile. `row`: the group's first row within the tile; `done`: a barrier that learns
// that all stages were there.
PF_INLINE void multiply(Ring& ring, Results& sum, int stages, int row, u32 block, u32 done) {
  if (MAY_BE_EMPTY && stages <= 0) {
    if (ALTERNATES && threadIdx.x % 128 == 0) barrier_arrive(done);
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
      for (int i = 0; i < BY / 2; ++i) sum[m][i] = 0;
    return;
  }
  u32 last = 0;
  if constexpr (PROMOTES) {
    // the multipliers add narrow floats up with fewer bits than f32 has: not for long
    PartialSum partial;
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
      for (int i = 0; i < BY / 2; ++i) sum[m][i] = 0;
    for (int k = 0; k < stages; k += INTERVAL) {
      const int count = min(INTERVAL, stages - k);
#pragma unroll
      for (int p = 0; p < ACCUMULATOR_SPLITS; ++p) {
        Ring at = ring;
        keep(partial);
        for (int i = 0; i < count; ++i, at.next()) {
          if (p == 0) barrier_wait(at.full_bar(), at.phase);
          issue(at, partial, row, p * (BY / ACCUMULATOR_SPLITS), i > 0);
          if (ACCUMULATOR_SPLITS == 1 && i > 0) wgmma_wait<1>(), release(last, block);
          last = at.empty_bar();
        }
        if (ALTERNATES && p + 1 == ACCUMULATOR_SPLITS && k + count == stages && threadIdx.x % 128 == 0) barrier_arrive(done);
        wgmma_wait<0>();
        keep(partial);
        if (p + 1 == ACCUMULATOR_SPLITS) {
          for (; ACCUMULATOR_SPLITS > 1 && ring.stage != at.stage; ring.next()) release(ring.empty_bar(), block);
          if (ACCUMULATOR_SPLITS == 1) release(last, block);
          ring = at;
        }
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
          for (int i = 0; i < BY / ACCUMULATOR_SPLITS / 2; ++i) sum[m][p * (BY / ACCUMULATOR_SPLITS / 2) + i] += partial[m][i];
      }
    }
    return;
  }
  keep(sum);
  for (int k = 0; k < stages; ++k) {
    barrier_wait(ring.full_bar(), ring.phase);
    issue(ring, (PartialSum&)sum, row, 0, k > 0);  // without splits
    if (k > 0) {
      wgmma_wait<1>();
      release(last, block);
    }
    last = ring.empty_bar();
    ring.next();
  }
  if (ALTERNATES && threadIdx.x % 128 == 0) barrier_arrive(done);
  wgmma_wait<0>();
  keep(sum);
  release(last, block);
}
