// What attention's forward and backward have in common.
// A ring of tiles in shared memory, with its barriers.
struct Ring {
  u32 full, empty, tiles, bytes;
  int stage = 0;
  u32 phase = 0;
  PF_INLINE Ring(u32 barriers, u32 tiles, u32 bytes)
      : full(barriers), empty(barriers + 8 * STAGES), tiles(tiles), bytes(bytes) {}
  PF_INLINE void next() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  PF_INLINE u32 full_bar() const { return full + 8 * stage; }
  PF_INLINE u32 empty_bar() const { return empty + 8 * stage; }
  PF_INLINE u32 tile() const { return tiles + bytes * stage; }
};

template <int N> PF_INLINE void keep(f32 (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int N> PF_INLINE void keep(u32 (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

// Copies so many rows of an operand: slab by slab.
template <int HEIGHT, int COLUMNS>
PF_INLINE void copy_rows(u32 to, const TensorMap* map, u32 bar, int first, const int (&of)[2]) {
#pragma unroll
  for (int c = 0; c < COLUMNS; c += LANES) copy_tile(to + c * HEIGHT * 2, map, bar, 0, c, first, of);
}
// Copies the next tile of so many rows, when there is room for it.
template <int HEIGHT, int COLUMNS>
PF_INLINE void feed(Ring& ring, const TensorMap* map, int first, const int (&of)[2]) {
  barrier_wait(ring.empty_bar(), ring.phase ^ 1);
  barrier_expect(ring.full_bar(), ring.bytes);
  copy_rows<HEIGHT, COLUMNS>(ring.tile(), map, ring.full_bar(), first, of);
  ring.next();
}
// Where functions read memory, what is outside stands for the last one inside, so that nothing is read there.
template <bool FITS> PF_INLINE int inside(int index, int last) { return READS && !FITS ? min(index, last) : index; }

PF_INLINE f32 minus_infinity() { return __int_as_float(0xff800000); }
PF_INLINE void release(const Ring& ring) {
  if (threadIdx.x % 128 == 0) barrier_arrive(ring.empty_bar());
}

// Starts the matmuls of a group's 64 rows, of a tile of `LEFT`, and a tile of `RIGHT` rows: of queries and keys.
template <int LEFT, int RIGHT, int N> PF_INLINE void start_scores(f32 (&s)[N], u32 left, u32 right) {
  const u64 a = tile_descriptor<false, 0>(left), b = tile_descriptor<false, 0>(right);
#pragma unroll
  for (int d = 0; d < DEPTH / 16; ++d) {
    const int slab = d / 4, in = d % 4;
    multiply_scores(s, a + slab * (LEFT * ROW_BYTES / 16) + 2 * in, b + slab * (RIGHT * ROW_BYTES / 16) + 2 * in, d > 0);
  }
  wgmma_commit();
}
// Starts adding the rows of a tile, each as often as its weight says.
template <int HEIGHT, int N, int M> PF_INLINE void start_sums(f32 (&sum)[N], u32 (&p)[M], u32 tile) {
  const u64 b = tile_descriptor<true, HEIGHT>(tile);
#pragma unroll
  for (int n = 0; n < HEIGHT / 16; ++n)
    multiply_sums(sum, p[4 * n], p[4 * n + 1], p[4 * n + 2], p[4 * n + 3], b + n * (16 * ROW_BYTES / 16), 1);
  wgmma_commit();
}
template <int N, int M> PF_INLINE void round_weights(const f32 (&s)[N], u32 (&p)[M]) {
#pragma unroll
  for (int i = 0; i < M; ++i) p[i] = pair_of<Element>(s[2 * i], s[2 * i + 1]);
}
