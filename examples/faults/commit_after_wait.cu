// The copies of a slice are committed after the wait instead of before it, so the wait counts one group too few, and it
// comes after the tile has been read.
// Public: csarofeen/pytorch PR #2457
// Finding: copy in flight
#include "faults.h"

constexpr int STAGES = 3, TILES = 6;
__managed__ int4 in[TILES * 32], out[TILES * 32];

__global__ void reverse() {
  __shared__ int4 ring[STAGES][32];
  const int lane = threadIdx.x;
  for (int i = 0; i < STAGES - 1; ++i) copy16(&ring[i][lane], in + i * 32 + lane), commit();
  for (int i = 0; i < TILES; ++i) {
#ifdef CORRECTED
    wait_copies<STAGES - 2>();
    __syncwarp();
#endif
    out[i * 32 + lane] = ring[i % STAGES][31 - lane];  // <- finding
    const int next = i + STAGES - 1;
    if (next < TILES) copy16(&ring[next % STAGES][lane], in + next * 32 + lane);
#ifndef CORRECTED
    wait_copies<STAGES - 2>();
    __syncwarp();
#endif
    commit();
  }
}

int main() {
  for (int i = 0; i < TILES * 32; ++i) in[i] = make_int4(i, 0, 0, 0);
  reverse<<<1, 32>>>();
  return verdict(TILES * 32, [](int i) { return out[i].x == i / 32 * 32 + 31 - i % 32; });
}
