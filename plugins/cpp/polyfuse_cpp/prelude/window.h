// Lanes that read near each other, at offsets known when compiling: whole vectors of the memory between the first and
// the last of them, and shuffles.
//   load_window<L, 0, 2, 4, ...>(p[, mask])  p[0], p[2], p[4], ... for growing offsets, one for each lane
//   load_back<L>(p[, mask])                  p[0], p[-1], p[-2], ...
//   load_near<L>(p, first, last, index)      p[index] where it rises from lane to lane, by less than two vectors in all
// Where the mask is false, lanes are zero, and nothing before the first or after the last that is true is touched.
namespace pf {
template <int... AT> struct offsets {
  static constexpr int of(int k) {
    constexpr int at[] = {AT...};
    return at[k];
  }
};
#if PF_W > 1
// One part of a window of vectors V that serves N lanes from FROM on: which element of it, or of what the parts before
// it gave, each lane takes. The last part ends with the window.
template <class O, int FROM, int N> struct window {
  static constexpr int first = O::of(FROM), span = O::of(FROM + N - 1) - first + 1, parts = (span + N - 1) / N;
  static constexpr int start(int part) { return part > 0 && part == parts - 1 ? span - N : part * N; }
  template <int PART> struct taking {
    static constexpr int at(int k) {
      const int e = O::of(FROM + k) - first;
      if (PART == 1 && e < N) return e;
      return (e < N ? 0 : e / N) == PART ? N + e - start(PART) : k;
    }
  };
  struct within {
    static constexpr int at(int k) { return O::of(FROM + k) - first; }
  };
  // Whether no two lanes read one element, and the elements that all of them read.
  static constexpr bool rises() {
    for (int k = 1; k < N; ++k)
      if (O::of(FROM + k) <= O::of(FROM + k - 1)) return false;
    return true;
  }
  static constexpr u64 elements() {
    u64 bits = 0;
    for (int k = 0; k < N; ++k) bits |= u64(1) << (O::of(FROM + k) - first);
    return bits;
  }
};
// Elements of a window as bits: those that the lanes of a mask read, or all between the first and the last.
template <class O, int FROM, int N> PF_INLINE u64 wanted_elements(unsigned lanes) {
  typedef window<O, FROM, N> W;
#if defined(__BMI2__) && PF_X86_BUILTINS
  if constexpr (W::rises()) return __builtin_ia32_pdep_di(lanes, W::elements());
#endif
  if (lanes == 0) return 0;
  const int low = O::of(FROM + __builtin_ctz(lanes)) - W::first;
  const int high = O::of(FROM + 31 - __builtin_clz(lanes)) - W::first;
  return (~u64(0) >> (63 - high)) & (~u64(0) << low);
}
// `part(i)` loads one part.
template <class V, class W, class F> PF_INLINE V put_together(F part) {
  const int n = int(tr<V>::lanes);
  V r = part(0);
  if constexpr (W::parts == 1) r = chooser<n>::template of<typename W::within>(r, r);
  if constexpr (W::parts > 1) r = chooser<n>::template of<typename W::template taking<1>>(r, part(1));
  if constexpr (W::parts > 2) r = chooser<n>::template of<typename W::template taking<2>>(r, part(2));
  if constexpr (W::parts > 3) r = chooser<n>::template of<typename W::template taking<3>>(r, part(3));
  return r;
}
template <class V, class O, int FROM> PF_INLINE V raw_window(const void* p) {
  typedef typename tr<V>::elem E;
  typedef window<O, FROM, int(tr<V>::lanes)> W;
  return put_together<V, W>([&](int i) __attribute__((always_inline)) {
    const char* q = (const char*)p + (W::first + W::start(i)) * i64(sizeof(E));
#if PF_WIDE
    // half a vector in both halves: a masked load would be slower
    if constexpr (W::span == PF_HALF && int(tr<V>::lanes) == PF_W) {
      typedef typename half_shape<E>::type H;
      const H h = raw_load<H>(q);
      return join_halves<V>(h, h);
    }
#endif
    if constexpr (W::span < int(tr<V>::lanes)) return raw_load_n<V>(q, W::span);
    else return raw_load<V>(q);
  });
}
template <class V, class O, int FROM> PF_INLINE V raw_window(const void* p, unsigned lanes) {
  typedef typename tr<V>::elem E;
  const int n = int(tr<V>::lanes);
  typedef window<O, FROM, n> W;
#if PF_AVX512 && PF_W == 16 && PF_X86_BUILTINS
  // masks cost nothing there, and a question asked of each vector would
  const bool asks = !W::rises();
#else
  const bool asks = true;
#endif
  if constexpr (asks) {
    if (lanes == 0) return V{};
    if (lanes == (1u << n) - 1u) return raw_window<V, O, FROM>(p);
  }
  const u64 wanted = wanted_elements<O, FROM, n>(lanes);
  return put_together<V, W>([&](int i) __attribute__((always_inline)) {
    const char* q = (const char*)p + (W::first + W::start(i)) * i64(sizeof(E));
    return raw_load_bits<V>(q, unsigned(wanted >> W::start(i)) & ((1u << n) - 1u));
  });
}
template <class V> PF_INLINE V reversed(V v) {
  typedef typename tr<V>::ivec I;
  return select_lanes(v, v, fill<I>((typename tr<I>::elem)(int(tr<V>::lanes) - 1)) - lane_numbers<I>::make());
}
template <class V> PF_INLINE V raw_back(const void* p) {
  return reversed(raw_load<V>((const char*)p - (int(tr<V>::lanes) - 1) * sizeof(typename tr<V>::elem)));
}
// `elements` are bits in the order of memory, the last one for the first lane.
template <class V> PF_INLINE V raw_back(const void* p, unsigned elements) {
  const char* q = (const char*)p - (int(tr<V>::lanes) - 1) * sizeof(typename tr<V>::elem);
  return reversed(raw_load_bits<V>(q, elements));
}
template <class V, class T, class I> PF_INLINE V raw_near(const T* p, i64 first, i64 last, I index) {
  typedef typename tr<V>::ivec K;
  const int n = int(tr<V>::lanes), count = int(last - first) + 1;
  K k = native_convert<K>(sub(cast<i32>(index), fill<vi32>(i32(first))));
  if (count <= n) {
    V v = raw_load_n<V>(p + first, count);
    return select_lanes(v, v, k);
  }
  return select_lanes(raw_load<V>(p + first), raw_load_n<V>(p + first + n, count - n), k);
}
#endif
template <class L, int... AT, class T> PF_INLINE typename L::template of<T> load_window(const T* p) {
  typedef typename L::template of<T> V;
  typedef offsets<AT...> O;
#if PF_W > 1
  if constexpr (L::lanes > 1) {
    if constexpr (same<T, bool>::value) return as_mask(raw_window<vu8, O, 0>(p) != fill<vu8>(0));
    else if constexpr (stored<T>::value) return widen_vector(raw_window<typename stored<T>::words, O, 0>(p), p);
#if PF_WIDE
    else if constexpr (sizeof(T) == 8) {
      typedef decltype(V::lo) H;
      return {raw_window<H, O, 0>(p), raw_window<H, O, PF_HALF>(p)};
    }
#endif
    else return raw_window<V, O, 0>(p);
  } else
#endif
    return load_one(p + O::of(0));
}
template <class L, int... AT, class T, class M> PF_INLINE typename L::template of<T> load_window(const T* p, M m) {
  typedef typename L::template of<T> V;
  typedef offsets<AT...> O;
#if PF_W > 1
  if constexpr (L::lanes > 1) {
    const unsigned k = mask_bits(m);
    if constexpr (same<T, bool>::value)
      return bitwise_and(as_mask(raw_window<vu8, O, 0>(p, k) != fill<vu8>(0)), m);
    else if constexpr (stored<T>::value)
      return where(m, widen_vector(raw_window<typename stored<T>::words, O, 0>(p, k), p), V{});
#if PF_WIDE
    else if constexpr (sizeof(T) == 8) {
      typedef decltype(V::lo) H;
      const unsigned half = (1u << PF_HALF) - 1u;
      return where(m, V{raw_window<H, O, 0>(p, k & half), raw_window<H, O, PF_HALF>(p, k >> PF_HALF)}, V{});
    }
#endif
    else return where(m, raw_window<V, O, 0>(p, k), V{});
  } else
#endif
    return m ? load_one(p + O::of(0)) : V{};
}
template <class L, class T> PF_INLINE typename L::template of<T> load_back(const T* p) {
  typedef typename L::template of<T> V;
#if PF_W > 1
  if constexpr (L::lanes > 1) {
    if constexpr (same<T, bool>::value) return as_mask(raw_back<vu8>(p) != fill<vu8>(0));
    else if constexpr (stored<T>::value) return widen_vector(raw_back<typename stored<T>::words>(p), p);
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
template <class L, class T, class M> PF_INLINE typename L::template of<T> load_back(const T* p, M m) {
  typedef typename L::template of<T> V;
#if PF_W > 1
  if constexpr (L::lanes > 1) {
    const unsigned k = mask_bits(M{reversed(m.v)});
    if constexpr (same<T, bool>::value) return as_mask(raw_back<vu8>(p, k) != fill<vu8>(0));
    else if constexpr (stored<T>::value) return widen_vector(raw_back<typename stored<T>::words>(p, k), p);
#if PF_WIDE
    else if constexpr (sizeof(T) == 8) {
      typedef decltype(V::lo) H;
      return {raw_back<H>(p, k >> PF_HALF), raw_back<H>(p - PF_HALF, k & ((1u << PF_HALF) - 1u))};
    }
#endif
    else return raw_back<V>(p, k);
  } else
#endif
    return m ? load_one(p) : V(0);
}
template <class L, class T, class I>
PF_INLINE typename L::template of<T> load_near(const T* p, i64 first, i64 last, I index) {
  typedef typename L::template of<T> V;
#if PF_W > 1
  if constexpr (L::lanes > 1) {
    if constexpr (same<T, bool>::value) return as_mask(raw_near<vu8>(p, first, last, index) != fill<vu8>(0));
    else if constexpr (stored<T>::value)
      return widen_vector(raw_near<typename stored<T>::words>(p, first, last, index), p);
    else return raw_near<V>(p, first, last, index);
  } else
#endif
    return load_one(p + first);
}
}  // namespace pf
