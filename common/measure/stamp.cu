// Small kernels that are launched around a timed one, or in its place (stamps.py).
//
// stamp   notes on every SM what its clock and the GPU's timer say: launched before and after another kernel, it tells
//         the SM clock meanwhile
// empty   does nothing: what two events measure of a launch itself
// ticks   reads the GPU's timer again and again: how fine it is

#include <cuda_runtime.h>

#include "stamp.cuh"

constexpr int BLOCKS_PER_SM = 4;  // in a grid of one block per SM some SM might get none
constexpr int THREADS = 32;

struct Reading {
  unsigned long long clocks;
  unsigned long long ns;
};

// readings [slots], zeros, by the number of the SM: of its blocks, the first that comes writes there.
__global__ void stamp_kernel(Reading *readings, int slots) {
  const Moment moment = now();
  if (threadIdx.x != 0 || moment.sm >= slots) return;
  Reading &mine = readings[moment.sm];
  if (atomicCAS(&mine.ns, 0ULL, static_cast<unsigned long long>(moment.ns)) == 0) mine.clocks = moment.clocks;
}

__global__ void empty_kernel() {}

// times [count]: what the timer said, one reading after the other.
__global__ void ticks_kernel(long long *times, int count) {
  for (int i = 0; i < count; ++i) times[i] = now().ns;
}

extern "C" cudaError_t launch_stamp(Reading *readings, int slots, int sms, cudaStream_t stream) {
  stamp_kernel<<<sms * BLOCKS_PER_SM, THREADS, 0, stream>>>(readings, slots);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_empty(cudaStream_t stream) {
  empty_kernel<<<1, THREADS, 0, stream>>>();
  return cudaGetLastError();
}

extern "C" cudaError_t launch_ticks(long long *times, int count, cudaStream_t stream) {
  ticks_kernel<<<1, 1, 0, stream>>>(times, count);
  return cudaGetLastError();
}
