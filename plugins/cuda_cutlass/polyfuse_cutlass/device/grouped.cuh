// GEMMs of groups of rows, each with a matrix of its own. Where groups end is read from memory. One group of four
// warps feeds tiles to the others through a ring in shared memory; blocks stay and take tile after tile.
constexpr int THREADS = 128 * (CONSUMERS + 1), ROWS = 64 * CONSUMERS, DEPTH = 64, STEPS = 4;
constexpr int LEFT_BYTES = ROWS * 128, RIGHT_BYTES = COLUMNS * 128;
// Each warp transposes its results, 32 columns of 16 rows at a time, so that each thread stores neighbours. Chunks of
// 16 bytes are swizzled in each row: neither rows of pairs nor fragments of rows meet in a bank.
constexpr int CHUNK = 32, FRAGMENT = 16 * CHUNK, VEC = 8;
PF_INLINE u32 transposed(u32 fragment, int row, int column) {
  return fragment + (row * CHUNK + (column / 4 ^ ((row & 3) << 1 | (row & 1))) * 4 + column % 4) * 4;
}

struct Ring {
  u32 full, empty, left, right;  // addresses: barriers, tiles
  int stage = 0;
  u32 phase = 0;
  PF_INLINE void next() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  PF_INLINE u32 full_bar() const { return full + 8 * stage; }
  PF_INLINE u32 empty_bar() const { return empty + 8 * stage; }
  PF_INLINE u32 left_tile() const { return left + LEFT_BYTES * stage; }
  PF_INLINE u32 right_tile() const { return right + RIGHT_BYTES * stage; }
};

// The tiles of one block: group after group, and in a group row after row, for all of these share columns.
struct Tiles {
  const Args& args;
  int at, group = 0, passed = 0, begin = 0, end;
  int row, column;
  PF_INLINE Tiles(const Args& args) : args(args), at(blockIdx.x), end(ending(0)) { locate(); }
  PF_INLINE int ending(int which) const {
    return which < (int)args.groups ? min((int)read_only(args.ends + args.ends_at + which), (int)args.rows) : 0;
  }
  PF_INLINE bool valid() const { return group < (int)args.groups; }
  PF_INLINE void next() {
    at += gridDim.x;
    locate();
  }
  PF_INLINE void locate() {
    const int across = ((int)args.columns + COLUMNS - 1) / COLUMNS;
    for (; valid(); ++group) {
      const int down = max(0, end - begin + ROWS - 1) / ROWS;
      const int rest = at - passed;
      if (rest < down * across) {
        row = begin + rest % down * ROWS;
        column = rest / down * COLUMNS;
        return;
      }
      passed += down * across;
      begin = max(begin, end);
      end = ending(group + 1);
    }
  }
};

PF_INLINE void produce(Ring ring, const TensorMap* map_left, const TensorMap* map_right, const Args& args) {
  const int none[1] = {0}, stages = ((int)args.depth + DEPTH - 1) / DEPTH;
  for (Tiles tiles(args); tiles.valid(); tiles.next()) {
    const int group[1] = {tiles.group};
    for (int k = 0; k < stages; ++k, ring.next()) {
      barrier_wait(ring.empty_bar(), ring.phase ^ 1);
      barrier_expect(ring.full_bar(), LEFT_BYTES + RIGHT_BYTES);
      copy_tile(ring.left_tile(), map_left, ring.full_bar(), 0, k * DEPTH, tiles.row, none);
      if constexpr (ALONG) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 64)
          copy_tile(ring.right_tile() + i * 128, map_right, ring.full_bar(), 0, tiles.column + i, k * DEPTH, group);
      } else {
        copy_tile(ring.right_tile(), map_right, ring.full_bar(), 0, k * DEPTH, tiles.column, group);
      }
    }
  }
}

PF_INLINE void keep(f32 (&sum)[COLUMNS / 2]) {
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

PF_INLINE void multiply(Ring& ring, f32 (&sum)[COLUMNS / 2], int stages, int row) {
  u32 last = 0;
  if (stages == 0) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sum[i] = 0;
    return;
  }
  keep(sum);
  for (int k = 0; k < stages; ++k) {
    barrier_wait(ring.full_bar(), ring.phase);
    const u64 left = tile_descriptor<false, DEPTH>(ring.left_tile() + row * 128);
    const u64 right = tile_descriptor<ALONG, DEPTH>(ring.right_tile());
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < STEPS; ++s) mma(sum, left + s * 2, right + s * (ALONG ? 128 : 2), s > 0 || k > 0);
    wgmma_commit();
    if (k > 0) {
      wgmma_wait<1>();
      if (threadIdx.x % 128 == 0) barrier_arrive(last);
    }
    last = ring.empty_bar();
    ring.next();
  }
  wgmma_wait<0>();
  keep(sum);
  if (threadIdx.x % 128 == 0) barrier_arrive(last);
}

// Stores what lies in the tile's group.
PF_INLINE void finish(const Args& args, u32 fragment, f32 (&sum)[COLUMNS / 2], int row, int column, int end) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int chunk = 0; chunk < COLUMNS / CHUNK; ++chunk) {
#pragma unroll
    for (int j = 0; j < CHUNK / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const f32* from = &sum[(chunk * (CHUNK / 8) + j) * 4 + i * 2];
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(transposed(fragment, lane / 4 + i * 8, j * 8 + lane % 4 * 2)),
                     "f"(from[0]), "f"(from[1]) : "memory");
      }
    __syncwarp();
#pragma unroll 1
    for (int unit = lane; unit < FRAGMENT / VEC; unit += 32) {
      const int dx = unit / (CHUNK / VEC), dy = unit % (CHUNK / VEC) * VEC;
      const int x = row + dx, y = column + chunk * CHUNK + dy;
      if (x < end && y < (int)args.columns) {
        Pack<Result, VEC> p;
#pragma unroll
        for (int v = 0; v < VEC; v += 4) {
          f32 four[4];
          asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                       : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3])
                       : "r"(transposed(fragment, dx, dy + v)) : "memory");
#pragma unroll
          for (int i = 0; i < 4; ++i) p.item[v + i] = memory_form<Result>::of(four[i]);
        }
        write<VEC>(args.out + (x * args.out_step + y), p);
      }
    }
    __syncwarp();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
POLYFUSE_KERNEL(const __grid_constant__ TensorMap map_left, const __grid_constant__ TensorMap map_right,
                const __grid_constant__ Args args) {
  extern __shared__ u8 memory[];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  Ring ring;
  ring.left = base;
  ring.right = base + STAGES * LEFT_BYTES;
  const u32 staging = base + STAGES * (LEFT_BYTES + RIGHT_BYTES);
  ring.full = staging + CONSUMERS * 4 * FRAGMENT * 4;
  ring.empty = ring.full + 8 * STAGES;
  if (threadIdx.x == 0) {
    map_prefetch(&map_left);
    map_prefetch(&map_right);
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, CONSUMERS);
    }
    barriers_ready();
  }
  __syncthreads();
  wait_for_dependencies();
  if (threadIdx.x < 128) {
    if constexpr (CONSUMERS > 1) fewer_registers<40>();
    if (threadIdx.x == 0) produce(ring, &map_left, &map_right, args);
  } else {
    if constexpr (CONSUMERS > 1) more_registers<232>();
    const int warps = threadIdx.x / 128 - 1, stages = ((int)args.depth + DEPTH - 1) / DEPTH;
    const u32 fragment = staging + (threadIdx.x / 32 - 4) * FRAGMENT * 4;
    for (Tiles tiles(args); tiles.valid(); tiles.next()) {
      f32 sum[COLUMNS / 2];
      multiply(ring, sum, stages, warps * 64);
      const int row = tiles.row + warps * 64 + threadIdx.x / 32 % 4 * 16;
      finish(args, fragment, sum, row, tiles.column, tiles.end);
    }
  }
}
