// The runtime of a host program inside Python, above host.h: references are Python objects, requests are calls of
// Python functions, of which the core's `polyfuse.runtime.native_program` has made tables. No Python.h, as in the bindings
// of kernels: prototypes of the stable ABI, declared by hand.
extern "C" {
struct _object;
typedef _object PyObject;
struct pf_method { const char* name; PyObject* (*call)(PyObject*, PyObject*); int flags; const char* doc; };
PyObject* PyCFunction_NewEx(pf_method*, PyObject*, PyObject*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char*);
__PTRDIFF_TYPE__ PyTuple_Size(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, __PTRDIFF_TYPE__);
PyObject* PySequence_Tuple(PyObject*);
PyObject* PyTuple_New(__PTRDIFF_TYPE__);
int PyTuple_SetItem(PyObject*, __PTRDIFF_TYPE__, PyObject*);
__PTRDIFF_TYPE__ PyList_Size(PyObject*);
PyObject* PyList_GetItem(PyObject*, __PTRDIFF_TYPE__);
PyObject* PyList_New(__PTRDIFF_TYPE__);
int PyList_SetItem(PyObject*, __PTRDIFF_TYPE__, PyObject*);
int PyList_SetSlice(PyObject*, __PTRDIFF_TYPE__, __PTRDIFF_TYPE__, PyObject*);
PyObject* PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, size_t, PyObject*);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
int PyObject_IsInstance(PyObject*, PyObject*);
PyObject* PyErr_Occurred(void);
PyObject* PyErr_Format(PyObject*, const char*, ...);
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_NormalizeException(PyObject**, PyObject**, PyObject**);
void PyErr_SetObject(PyObject*, PyObject*);
int PyException_SetTraceback(PyObject*, PyObject*);
PyObject* PyObject_Type(PyObject*);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
extern PyObject* PyExc_RuntimeError;
extern PyObject* PyExc_TypeError;
extern PyObject* PyExc_ValueError;
}
namespace pf {

// How a call's arguments are put together: pushed one after another. Each step is a kind (the lowest two bits) and a number.
enum { push_constant = 0, push_reference = 1, push_integer = 2, make_tuple = 3 };
struct plan {
  const int64_t* code;
  int64_t steps, depth;
  PyObject* const* constants;
};
struct request {
  PyObject* function;
  plan arguments;
  int64_t positional;
  PyObject* keywords;  // names of the last arguments, or a null pointer
  const char* results;
  int64_t wanted, several;
};

// What one program was opened with, filled in by host_program.py, whose structures have the same members. All of it
// lives as long as `owner`.
struct opened {
  PyObject* owner;
  const char* name;
  const char* inputs;  // a letter each: t tensor, r anything else, i integer
  int64_t input_count;
  const char* results;
  int64_t result_count;
  void* const* kernels;
  const pf_ref* constants;
  const request* requests;
  plan returns;
  PyObject* tensor_type;
  PyObject* realigned;
  PyObject* explain;
  void* (*tensor_data)(PyObject*);
  pf_runtime runtime;
};

inline PyObject* object(pf_ref ref) { return (PyObject*)ref; }

// Arguments on a stack of owned references; how many there are, or -1 with a Python error set.
int64_t put_together(const plan& plan, const pf_word* operands, PyObject** stack) {
  int64_t top = 0;
  for (int64_t i = 0; i < plan.steps; ++i) {
    const int64_t number = plan.code[i] >> 2;
    switch (plan.code[i] & 3) {
      case push_constant:
        stack[top] = plan.constants[number];
        Py_IncRef(stack[top++]);
        break;
      case push_reference:
        stack[top] = object(operands[number].ref);
        Py_IncRef(stack[top++]);
        break;
      case push_integer:
        stack[top] = PyLong_FromLongLong(operands[number].i);
        if (!stack[top++]) { --top; goto failed; }
        break;
      default: {
        PyObject* tuple = PyTuple_New(number);
        if (!tuple) goto failed;
        top -= number;
        for (int64_t k = 0; k < number; ++k) PyTuple_SetItem(tuple, k, stack[top + k]);
        stack[top++] = tuple;
      }
    }
  }
  return top;
failed:
  while (top) Py_DecRef(stack[--top]);
  return -1;
}

// Let the core say where it happened, with the arguments at hand.
void explain_failure(opened* self, int which, PyObject** stack, int64_t count) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace) PyException_SetTraceback(value, trace);
  PyObject* number = PyLong_FromLongLong(which);
  PyObject* arguments = PyTuple_New(count);
  for (int64_t i = 0; arguments && i < count; ++i) {
    Py_IncRef(stack[i]);
    PyTuple_SetItem(arguments, i, stack[i]);
  }
  if (number && arguments) {
    PyObject* better = PyObject_CallFunctionObjArgs(self->explain, value, number, arguments, (PyObject*)nullptr);
    if (better) {
      PyObject* kind = PyObject_Type(better);
      PyErr_SetObject(kind, better);
      Py_DecRef(kind);
      Py_DecRef(better);
    }
  }
  if (number) Py_DecRef(number);
  if (arguments) Py_DecRef(arguments);
  Py_DecRef(type);
  Py_DecRef(value);
  if (trace) Py_DecRef(trace);
}

// One result as a word; the object is owned by it, or let go of.
bool keep(char kind, PyObject* value, pf_word* word) {
  if (kind == 'r') {
    word->ref = (pf_ref)value;
    return true;
  }
  word->i = PyLong_AsLongLong(value);
  Py_DecRef(value);
  return !(word->i == -1 && PyErr_Occurred());
}

bool keep_all(const request& wanted, PyObject* result, pf_word* words) {
  int64_t made = 0;
  if (!wanted.several) {
    if (wanted.wanted && wanted.results[0] != '-') return keep(wanted.results[0], result, words);
    Py_DecRef(result);
    return true;
  }
  PyObject* items = PySequence_Tuple(result);
  Py_DecRef(result);
  if (!items) return false;
  const int64_t size = PyTuple_Size(items);
  bool fine = size == wanted.wanted;
  if (!fine)
    PyErr_Format(PyExc_ValueError, "%zd results came back where %zd were expected", (__PTRDIFF_TYPE__)size,
                 (__PTRDIFF_TYPE__)wanted.wanted);
  int64_t i = 0;
  for (; fine && i < size; ++i) {
    if (wanted.results[i] == '-') continue;
    PyObject* item = PyTuple_GetItem(items, i);
    Py_IncRef(item);
    fine = keep(wanted.results[i], item, words + made);
    made += fine;
  }
  if (!fine) {
    int64_t word = 0;
    for (int64_t k = 0; k < i && word < made; ++k) {
      if (wanted.results[k] == 'r') Py_DecRef(object(words[word].ref));
      word += wanted.results[k] != '-';
    }
  }
  Py_DecRef(items);
  return fine;
}

int answer(void* context, int32_t which, const pf_word* operands, pf_word* results) {
  opened* self = (opened*)context;
  const request& wanted = self->requests[which];
  PyObject* stack[wanted.arguments.depth + 1];
  const int64_t count = put_together(wanted.arguments, operands, stack);
  if (count < 0) return 1;
  PyObject* result = PyObject_Vectorcall(wanted.function, stack, wanted.positional, wanted.keywords);
  const bool fine = result && keep_all(wanted, result, results);
  if (!fine) explain_failure(self, which, stack, count);
  for (int64_t i = 0; i < count; ++i) Py_DecRef(stack[i]);
  return !fine;
}

int address(void* context, pf_ref tensor, void** at) {
  opened* self = (opened*)context;
  try {
    *at = self->tensor_data(object(tensor));
  } catch (...) {
    PyErr_Format(PyExc_TypeError, "%s: a tensor with memory was expected", self->name);
    return 1;
  }
  return PyErr_Occurred() != nullptr;
}

void release(void*, pf_ref value) { Py_DecRef(object(value)); }
void* pause(void*) { return PyEval_SaveThread(); }
void resume(void*, void* state) { PyEval_RestoreThread(state); }

void close(PyObject* capsule) {
  opened* self = (opened*)PyCapsule_GetPointer(capsule, "polyfuse.program");
  Py_DecRef(self->owner);
}

PyObject* call(PyObject* capsule, PyObject* args);
pf_method call_method = {"program", call, 0x8, nullptr};

// The inputs, taken out of the list; false with a Python error set, and the list as it was.
bool take(opened* self, PyObject* args, pf_word* words) {
  const __PTRDIFF_TYPE__ count = PyList_Size(args);
  if (count < 0) {
    PyErr_Format(PyExc_TypeError, "%s takes a list of its inputs", self->name);
    return false;
  }
  if (count != self->input_count) {
    PyErr_Format(PyExc_ValueError, "%s was called with %zd inputs where %zd were expected", self->name, count,
                 (__PTRDIFF_TYPE__)self->input_count);
    return false;
  }
  for (__PTRDIFF_TYPE__ i = 0; i < count; ++i) {
    PyObject* item = PyList_GetItem(args, i);
    if (self->inputs[i] == 'i') {
      words[i].i = PyLong_AsLongLong(item);
      if (words[i].i == -1 && PyErr_Occurred()) return false;
      continue;
    }
    if (self->inputs[i] == 't' && PyObject_IsInstance(item, self->tensor_type) != 1) {
      if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "%s: input %zd is no tensor; call it with tensors", self->name, i);
        explain_failure(self, -1 - (int)i, &item, 1);
      }
      return false;
    }
    words[i].ref = (pf_ref)item;
  }
  for (__PTRDIFF_TYPE__ i = 0; i < count; ++i)
    if (self->inputs[i] != 'i') Py_IncRef(object(words[i].ref));
  return PyList_SetSlice(args, 0, count, nullptr) == 0;
}

// Called again with copies of the inputs that are not where kernels need them.
PyObject* call_elsewhere(opened* self, PyObject* capsule, const pf_word* words) {
  PyObject* inputs = PyList_New(self->input_count);
  for (int64_t i = 0; i < self->input_count; ++i) {
    PyObject* item = self->inputs[i] == 'i' ? PyLong_FromLongLong(words[i].i) : object(words[i].ref);
    if (inputs) PyList_SetItem(inputs, i, item);
    else Py_DecRef(item);
  }
  PyObject* again = inputs ? PyCFunction_NewEx(&call_method, capsule, nullptr) : nullptr;
  PyObject* result =
      again ? PyObject_CallFunctionObjArgs(self->realigned, again, inputs, (PyObject*)nullptr) : nullptr;
  if (again) Py_DecRef(again);
  if (inputs) Py_DecRef(inputs);
  return result;
}

extern "C" int POLYFUSE_KERNEL(const pf_runtime*, const pf_word*, pf_word*);

PyObject* call(PyObject* capsule, PyObject* args) {
  opened* self = (opened*)PyCapsule_GetPointer(capsule, "polyfuse.program");
  pf_word inputs[self->input_count + 1], results[self->result_count + 1];
  if (!take(self, args, inputs)) return nullptr;
  const int status = POLYFUSE_KERNEL(&self->runtime, inputs, results);
  if (status == PF_MISALIGNED) return call_elsewhere(self, capsule, inputs);
  if (status == PF_NO_MEMORY)
    return PyErr_Format(PyExc_RuntimeError, "%s: can't allocate memory for intermediate values; use smaller inputs",
                        self->name);
  if (status != PF_OK) return nullptr;
  PyObject* stack[self->returns.depth + 1];
  const int64_t count = put_together(self->returns, results, stack);
  for (int64_t i = 0; i < self->result_count; ++i)
    if (self->results[i] == 'r') Py_DecRef(object(results[i].ref));
  return count < 0 ? nullptr : stack[0];
}

}  // namespace pf

// What host_program.py calls with the tables that it has made.
extern "C" __attribute__((visibility("default"))) PyObject* pf_open(pf::opened* tables) {
  tables->runtime = {PF_HOST_ABI, tables, tables->kernels, tables->constants, pf::answer, pf::address, pf::release, pf::pause,
                    pf::resume};
  PyObject* capsule = PyCapsule_New(tables, "polyfuse.program", pf::close);
  if (!capsule) return nullptr;
  Py_IncRef(tables->owner);
  PyObject* made = PyCFunction_NewEx(&pf::call_method, capsule, nullptr);
  Py_DecRef(capsule);
  return made;
}
