// Cooperative groups: tiles of a warp, the block, and a barrier for the whole grid.
//
// A tile of 8 lanes sums its own values with shuffles; grid.sync() is a barrier of all blocks, for which all of them
// must be on the GPU at once: hence cudaLaunchCooperativeKernel, and no more blocks than fit.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace cg = cooperative_groups;

__global__ void tile_sums(const int *in, int *out) {
  const cg::thread_block block = cg::this_thread_block();
  const auto tile = cg::tiled_partition<8>(block);
  const int i = blockIdx.x * block.size() + block.thread_rank();
  int value = in[i];
  for (int distance = tile.size() / 2; distance > 0; distance /= 2) value += tile.shfl_down(value, distance);
  const int most = cg::reduce(tile, in[i], cg::greater<int>());
  if (tile.thread_rank() == 0) out[2 * (i / 8)] = value, out[2 * (i / 8) + 1] = most;
}

// A wave of averages: each step needs the neighbours of the step before, from other blocks as well.
__global__ void smooth(float *a, float *b, int n, int steps) {
  const cg::grid_group grid = cg::this_grid();
  for (int step = 0; step < steps; ++step) {
    for (int i = grid.thread_rank(); i < n; i += grid.size())
      b[i] = (a[i > 0 ? i - 1 : 0] + a[i] + a[i < n - 1 ? i + 1 : n - 1]) / 3;
    grid.sync();  // all of b is written, all of a is read
    float *const other = a;
    a = b, b = other;
  }
}

int main() {
  int wrong = 0;
  const int n = 1024;
  std::vector<int> in(n), sums(2 * n / 8);
  for (int i = 0; i < n; ++i) in[i] = i * 7 % 23;
  int *d_in, *d_sums;
  cudaMalloc(&d_in, n * sizeof(int));
  cudaMalloc(&d_sums, sums.size() * sizeof(int));
  cudaMemcpy(d_in, in.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  tile_sums<<<n / 256, 256>>>(d_in, d_sums);
  cudaMemcpy(sums.data(), d_sums, sums.size() * sizeof(int), cudaMemcpyDeviceToHost);
  for (int tile = 0; tile < n / 8; ++tile) {
    int sum = 0, most = 0;
    for (int i = 0; i < 8; ++i) sum += in[8 * tile + i], most = std::max(most, in[8 * tile + i]);
    wrong += sums[2 * tile] != sum || sums[2 * tile + 1] != most;
  }

  std::vector<float> now(n), next(n), result(n);
  for (int i = 0; i < n; ++i) now[i] = float(i % 10);
  float *a, *b;
  cudaMalloc(&a, n * sizeof(float));
  cudaMalloc(&b, n * sizeof(float));
  cudaMemcpy(a, now.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  int steps = 6, length = n, per_sm = 0, sms = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, smooth, 128, 0);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  const int blocks = std::min(4, per_sm * sms);
  void *arguments[] = {&a, &b, &length, &steps};
  wrong += cudaLaunchCooperativeKernel(smooth, dim3(blocks), dim3(128), arguments) != cudaSuccess;
  wrong += cudaMemcpy(result.data(), a, n * sizeof(float), cudaMemcpyDeviceToHost) !=
           cudaSuccess;  // an even number of steps
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < n; ++i) next[i] = (now[i > 0 ? i - 1 : 0] + now[i] + now[i < n - 1 ? i + 1 : n - 1]) / 3;
    std::swap(now, next);
  }
  for (int i = 0; i < n; ++i) wrong += result[i] - now[i] > 1e-4f || now[i] - result[i] > 1e-4f;
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  for (void *pointer : {(void *)d_in, (void *)d_sums, (void *)a, (void *)b}) cudaFree(pointer);
  return wrong != 0;
}
