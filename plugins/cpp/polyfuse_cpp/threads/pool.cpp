// Threads of our own for programs in which kernels alone compute. The shares of a kernel are taken by whoever is there:
// a thread that the operating system does not run takes none, and nobody waits for it.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

using Share = void (*)(const void* work, long long at, long long of);

constexpr int kShares = 32;  // of a job: bits of half a word
constexpr int kJobs = 8;     // at once, of as many calling threads
constexpr int kThreads = 256;
constexpr int64_t kBusy = 100'000, kPolite = 2'000'000;  // nanoseconds without work: spinning, and giving way to others

struct alignas(128) Job {
  std::atomic<bool> used{false};
  std::atomic<uint32_t> done{0};
  // how often this was posted, and a bit for each share that nobody has taken
  std::atomic<uint64_t> left{0};
  Share share = nullptr;
  const void* work = nullptr;
  int of = 0;
  unsigned rounding = 0;
};

Job jobs[kJobs];
alignas(128) std::atomic<uint32_t> posted{0};
alignas(128) std::atomic<int> sleeping{0};
std::atomic<int> threads{0};
std::atomic<bool> growing{false};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How this thread rounds and whether it flushes numbers near zero.
inline unsigned rounding() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr();
#else
  return 0;
#endif
}

inline void round_as([[maybe_unused]] unsigned mode) {
#if defined(__x86_64__)
  if (((mode ^ __builtin_ia32_stmxcsr()) & ~0x3fu) != 0) __builtin_ia32_ldmxcsr(mode);
#endif
}

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t(1'000'000'000) + t.tv_nsec;
}

long futex(int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&posted), operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// Takes a share, the preferred one if it is left; -1: none is.
int take(Job& job, int preferred) {
  uint64_t seen = job.left.load(std::memory_order_acquire);
  while (uint32_t bits = uint32_t(seen)) {
    const int at = preferred < kShares && (bits >> preferred & 1) ? preferred : __builtin_ctz(bits);
    if (job.left.compare_exchange_weak(seen, seen & ~(uint64_t(1) << at), std::memory_order_acq_rel)) return at;
  }
  return -1;
}

// Does shares until none is left.
void help(Job& job, int preferred) {
  int at;
  while ((at = take(job, preferred)) >= 0) {
    round_as(job.rounding);
    job.share(job.work, at, job.of);
    job.done.fetch_add(1, std::memory_order_release);
  }
}

void wait_for_more(uint32_t seen) {
  const int64_t since = now();
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (posted.load(std::memory_order_acquire) != seen) return;
      relax();
    }
    const int64_t idle = now() - since;
    if (idle > kPolite) break;
    if (idle > kBusy) sched_yield();
  }
  sleeping.fetch_add(1);
  while (posted.load() == seen) futex(FUTEX_WAIT, seen);
  sleeping.fetch_sub(1);
}

void* serve(void* number) {
  const int own = int(reinterpret_cast<intptr_t>(number)) + 1;
  uint32_t seen = posted.load() - 1;
  for (;;) {
    wait_for_more(seen);
    seen = posted.load(std::memory_order_acquire);
    for (Job& job : jobs) {
      const uint32_t bits = uint32_t(job.left.load(std::memory_order_acquire));
      if (bits == 0) continue;
      // who has no share of his own leaves others the time to come for theirs
      if (own >= kShares || !(bits >> own & 1))
        for (int i = 0; i < 64; ++i) relax();
      help(job, own);
    }
  }
}

void grow(int count) {
  if (count > kThreads) count = kThreads;
  if (threads.load(std::memory_order_acquire) >= count || growing.exchange(true)) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  while (threads.load() < count) {
    pthread_t made;
    if (pthread_create(&made, &attributes, serve, reinterpret_cast<void*>(intptr_t(threads.load()))) != 0) break;
    threads.fetch_add(1);
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  growing.store(false);
}

// A child process has none of the threads.
void forked() {
  threads.store(0);
  sleeping.store(0);
  growing.store(false);
  for (Job& job : jobs) {
    job.left.store(job.left.load() >> 32 << 32);
    job.used.store(false);
  }
}

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forked);

}  // namespace

extern "C" {

// Runs all `of` shares and returns 1; returns 0, having done nothing, where they are too many or no job is free.
__attribute__((visibility("default"))) int polyfuse_share(int of, Share share, const void* work) {
  if (of > kShares) return 0;
  Job* job = nullptr;
  for (Job& candidate : jobs)
    if (!candidate.used.exchange(true, std::memory_order_acquire)) {
      job = &candidate;
      break;
    }
  if (job == nullptr) return 0;
  grow(of - 1);
  job->share = share;
  job->work = work;
  job->of = of;
  job->rounding = rounding();
  job->done.store(0, std::memory_order_relaxed);
  const uint64_t number = (job->left.load(std::memory_order_relaxed) >> 32) + 1;
  const uint64_t bits = of == 32 ? 0xffffffffu : (uint64_t(1) << of) - 1;
  job->left.store(number << 32 | bits, std::memory_order_release);
  posted.fetch_add(1);
  if (sleeping.load() > 0) futex(FUTEX_WAKE, uint32_t(of - 1));
  help(*job, 0);
  for (int i = 0; job->done.load(std::memory_order_acquire) != uint32_t(of); ++i)
    if (i < 4096) relax();
    else sched_yield();
  job->used.store(false, std::memory_order_release);
  return 1;
}
}
