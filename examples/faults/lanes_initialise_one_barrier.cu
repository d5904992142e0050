// All 32 lanes of a warp initialise the same mbarrier, one after the other perhaps: a lane may do so when another has
// already arrived.
// Public: HazyResearch/ThunderKittens, seen in a run of its products (docs/emulator.md)
// Finding: shared race
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ alignas(128) int in[N], out[N];

__global__ void reverse() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
#ifdef CORRECTED
  if (threadIdx.x == 0)
#else
  if (threadIdx.x < 32)
#endif
    init(&bar, 1), fence_init();  // <- finding
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&bar, sizeof tile);
    load(tile, in, sizeof tile, &bar);
  }
  wait(&bar, 0);
  out[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = i;
  reverse<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == N - 1 - i; });
}
