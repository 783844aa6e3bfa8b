// Running extremes of the lanes of one value, and where they are.
namespace pf {
// The extremes so far of the lanes of x, and where they are: `run` and `pos` are the last ones in all lanes, of which the
// later one counts. In most vectors there is no new one, or, where numbers rise, nothing else.
#if PF_W > 1
// Lane i gets lane i - 1 of v, the first lane that of `start`.
template <class V> PF_INLINE V lanes_before(V v, V start) { return shift_up<1>(v, start); }
#if PF_WIDE
template <class H> PF_INLINE wide<H> lanes_before(wide<H> v, wide<H> start) {
  return {shift_up<1>(v.lo, start.lo), shift_up<1>(v.hi, fill<H>(v.lo[PF_HALF - 1]))};
}
#endif
#define PF_RUNNING(NAME, KEEPS, BETTER)                                                                         \
  template <class V, class I> PF_INLINE void running_##NAME(V& run, I& pos, V x, I at, V& value, I& index) {    \
    typedef typename tr<V>::elem E;                                                                             \
    auto later = bitwise_not(KEEPS(run, x));                                                                    \
    value = run;                                                                                                \
    index = pos;                                                                                                \
    if constexpr (tr<E>::is_float) later = bitwise_and(later, bitwise_or(eq(run, run), ne(x, x)));              \
    if (__builtin_expect(!any(later), 1)) return;                                                               \
    const i64 first = lane(at, 0), step = lane(at, 1) - first;                                                  \
    bool one_by_one = false;                                                                                    \
    if constexpr (tr<E>::is_float) one_by_one = any(bitwise_or(ne(run, run), ne(x, x)));                        \
    if (one_by_one) {                                                                                           \
      const int n = int(tr<V>::lanes);                                                                          \
      alignas(64) E best[n];                                                                                    \
      alignas(64) i64 indices[n];                                                                               \
      E extreme = lane(run, 0);                                                                                 \
      i64 found_at = lane(pos, 0);                                                                              \
      store(best, x);                                                                                           \
      for (int i = 0; i < n; ++i) {                                                                             \
        later_##NAME(extreme, found_at, best[i], first + i * step);                                             \
        best[i] = extreme;                                                                                      \
        indices[i] = found_at;                                                                                  \
      }                                                                                                         \
      value = load<Vec>(best);                                                                                  \
      index = load<Vec>(indices);                                                                               \
    } else if (all(bitwise_not(KEEPS(lanes_before(x, run), x)))) {                                              \
      value = x;                                                                                                \
      index = at;                                                                                               \
    } else {                                                                                                    \
      value = running([](auto a, auto b) __attribute__((always_inline)) { return b BETTER a ? b : a; },         \
                      where(KEEPS(run, x), run, x), run);                                                       \
      /* one more than the number of the last lane that is as good as all before it */                          \
      const vi32 none_yet = fill<vi32>(0), count = add(lane_numbers<vi32>::make(), fill<vi32>(1));              \
      const vi32 last = running([](auto a, auto b) __attribute__((always_inline)) { return b > a ? b : a; },    \
                                where(eq(x, value), count, none_yet), none_yet);                                \
      const I found_at = add(fill<I>(first - step), mul(cast<i64>(last), fill<I>(step)));                       \
      index = where(ne(last, none_yet), found_at, pos);                                                         \
    }                                                                                                           \
    run = last_lane(value);                                                                                     \
    pos = last_lane(index);                                                                                     \
  }
PF_RUNNING(max, gt, >)
PF_RUNNING(min, lt, <)
#endif
}  // namespace pf
