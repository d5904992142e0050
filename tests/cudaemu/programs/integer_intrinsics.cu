// Integer intrinsics: bits, bytes, high products, averages, video instructions of two and four lanes, dot products.
// Run: cudaemu integer_intrinsics.cu
// Prints: 36 integer intrinsics agree
#include "check.h"

typedef unsigned u32;
typedef unsigned long long u64;

__global__ void device(const u32 *in, u64 *out, int n) {
  const int i = threadIdx.x;
  const u32 a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
  const u64 w = u64(a) << 32 | b;
  u64 *to = out + i;
  auto put = [&](u64 value) { *to = value, to += n; };
  put(__brev(a)), put(__brevll(w)), put(__clz(a >> b % 32)), put(__clzll(w >> c % 64)), put(__ffs(a << b % 32));
  put(__ffsll(w << c % 64)), put(__popc(a)), put(__popcll(w)), put(__byte_perm(a, b, c & 0x7777));
  put(__funnelshift_l(a, b, c)), put(__funnelshift_r(a, b, c)), put(__funnelshift_lc(a, b, c)),
      put(__funnelshift_rc(a, b, c));
  put(u32(__mulhi(int(a), int(b)))), put(__umulhi(a, b)), put(__umul64hi(w, ~w)), put(u64(__mul64hi(w, ~w)));
  put(u32(__mul24(a, b))), put(__umul24(a, b)), put(u32(__hadd(a, b))), put(u32(__rhadd(a, b))), put(__uhadd(a, b));
  put(__urhadd(a, b)), put(__sad(int(a), int(b), c)), put(__usad(a, b, c)), put(u32(__dp4a(int(a), int(b), int(c))));
  put(__dp4a(a, b, c)), put(u32(__dp2a_lo(int(a), int(b), int(c)))), put(__dp2a_hi(a, b, c)), put(__vadd4(a, b));
  put(__vsub2(a, b)), put(__vabsdiffu4(a, b)), put(__vmaxs2(a, b)), put(__vcmpgtu4(a, b)), put(__vaddss4(a, b));
  put(__vavgu4(a, b));
}

template <typename Op>
u32 lanes(u32 a, u32 b, int bits, bool is_signed, Op op) {
  u32 result = 0;
  for (int at = 0; at < 32; at += bits) {
    const long long mask = (1ll << bits) - 1, half = is_signed ? 1ll << (bits - 1) : 0;
    const long long x = ((a >> at & mask) ^ half) - half, y = ((b >> at & mask) ^ half) - half;
    result |= u32(op(x, y) & mask) << at;
  }
  return result;
}

u64 reversed(u64 x, int bits) {
  u64 y = 0;
  for (int i = 0; i < bits; ++i) y |= (x >> i & 1) << (bits - 1 - i);
  return y;
}

u32 dot(u32 a, u32 b, u32 c, int bits_a, int shift_b, bool is_signed) {
  for (int k = 0; k < 32 / bits_a; ++k) {
    const u32 x = a >> (bits_a * k), y = b >> (8 * k + shift_b);
    c += is_signed ? u32((bits_a == 8 ? (signed char)x : (short)x) * (signed char)y)
                   : (x & ((1u << bits_a) - 1)) * (y & 255);
  }
  return c;
}

int sign24(u32 x) { return int(x << 8) >> 8; }

int main() {
  const int n = 64, kinds = 36;
  std::vector<u32> in(3 * n);
  Random random;
  for (u32 &x : in) x = random.next() << 8 ^ random.next();
  Array<u32> inputs(in);
  Array<u64> out(kinds * n);
  device<<<1, n>>>(inputs, out, n);
  const auto got = out.host();
  for (int i = 0; i < n; ++i) {
    const u32 a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2], s = c & 31, t = c < 32 ? c : 32;
    const u64 w = u64(a) << 32 | b, hi_lo = u64(b) << 32 | a, wl = a << b % 32, ws = w << c % 64;
    u32 permuted = 0;
    for (int k = 0; k < 4; ++k) permuted |= u32(hi_lo >> (c >> 4 * k & 7) * 8 & 255) << 8 * k;
    auto clamp = [](long long x) { return x > 127 ? 127 : x < -128 ? -128 : x; };
    const u64 expected[] = {
        reversed(a, 32),
        reversed(w, 64),
        a >> b % 32 ? u64(__builtin_clz(a >> b % 32)) : 32,
        w >> c % 64 ? u64(__builtin_clzll(w >> c % 64)) : 64,
        u64(__builtin_ffs(int(wl))),
        u64(__builtin_ffsll(ws)),
        u64(__builtin_popcount(a)),
        u64(__builtin_popcountll(w)),
        permuted,
        u32((hi_lo << s) >> 32),
        u32(hi_lo >> s),
        u32(t == 32 ? a : (hi_lo << t) >> 32),
        u32(hi_lo >> t),
        u32((long long)int(a) * int(b) >> 32),
        u64(a) * b >> 32,
        u64((unsigned __int128)w * ~w >> 64),
        u64((__int128)(long long)w * (long long)~w >> 64),
        u32((long long)sign24(a) * sign24(b)),
        u32(u64(a & 0xffffff) * (b & 0xffffff)),
        u32(((long long)int(a) + int(b)) >> 1),
        u32(((long long)int(a) + int(b) + 1) >> 1),
        (u64(a) + b) >> 1,
        (u64(a) + b + 1) >> 1,
        u32(std::llabs((long long)int(a) - int(b)) + c),
        u32((a > b ? a - b : b - a) + c),
        dot(a, b, c, 8, 0, true),
        dot(a, b, c, 8, 0, false),
        dot(a, b, c, 16, 0, true),
        dot(a, b, c, 16, 16, false),
        lanes(a, b, 8, false, [](auto x, auto y) { return x + y; }),
        lanes(a, b, 16, false, [](auto x, auto y) { return x - y; }),
        lanes(a, b, 8, false, [](auto x, auto y) { return std::llabs(x - y); }),
        lanes(a, b, 16, true, [](auto x, auto y) { return x > y ? x : y; }),
        lanes(a, b, 8, false, [](auto x, auto y) { return x > y ? -1 : 0; }),
        lanes(a, b, 8, true, [&](auto x, auto y) { return clamp(x + y); }),
        lanes(a, b, 8, false, [](auto x, auto y) { return (x + y + 1) / 2; })};
    static_assert(sizeof expected / sizeof *expected == kinds, "as many as the kernel writes");
    for (int k = 0; k < kinds; ++k)
      if (got[k * n + i] != expected[k])
        return std::printf("intrinsic %d of %x %x %x: %llx, not %llx\n", k, a, b, c, got[k * n + i], expected[k]), 1;
  }
  std::printf("%d integer intrinsics agree\n", kinds);
}
