// A grid-stride loop: y = a * x + y for any length, with any number of blocks.
//
// Each thread starts at its own number and moves on by the number of all threads, so that neighbours always read
// neighbouring elements, and the launch need not fit the data.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

__global__ void saxpy(int n, float a, const float *__restrict__ x, float *__restrict__ y) {
  // __ldg: through the read-only cache; the compiler does so itself for const __restrict__
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = a * __ldg(x + i) + y[i];
}

int main() {
  const int n = 10'007;
  std::vector<float> x(n), y(n);
  for (int i = 0; i < n; ++i) x[i] = float(i), y[i] = 1.0f;
  float *dx, *dy;
  cudaMalloc(&dx, n * sizeof(float));
  cudaMalloc(&dy, n * sizeof(float));
  cudaMemcpy(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpy(dy, y.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  saxpy<<<8, 128>>>(n, 2.0f, dx, dy);  // 1024 threads for 10,007 elements
  if (cudaError_t error = cudaMemcpy(y.data(), dy, n * sizeof(float), cudaMemcpyDeviceToHost)) {
    printf("%s\n", cudaGetErrorString(error));
    return 1;
  }
  int wrong = 0;
  for (int i = 0; i < n; ++i) wrong += y[i] != 2.0f * x[i] + 1.0f;
  printf(wrong ? "FAIL: %d elements are wrong\n" : "PASS\n", wrong);
  cudaFree(dx);
  cudaFree(dy);
  return wrong != 0;
}
