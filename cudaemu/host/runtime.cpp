// A stand-in for the CUDA runtime: what a .cu file's host code calls when there is no GPU.
//
// It is linked into each source's shared object, with its symbols hidden there, and compiled against the headers of the
// nvcc that compiles the source. It lives in the process that runs the host code; the device is another process, the
// Python that started this one (host.py). Requests to the device go there through a socket, one at a time. The limits
// of the modelled GPU are known here, and this code refuses what that GPU would refuse, with its error codes.
// `nm -u` of a kernel's object names what nvcc's launch code needs; releases differ: CUDA 12 calls cudaLaunchKernel,
// CUDA 13 __cudaGetKernel and __cudaLaunchKernel.
//
// Device memory is a file that both processes map. Host code cannot touch it at its device address, because only
// managed and pinned memory is mapped there: a device pointer that is dereferenced faults, and the fault is reported.
// Copies go through a second mapping of the file, the alias. After the memory the file has a mark for each byte, which
// says whether it was ever written (memory.py): copies and fills set them without a request.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <driver_functions.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../vm/tensor_map.h"

namespace emulator_call {
struct Type {
  char kind, pointee, constant;
  unsigned size, pointee_size;
  const char *name;
};
}  // namespace emulator_call
extern "C" __attribute__((weak)) const emulator_call::Type *emulator_types(unsigned *count);  // see call.h
extern "C" __attribute__((weak)) int emulator_call_launcher(void *const *values);
// Of a source that is written as a PyTorch extension: see extension/emulator_torch.h.
extern "C" __attribute__((weak)) const char *emulator_extension_parameters(const char *name);
extern "C" __attribute__((weak)) void emulator_extension_call(
    const char *name, const char *arguments, void (*done)(int status, const char *data, size_t bytes));

namespace {

constexpr size_t DEFAULT_SHARED = 48 << 10;  // bytes of shared memory per block that need no opt-in
constexpr unsigned MAX_THREADS = 1024;       // per block
constexpr dim3 MAX_BLOCK(1024, 1024, 64);
constexpr dim3 MAX_GRID(0x7fffffff, 65535, 65535);

// ---- the other process: requests and answers, mirrored in host.py ------------------------------------------------

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
};

constexpr uint32_t GO_LOOK = 2;  // while a kernel runs: say where the program is (anything else: print this)

struct Device {
  uint64_t base, bytes, total_memory, free_memory;  // the device's range of addresses, and what cudaMemGetInfo says
  int32_t major, minor, multiprocessors, l2_bytes;
  int32_t shared_per_block, shared_per_multiprocessor, threads_per_multiprocessor, blocks_per_multiprocessor;
};

enum Memory : uint64_t { DEVICE, MANAGED, PINNED };  // kinds of allocations; the last two are host memory as well

int channel = -1;       // the socket; -1: nobody is there
int memory_file = -1;   // the device's memory
char *alias = nullptr;  // where the device's memory, and then its marks, are mapped for the runtime's own use
Device device{};
bool undefined = false;  // device memory may hold undefined values: process.py is told of copies and fills

struct Shared {        // the first page of device memory, which process.py reads
  char last_call[64];  // the name of the CUDA call that runs, or ran last
  uint64_t calls;      // how many there were
} *shared = nullptr;
std::recursive_mutex guard;

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

// Ask, and wait for the answer.
Answer ask(Request request, const Packet &packet = {}) {
  std::lock_guard lock(guard);
  uint32_t size = 0;
  Answer answer;
  Packet whole;
  whole.add(uint32_t(request)).text(packet.data());
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

// ---- what is known here ------------------------------------------------------------------------------------------

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

struct Stream {
  unsigned flags;
  int priority;
};

struct Event {
  bool recorded;
  std::chrono::steady_clock::time_point time;
  unsigned flags;
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
Stream *given = nullptr;    // the stream that the launcher was given
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

// ---- faults ------------------------------------------------------------------------------------------------------

thread_local sigjmp_buf *volatile escape = nullptr;  // where a fault of the runtime's own copy goes

void protect_managed(bool busy, bool anew = false) {
  if (busy == managed_busy && !anew) return;
  managed_busy = busy;
  for (const auto &[address, memory] : mapped())
    if (memory.kind == MANAGED)
      mprotect(reinterpret_cast<void *>(address), page_up(memory.bytes), busy ? PROT_NONE : PROT_READ | PROT_WRITE);
}

// Where the host code is: offsets into this object, innermost first.
Packet where(void *context) {
  Packet packet;
  Dl_info object;
  dladdr(static_cast<void *>(&device), &object);
  void *frames[48];
  const int count = backtrace(frames, 48);
  std::vector<uint64_t> offsets;
  uint64_t fault = 0;
#if defined(__x86_64__)
  if (context) fault = static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  if (context) fault = static_cast<ucontext_t *>(context)->uc_mcontext.pc;
#endif
  const auto enter = [&](uint64_t at) {
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(at), &info) && info.dli_fbase == object.dli_fbase)
      offsets.push_back(at - reinterpret_cast<uint64_t>(object.dli_fbase));
  };
  if (fault) enter(fault);
  for (int i = 0; i < count; ++i)
    if (uint64_t(frames[i]) != fault) enter(uint64_t(frames[i]) - 1);  // a return address: the call is before it
  packet.add(uint32_t(offsets.size()));
  for (uint64_t offset : offsets) packet.add(offset);
  return packet;
}

uint64_t stack_pointer(void *context) {
#if defined(__x86_64__)
  return static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
  return static_cast<ucontext_t *>(context)->uc_mcontext.sp;
#else
  return 0;
#endif
}

void on_fault(int number, siginfo_t *info, void *context) {
  const uint64_t address = number == SIGSEGV || number == SIGBUS ? reinterpret_cast<uint64_t>(info->si_addr) : 0;
  if (escape && (number == SIGSEGV || number == SIGBUS)) siglongjmp(*escape, 1);  // the address may be null
  bool early = false;
  if (number == SIGSEGV && managed_busy && in_arena(address))
    for (const auto &[base, memory] : mapped())
      early |= memory.kind == MANAGED && address - base < page_up(memory.bytes);
  const Packet place = where(context);
  Packet packet;
  packet.add(int32_t(number))
      .add(address)
      .add(uint32_t(early))
      .add(stack_pointer(context))
      .bytes(place.data().data(), place.data().size());
  ask(Request::FAULT, packet);
  if (early) return protect_managed(false);  // the report is made: go on as the hardware might
  signal(number, SIG_DFL);
  if (info->si_code <= 0) raise(number);  // sent, not caused by an instruction that will run again
}

void catch_faults() {
  void *warm_up[1];
  backtrace(warm_up, 1);        // loads what a handler must not load
  static char stack[64 << 10];  // endless recursion leaves no other
  const stack_t own_stack{stack, 0, sizeof stack};
  sigaltstack(&own_stack, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(number, &action, nullptr);
}

// memcpy or memset, one side of which may be an invalid address from host code.
template <class F>
bool survives(F touch) {
  sigjmp_buf here;
  sigjmp_buf *const outer = escape;
  if (sigsetjmp(here, 1)) return escape = outer, false;
  escape = &here;
  touch();
  escape = outer;
  return true;
}

// ---- the beginning -----------------------------------------------------------------------------------------------

// Before the constructors of the source, which may call CUDA or crash. EMULATOR_CHANNEL holds two descriptors.
__attribute__((constructor(101))) void attach() {
  const char *descriptors = getenv("EMULATOR_CHANNEL");
  if (!descriptors || sscanf(descriptors, "%d,%d", &channel, &memory_file) != 2) return;
  unsetenv("EMULATOR_CHANNEL");
  for (int descriptor : {channel, memory_file}) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  device = ask(Request::HELLO).take<Device>();
  constexpr int READ_WRITE = PROT_READ | PROT_WRITE;
  void *const both = mmap(nullptr, 2 * device.bytes, READ_WRITE, MAP_SHARED | MAP_NORESERVE, memory_file, 0);
  void *const wanted = reinterpret_cast<void *>(device.base);
  constexpr int RESERVE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void *const reserved = mmap(wanted, device.bytes, PROT_NONE, RESERVE, -1, 0);
  if (both == MAP_FAILED || reserved != wanted) {
    fprintf(stderr, "the emulator cannot lay out device memory in the program's process: %s\n", strerror(errno));
    _exit(126);
  }
  alias = static_cast<char *>(both);
  shared = static_cast<Shared *>(both);
  catch_faults();
}

// Memory that host code may touch at its device address.
bool map_for_host(uint64_t address, size_t bytes, Memory kind) {
  void *const at = reinterpret_cast<void *>(address);
  const off_t offset = address - device.base;
  const int how = MAP_SHARED | MAP_FIXED;
  if (mmap(at, page_up(bytes), PROT_READ | PROT_WRITE, how, memory_file, offset) == MAP_FAILED) return false;
  Mapped &entry = mapped()[address];
  entry = {std::max(entry.bytes, bytes), kind};
  return true;
}

const std::pair<const uint64_t, Mapped> *host_memory(uint64_t address) {
  auto after = mapped().upper_bound(address);
  return after != mapped().begin() && address - (--after)->first < after->second.bytes ? &*after : nullptr;
}

// ---- launches ----------------------------------------------------------------------------------------------------

// What the other process knows of a kernel; false if it does not.
bool learn(Function &function) {
  if (!function.known && channel >= 0) {
    Answer answer = ask(Request::KERNEL, Packet().text(function.name));
    if (answer.empty()) return false;
    function.known = true;
    function.static_shared = answer.take<uint64_t>();
    function.local = answer.take<uint64_t>();
    function.launch_bounds = answer.take<uint32_t>();
    function.max_threads = function.launch_bounds ? function.launch_bounds : MAX_THREADS;
    function.param_bytes = answer.take<uint32_t>();
    function.ptx_version = answer.take<uint32_t>();
    for (uint32_t left = answer.take<uint32_t>(); left; --left) {
      const uint32_t offset = answer.take<uint32_t>(), size = answer.take<uint32_t>();
      function.params.push_back({offset, size});
    }
    for (unsigned *size : {&function.cluster.x, &function.cluster.y, &function.cluster.z})
      *size = answer.take<uint32_t>();
    function.readable = answer.rest();
  }
  return true;
}

Function *find(const void *host) {
  const auto found = functions().find(host);
  return found != functions().end() && learn(found->second) ? &found->second : nullptr;
}

cudaError_t unknown_function(const char *call) {
  return refuse(cudaErrorInvalidDeviceFunction, format("%s: its argument must be a kernel of this file", call));
}

// How many such blocks a multiprocessor holds by threads and shared memory: only ptxas knows the registers.
int occupancy(const Function &function, int threads, size_t dynamic_shared) {
  const Packet packet = Packet().add(uint32_t(threads)).add(uint64_t(function.static_shared + dynamic_shared));
  return ask(Request::OCCUPANCY, packet).take<int32_t>();
}

// What is wrong with a configuration, or nothing.
std::string too_much(const Function &function, dim3 grid, dim3 block, size_t shared) {
  const char *name = function.readable.c_str();
  const unsigned grids[] = {grid.x, grid.y, grid.z}, blocks[] = {block.x, block.y, block.z};
  const unsigned most_grid[] = {MAX_GRID.x, MAX_GRID.y, MAX_GRID.z},
                 most_block[] = {MAX_BLOCK.x, MAX_BLOCK.y, MAX_BLOCK.z};
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  for (int i = 0; i < 3; ++i) {
    if (!grids[i] || !blocks[i])
      return format("%s: the sizes of a %s must be at least 1, got (%u, %u, %u)", name, grids[i] ? "block" : "grid",
                    (grids[i] ? blocks : grids)[0], (grids[i] ? blocks : grids)[1], (grids[i] ? blocks : grids)[2]);
    if (grids[i] > most_grid[i])
      return format("%s: %u blocks along %c, at most %u", name, grids[i], "xyz"[i], most_grid[i]);
  }
  if (threads > MAX_THREADS || threads > function.max_threads) {
    const std::string bounds = function.launch_bounds ? format(" (launch bounds %u)", function.launch_bounds) : "";
    return format("%s: %llu threads per block, at most %u%s", name, (unsigned long long)threads,
                  std::min(MAX_THREADS, function.max_threads), bounds.c_str());
  }
  for (int i = 0; i < 3; ++i)
    if (blocks[i] > most_block[i])
      return format("%s: %u threads along %c, at most %u", name, blocks[i], "xyz"[i], most_block[i]);
  if (shared > function.dynamic_limit()) {
    const std::string fixed = function.static_shared ? format(" beside %zu static ones", function.static_shared) : "";
    const char *hint =
        function.max_dynamic < 0 ? " without cudaFuncAttributeMaxDynamicSharedMemorySize" : ", as it was set";
    return format("%s: %zu bytes of dynamic shared memory%s, at most %zu%s", name, shared, fixed.c_str(),
                  function.dynamic_limit(), hint);
  }
  return "";
}

constexpr unsigned PORTABLE_CLUSTER = 8, MOST_CLUSTER = 16;  // blocks, on every GPU that has clusters; on one of 9.0

unsigned most_blocks(const Function &function) { return function.large_clusters ? MOST_CLUSTER : PORTABLE_CLUSTER; }

// What is wrong with the clusters of a launch, or nothing. `asked`: by the launch; 0: not at all.
std::string wrong_cluster(const Function &function, dim3 grid, dim3 asked) {
  const char *name = function.readable.c_str();
  const dim3 &own = function.cluster, &cluster = asked.x ? asked : own;
  const unsigned sizes[] = {cluster.x, cluster.y, cluster.z}, grids[] = {grid.x, grid.y, grid.z};
  const uint64_t blocks = uint64_t(cluster.x) * cluster.y * cluster.z;
  if (!cluster.x && !cluster.y && !cluster.z) return "";
  if (!blocks)
    return format("%s: the sizes of a cluster must be at least 1, got (%u, %u, %u)", name, sizes[0], sizes[1],
                  sizes[2]);
  if (device.major < 9)
    return blocks == 1 ? ""
                       : format("%s: a cluster of %llu blocks: clusters need compute capability 9.0, this is %d.%d",
                                name, (unsigned long long)blocks, device.major, device.minor);
  if (own.x && (own.x != cluster.x || own.y != cluster.y || own.z != cluster.z))
    return format(
        "%s: the launch asks for clusters of (%u, %u, %u) blocks, the kernel's __cluster_dims__ are (%u, %u, %u)", name,
        sizes[0], sizes[1], sizes[2], own.x, own.y, own.z);
  if (blocks > most_blocks(function))
    return format("%s: a cluster of %llu blocks, at most %u%s", name, (unsigned long long)blocks, most_blocks(function),
                  function.large_clusters ? "" : "; 16 with cudaFuncAttributeNonPortableClusterSizeAllowed");
  for (int i = 0; i < 3; ++i)
    if (grids[i] % sizes[i])
      return format("%s: %u blocks along %c, which must be a multiple of the cluster's %u", name, grids[i], "xyz"[i],
                    sizes[i]);
  return "";
}

void note(const char *kind, const std::string &message) {
  const Packet place = where(nullptr);
  ask(Request::NOTE, Packet().text(kind).text(message).bytes(place.data().data(), place.data().size()));
}

// The order of a stream is that of the calls, for each is done when it returns. What is checked is the handle.
cudaError_t check(cudaStream_t stream, const std::string &what) {
  in_flight = nullptr;
  const bool standard = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  if (!standard && !streams().count(reinterpret_cast<Stream *>(stream)))
    return refuse(cudaErrorInvalidResourceHandle, what + ": the stream does not exist (or no longer)");
  if (standard && given)
    note("wrong stream", what + " goes to the default stream, not to the one that the launcher was given");
  return cudaSuccess;
}

// Work queued in a stream: done at once, or kept in a graph (graphs.h) while the stream is captured.
using Work = std::function<cudaError_t()>;
bool capture(cudaStream_t stream, const Work &work, cudaGraphNodeType type);
cudaError_t unsafe_in_capture(const char *call);
// Names the call, which must not be made while a stream is captured.
#define UNSAFE_CALL(NAME) \
  CALL(NAME);             \
  if (const cudaError_t unsafe = unsafe_in_capture(#NAME)) return unsafe

template <class F>
cudaError_t in_stream(cudaStream_t stream, const char *call, F work, cudaGraphNodeType type = cudaGraphNodeTypeMemcpy) {
  if (const cudaError_t error = check(stream, call)) return error;
  return capture(stream, work, type) ? cudaSuccess : work();
}

cudaError_t run(const Function *function, const std::string &request, cudaStream_t here) {
  std::lock_guard lock(guard);
  if (sticky) return last_error;
  Answer answer = ask(Request::LAUNCH, Packet().bytes(request.data(), request.size()));
  while (const uint32_t wish = answer.take<uint32_t>()) {  // it runs on
    if (wish == GO_LOOK) {
      answer = ask(Request::DONE, where(nullptr));
      continue;
    }
    const std::string printed = answer.rest();
    fwrite(printed.data(), 1, printed.size(), stdout);
    fflush(stdout);
    answer = ask(Request::DONE);
  }
  const auto error = cudaError_t(answer.take<int32_t>());
  const bool fatal = answer.take<uint32_t>();
  undefined = answer.take<uint32_t>();
  protect_managed(true);
  in_flight = here;
  record(error);
  sticky |= fatal;
  return error;
}

// A launch, ready to run, with its arguments as they are now. `cooperative`, `early`: see below.
cudaError_t prepare(Function *function, dim3 grid, dim3 block, dim3 cluster, size_t shared, void **arguments,
                    bool cooperative, Work *out, cudaStream_t here = nullptr, bool early = false) {
  if (sticky) return last_error;
  if (channel < 0) return record(cudaErrorNoDevice);
  if (!function) return unknown_function("the launch");
  // CUDA 13.0 on an H200, 2026-11-21: whatever is wrong with a configuration is cudaErrorInvalidValue, also where the
  // manual has cudaErrorInvalidConfiguration.
  const std::string wrong = too_much(*function, grid, block, shared);
  if (!wrong.empty()) return refuse(cudaErrorInvalidValue, wrong);
  const std::string misfit = wrong_cluster(*function, grid, cluster);
  if (!misfit.empty()) return refuse(cudaErrorInvalidClusterSize, misfit);
  if (!cluster.x) cluster = function->cluster;
  if (cooperative) {
    const uint64_t fit = uint64_t(occupancy(*function, block.x * block.y * block.z, shared)) * device.multiprocessors;
    const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
    if (blocks > fit)
      return refuse(cudaErrorCooperativeLaunchTooLarge,
                    format("%s: %llu blocks in a cooperative launch, of which %llu fit on the device at once",
                           function->readable.c_str(), (unsigned long long)blocks, (unsigned long long)fit));
  }
  std::string params(function->param_bytes, '\0');
  for (size_t i = 0; i < function->params.size(); ++i)
    memcpy(&params[function->params[i].first], arguments[i], function->params[i].second);
  Packet packet;
  for (const dim3 &size : {grid, block, cluster}) packet.add(size.x).add(size.y).add(size.z);
  packet.add(uint32_t(cooperative)).add(uint32_t(early)).add(uint64_t(shared)).text(function->name).text(params);
  *out = [function, request = packet.data(), here] { return run(function, request, here); };
  return cudaSuccess;
}

cudaError_t launch(Function *function, dim3 grid, dim3 block, dim3 cluster, size_t shared, cudaStream_t stream,
                   void **arguments, bool cooperative = false, bool may_begin_early = false) {
  std::lock_guard lock(guard);
  const cudaStream_t here = stream ? stream : cudaStreamLegacy;
  Work work;
  const bool early = may_begin_early && in_flight == here;
  if (const cudaError_t error =
          prepare(function, grid, block, cluster, shared, arguments, cooperative, &work, here, early))
    return error;
  if (const cudaError_t error = check(stream, "the launch of " + function->readable)) return error;
  return capture(stream, work, cudaGraphNodeTypeKernel) ? cudaSuccess : work();
}

cudaError_t synchronised() {
  in_flight = nullptr;
  protect_managed(false);
  return sticky ? last_error : cudaSuccess;  // what was refused is no work that could have failed
}

// ---- the driver: tensor maps, and how the runtime finds it ---------------------------------------------------------

// An error of the driver: it does not change the runtime's last error.
CUresult driver_refuses(CUresult error, const std::string &why) {
  explain(error, why);
  return error;
}

// What is wrong with a tensor map, or nothing: the rules of the driver's manual, as driver 580 applies them on an H200
// (2026-11-22; it accepts a null address, and any swizzle of an interleaved layout). The names are its parameters'.
std::string wrong_tensor_map(
    const void *map, unsigned type, unsigned rank, const void *address, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, unsigned interleave, unsigned swizzle,
    unsigned promotion, unsigned fill) {
  const char *const types[] = {"UINT8",   "UINT16",  "UINT32",   "INT32",       "UINT64",   "INT64",       "FLOAT16",
                               "FLOAT32", "FLOAT64", "BFLOAT16", "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ"};
  const auto aligned = [](const void *at, unsigned to) { return reinterpret_cast<uintptr_t>(at) % to == 0; };
  if (!map || !aligned(map, 64)) return format("tensorMap must be an address that is a multiple of 64, got %p", map);
  if (type >= TENSOR_MAP_TYPES)
    return format("tensorDataType must be one that compute capability 9.0 has (0 to 12), got %u", type);
  if (interleave > CU_TENSOR_MAP_INTERLEAVE_32B) return format("interleave must be 0 to 2, got %u", interleave);
  if (swizzle > CU_TENSOR_MAP_SWIZZLE_128B)
    return format("swizzle must be one that compute capability 9.0 has (0 to 3), got %u", swizzle);
  if (promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) return format("l2Promotion must be 0 to 3, got %u", promotion);
  if (fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA) return format("oobFill must be 0 or 1, got %u", fill);
  const unsigned least = interleave ? 3 : 1;
  if (rank < least || rank > TensorMap::MOST_DIMENSIONS)
    return format("tensorRank must be %u to 5%s, got %u", least, interleave ? " with an interleaved layout" : "", rank);
  const unsigned unit = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16, bytes = TENSOR_MAP_BYTES[type];
  if (!aligned(address, unit)) return format("globalAddress must be a multiple of %u bytes, got %p", unit, address);
  if (!sizes || !box || !steps || (rank > 1 && !strides))
    return "globalDim, globalStrides, boxDim and elementStrides must not be null";
  for (unsigned n = 0; n < rank; ++n) {
    if (!sizes[n] || sizes[n] > 1ull << 32)
      return format("globalDim[%u] must be 1 to 2^32 elements, got %llu", n, (unsigned long long)sizes[n]);
    if (!box[n] || box[n] > 256) return format("boxDim[%u] must be 1 to 256 elements, got %u", n, box[n]);
    if (!steps[n] || steps[n] > 8) return format("elementStrides[%u] must be 1 to 8, got %u", n, steps[n]);
    if (n && (strides[n - 1] % unit || strides[n - 1] >= 1ull << 40))
      return format("globalStrides[%u], from one element of dimension %u to the next, must be a multiple of %u bytes "
                    "below 2^40, got %llu",
                    n - 1, n, unit, (unsigned long long)strides[n - 1]);
  }
  const unsigned inner = box[0] * bytes, span = swizzle ? 16u << swizzle : 0;
  if (!interleave && inner % 16)
    return format("boxDim[0] must be a multiple of 16 bytes, got %u elements of %u bytes", box[0], bytes);
  if (!interleave && span && inner > span)
    return format("boxDim[0] must be at most the %u bytes of the swizzle, got %u elements of %u bytes", span, box[0],
                  bytes);
  uint64_t room = bytes;  // that of one step may be 128 KiB, and not 512 KiB: the limit is taken to be a block's
  for (unsigned n = 0; n < rank; ++n) room *= box[n];
  if (channel >= 0 && room > unsigned(device.shared_per_block))
    return format("boxDim must fit into the %d bytes of shared memory that a block may have, got %llu bytes",
                  device.shared_per_block, (unsigned long long)room);
  if (fill && type < CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
    return format("oobFill must be 0 for integers, got 1 for CU_TENSOR_MAP_DATA_TYPE_%s", types[type]);
  return "";
}

CUresult CUDAAPI encode_tiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  CALL(cuTensorMapEncodeTiled);
  if (channel >= 0 && device.major < 9)
    return driver_refuses(CUDA_ERROR_NOT_SUPPORTED,
                          format("cuTensorMapEncodeTiled: tensor maps need compute capability 9.0, this is %d.%d",
                                 device.major, device.minor));
  const std::string wrong =
      wrong_tensor_map(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill);
  if (!wrong.empty()) return driver_refuses(CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: " + wrong);
  TensorMap made{};
  made.magic = TensorMap::MAGIC;
  made.last = uint8_t(rank - 1), made.type = type, made.interleave = interleave, made.swizzle = swizzle;
  made.promotion = promotion, made.fill = fill;
  made.base = reinterpret_cast<uint64_t>(address);
  for (unsigned n = 0; n < rank; ++n) {
    made.size[n] = uint32_t(sizes[n]), made.box[n] = box[n];
    made.step[n] = n || interleave ? steps[n] : 1;
    made.stride[n] = n ? strides[n - 1] : 0;
  }
  memset(static_cast<void *>(map), 0, sizeof *map);
  memcpy(static_cast<void *>(map), &made, sizeof made);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI replace_address(CUtensorMap *map, void *address) {
  CALL(cuTensorMapReplaceAddress);
  TensorMap made{};
  if (map) memcpy(&made, map, sizeof made);
  const unsigned unit = made.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  if (made.magic != TensorMap::MAGIC)
    return driver_refuses(CUDA_ERROR_INVALID_VALUE, "cuTensorMapReplaceAddress: tensorMap must be one that is encoded");
  if (!address || reinterpret_cast<uintptr_t>(address) % unit)
    return driver_refuses(
        CUDA_ERROR_INVALID_VALUE,
        format("cuTensorMapReplaceAddress: globalAddress must be a multiple of %u bytes, got %p", unit, address));
  made.base = reinterpret_cast<uint64_t>(address);
  memcpy(static_cast<void *>(map), &made, sizeof made);
  return CUDA_SUCCESS;
}

// The driver's functions here, by name, and the version of CUDA that introduced them.
void *driver_function(const char *name, unsigned *since);

cudaError_t entry_point(const char *call, const char *name, void **function, unsigned version, unsigned long long flags,
                        enum cudaDriverEntryPointQueryResult *status) {
  if (!name || !*name || !function)
    return refuse(cudaErrorInvalidValue, format("%s: its arguments must not be null", call));
  if (flags > cudaEnablePerThreadDefaultStream)
    return refuse(cudaErrorInvalidValue, format("%s: flags must be 0 to 2, got %llu", call, flags));
  unsigned since = 0;
  *function = driver_function(name, &since);
  const bool early = *function && version < since;
  if (early) *function = nullptr;
  if (!*function && !early)
    driver_refuses(
        CUDA_ERROR_NOT_FOUND,
        format("%s: the emulator has no driver function '%s': leave it out (#ifndef __EMULATOR__)", call, name));
  if (status)
    *status = early       ? cudaDriverEntryPointVersionNotSufficent
              : *function ? cudaDriverEntryPointSuccess
                          : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// ---- memory ------------------------------------------------------------------------------------------------------

cudaError_t allocate(void **address, size_t bytes, Memory kind) {
  if (sticky) return last_error;
  if (channel < 0) return record(cudaErrorNoDevice);
  if (!address) return refuse(cudaErrorInvalidValue, "the address of the pointer must not be null");
  *address = nullptr;
  if (!bytes) return cudaSuccess;
  const Packet place = where(nullptr);
  Packet packet;
  packet.add(uint64_t(bytes)).add(uint64_t(kind)).bytes(place.data().data(), place.data().size());
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
  Answer answer = ask(Request::RELEASE, Packet().add(at));
  const auto error = cudaError_t(answer.take<int32_t>());
  if (error) explain(error, answer.rest());
  std::lock_guard lock(guard);
  if (!error) blocks().erase(at);
  if (!error && found != mapped().end()) {
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    mmap(address, page_up(found->second.bytes), PROT_NONE, how, -1, 0);
    mapped().erase(found);
  }
  return sticky ? last_error : record(error);
}

cudaError_t wild(const char *call, const void *address, size_t bytes) {
  note("wild host pointer", format("%s: %zu bytes at %p, which is not memory of the program", call, bytes, address));
  return record(cudaErrorInvalidValue);
}

// Bytes of device memory with their marks.
struct Range {
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
  void fill_marks() const {
    if (all_written()) return;
    if (bytes == size)
      marks()[-1] = 1;
    else
      memset(marks() + offset, 1, bytes);
  }
  void copy_marks(const Range &from) const {
    if (from.all_written()) return fill_marks();
    if (all_written()) memset(marks(), 1, size);
    marks()[-1] = 0;
    memmove(marks() + offset, from.marks() + from.offset, bytes);
  }
};

// The range of one allocation that a call means; its size is 0, and the call refused, if there is none.
Range range(const char *call, const void *at, size_t bytes) {
  std::lock_guard lock(guard);
  const uint64_t address = reinterpret_cast<uint64_t>(at);
  auto found = blocks().upper_bound(address);
  if (found == blocks().begin() || address - std::prev(found)->first >= std::prev(found)->second) {
    Answer answer = ask(Request::FIND, Packet().add(address));  // a variable, or an array of Python's
    const uint64_t base = answer.take<uint64_t>(), size = answer.take<uint64_t>();
    if (size) found = std::next(blocks().insert_or_assign(base, size).first);
  }
  Range made;
  if (found != blocks().begin() && address - std::prev(found)->first < std::prev(found)->second)
    made = {std::prev(found)->first, std::prev(found)->second, address - std::prev(found)->first, bytes};
  if (bytes > made.size - made.offset) {
    explain(cudaErrorInvalidValue, ask(Request::OUTSIDE, Packet().text(call).add(address).add(uint64_t(bytes))).rest());
    made.size = 0;
  }
  return made;
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
      return !wanted && kind != cudaMemcpyHostToHost;  // CUDA recognises device memory by its address: hardware.json
    };
    if (!look("target", device_to, wants_to, to) || !look("source", device_from, wants_from, from))
      return refuse(cudaErrorInvalidValue, misdirected);
  }
  if (!misdirected.empty()) ask(Request::REMARK, Packet().text("wrong direction").text(misdirected));
  Range there, here;
  if (device_to && !(there = range(call, to, bytes)).size) return record(cudaErrorInvalidValue);
  if (device_from && !(here = range(call, from, bytes)).size) return record(cudaErrorInvalidValue);
  if (device_from && !device_to && !here.written())
    ask(Request::UNWRITTEN, Packet().text(call).add(source).add(uint64_t(bytes)));
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
  const Range there = range(call, address, bytes);
  if (!there.size) return record(cudaErrorInvalidValue);
  memset(own(reinterpret_cast<uint64_t>(address)), value, bytes);
  there.fill_marks();
  if (undefined)
    ask(Request::MOVED, Packet().add(reinterpret_cast<uint64_t>(address)).add(uint64_t(0)).add(uint64_t(bytes)));
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

#include "arrays.h"
#include "graphs.h"

namespace {

// ---- error texts -------------------------------------------------------------------------------------------------

struct ErrorText {
  cudaError_t code;
  const char *name, *text;
};

#define ERROR(code, text) {code, #code, text}
const ErrorText ERRORS[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    ERROR(cudaErrorInvalidFilterSetting, "linear filtering not supported for non-float type"),
    ERROR(cudaErrorInvalidNormSetting, "read as normalized float not supported for 32-bit non float type"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorAssert, "device-side assert triggered"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    ERROR(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    ERROR(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    ERROR(cudaErrorInvalidClusterSize, "a kernel launch error has occurred due to cluster misconfiguration"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorInvalidChannelDescriptor, "invalid channel descriptor"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(cudaErrorGraphExecUpdateFailure,
          "the graph update was not performed because it included changes which violated constraints specific to "
          "instantiated graph update"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorUnknown, "unknown error"),
};
#undef ERROR

const ErrorText *find_text(cudaError_t code) {
  for (const ErrorText &error : ERRORS)
    if (error.code == code) return &error;
  return nullptr;
}

// Ask for the launcher's arguments, call it, tell what it returned; again while that is answered with more arguments.
void call_launcher() {
  unsigned count = 0;
  const emulator_call::Type *types = emulator_types(&count);
  Packet packet;
  packet.add(uint32_t(count));
  for (unsigned i = 0; i < count; ++i) {
    const emulator_call::Type &type = types[i];
    packet.add(type.kind).add(type.pointee).add(type.constant).add(uint32_t(type.size)).add(uint32_t(type.pointee_size));
    packet.text(type.name);
  }
  Answer answer = ask(Request::SIGNATURE, packet);
  given = new Stream{0, 0};
  streams().insert(given);
  std::vector<std::vector<std::max_align_t>> values(count);
  std::vector<void *> addresses(count);
  do {
    bool takes_stream = false;
    for (unsigned i = 0; i < count; ++i) {
      values[i].resize(types[i].size / sizeof(std::max_align_t) + 1);
      addresses[i] = values[i].data();
      for (unsigned at = 0; at < types[i].size; ++at) static_cast<char *>(addresses[i])[at] = answer.take<char>();
      if (types[i].kind != 'S') continue;
      takes_stream = true;
      memcpy(addresses[i], &given, sizeof given);
    }
    if (!takes_stream) given = nullptr;
    const int status = emulator_call_launcher(addresses.data());
    Packet result;
    result.add(int32_t(status)).text(cudaGetErrorString(cudaError_t(status))).text("");
    answer = ask(Request::RESULT, result);
  } while (!answer.data.empty());
}

// The same for a function of a PyTorch extension, whose result is more than a status.
void call_extension(const char *name) {
  const char *parameters = emulator_extension_parameters(name);
  const Answer answer =
      ask(Request::EXTENSION, Packet().add(uint32_t(parameters != nullptr)).text(parameters ? parameters : ""));
  emulator_extension_call(name, answer.data.data(), [](int status, const char *data, size_t bytes) {
    const std::string said(data, bytes);
    ask(Request::RESULT, Packet().add(int32_t(status)).text(status ? said : "").text(status ? "" : said));
  });
}

}  // namespace

extern "C" {

// What the process that runs the host code calls (runner.cpp): the launcher if there is one to call, or main.
__attribute__((visibility("default"))) int emulator_start(int argc, char **argv, void *main_of_program) {
  if (emulator_call_launcher) return call_launcher(), 0;
  if (emulator_extension_call) return call_extension(argv[0]), 0;
  return reinterpret_cast<int (*)(int, char **, char **)>(main_of_program)(argc, argv, environ);
}

// --- what nvcc's registration and launch code calls ----------------------------------------------------------------

// A file's handle is its number: of several files, each may have a kernel of some name (link.py).
void **__cudaRegisterFatBinary(void *) {
  static uintptr_t files = 0;
  return reinterpret_cast<void **>(files++);
}

// Of relocatable device code all files are one (build.py).
void **emulator_linked() { return nullptr; }

static std::string name_in(void **file, const char *name) {
  return file ? name + ("$file" + std::to_string(reinterpret_cast<uintptr_t>(file))) : name;
}

void __cudaRegisterFatBinaryEnd(void **) {}

void __cudaUnregisterFatBinary(void **) {}

char __cudaInitModule(void **) { return 1; }

void __cudaRegisterFunction(void **file, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *) {
  functions()[host].name = name_in(file, name);
}

void __cudaRegisterVar(void **file, char *host, char *, const char *name, int, size_t size, int, int) {
  variables()[host] = {name_in(file, name), size};
}

void __cudaRegisterManagedVar(void **file, void **host, char *shadow, const char *name, int, size_t size, int, int) {
  variables()[shadow] = {name_in(file, name), size};
  if (channel < 0) return;
  const uint64_t at = ask(Request::SYMBOL, Packet().text(name_in(file, name))).take<uint64_t>();
  const uint64_t page = at / 4096 * 4096;
  if (at && map_for_host(page, page_up(at + size - page), MANAGED)) *host = reinterpret_cast<void *>(at);
  variables()[host] = {name_in(file, name), size};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (configurations.empty()) return record(cudaErrorMissingConfiguration);
  const Configuration configuration = configurations.back();
  configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t *>(stream) = configuration.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  Function *function = find(host);
  *kernel = reinterpret_cast<cudaKernel_t>(function);
  return function ? cudaSuccess : record(cudaErrorInvalidDeviceFunction);
}

cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  CALL(a kernel launch);
  return launch(reinterpret_cast<Function *>(kernel), grid, block, dim3(0, 0, 0), shared, stream, arguments);
}

cudaError_t cudaLaunchKernel(
    const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  CALL(cudaLaunchKernel);
  return launch(find(host), grid, block, dim3(0, 0, 0), shared, stream, arguments);
}

cudaError_t cudaLaunchCooperativeKernel(
    const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  CALL(cudaLaunchCooperativeKernel);
  return launch(find(host), grid, block, dim3(0, 0, 0), shared, stream, arguments, true);
}

// The cluster that a launch asks for; 0: none.
static dim3 cluster_of(const cudaLaunchConfig_t &config) {
  dim3 cluster(0, 0, 0);
  for (unsigned i = 0; i < config.numAttrs; ++i)
    if (const cudaLaunchAttribute &each = config.attrs[i]; each.id == cudaLaunchAttributeClusterDimension)
      cluster = dim3(each.val.clusterDim.x, each.val.clusterDim.y, each.val.clusterDim.z);
  return cluster;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **arguments) {
  CALL(cudaLaunchKernelEx);
  const dim3 cluster = cluster_of(*config);
  bool cooperative = false, may_begin_early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute &attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative) cooperative = attribute.val.cooperative;
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)  // a permission: older GPUs do not use it
      may_begin_early = attribute.val.programmaticStreamSerializationAllowed && device.major >= 9;
  }
  return launch(find(host), config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes, config->stream,
                arguments, cooperative, may_begin_early);
}

// With --default-stream per-thread the headers rename the calls: here both streams are in order anyway.
cudaError_t __cudaLaunchKernel_ptsz(
    cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernel_ptsz(
    const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(host, grid, block, arguments, shared, stream);
}

// --- errors -------------------------------------------------------------------------------------------------------

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  if (!sticky) last_error = cudaSuccess;
  return error;
}

const char *cudaGetErrorName(cudaError_t code) {
  const ErrorText *error = find_text(code);
  return error ? error->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code) {
  const ErrorText *error = find_text(code);
  return error ? error->text : "unrecognized error code";
}

// --- kernels ------------------------------------------------------------------------------------------------------

static cudaError_t set_attribute(Function *function, enum cudaFuncAttribute attribute, int value) {
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || function->static_shared + value > size_t(device.shared_per_block))
        return refuse(cudaErrorInvalidValue,
                      format("%s: %d bytes of dynamic shared memory, at most %zu (%d per block less %zu static ones)",
                             function->readable.c_str(), value, device.shared_per_block - function->static_shared,
                             device.shared_per_block, function->static_shared));
      function->max_dynamic = value;
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return value < -1 || value > 100 ? record(cudaErrorInvalidValue) : cudaSuccess;
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      function->large_clusters = value;
      return cudaSuccess;
    default:
      return record(cudaErrorInvalidValue);
  }
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
  CALL(cudaFuncSetAttribute);
  Function *function = find(host);
  return function ? set_attribute(function, attribute, value) : unknown_function("cudaFuncSetAttribute");
}

cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache) {
  return find(host) ? cudaSuccess : unknown_function("cudaFuncSetCacheConfig");
}

cudaError_t cudaFuncSetSharedMemConfig(const void *host, enum cudaSharedMemConfig) {
  return find(host) ? cudaSuccess : unknown_function("cudaFuncSetSharedMemConfig");
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
  CALL(cudaFuncGetAttributes);
  const Function *function = find(host);
  if (!function) return unknown_function("cudaFuncGetAttributes");
  *attributes = {};
  attributes->sharedSizeBytes = function->static_shared;
  attributes->localSizeBytes = function->local;
  attributes->maxThreadsPerBlock = function->max_threads;
  attributes->numRegs = 0;  // ptxas's business
  attributes->ptxVersion = function->ptx_version;
  // nvcc's machine code, for all GPUs of that generation; newer ones compile the PTX.
  const bool native = function->ptx_version / 10 == device.major;
  attributes->binaryVersion = native ? function->ptx_version : device.major * 10 + device.minor;
  attributes->maxDynamicSharedSizeBytes = function->dynamic_limit();
  attributes->preferredShmemCarveout = -1;
  attributes->clusterDimMustBeSet = function->cluster.x > 0;
  attributes->requiredClusterWidth = function->cluster.x;
  attributes->requiredClusterHeight = function->cluster.y;
  attributes->requiredClusterDepth = function->cluster.z;
  attributes->nonPortableClusterSizeAllowed = function->large_clusters;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *host, int threads, size_t dynamic_shared, unsigned) {
  const Function *function = find(host);
  if (!function) return unknown_function("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  if (threads < 1) return record(cudaErrorInvalidValue);
  const bool impossible = threads > int(function->max_threads) || dynamic_shared > function->dynamic_limit();
  *blocks = impossible ? 0 : occupancy(*function, threads, dynamic_shared);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, const void *host, int threads, size_t dynamic_shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, dynamic_shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *host, int blocks, int threads) {
  const Function *function = find(host);
  if (!function) return unknown_function("cudaOccupancyAvailableDynamicSMemPerBlock");
  if (blocks < 1 || threads < 1) return record(cudaErrorInvalidValue);
  const size_t each = ask(Request::SHARED_ROOM, Packet().add(uint32_t(blocks))).take<uint64_t>();
  *bytes = each > function->static_shared ? each - function->static_shared : 0;
  return cudaSuccess;
}

// Which blocks of the GPU can form a cluster is not known here: as if any could.
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *host, const cudaLaunchConfig_t *config) {
  const Function *function = find(host);
  if (!function) return unknown_function("cudaOccupancyMaxActiveClusters");
  const dim3 asked = cluster_of(*config), cluster = asked.x ? asked : function->cluster.x ? function->cluster : dim3(1);
  const dim3 grid(config->gridDim.x ? config->gridDim.x : cluster.x, config->gridDim.y, config->gridDim.z);
  const std::string misfit = wrong_cluster(*function, grid, cluster);
  if (!misfit.empty()) return refuse(cudaErrorInvalidClusterSize, misfit);
  const int threads = int(config->blockDim.x * config->blockDim.y * config->blockDim.z);
  int blocks = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, host, threads, config->dynamicSmemBytes);
  if (!error) *clusters = blocks * device.multiprocessors / int(cluster.x * cluster.y * cluster.z);
  return error;
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *host, const cudaLaunchConfig_t *config) {
  const Function *function = find(host);
  if (!function) return unknown_function("cudaOccupancyMaxPotentialClusterSize");
  if (device.major < 9) return refuse(cudaErrorNotSupported, "clusters need compute capability 9.0");
  const dim3 asked = cluster_of(*config), &own = function->cluster;
  if (asked.x && own.x && (asked.x != own.x || asked.y != own.y || asked.z != own.z))
    return refuse(cudaErrorInvalidClusterSize, wrong_cluster(*function, config->gridDim, asked));
  const int threads = int(config->blockDim.x * config->blockDim.y * config->blockDim.z);
  int blocks = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, host, threads, config->dynamicSmemBytes);
  if (!error) *size = blocks ? int(most_blocks(*function)) : 0;
  return error;
}

// --- the device -----------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int *count) {
  *count = channel >= 0;
  return channel >= 0 ? cudaSuccess : record(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *ordinal) { return *ordinal = 0, cudaSuccess; }

cudaError_t cudaSetDevice(int ordinal) { return ordinal ? record(cudaErrorInvalidDevice) : cudaSuccess; }

cudaError_t cudaInitDevice(int ordinal, unsigned, unsigned) { return cudaSetDevice(ordinal); }

cudaError_t cudaSetValidDevices(int *, int) { return cudaSuccess; }

cudaError_t cudaChooseDevice(int *ordinal, const struct cudaDeviceProp *) { return *ordinal = 0, cudaSuccess; }

cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }

cudaError_t cudaGetDeviceFlags(unsigned *flags) { return *flags = cudaDeviceMapHost, cudaSuccess; }

cudaError_t cudaDeviceSynchronize() {
  CALL(cudaDeviceSynchronize);
  if (!captures().empty()) return forbidden_in_capture("cudaDeviceSynchronize");
  return synchronised();
}

cudaError_t cudaDeviceReset() {
  CALL(cudaDeviceReset);
  sticky = false;
  last_error = cudaSuccess;
  return synchronised();
}

// Values that are set are returned again, and change nothing: the engine's stack and heap have fixed sizes.
static size_t limits[] = {1024, 1 << 20, 8 << 20};  // of a thread's stack, of printf, of malloc
static size_t *limit_of(enum cudaLimit limit) {
  switch (limit) {
    case cudaLimitStackSize:
      return &limits[0];
    case cudaLimitPrintfFifoSize:
      return &limits[1];
    case cudaLimitMallocHeapSize:
      return &limits[2];
    default:
      return nullptr;
  }
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
  if (size_t *known = limit_of(limit)) *known = value;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
  const size_t *known = limit_of(limit);
  *value = known ? *known : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache *config) {
  return *config = cudaFuncCachePreferNone, cudaSuccess;
}
cudaError_t cudaDeviceSetSharedMemConfig(enum cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaDeviceGetSharedMemConfig(enum cudaSharedMemConfig *config) {
  return *config = cudaSharedMemBankSizeFourByte, cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int) {
  return snprintf(text, bytes, "0000:00:00.0"), cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return record(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceDisablePeerAccess(int) { return record(cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// Texels along each axis, and layers: an H200's.
static const std::pair<cudaDeviceAttr, int> TEXTURE_LIMITS[] = {
    {cudaDevAttrMaxTexture1DWidth, 131072},        {cudaDevAttrMaxTexture2DWidth, 131072},
    {cudaDevAttrMaxTexture2DHeight, 65536},        {cudaDevAttrMaxTexture3DWidth, 16384},
    {cudaDevAttrMaxTexture3DHeight, 16384},        {cudaDevAttrMaxTexture3DDepth, 16384},
    {cudaDevAttrMaxTexture3DWidthAlt, 8192},       {cudaDevAttrMaxTexture3DHeightAlt, 8192},
    {cudaDevAttrMaxTexture3DDepthAlt, 32768},      {cudaDevAttrMaxTexture1DLayeredWidth, 32768},
    {cudaDevAttrMaxTexture1DLayeredLayers, 2048},  {cudaDevAttrMaxTexture2DLayeredWidth, 32768},
    {cudaDevAttrMaxTexture2DLayeredHeight, 32768}, {cudaDevAttrMaxTexture2DLayeredLayers, 2048},
    {cudaDevAttrMaxTexture2DGatherWidth, 32768},   {cudaDevAttrMaxTexture2DGatherHeight, 32768},
    {cudaDevAttrMaxTexture1DLinearWidth, 1 << 28}, {cudaDevAttrMaxTexture2DLinearWidth, 131072},
    {cudaDevAttrMaxTexture2DLinearHeight, 65000},  {cudaDevAttrMaxTexture2DLinearPitch, 2097120},
    {cudaDevAttrMaxSurface1DWidth, 32768},         {cudaDevAttrMaxSurface2DWidth, 131072},
    {cudaDevAttrMaxSurface2DHeight, 65536},        {cudaDevAttrMaxSurface3DWidth, 16384},
    {cudaDevAttrMaxSurface3DHeight, 16384},        {cudaDevAttrMaxSurface3DDepth, 16384},
    {cudaDevAttrMaxSurface1DLayeredWidth, 32768},  {cudaDevAttrMaxSurface1DLayeredLayers, 2048},
    {cudaDevAttrMaxSurface2DLayeredWidth, 32768},  {cudaDevAttrMaxSurface2DLayeredHeight, 32768},
    {cudaDevAttrMaxSurface2DLayeredLayers, 2048},
};

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = MAX_THREADS;
      break;
    case cudaDevAttrMaxBlockDimX:
      *value = MAX_BLOCK.x;
      break;
    case cudaDevAttrMaxBlockDimY:
      *value = MAX_BLOCK.y;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = MAX_BLOCK.z;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = MAX_GRID.x;
      break;
    case cudaDevAttrMaxGridDimY:
      *value = MAX_GRID.y;
      break;
    case cudaDevAttrMaxGridDimZ:
      *value = MAX_GRID.z;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = DEFAULT_SHARED;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = device.shared_per_block;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = device.shared_per_multiprocessor;
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = device.threads_per_multiprocessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = device.blocks_per_multiprocessor;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = 65536;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = device.multiprocessors;
      break;
    case cudaDevAttrL2CacheSize:
      *value = device.l2_bytes;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.minor;
      break;
    case cudaDevAttrTotalConstantMemory:
      *value = 64 << 10;
      break;
    case cudaDevAttrMaxPitch:
      *value = 0x7fffffff;
      break;
    case cudaDevAttrTextureAlignment:
      *value = 512;
      break;
    case cudaDevAttrTexturePitchAlignment:
      *value = 32;
      break;
    case cudaDevAttrSurfaceAlignment:
      *value = 512;
      break;
    case cudaDevAttrClockRate:
      *value = 1000000;
      break;  // kHz: of no GPU, but a rate to divide by
    case cudaDevAttrMemoryClockRate:
      *value = 1000000;
      break;  // likewise
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 512;
      break;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
      *value = 2;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = 1;
      break;
    case cudaDevAttrComputeMode:
      *value = cudaComputeModeDefault;
      break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrGpuOverlap:
      *value = 1;
      break;
    case cudaDevAttrClusterLaunch:
      *value = device.major >= 9;
      break;
    default:
      if (attribute < 1 || attribute >= cudaDevAttrMax) return record(cudaErrorInvalidValue);
      for (const auto &[which, most] : TEXTURE_LIMITS)
        if (attribute == which) return *value = most, cudaSuccess;
      *value = 0;  // what the emulated device does not have: mipmaps, peers, ...
  }
  return cudaSuccess;
}

#if CUDART_VERSION < 13000
#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *, int);
#endif
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal) {
  CALL(cudaGetDeviceProperties);
  if (ordinal) return record(cudaErrorInvalidDevice);
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulator of compute capability %d.%d", device.major,
           device.minor);
  properties->major = device.major;
  properties->minor = device.minor;
  properties->warpSize = 32;
  properties->multiProcessorCount = device.multiprocessors;
  properties->l2CacheSize = device.l2_bytes;
  properties->totalGlobalMem = device.total_memory;
  properties->totalConstMem = 64 << 10;
  properties->memPitch = 0x7fffffff;
  properties->textureAlignment = 512;
  properties->texturePitchAlignment = 32;
  properties->memoryBusWidth = 512;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = DEFAULT_SHARED;
  properties->sharedMemPerBlockOptin = device.shared_per_block;
  properties->sharedMemPerMultiprocessor = device.shared_per_multiprocessor;
  properties->reservedSharedMemPerBlock = 1024;
  properties->maxThreadsPerBlock = MAX_THREADS;
  properties->maxThreadsPerMultiProcessor = device.threads_per_multiprocessor;
  properties->maxBlocksPerMultiProcessor = device.blocks_per_multiprocessor;
  properties->managedMemory = properties->concurrentManagedAccess = properties->unifiedAddressing = 1;
  properties->canMapHostMemory = properties->concurrentKernels = properties->cooperativeLaunch = 1;
  properties->clusterLaunch = device.major >= 9;
  properties->streamPrioritiesSupported = properties->asyncEngineCount = properties->computePreemptionSupported = 1;
  properties->globalL1CacheSupported = properties->localL1CacheSupported = properties->memoryPoolsSupported = 1;
#if CUDART_VERSION < 13000
  properties->clockRate = properties->memoryClockRate = 1000000;  // kHz: of no GPU, but a rate to divide by
#endif
  const dim3 limits[] = {MAX_BLOCK, MAX_GRID};
  int *const sizes[] = {properties->maxThreadsDim, properties->maxGridSize};
  for (int i = 0; i < 2; ++i) {
    sizes[i][0] = limits[i].x;
    sizes[i][1] = limits[i].y;
    sizes[i][2] = limits[i].z;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *properties, int ordinal) {  // CUDA 12's name for it
  return cudaGetDeviceProperties(properties, ordinal);
}

// --- memory pools ---------------------------------------------------------------------------------------------------

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int ordinal) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  return *pool = reinterpret_cast<cudaMemPool_t>(&default_pool), cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int ordinal) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  return *pool = reinterpret_cast<cudaMemPool_t>(pool_of_device), cudaSuccess;
}
cudaError_t cudaDeviceSetMemPool(int ordinal, cudaMemPool_t pool) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  return pool_of_device = reinterpret_cast<MemoryPool *>(pool), cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *) {
  CALL(cudaMemPoolCreate);
  return *pool = reinterpret_cast<cudaMemPool_t>(new MemoryPool), cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  MemoryPool *const pool = reinterpret_cast<MemoryPool *>(handle);
  if (pool == &default_pool)
    return refuse(cudaErrorInvalidValue, "cudaMemPoolDestroy: the device's default pool cannot be destroyed");
  if (pool == pool_of_device) pool_of_device = &default_pool;
  return cudaSuccess;  // what is allocated from it still counts there
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
  CALL(cudaMemPoolSetAttribute);
  MemoryPool *const pool = reinterpret_cast<MemoryPool *>(handle);
  if (attribute >= cudaMemPoolReuseFollowEventDependencies && attribute <= cudaMemPoolReuseAllowInternalDependencies)
    pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies] = *static_cast<int *>(value);
  else if (attribute == cudaMemPoolAttrReleaseThreshold)
    pool->threshold = *static_cast<uint64_t *>(value);
  else if (attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh)
    pool->high = pool->used;  // only 0 may be given
  else
    return record(cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
  CALL(cudaMemPoolGetAttribute);
  const MemoryPool *const pool = reinterpret_cast<MemoryPool *>(handle);
  if (attribute >= cudaMemPoolReuseFollowEventDependencies && attribute <= cudaMemPoolReuseAllowInternalDependencies) {
    *static_cast<int *>(value) = pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies];
    return cudaSuccess;
  }
  if (attribute < cudaMemPoolAttrReleaseThreshold || attribute > cudaMemPoolAttrUsedMemHigh)
    return record(cudaErrorInvalidValue);
  const bool high = attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh;
  *static_cast<uint64_t *>(value) =
      attribute == cudaMemPoolAttrReleaseThreshold ? pool->threshold
      : high                                       ? pool->high
                                                   : pool->used;
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const struct cudaMemAccessDesc *, size_t) { return cudaSuccess; }

// --- hints, which change nothing here -------------------------------------------------------------------------------

cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID, const cudaLaunchAttributeValue *) {
  return check(stream, "cudaStreamSetAttribute");
}
cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaLaunchAttributeID, cudaLaunchAttributeValue *value) {
  *value = {};
  return check(stream, "cudaStreamGetAttribute");
}
cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  if (const cudaError_t error = check(from, "cudaStreamCopyAttributes")) return error;
  return check(to, "cudaStreamCopyAttributes");
}

// --- streams and events: each call is done when it returns, so that every order is kept ----------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  std::lock_guard lock(guard);
  Stream *made = new Stream{flags, priority};
  streams().insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard lock(guard);
  if (!streams().erase(reinterpret_cast<Stream *>(stream)))
    return refuse(cudaErrorInvalidResourceHandle, "cudaStreamDestroy: the stream does not exist (or no longer)");
  delete reinterpret_cast<Stream *>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CALL(cudaStreamSynchronize);
  if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread &&
      !streams().count(reinterpret_cast<Stream *>(stream)))
    return refuse(cudaErrorInvalidResourceHandle, "cudaStreamSynchronize: the stream does not exist (or no longer)");
  if (captures().count(stream)) return forbidden_in_capture("cudaStreamSynchronize", stream);
  return synchronised();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
  return *flags = stream ? reinterpret_cast<Stream *>(stream)->flags : 0, cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  return *priority = stream ? reinterpret_cast<Stream *>(stream)->priority : 0, cudaSuccess;
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void *, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!events().count(reinterpret_cast<Event *>(event))) return record(cudaErrorInvalidResourceHandle);
  if (const auto captured = captured_events().find(event); captured != captured_events().end())
    captures()[stream] = captured->second;  // the stream joins
  return stream ? check(stream, "cudaStreamWaitEvent") : cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  return in_stream(stream, "cudaLaunchHostFunc", [=] { return function(data), cudaSuccess; }, cudaGraphNodeTypeHost);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned) {
  if (const cudaError_t error = check(stream, "cudaStreamAddCallback")) return error;
  callback(stream, last_error, data);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  std::lock_guard lock(guard);
  Event *made = new Event{false, {}, flags};
  events().insert(made);
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::lock_guard lock(guard);
  if (!events().erase(reinterpret_cast<Event *>(event))) return record(cudaErrorInvalidResourceHandle);
  delete reinterpret_cast<Event *>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  CALL(cudaEventRecord);
  if (!events().count(reinterpret_cast<Event *>(event)))
    return refuse(cudaErrorInvalidResourceHandle, "cudaEventRecord: the event was not created (or is destroyed)");
  in_flight = nullptr;
  if (stream) {
    if (const cudaError_t error = check(stream, "cudaEventRecord")) return error;
  }
  captured_events().erase(event);
  if (const auto captured = captures().find(stream); captured != captures().end())
    return captured_events()[event] = captured->second, cudaSuccess;
  *reinterpret_cast<Event *>(event) = {true, std::chrono::steady_clock::now(), reinterpret_cast<Event *>(event)->flags};
  return sticky ? last_error : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CALL(cudaEventSynchronize);
  return events().count(reinterpret_cast<Event *>(event)) ? synchronised() : record(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  UNSAFE_CALL(cudaEventQuery);
  return cudaEventSynchronize(event);
}

// The emulation's time on this machine: a GPU's is not known.
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  for (cudaEvent_t event : {start, end}) {
    const Event *entry = reinterpret_cast<Event *>(event);
    if (!events().count(const_cast<Event *>(entry)) || !entry->recorded || entry->flags & cudaEventDisableTiming)
      return refuse(cudaErrorInvalidResourceHandle,
                    "cudaEventElapsedTime: an event was not recorded, or has no timing");
  }
  const auto between = reinterpret_cast<Event *>(end)->time - reinterpret_cast<Event *>(start)->time;
  *milliseconds = std::chrono::duration<float, std::milli>(between).count();
  return sticky ? last_error : cudaSuccess;
}

// --- memory ----------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void **address, size_t bytes) {
  UNSAFE_CALL(cudaMalloc);
  return allocate(address, bytes, DEVICE);
}
cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
  CALL(cudaMallocAsync);
  return cudaMallocFromPoolAsync(address, bytes, reinterpret_cast<cudaMemPool_t>(pool_of_device), stream);
}
cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t handle, cudaStream_t stream) {
  CALL(cudaMallocFromPoolAsync);
  if (const cudaError_t error = check(stream, "cudaMallocAsync")) return error;
  if (const cudaError_t error = allocate(address, bytes, DEVICE)) return error;
  MemoryPool *const pool = reinterpret_cast<MemoryPool *>(handle);
  pool->used += bytes;
  pool->high = std::max(pool->high, pool->used);
  from_pools()[*address] = {pool, bytes};
  return cudaSuccess;
}
cudaError_t cudaMallocManaged(void **address, size_t bytes, unsigned) {
  UNSAFE_CALL(cudaMallocManaged);
  return allocate(address, bytes, MANAGED);
}
cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
  UNSAFE_CALL(cudaHostAlloc);
  const cudaError_t error = allocate(address, bytes, PINNED);
  if (!error) host_flags()[*address] = flags;
  return error;
}
cudaError_t cudaMallocHost(void **address, size_t bytes) {
  UNSAFE_CALL(cudaMallocHost);
  return allocate(address, bytes, PINNED);
}
cudaError_t cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  UNSAFE_CALL(cudaMallocPitch);
  *pitch = (width + 511) / 512 * 512;
  return allocate(address, *pitch * height, DEVICE);
}
cudaError_t cudaFree(void *address) {
  CALL(cudaFree);
  if (const cudaError_t unsafe = address ? unsafe_in_capture("cudaFree") : cudaSuccess) return unsafe;
  return release(address, false, "cudaFree");
}
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
  CALL(cudaFreeAsync);
  if (const cudaError_t error = check(stream, "cudaFreeAsync")) return error;
  if (captures().count(stream)) return cudaSuccess;  // the graph needs it at each of its launches
  return release(address, false, "cudaFreeAsync");
}
cudaError_t cudaFreeHost(void *address) {
  CALL(cudaFreeHost);
  if (const cudaError_t unsafe = address ? unsafe_in_capture("cudaFreeHost") : cudaSuccess) return unsafe;
  return release(address, true, "cudaFreeHost");
}

// Pinning memory that is there already only makes copies faster; a kernel cannot be given it here.
cudaError_t cudaHostRegister(void *, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }

cudaError_t cudaHostGetDevicePointer(void **address, void *host, unsigned) {
  CALL(cudaHostGetDevicePointer);
  if (!host_memory(reinterpret_cast<uint64_t>(host)))
    return refuse(cudaErrorInvalidValue,
                  "cudaHostGetDevicePointer: the emulator knows memory of cudaHostAlloc and cudaMallocHost only");
  *address = host;
  return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *address) {
  const auto found = host_flags().find(address);
  return *flags = cudaHostAllocMapped | (found == host_flags().end() ? 0 : found->second), cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  CALL(cudaPointerGetAttributes);
  *attributes = {};
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  const auto *host = host_memory(address);
  attributes->type =
      host                ? host->second.kind == MANAGED ? cudaMemoryTypeManaged : cudaMemoryTypeHost
      : in_arena(address) ? cudaMemoryTypeDevice
                          : cudaMemoryTypeUnregistered;
  if (host || in_arena(address)) attributes->devicePointer = const_cast<void *>(pointer);
  if (host || !in_arena(address)) attributes->hostPointer = const_cast<void *>(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  CALL(cudaMemGetInfo);
  if (channel < 0) return record(cudaErrorNoDevice);
  *free = ask(Request::MEMORY).take<uint64_t>();
  *total = device.total_memory;
  return cudaSuccess;
}

cudaError_t cudaMemset(void *address, int value, size_t bytes) {
  CALL(cudaMemset);
  return fill("cudaMemset", address, value, bytes);
}
cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream) {
  CALL(cudaMemsetAsync);
  return in_stream(stream, "cudaMemsetAsync", [=] { return fill("cudaMemsetAsync", address, value, bytes); });
}
cudaError_t cudaMemset2D(void *address, size_t pitch, int value, size_t width, size_t height) {
  CALL(cudaMemset2D);
  cudaError_t error = cudaSuccess;
  for (size_t row = 0; row < height && !error; ++row)
    error = fill("cudaMemset2D", static_cast<char *>(address) + row * pitch, value, width);
  return error;
}
cudaError_t cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return in_stream(stream, "cudaMemset2DAsync", [=] { return cudaMemset2D(address, pitch, value, width, height); });
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpy);
  const cudaError_t error = copy("cudaMemcpy", to, from, bytes, kind);
  protect_managed(false);  // it waits for what was launched before
  return error;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpyAsync);
  return in_stream(stream, "cudaMemcpyAsync", [=] { return copy("cudaMemcpyAsync", to, from, bytes, kind); });
}
cudaError_t cudaMemcpyPeer(void *to, int, const void *from, int, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
  CALL(cudaMemcpy2D);
  const cudaError_t error = copy_2d("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height, kind);
  protect_managed(false);
  return error;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpy2DAsync);
  return in_stream(stream, "cudaMemcpy2DAsync", [=] {
    return copy_2d("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, height, kind);
  });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemPrefetchAsync(const void *, size_t, struct cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMemAdvise(const void *, size_t, enum cudaMemoryAdvise, struct cudaMemLocation) { return cudaSuccess; }
#else
cudaError_t cudaMemPrefetchAsync(const void *, size_t, int, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemAdvise(const void *, size_t, enum cudaMemoryAdvise, int) { return cudaSuccess; }
cudaError_t cudaMemPrefetchAsync_v2(const void *, size_t, struct cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMemAdvise_v2(const void *, size_t, enum cudaMemoryAdvise, struct cudaMemLocation) {
  return cudaSuccess;
}
#endif

cudaError_t cudaGetSymbolAddress(void **address, const void *host) {
  CALL(cudaGetSymbolAddress);
  size_t bytes;
  return symbol(address, &bytes, host);
}
cudaError_t cudaGetSymbolSize(size_t *bytes, const void *host) {
  CALL(cudaGetSymbolSize);
  void *address;
  return symbol(&address, bytes, host);
}
cudaError_t cudaMemcpyToSymbol(
    const void *host, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpyToSymbol);
  return copy_symbol("cudaMemcpyToSymbol", true, host, from, bytes, offset, kind);
}
cudaError_t cudaMemcpyToSymbolAsync(
    const void *host, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpyToSymbolAsync);
  return in_stream(stream, "cudaMemcpyToSymbolAsync", [=] {
    return copy_symbol("cudaMemcpyToSymbolAsync", true, host, from, bytes, offset, kind);
  });
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *host, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpyFromSymbol);
  return copy_symbol("cudaMemcpyFromSymbol", false, host, to, bytes, offset, kind);
}
cudaError_t cudaMemcpyFromSymbolAsync(
    void *to, const void *host, size_t bytes, size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpyFromSymbolAsync);
  return in_stream(stream, "cudaMemcpyFromSymbolAsync", [=] {
    return copy_symbol("cudaMemcpyFromSymbolAsync", false, host, to, bytes, offset, kind);
  });
}

// --- the driver ---------------------------------------------------------------------------------------------------

#undef cudaGetDriverEntryPoint
#undef cudaGetDriverEntryPointByVersion

cudaError_t cudaGetDriverEntryPoint(
    const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  CALL(cudaGetDriverEntryPoint);
  return entry_point("cudaGetDriverEntryPoint", name, function, CUDART_VERSION, flags, status);
}
cudaError_t cudaGetDriverEntryPoint_ptsz(
    const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPoint(name, function, flags, status);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  CALL(cudaGetDriverEntryPointByVersion);
  return entry_point("cudaGetDriverEntryPointByVersion", name, function, version, flags, status);
}
cudaError_t cudaGetDriverEntryPointByVersion_ptsz(
    const char *name, void **function, unsigned version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(name, function, version, flags, status);
}

// For programs that are linked with -lcuda.
CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return encode_tiled(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill);
}
CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap *map, void *address) { return replace_address(map, address); }

}  // extern "C"

#include "driver.h"

namespace {

void *driver_function(const char *name, unsigned *since) {
  *since = 12000;
  if (!strcmp(name, "cuTensorMapEncodeTiled")) return reinterpret_cast<void *>(encode_tiled);
  if (!strcmp(name, "cuTensorMapReplaceAddress")) return reinterpret_cast<void *>(replace_address);
  *since = 2000;
  static const std::map<std::string, void *> all = {
#define X(function) {#function, reinterpret_cast<void *>(&::function)}
      // clang-format off
      X(cuInit), X(cuDriverGetVersion), X(cuDeviceGetCount), X(cuDeviceGet), X(cuDeviceGetName), X(cuDeviceTotalMem),
      X(cuDeviceGetAttribute), X(cuDeviceComputeCapability), X(cuCtxGetCurrent), X(cuCtxSetCurrent),
      X(cuCtxPushCurrent), X(cuCtxPopCurrent), X(cuCtxDestroy), X(cuCtxGetDevice), X(cuCtxSynchronize),
      X(cuDevicePrimaryCtxRetain), X(cuDevicePrimaryCtxRelease), X(cuDevicePrimaryCtxSetFlags), X(cuModuleLoadData),
      X(cuModuleLoadDataEx), X(cuModuleLoad), X(cuModuleUnload), X(cuModuleGetFunction), X(cuModuleGetGlobal),
      X(cuFuncGetAttribute), X(cuFuncSetAttribute), X(cuFuncSetCacheConfig),
      X(cuOccupancyMaxActiveBlocksPerMultiprocessor), X(cuLaunchKernel), X(cuLaunchCooperativeKernel), X(cuMemAlloc),
      X(cuMemAllocManaged), X(cuMemAllocPitch), X(cuMemAllocAsync), X(cuMemFree), X(cuMemFreeAsync),
      X(cuMemAllocHost), X(cuMemHostAlloc), X(cuMemFreeHost), X(cuMemGetInfo), X(cuMemGetAddressRange), X(cuMemcpy),
      X(cuMemcpyAsync), X(cuMemcpyHtoD), X(cuMemcpyDtoH), X(cuMemcpyDtoD), X(cuMemcpyHtoDAsync),
      X(cuMemcpyDtoHAsync), X(cuMemcpyDtoDAsync), X(cuMemsetD8), X(cuMemsetD8Async), X(cuMemsetD16), X(cuMemsetD32), X(cuMemsetD32Async),
      X(cuStreamCreate), X(cuStreamCreateWithPriority), X(cuStreamDestroy), X(cuStreamSynchronize), X(cuStreamQuery),
      X(cuStreamWaitEvent), X(cuEventCreate), X(cuEventDestroy), X(cuEventRecord), X(cuEventSynchronize),
      X(cuEventQuery), X(cuEventElapsedTime), X(cuGetErrorString), X(cuGetErrorName),
      {"cuCtxCreate", reinterpret_cast<void *>(&cuCtxCreate_v2)},
#undef X
      // clang-format on
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace
