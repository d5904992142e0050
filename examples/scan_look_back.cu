// A prefix sum in one launch: each block waits for the blocks before it (decoupled look-back).
//
// A block publishes its own total at once, then looks back: from block to block it adds totals, until it meets one that
// has published its whole prefix. Blocks take their numbers from a counter, so that whoever is waited for has started.
// Status and value share 64 bits, so that nobody sees one without the other.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int THREADS = 128;
enum Status : unsigned { NOTHING, TOTAL, PREFIX };

struct Shared {
  int totals[THREADS / 32];
  int before;
  unsigned number;
};

__device__ unsigned long long packed(Status status, int value) {
  return (unsigned long long)status << 32 | (unsigned)value;
}

__global__ void scan(const int *in, int *out, unsigned long long *states, unsigned *counter, int n) {
  __shared__ Shared shared;
  if (threadIdx.x == 0) shared.number = atomicAdd(counter, 1u);
  __syncthreads();
  const unsigned block = shared.number;
  const int i = block * THREADS + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // 1. The scan within the block.
  int value = i < n ? in[i] : 0;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += below;
  }
  if (lane == 31) shared.totals[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += shared.totals[w];

  // 2. The last thread has the block's total: it publishes it, looks back, and publishes the prefix.
  if (threadIdx.x == THREADS - 1) {
    atomicExch(&states[block], packed(block ? TOTAL : PREFIX, value));
    int before = 0;
    for (unsigned other = block; other-- > 0;) {
      unsigned long long state;
      do state = atomicAdd(&states[other], 0ull);  // an atomic read, until somebody has written
      while (state >> 32 == NOTHING);
      before += int(unsigned(state));
      if (state >> 32 == PREFIX) break;
    }
    if (block) atomicExch(&states[block], packed(PREFIX, before + value));
    shared.before = before;
  }
  __syncthreads();  // the prefix of all blocks before this one
  if (i < n) out[i] = value + shared.before;
}

int main() {
  const int n = 20'000, blocks = (n + THREADS - 1) / THREADS;
  std::vector<int> in(n), out(n);
  for (int i = 0; i < n; ++i) in[i] = i % 11 - 4;
  int *d_in, *d_out;
  unsigned long long *states;
  unsigned *counter;
  cudaMalloc(&d_in, n * sizeof(int));
  cudaMalloc(&d_out, n * sizeof(int));
  cudaMalloc(&states, blocks * sizeof *states);
  cudaMalloc(&counter, sizeof *counter);
  cudaMemcpy(d_in, in.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemset(states, 0, blocks * sizeof *states);
  cudaMemset(counter, 0, sizeof *counter);
  scan<<<blocks, THREADS>>>(d_in, d_out, states, counter, n);
  int wrong = cudaMemcpy(out.data(), d_out, n * sizeof(int), cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int i = 0, sum = 0; i < n; ++i) wrong += out[i] != (sum += in[i]);
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_in);
  cudaFree(d_out);
  cudaFree(states);
  cudaFree(counter);
  return wrong != 0;
}
