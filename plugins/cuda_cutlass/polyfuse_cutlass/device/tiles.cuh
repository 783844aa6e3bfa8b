// What a block does that takes tile after tile.
PF_INLINE void consume(Ring ring, const Args& args, u32 block, Staging staging, int stages) {
  const int group = threadIdx.x / 128 - 1, row = ALTERNATES ? 0 : group * GROUP_ROWS;
  const int rx = block % CX, ry = block / CX % CY;
  Tiles tiles(args);
  if (ALTERNATES && group) tiles.next(), ring.skip(stages);
  for (; tiles.valid(); tiles.next()) {
    const int x = (tiles.x * CX + rx) * TAKEN, y = (tiles.y * CY + ry) * BY, end = min(extent_x(args), x + TAKEN);
    Results sum;
    Prefetched prefetched;
    if (PREFETCHES) prefetched.load(args, tiles.batch, x + row, y, end);
    // a barrier tells a round from the one before, not from those before that: begin only when it is time
    if (ALTERNATES) barrier_wait(ring.order + 8 * group, ring.order_phase), ring.order_phase ^= 1;
    multiply(ring, sum, stages, row, block, ring.order + 8 * (group ^ 1));
    if (!PREFETCHES) prefetched.load(args, tiles.batch, x + row, y, end);
    finish_tile(args, staging, prefetched, sum, tiles.batch, x + row, y, end);
    if (ALTERNATES) tiles.next(), ring.skip(stages);
  }
  staging.done();
}

PF_INLINE void work(Ring ring, const TensorMap* map_x, const TensorMap* map_y, const TensorMap* result,
                    const Args& args, u32 block, u32 base, int all) {
  if (threadIdx.x < 128) {
    if constexpr (CONSUMERS > 1) fewer_registers<40>();
    if (threadIdx.x == 0) produce(ring, map_x, map_y, args, block, 0, all);
  } else {
    if constexpr (CONSUMERS > 1) more_registers<232>();
    const u32 staging = base + STAGES * (X_BYTES + Y_BYTES) + (threadIdx.x / 32 - 4) * STAGING;
    consume(ring, args, block, Staging(staging, result), all);
  }
  // others may still signal a block that is done
  if constexpr (CLUSTER > 1) cluster_arrive_relaxed(), cluster_wait();
}
