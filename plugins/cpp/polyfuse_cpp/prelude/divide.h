// floor_div, trunc_div, remainder, fmod and integer pow, with torch's signs and special values.
namespace pf {
// fmod of f32 in double arithmetic: exact while the quotient has fewer than 28 bits; other lanes call libm.
#if PF_W > 1
PF_INLINE nf64 fmod_native(nf64 a, nf64 b) {
  nf64 x = a < 0.0 ? -a : a, y = b < 0.0 ? -b : b;
  nf64 q = trunc(x / y), r = q == 0.0 ? x : x - q * y;
  r = r < 0.0 ? r + y : r;
  return r >= y ? r - y : r;
}
#if PF_WIDE
PF_INLINE vf64 fmod_double(vf64 a, vf64 b) { return {fmod_native(a.lo, b.lo), fmod_native(a.hi, b.hi)}; }
#else
PF_INLINE vf64 fmod_double(vf64 a, vf64 b) { return fmod_native(a, b); }
#endif
PF_HEAVY vf32 fmod(vf32 a, vf32 b) {
  vf32 q = abs(vf32(a / b));
  vi32 quick = q < 1.0e8f;
  vf32 r = copysign(cast<f32>(fmod_double(cast<f64>(a), cast<f64>(b))), a);
  if (!all(vmask{quick})) {
    for (int i = 0; i < PF_W; ++i)
      if (!quick[i]) r[i] = __builtin_fmodf(a[i], b[i]);
  }
  return r;
}
#if PF_FMA
// A quotient below 2^52 is rounded up to the next integer at worst, and what it leaves is exact in one operation.
PF_HEAVY vf64 fmod(vf64 a, vf64 b) {
  vf64 x = abs(a), y = abs(b), q = trunc(div(x, y)), r = fma(neg(q), y, x);
  r = copysign(where(lt(r, fill<vf64>(0.0)), add(r, y), r), a);
  vmask quick = bitwise_and(lt(q, fill<vf64>(4503599627370496.0)), lt(y, fill<vf64>(__builtin_inf())));
  if (all(quick)) return r;
  return each_lane<vf64>([](f64 m, f64 n, f64 whole, f64 rest) {
    return whole < 4503599627370496.0 && n - n == 0.0 ? rest : __builtin_fmod(m, n);
  }, a, b, q, r);
}
#else
PF_HEAVY vf64 fmod(vf64 a, vf64 b) { return each_lane<vf64>([](f64 x, f64 y) { return __builtin_fmod(x, y); }, a, b); }
#endif
#endif
PF_INLINE f32 fmod(f32 a, f32 b) { return __builtin_fmodf(a, b); }
PF_INLINE f64 fmod(f64 a, f64 b) { return __builtin_fmod(a, b); }

#if PF_W > 1
// Integers of 64 bits that lie below 2^51 divide exactly as doubles: their quotient is further from an integer that it
// does not reach than a double is rounded.  Adding 1.5 * 2^52 turns one into the other.
struct small_ints {
  static constexpr i64 bits = 0x4338000000000000LL;
  PF_INLINE vf64 from(vi64 a) { return sub(bits_as<vf64>(add(a, fill<vi64>(bits))), fill<vf64>(0x1.8p52)); }
  PF_INLINE vi64 to(vf64 a) { return sub(bits_as<vi64>(add(a, fill<vf64>(0x1.8p52))), fill<vi64>(bits)); }
  PF_INLINE vi64 divisor(vi64 b) { return where(eq(b, fill<vi64>(0)), fill<vi64>(1), b); }
  PF_INLINE bool has(vi64 a, vi64 b) {
    const vi64 half = fill<vi64>(i64(1) << 51), high = fill<vi64>(-(i64(1) << 52));
    return !any(ne(bitwise_and(bitwise_or(add(a, half), add(b, half)), high), fill<vi64>(0)));
  }
};
#endif
template <class V> struct divides_small {
#if PF_W > 1
  enum { value = tr<V>::is_vec && same<V, vi64>::value };
#else
  enum { value = 0 };
#endif
};
// Other integers lane by lane: no instruction divides vectors of them; 32 bits and below divide exactly as doubles.
template <class V> PF_INLINE V trunc_div_int(V a, V b) {
  typedef typename tr<V>::elem E;
#if PF_W > 1
  if constexpr (divides_small<V>::value) {
    typedef small_ints S;
    if (__builtin_expect(S::has(a, b), 1)) return S::to(trunc(div(S::from(a), S::from(S::divisor(b)))));
    return each_lane<V>(trunc_div_one<E>, a, b);
  } else
  if constexpr (tr<V>::is_vec && sizeof(E) <= 4) {
    V zero = fill<V>(E(0));
    V d = where(eq(b, zero), fill<V>(E(1)), b);
    auto q = trunc(div(cast<f64>(a), cast<f64>(d)));
    if constexpr (sizeof(E) == 4) return cast<E>(cast<i64>(q));
    else return cast<E>(cast<i32>(q));
  } else
#endif
    return each_lane<V>(trunc_div_one<E>, a, b);
}
template <class V> PF_INLINE V fmod_any(V a, V b) {
  if constexpr (tr<V>::is_float) return fmod(a, b);
  else {
#if PF_W > 1
    if constexpr (divides_small<V>::value) {
      typedef small_ints S;
      if (__builtin_expect(S::has(a, b), 1)) {
        const vf64 x = S::from(a), y = S::from(S::divisor(b));
        return where(eq(b, fill<V>(0)), a, S::to(sub(x, mul(trunc(div(x, y)), y))));
      }
    }
#endif
    return sub(a, mul(trunc_div_int(a, b), b));
  }
}
template <class V> PF_INLINE V trunc_div(V a, V b) {
  if constexpr (tr<V>::is_float) return trunc(div(a, b));
  else return trunc_div_int(a, b);
}
template <class V> PF_INLINE V remainder(V a, V b) {
  typedef typename tr<V>::elem E;
  V zero = fill<V>(E(0)), r = fmod_any(a, b);
  if constexpr (E(-1) < E(0)) {
    auto wrong = bitwise_and(ne(r, zero), ne(lt(r, zero), lt(b, zero)));
    return where(wrong, add(r, b), r);
  } else return r;
}
template <class V> PF_INLINE V floor_div(V a, V b) {
  typedef typename tr<V>::elem E;
  V zero = fill<V>(E(0)), one = fill<V>(E(1));
  if constexpr (tr<V>::is_float) {
    V m = fmod(a, b), q = div(sub(a, m), b);
    auto wrong = bitwise_and(ne(m, zero), ne(lt(m, zero), lt(b, zero)));
    q = where(wrong, sub(q, one), q);
    V f = floor(q);
    f = where(gt(sub(q, f), fill<V>(E(0.5))), add(f, one), f);
    V quotient = div(a, b);
    f = where(eq(q, zero), copysign(zero, quotient), f);
    return where(eq(b, zero), quotient, f);
  } else {
#if PF_W > 1
    if constexpr (divides_small<V>::value) {
      typedef small_ints S;
      if (__builtin_expect(S::has(a, b), 1)) return S::to(floor(div(S::from(a), S::from(S::divisor(b)))));
    }
#endif
    V q = trunc_div_int(a, b);
    if constexpr (E(-1) < E(0)) {
      V r = sub(a, mul(q, b));
      auto wrong = bitwise_and(ne(r, zero), ne(lt(r, zero), lt(b, zero)));
      return where(bitwise_and(wrong, ne(b, zero)), sub(q, one), q);
    } else return q;
  }
}
template <class V> PF_INLINE V fmod(V a, V b) { return fmod_any(a, b); }

// Integer powers by squaring; a negative exponent gives 0 except for bases 1 and -1.
template <class E> PF_INLINE E pow_one(E base, E n) {
  if constexpr (E(-1) < E(0)) {
    if (n < 0) return base == 1 ? E(1) : base == E(-1) ? (n & 1 ? E(-1) : E(1)) : E(0);
  }
  E r = 1;
  for (; n > 0; n = E(n >> 1)) {
    if (n & 1) r = E(r * base);
    base = E(base * base);
  }
  return r;
}
template <class V> PF_INLINE V pow(V a, V b) { return each_lane<V>(pow_one<typename tr<V>::elem>, a, b); }
}  // namespace pf
