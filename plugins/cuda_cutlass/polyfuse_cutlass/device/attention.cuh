// Attention's forward: one thread feeds tiles of keys and values to groups of four warps. Each of those keeps 64 queries,
// multiplies them by a tile of keys, turns scores to weights, and adds up values by weight. While one group makes weights
// another one multiplies, and within a group a tile's values are multiplied beside the next tile's keys.
constexpr int QUERY_BYTES = ROWS * DEPTH * 2, KEY_BYTES = KEYS * DEPTH * 2, VALUE_BYTES = KEYS * VALUES * 2;
constexpr u32 FULL = ~0u;

// Scores of a group's 64 queries: of two rows, eight apart, two neighbours in every eight columns.
typedef f32 Scores[KEYS / 2];
typedef f32 Sums[VALUES / 2];
typedef u32 Weights[KEYS / 4];

PF_INLINE f32 logarithm(f32 x) {
  f32 r;
  asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
PF_INLINE void warps_arrive(int bar, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}

// Values follow the keys of the tile behind them: these are needed first.
PF_INLINE void produce(const Args& args, const TensorMap* queries, const TensorMap* keys, const TensorMap* values,
                       u32 query_bar, u32 query, Ring key, Ring value, int* tiles, const Coord& at) {
  int of_queries[2], of_keys[2], of_values[2];
  operand_coords(args, at, of_queries, of_keys, of_values);
  barrier_expect(query_bar, QUERY_BYTES);
  copy_rows<ROWS, DEPTH>(query, queries, query_bar, at.row, of_queries);
  const Steps steps = steps_of(args, at);
  const int all = steps.all();
  int before = 0;
  for (int j = 0; j < all; ++j) {
    const Tile tile = tile_of(args, at, steps, j);
    barrier_wait(key.empty_bar(), key.phase ^ 1);
    tiles[key.stage] = tile.packed;  // whoever waits for the keys sees it
    feed<KEYS, DEPTH>(key, keys, tile.first(), of_keys);
    if (j > 0) feed<KEYS, VALUES>(value, values, before, of_values);
    before = tile.first();
  }
  if (all > 0) feed<KEYS, VALUES>(value, values, before, of_values);
}

struct Softmax {
  f32 top[2], total[2], share[2];  // by which share earlier sums shrink

  // Changes scores to weights of base two. What a row has in common, `shift`, is added to its greatest score instead.
  template <bool FIRST> PF_INLINE void weigh(Scores& s, const f32 (&shift)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      f32 most = LINE || FIRST ? minus_infinity() : top[r];
#pragma unroll
      for (int i = 0; i < KEYS / 8; ++i) most = fmaxf(most, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
      if (LINE) most = most * FACTOR + shift[r];
      most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
      most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
      if (LINE && !FIRST) most = fmaxf(most, top[r]);
      // a row of which nothing counts yet
      const f32 base = most == minus_infinity() ? 0 : binary(most);
      if (!FIRST) share[r] = quick_exp2(binary(top[r]) - base);
      top[r] = most;
      const f32 from = LINE ? base - shift[r] : base;
      f32 sum[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < KEYS / 8; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          f32& x = s[4 * i + 2 * r + j];
          x = quick_exp2(x * FACTOR - from);
          sum[j] += x;
        }
      total[r] = FIRST ? sum[0] + sum[1] : total[r] * share[r] + (sum[0] + sum[1]);
    }
  }
  // A greatest score as one of base two.
  static PF_INLINE f32 binary(f32 most) { return LINE ? most : most * FACTOR; }
};

// Changes a tile's scores as the user's functions say, without what `shift` has of all in a row. Those that do not
// count become minus infinity.
PF_INLINE void change(const Args& args, Scores& s, f32 (&shift)[2], const Coord& at, int row, Tile tile, int column) {
  const int last_row = query_count(args) - 1, last = key_count(args) - 1;
  const int m[2] = {inside<ROWS_FIT>(row, last_row), inside<ROWS_FIT>(row + 8, last_row)}, n0 = tile.first() + column;
  if constexpr (LINE) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const f32 steep = steepness(args, 0, at.batch, at.head, m[r], 0);
      shift[r] = (start(args, 0, at.batch, at.head, m[r], 0) + steep * n0) * BINARY;
      const f32 step = steep * (1 / SCALE);
#pragma unroll
      for (int i = 0; i < KEYS / 4; ++i) s[i / 2 * 4 + 2 * r + i % 2] += step * (i / 2 * 8 + i % 2);
    }
  }
  if constexpr (CHANGES) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i)
      s[i] = changed(args, s[i] * SCALE, at.batch, at.head, m[i / 2 % 2], inside<KEYS_FIT>(n0 + i / 4 * 8 + i % 2, last));
  }
  if ((MASKS && tile.masked()) || (!KEYS_FIT && tile.first() + KEYS > last + 1)) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      const int n = n0 + i / 4 * 8 + i % 2;
      bool unmasked = KEYS_FIT || n <= last;
      if (MASKS && tile.masked()) unmasked &= counts(args, at.batch, at.head, m[i / 2 % 2], inside<KEYS_FIT>(n, last));
      if (!unmasked) s[i] = minus_infinity();
    }
  }
}

// Groups multiply one after the other: a barrier for each says that it is its turn.
PF_INLINE void wait_turn(int group) {
  if (GROUPS > 1) warps_sync(1 + group, 256);
}
PF_INLINE void give_turn(int group) {
  if (GROUPS == 2) warps_arrive(1 + (group ^ 1), 256);
  if (GROUPS == 3) warps_arrive(1 + (group + 1) % 3, 256);
}

PF_INLINE void consume(const Args& args, u32 query_bar, u32 query, Ring key, Ring value, const int* tiles,
                       const Coord& at) {
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
  const int row = at.row + 64 * group + threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;
  const int all = steps_of(args, at).all();
  const u32 mine = query + group * (64 * ROW_BYTES);
  Softmax softmax;
  Sums sum;
  f32 shift[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < VALUES / 2; ++i) sum[i] = 0;
  softmax.top[0] = softmax.top[1] = minus_infinity();
  softmax.total[0] = softmax.total[1] = 0;
  if (all > 0) {
    Weights p;
    {
      Scores s;
      barrier_wait(query_bar, 0);
      barrier_wait(key.full_bar(), key.phase);
      const Tile tile = tiles[key.stage];
      if (group > 0) wait_turn(group);  // the first one begins
      keep(s);
      wgmma_fence();
      start_scores<ROWS, KEYS>(s, mine, key.tile());
      give_turn(group);
      wgmma_wait<0>();
      keep(s);
      release(key);
      key.next();
      change(args, s, shift, at, row, tile, column);
      softmax.weigh<true>(s, shift);
      round_weights(s, p);
    }
    for (int j = 1; j < all; ++j) {
      Scores s;
      barrier_wait(key.full_bar(), key.phase);
      const Tile tile = tiles[key.stage];
      wait_turn(group);
      keep(s);
      wgmma_fence();
      start_scores<ROWS, KEYS>(s, mine, key.tile());
      barrier_wait(value.full_bar(), value.phase);
      keep(sum);
      keep(p);
      wgmma_fence();
      start_sums<KEYS>(sum, p, value.tile());
      give_turn(group);
      wgmma_wait<1>();
      keep(s);
      release(key);
      key.next();
      change(args, s, shift, at, row, tile, column);
      softmax.weigh<false>(s, shift);
      wgmma_wait<0>();
      keep(sum);
      keep(p);
      release(value);
      value.next();
#pragma unroll
      for (int i = 0; i < VALUES / 2; ++i) sum[i] *= softmax.share[i / 2 % 2];
      round_weights(s, p);
    }
    barrier_wait(value.full_bar(), value.phase);
    keep(sum);
    keep(p);
    wgmma_fence();
    start_sums<KEYS>(sum, p, value.tile());
    wgmma_wait<0>();
    keep(sum);
    release(value);
    if (group == 0) wait_turn(group);  // what the last one gave
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    f32 total = softmax.total[r];
    total += __shfl_xor_sync(FULL, total, 1);
    total += __shfl_xor_sync(FULL, total, 2);
    const f32 whole = total == 0 ? 1 : total, inverse = 1 / whole;
    const int m = row + 8 * r;
    if (m >= query_count(args)) continue;
    if (lane % 4 == 0) finish_row(args, at, m, Softmax::binary(softmax.top[r]), logarithm(whole));
#pragma unroll
    for (int i = 0; i < VALUES / 8; ++i) {
      const u32 pair = pair_of<Element>(sum[4 * i + 2 * r] * inverse, sum[4 * i + 2 * r + 1] * inverse);
      if (8 * i + column < TAKEN) store_pair(args, at, m, 8 * i + column, pair);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
POLYFUSE_KERNEL(const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap keys,
                const __grid_constant__ TensorMap values, const __grid_constant__ Args args) {
  extern __shared__ u8 memory[];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  const u32 query = base, key = query + QUERY_BYTES, value = key + STAGES * KEY_BYTES;
  const u32 barriers = value + STAGES * VALUE_BYTES;
  int* tiles = (int*)(memory + (barriers + 8 * (4 * STAGES + 1) - shared_address(memory)));
  const u32 query_bar = barriers + 32 * STAGES;
  if (threadIdx.x == 0) {
    map_prefetch(&queries);
    map_prefetch(&keys);
    map_prefetch(&values);
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < STAGES; ++j) {
        barrier_init(barriers + 16 * STAGES * i + 8 * j, 1);
        barrier_init(barriers + 16 * STAGES * i + 8 * (STAGES + j), GROUPS);
      }
    barrier_init(query_bar, 1);
    barriers_ready();
  }
  __syncthreads();
  wait_for_dependencies();
  const Ring key_ring(barriers, key, KEY_BYTES), value_ring(barriers + 16 * STAGES, value, VALUE_BYTES);
  const Coord at = block_coord(args);
  if (threadIdx.x < 128) {
    fewer_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(args, &queries, &keys, &values, query_bar, query, key_ring, value_ring, tiles, at);
  } else {
    more_registers<CONSUMER_REGISTERS>();
    consume(args, query_bar, query, key_ring, value_ring, tiles, at);
  }
}
