// A separable convolution of an image: rows, then columns, with a halo in shared memory and weights in constant memory.
// Run: cudaemu separable_convolution.cu
// Prints: 96 x 40 pixels convolved with 9 x 9
#include "check.h"

constexpr int R = 4, TX = 32, TY = 8;
__constant__ float weights[2 * R + 1];

template <bool ROWS>
__global__ void convolve(const float *in, float *out, int w, int h) {
  __shared__ float tile[ROWS ? TY : TY + 2 * R][ROWS ? TX + 2 * R : TX + 1];
  const int x0 = blockIdx.x * TX, y0 = blockIdx.y * TY, tx = threadIdx.x, ty = threadIdx.y;
  for (int y = ty; y < (ROWS ? TY : TY + 2 * R); y += TY)
    for (int x = tx; x < (ROWS ? TX + 2 * R : TX); x += TX) {
      const int from_x = x0 + x - (ROWS ? R : 0), from_y = y0 + y - (ROWS ? 0 : R);
      const bool inside = from_x >= 0 && from_x < w && from_y >= 0 && from_y < h;
      tile[y][x] = inside ? in[from_y * w + from_x] : 0;
    }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int k = -R; k <= R; ++k) sum += weights[k + R] * (ROWS ? tile[ty][tx + R + k] : tile[ty + R + k][tx]);
  if (x0 + tx < w && y0 + ty < h) out[(y0 + ty) * w + x0 + tx] = sum;
}

int main() {
  const int w = 96, h = 40;
  std::vector<float> in(w * h), expected(w * h), kernel(2 * R + 1);
  Random random;
  for (float &x : in) x = random.unit();
  for (int k = -R; k <= R; ++k) kernel[k + R] = std::exp(-k * k / 8.0f) / 5;
  CUDA(cudaMemcpyToSymbol(weights, kernel.data(), sizeof weights));
  Array<float> data(in), middle(w * h), out(w * h);
  const dim3 grid(w / TX, h / TY), block(TX, TY);
  convolve<true><<<grid, block>>>(data, middle, w, h);
  convolve<false><<<grid, block>>>(middle, out, w, h);
  for (int y = 0; y < h; ++y)
    for (int x = 0; x < w; ++x) {
      double sum = 0;
      for (int dy = -R; dy <= R; ++dy)
        for (int dx = -R; dx <= R; ++dx)
          if (x + dx >= 0 && x + dx < w && y + dy >= 0 && y + dy < h)
            sum += double(kernel[dx + R]) * kernel[dy + R] * in[(y + dy) * w + x + dx];
      expected[y * w + x] = float(sum);
    }
  MUST(difference(out.host(), expected) < 1e-6);
  std::printf("%d x %d pixels convolved with %d x %d\n", w, h, 2 * R + 1, 2 * R + 1);
}
