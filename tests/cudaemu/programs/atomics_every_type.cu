// Atomics on every type that has them: sums, extremes, bits and compare-and-swap from 16 to 128 bits.
// Run: cudaemu --arch 9.0 atomics_every_type.cu
// Prints: 25 kinds of atomics agree
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

struct All {
  int add, sub, lowest, highest, both, either, odd, wrap_up, wrap_down, swapped;
  unsigned unsigned_lowest, unsigned_highest;
  long long signed_lowest, signed_highest;
  unsigned long long sum64, bits64;
  float sum, max_by_bits;
  double sum_double, product;
  __half sum_half;
  __nv_bfloat16 sum_bfloat;
  unsigned short counted;  // by compare-and-swap of 16 bits
  __half2 halves;
  __nv_bfloat162 bfloats;
  alignas(16) float4 quad;
  float2 pair;
  alignas(16) ulonglong2 wide;  // by compare-and-swap of 128 bits
};

__global__ void everything(All *all) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&all->add, i);
  atomicSub(&all->sub, i);
  atomicMin(&all->lowest, 100 - i);
  atomicMax(&all->highest, i - 100);
  atomicAnd(&all->both, ~(1 << i % 7));
  atomicOr(&all->either, 1 << i % 11);
  atomicXor(&all->odd, i);
  atomicInc(reinterpret_cast<unsigned *>(&all->wrap_up), 99);
  atomicDec(reinterpret_cast<unsigned *>(&all->wrap_down), 99);
  atomicExch(&all->swapped, 7);
  atomicMin(&all->unsigned_lowest, 0xffffff00u - i);
  atomicMax(&all->unsigned_highest, 0x80000000u + i);
  atomicMin(&all->signed_lowest, -(1ll << 40) - i);
  atomicMax(&all->signed_highest, (1ll << 40) + i);
  atomicAdd(&all->sum64, (1ull << 33) + i);
  atomicOr(&all->bits64, 1ull << i % 64);
  atomicAdd(&all->sum, 0.5f);
  atomicMax(reinterpret_cast<int *>(&all->max_by_bits), __float_as_int(0.25f * i));
  atomicAdd(&all->sum_double, 1e-3);
  for (unsigned long long *at = reinterpret_cast<unsigned long long *>(&all->product), old = *at, seen;; old = seen) {
    seen = atomicCAS(at, old, __double_as_longlong(__longlong_as_double(old) * 1.001));
    if (seen == old) break;
  }
  atomicAdd(&all->sum_half, __float2half(0.25f));
  atomicAdd(&all->sum_bfloat, __float2bfloat16(i < 64 ? 0.5f : 0));
  for (unsigned short old = 0, seen;; old = seen) {
    seen = atomicCAS(&all->counted, old, static_cast<unsigned short>(old + 3));
    if (seen == old) break;
  }
  atomicAdd(&all->halves, __floats2half2_rn(1, -1));
  atomicAdd(&all->bfloats, __floats2bfloat162_rn(i < 64 ? 1 : 0, i < 64 ? -2 : 0));
  atomicAdd(&all->quad, make_float4(1, 2, 3, i));
  atomicAdd(&all->pair, make_float2(-1, 0.5f));
  for (ulonglong2 old = {0, 0}, seen;; old = seen) {
    ulonglong2 next = {old.x + 1, old.y + i};
    seen = atomicCAS(&all->wide, old, next);
    if (seen.x == old.x && seen.y == old.y) break;
  }
}

int main() {
  std::vector<All> start(1);
  start[0] = {};
  start[0].both = -1, start[0].product = 1, start[0].unsigned_lowest = ~0u;
  Array<All> all(start);
  everything<<<4, 64>>>(all);
  const All a = all.host()[0];
  const int n = 256, sum = n * (n - 1) / 2;
  double product = 1;
  for (int i = 0; i < n; ++i) product *= 1.001;
  MUST(a.add == sum && a.sub == -sum && a.lowest == 100 - 255 && a.highest == 155);
  MUST(a.both == ~127 && a.either == 2047 && a.odd == 0 && a.wrap_up == n % 100 && a.wrap_down == (400 - n) % 100);
  MUST(a.swapped == 7 && a.unsigned_lowest == 0xffffff00u - 255 && a.unsigned_highest == 0x80000000u + 255);
  MUST(a.signed_lowest == -(1ll << 40) - 255 && a.signed_highest == (1ll << 40) + 255);
  MUST(a.sum64 == (1ull << 33) * n + sum && a.bits64 == ~0ull);
  MUST(a.sum == n * 0.5f && a.max_by_bits == 255 * 0.25f && std::fabs(a.sum_double - n * 1e-3) < 1e-12);
  MUST(std::fabs(a.product / product - 1) < 1e-12 && __half2float(a.sum_half) == 64);
  MUST(__bfloat162float(a.sum_bfloat) == 32 && a.counted == 3 * n);
  MUST(__low2float(a.halves) == n && __high2float(a.halves) == -n);
  MUST(__low2float(a.bfloats) == 64 && __high2float(a.bfloats) == -128);
  MUST(a.quad.x == n && a.quad.y == 2 * n && a.quad.z == 3 * n && a.quad.w == sum);
  MUST(a.pair.x == -n && a.pair.y == n / 2 && a.wide.x == n && a.wide.y == sum);
  std::printf("25 kinds of atomics agree\n");
}
