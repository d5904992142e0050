// ldmatrix.x1 takes the addresses of lanes 0 to 7; the other lanes pass garbage, which has been allowed since sm_80.
// On sm_75 all must be valid.
// Public: ggml-org/llama.cpp PR #8123
// Right: no finding
#include "faults.h"

__managed__ unsigned out[32];

__global__ void matrix() {
  __shared__ alignas(16) unsigned words[32];
  words[threadIdx.x] = threadIdx.x;
  __syncwarp();
  const unsigned from = threadIdx.x < 8 ? at(words) + threadIdx.x * 16 : 100003;
  unsigned word;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(word) : "r"(from) : "memory");
  out[threadIdx.x] = word;
}

int main() {
  matrix<<<1, 32>>>();
  return verdict(32, [](int i) { return out[i] == unsigned(i); });
}
