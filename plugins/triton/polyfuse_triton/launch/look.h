// Looks at addresses before a program does anything. Part of launcher.cpp.

// Positions in a list of inputs, of tensors whose addresses must be multiples of a power of two.
struct Look {
  int count;
  uintptr_t mask;
  int* at;
  pf_method method;
};

const char* const LOOK = "polyfuse look";

// Whether all begin where kernels need them; false, too, where that is not known.
PyObject* call_look(PyObject* self, PyObject* args) {
  const Look* l = (const Look*)PyCapsule_GetPointer(self, LOOK);
  if (!l) return nullptr;
  uintptr_t together = 0;
  for (int i = 0; i < l->count; ++i) {
    PyObject* item = PyList_GetItem(args, l->at[i]);
    if (!item) return nullptr;
    try {
      together |= (uintptr_t)services.tensor_data(item);
    } catch (...) {
      together |= 1;
    }
  }
  if (PyErr_Occurred()) {
    PyErr_Clear();
    together |= 1;
  }
  return PyBool_FromLong(!(together & l->mask));
}

void end_look(PyObject* capsule) {
  Look* l = (Look*)PyCapsule_GetPointer(capsule, LOOK);
  free(l->at), free(l);
}

PyObject* look_function(const int* at, int count, int alignment) {
  Look* l = (Look*)calloc(1, sizeof(Look));
  l->count = count, l->mask = (uintptr_t)alignment - 1, l->at = copied(at, count);
  l->method = {"look", {}, METH_O, nullptr};
  l->method.call_one = call_look;
  PyObject* capsule = PyCapsule_New(l, LOOK, end_look);
  PyObject* function = capsule ? PyCFunction_NewEx(&l->method, capsule, nullptr) : nullptr;
  if (capsule) Py_DecRef(capsule);
  return function;
}
