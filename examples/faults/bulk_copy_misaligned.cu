// A bulk copy begins at a global address that is a multiple of 8 and not of 16 bytes, as rows of an odd length do.
// The launch fails.
// Public: deepseek-ai/DeepGEMM #10, #147
// Finding: misaligned
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
#ifdef CORRECTED
constexpr int PITCH = N + 4;
#else
constexpr int PITCH = N + 2;
#endif
__managed__ alignas(128) int in[2 * PITCH], out[N];

__global__ void second_row() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1), fence_init();
    expect(&bar, sizeof tile);
    load(tile, in + PITCH, sizeof tile, &bar);  // <- finding
  }
  __syncthreads();
  wait(&bar, 0);
  out[threadIdx.x] = tile[threadIdx.x];
}

int main() {
  for (int i = 0; i < N; ++i) in[PITCH + i] = i;
  second_row<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == i; });
}
