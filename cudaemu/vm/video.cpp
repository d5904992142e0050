// SIMD video instructions: vadd4, vabsdiff2 and their like, on the bytes or halves of a register.
#include <algorithm>

#include "vm.h"

namespace vm {

enum Operation : u32 { ADD, SUBTRACT, DIFFERENCE, LEAST, MOST, AVERAGE, SET };  // VIDEO in lower/arithmetic.py

static s64 compute(u32 operation, s64 a, s64 b, u32 relation) {
  switch (operation) {
    case ADD:
      return a + b;
    case SUBTRACT:
      return a - b;
    case DIFFERENCE:
      return a < b ? b - a : a - b;
    case LEAST:
      return std::min(a, b);
    case MOST:
      return std::max(a, b);
    case AVERAGE:
      return (a + b + (a + b >= 0)) >> 1;
    default:
      return (relation & (a < b ? 1 : a == b ? 2 : 4)) != 0;
  }
}

// o: d, a, b, c, operation, lanes, a, b and d signed, saturate, sum up onto c, relation
static void video(Warp &w, const Instr &i, u32 m) {
  const u32 count = i.o[5], bits = 32 / count, low = bits == 8 ? 0xff : 0xffff;
  const s64 top = s64(1) << (bits - 1), most = i.o[8] ? top - 1 : 2 * top - 1, least = i.o[8] ? -top : 0;
  const auto part = [=](u32 value, u32 n, bool is_signed) {
    const s64 x = value >> n * bits & low;
    return is_signed && x >= top ? x - 2 * top : x;
  };
  lanes(
      m, w.reg<u32>(i.o[0]),
      [=](u32 a, u32 b, u32 c) {
        u32 packed = 0;
        s64 sum = c;
        for (u32 n = 0; n < count; ++n) {
          s64 x = compute(i.o[4], part(a, n, i.o[6]), part(b, n, i.o[7]), i.o[11]);
          if (i.o[9]) x = std::min(std::max(x, least), most);
          sum += x;
          packed |= (u32(x) & low) << n * bits;
        }
        return i.o[10] ? u32(sum) : packed;
      },
      w.reg<u32>(i.o[1]), w.reg<u32>(i.o[2]), w.reg<u32>(i.o[3]));
}

void register_video(Registry &r) {
  enter(r, {{"video", video, "d4 s4 s4 s4 n n n n n n n n", About::computes("integer", Undefined::ALL_OF_IT)}});
}

}  // namespace vm
