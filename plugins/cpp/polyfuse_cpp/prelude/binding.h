// Python callables without Python.h: prototypes of the stable ABI, declared by hand.
// Each kernel gets a METH_FASTCALL wrapper (see bindings.py); pf_bind() returns them all as a dict.
// Each holds `owner`, which keeps this library loaded. With `share` they are the forms for programs of kernels alone.
extern "C" {
struct _object;
typedef _object PyObject;
typedef PyObject* (*pf_fastcall)(PyObject*, PyObject* const*, __PTRDIFF_TYPE__);
struct pf_method { const char* name; pf_fastcall call; int flags; const char* doc; };
PyObject* PyCFunction_NewEx(pf_method*, PyObject*, PyObject*);
PyObject* PyDict_New(void);
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
PyObject* PyLong_FromLong(long);
long long PyLong_AsLongLong(PyObject*);
void* PyLong_AsVoidPtr(PyObject*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyErr_Occurred(void);
PyObject* PyErr_Format(PyObject*, const char*, ...);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
extern PyObject* PyExc_TypeError;
extern char PyLong_Type;
extern char _Py_NoneStruct;
}
namespace pf {
union argument { void* p; long long i; double d; };
// Converts to whatever pointer type the kernel declares.
struct any_pointer {
  void* p;
  template <class T> operator T*() const { return (T*)p; }
};
static void* (*tensor_data)(PyObject*);
static int type_slot;  // where a PyObject keeps its type: depends on whether this Python has a GIL

// false, with a Python error set, where an argument does not fit its code: p pointer or tensor, i int64, d double
static bool parse(PyObject* const* args, __PTRDIFF_TYPE__ n, const char* name, const char* codes, int want,
                  argument* out) {
  if (n != want) {
    PyErr_Format(PyExc_TypeError, "kernel %s takes %d arguments, got %zd", name, want, n);
    return false;
  }
  for (int i = 0; i < want; ++i) {
    PyObject* a = args[i];
    if (codes[i] == 'p') {
      if (((void**)a)[type_slot] == (void*)&PyLong_Type) {
        out[i].p = PyLong_AsVoidPtr(a);
        if (!out[i].p && PyErr_Occurred()) return false;
      } else {
        try {
          out[i].p = tensor_data ? tensor_data(a) : nullptr;
        } catch (...) {
          PyErr_Format(PyExc_TypeError, "kernel %s: argument %d must be a tensor with memory or an address", name, i);
          return false;
        }
        if (PyErr_Occurred()) return false;
        if (!tensor_data) {
          PyErr_Format(PyExc_TypeError, "kernel %s: argument %d must be an address, for it was loaded without tensors",
                       name, i);
          return false;
        }
      }
    } else if (codes[i] == 'i') {
      out[i].i = PyLong_AsLongLong(a);
      if (out[i].i == -1 && PyErr_Occurred()) return false;
    } else {
      out[i].d = PyFloat_AsDouble(a);
      if (out[i].d == -1.0 && PyErr_Occurred()) return false;
    }
  }
  return true;
}
// A kernel's call. Its work decides whether other threads of Python run meanwhile, which takes longer than a small kernel.
#ifdef PF_LEAVES_PYTHON
static __thread void* python_thread;
static void leave() {
  leave_python = nullptr;
  python_thread = PyEval_SaveThread();
}
struct launch {
  launch() { leave_python = leave; }
  ~launch() {
    leave_python = nullptr;
    if (!python_thread) return;
    PyEval_RestoreThread(python_thread);
    python_thread = nullptr;
  }
};
#else
struct launch {
  ~launch() {}
};
#endif
// The form of a kernel for programs of kernels alone: a call in which the pool's threads do the work.
static void* alone_share;
static __attribute__((noinline)) PyObject* call_alone(pf_fastcall call, PyObject* const* args, __PTRDIFF_TYPE__ n) {
#ifdef PF_SHARES
  struct until_end {
    until_end() { share_in_pool = (decltype(share_in_pool))alone_share; }
    ~until_end() { share_in_pool = nullptr; }
  } shared;
#endif
  return call(nullptr, args, n);
}
static inline PyObject* none() {
  Py_IncRef((PyObject*)&_Py_NoneStruct);
  return (PyObject*)&_Py_NoneStruct;
}
static PyObject* make_bindings(void* data_ptr, PyObject* owner, pf_method* methods, int count) {
  tensor_data = (void* (*)(PyObject*))data_ptr;
  PyObject* one = PyLong_FromLong(1);
  if (!one) return nullptr;
  type_slot = ((void**)one)[1] == (void*)&PyLong_Type ? 1 : 3;
  Py_DecRef(one);
  PyObject* all = PyDict_New();
  for (int i = 0; all && i < count; ++i) {
    PyObject* f = PyCFunction_NewEx(&methods[i], owner, nullptr);
    if (!f || PyDict_SetItemString(all, methods[i].name, f)) { Py_DecRef(all); return nullptr; }
    Py_DecRef(f);
  }
  return all;
}
}  // namespace pf
