// CUDA graphs: work that is put into a stream while it is captured, or into a graph node by node, and done when the graph
// is launched, one node after the other. A part of runtime.cpp, which includes it.

namespace {

struct Node {
  cudaGraphNodeType type;
  Work work;
  std::vector<Node *> after;
  const Node *original = nullptr;  // of which it is a clone
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  std::string spoiled_by;  // the call that must not be made while a stream is captured, if there was one
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // of the capture that fills it
  pthread_t thread = 0;                                       // which began that
  Node *add(cudaGraphNodeType type, Work work, const cudaGraphNode_t *after = nullptr, size_t count = 0) {
    nodes.push_back(std::make_unique<Node>(Node{type, std::move(work), {}, nullptr}));
    for (size_t n = 0; n < count; ++n) nodes.back()->after.push_back(reinterpret_cast<Node *>(after[n]));
    return nodes.back().get();
  }
  // Each node after those that it depends on, otherwise in the order of adding; fewer than all if there is a cycle.
  std::vector<const Node *> in_order() const {
    std::vector<const Node *> order;
    std::set<const Node *> done;
    for (bool more = true; more;) {
      more = false;
      for (const auto &node : nodes)
        if (!done.count(node.get()) &&
            std::all_of(node->after.begin(), node->after.end(), [&](Node *each) { return done.count(each); })) {
          order.push_back(node.get());
          done.insert(node.get());
          more = true;
        }
    }
    return order;
  }
};

struct Step {
  const Node *node;
  cudaGraphNodeType type;
  Work work;
};
struct Instance { std::vector<Step> steps; };

auto &graphs() {
  static auto &all = *new std::set<Graph *>;
  return all;
}
auto &instances() {
  static auto &all = *new std::set<Instance *>;
  return all;
}
Graph *graph_of(cudaGraph_t handle) {
  Graph *graph = reinterpret_cast<Graph *>(handle);
  return graphs().count(graph) ? graph : nullptr;
}
Instance *instance_of(cudaGraphExec_t handle) {
  Instance *instance = reinterpret_cast<Instance *>(handle);
  return instances().count(instance) ? instance : nullptr;
}

cudaError_t no_graph(const char *call) {
  return refuse(cudaErrorInvalidValue, format("%s: the graph does not exist (or no longer)", call));
}

// Streams that are captured, and into what.
auto &captures() {
  static auto &all = *new std::map<cudaStream_t, Graph *>;
  return all;
}
auto &captured_events() {
  static auto &all = *new std::map<cudaEvent_t, Graph *>;
  return all;
}

bool capture(cudaStream_t stream, const Work &work, cudaGraphNodeType type) {
  if (captures().empty()) return false;
  const auto found = captures().find(stream);
  if (found == captures().end()) return false;
  found->second->add(type, work);
  return true;
}

// It spoils the capture of that stream, or all of them.
cudaError_t forbidden_in_capture(const char *call, cudaStream_t only = nullptr) {
  for (auto &[stream, graph] : captures())
    if ((!only || stream == only) && graph->spoiled_by.empty()) graph->spoiled_by = call;
  return refuse(cudaErrorStreamCaptureUnsupported, format("%s: it cannot wait for a stream that is captured", call));
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// What may synchronize with a stream that is captured is forbidden to the threads that the modes name: it fails, and spoils
// their captures.
cudaError_t unsafe_in_capture(const char *call) {
  if (captures().empty() || thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool forbidden = false;
  for (auto &[stream, graph] : captures()) {
    const bool own = pthread_equal(graph->thread, pthread_self());
    const bool others = thread_mode == cudaStreamCaptureModeGlobal && graph->mode == cudaStreamCaptureModeGlobal;
    if (own ? graph->mode == cudaStreamCaptureModeRelaxed : !others) continue;
    if (graph->spoiled_by.empty()) graph->spoiled_by = call;
    forbidden = true;
  }
  if (!forbidden) return cudaSuccess;
  return refuse(
      cudaErrorStreamCaptureUnsupported,
      format("%s: a stream is captured: call it before that, or capture with cudaStreamCaptureModeRelaxed", call));
}

cudaError_t add_node(const char *call, cudaGraphNode_t *out, cudaGraph_t handle, const cudaGraphNode_t *after,
                     size_t count, cudaGraphNodeType type, Work work) {
  Graph *graph = graph_of(handle);
  if (!graph) return no_graph(call);
  Node *node = graph->add(type, std::move(work), after, count);
  if (out) *out = reinterpret_cast<cudaGraphNode_t>(node);
  return cudaSuccess;
}

// The launch of a kernel with arguments that are copied now.
cudaError_t kernel_work(const char *call, const cudaKernelNodeParams *p, Work *out) {
  if (!p) return refuse(cudaErrorInvalidValue, format("%s: its parameters must not be null", call));
  if (p->extra) return refuse(cudaErrorNotSupported, format("%s: the emulator takes kernelParams, not extra", call));
  return prepare(find(p->func), p->gridDim, p->blockDim, dim3(0, 0, 0), p->sharedMemBytes, p->kernelParams, false, out);
}

Work fill_work(const cudaMemsetParams &p) {
  return [p] {
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < std::max<size_t>(p.height, 1) && !error; ++row) {
      char *const at = static_cast<char *>(p.dst) + row * p.pitch;
      if (p.elementSize == 1) {
        error = fill("cudaMemset", at, int(p.value), p.width);
        continue;
      }
      std::string pattern;
      for (size_t n = 0; n < p.width; ++n) pattern.append(reinterpret_cast<const char *>(&p.value), p.elementSize);
      error = copy("cudaMemset", at, pattern.data(), pattern.size(), cudaMemcpyHostToDevice);
    }
    return error;
  };
}

cudaError_t set_step(const char *call, cudaGraphExec_t exec, cudaGraphNode_t node, Work work) {
  Instance *instance = instance_of(exec);
  if (!instance) return no_graph(call);
  for (Step &step : instance->steps)
    if (step.node == reinterpret_cast<Node *>(node)) return step.work = std::move(work), cudaSuccess;
  return refuse(cudaErrorInvalidValue, format("%s: the graph has no such node", call));
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  CALL(cudaStreamBeginCapture);
  if (!streams().count(reinterpret_cast<Stream *>(stream)))
    return refuse(cudaErrorStreamCaptureUnsupported,
                  "cudaStreamBeginCapture: the default stream cannot be captured: make one (cudaStreamCreate)");
  if (captures().count(stream))
    return refuse(cudaErrorIllegalState, "cudaStreamBeginCapture: the stream is captured already");
  Graph *const graph = new Graph;
  graph->mode = mode, graph->thread = pthread_self();
  graphs().insert(graph);
  captures()[stream] = graph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
  CALL(cudaStreamEndCapture);
  const auto found = captures().find(stream);
  if (found == captures().end())
    return refuse(cudaErrorIllegalState, "cudaStreamEndCapture: the stream is not captured");
  Graph *const graph = found->second;
  if (graph->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(graph->thread, pthread_self()))
    return refuse(cudaErrorStreamCaptureWrongThread,
                  "cudaStreamEndCapture: the thread that began the capture must end it, unless its mode is relaxed");
  const auto drop = [graph](auto &from) {
    for (auto each = from.begin(); each != from.end();)
      each = each->second == graph ? from.erase(each) : std::next(each);
  };
  drop(captures());  // and those that have joined it
  drop(captured_events());
  if (const std::string call = graph->spoiled_by; !call.empty()) {
    graphs().erase(graph);
    delete graph;
    *out = nullptr;
    return refuse(cudaErrorStreamCaptureInvalidated,
                  format("cudaStreamEndCapture: %s was called while the stream was captured", call.c_str()));
  }
  *out = reinterpret_cast<cudaGraph_t>(graph);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  const auto found = captures().find(stream);
  *status = found == captures().end() ? cudaStreamCaptureStatusNone
            : found->second->spoiled_by.empty()
                ? cudaStreamCaptureStatusActive
                : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  return std::swap(thread_mode, *mode), cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned) {
  CALL(cudaGraphCreate);
  Graph *const graph = new Graph;
  graphs().insert(graph);
  return *out = reinterpret_cast<cudaGraph_t>(graph), cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  Graph *const graph = graph_of(handle);
  if (!graph) return no_graph("cudaGraphDestroy");
  graphs().erase(graph);
  return delete graph, cudaSuccess;
}
cudaError_t cudaGraphClone(cudaGraph_t *out, cudaGraph_t original) {
  const Graph *const graph = graph_of(original);
  if (!graph) return no_graph("cudaGraphClone");
  if (const cudaError_t error = cudaGraphCreate(out, 0)) return error;
  std::map<const Node *, Node *> clones;
  for (const auto &node : graph->nodes) {
    clones[node.get()] = graph_of(*out)->add(node->type, node->work);
    clones[node.get()]->original = node.get();
  }
  for (const auto &[node, clone] : clones)
    for (const Node *each : node->after) clone->after.push_back(clones[each]);
  return cudaSuccess;
}
cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t *out, cudaGraphNode_t original, cudaGraph_t clone) {
  const Graph *const graph = graph_of(clone);
  if (!graph) return no_graph("cudaGraphNodeFindInClone");
  for (const auto &node : graph->nodes)
    if (node->original == reinterpret_cast<Node *>(original))
      return *out = reinterpret_cast<cudaGraphNode_t>(node.get()), cudaSuccess;
  return refuse(cudaErrorInvalidValue, "cudaGraphNodeFindInClone: the graph has no clone of this node");
}
cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count) {
  const Graph *const graph = graph_of(handle);
  if (!graph) return no_graph("cudaGraphGetNodes");
  for (size_t n = 0; nodes && n < std::min(*count, graph->nodes.size()); ++n)
    nodes[n] = reinterpret_cast<cudaGraphNode_t>(graph->nodes[n].get());
  return *count = graph->nodes.size(), cudaSuccess;
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t *roots, size_t *count) {
  const Graph *const graph = graph_of(handle);
  if (!graph) return no_graph("cudaGraphGetRootNodes");
  size_t found = 0;
  for (const auto &node : graph->nodes)
    if (node->after.empty()) {
      if (roots && found < *count) roots[found] = reinterpret_cast<cudaGraphNode_t>(node.get());
      ++found;
    }
  return *count = found, cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaGraphGetEdges(
    cudaGraph_t handle, cudaGraphNode_t *from, cudaGraphNode_t *to, cudaGraphEdgeData *data, size_t *count) {
  if (data) std::fill_n(data, *count, cudaGraphEdgeData{});
#else
cudaError_t cudaGraphGetEdges(cudaGraph_t handle, cudaGraphNode_t *from, cudaGraphNode_t *to, size_t *count) {
#endif
  const Graph *const graph = graph_of(handle);
  if (!graph) return no_graph("cudaGraphGetEdges");
  size_t found = 0;
  for (const auto &node : graph->nodes)
    for (Node *each : node->after) {
      if (from && to && found < *count) {
        from[found] = reinterpret_cast<cudaGraphNode_t>(each);
        to[found] = reinterpret_cast<cudaGraphNode_t>(node.get());
      }
      ++found;
    }
  return *count = found, cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type) {
  return *type = reinterpret_cast<Node *>(node)->type, cudaSuccess;
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count,
                                   const struct cudaKernelNodeParams *p) {
  CALL(cudaGraphAddKernelNode);
  Work work;
  if (const cudaError_t error = kernel_work("cudaGraphAddKernelNode", p, &work)) return error;
  return add_node("cudaGraphAddKernelNode", out, graph, after, count, cudaGraphNodeTypeKernel, work);
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count,
                                   const struct cudaMemcpy3DParms *p) {
  CALL(cudaGraphAddMemcpyNode);
  return add_node("cudaGraphAddMemcpyNode", out, graph, after, count, cudaGraphNodeTypeMemcpy, [p = *p] {
    return copy_3d("cudaMemcpy3D", &p);
  });
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after,
                                     size_t count, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  CALL(cudaGraphAddMemcpyNode1D);
  return add_node("cudaGraphAddMemcpyNode1D", out, graph, after, count, cudaGraphNodeTypeMemcpy, [=] {
    return copy("cudaMemcpy", to, from, bytes, kind);
  });
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count,
                                   const struct cudaMemsetParams *p) {
  CALL(cudaGraphAddMemsetNode);
  return add_node("cudaGraphAddMemsetNode", out, graph, after, count, cudaGraphNodeTypeMemset, fill_work(*p));
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count,
                                 const struct cudaHostNodeParams *p) {
  CALL(cudaGraphAddHostNode);
  return add_node("cudaGraphAddHostNode", out, graph, after, count, cudaGraphNodeTypeHost, [p = *p] {
    return call_host(p.fn, p.userData);
  });
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count) {
  return add_node("cudaGraphAddEmptyNode", out, graph, after, count, cudaGraphNodeTypeEmpty, [] {
    return cudaSuccess;
  });
}
cudaError_t cudaGraphAddChildGraphNode(
    cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, cudaGraph_t child) {
  const Graph *const inner = graph_of(child);
  if (!inner) return no_graph("cudaGraphAddChildGraphNode");
  std::vector<Work> steps;
  for (const Node *node : inner->in_order()) steps.push_back(node->work);
  return add_node("cudaGraphAddChildGraphNode", out, graph, after, count, cudaGraphNodeTypeGraph, [steps] {
    for (const Work &each : steps)
      if (const cudaError_t error = each()) return error;
    return cudaSuccess;
  });
}
#if CUDART_VERSION >= 13000
cudaError_t cudaGraphAddDependencies(
    cudaGraph_t, const cudaGraphNode_t *from, const cudaGraphNode_t *to, const cudaGraphEdgeData *, size_t count) {
#else
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t *from, const cudaGraphNode_t *to, size_t count) {
#endif
  for (size_t n = 0; n < count; ++n)
    reinterpret_cast<Node *>(to[n])->after.push_back(reinterpret_cast<Node *>(from[n]));
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t handle, unsigned long long) {
  CALL(cudaGraphInstantiate);
  const Graph *const graph = graph_of(handle);
  if (!graph) return no_graph("cudaGraphInstantiate");
  const auto order = graph->in_order();
  if (order.size() < graph->nodes.size())
    return refuse(cudaErrorInvalidValue, "cudaGraphInstantiate: the graph's dependencies must not have a cycle");
  Instance *const made = new Instance;
  for (const Node *node : order) made->steps.push_back({node, node->type, node->work});
  instances().insert(made);
  return *out = reinterpret_cast<cudaGraphExec_t>(made), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  Instance *const instance = instance_of(exec);
  if (!instance) return no_graph("cudaGraphExecDestroy");
  instances().erase(instance);
  return delete instance, cudaSuccess;
}
cudaError_t cudaGraphExecKernelNodeSetParams(
    cudaGraphExec_t exec, cudaGraphNode_t node, const struct cudaKernelNodeParams *p) {
  CALL(cudaGraphExecKernelNodeSetParams);
  Work work;
  if (const cudaError_t error = kernel_work("cudaGraphExecKernelNodeSetParams", p, &work)) return error;
  return set_step("cudaGraphExecKernelNodeSetParams", exec, node, work);
}
cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const struct cudaKernelNodeParams *p) {
  CALL(cudaGraphKernelNodeSetParams);
  return kernel_work("cudaGraphKernelNodeSetParams", p, &reinterpret_cast<Node *>(node)->work);
}
cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const struct cudaMemsetParams *p) {
  return reinterpret_cast<Node *>(node)->work = fill_work(*p), cudaSuccess;
}
cudaError_t cudaGraphMemcpyNodeSetParams1D(
    cudaGraphNode_t node, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  reinterpret_cast<Node *>(node)->work = [=] { return copy("cudaMemcpy", to, from, bytes, kind); };
  return cudaSuccess;
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(
    cudaGraphExec_t exec, cudaGraphNode_t node, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  return set_step("cudaGraphExecMemcpyNodeSetParams1D", exec, node, [=] {
    return copy("cudaMemcpy", to, from, bytes, kind);
  });
}
cudaError_t cudaGraphExecMemsetNodeSetParams(
    cudaGraphExec_t exec, cudaGraphNode_t node, const struct cudaMemsetParams *p) {
  return set_step("cudaGraphExecMemsetNodeSetParams", exec, node, fill_work(*p));
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t handle, cudaGraphExecUpdateResultInfo *result) {
  CALL(cudaGraphExecUpdate);
  Instance *const instance = instance_of(exec);
  const Graph *const graph = graph_of(handle);
  if (!instance || !graph) return no_graph("cudaGraphExecUpdate");
  const auto order = graph->in_order();
  bool same = order.size() == instance->steps.size();
  for (size_t n = 0; same && n < order.size(); ++n) same = order[n]->type == instance->steps[n].type;
  *result = {};
  result->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
  if (!same)
    return refuse(cudaErrorGraphExecUpdateFailure,
                  "cudaGraphExecUpdate: the graph has other nodes: instantiate it again");
  for (size_t n = 0; n < order.size(); ++n) instance->steps[n] = {order[n], order[n]->type, order[n]->work};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  CALL(cudaGraphLaunch);
  const Instance *const instance = instance_of(exec);
  if (!instance) return no_graph("cudaGraphLaunch");
  const auto steps = instance->steps;
  return in_stream(
      stream, "cudaGraphLaunch",
      [steps] {
        for (const Step &each : steps)
          if (const cudaError_t error = each.work()) return error;
        return cudaSuccess;
      },
      cudaGraphNodeTypeGraph);
}

}  // extern "C"
