// Discrete cosine transform of 8 x 8 pixels and quantization, as in JPEG: a constexpr table, and blocks of three
// dimensions.
// Run: cudaemu --flags=--expt-relaxed-constexpr cosine_transform.cu
// Prints: 24 squares transformed and back, error below 3
#include "check.h"

struct Cosines {
  float at[8][8];
  constexpr Cosines() : at() {
    constexpr double first[9] = {
        1,
        0.98078528040323043,
        0.92387953251128674,
        0.83146961230254524,
        0.70710678118654757,
        0.55557023301960218,
        0.38268343236508977,
        0.19509032201612825,
        0};
    for (int u = 0; u < 8; ++u)
      for (int x = 0; x < 8; ++x) {
        int angle = (2 * x + 1) * u % 32;  // of 32 in a turn: (2x + 1) u pi / 16
        if (angle > 16) angle = 32 - angle;
        const double cosine = angle <= 8 ? first[angle] : -first[16 - angle];
        at[u][x] = float(cosine * (u ? 0.5 : 0.35355339059327379));
      }
  }
};
__device__ constexpr Cosines cosines;

__global__ void there(const unsigned char *pixels, short *coefficients, int squares) {
  __shared__ float in[4][8][8], half[4][8][8];
  const int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z, square = blockIdx.x * 4 + z;
  in[z][y][x] = pixels[square * 64 + y * 8 + x] - 128.0f;
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < 8; ++k) sum += in[z][y][k] * cosines.at[x][k];
  half[z][y][x] = sum;
  __syncthreads();
  sum = 0;
  for (int k = 0; k < 8; ++k) sum += half[z][k][x] * cosines.at[y][k];
  coefficients[square * 64 + y * 8 + x] = short(__float2int_rn(sum / 2));
}

__global__ void back(const short *coefficients, unsigned char *pixels) {
  const int square = blockIdx.x, x = threadIdx.x % 8, y = threadIdx.x / 8;
  float sum = 128.5f;
  for (int v = 0; v < 8; ++v)
    for (int u = 0; u < 8; ++u)
      sum += 2.0f * coefficients[square * 64 + v * 8 + u] * cosines.at[u][x] * cosines.at[v][y];
  pixels[square * 64 + threadIdx.x] = static_cast<unsigned char>(__saturatef(sum / 255) * 255);
}

int main() {
  const int squares = 24;
  std::vector<unsigned char> pixels(squares * 64);
  for (int i = 0; i < squares * 64; ++i)
    pixels[i] = static_cast<unsigned char>(128 + 90 * std::sin(i % 8 * 0.5 + i / 64) + 30 * std::cos(i / 8 % 8 * 0.9));
  Array<unsigned char> in(pixels), out(squares * 64);
  Array<short> coefficients(squares * 64);
  there<<<squares / 4, dim3(8, 8, 4)>>>(in, coefficients, squares);
  back<<<squares, 64>>>(coefficients, out);
  const auto c = coefficients.host();
  const auto got = out.host();
  int worst = 0;
  for (int i = 0; i < squares * 64; ++i) {
    const int square = i / 64, u = i % 8, v = i / 8 % 8;
    double sum = 0;
    for (int k = 0; k < 64; ++k)
      sum += (pixels[square * 64 + k] - 128.0) * std::cos((2 * (k % 8) + 1) * u * M_PI / 16) *
             std::cos((2 * (k / 8) + 1) * v * M_PI / 16) * (u ? 0.5 : std::sqrt(0.125)) * (v ? 0.5 : std::sqrt(0.125));
    MUST(std::fabs(c[i] - sum / 2) < 0.501);
    worst = std::max(worst, std::abs(int(got[i]) - pixels[i]));
  }
  MUST(worst < 3 + 1);
  std::printf("%d squares transformed and back, error below %d\n", squares, 3);
}
