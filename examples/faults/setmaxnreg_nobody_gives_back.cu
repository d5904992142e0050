// Two warpgroups ask for more registers, and the third, which should give some back before, does not.
// They wait for ever.
// Public: pytorch/helion PR #3620
// Finding: registers
// Needs compute capability 9.0a.
#include "faults.h"

constexpr int N = 384;
__managed__ int out[N];

__global__ void __launch_bounds__(N, 1) roles() {
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
#ifdef CORRECTED
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");  // <- finding
  }
  out[threadIdx.x] = warpgroup;
}

int main() {
  roles<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == i / 128; });
}
