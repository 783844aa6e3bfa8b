// Products of a few rows with a weight of four bits, two numbers in a byte, whose factors belong to groups of the depth: each
// number is looked up as it is multiplied, and the sum of a group is scaled in place of its numbers.
namespace pf {
#if PF_W == 16
// What is laid out, and multiplied, at once: numbers of the depth, bytes of a column.
enum { nibble_block = 128, nibble_bytes = 64 };
// Sixteen numbers by the lower four bits of each lane.
PF_INLINE vf32 nibble_numbers(vf32 table, vi32 at) {
#if PF_AVX512 && PF_X86_BUILTINS
  return (vf32)__builtin_ia32_permvarsf512_mask(table, at, vf32{}, (unsigned short)-1);
#else
  return select_lanes(table, table, at & 15);
#endif
}
// How a lane's eight numbers are multiplied: one after the other, or two at once by rows of bf16, which are exact then.
struct nibble_ones {
  enum { steps = 8, halved = 0 };
  typedef vf32 numbers;
  typedef vf32 row;
  PF_INLINE vf32 table(vf32 of) { return of; }
  PF_INLINE vf32 take(const f32* p) { return load<Vec>(p); }
  PF_INLINE vf32 look(vf32 table, vi32 at) { return nibble_numbers(table, at); }
  PF_INLINE void add_up(vf32& sum, vf32 a, vf32 b) { accumulate(sum, a, b); }
};
struct nibble_pairs {
  enum { steps = 4, halved = 1 };
  typedef vi32 row;
  PF_INLINE vi32 take(const f32* p) { return raw_load<vi32>(p); }
#if PF_AVX512 && PF_X86_BUILTINS && PF_DOT_BF16
  typedef matmul_s32 numbers;
  // Both halves are equal, so that the fifth bit, which is another number's, does not matter.
  PF_INLINE matmul_s32 table(vf32 of) { return (matmul_s32)matmul_pair(of, of); }
  PF_INLINE matmul_s32 look(matmul_s32 table, vi32 at) {
    return (matmul_s32)__builtin_ia32_permvarhi512_mask(table, (matmul_s32)at, matmul_s32{}, 0xffffffffu);
  }
  PF_INLINE void add_up(vf32& sum, matmul_s32 a, vi32 b) { sum = matmul_step<f32, bf16, bf16>::add_up((vi32)a, b, sum); }
#else
  struct numbers { vf32 low, high; };
  PF_INLINE vf32 table(vf32 of) { return of; }
  PF_INLINE numbers look(vf32 table, vi32 at) { return {nibble_numbers(table, at), nibble_numbers(table, at >> 16)}; }
  PF_INLINE void add_up(vf32& sum, numbers a, vi32 b) {
    accumulate(sum, a.low, (vf32)(b << 16)), accumulate(sum, a.high, (vf32)(b >> 16 << 16));
  }
#endif
};
template <int FIRST> struct nibble_every { static constexpr int at(int k) { return 2 * k + FIRST; } };
// Vector j of eight becomes each eighth number, from number j on.
PF_INLINE void nibble_eighths(vf32* v) {
#pragma GCC unroll 3
  for (int times = 0; times < 3; ++times) {
    vf32 odd[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      odd[i] = chooser<16>::of<nibble_every<1>>(v[2 * i], v[2 * i + 1]);
      v[i] = chooser<16>::of<nibble_every<0>>(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[4 + i] = odd[i];
  }
}
// R rows as they are multiplied: of each block vector j holds what the numbers are multiplied by that begin at bit 4 * j of four
// bytes, and of pairs those at bit 4 * j + 16. FIRST: the bit at which the first number of a byte begins. `sums` gets the sum of each group of `each` numbers, `room`
// for each row. False: some number is not finite, or so large that a sum of products might not be.
template <int FIRST, int R, class STEP, class A>
static __attribute__((noinline)) bool nibble_rows(f32* to, f32* sums, const A* const* rows, i64 depth, i64 each, i64 room) {
  vmask fits = eq(vf32{}, vf32{});
  for (int row = 0; row < R; ++row, to += depth, sums += room) {
    for (i64 g = 0; g < room; ++g) sums[g] = 0;
    for (i64 k = 0; k < depth; k += nibble_block) {
      vf32 v[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) v[i] = load<Vec>(rows[row] + k + 16 * i);
#pragma GCC unroll 4
      for (int i = 0; i < 8; i += 2) {
        sums[(k + 16 * i) / each] += reduce_add(add(v[i], v[i + 1]));
        fits = bitwise_and(fits, bitwise_and(le(abs(v[i]), fill<vf32>(1e30f)), le(abs(v[i + 1]), fill<vf32>(1e30f))));
      }
      nibble_eighths(v);
#pragma GCC unroll 8
      for (int at = 0; at < STEP::steps; ++at) {
        const int j = FIRST ? at ^ 1 : at;
        if (!STEP::halved) store(to + k + 16 * at, v[j]);
        else raw_store(to + k / 2 + 16 * at, (vi32)((vu32)v[j] >> 16 | (vu32)v[j + 4] >> 16 << 16));
      }
    }
  }
  return all(fits);
}
// R rows and C columns, whose bytes are at columns[j]; what the next ones hold, `ahead` bytes behind them, is asked for. The
// numbers of group g of column j are what `numbers` says, times factors[j * room + g], plus summands[j * room + g] where MOVES; a
// group has LANES times 8 numbers, or `blocks` blocks. Sums go to c, whose rows are `apart`, and columns `spread`.
template <int R, int C, int LANES, bool MOVES, class STEP>
static __attribute__((noinline)) void nibble_products(const u8* const* columns, i64 ahead, const f32* x, const f32* sums, i64 depth,
                                                      i64 blocks, const f32* factors, const f32* summands, i64 room, vf32 numbers,
                                                      f32* c, i64 apart, i64 spread) {
  vf32 total[R * C];
  const u8* from[C];
  const vi32 group = lane_numbers<vi32>::make() / LANES;
  const auto table = STEP::table(numbers);
#pragma GCC unroll 8
  for (int i = 0; i < R * C; ++i) total[i] = vf32{};
#pragma GCC unroll 8
  for (int j = 0; j < C; ++j) from[j] = columns[j];
  i64 g = 0;
  for (i64 k = 0; k < depth; g += 16 / LANES) {
    vf32 part[R * C];
#pragma GCC unroll 8
    for (int i = 0; i < R * C; ++i) part[i] = vf32{};
    for (i64 block = 0; block < blocks; ++block, k += nibble_block) {
      vi32 bytes[C];
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        bytes[j] = raw_load<vi32>(from[j]);
        __builtin_prefetch(from[j] + ahead, 0, 2);
        from[j] += nibble_bytes;
      }
#pragma GCC unroll 8
      for (int at = 0; at < STEP::steps; ++at) {
        typename STEP::row y[R];
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) y[i] = STEP::take(x + i * depth + (k >> STEP::halved) + 16 * at);
#pragma GCC unroll 8
        for (int j = 0; j < C; ++j) {
          const typename STEP::numbers found = STEP::look(table, bytes[j] >> (4 * at));
#pragma GCC unroll 8
          for (int i = 0; i < R; ++i) STEP::add_up(part[i * C + j], found, y[i]);
        }
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      const f32* const at = factors + j * room + g;
      const vf32 factor = LANES == 16 ? fill<vf32>(*at) : nibble_numbers(load<Vec>(at), group);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) accumulate(total[i * C + j], part[i * C + j], factor);
    }
  }
  if constexpr (MOVES)
    for (i64 at = 0; at < g; at += 16)
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        const vf32 summand = load_n<Vec>(summands + j * room + at, index_min(16, g - at));
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) accumulate(total[i * C + j], summand, load<Vec>(sums + i * room + at));
      }
  alignas(64) f32 found[16];
  matmul_sums<R * C>(total, found);
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) c[i * apart + j * spread] = found[i * C + j];
}
#endif
}  // namespace pf
