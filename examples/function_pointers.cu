// Function pointers and virtual functions on the device: which code runs is known only when it runs.
//
// The address of a device function is the device's: it is taken there, here through a __device__ table. Objects with
// virtual functions must be made on the device, for their tables of functions are the device's, too.
#include <cuda_runtime.h>

#include <cstdio>

typedef float (*Operation)(float, float);
__device__ float add(float a, float b) { return a + b; }
__device__ float multiply(float a, float b) { return a * b; }
__device__ float larger(float a, float b) { return a > b ? a : b; }
__device__ const Operation table[3] = {add, multiply, larger};

struct Shape { __device__ virtual float area() const = 0; };
struct Square : Shape {
  float side;
  __device__ Square(float side) : side(side) {}
  __device__ float area() const override { return side * side; }
};
struct Circle : Shape {
  float radius;
  __device__ Circle(float radius) : radius(radius) {}
  __device__ float area() const override { return 3 * radius * radius; }
};

__global__ void apply(const int *which, const float *a, const float *b, float *out) {
  const int i = threadIdx.x;
  out[i] = table[which[i]](a[i], b[i]);  // lanes may go to different functions
}

__global__ void areas(float *out) {
  const Square square(float(threadIdx.x));
  const Circle circle(float(threadIdx.x));
  const Shape *const shape = threadIdx.x % 2 ? static_cast<const Shape *>(&square) : &circle;
  out[threadIdx.x] = shape->area();
}

int main() {
  const int n = 64;
  int which[n], *d_which, wrong = 0;
  float a[n], b[n], out[n], *d_a, *d_b, *d_out;
  for (int i = 0; i < n; ++i) which[i] = i % 3, a[i] = float(i), b[i] = float(40 - i);
  cudaMalloc(&d_which, sizeof which);
  cudaMalloc(&d_a, sizeof a);
  cudaMalloc(&d_b, sizeof b);
  cudaMalloc(&d_out, sizeof out);
  cudaMemcpy(d_which, which, sizeof which, cudaMemcpyHostToDevice);
  cudaMemcpy(d_a, a, sizeof a, cudaMemcpyHostToDevice);
  cudaMemcpy(d_b, b, sizeof b, cudaMemcpyHostToDevice);
  apply<<<1, n>>>(d_which, d_a, d_b, d_out);
  wrong += cudaMemcpy(out, d_out, sizeof out, cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int i = 0; i < n; ++i) {
    const float expected = which[i] == 0 ? a[i] + b[i] : which[i] == 1 ? a[i] * b[i] : a[i] > b[i] ? a[i] : b[i];
    wrong += out[i] != expected;
  }
  areas<<<1, n>>>(d_out);
  wrong += cudaMemcpy(out, d_out, sizeof out, cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int i = 0; i < n; ++i) wrong += out[i] != (i % 2 ? float(i * i) : float(3 * i * i));
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_which);
  cudaFree(d_a);
  cudaFree(d_b);
  cudaFree(d_out);
  return wrong != 0;
}
