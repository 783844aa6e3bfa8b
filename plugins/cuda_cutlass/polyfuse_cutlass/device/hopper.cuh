// What Hopper has for matrix multiplications: barriers in shared memory, the copy engine, and groups of four warps that
// multiply. Addresses of shared memory are numbers of 32 bits.
#ifndef PF_HOPPER
#define PF_HOPPER
PF_INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// The number of this thread, read anew: what follows from it takes no registers before.
PF_INLINE u32 thread_here() {
  u32 r;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(r));
  return r;
}
// The number of this block, read anew.
PF_INLINE u32 block_here() {
  u32 r;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(r));
  return r;
}
PF_INLINE void barrier_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
PF_INLINE void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
PF_INLINE void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// At the same barrier of another block of the cluster. It says that a tile was read, so it need not wait for what
// this thread wrote before, as `.release.cluster` would.
PF_INLINE void barrier_arrive_at(u32 bar, u32 block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar), "r"(block) : "memory");
}
PF_INLINE void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra READY;\n"
      "bra AGAIN;\nREADY:\n}" ::"r"(bar), "r"(parity) : "memory");
}
PF_INLINE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
PF_INLINE u32 block_of_cluster() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
PF_INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// The same where no block needs to see what another wrote.
PF_INLINE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
PF_INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
PF_INLINE void warps_sync(int bar, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}
template <int COUNT> PF_INLINE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> PF_INLINE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// This kernel may have started while the one before it in its stream ran: until that is done, nothing that it writes
// or reads may be touched.
PF_INLINE void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

PF_INLINE void map_prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"((u64)map) : "memory");
}
#define PF_COPY "cp.async.bulk.tensor."
#define PF_COPY_WAY ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
// Copies a box of a tensor. `others`: the blocks of the cluster that get it too, as bits; 0: only this one.
PF_INLINE void copy_tile(u32 to, const TensorMap* map, u32 bar, u16 others, int c0, int c1, const int (&b)[1]) {
  if (others)
    asm volatile(PF_COPY "3d" PF_COPY_WAY ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
                 "l"((u64)map), "r"(bar), "h"(others), "r"(c0), "r"(c1), "r"(b[0]) : "memory");
  else
    asm volatile(PF_COPY "3d" PF_COPY_WAY " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"((u64)map), "r"(bar),
                 "r"(c0), "r"(c1), "r"(b[0]) : "memory");
}
PF_INLINE void copy_tile(u32 to, const TensorMap* map, u32 bar, u16 others, int c0, int c1, const int (&b)[2]) {
  if (others)
    asm volatile(PF_COPY "4d" PF_COPY_WAY ".multicast::cluster [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to),
                 "l"((u64)map), "r"(bar), "h"(others), "r"(c0), "r"(c1), "r"(b[0]), "r"(b[1]) : "memory");
  else
    asm volatile(PF_COPY "4d" PF_COPY_WAY " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"((u64)map), "r"(bar),
                 "r"(c0), "r"(c1), "r"(b[0]), "r"(b[1]) : "memory");
}
PF_INLINE void copy_tile(u32 to, const TensorMap* map, u32 bar, u16 others, int c0, int c1, const int (&b)[3]) {
  if (others)
    asm volatile(PF_COPY "5d" PF_COPY_WAY ".multicast::cluster [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(to),
                 "l"((u64)map), "r"(bar), "h"(others), "r"(c0), "r"(c1), "r"(b[0]), "r"(b[1]), "r"(b[2]) : "memory");
  else
    asm volatile(PF_COPY "5d" PF_COPY_WAY " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to), "l"((u64)map),
                 "r"(bar), "r"(c0), "r"(c1), "r"(b[0]), "r"(b[1]), "r"(b[2]) : "memory");
}

// What this thread wrote to shared memory is there for copies that are started from now on.
PF_INLINE void copies_see_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Copies a box of shared memory to a tensor.
#define PF_STORE_WAY ".global.shared::cta.tile.bulk_group"
PF_INLINE void store_tile(u32 from, const TensorMap* map, int c0, int c1, const int (&b)[1]) {
  asm volatile(PF_COPY "3d" PF_STORE_WAY " [%0, {%2, %3, %4}], [%1];" ::"l"((u64)map), "r"(from), "r"(c0), "r"(c1),
               "r"(b[0]) : "memory");
}
PF_INLINE void store_tile(u32 from, const TensorMap* map, int c0, int c1, const int (&b)[2]) {
  asm volatile(PF_COPY "4d" PF_STORE_WAY " [%0, {%2, %3, %4, %5}], [%1];" ::"l"((u64)map), "r"(from), "r"(c0),
               "r"(c1), "r"(b[0]), "r"(b[1]) : "memory");
}
PF_INLINE void store_tile(u32 from, const TensorMap* map, int c0, int c1, const int (&b)[3]) {
  asm volatile(PF_COPY "5d" PF_STORE_WAY " [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"((u64)map), "r"(from), "r"(c0),
               "r"(c1), "r"(b[0]), "r"(b[1]), "r"(b[2]) : "memory");
}
PF_INLINE void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but so many of this thread's stores have read what they store.
template <int LEFT> PF_INLINE void stores_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
// Four matrices of eight rows of eight results, of which each thread holds two neighbours. `to`: where the row lies
// that this thread stands for.
PF_INLINE void put_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
               "r"(d) : "memory");
}

PF_INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PF_INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> PF_INLINE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Where a tile lies for the multiplier: rows of 128 bytes, swizzled. `ALONG` says that a row runs along rows or
// columns of the result instead of the depth; such rows are in slabs of `DEPTH` rows.
template <bool ALONG, int DEPTH> PF_INLINE u64 tile_descriptor(u32 address) {
  constexpr u64 SLAB = ALONG ? DEPTH * 128 / 16 : 1;
  return (u64)((address & 0x3ffff) >> 4) | SLAB << 16 | (u64)(1024 / 16) << 32 | (u64)1 << 62;
}
#endif
