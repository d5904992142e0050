// A kernel is given a pointer that malloc returned: device code cannot reach the host's heap, unless the system shares
// its page tables with the GPU (HMM, ATS).
// Public: a beginners' question in many forums; none is cited
// Finding: out of bounds global
#include <cstdlib>

#include "faults.h"

__global__ void fill(int *p) {
  p[threadIdx.x] = threadIdx.x;  // <- finding
}

int main() {
  int result[32] = {};
#ifdef CORRECTED
  int *p;
  cudaMalloc(&p, sizeof result);
#else
  int *p = static_cast<int *>(malloc(sizeof result));
#endif
  fill<<<1, 32>>>(p);
  cudaMemcpy(result, p, sizeof result, cudaMemcpyDefault);
  return verdict(32, [&](int i) { return result[i] == i; });
}
