/* A driver of GPUs whose memory is the host's and whose code names shared libraries: kernels are functions of the host. What a
   real driver refuses, it refuses: addresses of the wrong memory, calls without a context. Environment: FAKE_CHIP, the compute
   capability (90); FAKE_BYTES, how much memory there is; FAKE_LOG, a file that says at the end what was done. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void* H;
typedef unsigned long long A;
enum { BLOCKS = 65536, DEEPEST = 64 };
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static struct { char* at; size_t bytes; } blocks[BLOCKS];
static int held;
static long long bytes, most, allocations, launches, copies, waits, loads, unloads, contexts, streams;
static __thread int depth;
static __thread H entered;
static int failing;
static struct { H module, function; int parameters; } kernels[1024];
static int known;

static long long setting(const char* name, long long usual) {
  const char* text = getenv(name);
  return text ? atoll(text) : usual;
}
static int block_of(A at, size_t count) {
  int found = -1;
  pthread_mutex_lock(&turn);
  for (int i = 0; i < held && found < 0; ++i)
    if ((char*)at >= blocks[i].at && (char*)at + count <= blocks[i].at + blocks[i].bytes) found = i;
  pthread_mutex_unlock(&turn);
  return found;
}
__attribute__((destructor)) static void tell(void) {
  const char* path = getenv("FAKE_LOG");
  FILE* file = path ? fopen(path, "w") : 0;
  if (!file) return;
  fprintf(file, "{\"left\": %d, \"most\": %lld, \"allocations\": %lld, \"launches\": %lld, \"copies\": %lld, \"waits\": %lld,"
          " \"loaded\": %lld, \"contexts\": %lld, \"streams\": %lld}", held, most, allocations, launches, copies, waits,
          loads - unloads, contexts, streams);
  fclose(file);
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuCtxGetCurrent(H* c) { *c = entered; return 0; }
int cuCtxSetCurrent(H c) { entered = c; return c != (H)0x1000 ? 201 : 0; }
int cuCtxPushCurrent_v2(H c) { return c != (H)0x1000 || ++depth > DEEPEST ? 201 : 0; }
int cuCtxPopCurrent_v2(H* c) { *c = (H)0x1000; return depth-- > 0 ? 0 : 201; }
int cuCtxGetDevice(int* d) { *d = 0; return depth || entered ? 0 : 201; }
int cuDeviceGet(int* d, int n) { *d = n; return n ? 101 : 0; }
int cuDeviceGetAttribute(int* v, int a, int d) {
  const int chip = (int)setting("FAKE_CHIP", 90);
  *v = a == 75 ? chip / 10 : a == 76 ? chip % 10 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(H* c, int d) { *c = (H)0x1000; ++contexts; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { --contexts; return 0; }
/* Code is a number, of parameters, and the path of a library. */
int cuModuleLoadData(H* m, const void* code) {
  char path[4096];
  int count = 0;
  if ((!depth && !entered) || sscanf(code, "%d %4095s", &count, path) != 2 || !(*m = dlopen(path, RTLD_NOW | RTLD_LOCAL))) return 200;
  kernels[known].module = *m, kernels[known++].parameters = count;
  ++loads;
  return 0;
}
int cuModuleUnload(H m) { ++unloads; return 0; }
int cuModuleGetFunction(H* f, H m, const char* name) {
  *f = dlsym(m, name);
  for (int i = 0; i < known; ++i)
    if (kernels[i].module == m) kernels[i].function = *f;
  return *f ? 0 : 500;
}
int cuFuncSetAttribute(H f, int a, int v) { return 0; }
int cuGetErrorName(int s, const char** text) { *text = s == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE"; return 0; }
int cuGetErrorString(int s, const char** text) { *text = s == 2 ? "out of memory" : "invalid argument"; return 0; }

int cuMemAlloc_v2(A* at, size_t count) {
  if (!depth) return 201;
  if (bytes + (long long)count > setting("FAKE_BYTES", 1LL << 40)) return 2;
  char* made = aligned_alloc(256, (count + 255) / 256 * 256);
  memset(made, 0xAB, count);
  pthread_mutex_lock(&turn);
  blocks[held].at = made, blocks[held++].bytes = count;
  bytes += (long long)count, ++allocations;
  if (bytes > most) most = bytes;
  pthread_mutex_unlock(&turn);
  *at = (A)made;
  return 0;
}
int cuMemFree_v2(A at) {
  int i = 0;
  if (!depth) return 201;
  pthread_mutex_lock(&turn);
  while (i < held && blocks[i].at != (char*)at) ++i;
  const int known_block = i < held;
  if (known_block) {
    bytes -= (long long)blocks[i].bytes;
    free(blocks[i].at);
    blocks[i] = blocks[--held];
  }
  pthread_mutex_unlock(&turn);
  return !known_block;
}
int cuPointerGetAttribute(void* found, int what, A at) {
  if (block_of(at, 0) < 0) return 1;
  *(unsigned*)found = 2;
  return 0;
}
int cuMemsetD8Async(A at, unsigned char value, size_t count, H stream) {
  if (!depth || block_of(at, count) < 0) return 1;
  memset((void*)at, value, count);
  return 0;
}
struct copy {
  size_t from_x, from_y;
  int from_kind;
  const char* from_host;
  A from_device;
  H from_array;
  size_t from_step, to_x, to_y;
  int to_kind;
  char* to_host;
  A to_device;
  H to_array;
  size_t to_step, width, rows;
};
int cuMemcpy2DAsync_v2(const struct copy* c, H stream) {
  const size_t from_all = (c->rows - 1) * c->from_step + c->width, to_all = (c->rows - 1) * c->to_step + c->width;
  const char* from = c->from_kind == 2 ? (const char*)c->from_device : c->from_host;
  char* to = c->to_kind == 2 ? (char*)c->to_device : c->to_host;
  if (!depth || (c->rows > 1 && (c->from_step < c->width || c->to_step < c->width))) return 1;
  if ((block_of((A)from, from_all) >= 0) != (c->from_kind == 2) || (block_of((A)to, to_all) >= 0) != (c->to_kind == 2)) return 1;
  for (size_t i = 0; i < c->rows; ++i) memcpy(to + i * c->to_step, from + i * c->from_step, c->width);
  ++copies;
  return 0;
}
int cuStreamSynchronize(H stream) { ++waits; return depth ? 0 : 201; }

struct config { unsigned grid[3], block[3], shared; H stream; void* attributes; unsigned count; };
/* All parameters are words: addresses and integers. */
int cuLaunchKernelEx(const struct config* c, H f, void** p, void** extra) {
  if ((!depth && !entered) || !c->grid[0] || !c->grid[1] || !c->grid[2]) return 1;
  if (failing && !--failing) return 1;
  uint64_t w[24] = {0};
  int count = 0;
  for (int i = 0; i < known; ++i)
    if (kernels[i].function == f) count = kernels[i].parameters;
  for (int i = 0; i < count; ++i) w[i] = *(uint64_t*)p[i];
  pthread_mutex_lock(&turn);
  ++launches;
  streams += c->stream != 0;
  pthread_mutex_unlock(&turn);
  ((void (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
             uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
             uint64_t))f)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15],
                          w[16], w[17], w[18], w[19], w[20], w[21], w[22], w[23]);
  return 0;
}
int cuLaunchKernel(H f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, H stream,
                   void** p, void** extra) {
  const struct config c = {{x, y, z}, {bx, by, bz}, shared, stream, 0, 0};
  return cuLaunchKernelEx(&c, f, p, extra);
}
long long fake_launches(void) { return launches; }
/* The launch after so many fails. */
void fake_fail_after(int count) { failing = count + 1; }
