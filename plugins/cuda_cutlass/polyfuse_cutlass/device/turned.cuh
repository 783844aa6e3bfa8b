// How results leave registers in general: warps turn them round in shared memory, as sums.
constexpr bool SWIZZLED = CHUNK >= 32;
constexpr int PITCH = SWIZZLED ? CHUNK : CHUNK + 4;
constexpr int PIECE_BYTES = 16 * PITCH * 4;
struct Staging {
  u32 base;
  PF_INLINE Staging(u32 base, const TensorMap*) : base(base) {}
  PF_INLINE void done() {}
};

constexpr bool EARLY = false;
struct Ahead {
  PF_INLINE void ask(const Args&, int, int, int, int) {}
};

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
PF_INLINE void finish_tile(const Args& args, Staging& staging, Ahead&, Results& sum, int batch, int x0, int y0, int end) {
  Fetched fetched[2][EACH];
  if (AHEAD == 2) fetch_piece(args, fetched[0], 0, batch, x0, y0, end);
  if (BUFFERS > 1) put_piece(staging.base, sum[0], 0), __syncwarp();
#pragma unroll
  for (int p = 0; p < PIECES; ++p) {
    const u32 here = staging.base + p % BUFFERS * PIECE_BYTES;
    if (AHEAD == 1) fetch_piece(args, fetched[0], p, batch, x0, y0, end);
    if (AHEAD == 2 && p + 1 < PIECES) fetch_piece(args, fetched[(p + 1) % 2], p + 1, batch, x0, y0, end);
    if (BUFFERS == 1) put_piece(here, sum[p / PIECES_ACROSS], p % PIECES_ACROSS), __syncwarp();
    else if (p + 1 < PIECES)
      put_piece(staging.base + (p + 1) % BUFFERS * PIECE_BYTES, sum[(p + 1) / PIECES_ACROSS], (p + 1) % PIECES_ACROSS);
    PF_FOLD(Folded folded[EACH];)
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
      if constexpr (AHEAD > 0)
        finish(args, batch, unit.x, unit.y, value, fetched[AHEAD == 2 ? p % 2 : 0][i] PF_FOLD(, folded[i]));
      else finish(args, batch, unit.x, unit.y, value PF_FOLD(, folded[i]));
    }
    PF_FOLD(fold_units(args, batch, p, x0, y0, end, folded);)
    __syncwarp();
  }
}
