// Stores by which a kernel says that something from data is wrong. The branch is taken in no run that goes well.
namespace pf {
static __attribute__((noinline, cold, unused)) void tell_one(i64* status, i64 said) {
  *(volatile i64*)status = said;  // of threads that do, any wins
}
template <class V, class M> PF_INLINE void tell(i64* status, V said, M wrong) {
  for (int i = 0; i < int(tr<M>::lanes); ++i)
    if (lane(wrong, i)) tell_one(status, i64(lane(said, i)));
}
template <class V, class M> PF_INLINE void check(i64* status, V said, M wrong) {
  if (__builtin_expect(any(wrong), 0)) tell(status, said, wrong);
}
// Whether some lanes differ, without the lanes that do: a few instructions in each vector of a loop that has few.
template <class V> PF_INLINE bool any_differs(V a, V b) {
#if PF_W > 1
  if constexpr (same<V, vi64>::value) {
#if PF_WIDE
    const auto bits = (a.lo ^ b.lo) | (a.hi ^ b.hi);
#else
    const auto bits = a ^ b;
#endif
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
    typedef long long test __attribute__((vector_size(64)));
    return __builtin_ia32_ptestmq512((test)bits, (test)bits, (unsigned char)-1) != 0;
#elif PF_AVX2 && PF_X86_BUILTINS && PF_W == 8
    typedef long long test __attribute__((vector_size(32)));
    return !__builtin_ia32_ptestz256((test)bits, (test)bits);
#endif
  }
#endif
  return any(ne(a, b));
}
template <class S, class V> PF_INLINE void check_equal(i64* status, S said, V a, V b) {
  if (__builtin_expect(any_differs(a, b), 0)) tell(status, said, ne(a, b));
}
}  // namespace pf
