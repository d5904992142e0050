// One thread issues the bulk stores, all threads wait for the group, and the tile is written anew: only the wait of the
// thread that issued them means anything, the others' groups are empty.
// Public: NVIDIA/TransformerEngine PR #3417
// Finding: copy in flight
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128, TILES = 3;
__managed__ alignas(128) int out[TILES * N];

__global__ void count() {
  __shared__ alignas(128) int tile[N];
  for (int i = 0; i < TILES; ++i) {
    tile[threadIdx.x] = i * N + threadIdx.x;  // <- finding
    fence_proxy();
    __syncthreads();
    if (threadIdx.x == 0) store(out + i * N, tile, sizeof tile);
    wait_stores_read();
#ifdef CORRECTED
    __syncthreads();
#endif
  }
  wait_stores();
}

int main() {
  count<<<1, N>>>();
  return verdict(TILES * N, [](int i) { return out[i] == i; });
}
