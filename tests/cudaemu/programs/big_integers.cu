// Powers modulo a prime of 256 bits by Montgomery's method: products of 32-bit limbs with carries in 64 bits.
// Run: cudaemu big_integers.cu
// Prints: 32 powers modulo 2^255 - 19 agree
#include "check.h"

constexpr int L = 8;
struct Big { unsigned limb[L]; };
typedef unsigned long long u64;

// a * b / 2^256 modulo p, if a and b are smaller than p.
__host__ __device__ Big montgomery(const Big &a, const Big &b, const Big &p, unsigned inverse) {
  unsigned t[L + 2] = {};
  for (int i = 0; i < L; ++i) {
    u64 carry = 0;
    for (int j = 0; j < L; ++j) carry += u64(a.limb[i]) * b.limb[j] + t[j], t[j] = unsigned(carry), carry >>= 32;
    carry += t[L], t[L] = unsigned(carry), t[L + 1] = unsigned(carry >> 32);
    const unsigned m = t[0] * inverse;
    carry = (u64(m) * p.limb[0] + t[0]) >> 32;
    for (int j = 1; j < L; ++j) carry += u64(m) * p.limb[j] + t[j], t[j - 1] = unsigned(carry), carry >>= 32;
    carry += t[L], t[L - 1] = unsigned(carry), t[L] = t[L + 1] + unsigned(carry >> 32);
  }
  Big less;
  long long borrow = 0;
  for (int j = 0; j < L; ++j) borrow += (long long)t[j] - p.limb[j], less.limb[j] = unsigned(borrow), borrow >>= 32;
  Big same;
  for (int j = 0; j < L; ++j) same.limb[j] = t[j];
  return t[L] || borrow == 0 ? less : same;
}

__global__ void powers(const Big *base, const Big *exponent, Big *out, Big p, Big one, Big square, unsigned inverse) {
  const int i = threadIdx.x;
  Big result = one, x = montgomery(base[i], square, p, inverse);
  for (int bit = 0; bit < 256; ++bit) {
    if (exponent[i].limb[bit / 32] >> bit % 32 & 1) result = montgomery(result, x, p, inverse);
    x = montgomery(x, x, p, inverse);
  }
  Big unit = {{1}};
  out[i] = montgomery(result, unit, p, inverse);
}

// On the host without Montgomery: doubling and adding.
Big add(const Big &a, const Big &b, const Big &p) {
  Big sum, less;
  u64 carry = 0;
  long long borrow = 0;
  for (int j = 0; j < L; ++j) carry += u64(a.limb[j]) + b.limb[j], sum.limb[j] = unsigned(carry), carry >>= 32;
  for (int j = 0; j < L; ++j)
    borrow += (long long)sum.limb[j] - p.limb[j], less.limb[j] = unsigned(borrow), borrow >>= 32;
  return carry || borrow == 0 ? less : sum;
}
Big multiply(const Big &a, const Big &b, const Big &p) {
  Big result = {};
  for (int bit = 255; bit >= 0; --bit) {
    result = add(result, result, p);
    if (b.limb[bit / 32] >> bit % 32 & 1) result = add(result, a, p);
  }
  return result;
}

int main() {
  const int n = 32;
  Big p, one = {{1}};
  for (unsigned &limb : p.limb) limb = ~0u;
  p.limb[0] = 0u - 19, p.limb[L - 1] = 0x7fffffff;
  unsigned inverse = 1;  // of -p modulo 2^32
  for (int k = 0; k < 5; ++k) inverse *= 2 + p.limb[0] * inverse;
  Big r = one;
  for (int k = 0; k < 256; ++k) r = add(r, r, p);
  std::vector<Big> base(n), exponent(n);
  Random random;
  for (auto *each : {&base, &exponent})
    for (Big &b : *each) {
      for (unsigned &limb : b.limb) limb = random.next() * 2654435761u;
      b.limb[L - 1] &= 0x3fffffff;
    }
  Array<Big> bases(base), exponents(exponent), out(n);
  powers<<<1, n>>>(bases, exponents, out, p, r, multiply(r, r, p), inverse);
  const auto got = out.host();
  for (int i = 0; i < n; i += 8) {
    Big result = one, x = base[i];
    for (int bit = 0; bit < 256; ++bit) {
      if (exponent[i].limb[bit / 32] >> bit % 32 & 1) result = multiply(result, x, p);
      x = multiply(x, x, p);
    }
    for (int j = 0; j < L; ++j) MUST(got[i].limb[j] == result.limb[j]);
  }
  std::printf("%d powers modulo 2^255 - 19 agree\n", n);
}
