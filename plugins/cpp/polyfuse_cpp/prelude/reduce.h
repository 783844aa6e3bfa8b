// Horizontal reductions of one value to a scalar, and the combines of composite accumulators.
namespace pf {
PF_INLINE bool any(bool m) { return m; }
PF_INLINE bool all(bool m) { return m; }
#if PF_W > 1
PF_INLINE bool any(vmask m) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  return __builtin_ia32_cvtd2mask512(m.v) != 0;
#elif PF_AVX2 && PF_X86_BUILTINS && PF_W == 8
  return __builtin_ia32_movmskps256((vf32)m.v) != 0;
#else
  i32 r = 0;
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) r |= m.v[i];
  return r != 0;
#endif
}
PF_INLINE bool all(vmask m) { return !any(bitwise_not(m)); }
#endif

// lane_reduce(f, v): butterfly over the lanes; f combines two vectors of the same type.
template <int STEP, class V> PF_INLINE V swap_lanes(V v) {
  typedef typename tr<V>::ivec I;
#if defined(__clang__)
  V r{};
  for (int i = 0; i < int(tr<V>::lanes); ++i) r[i] = v[i ^ STEP];
  return r;
#else
  return __builtin_shuffle(v, I(lane_numbers<I>::make() ^ fill<I>((typename tr<I>::elem)STEP)));
#endif
}
template <class F, class V> PF_INLINE typename tr<V>::elem lane_reduce(F f, V v) {
  if constexpr (tr<V>::is_vec) {
    if constexpr (tr<V>::lanes > 8) v = f(v, swap_lanes<8>(v));
    if constexpr (tr<V>::lanes > 4) v = f(v, swap_lanes<4>(v));
    if constexpr (tr<V>::lanes > 2) v = f(v, swap_lanes<2>(v));
    if constexpr (tr<V>::lanes > 1) v = f(v, swap_lanes<1>(v));
    return v[0];
  } else return v;
}
#if PF_WIDE
template <class F, class H> PF_INLINE typename tr<H>::elem lane_reduce(F f, wide<H> v) { return lane_reduce(f, f(v.lo, v.hi)); }
#endif
#define PF_REDUCE(NAME, OP)                                                                          \
  template <class V> PF_INLINE typename tr<V>::elem NAME(V v) {                                      \
    return lane_reduce([](auto a, auto b) __attribute__((always_inline)) { return OP(a, b); }, v);          \
  }
PF_REDUCE(reduce_add, add) PF_REDUCE(reduce_mul, mul) PF_REDUCE(reduce_min, minimum) PF_REDUCE(reduce_max, maximum)
PF_REDUCE(reduce_fmin, fmin) PF_REDUCE(reduce_fmax, fmax)
PF_REDUCE(reduce_and, bitwise_and) PF_REDUCE(reduce_or, bitwise_or) PF_REDUCE(reduce_xor, bitwise_xor)
PF_INLINE bool reduce_or(bool m) { return m; }
PF_INLINE bool reduce_and(bool m) { return m; }
PF_INLINE bool reduce_add(bool m) { return m; }
PF_INLINE bool reduce_mul(bool m) { return m; }
PF_INLINE bool reduce_max(bool m) { return m; }
PF_INLINE bool reduce_min(bool m) { return m; }
#if PF_W > 1
PF_INLINE bool reduce_or(vmask m) { return any(m); }
PF_INLINE bool reduce_and(vmask m) { return all(m); }
PF_INLINE bool reduce_add(vmask m) { return any(m); }
PF_INLINE bool reduce_mul(vmask m) { return all(m); }
PF_INLINE bool reduce_max(vmask m) { return any(m); }
PF_INLINE bool reduce_min(vmask m) { return all(m); }
#endif

// argmin/argmax: accumulators of a value and the i64 index it came from.  NaN wins; of equal values the lower index.
template <class V> struct best { V value; with<V, i64> index; };
template <class V> PF_INLINE typename tr<V>::mask beats_max(V a, with<V, i64> ia, V b, with<V, i64> ib) {
  auto better = gt(a, b), tie = eq(a, b);
  if constexpr (tr<typename tr<V>::elem>::is_float) {
    auto na = isnan(a), nb = isnan(b);
    better = bitwise_or(better, bitwise_and(na, bitwise_not(nb)));
    tie = bitwise_or(tie, bitwise_and(na, nb));
  }
  return bitwise_or(better, bitwise_and(tie, lt(ia, ib)));
}
template <class V> PF_INLINE typename tr<V>::mask beats_min(V a, with<V, i64> ia, V b, with<V, i64> ib) {
  auto better = lt(a, b), tie = eq(a, b);
  if constexpr (tr<typename tr<V>::elem>::is_float) {
    auto na = isnan(a), nb = isnan(b);
    better = bitwise_or(better, bitwise_and(na, bitwise_not(nb)));
    tie = bitwise_or(tie, bitwise_and(na, nb));
  }
  return bitwise_or(better, bitwise_and(tie, lt(ia, ib)));
}
template <class V> PF_INLINE best<V> argmax_combine(best<V> a, best<V> b) {
  auto m = beats_max(b.value, b.index, a.value, a.index);
  return {where(m, b.value, a.value), where(m, b.index, a.index)};
}
template <class V> PF_INLINE best<V> argmin_combine(best<V> a, best<V> b) {
  auto m = beats_min(b.value, b.index, a.value, a.index);
  return {where(m, b.value, a.value), where(m, b.index, a.index)};
}
template <class V> PF_INLINE best<typename tr<V>::elem> argmax_reduce(best<V> a) {
  best<typename tr<V>::elem> r = {lane(a.value, 0), lane(a.index, 0)};
  for (int i = 1; i < int(tr<V>::lanes); ++i)
    r = argmax_combine(r, best<typename tr<V>::elem>{lane(a.value, i), lane(a.index, i)});
  return r;
}
template <class V> PF_INLINE best<typename tr<V>::elem> argmin_reduce(best<V> a) {
  best<typename tr<V>::elem> r = {lane(a.value, 0), lane(a.index, 0)};
  for (int i = 1; i < int(tr<V>::lanes); ++i)
    r = argmin_combine(r, best<typename tr<V>::elem>{lane(a.value, i), lane(a.index, i)});
  return r;
}

// Welford accumulators: mean, sum of squared deviations and count (all of the same float type).
template <class V> struct moments { V mean, m2, count; };
// A mean after a step from one to another: there is no step back from infinity.
template <class V> PF_INLINE V moved_mean(V from, V step, V to) {
  V mean = add(from, step);
  return where(eq(mean, mean), mean, add(from, to));
}
template <class V> PF_INLINE moments<V> welford_add(moments<V> a, V x) {
  V one = fill<V>((typename tr<V>::elem)1);
  V n = add(a.count, one), d = sub(x, a.mean);
  V mean = moved_mean(a.mean, div(d, n), x);
  return {mean, add(a.m2, mul(d, sub(x, mean))), n};
}
template <class V> PF_INLINE moments<V> welford_combine(moments<V> a, moments<V> b) {
  V zero = fill<V>((typename tr<V>::elem)0);
  V n = add(a.count, b.count), d = sub(b.mean, a.mean);
  V part = where(eq(n, zero), zero, div(b.count, n));
  // nothing is between a state and an empty one, also where a square would be infinite
  V between = mul(mul(d, mul(a.count, part)), d);
  return {moved_mean(a.mean, mul(d, part), b.mean), add(add(a.m2, b.m2), between), n};
}
template <class V> PF_INLINE moments<typename tr<V>::elem> welford_reduce(moments<V> a) {
  moments<typename tr<V>::elem> r = {lane(a.mean, 0), lane(a.m2, 0), lane(a.count, 0)};
  for (int i = 1; i < int(tr<V>::lanes); ++i)
    r = welford_combine(r, moments<typename tr<V>::elem>{lane(a.mean, i), lane(a.m2, i), lane(a.count, i)});
  return r;
}
}  // namespace pf
