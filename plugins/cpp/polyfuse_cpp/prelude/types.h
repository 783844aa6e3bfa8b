// Scalar and vector types, lane policies and the bridges between them.  Nothing here includes a system header.
//
// PF_W      lanes of every vector in this translation unit (1: vectors are plain scalars)
// PF_BYTES  bytes of a native register; an 8-byte element type that does not fit is stored as a pair of halves
#ifndef PF_W
#define PF_W 1
#endif
#ifndef PF_BYTES
#define PF_BYTES 16
#endif
#define PF_WIDE (PF_W > 1 && PF_W * 8 > PF_BYTES)
#define PF_HALF (PF_W / 2)
#define PF_INLINE static inline __attribute__((always_inline))
#define PF_HEAVY static inline __attribute__((unused))
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define PF_AVX512 1
#else
#define PF_AVX512 0
#endif
#if defined(__AVX2__) && defined(__FMA__)
#define PF_AVX2 1
#else
#define PF_AVX2 0
#endif
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
#define PF_FMA 1
#else
#define PF_FMA 0
#endif
// __builtin_ia32_*: g++ spells them so; clang does well without
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PF_X86_BUILTINS 1
#else
#define PF_X86_BUILTINS 0
#endif

namespace pf {
typedef float f32;
typedef double f64;
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef __INT64_TYPE__ i64;
typedef __UINT64_TYPE__ u64;
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };
struct f8e4m3fnuz { u8 bits; };
struct f8e5m2fnuz { u8 bits; };

// The unsigned integer of so many bytes.
template <int SIZE> struct word_of;
template <> struct word_of<1> { typedef u8 type; };
template <> struct word_of<2> { typedef u16 type; };
template <> struct word_of<4> { typedef u32 type; };
template <> struct word_of<8> { typedef u64 type; };

template <class A, class B> struct same { enum { value = 0 }; };
template <class A> struct same<A, A> { enum { value = 1 }; };

// Bit pattern of one value as another type of the same size.
template <class To, class From> PF_INLINE To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "bitcast needs equal sizes");
  To r;
  __builtin_memcpy(&r, &x, sizeof r);
  return r;
}

// tr<V>: elem (scalar type), ivec/uvec (integers of the same shape), mask (comparison result), lanes
template <class V> struct tr;
template <class T> struct shape;  // shape<T>::vec: the PF_W-lane value of scalar type T; ::half: PF_W/2 native lanes
#define PF_SCALAR(T, I, U, FLOAT)                                            \
  template <> struct tr<T> {                                                 \
    typedef T elem; typedef I ivec; typedef U uvec; typedef bool mask;       \
    enum { lanes = 1, is_float = FLOAT, is_vec = 0 };                        \
  };
PF_SCALAR(f32, i32, u32, 1) PF_SCALAR(f64, i64, u64, 1)
PF_SCALAR(i8, i8, u8, 0) PF_SCALAR(i16, i16, u16, 0) PF_SCALAR(i32, i32, u32, 0) PF_SCALAR(i64, i64, u64, 0)
PF_SCALAR(u8, i8, u8, 0) PF_SCALAR(u16, i16, u16, 0) PF_SCALAR(u32, i32, u32, 0) PF_SCALAR(u64, i64, u64, 0)
template <> struct tr<bool> {
  typedef bool elem; typedef bool ivec; typedef bool uvec; typedef bool mask;
  enum { lanes = 1, is_float = 0, is_vec = 0 };
};

#if PF_W > 1
#define PF_NATIVE(NAME, T, N) typedef T NAME __attribute__((vector_size(sizeof(T) * (N)))); // NOLINT
PF_NATIVE(vf32, f32, PF_W) PF_NATIVE(vi8, i8, PF_W) PF_NATIVE(vi16, i16, PF_W) PF_NATIVE(vi32, i32, PF_W)
PF_NATIVE(vu8, u8, PF_W) PF_NATIVE(vu16, u16, PF_W) PF_NATIVE(vu32, u32, PF_W)
struct vmask { vi32 v; };  // every lane 0 or -1
#define PF_VECTOR(V, T, I, U, N, FLOAT, MASK)                                \
  template <> struct tr<V> {                                                 \
    typedef T elem; typedef I ivec; typedef U uvec; typedef MASK mask;       \
    enum { lanes = N, is_float = FLOAT, is_vec = 1 };                        \
  };
PF_VECTOR(vf32, f32, vi32, vu32, PF_W, 1, vmask) PF_VECTOR(vi8, i8, vi8, vu8, PF_W, 0, vmask)
PF_VECTOR(vu8, u8, vi8, vu8, PF_W, 0, vmask) PF_VECTOR(vi16, i16, vi16, vu16, PF_W, 0, vmask)
PF_VECTOR(vu16, u16, vi16, vu16, PF_W, 0, vmask) PF_VECTOR(vi32, i32, vi32, vu32, PF_W, 0, vmask)
PF_VECTOR(vu32, u32, vi32, vu32, PF_W, 0, vmask)
template <> struct tr<vmask> {
  typedef bool elem; typedef vmask ivec; typedef vmask uvec; typedef vmask mask;
  enum { lanes = PF_W, is_float = 0, is_vec = 1 };
};
#if PF_WIDE
PF_NATIVE(hf64, f64, PF_HALF) PF_NATIVE(hi64, i64, PF_HALF) PF_NATIVE(hu64, u64, PF_HALF)
PF_NATIVE(hf32, f32, PF_HALF) PF_NATIVE(hi32, i32, PF_HALF) PF_NATIVE(hu32, u32, PF_HALF)
PF_NATIVE(hi16, i16, PF_HALF) PF_NATIVE(hu16, u16, PF_HALF) PF_NATIVE(hi8, i8, PF_HALF) PF_NATIVE(hu8, u8, PF_HALF)
template <class H> struct wide { H lo, hi; };  // lanes 0..W/2-1 and W/2..W-1
typedef wide<hf64> vf64;
typedef wide<hi64> vi64;
typedef wide<hu64> vu64;
PF_VECTOR(hf64, f64, hi64, hu64, PF_HALF, 1, hi64) PF_VECTOR(hi64, i64, hi64, hu64, PF_HALF, 0, hi64)
PF_VECTOR(hu64, u64, hi64, hu64, PF_HALF, 0, hi64)
PF_VECTOR(hf32, f32, hi32, hu32, PF_HALF, 1, hi32) PF_VECTOR(hi32, i32, hi32, hu32, PF_HALF, 0, hi32)
PF_VECTOR(hu32, u32, hi32, hu32, PF_HALF, 0, hi32)
#else
PF_NATIVE(vf64, f64, PF_W) PF_NATIVE(vi64, i64, PF_W) PF_NATIVE(vu64, u64, PF_W)
#endif
PF_VECTOR(vf64, f64, vi64, vu64, PF_W, 1, vmask) PF_VECTOR(vi64, i64, vi64, vu64, PF_W, 0, vmask)
PF_VECTOR(vu64, u64, vi64, vu64, PF_W, 0, vmask)
#else
typedef f32 vf32; typedef f64 vf64; typedef bool vmask;
typedef i8 vi8; typedef i16 vi16; typedef i32 vi32; typedef i64 vi64;
typedef u8 vu8; typedef u16 vu16; typedef u32 vu32; typedef u64 vu64;
#endif

#define PF_SHAPE(T, V) template <> struct shape<T> { typedef T value; typedef V vec; };
PF_SHAPE(f32, vf32) PF_SHAPE(f64, vf64) PF_SHAPE(bool, vmask)
PF_SHAPE(i8, vi8) PF_SHAPE(i16, vi16) PF_SHAPE(i32, vi32) PF_SHAPE(i64, vi64)
PF_SHAPE(u8, vu8) PF_SHAPE(u16, vu16) PF_SHAPE(u32, vu32) PF_SHAPE(u64, vu64)
template <> struct shape<bf16> { typedef f32 value; typedef vf32 vec; };
template <> struct shape<f16> { typedef f32 value; typedef vf32 vec; };
template <> struct shape<f8e4m3> { typedef f32 value; typedef vf32 vec; };
template <> struct shape<f8e5m2> { typedef f32 value; typedef vf32 vec; };
template <> struct shape<f8e4m3fnuz> { typedef f32 value; typedef vf32 vec; };
template <> struct shape<f8e5m2fnuz> { typedef f32 value; typedef vf32 vec; };

// Floating-point types that exist in memory alone: their values are f32.  word: their bits; words: those of a vector.
template <class T> struct stored { enum { value = 0 }; };
#define PF_STORED(T, N) template <> struct stored<T> { enum { value = 1 }; typedef u##N word; typedef vu##N words; };
PF_STORED(bf16, 16) PF_STORED(f16, 16)
PF_STORED(f8e4m3, 8) PF_STORED(f8e5m2, 8) PF_STORED(f8e4m3fnuz, 8) PF_STORED(f8e5m2fnuz, 8)
// Those of eight bits: bits of the fraction, bias of the exponent, and whether there is one zero and one NaN.
template <class T> struct eight { enum { value = 0 }; };
#define PF_EIGHT(T, FRACTION, BIAS, FNUZ) \
  template <> struct eight<T> { enum { value = 1, fraction = FRACTION, bias = BIAS, fnuz = FNUZ }; };
PF_EIGHT(f8e4m3, 3, 7, 0) PF_EIGHT(f8e5m2, 2, 15, 0) PF_EIGHT(f8e4m3fnuz, 3, 8, 1) PF_EIGHT(f8e5m2fnuz, 2, 16, 1)

// Lane policies: the first template argument of load, splat, iota, gather and cast-free constructors.
struct Sca { enum { lanes = 1 }; template <class T> using of = typename shape<T>::value; };
#if PF_W > 1
struct Vec { enum { lanes = PF_W }; template <class T> using of = typename shape<T>::vec; };
#else
typedef Sca Vec;
#endif
// with<V, To>: type with V's lanes and element type To.
template <int VECTOR> struct policy { typedef Sca type; };
#if PF_W > 1
template <> struct policy<1> { typedef Vec type; };
#endif
template <class V, class To> using with = typename policy<tr<V>::is_vec>::type::template of<To>;

#if PF_W > 1
// Halves of a native vector and their concatenation.
#if PF_W == 16
#define PF_LO 0, 1, 2, 3, 4, 5, 6, 7
#define PF_HI 8, 9, 10, 11, 12, 13, 14, 15
#elif PF_W == 8
#define PF_LO 0, 1, 2, 3
#define PF_HI 4, 5, 6, 7
#elif PF_W == 4
#define PF_LO 0, 1
#define PF_HI 2, 3
#elif PF_W == 2
#define PF_LO 0
#define PF_HI 1
#else
#error "PF_W must be 1, 2, 4, 8 or 16"
#endif
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define PF_SHUFFLES 1
#endif
#endif
template <class H, class V> PF_INLINE H low_half(V v) {
#ifdef PF_SHUFFLES
  return (H)__builtin_shufflevector(v, v, PF_LO);
#else
  H r; __builtin_memcpy(&r, &v, sizeof r); return r;
#endif
}
template <class H, class V> PF_INLINE H high_half(V v) {
#ifdef PF_SHUFFLES
  return (H)__builtin_shufflevector(v, v, PF_HI);
#else
  H r; __builtin_memcpy(&r, (const char*)&v + sizeof r, sizeof r); return r;
#endif
}
template <class V, class H> PF_INLINE V join_halves(H lo, H hi) {
#ifdef PF_SHUFFLES
  return (V)__builtin_shufflevector(lo, hi, PF_LO, PF_HI);
#else
  V r; __builtin_memcpy(&r, &lo, sizeof lo); __builtin_memcpy((char*)&r + sizeof lo, &hi, sizeof hi); return r;
#endif
}
#endif

// fill<V>(x): every lane x.
template <int LANES> struct filler;
template <> struct filler<1> { template <class V, class T> PF_INLINE V make(T x) { return x; } };
#define PF_FILLER(N, ...) \
  template <> struct filler<N> { template <class V, class T> PF_INLINE V make(T x) { return V{__VA_ARGS__}; } };
PF_FILLER(2, x, x)
PF_FILLER(4, x, x, x, x)
PF_FILLER(8, x, x, x, x, x, x, x, x)
PF_FILLER(16, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x)
template <class V> struct fills {
  PF_INLINE V make(typename tr<V>::elem x) { return filler<tr<V>::lanes>::template make<V>(x); }
};
#if PF_W > 1
template <> struct fills<vmask> {
  PF_INLINE vmask make(bool x) { return vmask{filler<PF_W>::make<vi32>(x ? -1 : 0)}; }
};
#if PF_WIDE
template <class H> struct fills<wide<H>> {
  PF_INLINE wide<H> make(typename tr<H>::elem x) { H h = fills<H>::make(x); return {h, h}; }
};
#endif
#endif
template <class V> PF_INLINE V fill(typename tr<V>::elem x) { return fills<V>::make(x); }
}  // namespace pf
