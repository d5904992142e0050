// A flow by the lattice Boltzmann method: nine directions, an array for each, collision and streaming in one kernel.
// Run: cudaemu lattice_boltzmann.cu
// Prints: 32 x 16 cells after 5 steps agree, mass kept
#include "check.h"

constexpr int W = 32, H = 16, Q = 9;
struct Velocity {
  int x, y, opposite;
  float weight;
};
#define VELOCITIES                                                                                                  \
  {{0, 0, 0, 4.0f / 9},  {1, 0, 3, 1.0f / 9},   {0, 1, 4, 1.0f / 9},    {-1, 0, 1, 1.0f / 9}, {0, -1, 2, 1.0f / 9}, \
   {1, 1, 7, 1.0f / 36}, {-1, 1, 8, 1.0f / 36}, {-1, -1, 5, 1.0f / 36}, {1, -1, 6, 1.0f / 36}}
__constant__ Velocity velocities[Q] = VELOCITIES;
const Velocity host_velocities[Q] = VELOCITIES;

// One cell: pulls from its neighbours (walls above and below bounce back), collides, writes.
__host__ __device__ void cell(const Velocity *v, const float *in, float *out, int x, int y) {
  float f[Q], density = 0, ux = 0, uy = 0;
  for (int q = 0; q < Q; ++q) {
    const int from_x = (x - v[q].x + W) % W, from_y = y - v[q].y;
    f[q] = from_y < 0 || from_y >= H ? in[(v[q].opposite * H + y) * W + x] : in[(q * H + from_y) * W + from_x];
    density += f[q], ux += f[q] * v[q].x, uy += f[q] * v[q].y;
  }
  ux /= density, uy /= density;
  for (int q = 0; q < Q; ++q) {
    const float along = ux * v[q].x + uy * v[q].y;
    const float rest = v[q].weight * density * (1 + 3 * along + 4.5f * along * along - 1.5f * (ux * ux + uy * uy));
    out[(q * H + y) * W + x] = f[q] + 0.8f * (rest - f[q]);
  }
}

__global__ void step(const float *__restrict__ in, float *__restrict__ out) {
  cell(velocities, in, out, blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y);
}

int main() {
  std::vector<float> a(Q * W * H), b(Q * W * H);
  Random random;
  double mass = 0, after = 0;
  for (int i = 0; i < Q * W * H; ++i) mass += a[i] = host_velocities[i / (W * H)].weight * (1 + 0.1f * random.unit());
  Array<float> here(a), there(Q * W * H);
  float *from = here, *to = there;
  for (int s = 0; s < 5; ++s, std::swap(from, to)) {
    step<<<dim3(1, H), W>>>(from, to);
    for (int i = 0; i < W * H; ++i) cell(host_velocities, a.data(), b.data(), i % W, i / W);
    a.swap(b);
  }
  std::vector<float> got(Q * W * H);
  CUDA(cudaMemcpy(got.data(), from, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (float f : got) after += f;
  MUST(difference(got, a) < 1e-6 && std::fabs(after - mass) < 1e-3);
  std::printf("%d x %d cells after 5 steps agree, mass kept\n", W, H);
}
