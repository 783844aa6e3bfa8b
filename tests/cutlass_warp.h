// A warp of threads of the processor, with shared memory that checks alignment, for tests of `finish_tile`.
#include <barrier>
#include <cstdlib>
#include <thread>
#include <vector>
#define PF_INLINE inline
typedef unsigned u32;
typedef float Acc;
struct Args {};
struct Thread { int x; };
static thread_local Thread threadIdx;
static thread_local std::barrier<>* warp_barrier;
static float memory[1 << 14];
static float* shared(u32 at, u32 alignment) {
  if (rand() % 4 == 0) std::this_thread::yield();
  if (at % alignment || at + alignment > sizeof memory) abort();
  return memory + at / 4;
}
static void store2(u32 at, float a, float b) {
  float* p = shared(at, 8);
  p[0] = a, p[1] = b;
}
static void load4(u32 at, float* v) {
  const float* p = shared(at, 16);
  for (int i = 0; i < 4; ++i) v[i] = p[i];
}
static void load1(u32 at, float* v) { *v = *shared(at, 4); }
static void __syncwarp() { warp_barrier->arrive_and_wait(); }

constexpr bool SWIZZLED = CHUNK >= 32;
constexpr int PITCH = SWIZZLED ? CHUNK : CHUNK + 4, PIECE_BYTES = 16 * PITCH * 4, UNROLL = 4;
constexpr bool PROMOTES = false;
typedef Acc Results[BLOCKS][BY / 2];
static float results[BLOCKS * 64][BY];
static int extent_x(const Args&) { return BLOCKS * 64 - 3; }
static int extent_y(const Args&) { return BY; }
struct Fetched { int x, y; };
static void fetch(const Args&, int, int x, int y, Fetched& fetched) { fetched.x = x, fetched.y = y; }
static void finish(const Args&, int, int x, int y, const Acc (&v)[VEC]) {
  for (int i = 0; i < VEC; ++i) results[x + (VEC_X ? i : 0)][y + (VEC_X ? 0 : i)] += v[i];
}
// What was asked for ahead is for this place.
static void finish(const Args& args, int, int x, int y, const Acc (&v)[VEC], const Fetched& fetched) {
  if (fetched.x != x || fetched.y != y) abort();
  finish(args, 0, x, y, v);
}
static void finish_tile(const Args&, u32, Results&, int, int, int, int);

// Each result once, at its place: returns 0.
int main() {
  for (int warp = 0; warp < 4; ++warp) {
    std::barrier<> together(32);
    std::vector<std::thread> threads;
    for (int lane = 0; lane < 32; ++lane)
      threads.emplace_back([&, lane] {
        threadIdx.x = warp * 32 + lane;
        warp_barrier = &together;
        Results sum;
        for (int m = 0; m < BLOCKS; ++m)
          for (int i = 0; i < BY / 2; ++i)
            sum[m][i] = 1000 * (m * 64 + warp * 16 + lane / 4 + i % 4 / 2 * 8) + i / 4 * 8 + lane % 4 * 2 + i % 2 + 1;
        finish_tile(Args(), 0, sum, 0, 0, 0, extent_x(Args()));
      });
    for (auto& one : threads) one.join();
  }
  for (int x = 0; x < BLOCKS * 64; ++x)
    for (int y = 0; y < BY; ++y) {
      const bool inside = (VEC_X ? x / VEC * VEC : x) < BLOCKS * 64 - 3;
      if (results[x][y] != (inside ? 1000 * x + y + 1 : 0)) return 1;
    }
  return 0;
}
