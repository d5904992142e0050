// Each thread of a warpgroup arrives at a named barrier of 256 and then waits at it: one warpgroup counts twice and
// completes the barrier alone, before the other has written anything.
// Public: flashinfer-ai/flashinfer, prefill for Hopper, seen in a run of its kernels (docs/emulator.md)
// Finding: barrier divergence
#include "faults.h"

constexpr int N = 256;
__managed__ int out[N];

__global__ void swap_halves() {
  __shared__ int values[N];
  values[threadIdx.x] = threadIdx.x;
#ifndef CORRECTED
  asm volatile("bar.arrive 1, 256;" ::: "memory");  // <- finding
#endif
  asm volatile("bar.sync 1, 256;" ::: "memory");  // <- finding
  out[threadIdx.x] = values[threadIdx.x ^ 128];
}

int main() {
  swap_halves<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == (i ^ 128); });
}
