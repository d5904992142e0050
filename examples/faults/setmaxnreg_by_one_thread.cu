// setmaxnreg is a collective of the whole warp, which all warps of a warpgroup execute; here one elected thread does.
// What it then gives back is undefined.
// Public: deepseek-ai/DeepGEMM, seen in a run of its kernels (docs/emulator.md)
// Finding: warp divergence
// Needs compute capability 9.0a.
#include "faults.h"

constexpr int N = 256;
__managed__ int out[N];

__global__ void __launch_bounds__(N, 1) roles() {
  const int warpgroup = threadIdx.x / 128;
#ifdef CORRECTED
  if (warpgroup == 0)
#else
  if (threadIdx.x == 0)
#endif
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");  // <- finding
  out[threadIdx.x] = warpgroup;
}

int main() {
  roles<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == i / 128; });
}
