// Stores that combine with what is there; atomically unless the caller is alone with the element.
namespace pf {
#define PF_MODE(NAME, OP)                                                                                     \
  struct mode_##NAME {                                                                                        \
    template <class V> PF_INLINE V of(V a, V b) { return OP(a, b); }                                          \
    template <class T> PF_INLINE void atomic(T* p, typename shape<T>::value x) { atomic_##NAME(p, x); }       \
  };
PF_MODE(add, add) PF_MODE(mul, mul) PF_MODE(min, minimum) PF_MODE(max, maximum)

template <class M, class T> PF_INLINE void update_one(T* p, typename shape<T>::value x, bool alone) {
  if (alone) store_one(p, M::of(load_one(p), x));
  else M::atomic(p, x);
}
template <class M, class T, class V> PF_INLINE void update(T* p, V v, bool alone) {
#if PF_W > 1
  if constexpr (tr<V>::is_vec) {
    if (alone) return store(p, M::of(load<Vec>(p), v));
    for (int i = 0; i < PF_W; ++i) M::atomic(p + i, lane(v, i));
  } else
#endif
    update_one<M>(p, v, alone);
}
template <class M, class T, class V> PF_INLINE void update_n(T* p, V v, i64 n, bool alone) {
#if PF_W > 1
  if constexpr (tr<V>::is_vec) {
    if (alone) return store_n(p, M::of(load_n<Vec>(p, n), v), n);
    for (int i = 0; i < PF_W && i < n; ++i) M::atomic(p + i, lane(v, i));
  } else
#endif
    if (n > 0) update_one<M>(p, v, alone);
}
template <class M, class T, class I, class V, class K> PF_INLINE void update_at(T* p, I at, V v, K mask, bool alone) {
  const int n = int(tr<I>::lanes);
#if PF_W > 1
  if constexpr (tr<I>::is_vec) {
    // from memory: taking lanes out of registers needs more instructions
    typename tr<I>::elem where_to[n];
    typename tr<V>::elem what[n];
    __builtin_memcpy(where_to, &at, sizeof at);
    if constexpr (sizeof what == sizeof v) {
      __builtin_memcpy(what, &v, sizeof v);
      if (alone && all(mask)) {
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) update_one<M>(p + where_to[i], what[i], true);
        return;
      }
    }
  }
#endif
  for (int i = 0; i < n; ++i)
    if (lane(mask, i)) update_one<M>(p + lane(at, i), lane(v, i), alone);
}
}  // namespace pf
