// A CUDA graph: work that is recorded once and launched many times. First a stream is captured, with a second one that
// forks off and joins again; then a graph is made node by node, and given other arguments before its next launch.
//
// Between cudaStreamBeginCapture and cudaStreamEndCapture, work queued in the stream is not executed. The arguments of
// kernels are copied then; what pointers point to is read at each launch.
#include <cuda_runtime.h>

#include <cstdio>

constexpr int N = 1000, THREADS = 128, BLOCKS = (N + THREADS - 1) / THREADS;

__global__ void add(const float *a, const float *b, float *sum) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) sum[i] = a[i] + b[i];
}

__global__ void scale(float *x, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) x[i] *= factor;
}

void count(void *launches) { ++*static_cast<int *>(launches); }

int main() {
  const size_t bytes = N * sizeof(float);
  float *in, *out, *a, *b, *sum;  // in, out: of the host
  cudaMallocHost(&in, bytes);
  cudaMallocHost(&out, bytes);
  for (float **each : {&a, &b, &sum}) cudaMalloc(each, bytes);
  bool good = true;
  int launches = 0;

  cudaStream_t stream, other;
  cudaStreamCreate(&stream);
  cudaStreamCreate(&other);
  cudaEvent_t fork, join;
  cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  cudaMemcpyAsync(a, in, bytes, cudaMemcpyHostToDevice, stream);
  cudaEventRecord(fork, stream);
  cudaStreamWaitEvent(other, fork, 0);
  cudaMemsetAsync(b, 0, bytes, other);
  cudaEventRecord(join, other);
  scale<<<BLOCKS, THREADS, 0, stream>>>(a, 2);
  cudaStreamWaitEvent(stream, join, 0);
  add<<<BLOCKS, THREADS, 0, stream>>>(a, b, sum);
  cudaMemcpyAsync(out, sum, bytes, cudaMemcpyDeviceToHost, stream);
  cudaLaunchHostFunc(stream, count, &launches);
  cudaGraph_t graph;
  cudaStreamEndCapture(stream, &graph);
  size_t nodes = 0;
  cudaGraphGetNodes(graph, nullptr, &nodes);
  good &= nodes == 6 && launches == 0;

  cudaGraphExec_t exec;
  cudaGraphInstantiate(&exec, graph, 0);
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < N; ++i) in[i] = float(i + round);
    cudaGraphLaunch(exec, stream);
    cudaStreamSynchronize(stream);
    for (int i = 0; i < N; ++i) good &= out[i] == 2.0f * (i + round);
  }
  good &= launches == 3;
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);

  // Node by node: the two kernels depend on what is before them, whatever the order in which they are added.
  cudaGraphCreate(&graph, 0);
  cudaGraphNode_t set, product, total, back;
  float factor = 3;
  void *scaled[] = {&b, &factor}, *added[] = {&a, &b, &sum};
  cudaMemsetParams ones = {};
  ones.dst = b, ones.value = 0x3f800000, ones.elementSize = 4, ones.width = N, ones.height = 1;  // 1.0f
  cudaKernelNodeParams kernel = {};
  kernel.gridDim = dim3(BLOCKS), kernel.blockDim = dim3(THREADS);
  kernel.func = reinterpret_cast<void *>(add), kernel.kernelParams = added;
  cudaGraphAddMemsetNode(&set, graph, nullptr, 0, &ones);
  cudaGraphNode_t start;
  cudaGraphAddEmptyNode(&start, graph, nullptr, 0);
  kernel.func = reinterpret_cast<void *>(scale), kernel.kernelParams = scaled;
  const cudaGraphNode_t before[] = {set, start};
  cudaGraphAddKernelNode(&product, graph, before, 2, &kernel);
  kernel.func = reinterpret_cast<void *>(add), kernel.kernelParams = added;
  cudaGraphAddKernelNode(&total, graph, &product, 1, &kernel);
  cudaGraphAddMemcpyNode1D(&back, graph, &total, 1, out, sum, bytes, cudaMemcpyDeviceToHost);
  cudaGraphInstantiate(&exec, graph, 0);
  for (const float each : {3.0f, 5.0f}) {
    factor = each;
    kernel.func = reinterpret_cast<void *>(scale), kernel.kernelParams = scaled;
    cudaGraphExecKernelNodeSetParams(exec, product, &kernel);
    cudaGraphLaunch(exec, stream);
    cudaStreamSynchronize(stream);
    for (int i = 0; i < N; ++i) good &= out[i] == 2.0f * (i + 3) + each;
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);

  for (cudaEvent_t each : {fork, join}) cudaEventDestroy(each);
  for (cudaStream_t each : {stream, other}) cudaStreamDestroy(each);
  for (float *each : {a, b, sum}) cudaFree(each);
  cudaFreeHost(in);
  cudaFreeHost(out);
  good &= cudaGetLastError() == cudaSuccess;
  printf("%s\n", good ? "PASS" : "FAIL");
  return !good;
}
