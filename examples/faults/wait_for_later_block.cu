// The first block waits for a flag that the last one sets, and there are more blocks than the GPU holds: the last
// cannot begin before one of the first has ended.
// Public: the same theme in agency-library/agency #435 and NVIDIA/cub #356
// Finding: deadlock
#include "faults.h"

constexpr int BLOCKS = 4000;
__managed__ int out;
__device__ volatile int flag;

__global__ void chain() {
#ifdef CORRECTED
  const bool sets = blockIdx.x == 0, waits = blockIdx.x == gridDim.x - 1;
#else
  const bool sets = blockIdx.x == gridDim.x - 1, waits = threadIdx.x == 0;
#endif
  if (sets && threadIdx.x == 0) {
    __threadfence();
    flag = 1;
  }
  if (waits && threadIdx.x == 0)
    while (flag == 0) {  // <- finding
    }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) out = 1;
}

int main() {
  chain<<<BLOCKS, 1024>>>();
  return verdict(1, [](int) { return out == 1; });
}
