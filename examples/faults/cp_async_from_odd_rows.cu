// cp.async brings 16 bytes from rows that are 12 bytes apart: its source must be a multiple of what it copies.
// Public: kokkos/kokkos #686; NVIDIA/cnmem PR #6
// Finding: misaligned
#include "faults.h"

#ifdef CORRECTED
constexpr int PITCH = 4;
#else
constexpr int PITCH = 3;
#endif
__managed__ alignas(16) int in[32 * PITCH + 4], out[32];

__global__ void rows() {
  __shared__ int4 tile[32];
  copy16(&tile[threadIdx.x], in + threadIdx.x * PITCH);  // <- finding
  commit();
  wait_copies();
  out[threadIdx.x] = tile[threadIdx.x].x;
}

int main() {
  for (int i = 0; i < 32 * PITCH; ++i) in[i] = i;
  rows<<<1, 32>>>();
  return verdict(32, [](int i) { return out[i] == i * PITCH; });
}
