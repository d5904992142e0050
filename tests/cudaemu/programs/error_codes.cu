// Calls and launches that CUDA must refuse: each with its error, which is sticky or not, and leaves the device usable.
// Run: cudaemu error_codes.cu
// Prints: 12 errors where they belong, and a kernel ran afterwards
#include <cstring>

#include "check.h"

__global__ void __launch_bounds__(256) limited(int *to) { to[threadIdx.x] = threadIdx.x; }
__global__ void dynamic(int *to) {
  extern __shared__ int room[];
  room[threadIdx.x] = threadIdx.x;
  to[threadIdx.x] = room[threadIdx.x];
}

// The error of the launch before, which must not stay.
cudaError_t launched() {
  const cudaError_t peeked = cudaPeekAtLastError(), error = cudaGetLastError();
  MUST(peeked == error && cudaGetLastError() == cudaSuccess);
  return error;
}

int main() {
  Array<int> out(1024);
  int *data = out;
  limited<<<1, 512>>>(data);
  MUST(launched() != cudaSuccess);
  dynamic<<<1, 2048>>>(data);
  MUST(launched() != cudaSuccess);
  limited<<<0, 32>>>(data);
  MUST(launched() != cudaSuccess);
  limited<<<dim3(1, 70000), 32>>>(data);
  MUST(launched() != cudaSuccess);
  dynamic<<<1, 32, 60000>>>(data);
  MUST(launched() != cudaSuccess);
  MUST(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20) == cudaErrorInvalidValue);
  CUDA((cudaGetLastError(), cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000)));
  dynamic<<<1, 32, 60000>>>(data);
  CUDA(cudaGetLastError());
  void *much;
  MUST(cudaMalloc(&much, size_t(1) << 50) == cudaErrorMemoryAllocation &&
       cudaGetLastError() == cudaErrorMemoryAllocation);
  MUST(cudaSetDevice(99) == cudaErrorInvalidDevice);
  MUST(cudaMemcpy(nullptr, data, 4, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  int on_the_host;
  MUST(cudaFree(&on_the_host) == cudaErrorInvalidValue);
  MUST(cudaMemcpy(data, &on_the_host, 4, cudaMemcpyKind(77)) == cudaErrorInvalidMemcpyDirection);
  cudaEvent_t never, also;
  CUDA((cudaGetLastError(), cudaEventCreate(&never)));
  CUDA(cudaEventCreateWithFlags(&also, cudaEventDisableTiming));
  float ms;
  MUST(cudaEventElapsedTime(&ms, never, never) == cudaErrorInvalidResourceHandle);
  CUDA((cudaGetLastError(), cudaEventRecord(also)));
  MUST(cudaEventElapsedTime(&ms, also, also) == cudaErrorInvalidResourceHandle);
  CUDA((cudaGetLastError(), cudaFree(nullptr)));
  MUST(!std::strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue"));
  MUST(!std::strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
  limited<<<1, 256>>>(data);
  CUDA(cudaDeviceSynchronize());
  int last;
  CUDA(cudaMemcpy(&last, data + 255, sizeof last, cudaMemcpyDeviceToHost));
  MUST(last == 255);
  CUDA(cudaEventDestroy(never));
  CUDA(cudaEventDestroy(also));
  std::printf("12 errors where they belong, and a kernel ran afterwards\n");
}
