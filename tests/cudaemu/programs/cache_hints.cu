// Hints to caches and compilers, which must change nothing: loads and stores of every kind, prefetches, access
// policies, annotated pointers, assumptions.
// Run: cudaemu --flags=-std=c++17 cache_hints.cu
// Prints: 512 values, whatever the hints
#include <cuda/annotated_ptr>

#include "check.h"

__global__ void loads(const int *__restrict__ in, int *out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  __builtin_assume(n > 0);
  if (__builtin_expect(i >= n, 0)) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(in + i));
  int sum = __ldg(in + i) + __ldca(in + i) + __ldcg(in + i) + __ldcs(in + i) + __ldlu(in + i) + __ldcv(in + i);
  int more;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.b32 %0, [%1];" : "=r"(more) : "l"(in + i));
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  int hinted;
  asm volatile("ld.global.L2::cache_hint.b32 %0, [%1], %2;" : "=r"(hinted) : "l"(in + i), "l"(policy));
  sum += more + hinted;
  switch (i % 4) {
    case 0:
      __stcs(out + i, sum);
      break;
    case 1:
      __stcg(out + i, sum);
      break;
    case 2:
      __stwb(out + i, sum);
      break;
    default:
      __stwt(out + i, sum);
  }
}

__global__ void annotated(cuda::annotated_ptr<const int, cuda::access_property::streaming> in,
                          cuda::annotated_ptr<int, cuda::access_property::persisting> out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = out[i] - in[i] * 7;
}

int main() {
  const int n = 512;
  std::vector<int> in(n);
  for (int i = 0; i < n; ++i) in[i] = i * i;
  Array<int> data(in), out(n);
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  cudaStreamAttrValue attribute = {};
  attribute.accessPolicyWindow.base_ptr = data, attribute.accessPolicyWindow.num_bytes = n * sizeof(int);
  attribute.accessPolicyWindow.hitRatio = 0.5f, attribute.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  attribute.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  CUDA(cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &attribute));
  CUDA(cudaFuncSetCacheConfig(loads, cudaFuncCachePreferShared));
  CUDA(cudaFuncSetAttribute(loads, cudaFuncAttributePreferredSharedMemoryCarveout, 50));
  CUDA(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20));
  loads<<<4, 128, 0, stream>>>(data, out, n);
  annotated<<<4, 128, 0, stream>>>(cuda::annotated_ptr<const int, cuda::access_property::streaming>(data.data),
                                   cuda::annotated_ptr<int, cuda::access_property::persisting>(out.data));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaCtxResetPersistingL2Cache());
  MUST(out.host() == in);
  CUDA(cudaStreamDestroy(stream));
  std::printf("%d values, whatever the hints\n", n);
}
