// Numbers of 8, 6 and 4 bits: every code to float and back, and rounding to the nearest code, ties to even.
// Run: cudaemu fp8_types.cu
// Prints: 256 e4m3, 256 e5m2, 64 e2m3, 64 e3m2 and 16 e2m1 codes agree
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

#include "check.h"

// The value of a code with so many bits of exponent and mantissa, by the definition of the format.
float value(int code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1, sign = code >> (exponent_bits + mantissa_bits) & 1;
  const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = code & ((1 << mantissa_bits) - 1);
  const float magnitude = exponent ? std::ldexp(1 + std::ldexp(float(mantissa), -mantissa_bits), exponent - bias)
                                   : std::ldexp(float(mantissa), 1 - bias - mantissa_bits);
  return sign ? -magnitude : magnitude;
}

template <typename Type>
__global__ void there_and_back(float *values, unsigned char *codes, const float *between, unsigned char *rounded) {
  const int code = threadIdx.x;
  Type x;
  x.__x = static_cast<unsigned char>(code);
  values[code] = float(x);
  codes[code] = Type(float(x)).__x;
  rounded[code] = Type(between[code]).__x;
}

template <typename Type>
void check(int exponent_bits, int mantissa_bits, int finite) {
  const int codes = 1 << (1 + exponent_bits + mantissa_bits);
  std::vector<float> between(codes);
  Random random;
  for (float &x : between) x = (random.unit() - 0.5f) * 1.9f * value(finite, exponent_bits, mantissa_bits);
  for (int k = 0; k + 1 < finite && k < codes / 4; ++k)  // ties
    between[k] = (value(k, exponent_bits, mantissa_bits) + value(k + 1, exponent_bits, mantissa_bits)) / 2;
  Array<float> values(codes), inputs(between);
  Array<unsigned char> back(codes), rounded(codes);
  there_and_back<Type><<<1, codes>>>(values, back, inputs, rounded);
  const auto v = values.host();
  const auto b = back.host();
  const auto r = rounded.host();
  for (int code = 0; code < codes; ++code) {
    const int magnitude = code & (codes / 2 - 1);
    if (magnitude <= finite) MUST(v[code] == value(code, exponent_bits, mantissa_bits) && b[code] == code);
    float nearest = INFINITY;
    int best = 0;
    for (int k = 0; k <= finite; ++k) {
      const float off = std::fabs(value(k, exponent_bits, mantissa_bits) - std::fabs(between[code]));
      if (off < nearest || (off == nearest && k % 2 == 0)) nearest = off, best = k;
    }
    MUST((r[code] & (codes / 2 - 1)) == best);
  }
}

int main() {
  check<__nv_fp8_e4m3>(4, 3, 0x7e);
  check<__nv_fp8_e5m2>(5, 2, 0x7b);
  check<__nv_fp6_e2m3>(2, 3, 0x1f);
  check<__nv_fp6_e3m2>(3, 2, 0x1f);
  check<__nv_fp4_e2m1>(2, 1, 7);
  std::printf("256 e4m3, 256 e5m2, 64 e2m3, 64 e3m2 and 16 e2m1 codes agree\n");
}
