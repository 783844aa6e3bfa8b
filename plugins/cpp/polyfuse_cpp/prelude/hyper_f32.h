// sinh cosh asinh acosh atanh erfc erfinv pow hypot in f32.  Needs math_f32.h; pow and hypot need math_f64.h.
namespace pf {
// exp(x) / 2 without early overflow
template <class V> PF_INLINE V half_exp_f32(V x) {
  typedef typename tr<V>::ivec I;
  V hi = fill<V>(91.0f), c = x > hi ? hi : x;
  auto n = nearest_f32(V(c * fill<V>(1.44269504f)));
  V r = madd(n.f, fill<V>(-0.693359375f), c);
  r = madd(n.f, fill<V>(2.12194440e-4f), r);
  return scale_f32(exp_core_f32(r), I(n.i - fill<I>(1)));
}
template <class V> PF_INLINE V sinh_f32(V x) {
  V a = abs(x), t = x * x, e = half_exp_f32(a);
  V q = horner(t, 0.166666672, 0.00833335053, 0.000198361391, 2.81707389e-06);
  return a < fill<V>(1.0f) ? madd(q * t, x, x) : copysign(V(e - fill<V>(0.25f) / e), x);
}
template <class V> PF_INLINE V cosh_f32(V x) {
  V e = half_exp_f32(abs(x));
  return e + fill<V>(0.25f) / e;
}
// log1p(t) where t may be huge: log(x) + ln2 is asinh and acosh far out
template <class V> PF_INLINE V asinh_f32(V x) {
  V a = abs(x), one = fill<V>(1.0f), far = fill<V>(1.0e9f);
  V c = a > far ? one : a, s = c * c;
  V y = log1p_f32(V(c + s / (one + sqrt(V(s + one)))));
  return copysign(V(a > far ? log_f32(a) + fill<V>(0.693147182f) : y), x);
}
template <class V> PF_INLINE V acosh_f32(V x) {
  V one = fill<V>(1.0f), far = fill<V>(1.0e9f);
  V t = (x > far ? fill<V>(2.0f) : x) - one;
  V y = log1p_f32(V(t + sqrt(V(t * (t + fill<V>(2.0f))))));
  y = x > far ? log_f32(x) + fill<V>(0.693147182f) : y;
  return x < one ? fill<V>(__builtin_nanf("")) : y;
}
template <class V> PF_INLINE V atanh_f32(V x) {
  V a = abs(x), one = fill<V>(1.0f);
  V y = log1p_f32(V((a + a) / (one - a))) * fill<V>(0.5f);
  y = a > one ? fill<V>(__builtin_nanf("")) : y;
  return x == fill<V>(0.0f) ? x : copysign(y, x);
}

// erfc(a) = exp(-a^2) P(q) / (1 + 2a), q = (a - 4) / (a + 4), a >= 0; the square is split so that its exp is exact
template <class V> PF_INLINE V erfc_f32(V x) {
  typedef typename tr<V>::ivec I;
  V a = abs(x), one = fill<V>(1.0f), four = fill<V>(4.0f), top = fill<V>(10.1f);
  V c = a > top ? top : a;
  V q = (c - four) / (c + four);
  V p = horner(q, 1.23299515, -0.139621079, 0.0153773772, 0.068093732, -0.100990728, 0.0938173309, -0.0666384026,
               0.0364242531, -0.0158882961, 0.00702593103, 0.000885073969);
  V h = bits_as<V>(I(bits_as<I>(c) & fill<I>(-4096)));
  V e = exp_f32(V(-(h * h)));
  V d = (c - h) * (c + h);  // below 0.05: exp(-d) - 1 by its series
  V m = d * horner(d, -1.0, 0.5, -0.166666667, 0.0416666667);
  V y = e * (p / madd(c, fill<V>(2.0f), one));
  y = madd(y, m, y);
  V near = one - erf_f32(x);
  y = x < fill<V>(0.0f) ? fill<V>(2.0f) - y : y;
  y = a < fill<V>(0.4f) ? near : y;
  return x != x ? x : y;
}
template <class V> PF_INLINE V erfinv_f32(V x) {
  V one = fill<V>(1.0f), a = abs(x);
  V w = -log_f32(V((one - a) * (one + a)));
  V s = w - fill<V>(2.5f), u = sqrt(w) - fill<V>(3.0f);
  V p = horner(s, 1.50140941, 0.24664028, -0.00417738687, -0.0012527419, 0.000218344459, -4.96333132e-06,
               -3.46270826e-06, 4.66167251e-07, 2.32329125e-08, -8.79081696e-09);
  V q = horner(u, 2.83297682, 1.00167489, 0.00944503397, -0.0076364656, 0.00568917952, -0.00360129052,
               0.00147924165, -4.93508669e-05, -0.00030483547, 0.000110573957);
  V y = x * (w < fill<V>(5.0f) ? p : q);
  y = a == one ? copysign(fill<V>(__builtin_inff()), x) : y;
  return a > one ? fill<V>(__builtin_nanf("")) : y;
}

// x^y = exp(y log|x|) in double, then the sign and the cases where that is not the answer.
template <class V, class D> PF_INLINE V pow_finish_f32(V x, V y, D magnitude) {
  typedef typename tr<V>::ivec I;
  V one = fill<V>(1.0f), zero = fill<V>(0.0f), inf = fill<V>(__builtin_inff()), r = magnitude;
  V ax = abs(x), ay = abs(y);
  // odd: an integer below 2^24 whose lowest bit is set
  V small = ay < fill<V>(16777216.0f) ? ay : zero;
  V half = small * fill<V>(0.5f);
  V fy = floor(small);
  auto whole = (fy == small) & (y == y);
  auto odd = whole & (floor(half) != half);
  auto integer = whole | (ay >= fill<V>(16777216.0f));
  auto negative = bits_as<I>(x) < fill<I>(0);
  r = ax == zero ? (y < zero ? inf : zero) : r;
  r = ax == inf ? (y < zero ? zero : inf) : r;
  r = (negative & odd) ? -r : r;
  r = ((x < zero) & !integer & (ax != inf)) ? fill<V>(__builtin_nanf("")) : r;
  r = (ax == one) & (ay == inf) ? one : r;
  r = (x != x) | (y != y) ? x + y : r;
  return (x == one) | (y == zero) ? one : r;
}
PF_INLINE f32 pow(f32 x, f32 y) { return pow_finish_f32(x, y, f32(quick_pow_f64(f64(abs(x)), f64(y)))); }
PF_INLINE f32 hypot(f32 x, f32 y) {
  f64 a = x, b = y;
  f32 r = f32(__builtin_sqrt(a * a + b * b));
  return (abs(x) == __builtin_inff()) | (abs(y) == __builtin_inff()) ? __builtin_inff() : r;
}
#if PF_W > 1
#if PF_WIDE
PF_INLINE vf64 quick_pow(vf64 x, vf64 y) { return {quick_pow_f64(x.lo, y.lo), quick_pow_f64(x.hi, y.hi)}; }
#else
PF_INLINE vf64 quick_pow(vf64 x, vf64 y) { return quick_pow_f64(x, y); }
#endif
PF_HEAVY vf32 pow(vf32 x, vf32 y) {
  return pow_finish_f32(x, y, cast<f32>(quick_pow(cast<f64>(abs(x)), cast<f64>(y))));
}
PF_INLINE vf32 hypot(vf32 x, vf32 y) {
  vf64 a = cast<f64>(x), b = cast<f64>(y);
  vf32 r = cast<f32>(sqrt(add(mul(a, a), mul(b, b)))), inf = fill<vf32>(__builtin_inff());
  return (abs(x) == inf) | (abs(y) == inf) ? inf : r;
}
#endif
PF_F32_1(sinh) PF_F32_1(cosh) PF_F32_1(asinh) PF_F32_1(acosh) PF_F32_1(atanh) PF_F32_1(erfc) PF_F32_1(erfinv)
}  // namespace pf
