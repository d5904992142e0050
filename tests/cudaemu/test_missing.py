"""What a source asks for that this CUDA or the emulator does not have: what to write instead is said, too."""

from __future__ import annotations

import pytest

import cudaemu
from cudaemu import missing
from cudaemu.errors import UserError
from tests.cudaemu.sources import source


def said_of(text: str, name: str) -> str:
    """What is said of a source that does not compile."""
    with pytest.raises(UserError) as error:
        cudaemu.program(source(text, name))
    return str(error.value)


REMOVED = r"""
#include <cooperative_groups.h>
#include <cuda.h>
#include <cstdio>
texture<float, 1, cudaReadModeElementType> values;
int main() {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, 0);
  printf("%d %d\n", p.clockRate, p.memoryClockRate);
  printf("%d %d\n", p.computeMode, p.kernelExecTimeoutEnabled);
  printf("%d %d\n", p.singleToDoublePrecisionPerfRatio, p.deviceOverlap);
  printf("%d %d\n", p.maxTexture1DLinear, p.cooperativeMultiDeviceLaunch);
  cudaThreadSynchronize();
  cudaThreadExit();
  cudaThreadSetCacheConfig(cudaFuncCachePreferL1);
  float *x = nullptr;
  cudaMemAdvise(x, 4, cudaMemAdviseSetReadMostly, 0);
  cudaMemPrefetchAsync(x, 4, 0, nullptr);
  cudaGraph_t graph;
  cudaGraphNode_t node;
  cudaGraphAddDependencies(graph, &node, &node, 1);
  cudaGraphNodeGetDependencies(node, &node, nullptr);
  CUcontext context;
  cuCtxCreate(&context, 0, 0);
  cudaBindTexture(0, values, x, 4);
  cudaUnbindTexture(values);
  cudaLaunchCooperativeKernelMultiDevice(nullptr, 1);
  cudaPointerAttributes attributes;
  printf("%d\n", attributes.isManaged);
}
"""
SHUFFLES = "__global__ void k(int *x) { x[0] = __shfl(x[1], 0) + __shfl_xor(x[0], 1) + __shfl_down(x[2], 1); }"
TEMPLATES = r"""
#include <cub/cub.cuh>
#include <thrust/functional.h>
struct F : thrust::unary_function<int, int> {};
thrust::identity<int> same;
cub::Sum sum;
cub::Max most;
cub::CountingInputIterator<int> from(0);
__global__ void k() { cub::CTA_SYNC(); }
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "hints"),
    [
        (
            REMOVED,
            {
                "cudaDeviceProp::clockRate": "cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, device)",
                "cudaDeviceProp::memoryClockRate": "cudaDevAttrMemoryClockRate",
                "cudaDeviceProp::computeMode": "cudaDevAttrComputeMode",
                "cudaDeviceProp::kernelExecTimeoutEnabled": "cudaDevAttrKernelExecTimeout",
                "cudaDeviceProp::singleToDoublePrecisionPerfRatio": "cudaDevAttrSingleToDoublePrecisionPerfRatio",
                "cudaDeviceProp::deviceOverlap": "asyncEngineCount",
                "cudaDeviceProp::maxTexture1DLinear": "cudaDeviceGetTexture1DLinearMaxWidth",
                "cudaDeviceProp::cooperativeMultiDeviceLaunch": "nothing",
                "cudaThreadSynchronize": "cudaDeviceSynchronize",
                "cudaThreadExit": "cudaDeviceReset",
                "cudaThreadSetCacheConfig": "cudaDeviceSetCacheConfig",
                "cudaMemAdvise": "cudaMemLocation",
                "cudaMemPrefetchAsync": "0, before the stream",
                "cudaGraphAddDependencies": "cudaGraphEdgeData",
                "cudaGraphNodeGetDependencies": "cudaGraphEdgeData",
                "cuCtxCreate": "cuCtxCreate(&context, nullptr, flags, device)",
                "texture": "cudaCreateTextureObject",
                "cudaBindTexture": "cudaCreateTextureObject",
                "cudaUnbindTexture": "cudaCreateTextureObject",
                "cudaLaunchCooperativeKernelMultiDevice": "a launch on each GPU",
                "isManaged": "cudaMemoryTypeManaged",
            },
        ),
        (SHUFFLES, {f"__{name}": f"__{name}_sync(mask, ...)" for name in ("shfl", "shfl_xor")}),
        (
            TEMPLATES,
            {
                "thrust::unary_function": "no base class",
                "thrust::identity": "cuda::std::identity",
                "cub::Sum": "cuda::std::plus<>",
                "cub::Max": "cuda::maximum<>",
                "cub::CountingInputIterator": "thrust::counting_iterator",
                "cub::CTA_SYNC": "__syncthreads()",
            },
        ),
    ],
    ids=["runtime", "shuffles", "templates"],
)
def test_what_was_removed_says_what_to_write(text, hints):
    lines = said_of(text, f"removed_{len(hints)}").splitlines()
    for name, instead in hints.items():
        found = [line for line in lines if line.startswith(f"{name} ") and "Instead: " in line]
        assert len(found) == 1 and instead in found[0], (name, found)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("cudnn.h", "cuDNN"),
        ("cudnn_frontend.h", "cuDNN"),
        ("cusolverDn.h", "cuSOLVER"),
        ("cusparse.h", "cuSPARSE"),
        ("cufft.h", "cuFFT"),
        ("cufftXt.h", "cuFFT"),
        ("nccl.h", "NCCL"),
        ("nppi.h", "NPP"),
        ("npp.h", "NPP"),
        ("nvjpeg.h", "nvJPEG"),
        ("GL/glew.h", "OpenGL"),
        ("cuda_gl_interop.h", "OpenGL"),
        ("nvrtc.h", "NVRTC"),
    ],
)
def test_the_header_of_a_library_that_is_not_there(header, name):
    said = f"main.cu:1:10: fatal error: {header}: No such file or directory\n    1 | #include <{header}>"
    (hint,) = missing.explained(said, "13.0")
    assert hint.startswith(f"The emulator has no {name}. What is possible: ")
    assert missing.explained(said.replace(header, "mine.h"), "13.0") == []


@pytest.mark.parametrize(
    ("header", "instead"),
    [
        ("nvToolsExt.h", "nvtx3/nvToolsExt.h"),
        ("thrust/optional.h", "cuda/std/optional"),
        ("nvtx3/nvToolsExt.h", "pip install nvidia-nvtx"),
        ("curand_kernel.h", "pip install nvidia-curand"),
        ("cub/cub.cuh", "pip install nvidia-cuda-cccl"),
        ("cutlass/gemm/device/gemm.h", "-I FOLDER/cutlass/include"),
    ],
)
def test_a_header_that_is_elsewhere(header, instead):
    assert instead in missing.explained(f"main.cu:1:10: fatal error: {header}: No such file or directory", "13.0")[0]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("cudnnCreate", "cuDNN"),
        ("cusolverDnCreate", "cuSOLVER"),
        ("cusparseCreate", "cuSPARSE"),
        ("cufftPlan1d", "cuFFT"),
        ("ncclCommInitAll", "NCCL"),
        ("nppiFilter_8u", "NPP"),
        ("cudaGraphicsGLRegisterBuffer", "OpenGL"),
    ],
)
def test_a_function_of_a_library_that_is_not_there(function, name):
    assert missing.library(["mine", function]).startswith(f"The emulator has no {name}. ")
    assert missing.library(["mine", "cudaMalloc", "neither"]) is None


@pytest.mark.full
def test_what_a_program_with_a_library_is_told():
    said = said_of("#include <cudnn.h>\nint main() {}\n", "with_cudnn")
    assert "cudnn.h: No such file" in said and "The emulator has no cuDNN. What is possible: compute the " in said
    said = said_of('extern "C" int cufftDestroy(int);\nint main() { return cufftDestroy(0); }\n', "with_cufft")
    assert "calls cufftDestroy (with_cufft.cu:2).\nThe emulator has no cuFFT. What is possible: " in said


def test_names_of_the_programs_own_get_no_hint():
    for said in ('identifier "texture" is undefined', 'class "Image" has no member "texture"', "too few arguments"):
        assert missing.explained(f"main.cu(3): error: {said}\n    load(texture);\n", "13.0") == []
