// All the ways to launch: chevrons with expressions, cudaLaunchKernel, cudaLaunchKernelEx, through pointers and
// templates; large structures by value; host functions and callbacks in between.
// Run: cudaemu launch_forms.cu
// Prints: 9 launches, 3 host functions, sum 4466
#include "check.h"

struct Large {
  int numbers[900];
  char letters[5];
  double last;
};
__global__ void sum_up(Large large, const __grid_constant__ Large same, int *out) {
  int sum = 0;
  for (int i = threadIdx.x; i < 900; i += blockDim.x) sum += large.numbers[i] - same.numbers[899 - i];
  large.numbers[threadIdx.x] = 7;  // a copy of the thread's own
  atomicAdd(out, sum + large.letters[threadIdx.x % 5] + int(same.last) + large.numbers[threadIdx.x] - 7);
}
template <int N, typename... Args>
__global__ void add_all(int *out, Args... args) {
  atomicAdd(out, (0 + ... + int(args)) * N);
}
__global__ void add_one(int *out) { atomicAdd(out, 1); }
template <typename T>
struct Functor {
  T by;
  __host__ __device__ T operator()(T x) const { return x + by; }
};
template <typename F>
__global__ void apply(int *out, F f) {
  if (threadIdx.x == 0) atomicAdd(out, f(blockIdx.x));
}
using Kernel = void (*)(int *);
void launch(Kernel kernel, dim3 grid, dim3 block, int *out) { kernel<<<grid, block>>>(out); }
void called(void *count) { ++*static_cast<int *>(count); }
void CUDART_CB finished(cudaStream_t, cudaError_t status, void *count) {
  *static_cast<int *>(count) += status == cudaSuccess;
}

int main() {
  Array<int> out(std::vector<int>{0});
  int *to = out, calls = 0;
  Large large = {};
  for (int i = 0; i < 900; ++i) large.numbers[i] = i;
  for (char &letter : large.letters) letter = 3;
  large.last = 2.5;
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  sum_up<<<1, 64, 0, stream>>>(large, large, to);  // 64 * 5 = 320
  CUDA(cudaLaunchHostFunc(stream, called, &calls));
  add_all<3><<<2, 5, 0, stream>>>(to, 1, 2.9, 'a', 4ull, short(-1));  // 10 * 3 * 103 = 3090
  CUDA(cudaStreamAddCallback(stream, finished, &calls, 0));
  launch(add_one, dim3(2, 3, 4), dim3(4, 2, 2), to);  // 384
  void *arguments[] = {&to};
  CUDA(cudaLaunchKernel(add_one, dim3(10), dim3(10), arguments, 0, stream));                          // 100
  CUDA(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(add_one), 4, 32, arguments, 0, stream));  // 128
  cudaLaunchConfig_t config = {};
  config.gridDim = 3, config.blockDim = 33, config.stream = stream;
  CUDA(cudaLaunchKernelEx(&config, add_one, to));  // 99
  CUDA(cudaLaunchHostFunc(stream, called, &calls));
  apply<<<5, 32>>>(to, Functor<int>{10});   // 60
  apply<<<5, 32>>>(to, Functor<long>{20});  // 110
  const auto pointer = &add_all<5, float>;
  pointer<<<dim3(7), dim3(5)>>>(to, 1.5f);  // 175
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaStreamDestroy(stream));
  std::printf("9 launches, %d host functions, sum %d\n", calls, out.host()[0]);
}
