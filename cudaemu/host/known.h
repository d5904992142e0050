// What the runtime knows: kernels, variables, memory, streams, events, the last error. A part of runtime.cpp, which
// includes it.

namespace {

struct Function {
  std::string name;
  bool known = false;  // the other process has been asked
  size_t static_shared = 0, local = 0;
  unsigned max_threads = MAX_THREADS, launch_bounds = 0;
  std::vector<std::pair<uint32_t, uint32_t>> params;  // offset and size
  uint32_t param_bytes = 0;
  int ptx_version = 0;           // 80: compiled for compute capability 8.0
  dim3 cluster = dim3(0, 0, 0);  // that it is compiled for; 0: none
  bool large_clusters = false;   // more than PORTABLE_CLUSTER blocks are allowed
  std::string readable;
  long long max_dynamic = -1;  // opted in to; -1: never asked
  size_t dynamic_limit() const {
    if (max_dynamic >= 0) return max_dynamic;
    return static_shared < DEFAULT_SHARED ? DEFAULT_SHARED - static_shared : 0;
  }
};

struct Variable {
  std::string name;
  size_t size;
  uint64_t address = 0;  // 0: the other process has not been asked
};

struct Configuration {  // of one <<<...>>>
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

using Clock = std::map<unsigned, uint64_t>;  // how much of each stream's work is over: waits.h

struct Stream {
  unsigned flags;
  int priority;
  unsigned id;  // 0: the legacy default stream
  Clock clock;
};

struct Event {
  bool recorded;
  std::chrono::steady_clock::time_point time;
  unsigned flags;
  Clock clock;
};

struct Mapped {  // memory that host code may touch: managed or pinned
  size_t bytes;
  Memory kind;
};

// The kernel's object registers what it has in its constructors, which may run before ours: hence local statics. They are
// never destroyed, for destructors of the program's own global objects free memory after ours would have run.
auto &functions() {  // keyed by the host function that stands for the kernel
  static auto &all = *new std::map<const void *, Function>;
  return all;
}
auto &variables() {  // keyed by the host variable that stands for the device's
  static auto &all = *new std::map<const void *, Variable>;
  return all;
}
auto &mapped() {
  static auto &all = *new std::map<uint64_t, Mapped>;
  return all;
}
auto &blocks() {  // device memory that there is, as far as it was asked for: bytes by address
  static auto &all = *new std::map<uint64_t, size_t>;
  return all;
}
auto &streams() {
  static auto &all = *new std::set<Stream *>;
  return all;
}
auto &events() {
  static auto &all = *new std::set<Event *>;
  return all;
}
struct MemoryPool {
  int reuse[3] = {1, 1, 1};                    // what cudaMallocAsync may reuse: returned again, and changes nothing
  uint64_t threshold = 0, used = 0, high = 0;  // bytes: kept when all is free; allocated, and at most so far
};
MemoryPool default_pool, *pool_of_device = &default_pool;
auto &from_pools() {  // what cudaMallocAsync has allocated
  static auto &all = *new std::map<void *, std::pair<MemoryPool *, size_t>>;
  return all;
}

thread_local std::vector<Configuration> configurations;
cudaError_t last_error = cudaSuccess;
bool sticky = false;        // after a fault nothing works, as in a CUDA context
bool managed_busy = false;  // a kernel may still use managed memory: host code that touches it faults
unsigned streams_made = 0;
Stream *given = nullptr;  // the stream that the launcher was given
// The stream of the last launch (null: none), until something else is queued in a stream or the host waits. The next
// launch in that stream may begin before it has ended: programmatic dependent launch.
cudaStream_t in_flight = nullptr;

bool in_arena(uint64_t address) { return address - device.base < device.bytes; }
void *own(uint64_t address) {
  return in_arena(address) ? alias + (address - device.base) : reinterpret_cast<void *>(address);
}
size_t page_up(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

std::string format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char *pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  char text[600];
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

cudaError_t record(cudaError_t error) {
  if (!sticky && error != cudaSuccess) last_error = error;
  return error;
}

Packet where(void *context);

// An error's reason in words for the report, and the line that called: CUDA has only the number.
void explain(int error, const std::string &why) {
  if (channel < 0) return;
  const Packet place = where(nullptr);
  ask(Request::REFUSED, Packet().add(int32_t(error)).text(why).bytes(place.data().data(), place.data().size()));
}

cudaError_t refuse(cudaError_t error, const std::string &why) {
  explain(error, why);
  return record(error);
}

}  // namespace
