// Ordinary stores fill a tile and a bulk store reads it, with a barrier between the two and no fence.proxy.async: TMA
// may read what was there before.
// Public: MoonshotAI/FlashKDA #24; "is the fence necessary?": NVIDIA/cutlass #2960
// Finding: missing proxy fence
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ alignas(128) int out[N];

__global__ void squares() {
  __shared__ alignas(128) int tile[N];
  tile[threadIdx.x] = threadIdx.x * threadIdx.x;  // <- finding
#ifdef CORRECTED
  fence_proxy();
#endif
  __syncthreads();
  if (threadIdx.x == 0) {
    store(out, tile, sizeof tile);  // <- finding
    wait_stores();
  }
}

int main() {
  squares<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == i * i; });
}
