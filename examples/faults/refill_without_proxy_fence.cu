// A ring's stage is read by ordinary loads, a barrier follows, and TMA refills the stage: no fence.proxy.async between
// the reads and the refill.
// Public: deepseek-ai/DeepEP #621, mended in #642; asked for by Triton's ConSan (triton-lang/triton #10668)
// Finding: missing proxy fence (strict)
// PTX: accesses to the same memory by two proxies need a proxy fence between them; it makes no exception for a read
//   before a write.
// Hardware: DeepEP #621 reports wrong results on an NVL72, after which the fence was added; Dao-AILab/flash-attention
//   #2462, which proposed the same fence, was closed.
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128, TILES = 4;
__managed__ alignas(128) int in[TILES * N], out[N];

__global__ void sums() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1), fence_init();
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < TILES; ++i) {
    if (threadIdx.x == 0) {
      expect(&bar, sizeof tile);
      load(tile, in + i * N, sizeof tile, &bar);  // <- finding
    }
    wait(&bar, i % 2);
    sum += tile[N - 1 - threadIdx.x];
#ifdef CORRECTED
    fence_proxy();
#endif
    __syncthreads();
  }
  out[threadIdx.x] = sum;
}

int main() {
  for (int i = 0; i < TILES * N; ++i) in[i] = i;
  sums<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == TILES * (N - 1 - i) + N * (TILES * (TILES - 1) / 2); });
}
