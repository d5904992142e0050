// Arithmetic and functions of __nv_bfloat16 and its pairs, against float rounded once.
// Run: cudaemu --arch 9.0 bfloat16_math.cu
// Prints: 22 operations on bfloat16 agree
#include <cuda_bf16.h>

#include "check.h"

// clang-format off
#define OPERATIONS(F)                                                                                       \
  F(x + y, a + b) F(x - y, a - b) F(x *y, a *b) F(x / y, a / b) F(__hfma(x, y, x), std::fma(a, b, a))       \
  F(-x, -a) F(__habs(x), std::fabs(a)) F(hsqrt(__habs(x)), std::sqrt(std::fabs(a))) F(hexp(x), std::exp(a)) \
  F(hlog(__habs(x)), std::log(std::fabs(a))) F(hsin(x), std::sin(a)) F(hcos(x), std::cos(a))                \
  F(htanh(x), std::tanh(a)) F(hrcp(y), 1 / b) F(__hmax(x, y), std::fmax(a, b))                              \
  F(__hmin(x, y), std::fmin(a, b)) F(hfloor(x), std::floor(a)) F(hrint(x), std::rint(a))                    \
  F(__int2bfloat16_rn(__bfloat162int_rz(x)), std::trunc(a)) F(x > y ? x : y, a > b ? a : b)                 \
  F(__hfma_relu(x, y, y), std::fmax(0.0f, std::fma(a, b, b)))                                               \
  F(__high2bfloat16(__hmul2(__halves2bfloat162(y, x), __halves2bfloat162(x, y))), a *b)
// clang-format on

#define ONE_DEVICE(there, here) out[at++ * n + i] = there;
__global__ void device(const __nv_bfloat16 *in, __nv_bfloat16 *out, int n) {
  const int i = threadIdx.x;
  const __nv_bfloat16 x = in[2 * i], y = in[2 * i + 1];
  int at = 0;
  OPERATIONS(ONE_DEVICE)
}

int main() {
  const int n = 128, kinds = 22;
  std::vector<__nv_bfloat16> in(2 * n);
  Random random;
  for (auto &x : in) x = __float2bfloat16((random.unit() - 0.5f) * 8);
  Array<__nv_bfloat16> inputs(in), out(kinds * n);
  device<<<1, n>>>(inputs, out, n);
  const auto got = out.host();
#define ONE_HOST(there, here)                                                                                        \
  {                                                                                                                  \
    const float right = here, off = std::fabs(__bfloat162float(got[at++ * n + i]) - right);                          \
    if (!(off <= std::fabs(right) * 0.008f + 1e-6f)) return std::printf("%s of %g, %g is wrong\n", #there, a, b), 1; \
  }
  for (int i = 0; i < n; ++i) {
    const float a = __bfloat162float(in[2 * i]), b = __bfloat162float(in[2 * i + 1]);
    int at = 0;
    OPERATIONS(ONE_HOST)
  }
  std::printf("%d operations on bfloat16 agree\n", kinds);
}
