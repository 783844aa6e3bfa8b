// The running pair of a softmax: the maximum, and the sum of exponentials relative to it, in blocks.
namespace pf {
template <class V> struct online_pair { V max, sum; };
template <class V> PF_INLINE online_pair<V> online_empty() {
  typedef typename tr<V>::elem E;
  return {fill<V>(E(-__builtin_inf())), fill<V>(E(0))};
}
// exp(x - high) where nothing was seen yet is zero, not NaN
template <class V> PF_INLINE V exp_below(V x, V high) {
  typedef typename tr<V>::elem E;
  V low = fill<V>(E(-__builtin_inf()));
  return where(eq(x, low), fill<V>(E(0)), exp(sub(x, high)));
}
template <class V> PF_INLINE online_pair<V> online_combine(online_pair<V> a, online_pair<V> b) {
  V high = maximum(a.max, b.max);
  return {high, add(mul(a.sum, exp_below(a.max, high)), mul(b.sum, exp_below(b.max, high)))};
}
template <class V> PF_INLINE online_pair<V> online_take(online_pair<V> a, V x) {
  typedef typename tr<V>::elem E;
  return online_combine(a, online_pair<V>{x, fill<V>(E(1))});
}
template <class V> static __attribute__((noinline)) void online_take(online_pair<V>& all, const V* x, int n) {
  typedef typename tr<V>::elem E;
  if (n <= 0) return;
  V high = all.max, sum = fill<V>(E(0));
  for (int i = 0; i < n; ++i) high = maximum(high, x[i]);
  // all lanes at minus infinity: subtract zero instead, so that nothing becomes NaN
  V shift = where(eq(high, fill<V>(E(-__builtin_inf()))), fill<V>(E(0)), high);
  for (int i = 0; i < n; ++i) sum = add(sum, exp(sub(x[i], shift)));
  all.sum = add(mul(all.sum, exp(sub(all.max, shift))), sum);
  all.max = high;
}
template <class V> PF_INLINE online_pair<typename tr<V>::elem> online_reduce(online_pair<V> a) {
  V high = fill<V>(reduce_max(a.max));
  return {lane(high, 0), reduce_add(mul(a.sum, exp_below(a.max, high)))};
}
}  // namespace pf
