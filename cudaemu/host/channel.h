// Requests to the process that has the device, and its answers: a part of runtime.cpp, which includes it. process.py has
// the other side. In a Python process that has the device itself (libcuda.cpp) requests are calls of its function.

namespace {

enum class Request : uint32_t {
  HELLO = 1,
  KERNEL,
  LAUNCH,
  ALLOCATE,
  RELEASE,
  FIND,
  OUTSIDE,
  SYMBOL,
  REFUSED,
  FAULT,
  SIGNATURE,
  RESULT,
  NOTE,
  MEMORY,
  EXTENSION,
  OCCUPANCY,
  SHARED_ROOM,
  UNWRITTEN,
  REMARK,
  MODULE,
  MOVED,
  DONE,
  UNORDERED,
  LINK,
  KERNELS,
  COMPUTE,
};

constexpr uint32_t GO_LOOK = 2;  // while a kernel runs: say where the program is (anything else: print this)

struct Device {
  uint64_t base, bytes, total_memory, free_memory;  // the device's range of addresses, and what cudaMemGetInfo says
  int32_t major, minor, multiprocessors, l2_bytes;
  int32_t shared_per_block, shared_per_multiprocessor, threads_per_multiprocessor, blocks_per_multiprocessor;
};

enum Memory : uint64_t {
  DEVICE,
  MANAGED,
  PINNED,
  REGISTERED
};  // kinds of allocations; all but the first are host memory as well

int channel = -1;       // the socket; -1: nobody is there; in a process with its own device that is memory_file
int memory_file = -1;   // the device's memory
char *alias = nullptr;  // where the device's memory, and then its marks, are mapped for the runtime's own use
Device device{};
bool undefined = false;  // device memory may hold undefined values: process.py is told of copies and fills

struct Shared {        // the first page of device memory, which process.py reads
  char last_call[64];  // the name of the CUDA call that runs, or ran last
  uint64_t calls;      // how many there were
} *shared = nullptr;

// Who waits for it lets go of Python's own lock meanwhile, if there is one: the thread that has this may need that.
void *(*let_go)() = nullptr;
void (*take_back)(void *) = nullptr;
struct Guard {
  std::recursive_mutex mutex;
  void lock() {
    if (mutex.try_lock()) return;
    void *const held = let_go ? let_go() : nullptr;
    mutex.lock();
    if (held) take_back(held);
  }
  void unlock() { mutex.unlock(); }
} guard;

bool send_all(const void *data, size_t bytes) {
  for (const char *at = static_cast<const char *>(data); bytes;) {
    const ssize_t sent = send(channel, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, bytes -= sent;
  }
  return true;
}

// Most answers come soon; to sleep until then would take as long again.
bool receive_all(void *data, size_t bytes) {
  constexpr std::chrono::microseconds SOON(200);
  const auto begin = std::chrono::steady_clock::now();
  for (char *at = static_cast<char *>(data); bytes;) {
    const bool waits = std::chrono::steady_clock::now() - begin > SOON;
    const ssize_t got = recv(channel, at, bytes, waits ? 0 : MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) sched_yield();
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return false;
    at += got, bytes -= got;
  }
  return true;
}

class Packet {
 public:
  template <class T>
  Packet &add(const T &value) {
    return bytes(&value, sizeof value);
  }
  Packet &bytes(const void *data, size_t size) { return data_.append(static_cast<const char *>(data), size), *this; }
  Packet &text(const std::string &text) { return add(uint32_t(text.size())).bytes(text.data(), text.size()); }
  const std::string &data() const { return data_; }

 private:
  std::string data_;
};

class Answer {
 public:
  std::string data;
  template <class T>
  T take() {
    T value{};
    if (at_ + sizeof value <= data.size()) memcpy(&value, data.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  void take(void *to, size_t bytes) {
    if (at_ + bytes <= data.size()) memcpy(to, data.data() + at_, bytes);
    at_ += bytes;
  }
  std::string rest() const { return at_ < data.size() ? data.substr(at_) : std::string(); }
  bool empty() const { return data.empty(); }

 private:
  size_t at_ = 0;
};

// No answer. If the other process is gone, this one has nothing left to do.
[[noreturn]] void give_up() {
  if (errno == EBADF || errno == ENOTSOCK)
    fprintf(stderr, "the program has closed descriptor %d, by which CUDA calls reach the emulator\n", channel);
  _exit(125);
}

// In a process that has the device itself: who answers a request, and who says where the program is (a number, which
// process.py takes for an offset). Null: it is another process.
void (*served_here)(const char *request, size_t bytes, Answer *answer) = nullptr;
uint64_t (*place_here)() = nullptr;

// Ask, and wait for the answer.
Answer ask(Request request, const Packet &packet = {}) {
  uint32_t size = 0;
  Answer answer;
  Packet whole;
  whole.add(uint32_t(request)).text(packet.data());
  if (served_here) return served_here(whole.data().data(), whole.data().size(), &answer), answer;
  std::lock_guard lock(guard);
  if (!send_all(whole.data().data(), whole.data().size()) || !receive_all(&size, sizeof size)) give_up();
  answer.data.resize(size);
  if (!receive_all(&answer.data[0], size)) give_up();
  return answer;
}

// Names the CUDA call that is running, for the report of a crash.
void enter(const char *call) {
  if (!shared) return;
  strncpy(shared->last_call, call, sizeof shared->last_call - 1);
  ++shared->calls;
}
#define CALL(NAME) enter(#NAME)

}  // namespace
