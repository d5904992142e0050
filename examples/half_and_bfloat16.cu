// Two 16-bit numbers at a time: half2 and __nv_bfloat162 arithmetic, with sums in fp32 where they matter.
//
// fp16 has 11 bits of significand and ends at 65504; bf16 has 8 bits and the range of fp32. Products of pairs are one
// instruction for both; a long sum in 16 bits would stop growing, so it is kept in fp32.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

template <typename Pair>
struct Of;
template <>
struct Of<half2> {
  typedef half One;
  static __device__ float2 wide(half2 pair) { return __half22float2(pair); }
};
template <>
struct Of<__nv_bfloat162> {
  typedef __nv_bfloat16 One;
  static __device__ float2 wide(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
};

// out = a * x + y, element by element, and the sum of all of it.
template <typename Pair>
__global__ void fma_and_sum(const Pair *x, const Pair *y, Pair a, Pair *out, float *sum, int pairs) {
  float mine = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += gridDim.x * blockDim.x) {
    const Pair result = __hmax2(__hfma2(a, x[i], y[i]), a);  // rounded once, then not below a
    out[i] = result;
    const float2 wide = Of<Pair>::wide(result);
    mine += wide.x + wide.y;
  }
  for (int distance = 16; distance > 0; distance /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, distance);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}

template <typename Pair>
bool right(double precision) {
  typedef typename Of<Pair>::One One;
  const int n = 2000;
  std::vector<One> x(n), y(n), out(n);
  double expected_sum = 0;
  for (int i = 0; i < n; ++i) x[i] = One(float(i % 19) / 8), y[i] = One(float(i % 5) - 2);
  Pair *d_x, *d_y, *d_out;
  float *d_sum, sum;
  cudaMalloc(&d_x, n * sizeof(One));
  cudaMalloc(&d_y, n * sizeof(One));
  cudaMalloc(&d_out, n * sizeof(One));
  cudaMalloc(&d_sum, sizeof(float));
  cudaMemcpy(d_x, x.data(), n * sizeof(One), cudaMemcpyHostToDevice);
  cudaMemcpy(d_y, y.data(), n * sizeof(One), cudaMemcpyHostToDevice);
  cudaMemset(d_sum, 0, sizeof(float));
  Pair a;
  a.x = a.y = One(1.5f);
  fma_and_sum<<<4, 64>>>(d_x, d_y, a, d_out, d_sum, n / 2);
  cudaMemcpy(out.data(), d_out, n * sizeof(One), cudaMemcpyDeviceToHost);
  bool fine = cudaMemcpy(&sum, d_sum, sizeof sum, cudaMemcpyDeviceToHost) == cudaSuccess;
  for (int i = 0; i < n; ++i) {
    const double exact = std::fmax(1.5 * double(float(x[i])) + double(float(y[i])), 1.5), got = double(float(out[i]));
    fine &= std::fabs(got - exact) <= precision * exact;
    expected_sum += got;
  }
  fine &= std::fabs(sum - expected_sum) < 1e-3 * expected_sum;
  cudaFree(d_x);
  cudaFree(d_y);
  cudaFree(d_out);
  cudaFree(d_sum);
  return fine;
}

int main() {
  const bool both = right<half2>(std::ldexp(1, -11)) && right<__nv_bfloat162>(std::ldexp(1, -8));
  printf(both ? "PASS\n" : "FAIL\n");
  return !both;
}
