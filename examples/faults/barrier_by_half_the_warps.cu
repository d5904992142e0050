// The block's barrier stands in a branch that half of the warps take; the others go on and read values that may not
// have been written.
// Public: ggml-org/llama.cpp PR #13438, #13469
// Finding: barrier divergence
#include "faults.h"

constexpr int N = 128;
__managed__ int out[N];

__global__ void swap_halves() {
  __shared__ int values[N];
  values[threadIdx.x] = threadIdx.x;
#ifndef CORRECTED
  if (threadIdx.x < 64)
#endif
    asm volatile("bar.sync 0, 128;" ::: "memory");  // <- finding
  out[threadIdx.x] = values[threadIdx.x ^ 64];
}

int main() {
  swap_halves<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == (i ^ 64); });
}
