// What launcher.cpp uses of Python's stable ABI and of the driver's API, declared by hand, and the structures
// that native.py fills.
#pragma once
#include <stdint.h>

extern "C" {
// Python's stable ABI.
struct _object;
typedef _object PyObject;
typedef intptr_t Py_ssize_t;
typedef PyObject* (*pf_fastcall)(PyObject*, PyObject* const*, Py_ssize_t);
typedef PyObject* (*pf_onecall)(PyObject*, PyObject*);
struct pf_method { const char* name; union { pf_fastcall call; pf_onecall call_one; }; int flags; const char* doc; };
PyObject* PyCFunction_NewEx(pf_method*, PyObject*, PyObject*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyLong_FromLong(long);
PyObject* PyBool_FromLong(long);
long long PyLong_AsLongLong(PyObject*);
void* PyLong_AsVoidPtr(PyObject*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyUnicode_FromString(const char*);
PyObject* PyDict_GetItem(PyObject*, PyObject*);
int PyObject_IsTrue(PyObject*);
PyObject* PyObject_CallFunction(PyObject*, const char*, ...);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
PyObject* PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject*);
Py_ssize_t PyList_Size(PyObject*);
PyObject* PyList_GetItem(PyObject*, Py_ssize_t);
int PyList_SetSlice(PyObject*, Py_ssize_t, Py_ssize_t, PyObject*);
void PyErr_NormalizeException(PyObject**, PyObject**, PyObject**);
PyObject* PyObject_CallMethod(PyObject*, const char*, const char*, ...);
PyObject* PyErr_Occurred(void);
PyObject* PyErr_Format(PyObject*, const char*, ...);
void PyErr_SetString(PyObject*, const char*);
void PyErr_SetObject(PyObject*, PyObject*);
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_Restore(PyObject*, PyObject*, PyObject*);
void PyErr_Clear(void);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
extern PyObject* PyExc_TypeError;
extern char PyLong_Type;
extern char _Py_NoneStruct;

// The driver's API, as far as it is used.
typedef void* Handle;
typedef unsigned long long Address;
struct LaunchAttribute { int id; int padding; union { int words[16]; char bytes[64]; } value; };
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  Handle stream;
  LaunchAttribute* attributes;
  unsigned count;
};
}

enum { METH_O = 0x08, METH_FASTCALL = 0x80 };
enum { NO_ERROR = 0, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801, WORDS_ALIGN = 16 };
enum { MAJOR = 75, MINOR = 76 };                                            // CUdevice_attribute
enum { MAX_DYNAMIC_SHARED = 8, NON_PORTABLE_CLUSTER = 14 };                 // CUfunction_attribute
enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, CLUSTER_SCHEDULING = 5,      // CUlaunchAttributeID
       PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
enum { MAX_DEVICES = 64, MAX_STACK = 32, USUAL_SHARED = 48 * 1024 };

// Postfix programs over the arguments; expressions.py writes them.
enum Op { CONST, ARG, ADD, SUB, MUL, DIV, MOD, MIN, MAX, LT, LE, GT, GE, EQ, NE, AND, OR, NEG };

// Steps of a series; native.py writes them. A number is the length of a program over the symbols, and the program.
enum Step {
  TAKE_MEMORY,  // buffer, number of bytes
  MAKE_TENSOR,  // buffer, arguments
  MAKE_VIEW,    // buffer, buffer of the tensor, arguments
  FORGET,       // buffer
  LAUNCH,       // kernel, whether all numbers are known, and for each argument: a buffer, or -1 and a number
  MULTIPLY,     // matmul, and for the result, both operands and the bias: a buffer (-1: none), bytes from its beginning
};
// Arguments: a constant that is a tuple of all; or -1, the rank, sizes, strides, and a constant for the last.

extern "C" {
// What the process offers, filled by native.py.
struct pf_services {
  const char* driver;                      // path or name of the driver's library
  void* (*tensor_data)(PyObject*);         // address of a tensor's elements; null: only addresses are taken
  int (*stream)(int32_t, void**);          // current stream of a device; null: ask python_stream
  PyObject* python_stream;                 // index -> handle
  PyObject* current_device;                // () -> index, with the device initialised
  PyObject* allocate;                      // bytes -> tensor on the current device
  PyObject* load_error;                    // classes of errors, called with cause and fix
  PyObject* launch_error;
  PyObject* memory_error;                  // class of errors, called with a text
  PyObject* free_memory;                   // releases the memory that the allocator caches
  PyObject* profiler;                      // dictionary
  PyObject* profiler_key;                  // whose value there says whether torch's profiler records
  PyObject* annotate;                      // name -> context manager
  int (*reserve)(uint64_t, void**);        // memory of the current device; null: ask `allocate`
  int (*discard)(void*);                   // gives it back
  const char* matmuls;                     // path or name of cuBLASLt; null: there is none
};
// An operand of a matmul: matrices.
struct pf_matrix {
  int64_t columns_first;                   // whether neighbours in memory are of one column
  int64_t step, batch;                     // elements from one row (or column), and from one matrix, to the next
};
// One matmul by the library.
struct pf_matmul {
  int dtype, epilogue, has_bias;           // as the library numbers them
  int64_t batches, rows, columns, depth;
  pf_matrix out, left, right;
};
// One architecture of a kernel.
struct pf_variant {
  int arch, shared, threads, scratch, scratch_align;
  int starts_early;                        // whether it may start before the kernel before it is done
  const void* code;
  int64_t size;
};
// A series of launches; native.py and series.h say what the words mean. Everything is copied.
struct pf_series {
  const char* name;
  const char* wanted;                      // a letter for each input: `p`, its address is needed; `m`, that must be a multiple of 16; `-`, it is not
  const int64_t* code;                     // steps
  const int* returns;                      // buffers of the results
  PyObject* const* kernels;                // functions that pf_kernel made
  PyObject* const* constants;              // arguments of calls
  int length, inputs, symbols, buffers, results, launches, kernel_count, constant_count;
  PyObject* allocate;
  PyObject* view;
  PyObject* each;                          // inputs in a list -> results: the same kernel by kernel
  PyObject* explain;                       // called with an error and the number of the launch
  const pf_matmul* matmuls;
  int matmul_count;
};
// One kernel. Everything is copied.
struct pf_spec {
  const char* name;                        // for people
  const char* symbol;                      // in the code
  const char* codes;                       // a letter for each argument, see `convert`
  const char* arguments;                   // their names, joined by commas
  const char* guard;                       // its text
  const int64_t* programs;                 // grid x, y, z, the guard and the zeroed words, one after another
  int lengths[5];
  int ctas, cooperative, variants;
  const pf_variant* variant;
};
}
