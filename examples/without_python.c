/* Run a package in a program that has neither Python nor torch.

     python examples/package.py native model.pf
     polyfuse package extract model.pf model
     cc examples/without_python.c -Imodel/native -o without_python -ldl
     ./without_python model.pf 3

   The header of this program comes out of the package; the program reads the file itself, and would take the folder, too.
   It runs the model on a batch of as many sequences as its argument says, and prints the first numbers of each. */
#include <stdio.h>
#include <stdlib.h>

#include "polyfuse_package.h"

enum { TOKENS = 32, WIDTH = 128 };

static void describe(const char* what, const pf_description* item) {
  printf("%s %s: type %d, sizes", what, item->name, (int)item->dtype);
  for (int d = 0; d < item->rank; ++d) printf(" %s", item->sizes[d]);
  printf("\n");
}

int main(int argc, char** argv) {
  char error[512];
  pf_model* model;
  if (argc != 3) {
    fprintf(stderr, "usage: %s PACKAGE BATCH\n", argv[0]);
    return 2;
  }
  const pf_model_api* api = pf_open_entry(argv[1], "forward", error, sizeof error);
  if (!api || api->create(argv[1], &model)) {
    fprintf(stderr, "%s\n", api ? api->error() : error);
    return 1;
  }
  for (int i = 0; i < api->input_count; ++i) describe("input", api->inputs + i);
  for (int i = 0; i < api->output_count; ++i) describe("output", api->outputs + i);

  const int64_t batch = atoi(argv[2]);
  float* numbers = malloc(sizeof(float) * (size_t)(batch > 0 ? batch : 1) * TOKENS * WIDTH);
  for (int64_t i = 0; i < batch * TOKENS * WIDTH; ++i) numbers[i] = (float)(i % 13) / 13 - 0.5f;
  pf_tensor x = {numbers, PF_FLOAT32, 3, {batch, TOKENS, WIDTH}, {TOKENS * WIDTH, WIDTH, 1}, 0};
  pf_tensor y = {0}; /* the model has the memory */
  const int failed = api->run(model, &x, &y);
  if (failed) {
    fprintf(stderr, "%s\n", api->error());
  } else {
    for (int64_t i = 0; i < batch; ++i) {
      const float* row = (const float*)y.data + i * y.strides[0];
      printf("sequence %d: %.6f %.6f %.6f\n", (int)i, row[0], row[1], row[2]);
    }
    api->release(&y);
  }
  api->destroy(model);
  free(numbers);
  return failed;
}
