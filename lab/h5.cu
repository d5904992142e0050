#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <type_traits>

#ifndef DTYPE
#define DTYPE half
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#ifndef GROUP_M
#define GROUP_M 16
#endif
#ifndef B_TRANSPOSED
#define B_TRANSPOSED 0
#endif
#ifndef C_BOXES
#define C_BOXES 4  // boxes of 64 columns of C in shared memory per warpgroup
#endif
#ifndef WAITS
#define WAITS 1
#endif
#ifndef PROMOTE
#define PROMOTE 2
#endif

using Element = DTYPE;
constexpr int BLOCK_M = 128, BLOCK_N = 256, BLOCK_K = 64;
constexpr int CONSUMERS = 2;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int BOX = 64;

struct Tiles {
  Element A[BLOCK_M][BLOCK_K];
  Element B[BLOCK_N * BLOCK_K];
};
struct Shared {
  Tiles ring[STAGES];
  Element C[CONSUMERS][C_BOXES][64][BOX];
  unsigned long long full[STAGES], empty[STAGES];
};

__device__ __forceinline__ unsigned shared_address(const void *pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned barrier, int rank) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank) : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait(unsigned barrier, int parity) {
  unsigned done;
  asm volatile("{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) {}
}
__device__ __forceinline__ void tma_load(unsigned to, const CUtensorMap *map, int x, int y, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
__device__ __forceinline__ void tma_load_multicast(unsigned to, const CUtensorMap *map, int x, int y, unsigned barrier, unsigned short mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask) : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap *map, int x, int y, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(map), "r"(x), "r"(y), "r"(from) : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
__device__ __forceinline__ void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
  return (address & 0x3ffff) >> 4 | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D128 D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56), D8(64), D8(72), D8(80), D8(88), D8(96), D8(104), D8(112), D8(120)
#define N128 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"

template <int TRANS_B>
__device__ __forceinline__ void wgmma(float (&d)[128], unsigned long long a, unsigned long long b, int add) {
  if constexpr (std::is_same_v<Element, half>)
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 " N128 ", %128, %129, add, 1, 1, 0, %131;\n}"
                 : D128 : "l"(a), "l"(b), "r"(add), "n"(TRANS_B));
  else
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " N128 ", %128, %129, add, 1, 1, 0, %131;\n}"
                 : D128 : "l"(a), "l"(b), "r"(add), "n"(TRANS_B));
}
__device__ __forceinline__ unsigned pack(float a, float b) {
  unsigned both;
  if constexpr (std::is_same_v<Element, half>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
}

__device__ unsigned long long stamps[4];

struct Place { int m, n; };
__device__ __forceinline__ Place place(int tile, int tiles_m, int tiles_n) {
  const int group = tile / (GROUP_M * tiles_n), in_group = tile % (GROUP_M * tiles_n);
  const int rows = min(GROUP_M, tiles_m - group * GROUP_M);
  return {group * GROUP_M + in_group % rows, in_group / rows};
}

__global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
gemm_kernel(const __grid_constant__ CUtensorMap map_A, const __grid_constant__ CUtensorMap map_B,
            const __grid_constant__ CUtensorMap map_C, int M, int N, int K) {
  extern __shared__ __align__(1024) unsigned char raw[];
  Shared &shared = *reinterpret_cast<Shared *>(raw);
  const int warpgroup = threadIdx.x / 128;
  const int slices = (K + BLOCK_K - 1) / BLOCK_K;
  const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M / CLUSTER, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;  // tiles_m: pairs
  const int tiles = tiles_m * tiles_n;
  const int rank = CLUSTER > 1 ? blockIdx.x % CLUSTER : 0;
  const int first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(shared_address(&shared.full[s]), 1);
      mbarrier_init(shared_address(&shared.empty[s]), CONSUMERS * CLUSTER);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(stamps[0]));
    stamps[1] = clock64();
  }
  if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  else __syncthreads();

  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      int stage = 0, phase = 0;
      for (int tile = first; tile < tiles; tile += step) {
        const Place at = place(tile, tiles_m, tiles_n);
        const int row = (at.m * CLUSTER + rank) * BLOCK_M, col = at.n * BLOCK_N;
        for (int slice = 0; slice < slices; ++slice) {
          Tiles &t = shared.ring[stage];
          const unsigned full = shared_address(&shared.full[stage]);
          mbarrier_wait(shared_address(&shared.empty[stage]), phase ^ 1);
          mbarrier_expect(full, sizeof(Tiles));
          const int k = slice * BLOCK_K;
          tma_load(shared_address(t.A), &map_A, k, row, full);
          if (CLUSTER == 1) {
            if (B_TRANSPOSED) tma_load(shared_address(t.B), &map_B, k, col, full);
            else
              for (int box = 0; box < BLOCK_N / BOX; ++box)
                tma_load(shared_address(&t.B[box * BOX * BLOCK_K]), &map_B, col + box * BOX, k, full);
          } else {
            constexpr int SHARE = BLOCK_N / CLUSTER;
            if (B_TRANSPOSED)
              tma_load_multicast(shared_address(&t.B[rank * SHARE * BLOCK_K]), &map_B, k, col + rank * SHARE, full, (1 << CLUSTER) - 1);
            else
              for (int box = rank * SHARE / BOX; box < (rank + 1) * SHARE / BOX; ++box)
                tma_load_multicast(shared_address(&t.B[box * BOX * BLOCK_K]), &map_B, col + box * BOX, k, full, (1 << CLUSTER) - 1);
          }
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int consumer = warpgroup - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    int stage = 0, phase = 0;
    const auto release = [&](int s) {
      if (CLUSTER == 1) { if (thread == 0) mbarrier_arrive(shared_address(&shared.empty[s])); }
      else if (thread < CLUSTER) mbarrier_arrive_cluster(shared_address(&shared.empty[s]), thread);
    };
    for (int tile = first; tile < tiles; tile += step) {
      const Place at = place(tile, tiles_m, tiles_n);
      float d[128];
      int before = -1;
      for (int slice = 0; slice < slices; ++slice) {
        mbarrier_wait(shared_address(&shared.full[stage]), phase);
        const Tiles &t = shared.ring[stage];
        const unsigned A = shared_address(t.A[consumer * 64]), B = shared_address(t.B);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_K / 16; ++k)
          wgmma<!B_TRANSPOSED>(d, descriptor(A + k * 32, 16, 1024),
                               B_TRANSPOSED ? descriptor(B + k * 32, 16, 1024) : descriptor(B + k * 16 * BOX * 2, BOX * BLOCK_K * 2, 1024),
                               slice | k);
        wgmma_commit();
        wgmma_wait<WAITS>();
        if (WAITS == 0) release(stage);
        else if (before >= 0) release(before);
        before = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      wgmma_wait<0>();
      if (WAITS) release(before);
      const int row = (at.m * CLUSTER + rank) * BLOCK_M + consumer * 64;
#pragma unroll
      for (int part = 0; part < 4 / C_BOXES; ++part) {
        if (thread == 0) bulk_wait_read<0>();
        named_barrier(1 + consumer, 128);
#pragma unroll
        for (int n = 0; n < C_BOXES * 4; ++n) {  // 16 columns
          const int r = warp * 16 + lane % 16;
          const int chunk = (n % 4 * 2 + lane / 16) ^ r % 8;
          const int a = (part * C_BOXES * 4 + n) * 8;
          stmatrix_x4(shared_address(&shared.C[consumer][n / 4][r][chunk * 8]), pack(d[a], d[a + 1]), pack(d[a + 2], d[a + 3]),
                      pack(d[a + 4], d[a + 5]), pack(d[a + 6], d[a + 7]));
        }
        fence_async();
        named_barrier(1 + consumer, 128);
        if (thread == 0) {
          for (int box = 0; box < C_BOXES; ++box)
            tma_store(&map_C, at.n * BLOCK_N + (part * C_BOXES + box) * BOX, row, shared_address(shared.C[consumer][box]));
          bulk_commit();
        }
      }
    }
    if (thread == 0) bulk_wait_read<0>();
  }
  if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (blockIdx.x == 0 && threadIdx.x == 128) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(stamps[2]));
    stamps[3] = clock64();
  }
}

static CUresult encode(CUtensorMap *map, const void *data, unsigned long long inner, unsigned long long outer, unsigned box_outer) {
  static const auto function = [] {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const cuuint64_t dims[] = {inner, outer}, strides[] = {inner * sizeof(Element)};
  const cuuint32_t box[] = {64, box_outer}, ones[] = {1, 1};
  return function(map, std::is_same_v<Element, half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                  const_cast<void *>(data), dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  (CUtensorMapL2promotion)PROMOTE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

extern "C" cudaError_t launch_gemm(const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  CUtensorMap map_A, map_B, map_C;
  if (encode(&map_A, A, K, M, BLOCK_M)) return cudaErrorInvalidValue;
  if (B_TRANSPOSED ? encode(&map_B, B, K, N, BLOCK_N / CLUSTER) : encode(&map_B, B, N, K, BLOCK_K)) return cudaErrorInvalidValue;
  if (encode(&map_C, C, N, M, 64)) return cudaErrorInvalidValue;
  static int sms = 0;
  if (!sms) {
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
    cudaError_t status = cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
    if (status) return status;
  }
  const int tiles = (M + BLOCK_M - 1) / BLOCK_M * ((N + BLOCK_N - 1) / BLOCK_N);
  int grid = tiles < sms ? tiles : sms;
  grid = grid / CLUSTER * CLUSTER;
  gemm_kernel<<<grid, THREADS, sizeof(Shared), stream>>>(map_A, map_B, map_C, M, N, K);
  return cudaGetLastError();
}
extern "C" cudaError_t read_stamps(unsigned long long *to) { return cudaMemcpyFromSymbol(to, stamps, sizeof(stamps)); }
