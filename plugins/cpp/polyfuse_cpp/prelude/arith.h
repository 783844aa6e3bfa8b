// Arithmetic, bitwise operations, comparisons, selection and lane access, on scalars and vectors alike.
namespace pf {
#if PF_WIDE
#define PF_PAIR1(NAME) \
  template <class H> PF_INLINE wide<H> NAME(wide<H> a) { return {NAME(a.lo), NAME(a.hi)}; }
#define PF_PAIR2(NAME)                                                  \
  template <class H> PF_INLINE wide<H> NAME(wide<H> a, wide<H> b) {     \
    return {NAME(a.lo, b.lo), NAME(a.hi, b.hi)};                        \
  }
#define PF_PAIR3(NAME)                                                          \
  template <class H> PF_INLINE wide<H> NAME(wide<H> a, wide<H> b, wide<H> c) {  \
    return {NAME(a.lo, b.lo, c.lo), NAME(a.hi, b.hi, c.hi)};                    \
  }
#else
#define PF_PAIR1(NAME)
#define PF_PAIR2(NAME)
#define PF_PAIR3(NAME)
#endif
#define PF_OP2(NAME, OP)                                              \
  template <class T> PF_INLINE T NAME(T a, T b) { return T(a OP b); } \
  PF_PAIR2(NAME)
PF_OP2(add, +) PF_OP2(sub, -) PF_OP2(mul, *) PF_OP2(div, /)
PF_OP2(bitwise_and, &) PF_OP2(bitwise_or, |) PF_OP2(bitwise_xor, ^)
template <class T> PF_INLINE T neg(T a) { return T(-a); }
PF_PAIR1(neg)
template <class T> PF_INLINE T bitwise_not(T a) { return T(~a); }
PF_PAIR1(bitwise_not)

// bool arithmetic follows torch: addition is "or", multiplication is "and"
PF_INLINE bool add(bool a, bool b) { return a | b; }
PF_INLINE bool sub(bool a, bool b) { return a ^ b; }
PF_INLINE bool mul(bool a, bool b) { return a & b; }
PF_INLINE bool bitwise_not(bool a) { return !a; }
#if PF_W > 1
PF_INLINE vmask bitwise_and(vmask a, vmask b) { return {a.v & b.v}; }
PF_INLINE vmask bitwise_or(vmask a, vmask b) { return {a.v | b.v}; }
PF_INLINE vmask bitwise_xor(vmask a, vmask b) { return {a.v ^ b.v}; }
PF_INLINE vmask bitwise_not(vmask a) { return {~a.v}; }
PF_INLINE vmask add(vmask a, vmask b) { return {a.v | b.v}; }
PF_INLINE vmask sub(vmask a, vmask b) { return {a.v ^ b.v}; }
PF_INLINE vmask mul(vmask a, vmask b) { return {a.v & b.v}; }
#endif

// Native comparison result -> API mask, and back to the element width of V.
PF_INLINE bool as_mask(bool m) { return m; }
template <class V> PF_INLINE bool mask_for(bool m) { return m; }
#if PF_W > 1
PF_INLINE vmask as_mask(vi32 m) { return {m}; }
PF_INLINE vmask as_mask(vi8 m) { return {__builtin_convertvector(__builtin_convertvector(m, vi16), vi32)}; }
PF_INLINE vmask as_mask(vi16 m) { return {__builtin_convertvector(m, vi32)}; }
#if PF_WIDE
PF_INLINE vmask as_mask(wide<hi64> m) {
  return {join_halves<vi32>(__builtin_convertvector(m.lo, hi32), __builtin_convertvector(m.hi, hi32))};
}
#else
PF_INLINE vmask as_mask(vi64 m) { return {__builtin_convertvector(m, vi32)}; }
#endif
#if PF_WIDE
// Half a vector of four-byte elements as eight-byte ones: compilers take that apart where one instruction does it.
template <class H, class G> PF_INLINE H widen_half(G a) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  typedef typename tr<H>::elem E; typedef typename tr<G>::elem S;
  typedef int d8 __attribute__((vector_size(32))); typedef float f8 __attribute__((vector_size(32)));
  typedef long long q8 __attribute__((vector_size(64))); typedef double e8 __attribute__((vector_size(64)));
  const unsigned char every = (unsigned char)-1;
  if constexpr (tr<S>::is_float && tr<E>::is_float) return (H)__builtin_ia32_cvtps2pd512_mask((f8)a, e8{}, every, 4);
  else if constexpr (!tr<S>::is_float && !tr<E>::is_float) {
    if constexpr (S(-1) < S(0)) return (H)__builtin_ia32_pmovsxdq512_mask((d8)a, q8{}, every);
    else return (H)__builtin_ia32_pmovzxdq512_mask((d8)a, q8{}, every);
  } else if constexpr (same<S, i32>::value) return (H)__builtin_ia32_cvtdq2pd512_mask((d8)a, e8{}, every);
  else
#endif
    return __builtin_convertvector(a, H);
}
#endif
template <class V> struct mask_width {
  typedef typename tr<V>::ivec I;
  PF_INLINE I of(vmask m) {
    if constexpr (sizeof(I) == sizeof(vi32) / 4) return __builtin_convertvector(__builtin_convertvector(m.v, vi16), I);
    else return __builtin_convertvector(m.v, I);
  }
};
#if PF_WIDE
template <class H> struct mask_width<wide<H>> {
  PF_INLINE wide<hi64> of(vmask m) {
    return {widen_half<hi64>(low_half<hi32>(m.v)), widen_half<hi64>(high_half<hi32>(m.v))};
  }
};
#endif
template <class V> PF_INLINE typename tr<V>::ivec mask_for(vmask m) { return mask_width<V>::of(m); }
#endif

#if PF_WIDE && PF_AVX512 && PF_X86_BUILTINS
// Paired elements compare into mask registers, two halves of one mask.
typedef long long cmp_i64 __attribute__((vector_size(64)));
// Joined by the instruction for it: where g++ 12 widens eight bits itself and runs out of mask registers, it stores
// one byte and loads two.
PF_INLINE vmask mask_of_bits(unsigned char lo, unsigned char hi) {
  return {(vi32)__builtin_ia32_cvtmask2d512(__builtin_ia32_kunpckhi(hi, lo))};
}
#define PF_CMP_PAIR(NAME, INT, FLOAT)                                                                              \
  PF_INLINE vmask NAME(vi64 a, vi64 b) {                                                                           \
    return mask_of_bits(__builtin_ia32_cmpq512_mask((cmp_i64)a.lo, (cmp_i64)b.lo, INT, (unsigned char)-1),         \
                        __builtin_ia32_cmpq512_mask((cmp_i64)a.hi, (cmp_i64)b.hi, INT, (unsigned char)-1));        \
  }                                                                                                                \
  PF_INLINE vmask NAME(vu64 a, vu64 b) {                                                                           \
    return mask_of_bits(__builtin_ia32_ucmpq512_mask((cmp_i64)a.lo, (cmp_i64)b.lo, INT, (unsigned char)-1),        \
                        __builtin_ia32_ucmpq512_mask((cmp_i64)a.hi, (cmp_i64)b.hi, INT, (unsigned char)-1));       \
  }                                                                                                                \
  PF_INLINE vmask NAME(vf64 a, vf64 b) {                                                                           \
    return mask_of_bits(__builtin_ia32_cmppd512_mask(a.lo, b.lo, FLOAT, (unsigned char)-1, 4),                     \
                        __builtin_ia32_cmppd512_mask(a.hi, b.hi, FLOAT, (unsigned char)-1, 4));                    \
  }
PF_CMP_PAIR(eq, 0, 0) PF_CMP_PAIR(ne, 4, 4) PF_CMP_PAIR(lt, 1, 1) PF_CMP_PAIR(le, 2, 2) PF_CMP_PAIR(gt, 6, 14)
PF_CMP_PAIR(ge, 5, 13)
#endif
#if PF_WIDE
#define PF_CMP_WIDE(NAME, OP)                                                 \
  template <class H> PF_INLINE vmask NAME(wide<H> a, wide<H> b) {             \
    return as_mask(wide<hi64>{(hi64)(a.lo OP b.lo), (hi64)(a.hi OP b.hi)});   \
  }
#else
#define PF_CMP_WIDE(NAME, OP)
#endif
#define PF_CMP(NAME, OP)                                                                                     \
  template <class T> PF_INLINE typename tr<T>::mask NAME(T a, T b) { return as_mask(a OP b); }               \
  PF_CMP_WIDE(NAME, OP)
PF_CMP(eq, ==) PF_CMP(ne, !=) PF_CMP(lt, <) PF_CMP(le, <=) PF_CMP(gt, >) PF_CMP(ge, >=)
#if PF_W > 1
PF_INLINE vmask eq(vmask a, vmask b) { return {~(a.v ^ b.v)}; }
PF_INLINE vmask ne(vmask a, vmask b) { return {a.v ^ b.v}; }
PF_INLINE vmask lt(vmask a, vmask b) { return {~a.v & b.v}; }
PF_INLINE vmask le(vmask a, vmask b) { return {~a.v | b.v}; }
PF_INLINE vmask gt(vmask a, vmask b) { return {a.v & ~b.v}; }
PF_INLINE vmask ge(vmask a, vmask b) { return {a.v | ~b.v}; }
#endif

// pick(native comparison, a, b): selection inside algorithms; where(mask, a, b): the public form.
template <class M, class T> PF_INLINE T pick(M m, T a, T b) { return m ? a : b; }
template <class T> PF_INLINE T where(bool m, T a, T b) { return m ? a : b; }
#if PF_W > 1
template <class T> PF_INLINE T where(vmask m, T a, T b) { return mask_for<T>(m) ? a : b; }
PF_INLINE vmask where(vmask m, vmask a, vmask b) { return {(a.v & m.v) | (b.v & ~m.v)}; }
#if PF_WIDE
template <class H> PF_INLINE wide<H> where(vmask m, wide<H> a, wide<H> b) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  const unsigned k = (unsigned short)__builtin_ia32_cvtd2mask512(m.v);
  return {(H)__builtin_ia32_blendmq_512_mask((cmp_i64)b.lo, (cmp_i64)a.lo, (unsigned char)k),
          (H)__builtin_ia32_blendmq_512_mask((cmp_i64)b.hi, (cmp_i64)a.hi, (unsigned char)(k >> 8))};
#else
  wide<hi64> k = mask_for<wide<H>>(m);
  return {k.lo ? a.lo : b.lo, k.hi ? a.hi : b.hi};
#endif
}
#endif
#endif

// Lane access.
PF_INLINE bool lane(bool v, int) { return v; }
template <class V> PF_INLINE typename tr<V>::elem lane(V v, int i) {
  if constexpr (tr<V>::is_vec) return v[i];
  else return v;
}
template <class V> PF_INLINE V set_lane(V v, int i, typename tr<V>::elem x) {
  if constexpr (tr<V>::is_vec) v[i] = x;
  else v = x;
  return v;
}
#if PF_W > 1
PF_INLINE bool lane(vmask m, int i) { return m.v[i] != 0; }
PF_INLINE vmask set_lane(vmask m, int i, bool x) { m.v[i] = x ? -1 : 0; return m; }
#if PF_WIDE
template <class H> PF_INLINE typename tr<H>::elem lane(wide<H> v, int i) {
  return i < PF_HALF ? v.lo[i] : v.hi[i - PF_HALF];
}
template <class H> PF_INLINE wide<H> set_lane(wide<H> v, int i, typename tr<H>::elem x) {
  if (i < PF_HALF) v.lo[i] = x;
  else v.hi[i - PF_HALF] = x;
  return v;
}
#endif
#endif

// each_lane(f, args...): apply a scalar function to every lane (rare functions, integer division).
template <class R, class F, class... A> PF_INLINE R each_lane(F f, A... a) {
  R r{};
#pragma GCC unroll 16
  for (int i = 0; i < int(tr<R>::lanes); ++i) r = set_lane(r, i, f(lane(a, i)...));
  return r;
}

// Signs, extrema, NaN tests.
template <class T> PF_INLINE T abs(T a) {
  typedef typename tr<T>::ivec I; typedef typename tr<T>::elem E;
  if constexpr (tr<T>::is_float) return bits_as<T>(I(bits_as<I>(a) & fill<I>((typename tr<I>::elem)((typename tr<typename tr<T>::uvec>::elem)-1 >> 1))));
  else return a < fill<T>(E(0)) ? T(-a) : a;
}
PF_PAIR1(abs)
template <class T> PF_INLINE T sign(T a) {
  typedef typename tr<T>::elem E;
  T zero = fill<T>(E(0));
  return a > zero ? fill<T>(E(1)) : (a < zero ? fill<T>(E(-1)) : zero);
}
PF_PAIR1(sign)
PF_INLINE bool abs(bool a) { return a; }
PF_INLINE bool sign(bool a) { return a; }
// a < b ? a : b and a > b ? a : b, which is b where either is NaN: one instruction that the compiler does not find
template <class T> PF_INLINE T lesser(T a, T b) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if PF_AVX512
  if constexpr (same<typename tr<T>::elem, f32>::value && sizeof(T) == 64)
    return (T)__builtin_ia32_minps512_mask(a, b, b, (unsigned short)-1, 4);
#endif
#ifdef __AVX__
  if constexpr (same<typename tr<T>::elem, f32>::value && sizeof(T) == 32) return (T)__builtin_ia32_minps256(a, b);
#endif
#endif
  return a < b ? a : b;
}
template <class T> PF_INLINE T greater(T a, T b) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if PF_AVX512
  if constexpr (same<typename tr<T>::elem, f32>::value && sizeof(T) == 64)
    return (T)__builtin_ia32_maxps512_mask(a, b, b, (unsigned short)-1, 4);
#endif
#ifdef __AVX__
  if constexpr (same<typename tr<T>::elem, f32>::value && sizeof(T) == 32) return (T)__builtin_ia32_maxps256(a, b);
#endif
#endif
  return a > b ? a : b;
}
template <class T> PF_INLINE T minimum(T a, T b) {
  T r = lesser(a, b);
  if constexpr (tr<T>::is_float) r = a != a ? a : r;
  return r;
}
template <class T> PF_INLINE T maximum(T a, T b) {
  T r = greater(a, b);
  if constexpr (tr<T>::is_float) r = a != a ? a : r;
  return r;
}
template <class T> PF_INLINE T fmin(T a, T b) {
  T r = b < a ? b : a;
  if constexpr (tr<T>::is_float) r = a != a ? b : r;
  return r;
}
template <class T> PF_INLINE T fmax(T a, T b) {
  T r = b > a ? b : a;
  if constexpr (tr<T>::is_float) r = a != a ? b : r;
  return r;
}
#if PF_W > 1
PF_INLINE vmask minimum(vmask a, vmask b) { return {a.v & b.v}; }
PF_INLINE vmask maximum(vmask a, vmask b) { return {a.v | b.v}; }
#endif
PF_PAIR2(minimum) PF_PAIR2(maximum) PF_PAIR2(fmin) PF_PAIR2(fmax)
template <class T> PF_INLINE typename tr<T>::mask isnan(T a) { return ne(a, a); }
template <class T> PF_INLINE typename tr<T>::mask isinf(T a) {
  typedef typename tr<T>::elem E;
  if constexpr (tr<T>::is_float) return eq(abs(a), fill<T>(E(__builtin_inf())));
  else return ne(a, a);
}
template <class T> PF_INLINE typename tr<T>::mask signbit(T a) {
  typedef typename tr<T>::ivec I;
  if constexpr (tr<T>::is_float) return lt(bits_as<I>(a), fill<I>((typename tr<I>::elem)0));
  else return lt(a, fill<T>((typename tr<T>::elem)0));
}
template <class T> PF_INLINE T copysign(T a, T b) {
  typedef typename tr<T>::uvec U; typedef typename tr<U>::elem E;
  U low = fill<U>(E(E(-1) >> 1));
  return bits_as<T>(U((bits_as<U>(a) & low) | (bits_as<U>(b) & ~low)));
}
PF_PAIR2(copysign)

// Shifts: a count outside [0, bits) shifts everything out, as torch does.
template <class T> PF_INLINE T shift_left(T a, T b) {
  typedef typename tr<T>::uvec U; typedef typename tr<U>::elem E;
  U bits = fill<U>(E(8 * sizeof(E))), n = (U)b, zero = fill<U>(E(0));
  U safe = n < bits ? n : zero;
  return n < bits ? T((U)a << safe) : T(zero);
}
template <class T> PF_INLINE T shift_right(T a, T b) {
  typedef typename tr<T>::uvec U; typedef typename tr<U>::elem E;
  U last = fill<U>(E(8 * sizeof(E) - 1)), n = (U)b;
  if constexpr (same<T, U>::value) {
    U safe = n <= last ? n : last;
    return n <= last ? T(a >> safe) : T(fill<U>(E(0)));
  } else {
    return T(a >> (T)(n <= last ? n : last));
  }
}
PF_PAIR2(shift_left) PF_PAIR2(shift_right)

// Integer division.  A zero divisor yields an arbitrary result and never traps.
template <class E> PF_INLINE E trunc_div_one(E a, E b) {
  if constexpr (E(-1) < E(0)) {
    E d = (b == E(0) || b == E(-1)) ? E(1) : b;
    E q = E(a / d);
    return b == E(-1) ? E(0 - a) : q;
  } else {
    return E(a / (b == E(0) ? E(1) : b));
  }
}
}  // namespace pf
