// Access across the grain: square tiles transposed in registers.
namespace pf {
#if PF_W > 1
// One step of a transposition: blocks of S lanes are exchanged between rows that are S apart.
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
// In every group of 16 bytes: blocks of B lanes of the one and of the other in turn, from its first or second half on.
template <int N, int SIZE, int B, int SECOND> struct in_turn {
  static constexpr int at(int k) {
    return k / SIZE * SIZE + SECOND * SIZE / 2 + k % SIZE / (2 * B) * B + k % B + (k / B % 2) * N;
  }
};
template <int B, int SECOND, class V> PF_INLINE V interleave(V a, V b) {
  const int n = int(tr<V>::lanes), size = int(16 / sizeof(typename tr<V>::elem));
  return chooser<n>::template of<in_turn<n, size, B, SECOND>>(a, b);
}
// Half of the groups of 16 bytes of the one, then of the other: every STEP-th from the one at FROM on.
template <int N, int SIZE, int STEP, int FROM> struct of_groups {
  static constexpr int at(int k) { return k % (N / 2) / SIZE * STEP * SIZE + FROM * SIZE + k % SIZE + k / (N / 2) * N; }
};
template <int STEP, int FROM, class V> PF_INLINE V groups(V a, V b) {
  const int n = int(tr<V>::lanes), size = int(16 / sizeof(typename tr<V>::elem));
  return chooser<n>::template of<of_groups<n, size, STEP, FROM>>(a, b);
}
// A square of vectors transposed. Elements of 4 and 8 bytes: first groups of 16 bytes between vectors, then elements
// inside the groups, which are the cheaper exchanges.
template <class V> PF_INLINE void transpose_rows(V* r) {
  typedef typename tr<V>::elem E;
  const int n = int(tr<V>::lanes), size = int(16 / sizeof(E));
  if constexpr (sizeof(V) >= 16 && (sizeof(E) == 4 || sizeof(E) == 8)) {
    V v[n];
#pragma GCC unroll 16
    for (int i = 0; i < size; ++i) {
      if constexpr (sizeof(V) == 64) {
        V a = r[i], b = r[i + size], c = r[i + 2 * size], d = r[i + 3 * size];
        V ab0 = groups<1, 0>(a, b), ab1 = groups<1, 2>(a, b);
        V cd0 = groups<1, 0>(c, d), cd1 = groups<1, 2>(c, d);
        v[i] = groups<2, 0>(ab0, cd0);
        v[i + size] = groups<2, 1>(ab0, cd0);
        v[i + 2 * size] = groups<2, 0>(ab1, cd1);
        v[i + 3 * size] = groups<2, 1>(ab1, cd1);
      } else if constexpr (sizeof(V) == 32) {
        v[i] = groups<1, 0>(r[i], r[i + size]);
        v[i + size] = groups<1, 1>(r[i], r[i + size]);
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

// A tile of memory whose rows are `step` apart: tile[j] gets element j of every row. At an edge there are fewer `rows`
// and `count` elements of each, and nothing outside is touched; tile_load_first<COUNT> and tile_store_first<COUNT> are
// for whole rows of so few elements.
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
template <int COUNT, class T> PF_INLINE void tile_load_first(typename shape<T>::vec* tile, const T* p, i64 step) {
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) tile[i] = load_n<Vec>(p + i * step, COUNT);
  transpose_rows(tile);
}
template <int COUNT, class T> PF_INLINE void tile_store_first(T* p, typename shape<T>::vec* tile, i64 step) {
  transpose_rows(tile);
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) store_n(p + i * step, tile[i], COUNT);
}
template <bool STREAMING = false, class T> PF_INLINE void tile_store(T* p, typename shape<T>::vec* tile, i64 step) {
  transpose_rows(tile);
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) {
    if constexpr (STREAMING) stream(p + i * step, tile[i]);
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
#endif
}  // namespace pf
