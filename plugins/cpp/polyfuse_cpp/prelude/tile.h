// Access across the grain: square tiles turned in registers, and every second, third or fourth element.
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
// One step of a transposition: blocks of S lanes change places between rows that are S apart.
template <int S, class V> PF_INLINE void turn(V* r) {
  typedef typename tr<V>::ivec I;
  const int n = int(tr<V>::lanes);
  typedef typename tr<I>::elem E;
  I k = lane_numbers<I>::make(), inside = (I)((k & fill<I>(E(S))) != fill<I>(E(0)));
  I low = inside ? k + fill<I>(E(n - S)) : k, high = inside ? k + fill<I>(E(n)) : k + fill<I>(E(S));
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i)
    if (!(i & S)) {
      V a = r[i], b = r[i + S];
      r[i] = select_lanes(a, b, low);
      r[i + S] = select_lanes(a, b, high);
    }
}
template <class V> PF_INLINE void transpose_rows(V* r) {
  if constexpr (tr<V>::lanes > 8) turn<8>(r);
  if constexpr (tr<V>::lanes > 4) turn<4>(r);
  if constexpr (tr<V>::lanes > 2) turn<2>(r);
  if constexpr (tr<V>::lanes > 1) turn<1>(r);
}
PF_INLINE void transpose_rows(vmask* r) {
  vi32 v[PF_W];
  for (int i = 0; i < PF_W; ++i) v[i] = r[i].v;
  transpose_rows(v);
  for (int i = 0; i < PF_W; ++i) r[i].v = v[i];
}
#if PF_WIDE
template <class H> PF_INLINE void transpose_rows(wide<H>* r) {
  H a[PF_HALF], b[PF_HALF], c[PF_HALF], d[PF_HALF];
  for (int i = 0; i < PF_HALF; ++i) {
    a[i] = r[i].lo; b[i] = r[i].hi;
    c[i] = r[i + PF_HALF].lo; d[i] = r[i + PF_HALF].hi;
  }
  transpose_rows(a); transpose_rows(b); transpose_rows(c); transpose_rows(d);
  for (int i = 0; i < PF_HALF; ++i) {
    r[i] = {a[i], c[i]};
    r[i + PF_HALF] = {b[i], d[i]};
  }
}
#endif
// A tile of memory whose rows are `step` apart: tile[j] gets element j of every row. `rows` and `count` may be fewer
// than the lanes; nothing outside is touched.
template <class T> PF_INLINE void tile_load(typename shape<T>::vec* tile, const T* p, i64 step,
                                                                   i64 rows, i64 count) {
  typedef typename shape<T>::vec V;
  V r[PF_W];
  if (rows == PF_W && count == PF_W) {
#pragma GCC unroll 16
    for (int i = 0; i < PF_W; ++i) r[i] = load<Vec>(p + i * step);
  } else {
    for (int i = 0; i < PF_W; ++i) r[i] = i < rows ? load_n<Vec>(p + i * step, count) : V{};
  }
  transpose_rows(r);
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) tile[i] = r[i];
}
template <class T> static __attribute__((noinline)) void tile_store(T* p, const typename shape<T>::vec* tile, i64 step,
                                                                    i64 rows, i64 count) {
  typename shape<T>::vec r[PF_W];
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) r[i] = tile[i];
  transpose_rows(r);
  if (rows == PF_W && count == PF_W) {
#pragma GCC unroll 16
    for (int i = 0; i < PF_W; ++i) store(p + i * step, r[i]);
  } else {
    for (int i = 0; i < rows && i < PF_W; ++i) store_n(p + i * step, r[i], count);
  }
}

// p[0], p[S], p[2 * S], ...: whole vectors and shuffles; the last one ends at the last element that is wanted.
template <int S, class V> PF_INLINE V raw_every(const void* p) {
  typedef typename tr<V>::ivec I;
  typedef typename tr<V>::elem E;
  const int n = int(tr<V>::lanes), last = S * (n - 1) + 1 - n;
  V r{};
#pragma GCC unroll 4
  for (int part = 0; part < S; ++part) {
    const int start = part * n < last ? part * n : last;
    V v = raw_load<V>((const char*)p + start * sizeof(E));
    typedef typename tr<I>::elem N;
    I i = lane_numbers<I>::make(), at = i * fill<I>(N(S));
    I mine = (I)(at >= fill<I>(N(part * n))) & (I)(at < fill<I>(N(part * n + n)));
    I k = mine ? at + fill<I>(N(n - start)) : i;
    r = select_lanes(r, v, k);
  }
  return r;
}
template <class V> PF_INLINE V raw_back(const void* p) {
  typedef typename tr<V>::ivec I;
  const int n = int(tr<V>::lanes);
  I k = fill<I>((typename tr<I>::elem)(n - 1)) - lane_numbers<I>::make();
  V v = raw_load<V>((const char*)p - (n - 1) * sizeof(typename tr<V>::elem));
  return select_lanes(v, v, k);
}
#endif
template <class L, int S, class T> PF_INLINE typename L::template of<T> load_every(const T* p) {
  typedef typename L::template of<T> V;
#if PF_W > 1
  if constexpr (L::lanes > 1) {
    if constexpr (same<T, bool>::value) return as_mask(raw_every<S, vu8>(p) != fill<vu8>(0));
    else if constexpr (sizeof(T) == 2 && same<V, vf32>::value) return widen_vector(raw_every<S, vu16>(p), p);
#if PF_WIDE
    else if constexpr (sizeof(T) == 8) {
      typedef decltype(V::lo) H;
      return {raw_every<S, H>(p), raw_every<S, H>(p + S * PF_HALF)};
    }
#endif
    else return raw_every<S, V>(p);
  } else
#endif
    return load_one(p);
}
// p[0], p[-1], p[-2], ...
template <class L, class T> PF_INLINE typename L::template of<T> load_back(const T* p) {
  typedef typename L::template of<T> V;
#if PF_W > 1
  if constexpr (L::lanes > 1) {
    if constexpr (same<T, bool>::value) return as_mask(raw_back<vu8>(p) != fill<vu8>(0));
    else if constexpr (sizeof(T) == 2 && same<V, vf32>::value) return widen_vector(raw_back<vu16>(p), p);
#if PF_WIDE
    else if constexpr (sizeof(T) == 8) {
      typedef decltype(V::lo) H;
      return {raw_back<H>(p), raw_back<H>(p - PF_HALF)};
    }
#endif
    else return raw_back<V>(p);
  } else
#endif
    return load_one(p);
}
}  // namespace pf
