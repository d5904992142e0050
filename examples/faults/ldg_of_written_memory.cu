// __ldg, the read-only path, loads what the same kernel has written: it is for memory that no thread writes while the
// kernel runs, and may return the old value.
// Public: intel/llvm #7232, PR #7397
// Finding: read-only load
#include "faults.h"

__managed__ int values[32], out[32];

__global__ void reverse() {
  values[threadIdx.x] = threadIdx.x;
  __syncthreads();
#ifdef CORRECTED
  out[threadIdx.x] = values[31 - threadIdx.x];
#else
  out[threadIdx.x] = __ldg(&values[31 - threadIdx.x]);  // <- finding
#endif
}

int main() {
  reverse<<<1, 32>>>();
  return verdict(32, [](int i) { return out[i] == 31 - i; });
}
