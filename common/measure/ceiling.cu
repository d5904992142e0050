// The ceilings: what the arithmetic units deliver when nothing else is in the way.
//
// Problem   How many TFLOP/s can a kernel reach that multiplies with mma.sync, or with fp32 FMAs? How many exponentials
//           or maxima per clock? Each block repeats the inner loop of a perfect kernel: no global memory, no barriers, no
//           addresses to compute.
// Idea      OPERATION=0: a warp multiplies a 64 × 16 fragment of A by a 16 × 64 fragment of B into 128 accumulators
//           per lane: 4 × 8 instructions m16n8k16 per step, or twice as many m16n8k8 for TF32. With 16 warps a warp
//           has half the rows. SHARED=1: every step's fragments are first read from shared memory with ldmatrix,
//           without conflicts.
//           OPERATION=1: each thread adds to 32 independent accumulators with FMA.
//           OPERATION=2: each thread takes powers of two of 8 independent numbers.
//           OPERATION=3: each thread takes maxima of 16 numbers and a neighbour, as a row's maximum does.
//
//   level  | OPERATION=0                             | OPERATION=1          | OPERATION=2    | OPERATION=3
//   -------+-----------------------------------------+----------------------+----------------+----------------
//   grid   | one block per SM                        | one block per SM     | as 1           | as 1
//   block  | 8 or 16 warps                           | 32 warps             | as 1           | as 1
//   warp   | 64 × 64 × 16 or 32 × 64 × 16 per step   | 32 FMAs per lane     | 8 per lane     | 16 per lane

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "stamp.cuh"

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16 | float (TF32): the operands of mma.sync
#endif
#ifndef OPERATION
#define OPERATION 0  // 0: mma.sync; 1: fp32 FMA; 2: powers of two; 3: fp32 maxima
#endif
#ifndef SHARED
#define SHARED 0  // 0: the operands stay in registers; 1: ldmatrix reads them anew at each step
#endif

using Element = DTYPE;

constexpr int BLOCK_M = 512;  // rows of A that all warps of a block have between them
constexpr int WARP_N = 64;
constexpr int STEP_K = 16;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 32 / sizeof(Element);  // a row of a fragment has 32 bytes: 16 halves or 8 floats
constexpr int TILES_N = WARP_N / MMA_N;
constexpr int TILES_K = STEP_K / MMA_K;
constexpr int FMAS = 32;
constexpr int POWERS = 8;
constexpr int MAXIMA = 16;
constexpr int SCALAR_WARPS = 32;  // of a block that does not use the tensor cores
constexpr int SCALAR_THREADS = SCALAR_WARPS * 32;
constexpr int UNROLLED = SHARED ? 1 : 4;  // in one turn of the loop ptxas would read the same fragments only once

static_assert(OPERATION >= 0 && OPERATION <= 3, "OPERATION is 0, 1, 2 or 3");
static_assert(SHARED == 0 || SHARED == 1, "SHARED is 0 or 1");
static_assert(OPERATION == 0 || SHARED == 0, "only mma.sync can have its operands in shared memory");

// acc += a · b, one tile; the layouts of the fragments do not matter here, only that all lanes take part.
__device__ inline void mma(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], __nv_bfloat16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], float) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 × 8 matrices of 16-bit elements; lane L gives the address of one 16-byte row.
__device__ inline void ldmatrix_x4(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(address) : "memory");
}

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
  if constexpr (sizeof(Element) == 4) return __float_as_uint(normal(state));
  union {
    Element element[2];
    uint32_t bits;
  } pair = {{Element(normal(state)), Element(normal(state))}};
  return pair.bits;
}

// sink [gridDim.x * blockDim.x], stamps [gridDim.x]
template <int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 1) mma_kernel(float *sink, Stamp *stamps, int steps) {
  constexpr int TILES_M = BLOCK_M / WARPS / MMA_M;
  // One step's fragments of A and B, read by all warps: 16 bytes per lane, lanes side by side.
  __shared__ alignas(16) uint4 fragments[SHARED ? TILES_K * (TILES_M + TILES_N / 2) : 1][32];
  uint32_t state = blockIdx.x * blockDim.x + threadIdx.x;
  uint32_t a[TILES_K][TILES_M][4], b[TILES_K][TILES_N][2];
#pragma unroll
  for (int k = 0; k < TILES_K; ++k) {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
#pragma unroll
      for (int r = 0; r < 4; ++r) a[k][m][r] = operand(state);
    }
#pragma unroll
    for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) b[k][n][r] = operand(state);
    }
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (SHARED) {
    for (int tile = warp; tile < TILES_K * (TILES_M + TILES_N / 2); tile += WARPS) {
      fragments[tile][lane] = make_uint4(operand(state), operand(state), operand(state), operand(state));
    }
    __syncthreads();  // everybody waits for all writers: the fragments are complete
  }
  const uint32_t shared = (uint32_t)__cvta_generic_to_shared(&fragments[0][lane]);

  float acc[TILES_M][TILES_N][4] = {};
  note(stamps, 0);
#pragma unroll UNROLLED
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int k = 0; k < TILES_K; ++k) {
      if (SHARED) {
        const uint32_t from = shared + k * (TILES_M + TILES_N / 2) * 32 * sizeof(uint4);
#pragma unroll
        for (int m = 0; m < TILES_M; ++m) {
          ldmatrix_x4(a[k][m][0], a[k][m][1], a[k][m][2], a[k][m][3], from + m * 32 * sizeof(uint4));
        }
#pragma unroll
        for (int n = 0; n < TILES_N; n += 2) {
          ldmatrix_x4(b[k][n][0], b[k][n][1], b[k][n + 1][0], b[k][n + 1][1],
                      from + (TILES_M + n / 2) * 32 * sizeof(uint4));
        }
      }
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
          const int m = n % 2 ? TILES_M - 1 - i : i;  // to and fro: neighbours in time share a fragment
          mma(acc[m][n], a[k][m], b[k][n], Element());
        }
      }
    }
  }
  float sum = 0.0f;  // every accumulator is used, so that the compiler keeps them all
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
#pragma unroll
    for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) sum += acc[m][n][r];
    }
  }
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  note(stamps, 1);
}

// sink and stamps as above
__global__ void __launch_bounds__(SCALAR_THREADS, 1) fma_kernel(float *sink, Stamp *stamps, int steps) {
  uint32_t state = blockIdx.x * blockDim.x + threadIdx.x;
  const float a = 0.5f * normal(state) / 6.0f;  // |a| < 1: the sums stay finite
  const float b = normal(state);
  float acc[FMAS];
  for (int i = 0; i < FMAS; ++i) acc[i] = normal(state);
  note(stamps, 0);
#pragma unroll 4
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < FMAS; ++i) acc[i] = fmaf(acc[i], a, b);
  }
  float sum = 0.0f;
  for (int i = 0; i < FMAS; ++i) sum += acc[i];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  note(stamps, 1);
}

// sink and stamps as above
__global__ void __launch_bounds__(SCALAR_THREADS, 1) power_kernel(float *sink, Stamp *stamps, int steps) {
  uint32_t state = blockIdx.x * blockDim.x + threadIdx.x;
  float x[POWERS];
  for (int i = 0; i < POWERS; ++i) x[i] = normal(state);
  note(stamps, 0);
#pragma unroll 4
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < POWERS; ++i) {
      asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(x[i]) : "f"(-x[i]));  // goes to 0.641..., where 2^-x = x
    }
  }
  float sum = 0.0f;
  for (int i = 0; i < POWERS; ++i) sum += x[i];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  note(stamps, 1);
}

// sink and stamps as above
__global__ void __launch_bounds__(SCALAR_THREADS, 1) maximum_kernel(float *sink, Stamp *stamps, int steps) {
  uint32_t state = blockIdx.x * blockDim.x + threadIdx.x;
  float x[MAXIMA];
  for (int i = 0; i < MAXIMA; ++i) x[i] = normal(state);
  note(stamps, 0);
#pragma unroll 4
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < MAXIMA; ++i) {
      asm volatile("max.f32 %0, %0, %1;" : "+f"(x[i]) : "f"(x[(i + 5) % MAXIMA]));
    }
  }
  float sum = 0.0f;
  for (int i = 0; i < MAXIMA; ++i) sum += x[i];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  note(stamps, 1);
}

// Run `steps` steps of one block of `warps` warps on each SM of the current device. sink: one float per thread, stamps:
// one per block. What a step does is counted in ceiling.py.
extern "C" cudaError_t launch_ceiling(float *sink, Stamp *stamps, int steps, int warps, cudaStream_t stream) {
  int device = 0, sms = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  if (OPERATION == 0 && warps == 8) {
    mma_kernel<8><<<sms, 8 * 32, 0, stream>>>(sink, stamps, steps);
  } else if (OPERATION == 0 && warps == 16) {
    mma_kernel<16><<<sms, 16 * 32, 0, stream>>>(sink, stamps, steps);
  } else if (OPERATION == 0 || warps != SCALAR_WARPS) {
    return cudaErrorInvalidValue;
  } else if (OPERATION == 1) {
    fma_kernel<<<sms, SCALAR_THREADS, 0, stream>>>(sink, stamps, steps);
  } else if (OPERATION == 2) {
    power_kernel<<<sms, SCALAR_THREADS, 0, stream>>>(sink, stamps, steps);
  } else {
    maximum_kernel<<<sms, SCALAR_THREADS, 0, stream>>>(sink, stamps, steps);
  }
  return cudaGetLastError();
}
