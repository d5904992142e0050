// Atomics of every kind and type: add, max, min, and, or, xor, exchange, compare-and-swap, increment; and one made of
// CAS.
//
// An atomic reads, changes and writes as one step, and returns what was there before. Whatever has no atomic of its own
// can be made with compare-and-swap: try again until nobody has interfered.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>

struct Results {
  int add, sub, least, most, exchanged;
  unsigned all, any, odd, wrapped;
  unsigned long long wide_add, wide_most;
  float float_add;
  double double_add, product;
  half2 half_add;
  int winners, tickets[64];
};

__device__ double atomic_multiply(double *target, double factor) {
  unsigned long long *bits = reinterpret_cast<unsigned long long *>(target), before = 0, expected;
  do {  // the first guess may be wrong: the CAS says what is there
    expected = before;
    before = atomicCAS(bits, expected, __double_as_longlong(__longlong_as_double(expected) * factor));
  } while (before != expected);
  return __longlong_as_double(before);
}

__global__ void everything(Results *r) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;  // 0 .. 63
  atomicAdd(&r->add, i);
  atomicSub(&r->sub, 2);
  atomicMin(&r->least, -i);
  atomicMax(&r->most, i * i);
  atomicAnd(&r->all, ~(1u << i % 32));
  atomicOr(&r->any, 1u << i % 32);
  atomicXor(&r->odd, 1u << i % 7);
  atomicInc(&r->wrapped, 9);  // 0, 1, ... 9, 0, 1, ...
  atomicAdd(&r->wide_add, 1ull << 33);
  atomicMax(&r->wide_most, (unsigned long long)i << 40);
  atomicAdd(&r->float_add, 0.5f);
  atomicAdd(&r->double_add, 0.25);
  atomicAdd(&r->half_add, __floats2half2_rn(1.0f, 2.0f));
  if (i % 16 == 0) atomic_multiply(&r->product, 3.0);
  if (atomicCAS(&r->exchanged, -1, i) == -1) atomicAdd(&r->winners, 1);  // the first one only
  const int ticket = atomicAdd(&r->winners, 100) / 100;                  // each thread gets a number of its own
  atomicExch(&r->tickets[ticket], 1);
}

int main() {
  Results host = {}, *device;
  host.all = ~0u;
  host.exchanged = -1;
  host.product = 1;
  cudaMalloc(&device, sizeof host);
  cudaMemcpy(device, &host, sizeof host, cudaMemcpyHostToDevice);
  everything<<<2, 32>>>(device);
  int wrong = cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess;
  wrong += host.add != 63 * 64 / 2;
  wrong += host.sub != -128;
  wrong += host.least != -63;
  wrong += host.most != 63 * 63;
  wrong += host.all != 0;
  wrong += host.any != ~0u;
  wrong += host.odd != 0b1111110;  // multiples of 7 came ten times, the others nine
  wrong += host.wrapped != 64 % 10;
  wrong += host.wide_add != 64ull << 33;
  wrong += host.wide_most != 63ull << 40;
  wrong += host.float_add != 32;
  wrong += host.double_add != 16;
  wrong += __low2float(host.half_add) != 64 || __high2float(host.half_add) != 128;
  wrong += host.product != 81;
  wrong += host.winners != 6401;
  for (int ticket : host.tickets) wrong += ticket != 1;
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(device);
  return wrong != 0;
}
