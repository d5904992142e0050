// The kernels of examples/ at sizes that fill a GPU, each launched on a stream: `python -m common.measure.first_kernels`.
//
// An example is included as it is, in a namespace of its own; its main() becomes a function that nobody calls.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace vector_add {
#include "../../examples/vector_add.cu"
}
namespace transposed {
#include "../../examples/transpose.cu"
}
namespace reduce_shuffle {
#include "../../examples/reduce_shuffle.cu"
}
namespace reduce_bandwidth {
#include "../../examples/reduce_bandwidth.cu"
}
namespace scan_look_back {
#include "../../examples/scan_look_back.cu"
}
namespace scan_tiles {
#include "../../examples/scan_tiles.cu"
}
namespace histograms {
#include "../../examples/histogram.cu"
}
namespace softmaxes {
#include "../../examples/softmax.cu"
}
namespace softmax_registers {
#include "../../examples/softmax_registers.cu"
}
namespace layer_norms {
#include "../../examples/layer_norm.cu"
}
namespace layer_norm_registers {
#include "../../examples/layer_norm_registers.cu"
}
namespace rms_norms {
#include "../../examples/rms_norm.cu"
}
namespace gemvs {
#include "../../examples/gemv.cu"
}
namespace top_ks {
#include "../../examples/top_k.cu"
}

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int BLOCKS_PER_SM = 8;  // of the kernels that go over the data in a grid-stride loop: as many as an SM holds

int ceil_div(int a, int b) { return (a + b - 1) / b; }

int resident_blocks() {
  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  return sms * BLOCKS_PER_SM;
}

}  // namespace

extern "C" cudaError_t launch_vector_add(const float *a, const float *b, float *c, int n, cudaStream_t stream) {
  vector_add::add<<<ceil_div(std::max(n / 4, 1), THREADS), THREADS, 0, stream>>>(a, b, c, n);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_transpose(const float *in, float *out, int rows, int columns, cudaStream_t stream) {
  using namespace transposed;
  const dim3 grid(ceil_div(columns, TILE), ceil_div(rows, TILE));
  transpose<<<grid, dim3(TILE, ROWS), 0, stream>>>(in, out, rows, columns);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_reduce_shuffle(const float *in, float *total, int n, cudaStream_t stream) {
  cudaMemsetAsync(total, 0, sizeof *total, stream);
  reduce_shuffle::sum<<<resident_blocks(), THREADS, 0, stream>>>(in, total, n);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_reduce_bandwidth(const float *in, float *total, int n, cudaStream_t stream) {
  cudaMemsetAsync(total, 0, sizeof *total, stream);
  reduce_bandwidth::sum<<<resident_blocks(), THREADS, 0, stream>>>(in, total, n);
  return cudaGetLastError();
}

// `states`: a word per block, and one more for the counter.
extern "C" cudaError_t launch_scan_look_back(
    const int *in, int *out, unsigned long long *states, int n, cudaStream_t stream) {
  using namespace scan_look_back;
  const int blocks = ceil_div(n, scan_look_back::THREADS);
  cudaMemsetAsync(states, 0, (blocks + 1) * sizeof *states, stream);
  scan<<<blocks, scan_look_back::THREADS, 0, stream>>>(
      in, out, states, reinterpret_cast<unsigned *>(states + blocks), n);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_scan_tiles(
    const int *in, int *out, unsigned long long *states, int n, cudaStream_t stream) {
  using namespace scan_tiles;
  const int blocks = ceil_div(n, TILE);
  cudaMemsetAsync(states, 0, (blocks + 1) * sizeof *states, stream);
  scan<<<blocks, scan_tiles::THREADS, 0, stream>>>(in, out, states, reinterpret_cast<unsigned *>(states + blocks), n);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_histogram(const unsigned char *data, unsigned *bins, int n, cudaStream_t stream) {
  cudaMemsetAsync(bins, 0, histograms::BINS * sizeof *bins, stream);
  histograms::histogram<<<resident_blocks(), THREADS, 0, stream>>>(data, bins, n);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_softmax(const float *in, float *out, int rows, int columns, cudaStream_t stream) {
  softmaxes::softmax<<<ceil_div(rows, WARPS), THREADS, 0, stream>>>(in, out, rows, columns);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_softmax_registers(
    const float *in, float *out, int rows, int columns, cudaStream_t stream) {
  softmax_registers::softmax<<<rows, softmax_registers::THREADS, 0, stream>>>(in, out, columns);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_layer_norm(
    const float *in, const float *gamma, const float *beta, float *out, int rows, int columns, cudaStream_t stream) {
  layer_norms::layer_norm<<<rows, THREADS, 0, stream>>>(in, gamma, beta, out, columns, 1e-5f);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_layer_norm_registers(
    const float *in, const float *gamma, const float *beta, float *out, int rows, int columns, cudaStream_t stream) {
  using namespace layer_norm_registers;
  layer_norm<<<rows, layer_norm_registers::THREADS, 0, stream>>>(in, gamma, beta, out, columns, 1e-5f);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_rms_norm(
    const half *in, const half *gamma, half *out, int rows, int columns, cudaStream_t stream) {
  rms_norms::rms_norm<<<rows, rms_norms::THREADS, 0, stream>>>(in, gamma, out, columns, 1e-6f);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_gemv(const half *A, const half *x, float *y, int rows, int columns, cudaStream_t stream) {
  gemvs::gemv<<<ceil_div(rows, WARPS), THREADS, 0, stream>>>(A, x, y, rows, columns);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_top_k(
    const float *in, float *values, int *places, int rows, int columns, int k, cudaStream_t stream) {
  top_ks::top_k<<<ceil_div(rows, WARPS), THREADS, 0, stream>>>(in, values, places, rows, columns, k);
  return cudaGetLastError();
}
