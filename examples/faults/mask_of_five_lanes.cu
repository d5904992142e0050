// All lanes of a warp shuffle, and the mask 0x1f names the first five: it is the number of bits of a lane's index, not
// a mask. For the other lanes the result is undefined.
// Public: NVIDIA/cutlass #1094; NVlabs/cub #154
// Finding: lane outside its mask
#include "faults.h"

#ifdef CORRECTED
constexpr unsigned MASK = 0xffffffff;
#else
constexpr unsigned MASK = 0x1f;
#endif
__managed__ int out[32];

__global__ void broadcast() {
  out[threadIdx.x] = __shfl_sync(MASK, int(threadIdx.x) + 1, 3);  // <- finding
}

int main() {
  broadcast<<<1, 32>>>();
  return verdict(32, [](int i) { return out[i] == 4; });
}
