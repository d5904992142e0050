// Fast Fourier transform of 256 complex numbers per block (cuComplex.h): radix 2 in shared memory, and back.
// Run: cudaemu fourier_transform.cu
// Prints: 4 transforms of 256 agree, and there and back
#include <cuComplex.h>

#include <complex>

#include "check.h"

constexpr int N = 256;

template <bool INVERSE>
__global__ void fft(const cuFloatComplex *in, cuFloatComplex *out) {
  __shared__ cuFloatComplex s[N];
  const int t = threadIdx.x;
  in += blockIdx.x * N, out += blockIdx.x * N;
  for (int i = t; i < N; i += N / 2) s[__brev(i) >> 24] = in[i];
  for (int half = 1; half < N; half *= 2) {
    __syncthreads();
    const int k = t % half, i = t / half * 2 * half + k;
    float sine, cosine;
    sincospif((INVERSE ? 1.0f : -1.0f) * k / half, &sine, &cosine);
    const cuFloatComplex odd = cuCmulf(s[i + half], make_cuFloatComplex(cosine, sine)), even = s[i];
    s[i] = cuCaddf(even, odd), s[i + half] = cuCsubf(even, odd);
  }
  __syncthreads();
  const float scale = INVERSE ? 1.0f / N : 1;
  for (int i = t; i < N; i += N / 2) out[i] = make_cuFloatComplex(cuCrealf(s[i]) * scale, cuCimagf(s[i]) * scale);
}

int main() {
  const int batch = 4;
  std::vector<cuFloatComplex> in(batch * N);
  Random random;
  for (auto &x : in) x = make_cuFloatComplex(random.unit() - 0.5f, random.unit() - 0.5f);
  Array<cuFloatComplex> data(in), there(batch * N), back(batch * N);
  fft<false><<<batch, N / 2>>>(data, there);
  fft<true><<<batch, N / 2>>>(there, back);
  const auto got = there.host(), again = back.host();
  for (int b = 0; b < batch; ++b)
    for (int k = 0; k < N; ++k) {
      std::complex<double> sum = 0;
      for (int i = 0; i < N; ++i)
        sum += std::complex<double>(in[b * N + i].x, in[b * N + i].y) * std::polar(1.0, -2 * M_PI * (i * k % N) / N);
      MUST(std::abs(sum - std::complex<double>(got[b * N + k].x, got[b * N + k].y)) < 2e-5);
      MUST(cuCabsf(cuCsubf(again[b * N + k], in[b * N + k])) < 1e-6f);
    }
  std::printf("%d transforms of %d agree, and there and back\n", batch, N);
}
