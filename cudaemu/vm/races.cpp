// Races in global memory: two accesses to one granule by different threads, one of them writing, that nothing orders.
//
// Each granule (the smallest store to global memory that the kernel makes) knows who wrote it last, and two warps that
// read it since, of each of which one or two lanes. Who they are and when, an epoch says: a number for what one warp does between two events that order
// (order.cpp). Words are read and written whole, so that blocks on two cores may meet at a granule: what one overwrites
// of the other is lost, but nothing else.
//
// What is written may be what was there: two threads that set one flag are told apart from two that disagree.
#include <sys/mman.h>

#include <algorithm>

#include "block.h"

namespace vm {

constexpr u64 MOST_HUGE = 4 << 20;  // granules: 96 MB of words

Cells::Cells(u64 base, u64 bytes, u32 granule_log2)
    : origin(base & ~63ull), shift(granule_log2), count((bytes + 64) / (1u << granule_log2) + 2) {
  void *memory = mmap(nullptr, 3 * count * sizeof(u64), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  words = memory == MAP_FAILED ? nullptr : static_cast<u64 *>(memory);
  // Most of it is soon touched, unless it is very large: then by a page fault for each 2 MB, not 4 KB.
  if (words && count <= MOST_HUGE) madvise(words, 3 * count * sizeof(u64), MADV_HUGEPAGE);
}

Cells::~Cells() {
  if (words) munmap(words, 3 * count * sizeof(u64));
}

void Cells::forget(u64 address, u64 bytes) {
  const u64 first = (address - origin) >> shift, last = (address + bytes - origin) >> shift;
  for (u64 kind = 0; words && kind < 3; ++kind)
    std::fill(words + kind * count + first, words + kind * count + last + 1, 0);
}

static u64 get(const u64 *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static void put(u64 *word, u64 value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

// The number of what the warp does now.
u32 Block::epoch(Warp &w) {
  if (w.epoch && w.epoch_time == w.time) return w.epoch;
  w.epoch_time = w.time;
  w.epoch = launch.epochs.enter(*worker, {index, w.time, w.index});
  if (!w.epoch) launch.races = false;  // no more numbers: what comes from now on is not looked at
  return w.epoch;
}

u32 Epochs::enter(Worker &worker, Epoch epoch) {
  if (worker.next_epoch == worker.last_epoch) {
    std::lock_guard lock(mutex);
    if (chunks == MOST) return 0;
    const u64 chunk = chunks;
    table[chunk].store(new Epoch[SIZE](), std::memory_order_release);
    ++chunks;
    worker.next_epoch = chunk * SIZE + (chunk == 0);  // 0: nobody
    worker.last_epoch = (chunk + 1) * SIZE;
  }
  const u32 number = u32(worker.next_epoch++);
  table[number / SIZE].load(std::memory_order_relaxed)[number % SIZE] = epoch;
  return number;
}

static u64 bit_of(u64 address) { return (address & ~u64(3)) * 0x9e3779b97f4a7c15ull >> 52; }

void Block::note_seen(u32 mask, const u64 *address) {
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const u64 bit = bit_of(address[__builtin_ctz(rest)]);
    seen[bit / 64] |= 1ull << bit % 64;
  }
}

static int lane_of(u64 word) { return int(word >> R_LANE_SHIFT & 31); }
static int other_lane_of(u64 word) { return int(word >> R_OTHER_SHIFT & 31); }
static u64 with_other(u64 word, int lane) { return (word & ~(31ull << R_OTHER_SHIFT)) | u64(lane) << R_OTHER_SHIFT; }

// By the same lanes of a warp, with nothing in between that orders.
constexpr u64 ACTOR = ~((1ull << EPOCH_SHIFT) - 1) | 31 * R_LANE_STEP;

// Does something order what the word says before what the warp does now? `mine`: the word for that. `over`: the word tells
// of a read, and it is enough that this is over.
bool Block::ordered_globally(const Warp &w, u64 address, u64 word, u64 mine, bool over) const {
  const Epoch &e = launch.epochs.of(u32(word >> EPOCH_SHIFT));
  const u64 bit = bit_of(address);  // a thread that has seen the value of an atomic comes after it, for that place
  if (word & R_STRONG && !((word | mine) & R_BLOCK) && seen[bit / 64] >> bit % 64 & 1) return true;
  if (e.block == index) {
    if (word & mine & R_STRONG) return true;
    if (e.warp != w.index)
      return e.time < w.knows.time[e.warp] || (over && e.time < known(w.knows.others, e.block | READS_OVER, e.warp));
    const int by[] = {lane_of(mine), other_lane_of(mine)}, of[] = {lane_of(word), other_lane_of(word)};
    for (const int knows : by)
      for (const int lane : of)
        if (knows != lane && e.time >= lane_time(w, knows, lane)) return false;
    return true;
  }
  if (word & mine & R_STRONG && !((word | mine) & R_BLOCK)) return true;
  return e.time < known(w.knows.others, e.block, e.warp) ||
         (over && e.time < known(w.knows.others, e.block | READS_OVER, e.warp));
}

void Block::report_race(Problem problem, const Warp &w, const Instr &i, int lane, u64 address, u32 bytes, u64 word,
                        u64 mine) {
  const Epoch &e = launch.epochs.of(u32(word >> EPOCH_SHIFT));
  if (e.block & ASYNCHRONOUS && problem != Problem::SAME_VALUE) problem = Problem::BULK_STILL_WRITES;
  int other = lane_of(word);
  if (e.block == index && e.warp == w.index && other == lane)  // several lanes read: no lane races with itself
    other_lane_of(word) != lane ? other = other_lane_of(word) : lane = other_lane_of(mine);
  report(problem, i.pc, thread(w, lane), address, bytes, e.warp * LANES + u32(other), u32(word & R_PC_MASK),
         block_of(e.block));
}

// Reads by lanes of one warp: two different ones, if there are.
static inline u64 of_both(u64 earlier, u64 mine) {
  const u64 one = earlier >> R_LANE_SHIFT & 31, lane = mine >> R_LANE_SHIFT & 31, also = mine >> R_OTHER_SHIFT & 31;
  const u64 other = lane != one ? lane : also != one ? also : earlier >> R_OTHER_SHIFT & 31;
  return (earlier & ~(31ull << R_OTHER_SHIFT)) | other << R_OTHER_SHIFT;
}

// A row of granules, COUNT for each lane, that nobody else has written and one warp at most has read last. False if it is
// something else.
template <int LOG2>
static bool read_row(u64 *written, u64 *read, u64 *second, u32 n, u64 mine, u64 last_epoch, bool last_mine,
                     bool read_only) {
  const u64 my_epoch = mine >> EPOCH_SHIFT, whoever = read_only ? ~0ull : 0;
  u64 foreign = 0, mixed = 0, lanes = 0;
  INDEPENDENT
  for (u32 c = 0; c < n; ++c) {
    const u64 me = mine + (c >> LOG2) * R_LANE_STEP;
    foreign |= written[c] ? ((written[c] ^ me) & ACTOR) | whoever : 0;
    mixed |= ((read[c] >> EPOCH_SHIFT) ^ last_epoch) | (read[c] & ~mine & R_STRONG);
    lanes |= (read[c] ^ me) & ACTOR;
  }
  if (foreign || mixed) return false;
  if (last_epoch == my_epoch) {
    if (!lanes) return true;
    INDEPENDENT
    for (u32 c = 0; c < n; ++c) read[c] = of_both(read[c], mine + (c >> LOG2) * R_LANE_STEP);
    return true;
  }
  INDEPENDENT
  for (u32 c = 0; c < n; ++c) {
    second[c] = last_mine ? second[c] : read[c];
    read[c] = mine + (c >> LOG2) * R_LANE_STEP;
  }
  return true;
}

// `lanes` pieces of `bytes` side by side, of the lanes from `lane` on.
void Block::read_cells(Warp &w, const Instr &i, const Cells &cells, int lane, u32 lanes, u64 address, u32 bytes,
                       u64 mine) {
  const u64 offset = address - cells.origin;
  const u64 first = offset >> cells.shift, last = (offset + lanes * bytes - 1) >> cells.shift;
  const u32 bytes_log2 = lanes == 1 ? 63 : __builtin_ctz(bytes);  // a bulk copy's row may have any size
  u64 *written = cells.words, *read = written + cells.count, *second = read + cells.count;
  const u64 my_epoch = mine >> EPOCH_SHIFT;
  if (bytes >> cells.shift) {
    const u64 last_epoch = read[first] >> EPOCH_SHIFT;
    const Epoch *e = last_epoch && last_epoch != my_epoch ? &launch.epochs.of(u32(last_epoch)) : nullptr;
    const bool last_mine = !e || (e->block == index && e->warp == w.index);
    const auto row = [&](auto log2) {
      return read_row<log2>(written + first, read + first, second + first, u32(last - first + 1), mine, last_epoch,
                            last_mine, i.flags & READ_ONLY);
    };
    switch (__builtin_ctz(bytes) - int(cells.shift)) {
      case 0:
        if (row(std::integral_constant<int, 0>())) return;
        break;
      case 1:
        if (row(std::integral_constant<int, 1>())) return;
        break;
      case 2:
        if (row(std::integral_constant<int, 2>())) return;
        break;
      case 3:
        if (row(std::integral_constant<int, 3>())) return;
        break;
      default:
        if (lanes == 1 && row(std::integral_constant<int, 31>())) return;
    }
  }
  u64 known_epoch = my_epoch;  // of a word that was looked at: an epoch of this warp?
  bool known_mine = true;
  for (u64 at = first; at <= last; ++at) {
    const u64 begin = std::max(at << cells.shift, offset), behind = (begin - offset) >> bytes_log2;
    const u64 me = mine + behind * R_LANE_STEP;
    if (const u64 word = get(written + at);
        word && (word ^ me) & ACTOR && !ordered_globally(w, cells.origin + (at << cells.shift), word, me)) {
      report_race(word & R_SAME ? Problem::SAME_VALUE : Problem::GLOBAL_READ_AFTER_WRITE, w, i, lane + int(behind),
                  cells.origin + begin, bytes, word, me);
    } else if (word && i.flags & READ_ONLY)
      report_race(Problem::READ_ONLY_WRITTEN, w, i, lane + int(behind), cells.origin + begin, bytes, word, me);
    const u64 before = get(read + at), epoch_before = before >> EPOCH_SHIFT;
    if (epoch_before == my_epoch) {
      if (before & ~me & R_STRONG)
        put(read + at, me);  // a plain read counts for more
      else if ((before ^ me) & ACTOR)
        put(read + at, of_both(before, me));
      continue;
    }
    if (epoch_before != known_epoch) {
      known_epoch = epoch_before;
      const Epoch &e = launch.epochs.of(u32(epoch_before));
      known_mine = !before || (e.block == index && e.warp == w.index);
    }
    if (!known_mine) put(second + at, before);
    put(read + at, me);
  }
}

// `value`: what the lane writes; null for an atomic, or for a `copy` of a tile that several
// threads may hold: it is made later.
void Block::write_cells(Warp &w, const Instr &i, const Cells &cells, int lane, u64 address, u32 bytes, u64 mine,
                        const u8 *value, const BulkCopy *copy) {
  const u64 offset = address - cells.origin;
  const u64 first = offset >> cells.shift, last = (offset + bytes - 1) >> cells.shift;
  u64 *written = cells.words, *read = written + cells.count, *second = read + cells.count;
  const auto by_my_warp = [&](u64 word) {
    const Epoch &e = launch.epochs.of(u32(word >> EPOCH_SHIFT));
    return e.block == index && e.warp == w.index;
  };
  const auto read_only = [&](u64 word) {
    const u64 pc = word & R_PC_MASK;
    return pc < R_PC_MASK && program.code[pc].flags & READ_ONLY;
  };
  for (u64 at = first; at <= last; ++at) {
    const u64 word = get(written + at), one = get(read + at), other = get(second + at);
    const auto races = [&](u64 earlier, bool over) {
      return earlier && (earlier ^ mine) & ACTOR &&
             !ordered_globally(w, cells.origin + (at << cells.shift), earlier, mine, over);
    };
    for (const u64 earlier : {one, other})
      if (launch.strict && earlier && read_only(earlier) && !races(earlier, true))
        report_race(Problem::READ_ONLY_EARLIER, w, i, lane, std::max(address, cells.origin + (at << cells.shift)),
                    bytes, earlier, mine);
    if (!races(word, false) && !races(one, true) && !races(other, true)) {
      put(written + at, mine);
      if (one) put(read + at, 0);
      if (other) put(second + at, 0);
      continue;
    }
    const u64 where = std::max(address, cells.origin + (at << cells.shift));
    const u32 size = u32(std::min<u64>(address + bytes, cells.origin + ((at + 1) << cells.shift)) - where);
    const bool same = value ? !memcmp(reinterpret_cast<const void *>(where), value + (where - address), size)
                            : copy && writes_the_same(*copy);
    for (const u64 earlier : {word, one, other})
      if (races(earlier, earlier != word) &&
          !(same && by_my_warp(earlier)))  // lanes that agree: which of them it was cannot be seen
        report_race(same              ? Problem::SAME_VALUE
                    : earlier == word ? Problem::GLOBAL_WRITE_AFTER_WRITE
                                      : Problem::GLOBAL_WRITE_AFTER_READ,
                    w, i, lane, where, bytes, earlier, mine);
    if (same && races(word, false)) continue;  // the one that changed it is the one to remember
    put(written + at, mine | (same ? R_SAME : 0));
    put(read + at, 0);
    put(second + at, 0);
  }
}

static u64 word_of(u32 epoch, const Instr &i, int lane, bool strong) {  // by one lane
  return u64(epoch) << EPOCH_SHIFT | (strong ? R_STRONG : 0) | (i.flags & OF_BLOCK ? R_BLOCK : 0) |
         u64(lane) * R_LANE_STEP | std::min<u64>(i.pc, R_PC_MASK);
}

const Cells *Block::cells_of(u64 address, u32 bytes) const {
  const Allocation *a = only ? only : find(launch, address, bytes);
  if (!a || a->cells) return a ? a->cells : nullptr;
  const Heap *heap = launch.heap;
  return heap && address >= heap->base() && address < heap->base() + heap->size() ? launch.heap_cells : nullptr;
}

void Block::race_read(Warp &w, const Instr &i, u32 mask, const u64 *address, u32 bytes, const Pattern &p) {
  if (early(w, mask)) check_early(w, i, mask, address, bytes, false, i.flags & STRONG);
  if (!launch.races.load(std::memory_order_relaxed)) return;
  const u32 now = epoch(w);
  const bool strong = i.flags & (STRONG | PAST_L1 | TENTATIVE);
  if (p.row && only) {
    if (const Cells *cells = cells_of(p.low, bytes))
      read_cells(w, i, *cells, 0, LANES, p.low, bytes, word_of(now, i, 0, strong));
    return;
  }
  for (u32 rest = mask; rest;) {
    const int lane = __builtin_ctz(rest);
    int another = lane;  // of those that read the same
    for (rest &= rest - 1; rest && address[__builtin_ctz(rest)] == address[lane]; rest &= rest - 1)
      another = __builtin_ctz(rest);
    u32 lanes = 1;  // side by side
    for (; only && another == lane && u64(rest) >> (lane + lanes) & 1 &&
           address[lane + lanes] == address[lane] + lanes * bytes;
         ++lanes)
      rest &= ~(1u << (lane + lanes));
    if (const Cells *cells = cells_of(address[lane], bytes))
      read_cells(w, i, *cells, lane, lanes, address[lane], bytes, with_other(word_of(now, i, lane, strong), another));
  }
}

// The usual store: of a row that no other warp has touched. False if it needs a closer look.
bool Block::race_write_row(Warp &w, const Instr &i, u64 address, u32 bytes) {
  if (early(w, ALL) || launch.strict) return false;
  if (!launch.races.load(std::memory_order_relaxed)) return true;
  const Cells *cells = cells_of(address, bytes);
  if (!cells) return true;
  if (!(bytes >> cells->shift)) return false;
  const u64 mine = word_of(epoch(w), i, 0, i.flags & STRONG);
  const u64 first = (address - cells->origin) >> cells->shift;
  const u32 log2 = __builtin_ctz(bytes) - cells->shift, n = LANES << log2;
  u64 *written = cells->words + first, *read = written + cells->count, *second = read + cells->count, foreign = 0;
  INDEPENDENT
  for (u32 c = 0; c < n; ++c) {
    const u64 word = written[c], one = read[c], me = mine + (c >> log2) * R_LANE_STEP;
    foreign |= (word ? (word ^ me) & ACTOR : 0) | (one ? (one ^ me) & ACTOR : 0) | second[c];
  }
  if (foreign) return false;
  INDEPENDENT
  for (u32 c = 0; c < n; ++c) written[c] = mine + (c >> log2) * R_LANE_STEP, read[c] = 0;
  return true;
}

// A bulk copy of the lane writes, some time before its thread has waited for it. `epoch`: that of the copy.
void Block::race_copy(Warp &w, const Instr &i, int lane, u64 address, u32 bytes, u32 epoch, const BulkCopy &c) {
  const bool atomic = c.reduction;
  u64 at[LANES];
  at[lane] = address;
  if (early(w, 1u << lane)) check_early(w, i, 1u << lane, at, bytes, true, atomic);
  if (!epoch) return;
  if (const Cells *cells = cells_of(address, bytes))
    write_cells(w, i, *cells, lane, address, bytes, word_of(epoch, i, lane, atomic), nullptr,
                i.flags & OF_TILE && !atomic ? &c : nullptr);
}

void Block::race_write(Warp &w, const Instr &i, u32 mask, const u64 *address, u32 bytes, const u8 (*value)[32],
                       bool atomic) {
  if (early(w, mask)) check_early(w, i, mask, address, bytes, true, atomic || i.flags & STRONG);
  if (!launch.races.load(std::memory_order_relaxed)) return;
  const u32 now = epoch(w);
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (const Cells *cells = cells_of(address[lane], bytes))
      write_cells(w, i, *cells, lane, address[lane], bytes, word_of(now, i, lane, atomic || i.flags & STRONG),
                  value ? value[lane] : nullptr);
  }
}

}  // namespace vm
