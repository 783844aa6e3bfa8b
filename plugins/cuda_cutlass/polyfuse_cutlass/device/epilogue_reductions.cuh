// Values of a warp's threads, combined as F says.
PF_INLINE f32 of_other(f32 value, int distance) { return __shfl_xor_sync(0xffffffffu, value, distance); }

// Of the lists of threads that are `distance` from each other, each thread keeps one half, with the other's in it.
template <class F, int N, int M> PF_INLINE void halve(f32 (&value)[M], int lane, int distance) {
  const bool upper = lane & distance;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const f32 given = upper ? value[i] : value[i + N], own = upper ? value[i + N] : value[i];
    value[i] = F().both(own, of_other(given, distance));
  }
}
// Lists of N, of threads `distance` from each other and of those nearer, down to `LAST`, become one list of what is
// left: its first index in theirs is returned.
template <class F, int N, int DISTANCE, int LAST, int M> PF_INLINE int reduce_scatter(f32 (&value)[M], int lane) {
  if constexpr (DISTANCE < LAST) {
    return 0;
  } else {
    halve<F, N / 2>(value, lane, DISTANCE);
    return (lane & DISTANCE ? N / 2 : 0) + reduce_scatter<F, N / 2, DISTANCE / 2, LAST>(value, lane);
  }
}
