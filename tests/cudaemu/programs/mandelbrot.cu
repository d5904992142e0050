// The Mandelbrot set: an image of bytes, with early exits in every lane, and its border traced by a vote of each warp.
// Run: cudaemu mandelbrot.cu
// Prints: 64 x 48 pixels, 632 inside
#include "check.h"

constexpr int W = 64, H = 48, MOST = 200;

__host__ __device__ int escape(double x, double y) {
  double a = 0, b = 0;
  for (int n = 0; n < MOST; ++n) {
    const double aa = a * a, bb = b * b;
    if (aa + bb > 4) return n;
    b = 2 * (a * b) + y, a = aa - bb + x;
  }
  return MOST;
}

__global__ void image(uchar4 *pixels, unsigned *inside) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  const int n = escape(__dmul_rn(x, 3.0 / 64) - 2.25, __dmul_rn(y, 2.5 / 48) - 1.25);
  pixels[y * W + x] = make_uchar4(n & 255, n * 3 & 255, n == MOST ? 255 : 0, 255);
  const unsigned in = __ballot_sync(~0u, n == MOST);
  if (threadIdx.x == 0) inside[y * (W / 32) + blockIdx.x] = in;
}

int main() {
  Array<uchar4> pixels(W * H);
  Array<unsigned> inside(W / 32 * H);
  image<<<dim3(W / 32, H / 4), dim3(32, 4)>>>(pixels, inside);
  const auto got = pixels.host();
  const auto masks = inside.host();
  int count = 0, wrong = 0;
  for (int i = 0; i < W * H; ++i) {
    const int n = escape(i % W * (3.0 / 64) - 2.25, i / W * (2.5 / 48) - 1.25);
    wrong += got[i].x != (n & 255) || got[i].y != (n * 3 & 255);
    count += got[i].z == 255;
    MUST((masks[i / 32] >> i % 32 & 1) == unsigned(got[i].z == 255));
  }
  MUST(wrong < 30);  // products may be fused here and not there
  std::printf("%d x %d pixels, %d inside\n", W, H, count);
}
