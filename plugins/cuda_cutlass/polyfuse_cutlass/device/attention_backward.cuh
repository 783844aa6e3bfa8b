// Attention's backward: a block keeps 128 keys and values, and walks through tiles of queries, which one warp fetches. Each
// of two groups of four warps has 64 of the keys: with keys down the rows, weights and gradients of scores stay in
// registers as the left operand of the gradients of values and keys. Those of queries need the scores of both groups, which
// go through shared memory; they are added to what other blocks find, in f32 and in the order in which threads hold them.
constexpr int KEY_BYTES = KEYS * DEPTH * 2, ROW_TILE_BYTES = ROWS * DEPTH * 2;
constexpr int SCORE_BYTES = KEYS * ROWS * 2;
// Where things are in shared memory: one address and one stage say it all.
constexpr int VALUES_AT = KEY_BYTES, QUERIES_AT = 2 * KEY_BYTES, GRADS_AT = QUERIES_AT + STAGES * ROW_TILE_BYTES;
constexpr int SCORES_AT = GRADS_AT + STAGES * ROW_TILE_BYTES, ROWS_AT = SCORES_AT + STAGES * SCORE_BYTES;
constexpr int BARRIERS_AT = ROWS_AT + STAGES * 8 * ROWS, BARRIERS = 16 * STAGES;
constexpr int KEY_BARRIER_AT = BARRIERS_AT + 3 * BARRIERS, TILES_AT = KEY_BARRIER_AT + 8;
constexpr bool BY_COLUMNS = ROWS == 64;  // whether groups share the gradients of queries by columns, else by queries

// Scores of a group's 64 keys: of two rows, eight apart, two neighbours in every eight columns.
typedef f32 Scores[ROWS / 2];
typedef f32 Sums[DEPTH / 2];
typedef u32 Weights[ROWS / 4];
typedef f32 Shares[32];
struct alignas(8) Pair { f32 x, y; };

PF_INLINE Pair read_pair(u32 from) {
  Pair r;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(r.x), "=f"(r.y) : "r"(from));
  return r;
}
PF_INLINE int read_number(u32 from) {
  int r;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(r) : "r"(from));
  return r;
}
PF_INLINE void write_number(u32 to, int x) { asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }
PF_INLINE void write_shared(u32 to, f32 x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory"); }
PF_INLINE void add_four(f32* to, f32 a, f32 b, f32 c, f32 d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// A tile of queries, and that of their gradients behind it: stages of both are one.
PF_INLINE void produce(const Args& args, const TensorMap* queries, const TensorMap* keys, const TensorMap* values,
                       const TensorMap* grads, u32 base) {
  int of[2], of_grads[2];
  {
    const Coord own = block_coord(args);
    key_coords(args, own, of, of_grads);
    barrier_expect(base + KEY_BARRIER_AT, 2 * KEY_BYTES);
    copy_rows<KEYS, DEPTH>(base, keys, base + KEY_BARRIER_AT, own.row, of);
    copy_rows<KEYS, DEPTH>(base + VALUES_AT, values, base + KEY_BARRIER_AT, own.row, of_grads);
  }
  Ring ring(base + BARRIERS_AT, base + QUERIES_AT, ROW_TILE_BYTES);
  for (int i = 0; i < sharers(args); ++i) {
    const Coord at = sharer(args, block_coord(args), i);
    query_coords(args, at, of, of_grads);
    const Steps steps = steps_of(args, at);
    for (int j = 0; j < steps.all(); ++j) {
      const Tile tile = tile_of(args, at, steps, j);
      const u32 full = ring.full_bar(), to = ring.tile();
      barrier_wait(ring.empty_bar(), ring.phase ^ 1);
      write_number(base + TILES_AT + 4 * ring.stage, tile.packed);  // whoever waits for the queries sees it
      barrier_expect(full, ROW_TILE_BYTES);
      copy_rows<ROWS, DEPTH>(to, queries, full, tile.first(), of);
      barrier_wait(ring.empty_bar() + BARRIERS, ring.phase ^ 1);
      barrier_expect(full + BARRIERS, ROW_TILE_BYTES);
      copy_rows<ROWS, DEPTH>(to + (GRADS_AT - QUERIES_AT), grads, full + BARRIERS, tile.first(), of_grads);
      ring.next();
    }
  }
}

// Another warp fetches what is known of each query: the logarithm of its sum, and what its gradients have in common.
PF_INLINE void produce_rows(const Args& args, u32 base) {
  Ring rows(base + BARRIERS_AT + 2 * BARRIERS, base + ROWS_AT, 8 * ROWS);
  const int lane = threadIdx.x % 32, last = query_count(args) - 1;
  for (int i = 0; i < sharers(args); ++i) {
    const Coord at = sharer(args, block_coord(args), i);
    const Steps steps = steps_of(args, at);
    for (int j = 0; j < steps.all(); ++j) {
      const int first = tile_of(args, at, steps, j).first();
      barrier_wait(rows.empty_bar(), rows.phase ^ 1);
#pragma unroll 1
      for (int k = lane; k < ROWS; k += 32) {
        const int m = first + k;
        // weights of queries that do not exist are nothing
        f32 sum = -minus_infinity(), shared = 0;
        if (ROWS_FIT || m <= last) {
          sum = row_sum(args, at, m);
          shared = row_common(args, at, m);
          if (sum == minus_infinity()) sum = 0;  // nothing counts in such a row
        }
        write_shared(rows.tile() + 4 * k, sum);
        write_shared(rows.tile() + 4 * (ROWS + k), shared);
      }
      barrier_arrive(rows.full_bar());
      rows.next();
    }
  }
}

// A group's share of the gradients of queries: the matmul of scores' gradients and keys.
PF_INLINE void start_shares(Shares& share, int group, u32 scores, u32 key) {
  const u64 a = tile_descriptor<true, KEYS>(scores + (BY_COLUMNS ? 0 : group * KEYS * ROW_BYTES));
  const u64 b = tile_descriptor<true, KEYS>(key + (BY_COLUMNS ? group * KEYS * ROW_BYTES : 0));
#pragma unroll
  for (int n = 0; n < KEYS / 16; ++n)
    multiply_shares(share, a + n * (16 * ROW_BYTES / 16), b + n * (16 * ROW_BYTES / 16), n > 0);
  wgmma_commit();
}

// Where a thread's scores are: its first key, and its first query in a tile.
struct Corner {
  int key, query;
};

// Whether scores of a tile are looked at one by one.
PF_INLINE bool is_partial(const Args& args, const Coord& at, Tile tile) {
  return (MASKS && tile.masked()) || (!KEYS_FIT && at.row + KEYS > key_count(args)) ||
         (!ROWS_FIT && tile.first() + ROWS > query_count(args));
}
PF_INLINE bool is_unmasked(const Args& args, const Coord& at, Tile tile, int m, int n) {
  const int last_row = query_count(args) - 1, last = key_count(args) - 1;
  bool unmasked = (KEYS_FIT || n <= last) && (ROWS_FIT || m <= last_row);
  if (MASKS && tile.masked())
    unmasked &= counts(args, at.batch, at.head, inside<ROWS_FIT>(m, last_row), inside<KEYS_FIT>(n, last));
  return unmasked;
}

// Scores become weights, and the gradients of weights those of scores. Unless `BOTH`, in two steps: gradients are not
// there in the first.
template <bool WEIGHTS, bool GRADIENTS>
PF_INLINE void weigh(const Args& args, Scores& s, Scores& g, u32 rows, const Coord& at, Tile tile,
                     const Corner& corner) {
  const bool partial = is_partial(args, at, tile);
  const int last_row = query_count(args) - 1, last = key_count(args) - 1;
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) {
    Pair sum{0, 0}, shared{0, 0};
    if (WEIGHTS) sum = read_pair(rows + 4 * (8 * i + corner.query));
    if (GRADIENTS) shared = read_pair(rows + 4 * (ROWS + 8 * i + corner.query));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int m = tile.first() + corner.query + 8 * i + j % 2, n = corner.key + j / 2 * 8;
      const int q = inside<ROWS_FIT>(m, last_row), k = inside<KEYS_FIT>(n, last);
      f32 &score = s[4 * i + j], &grad = g[4 * i + j];
      const f32 raw = CHANGES ? score * SCALE : score;
      f32 weight = score;
      if (WEIGHTS) {
        const f32 x = CHANGES ? changed(args, raw, at.batch, at.head, q, k) : raw;
        weight = quick_exp2(x * FACTOR - (j % 2 ? sum.y : sum.x));
      }
      if (GRADIENTS) {
        grad = weight * (grad - (j % 2 ? shared.y : shared.x));
        if (CHANGES) grad = changed_back(args, raw, grad, at.batch, at.head, q, k);
      }
      score = weight;
    }
  }
  // what nothing weighs has no gradient, unless functions make one of it
  if ((WEIGHTS || CHANGES) && partial) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) {
      const int m = tile.first() + corner.query + i / 4 * 8 + i % 2, n = corner.key + i / 2 % 2 * 8;
      if (!is_unmasked(args, at, tile, m, n)) {
        if (WEIGHTS) s[i] = 0;
        if (GRADIENTS && CHANGES) g[i] = 0;
      }
    }
  }
}

PF_INLINE void consume(const Args& args, u32 base) {
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const Corner corner{block_coord(args).row + 64 * group + warp * 16 + lane / 4, lane % 4 * 2};
  const u32 my_keys = base + group * (64 * ROW_BYTES), my_values = my_keys + VALUES_AT;
  // where a matrix of eight keys and eight queries begins for this thread
  const int line = lane % 8;
  const u32 put_at = base + SCORES_AT + (64 * group + warp * 16 + lane / 8 % 2 * 8 + line) * ROW_BYTES;
  Sums to_key, to_value;
#pragma unroll
  for (int i = 0; i < DEPTH / 2; ++i) to_key[i] = to_value[i] = 0;
  barrier_wait(base + KEY_BARRIER_AT, 0);
  // stages of gradients, of what is known of each query, and of what both groups read are those of queries
  Ring ring(base + BARRIERS_AT, base + QUERIES_AT, ROW_TILE_BYTES);
  for (int i = 0; i < sharers(args); ++i) {
    const Coord at = sharer(args, block_coord(args), i);
    f32* const total = totals(args, at) + (group * 128 + threadIdx.x % 128) * 4;
    for (int left = steps_of(args, at).all(); left > 0; --left) {
      Scores s, g;
      Weights p, d;
      barrier_wait(ring.full_bar(), ring.phase);
      const Tile tile(read_number(base + TILES_AT + 4 * ring.stage));
      const u32 grad = ring.tile() + (GRADS_AT - QUERIES_AT), mine = ring.stage * SCORE_BYTES;
      keep(s);
      wgmma_fence();
      start_scores<KEYS, ROWS>(s, my_keys, ring.tile());
      barrier_wait(ring.full_bar() + BARRIERS, ring.phase);
      keep(g);
      wgmma_fence();
      start_scores<KEYS, ROWS>(g, my_values, grad);
      barrier_wait(ring.full_bar() + 2 * BARRIERS, ring.phase);
      const u32 rows = base + ROWS_AT + ring.stage * (8 * ROWS);
      if constexpr (SCORES_LAST) {
        wgmma_wait<0>();
        keep(s);
        keep(g);
        weigh<true, true>(args, s, g, rows, at, tile, corner);
        round_weights(s, p);
      } else {
        wgmma_wait<1>();
        keep(s);
        weigh<true, false>(args, s, g, rows, at, tile, corner);
        round_weights(s, p);
        wgmma_wait<0>();
        keep(g);
        weigh<false, true>(args, s, g, rows, at, tile, corner);
      }
      round_weights(g, d);
      keep(p);
      keep(to_value);
      wgmma_fence();
      start_sums<ROWS>(to_value, p, grad);
#pragma unroll
      for (int n = 0; n < ROWS / 16; ++n) {
        const int chunk = 2 * n + lane / 16, slab = chunk / 8;
        put_matrices(put_at + mine + slab * (KEYS * ROW_BYTES) + ((chunk % 8 ^ line) << 4), d[4 * n], d[4 * n + 1],
                     d[4 * n + 2], d[4 * n + 3]);
      }
      copies_see_writes();
      // behind this, both groups have also multiplied what lay here two tiles ago
      warps_sync(1, 256);
      Shares share;
      keep(share);
      keep(d);
      keep(to_key);
      wgmma_fence();
      start_shares(share, group, base + SCORES_AT + mine, base);
      start_sums<ROWS>(to_key, d, ring.tile());
      wgmma_wait<1>();
      keep(share);
      keep(to_value);
      if (threadIdx.x % 128 == 0) {
        barrier_arrive(ring.empty_bar() + BARRIERS);
        barrier_arrive(ring.empty_bar() + 2 * BARRIERS);
      }
      f32* const to = total + (i64)(tile.first() / ROWS) * (ROWS * DEPTH);
#pragma unroll
      for (int n = 0; n < 8; ++n)
        add_four(to + n * 1024, share[4 * n], share[4 * n + 1], share[4 * n + 2], share[4 * n + 3]);
      wgmma_wait<0>();
      keep(to_key);
      release(ring);
      ring.next();
    }
  }
  // all this is read anew, so that it takes no registers before
  const Coord own = block_coord(args);
  const u32 thread = thread_here();
  const int column = thread % 4 * 2, first = own.row + (thread / 128 - 1) * 64 + thread / 32 % 4 * 16 + thread % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int n = first + 8 * r;
    if (n >= key_count(args)) continue;
#pragma unroll
    for (int i = 0; i < DEPTH / 8; ++i) {
      const int c = 8 * i + column, k = 4 * i + 2 * r;
      if (c < KEY_LENGTH) store_key(args, own, n, c, pair_of<Element>(to_key[k] * SCALE, to_key[k + 1] * SCALE));
      if (c < VALUE_LENGTH) store_value(args, own, n, c, pair_of<Element>(to_value[k], to_value[k + 1]));
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
POLYFUSE_KERNEL(const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap keys,
                const __grid_constant__ TensorMap values, const __grid_constant__ TensorMap grads,
                const __grid_constant__ Args args) {
  extern __shared__ u8 memory[];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    map_prefetch(&queries);
    map_prefetch(&keys);
    map_prefetch(&values);
    map_prefetch(&grads);
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < STAGES; ++j) {
        barrier_init(base + BARRIERS_AT + BARRIERS * i + 8 * j, i == 2 ? 32 : 1);
        barrier_init(base + BARRIERS_AT + BARRIERS * i + 8 * (STAGES + j), GROUPS);
      }
    barrier_init(base + KEY_BARRIER_AT, 1);
    barriers_ready();
  }
  __syncthreads();
  wait_for_dependencies();
  if (threadIdx.x < 128) {
    fewer_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(args, &queries, &keys, &values, &grads, base);
    if (threadIdx.x / 32 == 1) produce_rows(args, base);
  } else {
    more_registers<CONSUMER_REGISTERS>();
    consume(args, base);
  }
}
