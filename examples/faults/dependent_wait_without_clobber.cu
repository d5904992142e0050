// griddepcontrol.wait stands in the source, but its assembly has no "memory": a compiler may move the loads that need
// it above it.
// Public: flashinfer-ai/flashinfer #2558
// Finding: none: nvcc 13.0 keeps the order of this source in PTX, and what ptxas then does is no part of PTX
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ int middle[N], out[N];

__global__ void first() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  middle[threadIdx.x] = threadIdx.x;
}

__global__ void second() {
#ifdef CORRECTED
  asm volatile("griddepcontrol.wait;" ::: "memory");
#else
  asm volatile("griddepcontrol.wait;");
#endif
  out[threadIdx.x] = 2 * middle[threadIdx.x];
}

int main() {
  first<<<1, N>>>();
  cudaLaunchAttribute early{cudaLaunchAttributeProgrammaticStreamSerialization, {}, {}};
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{dim3(1), dim3(N), 0, 0, &early, 1};
  cudaLaunchKernelEx(&config, second);
  return verdict(N, [](int i) { return out[i] == 2 * i; });
}
