// Two lanes shuffle with a mask of the two, in a branch; then all lanes shuffle with the full mask. It hung when it was
// compiled by CUDA 9.1.
// Public: gunrock/gunrock #324
// Right: no finding
#include "faults.h"

__managed__ int out[32];

__global__ void shuffle() {
  const int lane = threadIdx.x;
  int value = lane;
  if (lane % 16 == 0) value += __shfl_xor_sync(0x00010001, value, 16);
  out[lane] = __shfl_up_sync(0xffffffff, value, 8);
}

int main() {
  shuffle<<<1, 32>>>();
  return verdict(32, [](int i) {
    const int from = i < 8 ? i : i - 8;
    return out[i] == (from % 16 ? from : 16);
  });
}
