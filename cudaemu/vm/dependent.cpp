// Programmatic dependent launch: a grid that may begin before the one before it has ended.
//
// A launch with cudaLaunchAttributeProgrammaticStreamSerialization begins when every block of the launch before has
// executed griddepcontrol.launch_dependents, or has ended. Only griddepcontrol.wait (cudaGridDependencySynchronize)
// makes it wait for the end of that launch, and for what it writes. Here launches run one after the other; what a block
// touches before it has waited is checked against what the launches touched that may still run then:
//
// - What they write, whenever: neither the end of a block nor launch_dependents makes it visible to the next grid.
// - What they read, if the launch writes it: not what a block read before its launch_dependents, for that is over.
//
// The wait returns when the launch before has ended. That one may have begun early itself: the launch before it is over
// as well only if it waited, too. The cells of global memory (races.cpp) of each launch are kept for this as long as it
// may still run, each granule with the line that touched it. Flags that the two grids pass each other are not followed.
#include <sys/mman.h>

#include <algorithm>

#include "block.h"

namespace vm {

// "It has waited" is part of what a warp knows of other blocks (order.cpp), so that barriers and flags pass it on.
constexpr u64 WAITED = ~0ull;

void Block::wait_for_launch(Warp &w, u32 mask) {
  if (!launch.before) return;
  static const PastPointer waited = std::make_shared<Past>(Past{{WAITED, 1}});
  w.knows.others = join(w.knows.others, waited);
  w.waited |= mask;
  std::lock_guard lock(launch.trigger_mutex);
  launch.waited = true;
  if (!launch.triggers.count(index)) launch.waited_first = true;
}

// After a change of what the warp knows: has another thread waited?
void Block::learn_waited(Warp &w) {
  if (launch.before && w.knows.others && w.knows.others->back().key == WAITED) w.waited = ALL;
}

// The first one of a block counts. What happened before it is over when the next launch begins.
void Block::let_next_begin(Warp &w) {
  if (!launch.kept) return;
  std::lock_guard lock(launch.trigger_mutex);
  if (launch.triggers.count(index)) return;
  launch.triggers[index] = w.knows.time;
  launch.triggers[index][w.index] = advance(w);
}

// What is left when the launch is over: where it touched global memory.
void Launch::keep() {
  wait();
  storage.clear();
  workers.clear();
  counters = {};
  trace = {};
  heap = nullptr;
  if (waited_first) before = nullptr;
}

// Of each allocation the granules with the same kind of access, as pieces: first address, end, and 1 read, 2 written, 4 by an
// access that is meant for synchronisation. Only pages of the cells that were touched are looked at.
u64 Launch::touched(u64 *ranges, u64 most) const {
  constexpr u64 PAGE_WORDS = 4096 / sizeof(u64), STEP = 1 << 16;  // pages at a time
  std::vector<const Allocation *> in_order;
  for (const Allocation &a : allocations)
    if (a.cells) in_order.push_back(&a);
  std::sort(in_order.begin(), in_order.end(), [](auto *a, auto *b) { return a->base < b->base; });
  u64 count = 0;
  std::vector<u8> resident;
  for (const Allocation *a : in_order) {
    const Cells &cells = *a->cells;
    const u64 pages = (3 * cells.count + PAGE_WORDS - 1) / PAGE_WORDS;
    resident.resize(pages);
    for (u64 page = 0; page < pages; page += STEP) {
      const u64 bytes = std::min(STEP, pages - page) * 4096;
      if (mincore(cells.words + page * PAGE_WORDS, bytes, resident.data() + page)) return 0;
    }
    const auto word = [&](u64 at) { return resident[at / PAGE_WORDS] & 1 ? cells.words[at] : 0; };
    const auto skipped = [&](u64 at) { return resident[at / PAGE_WORDS] & 1 ? 0 : PAGE_WORDS - at % PAGE_WORDS; };
    u64 *last = nullptr;
    for (u64 at = 0; at < cells.count; ++at) {
      const u64 all[] = {skipped(at), skipped(cells.count + at), skipped(2 * cells.count + at)};
      if (const u64 untouched = *std::min_element(all, all + 3)) {
        at += untouched - 1;
        continue;
      }
      const u64 written = word(at), read = word(cells.count + at) | word(2 * cells.count + at);
      if (!written && !read) continue;
      const u64 kind = (read ? 1 : 0) | (written ? 2 : 0) | ((written | read) & R_STRONG ? 4 : 0);
      const u64 first = std::max(cells.origin + (at << cells.shift), a->base);
      const u64 end = std::min(cells.origin + ((at + 1) << cells.shift), a->base + a->size);
      if (first >= end) continue;
      if (last && last[1] == first && last[2] == kind) {
        last[1] = end;
        continue;
      }
      if (count == most) return 0;
      last = ranges + 3 * count++;
      last[0] = first, last[1] = end, last[2] = kind;
    }
  }
  return count;
}

static bool late_read(const Launch &launch, const Epoch &e) {
  const auto trigger = launch.triggers.find(e.block);
  return trigger != launch.triggers.end() && e.time >= trigger->second[e.warp];
}

// An access to global memory, by lanes that have not waited for all that may still run.
void Block::check_early(const Warp &w, const Instr &i, u32 mask, const u64 *address, u32 bytes, bool writes,
                        bool strong) {
  for (u32 rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const bool waited = w.waited >> lane & 1;
    const Launch *past = !waited ? launch.before : launch.before->waited ? nullptr : launch.before->before;
    for (u32 distance = 1 + waited; past; past = past->before, ++distance) {
      const Allocation *a = find(*past, address[lane], bytes);
      if (!a || !a->cells) continue;
      const Cells &cells = *a->cells;
      const u64 offset = address[lane] - cells.origin;
      const auto found = [&](Problem problem, u64 at, u64 word) {
        const Epoch &e = past->epochs.of(u32(word >> EPOCH_SHIFT));
        const u64 where = std::max(address[lane], cells.origin + (at << cells.shift));
        report(problem, i.pc, thread(w, lane), where, bytes, e.warp * LANES + u32(word >> R_LANE_SHIFT & 31),
               u32(word & R_PC_MASK), block_of(e.block), distance);
      };
      for (u64 at = offset >> cells.shift; at <= (offset + bytes - 1) >> cells.shift; ++at) {
        const u64 written = cells.words[at];
        if (written && !(strong && written & R_STRONG)) {
          found(writes ? Problem::EARLY_WRITE_AFTER_WRITE : Problem::EARLY_READ_AFTER_WRITE, at, written);
          break;
        }
        if (!writes) continue;
        for (const u64 read : {cells.words[cells.count + at], cells.words[2 * cells.count + at]})
          if (read && !(strong && read & R_STRONG) && late_read(*past, past->epochs.of(u32(read >> EPOCH_SHIFT)))) {
            found(Problem::EARLY_WRITE_AFTER_READ, at, read);
            break;
          }
      }
    }
  }
}

void register_dependent(Registry &r) {
  constexpr About orders = About::does(Effect::ORDERS, "control", Undefined::NOTHING);
  enter(r, {{"griddepcontrol.wait", [](Warp &w, const Instr &, u32 m) { w.block->wait_for_launch(w, m); }, "", orders},
            {"griddepcontrol.launch_dependents", [](Warp &w, const Instr &, u32) { w.block->let_next_begin(w); }, "",
             orders}});
}

}  // namespace vm
