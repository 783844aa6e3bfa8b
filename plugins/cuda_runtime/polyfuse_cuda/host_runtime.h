// CUDA for models that run without Python: the functions that model/device.h of the C++ backend declares, over the driver,
// which is opened when the first model is made. Nothing of CUDA is included or linked.
#include <dlfcn.h>

namespace {
typedef void* cu_handle;
typedef unsigned long long cu_address;
struct cu_attribute {
  int id, padding, value[16];
};
struct cu_config {
  unsigned grid[3], block[3], shared;
  cu_handle stream;
  cu_attribute* attributes;
  unsigned count;
};
struct cu_copy {
  size_t from_x, from_y;
  int from_kind;
  const void* from_host;
  cu_address from_device;
  cu_handle from_array;
  size_t from_step, to_x, to_y;
  int to_kind;
  void* to_host;
  cu_address to_device;
  cu_handle to_array;
  size_t to_step, width, rows;
};
enum { CU_HOST = 1, CU_DEVICE = 2, CU_MEMORY_TYPE = 2, CU_MAJOR = 75, CU_MINOR = 76, CU_MOST_SHARED = 8, CU_WIDE_CLUSTER = 14 };
enum { CU_COOPERATIVE = 2, CU_CLUSTER = 4, CU_CLUSTER_SPREAD = 5, CU_EARLY = 6 };
enum { CU_USUAL_SHARED = 48 << 10, CU_EARLY_IN_GRAPHS = 12030 };

struct cu_driver {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*current)(cu_handle*);
  int (*push)(cu_handle);
  int (*pop)(cu_handle*);
  int (*device)(int*);
  int (*get)(int*, int);
  int (*attribute)(int*, int, int);
  int (*retain)(cu_handle*, int);
  int (*release)(int);
  int (*load)(cu_handle*, const void*);
  int (*unload)(cu_handle);
  int (*function)(cu_handle*, cu_handle, const char*);
  int (*set)(cu_handle, int, int);
  int (*launch)(const cu_config*, cu_handle, void**, void**);
  int (*allocate)(cu_address*, size_t);
  int (*free)(cu_address);
  int (*clear)(cu_address, unsigned char, size_t, cu_handle);
  int (*copy)(const cu_copy*, cu_handle);
  int (*pointer)(void*, int, cu_address);
  int (*wait)(cu_handle);
  int (*name)(int, const char**);
  int (*words)(int, const char**);
};
cu_driver cu;
const struct { const char* name; void* pointer; } cu_functions[] = {
    {"cuInit", &cu.init}, {"cuDriverGetVersion", &cu.version}, {"cuCtxGetCurrent", &cu.current},
    {"cuCtxPushCurrent_v2", &cu.push}, {"cuCtxPopCurrent_v2", &cu.pop}, {"cuCtxGetDevice", &cu.device},
    {"cuDeviceGet", &cu.get}, {"cuDeviceGetAttribute", &cu.attribute}, {"cuDevicePrimaryCtxRetain", &cu.retain},
    {"cuDevicePrimaryCtxRelease_v2", &cu.release}, {"cuModuleLoadData", &cu.load}, {"cuModuleUnload", &cu.unload},
    {"cuModuleGetFunction", &cu.function}, {"cuFuncSetAttribute", &cu.set}, {"cuLaunchKernelEx", &cu.launch},
    {"cuMemAlloc_v2", &cu.allocate}, {"cuMemFree_v2", &cu.free}, {"cuMemsetD8Async", &cu.clear},
    {"cuMemcpy2DAsync_v2", &cu.copy}, {"cuPointerGetAttribute", &cu.pointer}, {"cuStreamSynchronize", &cu.wait},
    {"cuGetErrorName", &cu.name}, {"cuGetErrorString", &cu.words}};
pthread_mutex_t cu_turn = PTHREAD_MUTEX_INITIALIZER;
bool cu_ready;
}  // namespace

struct device_state {
  cu_handle context, stream;
  int primary;  // the device whose own context is held; -1: the caller's context
  int chip;
  bool early;
  int count;
  const device_kernel* kernels;
  struct { cu_handle module, function; const device_code* code; } loaded[];
};

namespace {
// 0, or 1 and what was done, with the driver's words.
int cu_check(int status, const char* what, const char* name = "") {
  if (!status) return 0;
  const char *id = nullptr, *words = nullptr;
  cu.name(status, &id);
  cu.words(status, &words);
  return fail("%s%s failed: %s (%s)", what, name, words ? words : "no reason", id ? id : "unknown error");
}

int cu_open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return fail("the driver of the GPU cannot be opened (%s); install it", dlerror());
  for (const auto& row : cu_functions) {
    void* found = dlsym(library, row.name);
    if (!found) return fail("the driver of the GPU has no function %s; install a newer one", row.name);
    memcpy(row.pointer, &found, sizeof found);
  }
  return cu_check(cu.init(0), "starting the driver of the GPU");
}
int cu_prepare() {
  pthread_mutex_lock(&cu_turn);
  const int failed = cu_ready ? 0 : cu_open();
  cu_ready = !failed;
  pthread_mutex_unlock(&cu_turn);
  return failed;
}

// The context that is current, or the first device's own.
int cu_context(device_state* state) {
  int device = 0;
  state->primary = -1;
  if (!cu.current(&state->context) && state->context) return 0;
  if (cu_check(cu.get(&device, 0), "finding a GPU")) return 1;
  if (cu_check(cu.retain(&state->context, device), "making a context of the GPU")) return 1;
  state->primary = device;
  return 0;
}

// Newer chips run code of older ones of their major version, but from 9.0 on only their own.
const device_code* cu_code(const device_kernel& kernel, int chip) {
  const device_code* best = nullptr;
  for (int i = 0; i < kernel.codes; ++i) {
    const device_code& code = kernel.code[i];
    const bool runs = code.chip == chip || (chip < 90 && code.chip / 10 == chip / 10 && code.chip < chip);
    if (runs && (!best || code.chip > best->chip)) best = &code;
  }
  return best;
}

int cu_load(device_state* state, int position) {
  const device_kernel& kernel = state->kernels[position];
  auto& loaded = state->loaded[position];
  loaded.code = cu_code(kernel, state->chip);
  if (!loaded.code)
    return fail("kernel %s has no code for a GPU of compute capability %d.%d; make the package on one", kernel.name,
                state->chip / 10, state->chip % 10);
  // repeated layers launch one kernel
  for (int i = 0; i < position; ++i)
    if (state->loaded[i].code->code == loaded.code->code) {
      loaded.function = state->loaded[i].function;
      return 0;
    }
  if (cu_check(cu.load(&loaded.module, loaded.code->code), "loading kernel ", kernel.name)) return 1;
  int status = cu.function(&loaded.function, loaded.module, kernel.symbol);
  if (!status && loaded.code->shared > CU_USUAL_SHARED) status = cu.set(loaded.function, CU_MOST_SHARED, loaded.code->shared);
  if (!status && kernel.cluster > 8) status = cu.set(loaded.function, CU_WIDE_CLUSTER, 1);
  return cu_check(status, "loading kernel ", kernel.name);
}

int cu_load_all(device_state* state) {
  int device = 0, major = 0, minor = 0, version = 0;
  if (cu_check(cu.device(&device), "finding the GPU")) return 1;
  cu.attribute(&major, CU_MAJOR, device);
  cu.attribute(&minor, CU_MINOR, device);
  cu.version(&version);
  state->chip = major * 10 + minor;
  state->early = version >= CU_EARLY_IN_GRAPHS;
  for (int i = 0; i < state->count; ++i)
    if (cu_load(state, i)) return 1;
  return 0;
}

device_state* device_open(const device_kernel* kernels, int count) {
  if (cu_prepare()) return nullptr;
  device_state* state = (device_state*)calloc(1, sizeof(device_state) + count * sizeof(state->loaded[0]));
  if (!state) {
    fail("memory for the model could not be had");
    return nullptr;
  }
  state->kernels = kernels;
  state->count = count;
  if (cu_context(state)) {
    free(state);
    return nullptr;
  }
  int failed = device_enter(state);
  if (!failed) {
    failed = cu_load_all(state);
    device_leave(state);
  }
  if (!failed) return state;
  device_close(state);
  return nullptr;
}

void device_close(device_state* state) {
  if (!cu.push(state->context)) {
    cu.wait(state->stream);
    for (int i = 0; i < state->count; ++i)
      if (state->loaded[i].module) cu.unload(state->loaded[i].module);
    cu_handle popped;
    cu.pop(&popped);
  }
  if (state->primary >= 0) cu.release(state->primary);
  free(state);
}

int device_enter(device_state* state) { return cu_check(cu.push(state->context), "entering the context of the GPU"); }
void device_leave(device_state*) {
  cu_handle popped;
  cu.pop(&popped);
}
void device_stream(device_state* state, void* stream) { state->stream = stream; }
const device_code& device_code_of(device_state* state, int kernel) { return *state->loaded[kernel].code; }

int device_allocate(device_state*, int64_t bytes, void** at) {
  cu_address found = 0;
  const int status = cu.allocate(&found, bytes);
  *at = (void*)found;
  return status;
}
void device_free(device_state*, void* at) { cu.free((cu_address)at); }

bool device_holds(device_state*, const void* at) {
  unsigned kind = 0;
  return at && !cu.pointer(&kind, CU_MEMORY_TYPE, (cu_address)at) && kind == CU_DEVICE;
}

int device_clear(device_state* state, void* at, int64_t bytes) {
  return cu_check(cu.clear((cu_address)at, 0, bytes, state->stream), "clearing memory of the GPU");
}

int device_copy(device_state* state, void* to, int64_t to_step, const void* from, int64_t from_step, int64_t width,
                int64_t rows) {
  if (width <= 0 || rows <= 0) return 0;
  cu_copy copy;
  memset(&copy, 0, sizeof copy);
  const bool to_device = device_holds(state, to), from_device = device_holds(state, from);
  copy.from_kind = from_device ? CU_DEVICE : CU_HOST;
  copy.to_kind = to_device ? CU_DEVICE : CU_HOST;
  copy.from_host = from, copy.from_device = (cu_address)from, copy.from_step = from_step;
  copy.to_host = to, copy.to_device = (cu_address)to, copy.to_step = to_step;
  copy.width = width, copy.rows = rows;
  // a single row may be longer than rows may lie apart
  const int64_t most = INT64_C(1) << 30;
  for (int64_t done = 0; done < width; done += most) {
    if (rows == 1) {
      copy.width = width - done < most ? width - done : most;
      copy.from_step = copy.to_step = copy.width;
      copy.from_host = (const char*)from + done, copy.from_device = (cu_address)from + done;
      copy.to_host = (char*)to + done, copy.to_device = (cu_address)to + done;
    }
    if (cu_check(cu.copy(&copy, state->stream), "copying to or from the GPU")) return 1;
    if (rows > 1) break;
  }
  return 0;
}

int device_launch(device_state* state, int position, const int64_t* grid, void** parameters) {
  const device_kernel& kernel = state->kernels[position];
  const device_code& code = *state->loaded[position].code;
  if (grid[0] > INT32_MAX / kernel.cluster || grid[1] > 65535 || grid[2] > 65535)
    return fail("kernel %s would need a grid of %lld by %lld by %lld programs, and a device takes 2147483647 by 65535 by 65535; "
                "use smaller sizes",
                kernel.name, (long long)grid[0], (long long)grid[1], (long long)grid[2]);
  cu_attribute attributes[4];
  memset(attributes, 0, sizeof attributes);
  unsigned count = 0;
  const auto add = [&](int id, int value) { attributes[count].id = id, attributes[count++].value[0] = value; };
  if (kernel.cooperative) add(CU_COOPERATIVE, 1);
  if (kernel.cluster > 1) {
    add(CU_CLUSTER, kernel.cluster);
    attributes[count - 1].value[1] = attributes[count - 1].value[2] = 1;
    add(CU_CLUSTER_SPREAD, 1);
  }
  if (code.starts_early && state->early) add(CU_EARLY, 1);
  const cu_config config = {{(unsigned)grid[0] * kernel.cluster, (unsigned)grid[1], (unsigned)grid[2]},
                            {(unsigned)code.threads, 1, 1},
                            (unsigned)code.shared,
                            state->stream,
                            attributes,
                            count};
  return cu_check(cu.launch(&config, state->loaded[position].function, parameters, nullptr), "launching kernel ", kernel.name);
}

int device_wait(device_state* state) { return cu_check(cu.wait(state->stream), "waiting for the GPU"); }
}  // namespace
