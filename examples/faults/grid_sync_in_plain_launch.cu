// A kernel waits for the whole grid, and is launched with <<<>>>: a barrier of the grid needs a co-operative launch.
// Public: csarofeen/pytorch PR #1726
// Finding: trap
#include <cooperative_groups.h>

#include "faults.h"

constexpr int BLOCKS = 8, BLOCK = 64;
__managed__ int values[BLOCKS * BLOCK], out;

__global__ void count() {
  auto grid = cooperative_groups::this_grid();
  values[grid.thread_rank()] = 1;
  grid.sync();  // <- finding
  if (grid.thread_rank() == 0)
    for (int i = 0; i < BLOCKS * BLOCK; ++i) out += values[i];
}

int main() {
#ifndef CORRECTED
  count<<<BLOCKS, BLOCK>>>();
#else
  cudaLaunchCooperativeKernel(count, dim3(BLOCKS), dim3(BLOCK), nullptr);
#endif
  return verdict(1, [](int) { return out == BLOCKS * BLOCK; });
}
