// Types, conversions and memory accesses of generated kernels. No header is included: NVRTC needs none.
#ifndef PF_TYPES
#define PF_TYPES
#define PF_INLINE __device__ __forceinline__
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
struct f16 { u16 bits; };
struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };
struct alignas(64) TensorMap { u64 words[16]; };

// The value of what is in memory: narrow floats as f32, everything else as it is.
template <class T> PF_INLINE T value_of(T x) { return x; }
PF_INLINE f32 value_of(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
PF_INLINE f32 value_of(f16 x) {
  f32 r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
PF_INLINE u32 halves_of(u16 pair, bool e4m3) {
  u32 r;
  if (e4m3) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(pair));
  else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"(pair));
  return r;
}
PF_INLINE f32 value_of(f8e4m3 x) { return value_of(f16{(u16)halves_of(x.bits, true)}); }
PF_INLINE f32 value_of(f8e5m2 x) { return value_of(f16{(u16)halves_of(x.bits, false)}); }
PF_INLINE bool value_of(bool x) { return x; }

// A value as it is own in memory.
template <class T> struct memory_form {
  template <class V> static PF_INLINE T of(V x) { return (T)x; }
};
template <> struct memory_form<bf16> {
  static PF_INLINE bf16 of(f32 x) {
    u16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return {r};
  }
};
template <> struct memory_form<f16> {
  static PF_INLINE f16 of(f32 x) {
    u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return {r};
  }
};
// Two neighbours as they are own in memory.
template <class T> PF_INLINE u32 pair_of(f32 first, f32 second);
template <> PF_INLINE u32 pair_of<bf16>(f32 first, f32 second) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
  return r;
}
template <> PF_INLINE u32 pair_of<f16>(f32 first, f32 second) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
  return r;
}

// Rounded to nearest. What is too large becomes the largest number or NaN, as torch's version has it.
PF_INLINE f8e4m3 f8e4m3_largest(f32 x) {
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
  return {(u8)r};
}
PF_INLINE f8e4m3 f8e4m3_nan(f32 x) {
  return fabsf(x) > 464.0f ? f8e4m3{(u8)(x < 0 ? 0xff : 0x7f)} : f8e4m3_largest(x);
}
// What is too large becomes infinite.
template <> struct memory_form<f8e5m2> {
  static PF_INLINE f8e5m2 of(f32 x) {
    u16 r;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
    return {fabsf(x) >= 61440.0f ? (u8)(x < 0 ? 0xfc : 0x7c) : (u8)r};
  }
};

// N elements that lie side by side, read or written with as few accesses as their alignment allows.
template <class T, int N> struct Pack { T item[N]; };
template <int BYTES> struct Words { typedef u8 type; };
template <> struct Words<2> { typedef u16 type; };
template <> struct Words<4> { typedef u32 type; };
template <> struct Words<8> { typedef uint2 type; };
template <> struct Words<16> { typedef uint4 type; };
// Volatile: a compiler that sees that nothing changes there would load all at once.
PF_INLINE u8 load_global(const u8* p) {
  u32 r;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(r) : "l"(p));
  return (u8)r;
}
PF_INLINE u16 load_global(const u16* p) {
  u16 r;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(p));
  return r;
}
PF_INLINE u32 load_global(const u32* p) {
  u32 r;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p));
  return r;
}
PF_INLINE uint2 load_global(const uint2* p) {
  uint2 r;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
  return r;
}
PF_INLINE uint4 load_global(const uint4* p) {
  uint4 r;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}
template <bool READ_ONLY, class W> PF_INLINE W read_word(const W* p) {
  if constexpr (READ_ONLY) return load_global(p);
  else return *p;
}
// READ_ONLY: nothing writes there while the kernel runs.
template <int N, bool READ_ONLY, class T> PF_INLINE void read(const T* p, Pack<T, N>& into) {
  constexpr int BYTES = N * sizeof(T), STEP = BYTES < 16 ? BYTES : 16;
  typedef typename Words<STEP>::type W;
  union Both { Pack<T, N> pack; W word[BYTES / STEP]; PF_INLINE Both() {} } both;
#pragma unroll
  for (int i = 0; i < BYTES / STEP; ++i) both.word[i] = read_word<READ_ONLY>((const W*)p + i);
  into = both.pack;
}
// The same as words, to be taken apart later: elements of their own would need more registers.
template <class T, int N> struct PackedWords {
  static constexpr int BYTES = N * sizeof(T), STEP = BYTES < 16 ? BYTES : 16;
  typename Words<STEP>::type word[BYTES / STEP];
  PF_INLINE Pack<T, N> pack() const {
    union Both { Pack<T, N> pack; typename Words<STEP>::type word[BYTES / STEP]; PF_INLINE Both() {} } both;
#pragma unroll
    for (int i = 0; i < BYTES / STEP; ++i) both.word[i] = word[i];
    return both.pack;
  }
};
// READ_ONLY: as above; otherwise only this thread writes there, after it has read.
template <int N, bool READ_ONLY = true, class T> PF_INLINE void load_words(const T* p, PackedWords<T, N>& into) {
#pragma unroll
  for (int i = 0; i < PackedWords<T, N>::BYTES / PackedWords<T, N>::STEP; ++i)
    into.word[i] = read_word<READ_ONLY>((const typename Words<PackedWords<T, N>::STEP>::type*)p + i);
}
// An assignment of such a word may become several stores of four bytes, as it did for batches.
template <class W> PF_INLINE void write_word(W* p, W word) { *p = word; }
PF_INLINE void write_word(uint2* p, uint2 word) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(word.x), "r"(word.y) : "memory");
}
PF_INLINE void write_word(uint4* p, uint4 word) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(word.x), "r"(word.y), "r"(word.z),
               "r"(word.w) : "memory");
}
template <int N, class T> PF_INLINE void write(T* p, const Pack<T, N>& from) {
  constexpr int BYTES = N * sizeof(T), STEP = BYTES < 16 ? BYTES : 16;
  typedef typename Words<STEP>::type W;
  union Both { Pack<T, N> pack; W word[BYTES / STEP]; PF_INLINE Both() {} } both;
  both.pack = from;
#pragma unroll
  for (int i = 0; i < BYTES / STEP; ++i) write_word((W*)p + i, both.word[i]);
}
// One element that nothing writes while the kernel runs.
template <class T> PF_INLINE T read_only(const T* p) {
  Pack<T, 1> one;
  read<1, true>(p, one);
  return one.item[0];
}
#endif
