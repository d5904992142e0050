// Odd threads come to one __syncthreads, even threads to another: on Volta and newer lanes of a warp are counted for
// themselves, and a barrier is not the same as another one at a different place.
// Public: agency-library/agency #435
// Finding: barrier divergence
#include "faults.h"

constexpr int N = 64;
__managed__ int out[N];

__global__ void exchange() {
  __shared__ int values[N];
  values[threadIdx.x] = threadIdx.x;
#ifdef CORRECTED
  __syncthreads();
  out[threadIdx.x] = threadIdx.x % 2 ? values[N - 1 - threadIdx.x] : values[threadIdx.x ^ 32] + 1000;
#else
  if (threadIdx.x % 2) {
    __syncthreads();  // <- finding
    out[threadIdx.x] = values[N - 1 - threadIdx.x];
  } else {
    __syncthreads();  // <- finding
    out[threadIdx.x] = values[threadIdx.x ^ 32] + 1000;
  }
#endif
}

int main() {
  exchange<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == (i % 2 ? N - 1 - i : (i ^ 32) + 1000); });
}
