// Two bulk copies complete on one mbarrier, and one arrival expects the bytes of both: a checker once called this a
// deadlock.
// Public: triton-lang/triton PR #9046
// Right: no finding
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ alignas(128) int a[N], b[N], out[N];

__global__ void add() {
  __shared__ alignas(128) int tile[2][N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1), fence_init();
    expect(&bar, sizeof tile);
    load(tile[0], a, sizeof tile[0], &bar);
    load(tile[1], b, sizeof tile[1], &bar);
  }
  __syncthreads();
  wait(&bar, 0);
  out[threadIdx.x] = tile[0][threadIdx.x] + tile[1][N - 1 - threadIdx.x];
}

int main() {
  for (int i = 0; i < N; ++i) a[i] = b[i] = i;
  add<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == N - 1; });
}
