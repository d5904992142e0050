// Heat in a plate: five points, two arrays in turn, a pyramid of steps in shared memory per launch (time tiles).
// Run: cudaemu stencils.cu
// Prints: 48 x 48 points after 6 steps agree
#include "check.h"

constexpr int TILE = 16, STEPS = 2, INNER = TILE - 2 * STEPS;

__host__ __device__ float next(float centre, float left, float right, float above, float below) {
  return centre + 0.125f * (left + right + above + below - 4 * centre);
}

__global__ void steps(const float *in, float *out, int n) {
  __shared__ float now[TILE][TILE], then[TILE][TILE];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int x = int(blockIdx.x) * INNER + tx - STEPS, y = int(blockIdx.y) * INNER + ty - STEPS;
  const bool inside = x >= 0 && x < n && y >= 0 && y < n;
  now[ty][tx] = inside ? in[y * n + x] : 0;
  __syncthreads();
  bool valid = inside;
  for (int s = 1; s <= STEPS; ++s) {
    valid = tx >= s && tx < TILE - s && ty >= s && ty < TILE - s && inside;
    if (valid) {
      const bool edge = x == 0 || y == 0 || x == n - 1 || y == n - 1;
      const float c = now[ty][tx];
      then[ty][tx] = edge ? c : next(c, now[ty][tx - 1], now[ty][tx + 1], now[ty - 1][tx], now[ty + 1][tx]);
    }
    __syncthreads();
    if (valid) now[ty][tx] = then[ty][tx];
    __syncthreads();
  }
  if (valid) out[y * n + x] = now[ty][tx];
}

int main() {
  const int n = 48, rounds = 3;
  std::vector<float> in(n * n), old;
  Random random;
  for (float &x : in) x = random.unit() * 100;
  Array<float> a(in), b(n * n);
  float *from = a, *to = b;
  for (int r = 0; r < rounds; ++r, std::swap(from, to))
    steps<<<dim3(n / INNER, n / INNER), dim3(TILE, TILE)>>>(from, to, n);
  for (int s = 0; s < rounds * STEPS; ++s) {
    old = in;
    for (int y = 1; y < n - 1; ++y)
      for (int x = 1; x < n - 1; ++x)
        in[y * n + x] =
            next(old[y * n + x], old[y * n + x - 1], old[y * n + x + 1], old[(y - 1) * n + x], old[(y + 1) * n + x]);
  }
  std::vector<float> got(n * n);
  CUDA(cudaMemcpy(got.data(), from, n * n * sizeof(float), cudaMemcpyDeviceToHost));
  MUST(difference(got, in) < 1e-5);
  std::printf("%d x %d points after %d steps agree\n", n, n, rounds * STEPS);
}
