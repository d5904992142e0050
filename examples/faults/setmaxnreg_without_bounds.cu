// The kernel has no __launch_bounds__, so that ptxas cannot know how many registers a thread begins with: it drops
// setmaxnreg and says so in a message (C7508). Nothing goes wrong but the speed.
// Public: NVIDIA/cutlass #3406, #2904, #2927
// Finding: none: what is dropped is ptxas' choice; its message names it
// Needs compute capability 9.0a.
#include "faults.h"

constexpr int N = 384;
__managed__ int out[N];

#ifdef CORRECTED
__global__ void __launch_bounds__(N, 1) roles() {
#else
__global__ void roles() {
#endif
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  else
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  out[threadIdx.x] = warpgroup;
}

int main() {
  roles<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == i / 128; });
}
