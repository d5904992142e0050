// Instructions in which the lanes of a warp meet: shuffles, votes, matches, reductions; and queries of address spaces.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "block.h"

namespace vm {

enum ShuffleMode { UP, DOWN, BUTTERFLY, INDEX };

// shfl.sync. o: d, predicate (or ~0), a, lane or delta, clamp and segment, mode
template <int MODE>
static void shuffle_by(Warp &w, const Instr &i, u32 m) {
  alignas(64) u32 source[LANES], out[LANES], from[LANES], inside[LANES];
  const u32 *b = w.reg<u32>(i.o[3]), *c = w.reg<u32>(i.o[4]);
  memcpy(source, w.reg<u32>(i.o[2]), sizeof source);
  INDEPENDENT
  for (int lane = 0; lane < LANES; ++lane) {
    const s32 delta = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
    const s32 last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    const s32 wanted =
        MODE == UP          ? lane - delta
        : MODE == DOWN      ? lane + delta
        : MODE == BUTTERFLY ? lane ^ delta
                            : first | (delta & ~segment);
    const bool ok = MODE == UP ? wanted >= last : wanted <= last;
    from[lane] = ok ? wanted : lane;
    inside[lane] = ok;
  }
  for (int lane = 0; lane < LANES; ++lane) out[lane] = source[from[lane] & 31];
  if (i.o[0] != ALL) {
    if (m == ALL)
      memcpy(w.reg<u32>(i.o[0]), out, sizeof out);
    else
      blend<1>(w.reg<u32>(i.o[0]), out, m);
  }
  if (i.o[1] != ALL) {
    const u32 truth = ballot([](u32 x) { return x; }, inside);
    w.pred(i.o[1]) = (w.pred(i.o[1]) & ~m) | (truth & m);
  }
  if (m == ALL) return;
  const u32 absent = ballot([m](u32 lane) { return !(m >> (lane & 31) & 1); }, from) & m;
  if (absent) w.block->absent(w, i, i.o[0], absent);
}

static void shuffle(Warp &w, const Instr &i, u32 m) {
  switch (i.o[5]) {
    case UP:
      return shuffle_by<UP>(w, i, m);
    case DOWN:
      return shuffle_by<DOWN>(w, i, m);
    case BUTTERFLY:
      return shuffle_by<BUTTERFLY>(w, i, m);
    default:
      return shuffle_by<INDEX>(w, i, m);
  }
}

// vote.sync. o: d, predicate, mode (0 ballot, 1 all, 2 any, 3 uni)
static void vote(Warp &w, const Instr &i, u32 m) {
  const u32 p = (w.pred(i.o[1]) ^ (i.flags & NOT_PRED ? ALL : 0)) & m;
  const bool truth[] = {false, p == m, p != 0, p == 0 || p == m};
  if (i.o[2] == 0) {
    for (int lane = 0; lane < LANES; ++lane)
      if (m >> lane & 1) w.reg<u32>(i.o[0])[lane] = p;
  } else
    w.pred(i.o[0]) = (w.pred(i.o[0]) & ~m) | (truth[i.o[2]] ? m : 0);
}

// match.sync. o: d, predicate (or ~0), value, all
template <class T>
static void match(Warp &w, const Instr &i, u32 m) {
  T value[LANES];
  memcpy(value, w.reg<T>(i.o[2]), sizeof value);
  u32 everyone = m;
  for (int lane = 0; lane < LANES; ++lane) {
    if (!(m >> lane & 1)) continue;
    u32 same = 0;
    for (int other = 0; other < LANES; ++other) same |= u32((m >> other & 1) && value[other] == value[lane]) << other;
    if (!i.o[3]) w.reg<u32>(i.o[0])[lane] = same;
    everyone &= same;
  }
  if (!i.o[3]) return;
  for (int lane = 0; lane < LANES; ++lane)
    if ((m >> lane & 1) && i.o[0] != ALL) w.reg<u32>(i.o[0])[lane] = everyone == m ? m : 0;
  if (i.o[1] != ALL) w.pred(i.o[1]) = (w.pred(i.o[1]) & ~m) | (everyone == m ? m : 0);
}

// redux.sync. o: d, a
template <class T, class F>
static void reduce(Warp &w, const Instr &i, u32 m, F f) {
  T part[LANES], *out = w.reg<T>(i.o[0]);
  memcpy(part, w.reg<T>(i.o[1]), sizeof part);
  T sum = part[__builtin_ctz(m)];
  if (m == ALL) {
    for (int half = LANES / 2; half; half /= 2)
      for (int lane = 0; lane < half; ++lane) part[lane] = f(part[lane], part[lane + half]);
    return void(std::fill(out, out + LANES, part[0]));
  }
  for (u32 rest = m & (m - 1); rest; rest &= rest - 1) sum = f(sum, part[__builtin_ctz(rest)]);
  for (u32 rest = m; rest; rest &= rest - 1) out[__builtin_ctz(rest)] = sum;
}
#define REDUX(name, T, expr)                                                                                      \
  {"redux." name, [](Warp &w, const Instr &i, u32 m) { reduce<T>(w, i, m, [](T a, T b) -> T { return expr; }); }, \
   "d4 s4", About::does(Effect::EXCHANGES, "shuffle", Undefined::ALL_LANES)}

template <class T>
static void everywhere(Warp &w, u32 slot, u32 m, T value) {
  for (int lane = 0; lane < LANES; ++lane)
    if (m >> lane & 1) w.reg<T>(slot)[lane] = value;
}

// redux.sync.min and .max of f32: of the numbers; .NaN: a NaN if there is one. -0 is below +0.
template <bool MAX, bool ABS, bool NANS>
static void reduce_f32(Warp &w, const Instr &i, u32 m) {
  const float *a = w.reg<float>(i.o[1]);
  float best = NAN;
  bool nan = false;
  for (u32 rest = m; rest; rest &= rest - 1) {
    const float x = a[__builtin_ctz(rest)], y = ABS ? std::fabs(x) : x;
    nan |= y != y;
    const bool before = y < best || (y == best && std::signbit(y));
    if (best != best || (y == y && before != MAX)) best = y;
  }
  if (best != best || (NANS && nan)) best = as<float>(0x7fffffffu);
  everywhere<float>(w, i.o[0], m, best);
}
#define REDUX_F32(name, MAX, ABS, NANS) \
  {"redux." name, reduce_f32<MAX, ABS, NANS>, "d4 s4", About::does(Effect::EXCHANGES, "shuffle", Undefined::ALL_LANES)}

static u64 nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// isspacep. o: predicate, address, window (0 global, 1 shared, 2 local, 3 param, 4 shared memory of the cluster)
static void is_space(Warp &w, const Instr &i, u32 m) {
  const u64 windows[] = {0, SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW}, wanted = windows[i.o[2]];
  u32 truth = ballot([wanted](u64 a) { return (a & WINDOW_MASK) == wanted; }, w.reg<u64>(i.o[1]));
  for (u32 rest = i.o[2] == 1 ? truth : 0; rest; rest &= rest - 1) {
    const u64 a = w.reg<u64>(i.o[1])[__builtin_ctz(rest)] & ~WINDOW_MASK;
    if (a >> Cluster::RANK_SHIFT && w.block->cluster.block(a) != w.block) truth &= ~(rest & -rest);
  }
  w.pred(i.o[0]) = (w.pred(i.o[0]) & ~m) | (truth & m);
}

// cvta. o: d, a, window, to (1: generic to window), 64-bit d, 64-bit a
static void convert_address(Warp &w, const Instr &i, u32 m) {
  const u64 windows[] = {0, SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW}, window = windows[i.o[2]];
  for (int lane = 0; lane < LANES; ++lane) {
    if (!(m >> lane & 1)) continue;
    const u64 a = i.o[5] ? w.reg<u64>(i.o[1])[lane] : w.reg<u32>(i.o[1])[lane];
    const u64 out = !window ? a : i.o[3] ? ((a & WINDOW_MASK) == window ? a & ~WINDOW_MASK : a) : a | window;
    if (i.o[4])
      w.reg<u64>(i.o[0])[lane] = out;
    else
      w.reg<u32>(i.o[0])[lane] = u32(out);
  }
}

// ---- at several places ----

bool Block::same_exchange(const Instr &a, const Instr &b) const {
  if (&a == &b) return true;
  if (!(a.flags & b.flags & ANYWHERE) || a.kind != b.kind || a.run != b.run) return false;
  u32 n = 0;
  for (const char *at = program.anywhere.at(a.pc)->operands; *at; ++n) {
    if (*at == 'n' && a.o[n] != b.o[n]) return false;
    while (*at && *at++ != ' ') continue;
  }
  return true;
}

// The lanes of `mask` have met at these places. The instruction is executed once, in a frame that has nothing but its
// operands, which come from the registers that each place names and go to those.
void Block::exchange(Warp &w, const std::vector<Standing> &places, u32 mask) {
  const Instr &first = *places.front().i;
  struct Operand {
    u32 number, width;
    bool target;
  };
  std::vector<Operand> operands;
  std::vector<u32> o(first.o, first.o + first.count);
  u32 n = 0;
  for (const char *at = program.anywhere.at(first.pc)->operands; *at; ++n) {
    const auto names = [n](const Standing &s) { return s.i->o[n] != ALL; };
    if (*at != 'n' && std::any_of(places.begin(), places.end(), names)) {
      operands.push_back({n, u32(at[1] - '0'), *at == 'd'});
      o[n] = program.spare(n, operands.back().width);
    }
    while (*at && *at++ != ' ') continue;
  }
  const u32 bytes = program.frame_bytes + 5 * Program::SPARE_BYTES;
  std::vector<u8> values(bytes), bits(w.undefined ? bytes : 0);
  u8 *const frame = w.frame, *const undefined = w.undefined;
  const auto move = [&](const Operand &x, const Standing &at, u8 *spare, u8 *real, bool negate) {
    const u32 there = at.i->o[x.number], lanes = x.target ? at.lanes & mask : at.lanes;
    if (there == ALL) return;
    u8 *const from = x.target ? spare + o[x.number] : real + there, *const to =
                                                                        x.target ? real + there : spare + o[x.number];
    if (!x.width) {
      const u32 bit = (bits_of<u32>(to) & ~lanes) | ((bits_of<u32>(from) ^ (negate ? ALL : 0)) & lanes);
      return void(memcpy(to, &bit, sizeof bit));
    }
    for (u32 rest = lanes; rest; rest &= rest - 1) {
      const u32 lane = __builtin_ctz(rest) * x.width;
      memcpy(to + lane, from + lane, x.width);
    }
  };
  Flow flow;
  Instr i = first;
  i.o = o.data();
  i.flags &= ~(NOT_PRED | TRACKED);
  for (const Standing &at : places)
    if (at.i->flags & TRACKED) i.flags |= TRACKED, flow.rule = program.flows.at(at.i->pc).rule;
  for (const bool target : {true, false})
    for (const Operand &x : operands)
      if (x.target == target) flow.offsets.push_back(o[x.number]), ++(target ? flow.targets : flow.sources);
  for (const Operand &x : operands)
    for (const Standing &at : places) {
      if (x.target) continue;
      move(x, at, values.data(), frame, at.i->flags & NOT_PRED);
      if (undefined) move(x, at, bits.data(), undefined, false);
    }
  w.frame = values.data();
  if (undefined) w.undefined = bits.data();
  if (w.tainted && flow.rule) flow.rule(w, i, flow, mask);
  i.run(w, i, mask);
  w.frame = frame;
  w.undefined = undefined;
  for (const Operand &x : operands)
    for (const Standing &at : places) {
      if (!x.target) continue;
      move(x, at, values.data(), frame, false);
      if (undefined && at.i->flags & TRACKED) move(x, at, bits.data(), undefined, false);
    }
}

void register_warp(Registry &r) {
  constexpr About votes = About::does(Effect::EXCHANGES, "vote", Undefined::ALL_LANES);
  constexpr About lanes_here = About::does(Effect::OBSERVES, "vote", Undefined::ALL_OF_IT);
  constexpr About time = About::does(Effect::OBSERVES, "move", Undefined::ALL_OF_IT);
#define TIME(name, T, value) \
  {name, [](Warp &w, const Instr &i, u32 m) { everywhere<T>(w, i.o[0], m, T(value)); }, widths<T>(), time}
  enter(
      r,
      {{"shfl", shuffle, "d4? d0? s4 s4 s4 n", About::does(Effect::EXCHANGES, "shuffle", Undefined::SHUFFLED)},
       {"vote", vote, "d0 s0 n", votes},
       {"vote.ballot", vote, "d4 s0 n", votes},
       {"match.b32", match<u32>, "d4? d0? s4 n", votes},
       {"match.b64", match<u64>, "d4? d0? s8 n", votes},
       {"isspacep", is_space, "d0 s8 n", About::computes("predicate", Undefined::ALL_OF_IT)},
       {"cvta", convert_address, "d* s* n n n n", About::computes("integer", Undefined::ALL_OF_IT)},
       {"bar.warp",
        [](Warp &w, const Instr &, u32 m) {
          if (w.block->launch.sanitize) w.block->meet_lanes(w, m);
        },
        "", About::does(Effect::ORDERS, "barrier", Undefined::NOTHING)},
       {"activemask", [](Warp &w, const Instr &i, u32 m) { everywhere<u32>(w, i.o[0], m, m); }, "d4", lanes_here},
       {"elect",
        [](Warp &w, const Instr &i, u32 m) {
          const u32 leader = __builtin_ctz(m);
          if (i.o[0] != ALL) everywhere<u32>(w, i.o[0], m, leader);
          w.pred(i.o[1]) = (w.pred(i.o[1]) & ~m) | 1u << leader;
        },
        "d4? d0", lanes_here},
       {"nanosleep", [](Warp &w, const Instr &i, u32 m) { w.block->slept += w.reg<u32>(i.o[0])[__builtin_ctz(m)]; },
        "s4", About::does(Effect::STEERS, "control", Undefined::NOTHING)},
       TIME("clock.b32", u32, w.now),
       TIME("clock.b64", u64, w.now),
       TIME("clock_hi.b32", u32, w.now >> 32),
       TIME("globaltimer.b64", u64, nanoseconds()),
       TIME("globaltimer_lo.b32", u32, nanoseconds()),
       TIME("globaltimer_hi.b32", u32, nanoseconds() >> 32),
       REDUX("add.u32", u32, a + b),
       REDUX("min.u32", u32, std::min(a, b)),
       REDUX("max.u32", u32, std::max(a, b)),
       REDUX("min.s32", s32, std::min(a, b)),
       REDUX("max.s32", s32, std::max(a, b)),
       REDUX("and.u32", u32, a & b),
       REDUX("or.u32", u32, a | b),
       REDUX("xor.u32", u32, a ^ b),
       REDUX_F32("min.f32", false, false, false),
       REDUX_F32("max.f32", true, false, false),
       REDUX_F32("min.abs.f32", false, true, false),
       REDUX_F32("max.abs.f32", true, true, false),
       REDUX_F32("min.NaN.f32", false, false, true),
       REDUX_F32("max.NaN.f32", true, false, true),
       REDUX_F32("min.abs.NaN.f32", false, true, true),
       REDUX_F32("max.abs.NaN.f32", true, true, true)});
}

}  // namespace vm
