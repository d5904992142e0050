// libcu++: cuda::barrier with a completion function and threads that drop out, and cuda::pipeline with two stages.
// Run: cudaemu libcu_barrier_pipeline.cu
// Prints: 8 phases, 3968 elements
#include <cooperative_groups.h>

#include <cuda/barrier>
#include <cuda/pipeline>

#include "check.h"

namespace cg = cooperative_groups;

struct Completed {
  int *phases;
  __device__ void operator()() const { ++*phases; }
};

// In each phase the last warp still there leaves; the completion function counts the phases.
__global__ void dropping(int *phases, int *sums) {
  using Barrier = cuda::barrier<cuda::thread_scope_block, Completed>;
  __shared__ alignas(Barrier) unsigned char room[sizeof(Barrier)];
  __shared__ int sum;
  auto *const barrier = reinterpret_cast<Barrier *>(room);
  if (threadIdx.x == 0) sum = 0, new (barrier) Barrier(blockDim.x, Completed{phases});
  __syncthreads();
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int phase = 0; phase < warps; ++phase) {
    if (warp == warps - 1 - phase && warp != 0) {
      atomicAdd(&sum, 100);
      barrier->arrive_and_drop();
      return;
    }
    atomicAdd(&sum, 1);
    barrier->wait(barrier->arrive());
    if (threadIdx.x == 0) sums[phase] = sum;
    barrier->arrive_and_wait();
  }
}

// Rows come by asynchronous copies, one ahead of the one that is added up.
__global__ void through_a_pipeline(const float *in, float *out, int rows) {
  constexpr int STAGES = 2, ROW = 128;
  __shared__ alignas(16) float tile[STAGES][ROW];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
  auto block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  float sum = 0;
  for (int row = 0, ahead = 0; row < rows; ++row) {
    for (; ahead < rows && ahead < row + STAGES; ++ahead) {
      pipeline.producer_acquire();
      cuda::memcpy_async(block, tile[ahead % STAGES], in + ahead * ROW, cuda::aligned_size_t<16>(sizeof tile[0]),
                         pipeline);
      pipeline.producer_commit();
    }
    pipeline.consumer_wait();
    sum += tile[row % STAGES][threadIdx.x] + tile[row % STAGES][ROW - 1 - threadIdx.x];
    pipeline.consumer_release();
  }
  out[threadIdx.x] = sum;
}

int main() {
  Array<int> phases(std::vector<int>{0}), sums(4);
  dropping<<<1, 128>>>(phases, sums);
  const auto s = sums.host();
  // After the first wait of a phase all that are left have added 1, and one more warp has left.
  MUST(s[0] == 96 + 3200 && s[3] >= s[0]);
  const int rows = 31;
  std::vector<float> in(rows * 128), expected(128, 0);
  for (size_t i = 0; i < in.size(); ++i) in[i] = float(i % 251);
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < 128; ++i) expected[i] += in[row * 128 + i] + in[row * 128 + 127 - i];
  Array<float> from(in), to(128);
  through_a_pipeline<<<1, 128>>>(from, to, rows);
  MUST(difference(to.host(), expected) == 0);
  std::printf("%d phases, %zu elements\n", phases.host()[0], in.size());
}
