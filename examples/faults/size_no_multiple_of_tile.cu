// A kernel copies whole tiles, its launcher rounds the grid up, and neither looks whether the size is a multiple of the
// tile: the last block goes beyond the array.
// Public: pranjalssh/fast.cu #4; siboehm/SGEMM_CUDA #22
// Finding: out of bounds global
#include "faults.h"

constexpr int TILE = 64, N = 100;

__global__ void twice(const int *in, int *out, int n) {
  const int i = blockIdx.x * TILE + threadIdx.x;
#ifdef CORRECTED
  if (i < n)
#endif
    out[i] = 2 * in[i];  // <- finding
}

int main() {
  static int result[N];
  int *in, *out;
  cudaMalloc(&in, sizeof result);
  cudaMalloc(&out, sizeof result);
  cudaMemset(in, 1, sizeof result);
  twice<<<(N + TILE - 1) / TILE, TILE>>>(in, out, N);
  cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost);
  return verdict(N, [](int i) { return result[i] == 2 * 0x01010101; });
}
