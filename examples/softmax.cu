// Softmax of each row, one warp per row, in one pass over the data (the "online" softmax).
//
// Each lane keeps the maximum that it has seen and the sum of exponentials relative to it; a larger maximum rescales
// the sum. Two such pairs merge by the same rule, which is how the lanes come together.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

__global__ void softmax(const float *in, float *out, int rows, int columns) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // the whole warp
  float maximum = -INFINITY, sum = 0;
  for (int column = lane; column < columns; column += 32) {
    const float value = in[row * columns + column], larger = fmaxf(maximum, value);
    sum = sum * __expf(maximum - larger) + __expf(value - larger);
    maximum = larger;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other_maximum = __shfl_xor_sync(0xffffffffu, maximum, distance);
    const float other_sum = __shfl_xor_sync(0xffffffffu, sum, distance);
    const float larger = fmaxf(maximum, other_maximum);
    sum = sum * __expf(maximum - larger) + other_sum * __expf(other_maximum - larger);
    maximum = larger;
  }
  for (int column = lane; column < columns; column += 32)
    out[row * columns + column] = __expf(in[row * columns + column] - maximum) / sum;
}

int main() {
  const int rows = 37, columns = 100;
  std::vector<float> in(rows * columns), out(rows * columns);
  for (size_t i = 0; i < in.size(); ++i) in[i] = std::sin(float(i)) * 10;
  float *d_in, *d_out;
  cudaMalloc(&d_in, in.size() * sizeof(float));
  cudaMalloc(&d_out, in.size() * sizeof(float));
  cudaMemcpy(d_in, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice);
  softmax<<<(rows + 3) / 4, 128>>>(d_in, d_out, rows, columns);
  int wrong = cudaMemcpy(out.data(), d_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int row = 0; row < rows; ++row) {
    double sum = 0;
    for (int column = 0; column < columns; ++column) sum += std::exp(double(in[row * columns + column]));
    for (int column = 0; column < columns; ++column) {
      const double expected = std::exp(double(in[row * columns + column])) / sum;
      wrong += !(std::abs(out[row * columns + column] - expected) <= 1e-5 * expected);  // NaN is wrong, too
    }
  }
  printf(wrong ? "FAIL: %d elements are wrong\n" : "PASS\n", wrong);
  cudaFree(d_in);
  cudaFree(d_out);
  return wrong != 0;
}
