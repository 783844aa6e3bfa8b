// Whether hundreds of tensors are the objects that they were, at the same addresses, and unwritten, by functions of Python's
// stable interface and by what torch gives tensors to others with. Called with Python's lock.
#include <cstdint>
#include <initializer_list>

extern "C" {
typedef struct _object PyObject;
PyObject* PyList_GetItem(PyObject*, intptr_t);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
long PyLong_AsLong(PyObject*);
void Py_DecRef(PyObject*);
void PyErr_Clear(void);

// DLTensor of the interface DLPack.
struct View {
  char* data;
  int32_t device_type, device, dims;
  uint32_t type;
  int64_t *sizes, *strides;
  uint64_t offset;
};

struct State {
  int64_t count;
  const int64_t* positions;
  PyObject* const* objects;
  char* const* addresses;
  const int64_t* versions;
  char* const* storages;           // what holds each address: only fetched ahead
  const int64_t* layouts;          // for each its dimensions, sizes and strides; null: they are known
  PyObject* version;               // the name of the counter
  char* (*address)(PyObject*);     // where a tensor's numbers are
  int (*view)(PyObject*, View*);   // that, with the layout: for `layouts`
};
}

namespace {

constexpr int64_t kAhead = 8;

bool unchanged(PyObject* args, const State& seen) {
  const int64_t* layout = seen.layouts;
  for (int64_t i = 0; i < seen.count; ++i) {
    PyObject* tensor = PyList_GetItem(args, seen.positions[i]);
    if (tensor != seen.objects[i]) return false;
    if (i + kAhead < seen.count) {
      __builtin_prefetch(seen.objects[i + kAhead]);
      __builtin_prefetch(seen.storages[i + kAhead]);
      __builtin_prefetch(seen.storages[i + kAhead] + 64);
    }
    if (layout == nullptr) {
      if (seen.address(tensor) != seen.addresses[i]) return false;
    } else {
      View now;
      if (seen.view(tensor, &now) != 0 || now.data + now.offset != seen.addresses[i] || now.dims != *layout++) return false;
      for (const int64_t* from : {now.sizes, now.strides})
        for (int32_t j = 0; j < now.dims; ++j)
          if (from[j] != *layout++) return false;
    }
    PyObject* version = PyObject_GetAttr(tensor, seen.version);
    if (version == nullptr) return false;
    const long counted = PyLong_AsLong(version);
    Py_DecRef(version);
    if (counted != seen.versions[i]) return false;
  }
  return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int polyfuse_unchanged(PyObject* args, const State* seen) {
  const bool found = unchanged(args, *seen);
  if (!found) PyErr_Clear();
  return found;
}
