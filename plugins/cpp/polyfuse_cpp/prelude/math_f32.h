// Fast elementary functions in f32: exp exp2 expm1 log log2 log10 log1p tanh sigmoid erf (scalar and vector alike).
// Each is a range reduction and a minimax polynomial; errors stay within 2 ulp and special values are IEEE's.
namespace pf {
// Evaluate c0 + c1 x + ... by Horner's rule.
template <class V> PF_INLINE V horner(V, f64 c) { return fill<V>((typename tr<V>::elem)c); }
template <class V, class... C> PF_INLINE V horner(V x, f64 c, C... rest) {
  return madd(x, horner(x, rest...), fill<V>((typename tr<V>::elem)c));
}
// The same by halves: a few more operations, but many fewer that wait for each other.
template <class V> PF_INLINE V in_pairs(V, V c) { return c; }
template <class V> PF_INLINE V in_pairs(V x, V c0, V c1) { return madd(x, c1, c0); }
template <class V> PF_INLINE V in_pairs(V x, V c0, V c1, V c2) { return madd(V(x * x), c2, madd(x, c1, c0)); }
template <class V> PF_INLINE V in_pairs(V x, V c0, V c1, V c2, V c3) {
  return madd(V(x * x), madd(x, c3, c2), madd(x, c1, c0));
}
template <class V, class... C> PF_INLINE V in_pairs(V x, V c0, V c1, V c2, V c3, C... rest) {
  V x2 = x * x;
  return madd(V(x2 * x2), in_pairs(x, rest...), in_pairs(x, c0, c1, c2, c3));
}
template <class V, class... C> PF_INLINE V estrin(V x, C... c) {
  return in_pairs(x, fill<V>((typename tr<V>::elem)c)...);
}

// Nearest integer of a float of magnitude below 2^21, as float and as int.
template <class V> struct near_int { V f; typename tr<V>::ivec i; };
template <class V> PF_INLINE near_int<V> nearest_f32(V x) {
  typedef typename tr<V>::ivec I;
  V magic = fill<V>(12582912.0f), t = x + magic;
  return {t - magic, I(bits_as<I>(t) - bits_as<I>(magic))};
}
// x limited to [lo, hi]; NaN stays NaN.
template <class V> PF_INLINE V clamp_f32(V x, f32 lo, f32 hi) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  if constexpr (sizeof(V) == 64) {
    V y = (V)__builtin_ia32_minps512_mask(fill<V>(hi), x, x, (unsigned short)-1, 4);
    return (V)__builtin_ia32_maxps512_mask(fill<V>(lo), y, y, (unsigned short)-1, 4);
  }
#elif PF_AVX2 && PF_X86_BUILTINS && PF_W == 8
  if constexpr (sizeof(V) == 32) return (V)__builtin_ia32_maxps256(fill<V>(lo), __builtin_ia32_minps256(fill<V>(hi), x));
#endif
  V c = x < fill<V>(lo) ? fill<V>(lo) : x;
  return c > fill<V>(hi) ? fill<V>(hi) : c;
}
// p * 2^n with one rounding, n in [-252, 254].
template <class V> PF_INLINE V scale_f32(V p, typename tr<V>::ivec n) {
  typedef typename tr<V>::ivec I;
  I h = n >> 1, bias = fill<I>(127);
  return p * bits_as<V>(I((h + bias) << 23)) * bits_as<V>(I((n - h + bias) << 23));
}
// (exp r - 1 - r) / r^2 and exp r for a reduced argument, |r| <= ln2/2.
template <class V> PF_INLINE V exp_tail_f32(V r) {
  return estrin(r, 0.49999994, 0.166665196, 0.0416683927, 0.00836878084, 0.00138144684);
}
template <class V> PF_INLINE V exp_core_f32(V r) { return madd(r * r, exp_tail_f32(r), r) + fill<V>(1.0f); }
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
// Lanes that are not less than a limit; NaN is not.
template <class V> PF_INLINE unsigned short lanes_from(V x, f32 limit) {
  return __builtin_ia32_cmpps512_mask(x, fill<V>(limit), 0x15, (unsigned short)-1, 4);
}
#endif
// x up to `high`, and zero instead of what lies below a limit.
template <class V> PF_INLINE V limited_f32(V x, f32 limit, f32 high) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  if constexpr (sizeof(V) == 64)
    return (V)__builtin_ia32_minps512_mask(fill<V>(high), x, fill<V>(0.0f), lanes_from(x, limit), 4);
#endif
  V c = x < fill<V>(limit) ? fill<V>(0.0f) : x;
  return c > fill<V>(high) ? fill<V>(high) : c;
}
// p * 2^n, and zero where x lies below a limit, for which that rounds to zero: what underflows takes some machines longer
// than all the rest, and a mask of minus infinity underflows everywhere.
template <class V> PF_INLINE V scale_above(V p, near_int<V> n, V x, f32 limit) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  if constexpr (sizeof(V) == 64)
    return (V)__builtin_ia32_scalefps512_mask(p, n.f, fill<V>(0.0f), lanes_from(x, limit), 4);
#endif
  const V scaled = scale_f32(p, n.i);
  return x < fill<V>(limit) ? fill<V>(0.0f) : scaled;
}
template <class V> PF_INLINE V exp_f32(V x) {
  V c = limited_f32(x, -104.0f, 89.0f);
  auto n = nearest_f32(V(c * fill<V>(1.44269504f)));
  V r = madd(n.f, fill<V>(-0.693359375f), c);
  r = madd(n.f, fill<V>(2.12194440e-4f), r);
  return scale_above(exp_core_f32(r), n, x, -104.0f);
}
// exp for arguments that are known to lie in [-80, 80]
template <class V> PF_INLINE V exp_mid_f32(V x) {
  typedef typename tr<V>::ivec I;
  auto n = nearest_f32(V(x * fill<V>(1.44269504f)));
  V r = madd(n.f, fill<V>(-0.693359375f), x);
  r = madd(n.f, fill<V>(2.12194440e-4f), r);
  return exp_core_f32(r) * bits_as<V>(I((n.i + fill<I>(127)) << 23));
}
template <class V> PF_INLINE V exp2_f32(V x) {
  V c = limited_f32(x, -150.0f, 129.0f);
  auto n = nearest_f32(c);
  V r = (c - n.f) * fill<V>(0.693147182f);
  return scale_above(exp_core_f32(r), n, x, -150.0f);
}

// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); x must be a positive normal number.
template <class V> struct split { V m, e; };
template <class V> PF_INLINE split<V> frexp_f32(V x, V bias) {
  typedef typename tr<V>::ivec I;
  I u = bits_as<I>(x) - fill<I>(0x3f3504f3);
  V m = bits_as<V>(I((u & fill<I>(0x7fffff)) + fill<I>(0x3f3504f3)));
  return {m, cast<f32>(I(u >> 23)) + bias};
}
// log(1 + f) - f, for f in [sqrt(1/2) - 1, sqrt(2) - 1]
template <class V> PF_INLINE V log_tail_f32(V f) {
  V p = estrin(f, 0.333333135, -0.250000089, 0.200021178, -0.166680008, 0.142195597, -0.124055058, 0.118880503,
               -0.116760977, 0.0674737915);
  V f2 = f * f;
  return madd(f2 * f, p, f2 * fill<V>(-0.5f));
}
template <class V> struct log_parts { V f, tail, e; };
template <class V> PF_INLINE log_parts<V> log_reduce_f32(V x) {
  auto tiny = x < fill<V>(1.17549435e-38f);
  V y = tiny ? x * fill<V>(8388608.0f) : x;
  auto s = frexp_f32(y, tiny ? fill<V>(-23.0f) : fill<V>(0.0f));
  V f = s.m - fill<V>(1.0f);
  return {f, log_tail_f32(f), s.e};
}
// Results at 0, infinity, negative numbers and NaN.
template <class V> PF_INLINE V log_edges_f32(V x, V r) {
  V inf = fill<V>(__builtin_inff()), zero = fill<V>(0.0f);
  r = x == inf ? inf : r;
  r = x == zero ? -inf : r;
  return x >= zero ? r : fill<V>(__builtin_nanf(""));
}
template <class V> PF_INLINE V log_f32(V x) {
  auto p = log_reduce_f32(x);
  V r = madd(p.e, fill<V>(-2.12194440e-4f), p.tail) + p.f;
  return log_edges_f32(x, madd(p.e, fill<V>(0.693359375f), r));
}
// log2(x) = e + log2(e) * log(m), with log2(e) = 1 + 0.44269504...
template <class V> PF_INLINE V log2_f32(V x) {
  auto p = log_reduce_f32(x);
  V c = fill<V>(0.442695041f);
  V r = madd(p.f, c, p.tail * c) + p.tail;
  return log_edges_f32(x, p.e + (p.f + r));
}
// log10(x) = e * log10(2) + log10(e) * log(m), constants split in a short head and a tail
template <class V> PF_INLINE V log10_f32(V x) {
  auto p = log_reduce_f32(x);
  V r = madd(p.tail, fill<V>(7.00731903e-4f), p.e * fill<V>(4.60503898e-6f));
  r = madd(p.f, fill<V>(7.00731903e-4f), r);
  r = madd(p.tail, fill<V>(0.43359375f), r);
  r = madd(p.f, fill<V>(0.43359375f), r);
  return log_edges_f32(x, madd(p.e, fill<V>(0.301025390625f), r));
}
// log(1 + x): the rounding error of u = 1 + x comes back as a correction of first order.
template <class V> PF_INLINE V log1p_f32(V x) {
  V one = fill<V>(1.0f), u = x + one;
  V d = x > one ? one - (u - x) : x - (u - one);
  auto s = frexp_f32(u, fill<V>(0.0f));
  V f = s.m - one;
  V r = madd(s.e, fill<V>(-2.12194440e-4f), log_tail_f32(f) + d / u) + f;
  r = madd(s.e, fill<V>(0.693359375f), r);
  return x == fill<V>(0.0f) ? x : log_edges_f32(u, r);
}
// exp(x) - 1 = 2 * (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2))
template <class V> PF_INLINE V expm1_f32(V x) {
  typedef typename tr<V>::ivec I;
  V lo = fill<V>(-20.0f), hi = fill<V>(89.0f);
  V c = x < lo ? lo : x;
  c = c > hi ? hi : c;
  auto n = nearest_f32(V(c * fill<V>(1.44269504f)));
  V r = madd(n.f, fill<V>(-0.693359375f), c);
  r = madd(n.f, fill<V>(2.12194440e-4f), r);
  V p = madd(r * r, exp_tail_f32(r), r);
  V s = bits_as<V>(I((n.i + fill<I>(126)) << 23));
  V y = madd(s, p, s - fill<V>(0.5f));
  y = y + y;
  return n.f == fill<V>(0.0f) ? (x == fill<V>(0.0f) ? x : p) : y;
}

template <class V> PF_INLINE V tanh_f32(V x) {
  V a = abs(x), t = x * x;
  V p = estrin(t, -0.333332628, 0.133309022, -0.0536930896, 0.0204835683, -0.00552879972);
  V small = madd(p * t, x, x);
  V big = fill<V>(1.0f) - fill<V>(2.0f) / (exp_mid_f32(clamp_f32(V(a + a), 0.0f, 40.0f)) + fill<V>(1.0f));
  return copysign(V(a < fill<V>(0.65f) ? small : big), x);
}
template <class V> PF_INLINE V sigmoid_f32(V x) {
  V one = fill<V>(1.0f);
  return one / (one + exp_f32(V(-x)));
}
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
// Around k / 7.5 erf(x) / x - 1, and from 1 on erf(x) - 1, are c0 + c1 d + ... with d = 7.5 x - k: a row for each power. One
// instruction looks up 32 numbers in two registers. Scalars read the same ones: the end of a loop has the bits of its middle.
alignas(64) static const f32 erf_terms[5][32] = {
  {0.128379166, 0.121727988, 0.102193467, 0.0709808841, 0.0299360361, -0.0186678786, -0.0723737925,
   -0.128775895, -0.131428018, -0.0896860212, -0.0593464375, -0.038062606, -0.0236516166, -0.0142339878,
   -0.00829389784, -0.0046777348, -0.00255299127, -0.00134804274, -0.000688513916, -0.00034009447,
   -0.000162440847, -7.50131949e-05, -3.34865836e-05, -1.44492142e-05, -6.02576119e-06, -2.4284675e-06,
   -9.45730619e-07, -3.55862994e-07, -1.29373944e-07, -4.5439176e-08, -1.54172586e-08, -5.0530371e-09},
  {0.0, -0.0132316174, -0.0256339945, -0.0364798233, -0.0452267751, -0.0515674688, -0.0554400422,
   -0.0570018217, 0.0482240506, 0.035645958, 0.0254281778, 0.0175056607, 0.0116305444, 0.00745727029,
   0.00461442862, 0.00275558722, 0.00158806611, 0.000883244735, 0.000474080007, 0.000245572766,
   0.000122762794, 5.92258366e-05, 2.75748735e-05, 1.23900663e-05, 5.37268579e-06, 2.24836572e-06,
   9.08029733e-07, 3.53908263e-07, 1.33118618e-07, 4.83219296e-08, 1.69280536e-08, 5.72304293e-09},
  {-0.0066866884, -0.00647496432, -0.00586610334, -0.00493411254, -0.00378714083, -0.00254862616,
   -0.00133751519, -0.000251748337, -0.00685852487, -0.0057033482, -0.00452056201, -0.00342332828,
   -0.00248118374, -0.00172346015, -0.00114848278, -0.000734826201, -0.000451719272, -0.000266938441,
   -0.00015170734, -8.29502824e-05, -4.36498449e-05, -2.21115261e-05, -1.0785172e-05, -5.06635251e-06,
   -2.29245165e-06, -9.99329018e-07, -4.19739195e-07, -1.69889205e-07, -6.62695427e-08, -2.49152912e-08,
   -9.02940833e-09, -3.15448068e-09},
  {0.0, 0.000139385709, 0.000261562556, 0.000352523639, 0.000403869431, 0.000413867499, 0.000387021137,
   0.000332414987, 0.000363649306, 0.000396419811, 0.000384608255, 0.00034231483, 0.000283899513,
   0.000221423703, 0.000163366029, 0.000114478455, 7.64117867e-05, 4.86855679e-05, 2.96588496e-05,
   1.72973632e-05, 9.66769767e-06, 5.18258958e-06, 2.66655843e-06, 1.31760987e-06, 6.25556027e-07,
   2.85476574e-07, 1.25272535e-07, 5.28759294e-08, 2.14731326e-08, 8.3921341e-09, 3.15704907e-09,
   1.14341603e-09},
  {3.56152232e-05, 3.33916178e-05, 2.71393328e-05, 1.8008619e-05, 7.59856539e-06, -2.41639623e-06,
   -1.06418729e-05, -1.62079705e-05, 1.47411902e-05, 2.06226809e-06, -7.40202995e-06, -1.31729694e-05,
   -1.55583166e-05, -1.5348036e-05, -1.34980455e-05, -1.08854947e-05, -8.17075943e-06, -5.75966897e-06,
   -3.83518454e-06, -2.42205488e-06, -1.45500485e-06, -8.33270178e-07, -4.55711415e-07, -2.38322272e-07,
   -1.19312304e-07, -5.7232441e-08, -2.63245674e-08, -1.161761e-08, -4.92201657e-09, -2.0028188e-09,
   -7.83046405e-10, -2.94261532e-10}};
PF_INLINE f32 erf_term(int power, i32 at) { return erf_terms[power][at & 31]; }
PF_INLINE vf32 erf_term(int power, vi32 at) {
  vf32 low, high;
  __builtin_memcpy(&low, erf_terms[power], sizeof low);
  __builtin_memcpy(&high, erf_terms[power] + 16, sizeof high);
  return (vf32)__builtin_ia32_vpermt2varps512_mask(at, low, high, (unsigned short)-1);
}
template <class V> PF_INLINE V erf_f32(V x) {
  typedef typename tr<V>::ivec I;
  V a = lesser(fill<V>(4.0f), abs(x)), magic = fill<V>(12582912.0f), scale = fill<V>(7.5f);
  V t = madd(a, scale, magic), d = madd(a, scale, V(magic - t));
  I k = bits_as<I>(t);
  V p = madd(d, erf_term(4, k), erf_term(3, k));
  p = madd(d, madd(d, madd(d, p, erf_term(2, k)), erf_term(1, k)), erf_term(0, k));
  V m = lesser(fill<V>(1.0f), a);
  return copysign(madd(m, p, m), x);
}
#else
// erf(x) = 1 - e^q for q = log(erfc x), which is nearly a polynomial; as -(2^n (1 + p) - 1), nothing is lost where q is
// small.
template <class V> PF_INLINE V erf_f32(V x) {
  typedef typename tr<V>::ivec I;
  V a = lesser(fill<V>(4.0f), abs(x));
  V b = estrin(a, 0.128379167, 0.636619382, 0.102777832, -0.0191530678, -0.000160389557, 0.00166702106,
               -0.000632833079, 0.000117640052, -9.2561028e-06);
  V q = -madd(a, b, a);
  auto n = nearest_f32(V(q * fill<V>(1.44269504f)));
  V r = madd(n.f, fill<V>(-0.693147182f), q);
  V p = madd(r * r, exp_tail_f32(r), r), s = bits_as<V>(I((n.i + fill<I>(127)) << 23));
  return copysign(madd(-s, p, fill<V>(1.0f) - s), x);
}
#endif
// The same for results that are rounded to bf16, with an error of 2^-13 of erf x and of 1 - |erf x|. The logarithm is one
// to the base 2; its nearest integer and the bias of an exponent are the lowest bits of a sum.
template <class V> PF_INLINE V coarse_erf_f32(V x) {
  typedef typename tr<V>::ivec I;
  V a = lesser(fill<V>(4.0f), abs(x)), magic = fill<V>(12583039.0f);
  V q = a * horner(a, -1.62783924, -0.919137773, -0.148285163, 0.0304535595, -0.00382812362, 0.000215058743);
  V t = q + magic, r = q - (t - magic), s = bits_as<V>(I(bits_as<I>(t) << 23));
  V p = r * horner(r, 0.693136856, 0.240232522, 0.0558373201, 0.00961811548);
  return copysign(madd(-s, p, fill<V>(1.0f) - s), x);
}
// Public names, scalar and vector; those of `apart.h` are one function for all that call them.
#ifndef PF_APART
#define PF_APART(T, NAME)
#endif
#if PF_W > 1
#define PF_F32_1(NAME)                                    \
  PF_INLINE f32 NAME(f32 x) { return NAME##_f32(x); }     \
  PF_INLINE vf32 NAME(vf32 x) { return NAME##_f32(x); }   \
  PF_APART(f32, NAME) PF_APART(vf32, NAME)
#define PF_F32_2(NAME)                                                \
  PF_INLINE f32 NAME(f32 x, f32 y) { return NAME##_f32(x, y); }       \
  PF_INLINE vf32 NAME(vf32 x, vf32 y) { return NAME##_f32(x, y); }
#else
#define PF_F32_1(NAME)                                \
  PF_INLINE f32 NAME(f32 x) { return NAME##_f32(x); } \
  PF_APART(f32, NAME)
#define PF_F32_2(NAME) PF_INLINE f32 NAME(f32 x, f32 y) { return NAME##_f32(x, y); }
#endif
PF_F32_1(exp) PF_F32_1(exp2) PF_F32_1(expm1) PF_F32_1(log) PF_F32_1(log2) PF_F32_1(log10) PF_F32_1(log1p)
PF_F32_1(tanh) PF_F32_1(sigmoid) PF_F32_1(erf) PF_F32_1(coarse_erf)
}  // namespace pf
