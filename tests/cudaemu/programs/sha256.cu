// SHA-256 of many messages: rotations by funnel shifts, constants made by constexpr functions, a search for leading
// zeros.
// Run: cudaemu --flags=--expt-relaxed-constexpr sha256.cu
// Prints: "abc" is ba7816bf 8f01cfea 414140de 5dae2223 b00361a3 96177a9c b410ff61 f20015ad, nonce 54 of 64 is best
#include "check.h"

typedef unsigned u32;

// The first 32 bits of the fraction of a root of a prime, by integers alone.
constexpr u32 root_bits(unsigned prime, int power) {
  unsigned __int128 low = 0, high = (unsigned __int128)(20) << 32;
  const unsigned __int128 target = (unsigned __int128)(prime) << (32 * power);
  while (low + 1 < high) {
    const unsigned __int128 middle = (low + high) / 2;
    (power == 2 ? middle * middle : middle * middle * middle) <= target ? low = middle : high = middle;
  }
  return u32(low);
}
struct Table {
  u32 k[64], h[8];
  constexpr Table() : k(), h() {
    int n = 0;
    for (unsigned p = 2; n < 64; ++p) {
      bool prime = true;
      for (unsigned d = 2; d * d <= p; ++d) prime &= p % d != 0;
      if (!prime) continue;
      k[n] = root_bits(p, 3);
      if (n < 8) h[n] = root_bits(p, 2);
      ++n;
    }
  }
};
__constant__ constexpr Table table;
constexpr Table host_table;

__host__ __device__ u32 rotate(u32 x, int by) { return x >> by | x << (32 - by); }

// One block of 16 words: messages of at most 55 bytes.
__host__ __device__ void sha256(const u32 *message, const Table &t, u32 *digest) {
  u32 w[64], s[8];
  for (int i = 0; i < 16; ++i) w[i] = message[i];
  for (int i = 16; i < 64; ++i)
    w[i] = w[i - 16] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
           (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
  for (int i = 0; i < 8; ++i) s[i] = t.h[i];
  for (int i = 0; i < 64; ++i) {
    const u32 one = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) +
                    t.k[i] + w[i];
    const u32 two =
        (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    for (int j = 7; j > 0; --j) s[j] = s[j - 1];
    s[4] += one, s[0] = one + two;
  }
  for (int i = 0; i < 8; ++i) digest[i] = t.h[i] + s[i];
}

__host__ __device__ void message_of(int nonce, u32 *to) {  // "abc", or the nonce as four bytes
  for (int i = 0; i < 16; ++i) to[i] = 0;
  to[0] = nonce < 0 ? 0x61626380u : u32(nonce);
  if (nonce >= 0) to[1] = 0x80000000u;
  to[15] = nonce < 0 ? 24 : 32;
}

__global__ void search(u32 *digests, unsigned long long *best) {
  const int nonce = int(threadIdx.x) - 1;
  u32 message[16];
  message_of(nonce, message);
  sha256(message, table, digests + 8 * threadIdx.x);
  if (nonce >= 0) atomicMin(best, (unsigned long long)digests[8 * threadIdx.x] << 32 | nonce);
}

int main() {
  const int n = 65;
  Array<u32> digests(8 * n);
  Array<unsigned long long> best(std::vector<unsigned long long>{~0ull});
  search<<<1, n>>>(digests, best);
  const auto got = digests.host();
  u32 message[16], digest[8], least = ~0u;
  for (int i = 0; i < n; ++i) {
    message_of(i - 1, message);
    sha256(message, host_table, digest);
    for (int k = 0; k < 8; ++k) MUST(got[8 * i + k] == digest[k]);
    if (i && digest[0] < least) least = digest[0];
  }
  const unsigned long long found = best.host()[0];
  MUST(found >> 32 == least);
  std::printf("\"abc\" is");
  for (int k = 0; k < 8; ++k) std::printf(" %08x", got[k]);
  std::printf(", nonce %d of 64 is best\n", int(found & 255));
}
