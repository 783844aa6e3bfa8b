// Stores that bypass the caches where a vector fills cache lines: stream(p, v, past), where `past` says whether to, and
// stream_end() after the last one of a thread.
//   is_resident(p)  whether the page of memory at or shortly before p has been written to before; true where the system does not tell
#if defined(__linux__)
extern "C" int mincore(void*, __SIZE_TYPE__, unsigned char*);
#endif
namespace pf {
static inline bool is_resident(const void* p) {
#if defined(__linux__)
  // an address must be at the start of a page, whatever size these have
  unsigned char page = 1;
  return mincore((void*)((__UINTPTR_TYPE__)p & ~(__UINTPTR_TYPE__)65535), 1, &page) != 0 || (page & 1);
#else
  return true;
#endif
}
#if PF_W > 1
template <class V> PF_INLINE void raw_stream(void* p, V v, bool past) {
#if PF_AVX512 && PF_X86_BUILTINS
  typedef long long q8 __attribute__((vector_size(64)));
  if constexpr (sizeof(V) == 64)
    if (past && ((__UINTPTR_TYPE__)p & 63) == 0) return __builtin_ia32_movntdq512((q8*)p, (q8)v);
#endif
  raw_store(p, v);
}
template <class T> PF_INLINE void stream(T* p, typename shape<T>::vec v, bool past = true) {
  if constexpr (same<T, bool>::value || stored<T>::value) store(p, v);
#if PF_WIDE
  else if constexpr (sizeof(T) == 8) { raw_stream(p, v.lo, past); raw_stream(p + PF_HALF, v.hi, past); }
#endif
  else raw_stream(p, v, past);
}
PF_INLINE void stream_end() {
#if PF_AVX512 && PF_X86_BUILTINS
  __builtin_ia32_sfence();
#endif
}
#endif
}  // namespace pf
