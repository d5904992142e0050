// The last steps of a reduction run in one warp, without __syncwarp: lanes no longer run in step since Volta, and the
// compiler knows nothing of it either.
// Public: svenssonjoel/Obsidian #4; arthurxlw/cytonRL #3; mark-poscablo/gpu-sum-reduction #1
// Finding: shared race
#include "faults.h"

constexpr int N = 64;
__managed__ int in[N], out;

__global__ void reduce() {
  __shared__ int sums[N];
  const int thread = threadIdx.x;
  sums[thread] = in[thread];
  __syncthreads();
  if (thread < 32)
    for (int step = 32; step; step /= 2) {
#ifdef CORRECTED
      const int sum = sums[thread] + (thread < step ? sums[thread + step] : 0);
      __syncwarp();
      if (thread < step) sums[thread] = sum;
      __syncwarp();
#else
      if (thread < step) sums[thread] += sums[thread + step];  // <- finding
#endif
    }
  if (thread == 0) out = sums[0];
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = i;
  reduce<<<1, N>>>();
  return verdict(1, [](int) { return out == N * (N - 1) / 2; });
}
