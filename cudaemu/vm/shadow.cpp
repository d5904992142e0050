// The sanitizer's view of shared memory: who wrote each granule last, and who read it since. A granule is the smallest
// access that the kernel makes.
//
// Most accesses are harmless in bulk: all that was done to the granules is older than what the warp knows of everybody, or
// was done by the same thread. That is seen in loops over granules without branches; where it does not hold, each granule
// is looked at by itself.
#include <algorithm>

#include "block.h"

namespace vm {

static constexpr u64 WARP_BITS = WARP_MASK << WARP_SHIFT, LANE_BITS = LANE_MASK << LANE_SHIFT;
static constexpr u64 OTHER_BITS = LANE_MASK << OTHER_SHIFT, SELF = LANE_BITS | OTHER_BITS | WARP_BITS | BY_MANY_WARPS;
static constexpr u64 LANE_STEP = 1ull << LANE_SHIFT | 1ull << OTHER_SHIFT;

static u32 thread_of(u64 word) { return u32(word >> LANE_SHIFT & (LANE_MASK | WARP_MASK << 5)); }
static u32 pc_of(u64 word) { return u32(word & PC_MASK); }

// Who did it, besides `thread`, which must not be named as its own opponent.
static u32 other_than(u64 word, u32 thread) {
  const u32 one = thread_of(word);
  if (one != thread) return one;
  const u32 another = (one & ~31u) | u32(word >> OTHER_SHIFT & LANE_MASK);
  return word & BY_MANY_WARPS || another == thread ? MANY_THREADS : another;
}

// Both are made for each other: atomics and volatile accesses. But volatile ones of one warp pass for a flag only where
// somebody waits in a loop: otherwise they are what was written before warps could diverge.
static bool made_for_it(u64 a, u64 b) {
  if (!(a & (BY_STRONG | BY_VOLATILE)) || !(b & (BY_STRONG | BY_VOLATILE))) return false;
  return (a | b) & BY_STRONG || (a ^ b) & WARP_BITS;
}

// Has what the word says happened before what a lane of the warp does now?
bool Block::ordered(const Warp &w, int lane, u64 word) const {
  const u32 time = u32(word >> TIME_SHIFT & TIME_MASK), warp = u32(word >> WARP_SHIFT & WARP_MASK);
  if (word & BY_MANY_WARPS) return time < w.oldest;
  if (warp != w.index) return time < w.knows.time[warp];
  const int one = word >> LANE_SHIFT & LANE_MASK, another = word >> OTHER_SHIFT & LANE_MASK;
  const auto known = [&](int of) { return of == lane || time < lane_time(w, lane, of); };
  return known(one) && known(another);
}

static u64 stamp(const Warp &w, int lane, int other, const Instr &i, u64 flags = 0) {
  return u64(w.time) << TIME_SHIFT | flags | u64(w.index) << WARP_SHIFT | u64(lane) << LANE_SHIFT |
         u64(other) << OTHER_SHIFT | std::min<u64>(i.pc, PC_MASK);
}

static u64 strength(const Instr &i) {
  return i.flags & (SPIN | TENTATIVE) ? BY_STRONG : i.flags & STRONG ? BY_VOLATILE : 0;
}

// Two accesses of the same kind, the earlier one perhaps unordered with the later: both, as far as a word can say it.
static u64 merged(u64 earlier, u64 later, bool unordered) {
  if (!unordered) return later;
  const u64 word = (later & (earlier | ~(BY_STRONG | BY_VOLATILE))) | (earlier & BY_MANY_WARPS);
  if ((earlier ^ later) & WARP_BITS) return word | BY_MANY_WARPS;
  const u64 one = earlier >> LANE_SHIFT & LANE_MASK, mine = later >> LANE_SHIFT & LANE_MASK;
  const u64 other = one != mine ? one : earlier >> OTHER_SHIFT & LANE_MASK;
  return other == mine ? word : (word & ~OTHER_BITS) | other << OTHER_SHIFT;
}

// What a warp knows, as words to compare with: of all warps, of the other ones at most, of its own lanes.
struct Horizon {
  u64 oldest, newest, own;
  explicit Horizon(const Warp &w)
      : oldest(u64(w.oldest) << TIME_SHIFT),
        newest(u64(w.newest) << TIME_SHIFT),
        own(u64(w.lanes ? w.oldest : w.knows.time[w.index]) << TIME_SHIFT) {}
};

// Words side by side, as vectors: GCC turns loops over 64-bit comparisons into none by itself.
template <int N>
struct Vectors {
  typedef u64 type __attribute__((vector_size(8 * N), aligned(8)));
};

// f(words, first stamp and steps of the lanes) for pieces of the COUNT granules of each of LANES_ lanes. `first`: the first
// lane's stamp.
template <int COUNT, int LANES_, class F>
static inline void by_pieces(u64 first, F f) {
  constexpr int n = COUNT * LANES_, size = n < 8 ? n : 8;
  using V = typename Vectors<size>::type;
  V steps;
  for (int c = 0; c < size; ++c) steps[c] = c / COUNT * LANE_STEP;
  for (int c = 0; c < n; c += size) f(c, V{} + (first + c / COUNT * LANE_STEP) + steps);
}
template <class V>
static inline bool any(V words) {
  u64 all = 0;
  for (size_t c = 0; c < sizeof words / sizeof(u64); ++c) all |= words[c];
  return all;
}

// COUNT granules for each of some lanes, `first` being the first one's stamp. False if one needs a closer look.
template <int COUNT, int LANES_>
static inline bool read_row(const u64 *written, u64 *read, u64 first, const Horizon &h) {
  constexpr int size = COUNT * LANES_ < 8 ? COUNT * LANES_ : 8;
  using V = typename Vectors<size>::type;
  V bad = {};
  by_pieces<COUNT, LANES_>(first, [&](int c, V mine) {
    const V w = *reinterpret_cast<const V *>(written + c), r = *reinterpret_cast<const V *>(read + c);
    const V limit = ((w ^ mine) & (WARP_BITS | BY_MANY_WARPS)) != 0 ? V{} + h.oldest : V{} + h.own;
    bad |= V(w == 0) | V((w & UNDEFINED) != 0) | (V(w >= limit) & V(((w ^ mine) & (SELF | IN_FLIGHT)) != 0));
    bad |= V(r >= h.oldest) & V(r < h.newest) & V(((r ^ mine) & WARP_BITS) != 0);
  });
  if (any(bad)) return false;
  by_pieces<COUNT, LANES_>(first, [&](int c, V mine) {
    V &read_ = *reinterpret_cast<V *>(read + c);
    const V r = read_, foreign = V(((r ^ mine) & WARP_BITS) != 0), many = V((r & BY_MANY_WARPS) != 0);
    const V one = r & LANE_BITS;
    const V other = one != (mine & LANE_BITS) ? one >> (LANE_SHIFT - OTHER_SHIFT) : r & OTHER_BITS;
    const V word = (mine & (r | ~(BY_STRONG | BY_VOLATILE))) | (r & BY_MANY_WARPS);
    const V both = foreign != 0 ? word | BY_MANY_WARPS : (word & ~OTHER_BITS) | other;
    const V limit = (foreign | many) != 0 ? V{} + h.oldest : V{} + h.own;
    read_ = r >= limit ? both : mine;
  });
  return true;
}

template <int COUNT, int LANES_>
static inline bool write_row(u64 *written, u64 *read, u64 first, const Horizon &h) {
  constexpr int size = COUNT * LANES_ < 8 ? COUNT * LANES_ : 8;
  using V = typename Vectors<size>::type;
  V bad = {};
  by_pieces<COUNT, LANES_>(first, [&](int c, V mine) {
    const V w = *reinterpret_cast<const V *>(written + c), r = *reinterpret_cast<const V *>(read + c);
    const V w_limit = ((w ^ mine) & (WARP_BITS | BY_MANY_WARPS)) != 0 ? V{} + h.oldest : V{} + h.own;
    const V r_limit = ((r ^ mine) & (WARP_BITS | BY_MANY_WARPS)) != 0 ? V{} + h.oldest : V{} + h.own;
    bad |= V(w >= w_limit) & V(((w ^ mine) & (SELF | IN_FLIGHT)) != 0);
    bad |= V(r >= r_limit) & V(((r ^ mine) & SELF) != 0);
  });
  if (any(bad)) return false;
  by_pieces<COUNT, LANES_>(first, [&](int c, V mine) {
    *reinterpret_cast<V *>(written + c) = mine;
    *reinterpret_cast<V *>(read + c) = V{};
  });
  return true;
}

template <class F>
static bool by_count(u32 count, F f) {
  switch (count) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 8:
      return f(std::integral_constant<int, 8>());
    case 16:
      return f(std::integral_constant<int, 16>());
    case 32:
      return f(std::integral_constant<int, 32>());
    default:
      return false;
  }
}

// One granule, read by the lanes of `lanes`. `mine`: their stamp.
void Block::read_granule(const Warp &w, const Instr &i, u32 lanes, u32 at, u32 bytes, u64 mine) {
  u64 &written = written_by[at], &read = read_by[at];
  const u32 where = at << program.granule_log2;
  const int lane = __builtin_ctz(lanes);
  if (where >= launch.shared_bytes) return;  // reported already
  if (written & IN_FLIGHT)
    report(Problem::COPY_IN_FLIGHT, i.pc, thread(w, lane), where, bytes, other_than(written, NO_PC), pc_of(written));
  else if (!written)
    report(Problem::SHARED_UNINITIALISED, i.pc, thread(w, lane), where, bytes);
  else {
    if (written & UNDEFINED)
      report(Problem::SHARED_UNDEFINED, i.pc, thread(w, lane), where, bytes, thread_of(written), pc_of(written));
    if (!made_for_it(written, mine))
      for (u32 rest = lanes; rest; rest &= rest - 1)
        if (const int reader = __builtin_ctz(rest); !ordered(w, reader, written)) {
          const u32 who = thread(w, reader);
          report(Problem::RACE_READ_AFTER_WRITE, i.pc, who, where, bytes, other_than(written, who), pc_of(written));
          break;
        }
  }
  read = merged(read, mine, read && !ordered(w, lane, read));
}

void Block::write_granule(const Warp &w, const Instr &i, int lane, u32 at, u32 bytes, u64 mine, bool same_value) {
  u64 &written = written_by[at], &read = read_by[at];
  const u32 where = at << program.granule_log2, who = thread(w, lane);
  if (where >= launch.shared_bytes) return;
  if (written & IN_FLIGHT)
    report(Problem::COPY_IN_FLIGHT, i.pc, who, where, bytes, other_than(written, NO_PC), pc_of(written));
  else if (written && !same_value && !made_for_it(written, mine) && !ordered(w, lane, written))
    report(Problem::RACE_WRITE_AFTER_WRITE, i.pc, who, where, bytes, other_than(written, who), pc_of(written));
  if (read && !made_for_it(read, mine) && !ordered(w, lane, read))
    report(Problem::RACE_WRITE_AFTER_READ, i.pc, who, where, bytes, other_than(read, who), pc_of(read));
  written = made_for_it(written, mine) ? merged(written, mine, !ordered(w, lane, written)) : mine;
  read = 0;
}

// `for_warp`: what is read goes to more lanes than the one that gave the address.
void Block::shadow_read(const Warp &w, u32 mask, const u64 *address, u32 bytes, const Instr &i, const Pattern &p,
                        bool for_warp) {
  const u32 shift = program.granule_log2, count = std::max(bytes >> shift, 1u);
  const u64 flags = strength(i);
  const Horizon horizon(w);
  const auto closer = [&](u32 from, u32 lanes, u32 step, u64 first) {  // `lanes` pieces side by side, from there
    const u32 at = from >> shift;
    for (u32 g = at; g <= (from + step * bytes - 1) >> shift; ++g) {
      const u32 behind = (g - at) / count;
      read_granule(w, i, step > 1 ? 1u << behind : lanes, g, bytes, first + behind * LANE_STEP);
    }
  };
  if (p.row && !for_warp) {
    const u64 first = stamp(w, 0, 0, i, flags);
    const u32 at = u32(p.low) >> shift;
    if (!by_count(count, [&](auto n) { return read_row<n, LANES>(&written_by[at], &read_by[at], first, horizon); }))
      closer(u32(p.low), mask, LANES, first);
    return;
  }
  const auto lane_by_lane = [&](auto quick) {
    for (u32 rest = mask; rest;) {
      const int lane = __builtin_ctz(rest);
      u32 same = 1u << lane;  // neighbours at one address: together
      for (rest &= rest - 1; rest && address[__builtin_ctz(rest)] == address[lane]; rest &= rest - 1)
        same |= rest & -rest;
      const u64 mine = stamp(w, lane, for_warp ? (lane + 1) % LANES : 31 - __builtin_clz(same), i, flags);
      const u32 at = u32(address[lane]) >> shift;
      if (!quick(at, mine)) closer(u32(address[lane]), for_warp ? w.live : same, 1, mine);
    }
    return true;
  };
  if (!by_count(count, [&](auto n) {
        return lane_by_lane([&](u32 at, u64 mine) {
          return read_row<n, 1>(&written_by[at], &read_by[at], mine, horizon);
        });
      }))
    lane_by_lane([](u32, u64) { return false; });
}

// The usual store: of a row that nobody else has to do with. False if it needs a closer look.
bool Block::shadow_write_row(const Warp &w, u64 address, u32 bytes, const Instr &i) {
  const u32 at = u32(address) >> program.granule_log2, count = std::max(bytes >> program.granule_log2, 1u);
  const u64 first = stamp(w, 0, 0, i, strength(i));
  const Horizon horizon(w);
  return by_count(count, [&](auto n) { return write_row<n, LANES>(&written_by[at], &read_by[at], first, horizon); });
}

// `value`: what each lane writes, or null if that is not known yet: two threads may write the same. `more`: IN_FLIGHT for
// a cp.async, which may write any time until its wait; UNDEFINED, of the lanes of `undefined`.
void Block::shadow_write(const Warp &w, u32 mask, const u64 *address, u32 bytes, const Instr &i, const u8 (*value)[32],
                         u64 more, u32 undefined) {
  const u32 shift = program.granule_log2, count = std::max(bytes >> shift, 1u);
  const u64 flags = strength(i) | more;
  const Horizon horizon(w);
  const auto lane_by_lane = [&](auto quick) {
    for (u32 rest = mask; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      const u32 from = u32(address[lane]), at = from >> shift;
      const u64 mine = stamp(w, lane, lane, i, flags | (undefined >> lane & 1 ? UNDEFINED : 0));
      if (quick(at, mine)) continue;
      const bool same = value && !memcmp(shared + from, value[lane], bytes);
      for (u32 g = at; g <= (from + bytes - 1) >> shift; ++g) write_granule(w, i, lane, g, bytes, mine, same);
    }
    return true;
  };
  if (!by_count(count, [&](auto n) {
        return lane_by_lane([&](u32 at, u64 mine) {
          return write_row<n, 1>(&written_by[at], &read_by[at], mine, horizon);
        });
      }))
    lane_by_lane([](u32, u64) { return false; });
}

// A cp.async has been waited for: from now on it is an ordinary write of that thread.
void Block::shadow_land(const Warp &w, int lane, u32 address, u32 bytes, const Instr &i) {
  const u32 last = (address + bytes - 1) >> program.granule_log2;
  const u64 mine = stamp(w, lane, lane, i);
  for (u32 at = address >> program.granule_log2; at <= last; ++at) written_by[at] = mine;
}

void Block::shadow_atomic(const Warp &w, int lane, u32 address, u32 bytes, const Instr &i) {
  const u32 last = (address + bytes - 1) >> program.granule_log2;
  const u64 mine = stamp(w, lane, lane, i, BY_STRONG);
  for (u32 at = address >> program.granule_log2; at <= last; ++at) {
    if (!written_by[at])
      report(Problem::SHARED_UNINITIALISED, i.pc, thread(w, lane), at << program.granule_log2, bytes);
    write_granule(w, i, lane, at, bytes, mine, false);
  }
}

}  // namespace vm
