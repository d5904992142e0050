// C = A · B^T by wgmma: four warps multiply 64 x 64 tiles straight from shared memory, in the background.
//
// Copies bring 64 x 64 halves of A and of B, in rows of 128 bytes. A row's eight chunks of 16 bytes are exchanged:
// chunk c of row r goes to c ^ r % 8. That is the 128-byte swizzle. A descriptor says where a tile begins, how far
// apart groups of eight rows are, and which swizzle it has. Ordinary writes, also those of cp.async, need
// fence.proxy.async before wgmma may read them. Accumulators belong to wgmma from wgmma.fence to wgmma.wait_group.
// Needs compute capability 9.0a.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int TILE = 64, THREADS = 128, DEPTH = 16;  // rows, columns and slice of a tile; a warpgroup; k of one wgmma
constexpr int ROW_BYTES = TILE * sizeof(half), TILE_BYTES = TILE * ROW_BYTES;
constexpr int STAGES = 2;
static_assert(ROW_BYTES == 128, "a row is as wide as the swizzle");

// Copy a tile of `from`, whose rows are `pitch` halves apart, to shared memory.
__device__ void copy_tile(unsigned to, const half *from, int pitch) {
  for (int chunk = threadIdx.x; chunk < TILE * 8; chunk += THREADS) {
    const int row = chunk / 8, column = chunk % 8;
    const unsigned place = to + row * ROW_BYTES + (column ^ row % 8) * 16;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place),
                 "l"(from + row * pitch + column * 8) : "memory");
  }
}

// The descriptor of a matrix that begins there: groups of eight rows are 1024 bytes apart, swizzle mode 1 is 128 bytes.
__device__ unsigned long long describe(unsigned address) {
  constexpr unsigned long long stride = 8 * ROW_BYTES, swizzle = 1;
  return (address & 0x3ffff) >> 4 | 1ull << 16 | (stride >> 4) << 32 | swizzle << 62;
}

#define FOUR(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3])

// d += a · b^T: 64 x 64 elements and 16 of k.
__device__ void multiply(float (&d)[32], unsigned long long a, unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, "
      "1, 1, 1, 0, 0;" : FOUR(0), FOUR(4), FOUR(8), FOUR(12), FOUR(16), FOUR(20), FOUR(24), FOUR(28) : "l"(a), "l"(b));
}

// A is M x K, B is N x K, C is M x N; M, N and K are multiples of 64.
__global__ void __launch_bounds__(THREADS) gemm(const half *A, const half *B, float *C, int N, int K) {
  // A pattern of the swizzle begins every 1024 bytes.
  __shared__ __align__(1024) unsigned char tiles[STAGES][2][TILE_BYTES];
  const int row = blockIdx.y * TILE, column = blockIdx.x * TILE, slices = K / TILE;
  const auto place = [&](int slice, int of_b) {
    return (unsigned)__cvta_generic_to_shared(tiles[slice % STAGES][of_b]);
  };
  const auto copy = [&](int slice) {
    copy_tile(place(slice, 0), A + row * K + slice * TILE, K);
    copy_tile(place(slice, 1), B + column * K + slice * TILE, K);
  };
  float d[32] = {};
  copy(0);
  asm volatile("cp.async.commit_group;");
  for (int slice = 0; slice < slices; ++slice) {
    if (slice + 1 < slices) copy(slice + 1);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;" ::: "memory");  // this slice is here, the next one may still be on its way
    asm volatile("fence.proxy.async;" ::: "memory");      // wgmma may read what this thread has written
    __syncthreads();                                      // ... and what the others have
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < TILE; k += DEPTH) {  // 32 bytes further on in each row
      const unsigned along = k * sizeof(half);
      multiply(d, describe(place(slice, 0) + along), describe(place(slice, 1) + along));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    // The four warps multiply together: who has waited knows that all have read, and may copy the slice after the next.
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (float &sum : d) asm volatile("" : "+f"(sum)::"memory");  // no read of a sum may move above the wait
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < 32; i += 2) {  // a lane has two neighbours in rows lane / 4 and lane / 4 + 8 of its warp's 16
    const int r = row + warp * 16 + lane / 4 + i / 2 % 2 * 8, c = column + i / 4 * 8 + lane % 4 * 2;
    *reinterpret_cast<float2 *>(&C[r * N + c]) = make_float2(d[i], d[i + 1]);
  }
}

int main() {
  const int M = 128, N = 192, K = 256;
  std::vector<half> a(M * K), b(N * K);
  std::vector<float> c(M * N);
  for (int i = 0; i < M * K; ++i) a[i] = __float2half(float(i * 7 % 13 - 6));
  for (int i = 0; i < N * K; ++i) b[i] = __float2half(float(i * 5 % 11 - 5));
  half *d_a, *d_b;
  float *d_c;
  cudaMalloc(&d_a, a.size() * sizeof(half));
  cudaMalloc(&d_b, b.size() * sizeof(half));
  cudaMalloc(&d_c, c.size() * sizeof(float));
  cudaMemcpy(d_a, a.data(), a.size() * sizeof(half), cudaMemcpyHostToDevice);
  cudaMemcpy(d_b, b.data(), b.size() * sizeof(half), cudaMemcpyHostToDevice);
  gemm<<<dim3(N / TILE, M / TILE), THREADS>>>(d_a, d_b, d_c, N, K);
  cudaMemcpy(c.data(), d_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost);
  bool right = cudaGetLastError() == cudaSuccess;
  for (int row = 0; row < M; ++row)
    for (int column = 0; column < N; ++column) {
      float sum = 0;  // of small integers: exact
      for (int k = 0; k < K; ++k) sum += __half2float(a[row * K + k]) * __half2float(b[column * K + k]);
      right &= c[row * N + column] == sum;
    }
  printf(right ? "PASS\n" : "FAIL\n");
  cudaFree(d_a);
  cudaFree(d_b);
  cudaFree(d_c);
  return !right;
}
