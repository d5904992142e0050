// All lanes of a warp take one lock in the plain way: a deadlock before Volta, right since, because lanes make progress
// for themselves.
// Public: forums.developer.nvidia.com/t/267535
// Right: no finding
#include "faults.h"

__managed__ int lock, count;

__global__ void take() {
  while (atomicCAS(&lock, 0, 1) != 0) {
  }
  __threadfence();
  count = count + 1;
  __threadfence();
  atomicExch(&lock, 0);
}

int main() {
  take<<<2, 64>>>();
  return verdict(1, [](int) { return count == 128; });
}
