// Layer normalisation, each row read once: a block per row, and the row stays in its registers.
//
// Mean first, then the mean of the squared distances, as in layer_norm; but the second and the third look at the row
// are at registers. 256 threads hold 4096 floats as four vectors of 16 bytes each, all of them asked for at once.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

constexpr int THREADS = 256, VECTORS = 4, MOST = THREADS * VECTORS * 4;  // vectors of a thread; floats of a row

// The sum of a value per thread. `room`: of this call alone, so that one barrier is enough.
__device__ float block_sum(float value, float *room) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();  // the sums of all warps are there
  float sum = 0;
  for (int warp = 0; warp < THREADS / 32; ++warp) sum += room[warp];
  return sum;
}

__device__ float square(float x) { return x * x; }

// `columns`: a multiple of 4, MOST at most.
__global__ void __launch_bounds__(THREADS)
    layer_norm(const float *in, const float *gamma, const float *beta, float *out, int columns, float epsilon) {
  __shared__ float sums[THREADS / 32], squares[THREADS / 32];
  const auto row = reinterpret_cast<const float4 *>(in + size_t(blockIdx.x) * columns);
  const auto to = reinterpret_cast<float4 *>(out + size_t(blockIdx.x) * columns);
  float4 x[VECTORS];
  float sum = 0, distances = 0;
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {  // unrolled: a variable index would put x into local memory
    const int at = v * THREADS + threadIdx.x;
    x[v] = at < columns / 4 ? row[at] : make_float4(0, 0, 0, 0);
    sum += (x[v].x + x[v].y) + (x[v].z + x[v].w);
  }
  const float mean = block_sum(sum, sums) / columns;
#pragma unroll
  for (int v = 0; v < VECTORS; ++v)
    if (v * THREADS + threadIdx.x < columns / 4)
      distances += square(x[v].x - mean) + square(x[v].y - mean) + square(x[v].z - mean) + square(x[v].w - mean);
  const float scale = rsqrtf(block_sum(distances, squares) / columns + epsilon);
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
    const int at = v * THREADS + threadIdx.x;
    if (at < columns / 4) {
      const float4 g = reinterpret_cast<const float4 *>(gamma)[at], b = reinterpret_cast<const float4 *>(beta)[at];
      to[at] = make_float4((x[v].x - mean) * scale * g.x + b.x, (x[v].y - mean) * scale * g.y + b.y,
                           (x[v].z - mean) * scale * g.z + b.z, (x[v].w - mean) * scale * g.w + b.w);
    }
  }
}

int main() {
  const int rows = 7, columns = 1'900;
  static_assert(1'900 <= MOST && 1'900 % 4 == 0, "a row fits into the registers of a block");
  const float epsilon = 1e-5f;
  std::vector<float> in(rows * columns), gamma(columns), beta(columns), out(rows * columns);
  for (size_t i = 0; i < in.size(); ++i) in[i] = 1000 + std::cos(float(i) * 1.7f);
  for (int i = 0; i < columns; ++i) gamma[i] = 1 + i % 9 * 0.25f, beta[i] = -i % 7 * 0.5f;
  float *d_in, *d_gamma, *d_beta, *d_out;
  cudaMalloc(&d_in, in.size() * 4);
  cudaMalloc(&d_gamma, columns * 4);
  cudaMalloc(&d_beta, columns * 4);
  cudaMalloc(&d_out, out.size() * 4);
  cudaMemcpy(d_in, in.data(), in.size() * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(d_gamma, gamma.data(), columns * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(d_beta, beta.data(), columns * 4, cudaMemcpyHostToDevice);
  layer_norm<<<rows, THREADS>>>(d_in, d_gamma, d_beta, d_out, columns, epsilon);
  int wrong = cudaMemcpy(out.data(), d_out, out.size() * 4, cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int row = 0; row < rows; ++row) {
    double mean = 0, variance = 0;
    for (int i = 0; i < columns; ++i) mean += in[row * columns + i] / double(columns);
    for (int i = 0; i < columns; ++i) variance += std::pow(in[row * columns + i] - mean, 2) / columns;
    for (int i = 0; i < columns; ++i) {
      const double expected = (in[row * columns + i] - mean) / std::sqrt(variance + epsilon) * gamma[i] + beta[i];
      wrong += !(std::abs(out[row * columns + i] - expected) < 2e-3);  // NaN is wrong, too
    }
  }
  printf(wrong ? "FAIL: %d elements are wrong\n" : "PASS\n", wrong);
  for (float *pointer : {d_in, d_gamma, d_beta, d_out}) cudaFree(pointer);
  return wrong != 0;
}
