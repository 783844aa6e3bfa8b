// lgamma and digamma (f32, f64), erfinv in f64, nextafter, and the power of integers.  Needs math_f64.h and divide.h.
extern "C" {
double lgamma_r(double, int*);
}
namespace pf {
PF_HEAVY f64 lgamma_one(f64 x) { int sign; return lgamma_r(x, &sign); }

// lgamma for f32, in double.  Below 8 the argument moves up by 8 and the product of what lies between is taken off; below
// zero the reflection lgamma(x) = log(pi / |sin(pi x)|) - lgamma(1 - x) leads there.
template <class V> PF_INLINE V lgamma_quick(V x) {
  V zero = fill<V>(0.0), one = fill<V>(1.0), half = fill<V>(0.5), eight = fill<V>(8.0), inf = fill<V>(__builtin_inf());
  V a = x < zero ? one - x : x, base = a < eight ? a : one;
  V p = base * (base + one) * (base + fill<V>(2.0)) * (base + fill<V>(3.0));
  p = p * (base + fill<V>(4.0)) * (base + fill<V>(5.0)) * (base + fill<V>(6.0)) * (base + fill<V>(7.0));
  p = a < eight ? p : one;
  V u = a < eight ? a + eight : a, w = one / u;
  V tail = w * horner(V(w * w), 0.083333333333330331, -0.0027777777680612846, 0.00079364576353562659,
                      -0.0005943224333992349, 0.00077280609715378893);
  V y = (u - half) * log_f64(u) - u + fill<V>(0.91893853320467278) + tail - log_f64(p);
  V f = abs(x);
  f = f - floor(f);
  f = f > half ? one - f : f;
  V s = f * horner(V(f * f), 3.1415926535896359, -5.1677127799881655, 2.5501640359163882, -0.59926443410026542,
                   0.082144795939639775, -0.0073640099832531563, 0.00044749809885089416);
  y = x < zero ? fill<V>(1.1447298858494002) - log_f64(s) - y : y;
  y = (x - one) * (x - fill<V>(2.0)) == zero ? zero : y;
  y = x == zero ? inf : y;
  y = abs(x) == inf ? inf : y;
  return x != x ? x : y;
}

// digamma: reflection below zero, recurrence up to 10, then the asymptotic series
PF_HEAVY f64 digamma_one(f64 x) {
  if (x == 0.0) return __builtin_copysign(__builtin_inf(), -x);
  f64 r = 0.0;
  if (x < 0.0) {
    if (x == __builtin_trunc(x)) return __builtin_nan("");
    f64 f = x - __builtin_trunc(x);
    r = -3.14159265358979323846 / __builtin_tan(3.14159265358979323846 * f);
    x = 1.0 - x;
  }
  while (x < 10.0) { r -= 1.0 / x; x += 1.0; }
  f64 t = 1.0 / (x * x);
  f64 s = t * horner(t, 1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12);
  return x == __builtin_inf() ? x : r + __builtin_log(x) - 0.5 / x - s;
}
// digamma for f32, in double. Below 8 the argument moves up by 8: the reciprocals of what lies between are the derivative of
// its product over that product. Below zero the reflection digamma(x) = digamma(1 - x) - pi / tan(pi x) leads there.
template <class V> PF_INLINE V digamma_quick(V x) {
  V zero = fill<V>(0.0), one = fill<V>(1.0), half = fill<V>(0.5), eight = fill<V>(8.0), inf = fill<V>(__builtin_inf());
  V a = x < zero ? one - x : x, base = a < eight ? a : one;
  V p = base, q = one;
#pragma GCC unroll 8
  for (int k = 1; k < 8; ++k) {
    V next = base + fill<V>(double(k));
    q = madd(q, next, p);
    p = p * next;
  }
  V u = a < eight ? a + eight : a, w = one / u, t = w * w;
  V tail = t * horner(t, 0.083333333333333329, -0.0083333333333333332, 0.003968253968253968, -0.0041666666666666666,
                      0.007575757575757576, -0.021092796092796094);
  V y = log_f64(u) - half * w - tail - (a < eight ? q / p : zero);
  // the angle from the nearest integer, and from halfway to it
  V f = x - floor(x + half), g = abs(f), h = half - g;
  const auto sine = [](V v) __attribute__((always_inline)) {
    return v * horner(V(v * v), 3.1415926535896359, -5.1677127799881655, 2.5501640359163882, -0.59926443410026542,
                      0.082144795939639775, -0.0073640099832531563, 0.00044749809885089416);
  };
  V cotangent = sine(h) / sine(g);
  y = x < zero ? y - fill<V>(3.1415926535897931) * (f < zero ? -cotangent : cotangent) : y;
  y = x < zero ? (f == zero ? fill<V>(__builtin_nan("")) : y) : y;
  y = x == zero ? copysign(inf, V(-x)) : y;
  y = x == inf ? inf : (x == -inf ? fill<V>(__builtin_nan("")) : y);
  return x != x ? x : y;
}

// erfinv in f64: Winitzki's closed form, refined by steps of Halley's method on erf (or erfc, near 1)
PF_HEAVY f64 erfinv_one(f64 x) {
  f64 a = x < 0 ? -x : x;
  if (!(a < 1.0)) return a == 1.0 ? __builtin_copysign(__builtin_inf(), x) : __builtin_nan("");
  if (a < 1e-9) return x * 0.88622692545275801;
  f64 w = -__builtin_log((1.0 - a) * (1.0 + a));
  f64 k = 4.330746750799873 - w * 0.5;  // 2 / (0.147 pi) + log(1 - x^2) / 2
  f64 y = __builtin_sqrt(__builtin_sqrt(k * k + w / 0.147) - k);
  for (int i = 0; i < 3; ++i) {
    f64 e = a < 0.5 ? __builtin_erf(y) - a : (1.0 - a) - __builtin_erfc(y);
    f64 d = e / (1.1283791670955126 * __builtin_exp(-y * y));
    y -= d / (1.0 + y * d);
  }
  return __builtin_copysign(y, x);
}
PF_INLINE f32 lgamma(f32 x) { return f32(lgamma_quick(f64(x))); }
PF_INLINE f64 lgamma(f64 x) { return lgamma_one(x); }
PF_INLINE f32 digamma(f32 x) { return f32(digamma_quick(f64(x))); }
PF_INLINE f64 digamma(f64 x) { return digamma_one(x); }
PF_INLINE f64 erfinv(f64 x) { return erfinv_one(x); }
PF_INLINE f32 nextafter(f32 a, f32 b) { return __builtin_nextafterf(a, b); }
PF_INLINE f64 nextafter(f64 a, f64 b) { return __builtin_nextafter(a, b); }
#if PF_W > 1
#if PF_WIDE
PF_HEAVY vf32 lgamma(vf32 x) {
  vf64 d = cast<f64>(x);
  return cast<f32>(vf64{lgamma_quick(d.lo), lgamma_quick(d.hi)});
}
PF_HEAVY vf32 digamma(vf32 x) {
  vf64 d = cast<f64>(x);
  return cast<f32>(vf64{digamma_quick(d.lo), digamma_quick(d.hi)});
}
#else
PF_HEAVY vf32 digamma(vf32 x) { return cast<f32>(digamma_quick(cast<f64>(x))); }
PF_HEAVY vf32 lgamma(vf32 x) { return cast<f32>(lgamma_quick(cast<f64>(x))); }
#endif
PF_HEAVY vf64 lgamma(vf64 x) { return each_lane<vf64>([](f64 a) { return lgamma_one(a); }, x); }
PF_HEAVY vf64 digamma(vf64 x) { return each_lane<vf64>([](f64 a) { return digamma_one(a); }, x); }
PF_HEAVY vf64 erfinv(vf64 x) { return each_lane<vf64>([](f64 a) { return erfinv_one(a); }, x); }
// The bits of a number are those of its neighbour away from zero less one.
template <class V> PF_INLINE V next_after(V a, V b) {
  typedef typename tr<V>::ivec I;
  typedef typename tr<I>::elem E;
  const V zero = fill<V>(0);
  const auto away = eq(lt(a, b), gt(a, zero));
  const I bits = add(bits_as<I>(a), where(away, fill<I>(E(1)), fill<I>(E(-1))));
  V next = where(eq(a, zero), copysign(bits_as<V>(fill<I>(E(1))), b), bits_as<V>(bits));
  next = where(eq(a, b), b, next);
  return where(bitwise_or(isnan(a), isnan(b)), add(a, b), next);
}
PF_HEAVY vf32 nextafter(vf32 a, vf32 b) { return next_after(a, b); }
PF_HEAVY vf64 nextafter(vf64 a, vf64 b) { return next_after(a, b); }
#endif
}  // namespace pf
