// Stage h8 · fp8: Q, K and V in e4m3, before the attention.
//
// Problem   Q, K and V [B, H, N, HEAD_DIM] in DTYPE become scales · (Q8, K8, V8), as kernel.cu takes them. 64 rows of
//           each share a scale, by which they are divided.
// Idea      scale_kernel looks for the scales of V, raise_kernel for those that are too far below the head's largest,
//           and quantize_kernel does the rest: Q and K are rotated, their scales are found, and everything is rounded.
//           V is transposed, and its keys are in P's order.
//           Rotation: rounding errs by a share of each number, so a score in which outliers meet is the most wrong. Q
//           and K are multiplied by the same Hadamard matrix, after random signs: Q · Kᵀ stays, and an outlier is
//           shared out over its row. (Scales, rotation, order of V's keys: Shah et al., "FlashAttention-3", 2024.)
// Thread map   Lane L has COLUMNS columns, from L * COLUMNS on, of its warp's 8 rows: two times the four keys that
//              neighbour one another in V.
// Limits       HEAD_DIM 64 or 128; N a multiple of 128.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of Q, K and V
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128  // elements of a query, a key, a value: 64 or 128
#endif
#ifndef ROTATE
#define ROTATE 1  // 1: Q and K are rotated before they are rounded; 0: they are rounded as they are
#endif

using Element = DTYPE;
using Fp8 = __nv_fp8_e4m3;

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int ROWS = 64;          // of Q, K or V that share a scale
constexpr float LARGEST = 448;    // that e4m3 has
constexpr float TINY = 0x1p-80f;  // the least |x| that counts as the largest of a block: no scale is 0
constexpr float LEAST = 0x1p-4f;  // of the largest scale of a head of V: the least of the others

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(sizeof(Element) == 2, "16 bytes are 8 elements");

// Four numbers rounded to e4m3, side by side in a register: the first in its lowest byte. Beyond ±448 they are ±448.
__device__ __forceinline__ unsigned round_four(float x0, float x1, float x2, float x3) {
  unsigned four;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}" : "=r"(four)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return four;
}

// The largest of |x| over the block's threads; warp_max: room for a number of each warp.
__device__ __forceinline__ float block_max(float x, float *warp_max) {
  for (int apart = 1; apart < 32; apart *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
  if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = x;
  __syncthreads();
  for (int each = 0; each < WARPS; ++each) x = fmaxf(x, warp_max[each]);
  return x;
}

// The scale of 64 rows of V by themselves.
__global__ void __launch_bounds__(THREADS)
    scale_kernel(const Element *__restrict__ V, float *__restrict__ scales) {  // [rows, HEAD_DIM], [rows / ROWS]
  constexpr int VECTOR = 16 / sizeof(Element);
  struct alignas(16) Vector { Element x[VECTOR]; };
  __shared__ float warp_max[WARPS];
  const Element *block = &V[(size_t)blockIdx.x * ROWS * HEAD_DIM];
  float largest = TINY;
  for (int i = threadIdx.x * VECTOR; i < ROWS * HEAD_DIM; i += blockDim.x * VECTOR) {
    const Vector vector = *reinterpret_cast<const Vector *>(&block[i]);
    for (const Element each : vector.x) largest = fmaxf(largest, fabsf(each));
  }
  largest = block_max(largest, warp_max);
  if (threadIdx.x == 0) scales[blockIdx.x] = largest / LARGEST;
}

// No scale of a head's V is far below the others: its weights would become 0, and the sums of P would lack them. (A
// block of small numbers loses nothing by a scale 16 times as large as it needs: e4m3 has exponents.)
__global__ void __launch_bounds__(THREADS) raise_kernel(float *scales, int blocks) {  // [heads, blocks]
  __shared__ float warp_max[WARPS];
  float *of_head = &scales[(size_t)blockIdx.x * blocks];
  float largest = 0;
  for (int i = threadIdx.x; i < blocks; i += blockDim.x) largest = fmaxf(largest, of_head[i]);
  largest = block_max(largest, warp_max);
  for (int i = threadIdx.x; i < blocks; i += blockDim.x) of_head[i] = fmaxf(of_head[i], largest * LEAST);
}

// 64 rows of Q, K (rotated) or V (transposed) in e4m3, and the scale of Q's or K's.
__global__ void __launch_bounds__(THREADS) quantize_kernel(
    const Element *__restrict__ Q, const Element *__restrict__ K, const Element *__restrict__ V,  // [rows, HEAD_DIM]
    Fp8 *__restrict__ Q8, Fp8 *__restrict__ K8,                                                   // [rows, HEAD_DIM]
    Fp8 *__restrict__ V8,        // [rows / N, HEAD_DIM, N]
    float *__restrict__ scales,  // [3, rows / ROWS]; V's are there
    int N) {
  constexpr int COLUMNS = HEAD_DIM / 32;
  constexpr int MINE = ROWS / WARPS;  // rows of a warp
  struct alignas(COLUMNS * sizeof(Element)) Columns { Element x[COLUMNS]; };
  __shared__ float warp_max[WARPS];
  __shared__ alignas(16) unsigned columns[HEAD_DIM][ROWS / 4 + 4];  // of V: four keys a word; + 4: fewer bank conflicts
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int which = blockIdx.y;  // 0: Q, 1: K, 2: V
  const Element *source = which == 0 ? Q : which == 1 ? K : V;
  const size_t first = (size_t)blockIdx.x * ROWS;
  const auto row_of = [&](int i) {  // the warp's rows: keys t * 2, t * 2 + 1, 8 + t * 2, 9 + t * 2 of a group of 16
    const int word = warp * 2 + i / 4, t = word % 4;
    return word / 4 * 16 + i % 4 / 2 * 8 + t * 2 + i % 2;
  };

  // 1. Read, and rotate: random signs, then a Hadamard matrix, by sums and differences of pairs 1, 2, 4, ... apart.
  float x[MINE][COLUMNS];
#pragma unroll
  for (int i = 0; i < MINE; ++i) {
    const Columns row = reinterpret_cast<const Columns *>(&source[(first + row_of(i)) * HEAD_DIM])[lane];
    for (int c = 0; c < COLUMNS; ++c) x[i][c] = row.x[c];
  }
  if (ROTATE && which < 2) {
    const float length = rsqrtf(HEAD_DIM);  // the matrix's rows have it, and then 1
    for (int c = 0; c < COLUMNS; ++c) {
      const float sign = __popc((lane * COLUMNS + c) * 0x9e3779b9u) % 2 ? -length : length;
#pragma unroll
      for (int i = 0; i < MINE; ++i) x[i][c] *= sign;
    }
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
#pragma unroll
      for (int apart = 1; apart < COLUMNS; apart *= 2) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          if (c & apart) continue;
          const float sum = x[i][c] + x[i][c + apart], difference = x[i][c] - x[i][c + apart];
          x[i][c] = sum, x[i][c + apart] = difference;
        }
      }
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          const float other = __shfl_xor_sync(~0u, x[i][c], apart);
          x[i][c] = lane & apart ? other - x[i][c] : x[i][c] + other;
        }
      }
    }
  }

  // 2. The largest of Q's or K's block becomes 448.
  float &scale = scales[(size_t)which * gridDim.x + blockIdx.x];
  float inverse;
  if (which < 2) {
    float largest = TINY;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
      for (int c = 0; c < COLUMNS; ++c) largest = fmaxf(largest, fabsf(x[i][c]));
    }
    largest = block_max(largest, warp_max);
    inverse = LARGEST / largest;
    if (threadIdx.x == 0) scale = largest / LARGEST;
  } else {
    inverse = 1 / scale;
  }

  // 3. Round, and write: Q and K row by row, V column by column.
  if (which < 2) {
    Fp8 *target = which == 0 ? Q8 : K8;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
      Fp8 *place = &target[(first + row_of(i)) * HEAD_DIM + lane * COLUMNS];
      if constexpr (COLUMNS == 4)
        *reinterpret_cast<unsigned *>(place) =
            round_four(x[i][0] * inverse, x[i][1] * inverse, x[i][2] * inverse, x[i][3] * inverse);
      else
        *reinterpret_cast<unsigned short *>(place) = round_four(x[i][0] * inverse, x[i][1] * inverse, 0, 0);
    }
    return;
  }
#pragma unroll
  for (int word = 0; word < MINE / 4; ++word) {
    const auto &four = reinterpret_cast<const float (&)[4][COLUMNS]>(x[word * 4]);
    for (int c = 0; c < COLUMNS; ++c)
      columns[lane * COLUMNS + c][warp * 2 + word] =
          round_four(four[0][c] * inverse, four[1][c] * inverse, four[2][c] * inverse, four[3][c] * inverse);
  }
  __syncthreads();
  const size_t head = first / N;
  for (int chunk = threadIdx.x; chunk < HEAD_DIM * (ROWS / 16); chunk += THREADS) {  // of 16 bytes
    const int column = chunk / (ROWS / 16), part = chunk % (ROWS / 16);
    *reinterpret_cast<uint4 *>(&V8[(head * HEAD_DIM + column) * N + first % N + part * 16]) =
        *reinterpret_cast<const uint4 *>(&columns[column][part * 4]);
  }
}

extern "C" cudaError_t launch_quantize(const Element *Q, const Element *K, const Element *V, Fp8 *Q8, Fp8 *K8, Fp8 *V8,
                                       float *scales, int B, int H, int N, cudaStream_t stream) {
  const long long rows = (long long)B * H * N;
  if (B < 1 || H < 1 || N < 1 || N % 128 || rows > INT_MAX - (1 << 20)) return cudaErrorInvalidValue;
  if (!Q || !K || !V || !Q8 || !K8 || !V8 || !scales) return cudaErrorInvalidValue;
  if (((size_t)Q | (size_t)K | (size_t)V | (size_t)Q8 | (size_t)K8 | (size_t)V8) % 16) return cudaErrorInvalidValue;
  if ((size_t)scales % 4) return cudaErrorInvalidValue;
  float *V_scales = &scales[rows / ROWS * 2];
  scale_kernel<<<rows / ROWS, THREADS, 0, stream>>>(V, V_scales);
  raise_kernel<<<B * H, THREADS, 0, stream>>>(V_scales, N / ROWS);
  quantize_kernel<<<dim3(rows / ROWS, 3), THREADS, 0, stream>>>(Q, K, V, Q8, K8, V8, scales, N);
  return cudaGetLastError();
}
