// Device, managed and pinned memory: allocations, copies, fills. A part of runtime.cpp, which includes it.

namespace {

cudaError_t allocate(void **address, size_t bytes, Memory kind) {
  if (sticky) return last_error;
  if (channel < 0) return record(cudaErrorNoDevice);
  if (!address) return refuse(cudaErrorInvalidValue, "the address of the pointer must not be null");
  *address = nullptr;
  if (!bytes) return cudaSuccess;
  const Packet place = where(nullptr);
  Packet packet;
  packet.add(uint64_t(bytes)).add(uint64_t(kind)).add(uint64_t(0)).bytes(place.data().data(), place.data().size());
  const uint64_t at = ask(Request::ALLOCATE, packet).take<uint64_t>();
  if (!at) return record(cudaErrorMemoryAllocation);
  if (kind != DEVICE && !map_for_host(at, bytes, kind))
    return refuse(cudaErrorMemoryAllocation, "the memory cannot be mapped into the program's process");
  std::lock_guard lock(guard);
  blocks()[at] = bytes;
  if (kind == MANAGED && managed_busy) protect_managed(true, true);
  *address = reinterpret_cast<void *>(at);
  return cudaSuccess;
}

// What cudaHostAlloc was asked for, by address.
auto &host_flags() {
  static auto &all = *new std::map<const void *, unsigned>;
  return all;
}

cudaError_t release(void *address, bool pinned, const char *call) {
  if (sticky) return last_error;  // the address may be an old one: what was to give another has failed, too
  host_flags().erase(address);
  in_flight = nullptr;
  if (!address) return cudaSuccess;
  if (const auto lent = from_pools().find(address); lent != from_pools().end()) {
    lent->second.first->used -= lent->second.second;
    from_pools().erase(lent);
  }
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  const auto found = mapped().find(at);
  const bool right = pinned == (found != mapped().end() && found->second.kind == PINNED);
  if (!right) return refuse(cudaErrorInvalidValue, format("%s of memory that another call allocated", call));
  if (const auto block = blocks().find(at); block != blocks().end()) forget_memory(at, block->second);
  const Packet place = where(nullptr);
  Answer answer = ask(Request::RELEASE, Packet().add(at).bytes(place.data().data(), place.data().size()));
  const auto error = cudaError_t(answer.take<int32_t>());
  if (error) explain(error, answer.rest());
  std::lock_guard lock(guard);
  if (!error) blocks().erase(at);
  if (!error && found != mapped().end()) {
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (!served_here) mmap(address, page_up(found->second.bytes), PROT_NONE, how, -1, 0);
    mapped().erase(found);
  }
  return sticky ? last_error : record(error);
}

// Memory that cudaHostRegister was given, by its address in the host.
struct Registered {
  size_t bytes;
  uint64_t device;  // its address for kernels; 0: nobody has asked for that
  Packet place;

  bool has(uint64_t base, uint64_t address) const { return address - base < bytes; }
};
auto &registered() {
  static auto &all = *new std::map<uint64_t, Registered>;
  return all;
}
// What has this address, of the host or for kernels.
std::pair<const uint64_t, Registered> *registered_at(uint64_t address) {
  for (auto &each : registered())
    if (each.second.has(each.first, address) || (each.second.device && each.second.has(each.second.device, address)))
      return &each;
  return nullptr;
}

// Let kernels reach registered memory: its pages become pages of device memory, which the host has at the same addresses
// as before. What else lies in the first page and the last stays there, too.
cudaError_t lend(const char *call, uint64_t host, Registered &memory) {
  if (memory.device) return cudaSuccess;
  const uint64_t first = host / 4096 * 4096, end = page_up(host + memory.bytes);
  for (const auto &[other, its] : registered())
    if (its.device && first < page_up(other + its.bytes) && other / 4096 * 4096 < end)
      return refuse(cudaErrorNotSupported,
                    format("%s: the emulator cannot give kernels two registered ranges that share a "
                           "page of 4096 bytes; align them, or use cudaHostAlloc",
                           call));
  const uint64_t here = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  if (first <= here && here < end + (1 << 16))  // frames that are in use would be moved
    return refuse(cudaErrorNotSupported, format("%s: the emulator cannot give kernels memory of the stack", call));
  const Packet packet =
      Packet()
          .add(uint64_t(memory.bytes))
          .add(uint64_t(REGISTERED))
          .add(host - first)
          .bytes(memory.place.data().data(), memory.place.data().size());
  const uint64_t at = ask(Request::ALLOCATE, packet).take<uint64_t>();
  if (!at) return record(cudaErrorMemoryAllocation);
  const uint64_t page = at - (host - first);
  void *const pages = reinterpret_cast<void *>(first);
  const bool read = survives([&] { memcpy(own(page), pages, end - first); });
  if (!read || mmap(pages, end - first, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_file,
                    page - device.base) == MAP_FAILED) {
    ask(Request::RELEASE, Packet().add(at).bytes(memory.place.data().data(), memory.place.data().size()));
    return refuse(cudaErrorInvalidValue, format("%s: the memory cannot be given to kernels", call));
  }
  memory.device = at;
  return cudaSuccess;
}

// The host's pages are its own again.
cudaError_t unregister(uint64_t host) {
  const auto found = registered().find(host);
  const uint64_t at = found->second.device, first = host / 4096 * 4096, end = page_up(host + found->second.bytes);
  const Packet place = where(nullptr);
  registered().erase(found);
  if (!at) return cudaSuccess;
  void *const kept = mmap(nullptr, end - first, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (kept == MAP_FAILED) return record(cudaErrorMemoryAllocation);
  memcpy(kept, own(at - (host - first)), end - first);
  mremap(kept, end - first, end - first, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void *>(first));
  ask(Request::RELEASE, Packet().add(at).bytes(place.data().data(), place.data().size()));
  std::lock_guard lock(guard);
  blocks().erase(at);
  return cudaSuccess;
}

cudaError_t wild(const char *call, const void *address, size_t bytes) {
  note("wild host pointer", format("%s: %zu bytes at %p, which is not memory of the program", call, bytes, address));
  return record(cudaErrorInvalidValue);
}

// Bytes of device memory with their marks.
struct Marked {
  uint64_t base = 0, size = 0;  // of the allocation; 0: there is none
  uint64_t offset = 0, bytes = 0;
  uint8_t *marks() const { return reinterpret_cast<uint8_t *>(alias + device.bytes + (base - device.base)); }
  bool all_written() const { return marks()[-1]; }
  bool written() const {  // but for single bytes, which pad structures
    if (all_written()) return true;
    const uint8_t *mark = marks() + offset;
    for (const uint8_t *const end = mark + bytes / 4 * 4; mark != end; mark += 4) {
      uint32_t word;
      memcpy(&word, mark, sizeof word);
      if (!word) return false;
    }
    return true;
  }
  // It is touched: parts of it that are new hold 0xff (memory.py), unless all of their bytes get another value.
  void settle(bool filled = false) const {
    constexpr uint64_t PART = 1 << 18;
    constexpr uint8_t SETTLED = 0, NEW = 1, BUSY = 2;
    for (uint64_t part = offset / PART; bytes && size >= PART && part <= (offset + bytes - 1) / PART; ++part) {
      uint8_t *const state = marks() - 2 - part, seen = NEW;
      const uint64_t from = part * PART, to = std::min(size, from + PART);
      if (__atomic_compare_exchange_n(state, &seen, BUSY, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        if (!filled || from < offset || offset + bytes < to) memset(own(base + from), 0xff, to - from);
        __atomic_store_n(state, SETTLED, __ATOMIC_RELEASE);
      } else
        while (__atomic_load_n(state, __ATOMIC_ACQUIRE) == BUSY) sched_yield();
    }
  }
  void fill_marks() const {
    if (all_written()) return;
    if (bytes == size)
      marks()[-1] = 1;
    else
      memset(marks() + offset, 1, bytes);
  }
  void copy_marks(const Marked &from) const {
    if (from.all_written()) return fill_marks();
    if (all_written()) memset(marks(), 1, size);
    marks()[-1] = 0;
    memmove(marks() + offset, from.marks() + from.offset, bytes);
  }
};

// These bytes of one allocation; the size is 0 if there is none that has them all.
Marked find_range(uint64_t address, size_t bytes) {
  std::lock_guard lock(guard);
  auto found = blocks().upper_bound(address);
  if (found == blocks().begin() || address - std::prev(found)->first >= std::prev(found)->second) {
    Answer answer = ask(Request::FIND, Packet().add(address));  // a variable, or an array of Python's
    const uint64_t base = answer.take<uint64_t>(), size = answer.take<uint64_t>();
    if (size) found = std::next(blocks().insert_or_assign(base, size).first);
  }
  if (found == blocks().begin()) return {};
  const auto &[base, size] = *std::prev(found);
  if (address - base >= size || bytes > size - (address - base)) return {};
  return {base, size, address - base, bytes};
}

// The range of one allocation that a call means; its size is 0, and the call refused, if there is none.
Marked range(const char *call, const void *at, size_t bytes) {
  const uint64_t address = reinterpret_cast<uint64_t>(at);
  const Marked made = find_range(address, bytes);
  if (!made.size)
    explain(cudaErrorInvalidValue, ask(Request::OUTSIDE, Packet().text(call).add(address).add(uint64_t(bytes))).rest());
  return made;
}

// What a copy or a fill has touched; 0: memory that the device does not know. Without a stream it is the default stream's, and
// the host has waited for it; so it has if pageable memory of the host was the target.
void note_copy(const char *call, uint64_t target, uint64_t source, size_t bytes, bool fills = false) {
  if (!working) {
    const Working now(legacy());
    note_copy(call, target, source, bytes, fills);
    return waited(legacy().clock);
  }
  std::vector<Range> ranges;
  if (source) ranges.push_back({source, source + bytes, READS});
  if (target) ranges.push_back({target, target + bytes, WRITES});
  std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.begin < b.begin; });
  touches(call, std::move(ranges), true);
  if (!target && !fills) waited(working->clock);
}

cudaError_t copy(const char *call, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  if (sticky) return last_error;
  if (channel < 0) return record(cudaErrorNoDevice);
  in_flight = nullptr;
  if (!bytes) return cudaSuccess;
  if (!to || !from)
    return refuse(cudaErrorInvalidValue, format("%s: the %s is a null pointer", call, to ? "source" : "target"));
  const uint64_t target = reinterpret_cast<uint64_t>(to), source = reinterpret_cast<uint64_t>(from);
  // Memory that both sides may touch counts as what the direction says.
  const bool device_to = in_arena(target), device_from = in_arena(source);
  const bool wants_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool wants_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  std::string misdirected;
  if (kind != cudaMemcpyDefault) {
    if (kind > cudaMemcpyDefault)
      return refuse(cudaErrorInvalidMemcpyDirection, format("%s: direction %d", call, kind));
    const auto look = [&](const char *which, bool is, bool wanted, const void *address) {
      if (is == wanted || host_memory(reinterpret_cast<uint64_t>(address))) return true;
      misdirected = format("%s: by its direction the %s must be %s memory, got %p", call, which,
                           wanted ? "device" : "host", address);
      return !wanted &&
             kind != cudaMemcpyHostToHost;  // CUDA recognises device memory by its address: docs/hardware/counters.json
    };
    if (!look("target", device_to, wants_to, to) || !look("source", device_from, wants_from, from))
      return refuse(cudaErrorInvalidValue, misdirected);
  }
  if (!misdirected.empty()) ask(Request::REMARK, Packet().text("wrong direction").text(misdirected));
  Marked there, here;
  if (device_to && !(there = range(call, to, bytes)).size) return record(cudaErrorInvalidValue);
  if (device_from && !(here = range(call, from, bytes)).size) return record(cudaErrorInvalidValue);
  if (device_from && !device_to && !here.written())
    ask(Request::UNWRITTEN, Packet().text(call).add(source).add(uint64_t(bytes)));
  there.settle();
  here.settle();
  if (!survives([&] { memmove(own(target), own(source), bytes); })) {
    const bool bad_target = device_from || (!device_to && !survives([&] { *static_cast<volatile char *>(to); }));
    return wild(call, bad_target ? to : from, bytes);
  }
  if (device_to && device_from)
    there.copy_marks(here);
  else if (device_to)
    there.fill_marks();
  if (undefined && (device_to || device_from))
    ask(Request::MOVED, Packet().add(target).add(source).add(uint64_t(bytes)));
  note_copy(call, device_to ? target : 0, device_from ? source : 0, bytes);
  return cudaSuccess;
}

cudaError_t copy_2d(const char *call, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                    size_t height, enum cudaMemcpyKind kind) {
  if (width > to_pitch || width > from_pitch)
    return refuse(cudaErrorInvalidPitchValue, format("%s: rows of %zu bytes do not fit the pitch", call, width));
  cudaError_t error = cudaSuccess;
  for (size_t row = 0; row < height && !error; ++row)
    error = copy(call, static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch,
                 width, kind);
  return error;
}

cudaError_t fill(const char *call, void *address, int value, size_t bytes) {
  if (sticky) return last_error;
  if (channel < 0) return record(cudaErrorNoDevice);
  in_flight = nullptr;
  if (!bytes) return cudaSuccess;
  const Marked there = range(call, address, bytes);
  if (!there.size) return record(cudaErrorInvalidValue);
  there.settle(true);
  memset(own(reinterpret_cast<uint64_t>(address)), value, bytes);
  there.fill_marks();
  if (undefined)
    ask(Request::MOVED, Packet().add(reinterpret_cast<uint64_t>(address)).add(uint64_t(0)).add(uint64_t(bytes)));
  note_copy(call, reinterpret_cast<uint64_t>(address), 0, bytes, true);
  return cudaSuccess;
}

cudaError_t symbol(void **address, size_t *bytes, const void *host) {
  const auto found = variables().find(host);
  if (found != variables().end() && channel >= 0 && !found->second.address)
    found->second.address = ask(Request::SYMBOL, Packet().text(found->second.name)).take<uint64_t>();
  const uint64_t at = found == variables().end() ? 0 : found->second.address;
  if (!at)
    return refuse(cudaErrorInvalidSymbol, "the argument must be a __device__ or __constant__ variable of this "
                                          "file");
  *address = reinterpret_cast<void *>(at);
  *bytes = found->second.size;
  return cudaSuccess;
}

cudaError_t copy_symbol(const char *call, bool to_symbol, const void *host_symbol, const void *data, size_t bytes,
                        size_t offset, enum cudaMemcpyKind kind) {
  void *address;
  size_t size;
  if (const cudaError_t error = symbol(&address, &size, host_symbol)) return error;
  if (offset > size || bytes > size - offset)
    return refuse(cudaErrorInvalidValue,
                  format("%s: %zu bytes at offset %zu of a variable of %zu", call, bytes, offset, size));
  char *const at = static_cast<char *>(address) + offset;
  return to_symbol ? copy(call, at, data, bytes, kind) : copy(call, const_cast<void *>(data), at, bytes, kind);
}

}  // namespace
