// The second kernel may begin before the first has ended (programmatic dependent launch), and reads what that one
// writes without waiting for it.
// Public: Dao-AILab/flash-attention PR #2481; NVIDIA/cccl #3131, PR #5456
// Finding: race with the kernel before
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
#endif
  out[threadIdx.x] = 2 * middle[threadIdx.x];  // <- finding
}

int main() {
  first<<<1, N>>>();
  cudaLaunchAttribute early{cudaLaunchAttributeProgrammaticStreamSerialization, {}, {}};
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{dim3(1), dim3(N), 0, 0, &early, 1};
  cudaLaunchKernelEx(&config, second);
  return verdict(N, [](int i) { return out[i] == 2 * i; });
}
