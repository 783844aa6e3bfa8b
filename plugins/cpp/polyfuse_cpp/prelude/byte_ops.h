// Operations on rows of bytes whose elements are bytes themselves: as many at once as a register has bytes.
//   byte_add<T>(a, b), byte_lt<T>(a, b), byte_where<T>(m, a, b), ...  a and b are bytes of elements of type T (i8, u8; of bools
//   u8), in a register, a part of one, a word or alone; comparisons give bytes of bools, which are 0 or 1
namespace pf {
template <class T, class W> struct byte_lanes { typedef T type __attribute__((vector_size(sizeof(W)))); };
template <class T> struct byte_lanes<T, u8> { typedef T type; };
#define PF_BYTES1(NAME, T, EXPRESSION)                                   \
  template <class E, class W> PF_INLINE W byte_##NAME(W a) {             \
    typedef typename byte_lanes<T, W>::type L;                           \
    const L x = bits_as<L>(a);                                           \
    return bits_as<W>(L(EXPRESSION));                                    \
  }
#define PF_BYTES2(NAME, T, EXPRESSION)                                   \
  template <class E, class W> PF_INLINE W byte_##NAME(W a, W b) {        \
    typedef typename byte_lanes<T, W>::type L;                           \
    const L x = bits_as<L>(a), y = bits_as<L>(b);                        \
    return bits_as<W>(L(EXPRESSION));                                    \
  }
// without a sign: what is too large wraps around
PF_BYTES2(add, u8, x + y) PF_BYTES2(sub, u8, x - y) PF_BYTES2(mul, u8, x * y) PF_BYTES1(neg, u8, 0 - x)
PF_BYTES2(minimum, E, x < y ? x : y) PF_BYTES2(maximum, E, x > y ? x : y)
PF_BYTES1(abs, i8, x < 0 ? L(0 - x) : x)
// a comparison of vectors gives bytes of which all bits are set
PF_BYTES2(eq, E, (x == y) & 1) PF_BYTES2(ne, E, (x != y) & 1) PF_BYTES2(lt, E, (x < y) & 1)
PF_BYTES2(le, E, (x <= y) & 1) PF_BYTES2(gt, E, (x > y) & 1) PF_BYTES2(ge, E, (x >= y) & 1)
PF_BYTES1(any, u8, (x != 0) & 1)
template <class E, class W> PF_INLINE W byte_where(W m, W a, W b) {
  typedef typename byte_lanes<u8, W>::type L;
  const L x = bits_as<L>(a), y = bits_as<L>(b);
  return bits_as<W>(L(bits_as<L>(m) != 0 ? x : y));
}
}  // namespace pf
