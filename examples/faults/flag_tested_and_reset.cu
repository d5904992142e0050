// while (changed) { changed = false; ... }: a fast thread resets the flag before a slow one has tested it, and they no
// longer agree whether to go on.
// Public: forums.developer.nvidia.com/t/37245
// Finding: shared race
#include "faults.h"

constexpr int N = 128;
__managed__ int values[N];

__global__ void spread() {
  __shared__ int changed;
  const int thread = threadIdx.x;
  if (thread == 0) changed = 1;
  __syncthreads();
  while (changed) {  // <- finding
#ifdef CORRECTED
    __syncthreads();
#endif
    if (thread == 0) changed = 0;  // <- finding
    __syncthreads();
    const int left = values[max(thread - 1, 0)];
    __syncthreads();
    if (left > values[thread]) values[thread] = left, changed = 1;
    __syncthreads();
  }
}

int main() {
  values[0] = 9;
  spread<<<1, N>>>();
  return verdict(N, [](int i) { return values[i] == 9; });
}
