// Attention of bf16 in matrix registers or by products of pairs, and of f32 in vectors. Scores and weights are there for a block of queries and keys at a time.
namespace pf {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16 && PF_DOT_BF16
// Keys and values of a head, from a key on and up to another (multiples of 32), as right operands.
template <int D, int WIDE, class T>
static __attribute__((noinline)) void attention_pack(const attention_call<T>& c, i64 image, i64 head, i64 from, i64 end,
                                                     attention_held<T>* keys, attention_held<T>* values) {
  const T* const key = c.key + image * c.key_step[0] + head * c.key_step[1];
  const T* const value = c.value + image * c.value_step[0] + head * c.value_step[1];
  const i64 rows = c.key_rows();
  for (i64 k = from; k < end; k += 32) {
    const i64 here = index_min(32, c.keys - k), next = c.value_step[2];
    if constexpr (attention_of<T>::narrow) {
      pair_across<2>(keys + k * WIDE, key + k * c.key_step[2], c.key_step[2], D, here);
      for (int d = 0; d < WIDE; d += 32)
        pair_along<2>(values + d * rows + k * 32, value + k * next + d, next, here, index_min(32, D - d));
    } else {
      matmul_across<2>(keys + k * WIDE, key + k * c.key_step[2], c.key_step[2], D, here);
      for (int d = 0; d < WIDE; d += 32) {
        f32* const to = values + d * rows + k * 32;
        matmul_along<2>(to, value + k * next + d, next, here, index_min(32, D - d));
      }
    }
  }
}

#if PF_AMX
// Scores of R times 16 queries with `count` keys (a multiple of 32). While 16 keys are multiplied, scores of those before are
// stored.
template <int R, int WIDE>
static __attribute__((noinline)) void attention_scores(const bf16* query, const bf16* keys, i64 count, f32* scores) {
  const i64 row = WIDE * 2, out = attention_pitch * 4, down = attention_pitch * 16;
  for (i64 k = 0; k < count; k += 32, keys += 32 * WIDE) {
    f32* const c = scores + k;
    PF_TILE_ZERO(0);
    if constexpr (R > 1) PF_TILE_ZERO(1);
#pragma GCC unroll 8
    for (int d = 0; d < WIDE; d += 32) {
      PF_TILE_LOAD(6, keys + d * 32, 128);
      PF_TILE_LOAD(4, query + d, row);
      PF_TILE_DOT(0, 4, 6);
      if constexpr (R > 1) {
        PF_TILE_LOAD(5, query + 16 * WIDE + d, row);
        PF_TILE_DOT(1, 5, 6);
      }
      if (d == 0 && k) {
        PF_TILE_STORE(2, c - 16, out);
        if constexpr (R > 1) PF_TILE_STORE(3, c - 16 + down, out);
      }
    }
    PF_TILE_ZERO(2);
    if constexpr (R > 1) PF_TILE_ZERO(3);
#pragma GCC unroll 8
    for (int d = 0; d < WIDE; d += 32) {
      PF_TILE_LOAD(7, keys + d * 32 + 32, 128);
      PF_TILE_LOAD(4, query + d, row);
      PF_TILE_DOT(2, 4, 7);
      if constexpr (R > 1) {
        PF_TILE_LOAD(5, query + 16 * WIDE + d, row);
        PF_TILE_DOT(3, 5, 7);
      }
      if (d == 0) {
        PF_TILE_STORE(0, c, out);
        if constexpr (R > 1) PF_TILE_STORE(1, c + down, out);
      }
    }
  }
  PF_TILE_STORE(2, scores + count - 16, out);
  if constexpr (R > 1) PF_TILE_STORE(3, scores + count - 16 + down, out);
}
// Weights of R times 16 queries, of `count` keys, and 32 numbers of these keys' values: their products are added up.
template <int R>
PF_INLINE void attention_sums(const f32* weights, const bf16* values, i64 count, f32* sums, bool first) {
  matrix_tile<R, 2, 32>((const bf16*)weights, attention_pitch * 2, 0, values, 0, count, sums, first);
}
#else
// The same without matrix registers: eight queries, and 32 keys or numbers of values, at a time.
template <int R, int WIDE>
static __attribute__((noinline)) void attention_scores(const bf16* query, const bf16* keys, i64 count, f32* scores) {
  for (i64 k = 0; k < count; k += 32)
    for (int i = 0; i < R * 16; i += 8)
      pair_tile<8, 2, WIDE, attention_pitch>(query + i * WIDE, keys + k * WIDE, WIDE, scores + i * attention_pitch + k, true);
}
template <int R>
PF_INLINE void attention_sums(const f32* weights, const bf16* values, i64 count, f32* sums, bool first) {
  for (int i = 0; i < R * 16; i += 8)
    pair_tile<8, 2, attention_pitch * 2>((const bf16*)(weights + i * attention_pitch), values, count, sums + i * 32, first);
}
#endif
// The same of f32, of `rows` queries, and of vectors of keys that there are: others were a tenth of what is multiplied.
template <int WIDE>
static __attribute__((noinline)) void attention_scores(const f32* query, const f32* keys, i64 rows, i64 count, f32* scores, i64 depth) {
  for (i64 k = 0; k < count; k += 32)
    for (i64 i = 0; i < rows; i += 8) {
      const f32* const at = query + i * WIDE;
      f32* const to = scores + i * attention_pitch + k;
      if (count - k > 16) matmul_tile<8, 2, attention_pitch / 16, f32, 1, 0, 32>(at, WIDE, 0, keys + k * WIDE, 32, depth, to, true);
      else matmul_tile<8, 1, attention_pitch / 16, f32, 1, 0, 32>(at, WIDE, 0, keys + k * WIDE, 32, depth, to, true);
    }
}
PF_INLINE void attention_sums(const f32* weights, const f32* values, i64 rows, i64 count, f32* sums, bool first) {
  for (i64 i = 0; i < rows; i += 8)
    matmul_tile<8, 2, 2, f32, 1, 0, 32>(weights + i * attention_pitch, attention_pitch, 0, values, 32, count, sums + i * 32, first);
}

// What a thread needs for a block of queries.
template <int WIDE, class T> struct attention_memory {
  alignas(64) f32 scores[attention_rows * attention_pitch];
  attention_held<T> query[attention_rows * WIDE];
  f32 sums[WIDE / 32][attention_rows * 32];
  // sums of weights by lanes; greatest scores, the same or 0, what sums so far are multiplied with
  f32 weights[attention_rows * 16];
  f32 most[attention_rows], finite[attention_rows], factor[attention_rows];
};

// The greatest scores in each lane.
PF_INLINE vf32 attention_most(const f32* s, i64 width) {
  vf32 a = load<Vec>(s), b = load<Vec>(s + 16);
  for (i64 j = 32; j < width; j += 32) {
    a = attention_greater(a, load<Vec>(s + j));
    b = attention_greater(b, load<Vec>(s + j + 16));
  }
  return attention_greater(a, b);
}
// Scores become weights, in bf16 side by side from the beginning of the row; returns their sums.
template <class T> PF_INLINE vf32 attention_weights(f32* s, i64 width, vf32 factor, vf32 least, vf32 sum) {
  vf32 other = {};
#pragma GCC unroll 2
  for (i64 j = 0; j < width; j += 32) {
    const vf32 a = attention_power<T>(madd(load<Vec>(s + j), factor, least));
    const vf32 b = attention_power<T>(madd(load<Vec>(s + j + 16), factor, least));
    sum += a;
    other += b;
    if constexpr (attention_of<T>::narrow) {
      matmul_store_pair((bf16*)s + j, a, b);
    } else {
      store(s + j, a);
      store(s + j + 16, b);
    }
  }
  return sum + other;
}

// A number for each of `count` queries.
PF_INLINE void attention_column(f32* to, i64 step, i64 count, vf32 x) {
  f32 found[16];
  store(found, x);
  for (i64 i = 0; i < count; ++i) to[i * step] = found[i];
}
template <int R, int D, int WIDE, class RULE, class T>
static __attribute__((noinline)) void attention_block(const attention_call<T>& c, const RULE& rule, i64 image, i64 head, i64 first,
                                                      const attention_held<T>* keys, const attention_held<T>* values,
                                                      attention_memory<WIDE, T>& m) {
  typedef attention_held<T> held;
  const i64 rows = index_min(R * 16, c.queries - first), padded = c.key_rows();
  const T* const query = c.query + image * c.query_step[0] + head * c.query_step[1] + first * c.query_step[2];
  for (i64 i = 0; i < R * 16; ++i)
    for (int d = 0; d < WIDE; d += 64 / int(sizeof(held))) {
      const T* const at = query + i * c.query_step[2] + d;
      const i64 there = i < rows ? D - d : 0;
      if constexpr (attention_of<T>::narrow)
        raw_store(m.query + i * WIDE + d, there >= 32 ? raw_load<vi32>(at) : matmul_halves_at(at, there));
      else store(m.query + i * WIDE + d, there >= 16 ? load<Vec>(at) : load_n<Vec>(at, int(index_max(0, there))));
    }
  for (i64 i = 0; i < R * 16; ++i) store(m.weights + i * 16, vf32{});
  const f32 to_two = RULE::waits ? c.scale * 1.44269504f : 1.44269504f;
  // nothing is computed of rows that there are not
  if (!attention_of<T>::narrow && rows < R * 16) {
    for (i64 i = 0; i < R * 16 * attention_pitch; i += 16) store(m.scores + i, vf32{});
    for (int d = 0; d < WIDE / 32; ++d)
      for (i64 i = 0; i < R * 32; ++i) store(m.sums[d] + i * 16, vf32{});
  }
  bool large = false, begun = false;
  rule.walk(c, image, head, first, first + R * 16, [&](i64 from, i64 here, bool whole) {
    const i64 width = (here + 31) / 32 * 32;
    if constexpr (attention_of<T>::narrow) attention_scores<R, WIDE>(m.query, keys + from * WIDE, width, m.scores);
    else attention_scores<WIDE>(m.query, keys + from * WIDE, rows, here, m.scores, D);
    if (rule.touches(c, first, from, here, width, whole))
      for (i64 i = 0; i < R * 16; ++i)
        rule.row(c, m.scores + i * attention_pitch, image, head, first + i, from, here, width, whole);
    for (int t = 0; t < R; ++t) {
      vi32 tile[16];
#pragma GCC unroll 1
      for (int i = 0; i < 16; ++i) tile[i] = (vi32)attention_most(m.scores + (t * 16 + i) * attention_pitch, width);
      transpose_rows(tile);
      const vf32 none = fill<vf32>(-__builtin_inff()), before = begun ? load<Vec>(m.most + t * 16) : none;
      vf32 most = before;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) most = attention_greater(most, (vf32)tile[i]);
      store(m.most + t * 16, most);
      // a row that has seen nothing as yet has no greatest score
      const vf32 finite = where(eq(most, none), vf32{}, most);
      store(m.finite + t * 16, finite);
      store(m.factor + t * 16, exp2(vf32((before - finite) * fill<vf32>(to_two))));
      large |= any(gt(abs(finite), fill<vf32>(attention_of<T>::large / to_two)));
    }
    for (i64 i = 0; i < R * 16; ++i) {
      f32* const s = m.scores + i * attention_pitch;
      vf32 sum = load<Vec>(m.weights + i * 16);
      if (begun && m.factor[i] != 1.0f) {
        const vf32 factor = fill<vf32>(m.factor[i]);
        sum *= factor;
        for (int d = 0; d < WIDE / 32; ++d) {
          f32* const sums = m.sums[d] + i * 32;
          store(sums, load<Vec>(sums) * factor);
          store(sums + 16, load<Vec>(sums + 16) * factor);
        }
      }
      const f32 most = m.finite[i];
      const vf32 factor = fill<vf32>(to_two);
      if (__builtin_expect(large, 0)) {
        // a rounded product would be further from the greatest score than others are
        for (i64 j = 0; j < width; j += 16) store(s + j, (load<Vec>(s + j) - fill<vf32>(most)) * factor);
        sum = attention_weights<T>(s, width, fill<vf32>(1.0f), vf32{}, sum);
      } else {
        sum = attention_weights<T>(s, width, factor, fill<vf32>(-most * to_two), sum);
      }
      store(m.weights + i * 16, sum);
    }
    for (int d = 0; d < WIDE / 32; ++d) {
      const held* const value = values + d * 32 * padded + from * 32;
      if constexpr (attention_of<T>::narrow) attention_sums<R>(m.scores, value, width, m.sums[d], !begun);
      else attention_sums(m.scores, value, rows, here, m.sums[d], !begun);
    }
    begun = true;
  });
  if (!begun) {
    for (i64 i = 0; i < R * 16; ++i) m.most[i] = -__builtin_inff();
    for (int d = 0; d < WIDE / 32; ++d)
      for (i64 i = 0; i < R * 32; ++i) store(m.sums[d] + i * 16, vf32{});
  }
  for (i64 t = 0; t < R; ++t) {
    vi32 tile[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) tile[i] = raw_load<vi32>(m.weights + (t * 16 + i) * 16);
    transpose_rows(tile);
    vf32 sum = {};
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sum += (vf32)tile[i];
    // a row without keys is zero, as in eager mode
    store(m.factor + t * 16, where(eq(sum, vf32{}), vf32{}, fill<vf32>(1.0f) / sum));
    const vf32 most = load<Vec>(m.most + t * 16) * fill<vf32>(RULE::waits ? c.scale : 1.0f);
    const vf32 factor = fill<vf32>(c.log_factor);
    const vf32 logs = where(eq(sum, vf32{}), fill<vf32>(c.empty_log), (most + log(sum)) * factor);
    const i64 at = first + t * 16, n = index_min(16, rows - t * 16);
    if (c.logs) attention_column(c.logs + image * c.logs_step[0] + head * c.logs_step[1] + at * c.logs_step[2], c.logs_step[2], n, logs);
    if (c.greatest) {
      f32* const to = c.greatest + image * c.greatest_step[0] + head * c.greatest_step[1] + at * c.greatest_step[2];
      attention_column(to, c.greatest_step[2], n, most * factor);
    }
  }
  T* const to = c.result + image * c.result_step[0] + head * c.result_step[1] + first * c.result_step[2];
  for (i64 i = 0; i < rows; ++i) {
    const vf32 factor = fill<vf32>(m.factor[i]);
#pragma GCC unroll 8
    for (int d = 0; d < D; d += 16) {
      const vf32 x = load<Vec>(m.sums[d / 32] + i * 32 + d % 32) * factor;
      if (d + 16 <= D) store(to + i * c.result_step[2] + d, x);
      else store_n(to + i * c.result_step[2] + d, x, D - d);
    }
  }
}

// Blocks of queries, number `first` up to `end` over all heads. With `packed`, keys and values of all heads are there.
template <int D, class RULE, class T>
static __attribute__((noinline)) void attention_run(const attention_call<T>& c, const RULE& rule, const attention_held<T>* packed,
                                                    i64 first, i64 end) {
  constexpr int WIDE = (D + 31) / 32 * 32;
  typedef attention_held<T> held;
  typedef attention_memory<WIDE, T> memory;
  const i64 each = 2 * c.key_rows() * WIDE, blocks = c.blocks(), shared = c.heads / c.key_heads;
  // what many keys take is given back
  const i64 bytes = packed ? 0 : each * i64(sizeof(held)), stays = bytes > (1 << 20) ? 0 : bytes;
  char* const scratch = (char*)matmul_scratch(sizeof(memory) + stays);
  memory& m = *(memory*)scratch;
  held* const own = (held*)(bytes > stays ? (char*)scratch_new(bytes) : scratch + sizeof(memory));
  const attention_mode mode;
  i64 ready = -1;
  for (i64 item = first; item < end; ++item) {
    const i64 image = item / blocks / c.heads, head = item / blocks % c.heads, from = item % blocks * attention_rows;
    const i64 pair = image * c.key_heads + head / shared;
    if (!packed && pair != ready) attention_pack<D, WIDE>(c, image, head / shared, 0, c.key_rows(), own, own + each / 2);
    ready = pair;
    const held* const keys = packed ? packed + pair * each : own;
    if (c.queries - from > 16) attention_block<2, D, WIDE>(c, rule, image, head, from, keys, keys + each / 2, m);
    else attention_block<1, D, WIDE>(c, rule, image, head, from, keys, keys + each / 2, m);
  }
  if (bytes > stays) scratch_free(own);
}

// Few queries: keys and values are read where they are, in vectors along a head's numbers, once for all rows that share them.
// A row is a query of one of the heads that share a head of keys. What a thread has of each of them:
template <int D> struct attention_few_memory {
  enum { wide = (D + 15) / 16 * 16, held = 16 * (attention_pitch + wide / 2 + 16) };
  f32* scores;
  bf16* packed;
  f32 *sums, *weights, *most;
  static i64 bytes(i64 rows) { return (held + rows * (wide + 17)) * i64(sizeof(f32)); }
  attention_few_memory(void* at, i64 rows) {
    scores = (f32*)at;
    packed = (bf16*)(scores + 16 * attention_pitch);
    sums = scores + held;
    weights = sums + rows * wide;
    most = weights + rows * 16;
  }
};
// C vectors of the sums of R rows, of which the last one has N numbers, over `count` keys.
template <int R, int C, int N, int WIDE, class T>
static __attribute__((noinline)) void attention_add(const f32* weights, const T* value, i64 next, i64 count, f32* sums) {
  vf32 sum[R * C];
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum[i] = load<Vec>(sums + i / C * WIDE + i % C * 16);
  for (i64 k = 0; k < count; ++k, value += next) {
    vf32 v[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) __builtin_prefetch(value + 16 * next + j * 16);
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) v[j] = j + 1 < C || N == 16 ? load<Vec>(value + j * 16) : load_n<Vec>(value + j * 16, N);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      const vf32 weight = fill<vf32>(weights[i * attention_pitch + k]);
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) accumulate(sum[i * C + j], weight, v[j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) store(sums + i / C * WIDE + i % C * 16, sum[i]);
}
template <int R, int D, int FROM, class T>
PF_INLINE void attention_values(const f32* weights, const T* value, i64 next, i64 count, f32* sums) {
  constexpr int C = D - FROM >= 64 ? 4 : (D - FROM + 15) / 16, N = D - FROM >= 64 ? 16 : (D - FROM - 1) % 16 + 1;
  attention_add<R, C, N, attention_few_memory<D>::wide>(weights, value + FROM, next, count, sums + FROM);
  if constexpr (FROM + 64 < D) attention_values<R, D, FROM + 64>(weights, value, next, count, sums);
}
// Rows of a head of keys: a query of one of the heads that share it.
template <class T> struct attention_row_at { i64 head, query; const T* numbers; };
template <class T> PF_INLINE attention_row_at<T> attention_few_row(const attention_call<T>& c, i64 image, i64 pair, i64 row) {
  const i64 head = pair * (c.heads / c.key_heads) + row / c.queries, query = row % c.queries;
  return {head, query, c.query + image * c.query_step[0] + head * c.query_step[1] + query * c.query_step[2]};
}
// Scores of R rows with `count` keys, `next` from each other.
template <int R, int D, class T>
static __attribute__((noinline)) void attention_dots(const T* const* rows, const T* key, i64 next, i64 count, f32* scores) {
  enum { C = 16 / R };
  for (i64 k = 0; k < count; k += C) {
    const T* keys[C];
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) keys[j] = key + index_min(k + j, count - 1) * next;
    matmul_dots<R, C, f32, T, T>(rows, keys, 0, D, scores + k, attention_pitch, true, false);
  }
}
#if PF_AMX
// The same of up to 16 rows with 16 keys or more: keys are left operands as they are, `rows` are the right ones.
template <int D>
static __attribute__((noinline)) void attention_turned(const bf16* rows, int count, const bf16* key, i64 next, i64 keys, f32* scores) {
  alignas(64) f32 found[16 * 16];
  for (i64 from = 0; from < keys; from += 16) {
    const i64 k = index_min(from, keys - 16);  // the last ones overlap those before
    const bf16* const at = key + k * next;
    PF_TILE_ZERO(0);
#pragma GCC unroll 8
    for (int d = 0; d < D; d += 32) {
      PF_TILE_LOAD(4, at + d, next * 2);
      PF_TILE_LOAD(6, rows + d * 16, 64);
      PF_TILE_DOT(0, 4, 6);
    }
    PF_TILE_STORE(0, found, 64);
    const bf16* const later = at + 32 * next;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
#pragma GCC unroll 8
      for (int d = 0; d < D; d += 32) __builtin_prefetch(later + i * next + d);
    vi32 tile[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) tile[i] = raw_load<vi32>(found + i * 16);
    transpose_rows(tile);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      if (i < count) store(scores + i * attention_pitch + k, (vf32)tile[i]);
  }
}
#endif
// `count` rows, at most 16, from row `first` on, the first of which is number `local` of the thread's, and the `here` keys of a
// block from key `from` on.
template <int D, class RULE, class T>
static __attribute__((noinline)) void attention_few_block(const attention_call<T>& c, const RULE& rule, i64 image, i64 pair, i64 first,
                                                          int count, i64 local, i64 from, i64 here, bool whole, bool begun,
                                                          attention_few_memory<D> m) {
  enum { wide = attention_few_memory<D>::wide };
  const i64 width = (here + 31) / 32 * 32, key_next = c.key_step[2], next = c.value_step[2];
  const T* const key = c.key + image * c.key_step[0] + pair * c.key_step[1] + from * key_next;
  const T* rows[16];
  for (int i = 0; i < count; ++i) rows[i] = attention_few_row(c, image, pair, first + i).numbers;
  bool turned = false;
#if PF_AMX
  if constexpr (attention_of<T>::narrow && D % 32 == 0) {
    turned = here >= 16;
    for (int i = 0; turned && i < count; ++i)
      for (int d = 0; d < D; d += 2) __builtin_memcpy(m.packed + d * 16 + 2 * i, rows[i] + d, 4);
    if (turned) attention_turned<D>(m.packed, count, key, key_next, here, m.scores);
  }
#endif
  if (!turned) {
    int i = 0;
    for (; i + 4 <= count; i += 4) attention_dots<4, D>(rows + i, key, key_next, here, m.scores + i * attention_pitch);
    for (; i < count; ++i) attention_dots<1, D>(rows + i, key, key_next, here, m.scores + i * attention_pitch);
  }
  const f32 to_two = RULE::waits ? c.scale * 1.44269504f : 1.44269504f;
  for (int i = 0; i < count; ++i) {
    f32 *const s = m.scores + i * attention_pitch, *const sums = m.sums + (local + i) * wide;
    const attention_row_at<T> row = attention_few_row(c, image, pair, first + i);
    if (rule.touches(c, row.query, from, here, width, whole))
      rule.row(c, s, image, row.head, row.query, from, here, width, whole);
    f32 lanes[16], most = m.most[local + i];
    store(lanes, attention_most(s, width));
    for (int j = 0; j < 16; ++j) most = lanes[j] > most ? lanes[j] : most;
    // a row that has seen nothing as yet has no greatest score
    const f32 before = m.most[local + i], finite = most == -__builtin_inff() ? 0.0f : most;
    m.most[local + i] = most;
    vf32 sum = load<Vec>(m.weights + (local + i) * 16);
    if (begun && before != most) {
      const vf32 factor = exp2(fill<vf32>((before - finite) * to_two));
      sum *= factor;
      for (int d = 0; d < wide; d += 16) store(sums + d, load<Vec>(sums + d) * factor);
    }
    for (i64 j = 0; j < width; j += 16) {
      const vf32 weight = attention_power<T>((load<Vec>(s + j) - fill<vf32>(finite)) * fill<vf32>(to_two));
      store(s + j, weight);
      sum += weight;
    }
    store(m.weights + (local + i) * 16, sum);
  }
  const T* const value = c.value + image * c.value_step[0] + pair * c.value_step[1] + from * next;
  int i = 0;
  for (; i + 4 <= count; i += 4)
    attention_values<4, D, 0>(m.scores + i * attention_pitch, value, next, here, m.sums + (local + i) * wide);
  for (; i < count; ++i)
    attention_values<1, D, 0>(m.scores + i * attention_pitch, value, next, here, m.sums + (local + i) * wide);
}
// Items first up to `end`: heads of keys, whose rows are in `groups` parts.
template <int D, class RULE, class T>
static __attribute__((noinline)) void attention_few_run(const attention_call<T>& c, const RULE& rule, i64 groups, i64 first, i64 end) {
  enum { wide = attention_few_memory<D>::wide };
  const i64 rows = c.heads / c.key_heads * c.queries, most = (rows + groups - 1) / groups;
  const attention_few_memory<D> m(matmul_scratch(attention_few_memory<D>::bytes(most)), most);
  const attention_mode mode;
  for (i64 item = first; item < end; ++item) {
    const i64 image = item / groups / c.key_heads, pair = item / groups % c.key_heads;
    const i64 row_a = rows * (item % groups) / groups, row_e = rows * (item % groups + 1) / groups;
    for (i64 i = 0; i < most * (wide + 16); i += 16) store(m.sums + i, vf32{});
    for (i64 i = 0; i < row_e - row_a; ++i) m.most[i] = -__builtin_inff();
    bool begun = false;
    rule.walk(c, image, pair * (c.heads / c.key_heads), 0, c.queries, [&](i64 from, i64 here, bool whole) {
      for (i64 row = row_a; row < row_e; row += 16) {
        const int count = int(index_min(16, row_e - row));
        attention_few_block<D>(c, rule, image, pair, row, count, row - row_a, from, here, whole, begun, m);
      }
      begun = true;
    });
    for (i64 i = 0; i < row_e - row_a; ++i) {
      const attention_row_at<T> row = attention_few_row(c, image, pair, row_a + i);
      const f32 sum = reduce_add(load<Vec>(m.weights + i * 16));
      const f32 greatest = m.most[i] * (RULE::waits ? c.scale : 1.0f), log_of = (greatest + log(fill<vf32>(sum))[0]) * c.log_factor;
      if (c.logs)
        c.logs[image * c.logs_step[0] + row.head * c.logs_step[1] + row.query * c.logs_step[2]] = sum == 0 ? c.empty_log : log_of;
      if (c.greatest)
        c.greatest[image * c.greatest_step[0] + row.head * c.greatest_step[1] + row.query * c.greatest_step[2]] = greatest * c.log_factor;
      // a row without keys is zero, as in eager mode
      const vf32 factor = fill<vf32>(sum == 0 ? 0.0f : 1.0f / sum);
      T* const to = c.result + image * c.result_step[0] + row.head * c.result_step[1] + row.query * c.result_step[2];
#pragma GCC unroll 16
      for (int d = 0; d < D; d += 16) {
        const vf32 x = load<Vec>(m.sums + i * wide + d) * factor;
        if (d + 16 <= D) store(to + d, x);
        else store_n(to + d, x, D - d);
      }
    }
  }
}
template <int D, class RULE, class T>
static __attribute__((noinline)) void attention_few(const attention_call<T>& c, const RULE& rule) {
  const i64 pairs = c.images * c.key_heads, rows = c.key_heads ? c.heads / c.key_heads * c.queries : 0;
  if (pairs * rows <= 0) return;
  const i64 work = pairs * rows * c.keys * D * 2;
  const int team = team_for(pairs * rows, work);
  if (team == 1) return attention_few_run<D>(c, rule, 1, 0, pairs);
  // what is read stays in a cache where several threads have rows of one head of keys
  const i64 groups = index_max(1, index_min((rows + 3) / 4, (team + pairs - 1) / pairs));
  const auto run = [&](i64 at, i64 of) {
    attention_few_run<D>(c, rule, groups, pairs * groups * at / of, pairs * groups * (at + 1) / of);
  };
  in_parts(team, parts_for(team, pairs * groups, work), run);
}

template <int D, class RULE, class T> static __attribute__((noinline)) void attention(const attention_call<T>& c, const RULE& rule) {
  typedef attention_held<T> held;
  if (c.queries < attention_fewest && rule.is_shared(c)) return attention_few<D>(c, rule);
  constexpr int WIDE = (D + 31) / 32 * 32;
  const i64 pairs = c.images * c.key_heads, items = c.images * c.heads * c.blocks();
  if (items <= 0) return;
  const i64 work = items * c.keys * (32 * 8);
  const int team = team_for(items, work);
  if (team == 1) return attention_run<D>(c, rule, nullptr, 0, items);
  if (pairs >= 4 * team) {
    // whole heads for each: what is laid out stays near, and takes no memory for all of them
    const i64 shared = items / pairs;
    const auto alone = [&](i64 at, i64 of) {
      attention_run<D>(c, rule, nullptr, pairs * at / of * shared, pairs * (at + 1) / of * shared);
    };
    return in_parts(team, parts_for(team, pairs, work), alone);
  }
  const i64 each = 2 * c.key_rows() * WIDE, groups = c.key_rows() / 32;
  held* const packed = (held*)scratch_new(pairs * each * i64(sizeof(held)));
  const auto pack = [&](i64 at, i64 of) {
    for (i64 k = pairs * groups * at / of; k < pairs * groups * (at + 1) / of; ++k) {
      const i64 pair = k / groups, from = k % groups * 32;
      held* const to = packed + pair * each;
      attention_pack<D, WIDE>(c, pair / c.key_heads, pair % c.key_heads, from, from + 32, to, to + each / 2);
    }
  };
  const auto run = [&](i64 at, i64 of) { attention_run<D>(c, rule, packed, items * at / of, items * (at + 1) / of); };
  in_team(team, pack);
  in_parts(team, parts_for(team, items, work), run);
  scratch_free(packed);
}
#endif
}  // namespace pf
