// Rows of bytes: whole registers, whatever the type of the elements.
//   byte_row(p, n, make)  n elements from p on; make(w, i) gives the bytes from element i on, as many as `w` has
//   bytes_at(w, p)        bytes in memory        bytes_of<T>(w, x)  the bytes of a value, again and again
//   bytes_back(w, p)      the element at p, then the one before it, and so on
namespace pf {
typedef u8 byte_register __attribute__((vector_size(PF_BYTES)));
typedef u8 byte_half __attribute__((vector_size(16)));

template <class W, class T> PF_INLINE W bytes_at(W, const T* p) {
  W w;
  __builtin_memcpy(&w, p, sizeof w);
  return w;
}
// Elements of a vector in reverse: AT counts down to zero.
template <int COUNT, int... AT> struct backwards : backwards<COUNT - 1, AT..., COUNT - 1> {};
template <int... AT> struct backwards<0, AT...> {
  template <class V> PF_INLINE V of(V v) {
#if defined(__clang__)
    return __builtin_shufflevector(v, v, AT...);
#else
    return __builtin_shuffle(v, V{AT...});
#endif
  }
};
template <class W, class T> PF_INLINE W bytes_back(W w, const T* p) {
  constexpr int count = sizeof(W) / sizeof(T);
  if constexpr (count == 1) return bytes_at(w, p);
  else {
    typedef typename word_of<sizeof(T)>::type words __attribute__((vector_size(sizeof(W))));
    return (W)backwards<count>::of((words)bytes_at(w, p - (count - 1)));
  }
}
template <class T, class W> PF_INLINE W bytes_of(W, typename shape<T>::value x) {
  typedef typename word_of<sizeof(T)>::type word;
  T one;
  store_one(&one, x);
  const word bits = bits_as<word>(one);
  if constexpr (sizeof(W) > 8) {
    typedef word words __attribute__((vector_size(sizeof(W))));
    return (W)(words{} + bits);
  } else if constexpr (sizeof(W) == sizeof(T)) {
    return W(bits);
  } else {
    return W(W(bits) * W(W(~W(0)) / word(~word(0))));
  }
}
// Both ends of a row of at most two words, which overlap; all is read before anything is written.
template <class W, class T, class F> PF_INLINE void byte_ends(T* p, i64 n, F make) {
  const i64 last = n - i64(sizeof(W) / sizeof(T));
  const W a = make(W{}, i64(0)), b = make(W{}, last);
  __builtin_memcpy(p, &a, sizeof a);
  __builtin_memcpy(p + last, &b, sizeof b);
}
template <class T, class F> PF_INLINE void byte_row(T* p, i64 n, F make) {
  constexpr i64 step = PF_BYTES / sizeof(T);
  const i64 bytes = n * i64(sizeof(T));
  if (n >= step) {
    // read before the others are written: the row may be one that is read
    const i64 rest = n - step;
    const byte_register last = make(byte_register{}, rest);
    i64 i = 0;
#pragma GCC unroll 4
    for (; i < rest; i += step) {
      const byte_register w = make(byte_register{}, i);
      __builtin_memcpy(p + i, &w, sizeof w);
    }
    __builtin_memcpy(p + rest, &last, sizeof last);
  } else if (PF_BYTES > 32 && bytes >= 32) {
    typedef u8 half __attribute__((vector_size(32)));
    byte_ends<half>(p, n, make);
  } else if (bytes >= 16) {
    byte_ends<byte_half>(p, n, make);
  } else if (bytes >= 8) {
    byte_ends<u64>(p, n, make);
  } else {
    typedef typename word_of<sizeof(T)>::type word;
    for (i64 i = 0; i < n; ++i) {
      const word w = make(word{}, i);
      __builtin_memcpy(p + i, &w, sizeof w);
    }
  }
}
}  // namespace pf
