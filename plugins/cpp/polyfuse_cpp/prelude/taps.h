// Neighbouring points times one weight, added to a sum for each of them.
//   add_taps<STEP>(p, weight, a, b, ...)  a += p[0] * weight, b += p[STEP] * weight, ..., a vector at each
//   add_zeros(weight, a, b, ...)          the same for zeros: NaN where the weight is infinite or NaN
namespace pf {
template <i64 STEP, class V> PF_INLINE void add_taps(const f32*, V) {}
template <i64 STEP, class V, class... R> PF_INLINE void add_taps(const f32* p, V weight, V& sum, R&... rest) {
  sum = madd(load<Vec>(p), weight, sum);
  add_taps<STEP>(p + STEP, weight, rest...);
}
template <class V> PF_INLINE void add_zeros(V) {}
template <class V, class... R> PF_INLINE void add_zeros(V weight, V& sum, R&... rest) {
  sum = madd(fill<V>(f32(0)), weight, sum);
  add_zeros(weight, rest...);
}
}  // namespace pf
