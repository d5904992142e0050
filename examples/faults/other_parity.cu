// The first wait at an mbarrier is for parity 1, that of the phase before the first: it passes at once, and the tile is
// read before it has come.
// Public: facebookresearch/CUTracer PR #106, one of its broken products
// Finding: copy in flight
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128, TILES = 4;
#ifdef CORRECTED
constexpr int FIRST = 0;
#else
constexpr int FIRST = 1;
#endif
__managed__ alignas(128) int in[TILES * N], out[TILES * N];

__global__ void reverse() {
  __shared__ alignas(128) int tile[TILES][N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1), fence_init();
  __syncthreads();
  for (int i = 0; i < TILES; ++i) {
    if (threadIdx.x == 0) {
      expect(&bar, sizeof tile[i]);
      load(tile[i], in + i * N, sizeof tile[i], &bar);
    }
    wait(&bar, (i + FIRST) % 2);
    out[i * N + threadIdx.x] = tile[i][N - 1 - threadIdx.x];  // <- finding
    __syncthreads();
  }
}

int main() {
  for (int i = 0; i < TILES * N; ++i) in[i] = i;
  reverse<<<1, N>>>();
  return verdict(TILES * N, [](int i) { return out[i] == i / N * N + N - 1 - i % N; });
}
