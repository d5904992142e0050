// What the stand-ins for CUDA's libraries (cublas.cpp, curand.cpp) use of the stand-in runtime. compute.h has its side.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace emulator __attribute__((visibility("hidden"))) {

  // Matrices, vectors or scalars that a call reads or writes: `batches` of `columns` of `rows` elements, in device memory
  // or, if there is one of them, the host's.
  struct Operand {
    enum How : uint32_t { READS = 1, WRITES = 2, ON_HOST = 4, POINTERS = 8 };
    const char *name;  // as the call's documentation has it
    const void *at;    // POINTERS: of as many addresses as there are batches, in device memory
    uint32_t type;     // a cudaDataType
    uint32_t how;
    int64_t rows = 1, columns = 1, batches = 1;
    int64_t row_step = 1, column_step = 0, batch_step = 0;  // in elements
  };

  size_t size_of(uint32_t type);  // bytes of an element; 0: the emulator does not compute with it

  void called(const char *call);                                         // for the report of a crash
  void refuse(const char *call, int status, const std::string &reason);  // a status's reason in words
  bool broken();                                                         // a fault before: nothing works any more
  int compute_capability();                                              // 80: that of 8.0

  // Have compute.py do `operation` in a stream, or when the graph runs into which that is captured. `waits`: the host has its
  // result when this returns. Scalars of the host are read now.
  cudaError_t compute(const char *call, const char *operation, cudaStream_t stream, std::vector<Operand> operands,
                      std::vector<int64_t> numbers, bool waits);

  // Copies between the host and the device, as cudaMemcpy2DAsync.
  cudaError_t copy_matrix(const char *call, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                          size_t width, size_t height, bool to_device, cudaStream_t stream, bool waits);

}  // namespace emulator
