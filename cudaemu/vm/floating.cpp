// Floating point: f32, f64, and the 16-bit formats alone and in pairs.
//
// What the manual calls exact is exact: add, sub, mul, fma, div.rn, rcp.rn, sqrt.rn with each rounding mode, subnormals
// and signed zeros included; a NaN result of an f32 or 16-bit operation is the canonical one. What it calls .approx is
// computed more accurately than the hardware does: the exact result, rounded to nearest (sin, cos, lg2, tanh: as good
// as libm's double). For sin and cos that holds for every angle, while the hardware's error is bounded between -2 pi
// and 2 pi only: it grows beyond, until from 2^31 on an H200 answers as for 0.
#include <cfenv>
#include <cmath>

#include "block.h"
#include "half.h"

namespace vm {

static constexpr About FLOAT = About::computes("float", Undefined::ALL_OF_IT);
static constexpr About FMA = About::computes("fma", Undefined::ALL_OF_IT);

void write_truth(Warp &, const Instr &, u32 m, u32 truth);

// Rounding of the host, for as long as this object lives.
struct Rounding {
  const bool changed;
  explicit Rounding(u32 flags) : changed(flags & ROUND_MASK) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    if (changed) fesetround(modes[(flags & ROUND_MASK) >> ROUND_SHIFT]);
  }
  ~Rounding() {
    if (changed) fesetround(FE_TONEAREST);
  }
};

static inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
static inline double flushed(double x) { return x; }
static inline float canonical(float x) { return x == x ? x : as<float>(0x7fffffffu); }
static inline double canonical(double x) { return x; }
static inline float saturated(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }  // NaN gives 0
static inline double saturated(double x) { return x > 0 ? (x < 1 ? x : 1.0) : 0.0; }

// d = f(sources), one lane after another: with whatever .ftz, .sat and rounding mode the instruction has.
template <class T, class... S>
SHARED_CODE static void compute_each(Warp &w, const Instr &i, u32 m, T (*f)(S...), const S *...s) {
  alignas(64) T result[LANES];
  const bool ftz = sizeof(T) == 4 && i.flags & FTZ, sat = i.flags & SAT;
  {
    const Rounding rounding(i.flags);
    for (int lane = 0; lane < LANES; ++lane) {
      T x = ftz ? f(T(flushed(s[lane]))...) : f(s[lane]...);
      if (ftz) x = flushed(x);
      result[lane] = sat ? saturated(x) : canonical(x);
    }
  }
  blend<1>(w.reg<T>(i.o[0]), result, m);
}

// d = f(sources), with .ftz, .sat and the rounding mode of the instruction.
template <class T, class F, class... S>
static inline void compute(Warp &w, const Instr &i, u32 m, F f, const S *...s) {
  T *d = w.reg<T>(i.o[0]);
  if (__builtin_expect(!(i.flags & (FTZ | SAT | ROUND_MASK)), 1)) {
    lanes(m, d, [f](auto... x) { return T(canonical(T(f(x...)))); }, s...);
    return;
  }
  if (sizeof(T) == 4 && (i.flags & (FTZ | SAT | ROUND_MASK)) == FTZ)
    return lanes(m, d, [f](auto... x) { return flushed(canonical(T(f(T(flushed(x))...)))); }, s...);
  compute_each(w, i, m, static_cast<T (*)(S...)>(f), s...);
}

template <class T, class F>
static inline void unary(Warp &w, const Instr &i, u32 m, F f) {
  compute<T>(w, i, m, f, w.reg<T>(i.o[1]));
}
template <class T, class F>
static inline void binary(Warp &w, const Instr &i, u32 m, F f) {
  compute<T>(w, i, m, f, w.reg<T>(i.o[1]), w.reg<T>(i.o[2]));
}
template <class T, class F>
static inline void ternary(Warp &w, const Instr &i, u32 m, F f) {
  compute<T>(w, i, m, f, w.reg<T>(i.o[1]), w.reg<T>(i.o[2]), w.reg<T>(i.o[3]));
}

#define UNARY(name, T, expr)                                                                                          \
  {name, [](Warp &w, const Instr &i, u32 m) { unary<T>(w, i, m, [](T a) -> T { return T(expr); }); }, widths<T, T>(), \
   FLOAT}
#define BINARY(name, T, expr)                                                                               \
  {name, [](Warp &w, const Instr &i, u32 m) { binary<T>(w, i, m, [](T a, T b) -> T { return T(expr); }); }, \
   widths<T, T, T>(), FLOAT}
#define TERNARY(name, T, expr, about)                                                                             \
  {name, [](Warp &w, const Instr &i, u32 m) { ternary<T>(w, i, m, [](T a, T b, T c) -> T { return T(expr); }); }, \
   widths<T, T, T, T>(), about}

// One NaN gives the other operand, and -0 < +0.
template <class T>
static inline T minimum(T a, T b) {
  return a < b || b != b || (a == b && std::signbit(a)) ? a : b;
}
template <class T>
static inline T maximum(T a, T b) {
  return a > b || b != b || (a == b && !std::signbit(a)) ? a : b;
}
template <class T>
static inline T either_nan(T a, T b, T otherwise) {
  return a != a ? a : b != b ? b : otherwise;
}
template <class T>
static inline T xor_sign(T magnitude, T a, T b) {
  return std::signbit(a) != std::signbit(b) ? -std::fabs(magnitude) : std::fabs(magnitude);
}

template <class T>
static inline T either_nan(T a, T b, T c, T otherwise) {
  return a != a || b != b || c != c ? T(NAN) : otherwise;
}

// f32x2: two floats of a lane side by side, each as one by itself.
template <class F, class... S>
static inline void compute_pairs(Warp &w, const Instr &i, u32 m, F f, const S *...s) {
  const bool ftz = i.flags & FTZ;
  const Rounding rounding(i.flags);
  lanes<2>(
      m, w.reg<float>(i.o[0]),
      [f, ftz](auto... x) { return ftz ? flushed(canonical(f(flushed(x)...))) : canonical(f(x...)); }, s...);
}
#define PAIRS2(name, expr)                                                                                     \
  {name,                                                                                                       \
   [](Warp &w, const Instr &i, u32 m) {                                                                        \
     compute_pairs(                                                                                            \
         w, i, m, [](float a, float b) -> float { return expr; }, w.reg<float>(i.o[1]), w.reg<float>(i.o[2])); \
   },                                                                                                          \
   "d8 s8 s8", About::computes("float", Undefined::HALF_BY_HALF)}

// abs, neg and copysign only touch the sign: a NaN stays as it is, but .ftz flushes.
template <class F>
static void sign_f32(Warp &w, const Instr &i, u32 m, F f) {
  const bool ftz = i.flags & FTZ;
  lanes(
      m, w.reg<u32>(i.o[0]),
      [f, ftz](u32 a) {
        const u32 out = f(a);
        return ftz && (out & 0x7f800000u) == 0 ? out & 0x80000000u : out;
      },
      w.reg<u32>(i.o[1]));
}

// 2^x: x = n + r with |r| <= 1/2; the Taylor series of exp(r ln 2) to the 10th power is good to 2^-40.
static inline float exp2_exact(float x) {
  const double clamped = x < -200.0f ? -200.0 : x > 200.0f ? 200.0 : double(x);
  const double n = std::nearbyint(clamped), r = (clamped - n) * 0.693147180559945309417;
  double p = 1.0 / 3628800;
  p = p * r + 1.0 / 362880, p = p * r + 1.0 / 40320, p = p * r + 1.0 / 5040, p = p * r + 1.0 / 720,
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24, p = p * r + 1.0 / 6, p = p * r + 0.5, p = p * r + 1, p = p * r + 1;
  const double power = as<double>(u64(s64(n) + 1023) << 52);
  return x == x ? float(p * power) : x;
}

template <class T>
static void compare(Warp &w, const Instr &i, u32 m) {
  const T *a = w.reg<T>(i.o[3]), *b = w.reg<T>(i.o[4]);
  T x[LANES], y[LANES];
  if (sizeof(T) == 4 && i.flags & FTZ) {
    for (int lane = 0; lane < LANES; ++lane) x[lane] = T(flushed(float(a[lane]))), y[lane] = T(flushed(float(b[lane])));
    a = x, b = y;
  }
  const u32 relation = i.o[7];
  u32 truth = 0;
  if (relation & 1) truth |= ballot([](T x, T y) { return x < y; }, a, b);
  if (relation & 2) truth |= ballot([](T x, T y) { return x == y; }, a, b);
  if (relation & 4) truth |= ballot([](T x, T y) { return x > y; }, a, b);
  if (relation & 8) truth |= ballot([](T x, T y) { return x != x || y != y; }, a, b);
  write_truth(w, i, m, truth);
}

// div.approx multiplies by the reciprocal, which is 0 where it would be subnormal: for every |b| above 2^126.
static inline float divide_approximately(float a, float b) {
  return std::fabs(b) > 0x1p126f ? a * std::copysign(0.0f, b) : a / b;
}

// o: predicate, value, what (0 finite, 1 infinite, 2 number, 3 notanumber, 4 normal, 5 subnormal). As PTX has it, zero
// is normal.
template <class T>
static void test(Warp &w, const Instr &i, u32 m) {
  const T *a = w.reg<T>(i.o[1]);
  u32 truth = 0;
  for (int lane = 0; lane < LANES; ++lane) {
    const int kind = std::fpclassify(a[lane]);
    const bool is[] = {kind != FP_NAN && kind != FP_INFINITE, kind == FP_INFINITE, kind != FP_NAN, kind == FP_NAN,
                       kind == FP_NORMAL || kind == FP_ZERO,  kind == FP_SUBNORMAL};
    truth |= u32(is[i.o[2]]) << lane;
  }
  w.pred(i.o[0]) = (w.pred(i.o[0]) & ~m) | (truth & m);
}

// ---- 16 bits: PER elements of a lane, computed in float and rounded once ----

template <Format F>
static inline u16 flush16(u16 h) {
  return h & (F == Format::F16 ? 0x7c00 : 0x7f80) ? h : h & 0x8000;
}

template <Format F, int PER, class G, class... S>
static inline void compute16(Warp &w, const Instr &i, u32 m, G g, const S *...slot) {
  constexpr int N = LANES * PER;
  alignas(64) float in[sizeof...(S)][N], result[N];
  alignas(64) u16 out[N];
  int k = 0;
  for (const u16 *from : {reinterpret_cast<const u16 *>(slot)...}) {
    alignas(64) u16 copy[N];
    if (i.flags & FTZ) {
      for (int n = 0; n < N; ++n) copy[n] = flush16<F>(from[n]);
      from = copy;
    }
    widen_array<F, N>(from, in[k++]);
  }
  for (int n = 0; n < N; ++n) {
    if constexpr (sizeof...(S) == 1)
      result[n] = g(in[0][n]);
    else if constexpr (sizeof...(S) == 2)
      result[n] = g(in[0][n], in[1][n]);
    else
      result[n] = g(in[0][n], in[1][n], in[2][n]);
  }
  if (i.flags & SAT)
    for (float &x : result) x = saturated(x);
  if (i.flags & RELU)
    for (float &x : result) x = x != x ? x : x > 0 ? x : 0.0f;
  narrow_array<F, N>(result, out);
  if (i.flags & FTZ)
    for (u16 &h : out) h = flush16<F>(h);
  u16 *d = w.reg<u16>(i.o[0]);
  if (m == ALL)
    memcpy(d, out, sizeof out);
  else
    blend<PER>(d, out, m);
}

template <Format F, int PER>
static void fma16(Warp &w, const Instr &i, u32 m) {
  compute16<F, PER>(
      w, i, m, [](float a, float b, float c) { return odd_fma(a, b, c); }, w.reg<u16>(i.o[1]), w.reg<u16>(i.o[2]),
      w.reg<u16>(i.o[3]));
}

// Two halves are undefined each by itself.
template <int PER>
static constexpr Undefined by_halves() {
  return PER == 1 ? Undefined::ALL_OF_IT : Undefined::HALF_BY_HALF;
}
template <int PER>
static constexpr About half() {
  return About::computes("half", by_halves<PER>());
}
template <int PER>
static constexpr About truth() {
  return About::computes("predicate", by_halves<PER>());
}
template <int PER>
struct Halves {
  u16 each[PER];
};  // of one lane: for its size
#define HALF1(name, F, PER, expr)                                                           \
  {name,                                                                                    \
   [](Warp &w, const Instr &i, u32 m) {                                                     \
     compute16<F, PER>(w, i, m, [](float a) -> float { return expr; }, w.reg<u16>(i.o[1])); \
   },                                                                                       \
   widths<Halves<PER>, Halves<PER>>(), half<PER>()}
#define HALF2(name, F, PER, expr)                                                                          \
  {name,                                                                                                   \
   [](Warp &w, const Instr &i, u32 m) {                                                                    \
     compute16<F, PER>(                                                                                    \
         w, i, m, [](float a, float b) -> float { return expr; }, w.reg<u16>(i.o[1]), w.reg<u16>(i.o[2])); \
   },                                                                                                      \
   widths<Halves<PER>, Halves<PER>, Halves<PER>>(), half<PER>()}

// Sign bits alone: exact for NaN too.
template <int PER, class G>
static void bits16(Warp &w, const Instr &i, u32 m, G g) {
  lanes<PER>(m, w.reg<u16>(i.o[0]), g, w.reg<u16>(i.o[1]));
}

// setp, set on 16 bits. o as for compare; a pair gives p for the low half and q for the high one (setp), or both halves
// (set).
template <Format F, int PER>
static void compare16(Warp &w, const Instr &i, u32 m) {
  constexpr int N = LANES * PER;
  alignas(64) float x[N], y[N];
  widen_array<F, N>(w.reg<u16>(i.o[3]), x);
  widen_array<F, N>(w.reg<u16>(i.o[4]), y);
  const u32 relation = i.o[7];
  u32 truth[PER] = {};
  for (int lane = 0; lane < LANES; ++lane)
    for (int e = 0; e < PER; ++e) {
      const float a = x[lane * PER + e], b = y[lane * PER + e];
      const u32 outcome = a < b ? 1 : a == b ? 2 : a > b ? 4 : 8;
      truth[e] |= u32((relation & outcome) != 0) << lane;
    }
  if constexpr (PER == 1)
    write_truth(w, i, m, truth[0]);
  else {
    const u32 c = i.o[5] ? w.pred(i.o[6]) ^ (i.flags & NOT_PRED ? ALL : 0) : 0;
    for (u32 &t : truth) t = i.o[5] == 1 ? t & c : i.o[5] == 2 ? t | c : i.o[5] == 3 ? t ^ c : t;
    if (i.o[0] == 0) {
      for (int e = 0; e < 2; ++e)
        if (i.o[1 + e] != ALL) w.pred(i.o[1 + e]) = (w.pred(i.o[1 + e]) & ~m) | (truth[e] & m);
    } else
      for (int lane = 0; lane < LANES; ++lane)
        if (m >> lane & 1)
          for (int e = 0; e < 2; ++e) w.reg<u16>(i.o[1])[2 * lane + e] = truth[e] >> lane & 1 ? u16(i.o[0]) : 0;
  }
}

u16 add_half(u16 a, u16 b, bool bf16) {
  return bf16 ? narrow_bf16(widen_bf16(a) + widen_bf16(b)) : narrow_half(widen_half(a) + widen_half(b));
}

#define HALF_FORMAT(suffix, F, PER)                                                                              \
  HALF2("add." suffix, F, PER, a + b), HALF2("sub." suffix, F, PER, a - b), HALF2("mul." suffix, F, PER, a *b),  \
      {"fma." suffix, fma16<F, PER>, widths<Halves<PER>, Halves<PER>, Halves<PER>, Halves<PER>>(), half<PER>()}, \
      {"compare." suffix, compare16<F, PER>, PER == 1 ? "n d*? d0? s2 s2 n s0? n" : "n d*? d0? s4 s4 n s0? n",   \
       truth<PER>()},                                                                                            \
      HALF2("min." suffix, F, PER, minimum(a, b)), HALF2("max." suffix, F, PER, maximum(a, b)),                  \
      HALF2("min.NaN." suffix, F, PER, either_nan(a, b, minimum(a, b))),                                         \
      HALF2("max.NaN." suffix, F, PER, either_nan(a, b, maximum(a, b))),                                         \
      HALF2("min.xorsign.abs." suffix, F, PER, xor_sign(minimum(std::fabs(a), std::fabs(b)), a, b)),             \
      HALF2("max.xorsign.abs." suffix, F, PER, xor_sign(maximum(std::fabs(a), std::fabs(b)), a, b)),             \
      HALF1("ex2." suffix, F, PER, exp2_exact(a)), HALF1("tanh." suffix, F, PER, float(std::tanh(double(a)))),   \
      {"abs." suffix,                                                                                            \
       [](Warp &w, const Instr &i, u32 m) { bits16<PER>(w, i, m, [](u16 a) { return u16(a & 0x7fff); }); },      \
       widths<Halves<PER>, Halves<PER>>(), half<PER>()},                                                         \
  {                                                                                                              \
    "neg." suffix,                                                                                               \
        [](Warp &w, const Instr &i, u32 m) { bits16<PER>(w, i, m, [](u16 a) { return u16(a ^ 0x8000); }); },     \
        widths<Halves<PER>, Halves<PER>>(), half<PER>()                                                          \
  }

#define FLOAT_FORMAT(suffix, T)                                                                               \
  BINARY("add." suffix, T, a + b), BINARY("sub." suffix, T, a - b), BINARY("mul." suffix, T, a *b),           \
      TERNARY("fma." suffix, T, std::fma(a, b, c), FMA), BINARY("div." suffix, T, a / b),                     \
      UNARY("rcp." suffix, T, T(1) / a), UNARY("sqrt." suffix, T, std::sqrt(a)),                              \
      BINARY("min." suffix, T, minimum(a, b)), BINARY("max." suffix, T, maximum(a, b)),                       \
      {"compare." suffix, compare<T>, sizeof(T) == 4 ? "n d*? d0? s4 s4 n s0? n" : "n d*? d0? s8 s8 n s0? n", \
       truth<1>()},                                                                                           \
  {                                                                                                           \
    "testp." suffix, test<T>, sizeof(T) == 4 ? "d0 s4 n" : "d0 s8 n", truth<1>()                              \
  }

void register_floating(Registry &r) {
  enter(r, {FLOAT_FORMAT("f32", float), FLOAT_FORMAT("f64", double)});
  enter(
      r,
      {BINARY("div.approx.f32", float, divide_approximately(a, b)),
       UNARY("rsqrt.f32", float, 1.0 / std::sqrt(double(a))),
       UNARY("rsqrt.f64", double, 1.0L / std::sqrt((long double)a)), UNARY("ex2.f32", float, exp2_exact(a)),
       UNARY("lg2.f32", float, std::log2(double(a))), UNARY("sin.f32", float, std::sin(double(a))),
       UNARY("cos.f32", float, std::cos(double(a))), UNARY("tanh.f32", float, std::tanh(double(a))),
       BINARY("min.NaN.f32", float, either_nan(a, b, minimum(a, b))),
       BINARY("max.NaN.f32", float, either_nan(a, b, maximum(a, b))),
       BINARY("min.xorsign.abs.f32", float, xor_sign(minimum(std::fabs(a), std::fabs(b)), a, b)),
       BINARY("max.xorsign.abs.f32", float, xor_sign(maximum(std::fabs(a), std::fabs(b)), a, b)),
       BINARY("min.NaN.xorsign.abs.f32", float, either_nan(a, b, xor_sign(minimum(std::fabs(a), std::fabs(b)), a, b))),
       BINARY("max.NaN.xorsign.abs.f32", float, either_nan(a, b, xor_sign(maximum(std::fabs(a), std::fabs(b)), a, b)))});
  enter(r,
        {{"abs.f32", [](Warp &w, const Instr &i, u32 m) { sign_f32(w, i, m, [](u32 a) { return a & 0x7fffffffu; }); },
          "d4 s4", FLOAT},
         {"neg.f32", [](Warp &w, const Instr &i, u32 m) { sign_f32(w, i, m, [](u32 a) { return a ^ 0x80000000u; }); },
          "d4 s4", FLOAT},
         {"abs.f64",
          [](Warp &w, const Instr &i, u32 m) {
            lanes(m, w.reg<u64>(i.o[0]), [](u64 a) { return a & ~(1ull << 63); }, w.reg<u64>(i.o[1]));
          },
          "d8 s8", FLOAT},
         {"neg.f64",
          [](Warp &w, const Instr &i, u32 m) {
            lanes(m, w.reg<u64>(i.o[0]), [](u64 a) { return a ^ 1ull << 63; }, w.reg<u64>(i.o[1]));
          },
          "d8 s8", FLOAT},
         {"copysign.f32",
          [](Warp &w, const Instr &i, u32 m) {  // the sign of a, the magnitude of b
            lanes(
                m, w.reg<u32>(i.o[0]), [](u32 a, u32 b) { return (a & 1u << 31) | (b & ~(1u << 31)); },
                w.reg<u32>(i.o[1]), w.reg<u32>(i.o[2]));
          },
          "d4 s4 s4", FLOAT},
         {"copysign.f64",
          [](Warp &w, const Instr &i, u32 m) {
            lanes(
                m, w.reg<u64>(i.o[0]), [](u64 a, u64 b) { return (a & 1ull << 63) | (b & ~(1ull << 63)); },
                w.reg<u64>(i.o[1]), w.reg<u64>(i.o[2]));
          },
          "d8 s8 s8", FLOAT}});
#define THREE(name, T, expr) TERNARY(name, T, expr, FLOAT)
  enter(r, {THREE("min3.f32", float, minimum(minimum(a, b), c)), THREE("max3.f32", float, maximum(maximum(a, b), c)),
            THREE("min3.NaN.f32", float, either_nan(a, b, c, minimum(minimum(a, b), c))),
            THREE("max3.NaN.f32", float, either_nan(a, b, c, maximum(maximum(a, b), c))),
            THREE("min3.abs.f32", float, minimum(minimum(std::fabs(a), std::fabs(b)), std::fabs(c))),
            THREE("max3.abs.f32", float, maximum(maximum(std::fabs(a), std::fabs(b)), std::fabs(c))),
            THREE("min3.NaN.abs.f32", float,
                  either_nan(a, b, c, minimum(minimum(std::fabs(a), std::fabs(b)), std::fabs(c)))),
            THREE("max3.NaN.abs.f32", float,
                  either_nan(a, b, c, maximum(maximum(std::fabs(a), std::fabs(b)), std::fabs(c))))});
#undef THREE
  enter(r, {PAIRS2("add.f32x2", a + b),
            PAIRS2("sub.f32x2", a - b),
            PAIRS2("mul.f32x2", a * b),
            {"fma.f32x2",
             [](Warp &w, const Instr &i, u32 m) {
               compute_pairs(
                   w, i, m, [](float a, float b, float c) { return std::fma(a, b, c); }, w.reg<float>(i.o[1]),
                   w.reg<float>(i.o[2]), w.reg<float>(i.o[3]));
             },
             "d8 s8 s8 s8", About::computes("fma", Undefined::HALF_BY_HALF)}});
  enter(r, {HALF_FORMAT("f16", Format::F16, 1), HALF_FORMAT("f16x2", Format::F16, 2)});
  enter(r, {HALF_FORMAT("bf16", Format::BF16, 1), HALF_FORMAT("bf16x2", Format::BF16, 2)});
}

}  // namespace vm
