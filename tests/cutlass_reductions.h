// What combines groups of results, for tests of `finish_tile`: the largest of 32 columns, and the sum of 16 rows.
static float given[32];
static float __shfl_xor_sync(u32, float value, int distance) {
  const int lane = threadIdx.x % 32;
  given[lane] = value;
  __syncwarp();
  const float other = given[lane ^ distance];
  __syncwarp();
  return other;
}
static float largest[BLOCKS * 64][TILES * BY / 32 + 1], total[BLOCKS * 4][TILES * BY];
// A group may be stored twice, but not as something else.
static void keep(float& at, float value) {
  if (at != 0 && at != value) abort();
  at = value;
}
struct Largest {
  static constexpr bool OVER_ROWS = false;
  float nothing() { return -1; }
  float both(float a, float b) { return a > b ? a : b; }
  void store(const Args&, int, int x, int y, float value) { keep(largest[x][y / 32], value); }
};
struct Total {
  static constexpr bool OVER_ROWS = true;
  float nothing() { return 0; }
  float both(float a, float b) { return a + b; }
  void store(const Args&, int, int x, int y, float value) { keep(total[x / 16][y], value); }
};
template <class Fragment> void reduce_all(const Args& args, int batch, const Fragment& fragment) {
  fragment.template reduce<Largest, 0>(args, batch);
  fragment.template reduce<Total, 1>(args, batch);
}
template <int N> void reduce_units(const Args&, int, int, int, int, int, const Reduced (&)[N]);
static bool reductions_wrong() {
  for (int x = 0; x < BLOCKS * 64; ++x)
    for (int y = 0; y < TILES * BY; ++y) {
      if (x % 16 == 0) {
        float wanted = 0;
        for (int i = x; i < x + 16; ++i)
          if (i < extent_x(Args()) && y < extent_y(Args())) wanted += number(i, y);
        if (total[x / 16][y] != wanted) return true;
      }
      const int last = y + 31 < extent_y(Args()) ? y + 31 : extent_y(Args()) - 1;
      const bool inside = x < extent_x(Args()) && y < extent_y(Args());
      if (y % 32 == 0 && largest[x][y / 32] != (inside ? number(x, last) : 0)) return true;
    }
  return false;
}
