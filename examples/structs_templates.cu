// Structures as arguments, templates over an operation, local arrays, a functor with a lambda's shape.
//
// A kernel's parameters are copied when it is launched, whole structures included: no cudaMemcpy, and pointers inside
// still have to be the device's.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

struct Image {
  const float *pixels;
  int width, height;
  __device__ float at(int x, int y) const {  // the edge goes on outside
    x = min(max(x, 0), width - 1);
    y = min(max(y, 0), height - 1);
    return pixels[y * width + x];
  }
};

struct Median {
  template <int N>
  __device__ float operator()(float (&values)[N]) const {
    for (int i = 1; i < N; ++i)  // insertion sort of a thread's own array
      for (int j = i; j > 0 && values[j - 1] > values[j]; --j) {
        const float other = values[j];
        values[j] = values[j - 1], values[j - 1] = other;
      }
    return values[N / 2];
  }
};

struct Largest {
  float least;
  template <int N>
  __device__ float operator()(float (&values)[N]) const {
    float result = least;
    for (float value : values) result = fmaxf(result, value);
    return result;
  }
};

template <int RADIUS, typename Operation>
__global__ void window(Image in, float *out, Operation operation) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= in.width || y >= in.height) return;
  constexpr int SIDE = 2 * RADIUS + 1;
  float values[SIDE * SIDE];  // in registers if the compiler can unroll all that indexes it, in local memory otherwise
  for (int i = 0; i < SIDE * SIDE; ++i) values[i] = in.at(x + i % SIDE - RADIUS, y + i / SIDE - RADIUS);
  out[y * in.width + x] = operation(values);
}

int main() {
  const int width = 40, height = 25;
  std::vector<float> pixels(width * height), median(pixels.size()), largest(pixels.size());
  for (int i = 0; i < width * height; ++i) pixels[i] = float(i * 37 % 101);
  float *d_pixels, *d_out;
  cudaMalloc(&d_pixels, pixels.size() * sizeof(float));
  cudaMalloc(&d_out, pixels.size() * sizeof(float));
  cudaMemcpy(d_pixels, pixels.data(), pixels.size() * sizeof(float), cudaMemcpyHostToDevice);
  const Image image{d_pixels, width, height};
  const dim3 block(16, 8), grid((width + 15) / 16, (height + 7) / 8);
  window<1><<<grid, block>>>(image, d_out, Median{});
  cudaMemcpy(median.data(), d_out, median.size() * sizeof(float), cudaMemcpyDeviceToHost);
  window<2><<<grid, block>>>(image, d_out, Largest{50.0f});
  cudaMemcpy(largest.data(), d_out, largest.size() * sizeof(float), cudaMemcpyDeviceToHost);
  int wrong = cudaGetLastError() != cudaSuccess;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      const auto at = [&](int column, int row) {
        column = column < 0 ? 0 : column >= width ? width - 1 : column;
        row = row < 0 ? 0 : row >= height ? height - 1 : row;
        return pixels[row * width + column];
      };
      int below = 0, equal = 0;
      for (int i = 0; i < 9; ++i) {
        below += at(x + i % 3 - 1, y + i / 3 - 1) < median[y * width + x];
        equal += at(x + i % 3 - 1, y + i / 3 - 1) == median[y * width + x];
      }
      float most = 50;
      for (int i = 0; i < 25; ++i) most = std::max(most, at(x + i % 5 - 2, y + i / 5 - 2));
      wrong += !(below <= 4 && below + equal > 4) + (largest[y * width + x] != most);
    }
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_pixels);
  cudaFree(d_out);
  return wrong != 0;
}
