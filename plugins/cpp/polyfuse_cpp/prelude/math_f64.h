// Elementary functions in f64.  exp exp2 expm1 log log1p tanh sigmoid are polynomials; the rest call libmvec where the
// toolchain says that it is there (PF_MVEC), else libm lane by lane.
namespace pf {
template <class V> PF_INLINE near_int<V> nearest_f64(V x) {
  typedef typename tr<V>::ivec I;
  V magic = fill<V>(6755399441055744.0), t = x + magic;
  return {t - magic, I(bits_as<I>(t) - bits_as<I>(magic))};
}
// p * 2^n with one rounding.
template <class V> PF_INLINE V scale_f64(V p, typename tr<V>::ivec n) {
  typedef typename tr<V>::ivec I;
  I h = n >> 1, bias = fill<I>(1023);
  return p * bits_as<V>(I((h + bias) << 52)) * bits_as<V>(I((n - h + bias) << 52));
}
// e^r - 1 for |r| <= ln2/2
template <class V> PF_INLINE V exp_tail_f64(V r) {
  V q = horner(r, 0.5, 0.16666666666666682, 0.041666666666666088, 0.0083333333333169193, 0.0013888888889117264,
               0.0001984126989667682, 2.4801586924619425e-05, 2.7557234561593363e-06, 2.7557582770481721e-07,
               2.5112143851414483e-08, 2.0826547298368934e-09);
  return madd(r * r, q, r);
}
template <class V> PF_INLINE near_int<V> exp_reduce_f64(V c) {
  auto n = nearest_f64(V(c * fill<V>(1.4426950408889634)));
  V r = madd(n.f, fill<V>(-0.69314718036912382), c);
  return {madd(n.f, fill<V>(-1.9082149292705877e-10), r), n.i};
}
// As in f32, nothing underflows where the result rounds to zero.
template <class V> PF_INLINE V exp_f64(V x) {
  V lo = fill<V>(-746.0), hi = fill<V>(710.0), zero = fill<V>(0.0);
  V c = x < lo ? zero : x;
  c = c > hi ? hi : c;
  auto p = exp_reduce_f64(c);
  V y = scale_f64(V(exp_tail_f64(p.f) + fill<V>(1.0)), p.i);
  return x < lo ? zero : y;
}
template <class V> PF_INLINE V exp2_f64(V x) {
  V lo = fill<V>(-1076.0), hi = fill<V>(1025.0), zero = fill<V>(0.0);
  V c = x < lo ? zero : x;
  c = c > hi ? hi : c;
  auto n = nearest_f64(c);
  V y = scale_f64(V(exp_tail_f64(V((c - n.f) * fill<V>(0.69314718055994531))) + fill<V>(1.0)), n.i);
  return x < lo ? zero : y;
}
template <class V> PF_INLINE V expm1_f64(V x) {
  typedef typename tr<V>::ivec I;
  V lo = fill<V>(-40.0), hi = fill<V>(710.0), zero = fill<V>(0.0);
  V c = x < lo ? lo : x;
  c = c > hi ? hi : c;
  auto n = exp_reduce_f64(c);
  V p = exp_tail_f64(n.f);
  V s = bits_as<V>(I((n.i + fill<I>(1022)) << 52));
  V y = madd(s, p, s - fill<V>(0.5));
  y = y + y;
  return n.i == fill<I>(0) ? (x == zero ? x : p) : y;
}
// x = m * 2^e, m in [sqrt(1/2), sqrt(2)), x positive and normal
template <class V> PF_INLINE split<V> frexp_f64(V x, V bias) {
  typedef typename tr<V>::ivec I;
  I base = fill<I>(0x3fe6a09e667f3bcdLL), u = bits_as<I>(x) - base;
  V m = bits_as<V>(I((u & fill<I>(0xfffffffffffffLL)) + base));
  V magic = fill<V>(6755399441055744.0);
  return {m, bits_as<V>(I((u >> 52) + bits_as<I>(magic))) - magic + bias};
}
// log(1 + f) = f - (h - s (h + z P(z))), with s = f / (2 + f), z = s^2, h = f^2 / 2
template <class V> PF_INLINE V log_tail_f64(V f) {
  V s = f / (fill<V>(2.0) + f), z = s * s, h = f * f * fill<V>(0.5);
  V p = z * horner(z, 0.66666666666666663, 0.40000000000006247, 0.28571428569085922, 0.2222222264679061,
                   0.18181775666054406, 0.15387090731036474, 0.13250118794405871, 0.13251322515395236);
  return s * (h + p) - h;
}
template <class V> PF_INLINE V log_edges_f64(V x, V r) {
  V inf = fill<V>(__builtin_inf()), zero = fill<V>(0.0);
  r = x == inf ? inf : r;
  r = x == zero ? -inf : r;
  return x >= zero ? r : fill<V>(__builtin_nan(""));
}
template <class V> PF_INLINE V log_f64(V x) {
  auto tiny = x < fill<V>(2.2250738585072014e-308);
  V y = tiny ? x * fill<V>(4503599627370496.0) : x;
  auto s = frexp_f64(y, V(tiny ? fill<V>(-52.0) : fill<V>(0.0)));
  V f = s.m - fill<V>(1.0);
  V r = madd(s.e, fill<V>(1.9082149292705877e-10), log_tail_f64(f)) + f;
  return log_edges_f64(x, madd(s.e, fill<V>(0.69314718036912382), r));
}
template <class V> PF_INLINE V log1p_f64(V x) {
  V one = fill<V>(1.0), u = x + one;
  V d = x > one ? one - (u - x) : x - (u - one);
  auto s = frexp_f64(u, fill<V>(0.0));
  V f = s.m - one;
  V r = madd(s.e, fill<V>(1.9082149292705877e-10), log_tail_f64(f) + d / u) + f;
  r = madd(s.e, fill<V>(0.69314718036912382), r);
  return x == fill<V>(0.0) ? x : log_edges_f64(u, r);
}
template <class V> PF_INLINE V tanh_f64(V x) {
  V a = abs(x), t = x * x, one = fill<V>(1.0), two = fill<V>(2.0);
  V p = horner(t, -0.33333333333333171, 0.13333333333301189, -0.0539682539463937, 0.021869487799176173,
               -0.00886322122507021, 0.0035919557263195613, -0.0014544999364090204, 0.00058333836301756314,
               -0.00021790267821107003, 5.6858282108214912e-05);
  V small = madd(p * t, x, x);
  V big = one - two / (exp_f64(V(a + a)) + one);
  return copysign(V(a < fill<V>(0.5) ? small : big), x);
}
template <class V> PF_INLINE V sigmoid_f64(V x) {
  V one = fill<V>(1.0);
  return one / (one + exp_f64(V(-x)));
}
// exp(y log x) for x > 0 to about 2^-33, enough for functions of f32; zeros and infinities are the caller's.
template <class V> PF_INLINE V quick_log_f64(V x) {
  auto s = frexp_f64(x, fill<V>(0.0));
  V f = s.m - fill<V>(1.0), t = f / (fill<V>(2.0) + f), z = t * t;
  V p = z * horner(z, 0.66666666675794506, 0.39999995623703366, 0.28572109019654468, 0.2217619212640656,
                   0.19584130913997613);
  return madd(s.e, fill<V>(0.69314718055994531), madd(t, p, t + t));
}
template <class V> PF_INLINE V quick_exp_f64(V x) {
  typedef typename tr<V>::ivec I;
  V lo = fill<V>(-700.0), hi = fill<V>(700.0), c = x < lo ? lo : x;
  c = c > hi ? hi : c;
  auto n = nearest_f64(V(c * fill<V>(1.4426950408889634)));
  V r = madd(n.f, fill<V>(-0.69314718055994531), c);
  V q = horner(r, 0.50000000679399681, 0.16666665858695989, 0.04166629377901615, 0.0083334987106808908,
               0.0013944753519351872, 0.00019789791807873);
  return (madd(r * r, q, r) + fill<V>(1.0)) * bits_as<V>(I((n.i + fill<I>(1023)) << 52));
}
template <class V> PF_INLINE V quick_pow_f64(V x, V y) { return quick_exp_f64(V(y * quick_log_f64(x))); }

#if PF_W > 1
#define PF_F64_1(NAME)                                    \
  PF_INLINE f64 NAME(f64 x) { return NAME##_f64(x); }     \
  PF_INLINE nf64 NAME(nf64 x) { return NAME##_f64(x); }   \
  PF_PAIR1_F64(NAME)
#if PF_WIDE
#define PF_PAIR1_F64(NAME) PF_INLINE vf64 NAME(vf64 x) { return {NAME(x.lo), NAME(x.hi)}; }
#define PF_PAIR2_F64(NAME) PF_INLINE vf64 NAME(vf64 x, vf64 y) { return {NAME(x.lo, y.lo), NAME(x.hi, y.hi)}; }
#else
#define PF_PAIR1_F64(NAME)
#define PF_PAIR2_F64(NAME)
#endif
// libmvec's names: e, d or b for the registers, then the lanes
#if defined(PF_MVEC) && PF_AVX512 && PF_BYTES_F64 == 64
#define PF_MVEC_NAME(ARGS, NAME) _ZGVeN8##ARGS##_##NAME
#elif defined(PF_MVEC) && defined(__AVX2__) && PF_BYTES_F64 == 32
#define PF_MVEC_NAME(ARGS, NAME) _ZGVdN4##ARGS##_##NAME
#elif defined(PF_MVEC) && defined(__x86_64__) && PF_BYTES_F64 == 16
#define PF_MVEC_NAME(ARGS, NAME) _ZGVbN2##ARGS##_##NAME
#endif
#ifdef PF_MVEC_NAME
#define PF_LIBM_1(NAME)                                                  \
  PF_INLINE f64 NAME(f64 x) { return __builtin_##NAME(x); }              \
  extern "C" nf64 PF_MVEC_NAME(v, NAME)(nf64);                           \
  PF_INLINE nf64 NAME(nf64 x) { return PF_MVEC_NAME(v, NAME)(x); }       \
  PF_PAIR1_F64(NAME)
#define PF_LIBM_2(NAME)                                                        \
  PF_INLINE f64 NAME(f64 x, f64 y) { return __builtin_##NAME(x, y); }          \
  extern "C" nf64 PF_MVEC_NAME(vv, NAME)(nf64, nf64);                          \
  PF_INLINE nf64 NAME(nf64 x, nf64 y) { return PF_MVEC_NAME(vv, NAME)(x, y); } \
  PF_PAIR2_F64(NAME)
#else
#define PF_LIBM_1(NAME)                                                                                \
  PF_INLINE f64 NAME(f64 x) { return __builtin_##NAME(x); }                                            \
  PF_HEAVY vf64 NAME(vf64 x) { return each_lane<vf64>([](f64 a) { return __builtin_##NAME(a); }, x); }
#define PF_LIBM_2(NAME)                                               \
  PF_INLINE f64 NAME(f64 x, f64 y) { return __builtin_##NAME(x, y); } \
  PF_HEAVY vf64 NAME(vf64 x, vf64 y) {                                \
    return each_lane<vf64>([](f64 a, f64 b) { return __builtin_##NAME(a, b); }, x, y); \
  }
#endif
#else
#define PF_F64_1(NAME) PF_INLINE f64 NAME(f64 x) { return NAME##_f64(x); }
#define PF_LIBM_1(NAME) PF_INLINE f64 NAME(f64 x) { return __builtin_##NAME(x); }
#define PF_LIBM_2(NAME) PF_INLINE f64 NAME(f64 x, f64 y) { return __builtin_##NAME(x, y); }
#endif
PF_F64_1(exp) PF_F64_1(exp2) PF_F64_1(expm1) PF_F64_1(log) PF_F64_1(log1p) PF_F64_1(tanh) PF_F64_1(sigmoid)
PF_LIBM_1(log2) PF_LIBM_1(log10) PF_LIBM_1(sin) PF_LIBM_1(cos) PF_LIBM_1(tan) PF_LIBM_1(asin) PF_LIBM_1(acos)
PF_LIBM_1(atan) PF_LIBM_1(sinh) PF_LIBM_1(cosh) PF_LIBM_1(asinh) PF_LIBM_1(acosh) PF_LIBM_1(atanh)
PF_LIBM_1(erf) PF_LIBM_1(erfc) PF_LIBM_2(atan2) PF_LIBM_2(hypot) PF_LIBM_2(pow)
}  // namespace pf
