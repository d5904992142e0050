// RMS normalisation in fp16: each row over the root of its mean square, times gamma; a block per row.
//
// Each thread keeps its share of the row in registers, as 16-byte vectors, so that the row is read once. Squares are
// added in fp32: in fp16 a sum would end at 65504.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

constexpr int THREADS = 256, VECTOR = 8, MOST = 4;  // halves per load, loads per thread: rows of up to 8192
constexpr unsigned ALL = 0xffffffffu;

struct alignas(16) Halves { half of[VECTOR]; };

__device__ float block_sum(float value) {
  __shared__ float warp_sums[THREADS / 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL, value, distance);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();  // the sums of all warps are there
  float sum = 0;
  for (float each : warp_sums) sum += each;
  return sum;
}

// `columns`: a multiple of 8, 8192 at most.
__global__ void rms_norm(const half *in, const half *gamma, half *out, int columns, float epsilon) {
  const auto row = reinterpret_cast<const Halves *>(in + size_t(blockIdx.x) * columns);
  const auto to = reinterpret_cast<Halves *>(out + size_t(blockIdx.x) * columns);
  const auto scale = reinterpret_cast<const Halves *>(gamma);
  const int vectors = columns / VECTOR;
  Halves kept[MOST];
  float squares = 0;
#pragma unroll
  for (int n = 0; n < MOST; ++n) {  // unrolled: a variable index would put `kept` into local memory
    const int at = n * THREADS + threadIdx.x;
    if (at < vectors) {
      kept[n] = row[at];
      for (half each : kept[n].of) squares += __half2float(each) * __half2float(each);
    }
  }
  const float factor = rsqrtf(block_sum(squares) / columns + epsilon);
#pragma unroll
  for (int n = 0; n < MOST; ++n) {
    const int at = n * THREADS + threadIdx.x;
    if (at < vectors) {
      const Halves weights = scale[at];
      for (int i = 0; i < VECTOR; ++i)
        kept[n].of[i] = __float2half(__half2float(kept[n].of[i]) * factor * __half2float(weights.of[i]));
      to[at] = kept[n];
    }
  }
}

int main() {
  const int rows = 10, columns = 2'440;
  const float epsilon = 1e-6f;
  std::vector<half> in(rows * columns), gamma(columns), out(rows * columns);
  for (size_t i = 0; i < in.size(); ++i) in[i] = __float2half(100 * std::sin(float(i)));
  for (int i = 0; i < columns; ++i) gamma[i] = __float2half(1 + i % 7 * 0.25f);
  half *d_in, *d_gamma, *d_out;
  cudaMalloc(&d_in, in.size() * sizeof(half));
  cudaMalloc(&d_gamma, columns * sizeof(half));
  cudaMalloc(&d_out, out.size() * sizeof(half));
  cudaMemcpy(d_in, in.data(), in.size() * sizeof(half), cudaMemcpyHostToDevice);
  cudaMemcpy(d_gamma, gamma.data(), columns * sizeof(half), cudaMemcpyHostToDevice);
  rms_norm<<<rows, THREADS>>>(d_in, d_gamma, d_out, columns, epsilon);
  int wrong = cudaMemcpy(out.data(), d_out, out.size() * sizeof(half), cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int row = 0; row < rows; ++row) {
    double squares = 0;
    for (int i = 0; i < columns; ++i) squares += std::pow(double(__half2float(in[row * columns + i])), 2) / columns;
    for (int i = 0; i < columns; ++i) {
      const double x = __half2float(in[row * columns + i]), g = __half2float(gamma[i]);
      const double expected = x / std::sqrt(squares + epsilon) * g;
      // Half of the last bit of numbers up to 4 is 1e-3. NaN is wrong, too:
      wrong += !(std::abs(__half2float(out[row * columns + i]) - expected) < 3e-3);
    }
  }
  printf(wrong ? "FAIL: %d elements are wrong\n" : "PASS\n", wrong);
  for (half *pointer : {d_in, d_gamma, d_out}) cudaFree(pointer);
  return wrong != 0;
}
