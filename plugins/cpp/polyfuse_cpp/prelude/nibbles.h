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
// bytes. FIRST: the bit at which the first number of a byte begins. `sums` gets the sum of each group of `each` numbers, `room`
// for each row. False: some number is not finite, or so large that a sum of products might not be.
template <int FIRST, int R, class A>
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
      for (int j = 0; j < 8; ++j) store(to + k + 16 * j, v[FIRST ? j ^ 1 : j]);
    }
  }
  return all(fits);
}
// R rows and C columns, whose bytes are at columns[j]; what the next ones hold, `ahead` bytes behind them, is asked for. The
// numbers of group g of column j are what `table` says, times factors[j * room + g], plus summands[j * room + g] where MOVES; a
// group has LANES times 8 numbers, or `blocks` blocks. Sums go to c, whose rows are `apart`.
template <int R, int C, int LANES, bool MOVES>
static __attribute__((noinline)) void nibble_products(const u8* const* columns, i64 ahead, const f32* x, const f32* sums, i64 depth,
                                                      i64 blocks, const f32* factors, const f32* summands, i64 room, vf32 table,
                                                      f32* c, i64 apart) {
  vf32 total[R * C];
  const u8* from[C];
  const vi32 group = lane_numbers<vi32>::make() / LANES;
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
        __builtin_prefetch(from[j] + ahead);
        from[j] += nibble_bytes;
      }
#pragma GCC unroll 8
      for (int at = 0; at < 8; ++at) {
        vf32 y[R];
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) y[i] = load<Vec>(x + i * depth + k + 16 * at);
#pragma GCC unroll 8
        for (int j = 0; j < C; ++j) {
          const vf32 numbers = nibble_numbers(table, bytes[j] >> (4 * at));
#pragma GCC unroll 8
          for (int i = 0; i < R; ++i) accumulate(part[i * C + j], numbers, y[i]);
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
    for (int j = 0; j < C; ++j) c[i * apart + j] = found[i * C + j];
}
#endif
}  // namespace pf
