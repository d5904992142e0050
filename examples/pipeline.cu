// Asynchronous copies with cuda::pipeline: while one tile is worked on, the next is on its way to shared memory.
//
// Two buffers take turns. producer_commit closes a batch of copies, consumer_wait waits for the oldest,
// consumer_release says that its buffer may be filled again.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cuda/pipeline>
#include <vector>

constexpr int THREADS = 128, TILE = THREADS * 4;  // four floats per thread: 16 bytes

__global__ void sums_of_squares(const float *in, float *out, int tiles) {
  __shared__ __align__(16) float buffer[2][TILE];
  cuda::pipeline<cuda::thread_scope_thread> pipe = cuda::make_pipeline();
  const float *mine = in + blockIdx.x * tiles * TILE;
  const auto copy = [&](int tile) {
    pipe.producer_acquire();
    cuda::memcpy_async(&buffer[tile % 2][threadIdx.x * 4], mine + tile * TILE + threadIdx.x * 4,
                       cuda::aligned_size_t<16>(16), pipe);
    pipe.producer_commit();
  };
  copy(0);
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      copy(tile + 1);
      cuda::pipeline_consumer_wait_prior<1>(pipe);  // all but the newest have arrived
    } else {
      cuda::pipeline_consumer_wait_prior<0>(pipe);
    }
    __syncthreads();  // everyone's part of the tile is there
    for (int i = threadIdx.x; i < TILE; i += THREADS) sum += buffer[tile % 2][i] * buffer[tile % 2][i];
    __syncthreads();  // everyone has read it: it may be filled again
    pipe.consumer_release();
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (threadIdx.x % 32 == 0) atomicAdd(&out[blockIdx.x], sum);
}

int main() {
  const int blocks = 3, tiles = 5, n = blocks * tiles * TILE;
  std::vector<float> in(n), out(blocks);
  for (int i = 0; i < n; ++i) in[i] = float(i % 17 - 8);
  float *d_in, *d_out;
  cudaMalloc(&d_in, n * sizeof(float));
  cudaMalloc(&d_out, blocks * sizeof(float));
  cudaMemcpy(d_in, in.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemset(d_out, 0, blocks * sizeof(float));
  sums_of_squares<<<blocks, THREADS>>>(d_in, d_out, tiles);
  int wrong = cudaMemcpy(out.data(), d_out, blocks * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int block = 0; block < blocks; ++block) {
    double expected = 0;
    for (int i = 0; i < tiles * TILE; ++i) expected += in[block * tiles * TILE + i] * in[block * tiles * TILE + i];
    wrong += out[block] != expected;  // whole numbers: exact
  }
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_in);
  cudaFree(d_out);
  return wrong != 0;
}
