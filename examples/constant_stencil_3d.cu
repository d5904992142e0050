// A seven-point stencil on a 3-D grid: each cell becomes a weighted mean of itself and its six neighbours.
//
// The weights lie in constant memory: all lanes of a warp read the same one at the same time, which is what its cache
// is for. Blocks and grid have three dimensions, as the data has.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

__constant__ float weights[7];  // itself, then the neighbours along x, y, z

__global__ void stencil(const float *in, float *out, int nx, int ny, int nz) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
            z = blockIdx.z * blockDim.z + threadIdx.z;
  if (x >= nx || y >= ny || z >= nz) return;
  const int at = (z * ny + y) * nx + x;
  float value = in[at];
  if (x > 0 && x < nx - 1 && y > 0 && y < ny - 1 && z > 0 && z < nz - 1)  // the hull stays as it is
    value = weights[0] * in[at] + weights[1] * in[at - 1] + weights[2] * in[at + 1] + weights[3] * in[at - nx] +
            weights[4] * in[at + nx] + weights[5] * in[at - nx * ny] + weights[6] * in[at + nx * ny];
  out[at] = value;
}

int main() {
  const int nx = 20, ny = 13, nz = 9, cells = nx * ny * nz;
  const float host_weights[7] = {0.4f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f};
  std::vector<float> now(cells), next(cells), result(cells);
  for (int i = 0; i < cells; ++i) now[i] = float(i % 31);
  float *a, *b;
  cudaMalloc(&a, cells * sizeof(float));
  cudaMalloc(&b, cells * sizeof(float));
  cudaMemcpy(a, now.data(), cells * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpyToSymbol(weights, host_weights, sizeof host_weights);
  const dim3 block(8, 4, 4), grid((nx + 7) / 8, (ny + 3) / 4, (nz + 3) / 4);
  for (int step = 0; step < 4; ++step) {  // each launch reads what the one before has written
    stencil<<<grid, block>>>(a, b, nx, ny, nz);
    std::swap(a, b);
    for (int z = 0; z < nz; ++z)
      for (int y = 0; y < ny; ++y)
        for (int x = 0; x < nx; ++x) {
          const int at = (z * ny + y) * nx + x;
          const bool hull = !x || !y || !z || x == nx - 1 || y == ny - 1 || z == nz - 1;
          next[at] = hull ? now[at]
                          : 0.4f * now[at] + 0.1f * (now[at - 1] + now[at + 1] + now[at - nx] + now[at + nx] +
                                                     now[at - nx * ny] + now[at + nx * ny]);
        }
    std::swap(now, next);
  }
  double worst = cudaMemcpy(result.data(), a, cells * sizeof(float), cudaMemcpyDeviceToHost);
  for (int i = 0; i < cells; ++i) worst = std::max(worst, double(std::fabs(result[i] - now[i])));
  printf(worst < 1e-4 ? "PASS\n" : "FAIL: off by %g\n", worst);
  cudaFree(a);
  cudaFree(b);
  return !(worst < 1e-4);
}
