// Control flow that compilers dislike: a switch with a jump table that falls through, goto, loops left from inside,
// unrolled copies into a switch, short circuits with effects, and recursion in which lanes part.
// Run: cudaemu control_flow.cu
// Prints: 5 kinds of control flow agree
#include "check.h"

#define BOTH __host__ __device__

BOTH int switched(int op, int a, int b) {
  switch (op) {
    case 0:
      return a + b;
    case 1:
      a *= 3;  // falls through
    case 2:
      a -= b;
    case 3:
      a ^= 0x55;
      break;
    case 4:
      return b ? a / b : -1;
    case 5:
      for (int k = 0; k < b; ++k) {
        if (k == 7) goto out;
        a += k;
      }
      break;
    case 6:
      a = a << (b & 7);
    case 8:
      a |= 1;
      break;
    case 9:
      return a < b ? a : b;
    case 11:
      a = ~a;
      break;
    default:
      return op;
  }
out:
  return a * 2;
}

BOTH int duffs(const int *from, int n) {
  int sum = 0, at = 0, rounds = (n + 3) / 4;
  switch (n % 4) {
    case 0:
      do {
        sum += from[at++];
        case 3:
          sum += 3 * from[at++];
        case 2:
          sum += 5 * from[at++];
        case 1:
          sum += 7 * from[at++];
      } while (--rounds > 0);
  }
  return sum;
}

BOTH int leaving(int seed) {
  int found = 0;
  for (int i = 1; i < 50; ++i) {
    if (i % 3 == seed % 3) continue;
    for (int j = i;; ++j) {
      if ((i * j + seed) % 17 == 0) {
        found += j;
        break;
      }
      if (j > i + 20) goto enough;
    }
    if (found > 400) break;
  }
enough:
  return found;
}

BOTH bool touch(int *count, bool answer) { return ++*count, answer; }
BOTH int circuits(int x) {
  int count = 0;
  const bool all = touch(&count, x & 1) && touch(&count, x & 2) && (touch(&count, x & 4) || touch(&count, x & 8));
  return count * 2 + all + (x & 1 ? (x & 2 ? 100 : 200) : (x & 4 ? 300 : 400));
}

BOTH int ackermann(int m, int n) { return m == 0 ? n + 1 : ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1)); }

BOTH int all_of(int kind, int i, const int *data) {
  return kind == 0   ? switched(i % 13, i * 7 - 100, i % 19)
         : kind == 1 ? duffs(data + i, 1 + i % 11)
         : kind == 2 ? leaving(i)
         : kind == 3 ? circuits(i)
                     : ackermann(i % 3, i % 5);
}

__global__ void device(const int *data, int *out) {
  const int i = blockIdx.y * blockDim.x + threadIdx.x;
  out[blockIdx.x * gridDim.y * blockDim.x + i] = all_of(blockIdx.x, i, data);
}

int main() {
  const int n = 128, kinds = 5;
  std::vector<int> data(n + 16), expected(kinds * n);
  Random random;
  for (int &x : data) x = random.below(100);
  Array<int> in(data), out(kinds * n);
  device<<<dim3(kinds, 2), n / 2>>>(in, out);
  for (int k = 0; k < kinds; ++k)
    for (int i = 0; i < n; ++i) expected[k * n + i] = all_of(k, i, data.data());
  MUST(out.host() == expected);
  std::printf("%d kinds of control flow agree\n", kinds);
}
