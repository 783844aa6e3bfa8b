// Scalar operations with torch's meaning where CUDA has none, or another one.
#ifndef PF_MATH
#define PF_MATH
PF_INLINE i64 index_div(i64 a, i64 b) {
  const i64 q = a / b, r = a - q * b;
  return q - (r != 0 && (r < 0) != (b < 0));
}
PF_INLINE i64 index_mod(i64 a, i64 b) { return a - index_div(a, b) * b; }
PF_INLINE i64 index_min(i64 a, i64 b) { return a < b ? a : b; }
PF_INLINE i64 index_max(i64 a, i64 b) { return a < b ? b : a; }

template <class T> struct is_float { static constexpr bool value = false; };
template <> struct is_float<f32> { static constexpr bool value = true; };
template <> struct is_float<f64> { static constexpr bool value = true; };
PF_INLINE f32 op_fmod(f32 a, f32 b) { return fmodf(a, b); }
PF_INLINE f64 op_fmod(f64 a, f64 b) { return fmod(a, b); }
// The lowest number divided by minus one wraps; a divisor of zero gives anything.
template <class T> PF_INLINE T integer_quotient(T a, T b) {
  if constexpr (T(-1) < T(0)) {
    if (b == T(-1)) return T(0 - a);
  }
  return b == 0 ? a : T(a / b);
}
template <class T> PF_INLINE T op_fmod(T a, T b) { return T(a - integer_quotient(a, b) * b); }
template <class T> PF_INLINE T op_trunc_div(T a, T b) {
  if constexpr (is_float<T>::value) return trunc(a / b);
  else return integer_quotient(a, b);
}
template <class T> PF_INLINE T op_remainder(T a, T b) {
  const T r = op_fmod(a, b);
  if constexpr (T(-1) < T(0)) return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r;
  else return r;
}
template <class T> PF_INLINE T op_floor_div(T a, T b) {
  if constexpr (is_float<T>::value) {
    const T plain = a / b, r = op_fmod(a, b);
    T q = (a - r) / b;
    if (r != 0 && (r < 0) != (b < 0)) q -= 1;
    T down = floor(q);
    if (q - down > T(0.5)) down += 1;
    if (q == 0) down = copysign(T(0), plain);
    return b == 0 ? plain : down;
  } else {
    const T q = integer_quotient(a, b);
    if constexpr (T(-1) < T(0)) {
      const T r = T(a - q * b);
      return r != 0 && (r < 0) != (b < 0) ? T(q - 1) : q;
    } else return q;
  }
}
template <class T> PF_INLINE T op_minimum(T a, T b) { return a != a || a < b ? a : b; }
template <class T> PF_INLINE T op_maximum(T a, T b) { return a != a || a > b ? a : b; }
template <class T> PF_INLINE T op_sign(T a) { return T((a > 0) - (a < 0)); }
template <class T> PF_INLINE T op_shift_left(T a, T b) {
  const bool inside = b >= 0 && b < T(8 * sizeof(T));
  return inside ? T(a << b) : T(0);
}
template <class T> PF_INLINE T op_shift_right(T a, T b) {
  const bool inside = b >= 0 && b < T(8 * sizeof(T));
  if constexpr (T(-1) < T(0)) return T(a >> (inside ? b : T(8 * sizeof(T) - 1)));
  else return inside ? T(a >> b) : T(0);
}
template <class T> PF_INLINE T op_sigmoid(T a) { return T(1) / (T(1) + exp(-a)); }
PF_INLINE f32 op_nextafter(f32 a, f32 b) { return nextafterf(a, b); }
PF_INLINE f64 op_nextafter(f64 a, f64 b) { return nextafter(a, b); }
PF_INLINE bool op_signbit(f32 a) { return __float_as_int(a) < 0; }
PF_INLINE bool op_signbit(f64 a) { return __double_as_longlong(a) < 0; }
template <class T> PF_INLINE bool op_isnan(T a) { return a != a; }
template <class T> PF_INLINE bool op_isinf(T a) { return fabs(a) == T(__int_as_float(0x7f800000)); }
// An integer below 2^22 as a float, exactly: without the conversion, which is as slow as an exponential.
PF_INLINE f32 small_float(int x) { return __int_as_float(x + 0x4b400000) - 12582912.0f; }
// Exact enough for what is rounded to 16 bits: to 3e-6 of their values.
PF_INLINE f32 quick_inverse(f32 x) {
  f32 r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
PF_INLINE f32 quick_exp2(f32 x) {
  f32 r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
PF_INLINE f32 quick_exp(f32 x) { return quick_exp2(x * 1.4426950408889634f); }
PF_INLINE f32 quick_sigmoid(f32 x) { return quick_inverse(1.0f + quick_exp(-x)); }
PF_INLINE f32 quick_tanh(f32 x) {
  const f32 large = 1.0f - 2.0f * quick_inverse(1.0f + quick_exp2(x * 2.8853900817779268f));
  // near zero that difference has few digits; the first two terms of the series have enough
  return fabsf(x) < 0.0625f ? x * fmaf(x * x, -0.3333333333333333f, 1.0f) : large;
}
// The derivative of lgamma: reflected at zero, raised to ten, then a series.
PF_INLINE f64 op_digamma(f64 x) {
  if (x == 0) return copysign((f64)__int_as_float(0x7f800000), -x);
  f64 r = 0;
  if (x < 0) {
    const f64 fraction = x - trunc(x);
    if (fraction == 0) return (f64)__int_as_float(0x7fc00000);
    r = -3.141592653589793 / tan(3.141592653589793 * fraction);
    x = 1 - x;
  }
  if (op_isinf(x)) return x;
  while (x < 10) r -= 1 / x, x += 1;
  const f64 t = 1 / (x * x);
  f64 s = t * 0.08333333333333333 - 0.021092796092796094;
  s = s * t + 0.007575757575757576;
  s = s * t - 0.004166666666666667;
  s = s * t + 0.003968253968253968;
  s = s * t - 0.008333333333333333;
  s = s * t + 0.08333333333333333;
  return r + log(x) - 0.5 / x - s * t;
}
PF_INLINE f32 op_digamma(f32 x) { return (f32)op_digamma((f64)x); }
template <class To, class From> PF_INLINE To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits are taken for a type of equal width");
  union { From from; To to; } both;
  both.from = x;
  return both.to;
}
#endif
