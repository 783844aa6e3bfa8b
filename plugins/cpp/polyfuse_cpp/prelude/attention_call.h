// A call of attention, and which keys its queries see.
namespace pf {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16 && PF_DOT_BF16
enum { attention_rows = 32, attention_keys = 256, attention_pitch = attention_keys + 16 };
// Queries from which laying out keys and values for matrix registers pays.
enum { attention_fewest = 8 };
// How scores become logarithms of weights: as they are, times a positive factor; times any factor; with a mask.
enum { attention_plain, attention_scaled, attention_added, attention_added_bf16 };

// One call. Strides are those of images, heads and rows, in elements; numbers of a head lie side by side.
template <class T> struct attention_call {
  const T *query, *key, *value;
  const void* mask;
  T* result;
  f32* logs;  // of sums of weights, or null
  f32* greatest;  // scores, or null
  i64 images, heads, key_heads, queries, keys;
  i64 query_step[3], key_step[3], value_step[3], mask_step[3], result_step[3], logs_step[3], greatest_step[3];
  f32 scale;
  bool causal;
  // what logarithms and greatest scores are multiplied with, and the logarithm of a row without keys
  f32 log_factor = 1.0f, empty_log = 0.0f;
  i64 key_rows() const { return (keys + 31) / 32 * 32; }
  i64 blocks() const { return (queries + attention_rows - 1) / attention_rows; }
};

// Logarithms of weights beyond which the product of a score and the factor is rounded too much.
template <class T> struct attention_of {
  static constexpr f32 large = 1048576.0f;
  enum { narrow = true };
  typedef T held;  // what operands are laid out as
};
// Their difference from block to block would show in f32.
template <> struct attention_of<f32> {
  static constexpr f32 large = 64.0f;
  enum { narrow = false };
  typedef f32 held;
};
template <> struct attention_of<f16> : attention_of<f32> {};
template <class T> using attention_held = typename attention_of<T>::held;
PF_INLINE vf32 attention_greater(vf32 a, vf32 b) {
  return (vf32)__builtin_ia32_maxps512_mask(a, b, a, (unsigned short)-1, 4);
}
// 2^x for x up to 127, with an error of 2^-13 of it where weights are rounded to bf16.
template <class T> PF_INLINE vf32 attention_power(vf32 x) {
  const vf32 r = (vf32)__builtin_ia32_reduceps512_mask(x, 9, x, (unsigned short)-1);
  vf32 p;
  if constexpr (attention_of<T>::narrow) p = horner(r, 0.999925196, 0.695833504, 0.226067171, 0.0780245215);
  else p = horner(r, 1, 0.693146933, 0.240230454, 0.0554806302, 0.00968418631, 0.00123913318, 0.000218657848);
  return (vf32)__builtin_ia32_scalefps512_mask(p, x, p, (unsigned short)-1, 4);
}
// Denormal numbers are zero meanwhile: weights that underflow would take longer than all others.
struct attention_mode {
  u32 before;
  attention_mode() {
    __asm__ volatile("stmxcsr %0" : "=m"(before));
    const u32 now = before | 0x8040;
    __asm__ volatile("ldmxcsr %0" : : "m"(now) : "memory");
#if PF_AMX
    matrix_begin<32>();
#endif
  }
  ~attention_mode() {
#if PF_AMX
    matrix_end();
#endif
    __asm__ volatile("ldmxcsr %0" : : "m"(before) : "memory");
  }
};

// Scores of one row, of which `there` are seen and all others become minus infinity, with their factor and mask.
template <int MODE>
static __attribute__((noinline)) void attention_row(f32* s, i64 there, i64 width, f32 scale, const void* mask) {
  for (i64 j = MODE == attention_plain ? there / 16 * 16 : 0; j < width; j += 16) {
    const int n = int(index_max(0, index_min(16, there - j)));
    vf32 x = load<Vec>(s + j);
    if constexpr (MODE != attention_plain) x *= fill<vf32>(scale);
    if constexpr (MODE == attention_added) x += load_n<Vec>((const f32*)mask + j, n);
    if constexpr (MODE == attention_added_bf16) x += load_n<Vec>((const bf16*)mask + j, n);
    store(s + j, n == 16 ? x : where(first_n<Vec>(n), x, fill<vf32>(-__builtin_inff())));
  }
}
// Which keys a query sees, and what becomes of its scores: here as `MODE` says.
template <int MODE> struct attention_rule {
  // whether the factor of scores waits until the greatest one is taken away
  static constexpr bool waits = MODE == attention_plain;
  // Whether queries of heads that share a head of keys see the same blocks of keys.
  template <class T> bool is_shared(const attention_call<T>&) const { return true; }
  // Blocks of keys that some queries see: `each(from, count, whole)`, where of whole ones nothing is hidden.
  template <class T, class Each>
  inline void walk(const attention_call<T>& c, i64, i64, i64, i64 end, const Each& each) const {
    const i64 seen = c.causal ? index_min(c.keys, end) : c.keys;
    for (i64 from = 0; from < seen; from += attention_keys) each(from, index_min(attention_keys, seen - from), !c.causal);
  }
  // Whether scores are anything but products.
  template <class T> bool touches(const attention_call<T>& c, i64 first, i64 from, i64 here, i64 width, bool) const {
    return MODE != attention_plain || here < width || (c.causal && from + width > first);
  }
  // The scores of a query, `here` of `width` of which are there.
  template <class T>
  void row(const attention_call<T>& c, f32* s, i64 image, i64 head, i64 query, i64 from, i64 here, i64 width, bool) const {
    const i64 there = c.causal ? index_max(0, index_min(here, query + 1 - from)) : here;
    const void* mask = nullptr;
    if (MODE >= attention_added) {
      const i64 row = index_min(query, c.queries - 1);
      const i64 at = image * c.mask_step[0] + head * c.mask_step[1] + row * c.mask_step[2] + from;
      mask = (const char*)c.mask + at * (MODE == attention_added ? 4 : 2);
    }
    attention_row<MODE>(s, there, width, c.scale, mask);
  }
};
#endif
}  // namespace pf
