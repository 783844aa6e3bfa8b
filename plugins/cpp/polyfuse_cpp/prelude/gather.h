// Indexed memory: gather(p, index[, mask]), gather_near(p, index), gather_again(p, index) and
// scatter(p, index, value[, mask]); index in elements, i32 or i64.
// Lanes where the mask is false touch no memory and give zero.  Of equal scatter indices the last lane wins.
// PF_GATHERS  where the machine's own gathers are quicker than loads one by one: 0 nowhere, 1 for an index that is
//             used once or a few times, 2 everywhere
#ifndef PF_GATHERS
#define PF_GATHERS 2
#endif
namespace pf {
#if PF_W > 1
// A vector of the elements at lanes FROM, FROM + 1, ... of an index, named one by one: that compiles to loads that insert.
template <int LANES> struct collector;
#define PF_COLLECTOR(N, ...)                                                                              \
  template <> struct collector<N> {                                                                       \
    template <class V, int FROM, class T, class I> PF_INLINE V of(const T* p, I k) { return V{__VA_ARGS__}; } \
  };
#define PF_AT(i) load_one(p + lane(k, FROM + i))
PF_COLLECTOR(1, PF_AT(0))
PF_COLLECTOR(2, PF_AT(0), PF_AT(1))
PF_COLLECTOR(4, PF_AT(0), PF_AT(1), PF_AT(2), PF_AT(3))
PF_COLLECTOR(8, PF_AT(0), PF_AT(1), PF_AT(2), PF_AT(3), PF_AT(4), PF_AT(5), PF_AT(6), PF_AT(7))
PF_COLLECTOR(16, PF_AT(0), PF_AT(1), PF_AT(2), PF_AT(3), PF_AT(4), PF_AT(5), PF_AT(6), PF_AT(7), PF_AT(8), PF_AT(9),
             PF_AT(10), PF_AT(11), PF_AT(12), PF_AT(13), PF_AT(14), PF_AT(15))
#endif
template <class T, class I> PF_INLINE with<I, T> gather_lanes(const T* p, I index) {
  typedef with<I, T> V;
#if PF_W > 1
  if constexpr (tr<I>::is_vec && !same<T, bool>::value) {
#if PF_WIDE
    if constexpr (sizeof(T) == 8) {
      typedef decltype(V::lo) H;
      return {collector<PF_HALF>::template of<H, 0>(p, index), collector<PF_HALF>::template of<H, PF_HALF>(p, index)};
    } else
#endif
      return collector<PF_W>::template of<V, 0>(p, index);
  } else
#endif
  {
    V r{};
#pragma GCC unroll 16
    for (int i = 0; i < int(tr<I>::lanes); ++i) r = set_lane(r, i, load_one(p + lane(index, i)));
    return r;
  }
}
template <class T, class I, class M> PF_INLINE with<I, T> gather_lanes(const T* p, I index, M mask) {
  with<I, T> r{};
#pragma GCC unroll 16
  for (int i = 0; i < int(tr<I>::lanes); ++i)
    if (lane(mask, i)) r = set_lane(r, i, load_one(p + lane(index, i)));
  return r;
}
#if PF_AVX512 && PF_W == 16 && PF_X86_BUILTINS
typedef int g16si __attribute__((vector_size(64)));
typedef float g16sf __attribute__((vector_size(64)));
typedef float g8sf __attribute__((vector_size(32)));
typedef double g8df __attribute__((vector_size(64)));
typedef int g8si __attribute__((vector_size(32)));
typedef long long g8di __attribute__((vector_size(64)));
template <class V> PF_INLINE V gather_words(const void* p, vi32 i, unsigned k) {
  return (V)__builtin_ia32_gathersiv16sf(g16sf{}, p, i, (unsigned short)k, 4);
}
template <class V> PF_INLINE V gather_words(const void* p, vi64 i, unsigned k) {
  g8sf lo = __builtin_ia32_gatherdiv16sf(g8sf{}, p, (g8di)i.lo, (unsigned char)k, 4);
  g8sf hi = __builtin_ia32_gatherdiv16sf(g8sf{}, p, (g8di)i.hi, (unsigned char)(k >> 8), 4);
  return (V)join_halves<g16sf>(lo, hi);
}
template <class V> PF_INLINE V gather_doubles(const void* p, vi64 i, unsigned k) {
  typedef decltype(V::lo) H;
  return {(H)__builtin_ia32_gatherdiv8df(g8df{}, p, (g8di)i.lo, (unsigned char)k, 8),
          (H)__builtin_ia32_gatherdiv8df(g8df{}, p, (g8di)i.hi, (unsigned char)(k >> 8), 8)};
}
template <class T, class I> PF_INLINE with<I, T> gather_bits(const T* p, I index, unsigned k) {
  if constexpr (sizeof(T) == 4) return gather_words<with<I, T>>(p, index, k);
  else return gather_doubles<with<I, T>>(p, cast<i64>(index), k);
}
#endif
// Indices that fit in i32, as gather takes them quickest: loads one by one want them as wide as addresses.
template <class I> PF_INLINE auto gather_index(I index) {
#if PF_AVX512 && PF_W == 16 && PF_X86_BUILTINS && PF_GATHERS
  return cast<i32>(index);
#else
  return index;
#endif
}
template <class T, class I> PF_INLINE with<I, T> gather(const T* p, I index) {
#if PF_AVX512 && PF_W == 16 && PF_X86_BUILTINS && PF_GATHERS
  if constexpr (tr<I>::is_vec && sizeof(T) >= 4) return gather_bits(p, index, 0xffffu);
  else
#endif
    return gather_lanes(p, index);
}
// The same where lanes probably read near each other, as pixels of a resized image do: where that is within two vectors,
// no lane before the first or after the last one, two loads and a shuffle take less time than a gather.
template <class T, class I> PF_INLINE with<I, T> gather_near(const T* p, I index) {
#if PF_AVX512 && PF_W == 16 && PF_X86_BUILTINS
  if constexpr (same<I, vi32>::value && sizeof(T) == 4) {
    typedef with<I, T> V;
    const i32 first = lane(index, 0);
    const vu32 from = (vu32)index - fill<vu32>(u32(first));
    const u32 span = lane(from, PF_W - 1);
    if (span < 2 * PF_W && __builtin_ia32_ucmpd512_mask((g16si)from, (g16si)fill<vu32>(span), 2, 0xffff) == 0xffff) {
      const V low = raw_load_n<V>(p + first, int(span) + 1);
      return select_lanes(low, raw_load_n<V>(p + first + PF_W, int(span) + 1 - PF_W), (vi32)from);
    }
  }
#endif
  return gather(p, index);
}
// The same where many gathers in a row take one index.
template <class T, class I> PF_INLINE with<I, T> gather_again(const T* p, I index) {
#if PF_GATHERS < 2
  return gather_lanes(p, index);
#else
  return gather(p, index);
#endif
}
template <class T, class I, class M> PF_INLINE with<I, T> gather(const T* p, I index, M mask) {
#if PF_AVX512 && PF_W == 16 && PF_X86_BUILTINS
  if constexpr (tr<I>::is_vec && sizeof(T) >= 4) {
    // conditions on indices are often false for all lanes, and a gather takes its time all the same
    const unsigned k = (unsigned short)__builtin_ia32_cvtd2mask512(mask.v);
    return k == 0 ? with<I, T>{} : gather_bits(p, index, k);
  } else
#endif
    return gather_lanes(p, index, mask);
}
template <class T, class I, class V> PF_INLINE void scatter(T* p, I index, V v) {
#pragma GCC unroll 16
  for (int i = 0; i < int(tr<I>::lanes); ++i) store_one(p + lane(index, i), lane(v, i));
}
template <class T, class I, class V, class M> PF_INLINE void scatter(T* p, I index, V v, M mask) {
#pragma GCC unroll 16
  for (int i = 0; i < int(tr<I>::lanes); ++i)
    if (lane(mask, i)) store_one(p + lane(index, i), lane(v, i));
}
}  // namespace pf
