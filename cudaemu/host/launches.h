// Launches: what is wrong with a configuration, what a stream or a graph keeps of one, and how it is run. A part of
// runtime.cpp, which includes it.

namespace {

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

Function *loaded_function(const void *handle);  // one of a module that was loaded

Function *find(const void *host) {
  const auto found = functions().find(host);
  if (found == functions().end()) return loaded_function(host);  // a cudaKernel_t is taken as well
  return learn(found->second) ? &found->second : nullptr;
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
  if (capture(stream, work, type)) return cudaSuccess;
  const Working now(stream_of(stream));
  return work();
}

// A function of the program in a stream: it may touch what the stream's work has touched, and tell other threads.
cudaError_t call_host(cudaHostFn_t function, void *data) {
  if (working) waited(working->clock);
  function(data);
  return cudaSuccess;
}

cudaError_t run(const std::string &name, const std::string &request, cudaStream_t here) {
  std::lock_guard lock(guard);
  if (sticky) return last_error;
  Answer answer = ask(Request::LAUNCH, Packet().bytes(request.data(), request.size()).add(uint32_t(several)));
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
  std::vector<Range> ranges(answer.take<uint32_t>());
  for (Range &range : ranges) range = answer.take<Range>();
  if (!ranges.empty()) touches(name, std::move(ranges), false);
  protect_managed(true);
  in_flight = here;
  record(error);
  sticky |= fatal && !served_here;  // a session of Python, or a list of tests, goes on
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
  *out = [name = function->readable, request = packet.data(), here] { return run(name, request, here); };
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
  if (capture(stream, work, cudaGraphNodeTypeKernel)) return cudaSuccess;
  const Working now(stream_of(stream));
  return work();
}

cudaError_t synchronised(const Clock &clock) {
  in_flight = nullptr;
  waited(clock);
  protect_managed(false);
  return sticky ? last_error : cudaSuccess;  // what was refused is no work that could have failed
}

}  // namespace
