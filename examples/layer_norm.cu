// Layer normalisation: each row minus its mean, over its standard deviation; a block per row.
//
// Mean first, then the mean of the squared distances: E[x^2] - E[x]^2 would lose all digits where the mean is large.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

__device__ float block_sum(float value) {
  __shared__ float warp_sums[32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();  // the sums of all warps are there
  float sum = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += warp_sums[warp];
  __syncthreads();  // everyone has read them: the next call may write
  return sum;
}

__global__ void layer_norm(const float *in, const float *gamma, const float *beta, float *out, int columns,
                           float epsilon) {
  const float *row = in + blockIdx.x * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i];
  const float mean = block_sum(sum) / columns;
  float squares = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
  const float scale = rsqrtf(block_sum(squares) / columns + epsilon);
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    out[blockIdx.x * columns + i] = (row[i] - mean) * scale * gamma[i] + beta[i];
}

int main() {
  const int rows = 12, columns = 300;
  const float epsilon = 1e-5f;
  std::vector<float> in(rows * columns), gamma(columns), beta(columns), out(rows * columns);
  for (size_t i = 0; i < in.size(); ++i) in[i] = 1000 + std::cos(float(i) * 1.7f);
  for (int i = 0; i < columns; ++i) gamma[i] = 1 + i * 0.01f, beta[i] = -i * 0.02f;
  float *d_in, *d_gamma, *d_beta, *d_out;
  cudaMalloc(&d_in, in.size() * 4);
  cudaMalloc(&d_gamma, columns * 4);
  cudaMalloc(&d_beta, columns * 4);
  cudaMalloc(&d_out, out.size() * 4);
  cudaMemcpy(d_in, in.data(), in.size() * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(d_gamma, gamma.data(), columns * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(d_beta, beta.data(), columns * 4, cudaMemcpyHostToDevice);
  layer_norm<<<rows, 128>>>(d_in, d_gamma, d_beta, d_out, columns, epsilon);
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
