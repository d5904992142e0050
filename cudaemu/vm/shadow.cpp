// The sanitizer's view of shared memory: who wrote each granule last, and who read it since. A granule is the smallest
// access that the kernel makes.
//
// Most accesses are harmless in bulk: all that was done to the granules is older than what the warp knows of everybody, or
// was done by the same thread. That is seen in loops over granules without branches; where it does not hold, each granule
// is looked at by itself.
#include <algorithm>

#include "block.h"

namespace vm {

constexpr u64 WARP_BITS = Cell::WARP_BITS, LANE_BITS = Cell::LANE_BITS, OTHER_BITS = Cell::OTHER_BITS;
constexpr u64 BY_MANY_WARPS = Cell::BY_MANY_WARPS, IN_FLIGHT = Cell::IN_FLIGHT;
constexpr u64 TIME_BITS = Cell::TIME_MASK << Cell::TIME_SHIFT;
constexpr u64 STRENGTH = Cell::BY_STRONG | Cell::BY_VOLATILE;
constexpr u64 SELF = LANE_BITS | OTHER_BITS | WARP_BITS | BY_MANY_WARPS;
constexpr u64 LANE_STEP = 1ull << Cell::LANE_SHIFT | 1ull << Cell::OTHER_SHIFT;

// Many warps have read something at one time, that of a barrier of all. Does the warp know of each that may be one of them?
bool Block::readers_known(const Warp &w, u32 time) const {
  return std::all_of(warps.begin(), warps.end(), [&](const Warp &v) {
    return v.read < time || time < w.knows.time[v.index];
  });
}

// Has that access happened before what a lane of the warp does now?
bool Block::ordered(const Warp &w, int lane, Cell cell) const {
  if (cell.visited()) return happened(w, lane, cluster.visits[cell.visit()]);
  if (cell.is(BY_MANY_WARPS)) return cell.time() < w.oldest || (!cell.is(STRENGTH) && readers_known(w, cell.time()));
  if (cell.warp() != w.index) return cell.time() < w.knows.time[cell.warp()];
  const auto known = [&](int of) { return of == lane || cell.time() < lane_time(w, lane, of); };
  return known(cell.lane()) && known(cell.other_lane());
}

static Cell stamp(const Warp &w, int lane, int other, const Instr &i, u64 flags = 0) {
  return Cell::by_warp(w.time, w.index, lane, other, i.pc, flags);
}

u64 strength(const Instr &i) {
  return i.flags & (SPIN | TENTATIVE) ? Cell::BY_STRONG : i.flags & STRONG ? Cell::BY_VOLATILE : 0;
}

// What a warp knows, as words to compare with: of all warps, of the other ones at most, of its own lanes, and of bulk
// copies that it has waited for.
struct Horizon {
  u64 oldest, newest, own, landed;
  explicit Horizon(const Warp &w)
      : oldest(u64(w.oldest) << Cell::TIME_SHIFT),
        newest(u64(w.newest) << Cell::TIME_SHIFT),
        own(u64(w.lanes ? w.oldest : w.knows.time[w.index]) << Cell::TIME_SHIFT),
        landed(w.landed) {}
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
static inline bool read_row(const Cell *written, Cell *read, u64 first, const Horizon &h) {
  constexpr int size = COUNT * LANES_ < 8 ? COUNT * LANES_ : 8;
  using V = typename Vectors<size>::type;
  V bad = {};
  by_pieces<COUNT, LANES_>(first, [&](int c, V mine) {
    const V w = *reinterpret_cast<const V *>(written + c), r = *reinterpret_cast<const V *>(read + c);
    const V limit = ((w ^ mine) & (WARP_BITS | BY_MANY_WARPS)) != 0 ? V{} + h.oldest : V{} + h.own;
    const V other_warp = V(((r ^ mine) & (WARP_BITS | BY_MANY_WARPS)) != 0);
    bad |= V(r >= h.oldest) & other_warp & V(((r ^ mine) & TIME_BITS) != 0);  // a word has one time
    bad |= V(w == 0);
    bad |= V(w >= limit) & V(((w ^ mine) & (SELF | IN_FLIGHT)) != 0) & V(w != h.landed);
    bad |= V(r >= h.oldest) & V(r < h.newest) & V(((r ^ mine) & WARP_BITS) != 0);
    bad |= V(r >= Cell::VISITED);
  });
  if (any(bad)) return false;
  by_pieces<COUNT, LANES_>(first, [&](int c, V mine) {
    V &read_ = *reinterpret_cast<V *>(read + c);
    const V r = read_, foreign = V(((r ^ mine) & WARP_BITS) != 0), many = V((r & BY_MANY_WARPS) != 0);
    const V one = r & LANE_BITS;
    const V other = one != (mine & LANE_BITS) ? one >> (Cell::LANE_SHIFT - Cell::OTHER_SHIFT) : r & OTHER_BITS;
    const V word = (mine & (r | ~STRENGTH)) | (r & BY_MANY_WARPS);
    const V both = foreign != 0 ? word | BY_MANY_WARPS : (word & ~OTHER_BITS) | other;
    const V limit = (foreign | many) != 0 ? V{} + h.oldest : V{} + h.own;
    read_ = r >= limit ? both : mine;
  });
  return true;
}

template <int COUNT, int LANES_>
static inline bool write_row(Cell *written, Cell *read, u64 first, const Horizon &h) {
  constexpr int size = COUNT * LANES_ < 8 ? COUNT * LANES_ : 8;
  using V = typename Vectors<size>::type;
  V bad = {};
  by_pieces<COUNT, LANES_>(first, [&](int c, V mine) {
    const V w = *reinterpret_cast<const V *>(written + c), r = *reinterpret_cast<const V *>(read + c);
    const V w_limit = ((w ^ mine) & (WARP_BITS | BY_MANY_WARPS)) != 0 ? V{} + h.oldest : V{} + h.own;
    const V r_limit = ((r ^ mine) & (WARP_BITS | BY_MANY_WARPS)) != 0 ? V{} + h.oldest : V{} + h.own;
    bad |= V(w >= w_limit) & V(((w ^ mine) & (SELF | IN_FLIGHT)) != 0) & V(w != h.landed);
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

// Of the accesses that `last` tells of, one that races with that of a lane of `lanes` is reported.
void Block::look_for_race(Problem problem, const Warp &w, const Instr &i, u32 lanes, u32 where, u32 bytes, Cell last,
                          Cell mine) {
  if (last.visited() && last.word != w.landed && cluster.visits[last.visit()].copy && ordered(w, 0, last) &&
      !cluster.before(last))
    w.landed = last.word;
  if (last.word == w.landed) return;
  for (; last; last = cluster.before(last))
    if (!last.made_for(mine))
      for (u32 rest = lanes; rest; rest &= rest - 1)
        if (const int lane = __builtin_ctz(rest); !ordered(w, lane, last))
          return report_visit(problem, w, i, lane, where, bytes, *this, last);
}

// May this granule, which is unwritten, be a gap of a structure that is read? Then something around it is written.
bool Block::may_pad(const Instr &i, u32 at) const {
  if (!(i.flags & MAY_PAD)) return false;
  const u32 near = std::max(around(i) >> program.granule_log2, 1u), from = at & ~(near - 1);
  const auto end = written_by.begin() + std::min<size_t>(from + near, written_by.size());
  return std::any_of(written_by.begin() + from, end, [](Cell c) { return bool(c); });
}

// One granule, read by the lanes of `lanes`. `mine`: their stamp.
void Block::read_granule(const Warp &w, const Instr &i, u32 lanes, u32 at, u32 bytes, Cell mine) {
  Cell &written = written_by[at], &read = read_by[at];
  const u32 where = at << program.granule_log2;
  const int lane = __builtin_ctz(lanes);
  if (where >= launch.shared_bytes) return;  // reported already
  if (written.is(IN_FLIGHT))
    report(Problem::COPY_IN_FLIGHT, i.pc, thread(w, lane), where, bytes, written.other_than(NO_PC), written.pc());
  else if (!written) {
    if (!may_pad(i, at)) report(Problem::SHARED_UNINITIALISED, i.pc, thread(w, lane), where, bytes);
  } else
    look_for_race(Problem::RACE_READ_AFTER_WRITE, w, i, lanes, where, bytes, written, mine);
  // Warps that read at different times may each have told somebody that they have: a word would have the last one's time.
  const bool apart = read && !read.visited() && read.time() != mine.time() && !mine.is(STRENGTH) &&
                     (read.is(BY_MANY_WARPS) || read.warp() != w.index);
  read = apart && !ordered(w, lane, read) ? also(w, i, lane, *this, read, 0) : after(w, i, lane, read, mine);
}

void Block::write_granule(const Warp &w, const Instr &i, int lane, u32 at, u32 bytes, Cell mine, bool same_value) {
  Cell &written = written_by[at], &read = read_by[at];
  const u32 where = at << program.granule_log2, who = thread(w, lane);
  if (where >= launch.shared_bytes) return;
  if (written.is(IN_FLIGHT))
    report(Problem::COPY_IN_FLIGHT, i.pc, who, where, bytes, written.other_than(NO_PC), written.pc());
  else if (!same_value) {
    const bool replicas = i.flags & OF_TILE && !written.visited() && written.pc() == i.pc;
    look_for_race(replicas ? Problem::REPLICAS_DIFFER : Problem::RACE_WRITE_AFTER_WRITE, w, i, 1u << lane, where, bytes,
                  written, mine);
  }
  // ldmatrix lets no lane go on before all have executed it.
  const bool together = read && !read.visited() && !read.is(BY_MANY_WARPS) && read.warp() == w.index &&
                        program.code[read.pc()].kind == Kind::TOGETHER;
  if (!together) look_for_race(Problem::RACE_WRITE_AFTER_READ, w, i, 1u << lane, where, bytes, read, mine);
  written = written.made_for(mine) ? after(w, i, lane, written, mine) : mine;
  read = {};
}

// What a granule tells after another access of the same kind.
Cell Block::after(const Warp &w, const Instr &i, int lane, Cell earlier, Cell mine) {
  if (earlier.visited())
    return unordered(w, lane, *this, earlier) ? also(w, i, lane, *this, earlier, mine.word & Cell::FLAGS) : mine;
  return earlier.merged(mine, earlier && !ordered(w, lane, earlier));
}

// `for_warp`: what is read goes to more lanes than the one that gave the address.
void Block::shadow_read(const Warp &w, u32 mask, const u64 *address, u32 bytes, const Instr &i, const Pattern &p,
                        bool for_warp) {
  if (cluster.shifted) read_shifted(w, mask, address, i);
  w.read = w.time;
  const u32 shift = program.granule_log2, count = std::max(bytes >> shift, 1u);
  const u64 flags = strength(i);
  const Horizon horizon(w);
  const auto closer = [&](u32 from, u32 lanes, u32 step, Cell first) {  // `lanes` pieces side by side, from there
    const u32 at = from >> shift;
    for (u32 g = at; g <= (from + step * bytes - 1) >> shift; ++g) {
      const u32 behind = (g - at) / count;
      read_granule(w, i, step > 1 ? 1u << behind : lanes, g, bytes, {first.word + behind * LANE_STEP});
    }
  };
  if (p.row && !for_warp) {
    const Cell first = stamp(w, 0, 0, i, flags);
    const u32 at = u32(p.low) >> shift;
    if (!by_count(count, [&](auto n) { return read_row<n, LANES>(&written_by[at], &read_by[at], first.word, horizon); }))
      closer(u32(p.low), mask, LANES, first);
    return;
  }
  const auto lane_by_lane = [&](auto quick) {
    for (u32 rest = mask; rest;) {
      const int lane = __builtin_ctz(rest);
      u32 same = 1u << lane;  // neighbours at one address: together
      for (rest &= rest - 1; rest && address[__builtin_ctz(rest)] == address[lane]; rest &= rest - 1)
        same |= rest & -rest;
      const Cell mine = stamp(w, lane, for_warp ? (lane + 1) % LANES : 31 - __builtin_clz(same), i, flags);
      const u32 at = u32(address[lane]) >> shift;
      if (!quick(at, mine)) closer(u32(address[lane]), for_warp ? w.live : same, 1, mine);
    }
    return true;
  };
  if (!by_count(count, [&](auto n) {
        return lane_by_lane([&](u32 at, Cell mine) {
          return read_row<n, 1>(&written_by[at], &read_by[at], mine.word, horizon);
        });
      }))
    lane_by_lane([](u32, Cell) { return false; });
}

// The usual store: of a row that no other warp has touched. False if it needs a closer look.
bool Block::shadow_write_row(const Warp &w, u64 address, u32 bytes, const Instr &i) {
  const u32 at = u32(address) >> program.granule_log2, count = std::max(bytes >> program.granule_log2, 1u);
  const Cell first = stamp(w, 0, 0, i, strength(i));
  const Horizon horizon(w);
  return by_count(count, [&](auto n) {
    return write_row<n, LANES>(&written_by[at], &read_by[at], first.word, horizon);
  });
}

// `value`: what each lane writes, or null if that is not known yet: two threads may write the same. `more`: IN_FLIGHT for
// a cp.async, which may write any time until its wait.
void Block::shadow_write(const Warp &w, u32 mask, const u64 *address, u32 bytes, const Instr &i, const u8 (*value)[32],
                         u64 more) {
  const u32 shift = program.granule_log2, count = std::max(bytes >> shift, 1u);
  const u64 flags = strength(i) | more;
  const Horizon horizon(w);
  const auto lane_by_lane = [&](auto quick) {
    for (u32 rest = mask; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      const u32 from = u32(address[lane]), at = from >> shift;
      const Cell mine = stamp(w, lane, lane, i, flags);
      if (quick(at, mine)) continue;
      const bool same = value && !memcmp(shared + from, value[lane], bytes);
      for (u32 g = at; g <= (from + bytes - 1) >> shift; ++g) write_granule(w, i, lane, g, bytes, mine, same);
    }
    return true;
  };
  if (!by_count(count, [&](auto n) {
        return lane_by_lane([&](u32 at, Cell mine) {
          return write_row<n, 1>(&written_by[at], &read_by[at], mine.word, horizon);
        });
      }))
    lane_by_lane([](u32, Cell) { return false; });
}

// A cp.async has landed. If its thread has waited for it, it is from now on an ordinary write of that thread; `visit`: if
// not, what it is.
void Block::shadow_land(const Warp &w, int lane, u32 address, u32 bytes, const Instr &i, Cell visit) {
  const u32 last = (address + bytes - 1) >> program.granule_log2;
  const Cell mine = visit ? visit : stamp(w, lane, lane, i);
  for (u32 at = address >> program.granule_log2; at <= last; ++at) written_by[at] = mine;
}

void Block::shadow_atomic(const Warp &w, int lane, u32 address, u32 bytes, const Instr &i, bool reads) {
  const u32 last = (address + bytes - 1) >> program.granule_log2;
  const Cell mine = stamp(w, lane, lane, i, Cell::BY_STRONG);
  for (u32 at = address >> program.granule_log2; at <= last; ++at) {
    if (reads && !written_by[at])
      report(Problem::SHARED_UNINITIALISED, i.pc, thread(w, lane), at << program.granule_log2, bytes);
    write_granule(w, i, lane, at, bytes, mine, false);
  }
}

}  // namespace vm
