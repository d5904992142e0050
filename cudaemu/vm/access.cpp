// What every access to memory goes through: its addresses are checked, what it costs is counted, it is traced, and the
// sanitizer notes it. Whoever loads, stores or copies calls access() before the data move, and says all in an Access.
#include <algorithm>

#include "block.h"

namespace vm {

// ---- what it costs ----

// How many neighbouring lanes shared memory serves together: as many as 128 bytes go to, all 32 with 4 bytes each and
// less, half the warp with 8, a quarter with 16; for loads twice as many if all lanes i and i ^ 1, or all i and i ^ 2,
// want the same. Found on an H200, and equal there on all patterns of docs/hardware/banks.py.
static u32 served_together(const u64 *address, u32 mask, u32 bytes, bool load) {
  const u32 part = 128 / std::max(bytes, 4u);
  for (const u32 bit : {1u, 2u}) {
    bool same = load && part < LANES;
    for (u32 lane = 0; lane < LANES && same; ++lane)
      same = !(mask >> lane & mask >> (lane ^ bit) & 1) || address[lane] == address[lane ^ bit];
    if (same) return 2 * part;
  }
  return part;
}

// Passes over the 32 banks of 4 bytes that an access needs, `part` lanes at a time. A pass delivers one 4-byte word of
// each bank to all lanes that want it.
static u32 wavefronts(const u64 *address, u32 mask, u32 bytes, u32 part) {
  const u32 width = std::max(bytes, 4u), banks = 128 / width,
            width_log2 = __builtin_ctz(width);  // wide: several as one
  u32 passes = 0;
  for (u32 first = 0; first < LANES; first += part) {
    u32 word[LANES], busy = 0, count = 0;
    for (u32 rest = (mask >> first) & (part == LANES ? ALL : (1u << part) - 1); rest; rest &= rest - 1) {
      word[count] = u32(address[first + __builtin_ctz(rest)]) >> width_log2;
      busy |= 1u << (word[count++] & (banks - 1));
    }
    if (u32(__builtin_popcount(busy)) == count) {  // each has a bank for itself
      passes += count != 0;
      continue;
    }
    u32 used[LANES][LANES], most = 0;  // the different words that each bank must deliver
    u8 different[LANES] = {};
    for (u32 n = 0; n < count; ++n) {
      const u32 bank = word[n] & (banks - 1);
      u32 k = 0;
      while (k < different[bank] && used[bank][k] != word[n]) ++k;
      if (k == different[bank]) used[bank][different[bank]++] = word[n];
      most = std::max<u32>(most, different[bank]);
    }
    passes += most;
  }
  return passes;
}

static u32 minimum_wavefronts(u32 mask, u32 part) {
  u32 passes = 0;
  for (u32 first = 0; first < LANES; first += part)
    passes += (mask >> first & (part == LANES ? ALL : (1u << part) - 1)) != 0;
  return passes;
}

Pattern look(const u64 *address, u32 mask, u32 bytes) {
  const u64 first = address[__builtin_ctz(mask)];
  u64 low = ~u64(0), high = 0, bits = 0, unlike = 0, gap = 0;
  for (u32 lane = 0; lane < LANES; ++lane) {
    const u64 here = u64(0) - (mask >> lane & 1), a = address[lane];
    low = std::min(low, a | ~here);
    high = std::max(high, a & here);
    bits |= a & here;
    unlike |= (a ^ first) & here;
    gap |= a ^ (first + lane * bytes);
  }
  return {low, high, bits, unlike == 0, mask == ALL && gap == 0};
}

// Different 32-byte sectors that the lanes touch.
static u32 sectors(const u64 *address, u32 mask, u32 bytes, const Pattern &p) {
  const u64 low = p.low >> 5, high = (p.high + bytes - 1) >> 5;
  if (p.same || p.row) return high - low + 1;
  if (high - low < 64) {
    u64 touched = 0;
    for (int lane = 0; lane < LANES; ++lane) {
      const u64 begin = (address[lane] >> 5) - low, end = ((address[lane] + bytes - 1) >> 5) - low;
      touched |= mask >> lane & 1 ? 1ull << (begin & 63) | 1ull << (end & 63) : 0;
    }
    return __builtin_popcountll(touched);
  }
  alignas(64) u64 sector[LANES];  // far apart; an access lies within one, for it is aligned and has 32 bytes at most
  for (u32 lane = 0; lane < LANES; ++lane) sector[lane] = mask >> lane & 1 ? address[lane] >> 5 : ~u64(lane);
  u32 count = 0;
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const u32 lane = __builtin_ctz(rest);
    const u64 mine = sector[lane];
    count += u32(__builtin_ctz(ballot([mine](u64 other) { return other == mine; }, sector))) == lane;
  }
  return count;
}

const Allocation *find(const Launch &l, u64 address, u32 bytes) {
  auto at = std::upper_bound(l.allocations.begin(), l.allocations.end(), address, [](u64 a, const Allocation &b) {
    return a < b.base;
  });
  if (at != l.allocations.begin() && within(address, bytes, (at - 1)->base, (at - 1)->size)) return &*(at - 1);
  const Allocation *object = l.heap ? l.heap->find(address) : nullptr;
  return object && within(address, bytes, object->base, object->size) ? object : nullptr;
}

// These bytes are touched, and their parts of the allocation may be new: then they hold 0xff.
static void settle(const Allocation &a, u64 address, u64 bytes) {
  for (u64 part = (address - a.base) / PART; part <= (address + bytes - 1 - a.base) / PART; ++part) {
    u8 *const state = a.states - part, seen = NEW_PART;
    if (__atomic_load_n(state, __ATOMIC_ACQUIRE) == SETTLED_PART) continue;
    if (__atomic_compare_exchange_n(state, &seen, BUSY_PART, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      memset(reinterpret_cast<u8 *>(a.base + part * PART), 0xff, std::min(PART, a.size - part * PART));
      __atomic_store_n(state, SETTLED_PART, __ATOMIC_RELEASE);
    } else
      while (__atomic_load_n(state, __ATOMIC_ACQUIRE) != SETTLED_PART) std::this_thread::yield();
  }
}

// ---- checks ----

// Whether calls have filled most of a thread's stack: what lies beyond it then is the next call's, and no array's.
static bool deep(const Warp &w, u32 mask) {
  const Program &p = w.block->program;
  if (p.stack == NO_PC) return false;
  const u64 *stack = w.reg<u64>(p.stack), room = p.local_bytes - p.local_static;
  return mask & ballot([=](u64 at) { return at > p.local_static + room / 2; }, stack);
}

// Returns false (after reporting) when the launch must stop.
static bool check(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address, u32 bytes, u32 align,
                  const Pattern &p) {
  Block &b = *w.block;
  const auto fail = [&](Problem problem, auto is_bad, u64 window = 0) {
    for (int lane = 0; lane < LANES; ++lane)
      if ((mask >> lane & 1) && is_bad(address[lane])) {
        b.report(problem, i.pc, b.thread(w, lane), address[lane] | window, bytes);
        break;
      }
    b.halt();
    return false;
  };
  if (space == Space::GLOBAL) {
    const auto holds = [&](const Allocation *at) {
      return at && p.low >= at->base && within(p.high, bytes, at->base, at->size);
    };
    if (!holds(b.last)) b.last = find(b.launch, p.low, bytes);
    b.only = holds(b.last) ? b.last : nullptr;
    const Allocation *last = b.last;
    if (b.only && b.only->states)
      for (u32 rest = mask; rest; rest &= rest - 1) settle(*b.only, address[__builtin_ctz(rest)], bytes);
    if (!b.only)
      for (int lane = 0; lane < LANES; ++lane) {
        if (!(mask >> lane & 1)) continue;
        const u64 a = address[lane];
        if (!(last && within(a, bytes, last->base, last->size))) last = b.last = find(b.launch, a, bytes);
        if (!last)
          return fail(a < 65536 ? Problem::NULL_POINTER : Problem::GLOBAL_BOUNDS, [a](u64 x) { return x == a; });
        if (last->states) settle(*last, a, bytes);
      }
  } else if (space == Space::CLUSTER) {
    if (!b.visit_allowed(w, i, mask, address, bytes)) return false;
  } else {
    const u64 size = space == Space::SHARED ? b.launch.shared_bytes : b.program.local_bytes;
    if (within(p.high, bytes, 0, size)) {
    } else if (space == Space::SHARED && within(p.high, bytes, 0, b.launch.shared_window)) {
      for (u32 rest = mask; rest; rest &= rest - 1)
        if (const int lane = __builtin_ctz(rest); !within(address[lane], bytes, 0, size))
          b.report(Problem::SHARED_PAST_END, i.pc, b.thread(w, lane), address[lane], bytes);
    } else if (space == Space::LOCAL && deep(w, mask)) {
      b.report(Problem::STACK_OVERFLOW, i.pc, b.thread(w, __builtin_ctz(mask)), size - b.program.local_static, 0);
      b.halt();
      return false;
    } else
      return fail(space == Space::SHARED ? Problem::SHARED_BOUNDS : Problem::LOCAL_BOUNDS, [=](u64 x) {
        return !within(x, bytes, 0, size);
      });
  }
  if (p.bits & (align - 1)) {
    const bool shared = space == Space::SHARED || space == Space::CLUSTER;
    const u64 window = shared ? SHARED_WINDOW : space == Space::LOCAL ? LOCAL_WINDOW : 0;
    return fail(Problem::MISALIGNED, [=](u64 x) { return (x & (align - 1)) != 0; }, window);
  }
  return true;
}

static bool check(Warp &w, const Instr &i, const Access &a) {
  if (!a.taken) return check(w, i, a.mask, a.space, a.address, a.bytes, a.align, a.p);
  u32 whole = 0;
  for (u32 rest = a.mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const u32 alone = 1u << lane, bytes = a.taken[lane];
    if (bytes == a.bytes)
      whole |= alone;
    else if (!check(w, i, alone, a.space, a.address, bytes, a.align, look(a.address, alone, bytes)))
      return false;
  }
  return !whole || check(w, i, whole, a.space, a.address, a.bytes, a.align, look(a.address, whole, a.bytes));
}

// ---- counters and trace ----

// Sectors that L2 sends for a copy of 16 bytes per lane past L1: a sector of global memory as often as there are sectors
// of shared memory to which it goes. Found on an H200, and equal there on all patterns of docs/hardware/banks.py.
static u32 copied_sectors(const u64 *from, const u64 *to, u32 mask) {
  u64 pairs[LANES][2];
  u32 count = 0;
  for (u32 lane = 0; lane < LANES; ++lane) {
    if (!(mask >> lane & 1)) continue;
    const u64 source = from[lane] >> 5, target = to[lane] >> 5;
    u32 k = count;  // from the last backwards: neighbours mostly share theirs
    while (k && (pairs[k - 1][0] != source || pairs[k - 1][1] != target)) --k;
    if (!k) pairs[count][0] = source, pairs[count++][1] = target;
  }
  return count;
}

static void count(const Access &a, Counters &c) {
  const u64 wanted = u64(__builtin_popcount(a.mask)) * a.bytes;
  if (a.space == Space::CLUSTER) {
    ++c.cluster_requests;
    c.cluster_bytes += wanted;
    return;
  }
  if (a.counted & REQUESTS) ++c.requests;
  if (a.counted & BYTES) c.bytes += wanted;
  if (!(a.counted & COST)) return;
  if (a.space == Space::GLOBAL)
    c.sectors +=
        a.past_l1_to ? copied_sectors(a.address, a.past_l1_to, a.mask) : sectors(a.address, a.mask, a.bytes, a.p);
  if (a.space != Space::SHARED) return;
  const u32 part = served_together(a.address, a.mask, a.bytes, a.counted & AS_LOAD);
  const u32 minimum = minimum_wavefronts(a.mask, part);
  const u32 passes = a.p.same || a.p.row ? minimum : wavefronts(a.address, a.mask, a.bytes, part);
  c.wavefronts += passes;
  c.conflicts += passes - minimum;
}

void trace_access(Warp &w, const Instr &i, u32 mask, Space space, TraceKind kind, const u64 *address, u32 bytes) {
  Block &b = *w.block;
  Launch &l = b.launch;
  for (int lane = 0; lane < LANES; ++lane)
    if ((mask >> lane & 1) && l.traced.fetch_add(1, std::memory_order_relaxed) < l.trace_limit)
      b.trace.push_back({0, u8(space), u8(kind), u32(b.index), b.thread(w, lane), w.seq, i.pc, bytes, address[lane]});
  ++w.seq;
}

// ---- the sanitizer ----

// Of an access by elements: has each at least one byte that somebody has written? The rest may pad a structure.
// `element`: larger than the access if what pads it is a part by itself: what lies around it then, as far as there is `all`.
static bool each_written(const Allocation &all, u64 address, u32 bytes, u32 element) {
  const u64 end = all.base + all.size;
  for (u64 at = address & ~u64(element - 1); at < address + bytes; at += element) {
    const u64 from = std::max(at, all.base), to = std::min(at + element, end);
    if (!memchr(all.written + (from - all.base), 1, to - from)) return false;
  }
  return true;
}

static bool all_written(const u8 *written, u32 bytes) {
  switch (bytes) {
    case 1:
      return *written;
    case 2:
      return bits_of<u16>(written) == 0x0101;
    case 4:
      return bits_of<u32>(written) == 0x01010101;
    case 8:
      return bits_of<u64>(written) == 0x0101010101010101;
    default:
      return !memchr(written, 0, bytes);
  }
}

// The bytes of global memory that have been written: marked by stores, checked by loads.
// `element`: bytes of which it is enough that some have been written: what is read into one register, or (MAY_PAD) around.
void note_global(Warp &w, const Instr &i, u32 mask, const u64 *address, u32 bytes, bool store, const Pattern &p,
                 u32 element) {
  Block &b = *w.block;
  if (b.only && !b.only->written) return;
  if (b.only && (p.row || p.same)) {
    u8 *written = b.only->written + (p.low - b.only->base);
    const u32 all = p.row ? LANES * bytes : bytes;
    if (store) return void(memset(written, 1, all));
    if (!memchr(written, 0, all)) return;
  }
  for (int lane = 0; lane < LANES; ++lane) {
    if (!(mask >> lane & 1)) continue;
    const u64 a = address[lane];
    if (!(b.last && within(a, bytes, b.last->base, b.last->size))) b.last = find(b.launch, a, bytes);
    if (!b.last || !b.last->written) continue;
    u8 *written = b.last->written + (a - b.last->base);
    if (store)
      memset(written, 1, bytes);
    else if (!all_written(written, bytes) && !(element && each_written(*b.last, a, bytes, element)))
      b.report(Problem::GLOBAL_UNINITIALISED, i.pc, b.thread(w, lane), a, bytes);
  }
}

static void note_part(Warp &w, const Instr &i, u32 mask, const Access &a, u32 bytes, const Pattern &p) {
  Block &b = *w.block;
  const bool reads = a.noted == Noted::READ || a.noted == Noted::READ_FOR_WARP;
  switch (a.space) {
    case Space::GLOBAL:
      note_global(w, i, mask, a.address, bytes, !reads, p, a.element);
      return reads ? b.race_read(w, i, mask, a.address, bytes, p)
                   : b.race_write(w, i, mask, a.address, bytes, a.value, false);
    case Space::SHARED:
      return reads ? b.shadow_read(w, mask, a.address, bytes, i, p, a.noted == Noted::READ_FOR_WARP)
                   : b.shadow_write(w, mask, a.address, bytes, i, a.value,
                                    a.noted == Noted::IN_FLIGHT ? Cell::IN_FLIGHT : 0);
    case Space::CLUSTER:
      return b.visit(w, i, mask, a.address, bytes, !reads, strength(i), a.value);
    default:
      return;  // a thread's own
  }
}

static void note(Warp &w, const Instr &i, const Access &a) {
  if (a.noted == Noted::BY_CALLER) return;
  if (a.noted == Noted::IF_IT_MATTERS) {
    for (Speculated &earlier : w.speculated)  // in a loop, before any store: its value does not matter any more
      if (earlier.pc == i.pc) earlier.mask &= ~a.mask;
    const u32 parts = i.flags & OF_TILE ? a.elements->count : 1;
    for (u32 n = 0; n < parts; ++n) {
      Speculated later{i.pc, a.mask, a.bytes / parts, parts == 1 ? ALL : 1u << n, {}};
      for (int lane = 0; lane < LANES; ++lane)
        later.address[lane] = (a.address[lane] + n * later.bytes) | (a.space == Space::SHARED ? SHARED_WINDOW : 0);
      w.speculated.push_back(later);
    }
    return;
  }
  if (!a.taken) return note_part(w, i, a.mask, a, a.bytes, a.p);
  w.block->only = nullptr;  // that was found for some of the lanes
  for (u32 rest = a.mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    note_part(w, i, 1u << lane, a, a.taken[lane], look(a.address, 1u << lane, a.taken[lane]));
  }
}

static void follow(Warp &w, const Instr &i, const Access &a) {
  const Elements &e = *a.elements;
  const bool loads = a.noted == Noted::READ || a.noted == Noted::IF_IT_MATTERS;
  loads ? undefined_load(w, i, a.mask, a.space, a.address, e.bytes, e.sign, e.width, e.count, e.registers)
        : undefined_store(w, i, a.mask, a.space, a.address, e.bytes, e.width, e.count, e.registers);
}

// All sides are checked before any is counted, traced or noted.
template <u32 COUNT>
static inline bool access_all(Warp &w, const Instr &i, const Access *const (&sides)[COUNT]) {
  Block &b = *w.block;
  for (const Access *a : sides)
    if (a->mask && !check(w, i, *a)) return false;
  if (b.launch.count)
    for (const Access *a : sides)
      if (a->mask && a->counted) count(*a, b.counters[i.pc]);
  if (b.traced) {
    bool any = false;
    for (const Access *a : sides)
      if (a->mask && a->traced != UNTRACED) {
        trace_access(w, i, a->mask, a->space, TraceKind(a->traced), a->address, a->bytes), --w.seq;
        any = true;
      }
    w.seq += any;
  }
  if (!b.launch.sanitize) return true;
  for (const Access *a : sides)
    if (a->mask) {
      note(w, i, *a);
      if (a->elements) follow(w, i, *a);
    }
  return true;
}

bool access(Warp &w, const Instr &i, const Access &a) { return access_all(w, i, {&a}); }
bool access(Warp &w, const Instr &i, const Access &from, const Access &to) { return access_all(w, i, {&from, &to}); }

}  // namespace vm
