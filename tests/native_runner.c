/* Runs an entry of a package on inputs from a file, for tests: runner PACKAGE ENTRY INPUTS RESULTS THREADS GIVEN

   INPUTS: the number of calls, then each input of each call: type, rank, sizes, strides, bytes, data.
   RESULTS: of each call its status; 1: length and text of the error; 0: the number of results, each with type, rank, sizes, the position of
   the input at the same address or -1, and its elements in order; then the data of each input. All numbers have 64 bits.
   With GIVEN, memory for results is the caller's. With several THREADS, each makes the call, and the first one's results
   are written where those of all others are the same. */
#include "polyfuse_package.h"

#include <pthread.h>
#include <stdlib.h>

enum { MOST = 512, MOST_THREADS = 16 };
static const pf_model_api* api;
static pf_model* model;
static const int bytes_of[] = {0, 1, 1, 1, 2, 4, 8, 2, 2, 4, 8};

typedef struct {
  pf_tensor in[MOST], out[MOST];
  int64_t in_bytes[MOST];
  int status;
  char error[1024];
} job;

static int64_t number(FILE* file) {
  int64_t value = 0;
  if (fread(&value, 8, 1, file) != 1) exit(3);
  return value;
}
static void put(FILE* file, int64_t value) { fwrite(&value, 8, 1, file); }

static void* work(void* argument) {
  job* mine = argument;
  mine->status = api->run(model, mine->in, mine->out);
  if (mine->status) snprintf(mine->error, sizeof mine->error, "%s", api->error());
  return 0;
}

static void write_elements(FILE* file, const char* data, const pf_tensor* t, int dim) {
  if (dim == t->rank) {
    fwrite(data, bytes_of[t->dtype], 1, file);
    return;
  }
  for (int64_t i = 0; i < t->sizes[dim]; ++i) write_elements(file, data + i * t->strides[dim] * bytes_of[t->dtype], t, dim + 1);
}

static int same_elements(const char* a, const pf_tensor* s, const char* b, const pf_tensor* t, int dim) {
  const int item = bytes_of[s->dtype];
  if (dim == s->rank) return memcmp(a, b, (size_t)item) == 0;
  for (int64_t i = 0; i < s->sizes[dim]; ++i)
    if (!same_elements(a + i * s->strides[dim] * item, s, b + i * t->strides[dim] * item, t, dim + 1)) return 0;
  return 1;
}

static void write_results(FILE* file, const job* done) {
  put(file, done->status != 0);
  if (done->status) {
    put(file, (int64_t)strlen(done->error));
    fputs(done->error, file);
    return;
  }
  put(file, api->output_count);
  for (int i = 0; i < api->output_count; ++i) {
    const pf_tensor* t = &done->out[i];
    int64_t same = -1;
    put(file, t->dtype);
    put(file, t->rank);
    for (int d = 0; d < t->rank; ++d) put(file, t->sizes[d]);
    for (int k = 0; k < api->input_count; ++k)
      if (t->dtype && t->data == done->in[k].data) same = k;
    put(file, same);
    if (t->dtype) write_elements(file, t->data, t, 0);
  }
  for (int k = 0; k < api->input_count; ++k) fwrite(done->in[k].data, 1, (size_t)done->in_bytes[k], file);
}

static void read_inputs(FILE* file, job* jobs, int threads) {
  for (int k = 0; k < api->input_count; ++k) {
    pf_tensor t = {0};
    t.dtype = (int32_t)number(file);
    t.rank = (int32_t)number(file);
    for (int d = 0; d < t.rank; ++d) t.sizes[d] = number(file);
    for (int d = 0; d < t.rank; ++d) t.strides[d] = number(file);
    const int64_t bytes = number(file);
    char* data = malloc((size_t)bytes + 1);
    if (fread(data, 1, (size_t)bytes, file) != (size_t)bytes) exit(3);
    for (int j = 0; j < threads; ++j) {
      jobs[j].in[k] = t;
      jobs[j].in[k].data = memcpy(malloc((size_t)bytes + 1), data, (size_t)bytes);
      jobs[j].in_bytes[k] = bytes;
    }
    free(data);
  }
}

/* Memory of the sizes that a first call of the same inputs gave. */
static void give_memory(job* mine, const pf_tensor* sizes) {
  for (int i = 0; i < api->output_count; ++i) {
    int64_t count = 1;
    mine->out[i] = sizes[i];
    mine->out[i].owner = 0;
    for (int d = sizes[i].rank - 1; d >= 0; --d) {
      mine->out[i].strides[d] = count;
      count *= sizes[i].sizes[d];
    }
    mine->out[i].data = malloc((size_t)(count * 8 + 1));
  }
}

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  char error[1024];
  api = pf_open_entry(argv[1], argv[2], error, sizeof error);
  if (!api || api->create(argv[1], &model)) {
    fprintf(stderr, "%s\n", api ? api->error() : error);
    return 1;
  }
  FILE *in = fopen(argv[3], "rb"), *out = fopen(argv[4], "wb");
  const int threads = atoi(argv[5]), given = atoi(argv[6]);
  static job jobs[MOST_THREADS], first;
  for (int64_t calls = number(in); calls > 0; --calls) {
    pthread_t ids[MOST_THREADS];
    memset(jobs, 0, sizeof jobs);
    read_inputs(in, jobs, threads);
    if (given) {
      first = jobs[0];
      if (!api->run(model, first.in, first.out)) {
        for (int j = 0; j < threads; ++j) give_memory(&jobs[j], first.out);
        for (int i = 0; i < api->output_count; ++i) api->release(&first.out[i]);
      }
    }
    for (int j = 0; j < threads; ++j) pthread_create(&ids[j], 0, work, &jobs[j]);
    for (int j = 0; j < threads; ++j) pthread_join(ids[j], 0);
    write_results(out, &jobs[0]);
    for (int j = 1; j < threads; ++j) {
      if (jobs[j].status != jobs[0].status) return 4;
      for (int i = 0; !jobs[0].status && i < api->output_count; ++i) {
        const pf_tensor *s = &jobs[0].out[i], *t = &jobs[j].out[i];
        if (s->dtype && !same_elements(s->data, s, t->data, t, 0)) return 4;
      }
    }
    for (int j = 0; j < threads; ++j)
      for (int i = 0; i < api->output_count; ++i) {
        if (given) free(jobs[j].out[i].data);
        else api->release(&jobs[j].out[i]);
      }
  }
  fclose(out);
  api->destroy(model);
  return 0;
}
