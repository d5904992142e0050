// Two blocks shall fit on a multiprocessor, so each thread begins with 80 registers; setmaxnreg then asks for more than
// all of the block's warps have together, and waits for registers that nobody will give back.
// Public: tile-ai/tilelang #2559
// Finding: registers
// Needs compute capability 9.0a.
#include "faults.h"

constexpr int N = 384;
#ifdef CORRECTED
constexpr int BLOCKS = 1;
#else
constexpr int BLOCKS = 2;
#endif
__managed__ int out[N];

__global__ void __launch_bounds__(N, BLOCKS) roles() {
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  else
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");  // <- finding
  out[threadIdx.x] = warpgroup;
}

int main() {
  roles<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == i / 128; });
}
