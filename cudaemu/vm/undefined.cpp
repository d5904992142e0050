// Undefined values: registers that are read before they are written, local memory likewise, and the result of a shuffle
// from a lane that takes no part. They are tracked, bit by bit, through registers and memory, to where they matter: an
// address, a branch, a product of matrices, an atomic, what the host reads. Copying them is harmless, and compilers and
// libraries do so.
//
// Warp::undefined is a second frame, with ones where the bits of the first are undefined. Lowering knows which registers
// can be so at all; they have slots of their own, and only instructions that touch those are TRACKED. As long as a warp
// has no undefined bit (Warp::tainted), nothing is done for them either.
#include <algorithm>

#include "block.h"

namespace vm {

static u32 pred_at(const Warp &w, u32 offset) { return bits_of<u32>(w.undefined + offset); }

// The lanes in which a register has an undefined bit.
static u32 undefined_lanes(const Warp &w, u32 offset) {
  const u32 width = w.block->program.width(offset);
  const u8 *bits = w.undefined + offset;
  if (!width) return pred_at(w, offset);
  u32 lanes = 0;
  for (int lane = 0; lane < LANES; ++lane) {
    u64 any = 0;
    for (u32 at = 0; at < width; at += 8) {
      u64 part = 0;
      memcpy(&part, bits + lane * width + at, std::min(width - at, 8u));
      any |= part;
    }
    lanes |= u32(any != 0) << lane;
  }
  return lanes;
}

// All bits of a register become undefined in the lanes of `bad`, and defined in the other ones of `m`.
static void set_lanes(Warp &w, u32 offset, u32 m, u32 bad) {
  const u32 width = w.block->program.width(offset);
  if (!width) {
    const u32 bits = (pred_at(w, offset) & ~m) | (bad & m);
    memcpy(w.undefined + offset, &bits, sizeof bits);
    return;
  }
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    memset(w.undefined + offset + lane * width, bad >> lane & 1 ? 0xff : 0, width);
  }
}

static u32 undefined_sources(const Warp &w, const Flow &f) {
  u32 bad = 0;
  for (u32 n = 0; n < f.sources; ++n) bad |= undefined_lanes(w, f.offsets[f.targets + n]);
  return bad;
}

static void set_targets(Warp &w, const Flow &f, u32 m, u32 bad) {
  for (u32 n = 0; n < f.targets; ++n) set_lanes(w, f.offsets[n], m, bad);
}

// ---- rules: what of a result is undefined ----

static void all_of_it(Warp &w, const Instr &, const Flow &f, u32 m) { set_targets(w, f, m, undefined_sources(w, f)); }

// What lanes make together, they all have.
static void for_all_lanes(Warp &w, const Instr &, const Flow &f, u32 m) {
  set_targets(w, f, m, undefined_sources(w, f) & m ? ALL : 0);
}

static void nothing(Warp &w, const Instr &, const Flow &f, u32 m) { set_targets(w, f, m, 0); }

// The instruction moves bits: let it move those that say what is undefined.
static void as_the_bits_move(Warp &w, const Instr &i, const Flow &, u32 m) {
  std::swap(w.frame, w.undefined);
  w.mirrored = true;
  i.run(w, i, m);
  w.mirrored = false;
  std::swap(w.frame, w.undefined);
}

// Every bit of the result is undefined where that of the one source is.
static void bit_by_bit(Warp &w, const Instr &i, const Flow &, u32 m) {
  const u32 to = i.o[0], from = i.o[1], width = w.block->program.width(to);
  if (!width) return set_lanes(w, to, m, pred_at(w, from));
  for (u32 rest = m; rest; rest &= rest - 1) {
    const u32 lane = __builtin_ctz(rest) * width;
    memmove(w.undefined + to + lane, w.undefined + from + lane, width);
  }
}

// Likewise, but the operands FIRST to LAST say where they go: those are taken as they are.
template <u32 FIRST, u32 LAST>
static void as_they_are_moved(Warp &w, const Instr &i, const Flow &f, u32 m) {
  for (u32 n = FIRST; n <= LAST; ++n) {
    bool is_data = false;
    for (u32 k = 0; k < i.count && k < FIRST; ++k) is_data |= i.o[k] == i.o[n];
    if (is_data || undefined_lanes(w, i.o[n]) & m) return all_of_it(w, i, f, m);
  }
  alignas(64) u8 zeros[LANES * 16] = {};
  const auto bytes = [&](u32 n) {
    return w.block->program.width(i.o[n]) ? LANES * w.block->program.width(i.o[n]) : 4u;
  };
  for (u32 n = FIRST; n <= LAST; ++n) memcpy(w.undefined + i.o[n], w.frame + i.o[n], bytes(n));
  as_the_bits_move(w, i, f, m);
  for (u32 n = FIRST; n <= LAST; ++n) memcpy(w.undefined + i.o[n], zeros, bytes(n));
}

// These operands say where the bits go.
constexpr Rule moved_by_2 = as_they_are_moved<2, 2>, moved_by_3 = as_they_are_moved<3, 3>;
constexpr Rule moved_by_2_3 = as_they_are_moved<2, 3>, moved_by_3_4 = as_they_are_moved<3, 4>;

static void shuffled(Warp &w, const Instr &i, const Flow &f, u32 m) {
  as_they_are_moved<3, 4>(w, i, f, m);
  if (i.o[1] != ALL) set_lanes(w, i.o[1], m, undefined_lanes(w, i.o[3]) | undefined_lanes(w, i.o[4]));
}

// A bit that is 0 decides an `and`, one that is 1 an `or`.
template <class T, Undefined OP>
static T undecided(T a, T b, T ua, T ub) {
  if (OP == Undefined::AND) return (ua & ub) | (ua & b) | (ub & a);
  if (OP == Undefined::OR) return T((ua & ub) | (ua & T(~b)) | (ub & T(~a)));
  return ua | ub;
}
template <class T, Undefined OP>
static void logic_of(Warp &w, const Instr &i, u32 m) {
  const T *a = w.reg<T>(i.o[1]), *b = w.reg<T>(i.o[2]);
  const T *ua = reinterpret_cast<T *>(w.undefined + i.o[1]), *ub = reinterpret_cast<T *>(w.undefined + i.o[2]);
  lanes(m, reinterpret_cast<T *>(w.undefined + i.o[0]), undecided<T, OP>, a, b, ua, ub);
}
template <Undefined OP>
static void logic(Warp &w, const Instr &i, const Flow &, u32 m) {
  switch (w.block->program.width(i.o[0])) {
    case 2:
      return logic_of<u16, OP>(w, i, m);
    case 4:
      return logic_of<u32, OP>(w, i, m);
    case 8:
      return logic_of<u64, OP>(w, i, m);
    default:
      const u32 bad = undecided<u32, OP>(w.pred(i.o[1]), w.pred(i.o[2]), pred_at(w, i.o[1]), pred_at(w, i.o[2]));
      set_lanes(w, i.o[0], m, bad);
  }
}

// By trying both values of whatever is undefined.
static void lop3(Warp &w, const Instr &i, const Flow &, u32 m) {
  u32 *out = reinterpret_cast<u32 *>(w.undefined + i.o[0]);
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    u32 value[3], open[3], first = 0, differs = 0;
    for (int n = 0; n < 3; ++n)
      value[n] = w.reg<u32>(i.o[1 + n])[lane], open[n] = bits_of<u32>(w.undefined + i.o[1 + n] + 4 * lane);
    for (u32 tried = 0; tried < 8; ++tried) {
      u32 x[3], result = 0;
      for (int n = 0; n < 3; ++n) x[n] = tried >> n & 1 ? value[n] | open[n] : value[n] & ~open[n];
      for (u32 k = 0; k < 8; ++k)
        if (i.o[4] >> k & 1) result |= (k & 4 ? x[0] : ~x[0]) & (k & 2 ? x[1] : ~x[1]) & (k & 1 ? x[2] : ~x[2]);
      if (tried)
        differs |= result ^ first;
      else
        first = result;
    }
    out[lane] = differs;
  }
}

// Each half of a register by itself.
template <class T>
static void halves_of(Warp &w, const Flow &f, u32 m) {
  T bad[2 * LANES] = {};
  for (u32 n = 0; n < f.sources; ++n) {
    const T *bits = reinterpret_cast<T *>(w.undefined + f.offsets[f.targets + n]);
    for (int k = 0; k < 2 * LANES; ++k) bad[k] |= bits[k] ? T(~0) : 0;
  }
  for (u32 n = 0; n < f.targets; ++n) blend<2>(reinterpret_cast<T *>(w.undefined + f.offsets[n]), bad, m);
}
static void half_by_half(Warp &w, const Instr &, const Flow &f, u32 m) {
  const auto all_have = [&w, &f](u32 width) {
    return std::all_of(f.offsets.begin(), f.offsets.begin() + f.targets + f.sources, [&w, width](u32 offset) {
      return w.block->program.width(offset) == width;
    });
  };
  if (all_have(4)) return halves_of<u16>(w, f, m);
  if (all_have(8)) return halves_of<u32>(w, f, m);
  set_targets(w, f, m, undefined_sources(w, f));
}

// Two numbers side by side, each from a source of its own, the upper one first, or from a half of the one source.
template <u32 SOURCES>
static void in_pairs(Warp &w, const Instr &i, const Flow &, u32 m) {
  const u32 width = w.block->program.width(i.o[0]), source = w.block->program.width(i.o[1]),
            part = source / (3 - SOURCES);
  for (u32 rest = m; rest; rest &= rest - 1) {
    const u32 lane = __builtin_ctz(rest);
    bool bad[2];
    for (u32 n = 0; n < 2; ++n) {
      const u8 *bits = w.undefined + i.o[SOURCES == 2 ? 2 - n : 1] + lane * source + (SOURCES == 2 ? 0 : n * part);
      bad[n] = std::any_of(bits, bits + part, [](u8 byte) { return byte != 0; });
    }
    for (u32 n = 0; n < 2; ++n)
      memset(w.undefined + i.o[0] + lane * width + n * width / 2, bad[n] ? 0xff : 0, width / 2);
  }
}

// Likewise; but two of four bits, in one byte, are looked at together. FORMAT: the operand that says which.
template <u32 SOURCES, u32 FORMAT>
static void in_small_pairs(Warp &w, const Instr &i, const Flow &f, u32 m) {
  constexpr u32 FOUR_BITS = 2;  // of SMALL_PAIRS in lower/arithmetic.py
  i.o[FORMAT] == FOUR_BITS ? all_of_it(w, i, f, m) : in_pairs<SOURCES>(w, i, f, m);
}

// An integer of some bits to one of others; anything else all together.
static void converted(Warp &w, const Instr &i, const Flow &f, u32 m) {
  constexpr u32 FIRST_FLOATING = 8;  // in CVT_TYPES
  const bool moves = i.o[2] < FIRST_FLOATING && i.o[3] < FIRST_FLOATING && !(i.flags & SAT);
  moves ? as_the_bits_move(w, i, f, m) : all_of_it(w, i, f, m);
}

static void complain(Warp &w, const Instr &i, Problem problem, u32 lanes, u32 operand = 0) {
  if (lanes)
    w.block->report(problem, i.pc, w.block->thread(w, __builtin_ctz(lanes)), __builtin_popcount(lanes), operand,
                    MANY_THREADS, w.origin);
}

// Registers of A, of B, of C one after the other. Afterwards the result counts as defined: it has been said.
static void complain_of_operands(Warp &w, const Instr &i, const Flow &f, u32 m, u32 a, u32 b) {
  u32 bad[3] = {};
  for (u32 n = 0; n < f.sources; ++n)
    bad[n < a ? OPERAND_A : n < a + b ? OPERAND_B : OPERAND_C] |= undefined_lanes(w, f.offsets[f.targets + n]) & m;
  for (const u32 operand : {OPERAND_A, OPERAND_B, OPERAND_C})
    if (bad[operand]) {
      complain(w, i, Problem::UNDEFINED_PRODUCT, bad[operand], operand);
      break;
    }
  nothing(w, i, f, m);
}

// o of mma: rows, ..., 5: C in halves. A is to B as its rows to 8.
static void product(Warp &w, const Instr &i, const Flow &f, u32 m) {
  const u32 rows = i.o[0], c = rows / 4 / (i.o[5] ? 2 : 1), a = (f.sources - c) * rows / (rows + 8);
  complain_of_operands(w, i, f, m, a, f.sources - c - a);
}

// With an operand after A that says more of it: the metadata of a sparse one, or its scales, and B's after B. o: as of mma.
static void extended_product(Warp &w, const Instr &i, const Flow &f, u32 m) {
  const u32 c = i.o[5] ? 2 : 4, a = (f.sources - c) / 2 + 1;
  complain_of_operands(w, i, f, m, a, f.sources - c - a);
}

// o of wmma.mma: 7, 8: registers of A, of B.
static void fragments_product(Warp &w, const Instr &i, const Flow &f, u32 m) {
  complain_of_operands(w, i, f, m, i.o[7], i.o[8]);
}

// A wgmma reads its accumulators, which are its last sources, only if they are added. Before them: A, or descriptors.
static void warpgroup_product(Warp &w, const Instr &i, const Flow &f, u32 m) {
  Flow read = f;
  const u32 accumulators = std::min(f.sources, i.o[6]);
  if (!(w.pred(i.o[8]) & m)) read.sources -= accumulators;
  complain_of_operands(w, i, read, m, f.sources - accumulators, 0);
  nothing(w, i, f, m);
}

static u32 undefined_addresses(const Warp &w, const Instr &i, const About &about) {
  u32 bad = about.from == NO_OPERAND ? 0 : undefined_lanes(w, i.o[about.from]);
  if (about.to != NO_OPERAND && about.to != about.from) bad |= undefined_lanes(w, i.o[about.to]);
  return bad;
}

static void address(Warp &w, const Instr &i, const Flow &f, u32 m) {
  complain(w, i, Problem::UNDEFINED_ADDRESS, undefined_addresses(w, i, *f.about) & m);
  nothing(w, i, f, m);
}

static void atomic(Warp &w, const Instr &i, const Flow &f, u32 m) {
  const u32 address = undefined_addresses(w, i, *f.about) & m;
  complain(w, i, Problem::UNDEFINED_ADDRESS, address);
  complain(w, i, Problem::UNDEFINED_ATOMIC, undefined_sources(w, f) & m & ~address);
  nothing(w, i, f, m);
}

static void to_a_barrier(Warp &w, const Instr &i, const Flow &f, u32 m) {
  complain(w, i, Problem::UNDEFINED_BRANCH, undefined_sources(w, f) & m);
  nothing(w, i, f, m);
}

// ---- memory ----
//
// Shared and local memory have a mirror of their own: a bit for each bit. Global memory has pages of such bits, where there
// are any (UndefinedBytes); they stay from launch to launch, each byte with the store that it came by. A value that is
// wholly undefined is a finding when the host reads it: until then it may be overwritten, or never used.

template <class F>
void UndefinedBytes::each(u64 address, u64 bytes, bool create, F f) {
  for (u64 done = 0, part; done < bytes; done += part) {
    const u64 at = address + done, offset = at % PAGE;
    part = std::min(bytes - done, PAGE - offset);
    auto found = pages.find(at / PAGE);
    if (found == pages.end()) {
      if (!create) continue;
      found = pages.emplace(at / PAGE, std::make_unique<Page>()).first;
      count.store(pages.size(), std::memory_order_release);
    }
    f(*found->second, offset, done, part);
  }
}

void UndefinedBytes::put(u64 address, const u8 *bits, u32 bytes, u32 store) {
  std::lock_guard lock(mutex);
  const bool any = bits && std::any_of(bits, bits + bytes, [](u8 x) { return x; });
  each(address, bytes, any, [&](Page &page, u64 offset, u64 from, u64 n) {
    for (u64 k = 0; k < n; ++k) {
      page.bits[offset + k] = bits ? bits[from + k] : 0;
      page.store[offset + k] = page.bits[offset + k] ? u16(std::min(store, 0xffffu)) : 0;
    }
  });
}

bool UndefinedBytes::get(u64 address, u8 *bits, u32 bytes, u32 *pc) const {
  std::lock_guard lock(mutex);
  bool any = false;
  memset(bits, 0, bytes);
  const_cast<UndefinedBytes *>(this)->each(address, bytes, false, [&](Page &page, u64 offset, u64 to, u64 n) {
    for (u64 k = 0; k < n; ++k) {
      bits[to + k] = page.bits[offset + k];
      any |= bits[to + k];
      if (const u32 store = page.store[offset + k]; pc && store > first) *pc = stores[store - 1];
    }
  });
  return any;
}

void UndefinedBytes::define(u64 address, u64 bytes) {
  std::lock_guard lock(mutex);
  each(address, bytes, false, [&](Page &page, u64 offset, u64, u64 n) {
    memset(page.bits + offset, 0, n);
    memset(page.store + offset, 0, n * sizeof(u16));
  });
}

void UndefinedBytes::copy(u64 to, u64 from, u64 bytes) {
  std::lock_guard lock(mutex);
  std::vector<u8> bits(bytes);
  std::vector<u16> store(bytes);
  each(from, bytes, false, [&](Page &page, u64 offset, u64 at, u64 n) {
    memcpy(&bits[at], page.bits + offset, n);
    memcpy(&store[at], page.store + offset, n * sizeof(u16));
  });
  each(to, bytes, true, [&](Page &page, u64 offset, u64 at, u64 n) {
    memcpy(page.bits + offset, &bits[at], n);
    memcpy(page.store + offset, &store[at], n * sizeof(u16));
  });
}

void UndefinedBytes::mark_stores(u64 address, u64 bytes, u8 *seen) const {
  std::lock_guard lock(mutex);
  const_cast<UndefinedBytes *>(this)->each(address, bytes, false, [&](Page &page, u64 offset, u64, u64 n) {
    for (u64 k = 0; k < n; ++k) seen[page.store[offset + k]] = 1;
  });
}

u32 UndefinedBytes::store_at(u32 pc) {
  std::lock_guard lock(mutex);
  auto at = std::find(stores.begin() + first, stores.end(), pc);
  if (at == stores.end()) at = stores.insert(at, pc);
  return u32(at - stores.begin()) + 1;
}

void UndefinedBytes::clear() {
  pages.clear();
  stores.clear();
  count = 0, first = 0;
}

bool Block::holds_undefined(Space space) const {
  switch (space) {
    case Space::GLOBAL:
      return launch.sanitize && launch.undefined->any();
    case Space::LOCAL:
      return local_undefined;
    case Space::SHARED:
      return shared_tainted;
    default:
      return std::any_of(cluster.blocks.begin(), cluster.blocks.end(), [](auto &b) { return b->shared_tainted; });
  }
}

bool Block::undefined_shared(u32 offset, u32 bytes) const {
  return std::any_of(shared_undefined + offset, shared_undefined + offset + bytes, [](u8 x) { return x; });
}

// The block whose shared memory is meant, and where in it.
static Block &holder(Warp &w, Space space, u64 &address) {
  if (space != Space::CLUSTER) return *w.block;
  Block &there = *w.block->cluster.block(address);
  address = Cluster::offset(address);
  return there;
}

// What is undefined of `bytes` of memory. False if nothing is.
bool undefined_bits(Warp &w, int lane, Space space, u64 address, u8 *bits, u32 bytes) {
  Block &b = *w.block;
  if (space == Space::GLOBAL) {
    u32 pc = NO_PC;
    if (!b.launch.undefined->get(address, bits, bytes, &pc)) return false;
    w.origin = pc;
    return true;
  }
  Block &there = holder(w, space, address);
  const u8 *from = space == Space::LOCAL ? b.local_undefined + u64(b.thread(w, lane)) * b.local_stride + address
                                         : there.shared_undefined + address;
  memcpy(bits, from, bytes);
  if (!std::any_of(bits, bits + bytes, [](u8 x) { return x; })) return false;
  w.origin = space == Space::LOCAL ? NO_PC : there.shared_origin[address / 4];
  return true;
}

// What is undefined in the warp came last from what pads a structure.
static bool of_a_gap(const Warp &w) {
  const Program &p = w.block->program;
  return w.origin != NO_PC && p.code[w.origin].flags & MAY_PAD && p.flows.count(w.origin) &&
         p.flows.at(w.origin).targets;
}

// Memory takes over what is undefined of what a lane writes; null: nothing is.
void put_undefined(Warp &w, const Instr &i, int lane, Space space, u64 address, const u8 *bits, u32 bytes) {
  Block &b = *w.block;
  if (space == Space::GLOBAL) {
    const bool whole = bits && std::all_of(bits, bits + bytes, [](u8 x) { return x == 0xff; });
    return b.launch.undefined->put(address, bits, bytes, whole ? b.launch.undefined->store_at(i.pc) : 0);
  }
  Block &there = holder(w, space, address);
  u8 *to = space == Space::LOCAL ? b.local_undefined + u64(b.thread(w, lane)) * b.local_stride + address
                                 : there.shared_undefined + address;
  if (!bits) return void(memset(to, 0, bytes));
  memcpy(to, bits, bytes);
  if (space == Space::LOCAL || !std::any_of(bits, bits + bytes, [](u8 x) { return x; })) return;
  there.shared_tainted = true;
  const u32 origin = of_a_gap(w) ? w.origin : i.pc;
  for (u64 word = address / 4; word <= (address + bytes - 1) / 4; ++word) there.shared_origin[word] = origin;
}

// What of an element was never written: what pads a structure that is copied (MAY_PAD).
static bool unwritten_bits(const Block &b, Space space, u64 address, u8 *bits, u32 bytes) {
  memset(bits, 0, bytes);
  const Allocation *at = space == Space::GLOBAL ? find(b.launch, address, bytes) : nullptr;
  if (space == Space::GLOBAL ? !at || !at->written : space != Space::SHARED) return false;
  for (u32 k = 0; k < bytes; ++k)
    if (at ? !at->written[address + k - at->base] : !b.written_by[(address + k) >> b.program.granule_log2])
      bits[k] = 0xff;
  return std::any_of(bits, bits + bytes, [](u8 x) { return x; });
}

// Is something in a thread's local memory set around what pads a structure?
static bool set_around(const Warp &w, const Instr &i, int lane, u64 address) {
  const Block &b = *w.block;
  const u64 from = address & ~u64(around(i) - 1), end = std::min<u64>(from + around(i), b.program.local_bytes);
  const u8 *bits = b.local_undefined + u64(b.thread(w, lane)) * b.local_stride;
  return std::any_of(bits + from, bits + end, [](u8 x) { return x != 0xff; });
}

// A load of the lanes of `m`, of elements of `bytes` into registers of `width`. Nothing that is undefined can be in memory
// that the program's registers have no mirror for.
void undefined_load(Warp &w, const Instr &i, u32 m, Space space, const u64 *address, u32 bytes, bool sign, u32 width,
                    u32 count, const u32 *registers) {
  if (!w.undefined || !(i.flags & TRACKED)) return;
  const bool held = w.block->holds_undefined(space), may_pad = i.flags & MAY_PAD;
  const bool gap = may_pad && around(i) > count * bytes;
  if (!held && !gap) return;
  u8 bits[16] = {};
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    for (u32 n = 0; n < count; ++n) {
      if (registers[n] == ALL) continue;
      const u64 at = address[lane] + n * bytes;
      bool any = held && undefined_bits(w, lane, space, at, bits, bytes);
      if (any ? may_pad && space == Space::LOCAL && set_around(w, i, lane, at)
              : gap && unwritten_bits(*w.block, space, at, bits, bytes)) {
        w.origin = i.pc;
        any = true;
      }
      if (!any && !w.tainted) continue;
      u8 *to = w.undefined + registers[n] + lane * width;
      memset(to, sign && bits[bytes - 1] & 0x80 ? 0xff : 0, width);
      memcpy(to, bits, std::min(bytes, width));
      w.tainted |= any;
    }
  }
}

// A store of elements. Those that are wholly undefined are reported, because the host may read them.
void undefined_store(Warp &w, const Instr &i, u32 m, Space space, const u64 *address, u32 bytes, u32 width, u32 count,
                     const u32 *registers) {
  Block &b = *w.block;
  const bool followed = w.tainted && i.flags & TRACKED;
  if (!followed && !b.holds_undefined(space)) return;
  if (space == Space::LOCAL && !b.local_undefined) return;
  const bool pads = space == Space::GLOBAL && i.flags & MAY_PAD && of_a_gap(w);  // the host does not look at that
  u32 bad = 0;
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    for (u32 n = 0; n < count; ++n) {
      const u8 *bits = followed ? w.undefined + registers[n] + lane * width : nullptr;
      const bool whole = bits && std::all_of(bits, bits + bytes, [](u8 x) { return x == 0xff; });
      put_undefined(w, i, lane, space, address[lane] + n * bytes, whole && pads ? nullptr : bits, bytes);
      if (whole && !pads) bad |= 1u << lane;
    }
  }
  if (space == Space::GLOBAL) complain(w, i, Problem::UNDEFINED_STORE, bad);
}

// What an atomic gives is what was there; an exchange has overwritten it.
void undefined_atomic(Warp &w, const Instr &i, u32 m, Space space, const u64 *address, u32 bytes, u32 target) {
  if (target != ALL) undefined_load(w, i, m, space, address, bytes, false, bytes, 1, &target);
  if (!(i.flags & SIGNAL)) return;
  for (u32 rest = m; rest; rest &= rest - 1)
    put_undefined(w, i, __builtin_ctz(rest), space, address[__builtin_ctz(rest)], nullptr, bytes);
}

// A copy from global memory lands: `copied` bytes of it, the rest of `size` being zeros.
void Block::undefined_landing(u32 to, u64 global, u32 copied, u32 size, u32 pc) {
  if (!shared_undefined || to + size > launch.shared_window || !(shared_tainted || launch.undefined->any())) return;
  memset(shared_undefined + to, 0, size);
  if (!copied || !launch.undefined->get(global, shared_undefined + to, copied)) return;
  shared_tainted = true;
  for (u32 word = to / 4; word <= (to + copied - 1) / 4; ++word) shared_origin[word] = pc;
}

// A piece of a bulk copy between global memory and this block's shared memory; `global` 0: it is outside the tensor.
void Block::undefined_copy(u32 tile, u64 global, u32 bytes, const BulkCopy &c) {
  if (c.mbarrier) return undefined_landing(tile, global, global ? bytes : 0, bytes, c.pc);
  if (!global || !(shared_tainted || launch.undefined->any())) return;
  const bool any = shared_tainted && undefined_shared(tile, bytes);
  if (any) report(c.reduction ? Problem::UNDEFINED_ATOMIC : Problem::UNDEFINED_STORE, c.pc, c.thread, 1, 0);
  if (c.reduction) return;
  launch.undefined->put(global, any ? shared_undefined + tile : nullptr, bytes,
                        any ? launch.undefined->store_at(c.pc) : 0);
}

// A bulk copy from a block of the cluster to this one.
void Block::undefined_shared_copy(u64 to, const Block &there, u64 from, const BulkCopy &c) {
  if (!shared_tainted && !there.shared_tainted) return;
  if (!c.reduction) memmove(shared_undefined + to, there.shared_undefined + from, c.bytes);
  shared_tainted |= there.shared_tainted;
}

// ---- which rule for which instruction ----

constexpr Rule RULES[] = {
#define X(name, rule) rule,
    UNDEFINED_RULES(X, X)
#undef X
};

// Which rules the program's tracked instructions have. `entries`: of each of its instructions.
void Program::follow(const std::vector<const Entry *> &entries) {
  for (Instr &i : code) {
    if (!(i.flags & TRACKED)) continue;
    Flow &f = flows[i.pc];
    f.about = &entries[i.pc]->about;
    f.rule = RULES[u32(f.about->undefined)];
  }
}

// Before an instruction of the lanes of `active`, which are those of `mask` that its guard lets.
void Block::follow(Warp &w, const Instr &i, u32 mask, u32 active) {
  complain(w, i, Problem::UNDEFINED_BRANCH, pred_at(w, i.guard) & mask);
  const Flow &f = program.flows.at(i.pc);
  if (active && f.rule) f.rule(w, i, f, active);
}

// What an instruction gives these lanes is undefined: a shuffle has taken it from lanes that take no part, ...
void Block::absent(Warp &w, const Instr &i, u32 target, u32 lanes) {
  if (!w.undefined || w.mirrored || target == ALL || !(i.flags & TRACKED)) return;
  w.origin = i.pc;
  w.tainted = true;
  u32 *bits = reinterpret_cast<u32 *>(w.undefined + target);
  for (u32 rest = lanes; rest; rest &= rest - 1) bits[__builtin_ctz(rest)] = ALL;
}

// Is there anything left that is undefined?
void Block::look_for_taint(Warp &w) {
  const u64 *words = reinterpret_cast<const u64 *>(w.undefined);
  w.tainted = std::any_of(words, words + program.frame_bytes / sizeof(u64), [](u64 x) { return x; });
}

void Block::start_undefined(Warp &w) {
  w.tainted = w.undefined && !program.unset.empty();
  w.origin = NO_PC;
  if (!w.undefined) return;
  memset(w.undefined, 0, program.frame_bytes);
  for (const u32 offset : program.unset) set_lanes(w, offset, ALL, ALL);
}

}  // namespace vm
