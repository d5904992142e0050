// A vote with the full mask stands in a branch that some lanes take: it waits for lanes that do not come, and that
// execute another collective with the same mask later.
// Public: ComputationalRadiationPhysics/picongpu #2514
// Finding: warp divergence
#include "faults.h"

__managed__ int in[64], count, out[64];

__global__ void count_sevens() {
  const int value = in[threadIdx.x];
#ifdef CORRECTED
  const unsigned mask = __ballot_sync(0xffffffff, value == 7);
#endif
  if (value == 7) {
#ifndef CORRECTED
    const unsigned mask = __ballot_sync(0xffffffff, 1);  // <- finding
#endif
    if (threadIdx.x % 32 == __ffs(mask) - 1) atomicAdd(&count, __popc(mask));
  }
  out[threadIdx.x] = __shfl_sync(0xffffffff, value, 0);
}

int main() {
  for (int i = 0; i < 64; ++i) in[i] = i % 3 ? 1 : 7;
  count_sevens<<<1, 64>>>();
  return verdict(64, [](int i) { return count == 22 && out[i] == in[i / 32 * 32]; });
}
