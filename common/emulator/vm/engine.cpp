// Scheduling: blocks over the processor's cores, the warps of a block in turns, the diverged groups of a warp by
// smallest pc. And the interface to Python (engine.py), at the end.
#include "block.h"

#include <algorithm>
#include <chrono>

namespace vm {

constexpr u32 INSTRUCTIONS_PER_TURN = 20000;  // of one warp, while others wait

// ---- a block ----

static u64 align_up(u64 value, u64 to) { return (value + to - 1) / to * to; }

// Special registers: lane-wise, from position. The numbers are those of SPECIALS in lower.py.
static u64 special_value(const Block &b, u32 special, u32 warp, u32 lane) {
  const Launch &l = b.launch;
  const u32 thread = warp * LANES + lane;
  switch (special) {
    case 1: return thread % l.block[0];
    case 2: return thread / l.block[0] % l.block[1];
    case 3: return thread / l.block[0] / l.block[1];
    case 4: case 5: case 6: return l.block[special - 4];
    case 7: case 8: case 9: return b.ctaid[special - 7];
    case 10: case 11: case 12: return l.grid[special - 10];
    case 13: return lane;
    case 14: return warp;
    case 15: return l.warps;
    case 16: return 1u << lane;
    case 17: return (1u << lane) | ((1u << lane) - 1);   // lanemask_le
    case 18: return (1u << lane) - 1;                    // lanemask_lt
    case 19: return ~((1u << lane) - 1);                 // lanemask_ge
    case 20: return ~((1u << lane) | ((1u << lane) - 1));  // lanemask_gt
    case 21: return l.dynamic_shared;
    case 22: return l.shared_bytes;
    case 23: return b.index % 132;  // smid: a place, not a promise
    case 24: return 132;            // nsmid
    default: return 0;              // gridid, envreg, cluster ranks of a launch without clusters
  }
}

static bool per_block(u32 special) { return (special >= 7 && special <= 9) || special == 23; }

static void write_constant(Block &b, Warp &w, const Constant &c) {
  if (c.width == 0) {
    w.pred(c.offset) = c.value ? ALL : 0;
    return;
  }
  for (u32 lane = 0; lane < LANES; ++lane) {
    const u64 value = c.special ? special_value(b, c.special, w.index, lane) : c.value;
    memcpy(w.frame + c.offset + lane * c.width, &value, c.width);
  }
}

Block::Block(Launch &launch) : launch(launch), program(*launch.program) {
  const u64 frame = align_up(program.frame_bytes, 64);
  local_stride = align_up(program.local_bytes, 16);
  const u64 shared_bytes = align_up(launch.shared_bytes, 64) + 64;
  const u64 total = frame * launch.warps + shared_bytes + u64(local_stride) * launch.warps * LANES + 64;
  storage.reset(new u8[total]());
  u8 *at = storage.get() + (64 - reinterpret_cast<u64>(storage.get()) % 64) % 64;
  warps.resize(launch.warps);
  for (u32 w = 0; w < launch.warps; ++w, at += frame) {
    warps[w].frame = at;
    warps[w].block = this;
    warps[w].index = w;
    warps[w].order.assign(launch.warps, 1);
    for (const Constant &c : program.constants)
      if (!per_block(c.special)) write_constant(*this, warps[w], c);
  }
  shared = at;
  local = at + shared_bytes;
  if (launch.count) counters.resize(program.code.size());
  if (launch.sanitize) shadow.resize((launch.shared_bytes >> program.granule_log2) + 1);
}

void Block::start(u64 block_index) {
  index = block_index;
  output.clear();
  ctaid[0] = index % launch.grid[0];
  ctaid[1] = index / launch.grid[0] % launch.grid[1];
  ctaid[2] = index / launch.grid[0] / launch.grid[1];
  tick = 1;
  live = launch.threads;
  budget = launch.budget;
  traced = index >= launch.trace_first && index < launch.trace_end;
  // What nobody wrote reads as NaN in every floating type, and as -1.
  memset(shared, 0xff, launch.shared_bytes);
  memset(local, 0xff, u64(local_stride) * launch.warps * LANES);
  std::fill(shadow.begin(), shadow.end(), Cell{});
  for (Barrier &b : barriers) b = Barrier{};
  for (Warp &w : warps) {
    const u32 threads = std::min<u32>(LANES, launch.threads - w.index * LANES);
    w.live = threads == LANES ? ALL : (1u << threads) - 1;
    w.seq = 0;
    w.force = false;
    w.groups.assign(1, Group{0, w.live, RUNNABLE});
    std::fill(w.order.begin(), w.order.end(), 1);
    w.oldest = 1;
    w.copies.clear();
    std::fill(std::begin(w.copy_group), std::end(w.copy_group), 0);
    for (const Constant &c : program.constants)
      if (per_block(c.special)) write_constant(*this, w, c);
  }
}

void Block::report(Problem problem, u32 pc, u32 thread, u64 address, u32 size, u32 other_thread, u32 other_pc) {
  auto [at, fresh] = findings.try_emplace(
      {u32(problem), pc}, Finding{u32(problem), pc, 0, index, address, thread, size, other_thread, other_pc});
  ++at->second.count;
}

void Block::run() {
  while (live && !stopped) {
    bool moved = false;
    for (Warp &w : warps) {
      if (!w.live) continue;
      const u64 before = budget;
      run_warp(w, INSTRUCTIONS_PER_TURN);
      moved |= budget != before;
      if (stopped || launch.stop.load(std::memory_order_relaxed)) return;
    }
    if (moved) continue;
    // Nobody can move. Lanes that wait for others of their warp go on without them; without such, it is a deadlock.
    bool released = false;
    for (Warp &w : warps) released |= release_lanes(w);
    if (released) continue;
    for (Warp &w : warps)
      for (const Group &g : w.groups) {
        if (stopped) return;
        const Barrier &b = barriers[g.waiting];
        report(Problem::DEADLOCK, g.pc, thread(w, __builtin_ctz(g.mask)), g.waiting, b.arrived, MANY_THREADS, NO_PC);
        halt();
      }
  }
}

// Merge the groups of a warp that have met, and choose the one with the smallest pc. `limit` is where it meets another.
bool Block::schedule(Warp &w, size_t &chosen, u32 &limit) {
  auto &groups = w.groups;
  if (groups.size() > 1) {
    std::sort(groups.begin(), groups.end(), [](const Group &a, const Group &b) {
      return a.pc != b.pc ? a.pc < b.pc : a.waiting < b.waiting;
    });
    size_t kept = 0;
    for (size_t g = 1; g < groups.size(); ++g) {
      Group &into = groups[kept];
      const bool same = into.pc == groups[g].pc && (into.waiting == groups[g].waiting ||
                        (into.waiting == RUNNABLE && groups[g].waiting == FOR_LANES));
      if (same && into.waiting != FOR_LANES) into.mask |= groups[g].mask;
      else if (same) { into.mask |= groups[g].mask; into.waiting = RUNNABLE; }
      else groups[++kept] = groups[g];
    }
    groups.resize(kept + 1);
  }
  chosen = groups.size();
  limit = ~0u;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (chosen == groups.size()) {
      if (groups[g].waiting == RUNNABLE) chosen = g;
    } else if (groups[g].pc > groups[chosen].pc && (groups[g].waiting == RUNNABLE || groups[g].waiting == FOR_LANES)) {
      limit = groups[g].pc;
      break;
    }
  }
  if (chosen < groups.size()) return true;
  const bool only_lanes = !groups.empty() && std::all_of(groups.begin(), groups.end(),
                                                         [](const Group &g) { return g.waiting == FOR_LANES; });
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

void Block::run_warp(Warp &w, u64 quantum) {
  const Instr *code = program.code.data();
  Counters *count = launch.count ? counters.data() : nullptr;
  size_t chosen;
  u32 limit;
  u64 fuel = quantum;
  while (!stopped && w.live && fuel && schedule(w, chosen, limit)) {
    u32 pc = w.groups[chosen].pc;
    const u32 mask = w.groups[chosen].mask;
    for (bool together = true; together;) {
      const Instr &i = code[pc];
      const u32 active = mask & (w.pred(i.guard) ^ i.negate);
      --fuel;
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
        if (active == mask || active == 0) {
          pc = group.pc = active ? i.target : pc + 1;
          together = w.groups.size() == 1 && fuel;
        } else {
          branch(w, group, i, active);
          together = false;
        }
        continue;
      }
      together = false;
      switch (i.kind) {
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
        case Kind::EXIT: exit(w, group, active); break;
        case Kind::BARRIER:
          if (active) arrive(w, group, i, active);
          else ++group.pc;
          break;
        case Kind::TRAP:
          if (active) {
            report(Problem::TRAP, pc, thread(w, __builtin_ctz(active)), 0, 0);
            halt();
          } else ++group.pc;
          break;
        default:
          if (active) {
            report(Problem::UNKNOWN_INSTRUCTION, pc, thread(w, __builtin_ctz(active)), 0, 0);
            halt();
          } else ++group.pc;
      }
    }
  }
  const u64 used = quantum - fuel;
  if (used >= budget && !stopped && live) {
    const Group &g = w.groups.front();
    report(Problem::WATCHDOG, g.pc, thread(w, __builtin_ctz(g.mask)), launch.budget, 0);
    halt();
  }
  budget -= std::min(used, budget);
}

// The lanes of `active` stand where the lanes that their masks name meet. Each set of lanes with one mask goes when all
// of it that has not exited is here. True if all went: their group has moved on. Otherwise those that lack somebody wait.
bool Block::meet(Warp &w, size_t chosen, const Instr &i, u32 active) {
  const u32 *masks = w.reg<u32>(i.target);
  u32 went = 0;
  for (u32 rest = active, same; rest; rest &= ~same) {
    const u32 first = __builtin_ctz(rest), named = masks[first];
    same = rest;
    if (!(i.flags & ONE_MASK)) same &= ballot([named](u32 mask) { return mask == named; }, masks);
    const u32 absent = named & w.live & ~same;
    if (absent && !w.force) continue;
    if (absent) report(Problem::WARP_DIVERGENCE, i.pc, thread(w, first), named, same);
    if (const u32 outside = same & ~named) {
      report(Problem::OUTSIDE_MASK, i.pc, thread(w, __builtin_ctz(outside)), named, outside);
      i.run(w, i, outside);
    }
    if (same & named) i.run(w, i, same & named);
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
  if (others.mask) w.groups.push_back(others);
  if (i.flags & WARP_BARRIER) meet_apart(w, i);
  return false;
}

// Lanes may meet at several `bar.warp.sync`: what counts is the mask. Nothing is exchanged there but the meeting itself.
void Block::meet_apart(Warp &w, const Instr &last) {
  const auto waits = [&](const Group &g) {
    return g.waiting == FOR_LANES && program.code[g.pc].flags & WARP_BARRIER;
  };
  const auto lanes_with = [&](const Group &g, u32 named) {
    return g.mask & ballot([named](u32 mask) { return mask == named; }, w.reg<u32>(program.code[g.pc].target));
  };
  const size_t count = w.groups.size();
  for (size_t first = 0; first < count; ++first) {
    const Group &here = w.groups[first];
    if (!waits(here)) continue;
    const u32 named = w.reg<u32>(program.code[here.pc].target)[__builtin_ctz(here.mask)];
    u32 met = 0;
    for (size_t g = 0; g < count; ++g)
      if (waits(w.groups[g])) met |= lanes_with(w.groups[g], named);
    if (named & w.live & ~met) continue;
    for (size_t g = 0; g < count; ++g) {
      if (!waits(w.groups[g])) continue;
      const u32 pc = w.groups[g].pc, go = lanes_with(w.groups[g], named);
      if (!go) continue;
      if (launch.count) ++counters[pc].warps, counters[pc].threads += __builtin_popcount(go);
      w.groups[g].mask &= ~go;
      w.groups.push_back({pc + 1, go, RUNNABLE});
    }
    last.run(w, last, met);
    break;  // the lanes of other masks met before
  }
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
  for (Copy &copy : w.copies) copy.mask &= ~mask;  // nobody will wait for them
  ++group.pc;
  group.mask &= ~mask;
  w.live &= ~mask;
  live -= __builtin_popcount(mask);
  w.groups.erase(std::remove_if(w.groups.begin(), w.groups.end(), [](const Group &g) { return !g.mask; }),
                 w.groups.end());
  for (Group &g : w.groups)
    if (g.waiting == FOR_LANES) g.waiting = RUNNABLE;  // perhaps it was for these lanes that they waited
  complete_barriers();                                 // threads that have exited are not waited for
}

// o: barrier number, count (or ~0), what (0 sync, 1 arrive, 2 popc, 3 and, 4 or), destination, predicate, aligned
void Block::arrive(Warp &w, Group &group, const Instr &i, u32 mask) {
  const int lane = __builtin_ctz(mask);
  const u32 number = w.reg<u32>(i.o[0])[lane] & 15;
  Barrier &b = barriers[number];
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
  b.warps_seen |= 1u << w.index;
  if (i.o[2] >= 2) {
    const u32 votes = (w.pred(i.o[4]) ^ (i.flags & NOT_PRED ? ALL : 0)) & mask;
    b.count += __builtin_popcount(votes);
    if (votes != mask) b.all = 0;
    if (votes) b.any = ALL;
  }
  if (i.o[2] == 1) ++group.pc;
  else {
    const Group others{group.pc + 1, group.mask & ~mask, RUNNABLE};  // @p bar.sync: the other lanes go on
    group.mask = mask;
    group.waiting = number;
    if (others.mask) w.groups.push_back(others);
  }
  complete_barriers();
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
        ++g.pc;
        g.waiting = RUNNABLE;
      }
    synchronise(b.expected ? b.warps_seen : ALL);
    b = Barrier{};
  }
}

// ---- a launch ----

static void merge(Launch &l, Block &b) {
  for (size_t pc = 0; pc < b.counters.size(); ++pc) {
    Counters &to = l.counters[pc], &from = b.counters[pc];
    to.warps += from.warps, to.threads += from.threads, to.sectors += from.sectors;
    to.wavefronts += from.wavefronts, to.conflicts += from.conflicts, to.bytes += from.bytes;
    to.requests += from.requests;
  }
  for (const auto &[key, finding] : b.findings) {
    auto [at, fresh] = l.findings.try_emplace(key, finding);
    if (fresh) continue;
    const u64 count = at->second.count + finding.count;
    if (finding.block < at->second.block) at->second = finding;
    at->second.count = count;
  }
  l.trace.insert(l.trace.end(), b.trace.begin(), b.trace.end());
}

static void work(Launch &l) {
  Block block(l);
  while (!l.stop.load(std::memory_order_relaxed)) {
    const u64 index = l.next.fetch_add(1);
    if (index >= l.blocks) break;
    block.start(index);
    block.run();
    if (!block.output.empty()) {
      std::lock_guard lock(l.mutex);
      l.output[index].swap(block.output);
    }
    if (block.stopped) {
      l.stop = true;
      std::lock_guard lock(l.mutex);
      l.stopped_by = std::min(l.stopped_by, index);
    }
    l.done.fetch_add(1);
  }
  std::lock_guard lock(l.mutex);
  merge(l, block);
  if (--l.running == 0) l.finished.notify_all();
}

}  // namespace vm

// ---- the interface to Python ----

using namespace vm;

struct LaunchSpec {
  u32 grid[3], block[3];
  u32 dynamic_shared, threads;
  u32 count, sanitize;
  u32 param_bytes, allocation_count;
  const u8 *params;
  const Allocation *allocations;
  u64 trace_first, trace_end, trace_limit, budget;
};

static const Registry &registry() {
  static const Registry all = [] {
    Registry r;
    register_integer(r);
    register_floating(r);
    register_convert(r);
    register_memory(r);
    register_warp(r);
    register_print(r);
    register_tensor(r);
    return r;
  }();
  return all;
}

#pragma GCC visibility push(default)
extern "C" {

// The names of all handlers, one per line.
const char *vm_handlers() {
  static const std::string names = [] {
    std::string all;
    for (const auto &[name, handler] : registry()) all += name + "\n";
    return all;
  }();
  return names.c_str();
}

// names: one per line. words, for each instruction: name, guard, negate, flags, kind, target, count, operands.
// header: instructions, bytes of a frame, of local and of static shared memory, log2 of the shadow's granule, number of
// constants, words of all tables. constants: offset, width, special, value of each. tables: length and entries of each.
// unknown[i] becomes 1 if instruction i has no handler.
Program *vm_program(const char *names, const u32 *words, const u32 *header, const u64 *constants, const u32 *tables,
                    u8 *unknown) {
  std::vector<Handler> handlers;
  for (const char *at = names; *at;) {
    const char *end = strchr(at, '\n');
    const auto found = registry().find(std::string(at, end));
    handlers.push_back(found == registry().end() ? nullptr : found->second);
    at = end + 1;
  }
  Program *p = new Program;
  p->frame_bytes = header[1], p->local_bytes = header[2], p->static_shared = header[3], p->granule_log2 = header[4];
  u64 size = 0;
  for (u32 n = 0; n < header[0]; ++n) size += 7 + words[size + 6];
  p->words.assign(words, words + size);
  const u32 *at = p->words.data();
  for (u32 n = 0; n < header[0]; ++n, at += 7 + at[6]) {
    Instr i{handlers[at[0]], at + 7, at[1], at[2], at[3], Kind(at[4]), at[5], n};
    unknown[n] = !i.run && (i.kind == Kind::PLAIN || i.kind == Kind::TOGETHER);
    if (unknown[n]) i.kind = Kind::UNKNOWN;
    p->code.push_back(i);
  }
  for (u32 n = 0; n < header[5]; ++n, constants += 4)
    p->constants.push_back({u32(constants[0]), u32(constants[1]), u32(constants[2]), constants[3]});
  for (u32 n = 0; n < header[6];) {
    p->tables.emplace_back(tables + n + 1, tables + n + 1 + tables[n]);
    n += 1 + tables[n];
  }
  return p;
}

void vm_free_program(Program *p) { delete p; }

Launch *vm_launch(const Program *program, const LaunchSpec *spec) {
  Launch *l = new Launch;
  l->program = program;
  std::copy(spec->grid, spec->grid + 3, l->grid);
  std::copy(spec->block, spec->block + 3, l->block);
  l->threads = l->block[0] * l->block[1] * l->block[2];
  l->warps = (l->threads + LANES - 1) / LANES;
  l->dynamic_shared = spec->dynamic_shared;
  l->shared_bytes = program->static_shared + spec->dynamic_shared;
  l->params.assign(spec->params, spec->params + spec->param_bytes);
  l->allocations.assign(spec->allocations, spec->allocations + spec->allocation_count);
  std::sort(l->allocations.begin(), l->allocations.end(), [](auto &a, auto &b) { return a.base < b.base; });
  l->count = spec->count, l->sanitize = spec->sanitize;
  l->trace_first = spec->trace_first, l->trace_end = spec->trace_end, l->trace_limit = spec->trace_limit;
  l->budget = spec->budget;
  l->blocks = u64(l->grid[0]) * l->grid[1] * l->grid[2];
  if (l->count) l->counters.resize(program->code.size());
  const u32 workers = std::max<u64>(1, std::min<u64>(spec->threads, l->blocks));
  l->running = workers;
  for (u32 n = 0; n < workers; ++n) l->workers.emplace_back(work, std::ref(*l));
  return l;
}

// Wait for at most `seconds`; 1 when the launch is over. `done`: blocks that are.
int vm_wait(Launch *l, double seconds, u64 *done) {
  std::unique_lock lock(l->mutex);
  const bool over = l->finished.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return l->running == 0; });
  *done = l->done;
  return over;
}

void vm_cancel(Launch *l) { l->stop = true; }

const Counters *vm_counters(Launch *l) { return l->counters.data(); }

u64 vm_findings(Launch *l, Finding *out, u64 limit) {
  u64 n = 0;
  for (const auto &[key, finding] : l->findings)
    if (n < limit) out[n++] = finding;
  return l->findings.size();
}

const TraceRow *vm_trace(Launch *l, u64 *rows) {
  *rows = l->trace.size();
  return l->trace.data();
}

// What the kernel printed, block by block.
const char *vm_output(Launch *l) {
  l->all_output.clear();
  for (const auto &[block, text] : l->output) l->all_output += text;
  return l->all_output.c_str();
}

u64 vm_stopped_by(Launch *l) { return l->stopped_by; }

void vm_free_launch(Launch *l) {
  for (std::thread &t : l->workers) t.join();
  delete l;
}

}  // extern "C"
#pragma GCC visibility pop
