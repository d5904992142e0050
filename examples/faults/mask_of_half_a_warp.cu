// Groups of sixteen lanes shuffle, and all of them pass the mask of the lower half: the upper half executes a shuffle
// that its mask does not name it for.
// Public: xlite-dev/LeetCUDA #363; catboost/catboost #2339
// Finding: lane outside its mask
#include "faults.h"

__managed__ int out[32];

__global__ void sums_of_sixteen() {
  const int lane = threadIdx.x;
#ifdef CORRECTED
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
#else
  const unsigned mask = 0x0000ffffu;
#endif
  int sum = lane;
  for (int step = 8; step; step /= 2) sum += __shfl_xor_sync(mask, sum, step, 16);  // <- finding
  out[lane] = sum;
}

int main() {
  sums_of_sixteen<<<1, 32>>>();
  return verdict(32, [](int i) { return out[i] == (i < 16 ? 120 : 376); });
}
