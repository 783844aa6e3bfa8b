/* A model compiled ahead of time, called without Python: plain C.

   Each entry of a package has a shared library that exports `polyfuse_model`, which returns the table below. Link the
   library, or open it with dlopen; polyfuse_package.h beside this file does that with the package itself. */
#ifndef POLYFUSE_MODEL_H
#define POLYFUSE_MODEL_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define PF_MODEL_ABI 2
#define PF_MAX_RANK 16

enum { /* types of elements */
  PF_NONE = 0, /* a result that is nothing */
  PF_BOOL = 1, /* a byte, 0 or 1 */
  PF_UINT8 = 2,
  PF_INT8 = 3,
  PF_INT16 = 4,
  PF_INT32 = 5,
  PF_INT64 = 6,
  PF_FLOAT16 = 7,
  PF_BFLOAT16 = 8,
  PF_FLOAT32 = 9,
  PF_FLOAT64 = 10
};

typedef struct pf_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t sizes[PF_MAX_RANK];
  int64_t strides[PF_MAX_RANK]; /* in elements */
  void* owner;                  /* of a result: what holds its memory; null: the caller does */
} pf_tensor;

typedef struct pf_description { /* of an input or a result */
  const char* name;
  int32_t dtype;
  int32_t rank;             /* a number has rank 0 */
  int32_t written;          /* whether the model writes to this input */
  const char* const* sizes; /* as text: a number, or an expression over sizes that vary */
  const int64_t* lowest;    /* the same as bounds, for each dimension */
  const int64_t* highest;   /* -1: no bound */
} pf_description;

typedef struct pf_model pf_model;

typedef struct pf_model_api {
  int32_t abi; /* PF_MODEL_ABI */
  const char* name;
  int32_t input_count, output_count;
  const pf_description *inputs, *outputs;

  /* The functions that return an int return 0, or another number where they failed: then `error` says why. */

  /* `path`: the package, or a folder that it was extracted to. Weights are mapped into memory from there. */
  int (*create)(const char* path, pf_model** model);
  /* Inputs of other layouts than compiled are copied. Results: where `data` of an output is null, the model fills in
     all of it, and `release` gives it back; otherwise it says where to copy the result: its type and sizes must be right.
     May be called by several threads at once; where the model writes to buffers of its own, they wait for each other.
     A model that computes on a device takes tensors there or in the CPU's memory, which it copies; numbers are in the
     CPU's. Results that it allocates are on the device. It returns once all is in its stream; where it copied to or
     from the CPU's memory, once all is done. */
  int (*run)(pf_model* model, const pf_tensor* inputs, pf_tensor* outputs);
  void (*release)(pf_tensor* output);
  /* Results live on until they are released. */
  void (*destroy)(pf_model* model);
  /* Why the last function failed that this thread called. */
  const char* (*error)(void);
  /* Where it computes: "cpu", or a type of device such as "cuda". A model uses the device whose context is current when it is
     created, or else the first one. */
  const char* device;
  /* Of a device: the stream (such as a CUstream) to which all work goes from now on, calls and what is released; the default
     one before. Not while others call the model. */
  int (*use_stream)(pf_model* model, void* stream);
} pf_model_api;

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const pf_model_api* polyfuse_model(void);

#ifdef __cplusplus
}
#endif
#endif
