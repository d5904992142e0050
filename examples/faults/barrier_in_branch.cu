// __syncthreads stands in the branch of the threads that have an element; in the last block the others go on to the
// next barrier, and the two kinds of threads meet there.
// Public: arrayfire/arrayfire #625, PR #633; tile-ai/tilelang #1026
// Finding: barrier divergence
#include "faults.h"

constexpr int BLOCK = 256, N = 400;
__managed__ int in[N], out[N];

__global__ void reverse_in_block() {
  __shared__ int values[BLOCK];
  const int thread = threadIdx.x, i = blockIdx.x * BLOCK + thread;
  values[thread] = 0;
  if (i < N) {
    values[thread] = in[i];
#ifndef CORRECTED
    __syncthreads();  // <- finding
    out[i] = values[BLOCK - 1 - thread];
#endif
  }
  __syncthreads();  // <- finding
#ifdef CORRECTED
  if (i < N) out[i] = values[BLOCK - 1 - thread];
#else
  if (thread == 0 && values[0] < 0) out[0] = 0;
#endif
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = i;
  reverse_in_block<<<2, BLOCK>>>();
  return verdict(BLOCK, [](int i) { return out[i] == BLOCK - 1 - i; });
}
