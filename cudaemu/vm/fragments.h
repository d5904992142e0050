// The fragments that tensor instructions multiply, and their products.
//
// E elements of an operand lie in a register: 2 of 16 bits, 1 of tf32, 4 of 8 and of 6 bits, 8 of 4 bits; 1 of f64 in one of
// 64 bits.
//   A (16 × K)  register r, element e: row g + 8 (r % 2), column E t + e + 4 E (r / 2)
//   A (8 × K)   register r, element e: row g, column E t + e + 4 E r
//   B (K × 8)   register r, element e: row E t + e + 4 E r, column g
//   C, D (16 × 8)  element i: row g + 8 (i / 2), column 2 t + i % 2
#pragma once

#include <algorithm>
#include <cmath>

#include "half.h"
#include "vm.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace vm {

inline u32 elements_per_register(u32 element) {
  static const u32 count[] = {2, 2, 1, 4, 4, 4, 4, 8, 8, 1, 1, 4, 4, 8, 4};  // of bits, 32 are one element
  return count[element];
}

// The elements of a register of all lanes, which are 128 bytes: E per lane.
template <class T>
inline int read_register(const u8 *bytes, u32 element, T *out) {
  const auto words = reinterpret_cast<const u32 *>(bytes);
  switch (element) {
    case ELEMENT_F16:
      if constexpr (std::is_same<T, float>::value)
        widen_array<Format::F16, 64>(reinterpret_cast<const u16 *>(bytes), out);
      return 2;
    case ELEMENT_BF16:
      if constexpr (std::is_same<T, float>::value)
        widen_array<Format::BF16, 64>(reinterpret_cast<const u16 *>(bytes), out);
      return 2;
    case ELEMENT_TF32:  // the hardware does not look at the lowest 13 bits
      for (int lane = 0; lane < LANES; ++lane) out[lane] = T(as<float>(words[lane] & 0xffffe000u));
      return 1;
    case ELEMENT_S8:
      for (int n = 0; n < 4 * LANES; ++n) out[n] = T(s8(bytes[n]));
      return 4;
    case ELEMENT_E4M3:
    case ELEMENT_E5M2:
    case ELEMENT_E2M3:
    case ELEMENT_E3M2:
    case ELEMENT_E2M1_IN_8: {
      const float *const values = floats_of_8_bits(element);
      for (int n = 0; n < 4 * LANES; ++n) out[n] = T(values[bytes[n]]);
      return 4;
    }
    case ELEMENT_E2M1: {
      const float *const values = floats_of_8_bits(ELEMENT_E2M1_IN_8);
      for (int n = 0; n < 4 * LANES; ++n)
        out[2 * n] = T(values[bytes[n] << 2 & 60]), out[2 * n + 1] = T(values[bytes[n] >> 2 & 60]);
      return 8;
    }
    case ELEMENT_S4:
    case ELEMENT_U4:
      for (int n = 0; n < 4 * LANES; ++n) {
        const u8 two = bytes[n];
        out[2 * n] = T(element == ELEMENT_S4 ? s8(two << 4) >> 4 : two & 15);
        out[2 * n + 1] = T(element == ELEMENT_S4 ? s8(two) >> 4 : two >> 4);
      }
      return 8;
    case ELEMENT_B1:
      for (int lane = 0; lane < LANES; ++lane) out[lane] = T(s32(words[lane]));
      return 1;
    case ELEMENT_F64:
      for (int lane = 0; lane < LANES; ++lane) out[lane] = T(bits_of<double>(bytes + 8 * lane));
      return 1;
    default:
      for (int n = 0; n < 4 * LANES; ++n) out[n] = T(bytes[n]);
      return 4;
  }
}

constexpr int MOST_K = 64;

// A register of all lanes is an 8 × 4E block of A, row by row, or such a block of B transposed. WIDTH = 4E.
template <int WIDTH, class T>
inline void place_rows(const T *values, T (*to)[MOST_K], int column) {
  for (int g = 0; g < 8; ++g) memcpy(&to[g][column], values + g * WIDTH, WIDTH * sizeof(T));
}
template <int WIDTH, class T>
inline void place_columns(const T *values, T (*to)[8]) {
#if defined(__AVX2__)
  if constexpr (WIDTH == 8 && std::is_same<T, float>::value) {  // the usual case: 8 × 8
    __m256 r[8], t[8];
    for (int g = 0; g < 8; ++g) r[g] = _mm256_load_ps(values + 8 * g);
    for (int g = 0; g < 8; g += 2)
      t[g] = _mm256_unpacklo_ps(r[g], r[g + 1]), t[g + 1] = _mm256_unpackhi_ps(r[g], r[g + 1]);
    for (int h = 0; h < 8; h += 4)
      for (int k = 0; k < 2; ++k) {
        r[h + 2 * k] = _mm256_shuffle_ps(t[h + k], t[h + k + 2], 0x44);
        r[h + 2 * k + 1] = _mm256_shuffle_ps(t[h + k], t[h + k + 2], 0xee);
      }
    for (int k = 0; k < 4; ++k) {
      _mm256_storeu_ps(to[k], _mm256_permute2f128_ps(r[k], r[k + 4], 0x20));
      _mm256_storeu_ps(to[k + 4], _mm256_permute2f128_ps(r[k], r[k + 4], 0x31));
    }
    return;
  }
#endif
  for (int k = 0; k < WIDTH; ++k)
    for (int g = 0; g < 8; ++g) to[k][g] = values[g * WIDTH + k];
}

template <class F>
inline void by_width(int width, F f) {
  switch (width) {
    case 4:
      return f(std::integral_constant<int, 4>());
    case 8:
      return f(std::integral_constant<int, 8>());
    case 16:
      return f(std::integral_constant<int, 16>());
    default:
      return f(std::integral_constant<int, 32>());
  }
}

template <class T>
inline void read_a(const Warp &w, const u32 *slots, u32 count, u32 element, T (*a)[MOST_K], u32 rows = 16) {
  alignas(64) T values[8 * LANES];
  const u32 halves = rows / 8;
  for (u32 r = 0; r < count; ++r) {
    const int width = 4 * read_register(w.reg<u8>(slots[r]), element, values);
    by_width(width, [&](auto n) { place_rows<n>(values, a + 8 * (r % halves), width * (r / halves)); });
  }
}

template <class T>
inline void read_b(const Warp &w, const u32 *slots, u32 count, u32 element, T (*b)[8]) {
  alignas(64) T values[8 * LANES];
  for (u32 r = 0; r < count; ++r) {
    const int width = 4 * read_register(w.reg<u8>(slots[r]), element, values);
    by_width(width, [&](auto n) { place_columns<n>(values, b + width * r); });
  }
}

// The accumulators of a 16 × 8 tile: 4 registers of 32 bits, or 2 with a pair of halves each. Pairs are neighbours in a
// row.
template <class T>
inline void read_c(const Warp &w, const u32 *slots, bool halves, T (*c)[8], u32 rows = 16) {
  for (u32 half = 0; half < rows / 8; ++half) {
    T *to = c[8 * half];
    if (halves) {
      if constexpr (std::is_same<T, float>::value) widen_array<Format::F16, 64>(w.reg<u16>(slots[half]), to);
      continue;
    }
    const T *even = w.reg<T>(slots[2 * half]), *odd = w.reg<T>(slots[2 * half + 1]);
    for (int lane = 0; lane < LANES; ++lane) to[2 * lane] = even[lane], to[2 * lane + 1] = odd[lane];
  }
}

template <class T>
inline void write_d(Warp &w, const u32 *slots, bool halves, const T (*c)[8], u32 m, u32 rows = 16) {
  for (u32 half = 0; half < rows / 8; ++half) {
    const T *from = c[8 * half];
    if (halves) {
      if constexpr (std::is_same<T, float>::value) {
        alignas(64) u16 out[64];
        narrow_array<Format::F16, 64>(from, out);
        blend<2>(w.reg<u16>(slots[half]), out, m);
      }
      continue;
    }
    T *even = w.reg<T>(slots[2 * half]), *odd = w.reg<T>(slots[2 * half + 1]);
    if (m == ALL) {
      for (int lane = 0; lane < LANES; ++lane) even[lane] = from[2 * lane], odd[lane] = from[2 * lane + 1];
      continue;
    }
    for (int lane = 0; lane < LANES; ++lane) {
      even[lane] = m >> lane & 1 ? from[2 * lane] : even[lane];
      odd[lane] = m >> lane & 1 ? from[2 * lane + 1] : odd[lane];
    }
  }
}

typedef float Row __attribute__((vector_size(32), aligned(4)));  // 8 columns of an accumulator tile

// Products are exact in fp32, but for tf32 near its limits; one rounding for each sum in any case.
inline Row multiply_add(float a, Row b, Row c) {
#if defined(__FMA__)
  return Row(_mm256_fmadd_ps(_mm256_set1_ps(a), __m256(b), __m256(c)));
#else
  for (int n = 0; n < 8; ++n) c[n] = std::fma(a, b[n], c[n]);
  return c;
#endif
}

// c += a · b, 8 rows at a time so that their accumulators stay in registers.
inline void multiply(float (*c)[8], const float (*a)[MOST_K], const float (*b)[8], int depth, bool) {
  for (int first = 0; first < 16; first += 8) {
    Row sum[8];
    memcpy(sum, c[first], sizeof sum);
    for (int k = 0; k < depth; ++k) {
      Row row;
      memcpy(&row, b[k], sizeof row);
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) sum[r] = multiply_add(a[first + r][k], row, sum[r]);
    }
    memcpy(c[first], sum, sizeof sum);
  }
}

// Integers: the sum wraps, or stops at the largest.
inline void multiply(s32 (*c)[8], const s32 (*a)[MOST_K], const s32 (*b)[8], int depth, bool saturate) {
  for (int row = 0; row < 16; ++row)
    for (int n = 0; n < 8; ++n) {
      s64 sum = c[row][n];
      for (int k = 0; k < depth; ++k) sum += s64(a[row][k]) * b[k][n];
      c[row][n] = s32(saturate ? std::min<s64>(std::max<s64>(sum, INT32_MIN), INT32_MAX) : sum);
    }
}

inline void multiply(double (*c)[8], const double (*a)[MOST_K], const double (*b)[8], int depth, bool) {
  for (int row = 0; row < 16; ++row)
    for (int n = 0; n < 8; ++n)
      for (int k = 0; k < depth; ++k) c[row][n] = std::fma(a[row][k], b[k][n], c[row][n]);
}

// Bits, 32 at a time: how many are set in both, or in one of them.
inline void count_bits(s32 (*c)[8], const s32 (*a)[MOST_K], const s32 (*b)[8], int depth, bool either) {
  for (int row = 0; row < 16; ++row)
    for (int n = 0; n < 8; ++n)
      for (int k = 0; k < depth; ++k)
        c[row][n] += __builtin_popcount(either ? a[row][k] ^ b[k][n] : a[row][k] & b[k][n]);
}

}  // namespace vm
