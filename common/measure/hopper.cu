// What the units that came with Hopper deliver: wgmma, and TMA from L2.
//
// Problem   How many TFLOP/s can a kernel reach that multiplies with wgmma? How many bytes per clock can TMA bring to
//           every SM from L2, if each block fetches what it needs, and if the blocks of a cluster fetch it together?
// Idea      wgmma_kernel: each of two warpgroups multiplies 64 rows of A, 128 bytes long, by 256 columns of B, which they
//           share; both lie in shared memory, and are multiplied again and again.
//           tma_kernel: one thread per block fills a ring of chunks, over and over, from a region that stays in L2; another
//           sees them come. In a cluster each block fetches its share of every chunk, for all of them: multicast.
//
//   level    | wgmma_kernel                                  | tma_kernel
//   ---------+-----------------------------------------------+--------------------------------
//   cluster  | –                                             | 1 or 2 blocks, a chunk at a time
//   block    | 2 warpgroups; one block per SM                | 2 threads; one block per SM
//   step     | 4 instructions m64n256, each 32 bytes deep    | 1 chunk of 16 KB per block
//
// Limits   compute capability 9.0a; 130 KB of shared memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "stamp.cuh"

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16 | __nv_fp8_e4m3: the operands of wgmma
#endif

using Element = DTYPE;

constexpr int GROUPS = 2;              // warpgroups of wgmma_kernel
constexpr int GROUP_M = 64;            // rows of A of each
constexpr int GROUP_N = 256;           // columns of B
constexpr int ROW_BYTES = 128;         // of a row of A or a column of B
constexpr int WGMMA_BYTES = 32;        // of these, per instruction
constexpr int CHUNK_BYTES = 16 << 10;  // that a block receives per step of tma_kernel
constexpr int STAGES = 8;              // chunks of its ring

struct Ring {
  alignas(1024) unsigned char chunks[STAGES][CHUNK_BYTES];
  unsigned long long full[STAGES];   // mbarriers: a chunk's bytes have come
  unsigned long long empty[STAGES];  // ... and every block of the cluster may be sent the next
};

__device__ inline uint32_t shared_address(const void *pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

// A normal number (sum of twelve uniforms): the power a multiplier draws, and so the clock, depend on its operands.
__device__ inline float normal(uint32_t &state) {
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) {
    state = state * 1664525u + 1013904223u;
    sum += float(state >> 8) * (1.0f / 16777216.0f);
  }
  return sum;
}

// 32 bits of operands.
__device__ inline uint32_t operand(uint32_t &state) {
  uint32_t bits = 0;
  for (unsigned i = 0; i < sizeof(bits) / sizeof(Element); ++i) {
    const Element element(normal(state));
    memcpy(reinterpret_cast<char *>(&bits) + i * sizeof(Element), &element, sizeof(Element));
  }
  return bits;
}

// D[64, 256] += A[64, 32 bytes] · B[256, 32 bytes]ᵀ, both in shared memory, rows along K.
#define FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define ALL SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12), SIXTEEN(16), SIXTEEN(20), SIXTEEN(24), SIXTEEN(28)
#define OPERANDS                                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA(shape_and_types, transposed)                                                                         \
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"                                                      \
               "wgmma.mma_async.sync.aligned." shape_and_types " {" OPERANDS "}, %128, %129, add, 1, 1" transposed \
               ";\n}" : ALL : "l"(a), "l"(b))

__device__ inline void wgmma(float (&d)[GROUP_N / 8][4], uint64_t a, uint64_t b, half) {
  WGMMA("m64n256k16.f32.f16.f16", ", 0, 0");
}
__device__ inline void wgmma(float (&d)[GROUP_N / 8][4], uint64_t a, uint64_t b, __nv_bfloat16) {
  WGMMA("m64n256k16.f32.bf16.bf16", ", 0, 0");
}
__device__ inline void wgmma(float (&d)[GROUP_N / 8][4], uint64_t a, uint64_t b, __nv_fp8_e4m3) {
  WGMMA("m64n256k32.f32.e4m3.e4m3", "");
}

// Rows of 128 bytes from `address` on, with a swizzle of 128 bytes.
__device__ inline uint64_t descriptor(uint32_t address) {
  return (address & 0x3ffff) >> 4 | 1ull << 16 | uint64_t(8 * ROW_BYTES >> 4) << 32 | 1ull << 62;
}

// sink [gridDim.x * blockDim.x], stamps [gridDim.x]
__global__ void __launch_bounds__(GROUPS * 128, 1) wgmma_kernel(float *sink, Stamp *stamps, int steps) {
  __shared__ alignas(1024) uint32_t A[GROUPS][GROUP_M][ROW_BYTES / 4];
  __shared__ alignas(1024) uint32_t B[GROUP_N][ROW_BYTES / 4];
  uint32_t state = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = threadIdx.x; i < GROUPS * GROUP_M * ROW_BYTES / 4; i += blockDim.x) (&A[0][0][0])[i] = operand(state);
  for (int i = threadIdx.x; i < GROUP_N * ROW_BYTES / 4; i += blockDim.x) (&B[0][0])[i] = operand(state);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // each thread shows wgmma what it wrote,
  __syncthreads();                                              // ... and all operands are there
  const uint32_t A_rows = shared_address(A[threadIdx.x / 128]);
  const uint32_t B_rows = shared_address(B);

  float acc[GROUP_N / 8][4] = {};
  note(stamps, 0);
  for (int step = 0; step < steps; ++step) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < ROW_BYTES; k += WGMMA_BYTES)
      wgmma(acc, descriptor(A_rows + k), descriptor(B_rows + k), Element());
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  float sum = 0.0f;  // every accumulator is used, so that the compiler keeps them all
#pragma unroll
  for (int n = 0; n < GROUP_N / 8; ++n) {
#pragma unroll
    for (int r = 0; r < 4; ++r) sum += acc[n][r];
  }
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  note(stamps, 1);
}

// Waits for the end of the phase of this parity.
__device__ inline void mbarrier_wait(uint32_t barrier, int parity) {
  uint32_t ended = 0;
  while (!ended) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
  }
}

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Clusters of CLUSTER blocks. memory: `chunks` chunks, a power of two; at each step `alike` clusters in a row take one
// chunk, the next ones another. sink [gridDim.x]: the sum of the first words of a block's chunks. stamps as above
template <int CLUSTER>
__global__ void __launch_bounds__(64, 1)
    tma_kernel(uint32_t *sink, Stamp *stamps, const unsigned char *memory, int chunks, int alike, int steps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Ring &ring = *reinterpret_cast<Ring *>(shared);
  constexpr int SHARE = CHUNK_BYTES / CLUSTER;
  const int rank = blockIdx.x % CLUSTER;
  const int mine = blockIdx.x / CLUSTER / alike, others = gridDim.x / CLUSTER / alike | 1;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&ring.full[stage])) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&ring.empty[stage])),
                   "r"(CLUSTER) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();  // nobody sends to a block, or arrives at its barriers, before they are made
  note(stamps, 0);
  if (threadIdx.x == 0) {  // sends: each stage, once every block of the cluster has seen what was there
    for (int step = 0; step < steps; ++step) {
      const int stage = step % STAGES;
      const uint32_t full = shared_address(&ring.full[stage]);
      if (step >= STAGES) mbarrier_wait(shared_address(&ring.empty[stage]), step / STAGES % 2 ^ 1);
      const unsigned char *chunk =
          memory + (size_t)((mine + step * others) & (chunks - 1)) * CHUNK_BYTES + rank * SHARE;
      const uint32_t to = shared_address(ring.chunks[stage]) + rank * SHARE;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "n"(CHUNK_BYTES) : "memory");
      if (CLUSTER == 1) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
            "l"(chunk), "n"(SHARE), "r"(full) : "memory");
      } else {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(chunk), "n"(SHARE), "r"(full), "h"((uint16_t)((1 << CLUSTER) - 1)) : "memory");
      }
    }
  }
  if (threadIdx.x == 32) {  // receives, and lets whoever sends here send the next
    uint32_t total = 0;
    for (int step = 0; step < steps; ++step) {
      const int stage = step % STAGES;
      mbarrier_wait(shared_address(&ring.full[stage]), step / STAGES % 2);
      total += *reinterpret_cast<uint32_t *>(ring.chunks[stage]);
      for (int other = 0; other < CLUSTER; ++other) {
        asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                     "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(&ring.empty[stage])),
                     "r"(other) : "memory");
      }
    }
    sink[blockIdx.x] = total;
  }
  note(stamps, 1);
  cluster_sync();  // nobody leaves while others send to it, or arrive at its barriers
}

// `steps` steps of one block on each SM of the current device. sink: one float per thread, stamps: one per block.
extern "C" cudaError_t launch_ceiling(float *sink, Stamp *stamps, int steps, int warps, cudaStream_t stream) {
  int device = 0, sms = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  if (warps != GROUPS * 4) return cudaErrorInvalidValue;
  wgmma_kernel<<<sms, GROUPS * 128, 0, stream>>>(sink, stamps, steps);
  return cudaGetLastError();
}

template <int CLUSTER>
static cudaError_t launch_tma_in(uint32_t *sink, Stamp *stamps, const unsigned char *memory, int chunks, int alike,
                                 int blocks, int steps, cudaStream_t stream) {
  cudaLaunchAttribute cluster = {cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim = {CLUSTER, 1, 1};
  const cudaLaunchConfig_t config = {dim3(blocks), dim3(64), sizeof(Ring), stream, &cluster, 1};
  const cudaError_t error =
      cudaFuncSetAttribute(tma_kernel<CLUSTER>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring));
  return error ? error : cudaLaunchKernelEx(&config, tma_kernel<CLUSTER>, sink, stamps, memory, chunks, alike, steps);
}

// cluster: 1 or 2, and `blocks` a multiple of it; memory: `chunks` chunks of 16 KB, a power of two, each fetched by
// `alike` clusters at a time; sink: a word per block, stamps: one per block.
extern "C" cudaError_t launch_tma(int cluster, uint32_t *sink, Stamp *stamps, const unsigned char *memory, int chunks,
                                  int alike, int blocks, int steps, cudaStream_t stream) {
  if (blocks % cluster || alike < 1) return cudaErrorInvalidValue;
  if (cluster == 1) return launch_tma_in<1>(sink, stamps, memory, chunks, alike, blocks, steps, stream);
  if (cluster == 2) return launch_tma_in<2>(sink, stamps, memory, chunks, alike, blocks, steps, stream);
  return cudaErrorInvalidValue;
}
