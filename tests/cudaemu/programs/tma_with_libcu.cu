// Bulk copies through CUDA's own functions: cuda::memcpy_async on a barrier, cuda::ptx, and a tensor map of two
// dimensions.
// Run: cudaemu --arch 9.0 --flags=-std=c++17 tma_with_libcu.cu
// Prints: bulk copies in and out and a tile of 2 dimensions agree
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cuda/barrier>
#include <cuda/ptx>

#include "check.h"

using Barrier = cuda::barrier<cuda::thread_scope_block>;
namespace ptx = cuda::ptx;
namespace device = cuda::device;
constexpr int N = 256, T = 16;

__global__ void there_and_back(const int *in, int *out) {
  __shared__ alignas(16) int tile[N];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ Barrier barrier;
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) cuda::memcpy_async(tile, in + blockIdx.x * N, cuda::aligned_size_t<16>(sizeof tile), barrier);
  barrier.arrive_and_wait();
  for (int i = threadIdx.x; i < N; i += blockDim.x) tile[i] = tile[i] * 3 + 1;
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + blockIdx.x * N, tile, sizeof tile);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }
}

__global__ void transposed(const __grid_constant__ CUtensorMap map, int *out, int columns) {
  __shared__ alignas(128) int tile[T][T];
  __shared__ Barrier barrier;
  if (threadIdx.x == 0) {
    init(&barrier, blockDim.x);
    device::experimental::fence_proxy_async_shared_cta();
  }
  __syncthreads();
  Barrier::arrival_token token;
  if (threadIdx.x == 0) {
    device::experimental::cp_async_bulk_tensor_2d_global_to_shared(tile, &map, blockIdx.x * T, blockIdx.y * T, barrier);
    token = device::barrier_arrive_tx(barrier, 1, sizeof tile);
  } else {
    token = barrier.arrive();
  }
  barrier.wait(std::move(token));
  for (int i = threadIdx.x; i < T * T; i += blockDim.x)
    out[(blockIdx.x * T + i / T) * columns + blockIdx.y * T + i % T] = tile[i % T][i / T];
}

int main() {
  std::vector<int> values(4 * N);
  for (int i = 0; i < 4 * N; ++i) values[i] = i * 7;
  Array<int> in(values), out(4 * N);
  there_and_back<<<4, 64>>>(in, out);
  auto got = out.host();
  for (int i = 0; i < 4 * N; ++i) MUST(got[i] == i * 21 + 1);

  void *encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found));
  CUtensorMap map;
  const cuuint64_t size[] = {32, 32}, stride[] = {32 * sizeof(int)};
  const cuuint32_t box[] = {T, T}, step[] = {1, 1};
  MUST(!reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, in.data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  transposed<<<dim3(2, 2), 64>>>(map, out, 32);
  got = out.host();
  for (int i = 0; i < 1024; ++i) MUST(got[i] == i % 32 * 32 * 7 + i / 32 * 7);
  std::printf("bulk copies in and out and a tile of 2 dimensions agree\n");
}
