// 16-bit floating formats as arrays: exact widening to float, narrowing with one rounding (to nearest, ties to even).
#pragma once

#include <cmath>

#include "vm.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace vm {

enum class Format { F16, BF16 };
constexpr u16 HALF_NAN = 0x7fff;  // what the hardware gives, in both formats

inline float widen_half(u16 h) {
  const u32 magnitude = h & 0x7fffu, sign = u32(h & 0x8000u) << 16;
  // Multiplying by 2^112 moves the exponent and makes subnormals normal, exactly.
  const float scaled = as<float>(magnitude << 13) * 0x1p112f;
  const u32 special = magnitude << 13 | 0x7f800000u;
  return as<float>((magnitude >= 0x7c00u ? special : as<u32>(scaled)) | sign);
}

inline u16 narrow_half(float f) {
  const u32 bits = as<u32>(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  const u32 odd = magnitude >> 13 & 1;
  const u32 normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
  // Adding 0.5 lines the float's last bit up with the last bit of a subnormal half: the addition rounds.
  const u32 subnormal = as<u32>(as<float>(magnitude) + 0.5f) - 0x3f000000u;
  u32 out = magnitude < 0x38800000u ? subnormal : normal;
  out = magnitude >= 0x477ff000u ? 0x7c00u : out;
  out = magnitude > 0x7f800000u ? u32(HALF_NAN) : out | sign;
  return u16(out);
}

inline float widen_bf16(u16 h) { return as<float>(u32(h) << 16); }

inline u16 narrow_bf16(float f) {
  const u32 bits = as<u32>(f);
  const u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return u16((bits & 0x7fffffffu) > 0x7f800000u ? u32(HALF_NAN) : rounded);
}

// A float that rounds to 16 bits as the double would: the bits that do not fit are or-ed into the last one.
inline float odd_float(double d) {
  const u64 bits = as<u64>(d);
  const u64 sticky = (bits & 0x1fffffffull) != 0;
  return float(as<double>((bits & ~0x1fffffffull) | sticky << 29));
}

// a·b + c for 16-bit a, b, c: the product is exact, the sum is rounded to odd, so that one rounding to 16 bits follows.
inline float odd_fma(float a, float b, float c) {
  const double p = double(a) * b, s = p + c, t = s - p, e = (p - (s - t)) + (c - t);
  const u64 bits = as<u64>(s);
  const bool adjust = e != 0 && !(bits & 1);  // false for NaN and infinity: e is NaN there, handled by the caller's s
  const u64 nudged = bits + ((e > 0) == (s > 0) ? 1 : -1);
  return odd_float(adjust && s - s == 0 ? as<double>(nudged) : s);
}

const float *floats_of_8_bits(u32 element);  // of each byte: of floats of 8 bits and less, which lie in one

template <Format F>
inline float widen(u16 h) {
  return F == Format::F16 ? widen_half(h) : widen_bf16(h);
}
template <Format F>
inline u16 narrow(float f) {
  return F == Format::F16 ? narrow_half(f) : narrow_bf16(f);
}

// N is a multiple of 8.
template <Format F, int N>
SHARED_CODE inline void widen_array(const u16 *from, float *to) {
#if defined(__F16C__)
  if constexpr (F == Format::F16) {
    for (int n = 0; n < N; n += 8)
      _mm256_storeu_ps(to + n, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + n))));
    return;
  }
#endif
  INDEPENDENT
  for (int n = 0; n < N; ++n) to[n] = widen<F>(from[n]);
}

template <Format F, int N>
SHARED_CODE inline void narrow_array(const float *from, u16 *to) {
#if defined(__F16C__)
  if constexpr (F == Format::F16) {
    for (int n = 0; n < N; n += 8) {
      const __m256 x = _mm256_loadu_ps(from + n);
      __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
      const __m128i magnitude = _mm_and_si128(h, _mm_set1_epi16(0x7fff));
      const __m128i is_nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
      h = _mm_blendv_epi8(h, _mm_set1_epi16(HALF_NAN), is_nan);
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to + n), h);
    }
    return;
  }
#endif
  INDEPENDENT
  for (int n = 0; n < N; ++n) to[n] = narrow<F>(from[n]);
}

}  // namespace vm
