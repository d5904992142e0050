// Thread block clusters: blocks that are resident together, their barrier, and accesses to each other's shared memory.
//
// Such an access is a visit to the other block. The sanitizer looks at four things: that the block has started and
// cannot have ended, that the address lies within its memory, and that nothing races. For the last, what a granule's
// word cannot say lies in Cluster::visits, and the word has its number. Accesses that nothing orders are a list there.
#include <algorithm>

#include "block.h"

namespace vm {

Cluster::Cluster(Launch &launch) : launch(launch) {
  for (u32 rank = 0; rank < launch.cluster_blocks; ++rank) {
    blocks.push_back(std::make_unique<Block>(*this, rank));
    bytes += blocks.back()->bytes;
  }
}

void Cluster::start(u64 index) {
  number = index;
  id[0] = index % launch.clusters[0];
  id[1] = index / launch.clusters[0] % launch.clusters[1];
  id[2] = index / launch.clusters[0] / launch.clusters[1];
  changes = phase = in_vain = 0;
  missing = launch.threads * launch.cluster_blocks;
  for (PastPointer *past : {gathered, handed_on}) past[0] = past[1] = nullptr;
  flags.clear();
  visits.clear();
  mbarriers.clear();
  copies.clear();
  shifted = false;
  late_arrivals.clear();
  events.clear();
  noting = false;
  for (auto &block : blocks) {
    block->start();
    noting |= block->index >= launch.event_first && block->index < launch.event_end;
  }
}

// The blocks in turns, until they are over or can do nothing before other clusters have.
Outcome Cluster::run(Worker &by) {
  for (;;) {
    bool live = false, moved = false, polled = false, paused = false;
    for (auto &block : blocks) {
      if (!block->live) continue;
      live = true;
      const u64 before = changes + by.changes.load(std::memory_order_relaxed);
      const Outcome outcome = block->run(by);
      if (block->stopped || launch.stop.load(std::memory_order_relaxed)) return Outcome::DONE;
      if (alone() && !block->waits(FOR_CLUSTER)) return outcome;
      moved |= outcome == Outcome::DONE || changes + by.changes.load(std::memory_order_relaxed) != before;
      polled |= outcome == Outcome::POLLING;
      paused |= outcome == Outcome::PAUSED;
    }
    if (paused) return Outcome::PAUSED;
    if (!live) return Outcome::DONE;
    if (moved) continue;
    if (polled) return Outcome::POLLING;
    if (std::any_of(blocks.begin(), blocks.end(), [](auto &b) { return b->live && b->waits(FOR_MEMORY); }))
      return Outcome::WAITING;
    for (auto &block : blocks) {
      if (block->live) block->report_deadlock(0);
      block->halt();
    }
    return Outcome::DONE;
  }
}

bool Cluster::release_lanes() {
  bool released = false;
  for (auto &block : blocks)
    if (block->live && block->release_lanes()) {
      block->parked_version = ~0ull;
      released = true;
    }
  return released;
}

bool Cluster::parked_since(u64 version) const {
  return std::any_of(blocks.begin(), blocks.end(), [=](auto &b) { return b->live && b->parked_version != version; });
}

bool Cluster::poll_changed() const {
  return std::any_of(blocks.begin(), blocks.end(), [](auto &b) { return b->live && b->poll_changed(); });
}

u64 Cluster::executed() const {
  u64 sum = 0;
  for (auto &block : blocks) sum += block->executed;
  return sum;
}

bool Cluster::stopped() const {
  return std::any_of(blocks.begin(), blocks.end(), [](auto &b) { return b->stopped; });
}

// ---- barrier.cluster ----

void Block::arrive_at_cluster(Warp &w, const Instr &i, u32 mask, bool relaxed) {
  if (const u32 again = mask & (w.arrived | w.through)) {
    report(Problem::CLUSTER_TWICE, i.pc, thread(w, __builtin_ctz(again)), 0, 0);
    mask &= ~again;
  }
  if (!mask) return;
  w.arrived |= mask;
  w.arrivals = cluster.phase + 1;
  if (cluster.noting) cluster.note(w, i.pc, EVENT_CLUSTER_ARRIVE, u32(cluster.blocks[0]->index), u32(w.arrivals), 0);
  cluster.missing -= __builtin_popcount(mask);
  if (launch.sanitize) hand_on(w, mask, cluster.gathered, relaxed);
  ++changes;
  cluster.complete();
}

// All threads that have not exited have arrived: those that wait go on, and the next barrier begins.
void Cluster::complete() {
  if (missing || std::none_of(blocks.begin(), blocks.end(), [](auto &b) { return b->live; })) return;
  ++phase;
  ++changes;
  for (int n = 0; n < 2; ++n) {
    handed_on[n] = gathered[n];
    gathered[n] = nullptr;
  }
  for (auto &block : blocks)
    for (Warp &w : block->warps) {
      missing += __builtin_popcount(w.live);
      w.through |= w.arrived;
      w.arrived = 0;
      for (Group &g : w.groups)
        if (g.waiting == FOR_CLUSTER) {
          block->pass_cluster(w, g.mask);
          g.waiting = RUNNABLE;
          ++g.pc;
        }
    }
}

void Block::wait_for_cluster(Warp &w, Group &group, u32 mask) {
  const u32 late = mask & w.arrived, never = mask & ~(w.arrived | w.through);
  if (never) report(Problem::CLUSTER_NOT_ARRIVED, group.pc, thread(w, __builtin_ctz(never)), 0, 0);
  if (mask & w.through) pass_cluster(w, mask & w.through);
  if (!late) return void(++group.pc);
  if (cluster.noting) cluster.note(w, group.pc, EVENT_CLUSTER_WAIT, u32(cluster.blocks[0]->index), u32(w.arrivals), 0);
  const Group others{group.pc + 1, group.mask & ~late, RUNNABLE};
  group.mask = late;
  group.waiting = FOR_CLUSTER;
  if (others.mask) w.groups.push_back(others);
}

// Lanes go past a barrier that is complete: they know what all knew that arrived there.
void Block::pass_cluster(Warp &w, u32 mask) {
  w.through &= ~mask;
  passed = std::max(passed, cluster.phase);
  if (cluster.noting) cluster.note(w, NO_PC, EVENT_CLUSTER_PASS, u32(cluster.blocks[0]->index), u32(w.arrivals), 0);
  if (!launch.sanitize) return;
  if (cluster.handed_on[0]) join(w.knows, as_clock(cluster.handed_on[0]));
  if (cluster.handed_on[1])
    for (Clock &fenced : w.fenced) join(fenced, as_clock(cluster.handed_on[1]));
  if (!(w.live & ~mask)) w.lanes.reset();
  learn_waited(w);
  settle(w);
}

// Lanes of the warp have exited. With the last one of the block its shared memory goes.
void Block::leave_cluster(Warp &w, u32 mask) {
  cluster.missing -= __builtin_popcount(mask & ~w.arrived);
  w.arrived &= ~mask;
  w.through &= ~mask;
  cluster.complete();
  if (cluster.alone() || !launch.sanitize) return;
  farewell = join(farewell, w.knows.others);
  if (live) return;
  for (const auto &[who, last] : visitors) {
    const auto [block, warp] = who;
    if (last.arrivals < passed || last.time < known(farewell, block, warp)) continue;
    const auto at = std::find_if(cluster.blocks.begin(), cluster.blocks.end(), [b = block](auto &other) {
      return other->index == b;
    });
    (*at)->worker = worker;
    (*at)->report(Problem::BLOCK_MAY_END, last.pc, warp * LANES + last.lane, last.address, 0, MANY_THREADS, NO_PC,
                  index);
  }
}

// ---- accesses to the shared memory of other blocks ----

// Within the memory of a block that is there? False, and reported, if the launch must end.
bool Block::visit_allowed(Warp &w, const Instr &i, u32 mask, const u64 *address, u32 bytes) {
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const Block *there = cluster.block(address[lane]);
    const auto fail = [&](Problem problem, u64 block) {
      report(problem, i.pc, thread(w, lane), address[lane], bytes, MANY_THREADS, NO_PC, block);
      return halt(), false;
    };
    if (!there || Cluster::offset(address[lane]) + bytes > launch.shared_bytes)
      return fail(Problem::SHARED_BOUNDS, SAME_BLOCK);
    if (!there->live) return fail(Problem::BLOCK_GONE, there->index);
    if (launch.sanitize && !passed && !known(w.knows.others, there->index, NO_WARP))
      report(Problem::BLOCK_NOT_STARTED, i.pc, thread(w, lane), address[lane], bytes, MANY_THREADS, NO_PC,
             there->index);
  }
  return true;
}

void Cluster::host_pointers(const u64 *address, u64 *out) const {
  for (int lane = 0; lane < LANES; ++lane) {
    const Block *there = block(address[lane]);
    out[lane] = there ? reinterpret_cast<u64>(there->shared) + offset(address[lane]) : 0;
  }
}

u64 Cluster::remember(const Visit &v) {
  if (!visits.empty()) {
    const Visit &last = visits.back();
    if (last.block == v.block && last.warp == v.warp && last.time == v.time && last.lane == v.lane && last.pc == v.pc &&
        last.before.word == v.before.word && last.copy == v.copy && last.swizzle == v.swizzle &&
        last.shifted == v.shifted)
      return visits.size() - 1;
  }
  visits.push_back(v);
  return visits.size() - 1;
}

// Has it happened before what the lane does now?
bool Block::happened(const Warp &w, int lane, const Visit &v) const {
  if (v.copy) return v.time < known(w.knows.others, v.copy, NO_WARP);
  if (v.block != index) return v.time < known(w.knows.others, v.block, v.warp);
  if (v.warp != w.index) return v.time < w.knows.time[v.warp];
  return int(v.lane) == lane || v.lane == WHOLE_WARP || v.time < lane_time(w, lane, v.lane);
}

// Likewise, an access to the shared memory of `there`.
bool Block::ordered(const Warp &w, int lane, const Block &there, Cell cell) const {
  if (cell.visited()) return happened(w, lane, cluster.visits[cell.visit()]);
  if (&there == this) return ordered(w, lane, cell);
  if (!cell.time()) return true;
  const auto knows = [&](u32 warp) { return cell.time() < known(w.knows.others, there.index, warp); };
  if (!cell.is(Cell::BY_MANY_WARPS)) return knows(cell.warp());
  return std::all_of(there.warps.begin(), there.warps.end(), [&](const Warp &v) { return knows(v.index); });
}

// The accesses that `cell` tells of, but for those that have happened before what the lane does now.
Cell Block::unordered(const Warp &w, int lane, const Block &there, Cell cell) {
  if (!cell) return cell;
  const Cell before = cluster.before(cell), rest = unordered(w, lane, there, before);
  if (ordered(w, lane, there, cell)) return rest;
  if (before.word == rest.word) return cell;
  Visit v = cluster.visits[cell.visit()];
  v.before = rest;
  return Cell::by_visit(cluster.remember(v), cell.word & Cell::FLAGS);
}

// The lane's access as a visit, and those of `earlier` of which nothing orders it.
Cell Block::also(const Warp &w, const Instr &i, int lane, const Block &there, Cell earlier, u64 flags) {
  if (cluster.visits.size() >= Cluster::MOST_VISITS) return {Cell::BY_MANY_WARPS | flags};
  const Cell before = unordered(w, lane, there, earlier);
  return Cell::by_visit(cluster.remember({index, w.index, w.time, u32(lane), i.pc, before}), flags);
}

void Block::report_visit(Problem problem, const Warp &w, const Instr &i, int lane, u64 address, u32 bytes,
                         const Block &there, Cell last) {
  const u32 who = thread(w, lane);
  if (!last.visited()) {
    const bool same = &there == this;
    const bool others = same && problem != Problem::NO_PROXY_FENCE && problem != Problem::REFILL_NOT_FENCED;
    report(problem, i.pc, who, address, bytes, last.other_than(others ? who : NO_PC), last.pc(), there.index);
    return;
  }
  const Visit &v = cluster.visits[last.visit()];
  if (const u32 mbarrier = waited_elsewhere(w, lane);
      problem != Problem::RACE_WRITE_AFTER_READ && v.copy && !is_cp_async(v.copy) && v.lane != WHOLE_WARP &&
      mbarrier != NO_PC && !waited_in_vain(w, lane, v.copy))
    return report(Problem::BULK_WAITED_ELSEWHERE, i.pc, who, address, mbarrier, v.warp * LANES + v.lane % LANES, v.pc,
                  v.block);
  if (v.lane == WHOLE_WARP)
    problem = Problem::WGMMA_OPERAND_WRITTEN;
  else if (v.copy && !is_cp_async(v.copy))
    problem = problem == Problem::RACE_WRITE_AFTER_READ ? Problem::BULK_STILL_READS
              : waited_in_vain(w, lane, v.copy)
                  ? Problem::BULK_OTHER_PHASE
                  : Problem::BULK_IN_FLIGHT;
  report(problem, i.pc, who, address, bytes, v.warp * LANES + v.lane % LANES, v.pc, v.block);
}

// `value`: what each lane writes, or null: of an atomic (BY_STRONG), or not known.
void Block::visit(Warp &w, const Instr &i, u32 mask, const u64 *address, u32 bytes, bool write, u64 flags,
                  const u8 (*value)[32]) {
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    visit(w, i, lane, address[lane], bytes, write, flags, value ? value[lane] : nullptr);
  }
}

void Block::visit(Warp &w, const Instr &i, int lane, u64 address, u32 bytes, bool write, u64 flags, const u8 *value) {
  Block &there = *cluster.block(address);
  there.visitors[{index, w.index}] = {w.time, i.pc, u32(lane), w.arrivals, address};
  const u32 shift = program.granule_log2, from = u32(Cluster::offset(address));
  const bool same = value && !memcmp(there.shared + from, value, bytes);
  const Cell mine = Cell::by_visit(0, flags);  // as far as `made_for` goes
  for (u32 at = from >> shift; at <= (from + bytes - 1) >> shift; ++at) {
    Cell &written = there.written_by[at], &read = there.read_by[at];
    const u64 where = Cluster::address(there, std::max(at << shift, from));
    const auto look_at = [&](Problem problem, Cell last) {
      for (; last; last = cluster.before(last))
        if (!last.made_for(mine) && !ordered(w, lane, there, last))
          return report_visit(problem, w, i, lane, where, bytes, there, last);
    };
    if (written.is(Cell::IN_FLIGHT))
      report_visit(Problem::COPY_IN_FLIGHT, w, i, lane, where, bytes, there, written);
    else if (!written && !(write && (value || !(flags & Cell::BY_STRONG))))
      report(Problem::SHARED_UNINITIALISED, i.pc, thread(w, lane), where, bytes);
    if (!write) {
      look_at(Problem::RACE_READ_AFTER_WRITE, written);
      read = also(w, i, lane, there, read, flags);
      continue;
    }
    if (!same) look_at(Problem::RACE_WRITE_AFTER_WRITE, written);
    look_at(Problem::RACE_WRITE_AFTER_READ, read);
    written = also(w, i, lane, there, written.made_for(mine) ? written : Cell(), flags);
    read = {};
  }
}

// getctarank: that of the block to which an address of shared memory belongs. o: rank, address, 64-bit address
static void rank_of(Warp &w, const Instr &i, u32 m) {
  alignas(64) u64 address[LANES];
  addresses(w, i.o[1], 0, i.o[2], address);
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const u64 rank = (address[lane] & ~WINDOW_MASK) >> Cluster::RANK_SHIFT;
    w.reg<u32>(i.o[0])[lane] = rank ? u32(rank - 1) : w.block->rank;
  }
}

// mapa: the same place in the shared memory of the block of that rank. o: d, address, rank, 64-bit address
static void map_address(Warp &w, const Instr &i, u32 m) {
  alignas(64) u64 address[LANES];
  addresses(w, i.o[1], 0, i.o[3], address);
  const u32 *rank = w.reg<u32>(i.o[2]);
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const u64 window = address[lane] & WINDOW_MASK, place = u64(std::min(rank[lane], 254u) + 1) << Cluster::RANK_SHIFT;
    const u64 mapped = window | place | Cluster::offset(address[lane]);
    if (i.o[3])
      w.reg<u64>(i.o[0])[lane] = mapped;
    else
      w.reg<u32>(i.o[0])[lane] = u32(mapped);
  }
}

void register_cluster(Registry &r) {
  constexpr About computes = About::computes("integer", Undefined::ALL_OF_IT);
  enter(r, {{"cluster.arrive",
             [](Warp &w, const Instr &i, u32 m) { w.block->arrive_at_cluster(w, i, m, i.o[0]); },  // o: relaxed
             "n", About::does(Effect::ORDERS, "barrier", Undefined::NOTHING)},
            {"getctarank", rank_of, "d4 s* n", computes},
            {"mapa", map_address, "d* s* s4 n", computes}});
}

}  // namespace vm
