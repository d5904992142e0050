// A kernel uses `extern __shared__` memory, and its launch gives it none.
// Public: a beginners' question in many forums; none is cited
// Finding: out of bounds shared
#include "faults.h"

constexpr int N = 32;
#ifdef CORRECTED
constexpr int BYTES = N * sizeof(int);
#else
constexpr int BYTES = 0;
#endif
__managed__ int out[N];

__global__ void reverse() {
  extern __shared__ int values[];
  values[threadIdx.x] = threadIdx.x;  // <- finding
  __syncthreads();
  out[threadIdx.x] = values[N - 1 - threadIdx.x];
}

int main() {
  reverse<<<1, N, BYTES>>>();
  return verdict(N, [](int i) { return out[i] == N - 1 - i; });
}
