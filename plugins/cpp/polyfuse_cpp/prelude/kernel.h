// What the loops around the statements need: index arithmetic, teams of threads, scratch memory, masked access.
extern "C" {
void* malloc(__SIZE_TYPE__);
void free(void*);
}
namespace pf {
PF_INLINE i64 index_div(i64 a, i64 b) { i64 q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); }
PF_INLINE i64 index_mod(i64 a, i64 b) { i64 r = a % b; return r + (((r != 0) & ((r < 0) != (b < 0))) ? b : 0); }
PF_INLINE i64 index_min(i64 a, i64 b) { return a < b ? a : b; }
PF_INLINE i64 index_max(i64 a, i64 b) { return a > b ? a : b; }

// Set while Python waits for a kernel (binding.h): lets its other threads run.
#define PF_LEAVES_PYTHON
static __thread void (*leave_python)();

// Threads for `items` work items that cost `work` vector additions per lane: one where sharing costs more than it saves.
PF_INLINE int team_for(i64 items, i64 work) {
  const i64 grain = 200000;
  if (work < 2 * grain) return 1;
  if (leave_python) leave_python();
  if (items < 2) return 1;
  i64 most = omp_get_max_threads(), useful = work / grain;
  if (most > useful) most = useful;
  if (most > items) most = items;
  return most < 2 || omp_in_parallel() ? 1 : int(most);
}

// Set while a kernel runs in a program of kernels alone (binding.h): `polyfuse_share` of threads/pool.cpp.
#define PF_SHARES
typedef void (*share_function)(const void* stage, i64 at, i64 of);
static __thread void (*share_in_pool)(int of, share_function share, const void* stage);

// A stage without its type, called with the number of a share and how many there are. What shares it out is one function for
// all kernels of a unit: as templates, those took a third of the compiler's time.
struct any_stage { share_function call; const void* stage; };
template <class Stage> static void run_share(const void* stage, i64 at, i64 of) { (*(const Stage*)stage)(at, of); }

static __attribute__((noinline, unused)) void enter_team(int team, const any_stage* stages, int count) {
  auto* const share = share_in_pool;
  if (share) {
    for (int i = 0; i < count; ++i) share(team, stages[i].call, stages[i].stage);
    return;
  }
#pragma omp parallel
  {
    const i64 at = omp_get_thread_num(), of = index_min(team, omp_get_num_threads());
    for (int i = 0; i < count; ++i) {
      if (i > 0) {
#pragma omp barrier
      }
      if (at < of) stages[i].call(stages[i].stage, at, of);
    }
  }
}

// Stages, each of which waits for the one before it; each is called with the number of a share and how many there are.
// Without a pool of ours OpenMP's whole team enters, and who is beyond `team` waits at the end: GNU's runtime ends the
// threads that a smaller team leaves over, and whoever asks for more next, as eager mode does, starts them anew.
template <class... Stages> PF_INLINE void in_team(int team, const Stages&... stages) {
  const any_stage all[] = {{run_share<Stages>, &stages}...};
  enter_team(team, all, int(sizeof...(Stages)));
}

// Parts of the work that a team does: up to eight for each thread, none of which is so short that to begin it would count.
PF_INLINE i64 parts_for(i64 team, i64 items, i64 work) {
  const i64 each = index_max(1, index_min(8, work / (team * 2000000)));
  return index_min(items, team * each);
}

// Parts that are a thread's own as long as nobody else takes them.
struct alignas(64) part_range { i64 next, end; };

// What a thread does: its own parts, then what others have not begun.
struct parts_of {
  any_stage stage;
  part_range* ranges;
  i64 team, parts;
};
static void take_parts(const void* all, i64 at, i64) {
  const parts_of& of = *(const parts_of*)all;
  for (i64 k = 0; k < of.team; ++k) {
    part_range& range = of.ranges[at + k < of.team ? at + k : at + k - of.team];
    while (__atomic_load_n(&range.next, __ATOMIC_RELAXED) < range.end) {
      const i64 part = __atomic_fetch_add(&range.next, 1, __ATOMIC_RELAXED);
      if (part < range.end) of.stage.call(of.stage.stage, part, of.parts);
    }
  }
}
static __attribute__((noinline, unused)) void enter_in_parts(int team, i64 parts, any_stage stage) {
  if (parts == team) return enter_team(team, &stage, 1);
  part_range ranges[team];
  for (i64 k = 0; k < team; ++k) ranges[k] = {parts * k / team, parts * (k + 1) / team};
  const parts_of all{stage, ranges, team, parts};
  const any_stage whole{take_parts, &all};
  enter_team(team, &whole, 1);
}

// One stage in parts that may be done in any order. Threads are not equally fast: two may share a core, or the system lets
// another program run in between. Each begins with a range of its own, the same one in each kernel.
template <class Stage> PF_INLINE void in_parts(int team, i64 parts, const Stage& stage) {
  enter_in_parts(team, parts, {run_share<Stage>, &stage});
}

// Scratch memory, aligned to 64 bytes; the pointer that malloc gave stands in front of it.
static inline void* scratch_new(i64 bytes) {
  char* raw = (char*)malloc(bytes + 128);
  char* aligned = (char*)(((__UINTPTR_TYPE__)raw + 127) & ~(__UINTPTR_TYPE__)63);
  ((void**)aligned)[-1] = raw;
  return aligned;
}
static inline void scratch_free(void* p) { free(((void**)p)[-1]); }

// Floats of 16 and 8 bits between memory: rounded as a store would, and their bits.
template <class T, class V> PF_INLINE V round_to(V x) {
#if PF_W > 1
  if constexpr (same<V, vf32>::value && same<T, bf16>::value) return widen_vector(narrow_vector(x, (const T*)0), (const T*)0);
#endif
  return widen_bits<T, V>(narrow_bits<T>(x));
}
template <class T, class V> PF_INLINE with<V, typename stored<T>::word> bits_of(V x) {
  return cast<typename stored<T>::word>(narrow_bits<T>(x));
}
template <class T, class U> PF_INLINE with<U, f32> value_of(U bits) {
  // through the unsigned type: a sign must not spread
  return widen_bits<T, with<U, f32>>(cast<u32>(cast<typename stored<T>::word>(bits)));
}

// Division of small non-negative lanes (below 2^22) by a constant: exact in single precision.
template <int BY, class V> PF_INLINE V div_by(V a) {
  typedef with<V, f32> F;
  return cast<i32>(mul(add(cast<f32>(a), fill<F>(0.5f)), fill<F>(1.0f / BY)));
}
template <int BY, class V> PF_INLINE V mod_by(V a) { return sub(a, mul(div_by<BY>(a), fill<V>(BY))); }

#if PF_W > 1
PF_INLINE unsigned mask_bits(vmask m) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  return (unsigned short)__builtin_ia32_cvtd2mask512(m.v);
#elif PF_AVX2 && PF_X86_BUILTINS && PF_W == 8
  return (unsigned)__builtin_ia32_movmskps256((vf32)m.v);
#else
  unsigned r = 0;
#pragma GCC unroll 16
  for (int i = 0; i < PF_W; ++i) r |= (m.v[i] & 1u) << i;
  return r;
#endif
}
// Lanes whose bits are set, as minus one; `each` holds the bit of every lane.
template <class V> PF_INLINE V lanes_of_bits(unsigned k, V each) { return (V)((each & (V{} + k)) == each); }
template <class V> PF_INLINE V raw_load_bits(const void* p, unsigned k) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  typedef int d16 __attribute__((vector_size(64))); typedef long long q8 __attribute__((vector_size(64)));
  if constexpr (sizeof(V) == 64 && sizeof(typename tr<V>::elem) == 4)
    return (V)__builtin_ia32_loaddqusi512_mask((const int*)p, d16{}, (unsigned short)k);
  else if constexpr (sizeof(V) == 64 && sizeof(typename tr<V>::elem) == 8)
    return (V)__builtin_ia32_loaddqudi512_mask((const long long*)p, q8{}, (unsigned char)k);
  typedef short s16 __attribute__((vector_size(32))); typedef char c16 __attribute__((vector_size(16)));
  if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 2)
    return (V)__builtin_ia32_loaddquhi256_mask((const short*)p, s16{}, (unsigned short)k);
  else if constexpr (sizeof(V) == 16 && sizeof(typename tr<V>::elem) == 1)
    return (V)__builtin_ia32_loaddquqi128_mask((const char*)p, c16{}, (unsigned short)k);
#elif PF_AVX2 && PF_X86_BUILTINS
  typedef int d8 __attribute__((vector_size(32))); typedef long long q4 __attribute__((vector_size(32)));
  if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 4)
    return (V)__builtin_ia32_maskloadd256((const d8*)p, lanes_of_bits(k, d8{1, 2, 4, 8, 16, 32, 64, 128}));
  else if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 8)
    return (V)__builtin_ia32_maskloadq256((const q4*)p, lanes_of_bits(k, q4{1, 2, 4, 8}));
#endif
  typedef typename tr<V>::elem E;
  const unsigned whole = (1u << int(tr<V>::lanes)) - 1u;
  if ((k & whole) == whole) return raw_load<V>(p);
  V v{};
  for (int i = 0; i < int(tr<V>::lanes); ++i)
    if (k >> i & 1) __builtin_memcpy((char*)&v + i * sizeof(E), (const char*)p + i * sizeof(E), sizeof(E));
  return v;
}
template <class V> PF_INLINE void raw_store_bits(void* p, V v, unsigned k) {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16
  typedef int d16 __attribute__((vector_size(64))); typedef long long q8 __attribute__((vector_size(64)));
  if constexpr (sizeof(V) == 64 && sizeof(typename tr<V>::elem) == 4)
    return __builtin_ia32_storedqusi512_mask((int*)p, (d16)v, (unsigned short)k);
  else if constexpr (sizeof(V) == 64 && sizeof(typename tr<V>::elem) == 8)
    return __builtin_ia32_storedqudi512_mask((long long*)p, (q8)v, (unsigned char)k);
  typedef short s16 __attribute__((vector_size(32))); typedef char c16 __attribute__((vector_size(16)));
  if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 2)
    return __builtin_ia32_storedquhi256_mask((short*)p, (s16)v, (unsigned short)k);
  else if constexpr (sizeof(V) == 16 && sizeof(typename tr<V>::elem) == 1)
    return __builtin_ia32_storedquqi128_mask((char*)p, (c16)v, (unsigned short)k);
#elif PF_AVX2 && PF_X86_BUILTINS
  typedef int d8 __attribute__((vector_size(32))); typedef long long q4 __attribute__((vector_size(32)));
  if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 4)
    return __builtin_ia32_maskstored256((d8*)p, lanes_of_bits(k, d8{1, 2, 4, 8, 16, 32, 64, 128}), (d8)v);
  else if constexpr (sizeof(V) == 32 && sizeof(typename tr<V>::elem) == 8)
    return __builtin_ia32_maskstoreq256((q4*)p, lanes_of_bits(k, q4{1, 2, 4, 8}), (q4)v);
#endif
  typedef typename tr<V>::elem E;
  for (int i = 0; i < int(tr<V>::lanes); ++i)
    if (k >> i & 1) __builtin_memcpy((char*)p + i * sizeof(E), (const char*)&v + i * sizeof(E), sizeof(E));
}
#endif

// Contiguous access to the lanes of a mask; others give zero and their memory is not touched.
template <class L, class T, class M> PF_INLINE typename L::template of<T> load_masked(const T* p, M m) {
  typedef typename L::template of<T> V;
#if PF_W > 1
  if constexpr (L::lanes > 1) {
    unsigned k = mask_bits(m);
    if constexpr (same<T, bool>::value) return as_mask(raw_load_bits<vu8>(p, k) != fill<vu8>(0));
    else if constexpr (sizeof(T) == 2 && same<V, vf32>::value) return widen_vector(raw_load_bits<vu16>(p, k), p);
#if PF_WIDE
    else if constexpr (sizeof(T) == 8) {
      typedef decltype(V::lo) H;
      return {raw_load_bits<H>(p, k & ((1u << PF_HALF) - 1u)), raw_load_bits<H>(p + PF_HALF, k >> PF_HALF)};
    }
#endif
    else return raw_load_bits<V>(p, k);
  } else
#endif
    return m ? load_one(p) : V(0);
}
template <class T, class V, class M> PF_INLINE void store_masked(T* p, V v, M m) {
#if PF_W > 1
  if constexpr (tr<V>::is_vec) {
    unsigned k = mask_bits(m);
    if constexpr (same<T, bool>::value) raw_store_bits(p, __builtin_convertvector(v.v & 1, vu8), k);
    else if constexpr (sizeof(T) == 2 && same<V, vf32>::value) raw_store_bits(p, narrow_vector(v, p), k);
#if PF_WIDE
    else if constexpr (sizeof(T) == 8) {
      raw_store_bits(p, v.lo, k & ((1u << PF_HALF) - 1u));
      raw_store_bits(p + PF_HALF, v.hi, k >> PF_HALF);
    }
#endif
    else raw_store_bits(p, v, k);
  } else
#endif
    if (m) store_one(p, v);
}
// One element for every lane that wants it, zero in the others; not read if none does.
template <class L, class T, class M> PF_INLINE typename L::template of<T> load_if(const T* p, M m) {
  typedef typename L::template of<T> V;
  bool wanted;
#if PF_W > 1
  if constexpr (L::lanes > 1) wanted = mask_bits(m) != 0;
  else
#endif
    wanted = m;
  return wanted ? where(m, fill<V>(load_one(p)), V{}) : V{};
}
}  // namespace pf
