// How wgmma rounds, systematically: D = c + sum of a[k] b[k] for random and for chosen terms of each type. Prints the bits
// of D. wgmma_rounding.txt is the record of an H200 (2026-11-22, CUDA 13.0); the emulator gives the same.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define CHECK(x)                                   \
  if (cudaError_t e = (x)) {                       \
    printf("%s: %s\n", #x, cudaGetErrorString(e)); \
    exit(1);                                       \
  }

enum Type { F16, BF16, TF32, E4M3, E5M2, F16_TO_F16, E4M3_TO_F16, TYPES };
const char *const NAMES[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "f16->f16", "e4m3->f16"};
const int DEPTH[] = {16, 16, 8, 32, 32, 16, 32};

// 8 columns: row 0 of A with 8 columns of B, and their c.
template <int TYPE>
__global__ void __launch_bounds__(128) k(const uint8_t *row, const uint8_t *columns, const float *c, float *out) {
  __shared__ __align__(1024) uint8_t s[4096];
  for (int i = threadIdx.x; i < 4096; i += 128) s[i] = 0;
  __syncthreads();
  if (threadIdx.x < 32) s[threadIdx.x / 16 * 128 + threadIdx.x % 16] = row[threadIdx.x];
  for (int i = threadIdx.x; i < 256; i += 128) s[2048 + i % 32 / 16 * 128 + i / 32 * 16 + i % 16] = columns[i];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const int t = threadIdx.x % 4 * 2;
  float d[4] = {c[t], c[t + 1], 0, 0};
  uint32_t h[2] = {0, 0};
  const __half2 pair = __floats2half2_rn(d[0], d[1]);
  memcpy(h, &pair, 4);
  const uint64_t at = __cvta_generic_to_shared(s) >> 4, a = at | 8ull << 16 | 16ull << 32,
                 b = (at + 128) | 8ull << 16 | 16ull << 32;
  for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#define RUN(shape, rest)                                                                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n8" shape " {%0, %1, %2, %3}, %4, %5, 1, 1, 1" rest ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b))
#define RUN16(shape, rest)                                                                      \
  asm volatile("wgmma.mma_async.sync.aligned.m64n8" shape " {%0, %1}, %2, %3, 1, 1, 1" rest ";" \
               : "+r"(h[0]), "+r"(h[1]) : "l"(a), "l"(b))
  if (TYPE == F16) RUN("k16.f32.f16.f16", ", 0, 0");
  if (TYPE == BF16) RUN("k16.f32.bf16.bf16", ", 0, 0");
  if (TYPE == TF32) RUN("k8.f32.tf32.tf32", "");
  if (TYPE == E4M3) RUN("k32.f32.e4m3.e4m3", "");
  if (TYPE == E5M2) RUN("k32.f32.e5m2.e5m2", "");
  if (TYPE == F16_TO_F16) RUN16("k16.f16.f16.f16", ", 0, 0");
  if (TYPE == E4M3_TO_F16) RUN16("k32.f16.e4m3.e4m3", "");
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  if (TYPE == F16_TO_F16 || TYPE == E4M3_TO_F16) {
    __half2 out2;
    memcpy(&out2, h, 4);
    d[0] = __low2float(out2), d[1] = __high2float(out2);
  }
  if (threadIdx.x < 4) out[t] = d[0], out[t + 1] = d[1];
}

uint8_t *row, *columns;
float *c, *out;

int size_of(int type) { return type == TF32 ? 4 : type == E4M3 || type == E5M2 || type == E4M3_TO_F16 ? 1 : 2; }
void put(int type, uint8_t *to, float x) {
  if (type == F16 || type == F16_TO_F16) {
    __half h = __float2half(x);
    memcpy(to, &h, 2);
  } else if (type == BF16) {
    __nv_bfloat16 h = __float2bfloat16(x);
    memcpy(to, &h, 2);
  } else if (type == TF32)
    memcpy(to, &x, 4);
  else if (type == E5M2) {
    __nv_fp8_e5m2 h(x);
    memcpy(to, &h, 1);
  } else {
    __nv_fp8_e4m3 h(x);
    memcpy(to, &h, 1);
  }
}
void run(int type) {
  void (*const kernels[])(const uint8_t *, const uint8_t *, const float *, float *) = {
      k<F16>, k<BF16>, k<TF32>, k<E4M3>, k<E5M2>, k<F16_TO_F16>, k<E4M3_TO_F16>};
  kernels[type]<<<1, 128>>>(row, columns, c, out);
  CHECK(cudaDeviceSynchronize());
}
// One column: a[k] b[k] = term[k], as a power of two or little more each.
float one(int type, const float *a, const float *b, float from) {
  memset(row, 0, 32), memset(columns, 0, 256);
  for (int i = 0; i < DEPTH[type]; ++i)
    put(type, row + i * size_of(type), a[i]), put(type, columns + i * size_of(type), b[i]);
  for (int n = 0; n < 8; ++n) c[n] = from;
  run(type);
  return out[0];
}
uint32_t seed = 1;
uint32_t random32() {
  seed ^= seed << 13;
  seed ^= seed >> 17;
  seed ^= seed << 5;
  return seed;
}

int main() {
  CHECK(cudaMallocManaged(&row, 32));
  CHECK(cudaMallocManaged(&columns, 256));
  CHECK(cudaMallocManaged(&c, 32));
  CHECK(cudaMallocManaged(&out, 32));
  float a[32], b[32];
  const auto clear = [&] {
    for (int i = 0; i < 32; ++i) a[i] = b[i] = 0;
  };
  const auto set = [&](int k, float x, float y) { a[k] = x, b[k] = y; };
  for (int type = 0; type < TYPES; ++type) {
    const int depth = DEPTH[type];
    const bool fp8 = size_of(type) == 1;
    const int e = fp8 ? 5 : 12;  // halves of the exponents that fit
    // 1. How far below the largest is a term kept? c = 1, all others 2^-j; and with signs.
    for (int j = fp8 ? 8 : 20; j <= (fp8 ? 12 : 28); ++j)
      for (int sign = 0; sign < 4; ++sign) {
        clear();
        for (int i = 0; i < depth; ++i) set(i, (sign & 1 ? -1 : 1) * ldexpf(1, -(j / 2)), ldexpf(1, -(j - j / 2)));
        const float d = one(type, a, b, sign & 2 ? -1 : 1);
        printf("%-9s kept: c %2d, %d x %c2^-%d: %a\n", NAMES[type], sign & 2 ? -1 : 1, depth, sign & 1 ? '-' : '+', j,
               d);
      }
    // 2. Likewise below a product instead of c; the product once normalised and once 1.5 * 1.5.
    for (int j = fp8 ? 8 : 20; j <= (fp8 ? 14 : 28); ++j)
      for (float big : {1.0f, 1.5f}) {
        clear();
        for (int i = 1; i < depth; ++i) set(i, ldexpf(1, -(j / 2) + (fp8 ? 2 : 0)), ldexpf(1, -(j - j / 2)));
        set(0, fp8 ? 4 * big : big, big);
        const float d = one(type, a, b, 0);
        printf("%-9s kept: %g, %d x 2^-%d%s: %a\n", NAMES[type], big * big, depth - 1, j, fp8 ? " (x 4)" : "", d);
      }
    // 3. Groups: +B and -B at k = i and i + 1, a small term at k = j.
    for (int i = 0; i + 1 < depth; i += depth / 8) {
      printf("%-9s groups: +B -B at %2d, small at:", NAMES[type], i);
      for (int j = 0; j < depth; ++j) {
        if (j == i || j == i + 1) continue;
        clear();
        set(i, ldexpf(1, e), ldexpf(1, e)), set(i + 1, -ldexpf(1, e), ldexpf(1, e));
        set(j, ldexpf(1, -e / 2), ldexpf(1, -e / 2));
        printf(" %d%c", j, one(type, a, b, 0) != 0 ? '+' : '-');
      }
      printf("\n");
    }
    // 4. Of c: it cancels a product, beside a small one.
    clear();
    set(0, ldexpf(1, e), ldexpf(1, fp8 ? e : 3)), set(depth - 1, ldexpf(1, -e / 2), ldexpf(1, -e / 2));
    printf("%-9s cancelled by c: %a\n", NAMES[type], one(type, a, b, -ldexpf(1, fp8 ? 2 * e : e + 3)));
    // 5. Random terms of random sizes: 40 lines of 8.
    for (int line = 0; line < 40; ++line) {
      const int spread = line % 8 * (fp8 ? 1 : 2) + 1;
      const auto number = [&] {
        const float x = (random32() % 512 + 512) / 1024.0f * (random32() & 1 ? 1 : -1);
        return ldexpf(x, int(random32() % spread) - spread / 2);
      };
      memset(row, 0, 32), memset(columns, 0, 256);
      for (int i = 0; i < depth; ++i) put(type, row + i * size_of(type), number());
      for (int i = 0; i < 8 * depth; ++i) put(type, columns + i / depth * 32 + i % depth * size_of(type), number());
      for (int n = 0; n < 8; ++n) c[n] = line % 3 ? ldexpf(number(), int(random32() % 12) - 6) : 0;
      run(type);
      printf("%-9s random %2d:", NAMES[type], line);
      for (int n = 0; n < 8; ++n) {
        uint32_t bits;
        memcpy(&bits, &out[n], 4);
        printf(" %08x", bits);
      }
      printf("\n");
    }
  }
}
