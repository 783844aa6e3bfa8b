// Matmuls of bf16 in pairs of steps: operands packed so that one instruction takes in two, or thirty-two, steps.
namespace pf {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16 && PF_DOT_BF16
// Steps are packed up to a multiple of 32; those that there are not are zero.
PF_INLINE i64 pair_depth(i64 depth) { return (depth + 31) / 32 * 32; }

// Layout of the left operand: a row whose steps are contiguous, or one that is not there.
static __attribute__((unused)) void pair_row(bf16* to, const bf16* from, i64 depth) {
  for (i64 k = 0; k < pair_depth(depth); k += 32)
    raw_store(to + k, k + 32 <= depth ? raw_load<vi32>(from + k) : matmul_halves_at(from + k, depth - k));
}
static __attribute__((unused)) void pair_no_row(bf16* to, i64 depth) {
  for (i64 k = 0; k < pair_depth(depth); k += 32) raw_store(to + k, vi32{});
}
// R rows, `ROW` apart once packed, that are contiguous at each step; beyond `rows` they are zero.
template <int R, int ROW>
static __attribute__((unused)) void pair_steps(bf16* to, const bf16* from, i64 next, i64 depth, i64 rows) {
  for (int first = 0; first < R; first += 16)
    for (i64 k = 0; k < pair_depth(depth); k += 32) {
      vi32 tile[16];
      const int n = int(matmul_lanes(rows - first));
      for (int i = 0; i < 16; ++i) {
        const i64 at = k + 2 * i;
        const bf16* const p = from + at * next + first;
        vu32 low = native_convert<vu32>(raw_load_n<vu16>(p, at < depth ? n : 0));
        vu32 high = native_convert<vu32>(raw_load_n<vu16>(p + next, at + 1 < depth ? n : 0));
        tile[i] = vi32(low | high << 16);
      }
      transpose_rows(tile);
      for (int i = 0; i < 16 && first + i < R; ++i) raw_store(to + (first + i) * ROW + k, tile[i]);
    }
}

// Layout of operand B as a block of C vectors for every pair of steps. Columns are contiguous in memory:
template <int C>
static __attribute__((unused)) void pair_along(bf16* to, const bf16* from, i64 next, i64 depth, i64 columns) {
  i64 k = 0;
  if (columns >= C * 16)
    for (; k + 1 < depth; k += 2) {
      // each step may be on a page of its own, where nothing else asks ahead
      const char* const ahead = (const char*)(from + (k + 24) * next);
#pragma GCC unroll 2
      for (int j = 0; j < C * 32; j += 64) {
        __builtin_prefetch(ahead + j, 0, 2);
        __builtin_prefetch(ahead + j + next * 2, 0, 2);
      }
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) {
        const bf16* const at = from + k * next + j * 16;
        const vu32 low = native_convert<vu32>(raw_load<vu16>(at)), high = native_convert<vu32>(raw_load<vu16>(at + next));
        raw_store(to + (k * C + j * 2) * 16, vu32(low | high << 16));
      }
    }
  for (; k < pair_depth(depth); k += 2)
    for (int j = 0; j < C; ++j) {
      const i64 n = matmul_lanes(columns - j * 16);
      const bf16* const at = from + k * next + j * 16;
      vu32 low = native_convert<vu32>(raw_load_n<vu16>(at, k < depth ? int(n) : 0));
      vu32 high = native_convert<vu32>(raw_load_n<vu16>(at + next, k + 1 < depth ? int(n) : 0));
      raw_store(to + (k * C + j * 2) * 16, vu32(low | high << 16));
    }
}
// Steps are contiguous in memory, and columns are `apart`:
template <int C>
static __attribute__((unused)) void pair_across(bf16* to, const bf16* from, i64 apart, i64 depth, i64 columns) {
  for (int j = 0; j < C; ++j) {
    const i64 rows = matmul_lanes(columns - j * 16);
    const bf16* const at = from + j * 16 * apart;
    for (i64 k = 0; k < pair_depth(depth); k += 32) {
      vi32 tile[16];
      if (rows == 16 && k + 32 <= depth) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          __builtin_prefetch(at + k + (16 + i) * apart, 0, 2);
          tile[i] = raw_load<vi32>(at + k + i * apart);
        }
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
          tile[i] = i < rows ? matmul_halves_at(at + k + i * apart, index_min(32, depth - k)) : vi32{};
      }
      transpose_rows(tile);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) raw_store(to + ((k + 2 * i) * C + j * 2) * 16, tile[i]);
    }
  }
}

// A tile of R rows, `ROW` elements apart, and C vectors of columns; sums of a row are `OUT` elements from the next one's.
template <int R, int C, int ROW, int OUT = C * 16>
static __attribute__((noinline)) void pair_tile(const bf16* a, const bf16* b, i64 depth, f32* c, bool first) {
  vf32 sum[R * C];
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) sum[i] = first ? vf32{} : load<Vec>(c + i / C * OUT + i % C * 16);
  for (i64 k = 0; k < depth; k += 2) {
    vi32 right[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) right[j] = raw_load<vi32>(b + j * 32);
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) {
      i32 two;
      __builtin_memcpy(&two, a + i * ROW + k, 4);
      vi32 left = fill<vi32>(two);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) sum[i * C + j] = matmul_step<f32, bf16, bf16>::add_up(left, right[j], sum[i * C + j]);
    }
    b += C * 32;
  }
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) store(c + i / C * OUT + i % C * 16, sum[i]);
}

#if PF_AMX
// The machine's own tiles: 16 rows of 64 bytes each. The system wants to be asked before they are used.
struct alignas(64) matrix_shape {
  unsigned char palette = 1, start = 0, none[14] = {};
  unsigned short bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
__attribute__((constructor)) static void matrix_ask() {
  long answer;
  __asm__ volatile("syscall" : "=a"(answer) : "a"(158), "D"(0x1023), "S"(18) : "rcx", "r11", "memory");
}
// Operands of STEPS steps of the depth.
template <int STEPS> static __attribute__((unused)) void matrix_begin() {
  matrix_shape shape;
  for (int i = 4; i < 6; ++i) shape.bytes[i] = STEPS * 2;
  for (int i = 6; i < 8; ++i) shape.rows[i] = STEPS / 2;
  __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}
static __attribute__((unused)) void matrix_end() { __asm__ volatile("tilerelease" : :); }
#define PF_TILE_ZERO(T) __asm__ volatile("tilezero %%tmm" #T : :)
#define PF_TILE_LOAD(T, P, STEP) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #T : : "r"(P), "r"(i64(STEP)) : "memory")
#define PF_TILE_STORE(T, P, STEP) \
  __asm__ volatile("tilestored %%tmm" #T ", (%0,%1,1)" : : "r"(P), "r"(i64(STEP)) : "memory")
#define PF_TILE_DOT(SUM, A, B) __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #SUM : :)

// Up to 16 rows, in pairs as columns of a right operand (`pair_across<1>`), and 16 columns that each lie along the depth (a
// multiple of 32), `apart` elements from each other, as rows of a left one. Sums go to c, whose rows are 16 elements long.
static __attribute__((noinline, unused)) void matrix_columns(const bf16* columns, i64 apart, const bf16* rows, i64 depth,
                                                             f32* c, i64 count, bool first) {
  alignas(64) f32 sums[4][256];
  const i64 step = apart * 2;
  PF_TILE_ZERO(0); PF_TILE_ZERO(1); PF_TILE_ZERO(2); PF_TILE_ZERO(3);
  i64 k = 0;
  for (; k + 128 <= depth; k += 128) {
    PF_TILE_LOAD(4, columns + k, step); PF_TILE_LOAD(6, rows + k * 16, 64); PF_TILE_DOT(0, 4, 6);
    PF_TILE_LOAD(5, columns + k + 32, step); PF_TILE_LOAD(7, rows + k * 16 + 512, 64); PF_TILE_DOT(1, 5, 7);
    PF_TILE_LOAD(4, columns + k + 64, step); PF_TILE_LOAD(6, rows + k * 16 + 1024, 64); PF_TILE_DOT(2, 4, 6);
    PF_TILE_LOAD(5, columns + k + 96, step); PF_TILE_LOAD(7, rows + k * 16 + 1536, 64); PF_TILE_DOT(3, 5, 7);
  }
  for (; k < depth; k += 32) {
    PF_TILE_LOAD(4, columns + k, step); PF_TILE_LOAD(6, rows + k * 16, 64); PF_TILE_DOT(0, 4, 6);
  }
  PF_TILE_STORE(0, sums[0], 64); PF_TILE_STORE(1, sums[1], 64); PF_TILE_STORE(2, sums[2], 64); PF_TILE_STORE(3, sums[3], 64);
  vi32 tile[16];
  for (int j = 0; j < 16; ++j) {
    const vf32 low = load<Vec>(sums[0] + j * 16) + load<Vec>(sums[1] + j * 16);
    tile[j] = (vi32)(low + (load<Vec>(sums[2] + j * 16) + load<Vec>(sums[3] + j * 16)));
  }
  transpose_rows(tile);
  for (i64 i = 0; i < count; ++i) {
    const vf32 sum = (vf32)tile[i];
    store(c + i * 16, first ? sum : sum + load<Vec>(c + i * 16));
  }
}

// C times 16 columns, `apart` elements from each other, that each lie along the depth (a multiple of 32), as rows of the left
// operand, and R times 16 rows, in pairs as columns of the right one (`pair_across<R>`). While more is to be added up, sums stay
// in c as registers have them; `last`, they become rows of 16 C elements.
template <int R, int C>
static __attribute__((noinline)) void matrix_turned(const bf16* columns, i64 apart, const bf16* rows, i64 depth, f32* c,
                                                    bool first, bool last, matmul_later later) {
  alignas(64) f32 sums[R * C * 256];
  const i64 step = apart * 2, pair = R * 64;
  if (first) {
    PF_TILE_ZERO(0); PF_TILE_ZERO(1); PF_TILE_ZERO(2); PF_TILE_ZERO(3);
  } else {
    PF_TILE_LOAD(0, c, 64);
    if constexpr (R > 1) PF_TILE_LOAD(1, c + 256, 64);
    if constexpr (C > 1) PF_TILE_LOAD(2, c + 256 * R, 64);
    if constexpr (R > 1 && C > 1) PF_TILE_LOAD(3, c + 768, 64);
  }
  for (i64 k = 0; k < depth; k += 32) {
    for (i64 i = 0; i < later.lines; ++i, later.from += 64) __builtin_prefetch(later.from, 0, 2);
    PF_TILE_LOAD(4, columns + k, step);
    PF_TILE_LOAD(6, rows + k * R * 16, pair);
    PF_TILE_DOT(0, 4, 6);
    if constexpr (R > 1) {
      PF_TILE_LOAD(7, rows + k * R * 16 + 32, pair);
      PF_TILE_DOT(1, 4, 7);
    }
    if constexpr (C > 1) {
      PF_TILE_LOAD(5, columns + 16 * apart + k, step);
      PF_TILE_DOT(2, 5, 6);
      if constexpr (R > 1) PF_TILE_DOT(3, 5, 7);
    }
  }
  f32* const to = last ? sums : c;
  PF_TILE_STORE(0, to, 64);
  if constexpr (R > 1) PF_TILE_STORE(1, to + 256, 64);
  if constexpr (C > 1) PF_TILE_STORE(2, to + 256 * R, 64);
  if constexpr (R > 1 && C > 1) PF_TILE_STORE(3, to + 768, 64);
  if (!last) return;
  for (int j = 0; j < C; ++j)
    for (int i = 0; i < R; ++i) {
      vi32 tile[16];
#pragma GCC unroll 16
      for (int n = 0; n < 16; ++n) tile[n] = raw_load<vi32>(sums + (j * R + i) * 256 + n * 16);
      transpose_rows(tile);
#pragma GCC unroll 16
      for (int n = 0; n < 16; ++n) raw_store(c + ((i * 16 + n) * C + j) * 16, tile[n]);
    }
}

// Asks for N lines.
template <int N> PF_INLINE void matrix_fetch(const bf16* p) {
#pragma GCC unroll 32
  for (int i = 0; i < N; ++i) __builtin_prefetch(p + i * 32, 0, 2);
}
// R times 16 rows, `apart` elements from each other, and C vectors of columns (one or two of each). Where `fetch` is not 0,
// asks for what is `fetch` elements behind the left operand, and where `ahead` is not, for what is so far behind the right one:
// loads of whole tiles are not seen coming.
template <int R, int C, int STEPS>
static __attribute__((noinline)) void matrix_tile(const bf16* a, i64 apart, i64 fetch, const bf16* b, i64 ahead, i64 depth,
                                                  f32* c, bool first, matmul_later later = {nullptr, 0}, i64 out = C * 64) {
  const i64 row = apart * 2, pair = C * 64, down = out * 4;
  if (first) {
    PF_TILE_ZERO(0); PF_TILE_ZERO(1); PF_TILE_ZERO(2); PF_TILE_ZERO(3);
  } else {
    PF_TILE_LOAD(0, c, out);
    if constexpr (C > 1) PF_TILE_LOAD(1, c + 16, out);
    if constexpr (R > 1) PF_TILE_LOAD(2, c + down, out);
    if constexpr (R > 1 && C > 1) PF_TILE_LOAD(3, c + down + 16, out);
  }
  for (i64 k = 0; k < depth; k += STEPS) {
    if (fetch)
#pragma GCC unroll 32
      for (int i = 0; i < 16 * R; ++i) __builtin_prefetch(a + i * apart + k + fetch);
    if (ahead) matrix_fetch<(C * STEPS + 1) / 2>(b + k * C * 16 + ahead);
    for (i64 i = 0; i < later.lines; ++i, later.from += 64) __builtin_prefetch(later.from, 0, 2);
    PF_TILE_LOAD(6, b + k * C * 16, pair);
    PF_TILE_LOAD(4, a + k, row);
    PF_TILE_DOT(0, 4, 6);
    if constexpr (C > 1) {
      PF_TILE_LOAD(7, b + k * C * 16 + 32, pair);
      PF_TILE_DOT(1, 4, 7);
    }
    if constexpr (R > 1) {
      PF_TILE_LOAD(5, a + 16 * apart + k, row);
      PF_TILE_DOT(2, 5, 6);
      if constexpr (C > 1) PF_TILE_DOT(3, 5, 7);
    }
  }
  PF_TILE_STORE(0, c, out);
  if constexpr (C > 1) PF_TILE_STORE(1, c + 16, out);
  if constexpr (R > 1) PF_TILE_STORE(2, c + down, out);
  if constexpr (R > 1 && C > 1) PF_TILE_STORE(3, c + down + 16, out);
}

// Windows: rows of a tile are `apart` elements from each other in a copy of the image, in which the depth lies in N chunks of
// `length` steps. The right operand follows in their order. Meanwhile asks for `lines` lines from `next` on for each step of it.
template <int R, int C, int STEPS, int N>
static __attribute__((noinline)) void matrix_window(const bf16* a, i64 apart, const i64* chunks, i64 length, const bf16* b,
                                                    const bf16* next, i64 lines, f32* c) {
  const i64 row = apart * 2, pair = C * 64, out = C * 64;
  PF_TILE_ZERO(0); PF_TILE_ZERO(1); PF_TILE_ZERO(2); PF_TILE_ZERO(3);
  for (int chunk = 0; chunk < N; ++chunk) {
    const bf16* const from = a + chunks[chunk];
    for (i64 k = 0; k < length; k += STEPS) {
      PF_TILE_LOAD(6, b, pair);
      PF_TILE_LOAD(4, from + k, row);
      PF_TILE_DOT(0, 4, 6);
      if constexpr (C > 1) {
        PF_TILE_LOAD(7, b + 32, pair);
        PF_TILE_DOT(1, 4, 7);
      }
      if constexpr (R > 1) {
        PF_TILE_LOAD(5, from + 16 * apart + k, row);
        PF_TILE_DOT(2, 5, 6);
        if constexpr (C > 1) PF_TILE_DOT(3, 5, 7);
      }
      b += C * 16 * STEPS;
      for (i64 i = 0; i < lines; ++i, next += 32) __builtin_prefetch(next, 0, 2);
    }
  }
  PF_TILE_STORE(0, c, out);
  if constexpr (C > 1) PF_TILE_STORE(1, c + 16, out);
  if constexpr (R > 1) PF_TILE_STORE(2, c + 256 * C, out);
  if constexpr (R > 1 && C > 1) PF_TILE_STORE(3, c + 256 * C + 16, out);
}
static __attribute__((unused)) void matrix_zeros(bf16* to, i64 count) { __builtin_memset(to, 0, u64(count) * 2); }
// A line of such a copy: `end` less `first` pixels of CHANNELS elements, `pitch` elements from each other, each in WIDTH
// elements of the copy; zeros before them, and behind them up to `count` pixels.
template <int CHANNELS, int WIDTH>
static __attribute__((noinline)) void matrix_pixels(bf16* to, const bf16* from, i64 pitch, i64 first, i64 end, i64 count) {
  matrix_zeros(to, first * WIDTH);
  bf16* at = to + first * WIDTH;
  if (CHANNELS == WIDTH && pitch == CHANNELS) {
    __builtin_memcpy(at, from, u64((end - first) * WIDTH) * 2);
  } else {
    for (i64 pixel = first; pixel < end; ++pixel, at += WIDTH, from += pitch) {
      for (int k = 0; k < CHANNELS; ++k) at[k] = from[k];
      for (int k = CHANNELS; k < WIDTH; ++k) at[k] = bf16{};
    }
  }
  matrix_zeros(to + end * WIDTH, (count - end) * WIDTH);
}
// Whether a sum of a tile's rows is not finite.
template <int C> static __attribute__((unused)) bool matrix_is_odd(const f32* c, i64 rows) {
  vf32 found[2] = {};
  for (i64 k = 0; k < rows * C; k += 2) {
    found[0] += load<Vec>(c + k * 16) * 0.0f;
    found[1] += load<Vec>(c + k * 16 + 16) * 0.0f;
  }
  return __builtin_expect(any(isnan(found[0] + found[1])), 0);
}
// One row of a tile: `count` steps, added to C vectors of columns.
template <int C>
static __attribute__((noinline)) void matrix_line(const bf16* a, i64 count, const bf16* b, f32* c) {
  for (int j = 0; j < C * 16; ++j) {
    f32 sum = c[j];
    for (i64 k = 0; k < count; ++k) sum += load<Sca>(a + k) * load<Sca>(b + k / 2 * C * 32 + j * 2 + k % 2);
    c[j] = sum;
  }
}
#endif
#endif
}  // namespace pf
