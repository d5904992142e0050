// stmatrix is given a tile that shall lie transposed in shared memory, and lacks .trans: each lane's pair of values
// lies along a row instead of down a column. All accesses are in order; the numbers are in the wrong places.
// Public: NVIDIA/Fuser #3963, #4771
// Finding: wrong result
// Needs compute capability 9.0.
#include "faults.h"

__managed__ uint16_t out[64];

__global__ void transpose() {
  __shared__ alignas(16) uint16_t tile[8][8];
  const int lane = threadIdx.x, row = lane / 4, column = lane % 4 * 2;  // what a lane has of a matrix of 8 x 8
  const unsigned pair = (row * 8 + column) | (row * 8 + column + 1) << 16;
#ifdef CORRECTED
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(at(tile[lane % 8])),
               "r"(pair) : "memory");
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at(tile[lane % 8])), "r"(pair) : "memory");
#endif
  __syncwarp();
  for (int i = lane; i < 64; i += 32) out[i] = tile[i / 8][i % 8];
}

int main() {
  transpose<<<1, 32>>>();
  return verdict(64, [](int i) { return out[i] == i % 8 * 8 + i / 8; });
}
