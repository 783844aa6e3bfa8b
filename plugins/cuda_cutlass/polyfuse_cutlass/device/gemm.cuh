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
constexpr int STEPS = 4;                                              // products in a stage, of 32 bytes each
constexpr bool SWIZZLED = CHUNK >= 32;
constexpr int PITCH = SWIZZLED ? CHUNK : CHUNK + 4;
constexpr int PIECE_BYTES = 16 * PITCH * 4;
constexpr int STAGING = BUFFERS * PIECE_BYTES;  // bytes that each warp has to turn its results round
constexpr int CLUSTER = CX * CY * SPLIT;
constexpr int SHARERS = CX + CY - 1;
constexpr int LAYER = CX * CY;  // blocks that share operands; a cluster has one such layer for each part of the depth
constexpr bool TURNS = CONSUMERS > 1 && PINGPONG;

struct Ring {
  u32 full, empty, turn, x, y;  // addresses: barriers, tiles
  int stage = 0;
  u32 phase = 0, turn_phase = 0;
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
    place();
  }
  PF_INLINE bool valid() const { return at < count; }
  PF_INLINE void next() {
    at += gridDim.x / CLUSTER;
    place();
  }
  PF_INLINE void place() {
    const int each = across * down, width = RASTER * down;
    batch = at / each;
    const int rest = at - batch * each, group = rest / width, in = rest - group * width;
    const int first = group * RASTER, size = min(across - first, RASTER);
    x = first + in % size;
    y = in / size;
  }
};

// Copies one operand's part of a stage: rows `first` to `first + COUNT` of the tile at `tile`.
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
typedef Acc Part[BLOCKS][BY / PARTS / 2];

template <int N> PF_INLINE void keep(Acc (&r)[BLOCKS][N]) {
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : PF_ACC_OPERAND(r[m][i])::"memory");
}

// Starts the products of a stage with the columns from `column`. `more`: they are added to what is in `sum`.
PF_INLINE void issue(const Ring& ring, Part& sum, int row, int column, bool more) {
  const u64 x = tile_place<X_ALONG, DEPTH>(ring.x_tile() + row * 128);
  const u64 y = tile_place<Y_ALONG, DEPTH>(ring.y_tile() + column * 128);
  products_fence();
#pragma unroll
  for (int s = 0; s < STEPS; ++s)
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m)
      product(sum[m], x + m * (64 * 128 / 16) + s * (X_ALONG ? 128 : 2), y + s * (Y_ALONG ? 128 : 2), s > 0 || more);
  products_commit();
}

// The sum over the stages of a tile. `row`: the group's first row within the tile; `done`: a barrier that learns
// that all stages were there.
PF_INLINE void multiply(Ring& ring, Results& sum, int stages, int row, u32 block, u32 done) {
  if (MAY_BE_EMPTY && stages <= 0) {
    if (TURNS && threadIdx.x % 128 == 0) barrier_arrive(done);
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
      for (int i = 0; i < BY / 2; ++i) sum[m][i] = 0;
    return;
  }
  u32 last = 0;
  if constexpr (PROMOTES) {
    // the multipliers add narrow floats up with fewer bits than f32 has: not for long
    Part part;
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
      for (int i = 0; i < BY / 2; ++i) sum[m][i] = 0;
    for (int k = 0; k < stages; k += INTERVAL) {
      const int count = min(INTERVAL, stages - k);
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        Ring at = ring;
        keep(part);
        for (int i = 0; i < count; ++i, at.next()) {
          if (p == 0) barrier_wait(at.full_bar(), at.phase);
          issue(at, part, row, p * (BY / PARTS), i > 0);
          if (PARTS == 1 && i > 0) products_wait<1>(), release(last, block);
          last = at.empty_bar();
        }
        if (TURNS && p + 1 == PARTS && k + count == stages && threadIdx.x % 128 == 0) barrier_arrive(done);
        products_wait<0>();
        keep(part);
        if (p + 1 == PARTS) {
          for (; PARTS > 1 && ring.stage != at.stage; ring.next()) release(ring.empty_bar(), block);
          if (PARTS == 1) release(last, block);
          ring = at;
        }
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
          for (int i = 0; i < BY / PARTS / 2; ++i) sum[m][p * (BY / PARTS / 2) + i] += part[m][i];
      }
    }
    return;
  }
  keep(sum);
  for (int k = 0; k < stages; ++k) {
    barrier_wait(ring.full_bar(), ring.phase);
    issue(ring, (Part&)sum, row, 0, k > 0);  // one part is all
    if (k > 0) {
      products_wait<1>();
      release(last, block);
    }
    last = ring.empty_bar();
    ring.next();
  }
  if (TURNS && threadIdx.x % 128 == 0) barrier_arrive(done);
  products_wait<0>();
  keep(sum);
  release(last, block);
}

// Where a result is while a warp turns its results round. Pieces of 16 bytes change places in each row, and in its
// second half, so that neither rows of pairs nor pieces of rows meet in a bank.
PF_INLINE u32 turned(u32 staging, int row, int column) {
  const int piece = column / 4 ^ (SWIZZLED ? ((row & 3) << 1 | (row & 1)) ^ (column / 32 & 1) : 0);
  return staging + (row * PITCH + piece * 4 + column % 4) * 4;
}

// The sums of a piece: CHUNK columns of 16 rows of a warp.
constexpr int PIECES_ACROSS = BY / CHUNK, PIECES = BLOCKS * PIECES_ACROSS;
PF_INLINE void put_piece(u32 staging, Acc (&sum)[BY / 2], int piece) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < CHUNK / 8; ++j) {
    const u32 to = turned(staging, lane / 4, j * 8 + lane % 4 * 2);
    const Acc* from = &sum[(piece * (CHUNK / 8) + j) * 4];
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), PF_ACC_IN(from[0]), PF_ACC_IN(from[1]) : "memory");
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + 8 * PITCH * 4), PF_ACC_IN(from[2]),
                 PF_ACC_IN(from[3]) : "memory");
  }
}

// What a thread finishes of a piece: units of VEC neighbours in memory.
constexpr int UNITS = 16 * CHUNK / VEC, EACH = (UNITS + 31) / 32;
// What they need besides is asked for while results are turned round, a piece ahead if registers hold it beside the
// sums: 2; or for the same piece: 1. With two copies of the sums there is no room for it.
constexpr int HELD = BLOCKS * BY / 2, MORE = EACH * FETCHED / 4;
constexpr bool IN_REGISTERS = FETCHED > 0 && EACH <= UNROLL && !PROMOTES;
constexpr int AHEAD = !IN_REGISTERS ? 0 : HELD + 2 * MORE <= 184 ? 2 : HELD + MORE <= 212 ? 1 : 0;
struct Unit {
  int row, column, x, y;
  bool valid;
  PF_INLINE Unit(const Args& args, int piece, int i, int x0, int y0, int end) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, unit = i * 32 + lane;
    row = VEC_X ? unit % (16 / VEC) * VEC : unit / (CHUNK / VEC);
    column = VEC_X ? unit / (16 / VEC) : unit % (CHUNK / VEC) * VEC;
    x = x0 + piece / PIECES_ACROSS * 64 + warp * 16 + row, y = y0 + piece % PIECES_ACROSS * CHUNK + column;
    valid = (UNITS % 32 == 0 || unit < UNITS) && x < end && y < extent_y(args);
  }
};
PF_INLINE void fetch_piece(const Args& args, Fetched (&fetched)[EACH], int piece, int batch, int x0, int y0, int end) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const Unit unit(args, piece, i, x0, y0, end);
    if (unit.valid) fetch(args, batch, unit.x, unit.y, fetched[i]);
  }
}

// A warp turns its results round, a piece at a time, so that each thread finishes VEC neighbours in memory. With two
// buffers, the next piece is put into one while the other is read. `end`: where the rows of use end.
PF_INLINE void finish_tile(const Args& args, u32 staging, Results& sum, int batch, int x0, int y0, int end) {
  Fetched fetched[2][EACH];
  if (AHEAD == 2) fetch_piece(args, fetched[0], 0, batch, x0, y0, end);
  if (BUFFERS > 1) put_piece(staging, sum[0], 0), __syncwarp();
#pragma unroll
  for (int p = 0; p < PIECES; ++p) {
    const u32 here = staging + p % BUFFERS * PIECE_BYTES;
    if (AHEAD == 1) fetch_piece(args, fetched[0], p, batch, x0, y0, end);
    if (AHEAD == 2 && p + 1 < PIECES) fetch_piece(args, fetched[(p + 1) % 2], p + 1, batch, x0, y0, end);
    if (BUFFERS == 1) put_piece(here, sum[p / PIECES_ACROSS], p % PIECES_ACROSS), __syncwarp();
    else if (p + 1 < PIECES)
      put_piece(staging + (p + 1) % BUFFERS * PIECE_BYTES, sum[(p + 1) / PIECES_ACROSS], (p + 1) % PIECES_ACROSS);
#pragma unroll UNROLL
    for (int i = 0; i < EACH; ++i) {
      const Unit unit(args, p, i, x0, y0, end);
      if (!unit.valid) continue;
      Acc value[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const int row = unit.row + (VEC_X ? v : 0), column = unit.column + (VEC_X ? 0 : v);
        if constexpr (!VEC_X && VEC % 4 == 0) {
          if (v % 4 == 0)
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : PF_ACC_OUT(value[v]), PF_ACC_OUT(value[v + 1]), PF_ACC_OUT(value[v + 2]),
                           PF_ACC_OUT(value[v + 3])
                         : "r"(turned(here, row, column)) : "memory");
        } else {
          asm volatile("ld.shared.b32 %0, [%1];" : PF_ACC_OUT(value[v]) : "r"(turned(here, row, column)) : "memory");
        }
      }
      if constexpr (AHEAD > 0) finish(args, batch, unit.x, unit.y, value, fetched[AHEAD == 2 ? p % 2 : 0][i]);
      else finish(args, batch, unit.x, unit.y, value);
    }
    __syncwarp();
  }
}

// The blocks of a cluster have each summed a part of the depth: they add up the parts, a share of the tile each.
constexpr int PART_PITCH = BY + 4;
PF_INLINE void store_part(u32 base, Results& sum, int row) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int j = 0; j < BY / 8; ++j) {
      const u32 to = base + ((row + m * 64 + warp * 16 + lane / 4) * PART_PITCH + j * 8 + lane % 4 * 2) * 4;
      const Acc* from = &sum[m][j * 4];
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), PF_ACC_IN(from[0]), PF_ACC_IN(from[1]) : "memory");
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + 8 * PART_PITCH * 4), PF_ACC_IN(from[2]),
                   PF_ACC_IN(from[3]) : "memory");
    }
}
PF_INLINE void finish_parts(const Args& args, u32 base, u32 block, int batch, int x0, int y0) {
  constexpr int UNITS = TAKEN * BY / VEC;
  const int share = block / LAYER * (128 * CONSUMERS);
  for (int unit = share + threadIdx.x - 128; unit < UNITS; unit += SPLIT * 128 * CONSUMERS) {
    const int row = VEC_X ? unit % (TAKEN / VEC) * VEC : unit / (BY / VEC);
    const int column = VEC_X ? unit / (TAKEN / VEC) : unit % (BY / VEC) * VEC;
    if (x0 + row >= extent_x(args) || y0 + column >= extent_y(args)) continue;
    Acc value[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) value[v] = 0;
#pragma unroll
    for (int part = 0; part < SPLIT; ++part) {
      u32 there;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there)
                   : "r"(base + (row * PART_PITCH + column) * 4), "r"(part * LAYER + block % LAYER));
      if constexpr (!VEC_X && VEC % 4 == 0) {
#pragma unroll
        for (int v = 0; v < VEC; v += 4) {
          Acc one[4];
          asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
                       : PF_ACC_OUT(one[0]), PF_ACC_OUT(one[1]), PF_ACC_OUT(one[2]), PF_ACC_OUT(one[3])
                       : "r"(there + v * 4) : "memory");
#pragma unroll
          for (int i = 0; i < 4; ++i) value[v + i] += one[i];
        }
      } else {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          Acc one;
          asm volatile("ld.shared::cluster.b32 %0, [%1];" : PF_ACC_OUT(one)
                       : "r"(there + v * 4 * (VEC_X ? PART_PITCH : 1)) : "memory");
          value[v] += one;
        }
      }
    }
    finish(args, batch, x0 + row, y0 + column, value);
  }
}

PF_INLINE void consume(Ring ring, const Args& args, u32 block, u32 staging, int stages) {
  const int group = threadIdx.x / 128 - 1, row = TURNS ? 0 : group * GROUP_ROWS;
  const int rx = block % CX, ry = block / CX % CY;
  Tiles tiles(args);
  if (TURNS && group) tiles.next(), ring.skip(stages);
  for (; tiles.valid(); tiles.next()) {
    Results sum;
    // a barrier tells a round from the one before, not from those before that: begin only when it is time
    if (TURNS) barrier_wait(ring.turn + 8 * group, ring.turn_phase), ring.turn_phase ^= 1;
    multiply(ring, sum, stages, row, block, ring.turn + 8 * (group ^ 1));
    const int x = (tiles.x * CX + rx) * TAKEN, y = (tiles.y * CY + ry) * BY;
    finish_tile(args, staging, sum, tiles.batch, x + row, y, min(extent_x(args), x + TAKEN));
    if (TURNS) tiles.next(), ring.skip(stages);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) PF_CLUSTER
POLYFUSE_KERNEL(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_y,
                const __grid_constant__ Args args) {
  extern __shared__ u8 memory[];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  Ring ring;
  ring.x = base;
  ring.y = base + STAGES * X_BYTES;
  const u32 staging = base + STAGES * (X_BYTES + Y_BYTES);
  ring.full = staging + (SPLIT > 1 ? 0 : CONSUMERS * 4 * STAGING);
  ring.empty = ring.full + 8 * STAGES;
  ring.turn = ring.empty + 8 * STAGES;
  ring.turn_phase = threadIdx.x / 128 == 2 ? 0 : 1;  // the first group need not wait for its first turn
  const u32 block = CLUSTER > 1 ? block_of_cluster() : 0;
  if (threadIdx.x == 0) {
    map_prefetch(&map_x);
    map_prefetch(&map_y);
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, (TURNS ? 1 : CONSUMERS) * SHARERS);
    }
    for (int i = 0; TURNS && i < 2; ++i) barrier_init(ring.turn + 8 * i, 1);
    barriers_ready();
  }
  if constexpr (CLUSTER > 1) cluster_arrive_relaxed(), cluster_wait();
  else __syncthreads();
  const int all = (depth(args) + DEPTH - 1) / DEPTH, each = (all + SPLIT - 1) / SPLIT;
  const int begin = SPLIT > 1 ? min(all, (int)block / LAYER * each) : 0, end = SPLIT > 1 ? min(all, begin + each) : all;
  if constexpr (SPLIT > 1) {
    Tiles tiles(args);  // one for each cluster
    if (threadIdx.x < 128) {
      if (threadIdx.x == 0) produce(ring, &map_x, &map_y, args, block, begin, end);
      __syncwarp();
      cluster_arrive(), cluster_wait();
    } else {
      const int row = (threadIdx.x / 128 - 1) * GROUP_ROWS;
      Results sum;
      multiply(ring, sum, end - begin, row, block, 0);
      warps_sync(1, 128 * CONSUMERS);  // the ring is read to its end: the parts take its place
      store_part(base, sum, row);
      cluster_arrive(), cluster_wait();
      const int x = (tiles.x * CX + block % CX) * TAKEN, y = (tiles.y * CY + block / CX % CY) * BY;
      finish_parts(args, base, block, tiles.batch, x, y);
    }
    cluster_arrive_relaxed(), cluster_wait();  // others may still read this block's part
  } else {
    if (threadIdx.x < 128) {
      if constexpr (CONSUMERS > 1) fewer_registers<40>();
      if (threadIdx.x == 0) produce(ring, &map_x, &map_y, args, block, 0, all);
    } else {
      if constexpr (CONSUMERS > 1) more_registers<232>();
      consume(ring, args, block, staging + (threadIdx.x / 32 - 4) * STAGING, all);
    }
    // others may still signal a block that is done
    if constexpr (CLUSTER > 1) cluster_arrive_relaxed(), cluster_wait();
  }
}
