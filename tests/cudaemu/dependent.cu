// What test_dependent.py runs: launches that may begin before the one before has ended. The argument chooses the case.
#include <cuda_runtime.h>

constexpr int THREADS = 128, BLOCKS = 4, N = THREADS * BLOCKS;

#if __CUDA_ARCH__ >= 900
#define WAIT() cudaGridDependencySynchronize()
#define TRIGGER() cudaTriggerProgrammaticLaunchCompletion()
#else
#define WAIT()
#define TRIGGER()
#endif

enum Wait { NEVER, FIRST, ONE_WARP, ONE_WARP_AND_BARRIER, ONE_LANE, ONE_LANE_AND_SYNCWARP, LATE };

__device__ int flag;

__device__ int self() { return blockIdx.x * THREADS + threadIdx.x; }

__device__ void wait(Wait how) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (how == FIRST) WAIT();
  if ((how == ONE_WARP || how == ONE_WARP_AND_BARRIER) && warp == 0) WAIT();
  if ((how == ONE_LANE || how == ONE_LANE_AND_SYNCWARP) && lane == 0) WAIT();
  if (how == ONE_WARP_AND_BARRIER) __syncthreads();
  if (how == ONE_LANE_AND_SYNCWARP) __syncwarp();
}

__global__ void produce(float *x, bool trigger) {
  if (trigger) TRIGGER();
  x[self()] = self();  // produce writes
}

__global__ void consume(const float *x, float *y, Wait how) {
  wait(how);
  const float value = x[self()];  // consume reads
  if (how == LATE) WAIT();
  y[self()] = value;
}

__global__ void read_then_trigger(const float *x, float *y) {
  const float value = x[self()];
  __syncthreads();
  if (threadIdx.x == 0) TRIGGER();
  y[self()] = value;
}

__global__ void trigger_then_read(const float *x, float *y, bool trigger) {
  if (threadIdx.x == 0 && trigger) TRIGGER();
  y[self()] = x[self()];  // read after the trigger
}

__global__ void overwrite(float *x) {
  x[self()] = 7;  // overwrites
}

__global__ void pass(bool wait_first, bool wait_late) {
  if (wait_first) WAIT();
  TRIGGER();
  if (wait_late) WAIT();
}

__global__ void count(int *total) {
  TRIGGER();
  atomicAdd(total, 1);
}

__global__ void even_bytes(const char *bytes, float *y) {
  TRIGGER();
  y[self()] = bytes[2 * self()];
}
__global__ void odd_bytes(char *bytes) { bytes[2 * self() + 1] = 1; }

// Block 0 waits, and tells the others.
__global__ void wait_for_others(const float *x, float *y) {
  if (blockIdx.x == 0) WAIT();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) {
      __threadfence();
      atomicExch(&flag, 1);
    }
    while (atomicAdd(&flag, 0) == 0) {
    }
    __threadfence();
    y[self()] = x[self()];
  }
  __syncthreads();
  if (threadIdx.x) y[self()] = x[self()];
}

template <class... P, class... A>
void launch(cudaStream_t stream, bool early, void (*kernel)(P...), A... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(BLOCKS);
  config.blockDim = dim3(THREADS);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early;
  cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}

extern "C" int run_case(int number, int how, float *x, float *y, int *versions, cudaStream_t s) {
  cudaStream_t other;
  cudaStreamCreate(&other);
  switch (number) {
    case 0:  // how: what the second one does
      launch(s, false, produce, x, true);
      launch(s, true, consume, x, y, Wait(how));
      break;
    case 1:  // the first never triggers
      launch(s, false, produce, x, false);
      launch(s, true, consume, x, y, Wait(how));
      break;
    case 2:  // no attribute
      launch(s, false, produce, x, true);
      launch(s, false, consume, x, y, Wait(how));
      break;
    case 3:
      launch(s, false, read_then_trigger, x, y);
      launch(s, true, overwrite, x);
      break;
    case 4:  // how: it triggers
      launch(s, false, trigger_then_read, x, y, how);
      launch(s, true, overwrite, x);
      break;
    case 5:
      launch(s, false, produce, x, true);
      launch(s, true, overwrite, x);
      break;
    case 6:  // three in a row. how: does the second wait, and when
      launch(s, false, produce, x, true);
      launch(s, true, pass, how == FIRST, how == LATE);
      launch(s, true, consume, x, y, FIRST);
      break;
    case 7:  // likewise; the third does not
      launch(s, false, produce, x, true);
      launch(s, true, pass, how == FIRST, how == LATE);
      launch(s, true, consume, x, y, NEVER);
      break;
    case 8:  // how: what stands between the two
      launch(s, false, produce, x, true);
      if (how == 0) cudaStreamSynchronize(s);
      if (how == 1) cudaMemsetAsync(y, 0, 4, s);
      if (how == 2) cudaDeviceSynchronize();
      if (how == 3) launch(s, false, pass, false, false);
      if (how == 4) cudaLaunchHostFunc(s, [](void *) {}, nullptr);
      launch(s, true, consume, x, y, NEVER);
      break;
    case 9:  // in another stream: other rules
      launch(s, false, produce, x, true);
      launch(other, true, consume, x, y, NEVER);
      break;
    case 10:
      launch(s, false, count, (int *)x);
      launch(s, true, count, (int *)x);
      break;
    case 11:
      launch(s, false, even_bytes, (const char *)x, y);
      launch(s, true, odd_bytes, (char *)x);
      break;
    case 12:
      launch(s, false, produce, x, true);
      launch(s, true, wait_for_others, x, y);
      break;
    case 13:  // more than are kept
      launch(s, false, produce, x, true);
      for (int i = 0; i < how; ++i) launch(s, true, pass, false, false);
      launch(s, true, consume, x, y, FIRST);
      break;
    case 14: {
      cudaFuncAttributes attributes;
      cudaFuncGetAttributes(&attributes, produce);
      const int found[] = {attributes.ptxVersion, attributes.binaryVersion};
      cudaMemcpy(versions, found, sizeof found, cudaMemcpyHostToDevice);
    }
  }
  cudaStreamDestroy(other);
  cudaDeviceSynchronize();
  return cudaGetLastError();
}
