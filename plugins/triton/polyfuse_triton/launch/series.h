// Series of launches: the steps between two calls of Python, carried out in one. Part of launcher.cpp.

// A tensor, or memory that belongs to none.
struct Buffer {
  PyObject* object;
  Memory memory;
  int64_t at;
};
struct Series {
  char *name, *wanted;
  int64_t* code;
  int* returns;
  PyObject** kernels;    // capsules
  Kernel** kernel;
  PyObject** constants;
  int length, inputs, symbols, buffers, results, launches, kernel_count, constant_count;
  PyObject *allocate, *view, *each, *explain;
  Shape* shapes;         // of launches whose numbers are known
  Matmul* matmuls;
  int matmul_count;
  pf_method method;
};
// One call. Freed by `finish`.
struct Running {
  Buffer* buffers;
  Value* symbols;
  Shape* shapes;         // of launches whose numbers are not known
  Slot** slots;          // of kernels
  Handle stream;
};

const char* const SERIES = "polyfuse series";
enum { MULTIPLY_WORDS = 9 };

PyObject* one_by_one(const Series* s, PyObject* args) {
  return PyObject_CallFunction(s->each, "O", args);
}

int64_t number(const int64_t*& word, const Value* symbols, bool* good) {
  const int length = (int)*word++;
  int64_t found = 0;
  if (!evaluate(word, length, symbols, &found)) *good = false;
  word += length;
  return found;
}

// Behind arguments of a call; their length, without what they are.
const int64_t* behind_arguments(const int64_t* word) {
  if (*word++ >= 0) return word;
  const int numbers = 2 * (int)*word++;
  for (int i = 0; i < numbers; ++i) word += *word + 1;
  return word + 1;
}

const int64_t* behind_operands(const Kernel* k, const int64_t* word) {
  for (int i = 0; i < k->count; ++i) word += *word < 0 ? word[1] + 2 : 1;
  return word;
}

// The grids of all launches, before anything is done; false where a number is not what a kernel was compiled for.
bool shapes_fit(const Series* s, Running& now) {
  bool good = true;
  int launch = 0;
  for (const int64_t* word = s->code; word < s->code + s->length && good;) {
    switch (*word++) {
      case TAKE_MEMORY: ++word, number(word, now.symbols, &good); break;
      case MAKE_TENSOR: word = behind_arguments(word + 1); break;
      case MAKE_VIEW: word = behind_arguments(word + 2); break;
      case FORGET: ++word; break;
      case MULTIPLY: word += MULTIPLY_WORDS; break;
      case LAUNCH: {
        const Kernel* k = s->kernel[*word++];
        const bool known = *word++;
        Shape* shape = known ? &s->shapes[launch] : &now.shapes[launch];
        ++launch;
        if (known && shape->known) { word = behind_operands(k, word); break; }
        Value values[k->count + 1];
        for (int i = 0; i < k->count; ++i) {
          values[i].i = 0;
          if (*word++ >= 0) continue;
          values[i].i = number(word, now.symbols, &good);
          good = good && !unfit(k->codes[i], values[i].i);
        }
        good = good && shape_of(k, values, shape) == FITS;
        break;
      }
    }
  }
  return good;
}

bool hold(Buffer* buffer, PyObject* tensor) {
  if (!tensor) return false;
  buffer->object = tensor;
  try {
    buffer->at = (int64_t)services.tensor_data(tensor);
  } catch (...) {
    PyErr_Clear();
    raise(services.launch_error, "an input of a compiled program is no tensor with memory", "call it with tensors");
    return false;
  }
  return !PyErr_Occurred();
}

void forget(Buffer* buffer, Lock& lock) {
  if (buffer->object) lock.enter(), Py_DecRef(buffer->object);
  buffer->memory.give(lock);
  buffer->object = nullptr;
}

PyObject* numbers(const int64_t*& word, int64_t count, const Value* symbols, bool* good) {
  PyObject* found = PyTuple_New(count);
  for (int64_t i = 0; i < count; ++i) {
    PyObject* one = PyLong_FromLong(number(word, symbols, good));
    if (found) PyTuple_SetItem(found, i, one);
    else Py_DecRef(one);
  }
  return found;
}

// Calls a function of a tensor, if one is given, of sizes, strides, and a constant, if there is one.
PyObject* made(const Series* s, PyObject* function, PyObject* tensor, const int64_t*& word, const Value* symbols) {
  const int64_t whole = *word++;
  if (whole >= 0 && !tensor) return PyObject_CallObject(function, s->constants[whole]);
  bool good = true;
  const int64_t rank = *word++;
  PyObject *size = numbers(word, rank, symbols, &good), *stride = numbers(word, rank, symbols, &good);
  const int64_t last = *word++;
  PyObject* result = nullptr;
  if (!good) raise(services.launch_error, "a size does not fit in 64 bits", "use smaller sizes");
  else if (size && stride && tensor)
    result = PyObject_CallFunction(function, "OOOO", tensor, size, stride, s->constants[last]);
  else if (size && stride) result = PyObject_CallFunction(function, "OOO", size, stride, s->constants[last]);
  if (size) Py_DecRef(size);
  if (stride) Py_DecRef(stride);
  return result;
}

// Adds to the error of a launch where in the model it comes from.
void explain_launch(const Series* s, int launch) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject* explained = PyObject_CallFunction(s->explain, "Oi", value, launch);
  if (explained) Py_DecRef(explained);
  else PyErr_Clear();
  PyErr_Restore(type, value, trace);
}

bool start_one(const Series* s, Running& now, const int64_t*& word, int launch, Lock& lock) {
  const int which = (int)*word++;
  Kernel* k = s->kernel[which];
  const bool known = *word++;
  Value values[k->count + 3];
  void* parameters[k->count + 3];
  bool good = true;
  for (int i = 0; i < k->count; ++i) {
    const int64_t buffer = *word++;
    values[i].i = buffer >= 0 ? now.buffers[buffer].at : number(word, now.symbols, &good);
    parameters[i] = &values[i];
    if (const char* why = buffer >= 0 ? unfit(k->codes[i], values[i].i) : nullptr) {
      lock.enter();
      raise_argument(k, i, why);
      return false;
    }
  }
  const Shape& shape = known ? s->shapes[launch] : now.shapes[launch];
  return begin(k, now.slots[which], shape, values, parameters, now.stream, lock);
}

bool carry_out(const Series* s, Running& now, Lock& lock) {
  int launch = 0;
  for (const int64_t* word = s->code; word < s->code + s->length;) {
    switch (*word++) {
      case TAKE_MEMORY: {
        Buffer* buffer = &now.buffers[*word++];
        bool good = true;
        const int64_t bytes = number(word, now.symbols, &good);
        buffer->at = 0;
        if (bytes > 0 && !buffer->memory.take(bytes, lock)) return false;
        buffer->at = (int64_t)buffer->memory.at;
        break;
      }
      case MAKE_TENSOR: {
        Buffer* buffer = &now.buffers[*word++];
        lock.enter();
        if (!hold(buffer, made(s, s->allocate, nullptr, word, now.symbols))) return false;
        break;
      }
      case MAKE_VIEW: {
        Buffer* buffer = &now.buffers[*word++];
        PyObject* base = now.buffers[*word++].object;
        lock.enter();
        if (!hold(buffer, made(s, s->view, base, word, now.symbols))) return false;
        break;
      }
      case FORGET: forget(&now.buffers[*word++], lock); break;
      case MULTIPLY: {
        int64_t at[4];
        for (int i = 0; i < 4; ++i) at[i] = word[1 + 2 * i] < 0 ? 0 : now.buffers[word[1 + 2 * i]].at + word[2 + 2 * i];
        if (!multiply(&s->matmuls[*word], at[0], at[1], at[2], at[3], now.stream, lock)) return false;
        word += MULTIPLY_WORDS;
        break;
      }
      case LAUNCH:
        if (!start_one(s, now, word, launch, lock)) {
          explain_launch(s, launch);
          return false;
        }
        ++launch;
        break;
    }
  }
  return true;
}

bool is_aligned(PyObject* tensor) {
  try {
    return !((int64_t)services.tensor_data(tensor) % LT_ALIGNMENT);
  } catch (...) {
    return false;
  }
}

// Everything that can be in the way, before an input is touched; with an error, or without one, if something is.
bool prepare(const Series* s, Running& now, PyObject* args) {
  if (recorded() || PyList_Size(args) != s->inputs + s->symbols) return false;
  for (int i = 0; i < s->symbols; ++i) {
    PyObject* number = PyList_GetItem(args, s->inputs + i);
    if (((void**)number)[type_slot] != (void*)&PyLong_Type) return false;
    now.symbols[i].i = PyLong_AsLongLong(number);
    if (PyErr_Occurred()) return false;
  }
  if (!shapes_fit(s, now)) return false;
  const Handle context = context_here();
  if (!context) return false;
  for (int i = 0; i < s->kernel_count; ++i)
    if (!(now.slots[i] = slot_in(s->kernel[i], context))) return false;
  if (!stream_of(now.slots[0]->device, &now.stream)) return false;
  const bool captured = is_captured(now.stream);
  for (int i = 0; i < s->matmul_count; ++i) {
    // what the library does when it is asked for the first time may not be captured
    if (captured && !s->matmuls[i].context) return false;
    if (!ready(&s->matmuls[i], context, now.slots[0]->variant->arch >= 90)) return false;
  }
  for (int i = 0; i < s->inputs; ++i)
    if (s->wanted[i] == 'm' && !is_aligned(PyList_GetItem(args, i))) return false;
  if (captured)
    for (int i = 0; i < s->kernel_count; ++i) now.slots[i]->captured = true;
  return true;
}

bool take_inputs(const Series* s, Running& now, PyObject* args) {
  for (int i = 0; i < s->inputs; ++i) {
    PyObject* item = PyList_GetItem(args, i);
    Py_IncRef(item);
    if (s->wanted[i] == '-') now.buffers[i].object = item;
    else if (!hold(&now.buffers[i], item)) return false;
  }
  return !PyList_SetSlice(args, 0, s->inputs + s->symbols, nullptr);
}

PyObject* returned(const Series* s, Running& now) {
  PyObject* results = PyTuple_New(s->results);
  for (int i = 0; results && i < s->results; ++i) {
    PyObject* one = now.buffers[s->returns[i]].object;
    Py_IncRef(one);
    PyTuple_SetItem(results, i, one);
  }
  return results;
}

PyObject* call_series(PyObject* self, PyObject* args) {
  const Series* s = (Series*)PyCapsule_GetPointer(self, SERIES);
  if (!s) return nullptr;
  const size_t sizes[] = {s->buffers * sizeof(Buffer), s->symbols * sizeof(Value), s->launches * sizeof(Shape),
                          s->kernel_count * sizeof(Slot*)};
  char* room = (char*)calloc(1, sizes[0] + sizes[1] + sizes[2] + sizes[3]);
  if (!room) return one_by_one(s, args);
  Running now;
  now.buffers = (Buffer*)room, now.symbols = (Value*)(room + sizes[0]);
  now.shapes = (Shape*)(room + sizes[0] + sizes[1]), now.slots = (Slot**)(room + sizes[0] + sizes[1] + sizes[2]);
  PyObject* results = nullptr;
  if (!prepare(s, now, args)) {
    // what is wrong shows, or is mended, where it is done kernel by kernel
    PyErr_Clear();
    results = one_by_one(s, args);
  } else {
    Lock lock;
    const bool good = take_inputs(s, now, args) && carry_out(s, now, lock);
    lock.enter();
    if (good) results = returned(s, now);
    // nothing is called with an error at hand
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    for (int i = 0; i < s->buffers; ++i) forget(&now.buffers[i], lock);
    PyErr_Restore(type, value, trace);
  }
  free(room);
  return results;
}

void end_series(PyObject* capsule) {
  Series* s = (Series*)PyCapsule_GetPointer(capsule, SERIES);
  for (int i = 0; i < s->kernel_count; ++i) Py_DecRef(s->kernels[i]);
  for (int i = 0; i < s->constant_count; ++i) Py_DecRef(s->constants[i]);
  PyObject* const held[] = {s->allocate, s->view, s->each, s->explain};
  for (PyObject* one : held) Py_DecRef(one);
  free(s->name), free(s->wanted), free(s->code), free(s->returns), free(s->kernels), free(s->kernel);
  for (int i = 0; i < s->matmul_count && !ending; ++i) end_matmul(&s->matmuls[i]);
  free(s->matmuls);
  free(s->constants), free(s->shapes), free(s);
}

template <class T>
T* copied(const T* from, int count) {
  T* made = (T*)calloc(count + 1, sizeof(T));
  if (count) memcpy(made, from, count * sizeof(T));
  return made;
}

PyObject* series_function(const pf_series* given) {
  Series* s = (Series*)calloc(1, sizeof(Series));
  s->name = strdup(given->name), s->wanted = strdup(given->wanted);
  s->code = copied(given->code, given->length), s->returns = copied(given->returns, given->results);
  s->length = given->length, s->inputs = given->inputs, s->symbols = given->symbols, s->buffers = given->buffers;
  s->results = given->results, s->launches = given->launches;
  s->kernel_count = given->kernel_count, s->constant_count = given->constant_count;
  s->kernels = copied(given->kernels, given->kernel_count), s->constants = copied(given->constants, given->constant_count);
  s->kernel = (Kernel**)calloc(given->kernel_count + 1, sizeof(Kernel*));
  s->shapes = (Shape*)calloc(given->launches + 1, sizeof(Shape));
  s->matmul_count = given->matmul_count, s->matmuls = (Matmul*)calloc(given->matmul_count + 1, sizeof(Matmul));
  for (int i = 0; i < s->matmul_count; ++i) s->matmuls[i].what = given->matmuls[i];
  s->allocate = given->allocate, s->view = given->view, s->each = given->each, s->explain = given->explain;
  for (int i = 0; i < s->kernel_count; ++i) {
    Py_IncRef(s->kernels[i]);
    s->kernel[i] = (Kernel*)PyCapsule_GetPointer(s->kernels[i], CAPSULE);
  }
  for (int i = 0; i < s->constant_count; ++i) Py_IncRef(s->constants[i]);
  PyObject* const held[] = {s->allocate, s->view, s->each, s->explain};
  for (PyObject* one : held) Py_IncRef(one);
  s->method = {s->name, {}, METH_O, nullptr};
  s->method.call_one = call_series;
  PyObject* capsule = PyCapsule_New(s, SERIES, end_series);
  PyObject* function = capsule ? PyCFunction_NewEx(&s->method, capsule, nullptr) : nullptr;
  if (capsule) Py_DecRef(capsule);
  return function;
}
