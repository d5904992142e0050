// Arithmetic, comparisons and functions of __half and __half2, against float rounded once.
// Run: cudaemu half_math.cu
// Prints: 24 operations on halves agree
#include <cuda_fp16.h>

#include "check.h"

// clang-format off
#define OPERATIONS(F)                                                                                         \
  F(__hadd(x, y), a + b) F(__hsub(x, y), a - b) F(__hmul(x, y), a *b) F(__hdiv(x, y), a / b)                  \
  F(__hfma(x, y, x), std::fma(a, b, a)) F(__hneg(x), -a) F(__habs(x), std::fabs(a))                           \
  F(hsqrt(__habs(x)), std::sqrt(std::fabs(a))) F(hexp(x), std::exp(a)) F(hexp2(x), std::exp2(a))              \
  F(hlog(__habs(x)), std::log(std::fabs(a))) F(hsin(x), std::sin(a)) F(hcos(x), std::cos(a))                  \
  F(htanh(x), std::tanh(a)) F(hrcp(y), 1 / b) F(hrsqrt(__habs(x)), 1 / std::sqrt(std::fabs(a)))               \
  F(hfloor(x), std::floor(a)) F(hceil(x), std::ceil(a)) F(hrint(x), std::rint(a)) F(htrunc(x), std::trunc(a)) \
  F(__hmax(x, y), std::fmax(a, b)) F(__hmin(x, y), std::fmin(a, b))                                           \
  F(__hadd_sat(x, y), std::fmin(1.0f, std::fmax(0.0f, a + b))) F(__hlt(x, y) ? x : y, a < b ? a : b)
// clang-format on

#define ONE_DEVICE(there, here) out[at++ * n + i] = there;
__global__ void device(const __half *in, __half *out, int n) {
  const int i = threadIdx.x;
  const __half x = in[2 * i], y = in[2 * i + 1];
  int at = 0;
  OPERATIONS(ONE_DEVICE)
}

__global__ void pairs(const __half2 *in, __half2 *out, unsigned *masks) {
  const __half2 x = in[threadIdx.x], swapped = __lowhigh2highlow(x);
  __half2 y = __hfma2_relu(x, swapped, __float2half2_rn(0.5f));
  y += __hcmadd(x, swapped, __hmax2_nan(x, swapped)) * h2rcp(__hadd2(__habs2(x), __float2half2_rn(1)));
  out[threadIdx.x] = y;
  masks[threadIdx.x] = __hgt2_mask(x, swapped) ^ __hbne2(x, swapped) ^ (__hisnan2(y).x == __half(0) ? 0 : 0x100);
}

int main() {
  const int n = 128, kinds = 24;
  std::vector<__half> in(2 * n);
  Random random;
  for (__half &x : in) x = __float2half((random.unit() - 0.5f) * 8);
  Array<__half> inputs(in), out(kinds * n);
  device<<<1, n>>>(inputs, out, n);
  const auto got = out.host();
#define ONE_HOST(there, here)                                                                                        \
  {                                                                                                                  \
    const float right = here, off = std::fabs(__half2float(got[at++ * n + i]) - __half2float(__float2half(right)));  \
    if (!(off <= std::fabs(right) * 0.002f + 1e-6f)) return std::printf("%s of %g, %g is wrong\n", #there, a, b), 1; \
  }
  for (int i = 0; i < n; ++i) {
    const float a = __half2float(in[2 * i]), b = __half2float(in[2 * i + 1]);
    int at = 0;
    OPERATIONS(ONE_HOST)
  }
  Array<__half2> results(n);
  Array<unsigned> masks(n);
  pairs<<<1, n>>>(reinterpret_cast<__half2 *>(inputs.data), results, masks);
  const auto r = results.host();
  const auto m = masks.host();
  for (int i = 0; i < n; ++i) {
    const float a = __half2float(in[2 * i]), b = __half2float(in[2 * i + 1]), most = std::fmax(a, b);
    // (a + bi)(b + ai) + (most + most i) = ab - ab + most + (a² + b² + most) i
    const float low = std::fmax(a * b + 0.5f, 0.0f) + most / (std::fabs(a) + 1);
    const float high = std::fmax(a * b + 0.5f, 0.0f) + (a * a + b * b + most) / (std::fabs(b) + 1);
    MUST(std::fabs(__low2float(r[i]) - low) < 0.05f && std::fabs(__high2float(r[i]) - high) < 0.05f);
    MUST(m[i] == ((a > b ? 0xffffu : 0u) | (b > a ? 0xffff0000u : 0u)) ^ unsigned(a != b));
  }
  std::printf("%d operations on halves agree\n", kinds);
}
