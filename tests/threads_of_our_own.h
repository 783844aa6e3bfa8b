// What kernels ask of OpenMP, by POSIX threads that are started and joined, which the thread sanitizer understands:
// included in front of each kernel, it replaces the compiler's own runtime, and always gives 4 threads.
#include <pthread.h>
extern "C" {
#define PF_OWN __attribute__((visibility("hidden")))
enum { PF_THREADS = 4 };
static __thread int pf_number, pf_count = 1;
static __thread pthread_barrier_t* pf_meeting;
struct pf_started { void (*run)(void*); void* data; int number, count; pthread_barrier_t* meeting; };
static void* pf_start(void* given) {
  struct pf_started* own = (struct pf_started*)given;
  pf_number = own->number, pf_count = own->count, pf_meeting = own->meeting;
  own->run(own->data);
  return 0;
}
PF_OWN void GOMP_parallel(void (*run)(void*), void* data, unsigned count, unsigned) {
  if (count == 0) count = PF_THREADS;
  if (count > 64) __builtin_trap();
  pthread_t threads[64];
  struct pf_started started[64];
  pthread_barrier_t meeting;
  if (pthread_barrier_init(&meeting, 0, count)) __builtin_trap();
  for (unsigned i = 0; i < count; ++i) {
    started[i] = {run, data, (int)i, (int)count, &meeting};
    if (pthread_create(&threads[i], 0, pf_start, &started[i])) __builtin_trap();
  }
  for (unsigned i = 0; i < count; ++i) pthread_join(threads[i], 0);
  pthread_barrier_destroy(&meeting);
}
PF_OWN void GOMP_barrier(void) { pthread_barrier_wait(pf_meeting); }
PF_OWN int omp_get_thread_num(void) { return pf_number; }
PF_OWN int omp_get_num_threads(void) { return pf_count; }
PF_OWN int omp_get_max_threads(void) { return PF_THREADS; }
PF_OWN int omp_in_parallel(void) { return pf_count > 1; }
}
