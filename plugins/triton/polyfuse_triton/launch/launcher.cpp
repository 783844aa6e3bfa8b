// Starts kernels: one Python callable for each, made without Python.h and without CUDA's headers, so that any
// C++ compiler builds this file, once, for every Python. See native.py, which fills the structures below.
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher.h"

namespace {

struct {
  int (*cuInit)(unsigned);
  int (*cuCtxGetCurrent)(Handle*);
  int (*cuCtxSetCurrent)(Handle);
  int (*cuCtxPushCurrent_v2)(Handle);
  int (*cuCtxPopCurrent_v2)(Handle*);
  int (*cuCtxGetDevice)(int*);
  int (*cuDeviceGet)(int*, int);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuDevicePrimaryCtxRetain)(Handle*, int);
  int (*cuModuleLoadData)(Handle*, const void*);
  int (*cuModuleUnload)(Handle);
  int (*cuModuleGetFunction)(Handle*, Handle, const char*);
  int (*cuFuncSetAttribute)(Handle, int, int);
  int (*cuLaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,
                        void**, void**);
  int (*cuLaunchKernelEx)(const LaunchConfig*, Handle, void**, void**);
  int (*cuMemsetD8Async)(Address, unsigned char, size_t, Handle);
  int (*cuStreamIsCapturing)(Handle, int*);
  int (*cuGetErrorName)(int, const char**);
  int (*cuGetErrorString)(int, const char**);
} cu;

struct Entry { const char* name; void** pointer; bool needed; };
const Entry ENTRIES[] = {
#define NEEDED(name) {#name, (void**)&cu.name, true}
    NEEDED(cuInit), NEEDED(cuCtxGetCurrent), NEEDED(cuCtxSetCurrent), NEEDED(cuCtxPushCurrent_v2),
    NEEDED(cuCtxPopCurrent_v2), NEEDED(cuCtxGetDevice), NEEDED(cuDeviceGet), NEEDED(cuDeviceGetAttribute),
    NEEDED(cuDevicePrimaryCtxRetain), NEEDED(cuModuleLoadData), NEEDED(cuModuleUnload),
    NEEDED(cuModuleGetFunction), NEEDED(cuFuncSetAttribute), NEEDED(cuLaunchKernel),
    NEEDED(cuGetErrorName), NEEDED(cuGetErrorString),
#undef NEEDED
    // since CUDA 11.8; only clusters, cooperative launches and programmatic dependent launches ask for it
    {"cuLaunchKernelEx", (void**)&cu.cuLaunchKernelEx, false},
    // only kernels with memory that begins as zeros
    {"cuMemsetD8Async", (void**)&cu.cuMemsetD8Async, false},
    // since CUDA 10
    {"cuStreamIsCapturing", (void**)&cu.cuStreamIsCapturing, false},
};

pf_services services;
int type_slot = 1;  // where a PyObject keeps its type: depends on whether this Python has a GIL
bool ending = false;
char problem[512];

struct Variant { int arch, shared, threads, scratch, scratch_align; bool starts_early; char* code; };
// `captured`: a graph of the user's may launch it, at any time from now on.
struct Slot { Handle context, module, function; int device; const Variant* variant; bool captured; };
struct Kernel {
  char *name, *symbol, *codes, *arguments, *guard;
  int count, ctas, variants, slots;
  bool cooperative;
  int64_t* programs;
  int lengths[5];
  Variant* variant;
  Slot slot[MAX_DEVICES];
  PyObject* label;
  pf_method method;
};
union Value { void* p; int64_t i; int32_t n; float f; double d; };

const char* const CAPSULE = "polyfuse kernel";

void raise(PyObject* type, const char* cause, const char* fix) {
  if (PyObject* error = PyObject_CallFunction(type, "ss", cause, fix)) {
    PyErr_SetObject(type, error);
    Py_DecRef(error);
  }
}

void raise_driver(PyObject* type, const Kernel* k, const char* doing, int status, const char* fix) {
  const char *name = nullptr, *words = nullptr;
  cu.cuGetErrorName(status, &name);
  cu.cuGetErrorString(status, &words);
  char cause[768];
  snprintf(cause, sizeof cause, "kernel %s could not be %s: %s (%s)", k->name, doing, words ? words : "no reason",
           name ? name : "unknown error");
  if (status == OUT_OF_MEMORY) PyErr_SetString(services.memory_error, cause);
  else raise(type, cause, fix);
}

// Whether the device was given memory that this process had cached, so that it may be asked once more.
bool gave_memory() {
  PyObject* done = PyObject_CallFunction(services.free_memory, nullptr);
  if (!done) return PyErr_Clear(), false;
  Py_DecRef(done);
  return true;
}

#include "arguments.h"

const Variant* variant_for(const Kernel* k, int arch) {
  const Variant* best = nullptr;
  for (int i = 0; i < k->variants; ++i) {
    const Variant* v = &k->variant[i];
    if (v->arch == arch) return v;
    // code before 9.0 runs on later GPUs of the same major version
    const bool runs = arch < 90 && v->arch / 10 == arch / 10 && v->arch < arch;
    if (runs && (!best || best->arch < v->arch)) best = v;
  }
  return best;
}

// Makes a context current on a thread that has none.
bool enter_context(Handle* context) {
  PyObject* index = PyObject_CallFunction(services.current_device, nullptr);
  if (!index) return false;
  const int ordinal = (int)PyLong_AsLongLong(index);
  Py_DecRef(index);
  int device = 0;
  int status = cu.cuInit(0);
  if (!status) status = cu.cuDeviceGet(&device, ordinal);
  if (!status) status = cu.cuDevicePrimaryCtxRetain(context, device);
  if (!status) status = cu.cuCtxSetCurrent(*context);
  if (status) {
    const char* words = nullptr;
    cu.cuGetErrorString(status, &words);
    if (status == OUT_OF_MEMORY) PyErr_SetString(services.memory_error, words ? words : "no memory for a context");
    else raise(services.load_error, words ? words : "the driver fails", "check `nvidia-smi`");
  }
  return !status;
}

Slot* slot_here(Kernel* k, bool again = false);

// Loads the code into the current context. `again`: not for the first time.
Slot* load(Kernel* k, Handle context, bool again) {
  int device = 0, major = 0, minor = 0;
  int status = cu.cuCtxGetDevice(&device);
  if (!status) status = cu.cuDeviceGetAttribute(&major, MAJOR, device);
  if (!status) status = cu.cuDeviceGetAttribute(&minor, MINOR, device);
  if (status) {
    raise_driver(services.load_error, k, "loaded", status, "check `nvidia-smi`");
    return nullptr;
  }
  const Variant* v = variant_for(k, major * 10 + minor);
  if (!v || k->slots == MAX_DEVICES) {
    char cause[512];
    snprintf(cause, sizeof cause, "kernel %s has no code for device %d, of compute capability %d.%d", k->name, device,
             major, minor);
    raise(services.load_error, cause, "name its architecture in the option `triton.target`, or leave it empty");
    return nullptr;
  }
  Slot* slot = &k->slot[k->slots];
  *slot = {context, nullptr, nullptr, device, v, false};
  status = cu.cuModuleLoadData(&slot->module, v->code);
  if (!status) {
    status = cu.cuModuleGetFunction(&slot->function, slot->module, k->symbol);
    if (!status && v->shared > USUAL_SHARED)
      status = cu.cuFuncSetAttribute(slot->function, MAX_DYNAMIC_SHARED, v->shared);
    if (!status && k->ctas > 8) status = cu.cuFuncSetAttribute(slot->function, NON_PORTABLE_CLUSTER, 1);
    if (status) cu.cuModuleUnload(slot->module);
  }
  if (status) {
    // another thread may load it meanwhile
    if (status == OUT_OF_MEMORY && !again && gave_memory()) return slot_here(k, true);
    raise_driver(services.load_error, k, "loaded", status, "delete it from the cache and compile again");
    return nullptr;
  }
  ++k->slots;
  return slot;
}

Slot* slot_in(Kernel* k, Handle context, bool again = false) {
  for (int i = 0; i < k->slots; ++i)
    if (k->slot[i].context == context) return &k->slot[i];
  return load(k, context, again);
}

// The context of this thread; null with an error.
Handle context_here() {
  Handle context = nullptr;
  if ((cu.cuCtxGetCurrent(&context) || !context) && !enter_context(&context)) return nullptr;
  return context;
}

Slot* slot_here(Kernel* k, bool again) {
  const Handle context = context_here();
  return context ? slot_in(k, context, again) : nullptr;
}

bool stream_of(int device, Handle* stream) {
  if (services.stream && services.stream(device, stream) == 0) return true;
  PyObject* number = PyObject_CallFunction(services.python_stream, "i", device);
  if (!number) return false;
  *stream = PyLong_AsVoidPtr(number);
  Py_DecRef(number);
  return *stream || !PyErr_Occurred();
}

int start(const Kernel* k, const Slot* slot, const int64_t* grid, Handle stream, void** parameters) {
  const Variant* v = slot->variant;
  const unsigned x = (unsigned)grid[0] * k->ctas, y = (unsigned)grid[1], z = (unsigned)grid[2];
  if (k->ctas == 1 && !k->cooperative && !v->starts_early)
    return cu.cuLaunchKernel(slot->function, x, y, z, v->threads, 1, 1, v->shared, stream, parameters, nullptr);
  LaunchAttribute attributes[4];
  memset(attributes, 0, sizeof attributes);
  unsigned count = 0;
  if (k->cooperative) {
    attributes[count].id = COOPERATIVE;
    attributes[count++].value.words[0] = 1;
  }
  if (k->ctas > 1) {
    attributes[count].id = CLUSTER_DIMENSION;
    int* shape = attributes[count++].value.words;
    shape[0] = k->ctas, shape[1] = shape[2] = 1;
    attributes[count].id = CLUSTER_SCHEDULING;
    attributes[count++].value.words[0] = 1;  // spread
  }
  if (v->starts_early) {
    attributes[count].id = PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count++].value.words[0] = 1;
  }
  const LaunchConfig config = {{x, y, z}, {(unsigned)v->threads, 1, 1}, (unsigned)v->shared, stream, attributes, count};
  return cu.cuLaunchKernelEx(&config, slot->function, parameters, nullptr);
}

// The interpreter's lock, of which this thread lets go while it needs nothing of Python.
struct Lock {
  void* thread = nullptr;
  void leave() { if (!thread) thread = PyEval_SaveThread(); }
  void enter() {
    if (thread) PyEval_RestoreThread(thread);
    thread = nullptr;
  }
  ~Lock() { enter(); }
};

// Memory of the device that is no variable of the user's: from the allocator of tensors, or a tensor.
struct Memory {
  PyObject* tensor = nullptr;
  void* at = nullptr;
  // False with an error, and the lock held.
  bool take(int64_t bytes, Lock& lock) {
    if (services.reserve && !services.reserve((uint64_t)bytes, &at)) return true;
    at = nullptr;
    // where the device has no more, this says so
    lock.enter();
    tensor = PyObject_CallFunction(services.allocate, "L", (long long)bytes);
    PyObject* address = tensor ? PyObject_CallMethod(tensor, "data_ptr", nullptr) : nullptr;
    if (!address) return false;
    at = PyLong_AsVoidPtr(address);
    Py_DecRef(address);
    return true;
  }
  void give(Lock& lock) {
    if (tensor) lock.enter(), Py_DecRef(tensor);
    else if (at) services.discard(at);
    tensor = nullptr, at = nullptr;
  }
};

// What follows from numbers among the arguments.
struct Shape { int64_t grid[3], zeroed; bool known; };
enum Misfit { FITS, TOO_WIDE, NOT_MEANT, TOO_LARGE };

Misfit shape_of(const Kernel* k, const Value* values, Shape* shape) {
  int64_t ok = 1;
  *shape = {{0, 0, 0}, 0, true};
  int64_t* const results[] = {&shape->grid[0], &shape->grid[1], &shape->grid[2], &ok, &shape->zeroed};
  const int64_t* program = k->programs;
  for (int i = 0; i < 5; program += k->lengths[i++])
    if (k->lengths[i] && !evaluate(program, k->lengths[i], values, results[i])) return TOO_WIDE;
  if (!ok) return NOT_MEANT;
  const int64_t* grid = shape->grid;
  if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return FITS;
  return grid[0] > INT32_MAX / k->ctas || grid[1] > 65535 || grid[2] > 65535 ? TOO_LARGE : FITS;
}

bool raise_misfit(const Kernel* k, Misfit why, const Shape& shape) {
  char cause[1024];
  const char* fix = "use smaller sizes";
  if (why == TOO_WIDE) {
    snprintf(cause, sizeof cause, "the grid of kernel %s does not fit in 64 bits", k->name);
  } else if (why == NOT_MEANT) {
    snprintf(cause, sizeof cause, "kernel %s was compiled for sizes of which %s", k->name, k->guard);
    fix = "use smaller sizes, or compile with dynamic=False";
  } else {
    snprintf(cause, sizeof cause, "kernel %s would need a grid of %lld by %lld by %lld programs", k->name,
             (long long)shape.grid[0], (long long)shape.grid[1], (long long)shape.grid[2]);
    fix = "a device takes 2147483647 by 65535 by 65535; use smaller sizes";
  }
  raise(services.launch_error, cause, fix);
  return false;
}

bool is_captured(Handle stream) {
  int capturing = 0;
  return cu.cuStreamIsCapturing && !cu.cuStreamIsCapturing(stream, &capturing) && capturing;
}

// Starts a kernel; behind its values there is room for two more. False with an error, and the lock held.
bool begin(Kernel* k, const Slot* slot, const Shape& shape, Value* values, void** parameters, Handle stream, Lock& lock) {
  const int64_t* grid = shape.grid;
  if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return true;
  Memory scratch, words;
  int count = k->count, status = 0;
  bool good = true;
  if (k->lengths[4]) {
    const int64_t bytes = shape.zeroed * (int64_t)sizeof(int64_t);
    if ((good = words.take(bytes + WORDS_ALIGN, lock))) {
      values[count].i = ((int64_t)words.at + WORDS_ALIGN - 1) / WORDS_ALIGN * WORDS_ALIGN;
      status = cu.cuMemsetD8Async ? cu.cuMemsetD8Async((Address)values[count].i, 0, bytes, stream) : NOT_SUPPORTED;
      ++count;
    }
  }
  values[count].p = values[count + 1].p = nullptr;
  for (int i = k->count; i < count + 2; ++i) parameters[i] = &values[i];
  if (const Variant* v = slot->variant; good && v->scratch) {
    const int64_t bytes = grid[0] * grid[1] * grid[2] * k->ctas * v->scratch, align = v->scratch_align;
    if ((good = scratch.take(bytes + align, lock)))
      values[count].i = ((int64_t)scratch.at + align - 1) / align * align;
  }
  bool asked = status != NO_ERROR;
  while (good && !status) {
    // The driver waits when its queue is full, and what it waits for may need Python.
    lock.leave();
    status = start(k, slot, grid, stream, parameters);
    if (status != OUT_OF_MEMORY || asked) break;
    lock.enter();
    if (!gave_memory()) break;
    asked = true, status = NO_ERROR;
  }
  // what it has is given back to its stream, and nothing is called with an error at hand
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  if (!good) PyErr_Fetch(&type, &value, &trace);
  scratch.give(lock), words.give(lock);
  if (good && !status) return true;
  lock.enter();
  if (!good) PyErr_Restore(type, value, trace);
  else
    raise_driver(services.launch_error, k, "launched", status,
                 "with POLYFUSE_DEBUG_SYNC=1 an error of an earlier kernel shows at its cause");
  return false;
}

bool launch(Kernel* k, PyObject* const* args) {
  Value values[k->count + 3];
  void* parameters[k->count + 3];
  for (int i = 0; i < k->count; ++i) {
    if (!convert(k, i, args[i], &values[i])) return false;
    parameters[i] = &values[i];
  }
  Shape shape;
  if (const Misfit why = shape_of(k, values, &shape)) return raise_misfit(k, why, shape);
  if (shape.grid[0] <= 0 || shape.grid[1] <= 0 || shape.grid[2] <= 0) return true;
  Slot* slot = slot_here(k);
  if (!slot) return false;
  Handle stream = nullptr;
  if (!stream_of(slot->device, &stream)) return false;
  if (!slot->captured) slot->captured = is_captured(stream);
  Lock lock;
  return begin(k, slot, shape, values, parameters, stream, lock);
}

bool recorded() {
  PyObject* flag = PyDict_GetItem(services.profiler, services.profiler_key);
  return flag && PyObject_IsTrue(flag) > 0;
}

bool launch_recorded(Kernel* k, PyObject* const* args) {
  PyObject* range = PyObject_CallFunction(services.annotate, "O", k->label);
  PyObject* entered = range ? PyObject_CallMethod(range, "__enter__", nullptr) : nullptr;
  if (!entered) {
    if (range) Py_DecRef(range);
    return false;
  }
  Py_DecRef(entered);
  bool good = launch(k, args);
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* none = (PyObject*)&_Py_NoneStruct;
  PyObject* left = PyObject_CallMethod(range, "__exit__", "OOO", none, none, none);
  Py_DecRef(range);
  if (left) Py_DecRef(left);
  else if (type) PyErr_Clear();
  else good = false;
  if (type) PyErr_Restore(type, value, trace);
  return good;
}

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Kernel* k = (Kernel*)PyCapsule_GetPointer(self, CAPSULE);
  if (!k) return nullptr;
  if (count != k->count)
    return PyErr_Format(PyExc_TypeError, "kernel %s takes %d arguments, got %zd", k->name, k->count, count);
  if (!(recorded() ? launch_recorded(k, args) : launch(k, args))) return nullptr;
  Py_IncRef((PyObject*)&_Py_NoneStruct);
  return (PyObject*)&_Py_NoneStruct;
}

void destroy(PyObject* capsule) {
  Kernel* k = (Kernel*)PyCapsule_GetPointer(capsule, CAPSULE);
  for (int i = 0; i < k->slots && !ending; ++i) {
    Handle previous;
    if (k->slot[i].captured) continue;
    if (cu.cuCtxPushCurrent_v2(k->slot[i].context)) continue;
    cu.cuModuleUnload(k->slot[i].module);
    cu.cuCtxPopCurrent_v2(&previous);
  }
  for (int i = 0; i < k->variants; ++i) free(k->variant[i].code);
  Py_DecRef(k->label);
  free(k->variant), free(k->programs), free(k->name), free(k->symbol), free(k->codes), free(k->arguments);
  free(k->guard), free(k);
}

void hold(const pf_services& s, void (*change)(PyObject*)) {
  PyObject* const all[] = {s.python_stream, s.current_device, s.allocate,     s.load_error,
                           s.launch_error,  s.memory_error,   s.free_memory,  s.profiler,
                           s.profiler_key,  s.annotate};
  for (PyObject* item : all) change(item);
}

#include "matmuls.h"
#include "series.h"
#include "look.h"

}  // namespace

#define VISIBLE extern "C" __attribute__((visibility("default")))

// Returns null, or what is missing.
VISIBLE const char* pf_setup(const pf_services* offered) {
  const pf_services old = services;
  services = *offered;
  hold(services, Py_IncRef);
  if (old.driver) hold(old, Py_DecRef);
  services.driver = strdup(offered->driver);
  void* library = dlopen(services.driver, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(problem, sizeof problem, "%s", dlerror());
    return problem;
  }
  for (const Entry& entry : ENTRIES) {
    *entry.pointer = dlsym(library, entry.name);
    if (!*entry.pointer && entry.needed) {
      snprintf(problem, sizeof problem, "%s has no %s", services.driver, entry.name);
      return problem;
    }
  }
  open_matmuls(services.matmuls);
  PyObject* one = PyLong_FromLong(1);
  type_slot = ((void**)one)[1] == (void*)&PyLong_Type ? 1 : 3;
  Py_DecRef(one);
  return nullptr;
}

// A callable that launches the kernel on the current device.
VISIBLE PyObject* pf_kernel(const pf_spec* spec) {
  Kernel* k = (Kernel*)calloc(1, sizeof(Kernel));
  k->name = strdup(spec->name), k->symbol = strdup(spec->symbol), k->codes = strdup(spec->codes);
  k->arguments = strdup(spec->arguments), k->guard = strdup(spec->guard);
  k->count = (int)strlen(spec->codes), k->ctas = spec->ctas, k->cooperative = spec->cooperative;
  int words = 0;
  for (int i = 0; i < 5; ++i) words += k->lengths[i] = spec->lengths[i];
  k->programs = (int64_t*)malloc(words * sizeof(int64_t) + 1);
  memcpy(k->programs, spec->programs, words * sizeof(int64_t));
  k->variants = spec->variants;
  k->variant = (Variant*)calloc(spec->variants + 1, sizeof(Variant));
  for (int i = 0; i < spec->variants; ++i) {
    const pf_variant& v = spec->variant[i];
    char* code = (char*)malloc(v.size + 1);
    memcpy(code, v.code, v.size);
    k->variant[i] = {v.arch, v.shared, v.threads, v.scratch, v.scratch_align, v.starts_early != 0, code};
  }
  k->label = PyUnicode_FromString(spec->name);
  k->method = {k->name, {call}, METH_FASTCALL, nullptr};
  PyObject* capsule = PyCapsule_New(k, CAPSULE, destroy);
  PyObject* function = capsule ? PyCFunction_NewEx(&k->method, capsule, nullptr) : nullptr;
  if (capsule) Py_DecRef(capsule);
  return function;
}

// A function that carries out a series, or null where a kernel is not of this launcher.
VISIBLE PyObject* pf_join(const pf_series* given) { return series_function(given); }

// Whether series may have matmuls.
VISIBLE int pf_matmuls(void) { return lt.ready; }

// A function of a list that says whether the tensors at some positions begin at multiples of a power of two.
VISIBLE PyObject* pf_look(const int* at, int count, int alignment) { return look_function(at, count, alignment); }

// Loads a kernel's code into the current context, so that a damaged file shows now. Returns None, or null
// with an error.
VISIBLE PyObject* pf_prepare(PyObject* function_self) {
  Kernel* k = (Kernel*)PyCapsule_GetPointer(function_self, CAPSULE);
  if (!k || !slot_here(k)) return nullptr;
  Py_IncRef((PyObject*)&_Py_NoneStruct);
  return (PyObject*)&_Py_NoneStruct;
}

// The process is ending: the driver may be gone before the last kernel is.
VISIBLE void pf_end(void) { ending = true; }
