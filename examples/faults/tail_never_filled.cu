// The last tile has fewer rows than the others, the rest of it is never written, and all of it is multiplied: by zeros,
// but what lies there may be NaN.
// Public: thu-ml/SageAttention PR #376; vllm-project/vllm PR #936
// Finding: uninitialised shared read
#include "faults.h"

constexpr int N = 128, ROWS = 100;
__managed__ float in[ROWS], weights[N], out[N];

__global__ void weigh() {
  __shared__ float tile[N];
#ifdef CORRECTED
  tile[threadIdx.x] = threadIdx.x < ROWS ? in[threadIdx.x] : 0;
#else
  if (threadIdx.x < ROWS) tile[threadIdx.x] = in[threadIdx.x];
#endif
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < N; ++i) sum += tile[i] * weights[i];  // <- finding
  out[threadIdx.x] = sum;
}

int main() {
  for (int i = 0; i < ROWS; ++i) in[i] = 1, weights[i] = 2;
  weigh<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == 2 * ROWS; });
}
