// Matmuls by cuBLASLt, which is called with algorithms that it was asked for once. Part of launcher.cpp.
//
// Declared by hand, as the driver's API is: names end in what cuBLASLt calls them.

struct LtFound { uint64_t algorithm[8]; size_t workspace; int status; float waves; int reserved[4]; };

struct {
  int (*cublasLtCreate)(Handle*);
  int (*cublasLtMatmulDescCreate)(Handle*, int, int);
  int (*cublasLtMatmulDescDestroy)(Handle);
  int (*cublasLtMatmulDescSetAttribute)(Handle, int, const void*, size_t);
  int (*cublasLtMatrixLayoutCreate)(Handle*, int, uint64_t, uint64_t, int64_t);
  int (*cublasLtMatrixLayoutDestroy)(Handle);
  int (*cublasLtMatrixLayoutSetAttribute)(Handle, int, const void*, size_t);
  int (*cublasLtMatmulPreferenceCreate)(Handle*);
  int (*cublasLtMatmulPreferenceDestroy)(Handle);
  int (*cublasLtMatmulPreferenceSetAttribute)(Handle, int, const void*, size_t);
  int (*cublasLtMatmulAlgoGetHeuristic)(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int, LtFound*, int*);
  int (*cublasLtMatmul)(Handle, Handle, const void*, const void*, Handle, const void*, Handle, const void*, const void*,
                        Handle, void*, Handle, const void*, void*, size_t, Handle);
  bool ready;
} lt;

const Entry LT_ENTRIES[] = {
#define NEEDED(name) {#name, (void**)&lt.name, true}
    NEEDED(cublasLtCreate), NEEDED(cublasLtMatmulDescCreate), NEEDED(cublasLtMatmulDescDestroy),
    NEEDED(cublasLtMatmulDescSetAttribute), NEEDED(cublasLtMatrixLayoutCreate), NEEDED(cublasLtMatrixLayoutDestroy),
    NEEDED(cublasLtMatrixLayoutSetAttribute), NEEDED(cublasLtMatmulPreferenceCreate),
    NEEDED(cublasLtMatmulPreferenceDestroy), NEEDED(cublasLtMatmulPreferenceSetAttribute),
    NEEDED(cublasLtMatmulAlgoGetHeuristic), NEEDED(cublasLtMatmul),
#undef NEEDED
};

enum { COMPUTE_F32 = 68, TYPE_F32 = 0 };                                     // cublasComputeType_t, cudaDataType_t
enum { DESC_TRANS_A = 3, DESC_TRANS_B = 4, DESC_EPILOGUE = 7, DESC_BIAS = 8 };
enum { LAYOUT_BATCHES = 5, LAYOUT_BATCH_STEP = 6 };
enum { PREFER_WORKSPACE = 1, PREFER_REDUCTIONS = 3, PREFER_ALIGNMENT_A = 5 };  // behind it: of B, C and D
// Parts of a depth are added up in float32, whatever torch lets cuBLAS do: never less exact than eager mode.
enum { REDUCTIONS_IN_F32 = 3, LT_NO_MEMORY = 3, LT_ALIGNMENT = 16 };

// One matmul of a series, on the device of one context: what all its calls share.
struct Matmul {
  pf_matmul what;
  Handle context, blas, description, a, b, d;
  LtFound found;
  bool refused, busy;  // `busy`: somebody has set the bias of `description` and not made the call yet
};

// The library's own state for a context; made once.
Handle blas_in(Handle context) {
  static Handle contexts[MAX_DEVICES], made[MAX_DEVICES];
  static int count = 0;
  for (int i = 0; i < count; ++i)
    if (contexts[i] == context) return made[i];
  if (count == MAX_DEVICES || lt.cublasLtCreate(&made[count])) return nullptr;
  contexts[count] = context;
  return made[count++];
}

// An operand as the library sees it, whose matrices have neighbours in columns: rows that are dense are its columns.
Handle layout_of(const pf_matrix& x, const pf_matmul& what, int64_t rows, int64_t columns) {
  Handle layout = nullptr;
  const int batches = (int)what.batches;
  const uint64_t dense = x.columns_first ? rows : columns, others = x.columns_first ? columns : rows;
  if (lt.cublasLtMatrixLayoutCreate(&layout, what.dtype, dense, others, x.step)) return nullptr;
  if (batches > 1) {
    lt.cublasLtMatrixLayoutSetAttribute(layout, LAYOUT_BATCHES, &batches, sizeof batches);
    lt.cublasLtMatrixLayoutSetAttribute(layout, LAYOUT_BATCH_STEP, &x.batch, sizeof x.batch);
  }
  return layout;
}

void end_matmul(Matmul* m) {
  Handle const layouts[] = {m->a, m->b, m->d};
  for (Handle layout : layouts)
    if (layout) lt.cublasLtMatrixLayoutDestroy(layout);
  if (m->description) lt.cublasLtMatmulDescDestroy(m->description);
  m->a = m->b = m->d = m->description = nullptr;
}

bool ask_for_algorithm(Matmul* m, bool large_workspace) {
  Handle preference = nullptr;
  if (lt.cublasLtMatmulPreferenceCreate(&preference)) return false;
  // as torch has it
  const uint64_t bytes = large_workspace ? 32 << 20 : 8 << 20;
  const uint32_t reductions = REDUCTIONS_IN_F32, alignment = LT_ALIGNMENT;
  lt.cublasLtMatmulPreferenceSetAttribute(preference, PREFER_WORKSPACE, &bytes, sizeof bytes);
  lt.cublasLtMatmulPreferenceSetAttribute(preference, PREFER_REDUCTIONS, &reductions, sizeof reductions);
  for (int i = 0; i < 4; ++i)
    lt.cublasLtMatmulPreferenceSetAttribute(preference, PREFER_ALIGNMENT_A + i, &alignment, sizeof alignment);
  int count = 0;
  const int status = lt.cublasLtMatmulAlgoGetHeuristic(m->blas, m->description, m->a, m->b, m->d, m->d, preference, 1,
                                                       &m->found, &count);
  lt.cublasLtMatmulPreferenceDestroy(preference);
  return !status && count == 1 && !m->found.status;
}

// Finds out how to compute a matmul in the current context; false where the library does not, or another context has it.
bool ready(Matmul* m, Handle context, bool large_workspace) {
  if (m->context) return m->context == context && !m->refused;
  const pf_matmul& what = m->what;
  m->context = context, m->refused = true;
  // The result's rows are the library's columns, so it computes the transposed product.
  if (!(m->blas = blas_in(context)) || lt.cublasLtMatmulDescCreate(&m->description, COMPUTE_F32, TYPE_F32)) return false;
  m->a = layout_of(what.right, what, what.depth, what.columns);
  m->b = layout_of(what.left, what, what.rows, what.depth);
  m->d = layout_of(what.out, what, what.rows, what.columns);
  const int a = what.right.columns_first, b = what.left.columns_first;
  int status = lt.cublasLtMatmulDescSetAttribute(m->description, DESC_TRANS_A, &a, sizeof a);
  if (!status) status = lt.cublasLtMatmulDescSetAttribute(m->description, DESC_TRANS_B, &b, sizeof b);
  if (!status) status = lt.cublasLtMatmulDescSetAttribute(m->description, DESC_EPILOGUE, &what.epilogue, sizeof what.epilogue);
  const void* somewhere = (const void*)4096;
  if (!status && what.has_bias)
    status = lt.cublasLtMatmulDescSetAttribute(m->description, DESC_BIAS, &somewhere, sizeof somewhere);
  m->refused = status || !m->a || !m->b || !m->d || !ask_for_algorithm(m, large_workspace);
  return !m->refused;
}

// False with an error, and the interpreter's lock held.
bool multiply(Matmul* m, int64_t out, int64_t left, int64_t right, int64_t bias, Handle stream, Lock& lock) {
  const float one = 1, zero = 0;
  Memory workspace;
  if (m->found.workspace && !workspace.take((int64_t)m->found.workspace, lock)) return false;
  int status = 0;
  for (bool asked = false;; asked = true) {
    // whoever is busy may wait for the interpreter's lock until its call is made
    lock.leave();
    if (m->what.has_bias) {
      while (__atomic_test_and_set(&m->busy, __ATOMIC_ACQUIRE)) sched_yield();
      lt.cublasLtMatmulDescSetAttribute(m->description, DESC_BIAS, &bias, sizeof bias);
    }
    status = lt.cublasLtMatmul(m->blas, m->description, &one, (void*)right, m->a, (void*)left, m->b, &zero, (void*)out,
                               m->d, (void*)out, m->d, m->found.algorithm, workspace.at, m->found.workspace, stream);
    if (m->what.has_bias) __atomic_clear(&m->busy, __ATOMIC_RELEASE);
    if (status != LT_NO_MEMORY || asked) break;
    lock.enter();
    if (!gave_memory()) break;
  }
  workspace.give(lock);
  if (!status) return true;
  lock.enter();
  char cause[256];
  const pf_matmul& what = m->what;
  snprintf(cause, sizeof cause, "cuBLASLt could not launch a matmul of %lld by %lld by %lld (status %d)",
           (long long)what.rows, (long long)what.depth, (long long)what.columns, status);
  if (status == LT_NO_MEMORY) PyErr_SetString(services.memory_error, cause);
  else raise(services.launch_error, cause, "with POLYFUSE_DEBUG_SYNC=1 an error of an earlier kernel shows at its cause");
  return false;
}

void open_matmuls(const char* path) {
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  lt.ready = library != nullptr;
  for (const Entry& entry : LT_ENTRIES) {
    *entry.pointer = library ? dlsym(library, entry.name) : nullptr;
    lt.ready = lt.ready && *entry.pointer;
  }
}
