// Which bytes of shared memory does wgmma read for which element, by descriptor? Found with an identity as the other
// operand: shared memory holds its own addresses, a few bits at a time. One line per descriptor: a hash of all addresses
// (in bytes, from the start of the zone), and two of them. `wgmma_layouts -v` prints them all. Runs on a GPU of 9.0a and
// in the emulator alike; wgmma_layouts.txt is the record of an H200 (2026-11-22, CUDA 13.0).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <vector>

constexpr int ZONE = 2048, BYTES = 192 * 1024;  // of shared memory: an identity, then the zone
constexpr int N = 64;                           // columns when B is looked at; 16 (or the depth) when A is

#define CHECK(x)                                   \
  if (cudaError_t e = (x)) {                       \
    printf("%s: %s\n", #x, cudaGetErrorString(e)); \
    exit(1);                                       \
  }

struct F16 {
  using T = __half;
  static constexpr int bits = 8, k = 16;
  __device__ static T make(uint32_t x) { return __float2half(float(x)); }
};
struct BF16 {
  using T = __nv_bfloat16;
  static constexpr int bits = 8, k = 16;
  __device__ static T make(uint32_t x) { return __float2bfloat16(float(x)); }
};
struct TF32 {
  using T = float;
  static constexpr int bits = 8, k = 8;
  __device__ static T make(uint32_t x) { return float(x); }
};
struct E4M3 {
  using T = __nv_fp8_e4m3;
  static constexpr int bits = 4, k = 32;
  __device__ static T make(uint32_t x) { return T(float(x)); }
};
struct S8 {
  using T = int8_t;
  static constexpr int bits = 6, k = 32;
  __device__ static T make(uint32_t x) { return T(x); }
};

#define D8(d) \
  "+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3]), "+r"((d)[4]), "+r"((d)[5]), "+r"((d)[6]), "+r"((d)[7])
#define D32 D8(d), D8(d + 8), D8(d + 16), D8(d + 24)
#define D16 D8(d), D8(d + 8)
#define L8 "{%0, %1, %2, %3, %4, %5, %6, %7"
#define L16 L8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define L32 L16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

// B by descriptor, A an identity in registers: D[k][n] = B[n][k].
template <class E, int TRANS>
__device__ void read_b(uint32_t *d, const uint32_t *a, uint64_t b) {
#define REST : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANS)
#define READ_B(shape, scales)                                                                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64" shape " " L32 "}, {%32, %33, %34, %35}, %36, 0" scales ";" \
               : D32 REST)
  if constexpr (std::is_same_v<E, F16>) READ_B("k16.f32.f16.f16", ", 1, 1, %37");
  if constexpr (std::is_same_v<E, BF16>) READ_B("k16.f32.bf16.bf16", ", 1, 1, %37");
  if constexpr (std::is_same_v<E, TF32>) READ_B("k8.f32.tf32.tf32", ", 1, 1");
  if constexpr (std::is_same_v<E, E4M3>) READ_B("k32.f32.e4m3.e4m3", ", 1, 1");
  if constexpr (std::is_same_v<E, S8>) READ_B("k32.s32.s8.s8", "");
}
// A by descriptor, B an identity: D[m][k] = A[m][k].
template <class E, int TRANS>
__device__ void read_a(uint32_t *d, uint64_t a, uint64_t b) {
#define READ_A16(shape, scales)                                                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n16" shape " " L8 "}, %8, %9, 0" scales ";" : D8(d) \
               : "l"(a), "l"(b), "n"(TRANS))
#define READ_A32(shape, scales) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n32" shape " " L16 "}, %16, %17, 0" scales ";" : D16 : "l"(a), "l"(b))
  if constexpr (std::is_same_v<E, F16>) READ_A16("k16.f32.f16.f16", ", 1, 1, %10, 0");
  if constexpr (std::is_same_v<E, BF16>) READ_A16("k16.f32.bf16.bf16", ", 1, 1, %10, 0");
  if constexpr (std::is_same_v<E, TF32>) READ_A16("k8.f32.tf32.tf32", ", 1, 1");
  if constexpr (std::is_same_v<E, E4M3>) READ_A32("k32.f32.e4m3.e4m3", ", 1, 1");
  if constexpr (std::is_same_v<E, S8>) READ_A32("k32.s32.s8.s8", "");
}

// `d`: the descriptor; its start address counts from the zone. `digit`: which bits of the addresses.
template <class E, bool IS_A, int TRANS>
__global__ void __launch_bounds__(128) probe(uint64_t descriptor, int digit, uint32_t *out) {
  extern __shared__ __align__(1024) uint8_t shared[];
  using T = typename E::T;
  const int t = threadIdx.x;
  for (int i = t; i < ZONE / int(sizeof(T)); i += 128) reinterpret_cast<T *>(shared)[i] = E::make(0);
  for (int i = t; i < (BYTES - ZONE) / int(sizeof(T)); i += 128)
    reinterpret_cast<T *>(shared + ZONE)[i] = E::make(i >> digit * E::bits & ((1 << E::bits) - 1));
  __syncthreads();
  if (IS_A && t < E::k) {  // (k, k), no swizzle: 8 rows of 16 bytes, 128 bytes on along k, 256 along the rows
    const int row = t, byte = t * sizeof(T);
    *reinterpret_cast<T *>(shared + row / 8 * 256 + byte / 16 * 128 + row % 8 * 16 + byte % 16) = E::make(1);
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const uint64_t base = __cvta_generic_to_shared(shared);
  uint32_t d[32] = {};
  constexpr int per = 4 / sizeof(T);
  uint32_t a[4];
  for (int r = 0; r < 4; ++r) {  // the identity: warp 0 has rows 0 to 15; for depth 32 warp 1 those from 16 on
    T values[per];
    for (int e = 0; e < per; ++e) {
      const int row = t / 32 * 16 + t % 32 / 4 + 8 * (r % 2), k = t % 4 * per + e + 4 * per * (r / 2);
      values[e] = E::make(row == k);
    }
    memcpy(&a[r], values, 4);
  }
  const uint64_t there = descriptor + ((base + ZONE) >> 4);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  if constexpr (IS_A)
    read_a<E, TRANS>(d, there, base >> 4 | 8ull << 16 | 16ull << 32);
  else
    read_b<E, TRANS>(d, a, there);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 32; ++i) {
    const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + t % 4 * 2 + i % 2;
    const uint32_t value = std::is_same_v<E, S8> ? d[i] : uint32_t(__uint_as_float(d[i]));
    out[row * N + column] = value;
  }
}

uint64_t make(int swizzle, int start, int leading, int stride, int base) {
  const int mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
  return uint64_t(start >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | uint64_t(base) << 49 |
         uint64_t(mode) << 62;
}

bool verbose = false;
uint32_t *device;

template <class E, bool IS_A, int TRANS>
void look(const char *type, int swizzle, int start, int leading, int stride, int base = 0) {
  CHECK(cudaFuncSetAttribute(probe<E, IS_A, TRANS>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  std::vector<uint32_t> sum(64 * N), part(64 * N);
  for (int digit = 0; digit * E::bits < 18; ++digit) {
    probe<E, IS_A, TRANS><<<1, 128, BYTES>>>(make(swizzle, start, leading, stride, base), digit, device);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(part.data(), device, part.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i] << digit * E::bits;
  }
  const int rows = IS_A ? 64 : N;
  const auto at = [&](int row, int k) {
    return sum[IS_A ? row * N + k : k * N + row] * uint32_t(sizeof(typename E::T));
  };
  uint64_t hash = 14695981039346656037ull;
  for (int row = 0; row < rows; ++row)
    for (int k = 0; k < E::k; ++k) hash = (hash ^ at(row, k)) * 1099511628211ull;
  printf("%-4s %c %-2s swizzle %3d start %5d leading %5d stride %5d base %d: %016llx", type, IS_A ? 'A' : 'B',
         TRANS ? "MN" : "K", swizzle, start, leading, stride, base, (unsigned long long)hash);
  printf(" %u %u\n", at(1, E::k / 2), at(63, E::k - 1));
  if (verbose)
    for (int row = 0; row < rows; ++row)
      for (int k = 0; k < E::k; ++k) printf("%6u%s", at(row, k), k + 1 < E::k ? " " : "\n");
}

template <class E, bool IS_A>
void k_major(const char *type) {
  for (auto [leading, stride] : {std::pair{128, 256}, {1024, 128}, {8192, 528}, {16, 2048}, {0, 256}, {4096, 0}})
    look<E, IS_A, 0>(type, 0, 0, leading, stride);
  look<E, IS_A, 0>(type, 0, 48, 128, 256);
  look<E, IS_A, 0>(type, 0, 128, 128, 256, 3);
  for (int swizzle : {32, 64, 128}) {
    for (int advance = 0; advance < swizzle; advance += 32) look<E, IS_A, 0>(type, swizzle, advance, 16, 8 * swizzle);
    look<E, IS_A, 0>(type, swizzle, 1024, 0, 8 * swizzle);
    look<E, IS_A, 0>(type, swizzle, 1024, 4096, 8 * swizzle);  // is the leading offset not used?
    look<E, IS_A, 0>(type, swizzle, 2048, 16, 24 * swizzle);
    look<E, IS_A, 0>(type, swizzle, 2048, 16, 4 * swizzle);       // groups of 8 rows that overlap
    look<E, IS_A, 0>(type, swizzle, 2048 + 16, 16, 8 * swizzle);  // 16 bytes inside the atom
  }
}

template <class E, bool IS_A>
void mn_major(const char *type) {
  for (auto [leading, stride] : {std::pair{1024, 128}, {128, 256}, {4096, 144}, {2048, 512}, {0, 128}, {128, 0}})
    look<E, IS_A, 1>(type, 0, 0, leading, stride);
  for (int swizzle : {32, 64, 128})
    for (auto [leading, stride] :
         {std::pair{16 * swizzle, 8 * swizzle},
          {8 * swizzle, 4096},
          {8192, 8 * swizzle},
          {4096, 16 * swizzle},
          {0, 8 * swizzle}}) {
      look<E, IS_A, 1>(type, swizzle, 0, leading, stride);
      look<E, IS_A, 1>(type, swizzle, 16 * swizzle, leading, stride);
    }
}

// Patterns that do not begin at their boundary, and base offsets.
template <class E, bool IS_A>
void bases(const char *type) {
  for (int swizzle : {32, 64, 128}) {
    for (int base = 0; base < 8; ++base) look<E, IS_A, 0>(type, swizzle, 0, 16, 8 * swizzle, base);
    for (int start = 128; start < 1024; start += 128) {
      look<E, IS_A, 0>(type, swizzle, start, 16, 8 * swizzle, 0);
      look<E, IS_A, 0>(type, swizzle, start, 16, 8 * swizzle, start / 128);
    }
  }
  look<E, IS_A, 1>(type, 128, 384, 2048, 1024, 3);
  look<E, IS_A, 1>(type, 128, 384, 2048, 1024, 0);
}

int main(int argc, char **argv) {
  verbose = argc > 1 && !strcmp(argv[1], "-v");
  CHECK(cudaMalloc(&device, 64 * N * 4));
  k_major<F16, false>("f16");
  k_major<F16, true>("f16");
  mn_major<F16, false>("f16");
  mn_major<F16, true>("f16");
  bases<F16, false>("f16");
  mn_major<BF16, false>("bf16");
  k_major<TF32, true>("tf32");
  k_major<E4M3, false>("e4m3");
  k_major<S8, true>("s8");
}
