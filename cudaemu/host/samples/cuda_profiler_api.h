// CUDA's own header, which pip has in a package of its own (nvidia-cuda-profiler-api).
#pragma once

#include <cuda_runtime_api.h>

extern "C" {
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
}
