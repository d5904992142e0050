// TMA brings 2048 bytes, and the mbarrier was told to expect 1024: its count of bytes goes below zero, and a later
// phase never ends.
// Public: mirage-project/mirage PR #705
// Finding: deadlock
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 512, TILES = 4;
__managed__ alignas(128) int in[TILES * N], out[TILES * N];

__global__ void twice() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1), fence_init();
  __syncthreads();
  for (int i = 0; i < TILES; ++i) {
    if (threadIdx.x == 0) {
#ifdef CORRECTED
      expect(&bar, sizeof tile);
#else
      expect(&bar, sizeof tile / 2);
#endif
      load(tile, in + i * N, sizeof tile, &bar);
    }
    wait(&bar, i % 2);  // <- finding
    for (int j = threadIdx.x; j < N; j += blockDim.x) out[i * N + j] = 2 * tile[j];
    fence_proxy();
    __syncthreads();
  }
}

int main() {
  for (int i = 0; i < TILES * N; ++i) in[i] = i;
  twice<<<1, 128>>>();
  return verdict(TILES * N, [](int i) { return out[i] == 2 * i; });
}
