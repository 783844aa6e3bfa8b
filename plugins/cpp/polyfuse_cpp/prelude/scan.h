// Running sums and products of the lanes of one value: log2(lanes) shifts and operations.
namespace pf {
#if PF_W > 1
// Lane i gets lane i - S of v, the first S lanes those of `start`.
template <int S, class V> PF_INLINE V shift_up(V v, V start) {
  typedef typename tr<V>::ivec I;
  typedef typename tr<I>::elem E;
  const int n = int(tr<V>::lanes);
#if defined(__clang__)
  V r = start;
  for (int i = S; i < n; ++i) r[i] = v[i - S];
  return r;
#else
  I k = lane_numbers<I>::make();
  return __builtin_shuffle(start, v, (I)(k < fill<I>(E(S)) ? k : k + fill<I>(E(n - S))));
#endif
}
template <class F, class V> PF_INLINE V running(F f, V v, V start) {
  v = f(v, shift_up<1>(v, start));
  if constexpr (tr<V>::lanes > 2) v = f(v, shift_up<2>(v, start));
  if constexpr (tr<V>::lanes > 4) v = f(v, shift_up<4>(v, start));
  if constexpr (tr<V>::lanes > 8) v = f(v, shift_up<8>(v, start));
  return v;
}
#if PF_WIDE
template <class F, class H> PF_INLINE wide<H> running(F f, wide<H> v, wide<H> start) {
  H lo = running(f, v.lo, start.lo), hi = running(f, v.hi, start.hi);
  return {lo, f(hi, fill<H>(lo[PF_HALF - 1]))};
}
#endif
#endif
template <class V> PF_INLINE V running_sum(V v) {
  if constexpr (tr<V>::lanes == 1) return v;
  else return running([](auto a, auto b) __attribute__((always_inline)) { return add(a, b); }, v,
                      fill<V>((typename tr<V>::elem)0));
}
template <class V> PF_INLINE V running_prod(V v) {
  if constexpr (tr<V>::lanes == 1) return v;
  else return running([](auto a, auto b) __attribute__((always_inline)) { return mul(a, b); }, v,
                      fill<V>((typename tr<V>::elem)1));
}
template <class V> PF_INLINE V last_lane(V v) { return fill<V>(lane(v, int(tr<V>::lanes) - 1)); }
}  // namespace pf
