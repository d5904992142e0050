// Rows of a shared array are padded by one float against bank conflicts, and read as float4: every row but each fourth
// begins at no multiple of 16 bytes.
// Public: AyakaGEMM/Hands-on-GEMM #11
// Finding: misaligned
#include "faults.h"

#ifdef CORRECTED
constexpr int PAD = 4;
#else
constexpr int PAD = 1;
#endif
__managed__ float4 out[128];

__global__ void rows() {
  __shared__ alignas(16) float tile[8][64 + PAD];
  const int row = threadIdx.x / 16, column = threadIdx.x % 16 * 4;
  for (int i = 0; i < 4; ++i) tile[row][column + i] = row * 64 + column + i;
  __syncthreads();
  out[threadIdx.x] = *reinterpret_cast<float4 *>(&tile[row][column]);  // <- finding
}

int main() {
  rows<<<1, 128>>>();
  return verdict(128, [](int i) { return out[i].x == 4 * i && out[i].w == 4 * i + 3; });
}
