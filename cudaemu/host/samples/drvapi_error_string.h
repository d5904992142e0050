// What the programs of NVIDIA's cuda-samples take from their drvapi_error_string.h.
#pragma once

#include <cuda.h>

inline const char *getCudaDrvErrorString(CUresult error) {
  const char *text = NULL;
  return cuGetErrorString(error, &text) == CUDA_SUCCESS && text ? text : "an unknown error";
}
