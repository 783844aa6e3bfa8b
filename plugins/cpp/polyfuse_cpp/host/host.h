/* What a native host program and its runtime know of each other: plain C, neither Python nor libtorch.

   A program is one function, of the type pf_program. Whoever calls it answers its requests through pf_runtime:
   inside Python that is host_python.h beside this file; a package that runs without Python brings its own.
   docs/decisions/native-host-programs.md says why. */
#ifndef POLYFUSE_HOST_H
#define POLYFUSE_HOST_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define PF_HOST_ABI 1

/* A value of the runtime: a tensor or whatever else goes into an operator and comes out. Whoever holds a
   reference owns one share of the value, and releases it or passes it on. */
typedef struct pf_value* pf_ref;

typedef union pf_word {
  pf_ref ref;
  int64_t i;
} pf_word;

enum {
  PF_OK = 0,
  PF_FAILED = 1,    /* a request failed: the runtime knows why */
  PF_NO_MEMORY = 2, /* memory for intermediate values could not be had */
  PF_MISALIGNED = 3, /* an input is not at the address that kernels need: nothing was done, the caller still
                       owns all inputs; call again with copies that are (HostInput.alignment) */
};

typedef struct pf_runtime {
  int32_t abi;   /* PF_HOST_ABI */
  void* context; /* first argument of the functions below */
  /* Addresses of kernels, in the order of HostProgram.kernels: void f(void*..., int64_t...). */
  void* const* kernels;
  /* References that stay the runtime's own, in the order of HostProgram.constants. */
  const pf_ref* constants;
  /* Do what HostProgram.requests[which] says. Operands are lent; references among the results belong to the program.
     A result that nobody wants has no word. Not 0: it failed, and there are no results. */
  int (*request)(void* context, int32_t which, const pf_word* operands, pf_word* results);
  /* The address of a tensor's first element, a null pointer where it has none. Not 0: it is no tensor. */
  int (*data)(void* context, pf_ref tensor, void** address);
  void (*release)(void* context, pf_ref value);
  /* Around work that needs none of the above: what was locked for this thread may be unlocked meanwhile. */
  void* (*pause)(void* context);
  void (*resume)(void* context, void* paused);
} pf_runtime;

/* `inputs`: a word for each of HostProgram.inputs; the program takes over the references, whatever it returns but
   PF_MISALIGNED. `results`: room for a word for each of HostProgram.results, filled in where it returns PF_OK. May be called
   by several threads at once. */
typedef int (*pf_program)(const pf_runtime* runtime, const pf_word* inputs, pf_word* results);

#ifdef __cplusplus
}
#endif
#endif
