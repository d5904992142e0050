// Softmax of each row, read once: a block per row, and the row stays in its registers.
//
// The maximum, the sum and the result need every element, so a row that is not kept is read again. 256 threads hold
// 4096 floats in 16 registers each, as vectors of 16 bytes. Two numbers per row go through shared memory.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

constexpr int THREADS = 256, VECTORS = 4, MOST = THREADS * VECTORS * 4;  // vectors of a thread; floats of a row

struct Sum {
  static constexpr float NOTHING = 0;
  __device__ static float of(float a, float b) { return a + b; }
};
struct Maximum {
  static constexpr float NOTHING = -INFINITY;
  __device__ static float of(float a, float b) { return fmaxf(a, b); }
};

// The sum, or the maximum, of a value per thread. `room`: of this call alone, so that one barrier is enough.
template <typename Operation>
__device__ float over_block(float value, float *room) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = Operation::of(value, __shfl_xor_sync(0xffffffffu, value, distance));
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();  // the values of all warps are there
  float all = Operation::NOTHING;
  for (int warp = 0; warp < THREADS / 32; ++warp) all = Operation::of(all, room[warp]);
  return all;
}

// `columns`: a multiple of 4, MOST at most.
__global__ void __launch_bounds__(THREADS) softmax(const float *in, float *out, int columns) {
  __shared__ float maxima[THREADS / 32], sums[THREADS / 32];
  const auto row = reinterpret_cast<const float4 *>(in + size_t(blockIdx.x) * columns);
  const auto to = reinterpret_cast<float4 *>(out + size_t(blockIdx.x) * columns);
  float4 x[VECTORS];
  float maximum = -INFINITY, sum = 0;
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {  // unrolled: a variable index would put x into local memory
    const int at = v * THREADS + threadIdx.x;
    x[v] = at < columns / 4 ? row[at] : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    maximum = fmaxf(maximum, fmaxf(fmaxf(x[v].x, x[v].y), fmaxf(x[v].z, x[v].w)));
  }
  maximum = over_block<Maximum>(maximum, maxima);
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
    x[v] = make_float4(__expf(x[v].x - maximum), __expf(x[v].y - maximum), __expf(x[v].z - maximum),
                       __expf(x[v].w - maximum));
    sum += (x[v].x + x[v].y) + (x[v].z + x[v].w);
  }
  const float factor = 1 / over_block<Sum>(sum, sums);
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) {
    const int at = v * THREADS + threadIdx.x;
    if (at < columns / 4) to[at] = make_float4(x[v].x * factor, x[v].y * factor, x[v].z * factor, x[v].w * factor);
  }
}

int main() {
  const int rows = 9, columns = 2'100;
  static_assert(2'100 <= MOST && 2'100 % 4 == 0, "a row fits into the registers of a block");
  std::vector<float> in(rows * columns), out(rows * columns);
  for (size_t i = 0; i < in.size(); ++i) in[i] = std::sin(float(i)) * 10;
  float *d_in, *d_out;
  cudaMalloc(&d_in, in.size() * sizeof(float));
  cudaMalloc(&d_out, in.size() * sizeof(float));
  cudaMemcpy(d_in, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice);
  softmax<<<rows, THREADS>>>(d_in, d_out, columns);
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
