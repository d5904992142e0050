// cvt: every type to every other, in one handler. Integers pass through 64 bits and floating values through double,
// both exactly; then one rounding to the destination. The conversions that kernels are full of have a short cut.
#include <algorithm>
#include <cfenv>
#include <cmath>

#include "block.h"
#include "half.h"

namespace vm {

// The numbers are those of CVT_TYPES in lower.py.
enum Type : u32 { S8, U8, S16, U16, S32, U32, S64, U64, TYPE_F16, TYPE_BF16, F32, F64, TF32 };
// Rounding: to a floating type, and to an integral value.
enum Mode : u32 { RN, RZ, RM, RP, RNA, RNI, RZI, RMI, RPI, NONE };

static double round_to(double x, Mode mode) {
  switch (mode) {
    case RZ:
    case RZI:
      return std::trunc(x);
    case RM:
    case RMI:
      return std::floor(x);
    case RP:
    case RPI:
      return std::ceil(x);
    case RNA:
      return std::round(x);
    default:
      return std::nearbyint(x);
  }
}

// The nearest value, in the sense of `mode`, with `digits` significant bits and an exponent of at least `least`.
static double round_format(double x, int digits, int least, double largest, Mode mode) {
  if (!(std::fabs(x) <= 0x1.fffffffffffffp1023) || x == 0) return x;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(x), least) - digits + 1);
  const double y = std::copysign(round_to(x / quantum, mode) * quantum, x);
  if (std::fabs(y) <= largest) return y;
  const bool towards_zero = mode == RZ || (mode == RM && x > 0) || (mode == RP && x < 0);
  return std::copysign(towards_zero ? largest : INFINITY, x);
}

static double load_floating(const Warp &w, u32 slot, u32 type, int lane) {
  switch (type) {
    case TYPE_F16:
      return widen_half(w.reg<u16>(slot)[lane]);
    case TYPE_BF16:
      return widen_bf16(w.reg<u16>(slot)[lane]);
    case F64:
      return w.reg<double>(slot)[lane];
    default:
      return w.reg<float>(slot)[lane];
  }
}

// An integer as 64 bits; `bytes` is the register's size, which may exceed the type's.
static s64 load_integer(const Warp &w, u32 slot, u32 type, u32 bytes, int lane) {
  u64 raw = 0;
  memcpy(&raw, w.frame + slot + lane * bytes, bytes);
  switch (type) {
    case S8:
      return s8(raw);
    case U8:
      return u8(raw);
    case S16:
      return s16(raw);
    case U16:
      return u16(raw);
    case S32:
      return s32(raw);
    case U32:
      return u32(raw);
    default:
      return s64(raw);
  }
}

static s64 clamp_integer(s64 value, bool from_unsigned, u32 type) {
  static const s64 low[] = {INT8_MIN, 0, INT16_MIN, 0, INT32_MIN, 0, INT64_MIN, 0};
  static const u64 high[] = {INT8_MAX, UINT8_MAX, INT16_MAX, UINT16_MAX, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
  if (from_unsigned || value >= 0) return u64(value) > high[type] ? s64(high[type]) : value;
  return value < low[type] ? low[type] : value;
}

static s64 floating_to_integer(double x, u32 type, u32 from) {
  if (x != x) {  // 0, but with 64 bits on either side only the top bit of the result
    static const u32 top[] = {7, 7, 15, 15, 31, 31, 63, 63};
    return from == F64 || top[type] == 63 ? s64(1ull << top[type]) : 0;
  }
  switch (type) {
    case S64:
      return x >= 0x1p63 ? INT64_MAX : x <= -0x1p63 ? INT64_MIN : s64(x);
    case U64:
      return x >= 0x1p64 ? s64(UINT64_MAX) : x <= 0 ? 0 : s64(u64(x));
    default:
      return clamp_integer(x >= 0x1p62 ? INT64_MAX : x <= -0x1p62 ? INT64_MIN : s64(x), false, type);
  }
}

// The 16-bit bits of a value that has been rounded to the format already.
static u16 exact_bits(double x, u32 type) { return type == TYPE_F16 ? narrow_half(float(x)) : narrow_bf16(float(x)); }

static double to_floating(double x, u32 type, Mode mode, u32 flags) {
  if (flags & FTZ && std::fabs(x) < 0x1p-126) x = std::copysign(0.0, x);
  switch (type) {
    case TYPE_F16:
      x = round_format(x, 11, -14, 65504, mode);
      break;
    case TYPE_BF16:
      x = round_format(x, 8, -126, 0x1.fep127, mode);
      break;
    case F32:
      x = round_format(x, 24, -126, 0x1.fffffep127, mode);
      break;
    case TF32:
      x = round_format(x, 11, -126, 0x1.ffcp127, mode);
      break;
    default:
      break;
  }
  if (flags & FTZ && std::fabs(x) < 0x1p-126) x = std::copysign(0.0, x);
  if (flags & SAT) x = x > 0 ? std::min(x, 1.0) : 0;
  if (flags & RELU) x = x != x ? x : x > 0 ? x : 0.0;
  return x;
}

static void store_floating(Warp &w, u32 slot, u32 type, int lane, double x) {
  switch (type) {
    case TYPE_F16:
    case TYPE_BF16:
      w.reg<u16>(slot)[lane] = exact_bits(x, type);
      return;
    case F64:
      w.reg<double>(slot)[lane] = x;
      return;
    default:
      w.reg<u32>(slot)[lane] = x != x ? 0x7fffffffu : as<u32>(float(x));
  }
}

// int64 to a format that may be narrower than double: rounded once, from the integer.
static double integer_to_floating(s64 value, bool is_unsigned, u32 type, Mode mode) {
  __extension__ typedef __int128 s128;
  const s128 v = is_unsigned ? s128(u64(value)) : s128(value);
  const u64 magnitude = u64(v < 0 ? -v : v);
  const int digits = type == TYPE_F16 ? 11 : type == TYPE_BF16 ? 8 : type == F32 ? 24 : 53;
  const int length = magnitude ? 64 - __builtin_clzll(magnitude) : 0;
  if (length <= 53) return is_unsigned ? double(magnitude) : double(value);  // exact; to_floating rounds
  const int drop = length - digits;
  u64 kept = magnitude >> drop;
  const u64 rest = magnitude & ((1ull << drop) - 1), middle = 1ull << (drop - 1);
  const bool up =
      mode == RN   ? rest > middle || (rest == middle && kept & 1)
      : mode == RZ ? false
                   : rest && (mode == RP) == (v > 0);
  kept += up;
  return std::ldexp(v < 0 ? -double(kept) : double(kept), drop);
}

// cvt.rna.tf32.f32 is integer arithmetic (ptxas 13.0 for sm_90): half a unit is added unless the value is infinite or
// NaN, then the low 13 bits are cleared, also of a NaN: it keeps its payload, and becomes infinite if that lay there.
static void round_tf32(Warp &w, const Instr &i, u32 m) {
  lanes(
      m, w.reg<u32>(i.o[0]),
      [](u32 bits) { return (bits + ((bits & 0x7fffffffu) < 0x7f800000u ? 0x1000u : 0)) & 0xffffe000u; },
      w.reg<u32>(i.o[1]));
}

// o: d, s, type of d, type of s, mode, bytes of d's register, bytes of s's register
static void convert(Warp &w, const Instr &i, u32 m) {
  const u32 to = i.o[2], from = i.o[3], d_bytes = i.o[5], s_bytes = i.o[6];
  const Mode mode = Mode(i.o[4]);
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    s64 integer;
    if (from >= TYPE_F16) {
      double x = load_floating(w, i.o[1], from, lane);
      if (i.flags & FTZ && from == F32 && std::fabs(x) < 0x1p-126) x = std::copysign(0.0, x);
      if (mode >= RNI && mode <= RPI) x = x != x ? x : std::copysign(round_to(x, mode), x);
      if (to >= TYPE_F16) {
        store_floating(w, i.o[0], to, lane, to_floating(x, to, mode >= RNI ? RN : mode, i.flags));
        continue;
      }
      integer = floating_to_integer(x, to, from);
    } else {
      integer = load_integer(w, i.o[1], from, s_bytes, lane);
      const bool is_unsigned = from & 1;
      if (to >= TYPE_F16) {
        const double x = integer_to_floating(integer, is_unsigned, to, mode == NONE ? RN : mode);
        store_floating(w, i.o[0], to, lane, to_floating(x, to, mode, i.flags));
        continue;
      }
      if (i.flags & SAT) integer = clamp_integer(integer, is_unsigned, to);
      static const u32 shift[] = {56, 56, 48, 48, 32, 32, 0, 0};
      integer = to & 1 ? s64(u64(integer) << shift[to] >> shift[to]) : s64(u64(integer) << shift[to]) >> shift[to];
    }
    memcpy(w.frame + i.o[0] + lane * d_bytes, &integer, d_bytes);
  }
}

template <class D, class S>
static void quick(Warp &w, const Instr &i, u32 m) {
  lanes(m, w.reg<D>(i.o[0]), [](S x) { return D(x); }, w.reg<S>(i.o[1]));
}
template <Format F>
static void widen_lanes(Warp &w, const Instr &i, u32 m) {
  alignas(64) float out[LANES];
  float *d = w.reg<float>(i.o[0]);
  widen_array<F, LANES>(w.reg<u16>(i.o[1]), m == ALL ? d : out);
  if (m != ALL) blend<1>(d, out, m);
}
template <Format F>
static void narrow_lanes(Warp &w, const Instr &i, u32 m) {
  alignas(64) u16 out[LANES];
  u16 *d = w.reg<u16>(i.o[0]);
  narrow_array<F, LANES>(w.reg<float>(i.o[1]), m == ALL ? d : out);
  if (m != ALL) blend<1>(d, out, m);
}

// cvt.rn.f16x2.f32 d, a, b: a goes to the upper half. o: d, a, b, type, mode
static void convert_pair(Warp &w, const Instr &i, u32 m) {
  const u32 type = i.o[3];
  alignas(64) u32 out[LANES];
  if (i.o[4] == RN && !(i.flags & (SAT | RELU | FTZ))) {
    alignas(64) u16 high[LANES], low[LANES];
    const auto narrow = type == TYPE_F16 ? narrow_array<Format::F16, LANES> : narrow_array<Format::BF16, LANES>;
    narrow(w.reg<float>(i.o[1]), high);
    narrow(w.reg<float>(i.o[2]), low);
    for (int lane = 0; lane < LANES; ++lane) out[lane] = u32(high[lane]) << 16 | low[lane];
  } else
    for (int lane = 0; lane < LANES; ++lane) {
      u32 halves[2];
      for (int h = 0; h < 2; ++h) {
        const double largest = type == TYPE_F16 ? 65504 : 0x1.fep127;
        double x = to_floating(w.reg<float>(i.o[2 - h])[lane], type, Mode(i.o[4]), i.flags & ~SAT);
        if (i.flags & SAT && std::fabs(x) > largest) x = std::copysign(largest, x);  // .satfinite
        halves[h] = exact_bits(x, type);
      }
      out[lane] = halves[1] << 16 | halves[0];
    }
  blend<1>(w.reg<u32>(i.o[0]), out, m);
}

// ---- floats of 8, 6 and 4 bits, two at a time ----

struct Fp8 {
  int digits, least;
  double largest;
  u32 fraction;
  u8 nan, sign;  // of the narrow ones, which have no NaN, it becomes the largest value
};
static constexpr Fp8 E4M3{4, -6, 448, 3, 0x7f, 0x80}, E5M2{3, -14, 57344, 2, 0x7f, 0x80};
static constexpr Fp8 E2M1{2, 0, 6, 1, 7, 8}, E2M3{4, 0, 7.5, 3, 0x1f, 0x20}, E3M2{3, -2, 28, 2, 0x1f, 0x20};

// .satfinite: what is too large, or infinite, becomes the largest.
static u8 narrow_fp8(double x, const Fp8 &f, bool relu, Mode mode = RN) {
  if (x != x) return f.nan;
  if (relu && !(x > 0)) return 0;
  const u8 sign = std::signbit(x) ? f.sign : 0;
  const double y =
      std::fabs(round_format(std::max(std::min(x, f.largest), -f.largest), f.digits, f.least, f.largest, mode));
  if (y == 0) return sign;
  const int exponent = std::max(std::ilogb(y), f.least);
  const u32 steps = u32(std::ldexp(y, int(f.fraction) - exponent));  // a whole number: the implied bit and the fraction
  return u8(sign | ((u32(exponent - f.least) << f.fraction) + steps));
}

static float widen_fp8(u8 bits, const Fp8 &f) {
  const u32 magnitude = bits & (f.sign - 1), exponent = magnitude >> f.fraction,
            fraction = magnitude & ((1u << f.fraction) - 1);
  const float sign = bits & f.sign ? -1.0f : 1.0f;
  if (&f == &E4M3 ? magnitude == 0x7f : exponent == 31) return &f == &E5M2 && !fraction ? sign * INFINITY : NAN;
  const u32 whole = exponent ? fraction + (1u << f.fraction) : fraction;
  return sign * std::ldexp(float(whole), int(std::max(exponent, 1u)) - 1 + f.least - int(f.fraction));
}

// cvt.rn.satfinite.e4m3x2.f32 d, a, b: a goes to the upper byte.
template <const Fp8 &F>
static void pair_from_f32(Warp &w, const Instr &i, u32 m) {
  const float *a = w.reg<float>(i.o[1]), *b = w.reg<float>(i.o[2]);
  const bool relu = i.flags & RELU;
  lanes(
      m, w.reg<u16>(i.o[0]),
      [relu](float x, float y) { return u16(narrow_fp8(x, F, relu) << 8 | narrow_fp8(y, F, relu)); }, a, b);
}
template <const Fp8 &F>
static void pair_from_f16(Warp &w, const Instr &i, u32 m) {
  const bool relu = i.flags & RELU;
  lanes(
      m, w.reg<u16>(i.o[0]),
      [relu](u32 x) {
        return u16(narrow_fp8(widen_half(u16(x >> 16)), F, relu) << 8 | narrow_fp8(widen_half(u16(x)), F, relu));
      },
      w.reg<u32>(i.o[1]));
}
template <const Fp8 &F>
static void pair_to_f16(Warp &w, const Instr &i, u32 m) {
  const bool relu = i.flags & RELU;
  lanes(
      m, w.reg<u32>(i.o[0]),
      [relu](u16 x) {
        u32 out = 0;
        for (int n = 0; n < 2; ++n) {
          const float y = widen_fp8(u8(x >> 8 * n), F);
          out |= u32(narrow_half(relu && y <= 0 ? 0.0f : y)) << 16 * n;
        }
        return out;
      },
      w.reg<u16>(i.o[1]));
}

// Scales, ue8m0: an exponent alone, of 2^-127 to 2^127, or NaN (255). The sign is dropped.
static u8 narrow_scale(float x, Mode mode, bool saturate) {
  const u32 bits = as<u32>(x) & 0x7fffffffu, exponent = bits >> 23, fraction = bits & 0x7fffffu;
  if (x != x) return 255;
  const bool up = mode == RP && (exponent ? fraction != 0 : fraction > 0x400000u);  // 2^-127 is subnormal in f32
  return u8(std::min(exponent + up, saturate ? 254u : 255u));
}
static float widen_scale(u8 bits) { return bits == 255 ? NAN : std::ldexp(1.0f, int(bits) - 127); }

// The numbers are those of SMALL_PAIRS in lower/arithmetic.py; the last one is of scales.
static constexpr const Fp8 *SMALL[] = {&E4M3, &E5M2, &E2M1, &E2M3, &E3M2};
constexpr u32 SCALES = 5;
static u32 bits_apart(u32 format) { return format == 2 ? 4 : 8; }

static u16 small_pair(const Instr &i, const u32 *o, float high, float low) {
  const auto narrow = [&i, o](float x) {
    if (o[0] == SCALES) return narrow_scale(x, Mode(o[1]), i.flags & SAT);
    return narrow_fp8(x, *SMALL[o[0]], i.flags & RELU, Mode(o[1]));
  };
  return u16(narrow(high) << bits_apart(o[0]) | narrow(low));
}

// o: d, a (the upper one), b, format, mode, is a pair of bf16
static void small_from_f32(Warp &w, const Instr &i, u32 m) {
  lanes(
      m, w.reg<u16>(i.o[0]), [&i](float a, float b) { return small_pair(i, i.o + 3, a, b); }, w.reg<float>(i.o[1]),
      w.reg<float>(i.o[2]));
}
static void small_from_halves(Warp &w, const Instr &i, u32 m) {
  const auto widen = i.o[4] ? widen_bf16 : widen_half;
  lanes(
      m, w.reg<u16>(i.o[0]), [&i, widen](u32 a) { return small_pair(i, i.o + 2, widen(u16(a >> 16)), widen(u16(a))); },
      w.reg<u32>(i.o[1]));
}
static void small_to_halves(Warp &w, const Instr &i, u32 m) {
  const u32 format = i.o[2], mask = format == 2 ? 15 : 255;
  const bool relu = i.flags & RELU, bf16 = i.o[4];
  lanes(
      m, w.reg<u32>(i.o[0]),
      [&i, format, mask, relu, bf16](u16 a) {
        u32 out = 0;
        for (int n = 0; n < 2; ++n) {
          const u8 bits = u8(a >> n * bits_apart(format) & mask);
          float y = format == SCALES ? widen_scale(bits) : widen_fp8(bits, *SMALL[format]);
          if (relu && y <= 0) y = 0;
          if (i.flags & SAT && std::isinf(y)) y = std::copysign(bf16 ? 0x1.fep127f : 65504.0f, y);
          out |= u32(bf16 ? narrow_bf16(y) : narrow_half(y)) << 16 * n;
        }
        return out;
      },
      w.reg<u16>(i.o[1]));
}

const float *floats_of_8_bits(u32 element) {
  static const auto all = [] {
    std::array<std::array<float, 256>, 5> values;
    for (u32 bits = 0; bits < 256; ++bits) {
      const u8 here[] = {u8(bits), u8(bits), u8(bits >> 2 & 15), u8(bits & 63), u8(bits & 63)};
      for (u32 n = 0; n < 5; ++n) values[n][bits] = widen_fp8(here[n], *SMALL[n]);
    }
    return values;
  }();
  const bool as_they_are = element == ELEMENT_E4M3 || element == ELEMENT_E5M2;
  const u32 number =
      as_they_are               ? element - ELEMENT_E4M3
      : element == ELEMENT_E2M3 ? 3u
      : element == ELEMENT_E3M2
          ? 4u
          : 2u;
  return all[number].data();
}

void register_convert(Registry &r) {
  constexpr About converts = About::computes("conversion", Undefined::ALL_OF_IT);
  constexpr About moves = About::computes("conversion", Undefined::AS_BITS_MOVE);
  constexpr About pairs = About::computes("conversion", Undefined::PAIR_OF_TWO);
  constexpr About halves = About::computes("conversion", Undefined::PAIR_OF_HALVES);
#define QUICK(name, D, S, about) {"cvt." name, quick<D, S>, widths<D, S>(), about}
  enter(r,
        {{"cvt", convert, "d* s* n n n n n", About::computes("conversion", Undefined::CONVERTED)},
         {"cvt.pair", convert_pair, "d4 s4 s4 n n", pairs},
         {"cvt.rna.tf32.f32", round_tf32, "d4 s4", converts},
         {"cvt.f32.f16", widen_lanes<Format::F16>, "d4 s2", converts},
         {"cvt.f32.bf16", widen_lanes<Format::BF16>, "d4 s2", converts},
         {"cvt.f16.f32", narrow_lanes<Format::F16>, "d2 s4", converts},
         {"cvt.bf16.f32", narrow_lanes<Format::BF16>, "d2 s4", converts},
         QUICK("f32.s32", float, s32, converts),
         QUICK("f32.u32", float, u32, converts),
         QUICK("f64.f32", double, float, converts),
         QUICK("f32.f64", float, double, converts),
         QUICK("s64.s32", s64, s32, moves),
         QUICK("u64.u32", u64, u32, moves),
         QUICK("u32.u64", u32, u64, moves),
         QUICK("u32.u16", u32, u16, moves),
         QUICK("s32.s16", s32, s16, moves),
         QUICK("u16.u32", u16, u32, moves),
         QUICK("u64.u16", u64, u16, moves)});
#undef QUICK
  constexpr About small = About::computes("conversion", Undefined::SMALL_PAIR_OF_HALVES);
  enter(
      r,
      {{"cvt.e4m3x2.f32", pair_from_f32<E4M3>, "d2 s4 s4", pairs},
       {"cvt.e5m2x2.f32", pair_from_f32<E5M2>, "d2 s4 s4", pairs},
       {"cvt.e4m3x2.f16x2", pair_from_f16<E4M3>, "d2 s4", halves},
       {"cvt.e5m2x2.f16x2", pair_from_f16<E5M2>, "d2 s4", halves},
       {"cvt.f16x2.e4m3x2", pair_to_f16<E4M3>, "d4 s2", halves},
       {"cvt.f16x2.e5m2x2", pair_to_f16<E5M2>, "d4 s2", halves},
       {"cvt.small.f32", small_from_f32, "d2 s4 s4 n n n", About::computes("conversion", Undefined::SMALL_PAIR_OF_TWO)},
       {"cvt.small.halves", small_from_halves, "d2 s4 n n n", small},
       {"cvt.widen", small_to_halves, "d4 s2 n n n", small}});
}

}  // namespace vm
