// Stores that bypass the caches where a vector fills cache lines: stream(p, v), and stream_end() after the last one of a
// thread.
namespace pf {
#if PF_W > 1
template <class V> PF_INLINE void raw_stream(void* p, V v) {
#if PF_AVX512 && PF_X86_BUILTINS
  typedef long long q8 __attribute__((vector_size(64)));
  if constexpr (sizeof(V) == 64)
    if (((__UINTPTR_TYPE__)p & 63) == 0) return __builtin_ia32_movntdq512((q8*)p, (q8)v);
#endif
  raw_store(p, v);
}
template <class T> PF_INLINE void stream(T* p, typename shape<T>::vec v) {
  if constexpr (same<T, bool>::value || stored<T>::value) store(p, v);
#if PF_WIDE
  else if constexpr (sizeof(T) == 8) { raw_stream(p, v.lo); raw_stream(p + PF_HALF, v.hi); }
#endif
  else raw_stream(p, v);
}
PF_INLINE void stream_end() {
#if PF_AVX512 && PF_X86_BUILTINS
  __builtin_ia32_sfence();
#endif
}
#endif
}  // namespace pf
