// A ring of two stages with full and empty mbarriers, as in products for Hopper: every read waits for its copy, every
// refill for its readers. racecheck is said to report bulk copies into shared memory all the same.
// Public: Dao-AILab/flash-attention, AI/RACECHECK_TMA_HAZARD.md
// Right: no finding
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128, TILES = 9;
__managed__ alignas(128) int in[TILES * N], out[N];

__global__ void sums() {
  __shared__ alignas(128) int tile[2][N];
  __shared__ uint64_t full[2], empty[2];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) init(&full[i], 1), init(&empty[i], N);
    fence_init();
  }
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < TILES; ++i) {
    const int stage = i % 2, phase = i / 2 % 2;
    if (threadIdx.x == N) {
      wait(&empty[stage], phase ^ 1);
      expect(&full[stage], sizeof tile[0]);
      load(tile[stage], in + i * N, sizeof tile[0], &full[stage]);
    } else if (threadIdx.x < N) {
      wait(&full[stage], phase);
      sum += tile[stage][N - 1 - threadIdx.x];
      fence_proxy();
      arrive(&empty[stage]);
    }
  }
  if (threadIdx.x < N) out[threadIdx.x] = sum;
}

int main() {
  for (int i = 0; i < TILES * N; ++i) in[i] = i;
  sums<<<1, N + 32>>>();
  return verdict(N, [](int i) { return out[i] == TILES * (N - 1 - i) + N * (TILES * (TILES - 1) / 2); });
}
