// Votes: what the lanes of a warp know together. Ballot, any, all, match, and a compaction made of them.
//
// A ballot gives every lane one bit per lane. The bits below one's own, counted, say where to put a value so that those
// which are kept lie side by side: no atomics among the lanes, one per warp.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

__global__ void keep_positive(const int *in, int *out, int *count, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  const int value = i < n ? in[i] : 0;
  const unsigned kept = __ballot_sync(0xffffffffu, value > 0);
  int first = 0;
  if (lane == 0) first = atomicAdd(count, __popc(kept));  // room for the whole warp
  first = __shfl_sync(0xffffffffu, first, 0);
  if (value > 0) out[first + __popc(kept & ((1u << lane) - 1))] = value;
}

// Equal keys find each other; the first of each group counts it with one atomic.
__global__ void count_keys(const int *keys, int *counts, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  const unsigned here = __ballot_sync(0xffffffffu, i < n);
  if (i >= n) return;
  const unsigned same = __match_any_sync(here, keys[i]);
  if (lane == __ffs(same) - 1) atomicAdd(&counts[keys[i]], __popc(same));
}

__global__ void agree(const int *in, int *answers) {
  const int value = in[threadIdx.x];
  const bool any = __any_sync(0xffffffffu, value == 7), all = __all_sync(0xffffffffu, value < 100);
  if (threadIdx.x % 16 < 8) {  // half of the lanes, in two groups: the mask says who votes
    const unsigned group = threadIdx.x < 16 ? 0x000000ffu : 0x00ff0000u;
    const bool first = __all_sync(group, threadIdx.x < 16);
    if (threadIdx.x % 16 == 0) answers[2 + threadIdx.x / 16] = first;
  }
  if (threadIdx.x == 0) answers[0] = any, answers[1] = all;
}

int main() {
  const int n = 1000, keys = 10;
  std::vector<int> in(n), out(n), expected_counts(keys), counts(keys);
  long long expected = 0, sum = 0;
  int expected_kept = 0;
  for (int i = 0; i < n; ++i) {
    in[i] = i * 37 % 101 - 50;
    if (in[i] > 0) ++expected_kept, expected += in[i];
  }
  int *d_in, *d_out, *d_small, kept, answers[4];
  cudaMalloc(&d_in, n * sizeof(int));
  cudaMalloc(&d_out, n * sizeof(int));
  cudaMalloc(&d_small, keys * sizeof(int));
  cudaMemcpy(d_in, in.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemset(d_small, 0, keys * sizeof(int));
  keep_positive<<<8, 128>>>(d_in, d_out, d_small, n);
  cudaMemcpy(&kept, d_small, sizeof kept, cudaMemcpyDeviceToHost);
  cudaMemcpy(out.data(), d_out, kept * sizeof(int), cudaMemcpyDeviceToHost);
  for (int i = 0; i < kept; ++i) sum += out[i];
  int wrong = (kept != expected_kept) + (sum != expected);

  for (int i = 0; i < n; ++i) ++expected_counts[in[i] = i * i % keys];
  cudaMemcpy(d_in, in.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemset(d_small, 0, keys * sizeof(int));
  count_keys<<<8, 128>>>(d_in, d_small, n);
  cudaMemcpy(counts.data(), d_small, keys * sizeof(int), cudaMemcpyDeviceToHost);
  wrong += counts != expected_counts;

  agree<<<1, 32>>>(d_in, d_small);
  wrong += cudaMemcpy(answers, d_small, sizeof answers, cudaMemcpyDeviceToHost) != cudaSuccess;
  wrong += answers[0] != 0 || answers[1] != 1 || answers[2] != 1 || answers[3] != 0;  // squares end in no 7
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_in);
  cudaFree(d_out);
  cudaFree(d_small);
  return wrong != 0;
}
