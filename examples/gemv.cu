// y = A * x in fp16, a warp per row: what a decoder does with its weights, one token at a time.
//
// Two FLOP per element of A, which is read once: only memory bandwidth counts. Lanes load 16 bytes side by side, add up
// in fp32, and bring their sums together by shuffles. Two accumulators let two loads be under way at a time.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

constexpr int VECTOR = 8;  // halves of a 16-byte load

struct alignas(16) Halves { half of[VECTOR]; };

__device__ float dot(Halves a, Halves b) {  // copies: a reference would be read half by half
  float sum = 0;
  for (int i = 0; i < VECTOR; ++i) sum += __half2float(a.of[i]) * __half2float(b.of[i]);
  return sum;
}

// `columns`: a multiple of 8.
__global__ void gemv(const half *A, const half *x, float *y, int rows, int columns) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // the whole warp
  const auto a = reinterpret_cast<const Halves *>(A + size_t(row) * columns), b = reinterpret_cast<const Halves *>(x);
  const int vectors = columns / VECTOR;
  float sum = 0, other = 0;
  int at = lane;
  for (; at + 32 < vectors; at += 64) {
    sum += dot(a[at], b[at]);
    other += dot(a[at + 32], b[at + 32]);
  }
  if (at < vectors) sum += dot(a[at], b[at]);
  sum += other;
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (lane == 0) y[row] = sum;
}

int main() {
  const int rows = 37, columns = 1'000, threads = 128;
  std::vector<half> A(rows * columns), x(columns);
  std::vector<float> y(rows);
  for (size_t i = 0; i < A.size(); ++i) A[i] = __float2half(std::sin(float(i)));
  for (int i = 0; i < columns; ++i) x[i] = __float2half(std::cos(float(i)));
  half *dA, *dx;
  float *dy;
  cudaMalloc(&dA, A.size() * sizeof(half));
  cudaMalloc(&dx, columns * sizeof(half));
  cudaMalloc(&dy, rows * sizeof(float));
  cudaMemcpy(dA, A.data(), A.size() * sizeof(half), cudaMemcpyHostToDevice);
  cudaMemcpy(dx, x.data(), columns * sizeof(half), cudaMemcpyHostToDevice);
  gemv<<<(rows * 32 + threads - 1) / threads, threads>>>(dA, dx, dy, rows, columns);
  int wrong = cudaMemcpy(y.data(), dy, rows * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int row = 0; row < rows; ++row) {
    double expected = 0;
    for (int i = 0; i < columns; ++i) expected += double(__half2float(A[row * columns + i])) * __half2float(x[i]);
    wrong += !(std::abs(y[row] - expected) < 1e-3);  // NaN is wrong, too
  }
  printf(wrong ? "FAIL: %d elements are wrong\n" : "PASS\n", wrong);
  cudaFree(dA);
  cudaFree(dx);
  cudaFree(dy);
  return wrong != 0;
}
