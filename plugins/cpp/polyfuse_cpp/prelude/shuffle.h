// Lanes of two vectors put together anew.
namespace pf {
#if PF_W > 1
template <class V> PF_INLINE V select_lanes(V a, V b, typename tr<V>::ivec k) {
#if defined(__clang__)
  V r{};
  for (int i = 0; i < int(tr<V>::lanes); ++i) r[i] = k[i] < int(tr<V>::lanes) ? a[k[i]] : b[k[i] - int(tr<V>::lanes)];
  return r;
#else
  return __builtin_shuffle(a, b, k);
#endif
}
// Lanes of two vectors chosen by F::at(lane), which counts through the first and on through the second.
template <int LANES> struct chooser;
#define PF_CHOOSER(N, ...)                                                                                  \
  template <> struct chooser<N> {                                                                           \
    template <class F, class V> PF_INLINE V of(V a, V b) {                                                  \
      return select_lanes(a, b, typename tr<V>::ivec{__VA_ARGS__});                                         \
    }                                                                                                       \
  };
PF_CHOOSER(2, F::at(0), F::at(1))
PF_CHOOSER(4, F::at(0), F::at(1), F::at(2), F::at(3))
PF_CHOOSER(8, F::at(0), F::at(1), F::at(2), F::at(3), F::at(4), F::at(5), F::at(6), F::at(7))
PF_CHOOSER(16, F::at(0), F::at(1), F::at(2), F::at(3), F::at(4), F::at(5), F::at(6), F::at(7), F::at(8), F::at(9),
           F::at(10), F::at(11), F::at(12), F::at(13), F::at(14), F::at(15))
#endif
}  // namespace pf
