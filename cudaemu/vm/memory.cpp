// Loads, stores and atomics: what moves the data, and what of it the sanitizer has to see lane by lane.
#include <algorithm>

#include "block.h"
#include "half.h"

namespace vm {

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

// Of a load: bytes of which it is enough that some have been written: those of one register, or (MAY_PAD) around it.
static u32 element_of(const Instr &i) { return i.flags & MAY_PAD ? around(i) : Shape(i.o[2]).bytes; }

// A compiler may move a load above a short-circuit. In a lane where the other predicate decides, the value is not used:
// there it does not count as read. o of the predicate: its result, two sources, which of them does not come of the
// loads; pc of each load.
// The load matters in these lanes: now it counts as read.
static void settle(Warp &w, Speculated &s, u32 lanes) {
  Block &b = *w.block;
  const Instr &load = b.program.code[s.pc];
  const u32 bytes = s.bytes;
  for (u32 left = s.mask & lanes; left && !b.stopped;) {
    u64 address[LANES];
    std::copy(s.address, s.address + LANES, address);
    Space space;
    const u32 here = next_space(b, &left, address, &space);
    if (space == Space::LOCAL) continue;
    Access a(here, space, address, bytes, bytes, UNCOUNTED, UNTRACED, Noted::READ);
    a.element = element_of(load);
    access(w, load, a);
  }
}

static void forget_settled(Warp &w) {
  w.speculated.erase(std::remove_if(w.speculated.begin(), w.speculated.end(), [](auto &s) { return !s.mask; }),
                     w.speculated.end());
}

// Of the load at that pc, those elements.
static void settle(Warp &w, u32 pc, u32 elements, u32 lanes) {
  for (Speculated &s : w.speculated)
    if (s.pc == pc && s.element & elements) settle(w, s, lanes), s.mask &= ~lanes;
}

// What is not chosen does not matter. o: result, two sources, predicate; of each load that comes to a source: its pc, the
// elements, which source, and whether what is chosen matters now (0: what comes after says so).
template <class T>
static void select_settling(Warp &w, const Instr &i, u32 m) {
  const u32 p = w.pred(i.o[3]) ^ (i.flags & NOT_PRED ? ALL : 0);
  lanes(m, w.reg<T>(i.o[0]), [](T chosen) { return chosen; }, w.reg<T>(i.o[2]));
  lanes(m & p, w.reg<T>(i.o[0]), [](T chosen) { return chosen; }, w.reg<T>(i.o[1]));
  if (w.mirrored || !w.block->launch.sanitize) return;
  for (u32 n = 4; n < i.count; n += 4) {
    const u32 chosen = i.o[n + 2] ? ~p : p;
    if (i.o[n + 3])
      settle(w, i.o[n], i.o[n + 1], m & chosen);
    else
      for (Speculated &s : w.speculated)
        if (s.pc == i.o[n] && s.element & i.o[n + 1]) s.mask &= ~(m & ~chosen);
  }
  forget_settled(w);
}

template <bool AND>
static void settle(Warp &w, const Instr &i, u32 m) {
  const u32 other = w.pred(i.o[1 + i.o[3]]), matters = m & (AND ? other : ~other);
  const u32 result = AND ? w.pred(i.o[1]) & w.pred(i.o[2]) : w.pred(i.o[1]) | w.pred(i.o[2]);
  w.pred(i.o[0]) = (w.pred(i.o[0]) & ~m) | (result & m);
  if (w.mirrored || !w.block->launch.sanitize) return;
  for (u32 n = 4; n < i.count; ++n)
    for (Speculated &s : w.speculated) {
      if (s.pc != i.o[n] || !(s.mask & m)) continue;
      settle(w, s, matters);
      s.mask &= ~m;
    }
  forget_settled(w);
}

static void load(Warp &w, const Instr &i, u32 mask, Space space, const u64 *address) {
  const Shape s(i.o[2]);
  const u32 bytes = s.bytes * s.count;
  Block &b = *w.block;
  const Elements elements{s.bytes, s.reg, s.count, s.sign, i.o + 3};
  Access a(mask, space, address, bytes, bytes, IN_FULL | AS_LOAD, LOAD,
           i.flags & SPECULATED ? Noted::IF_IT_MATTERS : Noted::READ);
  a.element = element_of(i), a.elements = &elements;
  if (!access(w, i, a)) return;
  ++w.reads;
  if (a.p.row && space != Space::LOCAL && s.reg == s.bytes && !(i.flags & STRONG))
    return load_row(w, i, s, space, a.p.low);
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
  if (i.count > 3 + s.count && b.launch.sanitize) {  // the loads that its values come of: pc, elements
    for (u32 n = 3 + s.count; n < i.count; n += 2) settle(w, i.o[n], i.o[n + 1], mask);
    forget_settled(w);
    if (b.stopped) return;
  }
  const Elements elements{s.bytes, s.reg, s.count, s.sign, i.o + 3};
  Access a(mask, space, address, bytes, bytes, IN_FULL, STORE, Noted::BY_CALLER);
  a.elements = &elements;
  if (!access(w, i, a)) return;
  const Pattern &p = a.p;
  const Change change(w, space);
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
static void in_space(Warp &w, const Instr &i, u32 m) {
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
  const Access a(mask, space, address, sizeof(T), sizeof(T), IN_FULL, ATOMIC, Noted::BY_CALLER);
  if (!access(w, i, a)) return;
  const Pattern &p = a.p;
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
  if (!access(w, i, {m, space, address, whole, whole, UNCOUNTED, UNTRACED, Noted::BY_CALLER})) return;
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
        {{"ld.global", in_space<load, 0>, loads, load_of("load.global", IN_GLOBAL)},
         {"ld.shared", in_space<load, 1>, loads, load_of("load.shared", IN_SHARED)},
         {"ld.local", in_space<load, 2>, loads, load_of("load.local", IN_LOCAL)},
         {"ld.generic", in_space<load, 3>, loads, load_of("load.generic", IN_ALL)},
         {"ld.cluster", in_space<load, 4>, loads, load_of("load.cluster", IN_CLUSTER)},
         {"st.global", in_space<store, 0>, stores, store_of("store.global", IN_GLOBAL)},
         {"st.shared", in_space<store, 1>, stores, store_of("store.shared", IN_SHARED)},
         {"st.local", in_space<store, 2>, stores, store_of("store.local", IN_LOCAL)},
         {"st.generic", in_space<store, 3>, stores, store_of("store.generic", IN_ALL)},
         {"st.cluster", in_space<store, 4>, stores, store_of("store.cluster", IN_CLUSTER)},
         {"ld.param", load_param, loads, load_of("move", IN_PARAM)},
         {"selp.b16.settling", select_settling<u16>, "d2 s2 s2 s0 n+", settles(Undefined::MOVED_BY_3)},
         {"selp.b32.settling", select_settling<u32>, "d4 s4 s4 s0 n+", settles(Undefined::MOVED_BY_3)},
         {"selp.b64.settling", select_settling<u64>, "d8 s8 s8 s0 n+", settles(Undefined::MOVED_BY_3)},
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
