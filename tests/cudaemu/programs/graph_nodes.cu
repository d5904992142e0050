// CUDA graphs made by hand: child graphs, memory and host nodes, clones, new parameters, an update of what is
// instantiated.
// Run: cudaemu graph_nodes.cu
// Prints: graph of 5 nodes, launched 5 times: 240
#include "check.h"

__global__ void fill(int *to, int value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = value;
}
__global__ void add(int *to, const int *from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] += from[i];
}

struct Counter {
  const int *in;
  long sum;
};
void count(void *data) {
  auto *c = static_cast<Counter *>(data);
  for (int i = 0; i < 10; ++i) c->sum += c->in[i];
}

int main() {
  int n = 10, value = 3, *host;
  Array<int> a(n), b(n);
  CUDA(cudaMallocHost(&host, n * sizeof(int)));
  Counter counter = {host, 0};

  cudaGraph_t inner, graph;
  CUDA(cudaGraphCreate(&inner, 0));
  cudaGraphNode_t filled, cleared, child, added, copied, counted;
  int *to = a, *sums = b;
  const int *from = a;
  void *fill_arguments[] = {&to, &value, &n}, *add_arguments[] = {&sums, &from, &n};
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void *>(fill), kernel.gridDim = 1, kernel.blockDim = 32,
  kernel.kernelParams = fill_arguments;
  CUDA(cudaGraphAddKernelNode(&filled, inner, nullptr, 0, &kernel));

  CUDA(cudaGraphCreate(&graph, 0));
  CUDA(cudaGraphAddChildGraphNode(&child, graph, nullptr, 0, inner));
  cudaMemsetParams zeros = {};
  zeros.dst = b, zeros.elementSize = 4, zeros.width = n, zeros.height = 1;
  CUDA(cudaGraphAddMemsetNode(&cleared, graph, nullptr, 0, &zeros));
  cudaKernelNodeParams adding = kernel;
  adding.func = reinterpret_cast<void *>(add), adding.kernelParams = add_arguments;
  const cudaGraphNode_t before[] = {child, cleared};
  CUDA(cudaGraphAddKernelNode(&added, graph, before, 2, &adding));
  CUDA(cudaGraphAddMemcpyNode1D(&copied, graph, &added, 1, host, b, n * sizeof(int), cudaMemcpyDeviceToHost));
  cudaHostNodeParams call = {count, &counter};
  CUDA(cudaGraphAddHostNode(&counted, graph, &copied, 1, &call));

  size_t nodes, edges;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  MUST(edges == 4);
  cudaGraphNodeType type;
  CUDA(cudaGraphNodeGetType(child, &type));
  MUST(type == cudaGraphNodeTypeGraph);

  cudaGraph_t clone;
  cudaGraphNode_t its_added;
  CUDA(cudaGraphClone(&clone, graph));
  CUDA(cudaGraphNodeFindInClone(&its_added, added, clone));

  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  cudaGraphExec_t exec, other;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphLaunch(exec, stream));  // 3 each
  CUDA(cudaStreamSynchronize(stream));
  MUST(counter.sum == 30);
  from = b;  // b += b gives 0, for b is cleared before
  CUDA(cudaGraphExecKernelNodeSetParams(exec, added, &adding));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  MUST(counter.sum == 30);
  cudaMemsetParams sevens = zeros;
  sevens.value = 7;
  CUDA(cudaGraphExecMemsetNodeSetParams(exec, cleared, &sevens));
  CUDA(cudaGraphLaunch(exec, stream));  // 14 each
  CUDA(cudaStreamSynchronize(stream));
  MUST(counter.sum == 170);
  cudaGraphExecUpdateResultInfo info;
  CUDA(cudaGraphMemsetNodeSetParams(cleared, &sevens));
  CUDA(cudaGraphExecUpdate(exec, graph, &info));
  MUST(info.result == cudaGraphExecUpdateSuccess);
  CUDA(cudaGraphInstantiate(&other, clone, 0));
  value = 100;                          // the arguments were copied: no matter
  CUDA(cudaGraphLaunch(exec, stream));  // 3 + 7 each
  CUDA(cudaStreamSynchronize(stream));
  MUST(counter.sum == 270);
  counter.sum -= 60;
  CUDA(cudaGraphLaunch(other, stream));  // 3 each
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphExecDestroy(other));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphDestroy(clone));
  CUDA(cudaGraphDestroy(inner));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFreeHost(host));
  std::printf("graph of %zu nodes, launched 5 times: %ld\n", nodes, counter.sum);
}
