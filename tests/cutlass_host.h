// What generated epilogues use of CUDA, for the CPU: they are tested there.
#define PF_TYPES
#include <math.h>
#include <string.h>
#include <vector>
#define PF_INLINE static inline
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct bf16 { u16 bits; };
struct f16 { _Float16 number; };
template <class To, class From> inline To bits_of(From x) { To r; memcpy(&r, &x, sizeof r); return r; }
inline f32 __uint_as_float(u32 x) { return bits_of<f32>(x); }
inline f32 __int_as_float(int x) { return bits_of<f32>(x); }
inline int __float_as_int(f32 x) { return bits_of<int>(x); }
inline i64 __double_as_longlong(f64 x) { return bits_of<i64>(x); }
inline f64 __longlong_as_double(i64 x) { return bits_of<f64>(x); }
inline f32 rsqrtf(f32 x) { return 1 / sqrtf(x); }
inline f64 rsqrt(f64 x) { return 1 / sqrt(x); }
inline f32 value_of(bf16 x) { return bits_of<f32>((u32)x.bits << 16); }
inline f32 value_of(f16 x) { return (f32)x.number; }
template <class T> struct memory_form;
template <> struct memory_form<bf16> {
  static bf16 of(f32 x) {
    const u32 b = bits_of<u32>(x);
    return {(u16)(x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16)};
  }
};
template <> struct memory_form<f16> {
  static f16 of(f32 x) { return {(_Float16)x}; }
};
struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };
// Nearest float of 8 bits with so many bits of fraction, not too large for it.
inline u8 narrow(f32 x, int fraction, int lowest) {
  const u8 sign = x < 0 || (x == 0 && 1 / x < 0) ? 0x80 : 0;
  const f64 a = fabs((f64)x);
  int e = a > 0 ? ilogb(a) : lowest;
  if (e < lowest) e = lowest;
  const int q = (int)nearbyint(ldexp(a, fraction - e));
  return sign | (u8)(q + ((e - lowest) << fraction));
}
inline f8e4m3 f8e4m3_largest(f32 x) {
  return {x != x ? (u8)0x7f : narrow(x > 448 ? 448.0f : x < -448 ? -448.0f : x, 3, -6)};
}
inline f8e4m3 f8e4m3_nan(f32 x) { return fabsf(x) > 464 ? f8e4m3{0x7f} : f8e4m3_largest(x); }
template <> struct memory_form<f8e5m2> {
  static f8e5m2 of(f32 x) {
    if (x != x) return {0x7f};
    return {fabsf(x) >= 61440 ? (u8)(x < 0 ? 0xfc : 0x7c) : narrow(x, 2, -14)};
  }
};
inline f32 value_of(f8e5m2 x) { return value_of(f16{bits_of<_Float16>((u16)(x.bits << 8))}); }
inline f32 value_of(f8e4m3 x) {
  const int e = x.bits >> 3 & 15, m = x.bits & 7;
  const f32 a = (x.bits & 0x7f) == 0x7f ? NAN : e ? ldexpf(8 + m, e - 10) : ldexpf(m, -9);
  return x.bits & 0x80 ? -a : a;
}
template <class T, int N> struct Pack { T item[N]; };
template <int N, bool READ_ONLY, class T> void read(const T* p, Pack<T, N>& into) {
  if ((u64)p % (N * sizeof(T) < 16 ? N * sizeof(T) : 16)) __builtin_trap();
  memcpy(&into, p, sizeof into);
}
template <int N, class T> void write(T* p, const Pack<T, N>& from) {
  if ((u64)p % (N * sizeof(T) < 16 ? N * sizeof(T) : 16)) __builtin_trap();
  memcpy(p, &from, sizeof from);
}
template <class T> T read_only(const T* p) { return *p; }
template <class T, int N> struct PackedWords {
  Pack<T, N> held;
  Pack<T, N> pack() const { return held; }
};
template <int N, class T> void load_words(const T* p, PackedWords<T, N>& into) { read<N, true>(p, into.held); }
