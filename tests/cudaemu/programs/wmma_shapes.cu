// Tensor-core fragments of every shape and type that nvcuda::wmma has: products held against the host's.
// Run: cudaemu wmma_shapes.cu
// Prints: 10 shapes and types of wmma agree
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <cstring>

#include "check.h"

using namespace nvcuda;

template <typename A, typename C, typename Store, int M, int N, int K, typename LayoutB>
__global__ void product(const Store *a, const Store *b, C *c) {
  wmma::fragment<wmma::matrix_a, M, N, K, A, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, M, N, K, A, LayoutB> right;
  wmma::fragment<wmma::accumulator, M, N, K, C> sum;
  wmma::fill_fragment(sum, C(1));
  wmma::load_matrix_sync(left, a, K);
  wmma::load_matrix_sync(right, b, std::is_same_v<LayoutB, wmma::col_major> ? K : N);
  wmma::mma_sync(sum, left, right, sum);
  for (int i = 0; i < sum.num_elements; ++i) sum.x[i] = sum.x[i] + sum.x[i];
  wmma::store_matrix_sync(c, sum, N, wmma::mem_row_major);
}

template <typename A, typename C, typename Store, int M, int N, int K, typename LayoutB = wmma::row_major>
void check() {
  const bool column = std::is_same_v<LayoutB, wmma::col_major>;
  std::vector<Store> a(M * K), b(K * N);
  Random random;
  for (Store &x : a) x = Store(float(random.below(9)) - (std::is_same_v<Store, unsigned char> ? 0 : 4));
  for (Store &x : b) x = Store(float(random.below(9)) - (std::is_same_v<Store, unsigned char> ? 0 : 4));
  Array<Store> left(a), right(b);
  Array<C> out(M * N);
  product<A, C, Store, M, N, K, LayoutB><<<1, 32>>>(left, right, out);
  const auto got = out.host();
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) {
      double sum = 1;
      for (int k = 0; k < K; ++k) sum += double(float(a[m * K + k])) * double(float(b[column ? n * K + k : k * N + n]));
      if (double(float(got[m * N + n])) != 2 * sum)
        std::printf("%dx%dx%d: [%d][%d] is %g, not %g\n", M, N, K, m, n, double(float(got[m * N + n])), 2 * sum),
            std::exit(1);
    }
}

// One bit per element: the population count of the exclusive or, and of the and.
template <int WHICH>
__global__ void bits(const unsigned *a, const unsigned *b, int *c) {
  using namespace wmma::experimental;
  wmma::fragment<wmma::matrix_a, 8, 8, 128, precision::b1, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 8, 8, 128, precision::b1, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 8, 8, 128, int> sum;
  wmma::fill_fragment(sum, 0);
  wmma::load_matrix_sync(left, a, 128);
  wmma::load_matrix_sync(right, b, 128);
  wmma::bmma_sync(sum, left, right, sum, WHICH ? bmmaBitOpAND : bmmaBitOpXOR, bmmaAccumulateOpPOPC);
  wmma::store_matrix_sync(c, sum, 8, wmma::mem_row_major);
}

template <int WHICH>
void check_bits() {
  std::vector<unsigned> a(32), b(32);
  Random random;
  for (unsigned *each : {a.data(), b.data()})
    for (int i = 0; i < 32; ++i) each[i] = random.next() * 2654435761u;
  Array<unsigned> left(a), right(b);
  Array<int> out(64);
  bits<WHICH><<<1, 32>>>(left, right, out);
  const auto got = out.host();
  for (int m = 0; m < 8; ++m)
    for (int n = 0; n < 8; ++n) {
      int sum = 0;
      for (int w = 0; w < 4; ++w)
        sum += __builtin_popcount(WHICH ? a[m * 4 + w] & b[n * 4 + w] : a[m * 4 + w] ^ b[n * 4 + w]);
      MUST(got[m * 8 + n] == sum);
    }
}

int main() {
  check<__half, float, __half, 16, 16, 16>();
  check<__half, __half, __half, 32, 8, 16, wmma::col_major>();
  check<__half, float, __half, 8, 32, 16>();
  check<__nv_bfloat16, float, __nv_bfloat16, 32, 8, 16>();
  check<wmma::precision::tf32, float, float, 16, 16, 8, wmma::col_major>();
  check<double, double, double, 8, 8, 4>();
  check<signed char, int, signed char, 16, 16, 16>();
  check<unsigned char, int, unsigned char, 8, 32, 16, wmma::col_major>();
  check_bits<0>();
  check_bits<1>();
  std::printf("10 shapes and types of wmma agree\n");
}
