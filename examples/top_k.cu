// The k largest of each row, in order, with their places; a warp per row, k up to 32, each element read once.
//
// Lane i keeps the i-th largest so far. A value that is not above the k-th is dropped by a vote of all lanes; one that
// is finds its place by a second vote, and the lanes behind it move on by a shuffle. That becomes seldom: in a row of n
// random values about k + k * ln(n / k) are, when they come, among the k largest so far.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr unsigned ALL = 0xffffffffu;

__global__ void top_k(const float *in, float *values, int *places, int rows, int columns, int k) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // the whole warp
  float kept = -INFINITY;
  int place = -1;
  for (int first = 0; first < columns; first += 32) {
    const int column = first + lane;
    const float value = column < columns ? in[size_t(row) * columns + column] : -INFINITY;
    unsigned better = __ballot_sync(ALL, value > __shfl_sync(ALL, kept, k - 1));
    while (better) {  // the same in all lanes
      const int from = __ffs(better) - 1;
      const float candidate = __shfl_sync(ALL, value, from);
      const int rank = __popc(__ballot_sync(ALL, kept >= candidate));  // behind its equals, which came first
      const float above = __shfl_up_sync(ALL, kept, 1);
      const int above_place = __shfl_up_sync(ALL, place, 1);
      if (lane == rank) kept = candidate, place = first + from;
      if (lane > rank) kept = above, place = above_place;
      better &= better - 1;
      better &= __ballot_sync(ALL, value > __shfl_sync(ALL, kept, k - 1));  // the k-th is larger now
    }
  }
  if (lane < k) {
    values[row * k + lane] = kept;
    places[row * k + lane] = place;
  }
}

int main() {
  const int rows = 9, columns = 700, k = 10, threads = 128;
  std::vector<float> in(rows * columns), values(rows * k);
  std::vector<int> places(rows * k);
  for (size_t i = 0; i < in.size(); ++i) in[i] = float(i * 7919 % 1009 % 500);  // with equal ones
  float *d_in, *d_values;
  int *d_places;
  cudaMalloc(&d_in, in.size() * sizeof(float));
  cudaMalloc(&d_values, values.size() * sizeof(float));
  cudaMalloc(&d_places, places.size() * sizeof(int));
  cudaMemcpy(d_in, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice);
  top_k<<<(rows * 32 + threads - 1) / threads, threads>>>(d_in, d_values, d_places, rows, columns, k);
  int wrong = cudaMemcpy(values.data(), d_values, values.size() * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess;
  wrong += cudaMemcpy(places.data(), d_places, places.size() * sizeof(int), cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int row = 0; row < rows; ++row) {
    const float *values_of_row = &in[row * columns];
    std::vector<bool> taken(columns);
    for (int n = 0; n < k; ++n) {  // the largest that is left, the first of equal ones
      int best = 0;
      while (taken[best]) ++best;
      for (int i = best + 1; i < columns; ++i)
        if (!taken[i] && values_of_row[i] > values_of_row[best]) best = i;
      taken[best] = true;
      wrong += places[row * k + n] != best || values[row * k + n] != values_of_row[best];
    }
  }
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_in);
  cudaFree(d_values);
  cudaFree(d_places);
  return wrong != 0;
}
