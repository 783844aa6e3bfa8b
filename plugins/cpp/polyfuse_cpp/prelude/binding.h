// Python callables without Python.h: prototypes of the stable ABI, declared by hand.
// Each kernel gets a form that takes its arguments as an array, which series of launches call, and around it a METH_FASTCALL
// wrapper (see bindings.py); pf_bind() returns these as a dict.
// Each holds `owner`, which keeps this library loaded, and as its module what `owner` gives for that: garbage's finalizers are
// called for `owner`, too, before a wrapper goes, which reads its row of the table last. With `share` they are the forms for programs of kernels alone.
extern "C" {
struct _object;
typedef _object PyObject;
typedef PyObject* (*pf_fastcall)(PyObject*, PyObject* const*, __PTRDIFF_TYPE__);
struct pf_method { const char* name; pf_fastcall call; int flags; const char* doc; };
PyObject* PyCFunction_NewEx(pf_method*, PyObject*, PyObject*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
PyObject* PyDict_New(void);
PyObject* PyList_GetItem(PyObject*, __PTRDIFF_TYPE__);
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
PyObject* PyLong_FromLong(long);
long long PyLong_AsLongLong(PyObject*);
void* PyLong_AsVoidPtr(PyObject*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyErr_Occurred(void);
void PyErr_Clear(void);
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
// Threads of the pool do the work of kernels while it lives, where they are to.
struct in_pool {
  explicit in_pool(void* share) {
#ifdef PF_SHARES
    share_in_pool = (decltype(share_in_pool))share;
#endif
  }
#ifdef PF_SHARES
  ~in_pool() { share_in_pool = nullptr; }
#endif
};
// The pool's function for programs of kernels alone.
static void* alone_share;
static inline PyObject* none() {
  Py_IncRef((PyObject*)&_Py_NoneStruct);
  return (PyObject*)&_Py_NoneStruct;
}
// A call from Python. The kernel's work decides whether other threads of Python run meanwhile, which takes longer than a small one.
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
typedef void (*direct_form)(const argument*, void* share);
static __attribute__((noinline)) PyObject* called(direct_form direct, PyObject* const* args, __PTRDIFF_TYPE__ n,
                                                  const char* name, const char* codes, int want, void* share) {
  argument* a = (argument*)__builtin_alloca((want + 1) * sizeof(argument));
  if (!parse(args, n, name, codes, want, a)) return nullptr;
  {
    launch now;
    direct(a, share);
  }
  return none();
}
static PyObject* make_bindings(void* data_ptr, PyObject* owner, pf_method* methods, int count) {
  tensor_data = (void* (*)(PyObject*))data_ptr;
  PyObject* one = PyLong_FromLong(1);
  if (!one) return nullptr;
  type_slot = ((void**)one)[1] == (void*)&PyLong_Type ? 1 : 3;
  Py_DecRef(one);
  PyObject* hold = PyObject_GetAttrString(owner, "hold");
  PyObject* all = hold ? PyDict_New() : nullptr;
  for (int i = 0; all && i < count; ++i) {
    PyObject* f = PyCFunction_NewEx(&methods[i], owner, hold);
    if (f && !PyDict_SetItemString(all, methods[i].name, f)) {
      Py_DecRef(f);
      continue;
    }
    Py_DecRef(all);
    all = nullptr;
  }
  if (hold) Py_DecRef(hold);
  return all;
}
}  // namespace pf

// A series of launches. In the table: the pool's function or 0; how many tensors are wanted, and where each is in the list; the
// most arguments of a launch; how many launches; for each the kernel, how many arguments, and for each of these a tensor's
// number and an offset in bytes, or -1 and a number.
extern "C" __attribute__((visibility("default"))) int pf_series(PyObject* list, const long long* at) {
  void* const share = (void*)*at++;
  const long long tensors = *at++;
  char** memory = (char**)__builtin_alloca((tensors + 1) * sizeof(char*));
  try {
    for (long long i = 0; i < tensors; ++i) memory[i] = (char*)pf::tensor_data(PyList_GetItem(list, *at++));
  } catch (...) {
    return 1;
  }
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return 1;
  }
  pf::argument* a = (pf::argument*)__builtin_alloca((*at++ + 1) * sizeof(pf::argument));
  void* const state = PyEval_SaveThread();
  for (long long left = *at++; left > 0; --left) {
    const pf::direct_form direct = (pf::direct_form)*at++;
    const long long count = *at++;
    for (long long i = 0; i < count; ++i, at += 2) a[i].i = at[0] < 0 ? at[1] : (long long)(memory[at[0]] + at[1]);
    direct(a, share);
  }
  PyEval_RestoreThread(state);
  return 0;
}
