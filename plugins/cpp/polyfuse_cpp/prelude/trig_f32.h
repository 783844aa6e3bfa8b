// Trigonometric functions in f32: sin cos tan asin acos atan atan2.  Needs math_f32.h.
namespace pf {
// x = n * pi/2 + r, |r| <= pi/4, for |x| up to the limit; beyond it the caller takes libm lane by lane.
#if PF_FMA
#define PF_TRIG_LIMIT 30000.0f
#else
#define PF_TRIG_LIMIT 4000.0f
#endif
template <class V> PF_INLINE near_int<V> half_pi_f32(V x) {
  auto n = nearest_f32(V(x * fill<V>(0.636619772f)));
#if PF_FMA
  V r = madd(n.f, fill<V>(-1.57079637f), x);
  r = madd(n.f, fill<V>(4.37113883e-8f), r);
  r = madd(n.f, fill<V>(1.71512489e-15f), r);
#else
  V r = x - n.f * fill<V>(1.5703125f);
  r = r - n.f * fill<V>(4.8351287841796875e-4f);
  // the products are exact; the last difference that is not keeps its rounding error
  V p = n.f * fill<V>(3.13855707645416259765e-7f), s = r - p;
  r = s + (((r - s) - p) - n.f * fill<V>(6.07710050650619224932e-11f));
#endif
  return {r, n.i};
}
template <class V> PF_INLINE V sin_core_f32(V r) {
  V t = r * r;
  return madd(r * t, horner(t, -0.166666672, 0.00833332911, -0.000198393085, 2.71808449e-06), r);
}
template <class V> PF_INLINE V cos_core_f32(V r) {
  V t = r * r, h = t * fill<V>(0.5f), one = fill<V>(1.0f), w = one - h;
  V tail = (one - w) - h;
  return w + madd(t * t, horner(t, 0.0416666679, -0.00138888834, 2.47995158e-05, -2.7209893e-07), tail);
}
template <class V> PF_INLINE V sin_quick_f32(V x, int shift) {
  typedef typename tr<V>::ivec I;
  auto p = half_pi_f32(x);
  I n = p.i + fill<I>(shift);
  V y = (n & fill<I>(1)) != fill<I>(0) ? cos_core_f32(p.f) : sin_core_f32(p.f);
  I flip = (n & fill<I>(2)) << 30;
  return bits_as<V>(I(bits_as<I>(y) ^ flip));
}
template <class V> PF_INLINE V tan_quick_f32(V x) {
  typedef typename tr<V>::ivec I;
  auto p = half_pi_f32(x);
  V t = p.f * p.f;
  V q = horner(t, 0.333333492, 0.13332659, 0.0540604927, 0.0212791208, 0.0108440025, 7.88629986e-05, 0.004381679);
  V y = madd(p.f * t, q, p.f);
  return (p.i & fill<I>(1)) != fill<I>(0) ? fill<V>(-1.0f) / y : y;
}
// Huge arguments (and infinities and NaN) need more of pi than fits here.
template <class V> PF_INLINE bool trig_is_quick(V x) {
  V a = abs(x), limit = fill<V>(PF_TRIG_LIMIT);
  return all(le(a, limit));
}
template <class F, class V> PF_HEAVY V trig_slow_f32(F f, V x) { return each_lane<V>(f, x); }
template <class V> PF_INLINE V keep_zero(V x, V y) { return x == fill<V>(0.0f) ? x : y; }
template <class V> PF_INLINE V sin_f32(V x) {
  if (__builtin_expect(trig_is_quick(x), 1)) return keep_zero(x, sin_quick_f32(x, 0));
  return trig_slow_f32([](f32 a) { return __builtin_sinf(a); }, x);
}
template <class V> PF_INLINE V cos_f32(V x) {
  if (__builtin_expect(trig_is_quick(x), 1)) return sin_quick_f32(x, 1);
  return trig_slow_f32([](f32 a) { return __builtin_cosf(a); }, x);
}
template <class V> PF_INLINE V tan_f32(V x) {
  if (__builtin_expect(trig_is_quick(x), 1)) return keep_zero(x, tan_quick_f32(x));
  return trig_slow_f32([](f32 a) { return __builtin_tanf(a); }, x);
}

// atan on [0, 1]
template <class V> PF_INLINE V atan_core_f32(V r) {
  V t = r * r;
  V q = horner(t, -0.333333254, 0.199996665, -0.142797738, 0.110577896, -0.0880930498, 0.0673717856, -0.0446229056,
               0.0224788357, -0.00728736306, 0.00110730063);
  return madd(r * t, q, r);
}
template <class V> PF_INLINE V atan_f32(V x) {
  V a = abs(x), one = fill<V>(1.0f);
  V y = atan_core_f32(V(a > one ? one / a : a));
  y = a > one ? (fill<V>(1.57079637f) - y) + fill<V>(-4.37113883e-8f) : y;
  return copysign(y, x);
}
template <class V> PF_INLINE V atan2_f32(V y, V x) {
  V ay = abs(y), ax = abs(x), zero = fill<V>(0.0f), inf = fill<V>(__builtin_inff());
  V hi = ay > ax ? ay : ax, lo = ay > ax ? ax : ay;
  V q = lo / hi;
  q = hi == zero ? zero : q;
  q = lo == inf ? fill<V>(1.0f) : q;
  V r = atan_core_f32(q);
  r = ay > ax ? (fill<V>(1.57079637f) - r) + fill<V>(-4.37113883e-8f) : r;
  r = bits_as<typename tr<V>::ivec>(x) < bits_as<typename tr<V>::ivec>(zero)
          ? (fill<V>(3.14159274f) - r) + fill<V>(-8.74227766e-8f) : r;
  r = copysign(r, y);
  r = x != x ? x : r;
  return y != y ? y : r;
}

// asin(r) on |r| <= 1/2, and what asin and acos make of larger arguments: s = sqrt((1 - |x|) / 2)
template <class V> PF_INLINE V asin_core_f32(V r) {
  V t = r * r;
  V q = horner(t, 0.166666597, 0.075005047, 0.0445167981, 0.0318092778, 0.014431824, 0.0375271216);
  return madd(r * t, q, r);
}
template <class V> PF_INLINE V asin_f32(V x) {
  V a = abs(x), half = fill<V>(0.5f);
  V s = sqrt(V((fill<V>(1.0f) - a) * half));
  V y = asin_core_f32(V(a > half ? s : a));
  V big = (fill<V>(1.57079637f) - (y + y)) + fill<V>(-4.37113883e-8f);
  return copysign(V(a > half ? big : y), x);
}
template <class V> PF_INLINE V acos_f32(V x) {
  V a = abs(x), half = fill<V>(0.5f), zero = fill<V>(0.0f);
  V s = sqrt(V((fill<V>(1.0f) - a) * half));
  V y = asin_core_f32(V(a > half ? s : x));
  V two = y + y;
  V far = x < zero ? (fill<V>(3.14159274f) - two) + fill<V>(-8.74227766e-8f) : two;
  V near = (fill<V>(1.57079637f) - y) + fill<V>(-4.37113883e-8f);
  return a > half ? far : near;
}
PF_F32_1(sin) PF_F32_1(cos) PF_F32_1(tan) PF_F32_1(asin) PF_F32_1(acos) PF_F32_1(atan) PF_F32_2(atan2)
}  // namespace pf
