// cuda::std in kernels: complex numbers, tuples, arrays, spans, optionals, variants, bit operations, durations, mdspan.
// Run: cudaemu --flags=-std=c++20 libcu_std.cu
// Prints: 10 facilities of cuda::std agree
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/chrono>
#include <cuda/std/complex>
#include <cuda/std/expected>
#include <cuda/std/limits>
#include <cuda/std/mdspan>
#include <cuda/std/numeric>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/utility>
#include <cuda/std/variant>

#include "check.h"

namespace std_ = cuda::std;

__host__ __device__ std_::optional<int> half_of(int x) { return x % 2 ? std_::optional<int>() : x / 2; }
__host__ __device__ std_::expected<int, float> root_of(int x) {
  for (int r = 0; r * r <= x; ++r)
    if (r * r == x) return r;
  return std_::unexpected(0.5f);
}

// What each thread computes, on the device and on the host alike.
__host__ __device__ std_::array<double, 10> facilities(int i) {
  std_::array<double, 10> out{};
  std_::complex<double> z(1 + i, 2);
  z = std_::exp(std_::complex<double>(0, 0.1 * i)) * z / std_::complex<double>(0.5, -1) + std_::conj(z);
  out[0] = std_::abs(z) + std_::arg(z);
  const auto [low, high] = std_::make_tuple(i * 2, i * 3.5);
  out[1] = low + high;
  std_::array<int, 8> values{};
  std_::iota(values.begin(), values.end(), i);
  out[2] = std_::accumulate(values.begin(), values.end(), 0) + values.back();
  std_::span<int> last = std_::span<int>(values).last(3);
  out[3] = last[0] + last.size();
  out[4] = half_of(i).value_or(-1) + (half_of(i) ? 0.5 : 0);
  std_::variant<int, double> either;
  if (i % 3)
    either = 2.5 * i;
  else
    either = i;
  out[5] = std_::visit([](auto x) { return sizeof x * 1.0 + x; }, either);
  out[6] = std_::popcount(unsigned(i * 77)) + std_::countl_zero(unsigned(i + 1)) +
           std_::bit_cast<unsigned>(float(i)) % 1000 + std_::bit_ceil(unsigned(i + 1)) + std_::rotl(unsigned(i), 5);
  out[7] = std_::chrono::duration_cast<std_::chrono::milliseconds>(
               std_::chrono::seconds(i) + std_::chrono::microseconds(2500))
               .count();
  int cells[12];
  std_::mdspan<int, std_::extents<int, 3, std_::dynamic_extent>> matrix(cells, 4);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) matrix(r, c) = r * 10 + c + i;
  out[8] = cells[7] + matrix.extent(1) + std_::numeric_limits<short>::max();
  out[9] = root_of(i).has_value() ? root_of(i).value() : root_of(i).error();
  return out;
}

__global__ void device(std_::array<double, 10> *out) { out[threadIdx.x] = facilities(threadIdx.x); }

int main() {
  Array<std_::array<double, 10>> out(64);
  device<<<1, 64>>>(out);
  const auto got = out.host();
  for (int i = 0; i < 64; ++i) {
    const auto expected = facilities(i);
    for (int f = 0; f < 10; ++f)
      if (!(std::fabs(got[i][f] - expected[f]) <= 1e-13 * std::fabs(expected[f])))
        return std::printf("facility %d of %d: %.17g, not %.17g\n", f, i, got[i][f], expected[f]), 1;
  }
  std::printf("10 facilities of cuda::std agree\n");
}
