// mbarriers, and the bulk copies that complete on them.
//
// An mbarrier is a word in shared memory: threads that have yet to arrive in this phase, threads that every phase expects,
// bytes that have yet to come, and the phase's parity. A phase is complete when nobody and nothing is missing. What those
// knew that arrived in it, whoever waits for it learns: Mbarrier.
//
// A bulk copy (cp.async.bulk) is made by no thread. It lands when somebody looks at its mbarrier; until a wait there has
// succeeded, its target is in flight for everybody, and for the sanitizer it is an actor of its own (Visit::copy).
#include <algorithm>

#include "block.h"

namespace vm {

constexpr u32 MOST_ARRIVALS = (1u << 20) - 1;
constexpr u64 ASYNCHRONOUS = 1ull << 56;  // in the place of a block's number: the copies of an mbarrier

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

// f(lane, target) for all lanes, one after the other. `atomic`: the sanitizer notes it as such. False if an address is none, which has been reported.
template <class F>
static bool each(Warp &w, const Instr &i, u32 mask, u32 base, u32 offset, u32 shape, bool atomic, F f) {
  Block &b = *w.block;
  alignas(64) u64 address[LANES];
  addresses(w, base, offset, shape & 1, address);
  const Space asked = Space(shape >> 8);
  for (int lane = 0; lane < LANES && asked != Space::GENERIC; ++lane) address[lane] |= SHARED_WINDOW;
  for (u32 left = mask; left;) {
    Space space;
    const u32 here = next_space(b, &left, address, &space);
    if (!check_access(w, i, here, space, address, 8, 8, look(address, here, 8))) return false;
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

// Nobody and nothing is missing: the next phase begins.
static void end_phase(Cluster &cluster, const Target &t, Phase &phase) {
  if (phase.pending || phase.bytes) return;
  phase.pending = phase.expected;
  phase.parity ^= 1;
  Mbarrier &m = cluster.mbarriers[t.address];
  m.completed = join(m.completed, m.gathered);
  m.gathered = nullptr;
}

// The copies that complete on this mbarrier land.
void Cluster::land(u64 address, Block &by) {
  const auto mine = [=](const BulkCopy &c) { return c.mbarrier == address; };
  if (std::none_of(copies.begin(), copies.end(), mine)) return;
  const Target t{block(address), offset(address), address};
  Mbarrier &m = mbarriers[address];
  for (const BulkCopy &c : copies) {
    if (!mine(c)) continue;
    Block *there = block(c.destination);
    if (there->live) memcpy(there->shared + offset(c.destination), reinterpret_cast<const void *>(c.source), c.bytes);
    Phase phase(t.word());
    phase.bytes -= s32(c.bytes);
    m.gathered = join(m.gathered, std::make_shared<Past>(Past{{c.actor << 6, c.time + 1}}));
    end_phase(*this, t, phase);
    t.word() = phase.word();
  }
  copies.erase(std::remove_if(copies.begin(), copies.end(), mine), copies.end());
  by.changed(by.warps[0], Space::SHARED);
}

enum What { INIT, INVALIDATE, ARRIVE, EXPECT_AND_ARRIVE, DROP, EXPECT, COMPLETE };

// o: state (or ~0), address, offset, 64-bit address | space << 8, what, count of threads or bytes (or ~0: 1)
static void change(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  const What what = What(i.o[4]);
  if (b.launch.sanitize && what == INIT) {  // a plain write
    alignas(64) u64 address[LANES];
    addresses(w, i.o[1], i.o[2], i.o[3] & 1, address);
    for (u64 &a : address) a &= ~WINDOW_MASK;
    if (!check_access(w, i, m, Space::SHARED, address, 8, 8, look(address, m, 8))) return;
    b.shadow_write(w, m, address, 8, i, nullptr);
  }
  each(w, i, m, i.o[1], i.o[2], i.o[3], what != INIT, [&](int lane, const Target &t) {
    const u32 n = i.o[5] == ALL ? 1 : w.reg<u32>(i.o[5])[lane];
    Phase phase(t.word());
    const auto wrong = [&](Problem problem) {
      b.report(problem, i.pc, b.thread(w, lane), shown(b, t), n);
      b.halt();
    };
    if (what == INIT) {
      if (!n || n > MOST_ARRIVALS) return wrong(Problem::MBARRIER_COUNT);
      b.cluster.mbarriers[t.address] = {};
      t.word() = Phase(n | u64(n) << 20).word();
      return;
    }
    const auto known = b.cluster.mbarriers.find(t.address);
    if (known == b.cluster.mbarriers.end()) return wrong(Problem::MBARRIER_NOT_THERE);
    if (what == INVALIDATE) {
      b.cluster.mbarriers.erase(known);
      return;
    }
    if (i.o[0] != ALL) w.reg<u64>(i.o[0])[lane] = t.word();
    if (what == EXPECT_AND_ARRIVE || what == EXPECT) phase.bytes += s32(n);
    if (what == COMPLETE) phase.bytes -= s32(n);
    if (what == ARRIVE || what == EXPECT_AND_ARRIVE || what == DROP) {
      const u32 arrivals = what == ARRIVE ? n : 1;
      if (arrivals > phase.pending) {  // copies may end this phase first
        b.cluster.land(t.address, b);
        const s32 expected = what == EXPECT_AND_ARRIVE ? s32(n) : 0;
        phase = Phase(t.word());
        phase.bytes += expected;
      }
      if (arrivals > phase.pending) return wrong(Problem::MBARRIER_FULL);
      phase.pending -= arrivals;
      if (what == DROP) --phase.expected;
      if (b.launch.sanitize) b.hand_to(w, m, known->second.gathered, i.flags & RELEASE);
    }
    if (what != EXPECT) end_phase(b.cluster, t, phase);
    t.word() = phase.word();
    b.changed(w, Space::SHARED);
  });
}

// o: predicate, address, offset, 64-bit address | space << 8, parity (or ~0), state (or ~0). True if that phase is over.
static void test(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  ++w.reads;
  ++w.polls;
  Poll &poll = w.poll;
  poll.pc = i.pc, poll.mask = m, poll.bytes = 8;
  each(w, i, m, i.o[1], i.o[2], i.o[3], true, [&](int lane, const Target &t) {
    const auto known = b.cluster.mbarriers.find(t.address);
    if (known == b.cluster.mbarriers.end()) {
      b.report(Problem::MBARRIER_NOT_THERE, i.pc, b.thread(w, lane), shown(b, t), 0);
      return b.halt();
    }
    b.cluster.land(t.address, b);
    const u32 asked = i.o[4] != ALL ? w.reg<u32>(i.o[4])[lane] & 1 : Phase(w.reg<u64>(i.o[5])[lane]).parity;
    const bool over = Phase(t.word()).parity != asked;
    w.pred(i.o[0]) = (w.pred(i.o[0]) & ~(1u << lane)) | u32(over) << lane;
    poll.address[lane] = reinterpret_cast<u64>(&t.word());
    poll.value[lane] = t.word();
    if (over && b.launch.sanitize && i.flags & ACQUIRE) b.take_from(w, known->second.completed);
  });
}

// cp.async.bulk from global to shared memory. o: destination, offset, 64-bit address | space << 8, source, offset, 64-bit
// address, bytes, mbarrier, offset, 64-bit address | space << 8
static void copy_in(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  alignas(64) u64 to[LANES], from[LANES], barrier[LANES];
  addresses(w, i.o[0], i.o[1], i.o[2] & 1, to);
  addresses(w, i.o[3], i.o[4], i.o[5], from);
  addresses(w, i.o[7], i.o[8], i.o[9] & 1, barrier);
  for (u32 rest = m; rest && !b.stopped; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const u32 alone = 1u << lane, bytes = w.reg<u32>(i.o[6])[lane];
    if (!bytes) continue;
    u32 left = alone;
    Space space;
    to[lane] |= SHARED_WINDOW;
    next_space(b, &left, to, &space);
    if (bytes % 16) {
      b.report(Problem::BULK_SIZE, i.pc, b.thread(w, lane), 0, bytes);
      return b.halt();
    }
    if (!check_access(w, i, alone, Space::GLOBAL, from, bytes, 16, look(from, alone, bytes)) ||
        !check_access(w, i, alone, space, to, bytes, 16, look(to, alone, bytes)))
      return;
    if (b.launch.count) {
      Counters &c = b.counters[i.pc];
      ++c.requests;
      c.bytes += bytes;
      c.sectors += (from[lane] + bytes - 1) / 32 - from[lane] / 32 + 1;
    }
    if (b.traced) {
      trace_access(w, i, alone, Space::GLOBAL, CP_ASYNC, from, bytes), --w.seq;
      trace_access(w, i, alone, space, CP_ASYNC, to, bytes);
    }
    const u64 target = b.cluster_address(space, to[lane]), there = barrier[lane] & ~WINDOW_MASK;
    const u64 on = b.cluster.block(there) ? there : Cluster::address(b, there);
    const auto known = b.cluster.mbarriers.find(on);
    if (known == b.cluster.mbarriers.end()) {
      b.report(Problem::MBARRIER_NOT_THERE, i.pc, b.thread(w, lane), on, 0);
      return b.halt();
    }
    Mbarrier &mbarrier = known->second;
    if (!mbarrier.actor) mbarrier.actor = ASYNCHRONOUS | ++b.cluster.actors;
    const BulkCopy copy{target, from[lane], on, mbarrier.actor, bytes, ++mbarrier.copies};
    if (b.launch.sanitize) {
      for (u32 at = 0; at < bytes; at += 16) {
        u64 piece[LANES];
        piece[lane] = from[lane] + at;
        const Pattern p = look(piece, alone, 16);
        note_global(w, i, alone, piece, 16, false, p);
        b.race_read(w, i, alone, piece, 16, p);
      }
      b.copy_issued(w, i, lane, copy);
    }
    b.cluster.copies.push_back(copy);
  }
}

// A thread waits for what it polled: if that is an mbarrier, say for what that one waits.
bool Block::report_mbarrier(const Poll &poll, u32 thread) {
  for (const auto &[address, mbarrier] : cluster.mbarriers) {
    const Target t{cluster.block(address), Cluster::offset(address), address};
    if (reinterpret_cast<u64>(&t.word()) != poll.address[__builtin_ctz(poll.mask)]) continue;
    const Phase phase(t.word());
    const bool bytes = !phase.pending;
    report(bytes ? Problem::DEADLOCK_BYTES : Problem::DEADLOCK_MBARRIER, poll.pc, thread, shown(*this, t),
           bytes ? u32(phase.bytes) : phase.pending);
    return true;
  }
  return false;
}

// Its target is in flight from now on: nobody may touch it who has not waited.
void Block::copy_issued(Warp &w, const Instr &i, int lane, const BulkCopy &copy) {
  Block &there = *cluster.block(copy.destination);
  const u32 shift = program.granule_log2, from = u32(Cluster::offset(copy.destination));
  const Cell writer =
      Cell::by_visit(cluster.remember({index, w.index, copy.time, u32(lane), i.pc, Cell(), copy.actor}), 0);
  for (u32 at = from >> shift; at <= (from + copy.bytes - 1) >> shift; ++at) {
    const u64 where = &there == this ? u64(at) << shift : Cluster::address(there, u64(at) << shift);
    for (const bool written : {true, false})
      for (Cell last = (written ? there.written_by : there.read_by)[at]; last; last = cluster.before(last))
        if (!ordered(w, lane, there, last)) {
          report_visit(written ? Problem::RACE_WRITE_AFTER_WRITE : Problem::RACE_WRITE_AFTER_READ, w, i, lane, where,
                       copy.bytes, there, last);
          break;
        }
    there.written_by[at] = writer;
    there.read_by[at] = {};
  }
}

void register_mbarrier(Registry &r) {
  enter(r, {{"mbarrier", change, "d8? s* n n n s4?"},
            {"mbarrier.test", test, "d0 s* n n s4? s8?"},
            {"cp.async.bulk", copy_in, "s* n n s* n n s4 s* n n"}});
}

}  // namespace vm
