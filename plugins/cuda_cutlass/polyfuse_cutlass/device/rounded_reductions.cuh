// What is combined of a fragment of 16 rows and 64 columns: a thread has pairs of neighbouring columns, a pair in every
// eight columns, in two rows of sixteen. `end`: where the rows of use end.
struct ReducedFragment {
  const Reduced (&of)[8][2];
  int x, y, end;
  template <class F, int K> PF_INLINE void reduce(const Args& args, int batch) const {
    const int lane = thread_here() % 32, row = x + lane / 4, column = y + lane % 4 * 2;
    if constexpr (F::OVER_ROWS) {
      f32 value[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const f32 first = row < end ? of[i / 2][0].of[K][i % 2] : F().nothing();
        const f32 second = row + 8 < end ? of[i / 2][1].of[K][i % 2] : F().nothing();
        value[i] = F().both(first, second);
      }
      const int at = column + reduce_scatter<F, 16, 16, 4>(value, lane) / 2 * 8;
#pragma unroll
      for (int v = 0; v < 2; ++v)
        if (at + v < extent_y(args)) F().store(args, batch, x, at + v, value[v]);
    } else {
#pragma unroll
      for (int group = 0; group < 2; ++group)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          f32 value = F().nothing();
#pragma unroll
          for (int i = group * 8; i < group * 8 + 8; ++i)
            if (column + i / 2 * 8 + i % 2 < extent_y(args)) value = F().both(value, of[i / 2][h].of[K][i % 2]);
          value = F().both(value, of_other(value, 1));
          value = F().both(value, of_other(value, 2));
          const int at = y + group * 32;
          if (lane % 4 == 0 && row + h * 8 < end && at < extent_y(args)) F().store(args, batch, row + h * 8, at, value);
        }
    }
  }
};
