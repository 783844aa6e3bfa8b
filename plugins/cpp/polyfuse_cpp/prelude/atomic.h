// Atomic read-modify-write of one element: atomic_add, atomic_mul, atomic_min, atomic_max, for every dtype.
namespace pf {
// Compare-exchange on the bits, so that NaN and negative zero are values like any other.
template <class F, class T> PF_INLINE void atomic_update(F f, T* p) {
  typedef typename word_of<sizeof(T)>::type U;
  U* q = (U*)p;
  U old = __atomic_load_n(q, __ATOMIC_RELAXED), next;
  do {
    T before = bits_as<T>(old), after = before;
    store_one(&after, f(load_one(&before)));
    next = bits_as<U>(after);
  } while (!__atomic_compare_exchange_n(q, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
#define PF_ATOMIC(NAME, OP)                                                              \
  template <class T> PF_INLINE void NAME(T* p, typename shape<T>::value x) {             \
    typedef typename shape<T>::value V;                                                  \
    atomic_update([x](V old) __attribute__((always_inline)) { return V(OP(old, x)); }, p); \
  }
PF_ATOMIC(atomic_mul, mul) PF_ATOMIC(atomic_min, minimum) PF_ATOMIC(atomic_max, maximum)
template <class T> PF_INLINE void atomic_add(T* p, typename shape<T>::value x) {
  typedef typename shape<T>::value V;
  if constexpr (same<T, V>::value && !tr<V>::is_float && !same<V, bool>::value) {
    __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
  } else {
    atomic_update([x](V old) __attribute__((always_inline)) { return V(add(old, x)); }, p);
  }
}
}  // namespace pf
