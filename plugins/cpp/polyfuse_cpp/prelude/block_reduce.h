// Reductions in blocks: values wait in a buffer, and a full buffer is reduced into the running state.
namespace pf {
// Mean and squared deviations of a block, found in two passes over the buffer and merged into the running ones.
template <class V> static __attribute__((noinline)) void welford_take(moments<V>& all, const V* x, int n) {
  typedef typename tr<V>::elem E;
  if (n <= 0) return;
  // four sums side by side: an addition takes as long as four begin
  V s0 = fill<V>(E(0)), s1 = s0, s2 = s0, s3 = s0, q0 = s0, q1 = s0, q2 = s0, q3 = s0;
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    s0 = add(s0, x[i]);
    s1 = add(s1, x[i + 1]);
    s2 = add(s2, x[i + 2]);
    s3 = add(s3, x[i + 3]);
  }
  for (; i < n; ++i) s0 = add(s0, x[i]);
  V mean = mul(add(add(s0, s1), add(s2, s3)), fill<V>(E(1) / E(n)));
  for (i = 0; i + 4 <= n; i += 4) {
    V a = sub(x[i], mean), b = sub(x[i + 1], mean), c = sub(x[i + 2], mean), d = sub(x[i + 3], mean);
    q0 = madd(a, a, q0);
    q1 = madd(b, b, q1);
    q2 = madd(c, c, q2);
    q3 = madd(d, d, q3);
  }
  for (; i < n; ++i) { V a = sub(x[i], mean); q0 = madd(a, a, q0); }
  all = welford_combine(all, moments<V>{mean, add(add(q0, q1), add(q2, q3)), fill<V>(E(n))});
}
template <class V, class M> PF_INLINE moments<V> welford_add_masked(moments<V> a, V x, M m) {
  moments<V> b = welford_add(a, x);
  return {where(m, b.mean, a.mean), where(m, b.m2, a.m2), where(m, b.count, a.count)};
}

// f(a, b, x, y) puts the better of two vectors of pairs into a and b: a butterfly over the lanes.
template <class V> constexpr bool in_a_register() { return tr<V>::is_vec && !__is_class(V); }
template <class F, class V, class I> PF_INLINE void reduce_pairs(F f, V& v, I& at) {
  const int n = int(tr<V>::lanes);
  if constexpr (n > 8) f(v, at, swap_lanes<8>(v), swap_lanes<8>(at));
  if constexpr (n > 4) f(v, at, swap_lanes<4>(v), swap_lanes<4>(at));
  if constexpr (n > 2) f(v, at, swap_lanes<2>(v), swap_lanes<2>(at));
  if constexpr (n > 1) f(v, at, swap_lanes<1>(v), swap_lanes<1>(at));
}

// The pair that is larger, the earlier one on ties, NaN first: positions grow from call to call (first_),
// or come in any order (tied_).
#define PF_BEST(NAME, BETTER, BEATS)                                                                           \
  template <class V, class I> PF_INLINE auto better_##NAME(V a, V x) {                                         \
    if constexpr (tr<typename tr<V>::elem>::is_float) return bitwise_and(bitwise_not(BETTER##e(x, a)), eq(a, a)); \
    else return BETTER##t(a, x);                                                                               \
  }                                                                                                            \
  template <class V, class I> PF_INLINE void first_##NAME(V& a, I& at, V x, I index) {                         \
    auto m = better_##NAME<V, I>(a, x);                                                                        \
    a = where(m, x, a);                                                                                        \
    at = where(m, index, at);                                                                                  \
  }                                                                                                            \
  template <class V, class I, class M> PF_INLINE void first_##NAME(V& a, I& at, V x, I index, M valid) {       \
    auto m = bitwise_and(better_##NAME<V, I>(a, x), valid);                                                    \
    a = where(m, x, a);                                                                                        \
    at = where(m, index, at);                                                                                  \
  }                                                                                                            \
  template <class V, class I> PF_INLINE auto beats_any_##NAME(V a, I at, V x, I index) {                       \
    auto tie = eq(a, x), better = bitwise_not(BETTER##e(x, a));                                                \
    if constexpr (tr<typename tr<V>::elem>::is_float) {                                                        \
      better = bitwise_and(better, eq(a, a));                                                                  \
      tie = bitwise_or(tie, bitwise_and(ne(a, a), ne(x, x)));                                                  \
    }                                                                                                          \
    return bitwise_or(better, bitwise_and(tie, lt(index, at)));                                                \
  }                                                                                                            \
  template <class V, class I> PF_INLINE void tied_##NAME(V& a, I& at, V x, I index) {                          \
    auto m = beats_any_##NAME<V, I>(a, at, x, index);                                                          \
    a = where(m, x, a);                                                                                        \
    at = where(m, index, at);                                                                                  \
  }                                                                                                            \
  template <class V, class I, class M> PF_INLINE void tied_##NAME(V& a, I& at, V x, I index, M valid) {        \
    auto m = bitwise_and(beats_any_##NAME<V, I>(a, at, x, index), valid);                                      \
    a = where(m, x, a);                                                                                        \
    at = where(m, index, at);                                                                                  \
  }                                                                                                            \
  template <class V, class I> PF_INLINE found<typename tr<V>::elem> reduce_arg##NAME(V v, I at) {                   \
    if constexpr (in_a_register<V>() && in_a_register<I>()) {                                                  \
      reduce_pairs([](V& a, I& b, V x, I y) __attribute__((always_inline)) { tied_##NAME(a, b, x, y); }, v, at); \
      return {v[0], i64(at[0])};                                                                               \
    }                                                                                                          \
    typename tr<V>::elem best = lane(v, 0);                                                                    \
    typename tr<I>::elem index = lane(at, 0);                                                                  \
    for (int i = 1; i < int(tr<V>::lanes); ++i) tied_##NAME(best, index, lane(v, i), lane(at, i));             \
    return {best, i64(index)};                                                                                 \
  }                                                                                                            \
  template <class V, class I> PF_INLINE void later_##NAME(V& a, I& at, V x, I index) {                         \
    auto m = BETTER##e(a, x);                                                                                  \
    if constexpr (tr<typename tr<V>::elem>::is_float) m = bitwise_or(bitwise_and(m, eq(a, a)), ne(x, x));      \
    a = where(m, x, a);                                                                                        \
    at = where(m, index, at);                                                                                  \
  }
// a better than or equal to b, and strictly less good, in the order of each kind: `le(x, a)` keeps a maximum
template <class T> struct found { T value; i64 index; };
PF_BEST(max, l, 0)
PF_BEST(min, g, 0)

// log(exp(a) + exp(b)) without overflow.
template <class V> PF_INLINE V log_add(V a, V b) {
  typedef typename tr<V>::elem E;
  V high = maximum(a, b), low = neg(maximum(neg(a), neg(b)));
  V d = sub(low, high);
  V r = add(high, log1p(exp(d)));
  return where(bitwise_or(eq(a, b), eq(high, fill<V>(E(__builtin_inf())))),
               where(isinf(a), high, r), r);
}
}  // namespace pf
