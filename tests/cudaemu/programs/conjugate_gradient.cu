// Conjugate gradients for a Poisson problem in one cooperative launch: dot products by double atomics, grid.sync()
// between.
// Run: cudaemu conjugate_gradient.cu
// Prints: 256 unknowns, residual below 1e-10
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include "check.h"

namespace cg = cooperative_groups;
constexpr int N = 16;  // N x N unknowns

__device__ double row(const double *v, int i) {
  const int x = i % N, y = i / N;
  double sum = 4.0 * v[i];
  if (x) sum -= v[i - 1];
  if (x < N - 1) sum -= v[i + 1];
  if (y) sum -= v[i - N];
  if (y < N - 1) sum -= v[i + N];
  return sum;
}

__device__ void dot(const cg::grid_group &grid, double product, double *to) {
  const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  const double sum = cg::reduce(warp, product, cg::plus<double>());
  if (warp.thread_rank() == 0) atomicAdd(to, sum);
  grid.sync();
}

// `dots`: zeros, of which each iteration uses two.
__global__ void solve(const double *b, double *x, double *p, double *dots, int *iterations, int most) {
  const auto grid = cg::this_grid();
  const int i = grid.thread_rank();
  double r = b[i], xi = 0;
  p[i] = r;
  dot(grid, r * r, dots);
  double rr = dots[0];
  int k = 0;
  for (; k < most && rr > 1e-24; ++k) {
    const double q = row(p, i);
    dot(grid, p[i] * q, dots + 2 * k + 1);
    const double alpha = rr / dots[2 * k + 1];
    xi += alpha * p[i], r -= alpha * q;
    dot(grid, r * r, dots + 2 * k + 2);
    const double next = dots[2 * k + 2];
    p[i] = r + next / rr * p[i];
    rr = next;
    grid.sync();
  }
  x[i] = xi;
  if (i == 0) *iterations = k;
}

int main() {
  const int n = N * N, most = 100;
  std::vector<double> right(n);
  Random random;
  for (double &each : right) each = random.unit() - 0.5;
  Array<double> b(right), x(n), p(n), dots(std::vector<double>(2 * most + 2, 0));
  Array<int> iterations(1);
  double *bb = b, *xx = x, *pp = p, *dd = dots;
  int *it = iterations, limit = most, blocks;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, solve, 64, 0));
  MUST(blocks >= 1);
  void *arguments[] = {&bb, &xx, &pp, &dd, &it, &limit};
  CUDA(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(solve), n / 64, 64, arguments, 0, nullptr));
  const auto got = x.host();
  double worst = 0;
  for (int i = 0; i < n; ++i) {
    const int cx = i % N, cy = i / N;
    double sum = 4 * got[i] - right[i];
    sum -=
        (cx ? got[i - 1] : 0) + (cx < N - 1 ? got[i + 1] : 0) + (cy ? got[i - N] : 0) + (cy < N - 1 ? got[i + N] : 0);
    worst = std::fmax(worst, std::fabs(sum));
  }
  MUST(iterations.host()[0] < most && worst < 1e-10);
  std::printf("%d unknowns, residual below 1e-10\n", n);
}
