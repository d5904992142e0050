// printf in kernels: every conversion, flag and width, strings, pointers, 64-bit numbers, doubles, and a line per lane.
// Run: cudaemu printf_formats.cu
// Prints: |lane 3 of warp 0|
#include "check.h"

__device__ const char *const names[] = {"zero", "one", "two"};

__global__ void formats(long long big, double real) {
  printf("|%d|%5d|%-5d|%05d|%+d|% d|%i|\n", -42, 42, 42, 42, 42, 42, 7);
  printf("|%u|%x|%X|%#x|%o|%#o|%c|%%|\n", 4000000000u, 48879, 48879, 255, 8, 8, 'q');
  printf("|%lld|%llu|%llx|%ld|%hd|\n", big, static_cast<unsigned long long>(big), big, long(big), short(7));
  printf("|%f|%.3f|%10.2f|%-10.2f|%e|%.2E|%g|%G|\n", real, real, real, real, real, real, real, real * 1e-10);
  printf("|%s|%10s|%-10s|%.2s|\n", "text", "right", "left", "cut");
  printf("|%*d|%.*f|\n", 6, 11, 2, real);
  printf("|%s %s|%p is null|%g %g|\n", names[1], names[2], static_cast<void *>(nullptr), 1.0 / 0.0, -1.0 / 0.0);
}
__global__ void lanes(int *results) {
  if (threadIdx.x < 4) results[threadIdx.x] = printf("|lane %d of warp %d|\n", threadIdx.x, threadIdx.x / 32);
}

int main() {
  formats<<<1, 1>>>(-1234567890123ll, 3.14159);
  CUDA(cudaDeviceSynchronize());
  Array<int> results(4);
  lanes<<<1, 32>>>(results);
  MUST(results.host() == std::vector<int>(4, 2));  // the number of arguments
}
