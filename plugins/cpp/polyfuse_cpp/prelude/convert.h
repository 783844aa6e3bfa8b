// cast<To>(a), bitcast<To>(a), splat<L>(x), iota<L, T>(start, step) and the 16-bit and 8-bit float encodings.
namespace pf {
// An integer that was a floating-point number. Compilers that may ignore traps make one truncation of a conversion there
// and back, which leaves -0.0 and numbers out of range as they are: here they do not see where the number comes from.
template <class I> PF_INLINE I opaque(I r) {
  asm("" : "+r"(r));
  return r;
}
// Scalar conversions with the results the x86 instructions (and therefore torch) give out of range.
template <class To, class From> PF_INLINE To convert_one(From a) {
  typedef typename shape<To>::value V;
  if constexpr (same<V, bool>::value) return a != From(0);
  else if constexpr (tr<From>::is_float && !tr<V>::is_float) {
    const From big = From(9223372036854775808.0);
    if constexpr (same<V, u64>::value) {
      if (a >= big) return opaque(u64(i64(a - big))) + (u64(1) << 63);
    }
    if constexpr (sizeof(V) == 8 || same<V, u32>::value) {
#if defined(__x86_64__)
      return V(opaque(i64(a)));
#else
      return V(opaque((a >= -big && a < big) ? i64(a) : i64(u64(1) << 63)));
#endif
    } else {
      const From lim = From(2147483648.0);
      i32 r = (a > -lim - From(1) && a < lim) ? i32(a) : i32(-2147483647 - 1);
      return V(opaque(r));
    }
  } else return V(a);
}

#if PF_W > 1
// Vector conversions.  Bytes go through 16 bits and small integers through i32, one step of the instruction set at a
// time (compilers take a conversion that skips a size apart lane by lane); paired elements are handled half by half.
template <class To, class From> PF_INLINE To native_convert(From a) {
  typedef typename tr<To>::elem E; typedef typename tr<From>::elem S;
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  typedef char c16 __attribute__((vector_size(16))); typedef short s16 __attribute__((vector_size(32)));
  typedef int d16 __attribute__((vector_size(64)));
  const unsigned short every = (unsigned short)-1;
  if constexpr (sizeof(S) == 1 && sizeof(E) == 4 && !tr<E>::is_float) {
    if constexpr (S(-1) < S(0)) return (To)__builtin_ia32_pmovsxbd512_mask((c16)a, d16{}, every);
    else return (To)__builtin_ia32_pmovzxbd512_mask((c16)a, d16{}, every);
  } else if constexpr (sizeof(S) == 2 && sizeof(E) == 4 && !tr<E>::is_float) {
    if constexpr (S(-1) < S(0)) return (To)__builtin_ia32_pmovsxwd512_mask((s16)a, d16{}, every);
    else return (To)__builtin_ia32_pmovzxwd512_mask((s16)a, d16{}, every);
  } else if constexpr (sizeof(S) == 4 && sizeof(E) == 1 && !tr<S>::is_float)
    return (To)__builtin_ia32_pmovdb512_mask((d16)a, c16{}, every);
  else if constexpr (sizeof(S) == 4 && sizeof(E) == 2 && !tr<S>::is_float)
    return (To)__builtin_ia32_pmovdw512_mask((d16)a, s16{}, every);
  else if constexpr (sizeof(S) == 1 && sizeof(E) > 2) return native_convert<To>(native_convert<vi32>(a));
  else if constexpr (sizeof(E) == 1 && sizeof(S) > 2) return native_convert<To>(native_convert<vi32>(a));
  else
#endif
  if constexpr (same<To, From>::value) return a;
  else if constexpr (!tr<S>::is_float && !tr<E>::is_float && sizeof(S) == sizeof(E)) return (To)a;
  else if constexpr (sizeof(S) == 1 && sizeof(E) > 2) {
    if constexpr (S(-1) < S(0)) return native_convert<To>(__builtin_convertvector(a, vi16));
    else return native_convert<To>(__builtin_convertvector(a, vu16));
  } else if constexpr (sizeof(E) == 1 && sizeof(S) > 2)
    return __builtin_convertvector(native_convert<vi16>(a), To);
  else if constexpr (sizeof(S) == 2 && (tr<E>::is_float || sizeof(E) == 8))
    return native_convert<To>(__builtin_convertvector(a, vi32));
  else if constexpr (sizeof(E) == 2 && (tr<S>::is_float || sizeof(S) == 8))
    return __builtin_convertvector(native_convert<vi32>(a), To);
  else return __builtin_convertvector(a, To);
}
// Whether floating-point numbers become these lane by lane: no instruction of the set converts a vector.
template <class E> struct by_lanes {
  enum { value = same<E, u64>::value || (!PF_AVX512 && same<E, i64>::value) };
};
template <class To, class From> struct vector_cast {
  PF_INLINE To of(From a) {
    typedef typename tr<To>::elem E; typedef typename tr<From>::elem S;
    if constexpr (tr<S>::is_float && (same<E, u32>::value || by_lanes<E>::value))
      return each_lane<To>(convert_one<E, S>, a);
    else return native_convert<To>(a);
  }
};
template <class From> struct vector_cast<vmask, From> {
  PF_INLINE vmask of(From a) { return ne(a, fill<From>((typename tr<From>::elem)0)); }
};
template <class To> struct vector_cast<To, vmask> {
  PF_INLINE To of(vmask m) { return native_convert<To>(vi32(m.v & 1)); }
};
template <> struct vector_cast<vmask, vmask> { PF_INLINE vmask of(vmask m) { return m; } };
#if PF_WIDE
template <class E> struct half_shape;
#define PF_HALF_SHAPE(T) template <> struct half_shape<T> { typedef h##T type; };
PF_HALF_SHAPE(f32) PF_HALF_SHAPE(f64) PF_HALF_SHAPE(i8) PF_HALF_SHAPE(u8) PF_HALF_SHAPE(i16) PF_HALF_SHAPE(u16)
PF_HALF_SHAPE(i32) PF_HALF_SHAPE(u32) PF_HALF_SHAPE(i64) PF_HALF_SHAPE(u64)
template <class H, class From> struct vector_cast<wide<H>, From> {
  PF_INLINE wide<H> of(From a) {
    typedef typename tr<From>::elem S; typedef typename tr<H>::elem E;
    if constexpr (tr<S>::is_float && by_lanes<E>::value) return each_lane<wide<H>>(convert_one<E, S>, a);
    else if constexpr (sizeof(S) < 4) {
      vi32 b = native_convert<vi32>(a);
      return {widen_half<H>(low_half<hi32>(b)), widen_half<H>(high_half<hi32>(b))};
    } else {
      typedef typename half_shape<S>::type G;
      return {widen_half<H>(low_half<G>(a)), widen_half<H>(high_half<G>(a))};
    }
  }
};
// One half of a narrowing conversion; compilers shuffle where one instruction would do.
template <class H, class G> PF_INLINE H narrow_half(G a) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  typedef long long q8 __attribute__((vector_size(64))); typedef int d8 __attribute__((vector_size(32)));
  if constexpr (!tr<typename tr<G>::elem>::is_float && !tr<typename tr<H>::elem>::is_float)
    return (H)__builtin_ia32_pmovqd512_mask((q8)a, d8{}, (unsigned char)-1);
  else
#endif
    return __builtin_convertvector(a, H);
}
template <class To, class G> struct vector_cast<To, wide<G>> {
  PF_INLINE To of(wide<G> a) {
    typedef typename tr<To>::elem E; typedef typename tr<G>::elem S;
    if constexpr (tr<S>::is_float && same<E, u32>::value) return each_lane<To>(convert_one<E, S>, a);
    else if constexpr (sizeof(E) == 4) {
      typedef typename half_shape<E>::type H;
      return join_halves<To>(narrow_half<H>(a.lo), narrow_half<H>(a.hi));
    } else {
      return native_convert<To>(
          join_halves<vi32>(narrow_half<hi32>(a.lo), narrow_half<hi32>(a.hi)));
    }
  }
};
template <class H, class G> struct vector_cast<wide<H>, wide<G>> {
  PF_INLINE wide<H> of(wide<G> a) {
    typedef typename tr<H>::elem E; typedef typename tr<G>::elem S;
    if constexpr (tr<S>::is_float && by_lanes<E>::value) return each_lane<wide<H>>(convert_one<E, S>, a);
    else return {__builtin_convertvector(a.lo, H), __builtin_convertvector(a.hi, H)};
  }
};
template <class H> struct vector_cast<wide<H>, vmask> {
  PF_INLINE wide<H> of(vmask m) { return vector_cast<wide<H>, vi32>::of(vi32(m.v & 1)); }
};
template <class G> struct vector_cast<vmask, wide<G>> {
  PF_INLINE vmask of(wide<G> a) { return ne(a, fill<wide<G>>((typename tr<G>::elem)0)); }
};
#endif
#endif

// cast<To>(a): To names a scalar dtype; the result has the lanes of a.
template <class To, class From> PF_INLINE with<From, To> cast(From a) {
#if PF_W > 1
  if constexpr (tr<From>::is_vec) return vector_cast<with<From, To>, From>::of(a);
  else
#endif
    return convert_one<To>(a);
}

// bitcast<To>(a): same bits, same lane count, element types of equal size.
template <class To, class From> PF_INLINE with<From, To> bitcast(From a) { return bits_as<with<From, To>>(a); }

template <class L, class T> PF_INLINE typename L::template of<T> splat(T x) {
  return fill<typename L::template of<T>>(x);
}

// The numbers of the lanes: 0, 1, 2, ...  Written out, for a loop would cost the compiler more than all else here.
template <int LANES> struct counter;
#define PF_COUNTER(N, ...) \
  template <> struct counter<N> { template <class V> PF_INLINE V make() { return V{__VA_ARGS__}; } };
PF_COUNTER(1, 0) PF_COUNTER(2, 0, 1) PF_COUNTER(4, 0, 1, 2, 3) PF_COUNTER(8, 0, 1, 2, 3, 4, 5, 6, 7)
PF_COUNTER(16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
template <class V> struct lane_numbers {
  PF_INLINE V make() { return counter<tr<V>::lanes>::template make<V>(); }
};
#if PF_WIDE
template <class H> struct lane_numbers<wide<H>> {
  PF_INLINE wide<H> make() {
    H h = counter<PF_HALF>::template make<H>();
    return {h, h + fill<H>((typename tr<H>::elem)PF_HALF)};
  }
};
#endif
// start, start + step, ...
template <class L, class T> PF_INLINE typename L::template of<T> iota(T start, T step = T(1)) {
  typedef typename L::template of<T> V;
  if constexpr (L::lanes == 1) return start;
  else return add(fill<V>(start), mul(lane_numbers<V>::make(), fill<V>(step)));
}

// bf16 and f16 exist in memory only: u16 bits <-> f32, rounding to nearest even, NaN stays NaN.
template <class F, class U32> PF_INLINE F bf16_widen(U32 u) { return bits_as<F>(U32(u << 16)); }
template <class F> PF_INLINE typename tr<F>::uvec bf16_narrow(F x) {
  typedef typename tr<F>::uvec U;
  U u = bits_as<U>(x);
  U r = (u + fill<U>(0x7fffu) + ((u >> 16) & fill<U>(1u))) >> 16;
  return x != x ? fill<U>(0x7fc0u) : r;
}
// f16 by integer arithmetic, for machines (and scalars) without the conversion instruction.
template <class F, class U> PF_INLINE F f16_widen(U h) {
  U sign = (h & fill<U>(0x8000u)) << 16, body = (h & fill<U>(0x7fffu)) << 13;
  U expo = body & fill<U>(0x0f800000u);
  U normal = body + fill<U>((127u - 15u) << 23);
  U special = body + fill<U>((255u - 31u) << 23);
  // denormal: put the mantissa below 2^-14 and subtract the hidden one
  F sub_normal = bits_as<F>(U(body + fill<U>((127u - 14u) << 23))) - fill<F>(6.103515625e-05f);
  U r = expo == fill<U>(0u) ? bits_as<U>(sub_normal) : (expo == fill<U>(0x0f800000u) ? special : normal);
  return bits_as<F>(U(r | sign));
}
template <class F> PF_INLINE typename tr<F>::uvec f16_narrow(F x) {
  typedef typename tr<F>::uvec U;
  U u = bits_as<U>(x), sign = (u >> 16) & fill<U>(0x8000u), a = u & fill<U>(0x7fffffffu);
  U normal = (a - fill<U>((127u - 15u) << 23) + fill<U>(0xfffu) + ((a >> 13) & fill<U>(1u))) >> 13;
  // below 2^-14: adding 0.5 makes the float adder round at the right bit
  U tiny = bits_as<U>(F(bits_as<F>(a) + fill<F>(0.5f))) - fill<U>(0x3f000000u);
  U r = a < fill<U>((127u - 14u) << 23) ? tiny : normal;
  r = a >= fill<U>(0x477ff000u) ? fill<U>(0x7c00u) : r;
  r = a > fill<U>(0x7f800000u) ? fill<U>(0x7e00u) : r;
  return r | sign;
}
// Eight bits by integer arithmetic, as torch rounds them: to nearest even; NaN keeps its sign where there are two.
#ifndef PF_E4M3_SATURATES
#define PF_E4M3_SATURATES 1
#endif
template <class T, class F, class U> PF_INLINE F eight_widen(U c) {
  enum { M = eight<T>::fraction, BIAS = eight<T>::bias };
  U body = (c & fill<U>(0x7fu)) << (23 - M);
  U normal = body + fill<U>(u32(127 - BIAS) << 23);
  // denormal: put the fraction below the smallest normal number and subtract the hidden one
  const F least = fill<F>(bits_as<f32>(u32(128 - BIAS) << 23));
  F sub_normal = bits_as<F>(U(body + fill<U>(u32(128 - BIAS) << 23))) - least;
  U r = body < fill<U>(1u << 23) ? bits_as<U>(sub_normal) : normal;
  if constexpr (same<T, f8e4m3>::value) r = body == fill<U>(0x7fu << (23 - M)) ? fill<U>(0x7ff00000u) : r;
  if constexpr (same<T, f8e5m2>::value) {
    r = body >= fill<U>(0x7cu << (23 - M)) ? body + fill<U>(u32(255 - 31) << 23) : r;
    r = body > fill<U>(0x7cu << (23 - M)) ? r | fill<U>(0x00400000u) : r;
  }
  r = r | ((c & fill<U>(0x80u)) << 24);
  if constexpr (eight<T>::fnuz) r = c == fill<U>(0x80u) ? fill<U>(0x7f800001u) : r;
  return bits_as<F>(r);
}
template <class T, class F> PF_INLINE typename tr<F>::uvec eight_narrow(F x) {
  typedef typename tr<F>::uvec U;
  enum { M = eight<T>::fraction, BIAS = eight<T>::bias };
  U u = bits_as<U>(x), sign = (u >> 24) & fill<U>(0x80u), a = u & fill<U>(0x7fffffffu);
  U half = fill<U>((1u << (22 - M)) - 1u) + ((a >> (23 - M)) & fill<U>(1u));
  U normal = (a - fill<U>(u32(127 - BIAS) << 23) + half) >> (23 - M);
  // below the smallest normal number: a sum with a number whose last bit is that of the result rounds at the right bit
  const u32 last = u32(127 + 1 - BIAS - M + 23) << 23;
  U tiny = bits_as<U>(F(bits_as<F>(a) + fill<F>(bits_as<f32>(last)))) - fill<U>(last);
  U r = a < fill<U>(u32(128 - BIAS) << 23) ? tiny : normal;
  if constexpr (eight<T>::fnuz) {
    const U none = fill<U>(0u);
    sign = r == none ? none : sign;
    return r > fill<U>(0x7fu) ? fill<U>(0x80u) : r | sign;
  } else {
    const U most = fill<U>(same<T, f8e5m2>::value ? 0x7cu : PF_E4M3_SATURATES ? 0x7eu : 0x7fu);
    r = r > most ? most : r;
    return (a > fill<U>(0x7f800000u) ? fill<U>(0x7fu) : r) | sign;
  }
}
// widen_bits<T, F>(bits) and narrow_bits<T>(x): any of these types, its bits in lanes of 32.
template <class T, class F, class U> PF_INLINE F widen_bits(U bits) {
  if constexpr (eight<T>::value) return eight_widen<T, F>(bits);
  else if constexpr (same<T, bf16>::value) return bf16_widen<F>(bits);
  else return f16_widen<F>(bits);
}
template <class T, class F> PF_INLINE typename tr<F>::uvec narrow_bits(F x) {
  if constexpr (eight<T>::value) return eight_narrow<T>(x);
  else if constexpr (same<T, bf16>::value) return bf16_narrow(x);
  else return f16_narrow(x);
}
template <class T> PF_INLINE f32 widen(T h) { return widen_bits<T, f32>(u32(h.bits)); }
template <class To> PF_INLINE To narrow_one(f32 x) { return To{typename stored<To>::word(narrow_bits<To>(x))}; }
}  // namespace pf
