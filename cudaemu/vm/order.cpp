// Which accesses have happened before which others.
//
// A block has a clock; each event that orders (a barrier, a fence, a release) advances it. `Warp::time` is the clock at the
// warp's own last such event, and stamps its accesses. Clock::time[v] of a warp says up to which time it knows the past
// of warp v: accesses of v with an earlier stamp have happened before whatever it does now. All others are unordered with
// it: a race, unless both only read, or both are made for it (atomics, volatile).
//
// - A barrier of the block: all threads know everything. A counted one: those that wait learn what all knew that
//   arrived; those that only arrive learn nothing.
// - `__syncwarp(mask)`: among those lanes. Only within a warp are lanes told apart.
// - Memory: a release hands what the writer knows to the location, an acquire takes it from there. A plain atomic or
//   volatile store hands on what was known at the writer's last fence. Between blocks and warps that is the only way.
//   A store whose value depends on loads shows, even without a fence, that these are over: they cannot see what is
//   written later. (So libraries pass a count from block to block, and overwrite what was counted.)
//   In shared memory a volatile store, an exchange and a compare-and-swap do so without a fence, because hardware keeps
//   the order of one block's shared accesses.
// - What the hardware does in the background (wgmma, bulk copies) sees shared memory through the async proxy. What
//   threads wrote must have happened before it, with a fence.proxy.async in between: what such a fence comes after is
//   recorded separately, and handed on in the same ways.
#include <algorithm>

#include "block.h"

namespace vm {

PastPointer join(const PastPointer &a, const PastPointer &b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto both = std::make_shared<Past>();
  both->reserve(a->size() + b->size());
  auto i = a->begin(), j = b->begin();
  while (i != a->end() || j != b->end()) {
    if (j == b->end() || (i != a->end() && i->key < j->key))
      both->push_back(*i++);
    else if (i == a->end() || j->key < i->key)
      both->push_back(*j++);
    else
      both->push_back({i->key, std::max(i->time, j->time)}), ++i, ++j;
  }
  return both;
}

void join(Clock &to, const Clock &from) {
  to.time.resize(std::max(to.time.size(), from.time.size()));
  for (size_t v = 0; v < from.time.size(); ++v) to.time[v] = std::max(to.time[v], from.time[v]);
  to.others = join(to.others, from.others);
}

static u32 time_of(const Past &past, u64 key) {
  const auto at = std::lower_bound(past.begin(), past.end(), key, [](const Known &k, u64 key) { return k.key < key; });
  return at != past.end() && at->key == key ? at->time : 0;
}

u32 known(const PastPointer &past, u64 block, u32 warp) {
  return past ? std::max(time_of(*past, block << 6), time_of(*past, block << 6 | (warp + 1))) : 0;
}

// The clock moves on, for this warp: what it does from now on is after what others can know.
u32 Block::advance(Warp &w) {
  if (++tick == Cell::LAST_TIME) forget_times();
  return w.time = tick;
}

// The clock is full: forget what happened when, but not what was written.
void Block::forget_times() {
  tick = 2;
  for (Cell &cell : written_by) cell.forget_time();
  std::fill(read_by.begin(), read_by.end(), Cell());
  for (Warp &w : warps) {
    w.time = tick;
    w.read = 0;
    std::fill(w.knows.time.begin(), w.knows.time.end(), tick);
    for (Clock &fenced : w.fenced)
      if (!fenced.time.empty()) fenced.time = w.knows.time;
    w.epoch = 0;
    settle(w);
  }
  for (auto &[offset, flag] : flags) std::fill(flag.time.begin(), flag.time.end(), tick);
  for (Barrier &b : barriers) b.now.clear(), b.last_time.clear();
  for (auto &[address, mbarrier] : cluster.mbarriers)
    if (cluster.block(address) == this) mbarrier.made.forget_time();
}

// After a change of what the warp knows.
void Block::settle(Warp &w) {
  w.oldest = *std::min_element(w.knows.time.begin(), w.knows.time.end());
  w.newest = 0;
  for (u32 v = 0; v < w.knows.time.size(); ++v)
    if (v != w.index) w.newest = std::max(w.newest, w.knows.time[v]);
}

// A barrier of all threads.
void Block::meet_all() {
  if (++tick == Cell::LAST_TIME) forget_times();
  Clock fenced[2];
  PastPointer others;
  for (const Warp &w : warps) {
    for (int reach = 0; program.fences && reach < 2; ++reach) join(fenced[reach], w.fenced[reach]);
    if (w.knows.others != others) others = join(others, w.knows.others);
  }
  for (Warp &w : warps) {
    w.time = w.oldest = w.newest = tick;
    std::fill(w.knows.time.begin(), w.knows.time.end(), tick);
    w.knows.others = others;
    for (int reach = 0; program.fences && reach < 2; ++reach) w.fenced[reach] = fenced[reach];
    w.lanes.reset();
    learn_waited(w);
  }
}

// A warp comes to a counted barrier: what it did until now is known to those that wait there.
void Block::bring(Warp &w, Barrier &b) {
  w.knows.time[w.index] = advance(w);
  settle(w);
  join(b.knows, w.knows);
  for (int reach = 0; reach < 2; ++reach) join(b.fenced[reach], w.fenced[reach]);
}

// Whoever comes to a barrier again must have synchronised with those who came to it the last time. Otherwise he may be
// counted with them, and one of them be missed now.
void Block::look_for_turns(const Warp &w, const Barrier &b, u32 number, u32 thread, u32 pc) {
  for (const Barrier::Arrival &a : b.last_time)
    if (a.warp != w.index && a.time >= w.knows.time[a.warp])
      return report(Problem::BARRIER_TURNS, pc, thread, number, 0, a.thread, a.pc);
}

void Block::take(Warp &w, const Barrier &b) {
  join(w.knows, b.knows);
  for (int reach = 0; reach < 2; ++reach) join(w.fenced[reach], b.fenced[reach]);
  w.lanes.reset();
  learn_waited(w);
  settle(w);
}

// __syncwarp: the lanes of `mask` know what each of them knew, and did until now.
void Block::meet_lanes(Warp &w, u32 mask) {
  const u32 before = w.knows.time[w.index], now = advance(w);
  if (mask & w.waited) w.waited |= mask;
  if (!(w.live & ~mask)) {
    w.lanes.reset();
    w.knows.time[w.index] = now;
    return settle(w);
  }
  if (!w.lanes) {
    w.lanes = std::make_unique<LaneTimes>();
    for (auto &of : w.lanes->of) std::fill(of, of + LANES, before);
  }
  u32 together[LANES] = {};
  for (u32 rest = mask; rest; rest &= rest - 1)
    for (int lane = 0; lane < LANES; ++lane)
      together[lane] = std::max(together[lane], w.lanes->of[__builtin_ctz(rest)][lane]);
  for (u32 rest = mask; rest; rest &= rest - 1) together[__builtin_ctz(rest)] = now;
  for (u32 rest = mask; rest; rest &= rest - 1) std::copy(together, together + LANES, w.lanes->of[__builtin_ctz(rest)]);
}

// Up to which time lane `lane` knows what lane `of` of its warp did.
u32 Block::lane_time(const Warp &w, int lane, int of) const {
  return w.lanes ? w.lanes->of[lane][of] : w.knows.time[w.index];
}

// ---- through memory ----

// A fence: what was done before it may be handed on by whatever store comes after it; to other blocks only if the fence
// reaches beyond this one.
void Block::fence(Warp &w, bool beyond) {
  w.knows.time[w.index] = advance(w);
  settle(w);
  w.fenced[WITHIN] = w.knows;
  if (beyond) w.fenced[BEYOND] = w.knows;
}

// What others may know: `beyond` by everybody, `within` by this block. Keys as in Known.
static PastPointer as_past(const Clock &beyond, const Clock &within, u64 block) {
  auto past = std::make_shared<Past>();
  const auto enter = [&](const Clock &clock, u64 block) {
    if (clock.time.empty()) return;
    const u32 least = *std::min_element(clock.time.begin(), clock.time.end());
    past->push_back({block << 6, least});
    for (size_t v = 0; v < clock.time.size(); ++v)
      if (clock.time[v] > least) past->push_back({block << 6 | (v + 1), clock.time[v]});
  };
  enter(beyond, block);
  enter(within, block | WITHIN_BLOCK);
  return join(past, beyond.others);
}

// fence.proxy.async: those who learn what the warp knows also know that it is fenced.
void Block::fence_proxy(Warp &w) {
  for (auto &[address, mbarrier] : cluster.mbarriers) mbarrier.fenced = true;  // by whichever thread: it is for a note
  w.knows.time[w.index] = advance(w);
  settle(w);
  const PastPointer own = as_past(w.knows, {}, index | PROXY_FENCED);
  auto fenced = std::make_shared<Past>();  // of other blocks, and of cp.async
  for (const Known &k : *own)
    if (!(k.key >> 6 & (PROXY_FENCED | WITHIN_BLOCK)) && (!cluster.alone() || is_cp_async(k.key >> 6)))
      fenced->push_back({k.key | PROXY_FENCED << 6, k.time});
  w.knows.others = join(own, fenced);
}

// Of each warp of the block: up to which time what it did has been fenced, for all that this warp knows.
std::vector<u32> Block::fenced_times(const Warp &w) const {
  std::vector<u32> times(warps.size());
  for (u32 v = 0; v < warps.size(); ++v) times[v] = known(w.knows.others, index | PROXY_FENCED, v);
  return times;
}

AsyncPast Block::async_past(Warp &w) {
  AsyncPast past{w.knows.time, fenced_times(w), w.knows.others};
  past.time[w.index] = advance(w);
  return past;
}

// What a warp of this block learns from that.
Clock Block::as_clock(const PastPointer &past) const {
  Clock clock{std::vector<u32>(warps.size()), past};
  for (const Warp &v : warps)
    clock.time[v.index] = std::max(known(past, index, v.index), known(past, index | WITHIN_BLOCK, v.index));
  return clock;
}

// Lanes arrive where others wait: what they know, and what they knew at their last fence, is for those. What the lanes of
// the warp know of each other does not change, unless all of them arrive.
void Block::hand_on(Warp &w, u32 mask, PastPointer (&to)[2], bool relaxed) {
  const Clock &fenced = w.fenced[BEYOND];
  if (!relaxed) {
    Clock now = w.knows;
    now.time[w.index] = advance(w);
    to[0] = join(to[0], as_past(now, now, index));
    if (!(w.live & ~mask)) w.knows.time[w.index] = now.time[w.index];
    settle(w);
  } else if (!fenced.time.empty())
    to[0] = join(to[0], as_past(fenced, fenced, index));
  if (!fenced.time.empty()) to[1] = join(to[1], as_past(fenced, fenced, index));
}

// A warp arrives at an mbarrier; without `release` what it knew at its last fence is for those who wait there.
void Block::hand_to(Warp &w, u32 mask, PastPointer &to, bool release) {
  PastPointer both[2];
  hand_on(w, mask, both, !release);
  to = join(to, both[0]);
}

void Block::take_from(Warp &w, const PastPointer &past) {
  if (past) learn(w, as_clock(past));
}

void Block::learn(Warp &w, const Clock &clock) {
  join(w.knows, clock);
  learn_waited(w);
  if (w.lanes)
    for (auto &of : w.lanes->of)
      for (u32 &time : of) time = std::max(time, clock.time[w.index]);
  settle(w);
}

// That what the warp has read, and knows others to have read, is over.
PastPointer Block::reads_over(Warp &w) {
  Clock now{w.knows.time, nullptr};
  now.time[w.index] = advance(w);
  settle(w);
  auto others = std::make_shared<Past>();
  if (w.knows.others)
    for (const Known &k : *w.knows.others)
      if (!(k.key >> 6 & (WITHIN_BLOCK | PROXY_FENCED | ASYNCHRONOUS)))
        others->push_back({k.key | READS_OVER << 6, k.time});
  std::sort(others->begin(), others->end(), [](const Known &a, const Known &b) {
    return a.key != b.key ? a.key < b.key : a.time > b.time;
  });
  others->erase(
      std::unique(others->begin(), others->end(), [](const Known &a, const Known &b) { return a.key == b.key; }),
      others->end());
  return join(as_past(now, {}, index | READS_OVER), others);
}

// A store or an atomic that others may wait for. An atomic passes on, too, what earlier ones handed to the location.
void Block::release(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address, bool atomic) {
  const bool all = i.flags & RELEASE || (space == Space::SHARED && i.flags & SIGNAL);
  const bool over = space == Space::GLOBAL && !all && i.flags & DEPENDENT;
  if (!all && !over && !program.fences) return;
  if (all) {
    w.knows.time[w.index] = advance(w);
    settle(w);
  }
  const Clock &within = all ? w.knows : w.fenced[WITHIN], &beyond = all ? w.knows : w.fenced[BEYOND];
  const bool nothing = within.time.empty();
  if (space == Space::SHARED && cluster.alone()) {
    if (nothing && (atomic || flags.empty())) return;
    for (u32 rest = mask; rest; rest &= rest - 1) {
      Clock &flag = flags[address[__builtin_ctz(rest)]];
      if (atomic)
        join(flag, within);
      else
        flag = within;
    }
    return;
  }
  const bool global = space == Space::GLOBAL;
  const u64 count = global ? launch.flag_count.load(std::memory_order_relaxed) : cluster.flags.size();
  if (nothing && !over && (atomic || !count)) return;
  PastPointer past = nothing ? nullptr : as_past(beyond, within, index);
  if (over) past = join(past, reads_over(w));
  const auto hand = [&](PastPointer &flag) { flag = atomic ? join(flag, past) : past; };
  if (!global) {
    for (u32 rest = mask; rest; rest &= rest - 1)
      hand(cluster.flags[cluster_address(space, address[__builtin_ctz(rest)])]);
    return;
  }
  std::lock_guard lock(launch.flag_mutex);
  for (u32 rest = mask; rest; rest &= rest - 1) hand(launch.flags[address[__builtin_ctz(rest)]]);
  launch.flag_count.store(launch.flags.size(), std::memory_order_relaxed);
}

// A load or an atomic that may have seen what another thread's release wrote.
void Block::acquire(Warp &w, u32 mask, Space space, const u64 *address) {
  if (space == Space::SHARED && cluster.alone()) {
    if (flags.empty()) return;
    for (u32 rest = mask; rest; rest &= rest - 1)
      if (const auto flag = flags.find(address[__builtin_ctz(rest)]); flag != flags.end()) learn(w, flag->second);
    return;
  }
  PastPointer past;
  const auto take = [&](const std::unordered_map<u64, PastPointer> &flags, u64 address) {
    if (const auto flag = flags.find(address); flag != flags.end()) past = join(past, flag->second);
  };
  if (space != Space::GLOBAL) {
    for (u32 rest = mask; rest && !cluster.flags.empty(); rest &= rest - 1)
      take(cluster.flags, cluster_address(space, address[__builtin_ctz(rest)]));
  } else {
    if (launch.races.load(std::memory_order_relaxed)) note_seen(mask, address);
    if (!launch.flag_count.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(launch.flag_mutex);
    for (u32 rest = mask; rest; rest &= rest - 1) take(launch.flags, address[__builtin_ctz(rest)]);
  }
  if (past) learn(w, as_clock(past));
}

// An address of shared memory as all blocks of the cluster have it.
u64 Block::cluster_address(Space space, u64 address) const {
  return space == Space::CLUSTER ? address : Cluster::address(*this, address);
}

}  // namespace vm
