// The thread that has issued the last bulk store ends without a wait: its block's shared memory may be given away while
// TMA still reads it.
// Public: pranjalssh/fast.cu and deepseek-ai/DeepGEMM, seen in runs of their kernels (docs/emulator.md)
// Finding: copy in flight
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ alignas(128) int out[N];

__global__ void squares() {
  __shared__ alignas(128) int tile[N];
  tile[threadIdx.x] = threadIdx.x * threadIdx.x;
  fence_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    store(out, tile, sizeof tile);  // <- finding
#ifdef CORRECTED
    wait_stores_read();
#endif
  }
}

int main() {
  squares<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == i * i; });
}
