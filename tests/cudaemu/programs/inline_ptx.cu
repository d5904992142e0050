// Inline PTX: carries, bit fields, permutes, tests, conversions, saturation, cache hints and special registers.
// Run: cudaemu inline_ptx.cu
// Prints: 23 instructions in PTX agree
#include <climits>

#include "check.h"

typedef unsigned u32;
typedef unsigned long long u64;
constexpr int KINDS = 23;

__global__ void device(const u32 *in, u32 *out, int n) {
  const int i = threadIdx.x;
  const u32 a = in[2 * i], b = in[2 * i + 1];
  u32 r, s, t;
  int at = 0;
  auto put = [&](u32 x) { out[at++ * n + i] = x; };
  asm("add.cc.u32 %0, %2, %3; addc.u32 %1, %2, 0;" : "=r"(r), "=r"(s) : "r"(a), "r"(b));
  put(r), put(s);
  asm("sub.cc.u32 %0, %2, %3; subc.u32 %1, 0, 0;" : "=r"(r), "=r"(s) : "r"(a), "r"(b));
  put(s);
  asm("mad.lo.cc.u32 %0, %2, %3, %2; madc.hi.u32 %1, %2, %3, 0;" : "=r"(r), "=r"(s) : "r"(a), "r"(b));
  put(r), put(s);
  asm("bfe.s32 %0, %1, 5, 9;" : "=r"(r) : "r"(a));
  put(r);
  asm("bfi.b32 %0, %1, %2, 7, 12;" : "=r"(r) : "r"(a), "r"(b));
  put(r);
  asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(b & 3));
  put(r);
  asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(r) : "r"(a), "r"(b), "r"(a >> 3));
  put(r);
  asm("bfind.u32 %0, %1;" : "=r"(r) : "r"(a >> (b & 31)));
  put(r);
  asm("bfind.shiftamt.s32 %0, %1;" : "=r"(r) : "r"(a));
  put(r);
  asm("fns.b32 %0, %1, 4, 2;" : "=r"(r) : "r"(a));
  put(r);
  asm("szext.wrap.s32 %0, %1, 11;" : "=r"(r) : "r"(a));
  put(r);
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(r) : "r"(a & 31), "r"(b & 63));
  put(r);
  asm("shf.l.clamp.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(b & 63));
  put(r);
  asm("add.sat.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  put(r);
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(int(a) >> 20), "r"(int(b) >> 24), "r"(a));
  put(r);
  asm("{ .reg .pred p; testp.subnormal.f32 p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(r)
      : "f"(__uint_as_float(a & 0x807fffff)));
  put(r);
  asm("{ .reg .pred p, q; setp.lt.and.s32 p|q, %1, %2, 1; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2; }" : "=r"(r)
      : "r"(a), "r"(b));
  put(r);
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l}; }" : "=r"(r) : "r"(a));
  put(r);
  asm("slct.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(int(a ^ b)));
  put(r);
  u64 wide;
  asm volatile("ld.global.cg.L2::128B.v2.u32 {%0, %1}, [%2];" : "=r"(r), "=r"(s) : "l"(in + 2 * i));
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(wide) : "r"(a), "r"(b));
  put(r ^ s ^ u32(wide >> 32));
  asm("mov.u32 %0, %%laneid; mov.u32 %1, %%lanemask_lt; mov.u32 %2, %%nctaid.x;" : "=r"(r), "=r"(s), "=r"(t));
  put(r + s + t);
}

int main() {
  const int n = 64;
  std::vector<u32> in(2 * n);
  Random random;
  for (u32 &x : in) x = random.next() << 9 ^ random.next();
  Array<u32> inputs(in), out(KINDS * n);
  device<<<1, n>>>(inputs, out, n);
  const auto got = out.host();
  auto extended = [](u32 x, int bits) { return u32(int(x << (32 - bits)) >> (32 - bits)); };
  auto clamp = [](long long x, long long low, long long high) { return x < low ? low : x > high ? high : x; };
  for (int i = 0; i < n; ++i) {
    const u32 a = in[2 * i], b = in[2 * i + 1], shift = b & 63;
    const u64 sum = u64(a) + b, product = u64(a) * b + a, pair = u64(b) << 32 | a;
    u32 second = ~0u;  // the second bit that is set, from bit 4 on
    for (u32 bit = 4, found = 0; bit < 32; ++bit)
      if (a >> bit & 1 && ++found == 2) second = bit;
    const u32 shifted = a >> (b & 31), magnitude = int(a) < 0 ? ~a : a, fraction = a & 0x7fffff;
    const u32 clamped = shift > 32 ? 32 : shift, first = a & 31, end = first + shift > 32 ? 32 : first + shift;
    const u32 expected[KINDS] = {
        u32(sum),
        a + u32(sum >> 32),
        a < b ? ~0u : 0,
        u32(product),
        u32(product >> 32),
        extended(a >> 5, 9),
        (b & ~(0xfffu << 7)) | (a & 0xfff) << 7,
        u32(pair >> 8 * (b & 3)),
        a ^ b ^ a >> 3,
        shifted ? 31 - __builtin_clz(shifted) : ~0u,
        magnitude ? __builtin_clz(magnitude) : ~0u,
        second,
        extended(a, 11),
        u32((1ull << end) - (1ull << first)),
        clamped == 32 ? a : u32((u64(b) << 32 | a) << clamped >> 32),
        u32(clamp((long long)int(a) + int(b), INT_MIN, INT_MAX)),
        u32(clamp(int(a) >> 20, 0, 255) << 8 | clamp(int(b) >> 24, 0, 255) | a << 16),

        u32(fraction != 0),
        int(a) < int(b) ? 1u : 2u,
        a << 16 | a >> 16,
        int(a ^ b) >= 0 ? a : b,
        a ^ b ^ u32((long long)int(a) * int(b) >> 32),
        i % 32 + ((1u << i % 32) - 1) + 1};
    for (int k = 0; k < KINDS; ++k)
      if (got[k * n + i] != expected[k])
        return std::printf("instruction %d of %x %x: %x, not %x\n", k, a, b, got[k * n + i], expected[k]), 1;
  }
  std::printf("%d instructions in PTX agree\n", KINDS);
}
