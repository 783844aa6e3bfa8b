// Split-K: what a block does that adds up a range of the depth.
//
// The blocks of a cluster have each summed a range of the depth: they add up the partial sums, a section of the tile each.
constexpr int PARTIAL_PITCH = BY + 4;
PF_INLINE void store_partial_sums(u32 base, Results& sum, int row) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int j = 0; j < BY / 8; ++j) {
      const u32 to = base + ((row + m * 64 + warp * 16 + lane / 4) * PARTIAL_PITCH + j * 8 + lane % 4 * 2) * 4;
      const Acc* from = &sum[m][j * 4];
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), PF_ACC_IN(from[0]), PF_ACC_IN(from[1]) : "memory");
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + 8 * PARTIAL_PITCH * 4), PF_ACC_IN(from[2]),
                   PF_ACC_IN(from[3]) : "memory");
    }
}
PF_INLINE void finish_partial_sums(const Args& args, u32 base, u32 block, int batch, int x0, int y0) {
  constexpr int UNITS = TAKEN * BY / VEC;
  const int section = block / LAYER * (128 * CONSUMERS);
  for (int unit = section + threadIdx.x - 128; unit < UNITS; unit += SPLIT * 128 * CONSUMERS) {
    const int row = VEC_X ? unit % (TAKEN / VEC) * VEC : unit / (BY / VEC);
    const int column = VEC_X ? unit / (TAKEN / VEC) : unit % (BY / VEC) * VEC;
    if (x0 + row >= extent_x(args) || y0 + column >= extent_y(args)) continue;
    Acc value[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) value[v] = 0;
#pragma unroll
    for (int partial = 0; partial < SPLIT; ++partial) {
      u32 there;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there)
                   : "r"(base + (row * PARTIAL_PITCH + column) * 4), "r"(partial * LAYER + block % LAYER));
      if constexpr (!VEC_X && VEC % 4 == 0) {
#pragma unroll
        for (int v = 0; v < VEC; v += 4) {
          Acc one[4];
          asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
                       : PF_ACC_OUT(one[0]), PF_ACC_OUT(one[1]), PF_ACC_OUT(one[2]), PF_ACC_OUT(one[3])
                       : "r"(there + v * 4) : "memory");
#pragma unroll
          for (int i = 0; i < 4; ++i) value[v + i] += one[i];
        }
      } else {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          Acc one;
          asm volatile("ld.shared::cluster.b32 %0, [%1];" : PF_ACC_OUT(one)
                       : "r"(there + v * 4 * (VEC_X ? PARTIAL_PITCH : 1)) : "memory");
          value[v] += one;
        }
      }
    }
    finish(args, batch, x0 + row, y0 + column, value);
  }
}

PF_INLINE void work(Ring ring, const TensorMap* map_x, const TensorMap* map_y, const TensorMap*, const Args& args,
                    u32 block, u32 base, int all) {
  const int each = (all + SPLIT - 1) / SPLIT, begin = min(all, (int)block / LAYER * each), end = min(all, begin + each);
  Tiles tiles(args);  // one for each cluster
  if (threadIdx.x < 128) {
    if (threadIdx.x == 0) produce(ring, map_x, map_y, args, block, begin, end);
    __syncwarp();
    cluster_arrive(), cluster_wait();
  } else {
    const int row = (threadIdx.x / 128 - 1) * GROUP_ROWS;
    Results sum;
    multiply(ring, sum, end - begin, row, block, 0);
    warps_sync(1, 128 * CONSUMERS);  // the ring is read to its end: its memory holds the partial sums
    store_partial_sums(base, sum, row);
    cluster_arrive(), cluster_wait();
    const int x = (tiles.x * CX + block % CX) * TAKEN, y = (tiles.y * CY + block / CX % CY) * BY;
    finish_partial_sums(args, base, block, tiles.batch, x, y);
  }
  cluster_arrive_relaxed(), cluster_wait();  // others may still read this block's partial sums
}
