// A tile is read after a barrier of the block, with no wait for the mbarrier on which its copy completes.
// The barrier waits for threads, not for copies.
// Public: facebookresearch/CUTracer PR #106, another one
// Finding: copy in flight
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ alignas(128) int in[N], out[N];

__global__ void reverse() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1), fence_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&bar, sizeof tile);
    load(tile, in, sizeof tile, &bar);
  }
#ifdef CORRECTED
  wait(&bar, 0);
#else
  __syncthreads();
#endif
  out[threadIdx.x] = tile[N - 1 - threadIdx.x];  // <- finding
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = i;
  reverse<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == N - 1 - i; });
}
