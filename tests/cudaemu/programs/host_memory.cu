// Host memory that kernels reach: mapped, write-combined, registered; what each pointer is; copies between all of them.
// Run: cudaemu host_memory.cu
// Prints: mapped, combined and registered memory agree
#include "check.h"

__global__ void twice(const int *in, int *out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * in[i];
}

int main() {
  const int n = 500;
  int *mapped, *combined, *there, *also;
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  MUST(properties.canMapHostMemory && properties.unifiedAddressing);
  CUDA(cudaHostAlloc(&mapped, n * sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable));
  CUDA(cudaHostAlloc(&combined, n * sizeof(int), cudaHostAllocWriteCombined | cudaHostAllocMapped));
  for (int i = 0; i < n; ++i) combined[i] = i;
  CUDA(cudaHostGetDevicePointer(&there, mapped, 0));
  CUDA(cudaHostGetDevicePointer(&also, combined, 0));
  twice<<<4, 128>>>(also, there, n);
  CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < n; ++i) MUST(mapped[i] == 2 * i);

  std::vector<int> own(n);
  CUDA(cudaHostRegister(own.data(), n * sizeof(int), cudaHostRegisterDefault));
  Array<int> device(n);
  twice<<<4, 128>>>(mapped, device, n);  // unified addresses
  CUDA(cudaMemcpyAsync(own.data(), device, n * sizeof(int), cudaMemcpyDefault, 0));
  CUDA(cudaStreamSynchronize(0));
  for (int i = 0; i < n; ++i) MUST(own[i] == 4 * i);
  CUDA(cudaHostGetDevicePointer(&there, own.data() + 3, 0));  // kernels reach what the host has, in both directions
  own[5] = 50;
  twice<<<1, 128>>>(there, there, n - 3);
  CUDA(cudaDeviceSynchronize());
  MUST(own[2] == 8 && own[3] == 24 && own[5] == 100 && own[130] == 1040 && own[131] == 524);
  MUST(cudaHostRegister(own.data() + 1, 4, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
  CUDA(cudaHostUnregister(own.data()));
  MUST(cudaHostUnregister(own.data()) == cudaErrorHostMemoryNotRegistered);
  MUST(own[3] == 24 && own[n - 1] == 4 * (n - 1));
  static int variables[n];
  CUDA(cudaHostRegister(variables, sizeof variables, cudaHostRegisterMapped));
  CUDA(cudaHostGetDevicePointer(&there, variables, 0));
  twice<<<4, 128>>>(device, there, n);
  CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < n; ++i) MUST(variables[i] == 8 * i);
  CUDA(cudaHostUnregister(variables));

  cudaPointerAttributes what;
  CUDA(cudaPointerGetAttributes(&what, mapped));
  MUST(what.type == cudaMemoryTypeHost && what.devicePointer != nullptr);
  CUDA(cudaPointerGetAttributes(&what, device));
  MUST(what.type == cudaMemoryTypeDevice && what.device == 0);
  CUDA(cudaPointerGetAttributes(&what, own.data()));
  MUST(what.type == cudaMemoryTypeUnregistered);
  unsigned flags;
  CUDA(cudaHostGetFlags(&flags, combined));
  MUST(flags & cudaHostAllocWriteCombined);
  CUDA(cudaFreeHost(mapped));
  CUDA(cudaFreeHost(combined));
  std::printf("mapped, combined and registered memory agree\n");
}
