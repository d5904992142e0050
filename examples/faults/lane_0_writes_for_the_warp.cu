// Lane 0 writes a value to shared memory, and the other lanes of its warp read it with no __syncwarp between; in a loop
// it also overwrites what they may not have read yet.
// Public: kokkos/kokkos #6217, PR #6630
// Finding: shared race
#include "faults.h"

constexpr int ROUNDS = 3;
__managed__ int out[ROUNDS * 32];

__global__ void broadcast() {
  __shared__ int value;
  for (int i = 0; i < ROUNDS; ++i) {
    if (threadIdx.x == 0) value = i;  // <- finding
#ifdef CORRECTED
    __syncwarp();
#endif
    out[i * 32 + threadIdx.x] = value;  // <- finding
#ifdef CORRECTED
    __syncwarp();
#endif
  }
}

int main() {
  broadcast<<<1, 32>>>();
  return verdict(ROUNDS * 32, [](int i) { return out[i] == i / 32; });
}
