// Bulk copies: cp.async.bulk and cp.reduce.async.bulk, of plain bytes and, through tensor maps, of boxes of a tensor (TMA).
// And st.async and red.async, which do the same with values of registers, and clusterlaunchcontrol, with its answer.
//
// No thread executes them. One that completes on an mbarrier is made when a waiting thread tests that mbarrier; one in
// a bulk group when its thread waits for that group, or ends: as late as hardware may. Until such a wait has succeeded,
// what it writes, and what it reads in shared memory, is in flight for everybody. For the sanitizer the copies on an
// mbarrier, and those of a thread's bulk groups, are each an actor of its own (`copies_on`, `copies_of`): a thread
// learns of them by the wait, and passes that on like all that it knows.
#include <algorithm>
#include <tuple>

#include "block.h"
#include "half.h"

namespace vm {

enum Action { TO_SHARED, TO_GLOBAL, WITHIN_CLUSTER };
enum Reduction { NONE, ADD, MIN, MAX, INC, DEC, AND, OR, XOR };
enum Type { U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ };  // as CUtensorMapDataType
enum NoMap {
  NOT_ENCODED,
  NOT_CONSTANT,
  OTHER_RANK,
  INTERLEAVED,
  NO_SUCH_REDUCTION,
  NO_SUCH_FIELD
};  // why: findings.py
constexpr u32 TILE_ALIGNMENT = 128, PLAIN_ALIGNMENT = 16;

// ---- what a copy goes over ----

static u32 taken(const TensorMap &t, u32 dimension) {  // elements that are copied of the box
  return (t.box[dimension] + t.step[dimension] - 1) / t.step[dimension];
}

// Bytes from one row of the tile to the next: with a swizzle each row has all of its span, however short the row is.
static u32 pitch_of(const TensorMap &t) {
  const u32 row = taken(t, 0) * t.item();
  return t.swizzle ? 16u << t.swizzle : row;
}

static u32 rows_of(const TensorMap &t) {
  u32 rows = 1;
  for (u32 d = 1; d < t.rank(); ++d) rows *= taken(t, d);
  return rows;
}

// What it takes up in shared memory.
static u32 room_of(const BulkCopy &c) { return c.map.magic ? rows_of(c.map) * pitch_of(c.map) : c.bytes; }

// f(address in global memory, offset in the tile, bytes) for the rows that lie together on both sides, but for the
// swizzle. Address 0: outside the tensor.
template <class F>
static void rows(const BulkCopy &c, F f) {
  if (!c.map.magic) return f(c.global, 0u, c.bytes);
  const TensorMap &t = c.map;
  const s64 item = t.item(), width = taken(t, 0);
  // A store clips a row at the next multiple of 16 bytes after the tensor's end.
  const s64 size = c.mbarrier ? t.elements(0) : (t.elements(0) * item + 15) / 16 * 16 / item;
  const u32 begin = u32(std::clamp<s64>(-s64(c.corner[0]), 0, width));
  const u32 end = u32(std::clamp<s64>(size - c.corner[0], begin, width));
  u32 count[TensorMap::MOST_DIMENSIONS] = {1, 1, 1, 1, 1}, at[TensorMap::MOST_DIMENSIONS] = {};
  for (u32 d = 1; d < t.rank(); ++d) count[d] = taken(t, d);
  for (u32 offset = 0;; offset += pitch_of(t)) {
    u64 address = t.base + s64(c.corner[0]) * item;
    bool inside = end > begin;
    for (u32 d = 1; d < t.rank(); ++d) {
      const s64 place = s64(c.corner[d]) + at[d] * t.step[d];
      inside &= place >= 0 && place < t.elements(d);
      address += place * s64(t.stride[d]);
    }
    if (!inside)
      f(0ull, offset, u32(width * item));
    else {
      if (begin) f(0ull, offset, u32(begin * item));
      f(address + begin * item, u32(offset + begin * item), u32((end - begin) * item));
      if (end < width) f(0ull, u32(offset + end * item), u32((width - end) * item));
    }
    u32 d = 1;
    while (d < t.rank() && ++at[d] == count[d]) at[d++] = 0;
    if (d >= t.rank()) return;
  }
}

// A swizzle exchanges the 16-byte pieces of a line of shared memory: bits of the address from 4 on by those from 7 on.
static u32 swizzled(const TensorMap &t, u32 address) {
  const u32 bits = (1u << t.swizzle) - 1;
  return address ^ (address >> 7 & bits) << 4;
}

// f(offset in shared memory, address in global memory or 0, bytes) for the pieces that lie together on both sides.
template <class F>
static void pieces(const BulkCopy &c, F f) {
  const u32 tile = u32(Cluster::offset(c.tile));
  rows(c, [&](u64 global, u32 offset, u32 bytes) {
    const u32 whole = c.map.swizzle ? 16 : bytes;
    for (u32 done = 0; done < bytes;) {
      const u32 from = tile + offset + done, n = c.map.swizzle ? std::min(whole - from % 16, bytes - done) : bytes;
      f(swizzled(c.map, from), global ? global + done : 0, n);
      done += n;
    }
  });
}

// Whether two copies have the same place in global memory.
static bool same_place(const BulkCopy &a, const BulkCopy &b) {
  return a.global == b.global && a.bytes == b.bytes && std::equal(a.corner, a.corner + 5, b.corner) &&
         !memcmp(&a.map, &b.map, sizeof a.map);
}

// ---- what it does ----

// The fill for elements outside the tensor: zeros, or an H200's NaN, which is a NaN in every type.
static void fill(u8 *to, u32 bytes, const TensorMap &t) {
  if (!t.fill) return void(memset(to, 0, bytes));
  constexpr u16 NOT_A_NUMBER = 0x7ff7;
  for (u32 at = 0; at < bytes; at += 2) memcpy(to + at, &NOT_A_NUMBER, 2);
}

// An H200 rounds TF32, by the tensor map's type, on the way to shared memory: to nearest, ties to even.
static void round_tf32(u8 *data, u32 bytes, const TensorMap &t) {
  if (t.type != TF32 && t.type != TF32_FTZ) return;
  for (u32 at = 0; at < bytes; at += 4) {
    u32 bits = bits_of<u32>(data + at);
    bits = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffe000 : (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(data + at, &bits, 4);
  }
}

template <class T>
static T combined(Reduction r, T a, T x) {
  switch (r) {
    case ADD:
      return T(a + x);
    case MIN:
      return std::min(a, x);
    case MAX:
      return std::max(a, x);
    default:
      return x;
  }
}
template <class T>
static T of_bits(Reduction r, T a, T x) {
  switch (r) {
    case AND:
      return a & x;
    case OR:
      return a | x;
    case XOR:
      return a ^ x;
    case INC:
      return a >= x ? 0 : a + 1;
    case DEC:
      return a == 0 || a > x ? x : a - 1;
    default:
      return combined(r, a, x);
  }
}
u16 add_half(u16 a, u16 b, bool bf16);
static u16 of_halves(Reduction r, u16 a, u16 x, bool bf16) {
  if (r == ADD) return add_half(a, x, bf16);
  const auto value = bf16 ? widen_bf16 : widen_half;
  const bool takes = r == MIN ? value(x) < value(a) : value(x) > value(a);
  return takes || value(a) != value(a) ? x : a;
}

// `to` and `from` hold elements of that type. Others may be at work on `to`.
template <class T, class F>
static void each_element(u8 *to, const u8 *from, u32 bytes, F f) {
  for (u32 at = 0; at < bytes; at += sizeof(T)) {
    T *const cell = reinterpret_cast<T *>(to + at);
    const T x = bits_of<T>(from + at);
    T old = __atomic_load_n(cell, __ATOMIC_SEQ_CST), desired;
    do desired = f(old, x);
    while (!__atomic_compare_exchange_n(cell, &old, desired, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  }
}

static void reduce(u8 *to, const u8 *from, u32 bytes, Reduction r, Type type) {
  switch (type) {
    case U32:
      return each_element<u32>(to, from, bytes, [=](u32 a, u32 x) { return of_bits(r, a, x); });
    case S32:
      return each_element<u32>(to, from, bytes, [=](u32 a, u32 x) {
        return r == MIN || r == MAX ? u32(combined(r, s32(a), s32(x))) : of_bits(r, a, x);
      });
    case U64:
      return each_element<u64>(to, from, bytes, [=](u64 a, u64 x) { return of_bits(r, a, x); });
    case S64:
      return each_element<u64>(to, from, bytes, [=](u64 a, u64 x) {
        return r == MIN || r == MAX ? u64(combined(r, s64(a), s64(x))) : of_bits(r, a, x);
      });
    case F32:
    case F32_FTZ:
      return each_element<u32>(to, from, bytes, [=](u32 a, u32 x) {
        return as<u32>(combined(r, as<float>(a), as<float>(x)));
      });
    case F64:
      return each_element<u64>(to, from, bytes, [=](u64 a, u64 x) {
        return as<u64>(combined(r, as<double>(a), as<double>(x)));
      });
    default:
      return each_element<u16>(to, from, bytes, [=](u16 a, u16 x) { return of_halves(r, a, x, type == BF16); });
  }
}

static bool has_reduction(Reduction r, Type type) {
  switch (type) {
    case U32:
      return true;
    case S32:
    case U64:
    case S64:
      return r != INC && r != DEC;
    case F16:
    case BF16:
      return r == ADD || r == MIN || r == MAX;
    case F32:
    case F32_FTZ:
    case F64:
      return r == ADD;
    default:
      return false;
  }
}

// The copy itself.
void Cluster::execute(const BulkCopy &c) {
  u8 *const shared = block(c.tile)->shared;
  if (c.source || c.given) {
    u8 *const to = shared + offset(c.tile);
    const u8 *const from = c.given ? c.value : block(c.source)->shared + offset(c.source);
    if (launch.sanitize && c.source)
      block(c.tile)->undefined_shared_copy(offset(c.tile), *block(c.source), offset(c.source), c);
    else if (launch.sanitize && !c.reduction)
      block(c.tile)->undefined_landing(u32(offset(c.tile)), 0, 0, c.bytes, c.pc);
    return c.reduction ? reduce(to, from, c.bytes, Reduction(c.reduction), Type(c.type))
                       : void(memmove(to, from, c.bytes));
  }
  const auto there = [](u64 address) { return reinterpret_cast<u8 *>(address); };
  pieces(c, [&](u32 at, u64 global, u32 bytes) {
    if (at + bytes > launch.shared_window) return;  // a swizzle out of a tile that is no multiple of its pattern
    if (launch.sanitize) block(c.tile)->undefined_copy(at, global, bytes, c);
    if (c.mbarrier) {
      if (!global) return fill(shared + at, bytes, c.map);
      memcpy(shared + at, there(global), bytes);
      round_tf32(shared + at, bytes, c.map);
    } else if (global)
      c.reduction ? reduce(there(global), shared + at, bytes, Reduction(c.reduction), Type(c.type))
                  : void(memcpy(there(global), shared + at, bytes));
  });
}

// ---- what the sanitizer notes of it ----

// Where a tile begins, if it is not with a pattern of its swizzle. Tiles below the size of a pattern are parts of others.
static u32 shifted(const BulkCopy &c) {
  const u32 repeat = 128u << c.map.swizzle, offset = u32(Cluster::offset(c.tile));
  return c.map.magic && c.map.swizzle && room_of(c) >= repeat && offset % repeat ? offset : 0;
}

const Visit *Block::boxed(u32 at) const {
  if (at >= launch.shared_bytes) return nullptr;
  const Cell written = written_by[at >> program.granule_log2];
  const Visit *v = written.visited() ? &cluster.visits[written.visit()] : nullptr;
  return v && v->swizzle != NO_SWIZZLE && v->swizzle ? v : nullptr;
}

// A box was copied to where no pattern begins, and somebody reads it.
void Block::report_shifted(const Visit &v, Problem problem, s64 by_address, u32 thread, u32 pc) {
  worker->by_address[v.pc] += by_address;
  if (by_address > 0) return;
  for (auto &block : cluster.blocks)
    if (block->index == v.block) {
      block->worker = worker;
      block->report(problem, v.pc, v.warp * LANES + v.lane, v.shifted, 128u << v.swizzle, thread, pc, index);
    }
}

// Which of the tile's columns code means by an address cannot be seen. But it walks along rows or along columns. Under
// one view, that columns were exchanged by the bits of the address, and under the other, by the rows of the tile, it jumps
// differently far from one access to the next: what it means is the view in which it jumps less.
class Views {
 public:
  Views(u32 origin, u32 swizzle) : origin(origin), most((1u << swizzle) - 1) {}
  void step(u32 from, u32 to) {
    by_address += apart(column(from), column(to));
    by_rows += apart(column(from - origin), column(to - origin));
  }
  s64 vote() const { return by_address < by_rows ? 1 : by_address > by_rows ? -1 : 0; }

 private:
  u32 column(u32 at) const { return (at >> 4 ^ at >> 7) & most; }
  static u32 apart(u32 a, u32 b) { return a < b ? b - a : a - b; }
  const u32 origin, most;
  u64 by_address = 0, by_rows = 0;
};
static Problem as_voted(s64 vote) { return vote ? Problem::SWIZZLE_OFFSET : Problem::SWIZZLE_UNCLEAR; }

// Lanes read shared memory, perhaps of such a tile: from lane to lane, and from what each read there before.
void Block::read_shifted(const Warp &w, u32 mask, const u64 *address, const Instr &i) {
  for (u32 rest = mask; rest;) {
    const int first = __builtin_ctz(rest);
    const Visit *const v = boxed(u32(address[first]));
    rest &= rest - 1;
    if (!v || !v->shifted) continue;
    Views views(v->shifted, v->swizzle);
    auto walk = std::find_if(w.walks.begin(), w.walks.end(), [=](const Walk &x) { return x.pc == v->pc; });
    if (walk == w.walks.end()) walk = w.walks.insert(walk, Walk{v->pc, 0, {}});
    const auto go = [&](int lane) {
      if (walk->mask >> lane & 1) views.step(walk->at[lane], u32(address[lane]));
      walk->at[lane] = u32(address[lane]);
      walk->mask |= 1u << lane;
    };
    go(first);
    for (int before = first; rest; before = __builtin_ctz(rest), rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      const Visit *const other = boxed(u32(address[lane]));
      if (!other || other->pc != v->pc || other->shifted != v->shifted) break;
      views.step(u32(address[before]), u32(address[lane]));
      go(lane);
    }
    report_shifted(*v, as_voted(views.vote()), views.vote(), thread(w, first), i.pc);
  }
}

// A tile that threads wrote is stored from where no pattern begins: likewise, by what each instruction wrote.
void Block::store_shifted(const Warp &w, const Instr &i, int lane, const BulkCopy &c) {
  const u32 at = shifted(c), granule = 1u << program.granule_log2;
  if (!at) return;
  const Visit *v = boxed(at);  // a box that came to the same place is what it was
  if (v && v->swizzle == c.map.swizzle && (v->shifted - at) % (128u << v->swizzle) == 0) return;
  struct Written {
    u64 by;
    u32 lane, at;
  };
  std::vector<Written> all;
  for (u32 place = at; place < std::min(at + room_of(c), launch.shared_bytes); place += granule)
    if (const Cell cell = written_by[place >> program.granule_log2]; cell && !cell.visited())
      all.push_back({cell.word & ~(Cell::LANE_BITS | Cell::OTHER_BITS), u32(cell.lane()), place});
  std::sort(all.begin(), all.end(), [](const Written &a, const Written &b) {
    return std::tie(a.by, a.lane, a.at) < std::tie(b.by, b.lane, b.at);
  });
  Views views(at, c.map.swizzle);
  for (size_t n = 1; n < all.size(); ++n)
    if (all[n - 1].by == all[n].by) views.step(all[n - 1].at, all[n].at);
  const s64 vote = views.vote();
  worker->by_address[i.pc] += vote;
  if (vote <= 0) report(as_voted(vote), i.pc, thread(w, lane), at, 128u << c.map.swizzle);
}

// What the accesses to such tiles say together: who mostly goes by the address is right.
void Launch::settle_tiles() {
  for (const auto &[pc, votes] : by_address) {
    if (votes >= 0) findings.erase({u32(Problem::SWIZZLE_OFFSET), pc});
    if (votes) findings.erase({u32(Problem::SWIZZLE_UNCLEAR), pc});
  }
}

// Its tile is in flight from now on: no thread may touch it before it has waited.
void Block::copy_writes(Warp &w, const Instr &i, int lane, const BulkCopy &c) {
  Block &there = *cluster.block(c.tile);
  const u32 shift = program.granule_log2;
  const u64 actor = copies_on(cluster.block(c.mbarrier)->index, Cluster::offset(c.mbarrier));
  const u32 swizzle = c.map.magic ? c.map.swizzle : NO_SWIZZLE;
  const u64 flags = c.reduction ? Cell::BY_STRONG : 0;  // its additions and the like are atomic
  Visit visit{index, w.index, c.time, u32(lane), i.pc, Cell(), actor, swizzle, shifted(c)};
  cluster.shifted |= visit.shifted != 0;
  Cell writer = Cell::by_visit(cluster.remember(visit), flags), fine;  // `fine`: the last one that was looked at
  const auto range = [&](u32 from, u32 bytes) {
    for (u32 at = from >> shift; at <= (from + bytes - 1) >> shift; ++at) {
      for (const bool written : {true, false})
        for (Cell last = (written ? there.written_by : there.read_by)[at]; last && last.word != fine.word;
             last = cluster.before(last)) {
          if (last.made_for(writer) || ordered(w, lane, there, last)) {
            if (launch.strict && &there == this && !last.made_for(writer) && !proxy_fenced(w, last)) {
              report_visit(Problem::REFILL_NOT_FENCED, w, i, lane, u64(at) << shift, bytes, there, last);
              break;
            }
            if (!cluster.before(last)) fine = last;
            continue;
          }
          const u64 where = &there == this ? u64(at) << shift : Cluster::address(there, u64(at) << shift);
          report_visit(written ? Problem::RACE_WRITE_AFTER_WRITE : Problem::RACE_WRITE_AFTER_READ, w, i, lane, where,
                       bytes, there, last);
          break;
        }
      Cell &written = there.written_by[at];
      const Cell before = written.made_for(writer) ? unordered(w, lane, there, written) : Cell();
      if (before.word != visit.before.word)
        visit.before = before, writer = Cell::by_visit(cluster.remember(visit), flags);
      written = writer;
      there.read_by[at] = {};
    }
  };
  if (room_of(c) == c.bytes) return range(u32(Cluster::offset(c.tile)), c.bytes);
  pieces(c, [&](u32 at, u64, u32 bytes) {
    if (at + bytes <= launch.shared_bytes) range(at, bytes);
  });
}

// It reads this block's shared memory from now on: no thread may write there before it has waited.
void Block::copy_reads(Warp &w, const Instr &i, int lane, const BulkCopy &c) {
  const u32 shift = program.granule_log2;
  const u64 actor = c.mbarrier ? copies_on(cluster.block(c.mbarrier)->index, Cluster::offset(c.mbarrier))
                               : copies_of(index, thread(w, lane), false);
  Cell fine;
  const auto range = [&](u32 from, u32 bytes) {
    for (u32 at = from >> shift; at <= (from + bytes - 1) >> shift; ++at) {
      const Cell written = written_by[at];
      const u32 where = at << shift;
      if (written.is(Cell::IN_FLIGHT))
        report(Problem::COPY_IN_FLIGHT, i.pc, thread(w, lane), where, bytes, written.other_than(NO_PC), written.pc());
      else if (!written)
        report(Problem::SHARED_UNINITIALISED, i.pc, thread(w, lane), where, bytes);
      for (Cell last = written; last && last.word != fine.word; last = cluster.before(last))
        if (!ordered(w, lane, *this, last)) {
          report_visit(Problem::RACE_READ_AFTER_WRITE, w, i, lane, where, bytes, *this, last);
          break;
        } else if (!proxy_fenced(w, last)) {
          report_visit(Problem::NO_PROXY_FENCE, w, i, lane, where, bytes, *this, last);
          break;
        } else if (!cluster.before(last))
          fine = last;
      const Cell before = unordered(w, lane, *this, read_by[at]);
      read_by[at] = Cell::by_visit(cluster.remember({index, w.index, c.time, u32(lane), i.pc, before, actor}), 0);
    }
  };
  if (c.source) return range(u32(Cluster::offset(c.source)), c.bytes);
  pieces(c, [&](u32 at, u64 global, u32 bytes) {
    if (global && at + bytes <= launch.shared_bytes) range(at, bytes);
  });
}

// Does the lane's warp come from a wait on the mbarrier of these copies? Then it was for another phase.
bool Block::waited_in_vain(const Warp &w, int lane, u64 actor) const {
  const u64 polled = w.poll.address[lane] - reinterpret_cast<u64>(shared);
  return w.poll.mask >> lane & 1 && polled < launch.shared_bytes && actor == copies_on(index, polled);
}

// Where the mbarrier is that the lane has waited for last, if it passed at once: for a phase for which it had waited before,
// or for the one before the first. NO_PC: it did not.
u32 Block::waited_elsewhere(const Warp &w, int lane) const {
  const u64 polled = w.poll.address[lane] - reinterpret_cast<u64>(shared);
  if (!(w.poll.mask >> lane & 1) || polled >= launch.shared_bytes) return NO_PC;
  const auto known = cluster.mbarriers.find(Cluster::address(*this, polled));
  if (known == cluster.mbarriers.end()) return NO_PC;
  const auto stale = known->second.stale.find(w.poll.pc);
  const bool again = stale != known->second.stale.end() && stale->second.thread == thread(w, lane);
  return again || !known->second.phases ? u32(polled) : NO_PC;
}

// ---- issuing ----

// A lane's copy, before its addresses are looked at. `w.block->stopped` if it cannot be.
struct Issue {
  Warp &w;
  const Instr &i;
  const int lane;
  Block &b = *w.block;
  const u32 alone = 1u << lane;

  size_t first = w.bulk.size();  // of this instruction's copies
  bool repeated = false;         // another lane's copy, which is the same

  bool fail(Problem problem, u64 address, u32 size) {
    b.report(problem, i.pc, b.thread(w, lane), address, size);
    b.halt();
    return false;
  }
  bool no_map(NoMap why, u64 address) { return fail(Problem::TENSOR_MAP, address, why); }

  // Beyond the documentation, an H200 ends a kernel by an illegal instruction if this does not hold.
  bool corner_allowed(const BulkCopy &c, bool store) {
    if (s64(c.corner[0]) * c.map.item() % 16) return fail(Problem::BULK_CORNER, u32(c.corner[0]), c.map.item());
    for (u32 d = 0; store && d < c.map.rank(); ++d)
      if (c.corner[d] < 0) return fail(Problem::BULK_NEGATIVE, u32(c.corner[d]), d);
    return true;
  }

  bool read_map(u64 address, u32 coordinates, BulkCopy &c) {
    const u64 window = address & WINDOW_MASK, at = address & ~WINDOW_MASK;
    const u8 *from = reinterpret_cast<const u8 *>(at);
    if (window == PARAM_WINDOW) {
      if (at + TensorMap::BYTES > b.launch.params.size()) return no_map(NOT_ENCODED, 0);
      from = b.launch.params.data() + at;
    } else if (window) {
      return no_map(NOT_CONSTANT, 0);
    } else {
      u64 where[LANES];
      where[lane] = address;
      const Access a(alone, Space::GLOBAL, where, TensorMap::BYTES, 64, UNCOUNTED, UNTRACED, Noted::BY_CALLER);
      if (!access(w, i, a)) return false;
      if (b.launch.sanitize) {
        note_global(w, i, alone, where, sizeof(TensorMap), false, a.p);  // what comes after that need not be written
        b.race_read(w, i, alone, where, TensorMap::BYTES, a.p);
      }
    }
    memcpy(&c.map, from, sizeof c.map);
    const u64 shown = window ? 0 : address;
    if (!c.map.made()) return no_map(NOT_ENCODED, shown);
    c.map.magic = TensorMap::MAGIC;
    if (!c.map.possible()) return no_map(NO_SUCH_FIELD, shown);
    if (c.map.rank() != coordinates) return no_map(OTHER_RANK, shown);
    if (c.map.interleave) return no_map(INTERLEAVED, shown);
    if (c.reduction && !has_reduction(Reduction(c.reduction), Type(c.map.type)))
      return no_map(NO_SUCH_REDUCTION, shown);
    c.bytes = rows_of(c.map) * taken(c.map, 0) * c.map.item();
    c.type = c.map.type;
    return true;
  }

  // Where its tile, or what it comes from, begins: checked to lie in shared memory. `address`: generic.
  bool place(u64 address, u32 bytes, u32 alignment, u64 &to) {
    u64 at[LANES];
    at[lane] = address | SHARED_WINDOW;
    u32 left = alone;
    Space space;
    next_space(b, &left, at, &space);
    if (at[lane] % alignment) return fail(Problem::BULK_PLACE, at[lane] | SHARED_WINDOW, alignment);
    if (!access(w, i, {alone, space, at, bytes, 1, UNCOUNTED, UNTRACED, Noted::BY_CALLER})) return false;
    to = b.cluster_address(space, at[lane]);
    return true;
  }

  // The mbarrier that the copy completes on; its number among the copies there.
  bool find_mbarrier(BulkCopy &c) {
    const auto known = b.cluster.mbarriers.find(c.mbarrier);
    if (known == b.cluster.mbarriers.end()) return fail(Problem::MBARRIER_NOT_THERE, c.mbarrier, 0);
    Mbarrier &m = known->second;
    if (b.launch.sanitize && !m.fenced && !c.given) {
      m.fenced = true;  // told once
      const u64 at = b.cluster.block(c.mbarrier) == &b ? b.cluster.offset(c.mbarrier) : c.mbarrier;
      b.report(Problem::MBARRIER_NOT_FENCED, i.pc, b.thread(w, lane), at, 8, m.made_by_thread, m.made_at,
               m.made_by->block->index);
    }
    c.time = ++known->second.copies;
    return true;
  }

  // What it touches of global memory, row by row.
  bool global_side(const BulkCopy &c, bool writes, u32 destinations) {
    Counters *const count = b.launch.count ? &b.counters[i.pc] : nullptr;
    const bool sanitize = b.launch.sanitize;
    u32 epoch = 0;
    if (sanitize && writes && b.launch.races.load(std::memory_order_relaxed))
      epoch = b.launch.epochs.enter(*b.worker, {copies_of(b.index, c.thread, true), c.time, w.index});
    bool fine = true;
    rows(c, [&](u64 address, u32, u32 bytes) {
      if (!fine || (!address && c.map.magic)) return;
      u64 at[LANES];
      at[lane] = address;
      const Access a(alone, Space::GLOBAL, at, bytes, 1, writes ? COST | BYTES : COST, writes ? BULK_STORE : BULK_LOAD,
                     writes ? Noted::BY_CALLER : Noted::READ);
      if (!(fine = access(w, i, a))) return;
      if (b.traced) --w.seq;
      if (!sanitize || !writes) return;
      if (c.reduction) note_global(w, i, alone, at, bytes, false, a.p);
      note_global(w, i, alone, at, bytes, true, a.p);
      if (!repeated) b.race_copy(w, i, lane, address, bytes, epoch, c);
    });
    if (count) {
      ++count->requests;
      if (!writes) count->bytes += u64(c.bytes) * destinations;
    }
    return fine;
  }

  void trace(const BulkCopy &c, TraceKind kind) {
    if (!b.traced) return;
    u64 at[LANES];
    const bool own = b.cluster.block(c.tile) == &b;
    at[lane] = own ? Cluster::offset(c.tile) : c.tile;
    trace_access(w, i, alone, own ? Space::SHARED : Space::CLUSTER, kind, at, c.bytes), --w.seq;
  }

  bool to_shared(BulkCopy &c, u64 tile, u64 mbarrier, u32 blocks) {
    const u64 on = mbarrier & ~WINDOW_MASK;
    c.mbarrier = b.cluster.block(on) ? on : Cluster::address(b, on);
    if (!c.source && !c.given && !global_side(c, false, blocks ? __builtin_popcount(blocks) : 1)) return false;
    if (!place(tile, room_of(c), c.given ? c.bytes : c.map.magic ? TILE_ALIGNMENT : PLAIN_ALIGNMENT, c.tile))
      return false;
    if (!blocks) return land_in(c);
    const u64 at = Cluster::offset(c.tile), there = Cluster::offset(c.mbarrier);
    for (; blocks; blocks &= blocks - 1) {
      const u64 place = u64(__builtin_ctz(blocks) + 1) << Cluster::RANK_SHIFT;
      c.tile = place | at, c.mbarrier = place | there;
      if (b.cluster.block(c.tile) != &b) {
        u64 address[LANES];
        address[lane] = c.tile;
        if (!b.visit_allowed(w, i, alone, address, room_of(c))) return false;
      }
      if (!land_in(c)) return false;
    }
    return true;
  }

  bool land_in(BulkCopy &c) {
    if (!find_mbarrier(c)) return false;
    trace(c, BULK_LOAD);
    if (b.launch.sanitize) {
      b.copy_writes(w, i, lane, c);
      if (c.source) b.copy_reads(w, i, lane, c);
    }
    if ((c.source || c.given) && c.answer == Answer::NONE && b.launch.count) {
      Counters &count = b.counters[i.pc];
      count.cluster_requests += !c.given, count.cluster_bytes += c.bytes;
    }
    b.cluster.copies.push_back(c);
    b.changed(w, Space::SHARED);  // who has tested the mbarrier in vain looks again
    if (b.cluster.noting) {
      const u32 there = u32(b.cluster.block(c.mbarrier)->index);
      b.cluster.note(w, i.pc, EVENT_COPY, there, u32(Cluster::offset(c.mbarrier)), c.bytes);
    }
    return true;
  }

  bool to_global(BulkCopy &c, u64 tile) {
    if (!place(tile, room_of(c), c.map.magic ? TILE_ALIGNMENT : PLAIN_ALIGNMENT, c.tile)) return false;
    if (b.launch.sanitize) b.store_shifted(w, i, lane, c);
    c.group = w.bulk_group[lane];
    c.time = c.group + 1;
    repeated = !c.reduction && std::any_of(w.bulk.begin(), w.bulk.end(), [&](const BulkCopy &other) {
      const bool together = size_t(&other - w.bulk.data()) >= first || other.time == c.time;
      return other.pc == c.pc && other.tile == c.tile && together && same_place(c, other);
    });
    if (!global_side(c, true, 1)) return false;
    trace(c, BULK_STORE);
    if (b.launch.sanitize) b.copy_reads(w, i, lane, c);
    w.bulk.push_back(c);
    if (b.cluster.noting) b.cluster.note(w, i.pc, EVENT_BULK_STORE, lane, c.group, c.bytes);
    return true;
  }
};

// o: action, reduction | its type << 8, address in shared memory, offset, 64-bit, the other address (a tensor map's, with
// coordinates), offset, 64-bit, bytes (or ~0: a tensor's), mbarrier (or ~0), offset, 64-bit, blocks (or ~0), coordinates
static void copy(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  const u32 coordinates = i.count - 13;
  alignas(64) u64 tile[LANES], other[LANES], mbarrier[LANES] = {};
  addresses(w, i.o[2], i.o[3], i.o[4], tile);
  addresses(w, i.o[5], i.o[6], i.o[7], other);
  if (i.o[9] != ALL) addresses(w, i.o[9], i.o[10], i.o[11], mbarrier);
  const size_t first = w.bulk.size();
  for (u32 rest = m; rest && !b.stopped; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    Issue issue{w, i, lane};
    issue.first = first;
    BulkCopy c;
    c.reduction = i.o[1] & 255, c.type = i.o[1] >> 8;
    c.block = b.index, c.thread = b.thread(w, lane), c.pc = i.pc;
    if (i.o[8] == ALL) {
      if (!issue.read_map(other[lane], coordinates, c)) return;
      for (u32 n = 0; n < coordinates; ++n) c.corner[n] = w.reg<s32>(i.o[13 + n])[lane];
      if (!issue.corner_allowed(c, i.o[0] == TO_GLOBAL)) return;
    } else {
      c.bytes = w.reg<u32>(i.o[8])[lane];
      if (c.bytes % PLAIN_ALIGNMENT) return void(issue.fail(Problem::BULK_SIZE, 0, c.bytes));
      if (!c.bytes) continue;
      if (i.o[0] == WITHIN_CLUSTER) {
        if (!issue.place(other[lane], c.bytes, PLAIN_ALIGNMENT, c.source)) return;
      } else if ((c.global = other[lane]) % PLAIN_ALIGNMENT)
        return void(issue.fail(Problem::BULK_PLACE, c.global, PLAIN_ALIGNMENT));
    }
    const u32 blocks = i.o[12] == ALL ? 0 : w.reg<u16>(i.o[12])[lane];
    if (i.o[0] == TO_GLOBAL ? !issue.to_global(c, tile[lane]) : !issue.to_shared(c, tile[lane], mbarrier[lane], blocks))
      return;
  }
  ++w.seq;
}

// st.async, red.async. o: reduction | its type << 8, bytes of an element, address in shared memory, offset, 64-bit,
// mbarrier, offset, 64-bit, elements
static void send(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  alignas(64) u64 to[LANES], mbarrier[LANES];
  addresses(w, i.o[2], i.o[3], i.o[4], to);
  addresses(w, i.o[5], i.o[6], i.o[7], mbarrier);
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    BulkCopy c;
    c.given = true;
    c.reduction = i.o[0] & 255, c.type = i.o[0] >> 8;
    c.block = b.index, c.thread = b.thread(w, lane), c.pc = i.pc;
    for (u32 n = 8; n < i.count; ++n, c.bytes += i.o[1])
      memcpy(c.value + c.bytes, w.reg<u8>(i.o[n]) + lane * i.o[1], i.o[1]);
    if (!Issue{w, i, lane}.to_shared(c, to[lane], mbarrier[lane], 0)) return;
  }
  if (b.launch.count) ++b.counters[i.pc].cluster_requests;
  ++w.seq;
}

// clusterlaunchcontrol.try_cancel. Its answer: the place of a cluster's first block, and whether it was cancelled; which of
// them is known at once, and comes as late as a copy. o: address in shared memory, offset, 64-bit, mbarrier, offset,
// 64-bit, whether all blocks of the cluster get it
constexpr int CANCELLED = 3;  // word of the answer
static void try_cancel(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  Launch &l = b.launch;
  alignas(64) u64 to[LANES], mbarrier[LANES];
  addresses(w, i.o[0], i.o[1], i.o[2], to);
  addresses(w, i.o[3], i.o[4], i.o[5], mbarrier);
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (b.refused && l.sanitize) b.report(Problem::CANCEL_AGAIN, i.pc, b.thread(w, lane), 0, 0);
    BulkCopy c;
    c.given = true;
    c.block = b.index, c.thread = b.thread(w, lane), c.pc = i.pc;
    u32 answer[4] = {};
    if (u64 cluster; l.cancel(cluster))
      for (int axis = 0; axis < CANCELLED; cluster /= l.clusters[axis++])
        answer[axis] = u32(cluster % l.clusters[axis]) * l.cluster[axis], answer[CANCELLED] = 1;
    c.answer = answer[CANCELLED] ? Answer::GRANTED : Answer::REFUSED;
    memcpy(c.value, answer, c.bytes = sizeof answer);
    if (!Issue{w, i, lane}.to_shared(c, to[lane], mbarrier[lane], i.o[6] ? (1u << l.cluster_blocks) - 1 : 0)) return;
  }
  ++w.seq;
}

// Whether the request was granted. o: predicate, answer
static void is_cancelled(Warp &w, const Instr &i, u32 m) {
  u32 granted = 0;
  for (u32 lane = 0; lane < LANES; ++lane) granted |= u32(w.reg<u32>(i.o[1])[4 * lane + CANCELLED] != 0) << lane;
  w.pred(i.o[0]) = (w.pred(i.o[0]) & ~m) | (granted & m);
}

// Of which block. o: its place along x, y, z (or ~0), answer
static void first_block(Warp &w, const Instr &i, u32 m) {
  const u32 *answer = w.reg<u32>(i.o[3]);
  u32 refused = 0;
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    for (int axis = 0; axis < 3; ++axis)
      if (i.o[axis] != ALL) w.reg<u32>(i.o[axis])[lane] = answer[4 * lane + axis];
    refused |= u32(!answer[4 * lane + CANCELLED]) << lane;
  }
  for (int axis = 0; axis < 3 && refused; ++axis) w.block->absent(w, i, i.o[axis], refused);
}

// tensormap.cp_fenceproxy: a tensor map goes from shared to global memory, and all lanes of the warp know of it. o: to,
// offset, 64-bit, from, offset, 64-bit
static void copy_map(Warp &w, const Instr &i, u32 m) {
  constexpr u32 bytes = TensorMap::BYTES;
  Block &b = *w.block;
  const int lane = __builtin_ctz(m);
  const u32 alone = 1u << lane;
  alignas(64) u64 to[LANES], from[LANES];
  addresses(w, i.o[0], i.o[1], i.o[2], to);
  addresses(w, i.o[3], i.o[4], i.o[5], from);
  from[lane] &= ~WINDOW_MASK;
  if (!access(w, i, {alone, Space::SHARED, from, bytes, bytes, UNCOUNTED, UNTRACED, Noted::READ},
              {alone, Space::GLOBAL, to, bytes, bytes, UNCOUNTED, UNTRACED, Noted::WRITTEN}))
    return;
  if (b.launch.sanitize) {
    BulkCopy c;
    c.pc = i.pc, c.thread = b.thread(w, lane);
    b.undefined_copy(u32(from[lane]), to[lane], bytes, c);
    b.meet_lanes(w, m);
  }
  memcpy(reinterpret_cast<void *>(to[lane]), b.shared + from[lane], bytes);
  b.changed(w, Space::GLOBAL);
}

// ---- bulk groups ----

// Whether a copy to global memory writes what is there, or what another one of the block is about to write to the place.
bool Block::writes_the_same(const BulkCopy &c) const {
  bool there = true;
  pieces(c, [&](u32 at, u64 global, u32 bytes) {
    there = there && (!global || !memcmp(reinterpret_cast<const void *>(global), shared + at, bytes));
  });
  if (there) return true;
  return std::any_of(warps.begin(), warps.end(), [&](const Warp &w) {
    return std::any_of(w.bulk.begin(), w.bulk.end(), [&](const BulkCopy &other) {
      if (other.reduction || !same_place(c, other)) return false;
      bool same = true;
      const u32 apart = u32(Cluster::offset(other.tile)) - u32(Cluster::offset(c.tile));
      if (c.map.swizzle && apart % (128u << c.map.swizzle)) return false;  // their pieces lie in another order
      pieces(c, [&](u32 at, u64 global, u32 bytes) {
        same = same && (!global || !memcmp(shared + at, shared + at + apart, bytes));
      });
      return same;
    });
  });
}

// Copies of a lane's groups before `before` are made.
void Block::finish_groups(Warp &w, int lane, u32 before) {
  const u32 who = thread(w, lane);
  const auto ready = [=](const BulkCopy &c) { return c.thread == who && c.group < before; };
  bool any = false;
  for (const BulkCopy &c : w.bulk)
    if (ready(c)) cluster.execute(c), any = true;
  if (!any) return;
  if (cluster.noting) cluster.note(w, NO_PC, EVENT_BULK_DONE, lane, before, 0);
  w.bulk.erase(std::remove_if(w.bulk.begin(), w.bulk.end(), ready), w.bulk.end());
  changed(w, Space::GLOBAL);
}

// All but the last `keep` groups are over, or have at least been read.
void Block::wait_groups(Warp &w, u32 mask, u32 keep, bool reading) {
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (w.bulk_group[lane] < keep || !w.bulk_group[lane]) continue;
    const u32 before = w.bulk_group[lane] - keep, who = thread(w, lane);
    finish_groups(w, lane, before);
    if (!launch.sanitize) continue;
    auto past = std::make_shared<Past>(Past{{copies_of(index, who, false) << 6, before + 1}});
    if (!reading) past->push_back({copies_of(index, who, true) << 6, before + 1});
    take_from(w, past);
  }
}

// Lanes have exited. With the last one of a block its shared memory goes.
void Block::leave_copies(Warp &w, u32 mask) {
  for (u32 rest = w.bulk.empty() ? 0 : mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    for (const BulkCopy &c : w.bulk)
      if (c.thread == thread(w, lane) && launch.sanitize)
        report(Problem::BULK_AT_EXIT, c.pc, c.thread, Cluster::offset(c.tile), c.bytes);
    finish_groups(w, lane, ~0u);
  }
  if (live || !launch.sanitize) return;
  for (const BulkCopy &c : cluster.copies) {
    const bool into = cluster.block(c.tile) == this;
    if (!into && !(c.source && cluster.block(c.source) == this)) continue;
    Block &issuer = cluster.issuer(c);
    issuer.worker = worker;
    const u64 at = into ? c.tile : c.source;
    issuer.report(Problem::BULK_AFTER_EXIT, c.pc, c.thread, &issuer == this ? Cluster::offset(at) : at, into,
                  MANY_THREADS, NO_PC, index);
  }
}

void register_bulk(Registry &r) {
  constexpr u32 shared = IN_SHARED | IN_CLUSTER, either = IN_GLOBAL | shared;
  constexpr About orders = About::does(Effect::ORDERS, "control", Undefined::NOTHING);
  enter(r,
        {{"bulk", copy, "n n s* n n s* n n s4? s*? n n s2? s4+",  // lowering names another category, by the direction
          About::transfers("bulk.load", either, 5, either, 2, Undefined::ALL_OF_IT)},
         {"bulk.send", send, "n n s* n n s* n n s*+",
          About::transfers("bulk.cluster", 0, NO_OPERAND, shared, 2, Undefined::ALL_OF_IT)},
         {"cancel", try_cancel, "s* n n s* n n n",
          About::transfers("bulk.cluster", 0, NO_OPERAND, shared, 0, Undefined::ALL_OF_IT)},
         {"cancel.granted", is_cancelled, "d0 s16", About::computes("predicate", Undefined::ALL_OF_IT)},
         {"cancel.place", first_block, "d4? d4? d4? s16", About::computes("move", Undefined::ANSWERED)},
         {"bulk.map", copy_map, "s* n n s* n n",
          About::transfers("store.global", IN_SHARED, 3, IN_GLOBAL, 0, Undefined::ALL_OF_IT)},
         {"bulk.commit",
          [](Warp &w, const Instr &, u32 m) {
            for (int lane = 0; lane < LANES; ++lane) w.bulk_group[lane] += m >> lane & 1;
          },
          "", orders},
         {"bulk.wait",  // o: groups that may be left, only reading
          [](Warp &w, const Instr &i, u32 m) { w.block->wait_groups(w, m, i.o[0], i.o[1]); }, "n n", orders}});
}

}  // namespace vm
