// How results leave registers in general: warps transpose them in shared memory, as sums.
constexpr bool SWIZZLED = CHUNK >= 32;
constexpr int PITCH = SWIZZLED ? CHUNK : CHUNK + 4;
constexpr int FRAGMENT_BYTES = 16 * PITCH * 4;
struct Staging {
  u32 base;
  PF_INLINE Staging(u32 base, const TensorMap*) : base(base) {}
  PF_INLINE void done() {}
};

constexpr bool PREFETCHES = false;
struct Prefetched {
  PF_INLINE void load(const Args&, int, int, int, int) {}
};

// Where a result is while a warp transposes its results. Chunks of 16 bytes are swizzled in each row, and in its
// second half, so that neither rows of pairs nor fragments of rows meet in a bank.
PF_INLINE u32 transposed(u32 staging, int row, int column) {
  const int fragment = column / 4 ^ (SWIZZLED ? ((row & 3) << 1 | (row & 1)) ^ (column / 32 & 1) : 0);
  return staging + (row * PITCH + fragment * 4 + column % 4) * 4;
}

// The sums of a fragment: CHUNK columns of 16 rows of a warp.
constexpr int FRAGMENTS_ACROSS = BY / CHUNK, FRAGMENTS = BLOCKS * FRAGMENTS_ACROSS;
PF_INLINE void put_fragment(u32 staging, Acc (&sum)[BY / 2], int fragment) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < CHUNK / 8; ++j) {
    const u32 to = transposed(staging, lane / 4, j * 8 + lane % 4 * 2);
    const Acc* from = &sum[(fragment * (CHUNK / 8) + j) * 4];
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), PF_ACC_IN(from[0]), PF_ACC_IN(from[1]) : "memory");
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + 8 * PITCH * 4), PF_ACC_IN(from[2]),
                 PF_ACC_IN(from[3]) : "memory");
  }
}

// What a thread finishes of a fragment: units of VEC neighbours in memory.
constexpr int UNITS = 16 * CHUNK / VEC, EACH = (UNITS + 31) / 32;
// What they need besides is loaded while results are transposed, a fragment ahead if registers hold it beside the
// sums: 2; or for the same fragment: 1. With two copies of the sums there is no room for it.
constexpr int LIVE_REGISTERS = BLOCKS * BY / 2, MORE = EACH * FETCHED / 4;
constexpr bool IN_REGISTERS = FETCHED > 0 && EACH <= UNROLL && !PROMOTES;
constexpr int AHEAD = !IN_REGISTERS ? 0 : LIVE_REGISTERS + 2 * MORE <= 184 ? 2 : LIVE_REGISTERS + MORE <= 212 ? 1 : 0;
struct Unit {
  int row, column, x, y;
  bool valid;
  PF_INLINE Unit(const Args& args, int fragment, int i, int x0, int y0, int end) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, unit = i * 32 + lane;
    row = VEC_X ? unit % (16 / VEC) * VEC : unit / (CHUNK / VEC);
    column = VEC_X ? unit / (16 / VEC) : unit % (CHUNK / VEC) * VEC;
    x = x0 + fragment / FRAGMENTS_ACROSS * 64 + warp * 16 + row, y = y0 + fragment % FRAGMENTS_ACROSS * CHUNK + column;
    valid = (UNITS % 32 == 0 || unit < UNITS) && x < end && y < extent_y(args);
  }
};
PF_INLINE void fetch_fragment(const Args& args, Fetched (&fetched)[EACH], int fragment, int batch, int x0, int y0, int end) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const Unit unit(args, fragment, i, x0, y0, end);
    if (unit.valid) fetch(args, batch, unit.x, unit.y, fetched[i]);
  }
}

// A warp transposes its results, a fragment at a time, so that each thread finishes VEC neighbours in memory. With two
// buffers, the next fragment is put into one while the other is read. `end`: where the rows of use end.
PF_INLINE void finish_tile(const Args& args, Staging& staging, Prefetched&, Results& sum, int batch, int x0, int y0, int end) {
  Fetched fetched[2][EACH];
  if (AHEAD == 2) fetch_fragment(args, fetched[0], 0, batch, x0, y0, end);
  if (BUFFERS > 1) put_fragment(staging.base, sum[0], 0), __syncwarp();
#pragma unroll
  for (int p = 0; p < FRAGMENTS; ++p) {
    const u32 here = staging.base + p % BUFFERS * FRAGMENT_BYTES;
    if (AHEAD == 1) fetch_fragment(args, fetched[0], p, batch, x0, y0, end);
    if (AHEAD == 2 && p + 1 < FRAGMENTS) fetch_fragment(args, fetched[(p + 1) % 2], p + 1, batch, x0, y0, end);
    if (BUFFERS == 1) put_fragment(here, sum[p / FRAGMENTS_ACROSS], p % FRAGMENTS_ACROSS), __syncwarp();
    else if (p + 1 < FRAGMENTS)
      put_fragment(staging.base + (p + 1) % BUFFERS * FRAGMENT_BYTES, sum[(p + 1) / FRAGMENTS_ACROSS], (p + 1) % FRAGMENTS_ACROSS);
    PF_REDUCE(Reduced reduced[EACH];)
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
                         : "r"(transposed(here, row, column)) : "memory");
        } else {
          asm volatile("ld.shared.b32 %0, [%1];" : PF_ACC_OUT(value[v]) : "r"(transposed(here, row, column)) : "memory");
        }
      }
      if constexpr (AHEAD > 0)
        finish(args, batch, unit.x, unit.y, value, fetched[AHEAD == 2 ? p % 2 : 0][i] PF_REDUCE(, reduced[i]));
      else finish(args, batch, unit.x, unit.y, value PF_REDUCE(, reduced[i]));
    }
    PF_REDUCE(reduce_units(args, batch, p, x0, y0, end, reduced);)
    __syncwarp();
  }
}
