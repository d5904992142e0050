// What waits for what: work in streams, events, the host. A part of runtime.cpp, which includes it.
//
// Each call is done when it returns, but on a GPU it might not be. So each stream has a clock: how much of every stream's
// work is over when its next work begins. Events keep the clock of what was recorded, and the host has one, of what it has
// waited for. Work that touches what earlier work touches, one of them writing, must know of it; so must host code that
// touches pinned memory: pages that a copy may still use are protected meanwhile.
//
// In doubt something counts as ordered: what all threads of the host have waited for is one clock, cudaStreamPerThread
// counts as the legacy default stream, the nodes of a graph as one after the other, and streams that share a flag (an atomic
// access of both to one place) as ordered by it.

namespace {

struct Range {
  uint64_t begin, end;  // addresses
  uint64_t how;         // bits, as vm/dependent.cpp has them
  bool meets(const Range &b) const { return begin < b.end && b.begin < end; }
};
constexpr uint64_t READS = 1, WRITES = 2, AS_FLAG = 4;

struct Item {  // of work that the host has not waited for
  unsigned stream;
  uint64_t time;
  std::string what;
  Packet place;
  std::vector<Range> ranges;  // in ascending order
  bool is_copy;               // host code must not touch what it uses
};

auto &host_knows() {  // what the host has waited for
  static auto &all = *new Clock;
  return all;
}
auto &everything() {  // all work there is
  static auto &all = *new Clock;
  return all;
}
Stream &legacy() {
  static auto &all = *new Stream{0, 0, 0, {}};
  return all;
}
bool several = false;                    // streams whose work may overlap: launches then say what they touched
thread_local Stream *working = nullptr;  // the stream whose work is done now
thread_local uint64_t working_since = 0;
auto &items() {
  static auto &all = *new std::vector<Item>;
  return all;
}
constexpr size_t MOST_ITEMS = 256;  // the oldest count as over

void join(Clock &into, const Clock &other) {
  for (const auto &[stream, time] : other) into[stream] = std::max(into[stream], time);
}
bool over(const Item &item, const Clock &clock) {
  const auto found = clock.find(item.stream);
  return found != clock.end() && item.time <= found->second;
}

bool is_legacy(cudaStream_t stream) { return !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread; }
Stream &stream_of(cudaStream_t stream) {
  Stream *const found = reinterpret_cast<Stream *>(stream);
  return is_legacy(stream) || !streams().count(found) ? legacy() : *found;
}
bool is_blocking(const Stream &stream) { return !(stream.flags & cudaStreamNonBlocking); }

// What a stream's next work begins after.
const Clock &latest(Stream &stream) {
  join(stream.clock, host_knows());
  if (&stream != &legacy()) {
    if (is_blocking(stream)) join(stream.clock, legacy().clock);
    return stream.clock;
  }
  for (const Stream *each : streams())
    if (is_blocking(*each)) join(legacy().clock, each->clock);
  return legacy().clock;
}

// Work of a stream, from here to the end of the block.
struct Working {
  Stream *const outer = working;
  const uint64_t outer_since = working_since;
  explicit Working(Stream &stream) {
    std::lock_guard lock(guard);
    latest(stream);
    working = &stream;
    working_since = everything()[stream.id] = ++stream.clock[stream.id];
  }
  ~Working() { working = outer, working_since = outer_since; }
};

// Pages of pinned memory that an item uses whole: what lies beside it in a page may be used meanwhile.
template <class F>
void pinned_pages(const Item &item, F f) {
  if (!item.is_copy || served_here) return;  // kernels run in this process, too
  for (const Range &range : item.ranges) {
    auto after = mapped().upper_bound(range.begin);
    if (after == mapped().begin()) continue;
    const auto &[base, memory] = *std::prev(after);
    const uint64_t end = base + memory.bytes;
    if (memory.kind != PINNED || range.begin >= end) continue;
    const uint64_t first = range.begin == base ? base : page_up(range.begin);
    const uint64_t last = range.end == end ? base + page_up(memory.bytes) : range.end / 4096 * 4096;
    if (first < last) f(reinterpret_cast<void *>(first), size_t(last - first), range);
  }
}

void protect_pinned() {
  for (const bool writes : {false, true})  // what is written must not even be read
    for (const Item &item : items())
      pinned_pages(item, [&](void *at, size_t bytes, const Range &range) {
        if (bool(range.how & WRITES) == writes) mprotect(at, bytes, writes ? PROT_NONE : PROT_READ);
      });
}

// Forget items.
template <class F>
void forget(F which) {
  std::lock_guard lock(guard);
  bool pinned = false;
  for (const Item &item : items())
    if (which(item))
      pinned_pages(item, [&](void *at, size_t bytes, const Range &) {
        pinned = true;
        mprotect(at, bytes, PROT_READ | PROT_WRITE);
      });
  items().erase(std::remove_if(items().begin(), items().end(), which), items().end());
  if (pinned) protect_pinned();
}

// The host has waited for this.
void waited(const Clock &clock) {
  std::lock_guard lock(guard);
  join(host_knows(), clock);
  if (!items().empty()) forget([](const Item &item) { return over(item, host_knows()); });
}

void report_unordered(const Item &earlier, uint64_t address, bool earlier_writes, const std::string &what, bool writes,
                      void *context) {
  const Packet here = where(context);
  ask(Request::UNORDERED,
      Packet()
          .add(address)
          .add(uint32_t(earlier_writes))
          .add(uint32_t(writes))
          .text(earlier.what)
          .text(what)
          .bytes(earlier.place.data().data(), earlier.place.data().size())
          .bytes(here.data().data(), here.data().size()));
}

// What the work of now touches, in ascending order.
void touches(const std::string &what, std::vector<Range> ranges, bool is_copy) {
  std::lock_guard lock(guard);
  if (!working || ranges.empty()) return;
  Item item{working->id, working_since, what, {}, std::move(ranges), is_copy};
  bool pinned = false;
  pinned_pages(item, [&](void *, size_t, const Range &) { pinned = true; });
  if (!several && !pinned) return;
  for (const Item &earlier : items()) {
    if (over(earlier, working->clock)) continue;
    const Range *found[2] = {};
    bool flag = false;
    for (auto a = earlier.ranges.cbegin(), b = item.ranges.cbegin();
         a != earlier.ranges.cend() && b != item.ranges.cend() && !flag;) {
      if (a->meets(*b)) {
        if (a->how & b->how & AS_FLAG)
          flag = true;
        else if (!((a->how | b->how) & AS_FLAG) && (a->how | b->how) & WRITES && !found[0])
          found[0] = &*a, found[1] = &*b;
      }
      a->end < b->end ? ++a : ++b;
    }
    if (flag)
      working->clock[earlier.stream] = std::max(working->clock[earlier.stream], earlier.time);
    else if (found[0])
      report_unordered(earlier, std::max(found[0]->begin, found[1]->begin), found[0]->how & WRITES, what,
                       found[1]->how & WRITES, nullptr);
  }
  item.place = where(nullptr);
  if (items().size() >= MOST_ITEMS)
    forget([oldest = items().front()](const Item &each) {
      return each.stream == oldest.stream && each.time == oldest.time;
    });
  items().push_back(std::move(item));
  if (pinned) protect_pinned();
}

// Memory that is given back: who gets it next is a matter of the allocator.
void forget_memory(uint64_t address, size_t bytes) {
  std::lock_guard lock(guard);
  const Range gone{address, address + bytes, 0};
  for (Item &item : items()) {
    const auto meets = [&](const Range &range) { return range.meets(gone); };
    item.ranges.erase(std::remove_if(item.ranges.begin(), item.ranges.end(), meets), item.ranges.end());
  }
}

// Host code has touched pinned memory that a copy may still use. False if it was something else.
bool touched_too_early(uint64_t address, void *context) {
  std::lock_guard lock(guard);
  for (const Item &item : items())
    for (const Range &range : item.ranges)
      if (item.is_copy && address >= range.begin && address < range.end) {
        report_unordered(item, address, range.how & WRITES, "", !(range.how & WRITES), context);
        forget([stream = item.stream, time = item.time](const Item &each) {  // go on as the hardware might
          return each.stream == stream && each.time == time;
        });
        return true;
      }
  return false;
}

}  // namespace
