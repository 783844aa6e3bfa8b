// What a block begins with: where it is in shared memory, and barriers there.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) PF_CLUSTER
POLYFUSE_KERNEL(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_y,
                PF_RESULT_MAP const __grid_constant__ Args args) {
  extern __shared__ u8 memory[];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  Ring ring;
  ring.x = base;
  ring.y = base + STAGES * X_BYTES;
  ring.full = base + STAGES * (X_BYTES + Y_BYTES) + CONSUMERS * 4 * STAGING;
  ring.empty = ring.full + 8 * STAGES;
  ring.order = ring.empty + 8 * STAGES;
  ring.order_phase = threadIdx.x / 128 == 2 ? 0 : 1;  // the first group need not wait before its first tile
  const u32 block = CLUSTER > 1 ? block_of_cluster() : 0;
  if (threadIdx.x == 0) {
    map_prefetch(&map_x);
    map_prefetch(&map_y);
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, (ALTERNATES ? 1 : CONSUMERS) * SHARERS);
    }
    for (int i = 0; ALTERNATES && i < 2; ++i) barrier_init(ring.order + 8 * i, 1);
    barriers_ready();
  }
  if constexpr (CLUSTER > 1) cluster_arrive_relaxed(), cluster_wait();
  else __syncthreads();
  wait_for_dependencies();
  work(ring, &map_x, &map_y, PF_RESULT_ADDRESS, args, block, base, (depth(args) + DEPTH - 1) / DEPTH);
}
