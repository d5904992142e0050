// Gravitation of bodies: all pairs through tiles of float4 in dynamic shared memory, rsqrtf, two steps of leapfrog.
// Run: cudaemu n_body.cu
// Prints: 256 bodies after 2 steps agree
#include "check.h"

constexpr float SOFTENING = 0.01f, DT = 0.01f;

__global__ void step(const float4 *now, float4 *next, float3 *velocity, int n) {
  extern __shared__ float4 tile[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float4 me = now[i];
  float3 pull = {0, 0, 0};
  for (int first = 0; first < n; first += blockDim.x) {
    tile[threadIdx.x] = now[first + threadIdx.x];
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < int(blockDim.x); ++k) {
      const float x = tile[k].x - me.x, y = tile[k].y - me.y, z = tile[k].z - me.z;
      const float inverse = rsqrtf(x * x + y * y + z * z + SOFTENING), weight = tile[k].w * inverse * inverse * inverse;
      pull.x += x * weight, pull.y += y * weight, pull.z += z * weight;
    }
    __syncthreads();
  }
  float3 v = velocity[i];
  v.x += pull.x * DT, v.y += pull.y * DT, v.z += pull.z * DT;
  velocity[i] = v;
  next[i] = make_float4(me.x + v.x * DT, me.y + v.y * DT, me.z + v.z * DT, me.w);
}

int main() {
  const int n = 256;
  std::vector<float4> bodies(n);
  Random random;
  for (float4 &b : bodies) b = make_float4(random.unit(), random.unit(), random.unit(), 0.5f + random.unit());
  Array<float4> a(bodies), b(n);
  Array<float3> velocity(std::vector<float3>(n, float3{0, 0, 0}));
  step<<<n / 64, 64, 64 * sizeof(float4)>>>(a, b, velocity, n);
  step<<<n / 64, 64, 64 * sizeof(float4)>>>(b, a, velocity, n);
  std::vector<double> x(3 * n), v(3 * n, 0), old;
  for (int i = 0; i < n; ++i) x[3 * i] = bodies[i].x, x[3 * i + 1] = bodies[i].y, x[3 * i + 2] = bodies[i].z;
  for (int round = 0; round < 2; ++round) {
    old = x;
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) {
        double d[3], square = SOFTENING;
        for (int k = 0; k < 3; ++k) d[k] = old[3 * j + k] - old[3 * i + k], square += d[k] * d[k];
        for (int k = 0; k < 3; ++k) v[3 * i + k] += DT * d[k] * bodies[j].w / (square * std::sqrt(square));
      }
    for (int i = 0; i < 3 * n; ++i) x[i] += DT * v[i];
  }
  const auto got = a.host();
  std::vector<float> ours, theirs;
  for (int i = 0; i < n; ++i)
    for (int k = 0; k < 3; ++k) ours.push_back((&got[i].x)[k]), theirs.push_back(float(x[3 * i + k]));
  MUST(difference(ours, theirs) < 2e-6);
  std::printf("%d bodies after 2 steps agree\n", n);
}
