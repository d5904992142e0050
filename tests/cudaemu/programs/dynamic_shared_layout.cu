// One array of dynamic shared memory cut into parts of several types, by offsets that the kernel computes; up to the
// opt-in limit; and the same name in two kernels with different types.
// Run: cudaemu dynamic_shared_layout.cu 20000
// Prints: 3 layouts, the largest of 105600 bytes
#include "check.h"

struct Layout {
  size_t doubles, ints, bytes, total;
  __host__ __device__ explicit Layout(int n)
      : doubles(0), ints(n * sizeof(double)), bytes(ints + (n / 2) * sizeof(int)), total((bytes + n + 15) / 16 * 16) {}
};

__global__ void parts(int n, double *out) {
  extern __shared__ __align__(16) unsigned char room[];
  const Layout layout(n);
  auto *const d = reinterpret_cast<double *>(room + layout.doubles);
  auto *const i = reinterpret_cast<int *>(room + layout.ints);
  unsigned char *const b = room + layout.bytes;
  for (int k = threadIdx.x; k < n; k += blockDim.x) d[k] = k * 0.5, b[k] = static_cast<unsigned char>(k);
  for (int k = threadIdx.x; k < n / 2; k += blockDim.x) i[k] = -k;
  __syncthreads();
  double sum = 0;
  for (int k = threadIdx.x; k < n; k += blockDim.x)
    sum += d[n - 1 - k] + b[n - 1 - k] + (k < n / 2 ? i[n / 2 - 1 - k] : 0);
  atomicAdd(out, sum);
}

template <typename T>
struct Room {
  __device__ static T *get() {
    extern __shared__ __align__(16) unsigned char everything[];
    return reinterpret_cast<T *>(everything);
  }
};
template <typename T>
__global__ void reversed(T *data) {
  T *const room = Room<T>::get();
  room[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];
}

int main(int, char **argv) {
  int n = std::atoi(argv[1]) * 12 / 25;
  n = n / 8 * 8;
  const Layout layout(n);
  CUDA(cudaFuncSetAttribute(parts, cudaFuncAttributeMaxDynamicSharedMemorySize, int(layout.total)));
  Array<double> out(std::vector<double>{0});
  parts<<<1, 256, layout.total>>>(n, out);
  double expected = 0;
  for (int k = 0; k < n; ++k) expected += k * 0.5 + k % 256 - (k < n / 2 ? k : 0);
  MUST(out.host()[0] == expected);
  std::vector<char> letters(64);
  std::vector<double> numbers(64);
  for (int i = 0; i < 64; ++i) letters[i] = char(i), numbers[i] = i * 1.5;
  Array<char> c(letters);
  Array<double> d(numbers);
  reversed<<<1, 64, 64 * sizeof(char)>>>(c.data);
  reversed<<<1, 64, 64 * sizeof(double)>>>(d.data);
  for (int i = 0; i < 64; ++i) MUST(c.host()[i] == 63 - i && d.host()[i] == (63 - i) * 1.5);
  std::printf("3 layouts, the largest of %zu bytes\n", layout.total);
}
