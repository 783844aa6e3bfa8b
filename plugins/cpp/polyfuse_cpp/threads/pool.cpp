// Threads of our own for programs in which kernels alone compute. Each share of a kernel is offered to a thread, and
// who called the kernel takes back what was not begun when it has done its own: nobody waits for a thread that the
// operating system does not run.
//
// A thread has one word, its box, alone in its cache lines: what it is offered costs one transfer to it and one back,
// whatever the other threads do.
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

// On the stack of its caller, which does not return while a box names it.
struct alignas(64) Job {
  Share share;
  const void* work;
  int of;
  unsigned rounding;
};

// In a box: nothing, that its thread sleeps, or a job with what became of it.
constexpr uint64_t kIdle = 0, kAsleep = 1, kOffered = 2, kTaken = 3;
constexpr int kThreads = 255;
constexpr int64_t kBusy = 200'000, kPolite = 3'000'000;  // nanoseconds without work: spinning, then yielding

struct alignas(128) Box {
  std::atomic<uint64_t> word{kIdle};
};

Box boxes[kThreads];
std::atomic<int> threads{0};
std::atomic<bool> growing{false};

inline uint64_t as(const Job& job, uint64_t what) { return reinterpret_cast<uint64_t>(&job) | what; }

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

// A box's lower half, which alone tells that its thread sleeps: jobs differ from it in their lowest bits.
long futex(Box& box, int operation, uint32_t value) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&box.word), operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// Waits until the thread's box holds an offer.
uint64_t wait_for_offer(Box& box) {
  int64_t since = 0;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      const uint64_t found = box.word.load(std::memory_order_acquire);
      if ((found & 3) == kOffered) return found;
      relax();
    }
    const int64_t time = now();
    if (since == 0) since = time;
    if (time - since > kPolite) {
      uint64_t idle = kIdle;
      if (box.word.compare_exchange_strong(idle, kAsleep))
        while (box.word.load() == kAsleep) futex(box, FUTEX_WAIT, uint32_t(kAsleep));
      since = 0;
    } else if (time - since > kBusy) {
      sched_yield();
    }
  }
}

void* serve(void* number) {
  const intptr_t own = reinterpret_cast<intptr_t>(number);
  Box& box = boxes[own];
  for (;;) {
    uint64_t offer = wait_for_offer(box);
    const Job& job = *reinterpret_cast<const Job*>(offer & ~uint64_t(3));
    if (!box.word.compare_exchange_strong(offer, as(job, kTaken), std::memory_order_acq_rel)) continue;
    round_as(job.rounding);
    job.share(job.work, own + 1, job.of);
    box.word.store(kIdle, std::memory_order_release);
  }
}

// Offers a job to a thread, unless that is busy for another caller.
bool offer(Box& box, const Job& job) {
  uint64_t seen = kIdle;
  if (box.word.compare_exchange_strong(seen, as(job, kOffered), std::memory_order_acq_rel)) return true;
  if (seen != kAsleep || !box.word.compare_exchange_strong(seen, as(job, kOffered))) return false;
  futex(box, FUTEX_WAKE, 1);
  return true;
}

int grown(int count) {
  if (count > kThreads) count = kThreads;
  const int there = threads.load(std::memory_order_acquire);
  if (there >= count || growing.exchange(true)) return there < count ? there : count;
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
  return threads.load();
}

// A child process has none of the threads.
void forked() {
  threads.store(0);
  growing.store(false);
  for (Box& box : boxes) box.word.store(kIdle);
}

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forked);

}  // namespace

// Runs all `of` shares of a kernel, and returns when they are done.
extern "C" __attribute__((visibility("default"))) void polyfuse_share(int of, Share share, const void* work) {
  const Job job{share, work, of, rounding()};
  const int helpers = grown(of - 1);
  uint64_t offered[(kThreads + 63) / 64] = {};
  for (int k = 0; k < helpers; ++k)
    if (offer(boxes[k], job)) offered[k / 64] |= uint64_t(1) << (k % 64);
  share(work, 0, of);
  // shares nobody was offered, and those that were not begun
  for (int k = 0; k < of - 1; ++k) {
    if (k < helpers && (offered[k / 64] >> (k % 64) & 1)) {
      uint64_t seen = as(job, kOffered);
      if (!boxes[k].word.compare_exchange_strong(seen, kIdle, std::memory_order_acq_rel)) continue;
    }
    share(work, k + 1, of);
  }
  for (int k = 0; k < helpers; ++k) {
    if (!(offered[k / 64] >> (k % 64) & 1)) continue;
    for (int i = 0; boxes[k].word.load(std::memory_order_acquire) == as(job, kTaken); ++i)
      i < 4096 ? relax() : void(sched_yield());
  }
}
