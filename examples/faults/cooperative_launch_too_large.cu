// A co-operative launch asks for more blocks than the GPU holds at a time: CUDA refuses it, because blocks that have
// not begun could never come to the barrier.
// Public: llvm/llvm-project #98886; cupy/cupy PR #3894
// Finding: refused launch
#include <cooperative_groups.h>

#include "faults.h"

__managed__ int out;

__global__ void count() {
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) atomicAdd(&out, 1);
}

int main() {
  int each, multiprocessors;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, count, 1024, 0);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  static int blocks;
  blocks = each * multiprocessors;
#ifndef CORRECTED
  blocks += 1;
#endif
  cudaLaunchCooperativeKernel(count, dim3(blocks), dim3(1024), nullptr);  // <- finding
  return verdict(1, [](int) { return out == blocks; });
}
