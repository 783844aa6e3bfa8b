// Vectors whose lanes are interleaved in memory: p[0] is the first lane of the first of them, p[1] that of the second, ...
//   store_interleaved(p, a, b, ...)           all lanes
//   stream_interleaved(past, p, a, b, ...)    the same, past the caches where `past` says so
//   store_interleaved_n(p, count, a, b, ...)  the first `count` elements of memory, at least one
namespace pf {
#if PF_W > 1
// Vector PART of M interleaved vectors of N lanes: lanes that the sources 0 and 1 give, then those of source S.
template <int N, int M, int PART> struct first_turns {
  static constexpr int at(int k) { return (PART * N + k) % M == 1 ? N + (PART * N + k) / M : (PART * N + k) / M; }
};
template <int N, int M, int PART, int S> struct next_turn {
  static constexpr int at(int k) { return (PART * N + k) % M == S ? N + (PART * N + k) / M : k; }
};
template <int M, int PART, class V> PF_INLINE V interleave_native(const V* v) {
  const int n = int(tr<V>::lanes);
  V r = chooser<n>::template of<first_turns<n, M, PART>>(v[0], v[1]);
  if constexpr (M > 2) r = chooser<n>::template of<next_turn<n, M, PART, 2>>(r, v[2]);
  if constexpr (M > 3) r = chooser<n>::template of<next_turn<n, M, PART, 3>>(r, v[3]);
  return r;
}
template <int M, int PART, class V> PF_INLINE V interleave_part(const V* v) {
  if constexpr (same<V, vmask>::value) {
    vi32 w[M];
    for (int i = 0; i < M; ++i) w[i] = v[i].v;
    return {interleave_native<M, PART>(w)};
  }
#if PF_WIDE
  else if constexpr (sizeof(typename tr<V>::elem) == 8) {
    // the lower halves fill the first M halves of the result, the upper halves the others
    typedef decltype(V::lo) H;
    H half[2][M];
    for (int i = 0; i < M; ++i) { half[0][i] = v[i].lo; half[1][i] = v[i].hi; }
    return {interleave_native<M, 2 * PART % M>(half[2 * PART / M]), interleave_native<M, (2 * PART + 1) % M>(half[(2 * PART + 1) / M])};
  }
#endif
  else return interleave_native<M, PART>(v);
}
// One vector of two that are interleaved.
template <int PART, class V> PF_INLINE V interleaved(V a, V b) {
  const V v[] = {a, b};
  return interleave_part<2, PART>(v);
}
// `store_part(i, v)` for each vector of the result.
template <int PART, int M, class V, class F> PF_INLINE void each_part(const V* v, F store_part) {
  store_part(PART * PF_W, interleave_part<M, PART>(v));
  if constexpr (PART + 1 < M) each_part<PART + 1, M>(v, store_part);
}
template <class T, class V, class... R> PF_INLINE void store_interleaved(T* p, V a, R... rest) {
  const V v[] = {a, rest...};
  each_part<0, 1 + sizeof...(R)>(v, [&](int i, V w) __attribute__((always_inline)) { store(p + i, w); });
}
template <class T, class V, class... R> PF_INLINE void stream_interleaved(bool past, T* p, V a, R... rest) {
  const V v[] = {a, rest...};
  each_part<0, 1 + sizeof...(R)>(v, [&](int i, V w) __attribute__((always_inline)) { stream(p + i, w, past); });
}
template <class T, class V, class... R> PF_INLINE void store_interleaved_n(T* p, i64 count, V a, R... rest) {
  const V v[] = {a, rest...};
  each_part<0, 1 + sizeof...(R)>(v, [&](int i, V w) __attribute__((always_inline)) {
    if (count - i >= PF_W) store(p + i, w);
    else if (count > i) store_n(p + i, w, count - i);
  });
}
#endif
}  // namespace pf
