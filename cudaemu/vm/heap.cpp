#include "heap.h"

namespace vm {

constexpr u64 UNIT = 16, GAP = 16;  // bytes: alignment, and what lies between two objects

Heap::Heap(u64 bytes) : memory(bytes + UNIT), written(bytes), room(bytes) {
  start = (reinterpret_cast<u64>(memory.data()) + UNIT - 1) / UNIT * UNIT;
  clear();
}

void Heap::clear() {
  std::unique_lock lock(mutex);
  live.clear();
  objects.clear();
  free = {{start, room}};
}

u64 Heap::allocate(u64 bytes) {
  std::unique_lock lock(mutex);
  if (bytes > room) return 0;
  const u64 taken = (std::max<u64>(bytes, 1) + GAP + UNIT - 1) / UNIT * UNIT;
  for (auto at = free.begin(); at != free.end(); ++at) {
    const auto [begin, size] = *at;
    if (size < taken) continue;
    free.erase(at);
    if (size > taken) free[begin + taken] = size - taken;
    memset(reinterpret_cast<void *>(begin), 0xff, taken);  // as all memory that nobody wrote
    memset(written.data() + (begin - start), 0, taken);
    objects.push_back({begin, bytes, written.data() + (begin - start)});
    live[begin] = &objects.back();
    return begin;
  }
  return 0;
}

bool Heap::release(u64 address) {
  std::unique_lock lock(mutex);
  const auto found = live.find(address);
  if (found == live.end()) return false;
  const u64 taken = (std::max<u64>(found->second->size, 1) + GAP + UNIT - 1) / UNIT * UNIT;
  found->second->size = 0;
  live.erase(found);
  auto [at, fresh] = free.insert({address, taken});
  if (const auto next = std::next(at); next != free.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free.erase(next);
  }
  if (at != free.begin())
    if (const auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      free.erase(at);
    }
  return true;
}

const Allocation *Heap::find(u64 address) const {
  if (address < start || address >= start + room) return nullptr;
  std::shared_lock lock(mutex);
  auto at = live.upper_bound(address);
  if (at == live.begin()) return nullptr;
  const Allocation *object = (--at)->second;
  return address < object->base + object->size ? object : nullptr;
}

}  // namespace vm
