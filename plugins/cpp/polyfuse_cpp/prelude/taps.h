// Neighbouring points times one weight, added to a sum for each of them.
//   add_taps<STEP>(p, weight, a, b, ...)  a += p[0] * weight, b += p[STEP] * weight, ..., a vector at each
//   add_zeros(weight, a, b, ...)          the same for zeros: NaN where the weight is infinite or NaN
namespace pf {
template <i64 STEP, class T, class V, class... Sums> PF_INLINE void add_taps(const T* p, V weight, Sums&... sums) {
  ((sums = madd(load<Vec>(p), weight, sums), p += STEP), ...);
}
template <class V, class... Sums> PF_INLINE void add_zeros(V weight, Sums&... sums) {
  ((sums = madd(fill<V>(f32(0)), weight, sums)), ...);
}
}  // namespace pf
