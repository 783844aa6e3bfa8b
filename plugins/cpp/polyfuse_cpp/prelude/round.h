// sqrt, rounding and fused multiply-add: the operations that need one instruction per ISA.
//   fma(a, b, c) is exactly rounded everywhere; madd(a, b, c) is fused where that is fast (polynomials use it).
namespace pf {
#define PF_ROUND_DOWN 9
#define PF_ROUND_UP 10
#define PF_ROUND_ZERO 11
#define PF_ROUND_EVEN 8

// Integers: rounding is the identity, fma is a product and a sum.
template <class V> PF_INLINE V floor(V a) { return a; }
template <class V> PF_INLINE V ceil(V a) { return a; }
template <class V> PF_INLINE V trunc(V a) { return a; }
template <class V> PF_INLINE V round(V a) { return a; }
template <class V> PF_INLINE V fma(V a, V b, V c) { return V(a * b + c); }

PF_INLINE f32 sqrt(f32 a) { return __builtin_sqrtf(a); }
PF_INLINE f64 sqrt(f64 a) { return __builtin_sqrt(a); }
PF_INLINE f32 fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
PF_INLINE f64 fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
PF_INLINE f32 floor(f32 a) { return __builtin_floorf(a); }
PF_INLINE f64 floor(f64 a) { return __builtin_floor(a); }
PF_INLINE f32 ceil(f32 a) { return __builtin_ceilf(a); }
PF_INLINE f64 ceil(f64 a) { return __builtin_ceil(a); }
PF_INLINE f32 trunc(f32 a) { return __builtin_truncf(a); }
PF_INLINE f64 trunc(f64 a) { return __builtin_trunc(a); }
PF_INLINE f32 round(f32 a) { return __builtin_rintf(a); }
PF_INLINE f64 round(f64 a) { return __builtin_rint(a); }

#if PF_W > 1
#if PF_WIDE
typedef hf64 nf64;  // the native vector of doubles
#else
typedef vf64 nf64;
#endif
// bytes of the native float vectors, for choosing builtins
#define PF_BYTES_F32 (4 * PF_W)
#if PF_WIDE
#define PF_BYTES_F64 (8 * PF_HALF)
#else
#define PF_BYTES_F64 (8 * PF_W)
#endif
// four roundings from one selector macro R(a, mode)
#define PF_ROUNDINGS(V, R)                                        \
  PF_INLINE V floor(V a) { return (V)R(a, PF_ROUND_DOWN); }       \
  PF_INLINE V ceil(V a) { return (V)R(a, PF_ROUND_UP); }          \
  PF_INLINE V trunc(V a) { return (V)R(a, PF_ROUND_ZERO); }       \
  PF_INLINE V round(V a) { return (V)R(a, PF_ROUND_EVEN); }
#define PF_SLOW_ROUNDINGS(V, E)                                                                  \
  PF_INLINE V floor(V a) { return each_lane<V>([](E x) { return floor(x); }, a); }               \
  PF_INLINE V ceil(V a) { return each_lane<V>([](E x) { return ceil(x); }, a); }                 \
  PF_INLINE V trunc(V a) { return each_lane<V>([](E x) { return trunc(x); }, a); }               \
  PF_INLINE V round(V a) { return each_lane<V>([](E x) { return round(x); }, a); }
#define PF_SLOW_SQRT(V, E) PF_INLINE V sqrt(V a) { return each_lane<V>([](E x) { return sqrt(x); }, a); }
#define PF_SLOW_FMA(V, E) \
  PF_INLINE V fma(V a, V b, V c) { return each_lane<V>([](E x, E y, E z) { return fma(x, y, z); }, a, b, c); }

#if PF_X86_BUILTINS && PF_AVX512 && PF_BYTES_F32 == 64
#define PF_R(a, mode) __builtin_ia32_rndscaleps_mask(a, mode, a, (unsigned short)-1, 4)
PF_ROUNDINGS(vf32, PF_R)
#undef PF_R
PF_INLINE vf32 sqrt(vf32 a) { return (vf32)__builtin_ia32_sqrtps512_mask(a, a, (unsigned short)-1, 4); }
PF_INLINE vf32 fma(vf32 a, vf32 b, vf32 c) { return (vf32)__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4); }
#elif PF_X86_BUILTINS && defined(__AVX__) && PF_BYTES_F32 == 32
#define PF_R(a, mode) __builtin_ia32_roundps256(a, mode)
PF_ROUNDINGS(vf32, PF_R)
#undef PF_R
PF_INLINE vf32 sqrt(vf32 a) { return (vf32)__builtin_ia32_sqrtps256(a); }
#ifdef __FMA__
PF_INLINE vf32 fma(vf32 a, vf32 b, vf32 c) { return (vf32)__builtin_ia32_vfmaddps256(a, b, c); }
#else
PF_SLOW_FMA(vf32, f32)
#endif
#elif PF_X86_BUILTINS && PF_BYTES_F32 == 16
PF_INLINE vf32 sqrt(vf32 a) { return (vf32)__builtin_ia32_sqrtps(a); }
#ifdef __SSE4_1__
#define PF_R(a, mode) __builtin_ia32_roundps(a, mode)
PF_ROUNDINGS(vf32, PF_R)
#undef PF_R
#else
PF_SLOW_ROUNDINGS(vf32, f32)
#endif
#ifdef __FMA__
PF_INLINE vf32 fma(vf32 a, vf32 b, vf32 c) { return (vf32)__builtin_ia32_vfmaddps(a, b, c); }
#else
PF_SLOW_FMA(vf32, f32)
#endif
#else
PF_SLOW_ROUNDINGS(vf32, f32) PF_SLOW_SQRT(vf32, f32) PF_SLOW_FMA(vf32, f32)
#endif

#if PF_X86_BUILTINS && PF_AVX512 && PF_BYTES_F64 == 64
#define PF_R(a, mode) __builtin_ia32_rndscalepd_mask(a, mode, a, (unsigned char)-1, 4)
PF_ROUNDINGS(nf64, PF_R)
#undef PF_R
PF_INLINE nf64 sqrt(nf64 a) { return (nf64)__builtin_ia32_sqrtpd512_mask(a, a, (unsigned char)-1, 4); }
PF_INLINE nf64 fma(nf64 a, nf64 b, nf64 c) { return (nf64)__builtin_ia32_vfmaddpd512_mask(a, b, c, (unsigned char)-1, 4); }
#elif PF_X86_BUILTINS && defined(__AVX__) && PF_BYTES_F64 == 32
#define PF_R(a, mode) __builtin_ia32_roundpd256(a, mode)
PF_ROUNDINGS(nf64, PF_R)
#undef PF_R
PF_INLINE nf64 sqrt(nf64 a) { return (nf64)__builtin_ia32_sqrtpd256(a); }
#ifdef __FMA__
PF_INLINE nf64 fma(nf64 a, nf64 b, nf64 c) { return (nf64)__builtin_ia32_vfmaddpd256(a, b, c); }
#else
PF_SLOW_FMA(nf64, f64)
#endif
#elif PF_X86_BUILTINS && PF_BYTES_F64 == 16
PF_INLINE nf64 sqrt(nf64 a) { return (nf64)__builtin_ia32_sqrtpd(a); }
#ifdef __SSE4_1__
#define PF_R(a, mode) __builtin_ia32_roundpd(a, mode)
PF_ROUNDINGS(nf64, PF_R)
#undef PF_R
#else
PF_SLOW_ROUNDINGS(nf64, f64)
#endif
#ifdef __FMA__
PF_INLINE nf64 fma(nf64 a, nf64 b, nf64 c) { return (nf64)__builtin_ia32_vfmaddpd(a, b, c); }
#else
PF_SLOW_FMA(nf64, f64)
#endif
#else
PF_SLOW_ROUNDINGS(nf64, f64) PF_SLOW_SQRT(nf64, f64) PF_SLOW_FMA(nf64, f64)
#endif
PF_PAIR1(floor) PF_PAIR1(ceil) PF_PAIR1(trunc) PF_PAIR1(round) PF_PAIR1(sqrt) PF_PAIR3(fma)
#endif

// Multiply-add for polynomials: one rounding where hardware has it, two otherwise.
template <class V> PF_INLINE V madd(V a, V b, V c) {
#if PF_FMA
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}
template <class V> PF_INLINE V reciprocal(V a) { return div(fill<V>((typename tr<V>::elem)1), a); }
template <class V> PF_INLINE V rsqrt(V a) { return div(fill<V>((typename tr<V>::elem)1), sqrt(a)); }
}  // namespace pf
