// ldmatrix reads eight rows that are 128 bytes apart: all begin in the same banks, and each matrix takes eight passes
// instead of one. The result is right; it is slow.
// Public: NVIDIA/cutlass #3172, #2810, #2388; xlite-dev/LeetCUDA #250; siboehm/SGEMM_CUDA #8
// Finding: none: nothing is wrong; the counter shared_load_conflicts says 28 of 32 here, and 0 in the twin
#include "faults.h"

__managed__ unsigned out[32];

__global__ void rows() {
  __shared__ alignas(128) uint4 tile[16][8];
  for (int i = threadIdx.x; i < 128; i += 32) {
    const int row = i / 8, chunk = i % 8;
#ifdef CORRECTED
    tile[row][chunk ^ row % 8] = make_uint4(i, i, i, i);
#else
    tile[row][chunk] = make_uint4(i, i, i, i);
#endif
  }
  __syncwarp();
  const int row = threadIdx.x % 16, chunk = threadIdx.x / 16;
#ifdef CORRECTED
  const unsigned from = at(&tile[row][chunk ^ row % 8]);
#else
  const unsigned from = at(&tile[row][chunk]);
#endif
  unsigned a, b, c, d;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(from) : "memory");
  out[threadIdx.x] = a + b + c + d;
}

int main() {
  rows<<<1, 32>>>();
  return verdict(32, [](int i) { return out[i] == unsigned(2 * (i / 4 * 8) + 2 * ((i / 4 + 8) * 8) + 2); });
}
