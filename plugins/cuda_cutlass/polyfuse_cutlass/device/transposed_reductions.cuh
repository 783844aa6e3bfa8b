// What is combined of a fragment of 16 rows and CHUNK columns: a thread has units of VEC neighbouring columns.
struct ReducedUnits {
  const Reduced (&of)[EACH];
  int fragment, x0, y0, end;
  template <class F, int K> PF_INLINE void reduce(const Args& args, int batch) const {
    constexpr int ACROSS = CHUNK / VEC;  // units of a row
    const int lane = threadIdx.x % 32;
    f32 column[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) column[v] = F().nothing();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const Unit unit(args, fragment, i, x0, y0, end);
      f32 row = F().nothing();
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const f32 value = unit.valid ? of[i].of[K][v] : F().nothing();
        if constexpr (F::OVER_ROWS) column[v] = F().both(column[v], value);
        else row = F().both(row, value);
      }
      if constexpr (!F::OVER_ROWS) {
#pragma unroll
        for (int distance = 1; distance < 32 / VEC; distance *= 2) row = F().both(row, of_other(row, distance));
        if (unit.valid && unit.column % 32 == 0) F().store(args, batch, unit.x, unit.y, row);
      }
    }
    if constexpr (F::OVER_ROWS) {
      const int first = reduce_scatter<F, VEC, 16, ACROSS>(column, lane);
      const Unit unit(args, fragment, 0, x0, y0, end);
      const int x = unit.x - unit.row, y = unit.y + first;
#pragma unroll
      for (int v = 0; v < CHUNK / 32; ++v)
        if (x < end && y + v < extent_y(args)) F().store(args, batch, x, y + v, column[v]);
    }
  }
};
template <int N>
PF_INLINE void reduce_units(const Args& args, int batch, int fragment, int x0, int y0, int end, const Reduced (&of)[N]) {
  reduce_all(args, batch, ReducedUnits{of, fragment, x0, y0, end});
}
