// Events of a block: what orders its warps, and what runs in the background. Only of blocks that somebody asked about.
#include "block.h"

namespace vm {

static void add(Cluster &c, const Event &e) {
  if (c.launch.noted.fetch_add(1, std::memory_order_relaxed) < c.launch.event_limit) c.events.push_back(e);
}

// Lanes of one instruction that arrive at the same place are one event.
void Cluster::note(Warp &w, u32 pc, EventKind kind, u32 there, u32 at, u32 number) {
  w.storing = 0;
  const bool sums = kind == EVENT_MBARRIER_ARRIVE || kind == EVENT_MBARRIER_EXPECT;
  if (sums && !events.empty()) {
    Event &last = events.back();
    const bool same = last.kind == kind && last.block == w.block->index && last.warp == w.index &&
                      last.step == w.step && last.there == there && last.at == at;
    if (same) return void(last.number += number);
  }
  add(*this, {w.step, 0, u32(w.block->index), w.index, pc, kind, there, at, number});
}

// A wait that goes on is one event, however often the warp looks.
void Cluster::note_wait(Warp &w, u32 pc, EventKind kind, u32 there, u32 at, u32 number) {
  const bool waits = kind == EVENT_MBARRIER_WAIT || kind == EVENT_WGMMA_WAIT;
  if (waits && w.waits_at == pc) return;
  w.waits_at = waits ? pc : NO_PC;
  note(w, pc, kind, there, at, number);
}

// Stores with no other event of their warp between them are one.
void Cluster::note_store(Warp &w, u32 pc) {
  if (w.storing) {
    Event &first = events[w.storing - 1];
    ++first.number;
    first.at = u32(w.step - first.step);
    return;
  }
  const size_t before = events.size();
  add(*this, {w.step, 0, u32(w.block->index), w.index, pc, EVENT_STORE, 0, 0, 1});
  if (events.size() > before) w.storing = events.size();
}

}  // namespace vm
