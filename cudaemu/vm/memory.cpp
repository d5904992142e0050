// Loads, stores and atomics: check the addresses, count what they cost, note them in the shadow, then move the data.
#include <algorithm>

#include "block.h"
#include "half.h"

namespace vm {

// ---- what every access goes through ----

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

// Whether calls have filled most of a thread's stack: what lies beyond it then is the next call's, and no array's.
static bool deep(const Warp &w, u32 mask) {
  const Program &p = w.block->program;
  if (p.stack == NO_PC) return false;
  const u64 *stack = w.reg<u64>(p.stack), room = p.local_bytes - p.local_static;
  return mask & ballot([=](u64 at) { return at > p.local_static + room / 2; }, stack);
}

bool check_access(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address, u32 bytes, u32 align,
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
    if (!b.only)
      for (int lane = 0; lane < LANES; ++lane) {
        if (!(mask >> lane & 1)) continue;
        const u64 a = address[lane];
        if (last && within(a, bytes, last->base, last->size)) continue;
        last = b.last = find(b.launch, a, bytes);
        if (!last)
          return fail(a < 65536 ? Problem::NULL_POINTER : Problem::GLOBAL_BOUNDS, [a](u64 x) { return x == a; });
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

void count_access(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address, u32 bytes, const Pattern &p,
                  bool load) {
  Counters &c = w.block->counters[i.pc];
  const u64 wanted = u64(__builtin_popcount(mask)) * bytes;
  if (space == Space::CLUSTER) {
    ++c.cluster_requests;
    c.cluster_bytes += wanted;
    return;
  }
  ++c.requests;
  c.bytes += wanted;
  if (space == Space::GLOBAL) c.sectors += sectors(address, mask, bytes, p);
  if (space != Space::SHARED) return;
  const u32 part = served_together(address, mask, bytes, load);
  const u32 minimum = minimum_wavefronts(mask, part);
  const u32 passes = p.same || p.row ? minimum : wavefronts(address, mask, bytes, part);
  c.wavefronts += passes;
  c.conflicts += passes - minimum;
}

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

// A cp.async: shared memory's banks do not show in it, for the hardware counts no wavefronts of it.
void count_copy(Warp &w, const Instr &i, u32 mask, u32 reading, const u64 *from, const u64 *to, u32 bytes,
                bool past_l1) {
  Counters &c = w.block->counters[i.pc];
  ++c.requests;
  c.bytes += u64(__builtin_popcount(mask)) * bytes;
  if (past_l1)
    c.sectors += copied_sectors(from, to, reading);
  else if (reading)
    c.sectors += sectors(from, reading, bytes, look(from, reading, bytes));
}

void trace_access(Warp &w, const Instr &i, u32 mask, Space space, TraceKind kind, const u64 *address, u32 bytes) {
  Block &b = *w.block;
  Launch &l = b.launch;
  for (int lane = 0; lane < LANES; ++lane)
    if ((mask >> lane & 1) && l.traced.fetch_add(1, std::memory_order_relaxed) < l.trace_limit)
      b.trace.push_back({0, u8(space), u8(kind), u32(b.index), b.thread(w, lane), w.seq, i.pc, bytes, address[lane]});
  ++w.seq;
}

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

// The warp has read what others may be about to write: `seen`, of each lane, from `host`.
template <class T>
static void note_poll(Warp &w, const Instr &i, u32 mask, const u64 *host, const T *seen, u32 bytes) {
  ++w.polls;
  Poll &poll = w.poll;
  poll.pc = i.pc, poll.mask = mask, poll.bytes = std::min(bytes, 8u);
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    poll.address[lane] = host[lane];
    poll.value[lane] = 0;
    memcpy(&poll.value[lane], &seen[lane], poll.bytes);
  }
}

// ---- ld and st ----
// o: address register, offset, shape, registers (~0: not wanted)
// shape: element bytes | elements << 8 | register bytes << 16 | sign extension << 24 | 64-bit address << 25
//        | log2 of the bytes around it of which, if it MAY_PAD, it is enough that some have been written << 26

struct Shape {
  u32 bytes, count, reg;
  bool sign, wide;
  u32 around;
  explicit Shape(u32 s)
      : bytes(s & 255),
        count(s >> 8 & 255),
        reg(s >> 16 & 255),
        sign(s >> 24 & 1),
        wide(s >> 25 & 1),
        around(1u << (s >> 26)) {}
};

u32 around(const Instr &i) { return Shape(i.o[2]).around; }

void addresses(const Warp &w, u32 base, u32 offset, bool wide, u64 *out) {
  const s64 add = s32(offset);
  if (wide) {
    const u64 *from = w.reg<u64>(base);
    for (int lane = 0; lane < LANES; ++lane) out[lane] = from[lane] + add;
  } else {
    const u32 *from = w.reg<u32>(base);
    for (int lane = 0; lane < LANES; ++lane) out[lane] = u32(from[lane] + add);
  }
}

void host_pointers(const Warp &w, Space space, const u64 *address, u64 *out) {
  const Block &b = *w.block;
  if (space == Space::GLOBAL)
    memcpy(out, address, LANES * sizeof(u64));
  else if (space == Space::SHARED)
    for (int lane = 0; lane < LANES; ++lane) out[lane] = reinterpret_cast<u64>(b.shared) + address[lane];
  else if (space == Space::CLUSTER)
    b.cluster.host_pointers(address, out);
  else
    for (int lane = 0; lane < LANES; ++lane)
      out[lane] = reinterpret_cast<u64>(b.local) + u64(b.thread(w, lane)) * b.local_stride + address[lane];
}

template <class T>
static inline void gather(T *to, const u64 *from, u32 offset, u32 mask) {
  if (mask == ALL)
    for (int lane = 0; lane < LANES; ++lane) to[lane] = bits_of<T>(reinterpret_cast<const u8 *>(from[lane]) + offset);
  else
    for (u32 rest = mask; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      to[lane] = bits_of<T>(reinterpret_cast<const u8 *>(from[lane]) + offset);
    }
}
template <class T>
static inline void scatter(const T *from, const u64 *to, u32 offset, u32 mask) {
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    memcpy(reinterpret_cast<u8 *>(to[lane]) + offset, &from[lane], sizeof(T));
  }
}

template <class D, class S>
static void extend(D *to, const S *from, u32 mask) {
  lanes(mask, to, [](S x) { return D(x); }, from);
}

// A register that is wider than what is loaded takes the sign or zeros.
template <class U, class S>
static void load_narrow(Warp &w, const Shape &s, u32 slot, const u64 *from, u32 offset, u32 mask) {
  alignas(64) U raw[LANES] = {};
  gather(raw, from, offset, mask);
  const S *as_signed = reinterpret_cast<const S *>(raw);
  if (s.reg == 2)
    s.sign ? extend(w.reg<u16>(slot), as_signed, mask) : extend(w.reg<u16>(slot), raw, mask);
  else if (s.reg == 4)
    s.sign ? extend(w.reg<u32>(slot), as_signed, mask) : extend(w.reg<u32>(slot), raw, mask);
  else
    s.sign ? extend(w.reg<u64>(slot), as_signed, mask) : extend(w.reg<u64>(slot), raw, mask);
}

struct Wide { u64 low, high; };

static void load_element(Warp &w, const Shape &s, u32 slot, const u64 *from, u32 offset, u32 mask) {
  switch (s.bytes) {
    case 1:
      return load_narrow<u8, s8>(w, s, slot, from, offset, mask);
    case 2:
      return s.reg == 2 ? gather(w.reg<u16>(slot), from, offset, mask)
                        : load_narrow<u16, s16>(w, s, slot, from, offset, mask);
    case 4:
      return s.reg == 4 ? gather(w.reg<u32>(slot), from, offset, mask)
                        : load_narrow<u32, s32>(w, s, slot, from, offset, mask);
    case 8:
      return gather(w.reg<u64>(slot), from, offset, mask);
    default:
      return gather(w.reg<Wide>(slot), from, offset, mask);
  }
}

// An element that other threads of the host may be writing, or reading, at this moment: in one piece.
static void copy_strong(void *to, const void *from, u32 bytes) {
  const auto copy = [=](auto type) {
    using T = decltype(type);
    __atomic_store_n(static_cast<T *>(to), __atomic_load_n(static_cast<const T *>(from), __ATOMIC_RELAXED),
                     __ATOMIC_RELAXED);
  };
  switch (bytes) {
    case 1:
      return copy(u8());
    case 2:
      return copy(u16());
    case 4:
      return copy(u32());
    case 8:
      return copy(u64());
    default:
      copy_strong(to, from, 8), copy_strong(static_cast<u8 *>(to) + 8, static_cast<const u8 *>(from) + 8, 8);
  }
}

// All lanes, side by side: what lies there, element by element.
template <class T>
static void spread(Warp &w, const Instr &i, u32 count, const u8 *from) {
  for (u32 n = 0; n < count; ++n) {
    if (i.o[3 + n] == ALL) continue;
    T *to = w.reg<T>(i.o[3 + n]);
    if (count == 1)
      memcpy(to, from, LANES * sizeof(T));
    else
      for (int lane = 0; lane < LANES; ++lane) to[lane] = bits_of<T>(from + (lane * count + n) * sizeof(T));
  }
}
template <class T>
static void collect(Warp &w, const Instr &i, u32 count, u8 *to) {
  for (u32 n = 0; n < count; ++n) {
    const T *from = w.reg<T>(i.o[3 + n]);
    if (count == 1)
      memcpy(to, from, LANES * sizeof(T));
    else
      for (int lane = 0; lane < LANES; ++lane) memcpy(to + (lane * count + n) * sizeof(T), from + lane, sizeof(T));
  }
}

static u8 *host_address(const Block &b, Space space, u64 address) {
  if (space == Space::CLUSTER) return b.cluster.block(address)->shared + Cluster::offset(address);
  return space == Space::SHARED ? b.shared + address : reinterpret_cast<u8 *>(address);
}

static void load_row(Warp &w, const Instr &i, const Shape &s, Space space, u64 low) {
  const u8 *from = host_address(*w.block, space, low);
  switch (s.bytes) {
    case 2:
      return spread<u16>(w, i, s.count, from);
    case 4:
      return spread<u32>(w, i, s.count, from);
    case 8:
      return spread<u64>(w, i, s.count, from);
    default:
      return spread<Wide>(w, i, s.count, from);
  }
}

static void store_row(Warp &w, const Instr &i, const Shape &s, Space space, u64 low) {
  u8 *to = host_address(*w.block, space, low);
  switch (s.bytes) {
    case 2:
      return collect<u16>(w, i, s.count, to);
    case 4:
      return collect<u32>(w, i, s.count, to);
    case 8:
      return collect<u64>(w, i, s.count, to);
    default:
      return collect<Wide>(w, i, s.count, to);
  }
}

// What the sanitizer notes of a load.
static void note_load(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address, u32 bytes, const Pattern &p) {
  Block &b = *w.block;
  if (space == Space::GLOBAL) {
    note_global(w, i, mask, address, bytes, false, p, i.flags & MAY_PAD ? around(i) : Shape(i.o[2]).bytes);
    b.race_read(w, i, mask, address, bytes, p);
  }
  if (space == Space::SHARED) b.shadow_read(w, mask, address, bytes, i, p, false);
  if (space == Space::CLUSTER) b.visit(w, i, mask, address, bytes, false, strength(i), nullptr);
}

// A compiler may move a load above a short-circuit. In a lane where the other predicate decides, the value is not used:
// there it does not count as read. o of the predicate: its result, two sources, which of them does not come of the
// loads; pc of each load.
template <bool AND>
static void settle(Warp &w, const Instr &i, u32 m) {
  const u32 other = w.pred(i.o[1 + i.o[3]]), matters = m & (AND ? other : ~other);
  const u32 result = AND ? w.pred(i.o[1]) & w.pred(i.o[2]) : w.pred(i.o[1]) | w.pred(i.o[2]);
  w.pred(i.o[0]) = (w.pred(i.o[0]) & ~m) | (result & m);
  if (w.mirrored || !w.block->launch.sanitize) return;
  Block &b = *w.block;
  for (u32 n = 4; n < i.count; ++n)
    for (Speculated &s : w.speculated) {
      if (s.pc != i.o[n] || !(s.mask & m)) continue;
      const Instr &load = b.program.code[s.pc];
      const Shape shape(load.o[2]);
      const u32 bytes = shape.bytes * shape.count;
      for (u32 left = s.mask & matters; left && !b.stopped;) {
        u64 address[LANES];
        std::copy(s.address, s.address + LANES, address);
        Space space;
        const u32 here = next_space(b, &left, address, &space);
        const Pattern p = look(address, here, bytes);
        if (space == Space::LOCAL || !check_access(w, load, here, space, address, bytes, bytes, p)) continue;
        note_load(w, load, here, space, address, bytes, p);
      }
      s.mask &= ~m;
    }
  w.speculated.erase(std::remove_if(w.speculated.begin(), w.speculated.end(), [](auto &s) { return !s.mask; }),
                     w.speculated.end());
}

static void load(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address) {
  const Shape s(i.o[2]);
  const u32 bytes = s.bytes * s.count;
  Block &b = *w.block;
  const Pattern p = look(address, mask, bytes);
  if (!check_access(w, i, mask, space, address, bytes, bytes, p)) return;
  if (b.launch.count) count_access(w, i, mask, space, address, bytes, p, true);
  if (b.traced) trace_access(w, i, mask, space, LOAD, address, bytes);
  if (b.launch.sanitize) {
    if (i.flags & SPECULATED) {
      Speculated later{i.pc, mask, {}};
      for (int lane = 0; lane < LANES; ++lane)
        later.address[lane] = address[lane] | (space == Space::SHARED ? SHARED_WINDOW : 0);
      w.speculated.push_back(later);
    } else
      note_load(w, i, mask, space, address, bytes, p);
  }
  ++w.reads;
  const bool gap = i.flags & MAY_PAD && i.flags & TRACKED && b.launch.sanitize && s.around > bytes;
  const bool undefined = gap || b.holds_undefined(space);
  if (p.row && space != Space::LOCAL && s.reg == s.bytes && !(i.flags & STRONG) && !undefined)
    return load_row(w, i, s, space, p.low);
  u64 from[LANES];
  host_pointers(w, space, address, from);
  alignas(64) u8 seen[LANES][32];
  if (i.flags & STRONG) {
    for (u32 rest = mask; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      for (u32 at = 0; at < bytes; at += s.bytes)
        copy_strong(seen[lane] + at, reinterpret_cast<const u8 *>(from[lane]) + at, s.bytes);
    }
    note_poll(w, i, mask, from, seen, bytes);
    for (int lane = 0; lane < LANES; ++lane) from[lane] = reinterpret_cast<u64>(seen[lane]);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (b.launch.sanitize && space != Space::LOCAL) b.acquire(w, mask, space, address);
  }
  for (u32 n = 0; n < s.count; ++n)
    if (i.o[3 + n] != ALL) load_element(w, s, i.o[3 + n], from, n * s.bytes, mask);
  if (undefined) undefined_load(w, i, mask, space, address, s.bytes, s.sign, s.reg, s.count, i.o + 3);
}

// What the sanitizer notes of a store or an atomic in global memory, and the access itself, are one: no other block that
// writes there comes between, so that what it finds there is what was written. A store to several places locks them in
// order.
struct Together {
  std::atomic_flag *const flags;
  u64 places = 0;
  Together(Block &b, bool wanted, u32 mask, const u64 *address, u32 bytes, const Pattern &p)
      : flags(wanted && b.launch.workers.size() > 1 ? b.launch.writing : nullptr) {
    if (!flags) return;
    const auto add = [&](u64 from, u64 to) { places |= 1ull << (from >> 12 & 63) | 1ull << (to >> 12 & 63); };
    if (p.row || p.same)
      add(p.low, p.high + bytes - 1);
    else
      for (u32 rest = mask; rest; rest &= rest - 1)
        add(address[__builtin_ctz(rest)], address[__builtin_ctz(rest)] + bytes - 1);
    for (u64 rest = places; rest; rest &= rest - 1)
      while (flags[__builtin_ctzll(rest)].test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  ~Together() {
    for (u64 rest = places; rest; rest &= rest - 1) flags[__builtin_ctzll(rest)].clear(std::memory_order_release);
  }
};

static void store(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address) {
  const Shape s(i.o[2]);
  const u32 bytes = s.bytes * s.count;
  Block &b = *w.block;
  const Pattern p = look(address, mask, bytes);
  if (!check_access(w, i, mask, space, address, bytes, bytes, p)) return;
  if (b.launch.count) count_access(w, i, mask, space, address, bytes, p);
  if (b.traced) trace_access(w, i, mask, space, STORE, address, bytes);
  const Change change(w, space);
  if (b.launch.sanitize) undefined_store(w, i, mask, space, address, s.bytes, s.reg, s.count, i.o + 3);
  const bool sanitize = b.launch.sanitize && space != Space::LOCAL;
  const Together together(b, sanitize && space == Space::GLOBAL, mask, address, bytes, p);
  if (p.row && space != Space::LOCAL && s.reg == s.bytes && !(i.flags & STRONG)) {
    bool usual = !sanitize;
    if (sanitize && space == Space::SHARED)
      usual = b.shadow_write_row(w, p.low, bytes, i);
    else if (sanitize && b.only)
      usual = b.race_write_row(w, i, p.low, bytes);
    if (usual) {
      if (sanitize && space == Space::GLOBAL) note_global(w, i, mask, address, bytes, true, p);
      return store_row(w, i, s, space, p.low);
    }
  }
  u64 to[LANES];
  host_pointers(w, space, address, to);
  if (sanitize || i.flags & STRONG) {
    alignas(64) u8 value[LANES][32];
    for (u32 n = 0; n < s.count; ++n)
      for (u32 rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        memcpy(value[lane] + n * s.bytes, w.frame + i.o[3 + n] + lane * s.reg, s.bytes);
      }
    if (sanitize && i.flags & STRONG) b.release(w, i, mask, space, address, false);
    if (sanitize && space == Space::GLOBAL) note_global(w, i, mask, address, bytes, true, p);
    if (i.flags & STRONG) std::atomic_thread_fence(std::memory_order_release);
    const bool shadow = sanitize && space == Space::SHARED;
    for (u32 rest = mask; rest; rest &= rest - 1) {  // lane by lane, so that two lanes at one address are seen
      const int lane = __builtin_ctz(rest);
      if (shadow) b.shadow_write(w, 1u << lane, address, bytes, i, value);
      if (sanitize && space == Space::GLOBAL) b.race_write(w, i, 1u << lane, address, bytes, value, false);
      if (sanitize && space == Space::CLUSTER) b.visit(w, i, 1u << lane, address, bytes, true, strength(i), value);
      u8 *there = reinterpret_cast<u8 *>(to[lane]);
      if (i.flags & STRONG)
        for (u32 at = 0; at < bytes; at += s.bytes) copy_strong(there + at, value[lane] + at, s.bytes);
      else
        memcpy(there, value[lane], bytes);
    }
    return;
  }
  for (u32 n = 0; n < s.count; ++n) {
    const u32 slot = i.o[3 + n];
    if (s.reg != s.bytes) {
      for (u32 rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        memcpy(reinterpret_cast<u8 *>(to[lane]) + n * s.bytes, w.frame + slot + lane * s.reg, s.bytes);
      }
      continue;
    }
    switch (s.bytes) {
      case 2:
        scatter(w.reg<u16>(slot), to, n * 2, mask);
        break;
      case 4:
        scatter(w.reg<u32>(slot), to, n * 4, mask);
        break;
      case 8:
        scatter(w.reg<u64>(slot), to, n * 8, mask);
        break;
      default:
        scatter(w.reg<Wide>(slot), to, n * 16, mask);
    }
  }
}

u32 next_space(const Block &b, u32 *left, u64 *address, Space *space) {
  const Cluster &cluster = b.cluster;
  const auto distant = [&](u64 a) {  // of another block
    const Block *there =
        cluster.alone() || (a & WINDOW_MASK) != SHARED_WINDOW ? nullptr : cluster.block(a & ~WINDOW_MASK);
    return there && there != &b;
  };
  const u64 first = address[__builtin_ctz(*left)], window = first & WINDOW_MASK;
  const bool far = distant(first);
  u32 here = 0;
  for (int lane = 0; lane < LANES; ++lane) here |= u32((address[lane] & WINDOW_MASK) == window) << lane;
  here &= *left;
  for (u32 rest = cluster.alone() ? 0 : here; rest; rest &= rest - 1)
    if (const int lane = __builtin_ctz(rest); distant(address[lane]) != far) here &= ~(1u << lane);
  *left &= ~here;
  *space = far                       ? Space::CLUSTER
           : window == SHARED_WINDOW ? Space::SHARED
           : window == LOCAL_WINDOW  ? Space::LOCAL
                                     : Space::GLOBAL;
  if (*space == Space::GLOBAL) return here;  // an address outside every window stays as it is: out of bounds
  for (u32 rest = here; rest; rest &= rest - 1) {
    u64 &a = address[__builtin_ctz(rest)];
    a &= ~WINDOW_MASK;
    if (!far && window == SHARED_WINDOW && cluster.block(a) == &b) a = Cluster::offset(a);
  }
  return here;
}

template <class F>
static void by_space(Warp &w, u32 mask, u64 *address, F f) {
  Space space;
  for (u32 left = mask; left && !w.block->stopped;) {
    const u32 here = next_space(*w.block, &left, address, &space);
    f(space, here);
  }
}

// Addresses of the cluster's shared memory as generic ones, which tell one block's from another's.
static void to_generic(u64 *address) {
  for (int lane = 0; lane < LANES; ++lane) address[lane] |= SHARED_WINDOW;
}

template <void (*ACCESS)(Warp &, const Instr &, u32, Space, const u64 *), int SPACE>
static void access(Warp &w, const Instr &i, u32 m) {
  alignas(64) u64 address[LANES];
  addresses(w, i.o[0], i.o[1], Shape(i.o[2]).wide, address);
  if (Space(SPACE) == Space::CLUSTER) to_generic(address);
  if (SPACE < 3)
    ACCESS(w, i, m, Space(SPACE), address);
  else
    by_space(w, m, address, [&](Space space, u32 here) { ACCESS(w, i, here, space, address); });
}

// Kernel parameters: constant memory of the launch.
static void load_param(Warp &w, const Instr &i, u32 m) {
  const Shape s(i.o[2]);
  alignas(64) u64 address[LANES];
  addresses(w, i.o[0], i.o[1], s.wide, address);
  const std::vector<u8> &params = w.block->launch.params;
  for (int lane = 0; lane < LANES; ++lane) {
    const u64 at = address[lane] & ~WINDOW_MASK;
    if ((m >> lane & 1) && !within(at, s.bytes * s.count, 0, params.size())) {
      w.block->report(Problem::GLOBAL_BOUNDS, i.pc, w.block->thread(w, lane), at, s.bytes);
      return w.block->halt();
    }
    address[lane] = reinterpret_cast<u64>(params.data()) + at;
  }
  for (u32 n = 0; n < s.count; ++n)
    if (i.o[3 + n] != ALL) load_element(w, s, i.o[3 + n], address, n * s.bytes, m);
}

// ---- atomics ----

// What an atomic makes of memory and its operands. A pointer: all that the machine does besides is compiled once for each
// type, not for each operation.
template <class T>
using Operation = T (*)(T memory, T operand, T second);

// o: destination (or ~0), address register, offset, space | wide << 8, operand, second operand

constexpr u64 ATOMIC_COST = 16;  // in instructions

// What the cell held; `next` is there now if that was `old`. For 16 bytes GCC would call libatomic, which need not be
// there, so x86 has the instruction itself.
template <class T>
static T exchange_if(T *cell, T old, T next) {
  return __sync_val_compare_and_swap(cell, old, next);
}
#if defined(__x86_64__)
template <>
u128 exchange_if(u128 *cell, u128 old, u128 next) {
  u64 low = u64(old), high = u64(old >> 64);
  asm volatile("lock cmpxchg16b %2" : "+a"(low), "+d"(high), "+m"(*cell) : "b"(u64(next)), "c"(u64(next >> 64))
               : "cc", "memory");
  return u128(high) << 64 | low;
}
#endif

template <class T>
static void atomic(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address, Operation<T> f) {
  Block &b = *w.block;
  const Pattern p = look(address, mask, sizeof(T));
  if (!check_access(w, i, mask, space, address, sizeof(T), sizeof(T), p)) return;
  if (b.launch.count) count_access(w, i, mask, space, address, sizeof(T), p);
  if (b.traced) trace_access(w, i, mask, space, ATOMIC, address, sizeof(T));
  const bool sanitize = b.launch.sanitize && space != Space::LOCAL;
  const bool reads = i.o[0] != ALL || i.o[5] != ALL || !(i.flags & SIGNAL);  // but for an exchange for the store's sake
  const Together together(b, sanitize && space == Space::GLOBAL, mask, address, sizeof(T), p);
  if (sanitize && space == Space::GLOBAL) {
    if (reads) note_global(w, i, mask, address, sizeof(T), false, p);
    note_global(w, i, mask, address, sizeof(T), true, p);
    b.race_write(w, i, mask, address, sizeof(T), nullptr, true);
  }
  if (sanitize) b.release(w, i, mask, space, address, true);
  u64 at[LANES];
  host_pointers(w, space, address, at);
  ++w.reads;
  b.budget -= std::min(b.budget, ATOMIC_COST);
  bool changed = false;
  alignas(64) T seen[LANES];
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (sanitize && space == Space::SHARED) b.shadow_atomic(w, lane, u32(address[lane]), sizeof(T), i, reads);
    if (sanitize && space == Space::CLUSTER)
      b.visit(w, i, 1u << lane, address, sizeof(T), true, Cell::BY_STRONG, nullptr);
    T *cell = reinterpret_cast<T *>(at[lane]);
    const T x = w.reg<T>(i.o[4])[lane], y = i.o[5] == ALL ? T() : w.reg<T>(i.o[5])[lane];
    T old = *cell, desired, found;
    while ((found = exchange_if<T>(cell, old, desired = f(old, x, y))) != old) old = found;
    changed |= old != desired;
    seen[lane] = desired;
    if (i.o[0] != ALL) w.reg<T>(i.o[0])[lane] = old;
  }
  if (changed) b.changed(w, space);
  if (b.holds_undefined(space)) undefined_atomic(w, i, mask, space, address, sizeof(T), i.o[0]);
  if (i.o[0] == ALL) return;
  note_poll(w, i, mask, at, seen, sizeof(T));
  if (sanitize) b.acquire(w, mask, space, address);
}

template <class T>
static void atomic_any(Warp &w, const Instr &i, u32 m, Operation<T> f) {
  alignas(64) u64 address[LANES];
  addresses(w, i.o[1], i.o[2], i.o[3] >> 8 & 1, address);
  const Space space = Space(i.o[3] & 255);
  if (space == Space::CLUSTER) to_generic(address);
  if (space < Space::GENERIC)
    atomic<T>(w, i, m, space, address, f);
  else
    by_space(w, m, address, [&](Space s, u32 here) { atomic<T>(w, i, here, s, address, f); });
}

#define ATOM_OPERANDS(T)                 \
  sizeof(T) == 2   ? "d2? s* n n s2 s2?" \
  : sizeof(T) == 4 ? "d4? s* n n s4 s4?" \
  : sizeof(T) == 8 ? "d8? s* n n s8 s8?" \
                   : "d16? s* n n s16 s16?"
#define ATOM(name, T, expr) ATOMIC_OF(Effect::UPDATES, name, T, expr)
#define ATOMIC_OF(effect, name, T, expr)                                                                   \
  {"atom." name,                                                                                           \
   [](Warp &w, const Instr &i, u32 m) {                                                                    \
     atomic_any<T>(w, i, m, []([[maybe_unused]] T a, T x, [[maybe_unused]] T y) -> T { return T(expr); }); \
   },                                                                                                      \
   ATOM_OPERANDS(T), About::updates(effect, 1, 4)}
#define EXCHANGE(name, T) ATOMIC_OF(Effect::OVERWRITES, name, T, x)
#define ATOM_INTEGER(u, s, U, S)                                                                        \
  ATOM("add." u, U, a + x), ATOM("and." u, U, a &x), ATOM("or." u, U, a | x), ATOM("xor." u, U, a ^ x), \
      EXCHANGE("exch." u, U), ATOM("cas." u, U, a == x ? y : a), ATOM("min." u, U, std::min(a, x)),     \
      ATOM("max." u, U, std::max(a, x)), ATOM("min." s, U, S(a) < S(x) ? a : x),                        \
      ATOM("max." s, U, S(a) > S(x) ? a : x)

u16 add_half(u16 a, u16 b, bool bf16);
template <bool BF16>
static u32 add_pair(u32 a, u32 b) {
  return u32(add_half(u16(a), u16(b), BF16)) | u32(add_half(u16(a >> 16), u16(b >> 16), BF16)) << 16;
}

// Several neighbours by one instruction, each by itself. o: address register, offset, space | wide << 8, count,
// destinations (or ~0), operands
template <class T>
static void atomic_vector(Warp &w, const Instr &i, u32 m, Operation<T> f) {
  alignas(64) u64 address[LANES];
  addresses(w, i.o[0], i.o[1], i.o[2] >> 8 & 1, address);
  const u32 count = i.o[3], whole = count * sizeof(T);
  u32 left = m;
  Space space = Space(i.o[2] & 255);
  if (space == Space::CLUSTER) to_generic(address);
  if (space >= Space::GENERIC) next_space(*w.block, &left, address, &space);
  if (!check_access(w, i, m, space, address, whole, whole, look(address, m, whole))) return;
  for (u32 n = 0; n < count && !w.block->stopped; ++n) {
    const u32 operands[] = {i.o[4 + n], 0, 0, 0, i.o[4 + count + n], ALL};
    Instr one = i;
    one.o = operands;
    atomic<T>(w, one, m, space, address, f);
    for (u64 &a : address) a += sizeof(T);
  }
}
#define ATOM_VECTOR(name, T, expr)                                                                              \
  {"atom." name,                                                                                                \
   [](Warp &w, const Instr &i, u32 m) { atomic_vector<T>(w, i, m, [](T a, T x, T) -> T { return T(expr); }); }, \
   "s* n n n d*?+ s*+", About::updates(Effect::UPDATES_MANY, 0, 4)}

template <class T>
static T extreme(T a, T x, bool most, Format format);
template <>
u16 extreme(u16 a, u16 x, bool most, Format format) {
  const auto value = format == Format::F16 ? widen_half : widen_bf16;
  return (most ? value(x) > value(a) : value(x) < value(a)) || value(a) != value(a) ? x : a;
}
template <>
u32 extreme(u32 a, u32 x, bool most, Format format) {
  return extreme(u16(a), u16(x), most, format) | u32(extreme(u16(a >> 16), u16(x >> 16), most, format)) << 16;
}
#define ATOM_HALVES(type, T, ADD, FORMAT)                                  \
  ATOM("add." type, T, ADD), ATOM_VECTOR("add.vector." type, T, ADD),      \
      ATOM_VECTOR("min.vector." type, T, extreme<T>(a, x, false, FORMAT)), \
      ATOM_VECTOR("max.vector." type, T, extreme<T>(a, x, true, FORMAT))

void register_memory(Registry &r) {
  const auto load_of = [](const char *category, u32 space) {
    return About::loads(category, space, 0, Undefined::ADDRESS).by_elements();
  };
  const auto store_of = [](const char *category, u32 space) {
    return About::stores(category, space, 0, 3, Undefined::ADDRESS).by_elements();
  };
  const auto settles = [](Undefined undefined) { return About::computes("predicate", undefined); };
  constexpr About orders = About::does(Effect::ORDERS, "control", Undefined::NOTHING);
  const char *const loads = "s* n n d*?+", *const stores = "s* n n s*+";
  enter(r,
        {{"ld.global", access<load, 0>, loads, load_of("load.global", IN_GLOBAL)},
         {"ld.shared", access<load, 1>, loads, load_of("load.shared", IN_SHARED)},
         {"ld.local", access<load, 2>, loads, load_of("load.local", IN_LOCAL)},
         {"ld.generic", access<load, 3>, loads, load_of("load.generic", IN_ALL)},
         {"ld.cluster", access<load, 4>, loads, load_of("load.cluster", IN_CLUSTER)},
         {"st.global", access<store, 0>, stores, store_of("store.global", IN_GLOBAL)},
         {"st.shared", access<store, 1>, stores, store_of("store.shared", IN_SHARED)},
         {"st.local", access<store, 2>, stores, store_of("store.local", IN_LOCAL)},
         {"st.generic", access<store, 3>, stores, store_of("store.generic", IN_ALL)},
         {"st.cluster", access<store, 4>, stores, store_of("store.cluster", IN_CLUSTER)},
         {"ld.param", load_param, loads, load_of("move", IN_PARAM)},
         {"or.pred.settling", settle<false>, "d0 s0 s0 n n+", settles(Undefined::OR)},
         {"and.pred.settling", settle<true>, "d0 s0 s0 n n+", settles(Undefined::AND)},
         {"fence.proxy.async",
          [](Warp &w, const Instr &, u32) {
            if (w.block->launch.sanitize) w.block->fence_proxy(w);
          },
          "", orders},
         {"fence",
          [](Warp &w, const Instr &i, u32) {  // o: beyond the block
            std::atomic_thread_fence(std::memory_order_seq_cst);
            if (w.block->launch.sanitize) w.block->fence(w, i.o[0]);
          },
          "n", orders}});
  enter(r, {ATOM_INTEGER("u32", "s32", u32, s32), ATOM_INTEGER("u64", "s64", u64, s64),
            ATOM("inc.u32", u32, a >= x ? 0 : a + 1), ATOM("dec.u32", u32, a == 0 || a > x ? x : a - 1),
            ATOM("cas.u16", u16, a == x ? y : a), ATOM("cas.u128", u128, a == x ? y : a), EXCHANGE("exch.u128", u128),
            ATOM("add.f32", u32, as<u32>(as<float>(a) + as<float>(x))),
            ATOM("add.f64", u64, as<u64>(as<double>(a) + as<double>(x))),
            ATOM_VECTOR("add.vector.f32", u32, as<u32>(as<float>(a) + as<float>(x))),
            ATOM_HALVES("f16", u16, add_half(a, x, false), Format::F16),
            ATOM_HALVES("bf16", u16, add_half(a, x, true), Format::BF16),
            ATOM_HALVES("f16x2", u32, add_pair<false>(a, x), Format::F16),
            ATOM_HALVES("bf16x2", u32, add_pair<true>(a, x), Format::BF16)});
}

}  // namespace vm
