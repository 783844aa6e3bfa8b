// What all files of models share that run without Python: what they include, why the last call of this thread failed, and
// copies.
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {
thread_local char message[1024];

int fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
int fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return 1;
}

template <class T> void copy_line(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) ((T*)to)[i * to_stride] = ((const T*)from)[i * from_stride];
}

void copy_on_cpu(char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides, int32_t rank,
                 const int64_t* sizes, int64_t item) {
  if (rank == 0) {
    memcpy(to, from, item);
    return;
  }
  if (rank == 1 && *to_strides == 1 && *from_strides == 1) {
    memcpy(to, from, *sizes * item);
    return;
  }
  if (rank == 1 && item == 4) return copy_line<int32_t>(to, *to_strides, from, *from_strides, *sizes);
  for (int64_t i = 0; i < *sizes; ++i)
    copy_on_cpu(to + i * *to_strides * item, to_strides + 1, from + i * *from_strides * item, from_strides + 1,
                rank - 1, sizes + 1, item);
}
}  // namespace
