// Matmuls: tiles of results in registers, and operands packed for them.
namespace pf {
// a * b + c, in one rounding where the machine has it.
template <class V> PF_INLINE V add_product(V a, V b, V c) {
#if PF_FMA
  return fma(a, b, c);
#else
  return add(mul(a, b), c);
#endif
}

// sum += a * b, in the registers where the sums are: g++ would choose others from step to step, and move sums between
// loops, or keep some of them in memory, where a tile fills nearly all registers.
template <class V> PF_INLINE void accumulate(V& sum, V a, V b) { sum = add_product(a, b, sum); }
#if PF_FMA && defined(__x86_64__) && PF_W > 1
#define PF_ACCUMULATE(V, NAME) \
  PF_INLINE void accumulate(V& sum, V a, V b) { __asm__(NAME " %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
PF_ACCUMULATE(vf32, "vfmadd231ps")
PF_ACCUMULATE(nf64, "vfmadd231pd")
#endif
// A part of a vector, N lanes of it, for groups of columns that fill no whole ones.
template <class T, int N> struct part_of { typedef typename shape<T>::vec vec; };
#if PF_FMA && defined(__x86_64__) && PF_W > 4
PF_NATIVE(pf32x4, f32, 4)
PF_ACCUMULATE(pf32x4, "vfmadd231ps")
template <> struct part_of<f32, 4> { typedef pf32x4 vec; };
#if PF_W > 8
PF_NATIVE(pf32x8, f32, 8)
PF_ACCUMULATE(pf32x8, "vfmadd231ps")
template <> struct part_of<f32, 8> { typedef pf32x8 vec; };
#endif
#endif
template <int N, class T> PF_INLINE typename part_of<T, N>::vec part_load(const T* p) {
#if PF_W > 4
  if constexpr (N != int(Vec::lanes)) return raw_load<typename part_of<T, N>::vec>(p);
  else
#endif
    return load<Vec>(p);
}
template <int N, class T, class V> PF_INLINE void part_store(T* p, V v) {
#if PF_W > 4
  if constexpr (N != int(Vec::lanes)) raw_store(p, v);
  else
#endif
    store(p, v);
}
// The number at p in all lanes. Where rows overlap, g++ would keep the numbers that one of them loads until another has
// need of them, and move sums to memory for that.
template <class V, class T> PF_INLINE void spread(V& lanes, const T* p) { lanes = fill<V>(*p); }
#if defined(__AVX2__) && PF_W > 1
#define PF_SPREAD(V) \
  PF_INLINE void spread(V& lanes, const f32* p) { __asm__("vbroadcastss %1, %0" : "=v"(lanes) : "m"(*p)); }
PF_SPREAD(vf32)
#if PF_FMA && PF_W > 4
PF_SPREAD(pf32x4)
#if PF_W > 8
PF_SPREAD(pf32x8)
#endif
#endif
#endif
// The same, read again each time: of tiles in a line, rows overlap all the more.
template <class V, class T> PF_INLINE void spread_again(V& lanes, const T* p) { lanes = fill<V>(*p); }
template <class V, class T> PF_INLINE void accumulate_at(V& sum, const T* p, V b) {
  V a;
  spread_again(a, p);
  accumulate(sum, a, b);
}
#if defined(__AVX2__) && PF_FMA && PF_W > 1
#define PF_SPREAD_AGAIN(V) \
  PF_INLINE void spread_again(V& lanes, const f32* p) { __asm__ volatile("vbroadcastss %1, %0" : "=v"(lanes) : "m"(*p)); }
PF_SPREAD_AGAIN(vf32)
#if PF_W > 4
PF_SPREAD_AGAIN(pf32x4)
#if PF_W > 8
PF_SPREAD_AGAIN(pf32x8)
#endif
#endif
#endif
#if defined(__AVX512VL__) && PF_W == 16
#define PF_ACCUMULATE_AT(V, LANES) \
  PF_INLINE void accumulate_at(V& sum, const f32* p, V b) { \
    __asm__("vfmadd231ps %1%{1to" LANES "%}, %2, %0" : "+v"(sum) : "m"(*p), "v"(b)); \
  }
PF_ACCUMULATE_AT(vf32, "16")
PF_ACCUMULATE_AT(pf32x8, "8")
PF_ACCUMULATE_AT(pf32x4, "4")
#endif
// The same for C vectors, of which several share what is read.
template <int C, class V, class T> PF_INLINE void accumulate_spread(V* sum, const T* p, const V (&b)[C]) {
  if constexpr (C == 1) {
    accumulate_at(sum[0], p, b[0]);
  } else {
    V a;
    spread_again(a, p);
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) accumulate(sum[j], a, b[j]);
  }
}
// Memory of one thread that lasts from launch to launch: fresh memory would cost a fault for each page. A library has a list
// of it, by which it is given back before the library is unloaded (`polyfuse_unload`): its threads may live on.
struct matmul_memory { char* at; i64 bytes; matmul_memory* next; };
__attribute__((weak, visibility("hidden"))) matmul_memory* matmul_memories = 0;
static thread_local matmul_memory* matmul_own = 0;
static __attribute__((unused)) void* matmul_scratch(i64 bytes) {
  matmul_memory* own = matmul_own;
  if (!own) {
    own = (matmul_memory*)malloc(sizeof(matmul_memory));
    own->at = 0;
    own->bytes = 0;
    own->next = __atomic_load_n(&matmul_memories, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&matmul_memories, &own->next, own, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {}
    matmul_own = own;
  }
  if (own->bytes < bytes) {
    if (own->at) scratch_free(own->at);
    own->at = (char*)scratch_new(bytes);
    own->bytes = bytes;
  }
  return own->at;
}

// What a matmul is worth in vector additions per lane, for its team. Where few results need a number of an operand, the
// time is that of its way from memory: a number of the left or the right one costs as much as so many multiplications.
static __attribute__((unused)) i64 matmul_work(i64 points, i64 rows, i64 batch, i64 depth, i64 left, i64 right) {
  const i64 lines = batch * rows, columns = points / lines;
  return index_max(points, index_max(lines * left, batch * columns * right)) * index_max(depth, 8);
}

// How results are shared out among threads: the tiles of rows in `down` parts, the blocks of columns in `over` parts; each of
// those in `tiles` times `blocks` parts, one behind the other, which threads may take from each other (`in_parts`).
struct matmul_parts {
  i64 down, over, tiles, blocks;
  i64 downs() const { return down * tiles; }
  i64 overs() const { return over * blocks; }
  i64 count() const { return downs() * overs(); }
  // Which rows and which columns a part of all has.
  i64 down_at(i64 part) const { return part / (tiles * blocks) / over * tiles + part % tiles; }
  i64 over_at(i64 part) const { return part / (tiles * blocks) % over * blocks + part / tiles % blocks; }
};

// The parts that leave least work to the thread that has most. Packing a block costs as much as `layout` / 16 tiles, and to
// have the rows of a tile come from memory as much as an eighth of one: where columns are shared out, each thread reads all
// rows, writes chunks of lines that lie beside another's, and what runs next finds its rows in two caches.
static __attribute__((noinline, unused)) matmul_parts matmul_share(i64 batch, i64 tiles, i64 blocks, i64 team, i64 layout) {
  matmul_parts best{1, 1, 1, 1};
  i64 least = -1;
  for (i64 down = 1; down <= team && down <= tiles; ++down)
    for (i64 over = 1; over <= blocks && (over == 1 || down * over <= 2 * team); ++over) {
      i64 rounds = (batch * down * over + team - 1) / team;
      i64 wide = (blocks + over - 1) / over;
      i64 longest = (tiles + down - 1) / down;
      i64 slowest = rounds * (wide * (longest * 16 + layout) + longest * 2);
      if (least < 0 || slowest < least) { least = slowest; best = {down, over, 1, 1}; }
    }
  return best;
}

// Bytes that stay in a core's second cache beside others: most of it, as far as two threads of a core that share one of 2 MB
// have them. Asked of the machine that runs the kernel, which need not be the one that compiled it.
#ifdef __linux__
extern "C" long sysconf(int);
#endif
static __attribute__((unused)) i64 second_cache() {
  enum : i64 { usual = i64(1) << 20, most = i64(768) << 10 };
  static i64 known = 0;
  i64 bytes = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (!bytes) {
#ifdef __linux__
    bytes = sysconf(191);  // _SC_LEVEL2_CACHE_SIZE; zero or less where the system does not say
#endif
    bytes = index_min(most, (bytes > 0 ? bytes : usual) / 4 * 3);
    __atomic_store_n(&known, bytes, __ATOMIC_RELAXED);
  }
  return bytes;
}

// The same, each part in up to `each`, where that costs nothing: in groups of as many blocks as are multiplied with one tile
// after the other, and in fewer tiles where the blocks of a part, of so many bytes each, stay in the second cache.
static __attribute__((unused)) matmul_parts matmul_finer(matmul_parts parts, i64 tiles, i64 blocks, i64 group, i64 bytes,
                                                         i64 each) {
  const i64 wide = (blocks + parts.over - 1) / parts.over;
  parts.blocks = index_min(each, (wide + group - 1) / group);
  if ((wide + parts.blocks - 1) / parts.blocks * bytes <= second_cache())
    parts.tiles = index_max(1, index_min(each / parts.blocks, tiles / parts.down));
  return parts;
}

// Steps of a pass over the depth, of which one takes `most`: passes of like length, in whole vectors.
static __attribute__((unused)) i64 matmul_pass(i64 depth, i64 most) {
  const i64 count = (depth + most - 1) / most;
  return ((depth + count - 1) / count + 31) / 32 * 32;
}

// Where the rows of a tile are: `row` elements apart, or side by side (BESIDE). Each is an offset from one of few pointers: so
// many registers hold all of them while the pointers move.
template <int R, class T, bool BESIDE> struct tile_rows {
  enum { few = 5, groups = (R + few - 1) / few };
  const T* at[groups];
  i64 apart[few];
  __attribute__((always_inline)) tile_rows(const T* p, i64 row) {
#pragma GCC unroll 8
    for (int i = 0; i < groups; ++i) at[i] = p + i * few * (BESIDE ? 1 : row);
#pragma GCC unroll 8
    for (int i = 0; i < few; ++i) apart[i] = i * (BESIDE ? 1 : row) * i64(sizeof(T));
  }
  __attribute__((always_inline)) const T* of(int i) const { return (const T*)((const char*)at[i / few] + apart[i % few]); }
  __attribute__((always_inline)) void move(i64 count) {
#pragma GCC unroll 8
    for (int i = 0; i < groups; ++i) at[i] += count;
  }
  // g++ would add what a step is further to the offsets, and keep those sums in memory, for there are more than registers
  __attribute__((always_inline)) void keep() {
#if defined(__GNUC__)
    if (!BESIDE)
#pragma GCC unroll 8
      for (int i = 1; i < (R < few ? R : int(few)); ++i) __asm__("" : "+r"(apart[i]));
#endif
  }
};

// What comes to the second cache while a tile is added up: `lines` of 64 bytes for each register of the depth, or each four
// steps. A block of the right operand that is read later is divided among the tiles of rows before.
struct matmul_later {
  const char* from;
  i64 lines;
};
[[maybe_unused]] PF_INLINE matmul_later matmul_later_part(const void* block, i64 bytes, i64 steps, i64 tile, i64 tiles) {
  if (tiles < 2) return {nullptr, 0};
  const i64 lines = (bytes / 64 + steps * tiles - 1) / (steps * tiles);
  return {(const char*)block + tile * steps * lines * 64, lines};
}

// One step of a tile: R numbers, `at` behind where its rows are, times C vectors at b, added to the sums. Where AHEAD is not 0,
// asks for what operand B has so many steps later; beyond 8, where its steps lie side by side, for each line once.
template <int R, int C, class T, bool BESIDE, int AHEAD, class V>
PF_INLINE void tile_step(const tile_rows<R, T, BESIDE>& a, i64 at, const T* b, i64 next, V (&sum)[R * C]) {
  V right[C];
#pragma GCC unroll 8
  for (int j = 0; j < C; ++j) {
    right[j] = load<Vec>(b + j * int(Vec::lanes));
    if (AHEAD && (AHEAD <= 8 || j * int(Vec::lanes * sizeof(T)) % 64 == 0)) __builtin_prefetch(b + AHEAD * next + j * int(Vec::lanes));
  }
#pragma GCC unroll 32
  for (int i = 0; i < R; ++i) {
    V left;
    spread(left, a.of(i) + at);
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) accumulate(sum[i * C + j], left, right[j]);
  }
}

// `count` steps, four at a time: beside the multiplications, what counts steps and moves addresses is a fifth of the
// instructions otherwise, and threads that share a core share what it can decode. Moves b behind them. Where `fetch` is not 0,
// asks for what is `fetch` elements behind the left operand: a little with each step, for what waits for memory is
// limited, and operand B must not wait behind it.
template <int R, int C, class T, int STEP, int AHEAD, class V>
PF_INLINE void tile_steps(const T* p, i64 row, i64 fetch, const T*& b, i64 next, i64 count, V (&sum)[R * C],
                          matmul_later later = {nullptr, 0}) {
  constexpr bool beside = STEP != 1;
  tile_rows<R, T, beside> a(p, row);
  for (; count >= 4; count -= 4) {
    a.keep();
    if (fetch) {
      tile_rows<R, T, beside> behind = a;
      behind.move(fetch);
#pragma GCC unroll 32
      for (int i = 0; i < R; ++i) __builtin_prefetch(behind.of(i));
    }
    for (i64 i = 0; i < later.lines; ++i, later.from += 64) __builtin_prefetch(later.from, 0, 2);
    tile_step<R, C, T, beside, AHEAD>(a, 0, b, next, sum);
    tile_step<R, C, T, beside, AHEAD>(a, STEP, b + next, next, sum);
    tile_step<R, C, T, beside, AHEAD>(a, 2 * STEP, b + 2 * next, next, sum);
    tile_step<R, C, T, beside, AHEAD>(a, 3 * STEP, b + 3 * next, next, sum);
    a.move(4 * STEP);
    b += 4 * next;
  }
  for (; count > 0; --count) {
    a.keep();
    tile_step<R, C, T, beside, AHEAD>(a, 0, b, next, sum);
    a.move(STEP);
    b += next;
  }
}

// A tile of R rows and C vectors of columns, added up over `depth` steps. Element (i, step) of the left operand is at
// a[i * row + step], or a[i + step * STEP] where that is not 1: how far rows are apart is no part of the template, so that
// one function serves many shapes. A step of operand B is C vectors at b, and the next step is NEXT further, or `apart`
// where that is 0. Sums go to c, row after row, WIDE vectors from one to the next; `first` tells that nothing was added up
// before. `fetch` is as above.
template <int R, int C, int WIDE, class T, int STEP, int AHEAD, int NEXT>
static __attribute__((noinline)) void matmul_tile(const T* a, i64 row, i64 fetch, const T* b, i64 apart, i64 depth, T* c,
                                                  bool first, matmul_later later = {nullptr, 0}) {
  typedef typename shape<T>::vec V;
  V sum[R * C];
  if (first) {
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) sum[i] = V{};
  } else {
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) sum[i] = load<Vec>(c + (i / C * WIDE + i % C) * int(Vec::lanes));
  }
  tile_steps<R, C, T, STEP, AHEAD>(a, row, fetch, b, NEXT > 0 ? NEXT : apart, depth, sum, later);
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) store(c + (i / C * WIDE + i % C) * int(Vec::lanes), sum[i]);
}

// Lanes of a vector that lie before an end which is `left` away.
PF_INLINE i64 matmul_lanes(i64 left) { return index_max(0, index_min(left, int(Vec::lanes))); }

// Sums of SLICES parts of the depth, `apart` elements from each other, added up in the first one.
template <int SLICES, class T> static __attribute__((unused)) void matmul_join(T* to, i64 apart, i64 count) {
  for (i64 k = 0; k < count; k += int(Vec::lanes)) {
    typename shape<T>::vec sum = load<Vec>(to + k);
    for (int i = 1; i < SLICES; ++i) sum = add(sum, load<Vec>(to + i * apart + k));
    store(to + k, sum);
  }
}

// The same where the steps of a row are in chunks of `length`, `apart` from each other; the first chunk, at a, is begun at
// step `at`.
template <int R, int C, class T, int AHEAD, int NEXT>
static __attribute__((noinline)) void matmul_window(const T* a, i64 row, i64 at, i64 length, i64 apart, const T* b,
                                                    i64 next, i64 depth, T* c, bool first) {
  typedef typename shape<T>::vec V;
  V sum[R * C];
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) sum[i] = first ? V{} : load<Vec>(c + i * int(Vec::lanes));
  while (depth > 0) {
    const i64 steps = index_min(length - at, depth);
    tile_steps<R, C, T, 1, AHEAD>(a + at, row, 0, b, NEXT > 0 ? NEXT : next, steps, sum);
    depth -= steps;
    a += apart;
    at = 0;
  }
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) store(c + i * int(Vec::lanes), sum[i]);
}

// One step of G tiles, whose rows are at a[row][from[tile] + k]: a step of the columns of a tile is C vectors
// of N lanes, `block` elements behind those of the tile before.
template <int R, int C, int G, class T, int N, bool ALIKE, class V>
PF_INLINE void taps_step(const T* const (&a)[R], const i64 (&from)[G], i64 k, const T* b, i64 block, V (&sum)[G][R * C]) {
  if constexpr (ALIKE) {
    V right[G * C];
#pragma GCC unroll 16
    for (int j = 0; j < G * C; ++j) right[j] = part_load<N>(b + j / C * block + j % C * N);
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) {
      V left;
      spread(left, a[i] + from[0] + k);
#pragma GCC unroll 16
      for (int j = 0; j < G * C; ++j) {
        accumulate(sum[j / C][i * C + j % C], left, right[j]);
      }
    }
  } else {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      V right[C];
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) right[j] = part_load<N>(b + g * block + j * N);
#pragma GCC unroll 32
      for (int i = 0; i < R; ++i) {
        V left;
        spread(left, a[i] + from[g] + k);
#pragma GCC unroll 8
        for (int j = 0; j < C; ++j) accumulate(sum[g][i * C + j], left, right[j]);
      }
    }
  }
}

// G tiles of R rows and C vectors of columns, added up over some taps of LENGTH steps each: rows[tap * R + row] is where
// the first step of a row is, for the tile k `offset[k]` elements further; with ALIKE, all of them are equal. Columns of a
// tile are `block` elements behind those of the one before, all their steps side by side; vectors have N lanes.
template <int R, int C, int G, class T, int N, int LENGTH, bool ALIKE>
static __attribute__((noinline)) void matmul_taps(const T* const* rows, i64 taps, const i64* offset, const T* b,
                                                  i64 block, T* c) {
  typedef typename part_of<T, N>::vec V;
  const int next = C * N, fours = LENGTH / 4 * 4;
  V sum[G][R * C];
  i64 from[G];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    from[g] = offset[ALIKE ? 0 : g];
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) sum[g][i] = V{};
  }
  for (i64 tap = 0; tap < taps; ++tap) {
    const T* a[R];
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) a[i] = rows[i];
    rows += R;
    i64 k = 0;
    for (; k < fours; k += 4) {
      taps_step<R, C, G, T, N, ALIKE>(a, from, k, b, block, sum);
      taps_step<R, C, G, T, N, ALIKE>(a, from, k + 1, b + next, block, sum);
      taps_step<R, C, G, T, N, ALIKE>(a, from, k + 2, b + 2 * next, block, sum);
      taps_step<R, C, G, T, N, ALIKE>(a, from, k + 3, b + 3 * next, block, sum);
      b += 4 * next;
    }
    for (; k < LENGTH; ++k) {
      taps_step<R, C, G, T, N, ALIKE>(a, from, k, b, block, sum);
      b += next;
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) part_store<N>(c + g * R * next + i * N, sum[g][i]);
}
// A tile of R rows and C vectors of N lanes whose rows lie in a line of an image: the steps of row i under tap t of a line
// begin at a[i * ROW + t * TAP], LENGTH of them, CHUNK written one after the other; `line` elements further are those of
// the next line. Left out is what has no STEP * i + APART * t from FROM on and below TO.
template <int R, int C, class T, int N, int LENGTH, int CHUNK, int TAPS, int ROW, int TAP, int STEP, int APART, int FROM,
          int TO>
static __attribute__((noinline)) void matmul_strip(const T* a, i64 lines, i64 line, const T* b, T* c) {
  typedef typename part_of<T, N>::vec V;
  V sum[R * C];
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) sum[i] = V{};
  for (; lines > 0; --lines) {
#pragma GCC unroll 8
    for (int t = 0; t < TAPS; ++t) {
      for (int chunk = 0; chunk < LENGTH; chunk += CHUNK) {
#pragma GCC unroll 64
        for (int k = 0; k < CHUNK; ++k) {
          V right[C];
#pragma GCC unroll 8
          for (int j = 0; j < C; ++j) right[j] = part_load<N>(b + (k * C + j) * N);
#pragma GCC unroll 32
          for (int i = 0; i < R; ++i)
            if (STEP * i + APART * t >= FROM && STEP * i + APART * t < TO)
              accumulate_spread<C>(&sum[i * C], a + i * ROW + t * TAP + chunk + k, right);
        }
        b += CHUNK * C * N;
      }
    }
    a += line;
  }
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) part_store<N>(c + i * N, sum[i]);
}
// One row of N columns, added to its sums number by number.
template <int N, class T> static __attribute__((unused)) void matmul_line(const T* a, const T* b, i64 depth, T* c) {
  for (i64 k = 0; k < depth; ++k)
    for (int j = 0; j < N; ++j) c[j] = add_product(a[k], b[k * N + j], c[j]);
}

// Asks for COUNT elements of R rows that are PITCH apart.
template <int R, i64 PITCH, int COUNT, class T> PF_INLINE void matmul_fetch(const T* p) {
#pragma GCC unroll 32
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < COUNT; j += 64 / int(sizeof(T))) __builtin_prefetch(p + i * PITCH + j);
}

// Sums of a tile as they are before a pass.
template <int N, class T> PF_INLINE void matmul_keep(T* to, const T* from, bool zero) {
  for (int k = 0; k < N; k += int(Vec::lanes)) store(to + k, zero ? typename shape<T>::vec{} : load<Vec>(from + k));
}
// Whether a tile holds something that is no number.
template <int N, class T> PF_INLINE bool matmul_any_nan(const T* c) {
  auto found = isnan(load<Vec>(c));
  for (int k = int(Vec::lanes); k < N; k += int(Vec::lanes)) found = bitwise_or(found, isnan(load<Vec>(c + k)));
  return __builtin_expect(any(found), 0);
}

// Layout of the left operand. A row whose steps are contiguous; up to a vector may be written past its end.
template <class T, class S> static __attribute__((noinline)) void matmul_row(T* to, const S* from, i64 depth) {
  i64 k = 0;
  for (; k + int(Vec::lanes) <= depth; k += int(Vec::lanes)) store(to + k, cast<T>(load<Vec>(from + k)));
  if (k < depth) store(to + k, cast<T>(load_n<Vec>(from + k, depth - k)));
}
template <class T> PF_INLINE void matmul_zeros(T* to, i64 count) {
  for (i64 k = 0; k < count; k += int(Vec::lanes)) store(to + k, typename shape<T>::vec{});
}
// R rows that are contiguous at each step, packed step by step; up to a vector may be written past the end.
template <int R, class T, class S>
static __attribute__((unused)) void matmul_steps(T* to, const S* from, i64 next, i64 depth, i64 rows) {
  const int lanes = int(Vec::lanes);
  for (i64 k = 0; k < depth; ++k)
    for (int i = 0; i < R; i += lanes)
      store(to + k * R + i, cast<T>(load_n<Vec>(from + k * next + i, matmul_lanes(rows - i))));
}

// Layout of operand B as a block of C vectors for every step. Columns are contiguous in memory:
template <int C, class T, class S>
static __attribute__((unused)) void matmul_along(T* to, const S* from, i64 next, i64 depth, i64 columns) {
  const int lanes = int(Vec::lanes);
  if (columns >= C * lanes) {
    for (i64 k = 0; k < depth; ++k)
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) store(to + (k * C + j) * lanes, cast<T>(load<Vec>(from + k * next + j * lanes)));
    return;
  }
  for (i64 k = 0; k < depth; ++k)
    for (int j = 0; j < C; ++j) {
      const i64 count = matmul_lanes(columns - j * lanes);
      store(to + (k * C + j) * lanes, cast<T>(load_n<Vec>(from + k * next + j * lanes, count)));
    }
}
// Steps are contiguous in memory, and columns are `apart`:
template <int C, class T, class S>
static __attribute__((unused)) void matmul_across(T* to, const S* from, i64 apart, i64 depth, i64 columns) {
  const int lanes = int(Vec::lanes);
  for (int j = 0; j < C; ++j) {
    const i64 rows = matmul_lanes(columns - j * lanes);
    const S* const at = from + j * lanes * apart;
    T* const into = to + j * lanes;
#if PF_W > 1
    i64 k = 0;
    if (rows >= lanes)
      for (; k + lanes <= depth; k += lanes) {
        typename shape<S>::vec tile[lanes];
        tile_load(tile, at + k, apart);
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) {
          // rows are too short for the machine to see a stream in them before they end
          __builtin_prefetch(at + k + (lanes + i) * apart, 0, 2);
          store(into + (k + i) * C * lanes, cast<T>(tile[i]));
        }
      }
    for (; k < depth; k += lanes) {
      const i64 count = index_min(lanes, depth - k);
      typename shape<S>::vec edge[lanes] = {};
      if (rows > 0) tile_load(edge, at + k, apart, rows, count);
      for (int i = 0; i < count; ++i) store(into + (k + i) * C * lanes, cast<T>(edge[i]));
    }
#else
    for (i64 k = 0; k < depth; ++k) into[k * C] = rows > 0 ? T(cast<T>(load_one(at + k))) : T(0);
#endif
  }
}

#if PF_W > 1
// The same for C vectors of columns of a convolution's weight, of whole vectors of channels: the TAPS numbers of a channel are
// contiguous, and laid out tap after tap. What is asked for comes from the second cache, or from further away.
template <int TAPS, int C, class T>
static __attribute__((noinline)) void matmul_taps_across(T* to, const T* from, i64 apart, i64 channels) {
  const int lanes = int(Vec::lanes), wide = C * lanes, ahead = 4 * lanes;
  for (int j = 0; j < C; ++j) {
    const T* at = from + j * lanes * apart;
    T* into = to + j * lanes;
    for (i64 k = 0; k < channels; k += lanes, at += TAPS * lanes, into += lanes * wide)
#pragma GCC unroll 16
      for (int part = 0; part < TAPS; ++part) {
        typename shape<T>::vec tile[lanes];
        tile_load(tile, at + part * lanes, apart);
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) {
          const int step = part * lanes + i;
          __builtin_prefetch(at + i * apart + part * lanes + ahead);
          store(into + (step % TAPS * channels + step / TAPS) * wide, tile[i]);
        }
      }
  }
}
#endif

// Sums over the lanes of as many vectors as there are lanes: lane i of the result is the sum of v[i].
#if PF_W > 1
template <int S, class V> PF_INLINE V matmul_halves(V a, V b) {
  typedef typename tr<V>::ivec I; typedef typename tr<I>::elem E;
  const int n = int(tr<V>::lanes);
  I k = lane_numbers<I>::make(), upper = (I)((k & fill<I>(E(S))) != fill<I>(E(0)));
  I low = upper ? k + fill<I>(E(n - S)) : k, high = upper ? k + fill<I>(E(n)) : k + fill<I>(E(S));
  return add(select_lanes(a, b, low), select_lanes(a, b, high));
}
template <int S, class V> PF_INLINE V sum_parts(V* v) {
#pragma GCC unroll 16
  for (int i = 0; i < S; ++i) v[i] = matmul_halves<S>(v[i], v[i + S]);
  if constexpr (S > 1) return sum_parts<S / 2>(v);
  else return v[0];
}
template <int N, class V, class T> PF_INLINE void matmul_sums(const V* v, T* to) {
  const int n = int(tr<V>::lanes);
#pragma GCC unroll 32
  for (int at = 0; at < N; at += n) {
    V part[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) part[i] = at + i < N ? v[at + i] : V{};
    raw_store(to + at, sum_parts<n / 2>(part));
  }
}
#if PF_WIDE
template <int N, class H, class T> PF_INLINE void matmul_sums(const wide<H>* v, T* to) {
  H part[N];
#pragma GCC unroll 32
  for (int i = 0; i < N; ++i) part[i] = add(v[i].lo, v[i].hi);
  matmul_sums<N>(part, to);
}
#endif
#else
template <int N, class V, class T> PF_INLINE void matmul_sums(const V* v, T* to) {
  for (int i = 0; i < N; ++i) to[i] = v[i];
}
#endif

// How elements are multiplied along the depth: `lanes` steps at once, taken in and summed up.
template <class T, class A, class B> struct matmul_step {
  typedef typename shape<T>::vec V;
  enum { steps = Vec::lanes };
  typedef V left; typedef V right;
  PF_INLINE V take(const A* p) { return cast<T>(load<Vec>(p)); }
  PF_INLINE V take(const A* p, i64 n) { return cast<T>(load_n<Vec>(p, n)); }
  PF_INLINE V take_right(const B* p) { return cast<T>(load<Vec>(p)); }
  PF_INLINE V take_right(const B* p, i64 n) { return cast<T>(load_n<Vec>(p, n)); }
  PF_INLINE V add_up(V a, V b, V sum) { return add_product(a, b, sum); }
  enum { offset = 0 };
};

// Small types: a lane takes in two or four steps at once.
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
typedef short matmul_s32 __attribute__((vector_size(64)));
typedef char matmul_c32 __attribute__((vector_size(32)));
typedef char matmul_c64 __attribute__((vector_size(64)));
PF_INLINE vi32 matmul_halves_at(const void* p, i64 n) {
  return (vi32)__builtin_ia32_loaddquhi512_mask((const short*)p, matmul_s32{}, (unsigned)((1ull << n) - 1));
}
PF_INLINE vi32 matmul_bytes_at(const void* p, i64 n) {
  return (vi32)__builtin_ia32_loaddquqi512_mask((const char*)p, matmul_c64{}, (1ull << n) - 1);
}
#if PF_DOT_BF16
template <> struct matmul_step<f32, bf16, bf16> {
  enum { steps = 32, offset = 0 };
  typedef vi32 left; typedef vi32 right;
  PF_INLINE vi32 take(const bf16* p) { return raw_load<vi32>(p); }
  PF_INLINE vi32 take(const bf16* p, i64 n) { return matmul_halves_at(p, n); }
  PF_INLINE vi32 take_right(const bf16* p) { return take(p); }
  PF_INLINE vi32 take_right(const bf16* p, i64 n) { return take(p, n); }
  PF_INLINE vf32 add_up(vi32 a, vi32 b, vf32 sum) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};
#endif
#if PF_DOT_BF16
// Two vectors, rounded for such a step, which takes denormal numbers for zero as this does.
PF_INLINE vi32 matmul_pair(vf32 a, vf32 b) {
  vi32 both;
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(a), "v"(b));
  return both;
}
PF_INLINE void matmul_store_pair(bf16* to, vf32 a, vf32 b) { raw_store(to, matmul_pair(a, b)); }
// Floats of eight bits without their sign, as bf16: exact, and none is too small for such a step.
template <class T> struct matmul_table {
  alignas(64) u16 of[128];
  constexpr matmul_table() : of() {
    constexpr int M = eight<T>::fraction, BIAS = eight<T>::bias, top = 0x7f >> M;
    for (int c = 0; c < 128; ++c) {
      int power = c >> M, part = c & ((1 << M) - 1);
      if (power == 0 && part != 0)
        for (power = 1; !(part >> M); --power) part <<= 1;
      const int fraction = (part & ((1 << M) - 1)) << (7 - M);
      of[c] = u16(c == 0 ? 0 : ((power + 127 - BIAS) << 7) | fraction);
      if (same<T, f8e5m2>::value && power == top) of[c] = u16(part ? 0x7fc0 | fraction : 0x7f80);
      if (same<T, f8e4m3>::value && c == 0x7f) of[c] = 0x7fc0;
    }
  }
};
template <class T> static constexpr matmul_table<T> matmul_values{};
// COUNT times 32 of them: two halves of the table for 64 of them each, chosen by the bit above.
template <int COUNT, class T> PF_INLINE void matmul_store_eights(bf16* to, const T* from) {
  const u16* const table = matmul_values<T>.of;
  const matmul_s32 low = raw_load<matmul_s32>(table), next = raw_load<matmul_s32>(table + 32);
  const matmul_s32 high = raw_load<matmul_s32>(table + 64), last = raw_load<matmul_s32>(table + 96);
#pragma GCC unroll 4
  for (int i = 0; i < COUNT; ++i) {
    const matmul_s32 c =
        (matmul_s32)__builtin_ia32_pmovsxbw512_mask(raw_load<matmul_c32>(from + i * 32), matmul_s32{}, 0xffffffffu);
    const unsigned upper = __builtin_ia32_ptestmw512(c, matmul_s32{} + short(0x40), 0xffffffffu);
    const matmul_s32 other = (matmul_s32)__builtin_ia32_vpermt2varhi512_mask(c, high, last, 0xffffffffu);
    const matmul_s32 value = (matmul_s32)__builtin_ia32_vpermt2varhi512_mask(c, low, next, 0xffffffffu);
    raw_store(to + i * 32, (matmul_s32)__builtin_ia32_blendmw_512_mask(value, other, upper) | (c & short(-32768)));
  }
}
#endif
// The same as below, for a step that takes pairs.
#if PF_DOT_BF16
template <int FIRST, int SECOND> static inline i64 matmul_nibbles(bf16* to, vf32 first, vf32 second, const void* from, i64 count) {
  const matmul_s32 values = (matmul_s32)matmul_pair(first, second);
  i64 k = 0;
  for (; k + 16 <= count; k += 16) {
    const vi32 c = native_convert<vi32>(raw_load<vu8>((const u8*)from + k));
    // the second number of a pair is in the upper half of the table
    const vi32 at = (FIRST ? (c >> 4) | (c << 16) : (c & 15) | (c << 12)) | 0x100000;
    raw_store(to + 2 * k, __builtin_ia32_permvarhi512_mask(values, (matmul_s32)at, matmul_s32{}, 0xffffffffu));
  }
  return k;
}
#endif
// Bytes as numbers of 16 bits, whose products are added in pairs: exact for any of them.
template <class A, class B> struct matmul_pairs {
  enum { steps = 32, offset = 0 };
  typedef matmul_s32 left; typedef matmul_s32 right;
  PF_INLINE matmul_s32 widened(matmul_c32 v, const i8*) {
    return (matmul_s32)__builtin_ia32_pmovsxbw512_mask(v, matmul_s32{}, 0xffffffffu);
  }
  PF_INLINE matmul_s32 widened(matmul_c32 v, const u8*) {
    return (matmul_s32)__builtin_ia32_pmovzxbw512_mask(v, matmul_s32{}, 0xffffffffu);
  }
  template <class T> PF_INLINE matmul_s32 from(const T* p) { return widened(raw_load<matmul_c32>(p), p); }
  template <class T> PF_INLINE matmul_s32 from(const T* p, i64 n) {
    return widened(__builtin_ia32_loaddquqi256_mask((const char*)p, matmul_c32{}, (unsigned)((1ull << n) - 1)), p);
  }
  PF_INLINE matmul_s32 take(const A* p) { return from(p); }
  PF_INLINE matmul_s32 take(const A* p, i64 n) { return from(p, n); }
  PF_INLINE matmul_s32 take_right(const B* p) { return from(p); }
  PF_INLINE matmul_s32 take_right(const B* p, i64 n) { return from(p, n); }
  PF_INLINE vi32 add_up(matmul_s32 a, matmul_s32 b, vi32 sum) {
    return sum + (vi32)__builtin_ia32_pmaddwd512_mask(a, b, vi32{}, (unsigned short)-1);
  }
};
template <> struct matmul_step<i32, u8, u8> : matmul_pairs<u8, u8> {};
template <> struct matmul_step<i32, i8, u8> : matmul_pairs<i8, u8> {};
#if PF_DOT_BYTES
// The machine multiplies bytes without a sign by such with one: a left operand with a sign is taken 128 too large,
// and what that adds up to, `offset` times operand B, is known column by column.
template <class A> struct matmul_fours {
  enum { steps = 64, offset = A(-1) < A(0) ? 128 : 0 };
  typedef vi32 left; typedef vi32 right;
  PF_INLINE vi32 take(const A* p) { return shifted(raw_load<vi32>(p)); }
  PF_INLINE vi32 take(const A* p, i64 n) { return shifted(matmul_bytes_at(p, n)); }
  PF_INLINE vi32 take_right(const i8* p) { return raw_load<vi32>(p); }
  PF_INLINE vi32 take_right(const i8* p, i64 n) { return matmul_bytes_at(p, n); }
  PF_INLINE vi32 shifted(vi32 v) { return offset ? vi32(v ^ fill<vi32>(i32(0x80808080u))) : v; }
  PF_INLINE vi32 offsets() { return fill<vi32>(i32(0x80808080u)); }
  PF_INLINE vi32 add_up(vi32 a, vi32 b, vi32 sum) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};
template <> struct matmul_step<i32, i8, i8> : matmul_fours<i8> {};
template <> struct matmul_step<i32, u8, i8> : matmul_fours<u8> {};
#else
template <> struct matmul_step<i32, i8, i8> : matmul_pairs<i8, i8> {};
template <> struct matmul_step<i32, u8, i8> : matmul_pairs<u8, i8> {};
#endif
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && PF_W > 1
#ifdef __ARM_FEATURE_SVE
#define PF_DOT(NAME, FROM, LANES) NAME " %0.s, %1." FROM ", %2." FROM
#else
#define PF_DOT(NAME, FROM, LANES) NAME " %0.4s, %1." LANES FROM ", %2." LANES FROM
#endif
#define PF_DOT_STEP(T, A, B, NAME, FROM, LANES)                                       \
  template <> struct matmul_step<T, A, B> {                                           \
    enum { steps = PF_W * int(sizeof(T) / sizeof(A)), offset = 0 };                   \
    typedef vi32 left; typedef vi32 right;                                            \
    PF_INLINE vi32 take(const void* p) { return raw_load<vi32>(p); }                  \
    PF_INLINE vi32 take(const void* p, i64 n) {                                       \
      vi32 some{};                                                                    \
      __builtin_memcpy(&some, p, n * i64(sizeof(A)));                                 \
      return some;                                                                    \
    }                                                                                 \
    PF_INLINE vi32 take_right(const void* p) { return take(p); }                      \
    PF_INLINE vi32 take_right(const void* p, i64 n) { return take(p, n); }            \
    PF_INLINE shape<T>::vec add_up(vi32 a, vi32 b, shape<T>::vec sum) {               \
      __asm__(PF_DOT(NAME, FROM, LANES) : "+w"(sum) : "w"(a), "w"(b));                \
      return sum;                                                                     \
    }                                                                                 \
  };
PF_DOT_STEP(i32, i8, i8, "sdot", "b", "16") PF_DOT_STEP(i32, u8, u8, "udot", "b", "16")
PF_DOT_STEP(i32, u8, i8, "usdot", "b", "16") PF_DOT_STEP(f32, bf16, bf16, "bfdot", "h", "8")
template <> struct matmul_step<i32, i8, u8> : matmul_step<i32, u8, i8> {
  PF_INLINE vi32 add_up(vi32 a, vi32 b, vi32 sum) { return matmul_step<i32, u8, i8>::add_up(b, a, sum); }
};
#endif

#if PF_W == 16
// Bytes of two numbers each, which are stored one after the other: what each of the sixteen numbers is that begins at bit
// FIRST of a byte, then at bit SECOND. Goes on while there are bytes for a whole vector; how many it took.
template <int FIRST, int SECOND> static inline i64 matmul_nibbles(f32* to, vf32 first, vf32 second, const void* from, i64 count) {
  i64 k = 0;
  for (; k + 16 <= count; k += 16) {
    const vi32 c = native_convert<vi32>(raw_load<vu8>((const u8*)from + k));
    const vi32 one = (c >> FIRST) & 15, two = (c >> SECOND) & 15;
    store_interleaved(to + 2 * k, select_lanes(first, first, one), select_lanes(second, second, two));
  }
  return k;
}
#endif

// Results of R rows and C columns whose steps are contiguous in memory, at p[row] and q[column] from step `from` on:
// nothing is packed, and lanes run along the depth. Sums go to c, whose rows are `apart`. With `ahead`, the columns
// after these, which q goes on with, are asked for: they come from far.
template <int R, int C, class T, class A, class B>
static __attribute__((noinline)) void matmul_dots(const A* const* p, const B* const* q, i64 from, i64 depth, T* c,
                                                   i64 apart, bool first, bool ahead) {
  typedef matmul_step<T, A, B> step;
  typedef typename shape<T>::vec V;
  V sum[R * C], over[C];
  const A* a[R];
  const B* b[C];
  const i64 after = ahead ? q[C] - q[0] : 0;
#pragma GCC unroll 16
  for (int j = 0; j < C; ++j) over[j] = V{};
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) sum[i] = V{};
#pragma GCC unroll 32
  for (int i = 0; i < R; ++i) a[i] = p[i] + from;
#pragma GCC unroll 16
  for (int j = 0; j < C; ++j) b[j] = q[j] + from;
  i64 k = 0;
  for (; k + int(step::steps) <= depth; k += int(step::steps)) {
    typename step::left x[R];
    if (ahead)
#pragma GCC unroll 16
      for (int j = 0; j < C; ++j) __builtin_prefetch(b[j] + (k + after), 0, 2);
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) x[i] = step::take(a[i] + k);
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) {
      typename step::right y = step::take_right(b[j] + k);
      if constexpr (step::offset) over[j] = step::add_up(step::offsets(), y, over[j]);
#pragma GCC unroll 32
      for (int i = 0; i < R; ++i) sum[i * C + j] = step::add_up(x[i], y, sum[i * C + j]);
    }
  }
  if (k < depth) {
    typename step::left x[R];
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) x[i] = step::take(a[i] + k, depth - k);
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) {
      typename step::right y = step::take_right(b[j] + k, depth - k);
      if constexpr (step::offset) over[j] = step::add_up(step::offsets(), y, over[j]);
#pragma GCC unroll 32
      for (int i = 0; i < R; ++i) sum[i * C + j] = step::add_up(x[i], y, sum[i * C + j]);
    }
  }
  if constexpr (step::offset) {
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) sum[i] = sum[i] - over[i % C];
  }
  alignas(64) T total[(R * C + int(Vec::lanes) - 1) / int(Vec::lanes) * int(Vec::lanes)];
  matmul_sums<R * C>(sum, total);
#pragma GCC unroll 32
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) c[i * apart + j] = first ? total[i * C + j] : T(c[i * apart + j] + total[i * C + j]);
}
}  // namespace pf

// Called before the library is unloaded, when no thread is in it any more.
extern "C" __attribute__((weak, visibility("default"))) void polyfuse_unload() {
  for (pf::matmul_memory* next; pf::matmul_memories; pf::matmul_memories = next) {
    next = pf::matmul_memories->next;
    if (pf::matmul_memories->at) pf::scratch_free(pf::matmul_memories->at);
    free(pf::matmul_memories);
  }
}
