// Memory in the order of a stream: pools with attributes, a threshold and peaks, and what a stream frees another
// reuses.
// Run: cudaemu memory_pools.cu
// Prints: sum in the order of two streams: 499500
#include "check.h"

__global__ void ramp(int *to, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = i;
}
__global__ void sum(const int *from, int n, int *result) {
  int total = 0;
  for (int i = threadIdx.x; i < n; i += 32) total += from[i];
  total = __reduce_add_sync(~0u, total);
  if (threadIdx.x == 0) *result = total;
}

int main() {
  const int n = 1000;
  int supported;
  CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
  MUST(supported);
  cudaMemPool_t standard, own;
  CUDA(cudaDeviceGetDefaultMemPool(&standard, 0));
  unsigned long long threshold = 1 << 20, got = 0;
  CUDA(cudaMemPoolSetAttribute(standard, cudaMemPoolAttrReleaseThreshold, &threshold));
  CUDA(cudaMemPoolGetAttribute(standard, cudaMemPoolAttrReleaseThreshold, &got));
  MUST(got == threshold);
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice, properties.location.id = 0;
  CUDA(cudaMemPoolCreate(&own, &properties));

  cudaStream_t first, second;
  cudaEvent_t ready;
  CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithPriority(&second, cudaStreamNonBlocking, -1));
  CUDA(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  int *data, *result, *scratch, *host;
  CUDA(cudaMallocHost(&host, sizeof(int)));
  CUDA(cudaMallocAsync(&data, n * sizeof(int), first));
  CUDA(cudaMallocFromPoolAsync(&result, sizeof(int), own, first));
  CUDA(cudaMallocAsync(&scratch, 4096, standard, first));
  unsigned long long used = 0;
  CUDA(cudaMemPoolGetAttribute(own, cudaMemPoolAttrUsedMemCurrent, &used));
  MUST(used >= sizeof(int));
  ramp<<<1, 128, 0, first>>>(data, n);
  CUDA(cudaEventRecord(ready, first));
  CUDA(cudaStreamWaitEvent(second, ready, 0));
  sum<<<1, 32, 0, second>>>(data, n, result);
  CUDA(cudaMemcpyAsync(host, result, sizeof(int), cudaMemcpyDeviceToHost, second));
  CUDA(cudaFreeAsync(result, second));
  CUDA(cudaFreeAsync(data, second));
  CUDA(cudaFreeAsync(scratch, first));
  CUDA(cudaStreamSynchronize(second));
  CUDA(cudaStreamSynchronize(first));
  CUDA(cudaMemPoolTrimTo(standard, 0));
  CUDA(cudaMemPoolGetAttribute(own, cudaMemPoolAttrUsedMemCurrent, &used));
  MUST(used == 0);
  unsigned long long high = 0;
  CUDA(cudaMemPoolGetAttribute(own, cudaMemPoolAttrUsedMemHigh, &high));
  MUST(high >= sizeof(int));
  cudaMemAccessDesc access = {};
  access.location = properties.location, access.flags = cudaMemAccessFlagsProtReadWrite;
  CUDA(cudaMemPoolSetAccess(own, &access, 1));
  cudaMemPool_t current;
  CUDA(cudaDeviceSetMemPool(0, own));
  CUDA(cudaDeviceGetMemPool(&current, 0));
  MUST(current == own);
  CUDA(cudaDeviceSetMemPool(0, standard));
  CUDA(cudaMemPoolDestroy(own));
  CUDA(cudaEventDestroy(ready));
  CUDA(cudaStreamDestroy(first));
  CUDA(cudaStreamDestroy(second));
  std::printf("sum in the order of two streams: %d\n", *host);
  CUDA(cudaFreeHost(host));
}
