// Who touched a granule of shared memory last, and when: one word, so that rows of them are compared as vectors.
#pragma once

#include <algorithm>

#include "vm.h"

namespace vm {

// 0: nobody. An access by a warp of the block itself:
//   in flight | time | by many warps | by atomics or flags | by volatile accesses | (unused) | warp | lane | another lane | pc
// By anybody else it is a visit: the time is VISITED, and the bits below the unused one are the visit's number (visits.cpp).
struct Cell {
  static constexpr u64 PC_MASK = (1u << 19) - 1, LANE_MASK = 31, WARP_MASK = 31, TIME_MASK = (1u << 25) - 1;
  static constexpr u32 OTHER_SHIFT = 19, LANE_SHIFT = 24, WARP_SHIFT = 29, TIME_SHIFT = 38;
  static constexpr u64 BY_VOLATILE = 1ull << 35, BY_STRONG = 1ull << 36;
  static constexpr u64 BY_MANY_WARPS = 1ull << 37;
  static constexpr u64 IN_FLIGHT = 1ull << 63;  // a cp.async will write here
  static constexpr u32 LAST_TIME = TIME_MASK - 1;
  static constexpr u64 VISITED = TIME_MASK << TIME_SHIFT | BY_MANY_WARPS;  // later than whatever a warp knows
  static constexpr u64 VISITS = 1ull << 34;                                // fewer than this are told apart
  static constexpr u64 FLAGS = BY_VOLATILE | BY_STRONG;
  static constexpr u64 WARP_BITS = WARP_MASK << WARP_SHIFT, LANE_BITS = LANE_MASK << LANE_SHIFT;
  static constexpr u64 OTHER_BITS = LANE_MASK << OTHER_SHIFT;

  u64 word = 0;

  static Cell by_warp(u32 time, u32 warp, u32 lane, u32 other, u32 pc, u64 flags) {
    return {u64(time) << TIME_SHIFT | flags | u64(warp) << WARP_SHIFT | u64(lane) << LANE_SHIFT |
            u64(other) << OTHER_SHIFT | std::min<u64>(pc, PC_MASK)};
  }
  static Cell by_visit(u64 number, u64 flags) { return {VISITED | flags | number}; }

  explicit operator bool() const { return word; }
  bool is(u64 flag) const { return word & flag; }
  bool visited() const { return (word & VISITED) == VISITED; }
  u64 visit() const { return word & (VISITS - 1); }
  u32 time() const { return u32(word >> TIME_SHIFT & TIME_MASK); }
  u32 warp() const { return u32(word >> WARP_SHIFT & WARP_MASK); }
  int lane() const { return int(word >> LANE_SHIFT & LANE_MASK); }
  int other_lane() const { return int(word >> OTHER_SHIFT & LANE_MASK); }
  u32 thread() const { return warp() * LANES + lane(); }
  u32 pc() const { return u32(word & PC_MASK); }

  // Who did it, besides `thread`, which must not be named as its own opponent.
  u32 other_than(u32 thread) const {
    const u32 one = this->thread();
    if (one != thread) return one;
    const u32 another = (one & ~31u) | other_lane();
    return is(BY_MANY_WARPS) || another == thread ? MANY_THREADS : another;
  }

  // Both are meant for synchronisation: atomics and volatile accesses. But volatile ones of one warp count as a flag
  // only where a thread waits in a loop: otherwise they are code from before warps could diverge.
  bool made_for(Cell b) const {
    if (!is(BY_STRONG | BY_VOLATILE) || !b.is(BY_STRONG | BY_VOLATILE)) return false;
    return is(BY_STRONG) || b.is(BY_STRONG) || visited() || b.visited() || ((word ^ b.word) & WARP_BITS);
  }

  // After an access of the same kind, perhaps unordered with this one: both, as far as a word can say it.
  Cell merged(Cell later, bool unordered) const {
    if (!unordered) return later;
    const u64 both = (later.word & (word | ~(BY_STRONG | BY_VOLATILE))) | (word & BY_MANY_WARPS);
    if ((word ^ later.word) & WARP_BITS) return {both | BY_MANY_WARPS};
    const int another = lane() != later.lane() ? lane() : other_lane();
    return another == later.lane() ? Cell{both} : Cell{(both & ~OTHER_BITS) | u64(another) << OTHER_SHIFT};
  }

  // The clock is full: it happened before everything else.
  void forget_time() {
    if (word && !visited()) word = (word & ~(TIME_MASK << TIME_SHIFT)) | 1ull << TIME_SHIFT;
  }
};

}  // namespace vm
