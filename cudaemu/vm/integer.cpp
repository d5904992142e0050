// Integers, bits, predicates and moves. Each entry of the tables at the end is one PTX instruction.
#include <algorithm>

#include "block.h"

namespace vm {

static constexpr About integer(Undefined undefined) { return About::computes("integer", undefined); }
static constexpr About predicate(Undefined undefined) { return About::computes("predicate", undefined); }
static constexpr About INTEGER = integer(Undefined::ALL_OF_IT), PREDICATE = predicate(Undefined::ALL_OF_IT);
static constexpr About HALVES = integer(Undefined::HALF_BY_HALF), MOVES = integer(Undefined::MOVED_BY_3);
static constexpr About MOVE = About::does(Effect::COPIES, "move", Undefined::AS_BITS_MOVE);
static constexpr About PIECES = About::computes("move", Undefined::AS_BITS_MOVE);

template <class D, class S, class F>
static inline void unary(Warp &w, const Instr &i, u32 m, F f) {
  lanes(m, w.reg<D>(i.o[0]), f, w.reg<S>(i.o[1]));
}
template <class D, class A, class B, class F>
static inline void binary(Warp &w, const Instr &i, u32 m, F f) {
  lanes(m, w.reg<D>(i.o[0]), f, w.reg<A>(i.o[1]), w.reg<B>(i.o[2]));
}
template <class D, class A, class B, class C, class F>
static inline void ternary(Warp &w, const Instr &i, u32 m, F f) {
  lanes(m, w.reg<D>(i.o[0]), f, w.reg<A>(i.o[1]), w.reg<B>(i.o[2]), w.reg<C>(i.o[3]));
}

#define UNARY(name, D, S, expr, about)                                                                   \
  {name, [](Warp &w, const Instr &i, u32 m) { unary<D, S>(w, i, m, [](S a) -> D { return D(expr); }); }, \
   widths<D, S>(), about}
#define BINARY(name, T, expr, about)                                                                              \
  {name, [](Warp &w, const Instr &i, u32 m) { binary<T, T, T>(w, i, m, [](T a, T b) -> T { return T(expr); }); }, \
   widths<T, T, T>(), about}
#define WIDE(name, D, T, expr, about)                                                                             \
  {name, [](Warp &w, const Instr &i, u32 m) { binary<D, T, T>(w, i, m, [](T a, T b) -> D { return D(expr); }); }, \
   widths<D, T, T>(), about}
#define SHIFT(name, T, expr, about)                                                                                   \
  {name, [](Warp &w, const Instr &i, u32 m) { binary<T, T, u32>(w, i, m, [](T a, u32 b) -> T { return T(expr); }); }, \
   widths<T, T, u32>(), about}
#define TERNARY(name, T, expr, about) MIXED(name, T, T, T, T, expr, about)
#define MIXED(name, D, A, B, C, expr, about)                                                                         \
  {name,                                                                                                             \
   [](Warp &w, const Instr &i, u32 m) { ternary<D, A, B, C>(w, i, m, [](A a, B b, C c) -> D { return D(expr); }); }, \
   widths<D, A, B, C>(), about}
#define PACK(bits)                                                                      \
  MIXED("cvt.pack.u" #bits, u32, s32, s32, u32, (pack<bits, false>(a, b, c)), INTEGER), \
      MIXED("cvt.pack.s" #bits, u32, s32, s32, u32, (pack<bits, true>(a, b, c)), INTEGER)
// Comparisons: mode, d, q, a, b, combine, c, relation.
#define COMPARE(name, T, handler)                \
  {name, handler,                                \
   sizeof(T) == 2   ? "n d*? d0? s2 s2 n s0? n"  \
   : sizeof(T) == 4 ? "n d*? d0? s4 s4 n s0? n"  \
                    : "n d*? d0? s8 s8 n s0? n", \
   PREDICATE}

// By zero: all ones, the remainder too; PTX leaves it open, this is what an H200 does. MIN / -1 wraps.
template <class T>
static inline T divide(T a, T b) {
  if (b == 0) return T(-1);
  if (T(-1) < 0 && b == T(-1)) return T(0 - typename std::make_unsigned<T>::type(a));
  return a / b;
}
template <class T>
static inline T remainder(T a, T b) {
  if (b == 0) return T(-1);
  if (T(-1) < 0 && b == T(-1)) return 0;
  return a % b;
}

template <class T>
static inline T absolute(T a) {
  return a < 0 ? T(0 - typename std::make_unsigned<T>::type(a)) : a;
}

static inline u32 reverse(u32 a) {
  a = (a >> 1 & 0x55555555u) | (a & 0x55555555u) << 1;
  a = (a >> 2 & 0x33333333u) | (a & 0x33333333u) << 2;
  a = (a >> 4 & 0x0f0f0f0fu) | (a & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(a);
}
static inline u64 reverse(u64 a) { return u64(reverse(u32(a))) << 32 | reverse(u32(a >> 32)); }

// Bit fields: position and length count modulo 256; what lies beyond the most significant bit reads as the sign.
template <class T>
static inline T extract(T value, u32 position, u32 length) {
  using U = typename std::make_unsigned<T>::type;
  constexpr u32 WIDTH = 8 * sizeof(T);
  position &= 255, length &= 255;
  if (length == 0) return 0;
  const bool is_signed = T(-1) < 0;
  const u32 top = std::min(position + length - 1, WIDTH - 1);
  const U sign = is_signed && (U(value) >> top & 1) ? U(-1) : U(0);
  if (position >= WIDTH) return T(sign);
  const U field = U(value) >> position;
  const u32 kept = std::min(length, WIDTH - position);
  if (kept >= WIDTH) return T(field);
  const U mask = (U(1) << kept) - 1;
  return T((field & mask) | (sign & ~mask));
}
template <class U>
static inline U insert(U from, U into, u32 position, u32 length) {
  constexpr u32 WIDTH = 8 * sizeof(U);
  position &= 255, length &= 255;
  if (length == 0 || position >= WIDTH) return into;
  const U ones = length >= WIDTH ? U(-1) : (U(1) << length) - 1, mask = ones << position;
  return (into & ~mask) | (from << position & mask);
}

// Index of the most significant bit that is not a sign bit, or all ones; `shift`: the shift that brings it to the top.
template <class T>
static inline u32 find_bit(T value, bool shift) {
  using U = typename std::make_unsigned<T>::type;
  constexpr u32 WIDTH = 8 * sizeof(T);
  U bits = U(value);
  if (T(-1) < 0 && value < 0) bits = ~bits;
  if (!bits) return ~0u;
  const u32 at = WIDTH - 1 - (WIDTH == 64 ? __builtin_clzll(bits) : __builtin_clz(u32(bits)));
  return shift ? WIDTH - 1 - at : at;
}

static u32 permute(u32 a, u32 b, u32 c, u32 mode) {
  u8 bytes[8];
  memcpy(bytes, &a, 4), memcpy(bytes + 4, &b, 4);
  u32 out = 0;
  for (u32 n = 0; n < 4; ++n) {
    const u32 s = c & 3;
    u32 from;
    switch (mode) {
      case 0: {
        const u32 selector = c >> 4 * n & 15;
        const u32 byte = bytes[selector & 7];
        out |= (selector & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * n;
        continue;
      }
      case 1:
        from = (s + n) & 7;
        break;  // f4e: four from s on, forwards
      case 2:
        from = (s + 8 - n) & 7;
        break;  // b4e: backwards
      case 3:
        from = s;
        break;  // rc8
      case 4:
        from = std::max(n, s);
        break;  // ecl
      case 5:
        from = std::min(n, s);
        break;  // ecr
      default:
        from = (s & 1) * 2 + (n & 1);
        break;  // rc16
    }
    out |= u32(bytes[from]) << 8 * n;
  }
  return out;
}

// Two integers, saturated to so many bits, below the lower bits of c.
template <int BITS, bool SIGNED>
static inline u32 pack(s32 a, s32 b, u32 c) {
  constexpr s32 most = SIGNED ? (1 << (BITS - 1)) - 1 : (1 << BITS) - 1, least = SIGNED ? -most - 1 : 0;
  const u32 mask = (1u << BITS) - 1;
  const u32 high = u32(std::clamp(a, least, most)) & mask, low = u32(std::clamp(b, least, most)) & mask;
  return u32(u64(c) << 2 * BITS) | high << BITS | low;
}

// The n-th set bit from `base` on, upwards or downwards; 0: that bit itself.
static inline u32 nth_set(u32 mask, u32 base, s32 n) {
  if (n == 0) return base < 32 && mask >> base & 1 ? base : ~0u;
  for (u32 at = base, count = std::abs(n); at < 32; at += n > 0 ? 1 : -1)
    if (mask >> at & 1 && --count == 0) return at;
  return ~0u;
}

static inline u32 lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 out = 0;
  for (u32 n = 0; n < 8; ++n)
    if (table >> n & 1) out |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
  return out;
}

// o: d, a, b, carry in (or ~0), carry out (or ~0). A difference is a + ~b + 1: its carry says that nothing was borrowed.
// The division of 128-bit integers that nvcc puts in reads the carry of a subc with an addc.
template <class T, bool SUBTRACT>
static void add_carry(Warp &w, const Instr &i, u32 m) {
  const u32 in = i.o[3] != ALL ? w.pred(i.o[3]) : SUBTRACT ? ALL : 0;
  u32 out = 0;
  T *d = w.reg<T>(i.o[0]);
  const T *a = w.reg<T>(i.o[1]), *b = w.reg<T>(i.o[2]);
  for (int lane = 0; lane < LANES; ++lane) {
    if (!(m >> lane & 1)) continue;
    const u128 sum = u128(a[lane]) + T(SUBTRACT ? ~b[lane] : b[lane]) + (in >> lane & 1);
    d[lane] = T(sum);
    out |= u32(sum >> 8 * sizeof(T) != 0) << lane;
  }
  if (i.o[4] != ALL) w.pred(i.o[4]) = (w.pred(i.o[4]) & ~m) | out;
}

// o: d, a, b, c, carry in, carry out
template <class T, class WIDE_T, bool HIGH>
static void mad_carry(Warp &w, const Instr &i, u32 m) {
  using U = typename std::make_unsigned<T>::type;
  const u32 in = i.o[4] == ALL ? 0 : w.pred(i.o[4]);
  u32 out = 0;
  for (int lane = 0; lane < LANES; ++lane) {
    if (!(m >> lane & 1)) continue;
    const WIDE_T product = WIDE_T(w.reg<T>(i.o[1])[lane]) * WIDE_T(w.reg<T>(i.o[2])[lane]);
    const u128 sum = u128(U(HIGH ? product >> 8 * sizeof(T) : product)) + w.reg<U>(i.o[3])[lane] + (in >> lane & 1);
    w.reg<U>(i.o[0])[lane] = U(sum);
    out |= u32(sum >> 8 * sizeof(T) != 0) << lane;
  }
  if (i.o[5] != ALL) w.pred(i.o[5]) = (w.pred(i.o[5]) & ~m) | out;
}

template <class A, class B>
static inline s32 dot4(u32 a, u32 b, u32 c) {
  s64 sum = s32(c);
  for (int n = 0; n < 4; ++n) sum += s64(A(a >> 8 * n)) * B(b >> 8 * n);
  return s32(sum);
}
template <class A, class B, int HIGH>
static inline s32 dot2(u32 a, u32 b, u32 c) {
  using A16 = typename std::conditional<std::is_signed<A>::value, s16, u16>::type;
  s64 sum = s32(c);
  for (int n = 0; n < 2; ++n) sum += s64(A16(a >> 16 * n)) * B(b >> 8 * (n + 2 * HIGH));
  return s32(sum);
}

// Predicates are masks: one operation for the whole warp.
template <class F>
static inline void masks(Warp &w, const Instr &i, u32 m, F f) {
  u32 &d = w.pred(i.o[0]);
  d = (d & ~m) | (f(w.pred(i.o[1]), w.pred(i.o[2])) & m);
}

template <class T>
static void select(Warp &w, const Instr &i, u32 m) {
  const u32 p = w.pred(i.o[3]) ^ (i.flags & NOT_PRED ? ALL : 0);
  T *d = w.reg<T>(i.o[0]);
  const T *a = w.reg<T>(i.o[1]), *b = w.reg<T>(i.o[2]);
  if (m == ALL && p == ALL)
    memmove(d, a, sizeof(T) * LANES);
  else if (m == ALL && p == 0)
    memmove(d, b, sizeof(T) * LANES);
  else
    for (int lane = 0; lane < LANES; ++lane) {
      const T chosen = p >> lane & 1 ? a[lane] : b[lane];
      d[lane] = m >> lane & 1 ? chosen : d[lane];
    }
}

template <class T>
static void move(Warp &w, const Instr &i, u32 m) {
  if (m == ALL)
    memmove(w.reg<T>(i.o[0]), w.reg<T>(i.o[1]), sizeof(T) * LANES);
  else
    blend<1>(w.reg<T>(i.o[0]), w.reg<T>(i.o[1]), m);
}
struct Wide { u64 low, high; };

// mov.b32 %r, {%a, %b}; o: d, bytes of an element, number of elements, elements. A byte lies in a 16-bit register.
static void pack(Warp &w, const Instr &i, u32 m) {
  const u32 bytes = i.o[1], count = i.o[2], stride = std::max(bytes, 2u);
  if (bytes == 2 && count == 2) {
    lanes(m, w.reg<u32>(i.o[0]), [](u16 a, u16 b) { return u32(b) << 16 | a; }, w.reg<u16>(i.o[3]), w.reg<u16>(i.o[4]));
    return;
  }
  if (bytes == 4 && count == 2) {
    lanes(m, w.reg<u64>(i.o[0]), [](u32 a, u32 b) { return u64(b) << 32 | a; }, w.reg<u32>(i.o[3]), w.reg<u32>(i.o[4]));
    return;
  }
  for (int lane = 0; lane < LANES; ++lane) {
    if (!(m >> lane & 1)) continue;
    for (u32 n = 0; n < count; ++n)
      memcpy(w.frame + i.o[0] + lane * bytes * count + n * bytes, w.frame + i.o[3 + n] + lane * stride, bytes);
  }
}

// mov.b32 {%a, %b}, %r; o: source, bytes of an element, number of elements, elements (~0: not wanted)
static void unpack(Warp &w, const Instr &i, u32 m) {
  const u32 bytes = i.o[1], count = i.o[2], stride = std::max(bytes, 2u);
  for (u32 n = 0; n < count; ++n) {
    if (i.o[3 + n] == ALL) continue;
    if (bytes == 2 && count == 2) {
      lanes(m, w.reg<u16>(i.o[3 + n]), [n](u32 a) { return u16(a >> 16 * n); }, w.reg<u32>(i.o[0]));
    } else if (bytes == 4 && count == 2) {
      lanes(m, w.reg<u32>(i.o[3 + n]), [n](u64 a) { return u32(a >> 32 * n); }, w.reg<u64>(i.o[0]));
    } else
      for (int lane = 0; lane < LANES; ++lane) {
        if (!(m >> lane & 1)) continue;
        u8 *to = w.frame + i.o[3 + n] + lane * stride;
        if (bytes == 1) to[1] = 0;
        memcpy(to, w.frame + i.o[0] + lane * bytes * count + n * bytes, bytes);
      }
  }
}

// setp and set. o: what to write (see write_truth), d, q (or ~0), a, b, combine (0 no, 1 and, 2 or, 3 xor), c,
// relation: the bits of `relation` say which outcomes are true: 1 less, 2 equal, 4 greater, 8 unordered.
void write_truth(Warp &w, const Instr &i, u32 m, u32 truth) {
  u32 other = ~truth;
  if (i.o[5]) {
    const u32 c = w.pred(i.o[6]) ^ (i.flags & NOT_PRED ? ALL : 0);
    const auto combine = [&](u32 t) { return i.o[5] == 1 ? t & c : i.o[5] == 2 ? t | c : t ^ c; };
    truth = combine(truth), other = combine(other);
  }
  switch (i.o[0]) {
    case 0:
      if (i.o[1] != ALL) w.pred(i.o[1]) = (w.pred(i.o[1]) & ~m) | (truth & m);
      if (i.o[2] != ALL) w.pred(i.o[2]) = (w.pred(i.o[2]) & ~m) | (other & m);
      return;
    case 1:
    case 2:  // set.u32, set.f32
      for (int lane = 0; lane < LANES; ++lane)
        if (m >> lane & 1) w.reg<u32>(i.o[1])[lane] = truth >> lane & 1 ? (i.o[0] == 1 ? ~0u : 0x3f800000u) : 0;
      return;
    default:  // set.f16, set.bf16, set.u16: o[0] is the bits of "true"
      for (int lane = 0; lane < LANES; ++lane)
        if (m >> lane & 1) w.reg<u16>(i.o[1])[lane] = truth >> lane & 1 ? u16(i.o[0]) : 0;
  }
}

template <class T>
static void compare(Warp &w, const Instr &i, u32 m) {
  const T *a = w.reg<T>(i.o[3]), *b = w.reg<T>(i.o[4]);
  const u32 relation = i.o[7];
  const bool negate = relation == 5;  // not equal is one comparison, not two
  u32 truth = 0;
  if (relation & 1 && !negate) truth |= ballot([](T x, T y) { return x < y; }, a, b);
  if (relation & 2) truth |= ballot([](T x, T y) { return x == y; }, a, b);
  if (relation & 4 && !negate) truth |= ballot([](T x, T y) { return x > y; }, a, b);
  if (negate) truth = ballot([](T x, T y) { return x != y; }, a, b);
  write_truth(w, i, m, truth);
}

// What wraps is unsigned in C++.
template <class T>
using unsigned_of = std::make_unsigned_t<T>;
template <class T>
static inline T add_difference(T a, T b, T c) {
  using U = unsigned_of<T>;
  return T(U(c) + (a < b ? U(b) - U(a) : U(a) - U(b)));
}

#define BITWISE(suffix, T)                                                                                             \
  BINARY("add." suffix, T, a + b, INTEGER), BINARY("sub." suffix, T, a - b, INTEGER),                                  \
      BINARY("mul.lo." suffix, T, u64(a) * b, INTEGER), TERNARY("mad.lo." suffix, T, u64(a) * b + c, INTEGER),         \
      BINARY("and." suffix, T, a &b, integer(Undefined::AND)), BINARY("or." suffix, T, a | b, integer(Undefined::OR)), \
      BINARY("xor." suffix, T, a ^ b, integer(Undefined::XOR)),                                                        \
      UNARY("not." suffix, T, T, ~a, integer(Undefined::BIT_BY_BIT)), UNARY("cnot." suffix, T, T, a == 0, INTEGER),    \
      UNARY("neg." suffix, T, T, 0 - a, INTEGER),                                                                      \
      SHIFT("shl." suffix, T, b >= 8 * sizeof(T) ? T(0) : T(a << b), integer(Undefined::MOVED_BY_2))

#define ORDERED(suffix, T)                                                                                            \
  BINARY("min." suffix, T, a < b ? a : b, INTEGER), BINARY("max." suffix, T, a > b ? a : b, INTEGER),                 \
      BINARY("div." suffix, T, divide<T>(a, b), INTEGER), BINARY("rem." suffix, T, remainder<T>(a, b), INTEGER),      \
      SHIFT("shr." suffix, T, a >> (b >= 8 * sizeof(T) ? 8 * sizeof(T) - 1 : b) >> (T(-1) > 0 && b >= 8 * sizeof(T)), \
            integer(Undefined::MOVED_BY_2)),                                                                          \
      TERNARY("sad." suffix, T, add_difference(a, b, c), INTEGER), COMPARE("compare." suffix, T, compare<T>)

#define PRODUCTS(suffix, T, W)                                                                    \
  WIDE("mul.wide." suffix, W, T, W(a) * W(b), INTEGER),                                           \
      BINARY("mul.hi." suffix, T, W(a) * W(b) >> 8 * sizeof(T), INTEGER),                         \
      TERNARY("mad.hi." suffix, T, T(unsigned_of<W>(W(a) * W(b) >> 8 * sizeof(T)) + c), INTEGER), \
      MIXED("mad.wide." suffix, W, T, T, W, W(unsigned_of<W>(W(a) * W(b)) + c), INTEGER)

#define FIELDS(u, s, U, S)                                                                                         \
  MIXED("bfe." u, U, U, u32, u32, extract<U>(a, b, c), integer(Undefined::MOVED_BY_2_3)),                          \
      MIXED("bfe." s, S, S, u32, u32, extract<S>(a, b, c), integer(Undefined::MOVED_BY_2_3)),                      \
      UNARY("brev." u, U, U, reverse(a), INTEGER), UNARY("popc." u, u32, U, __builtin_popcountll(a), INTEGER),     \
      UNARY("clz." u, u32, U, a ? __builtin_clzll(a) - (64 - 8 * sizeof(U)) : 8 * sizeof(U), INTEGER),             \
      UNARY("bfind." u, u32, U, find_bit<U>(a, false), INTEGER),                                                   \
      UNARY("bfind." s, u32, S, find_bit<S>(a, false), INTEGER),                                                   \
      UNARY("bfind.shiftamt." u, u32, U, find_bit<U>(a, true), INTEGER),                                           \
      UNARY("bfind.shiftamt." s, u32, S, find_bit<S>(a, true), INTEGER), {                                         \
    "bfi." u,                                                                                                      \
        [](Warp &w, const Instr &i, u32 m) {                                                                       \
          lanes(                                                                                                   \
              m, w.reg<U>(i.o[0]), [](U a, U b, u32 c, u32 d) { return insert<U>(a, b, c, d); }, w.reg<U>(i.o[1]), \
              w.reg<U>(i.o[2]), w.reg<u32>(i.o[3]), w.reg<u32>(i.o[4]));                                           \
        },                                                                                                         \
        widths<U, U, U, u32, u32>(), integer(Undefined::MOVED_BY_3_4)                                              \
  }

// Two halves at once; `relu`: negative ones become 0.
template <class T, class F>
static inline u32 halves(u32 a, u32 b, F f) {
  return u16(f(T(a), T(b))) | u32(u16(f(T(a >> 16), T(b >> 16)))) << 16;
}
template <class T>
static inline T least(T a, T b) {
  return std::min(a, b);
}
template <class T>
static inline T most(T a, T b) {
  return std::max(a, b);
}
template <class T>
static inline T least0(T a, T b) {
  return std::max<T>(0, std::min(a, b));
}
template <class T>
static inline T most0(T a, T b) {
  return std::max<T>(0, std::max(a, b));
}

static inline s32 clamp(s64 value) { return s32(std::min<s64>(std::max<s64>(value, INT32_MIN), INT32_MAX)); }

void register_integer(Registry &r) {
  enter(r, {BITWISE("u16", u16), BITWISE("u32", u32), BITWISE("u64", u64)});
  enter(r, {ORDERED("u16", u16), ORDERED("u32", u32), ORDERED("u64", u64), ORDERED("s16", s16), ORDERED("s32", s32),
            ORDERED("s64", s64)});
  enter(r, {UNARY("abs.s16", s16, s16, absolute(a), INTEGER), UNARY("abs.s32", s32, s32, absolute(a), INTEGER),
            UNARY("abs.s64", s64, s64, absolute(a), INTEGER)});
  enter(r,
        {PRODUCTS("u16", u16, u32), PRODUCTS("s16", s16, s32), PRODUCTS("u32", u32, u64), PRODUCTS("s32", s32, s64),
         BINARY("mul.hi.u64", u64, u128(a) * b >> 64, INTEGER), BINARY("mul.hi.s64", s64, s128(a) * b >> 64, INTEGER),
         TERNARY("mad.hi.u64", u64, u64(u128(a) * b >> 64) + c, INTEGER),
         TERNARY("mad.hi.s64", s64, u64(s128(a) * b >> 64) + c, INTEGER)});
  enter(r,
        {BINARY("mul24.lo.u32", u32, (a & 0xffffffu) * (b & 0xffffffu), INTEGER),
         BINARY("mul24.lo.s32", s32, u32(s32(u32(a) << 8) >> 8) * u32(s32(u32(b) << 8) >> 8), INTEGER),
         BINARY("mul24.hi.u32", u32, u64(a & 0xffffffu) * (b & 0xffffffu) >> 16, INTEGER),
         BINARY("mul24.hi.s32", s32, s64(s32(u32(a) << 8) >> 8) * (s32(u32(b) << 8) >> 8) >> 16, INTEGER),
         TERNARY("mad24.lo.u32", u32, (a & 0xffffffu) * (b & 0xffffffu) + c, INTEGER),
         TERNARY("mad24.lo.s32", s32, u32(s32(u32(a) << 8) >> 8) * u32(s32(u32(b) << 8) >> 8) + u32(c), INTEGER),
         BINARY("add.sat.s32", s32, clamp(s64(a) + b), INTEGER), BINARY("sub.sat.s32", s32, clamp(s64(a) - b), INTEGER),
         TERNARY("mad.hi.sat.s32", s32, clamp((s64(a) * b >> 32) + c), INTEGER)});
  enter(r, {BINARY("add.u16x2", u32, halves<u16>(a, b, [](u16 x, u16 y) { return x + y; }), HALVES),
            BINARY("min.u16x2", u32, halves<u16>(a, b, least<u16>), HALVES),
            BINARY("max.u16x2", u32, halves<u16>(a, b, most<u16>), HALVES),
            BINARY("min.s16x2", u32, halves<s16>(a, b, least<s16>), HALVES),
            BINARY("max.s16x2", u32, halves<s16>(a, b, most<s16>), HALVES),
            BINARY("min.relu.s16x2", u32, halves<s16>(a, b, least0<s16>), HALVES),
            BINARY("max.relu.s16x2", u32, halves<s16>(a, b, most0<s16>), HALVES),
            BINARY("min.relu.s32", s32, least0(a, b), INTEGER), BINARY("max.relu.s32", s32, most0(a, b), INTEGER)});
  enter(r, {FIELDS("u32", "s32", u32, s32), FIELDS("u64", "s64", u64, s64)});
  enter(
      r,
      {MIXED("shf.l.wrap.b32", u32, u32, u32, u32, (u64(b) << 32 | a) << (c & 31) >> 32, MOVES),
       MIXED("shf.r.wrap.b32", u32, u32, u32, u32, (u64(b) << 32 | a) >> (c & 31), MOVES),
       MIXED("shf.l.clamp.b32", u32, u32, u32, u32, c >= 32 ? a : u32((u64(b) << 32 | a) << c >> 32), MOVES),
       MIXED("shf.r.clamp.b32", u32, u32, u32, u32, c >= 32 ? b : u32((u64(b) << 32 | a) >> c), MOVES), PACK(2),
       PACK(4), PACK(8), PACK(16), MIXED("fns.b32", u32, u32, u32, s32, nth_set(a, b, c), INTEGER),
       BINARY("bmsk.clamp.b32", u32, ((1ull << std::min(b, 32u)) - 1) << std::min(a, 32u), INTEGER),
       BINARY("bmsk.wrap.b32", u32, ((1ull << (b & 31)) - 1) << (a & 31), INTEGER),
       BINARY("szext.clamp.u32", u32,
              b >= 32  ? a
              : b == 0 ? 0
                       : a & ((1ull << b) - 1),
              INTEGER),
       BINARY("szext.clamp.s32", s32,
              u32(b) >= 32 ? a
              : b == 0     ? 0
                           : s32(u32(a) << (32 - b)) >> (32 - b),
              INTEGER),
       BINARY("szext.wrap.u32", u32, a & ((1ull << (b & 31)) - 1), INTEGER),
       BINARY("szext.wrap.s32", s32, (b & 31) == 0 ? 0 : s32(u32(a) << (32 - (b & 31))) >> (32 - (b & 31)), INTEGER)});
  enter(r, {TERNARY("dp4a.u32.u32", u32, (dot4<u8, u8>(a, b, c)), INTEGER),
            TERNARY("dp4a.s32.s32", u32, (dot4<s8, s8>(a, b, c)), INTEGER),
            TERNARY("dp4a.u32.s32", u32, (dot4<u8, s8>(a, b, c)), INTEGER),
            TERNARY("dp4a.s32.u32", u32, (dot4<s8, u8>(a, b, c)), INTEGER),
            TERNARY("dp2a.lo.u32.u32", u32, (dot2<u8, u8, 0>(a, b, c)), INTEGER),
            TERNARY("dp2a.lo.s32.s32", u32, (dot2<s8, s8, 0>(a, b, c)), INTEGER),
            TERNARY("dp2a.lo.u32.s32", u32, (dot2<u8, s8, 0>(a, b, c)), INTEGER),
            TERNARY("dp2a.lo.s32.u32", u32, (dot2<s8, u8, 0>(a, b, c)), INTEGER),
            TERNARY("dp2a.hi.u32.u32", u32, (dot2<u8, u8, 1>(a, b, c)), INTEGER),
            TERNARY("dp2a.hi.s32.s32", u32, (dot2<s8, s8, 1>(a, b, c)), INTEGER),
            TERNARY("dp2a.hi.u32.s32", u32, (dot2<u8, s8, 1>(a, b, c)), INTEGER),
            TERNARY("dp2a.hi.s32.u32", u32, (dot2<s8, u8, 1>(a, b, c)), INTEGER)});
  enter(r, {{"prmt.b32",
             [](Warp &w, const Instr &i, u32 m) {
               const u32 mode = i.o[4];
               lanes(
                   m, w.reg<u32>(i.o[0]), [mode](u32 a, u32 b, u32 c) { return permute(a, b, c, mode); },
                   w.reg<u32>(i.o[1]), w.reg<u32>(i.o[2]), w.reg<u32>(i.o[3]));
             },
             "d4 s4 s4 s4 n", MOVES},
            {"lop3.b32",
             [](Warp &w, const Instr &i, u32 m) {
               const u32 table = i.o[4];
               lanes(
                   m, w.reg<u32>(i.o[0]), [table](u32 a, u32 b, u32 c) { return lop3(a, b, c, table); },
                   w.reg<u32>(i.o[1]), w.reg<u32>(i.o[2]), w.reg<u32>(i.o[3]));
             },
             "d4 s4 s4 s4 n", integer(Undefined::LOP3)}});
  const char *const add32 = "d4 s4 s4 s0? d0?", *const add64 = "d8 s8 s8 s0? d0?";
  const char *const mad32 = "d4 s4 s4 s4 s0? d0?", *const mad64 = "d8 s8 s8 s8 s0? d0?", *const predicates = "d0 s0 s0";
  enter(r, {{"addc.u32", add_carry<u32, false>, add32, INTEGER},
            {"addc.u64", add_carry<u64, false>, add64, INTEGER},
            {"subc.u32", add_carry<u32, true>, add32, INTEGER},
            {"subc.u64", add_carry<u64, true>, add64, INTEGER},
            {"madc.lo.u32", mad_carry<u32, u128, false>, mad32, INTEGER},
            {"madc.hi.u32", mad_carry<u32, u128, true>, mad32, INTEGER},
            {"madc.lo.s32", mad_carry<s32, s128, false>, mad32, INTEGER},
            {"madc.hi.s32", mad_carry<s32, s128, true>, mad32, INTEGER},
            {"madc.lo.u64", mad_carry<u64, u128, false>, mad64, INTEGER},
            {"madc.hi.u64", mad_carry<u64, u128, true>, mad64, INTEGER},
            {"madc.lo.s64", mad_carry<s64, s128, false>, mad64, INTEGER},
            {"madc.hi.s64", mad_carry<s64, s128, true>, mad64, INTEGER}});
#define PREDICATES(name, expr, about)                                                                                \
  {name, [](Warp &w, const Instr &i, u32 m) { masks(w, i, m, [](u32 a, [[maybe_unused]] u32 b) { return expr; }); }, \
   predicates, about}
  enter(r, {PREDICATES("and.pred", a & b, predicate(Undefined::AND)),
            PREDICATES("or.pred", a | b, predicate(Undefined::OR)),
            PREDICATES("xor.pred", a ^ b, predicate(Undefined::XOR)),
            PREDICATES("not.pred", ~a, predicate(Undefined::BIT_BY_BIT)),
            PREDICATES("mov.pred", a, About::does(Effect::COPIES, "predicate", Undefined::AS_BITS_MOVE))});
#undef PREDICATES
  enter(r,
        {{"mov.b16", move<u16>, "d2 s2", MOVE},
         {"mov.b32", move<u32>, "d4 s4", MOVE},
         {"mov.b64", move<u64>, "d8 s8", MOVE},
         {"mov.b128", move<Wide>, "d16 s16", MOVE},
         {"selp.b16", select<u16>, "d2 s2 s2 s0", predicate(Undefined::MOVED_BY_3)},
         {"selp.b32", select<u32>, "d4 s4 s4 s0", predicate(Undefined::MOVED_BY_3)},
         {"selp.b64", select<u64>, "d8 s8 s8 s0", predicate(Undefined::MOVED_BY_3)},
         MIXED("slct.b16.s32", u16, u16, u16, s32, c >= 0 ? a : b, predicate(Undefined::MOVED_BY_3)),
         MIXED("slct.b32.s32", u32, u32, u32, s32, c >= 0 ? a : b, predicate(Undefined::MOVED_BY_3)),
         MIXED("slct.b64.s32", u64, u64, u64, s32, c >= 0 ? a : b, predicate(Undefined::MOVED_BY_3)),
         MIXED("slct.b16.f32", u16, u16, u16, float, c >= 0 ? a : b, predicate(Undefined::MOVED_BY_3)),
         MIXED("slct.b32.f32", u32, u32, u32, float, c >= 0 ? a : b, predicate(Undefined::MOVED_BY_3)),
         MIXED("slct.b64.f32", u64, u64, u64, float, c >= 0 ? a : b, predicate(Undefined::MOVED_BY_3)),
         {"pack", pack, "d* n n s*+", PIECES},
         {"unpack", unpack, "s* n n d*?+", PIECES},
         {"nop", [](Warp &, const Instr &, u32) {}, "", About::does(Effect::NOTHING, "control", Undefined::NOTHING)}});
}

}  // namespace vm
