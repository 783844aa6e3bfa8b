// A warp of threads of the CPU, with shared memory that checks alignment, for tests of `finish_tile`. With
// ROUNDED the results leave by a copy engine that reads what a warp laid out as late as it may.
#include <barrier>
#include <cstdlib>
#include <thread>
#include <vector>
#define PF_INLINE inline
typedef unsigned u32;
typedef float f32;
typedef f32 Acc;
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

struct TensorMap {};
static u32 thread_here() { return threadIdx.x; }
static int min(int a, int b) { return a < b ? a : b; }
constexpr int UNROLL = 4;
constexpr bool PROMOTES = false;
typedef Acc Results[BLOCKS][BY / 2];
#ifdef REDUCED
#define PF_REDUCE(...) __VA_ARGS__
struct Reduced { f32 of[2][VEC]; };
static bool reductions_wrong();
#else
#define PF_REDUCE(...)
#endif
static int extent_x(const Args&) { return BLOCKS * 64 - 3; }
#ifdef ROUNDED
constexpr int TILES = 2, ACCUMULATOR_SPLITS = 1, FETCHED = 4, FETCHED_OF_ROW = 4, RESULT_BATCHES = 1;
static int extent_y(const Args&) { return TILES * BY - 10; }
#else
constexpr int TILES = 1;
static int extent_y(const Args&) { return BY; }
#endif
static float results[BLOCKS * 64][TILES * BY];
#ifdef ROUNDED
static void result_batches(const Args&, int batch, int (&of)[RESULT_BATCHES]) { of[0] = batch; }
struct OfRow { int x; };
struct OfColumns { int y; };
static void fetch_row(const Args& args, int, int x, OfRow& of) {
  if (x >= extent_x(args)) abort();
  of.x = x;
}
static void fetch_columns(const Args& args, int, int y, OfColumns& of) {
  if (y % 2 || y >= extent_y(args)) abort();
  of.y = y;
}
static void finish(const Args& args, int, int x, int y, const Acc (&v)[VEC], const OfRow& row, const OfColumns& columns,
                   float (&to)[VEC] PF_REDUCE(, Reduced& reduced)) {
  if (row.x != min(x, extent_x(args) - 1) || columns.y != min(y, extent_y(args) - 2)) abort();
  for (int i = 0; i < VEC; ++i) to[i] = v[i] PF_REDUCE(, reduced.of[0][i] = reduced.of[1][i] = v[i]);
}
struct Result {};
template <class T> u32 pair_of(float first, float second) { return (u32)first | (u32)second << 16; }
// Matrices: each thread stands for one row of one of them, and holds a pair of a row of each.
static u32 row_of[32];
static bool unseen[32];
static void put_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
  const int lane = threadIdx.x % 32;
  const u32 pairs[4] = {a, b, c, d};
  row_of[lane] = to;
  unseen[lane] = true;
  __syncwarp();
  for (int i = 0; i < 4; ++i) ((u32*)shared(row_of[i * 8 + lane / 4], 16))[lane % 4] = pairs[i];
  __syncwarp();
}
static void copies_see_writes() { unseen[threadIdx.x % 32] = false; }
struct Copy { u32 from; int x, y; };
static std::vector<Copy> copies;
static void store_tile(u32 from, const TensorMap*, int y, int x, const int (&)[RESULT_BATCHES]) {
  for (bool one : unseen)
    if (one) abort();
  copies.push_back({from, x, y});
}
static void stores_commit() {}
template <int LEFT> void stores_wait() {
  for (; copies.size() > LEFT; copies.erase(copies.begin())) {
    const Copy one = copies.front();
    for (int i = 0; i < 16 * 64; ++i) {
      const int row = i / 64, column = i % 64, x = one.x + row, y = one.y + column;
      if (x >= extent_x(Args()) || y >= extent_y(Args())) continue;
      const u32 at = row * 128 + (column / 8 ^ row % 8) * 16;
      results[x][y] = ((unsigned short*)(shared(one.from, 1024) + at / 4))[column % 8];
    }
  }
}
#else
struct Fetched { int x, y; };
static void fetch(const Args&, int, int x, int y, Fetched& fetched) { fetched.x = x, fetched.y = y; }
static void finish(const Args&, int, int x, int y, const Acc (&v)[VEC] PF_REDUCE(, Reduced& reduced)) {
  for (int i = 0; i < VEC; ++i)
    results[x + (VEC_X ? i : 0)][y + (VEC_X ? 0 : i)] += v[i] PF_REDUCE(, reduced.of[0][i] = reduced.of[1][i] = v[i]);
}
// What was loaded ahead is for this element.
static void finish(const Args& args, int, int x, int y, const Acc (&v)[VEC], const Fetched& fetched
                   PF_REDUCE(, Reduced& reduced)) {
  if (fetched.x != x || fetched.y != y) abort();
  finish(args, 0, x, y, v PF_REDUCE(, reduced));
}
#endif
static void tiles();
static float number(int x, int y) { return x * TILES * BY + y + 1; }

// Each result once, at its index: returns 0.
int main() {
  for (int warp = 0; warp < 4; ++warp) {
    std::barrier<> together(32);
    std::vector<std::thread> threads;
    for (int lane = 0; lane < 32; ++lane)
      threads.emplace_back([&, lane] {
        threadIdx.x = warp * 32 + lane;
        warp_barrier = &together;
        tiles();
      });
    for (auto& one : threads) one.join();
  }
  for (int x = 0; x < BLOCKS * 64; ++x)
    for (int y = 0; y < TILES * BY; ++y) {
      const bool inside = (VEC_X ? x / VEC * VEC : x) < extent_x(Args()) && y < extent_y(Args());
      if (results[x][y] != (inside ? number(x, y) : 0)) return 1;
    }
  PF_REDUCE(if (reductions_wrong()) return 2;)
  return 0;
}
