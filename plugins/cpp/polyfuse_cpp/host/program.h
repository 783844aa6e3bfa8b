// What printed host programs are made of, above host.h.
typedef int64_t i64;
namespace {
// Rounded towards minus infinity, as sizes are computed everywhere; divisors are never 0.
inline i64 index_div(i64 a, i64 b) { i64 q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); }
inline i64 index_mod(i64 a, i64 b) { i64 r = a % b; return r + (((r != 0) & ((r < 0) != (b < 0))) ? b : 0); }
inline i64 index_min(i64 a, i64 b) { return a < b ? a : b; }
inline i64 index_max(i64 a, i64 b) { return a > b ? a : b; }
inline i64 index_root(i64 n) {
  i64 low = 0, high = 3037000499;  // its square is the last one below 2^63
  while (low < high) {
    const i64 middle = low + (high - low + 1) / 2;
    if (middle * middle <= n) low = middle; else high = middle - 1;
  }
  return low;
}

// A reference that the program owns.
struct owner {
  const pf_runtime* runtime;
  pf_ref ref;
  explicit owner(const pf_runtime* s, pf_ref r = nullptr) : runtime(s), ref(r) {}
  owner(const owner&) = delete;
  owner& operator=(const owner&) = delete;
  ~owner() { drop(); }
  void drop() {
    if (ref) runtime->release(runtime->context, ref);
    ref = nullptr;
  }
  void take(pf_word word) { drop(); ref = word.ref; }
  pf_word give() { pf_word word; word.ref = ref; ref = nullptr; return word; }
};

inline bool fetch(const pf_runtime* s, pf_ref tensor, char*& at) {
  void* found = nullptr;
  if (s->data(s->context, tensor, &found)) return false;
  at = (char*)found;
  return true;
}
inline pf_word word(i64 i) { pf_word w; w.i = i; return w; }
inline pf_word lent(const owner& o) { pf_word w; w.ref = o.ref; return w; }
inline pf_word lent(pf_ref r) { pf_word w; w.ref = r; return w; }
}  // namespace
