// Stores by which a kernel says that something from data is wrong. The branch is taken in no run that goes well.
namespace pf {
static __attribute__((noinline, cold, unused)) void tell_one(i64* status, i64 said) {
  *(volatile i64*)status = said;  // of threads that do, any wins
}
template <class V, class M> static __attribute__((noinline, cold)) void tell(i64* status, V said, M wrong) {
  for (int i = 0; i < int(tr<M>::lanes); ++i)
    if (lane(wrong, i)) tell_one(status, i64(lane(said, i)));
}
template <class V, class M> PF_INLINE void check(i64* status, V said, M wrong) {
  if (__builtin_expect(any(wrong), 0)) tell(status, said, wrong);
}

// Whether an index, or one of a vector, is not in 0 .. last. Where last is -1, none is.
template <class V> PF_INLINE bool is_outside(V index, i64 last) {
  if constexpr (!tr<V>::is_vec) {
    return index < 0 || index > last;
  } else {
#if PF_WIDE && PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
    typedef long long eight __attribute__((vector_size(64)));
    const eight size = eight{} + (long long)(last + 1);
    const unsigned char low = __builtin_ia32_ucmpq512_mask((eight)index.lo, size, 5, (unsigned char)-1);
    const unsigned char high = __builtin_ia32_ucmpq512_mask((eight)index.hi, size, 5, (unsigned char)-1);
    return !__builtin_ia32_kortestzqi(low, high);
#elif PF_WIDE && PF_AVX2 && PF_X86_BUILTINS && PF_W == 8
    typedef long long four __attribute__((vector_size(32)));
    typedef double signs __attribute__((vector_size(32)));
    const four low = (four)index.lo, high = (four)index.hi, most = four{} + (long long)last;
    return __builtin_ia32_movmskpd256((signs)((most - low) | low | (most - high) | high)) != 0;
#else
    return any(bitwise_or(lt(index, fill<V>(i64(0))), gt(index, fill<V>(last))));
#endif
  }
}
// Indices limited to 0 .. last. Those inside, which all are where nothing is wrong, take one test.
template <class V> PF_INLINE V limit_checked(i64* status, V said, V index, i64 last) {
  if (__builtin_expect(is_outside(index, last), 0)) {
    const V inside = minimum(maximum(index, fill<V>(i64(0))), fill<V>(last));
#if PF_WIDE
    if constexpr (tr<V>::is_vec) {
      // in registers: what is passed in memory would be put there in front of the test
      tell(status, said.lo, inside.lo != index.lo);
      tell(status, said.hi, inside.hi != index.hi);
      return inside;
    }
#endif
    tell(status, said, ne(inside, index));
    return inside;
  }
  return index;
}
// The same of indices to which the size is added where they are below zero, as few of them are.
template <class V> PF_INLINE V limit_checked(i64* status, V said, V index, i64 last, i64 size) {
  if (__builtin_expect(is_outside(index, last), 0))
    return limit_checked(status, said, where(lt(index, fill<V>(i64(0))), add(index, fill<V>(size)), index), last);
  return index;
}
}  // namespace pf
