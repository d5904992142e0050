// The sanitizer's view of shared memory: who touched each granule last, and whether that has happened before now.
//
// A block has one clock, `tick`. Each access is stamped with it; each synchronisation advances it and tells the warps
// that took part (order[w] of each) up to which tick they know the past of warp w. An earlier access by another thread
// that is not in that past is unordered with this one: a race, unless both are reads. The same holds for barriers of
// the block, barriers of some of its warps, and barriers within a warp.
#include "block.h"

#include <algorithm>

namespace vm {

static bool ordered(const Warp &w, u32 stamp, u32 who) {
  const u32 tick = stamp >> WHO_BITS, other = stamp & WHO_MASK;
  if (other == who) return true;
  if (other < WHO_WARP) return tick < w.order[(other - 1) / LANES];
  if (other < WHO_MANY) return tick < w.order[other - WHO_WARP];
  return tick < w.oldest;
}

static u32 thread_of(u32 stamp) {
  const u32 who = stamp & WHO_MASK;
  return who < WHO_WARP ? who - 1 : MANY_THREADS;
}

static u32 pc_of(u32 write_pc) { return write_pc & ~(IN_FLIGHT | BY_ATOMIC); }

static void note_read(Cell &c, const Warp &w, u32 tick, u32 who, u32 pc) {
  const u32 stamp = tick << WHO_BITS | who;
  if (c.read == stamp) return;
  const u32 other = c.read & WHO_MASK;
  if (c.read >> WHO_BITS < w.oldest || ordered(w, c.read, who)) c.read = stamp;  // who races with that, races with this
  else {
    const bool mine = other < WHO_WARP ? (other - 1) / LANES == w.index : other == WHO_WARP + w.index;
    c.read = tick << WHO_BITS | (mine ? WHO_WARP + w.index : WHO_MANY);
  }
  c.read_pc = pc;
}

// `for_warp`: what is read goes to more lanes than the one that gave the address.
void Block::shadow_read(const Warp &w, u32 mask, const u64 *address, u32 bytes, u32 pc, bool for_warp) {
  const u32 shift = program.granule_log2;
  for (u32 rest = mask; rest;) {
    const u32 lane = __builtin_ctz(rest), from = u32(address[lane]);
    rest &= rest - 1;
    const u32 after = rest;
    while (rest && u32(address[__builtin_ctz(rest)]) == from) rest &= rest - 1;  // neighbours at one address: together
    const u32 who = for_warp || rest != after ? WHO_WARP + w.index : thread(w, lane) + 1, stamp = tick << WHO_BITS | who;
    for (u32 at = from >> shift; at <= (from + bytes - 1) >> shift; ++at) {
      Cell &c = shadow[at];
      if (c.write_pc & IN_FLIGHT || c.write >> WHO_BITS >= w.oldest || !c.write) {
        const u32 where = at << shift, writer = thread_of(c.write), there = pc_of(c.write_pc);
        if (c.write_pc & IN_FLIGHT)
          report(Problem::COPY_IN_FLIGHT, pc, thread(w, lane), where, bytes, writer, there);
        else if (!c.write)
          report(Problem::SHARED_UNINITIALISED, pc, thread(w, lane), where, bytes);
        else if (!ordered(w, c.write, who))
          report(Problem::RACE_READ_AFTER_WRITE, pc, thread(w, lane), where, bytes, writer, there);
      }
      if (c.read == stamp) continue;
      if (c.read >> WHO_BITS < w.oldest) c.read = stamp, c.read_pc = pc;
      else note_read(c, w, tick, who, pc);
    }
  }
}

// `value`: what is written, or null if that is not known yet. Two threads may write the same value.
// `in_flight`: a cp.async was issued; the write may happen any time until its wait.
void Block::shadow_write(const Warp &w, u32 thread, u32 address, u32 bytes, u32 pc, const void *value, bool in_flight) {
  const u32 who = thread + 1, last = (address + bytes - 1) >> program.granule_log2;
  for (u32 at = address >> program.granule_log2; at <= last; ++at) {
    Cell &c = shadow[at];
    const u32 where = at << program.granule_log2;
    if (c.write_pc & IN_FLIGHT)
      report(Problem::COPY_IN_FLIGHT, pc, thread, where, bytes, thread_of(c.write), pc_of(c.write_pc));
    else if (c.write >> WHO_BITS >= w.oldest && c.write && !ordered(w, c.write, who) &&
             !(value && !memcmp(shared + address, value, bytes)))
      report(Problem::RACE_WRITE_AFTER_WRITE, pc, thread, where, bytes, thread_of(c.write), pc_of(c.write_pc));
    if (c.read >> WHO_BITS >= w.oldest && c.read && !ordered(w, c.read, who))
      report(Problem::RACE_WRITE_AFTER_READ, pc, thread, where, bytes, thread_of(c.read), c.read_pc);
    c = {tick << WHO_BITS | who, 0, pc | (in_flight ? IN_FLIGHT : 0), 0};
  }
}

// A cp.async by `thread` has been waited for: from now on it is an ordinary write of that thread.
void Block::shadow_land(const Warp &, u32 thread, u32 address, u32 bytes, u32 pc) {
  const u32 last = (address + bytes - 1) >> program.granule_log2;
  for (u32 at = address >> program.granule_log2; at <= last; ++at) {
    Cell &c = shadow[at];
    c.write = tick << WHO_BITS | (thread + 1);
    c.write_pc = pc;
  }
}

void Block::shadow_atomic(const Warp &w, u32 thread, u32 address, u32 bytes, u32 pc) {
  const u32 who = thread + 1, last = (address + bytes - 1) >> program.granule_log2;
  for (u32 at = address >> program.granule_log2; at <= last; ++at) {
    Cell &c = shadow[at];
    const u32 where = at << program.granule_log2;
    u32 writer = who;
    if (c.write_pc & IN_FLIGHT)
      report(Problem::COPY_IN_FLIGHT, pc, thread, where, bytes, thread_of(c.write), pc_of(c.write_pc));
    else if (!c.write)
      report(Problem::SHARED_UNINITIALISED, pc, thread, where, bytes);
    else if (!ordered(w, c.write, who)) {
      if (c.write_pc & BY_ATOMIC) writer = WHO_MANY;  // atomics race with everything but each other
      else report(Problem::RACE_WRITE_AFTER_WRITE, pc, thread, where, bytes, thread_of(c.write), pc_of(c.write_pc));
    }
    if (c.read && !ordered(w, c.read, who))
      report(Problem::RACE_WRITE_AFTER_READ, pc, thread, where, bytes, thread_of(c.read), c.read_pc);
    c = {tick << WHO_BITS | writer, 0, pc | BY_ATOMIC, 0};
  }
}

void Block::synchronise(u32 members) {
  if (++tick == LAST_TICK) {  // the clock is full: forget what happened when, but not what was written
    for (Cell &c : shadow) c = {c.write ? 1u << WHO_BITS | (c.write & WHO_MASK) : 0, 0, c.write_pc, 0};
    tick = 2;
    members = ALL;
  }
  const u32 every = warps.size() == 32 ? ALL : (1u << warps.size()) - 1;
  members &= every;
  std::vector<u32> joined(warps.size(), 0);
  if (members == every) std::fill(joined.begin(), joined.end(), tick);
  else
    for (const Warp &w : warps)
      if (members >> w.index & 1)
        for (size_t v = 0; v < joined.size(); ++v)
          joined[v] = members >> v & 1 ? tick : std::max(joined[v], w.order[v]);
  const u32 oldest = *std::min_element(joined.begin(), joined.end());
  for (Warp &w : warps)
    if (members >> w.index & 1) {
      w.order = joined;
      w.oldest = oldest;
    }
}

void Block::synchronise_lanes(Warp &w) {
  if (++tick >= LAST_TICK) return synchronise(ALL);
  w.order[w.index] = tick;
  w.oldest = *std::min_element(w.order.begin(), w.order.end());
}

}  // namespace vm
