// Each thread waits for its own cp.async after the block's barrier, not before: the barrier does not know of the copies
// of the others, which may still be on their way.
// Public: NVIDIA/Fuser PR #3438
// Finding: copy in flight
#include "faults.h"

constexpr int N = 128;
__managed__ int4 in[N], out[N];

__global__ void reverse() {
  __shared__ int4 tile[N];
  copy16(&tile[threadIdx.x], in + threadIdx.x);
  commit();
#ifdef CORRECTED
  wait_copies();
  __syncthreads();
#else
  __syncthreads();
  wait_copies();
#endif
  out[threadIdx.x] = tile[N - 1 - threadIdx.x];  // <- finding
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = make_int4(i, 0, 0, 0);
  reverse<<<1, N>>>();
  return verdict(N, [](int i) { return out[i].x == N - 1 - i; });
}
