// Indexed memory: gather(p, index[, mask]) and scatter(p, index, value[, mask]); index in elements, i32 or i64.
// Lanes where the mask is false touch no memory and give zero.  Of equal scatter indices the last lane wins.
namespace pf {
template <class T, class I> PF_INLINE with<I, T> gather_lanes(const T* p, I index) {
  with<I, T> r{};
#pragma GCC unroll 16
  for (int i = 0; i < int(tr<I>::lanes); ++i) r = set_lane(r, i, load_one(p + lane(index, i)));
  return r;
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
template <class T, class I> PF_INLINE with<I, T> gather(const T* p, I index) {
#if PF_AVX512 && PF_W == 16 && PF_X86_BUILTINS
  if constexpr (tr<I>::is_vec && sizeof(T) >= 4) return gather_bits(p, index, 0xffffu);
  else
#endif
    return gather_lanes(p, index);
}
template <class T, class I, class M> PF_INLINE with<I, T> gather(const T* p, I index, M mask) {
#if PF_AVX512 && PF_W == 16 && PF_X86_BUILTINS
  if constexpr (tr<I>::is_vec && sizeof(T) >= 4)
    return gather_bits(p, index, (unsigned short)__builtin_ia32_cvtd2mask512(mask.v));
  else
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
