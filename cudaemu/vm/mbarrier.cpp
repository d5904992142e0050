// mbarriers.
//
// An mbarrier is a word in shared memory: threads that have yet to arrive in this phase, threads that every phase expects,
// bytes that have yet to come, and the phase's parity. A phase is complete when no arrivals and no bytes are missing. A
// thread that waits for it learns what those knew that arrived in it: Mbarrier. Bulk copies that complete on an
// mbarrier land when a thread that still has to wait tests it: bulk.cpp.
#include <algorithm>

#include "block.h"

namespace vm {

constexpr u32 MOST_ARRIVALS = (1u << 20) - 1;
constexpr s32 MOST_BYTES = (1 << 20) - 1;

// The word, unpacked.
struct Phase {
  u32 pending, expected;
  s32 bytes;
  u32 parity;
  explicit Phase(u64 word)
      : pending(word & MOST_ARRIVALS),
        expected(word >> 20 & MOST_ARRIVALS),
        bytes(s32(u32(word >> 40) << 9) >> 9),
        parity(word >> 63) {}
  u64 word() const {
    return pending | u64(expected) << 20 | u64(u32(bytes) & ((1u << 23) - 1)) << 40 | u64(parity) << 63;
  }
};

// Where a lane's mbarrier is.
struct Target {
  Block *there;
  u64 offset, address;  // in that block; in the cluster
  u64 &word() const { return *reinterpret_cast<u64 *>(there->shared + offset); }
};

// Its address in a report.
static u64 shown(const Block &b, const Target &t) { return t.there == &b ? t.offset : t.address; }

// Whoever uses an mbarrier must have synchronised with the thread that made it: otherwise he may come first.
static void look_for_init(const Warp &w, const Instr &i, int lane, const Target &t, const Mbarrier &m) {
  Block &b = *w.block;
  if (b.launch.sanitize && !b.ordered(w, lane, *t.there, m.made))
    b.report(Problem::MBARRIER_INIT_RACE, i.pc, b.thread(w, lane), shown(b, t), 8, m.made_by_thread, m.made_at,
             t.there->index);
}

// What may be done to another block's mbarrier: nothing; an arrival or the like, if the instruction is for all of the
// cluster's shared memory or for generic addresses.
enum Reaches { OWN, ANY };

// f(lane, target) for all lanes, one after the other. `atomic`: the sanitizer notes it as such. False if an address is none,
// which has been reported.
template <class F>
static bool each(Warp &w, const Instr &i, u32 mask, u32 base, u32 offset, u32 shape, Reaches reaches, bool atomic,
                 F f) {
  Block &b = *w.block;
  alignas(64) u64 address[LANES];
  addresses(w, base, offset, shape & 1, address);
  const Space asked = Space(shape >> 8);
  for (int lane = 0; lane < LANES && asked != Space::GENERIC; ++lane) address[lane] |= SHARED_WINDOW;
  for (u32 left = mask; left;) {
    Space space;
    u32 here = next_space(b, &left, address, &space);
    if (space == Space::CLUSTER && (reaches == OWN || asked == Space::SHARED) && b.launch.sanitize) {
      const int lane = __builtin_ctz(here);
      b.report(Problem::MBARRIER_ELSEWHERE, i.pc, b.thread(w, lane), address[lane], reaches);
    }
    for (u32 rest = space == Space::CLUSTER ? here : 0; rest; rest &= rest - 1) {  // no thread waits there any more
      const int lane = __builtin_ctz(rest);
      const Block *there = b.cluster.block(address[lane]);
      if (!there || there->live) continue;
      b.report(Problem::MBARRIER_GONE, i.pc, b.thread(w, lane), address[lane], 8, MANY_THREADS, NO_PC, there->index);
      here &= ~(1u << lane);
    }
    if (!access(w, i, {here, space, address, 8, 8, UNCOUNTED, UNTRACED, Noted::BY_CALLER})) return false;
    if (space != Space::SHARED && space != Space::CLUSTER) {
      b.report(Problem::SHARED_BOUNDS, i.pc, b.thread(w, __builtin_ctz(here)), address[__builtin_ctz(here)], 8);
      b.halt();
      return false;
    }
    for (u32 rest = here; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      Block *there = space == Space::CLUSTER ? b.cluster.block(address[lane]) : &b;
      const u64 at = space == Space::CLUSTER ? Cluster::offset(address[lane]) : address[lane];
      if (atomic && b.launch.sanitize) {
        if (there == &b)
          b.shadow_atomic(w, lane, u32(at), 8, i);
        else
          b.visit(w, i, 1u << lane, address, 8, true, Cell::BY_STRONG, nullptr);
      }
      f(lane, Target{there, at, Cluster::address(*there, at)});
    }
  }
  return true;
}

static void trace_lane(Warp &w, const Instr &i, int lane, const Target &t, TraceKind kind) {
  u64 at[LANES];
  at[lane] = shown(*w.block, t);
  trace_access(w, i, 1u << lane, t.there == w.block ? Space::SHARED : Space::CLUSTER, kind, at, 8);
}

// No arrivals and no bytes are missing: the next phase begins. `by`: the thread, of the warp's block, that brought the last.
static void end_phase(Warp &w, u32 pc, u32 by, const Target &t, Phase &phase) {
  if (phase.pending || phase.bytes) return;
  Cluster &cluster = w.block->cluster;
  if (cluster.noting) cluster.note(w, pc, EVENT_MBARRIER_END, u32(t.there->index), u32(t.offset), 0);
  phase.pending = phase.expected;
  phase.parity ^= 1;
  Mbarrier &m = cluster.mbarriers[t.address];
  m.completed = join(m.completed, m.gathered);
  m.gathered = nullptr;
  m.brought = 0;
  if (!m.waited && !m.overrun++) m.overrun_by = by, m.overrun_at = pc, m.overrun_block = w.block->index;
  m.waited = false;
  ++m.phases;
}

// Those arrive that were to arrive after their cp.async: these land. What else their threads did is not told.
void Cluster::arrive_late(u64 address, Warp &by) {
  const Target t{block(address), offset(address), address};
  const u32 parity = Phase(t.word()).parity;
  for (size_t n = 0; n < late_arrivals.size() && Phase(t.word()).parity == parity;) {
    if (late_arrivals[n].mbarrier != address) {
      ++n;
      continue;
    }
    const LateArrival a = late_arrivals[n];
    late_arrivals.erase(late_arrivals.begin() + s64(n));
    Warp &w = a.block->warps[a.warp];
    a.block->worker = by.block->worker;
    land_copies(w, a.mask, a.number);
    Mbarrier &m = mbarriers[address];
    for (u32 rest = a.mask; rest; rest &= rest - 1) {
      Phase phase(t.word());
      if (!phase.pending) {
        a.block->report(Problem::MBARRIER_FULL, a.pc, a.block->thread(w, __builtin_ctz(rest)), shown(*a.block, t), 1);
        return a.block->halt();
      }
      if (noting) note(w, a.pc, EVENT_MBARRIER_ARRIVE, u32(t.there->index), u32(t.offset), 1);
      m.gathered = join(m.gathered, a.past);
      --phase.pending;
      end_phase(w, a.pc, a.block->thread(w, __builtin_ctz(rest)), t, phase);
      t.word() = phase.word();
    }
    a.block->changed(w, Space::SHARED);
  }
}

// The copies that complete on this mbarrier land.
void Cluster::land(u64 address, Warp &by) {
  arrive_late(address, by);
  const auto mine = [=](const BulkCopy &c) { return c.mbarrier == address; };
  const auto first = std::find_if(copies.begin(), copies.end(), mine);
  if (first == copies.end()) return;
  const Target t{block(address), offset(address), address};
  Mbarrier &m = mbarriers[address];
  const u64 actor = copies_on(t.there->index, t.offset);
  bool over = false;
  for (auto c = first; c != copies.end(); ++c) {
    if (!mine(*c)) continue;
    if (over && launch.sanitize) {
      Block &there = issuer(*c);
      there.worker = by.block->worker;
      there.report(Problem::BULK_UNEXPECTED, c->pc, c->thread, shown(there, t), c->bytes, m.expecting, m.at);
      over = false;
    }
    execute(*c);
    block(c->tile)->refused |= c->answer == Answer::REFUSED;
    if (noting) note(by, c->pc, EVENT_LANDED, u32(t.there->index), u32(t.offset), c->bytes);
    Phase phase(t.word());
    const u32 parity = phase.parity;
    phase.bytes -= s32(c->bytes);
    m.brought_by = c->thread, m.from = c->pc, m.brought_block = c->block, m.brought += c->bytes;
    m.gathered = join(m.gathered, std::make_shared<Past>(Past{{actor << 6, c->time + 1}}));
    end_phase(by, c->pc, c->thread, t, phase);
    over = phase.parity != parity;
    t.word() = phase.word();
  }
  copies.erase(std::remove_if(first, copies.end(), mine), copies.end());
  by.block->changed(by, Space::SHARED);
}

enum What { INIT, INVALIDATE, ARRIVE, EXPECT_AND_ARRIVE, DROP, EXPECT_AND_DROP, EXPECT, COMPLETE };

// o: state (or ~0), address, offset, 64-bit address | space << 8, what, count of threads or bytes (or ~0: 1)
static void change(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  const What what = What(i.o[4]);
  if (b.launch.sanitize && what == INIT) {  // a plain write
    alignas(64) u64 address[LANES];
    addresses(w, i.o[1], i.o[2], i.o[3] & 1, address);
    for (u64 &a : address) a &= ~WINDOW_MASK;
    if (!access(w, i, {m, Space::SHARED, address, 8, 8, UNCOUNTED, UNTRACED, Noted::WRITTEN})) return;
  }
  u64 ended = 0;  // where this instruction has ended a phase
  const Reaches reaches = what == INIT || what == INVALIDATE ? OWN : ANY;
  each(w, i, m, i.o[1], i.o[2], i.o[3], reaches, what != INIT, [&](int lane, const Target &t) {
    const u32 n = i.o[5] == ALL ? 1 : w.reg<u32>(i.o[5])[lane];
    Phase phase(t.word());
    const auto note = [&](EventKind kind, u32 number) {
      if (b.cluster.noting) b.cluster.note(w, i.pc, kind, u32(t.there->index), u32(t.offset), number);
    };
    const auto wrong = [&](Problem problem) {
      b.report(problem, i.pc, b.thread(w, lane), shown(b, t), n);
      b.halt();
    };
    const auto forget = [&](u64 address) {
      auto &late = b.cluster.late_arrivals;
      late.erase(std::remove_if(late.begin(), late.end(), [=](auto &a) { return a.mbarrier == address; }), late.end());
    };
    if (what == INIT) {
      if (!n || n > MOST_ARRIVALS) return wrong(Problem::MBARRIER_COUNT);
      Mbarrier &made = b.cluster.mbarriers[t.address] = {};
      made.made_by = &w, made.made_by_thread = b.thread(w, lane), made.made_at = i.pc;
      if (b.launch.sanitize) made.made = Cell::by_warp(w.time, w.index, lane, lane, i.pc, 0);
      forget(t.address);
      note(EVENT_MBARRIER_INIT, n);
      t.word() = Phase(n | u64(n) << 20).word();
      return;
    }
    const auto known = b.cluster.mbarriers.find(t.address);
    if (known == b.cluster.mbarriers.end()) return wrong(Problem::MBARRIER_NOT_THERE);
    look_for_init(w, i, lane, t, known->second);
    if (what == INVALIDATE) {
      b.cluster.mbarriers.erase(known);
      forget(t.address);
      return;
    }
    if (i.o[0] != ALL) w.reg<u64>(i.o[0])[lane] = t.word();
    const bool arrives = what != EXPECT && what != COMPLETE, drops = what == DROP || what == EXPECT_AND_DROP;
    const bool expects = what == EXPECT_AND_ARRIVE || what == EXPECT_AND_DROP || what == EXPECT;
    if (expects) {
      phase.bytes += s32(n);
      note(EVENT_MBARRIER_EXPECT, n);
      known->second.expecting = b.thread(w, lane), known->second.at = i.pc;
    }
    if (what == COMPLETE) phase.bytes -= s32(n);
    if (n > u32(MOST_BYTES) || phase.bytes > MOST_BYTES) return wrong(Problem::MBARRIER_BYTES);
    if (arrives) {
      const u32 arrivals = expects ? 1 : n;
      // An H200 adds up what lanes of a warp bring at once, and ends the launch if it is more than is missing.
      if (ended == t.address) {
        const Mbarrier &m = known->second;
        b.report(Problem::MBARRIER_AT_ONCE, i.pc, b.thread(w, lane), shown(b, t), n, m.made_by_thread, m.made_at);
        return b.halt();
      }
      if (arrivals > phase.pending) {  // copies may end this phase first, but need not
        b.cluster.land(t.address, w);
        const s32 expected = expects ? s32(n) : 0;
        phase = Phase(t.word());
        phase.bytes += expected;
        if (arrivals <= phase.pending && b.launch.sanitize)
          b.report(Problem::MBARRIER_EARLY, i.pc, b.thread(w, lane), shown(b, t), n);
      }
      if (arrivals > phase.pending) return wrong(Problem::MBARRIER_FULL);
      if (b.traced) trace_lane(w, i, lane, t, MBARRIER_ARRIVE);
      note(EVENT_MBARRIER_ARRIVE, arrivals);
      phase.pending -= arrivals;
      if (drops) phase.expected -= arrivals;
      if (b.launch.sanitize) b.hand_to(w, m, known->second.gathered, i.flags & RELEASE);
    }
    if (what != EXPECT) end_phase(w, i.pc, b.thread(w, lane), t, phase);
    if (phase.parity != Phase(t.word()).parity) ended = t.address;
    t.word() = phase.word();
    b.changed(w, Space::SHARED);
  });
}

// A lane's wait is over: for the phase that ended last. Has it waited for that one before?
static void note_pass(Warp &w, u32 pc, int lane, Mbarrier &m) {
  m.waited = true;
  m.passed.resize(w.block->warps.size());
  u32 &last = m.passed[w.index][size_t(lane)];
  const u32 thread = w.block->thread(w, lane);
  if (last == m.phases + 1) {
    Mbarrier::Stale &stale = m.stale.try_emplace(pc, Mbarrier::Stale{thread}).first->second;
    stale.count += stale.thread == thread;
  }
  last = m.phases + 1;
}

// o: predicate, address, offset, 64-bit address | space << 8, parity (or ~0), state (or ~0). True if that phase is over.
static void test(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  ++w.reads;
  ++w.near_reads;
  ++w.polls;
  Poll &poll = w.poll;
  if (!(poll.mask & m)) w.poll_of_others = poll;
  poll.pc = i.pc, poll.mask = m, poll.bytes = 8;
  each(w, i, m, i.o[1], i.o[2], i.o[3], OWN, true, [&](int lane, const Target &t) {
    const auto known = b.cluster.mbarriers.find(t.address);
    if (known == b.cluster.mbarriers.end()) {
      b.report(Problem::MBARRIER_NOT_THERE, i.pc, b.thread(w, lane), shown(b, t), 0);
      return b.halt();
    }
    look_for_init(w, i, lane, t, known->second);
    const u32 asked = i.o[4] != ALL ? w.reg<u32>(i.o[4])[lane] & 1 : Phase(w.reg<u64>(i.o[5])[lane]).parity;
    if (Phase(t.word()).parity == asked) b.cluster.land(t.address, w);
    const bool over = Phase(t.word()).parity != asked;
    if (b.cluster.noting && lane == __builtin_ctz(m)) {
      const EventKind kind = over ? EVENT_MBARRIER_PASS : EVENT_MBARRIER_WAIT;
      b.cluster.note_wait(w, i.pc, kind, u32(t.there->index), u32(t.offset), asked);
    }
    if (over && b.launch.sanitize) note_pass(w, i.pc, lane, known->second);
    w.pred(i.o[0]) = (w.pred(i.o[0]) & ~(1u << lane)) | u32(over) << lane;
    poll.address[lane] = reinterpret_cast<u64>(&t.word());
    poll.value[lane] = t.word();
    if (over && b.traced) trace_lane(w, i, lane, t, MBARRIER_WAIT);
    if (over && b.launch.sanitize && i.flags & ACQUIRE) b.take_from(w, known->second.completed);
  });
}

// A thread waits for what it polled: if that is an mbarrier, say for what that one waits.
bool Block::report_mbarrier(const Poll &poll, u32 thread) {
  for (const auto &[address, mbarrier] : cluster.mbarriers) {
    const Target t{cluster.block(address), Cluster::offset(address), address};
    if (reinterpret_cast<u64>(&t.word()) != poll.address[__builtin_ctz(poll.mask)]) continue;
    const Phase phase(t.word());
    if (phase.pending)
      report(Problem::DEADLOCK_MBARRIER, poll.pc, thread, shown(*this, t) | u64(phase.expected) << 32, phase.pending,
             mbarrier.made_by_thread, mbarrier.made_at, t.there->index);
    else if (phase.bytes > 0)
      report(Problem::DEADLOCK_BYTES, poll.pc, thread, shown(*this, t), phase.bytes, mbarrier.expecting, mbarrier.at);
    else
      report(Problem::DEADLOCK_EXCESS, poll.pc, thread, shown(*this, t), -phase.bytes, mbarrier.brought_by,
             mbarrier.from);
    return true;
  }
  return false;
}

// What may have led to a deadlock, of this block's mbarriers: copies that brought less than is expected, phases that ended
// too soon, waits that did not wait.
void Block::report_phases() {
  std::map<u64, const Mbarrier *> mine;  // in their order
  for (const auto &[address, mbarrier] : cluster.mbarriers)
    if (cluster.block(address) == this) mine[Cluster::offset(address)] = &mbarrier;
  for (const auto &entry : mine) {
    const u64 at = entry.first;
    const Mbarrier *m = entry.second;
    const auto by_block = [&](u64 index, const auto &say) {
      for (auto &by : cluster.blocks)
        if (by->index == index) by->worker = worker, say(*by, by.get() == this ? at : Cluster::address(*this, at));
    };
    const Phase phase(Target{this, at, Cluster::address(*this, at)}.word());
    if (!phase.pending && phase.bytes > 0 && m->brought)
      by_block(m->brought_block, [&](Block &by, u64 place) {
        by.report(Problem::DEADLOCK_BROUGHT, m->from, m->brought_by, place, m->brought);
      });
    if (m->overrun)
      by_block(m->overrun_block, [&](Block &by, u64 place) {
        by.report(Problem::DEADLOCK_OVERRUN, m->overrun_at, m->overrun_by, place, m->overrun, m->made_by_thread,
                  m->made_at);
      });
    for (const auto &[pc, stale] : m->stale) report(Problem::DEADLOCK_STALE, pc, stale.thread, at, stale.count);
  }
}

// cp.async.mbarrier.arrive: an arrival when the thread's copies have landed. As bulk copies, they do when a thread that has
// to wait tests the mbarrier. o: address, offset, 64-bit address | space << 8, whether the phase expects it already
static void arrive_after_copies(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  const u64 actor = cp_async_of(b.index, b.thread(w, __builtin_ctz(m)));
  hand_over_copies(w, m, actor);
  w.copies_arriving = join(w.copies_arriving, std::make_shared<Past>(Past{{actor << 6, w.copies_issued + 1}}));
  const PastPointer past = join(w.copies_arriving, b.launch.sanitize ? b.reads_over(w) : nullptr);
  auto &late = b.cluster.late_arrivals;
  const size_t before = late.size();
  each(w, i, m, i.o[0], i.o[1], i.o[2], OWN, true, [&](int lane, const Target &t) {
    if (!b.cluster.mbarriers.count(t.address)) {
      b.report(Problem::MBARRIER_NOT_THERE, i.pc, b.thread(w, lane), shown(b, t), 0);
      return b.halt();
    }
    if (b.traced) trace_lane(w, i, lane, t, MBARRIER_ARRIVE);
    if (!i.o[3]) {
      Phase phase(t.word());
      ++phase.pending;
      t.word() = phase.word();
    }
    const auto same =
        std::find_if(late.begin() + s64(before), late.end(), [&](auto &a) { return a.mbarrier == t.address; });
    if (same == late.end())
      late.push_back({&b, w.index, 1u << lane, w.copies_issued, i.pc, t.address, past});
    else
      same->mask |= 1u << lane;
  });
  b.changed(w, Space::SHARED);
}

// fence.mbarrier_init: for those that the warp has initialised.
static void fence_init(Warp &w, const Instr &, u32) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!w.block->launch.sanitize) return;
  for (auto &[address, mbarrier] : w.block->cluster.mbarriers) mbarrier.fenced |= mbarrier.made_by == &w;
  w.block->fence(w, true);
}

void register_mbarrier(Registry &r) {
  enter(r, {{"mbarrier", change, "d8? s* n n n s4?", About::mbarrier(1, Undefined::ALL_OF_IT)},
            {"mbarrier.copies", arrive_after_copies, "s* n n n", About::mbarrier(0, Undefined::ALL_OF_IT)},
            {"fence.mbarrier_init", fence_init, "", About::does(Effect::ORDERS, "control", Undefined::NOTHING)},
            {"mbarrier.test", test, "d0 s* n n s4? s8?", About::mbarrier(1, Undefined::ALL_OF_IT)}});
}

}  // namespace vm
