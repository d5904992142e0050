// k-means: points to the nearest centre, which is in constant memory; sums by atomics on doubles; centres on the host.
// Run: cudaemu k_means.cu
// Prints: 600 points in 5 clusters agree after 8 rounds
#include "check.h"

constexpr int K = 5, D = 3;
__constant__ float centres[K][D];

__host__ __device__ int nearest(const float (&c)[K][D], const float *point) {
  int best = 0;
  float least = 3e38f;
  for (int k = 0; k < K; ++k) {
    float distance = 0;
#pragma unroll
    for (int d = 0; d < D; ++d) distance = fmaf(point[d] - c[k][d], point[d] - c[k][d], distance);
    if (distance < least) least = distance, best = k;
  }
  return best;
}

__global__ void assign(const float *points, int n, int *owner, double *sums, int *counts) {
  __shared__ double local[K][D];
  __shared__ int members[K];
  if (threadIdx.x < K) {
    members[threadIdx.x] = 0;
    for (int d = 0; d < D; ++d) local[threadIdx.x][d] = 0;
  }
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    const int k = owner[i] = nearest(centres, points + i * D);
    atomicAdd(&members[k], 1);
    for (int d = 0; d < D; ++d) atomicAdd(&local[k][d], double(points[i * D + d]));
  }
  __syncthreads();
  if (threadIdx.x < K * D) atomicAdd(sums + threadIdx.x, local[threadIdx.x / D][threadIdx.x % D]);
  if (threadIdx.x < K) atomicAdd(counts + threadIdx.x, members[threadIdx.x]);
}

int main() {
  const int n = 600, rounds = 8;
  std::vector<float> points(n * D);
  Random random;
  for (int i = 0; i < n * D; ++i) points[i] = float(random.below(64)) / 8 + i / D % K * 3;  // sums are exact
  float here[K][D], there[K][D];
  for (int k = 0; k < K; ++k)
    for (int d = 0; d < D; ++d) here[k][d] = there[k][d] = points[k * D + d];
  Array<float> data(points);
  Array<int> owner(n), counts(K);
  Array<double> sums(K * D);
  std::vector<int> expected(n);
  for (int round = 0; round < rounds; ++round) {
    CUDA(cudaMemcpyToSymbol(centres, there, sizeof there));
    CUDA(cudaMemset(sums, 0, K * D * sizeof(double)));
    CUDA(cudaMemset(counts, 0, K * sizeof(int)));
    assign<<<(n + 127) / 128, 128>>>(data, n, owner, sums, counts);
    const auto s = sums.host();
    const auto c = counts.host();
    double sum[K][D] = {};
    int count[K] = {};
    for (int i = 0; i < n; ++i) {
      const int k = expected[i] = nearest(here, &points[i * D]);
      ++count[k];
      for (int d = 0; d < D; ++d) sum[k][d] += points[i * D + d];
    }
    for (int k = 0; k < K; ++k)
      for (int d = 0; d < D && c[k]; ++d)
        there[k][d] = float(s[k * D + d] / c[k]), here[k][d] = float(sum[k][d] / count[k]);
    MUST(owner.host() == expected);
  }
  std::printf("%d points in %d clusters agree after %d rounds\n", n, K, rounds);
}
