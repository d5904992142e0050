// A block: its warps in turns, the diverged groups of a warp by smallest pc, so that they meet again. A thread that
// waits for another one in a loop must not keep it from running: see Block::same_again and Block::back.
#include <algorithm>

#include "block.h"

namespace vm {

constexpr u64 INSTRUCTIONS_PER_TURN = 20000;  // of one warp, while others wait
constexpr u32 POLLS_PER_TURN = 64;            // of a group of lanes: then whoever else can, goes first
constexpr u32 ROUNDS_IN_VAIN = 16;            // of a block whose warps only poll: then other blocks may run
constexpr u32 LONG_TURNS = 8;                 // this many turns to their end, and a warp's loops are watched for one
constexpr u64 SHORT_TURNS = 1 << 14, WATCHED_TURNS = 64;  // so many turns of a warp, and for the next ones they are too
constexpr u64 BARRIER_COST = 16;                          // of a warp, in instructions
constexpr u32 LOOP = 256;  // instructions: what was polled so near is what the loop polls
constexpr u32 CYCLES = 4;  // by which an instruction moves the clock

// ---- a block ----

static u64 align_up(u64 value, u64 to) { return (value + to - 1) / to * to; }

Block::Block(Cluster &cluster, u32 rank)
    : launch(cluster.launch), program(*launch.program), cluster(cluster), rank(rank), changes(cluster.changes) {
  place[0] = rank % launch.cluster[0];
  place[1] = rank / launch.cluster[0] % launch.cluster[1];
  place[2] = rank / launch.cluster[0] / launch.cluster[1];
  const u64 frame = align_up(program.frame_bytes, 64);
  local_stride = align_up(program.local_bytes, 16);
  const u64 shared_bytes = launch.shared_window + 64;
  const bool follow = launch.sanitize && program.tracked;
  const u64 locals = u64(local_stride) * launch.warps * LANES;
  const u64 total = (frame * launch.warps + shared_bytes + locals) * (follow ? 2 : 1) + 64;
  const u64 granules = launch.sanitize ? (launch.shared_window >> program.granule_log2) + 1 : 0;
  bytes = total + 2 * granules * sizeof(Cell);
  storage.reset(new u8[total]());
  u8 *at = storage.get() + (64 - reinterpret_cast<u64>(storage.get()) % 64) % 64;
  warps.resize(launch.warps);
  for (u32 w = 0; w < launch.warps; ++w, at += frame) {
    warps[w].frame = at;
    warps[w].block = this;
    warps[w].index = w;
    write_constants(warps[w], false);
  }
  for (u32 w = 0; follow && w < launch.warps; ++w, at += frame) warps[w].undefined = at;
  shared = at;
  local = at + shared_bytes;
  if (follow && program.reads_local) local_undefined = local + locals;
  if (follow) shared_undefined = local + 2 * locals, shared_origin.resize(launch.shared_window / 4 + 1);
  written_by.resize(granules);
  read_by.resize(granules);
}

void Block::start() {
  for (int axis = 0; axis < 3; ++axis) ctaid[axis] = cluster.id[axis] * launch.cluster[axis] + place[axis];
  index = ctaid[0] + launch.grid[0] * (ctaid[1] + u64(launch.grid[1]) * ctaid[2]);
  output.clear();
  printed = 0;
  passed = 0;
  refused = false;
  farewell = nullptr;
  visitors.clear();
  tick = 1;
  live = launch.threads;
  budget = launch.budget;
  executed = slept = reported = 0;
  traced = index >= launch.trace_first && index < launch.trace_end;
  // Unwritten memory reads as NaN in every floating type, and as -1.
  memset(shared, 0xff, launch.shared_window);
  if (program.local_static == program.local_bytes)
    memset(local, 0xff, u64(local_stride) * launch.warps * LANES);
  else
    for (u32 t = 0; t < launch.threads; ++t) memset(local + u64(t) * local_stride, 0xff, program.local_static);
  std::fill(written_by.begin(), written_by.end(), Cell());
  std::fill(read_by.begin(), read_by.end(), Cell());
  flags.clear();
  std::fill(std::begin(seen), std::end(seen), 0);
  if (local_undefined) memset(local_undefined, 0xff, u64(local_stride) * launch.warps * LANES);
  if (shared_tainted) memset(shared_undefined, 0, launch.shared_window);
  shared_tainted = false;
  for (Barrier &b : barriers) b = Barrier{};
  ended.clear();
  warpgroups.clear();
  warpgroups.resize((warps.size() + 3) / 4);
  for (Warp &w : warps) {
    start_undefined(w);
    const u32 threads = std::min<u32>(LANES, launch.threads - w.index * LANES);
    w.live = threads == LANES ? ALL : (1u << threads) - 1;
    w.seq = 0;
    w.step = w.storing = 0;
    w.waits_at = NO_PC;
    w.force = w.watching = false;
    w.met_apart.clear();
    w.reads = w.near_reads = w.own = w.polls = w.long_turns = 0;
    w.turns = 0;
    w.poll.mask = w.poll_of_others.mask = 0;
    w.watches.clear();
    w.round.clear();
    w.groups.assign(1, Group{program.entry, w.live, RUNNABLE});
    if (program.stack != NO_PC) memset(w.reg<u64>(program.stack), 0, LANES * sizeof(u64));
    w.time = w.oldest = w.newest = 1;
    w.knows = {std::vector<u32>(launch.warps, 1), nullptr};
    for (Clock &fenced : w.fenced) fenced = {};
    w.lanes.reset();
    w.epoch = w.waited = 0;
    w.read = 0;
    w.landed = 0;
    w.speculated.clear();
    w.walks.clear();
    w.copies.clear();
    w.copies_issued = 0;
    w.copies_arriving = nullptr;
    std::fill(std::begin(w.copy_group), std::end(w.copy_group), 0);
    w.products.clear();
    w.registers.assign(program.product_registers, WgmmaRegister());
    w.product_fence = WgmmaFence::NEVER;
    w.alone = false;
    w.product_group = 0, w.products_issued = 0;
    w.bulk.clear();
    std::fill(std::begin(w.bulk_group), std::end(w.bulk_group), 0);
    w.arrived = w.through = 0, w.arrivals = 0;
    write_constants(w, true);
  }
}

void Block::report(Problem problem, u32 pc, u32 thread, u64 address, u32 size, u32 other_thread, u32 other_pc,
                   u64 other_block, u64 other_launch) {
  if (other_block == index && !other_launch) other_block = SAME_BLOCK;
  const Finding finding{
      u32(problem), pc, 0, index, address, thread, size, other_thread, other_pc, other_block, other_launch, reported++};
  auto [at, fresh] = worker->findings.try_emplace({u32(problem), pc}, finding);
  const u64 count = at->second.count + 1;
  if (index < at->second.block) at->second = finding;
  at->second.count = count;
}

Outcome Block::run(Worker &by) {
  worker = &by;
  counters = by.counters.data();
  for (u32 vain = 0; live && !stopped;) {
    bool moved = false, polled = false;
    parked_version = launch.version();
    for (Warp &w : warps) {
      if (!w.live) continue;
      const u64 quantum = INSTRUCTIONS_PER_TURN;
      const Turn turn = cluster.noting ? run_warp<true>(w, quantum) : run_warp<false>(w, quantum);
      moved |= turn == Turn::MOVED;
      polled |= turn == Turn::POLLED;
      if (stopped || launch.stop.load(std::memory_order_relaxed)) return Outcome::DONE;
    }
    if (!output.empty()) stream_output();
    if (moved) {
      if (by.brief && live) return Outcome::PAUSED;
      vain = 0;
      continue;
    }
    if (polled) {
      if (++vain < ROUNDS_IN_VAIN) continue;
      return Outcome::POLLING;
    }
    if (waits(FOR_MEMORY)) return Outcome::WAITING;
    if (release_lanes()) continue;
    if (waits(FOR_CLUSTER)) return Outcome::WAITING;
    for (Warp &w : warps)
      for (const Group &g : w.groups)
        report(Problem::BARRIER_DEADLOCK, g.pc, thread(w, __builtin_ctz(g.mask)), g.waiting,
               barriers[g.waiting].arrived);
    halt();
  }
  return Outcome::DONE;
}

bool Block::waits(s32 for_what) const {
  return std::any_of(warps.begin(), warps.end(), [=](const Warp &w) {
    return std::any_of(w.groups.begin(), w.groups.end(), [=](const Group &g) { return g.waiting == for_what; });
  });
}

// No thread can go on. Lanes that wait for others of their warp go on without them.
bool Block::release_lanes() {
  bool released = false;
  for (Warp &w : warps) released |= release_lanes(w);
  return released || release_warpgroups();
}

// Every thread waits, and every other block does or is over.
void Block::report_deadlock(u64 not_started) {
  for (Warp &w : warps)
    for (const Group &g : w.groups) {
      const u32 who = thread(w, __builtin_ctz(g.mask));
      if (g.waiting == FOR_LANES || g.waiting == FOR_WARPGROUP) continue;
      if (g.waiting == FOR_CLUSTER)
        report(Problem::CLUSTER_DEADLOCK, g.pc, who, cluster.missing, 0);
      else if (g.waiting < FOR_LANES && g.waiting != RUNNABLE)
        report(Problem::DEADLOCK_BARRIER, g.pc, who, g.waiting, barriers[g.waiting].arrived);
      else {
        const Poll &poll = w.poll_of_others.mask & g.mask && !(w.poll.mask & g.mask) ? w.poll_of_others : w.poll;
        const bool polled = poll.mask && poll.pc >= g.pc && poll.pc < g.pc + LOOP;
        if (polled && report_mbarrier(poll, who)) continue;
        report(Problem::DEADLOCK_MEMORY, polled ? poll.pc : g.pc, who,
               polled ? poll.address[__builtin_ctz(poll.mask)] : 0, std::min<u64>(not_started, NO_PC - 1));
      }
    }
  report_phases();
}

bool Block::poll_changed() const {
  for (const Warp &w : warps)
    for (u32 rest = w.poll.mask; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      u64 value = 0;
      memcpy(&value, reinterpret_cast<const void *>(w.poll.address[lane]), w.poll.bytes);
      if (value != w.poll.value[lane]) return true;
    }
  return false;
}

// Merge the groups of a warp that have met, and choose the one with the smallest pc. `limit` is where it meets another.
bool Block::schedule(Warp &w, size_t &chosen, u32 &limit) {
  auto &groups = w.groups;
  for (Group &g : groups)
    if (g.waiting == FOR_MEMORY && g.version != version(g.version & NEAR)) g.waiting = RUNNABLE;
  if (groups.size() > 1) {
    std::sort(groups.begin(), groups.end(), [](const Group &a, const Group &b) {
      return a.pc != b.pc ? a.pc < b.pc : a.waiting < b.waiting;
    });
    size_t kept = 0;
    for (size_t g = 1; g < groups.size(); ++g) {
      Group &into = groups[kept];
      const auto open = [](const Group &g) { return g.waiting == RUNNABLE || g.waiting == FOR_LANES; };
      if (into.pc == groups[g].pc && open(into) && open(groups[g])) {
        into = {into.pc, into.mask | groups[g].mask, RUNNABLE, std::min(into.passed, groups[g].passed)};
      } else if (into.pc == groups[g].pc && into.waiting == groups[g].waiting && into.waiting < FOR_LANES) {
        into.mask |= groups[g].mask;
      } else
        groups[++kept] = groups[g];
    }
    groups.resize(kept + 1);
  }
  chosen = groups.size();
  for (size_t g = 0; g < groups.size(); ++g)
    if (groups[g].waiting == RUNNABLE && (chosen == groups.size() || groups[g].passed < groups[chosen].passed))
      chosen = g;
  limit = ~0u;
  for (const Group &g : groups)
    if (chosen < groups.size() && g.pc > groups[chosen].pc && (g.waiting == RUNNABLE || g.waiting == FOR_LANES))
      limit = std::min(limit, g.pc);
  if (chosen < groups.size()) return true;
  const bool only_lanes = !groups.empty() && std::all_of(groups.begin(), groups.end(), [](const Group &g) {
    return g.waiting == FOR_LANES;
  });
  return only_lanes && release_lanes(w) && schedule(w, chosen, limit);
}

// Lanes at a warp-wide instruction whose partners cannot come: let them go on alone.
bool Block::release_lanes(Warp &w) {
  for (Group &g : w.groups)
    if (g.waiting == FOR_LANES) {
      g.waiting = RUNNABLE;
      w.force = true;
      return true;
    }
  return false;
}

static bool for_all(const Instr &i) {  // a barrier of the whole block, at which one waits
  return i.kind == Kind::BARRIER && i.o[1] == ALL && i.o[2] != 1 && i.o[5];
}

template <bool NOTING>
Block::Turn Block::run_warp(Warp &w, u64 quantum) {
  const Instr *code = program.code.data();
  Counters *count = launch.count ? counters : nullptr;
  const u64 start = changes + worker->changes.load(std::memory_order_relaxed);
  bool polled = false;
  size_t chosen;
  u32 limit;
  u64 fuel = quantum;
  for (Group &g : w.groups) g.passed = 0;
  if (w.long_turns >= LONG_TURNS && w.groups.size() > 1) w.groups[0].passed = 1;  // that it was its turn long enough
  const bool begins = w.long_turns >= LONG_TURNS || ++w.turns % SHORT_TURNS == 0;
  w.watching = begins || (w.turns >= SHORT_TURNS && w.turns % SHORT_TURNS < WATCHED_TURNS);
  if (begins) w.long_turns = 0, w.watches.clear();
  w.polls = 0;
  if (w.tainted) look_for_taint(w);
  while (!stopped && w.live && fuel && schedule(w, chosen, limit)) {
    if (w.groups[chosen].passed >= 2) break;
    u32 pc = w.groups[chosen].pc;
    const u32 mask = w.groups[chosen].mask;
    for (bool together = true; together;) {
      const Instr &i = code[pc];
      const u32 active = mask & (w.pred(i.guard) ^ i.negate);
      --fuel;
      if constexpr (NOTING) {
        ++w.step;
        if (active && program.stores[pc]) cluster.note_store(w, pc);
      }
      if (__builtin_expect(w.tainted, 0) && i.flags & TRACKED)
        follow(w, i, mask, i.kind == Kind::TOGETHER ? 0 : active);
      if (i.kind == Kind::TOGETHER) {
        w.groups[chosen].pc = pc;
        together = meet(w, chosen, i, active) && !stopped && ++pc != limit && fuel;
        continue;
      }
      if (count) {
        ++count[pc].warps;
        count[pc].threads += __builtin_popcount(active);
      }
      if (i.kind == Kind::PLAIN) {
        if (active) i.run(w, i, active);
        ++pc;
        if (stopped || pc == limit || fuel == 0) {
          w.groups[chosen].pc = pc;
          together = false;
        }
        continue;
      }
      Group &group = w.groups[chosen];
      group.pc = pc;
      if (i.kind == Kind::BRANCH) {
        if (active && program.goes_round[pc] && launch.sanitize)
          for (const u32 barrier : program.rounds.at(pc)) go_round(w, barrier, active);
        const bool whole = active == mask || active == 0;
        if (whole) {
          pc = group.pc = active ? i.target : pc + 1;
          together = w.groups.size() == 1 && fuel;
        } else {
          branch(w, group, i, active);
          together = false;
        }
        if (active && i.target <= i.pc && (i.flags & STRONG || w.watching) &&
            back(w, i, whole ? w.groups[chosen] : w.groups.back())) {
          polled = true;
          together = false;
        }
        continue;
      }
      together = false;
      switch (i.kind) {
        case Kind::CLOCK:
          w.now = slept + (executed + quantum - fuel) * CYCLES;
          ++w.own;  // another time, another state
          if (active) i.run(w, i, active);
          together = ++group.pc != limit && fuel;
          pc = group.pc;
          break;
        case Kind::TABLE: {  // brx.idx: o[0] index, i.target table
          const std::vector<u32> &table = program.tables[i.target];
          u32 rest = active;
          group.pc = pc + 1;
          group.mask &= ~active;
          while (rest) {
            const u32 entry = w.reg<u32>(i.o[0])[__builtin_ctz(rest)];
            u32 same = 0;
            for (int lane = 0; lane < LANES; ++lane)
              if ((rest >> lane & 1) && w.reg<u32>(i.o[0])[lane] == entry) same |= 1u << lane;
            w.groups.push_back({table[std::min<size_t>(entry, table.size() - 1)], same, RUNNABLE});
            rest &= ~same;
          }
          if (!w.groups[chosen].mask) w.groups.erase(w.groups.begin() + chosen);
          break;
        }
        case Kind::CALL:
        case Kind::CALL_POINTER:
          if (active)
            call(w, chosen, i, active);
          else
            ++group.pc;
          break;
        case Kind::RETURN:
          if (active)
            return_from(w, chosen, i, active);
          else
            ++group.pc;
          break;
        case Kind::EXIT:
          exit(w, group, active);
          break;
        case Kind::BARRIER:
          if (active)
            arrive(w, group, i, active);
          else {
            if (launch.sanitize && for_all(i)) go_round(w, pc, mask);
            ++group.pc;
          }
          break;
        case Kind::CLUSTER_WAIT:
          if (active)
            wait_for_cluster(w, group, active);
          else
            ++group.pc;
          break;
        case Kind::WGMMA_WAIT:
          if (active && !wait_for_products(w, i))
            group.waiting = FOR_WARPGROUP;
          else
            ++group.pc;
          break;
        case Kind::TRAP:
          if (active) {
            report(Problem::TRAP, pc, thread(w, __builtin_ctz(active)), 0, 0);
            halt();
          } else
            ++group.pc;
          break;
        default:
          if (active) {
            report(Problem::UNKNOWN_INSTRUCTION, pc, thread(w, __builtin_ctz(active)), 0, 0);
            halt();
          } else
            ++group.pc;
      }
    }
  }
  const u64 used = quantum - fuel;
  executed += used;
  w.long_turns += fuel == 0;
  if (used >= budget && !stopped && live) {
    const Group &g = w.groups.front();
    report(Problem::WATCHDOG, g.pc, thread(w, __builtin_ctz(g.mask)), launch.budget, 0);
    halt();
  }
  budget -= std::min(used, budget);
  if (!used) return Turn::NOTHING;
  const bool changed = changes + worker->changes.load(std::memory_order_relaxed) != start;
  return polled && fuel && !changed ? Turn::POLLED : Turn::MOVED;
}

// ---- loops that wait ----

static bool same_registers(const Program &p, const u8 *a, const u8 *b, u32 mask) {
  if (mask == ALL) return !memcmp(a, b, p.frame_bytes);
  for (u32 at = p.bounds[0]; at < p.bounds[1]; at += 4)
    if ((bits_of<u32>(a + at) ^ bits_of<u32>(b + at)) & mask) return false;
  for (u32 width = 2, n = 1; n < 5; ++n, width *= 2)
    for (u32 at = p.bounds[n]; at + LANES * width <= p.bounds[n + 1]; at += LANES * width)
      for (u32 rest = mask; rest; rest &= rest - 1) {
        const u32 lane = at + __builtin_ctz(rest) * width;
        if (memcmp(a + lane, b + lane, width)) return false;
      }
  return true;
}

// The lanes of `mask` take the branch backwards at `pc`. True if they did so before with the same registers, and memory
// has not changed since: then they will do so until somebody else changes it, if they read any. If all lanes of the warp
// did, and read nothing, they will do so whatever others change. `now`: the memory that they have seen; what was changed a
// moment ago, they have not.
bool Block::same_again(Warp &w, u32 pc, u32 mask, u64 &now) {
  auto watch = std::find_if(w.watches.begin(), w.watches.end(), [=](const Watch &x) { return x.pc == pc; });
  if (watch == w.watches.end()) watch = w.watches.insert(watch, Watch{});
  const u64 looked = w.reads - watch->reads;
  const bool near = looked && looked == w.near_reads - watch->near_reads;
  now = version(near);
  const bool alone = mask == w.live && watch->reads == w.reads;
  const bool same = near ? watch->changes == changes : watch->version == now;
  if (watch->mask != mask || (!same && !alone) || watch->own != w.own) {
    *watch = {pc, mask, version(), changes, w.own, w.reads, w.near_reads, 0, 2, {}};
    return false;
  }
  ++watch->visits;
  if (!watch->frame.empty() && same_registers(program, w.frame, watch->frame.data(), mask)) {
    if (watch->reads == w.reads) {
      report(Problem::ENDLESS, pc, thread(w, __builtin_ctz(mask)), 0, 0);
      halt();
    }
    return true;
  }
  if (watch->visits >= watch->next || watch->frame.empty()) {  // the loop may return to itself after several turns only
    watch->frame.assign(w.frame, w.frame + program.frame_bytes);
    watch->reads = w.reads;
    watch->near_reads = w.near_reads;
    watch->version = version();
    watch->changes = changes;
    watch->next = 2 * watch->visits;
  }
  return false;
}

// Lanes that branch backwards, in a loop that polls. True if another warp should have a turn before they go on.
bool Block::back(Warp &w, const Instr &i, Group &group) {
  if (same_again(w, i.pc, group.mask, group.version)) {
    group.waiting = FOR_MEMORY;
    return true;
  }
  if (w.polls < POLLS_PER_TURN) return false;
  w.polls = 0;
  group.passed += 2;
  return true;
}

// The lanes of `active` stand where the lanes that their masks name meet. Each set of lanes with one mask goes when all
// of it that has not exited is here. True if all went: their group has moved on. Otherwise those that lack somebody wait.
bool Block::meet(Warp &w, size_t chosen, const Instr &i, u32 active) {
  const u32 *masks = w.reg<u32>(i.target);
  const auto go = [&](u32 lanes) {
    if (w.tainted && i.flags & TRACKED) follow(w, i, 0, lanes);
    i.run(w, i, lanes);
  };
  u32 went = 0;
  for (u32 rest = active, same; rest; rest &= ~same) {
    const u32 first = __builtin_ctz(rest), named = masks[first];
    same = rest;
    if (!(i.flags & ONE_MASK)) same &= ballot([named](u32 mask) { return mask == named; }, masks);
    const u32 absent = named & w.live & ~same;
    if (absent && !w.force) continue;
    if (absent) report_absent(w, i, first, named, same);
    if (const u32 outside = same & ~named) {
      report(Problem::OUTSIDE_MASK, i.pc, thread(w, __builtin_ctz(outside)), named, outside);
      go(outside);
    }
    if (same & named) go(same & named);
    went |= same;
  }
  w.force = false;
  if (launch.count && (went || !active)) {
    ++counters[i.pc].warps;
    counters[i.pc].threads += __builtin_popcount(went);
  }
  Group &group = w.groups[chosen];
  if (went == active) return ++group.pc, true;
  const Group others{i.pc + 1, group.mask & ~(active & ~went), RUNNABLE};
  group.mask &= ~others.mask;
  group.waiting = FOR_LANES;
  const u32 waiting = group.mask;
  if (others.mask) w.groups.push_back(others);
  if (i.flags & ANYWHERE) meet_apart(w, i, waiting);
  return false;
}

// The lanes of `named` go on without some of them: say where one of those is, or how they came to be apart.
void Block::report_absent(Warp &w, const Instr &i, int lane, u32 named, u32 here) {
  const auto met = std::find_if(w.met_apart.begin(), w.met_apart.end(), [=](auto &m) { return m.mask == named; });
  if (met != w.met_apart.end()) {
    const u32 other = met->pc == i.pc ? met->other_pc : met->pc;
    return report(Problem::WARP_MET_APART, i.pc, thread(w, lane), named, here, MANY_THREADS, other);
  }
  const u32 absent = named & w.live & ~here;
  const auto there = std::find_if(w.groups.begin(), w.groups.end(), [=](const Group &g) { return g.mask & absent; });
  const bool known = there != w.groups.end() && there->pc != i.pc;
  report(Problem::WARP_DIVERGENCE, i.pc, thread(w, lane), named, here,
         known ? thread(w, __builtin_ctz(there->mask & absent)) : MANY_THREADS, known ? there->pc : NO_PC);
}

// The lanes of `came` wait at `last`. With those that wait at others of its kind they may be all that their mask names: PTX
// asks for the same instruction with the same mask and qualifiers, not for the same place.
void Block::meet_apart(Warp &w, const Instr &last, u32 came) {
  std::vector<Group> gone;
  for (u32 rest = came; rest;) {
    const u32 named = w.reg<u32>(last.target)[__builtin_ctz(rest)];
    const auto with_it = [&](const Instr &i, u32 lanes) {
      return lanes & ballot([named](u32 mask) { return mask == named; }, w.reg<u32>(i.target));
    };
    rest &= ~with_it(last, rest);
    std::vector<Standing> places;
    u32 met = 0;
    for (const Group &g : w.groups)
      if (const Instr &i = program.code[g.pc]; g.waiting == FOR_LANES && same_exchange(i, last))
        if (const u32 lanes = with_it(i, g.mask)) places.push_back({&i, lanes}), met |= lanes;
    if (named & w.live & ~met) continue;
    if (const u32 outside = met & ~named) {
      report(Problem::OUTSIDE_MASK, last.pc, thread(w, __builtin_ctz(outside)), named, outside);
      exchange(w, places, outside);
    }
    if (met & named) exchange(w, places, met & named);
    for (const Standing &at : places) {
      if (launch.count) ++counters[at.i->pc].warps, counters[at.i->pc].threads += __builtin_popcount(at.lanes);
      gone.push_back({at.i->pc + 1, at.lanes, RUNNABLE});
    }
    auto known = std::find_if(w.met_apart.begin(), w.met_apart.end(), [=](auto &m) { return m.mask == named; });
    if (known == w.met_apart.end()) known = w.met_apart.insert(known, MetApart{});
    *known = {named, places.front().i->pc, places.back().i->pc};
  }
  for (const Group &went : gone)
    for (Group &g : w.groups) g.mask &= ~went.mask;
  w.groups.insert(w.groups.end(), gone.begin(), gone.end());
  w.groups.erase(std::remove_if(w.groups.begin(), w.groups.end(), [](const Group &g) { return !g.mask; }),
                 w.groups.end());
}

void Block::branch(Warp &w, Group &group, const Instr &i, u32 taken) {
  const Group other{i.target, taken, RUNNABLE};
  group.mask &= ~taken;
  ++group.pc;
  w.groups.push_back(other);
}

void Block::exit(Warp &w, Group &group, u32 mask) {
  for (auto &[barrier, lanes] : w.round)
    if (const u32 never = mask & lanes) {
      const u32 who = thread(w, __builtin_ctz(never));
      const Barrier *waiting =
          std::find_if(barriers, barriers + 16, [pc = barrier](const Barrier &b) { return b.pc == pc; });
      if (waiting != barriers + 16)
        report(Problem::BARRIER_SKIPPED, barrier, waiting->thread, waiting - barriers, 0, who);
      else
        ended.push_back({barrier, who});
      lanes &= ~mask;
    }
  for (Copy &copy : w.copies)
    if (!copy.actor) copy.mask &= ~mask;  // no thread will wait for them
  ++group.pc;
  group.mask &= ~mask;
  w.live &= ~mask;
  live -= __builtin_popcount(mask);
  if (!w.live && cluster.noting) cluster.note(w, group.pc - 1, EVENT_EXIT, 0, 0, 0);
  if (!w.live && !w.products.empty()) end_products(w);
  if (!live) end_warpgroups();
  leave_copies(w, mask);
  w.groups.erase(std::remove_if(w.groups.begin(), w.groups.end(), [](const Group &g) { return !g.mask; }),
                 w.groups.end());
  for (Group &g : w.groups)
    if (g.waiting == FOR_LANES) g.waiting = RUNNABLE;  // perhaps it was for these lanes that they waited
  complete_barriers();                                 // threads that have exited are not waited for
  leave_cluster(w, mask);
}

// o: barrier number, count (or ~0), what (0 sync, 1 arrive, 2 popc, 3 and, 4 or), destination, predicate, aligned
void Block::arrive(Warp &w, Group &group, const Instr &i, u32 mask) {
  const int lane = __builtin_ctz(mask);
  const u32 number = w.reg<u32>(i.o[0])[lane] & 15;
  Barrier &b = barriers[number];
  budget -= std::min(budget, BARRIER_COST);
  const u32 expected = i.o[1] == ALL ? 0 : w.reg<u32>(i.o[1])[lane];
  if (b.pc == NO_PC) {
    b.pc = i.pc;
    b.thread = thread(w, lane);
  } else if (b.pc != i.pc && !expected && i.o[5] && !b.mixed && launch.sanitize) {
    b.mixed = true;
    report(Problem::BARRIER_DIVERGENCE, i.pc, thread(w, lane), number, 0, b.thread, b.pc);
  }
  b.expected = expected;
  // A count is in whole warps: lanes that have exited, or never were, are counted with their warp.
  b.arrived += expected && mask == w.live ? LANES : __builtin_popcount(mask);
  if (i.o[2] >= 2) {
    const u32 votes = (w.pred(i.o[4]) ^ (i.flags & NOT_PRED ? ALL : 0)) & mask;
    b.count += __builtin_popcount(votes);
    if (votes != mask) b.all = 0;
    if (votes) b.any = ALL;
  }
  if (cluster.noting) cluster.note(w, i.pc, EVENT_BARRIER_ARRIVE, 0, number, i.o[2] != 1);
  if (expected && launch.sanitize) {
    look_for_turns(w, b, number, thread(w, lane), i.pc);
    b.now.push_back({w.index, w.time, thread(w, lane), i.pc});
    bring(w, b);
  }
  if (i.o[2] == 1)
    ++group.pc;
  else {
    const Group others{group.pc + 1, group.mask & ~mask, RUNNABLE};  // @p bar.sync: the other lanes go on
    group.mask = mask;
    group.waiting = number;
    if (others.mask) w.groups.push_back(others);
    if (others.mask && launch.sanitize && for_all(i)) go_round(w, i.pc, others.mask);
  }
  for (auto &[barrier, lanes] : w.round)
    if (barrier == i.pc) lanes &= ~mask;
  for (auto &[barrier, who] : ended)
    if (barrier == i.pc) {
      report(Problem::BARRIER_SKIPPED, i.pc, thread(w, lane), number, 0, who);
      barrier = NO_PC;
    }
  complete_barriers();
}

// Lanes bypass a barrier, to code that follows it. They may still reach it by a loop. If they end first, and others
// have reached it, it is an error: that is not an early return.
void Block::go_round(Warp &w, u32 barrier, u32 lanes) {
  const auto at =
      std::find_if(w.round.begin(), w.round.end(), [=](const auto &round) { return round.first == barrier; });
  if (at == w.round.end())
    w.round.push_back({barrier, lanes});
  else
    at->second |= lanes;
}

void Program::find_rounds() {
  goes_round.assign(code.size(), false);
  for (const Instr &barrier : code) {
    if (!for_all(barrier)) continue;
    const std::vector<bool> follows = beyond(barrier.pc);
    for (const Instr &i : code)
      if (i.kind == Kind::BRANCH && i.pc < barrier.pc && i.target > barrier.pc && follows[i.target] &&
          code[i.target].kind != Kind::EXIT) {
        rounds[i.pc].push_back(barrier.pc);
        goes_round[i.pc] = true;
      }
  }
}

// Which instructions can be executed after that one, by a thread that has executed it.
std::vector<bool> Program::beyond(u32 pc) const {
  const auto always = [&](const Instr &i) {
    return std::any_of(constants.begin(), constants.end(), [&](const Constant &c) {
      return c.offset == i.guard && c.width == 0 && !i.negate;
    });
  };
  std::vector<bool> found(code.size());
  for (std::vector<u32> next{pc + 1}; !next.empty();) {
    const u32 here = next.back();
    next.pop_back();
    if (here >= found.size() || found[here]) continue;
    found[here] = true;
    const Instr &i = code[here];
    const bool leaves = i.kind == Kind::BRANCH || i.kind == Kind::TABLE || i.kind == Kind::EXIT;
    if (!leaves || !always(i)) next.push_back(here + 1);
    if (i.kind == Kind::BRANCH) next.push_back(i.target);
    if (i.kind == Kind::TABLE) next.insert(next.end(), tables[i.target].begin(), tables[i.target].end());
  }
  return found;
}

void Block::complete_barriers() {
  for (u32 number = 0; number < 16; ++number) {
    Barrier &b = barriers[number];
    if (b.pc == NO_PC || b.arrived < (b.expected ? b.expected : live)) continue;
    for (Warp &w : warps)
      for (Group &g : w.groups) {
        if (g.waiting != s32(number)) continue;
        const Instr &i = program.code[g.pc];
        if (i.o[2] == 2)
          for (int lane = 0; lane < LANES; ++lane)
            if (g.mask >> lane & 1) w.reg<u32>(i.o[3])[lane] = b.count;
        if (i.o[2] > 2) w.pred(i.o[3]) = (w.pred(i.o[3]) & ~g.mask) | ((i.o[2] == 3 ? b.all : b.any) & g.mask);
        if (cluster.noting) cluster.note(w, g.pc, EVENT_BARRIER_PASS, 0, number, 0);
        ++g.pc;
        g.waiting = RUNNABLE;
        if (b.expected && launch.sanitize) take(w, b);
        if (i.o[2] >= 2) ++w.reads;  // what others have said
      }
    if (!b.expected && launch.sanitize) meet_all();
    ++changes;
    std::vector<Barrier::Arrival> over = std::move(b.now);
    b = Barrier{};
    b.last_time = std::move(over);
  }
}

// What the scheduler executes.
void register_control(Registry &r) {
  const auto steers = [](const char *category) { return About::does(Effect::STEERS, category, Undefined::BRANCH); };
  constexpr About barrier = About::does(Effect::ORDERS, "barrier", Undefined::BRANCH);
  enter(r, {{"bra", nullptr, "", steers("control")},
            {"brx", nullptr, "s4", steers("control")},
            {"call", nullptr, "d8 s8 n s8?", steers("control")},
            {"return", nullptr, "", steers("control")},
            {"exit", nullptr, "", steers("control")},
            {"trap", nullptr, "", steers("control")},
            {"unknown", nullptr, "", steers("other")},
            {"barrier", nullptr, "s4 s4? n d*? s0? n", barrier},
            {"cluster.wait", nullptr, "", barrier}});
}

}  // namespace vm
