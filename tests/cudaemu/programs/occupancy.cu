// What a program asks before it launches: properties, attributes of a kernel, occupancy, the best size of a block.
// Run: cudaemu --arch 8.0 occupancy.cu
// Prints: compute capability 8.0: 108 multiprocessors of 2048 threads
#include "check.h"

__global__ void __launch_bounds__(512) work(float *data, int n) {
  __shared__ float tile[1024];
  extern __shared__ float more[];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] = float(i);
  more[threadIdx.x] = 1;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = tile[(i * 7) % 1024] + more[(threadIdx.x + 1) % blockDim.x];
}
size_t room(int threads) { return threads * sizeof(float); }

int main() {
  cudaDeviceProp p;
  CUDA(cudaGetDeviceProperties(&p, 0));
  MUST(p.warpSize == 32 && p.maxThreadsPerBlock == 1024 && p.sharedMemPerBlock == 48 << 10 && p.regsPerBlock == 65536);
  MUST(p.maxGridSize[0] == 0x7fffffff && p.maxGridSize[1] == 65535 && p.maxThreadsDim[2] == 64 &&
       p.totalConstMem == 65536);
  int value;
  CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  MUST(value == 163 << 10);
  CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  MUST(value == p.multiProcessorCount);
  int driver, runtime;
  CUDA(cudaDriverGetVersion(&driver));
  CUDA(cudaRuntimeGetVersion(&runtime));
  MUST(driver >= runtime && runtime == CUDART_VERSION);
  cudaFuncAttributes f;
  CUDA(cudaFuncGetAttributes(&f, work));
  MUST(f.sharedSizeBytes == 4096 && f.maxThreadsPerBlock == 512 && f.constSizeBytes == 0 && f.binaryVersion == 80);

  int blocks, least, size;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, work, 256, 1024));
  MUST(blocks >= 1 && blocks <= 8);
  CUDA(cudaOccupancyMaxPotentialBlockSize(&least, &size, work, 2048, 0));
  MUST(size >= 32 && size <= 512 && least >= p.multiProcessorCount);
  CUDA(cudaOccupancyMaxPotentialBlockSizeVariableSMem(&least, &size, work, room, 256));
  MUST(size >= 32 && size <= 256);
  size_t left;
  CUDA(cudaOccupancyAvailableDynamicSMemPerBlock(&left, work, 2, 256));
  MUST(left > 10000 && left < size_t(164) << 10);
  size_t free_bytes, total;
  CUDA(cudaMemGetInfo(&free_bytes, &total));
  MUST(free_bytes && free_bytes <= total && total == p.totalGlobalMem);
  const int n = 1000;
  Array<float> data(n);
  work<<<(n + size - 1) / size, size, room(size)>>>(data, n);
  const auto got = data.host();
  for (int i = 0; i < n; ++i) MUST(got[i] == i * 7 % 1024 + 1);
  std::printf("compute capability %d.%d: %d multiprocessors of %d threads\n", p.major, p.minor, p.multiProcessorCount,
              p.maxThreadsPerMultiProcessor);
}
