// What a kernel can say about itself: printf, assert, and how long it took by its own clock.
//
// printf of device code fills a buffer that is shown when the host synchronises. assert ends the launch with an error.
// clock64 counts the cycles of the multiprocessor: differences mean something, the values do not.
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>

__global__ void work(long long *cycles, int *out, int rounds) {
  assert(rounds > 0);
  const long long start = clock64();
  int value = threadIdx.x;
  for (int round = 0; round < rounds; ++round) value = value * 5 + 1;
  out[threadIdx.x] = value;
  const long long end = clock64();
  cycles[threadIdx.x] = end - start;
  if (threadIdx.x == 31) printf("thread %d: value %d, %.1f, %s\n", threadIdx.x, value, value * 0.5, "as it is");
}

int main() {
  const int threads = 32, rounds = 100;
  long long *d_cycles, few[threads], many[threads];
  int *d_out, out[threads];
  cudaMalloc(&d_cycles, sizeof few);
  cudaMalloc(&d_out, sizeof out);
  work<<<1, threads>>>(d_cycles, d_out, 4);
  cudaMemcpy(few, d_cycles, sizeof few, cudaMemcpyDeviceToHost);
  work<<<1, threads>>>(d_cycles, d_out, 4 * rounds);
  cudaMemcpy(many, d_cycles, sizeof many, cudaMemcpyDeviceToHost);
  int wrong = cudaMemcpy(out, d_out, sizeof out, cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int thread = 0; thread < threads; ++thread) {
    unsigned value = thread;
    for (int round = 0; round < 4 * rounds; ++round) value = value * 5 + 1;
    wrong += out[thread] != int(value);
    wrong += few[thread] <= 0 || many[thread] <= few[thread];
  }
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_cycles);
  cudaFree(d_out);
  return wrong != 0;
}
