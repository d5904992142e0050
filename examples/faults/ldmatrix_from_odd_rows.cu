// ldmatrix reads rows that are 40 bytes apart; each must begin at a multiple of 16.
// Public: ggml-org/llama.cpp #8117, PR #8123
// Finding: misaligned
#include "faults.h"

#ifdef CORRECTED
constexpr int PITCH = 24;
#else
constexpr int PITCH = 20;
#endif
__managed__ unsigned out[32];

__global__ void matrix() {
  __shared__ alignas(16) uint16_t tile[8 * PITCH];
  for (int i = threadIdx.x; i < 8 * PITCH; i += 32) tile[i] = i;
  __syncwarp();
  unsigned pair;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"               // <- finding
               : "=r"(pair) : "r"(at(tile + threadIdx.x % 8 * PITCH)) : "memory");  // <- finding
  out[threadIdx.x] = pair;
}

int main() {
  matrix<<<1, 32>>>();
  return verdict(32, [](int i) { return (out[i] & 0xffff) == unsigned(i / 4 * PITCH + i % 4 * 2); });
}
