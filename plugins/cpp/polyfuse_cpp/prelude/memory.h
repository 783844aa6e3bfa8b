// Contiguous loads and stores, whole or of the first n lanes.
//   load<L>(p)  load_n<L>(p, n)  store(p, v)  store_n(p, v, n)  load_strided<L>(p, stride)  store_strided(p, v, stride)
// p may point to any dtype including bool (one byte, 0 or 1), and floats of 16 and 8 bits (values are f32).
namespace pf {
template <class T> PF_INLINE typename shape<T>::value load_one(const T* p) {
  if constexpr (stored<T>::value) return widen(*p);
  else return *p;
}
PF_INLINE bool load_one(const bool* p) { return *(const u8*)p != 0; }
template <class T> PF_INLINE void store_one(T* p, typename shape<T>::value x) {
  if constexpr (stored<T>::value) *p = narrow_one<T>(x);
  else *p = x;
}

#if PF_W > 1
// Raw vectors: the first n lanes (n in 1..lanes); the rest is zero and its memory is never touched.
template <class V> PF_INLINE V raw_load(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V> PF_INLINE void raw_store(void* p, V v) { __builtin_memcpy(p, &v, sizeof v); }
template <class V> PF_INLINE V raw_load_n(const void* p, int n) {
#if PF_AVX512 && PF_X86_BUILTINS
  unsigned k = n >= 16 ? 0xffffu : (1u << (n > 0 ? n : 0)) - 1u;
  typedef char c16 __attribute__((vector_size(16)));
  typedef short s8 __attribute__((vector_size(16))); typedef short s16 __attribute__((vector_size(32)));
  typedef int d8 __attribute__((vector_size(32))); typedef int d16 __attribute__((vector_size(64)));
  typedef long long q8 __attribute__((vector_size(64)));
  if constexpr (sizeof(V) == 64 && sizeof(typename tr<V>::elem) == 4)
    return (V)__builtin_ia32_loaddqusi512_mask((const int*)p, d16{}, (unsigned short)k);
  else if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 4)
    return (V)__builtin_ia32_loaddqusi256_mask((const int*)p, d8{}, (unsigned char)k);
  else if constexpr (sizeof(V) == 64 && sizeof(typename tr<V>::elem) == 8)
    return (V)__builtin_ia32_loaddqudi512_mask((const long long*)p, q8{}, (unsigned char)k);
  else if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 2)
    return (V)__builtin_ia32_loaddquhi256_mask((const short*)p, s16{}, (unsigned short)k);
  else if constexpr (sizeof(V) == 16 && sizeof(typename tr<V>::elem) == 2)
    return (V)__builtin_ia32_loaddquhi128_mask((const short*)p, s8{}, (unsigned char)k);
  else if constexpr (sizeof(V) == 16 && sizeof(typename tr<V>::elem) == 1)
    return (V)__builtin_ia32_loaddquqi128_mask((const char*)p, c16{}, (unsigned short)k);
#elif PF_AVX2 && PF_X86_BUILTINS
  if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 4) {
    typedef int d8 __attribute__((vector_size(32)));
    d8 k = d8{0, 1, 2, 3, 4, 5, 6, 7} < n;
    return (V)__builtin_ia32_maskloadd256((const d8*)p, k);
  }
#endif
  typedef typename tr<V>::elem E;
  V v{};
  for (int i = 0; i < n; ++i) {
    E x;
    __builtin_memcpy(&x, (const char*)p + i * sizeof(E), sizeof x);
    v[i] = x;
  }
  return v;
}
template <class V> PF_INLINE void raw_store_n(void* p, V v, int n) {
#if PF_AVX512 && PF_X86_BUILTINS
  unsigned k = n >= 16 ? 0xffffu : (1u << (n > 0 ? n : 0)) - 1u;
  typedef char c16 __attribute__((vector_size(16)));
  typedef short s8 __attribute__((vector_size(16))); typedef short s16 __attribute__((vector_size(32)));
  typedef int d8 __attribute__((vector_size(32))); typedef int d16 __attribute__((vector_size(64)));
  typedef long long q8 __attribute__((vector_size(64)));
  if constexpr (sizeof(V) == 64 && sizeof(typename tr<V>::elem) == 4)
    return __builtin_ia32_storedqusi512_mask((int*)p, (d16)v, (unsigned short)k);
  else if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 4)
    return __builtin_ia32_storedqusi256_mask((int*)p, (d8)v, (unsigned char)k);
  else if constexpr (sizeof(V) == 64 && sizeof(typename tr<V>::elem) == 8)
    return __builtin_ia32_storedqudi512_mask((long long*)p, (q8)v, (unsigned char)k);
  else if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 2)
    return __builtin_ia32_storedquhi256_mask((short*)p, (s16)v, (unsigned short)k);
  else if constexpr (sizeof(V) == 16 && sizeof(typename tr<V>::elem) == 2)
    return __builtin_ia32_storedquhi128_mask((short*)p, (s8)v, (unsigned char)k);
  else if constexpr (sizeof(V) == 16 && sizeof(typename tr<V>::elem) == 1)
    return __builtin_ia32_storedquqi128_mask((char*)p, (c16)v, (unsigned short)k);
#endif
  typedef typename tr<V>::elem E;
  for (int i = 0; i < n; ++i) {
    E x = v[i];
    __builtin_memcpy((char*)p + i * sizeof(E), &x, sizeof x);
  }
}

// 16-bit floats as vectors
#if PF_AVX2 && PF_X86_BUILTINS && PF_W == 8
// g++ 12 widens half a register, shifts, widens the other half and joins them, and masks before it packs
typedef short s8b __attribute__((vector_size(16)));
PF_INLINE vf32 widen_vector(vu16 h, const bf16*) {
  return bf16_widen<vf32>((vu32)__builtin_ia32_pmovzxwd256((s8b)h));
}
PF_INLINE vu16 narrow_vector(vf32 x, const bf16*) {
  typedef int d4 __attribute__((vector_size(16)));
  const vu32 r = bf16_narrow(x);
  const d4 low = (d4)__builtin_shufflevector(r, r, 0, 1, 2, 3), high = (d4)__builtin_shufflevector(r, r, 4, 5, 6, 7);
  return (vu16)__builtin_ia32_packusdw128(low, high);
}
#else
PF_INLINE vf32 widen_vector(vu16 h, const bf16*) { return bf16_widen<vf32>(native_convert<vu32>(h)); }
PF_INLINE vu16 narrow_vector(vf32 x, const bf16*) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16 && PF_DOT_BF16
  // the instruction takes denormal numbers for zero, and has other bits for what is no number: both are rare
  unsigned short rare;
  vu16 r;
  __asm__("vfpclassps $0xa1, %1, %0" : "=Yk"(rare) : "v"(x));
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(x));
  if (__builtin_expect(rare == 0, 1)) return r;
#endif
  return native_convert<vu16>(bf16_narrow(x));
}
#endif
#if defined(__F16C__) && PF_X86_BUILTINS && PF_W == 16 && PF_AVX512
typedef short s16h __attribute__((vector_size(32)));
PF_INLINE vf32 widen_vector(vu16 h, const f16*) {
  return (vf32)__builtin_ia32_vcvtph2ps512_mask((s16h)h, vf32{}, (unsigned short)-1, 4);
}
PF_INLINE vu16 narrow_vector(vf32 x, const f16*) {
  return (vu16)__builtin_ia32_vcvtps2ph512_mask(x, 0, s16h{}, (unsigned short)-1);
}
#elif defined(__F16C__) && PF_X86_BUILTINS && PF_W == 8
typedef short s8h __attribute__((vector_size(16)));
PF_INLINE vf32 widen_vector(vu16 h, const f16*) { return (vf32)__builtin_ia32_vcvtph2ps256((s8h)h); }
PF_INLINE vu16 narrow_vector(vf32 x, const f16*) { return (vu16)__builtin_ia32_vcvtps2ph256(x, 0); }
#else
PF_INLINE vf32 widen_vector(vu16 h, const f16*) { return f16_widen<vf32>(native_convert<vu32>(h)); }
PF_INLINE vu16 narrow_vector(vf32 x, const f16*) { return native_convert<vu16>(f16_narrow(x)); }
#endif

// 8-bit floats as vectors
template <class T> PF_INLINE vf32 widen_vector(vu8 h, const T* p) {
#if defined(__F16C__) && PF_X86_BUILTINS && ((PF_W == 16 && PF_AVX512) || PF_W == 8)
  // as f16, of which they are the upper bits, or a power of two
  if constexpr (same<T, f8e5m2>::value)
    return widen_vector(vu16(native_convert<vu16>(h) << 8), (const f16*)p);
  if constexpr (same<T, f8e4m3>::value) {
    // one more in the last bit carries into the upper bit of the exponent where all bits are set: that is NaN alone
    const vu16 bits = vu16((vu16)(native_convert<vi16>((vi8)h) << 7) & fill<vu16>(0xbfffu));
    const vu16 half = vu16(bits | ((bits + fill<vu16>(0x80u)) & fill<vu16>(0x4000u)));
    return widen_vector(half, (const f16*)p) * fill<vf32>(256.0f);
  }
#endif
  return eight_widen<T, vf32>(native_convert<vu32>(h));
}
template <class T> PF_INLINE vu8 narrow_vector(vf32 x, const T*) {
  return native_convert<vu8>(eight_narrow<T>(x));
}

// Bytes that are not zero.
PF_INLINE vmask mask_of_bytes(vu8 b) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  typedef char c16 __attribute__((vector_size(16)));
  return {(vi32)__builtin_ia32_cvtmask2d512(__builtin_ia32_ptestmb128((c16)b, (c16)b, (unsigned short)-1))};
#else
  return as_mask(b != fill<vu8>(0));
#endif
}
template <class T> PF_INLINE typename shape<T>::vec load_vector(const T* p) {
  typedef typename shape<T>::vec V;
  if constexpr (same<T, bool>::value) return mask_of_bytes(raw_load<vu8>(p));
  else if constexpr (stored<T>::value) return widen_vector(raw_load<typename stored<T>::words>(p), p);
#if PF_WIDE
  else if constexpr (sizeof(T) == 8) {
    typedef decltype(V::lo) H;
    return {raw_load<H>(p), raw_load<H>(p + PF_HALF)};
  }
#endif
  else return raw_load<V>(p);
}
template <class T> PF_INLINE typename shape<T>::vec load_vector_n(const T* p, int n) {
  typedef typename shape<T>::vec V;
  if constexpr (same<T, bool>::value) return mask_of_bytes(raw_load_n<vu8>(p, n));
  else if constexpr (stored<T>::value) return widen_vector(raw_load_n<typename stored<T>::words>(p, n), p);
#if PF_WIDE
  else if constexpr (sizeof(T) == 8) {
    typedef decltype(V::lo) H;
    V v{};
    v.lo = raw_load_n<H>(p, n < PF_HALF ? n : PF_HALF);
    if (n > PF_HALF) v.hi = raw_load_n<H>(p + PF_HALF, n - PF_HALF);
    return v;
  }
#endif
  else return raw_load_n<V>(p, n);
}
template <class T> PF_INLINE void store_vector(T* p, typename shape<T>::vec v) {
  if constexpr (same<T, bool>::value) raw_store(p, native_convert<vu8>(vi32(v.v & 1)));
  else if constexpr (stored<T>::value) raw_store(p, narrow_vector(v, p));
#if PF_WIDE
  else if constexpr (sizeof(T) == 8) { raw_store(p, v.lo); raw_store(p + PF_HALF, v.hi); }
#endif
  else raw_store(p, v);
}
template <class T> PF_INLINE void store_vector_n(T* p, typename shape<T>::vec v, int n) {
  if constexpr (same<T, bool>::value) raw_store_n(p, native_convert<vu8>(vi32(v.v & 1)), n);
  else if constexpr (stored<T>::value) raw_store_n(p, narrow_vector(v, p), n);
#if PF_WIDE
  else if constexpr (sizeof(T) == 8) {
    raw_store_n(p, v.lo, n < PF_HALF ? n : PF_HALF);
    if (n > PF_HALF) raw_store_n(p + PF_HALF, v.hi, n - PF_HALF);
  }
#endif
  else raw_store_n(p, v, n);
}
#endif

template <class L, class T> PF_INLINE typename L::template of<T> load(const T* p) {
#if PF_W > 1
  if constexpr (L::lanes > 1) return load_vector(p);
  else
#endif
    return load_one(p);
}
template <class L, class T> PF_INLINE typename L::template of<T> load_n(const T* p, i64 n) {
#if PF_W > 1
  if constexpr (L::lanes > 1) return load_vector_n(p, int(n));
  else
#endif
    return n > 0 ? load_one(p) : typename L::template of<T>(0);
}
template <class T, class V> PF_INLINE void store(T* p, V v) {
#if PF_W > 1
  if constexpr (tr<V>::is_vec) store_vector(p, v);
  else
#endif
    store_one(p, v);
}
template <class T, class V> PF_INLINE void store_n(T* p, V v, i64 n) {
#if PF_W > 1
  if constexpr (tr<V>::is_vec) store_vector_n(p, v, int(n));
  else
#endif
    if (n > 0) store_one(p, v);
}

// p[0], p[stride], p[2 * stride], ... (stride in elements)
template <class L, class T> PF_INLINE typename L::template of<T> load_strided(const T* p, i64 stride) {
  typename L::template of<T> r{};
#pragma GCC unroll 16
  for (int i = 0; i < int(L::lanes); ++i) r = set_lane(r, i, load_one(p + i * stride));
  return r;
}
template <class L, class T> PF_INLINE typename L::template of<T> load_strided_n(const T* p, i64 stride, i64 n) {
  // through memory: a lane whose number is not known when compiling costs many instructions
  T line[L::lanes] = {};
  for (int i = 0; i < int(L::lanes) && i < n; ++i) line[i] = p[i * stride];
  return load<L>(line);
}
template <class T, class V> PF_INLINE void store_strided(T* p, V v, i64 stride) {
#pragma GCC unroll 16
  for (int i = 0; i < int(tr<V>::lanes); ++i) store_one(p + i * stride, lane(v, i));
}
template <class T, class V> PF_INLINE void store_strided_n(T* p, V v, i64 stride, i64 n) {
  T line[tr<V>::lanes];
  store(line, v);
  for (int i = 0; i < int(tr<V>::lanes) && i < n; ++i) p[i * stride] = line[i];
}
// The mask of the first n lanes.
template <class L> PF_INLINE typename L::template of<bool> first_n(i64 n) {
#if PF_W > 1
  if constexpr (L::lanes > 1) return lt(iota<L, i32>(0), fill<vi32>(n > PF_W ? PF_W : i32(n)));
  else
#endif
    return n > 0;
}
}  // namespace pf
