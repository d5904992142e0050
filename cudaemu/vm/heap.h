// What malloc of device code takes from: memory that lives as long as its module, as in a CUDA context.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "vm.h"

namespace vm {

class Heap {
 public:
  explicit Heap(u64 bytes);
  u64 allocate(u64 bytes);                    // 0 if there is no room
  bool release(u64 address);                  // false if nothing begins there
  const Allocation *find(u64 address) const;  // the object that holds it; it stays valid, with size 0 once it is freed
  u64 base() const { return start; }
  u64 size() const { return room; }
  void clear();

 private:
  std::vector<u8> memory, written;
  u64 start, room;
  std::map<u64, u64> free;           // begin -> bytes
  std::map<u64, Allocation *> live;  // begin -> object
  std::deque<Allocation> objects;    // all that there ever were
  mutable std::shared_mutex mutex;
};

}  // namespace vm
