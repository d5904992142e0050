// The game of life, 32 cells in a word, for many generations in one cooperative launch: grid.sync() between them.
// Run: cudaemu game_of_life.cu
// Prints: 40 generations of 64 x 64 cells, 410 alive
#include <cooperative_groups.h>

#include "check.h"

constexpr int WORDS = 2, H = 64;

// Sums of bits, 32 cells at a time.
__host__ __device__ void add_bit(unsigned &ones, unsigned &twos, unsigned &fours, unsigned bit) {
  const unsigned carry = ones & bit, more = twos & carry;
  ones ^= bit, twos ^= carry, fours |= more;
}

__global__ void live(unsigned *a, unsigned *b, int generations) {
  const auto grid = cooperative_groups::this_grid();
  const int i = grid.thread_rank(), w = i % WORDS, y = i / WORDS;
  for (int g = 0; g < generations; ++g) {
    unsigned ones = 0, twos = 0, fours = 0, me = a[i];
    for (int dy = -1; dy <= 1; ++dy) {
      const unsigned *row = a + (y + dy + H) % H * WORDS, here = row[w];
      const unsigned left = row[(w + WORDS - 1) % WORDS], right = row[(w + 1) % WORDS];
      add_bit(ones, twos, fours, __funnelshift_l(left, here, 1));
      add_bit(ones, twos, fours, __funnelshift_r(here, right, 1));
      if (dy) add_bit(ones, twos, fours, here);
    }
    b[i] = twos & ~fours & (ones | me);
    grid.sync();
    unsigned *const swap = a;
    a = b, b = swap;
  }
}

int main() {
  const int generations = 40;
  std::vector<unsigned> start(WORDS * H);
  Random random;
  for (unsigned &word : start) word = (random.next() * 2654435761u) & (random.next() * 40503u << 7);
  std::vector<char> cells(64 * H), next(64 * H);
  for (int i = 0; i < 64 * H; ++i) cells[i] = start[i / 32] >> i % 32 & 1;
  for (int g = 0; g < generations; ++g, cells.swap(next))
    for (int y = 0; y < H; ++y)
      for (int x = 0; x < 64; ++x) {
        int count = -cells[y * 64 + x];
        for (int k = 0; k < 9; ++k) count += cells[(y + k / 3 + H - 1) % H * 64 + (x + k % 3 + 63) % 64];
        next[y * 64 + x] = count == 3 || (count == 2 && cells[y * 64 + x]);
      }
  Array<unsigned> a(start), b(WORDS * H);
  unsigned *one = a, *other = b;
  int n = generations;
  void *arguments[] = {&one, &other, &n};
  CUDA(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(live), 4, 32, arguments, 0, nullptr));
  const auto got = a.host();
  int alive = 0;
  for (int i = 0; i < 64 * H; ++i) {
    MUST((got[i / 32] >> i % 32 & 1) == unsigned(cells[i]));
    alive += cells[i];
  }
  std::printf("%d generations of 64 x %d cells, %d alive\n", generations, H, alive);
}
