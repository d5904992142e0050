// The same shuffle with the full mask stands in both branches of an `if`: from Volta on the lanes meet, wherever the
// instruction stands.
// Public: ROCm/legacy-rocm-build #5852
// Right: no finding
#include "faults.h"

__managed__ int out[32];

__global__ void exchange() {
  const int lane = threadIdx.x;
  if (lane % 2)
    out[lane] = __shfl_xor_sync(0xffffffff, 3 * lane, 1);
  else
    out[lane] = __shfl_xor_sync(0xffffffff, 5 * lane, 1) + 1000;
}

int main() {
  exchange<<<1, 32>>>();
  return verdict(32, [](int i) { return out[i] == (i % 2 ? 5 * (i - 1) : 3 * (i + 1) + 1000); });
}
