// A block publishes its sum and then a flag, the next block waits for the flag and reads the sum: without a fence on
// both sides it may see the flag and not the sum.
// Public: matteospanio/torchfx #96; NVIDIA/cub #356
// Finding: global race
#include "faults.h"

constexpr int BLOCKS = 20;
__managed__ int in[BLOCKS], sums[BLOCKS];
__managed__ volatile int flags[BLOCKS];

__global__ void chain() {
  const int block = blockIdx.x;
  int before = 0;
  if (block > 0) {
    while (flags[block - 1] == 0) {
    }
#ifdef CORRECTED
    __threadfence();
#endif
    before = sums[block - 1];  // <- finding
  }
  sums[block] = before + in[block];  // <- finding
#ifdef CORRECTED
  __threadfence();
#endif
  flags[block] = 1;
}

int main() {
  for (int i = 0; i < BLOCKS; ++i) in[i] = i;
  chain<<<BLOCKS, 1>>>();
  return verdict(BLOCKS, [](int i) { return sums[i] == i * (i + 1) / 2; });
}
