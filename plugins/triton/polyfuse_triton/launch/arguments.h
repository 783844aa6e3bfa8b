// Arguments of kernels: numbers and addresses of what Python gives, expressions of sizes, and errors that name them.
// Part of launcher.cpp.

// The name of argument `i`, for messages.
const char* argument_name(const Kernel* k, int i, char* into, size_t size) {
  const char* at = k->arguments;
  for (; i > 0 && at; --i) at = strchr(at, ',') ? strchr(at, ',') + 1 : nullptr;
  snprintf(into, size, "%.*s", at ? (int)strcspn(at, ",") : 1, at ? at : "?");
  return into;
}

int64_t floor_div(int64_t a, int64_t b) {
  int64_t q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}

// Runs a postfix program; false where a number does not fit or a divisor is zero.
bool evaluate(const int64_t* word, int length, const Value* values, int64_t* result) {
  int64_t stack[MAX_STACK];
  int top = -1;
  for (const int64_t* end = word + length; word < end;) {
    const int64_t op = *word++;
    if (op == CONST) { stack[++top] = *word++; continue; }
    if (op == ARG) { stack[++top] = values[*word++].i; continue; }
    if (op == NEG) { stack[top] = -stack[top]; continue; }
    const int64_t b = stack[top--], a = stack[top];
    int64_t& out = stack[top];
    switch (op) {
      case ADD: if (__builtin_add_overflow(a, b, &out)) return false; break;
      case SUB: if (__builtin_sub_overflow(a, b, &out)) return false; break;
      case MUL: if (__builtin_mul_overflow(a, b, &out)) return false; break;
      case DIV: if (b == 0) return false; out = floor_div(a, b); break;
      case MOD: if (b == 0) return false; out = a - floor_div(a, b) * b; break;
      case MIN: out = a < b ? a : b; break;
      case MAX: out = a < b ? b : a; break;
      case LT: out = a < b; break;
      case LE: out = a <= b; break;
      case GT: out = a > b; break;
      case GE: out = a >= b; break;
      case EQ: out = a == b; break;
      case NE: out = a != b; break;
      case AND: out = a && b; break;
      case OR: out = a || b; break;
    }
  }
  *result = stack[0];
  return true;
}

void raise_argument(const Kernel* k, int i, const char* what) {
  char name[64], cause[512];
  argument_name(k, i, name, sizeof name);
  snprintf(cause, sizeof cause, "argument %s of kernel %s %s", name, k->name, what);
  raise(services.launch_error, cause, "call it with arguments like those it was compiled for");
}

// Why a number cannot be argument `i`, or null.
const char* unfit(char code, int64_t value) {
  if ((code == 'i' || code == 'I') && value != (int32_t)value) return "does not fit in 32 bits";
  if ((code == 'P' || code == 'I' || code == 'L') && (value & 15)) return "is no multiple of 16, for which it was compiled";
  return nullptr;
}

// Converts one argument. Letters: p pointer (a tensor, or an address), i int32, l int64, f float, d double; in
// capitals, pointers and integers that must be multiples of 16. An integer is stored in 64 bits, of which
// a kernel that wants 32 reads the lower half.
bool convert(const Kernel* k, int i, PyObject* a, Value* out) {
  const char code = k->codes[i];
  switch (code) {
    case 'p': case 'P':
      if (((void**)a)[type_slot] == (void*)&PyLong_Type) {
        out->p = PyLong_AsVoidPtr(a);
        if (!out->p && PyErr_Occurred()) return false;
      } else {
        if (!services.tensor_data) {
          raise_argument(k, i, "is no address, and this torch has no quick way to a tensor's");
          return false;
        }
        try {
          out->p = services.tensor_data(a);
        } catch (...) {
          PyErr_Clear();
          raise_argument(k, i, "is no tensor with memory");
          return false;
        }
        if (PyErr_Occurred()) return false;
      }
      break;
    case 'i': case 'I': case 'l': case 'L':
      out->i = PyLong_AsLongLong(a);
      if (out->i == -1 && PyErr_Occurred()) return false;
      break;
    case 'f': out->f = (float)PyFloat_AsDouble(a); return !PyErr_Occurred();
    case 'd': out->d = PyFloat_AsDouble(a); return !PyErr_Occurred();
  }
  if (const char* why = unfit(code, out->i)) return raise_argument(k, i, why), false;
  return true;
}
