// Systems of three diagonals, one per block: parallel cyclic reduction in shared memory, in double precision.
// Run: cudaemu tridiagonal.cu
// Prints: 6 systems of 100 equations solved
#include "check.h"

__global__ void solve(const double *lower, const double *diagonal, const double *upper, const double *right, double *x,
                      int n) {
  extern __shared__ double room[];
  double *const a = room, *const b = a + n, *const c = b + n, *const d = c + n;
  const int i = threadIdx.x, at = blockIdx.x * n + i;
  if (i < n) a[i] = i ? lower[at] : 0, b[i] = diagonal[at], c[i] = i < n - 1 ? upper[at] : 0, d[i] = right[at];
  __syncthreads();
  for (int step = 1; step < n; step *= 2) {
    double na = 0, nb = 0, nc = 0, nd = 0;
    if (i < n) {
      const double k = i >= step ? a[i] / b[i - step] : 0, l = i + step < n ? c[i] / b[i + step] : 0;
      nb = b[i], nd = d[i];
      if (i >= step) na = -a[i - step] * k, nb -= c[i - step] * k, nd -= d[i - step] * k;
      if (i + step < n) nc = -c[i + step] * l, nb -= a[i + step] * l, nd -= d[i + step] * l;
    }
    __syncthreads();
    if (i < n) a[i] = na, b[i] = nb, c[i] = nc, d[i] = nd;
    __syncthreads();
  }
  if (i < n) x[at] = d[i] / b[i];
}

int main() {
  const int systems = 6, n = 100, all = systems * n;
  std::vector<double> a(all), b(all), c(all), d(all);
  Random random;
  for (int i = 0; i < all; ++i)
    a[i] = random.unit(), c[i] = random.unit(), b[i] = 2.5 + random.unit(), d[i] = random.unit() - 0.5;
  Array<double> lower(a), diagonal(b), upper(c), right(d), x(all);
  solve<<<systems, 128, 4 * n * sizeof(double)>>>(lower, diagonal, upper, right, x, n);
  const auto got = x.host();
  for (int i = 0; i < all; ++i) {
    double sum = b[i] * got[i];
    if (i % n) sum += a[i] * got[i - 1];
    if (i % n < n - 1) sum += c[i] * got[i + 1];
    MUST(std::fabs(sum - d[i]) < 1e-13);
  }
  std::printf("%d systems of %d equations solved\n", systems, n);
}
