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
// In every piece of 16 bytes: blocks of B lanes of the one and of the other in turn, from its first or second half on.
template <int N, int SIZE, int B, int SECOND> struct in_turn {
  static constexpr int at(int k) {
    return k / SIZE * SIZE + SECOND * SIZE / 2 + k % SIZE / (2 * B) * B + k % B + (k / B % 2) * N;
  }
};
template <int B, int SECOND, class V> PF_INLINE V interleave(V a, V b) {
  const int n = int(tr<V>::lanes), size = int(16 / sizeof(typename tr<V>::elem));
  return chooser<n>::template of<in_turn<n, size, B, SECOND>>(a, b);
}
// Half of the pieces of 16 bytes of the one, then of the other: every STEP-th from the one at FROM on.
template <int N, int SIZE, int STEP, int FROM> struct of_pieces {
  static constexpr int at(int k) { return k % (N / 2) / SIZE * STEP * SIZE + FROM * SIZE + k % SIZE + k / (N / 2) * N; }
};
template <int STEP, int FROM, class V> PF_INLINE V pieces(V a, V b) {
  const int n = int(tr<V>::lanes), size = int(16 / sizeof(typename tr<V>::elem));
  return chooser<n>::template of<of_pieces<n, size, STEP, FROM>>(a, b);
}
// A square of vectors turned over. Elements of 4 and 8 bytes: first pieces of 16 bytes between vectors, then elements
// inside the pieces, which are the cheaper exchanges.
template <class V> PF_INLINE void transpose_rows(V* r) {
  typedef typename tr<V>::elem E;
  const int n = int(tr<V>::lanes), size = int(16 / sizeof(E));
  if constexpr (sizeof(V) >= 16 && (sizeof(E) == 4 || sizeof(E) == 8)) {
    V v[n];
#pragma GCC unroll 16
    for (int i = 0; i < size; ++i) {
      if constexpr (sizeof(V) == 64) {
        V a = r[i], b = r[i + size], c = r[i + 2 * size], d = r[i + 3 * size];
        V ab0 = pieces<1, 0>(a, b), ab1 = pieces<1, 2>(a, b);
        V cd0 = pieces<1, 0>(c, d), cd1 = pieces<1, 2>(c, d);
        v[i] = pieces<2, 0>(ab0, cd0);
        v[i + size] = pieces<2, 1>(ab0, cd0);
        v[i + 2 * size] = pieces<2, 0>(ab1, cd1);
        v[i + 3 * size] = pieces<2, 1>(ab1, cd1);
      } else if constexpr (sizeof(V) == 32) {
        v[i] = pieces<1, 0>(r[i], r[i + size]);
        v[i + size] = pieces<1, 1>(r[i], r[i + size]);
      } else {
        v[i] = r[i];
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; i += size) {
      if constexpr (size == 4) {
        V a = interleave<1, 0>(v[i], v[i + 1]), b = interleave<1, 1>(v[i], v[i + 1]);
        V c = interleave<1, 0>(v[i + 2], v[i + 3]), d = interleave<1, 1>(v[i + 2], v[i + 3]);
        r[i] = interleave<2, 0>(a, c);
        r[i + 1] = interleave<2, 1>(a, c);
        r[i + 2] = interleave<2, 0>(b, d);
        r[i + 3] = interleave<2, 1>(b, d);
      } else {
        r[i] = interleave<1, 0>(v[i], v[i + 1]);
        r[i + 1] = interleave<1, 1>(v[i], v[i + 1]);
      }
    }
  } else {
    if constexpr (n > 8) turn<8>(r);
    if constexpr (n > 4) turn<4>(r);
    if constexpr (n > 2) turn<2>(r);
    if constexpr (n > 1) turn<1>(r);
  }
}
PF_INLINE void transpose_rows(vmask* r) {
  vi32 v[PF_W];
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) v[i] = r[i].v;
  transpose_rows(v);
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) r[i].v = v[i];
}
#if PF_WIDE
template <class H> PF_INLINE void transpose_rows(wide<H>* r) {
  H a[PF_HALF], b[PF_HALF], c[PF_HALF], d[PF_HALF];
#pragma GCC unroll 16
  for (int i = 0; i < PF_HALF; ++i) {
    a[i] = r[i].lo; b[i] = r[i].hi;
    c[i] = r[i + PF_HALF].lo; d[i] = r[i + PF_HALF].hi;
  }
  transpose_rows(a); transpose_rows(b); transpose_rows(c); transpose_rows(d);
#pragma GCC unroll 16
  for (int i = 0; i < PF_HALF; ++i) {
    r[i] = {a[i], c[i]};
    r[i + PF_HALF] = {b[i], d[i]};
  }
}
#endif

// A store that bypasses the caches where the vector fills cache lines; `stream_end()` follows the last one of a thread.
template <class V> PF_INLINE void raw_stream(void* p, V v) {
#if PF_AVX512 && PF_X86_BUILTINS
  typedef long long q8 __attribute__((vector_size(64)));
  if constexpr (sizeof(V) == 64)
    if (((__UINTPTR_TYPE__)p & 63) == 0) return __builtin_ia32_movntdq512((q8*)p, (q8)v);
#endif
  raw_store(p, v);
}
template <class T> PF_INLINE void stream(T* p, typename shape<T>::vec v) {
  if constexpr (same<T, bool>::value || same<T, bf16>::value || same<T, f16>::value) store(p, v);
#if PF_WIDE
  else if constexpr (sizeof(T) == 8) { raw_stream(p, v.lo); raw_stream(p + PF_HALF, v.hi); }
#endif
  else raw_stream(p, v);
}
PF_INLINE void stream_end() {
#if PF_AVX512 && PF_X86_BUILTINS
  __builtin_ia32_sfence();
#endif
}

// A tile of memory whose rows are `step` apart: tile[j] gets element j of every row. At an edge there are fewer `rows`
// and `count` elements of each, and nothing outside is touched.
template <class T> PF_INLINE void tile_load(typename shape<T>::vec* tile, const T* p, i64 step) {
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) tile[i] = load<Vec>(p + i * step);
  transpose_rows(tile);
}
template <class T> static __attribute__((noinline)) void tile_load(typename shape<T>::vec* tile, const T* p, i64 step,
                                                                   i64 rows, i64 count) {
  typedef typename shape<T>::vec V;
  V r[PF_W];
  for (int i = 0; i < PF_W; ++i) r[i] = i < rows ? load_n<Vec>(p + i * step, count) : V{};
  transpose_rows(r);
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) tile[i] = r[i];
}
template <bool STREAMS = false, class T> PF_INLINE void tile_store(T* p, typename shape<T>::vec* tile, i64 step) {
  transpose_rows(tile);
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) {
    if constexpr (STREAMS) stream(p + i * step, tile[i]);
    else store(p + i * step, tile[i]);
  }
}
template <class T> static __attribute__((noinline)) void tile_store(T* p, const typename shape<T>::vec* tile, i64 step,
                                                                    i64 rows, i64 count) {
  typename shape<T>::vec r[PF_W];
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) r[i] = tile[i];
  transpose_rows(r);
  for (int i = 0; i < rows && i < PF_W; ++i) store_n(p + i * step, r[i], count);
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
