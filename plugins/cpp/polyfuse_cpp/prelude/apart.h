// Functions of f32 that are not inlined, apart_exp beside exp: for kernels that call them very often, of which
// the compiler would make as many copies.
#define PF_APART(T, NAME) \
  static __attribute__((noinline, unused)) T apart_##NAME(T x) { return NAME(x); }
