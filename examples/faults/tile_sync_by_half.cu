// A cooperative group's tile.sync() stands in a branch of half of the tile; the other half comes to the next
// tile.sync(), and they are taken for one another.
// Public: numba/numba #2655; tile-ai/tilelang #1026
// Finding: warp divergence
#include <cooperative_groups.h>

#include "faults.h"

__managed__ int out[64], first[64];

__global__ void halves() {
  __shared__ int values[64];
  auto tile = cooperative_groups::tiled_partition<16>(cooperative_groups::this_thread_block());
  const int thread = threadIdx.x;
  values[thread] = thread;
#ifdef CORRECTED
  tile.sync();
#endif
  if (tile.thread_rank() < 8) {
#ifndef CORRECTED
    tile.sync();  // <- finding
#endif
    out[thread] = values[thread + 8];
  }
#ifdef CORRECTED
  tile.sync();
#endif
  first[thread] = tile.shfl(thread, 0);  // <- finding
}

int main() {
  halves<<<1, 64>>>();
  return verdict(64, [](int i) { return first[i] == i / 16 * 16 && (i % 16 >= 8 || out[i] == i + 8); });
}
