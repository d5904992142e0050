// Integers of 128 bits: factorials and Fibonacci numbers, quotients and remainders, shifts, as decimal digits.
// Run: cudaemu int128.cu
// Prints: fib(186) = 332825110087067562321196029789634457848, 33! = 8683317618811886495518194401280000000
#include <string>

#include "check.h"

typedef unsigned __int128 wide;

__host__ __device__ void digits(wide value, char *to) {
  int n = 0;
  char reversed[40];
  do reversed[n++] = '0' + int(value % 10), value /= 10;
  while (value != 0);
  for (int i = 0; i < n; ++i) to[i] = reversed[n - 1 - i];
  to[n] = 0;
}

__global__ void numbers(char *fibonacci, char *factorial, __int128 *mixed) {
  if (threadIdx.x == 0) {
    wide a = 0, b = 1;
    for (int i = 0; i < 186; ++i) {
      const wide next = a + b;
      a = b, b = next;
    }
    digits(a, fibonacci);
  }
  if (threadIdx.x == 32) {
    wide product = 1;
    for (int i = 2; i <= 33; ++i) product *= i;
    digits(product, factorial);
  }
  const __int128 x = (__int128(-0x123456789abcdefll) << 53) + threadIdx.x, y = (__int128(threadIdx.x) << 61) + 97;
  mixed[threadIdx.x] = x / y * 3 + x % y + (x >> 7) - (y << 3) + (x < y ? 1 : 0) + __int128(double(y));
}

int main() {
  const int n = 64;
  Array<char> fibonacci(64), factorial(64);
  Array<__int128> mixed(n);
  numbers<<<1, n>>>(fibonacci, factorial, mixed);
  char text[2][64];
  CUDA(cudaMemcpy(text[0], fibonacci, 40, cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpy(text[1], factorial, 38, cudaMemcpyDeviceToHost));
  const auto got = mixed.host();
  for (int i = 0; i < n; ++i) {
    const __int128 x = (__int128(-0x123456789abcdefll) << 53) + i, y = (__int128(i) << 61) + 97;
    MUST(got[i] == x / y * 3 + x % y + (x >> 7) - (y << 3) + (x < y ? 1 : 0) + __int128(double(y)));
  }
  std::printf("fib(186) = %s, 33! = %s\n", text[0], text[1]);
}
