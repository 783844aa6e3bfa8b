/* A cuBLASLt whose matrices are the host's, of 16 bits: it computes what a descriptor says, column by column. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int dtype, batches; uint64_t rows, columns; int64_t step, batch; } Layout;
typedef struct { int compute, scale, transposed[2], epilogue; const void* bias; } Description;
typedef struct { uint64_t bytes; uint32_t reductions, alignments[4]; } Preference;
typedef struct { uint64_t algorithm[8]; size_t workspace; int status; float waves; int reserved[4]; } Found;
static int handles, living, asked, calls, refusing, failing, need;

static float read_one(const void* at, int64_t i, int dtype) {
  if (dtype == 2) return (float)((const _Float16*)at)[i];
  uint32_t bits = (uint32_t)((const uint16_t*)at)[i] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static void write_one(void* at, int64_t i, int dtype, float value) {
  if (dtype == 2) { ((_Float16*)at)[i] = (_Float16)value; return; }
  uint32_t bits;
  memcpy(&bits, &value, 4);
  ((uint16_t*)at)[i] = (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
static void* made(void** into, size_t bytes) { ++living; return *into = calloc(1, bytes); }
static int ended(void* one) { --living; free(one); return 0; }

int cublasLtCreate(void** h) { *h = (void*)(uintptr_t)(0x100 + handles++); return 0; }
int cublasLtMatmulDescCreate(Description** d, int compute, int scale) {
  Description* one = made((void**)d, sizeof **d);
  one->compute = compute, one->scale = scale, one->epilogue = 1;
  return 0;
}
int cublasLtMatmulDescDestroy(void* d) { return ended(d); }
int cublasLtMatmulDescSetAttribute(Description* d, int what, const void* value, size_t size) {
  if (what == 3 || what == 4) { memcpy(&d->transposed[what - 3], value, 4); return size != 4; }
  if (what == 7) { memcpy(&d->epilogue, value, 4); return size != 4; }
  if (what == 8) { memcpy(&d->bias, value, 8); return size != 8; }
  return 7;
}
int cublasLtMatrixLayoutCreate(Layout** l, int dtype, uint64_t rows, uint64_t columns, int64_t step) {
  if (step < (int64_t)rows) return 7;
  *(Layout*)made((void**)l, sizeof **l) = (Layout){dtype, 1, rows, columns, step, 0};
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* l) { return ended(l); }
int cublasLtMatrixLayoutSetAttribute(Layout* l, int what, const void* value, size_t size) {
  if (what == 5) { memcpy(&l->batches, value, 4); return size != 4; }
  if (what == 6) { memcpy(&l->batch, value, 8); return size != 8; }
  return 7;
}
int cublasLtMatmulPreferenceCreate(void** p) { made(p, sizeof(Preference)); return 0; }
int cublasLtMatmulPreferenceDestroy(void* p) { return ended(p); }
int cublasLtMatmulPreferenceSetAttribute(Preference* p, int what, const void* value, size_t size) {
  if (what == 1) { memcpy(&p->bytes, value, 8); return size != 8; }
  if (what == 3) { memcpy(&p->reductions, value, 4); return size != 4; }
  if (what < 5 || what > 8) return 7;
  memcpy(&p->alignments[what - 5], value, 4);
  return size != 4;
}
int cublasLtMatmulAlgoGetHeuristic(void* h, Description* d, Layout* a, Layout* b, Layout* c, Layout* o, Preference* p,
                                   int wanted, Found* found, int* count) {
  ++asked, *count = 0;
  if (refusing || wanted != 1 || p->reductions & 4 || p->bytes < (uint64_t)need) return 15;
  for (int i = 0; i < 4; ++i) if (p->alignments[i] != 16) return 7;
  memset(found, 0, sizeof *found);
  found->algorithm[0] = 42, found->workspace = need, *count = 1;
  return 0;
}
int cublasLtMatmul(void* h, Description* d, const float* alpha, const char* a, Layout* la, const char* b, Layout* lb,
                   const float* beta, const void* c, Layout* lc, char* out, Layout* lo, const uint64_t* algorithm,
                   void* workspace, size_t bytes, void* stream) {
  if (failing) return failing;
  ++calls;
  const uint64_t rows = lo->rows, columns = lo->columns, depth = d->transposed[0] ? la->rows : la->columns;
  if (d->compute != 68 || *alpha != 1 || *beta != 0 || algorithm[0] != 42 || bytes < (size_t)need || (need && !workspace)) return 7;
  if ((d->transposed[0] ? la->columns : la->rows) != rows || (d->transposed[1] ? lb->rows : lb->columns) != columns ||
      (d->transposed[1] ? lb->columns : lb->rows) != depth || ((uintptr_t)a | (uintptr_t)b) & 15) return 7;
  for (int n = 0; n < lo->batches; ++n)
    for (uint64_t i = 0; i < rows; ++i)
      for (uint64_t j = 0; j < columns; ++j) {
        float sum = d->epilogue & 4 ? read_one(d->bias, i, lo->dtype) : 0;
        for (uint64_t k = 0; k < depth; ++k)
          sum += read_one(a, n * la->batch + (d->transposed[0] ? k + i * la->step : i + k * la->step), la->dtype) *
                 read_one(b, n * lb->batch + (d->transposed[1] ? j + k * lb->step : k + j * lb->step), lb->dtype);
        if (d->epilogue & 2) sum = sum > 0 ? sum : 0;
        if (d->epilogue & 32) sum = 0.5f * sum * (1 + tanhf(0.79788456f * (sum + 0.044715f * sum * sum * sum)));
        write_one(out, n * lo->batch + i + j * lo->step, lo->dtype, sum);
      }
  return 0;
}
int fake_living(void) { return living; }
int fake_asked(void) { return asked; }
int fake_calls(void) { return calls; }
void fake_set(int refuse, int fail, int bytes) { refusing = refuse, failing = fail, need = bytes; }
