"""What a source asks for that the compiler's CUDA or the emulator does not have, and what to write instead: sentences
below the compiler's own.

What CUDA 13 and 12 removed is in the release notes of CUDA 12.0 and 13.0 ("Deprecated and dropped features") and of
CCCL 3.0; each name is compiled in a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ATTRIBUTE = "cudaDeviceGetAttribute(&value, cudaDevAttr{}, device)"
# Fields of cudaDeviceProp.
_FIELDS = {
    "clockRate": _ATTRIBUTE.format("ClockRate"),
    "memoryClockRate": _ATTRIBUTE.format("MemoryClockRate"),
    "computeMode": _ATTRIBUTE.format("ComputeMode"),
    "kernelExecTimeoutEnabled": _ATTRIBUTE.format("KernelExecTimeout"),
    "singleToDoublePrecisionPerfRatio": _ATTRIBUTE.format("SingleToDoublePrecisionPerfRatio"),
    "deviceOverlap": "asyncEngineCount > 0",
    "maxTexture1DLinear": "cudaDeviceGetTexture1DLinearMaxWidth",
    "cooperativeMultiDeviceLaunch": "nothing: launches over several GPUs are gone",
}
_TEXTURE = "a texture object: cudaCreateTextureObject, a cudaTextureObject_t parameter, tex2D<float>(object, x, y)"
_STREAMS = "a launch on each GPU, and events"
_LOCATION = "a cudaMemLocation in place of the number of a device: {cudaMemLocationTypeDevice, device}, or " \
            "{cudaMemLocationTypeHost, 0} for cudaCpuDeviceId"  # fmt: skip
# Names of the runtime, the driver and device code.
_NAMES = {
    "cudaThreadSynchronize": "cudaDeviceSynchronize",
    "cudaThreadExit": "cudaDeviceReset",
    "cudaThreadSetLimit": "cudaDeviceSetLimit",
    "cudaThreadGetLimit": "cudaDeviceGetLimit",
    "cudaThreadSetCacheConfig": "cudaDeviceSetCacheConfig",
    "cudaThreadGetCacheConfig": "cudaDeviceGetCacheConfig",
    "cudaConfigureCall": "<<<grid, block>>>, or cudaLaunchKernel",
    "cudaSetupArgument": "<<<grid, block>>>, or cudaLaunchKernel",
    "cudaLaunch": "<<<grid, block>>>, or cudaLaunchKernel",
    "memoryType": "type, of cudaPointerAttributes",
    "isManaged": "type == cudaMemoryTypeManaged, of cudaPointerAttributes",
    "cudaLaunchCooperativeKernelMultiDevice": _STREAMS,
    "this_multi_grid": _STREAMS,
    "multi_grid_group": _STREAMS,
    "cudaProfilerInitialize": "cudaProfilerStart, cudaProfilerStop",
    "texture": _TEXTURE,
    "textureReference": _TEXTURE,
    "cudaBindTexture": _TEXTURE,
    "cudaBindTexture2D": _TEXTURE,
    "cudaBindTextureToArray": _TEXTURE,
    "cudaUnbindTexture": _TEXTURE,
    "cudaGetTextureReference": _TEXTURE,
    "surface": "a surface object: cudaCreateSurfaceObject",
    "cudaBindSurfaceToArray": "a surface object: cudaCreateSurfaceObject",
    **{
        f"__{name}": f"__{name}_sync(mask, ...), with the mask of the lanes that execute it: 0xffffffff for all"
        for name in ("shfl", "shfl_up", "shfl_down", "shfl_xor")
    },
}
_GONE_IN_12 = {name for name, instead in _NAMES.items() if "object" in instead or "_sync" in instead} | {
    "cudaConfigureCall",
    "cudaSetupArgument",
    "cudaLaunch",
    "cudaProfilerInitialize",
    "memoryType",
    "isManaged",
}
_OF_A_NAME = (
    r'identifier "((?:cuda|__)\w+|textureReference)" is undefined',
    r'(?:namespace "cooperative_groups"|class "cudaPointerAttributes") has no member "(\w+)"',
    r"error: (texture|surface) is not a template",
)
# Functions whose parameters changed: said where the compiler shows the call.
_CALLS = {
    "cudaMemAdvise": _LOCATION,
    "cudaMemPrefetchAsync": f"{_LOCATION}; and flags, 0, before the stream",
    "cudaGraphAddDependencies": "an array of cudaGraphEdgeData, or nullptr, before the number",
    "cudaGraphRemoveDependencies": "an array of cudaGraphEdgeData, or nullptr, before the number",
    "cudaGraphGetEdges": "an array of cudaGraphEdgeData, or nullptr, before the number",
    "cudaGraphNodeGetDependencies": "an array of cudaGraphEdgeData, or nullptr, before the number",
    "cudaGraphNodeGetDependentNodes": "an array of cudaGraphEdgeData, or nullptr, before the number",
    "cudaStreamUpdateCaptureDependencies": "an array of cudaGraphEdgeData, or nullptr, before the number",
    "cuCtxCreate": "cuCtxCreate(&context, nullptr, flags, device), or cuDevicePrimaryCtxRetain",
}
# Of Thrust and CUB.
_TEMPLATES = {
    "thrust": {
        "identity": "cuda::std::identity",
        "unary_function": "nothing: no base class is needed",
        "binary_function": "nothing: no base class is needed",
        "optional": "cuda::std::optional",
        "not1": "cuda::std::not_fn",
        "not2": "cuda::std::not_fn",
        "unary_traits": "nothing, or decltype",
        "binary_traits": "nothing, or decltype",
    },
    "cub": {
        "Sum": "cuda::std::plus<>",
        "Difference": "cuda::std::minus<>",
        "Division": "cuda::std::divides<>",
        "Max": "cuda::maximum<>",
        "Min": "cuda::minimum<>",
        "Equality": "cuda::std::equal_to<>",
        "Inequality": "cuda::std::not_equal_to<>",
        "CountingInputIterator": "thrust::counting_iterator",
        "ConstantInputIterator": "thrust::constant_iterator",
        "TransformInputIterator": "thrust::transform_iterator",
        "DiscardOutputIterator": "thrust::discard_iterator",
        "Int2Type": "cuda::std::integral_constant",
        "If": "cuda::std::conditional_t",
        "Equals": "cuda::std::is_same",
        "CTA_SYNC": "__syncthreads()",
        "WARP_SYNC": "__syncwarp(mask)",
        "AliasTemporaries": "an offset into one block of memory for each part",
        "GridBarrier": "cooperative_groups::this_grid().sync()",
        "GridBarrierLifetime": "cooperative_groups::this_grid().sync()",
    },
}

# Libraries and interfaces without a stand-in, or of which it has a part: headers, functions, and what is possible.
_REFERENCE = "compute the reference on the host, or run the program on a GPU"
_IMAGES = "copies to the host (cudaMemcpy), and files of images"
_ONE_GPU = "one GPU is emulated: leave the exchange out, or run the program on several GPUs"
_LIBRARIES = [
    ("such part of cuBLAS", r"cublas\w*", r"cublas", _REFERENCE),
    ("such part of cuRAND", r"curand\w*", r"curand", "random numbers of the host, or a generator in the kernel"),
    ("cuDNN", r"cudnn\w*", r"cudnn", _REFERENCE),
    ("cuSOLVER", r"cusolver\w*", r"cusolver", "LAPACK on the host, or a GPU"),
    ("cuSPARSE", r"cusparse\w*", r"cusparse", _REFERENCE),
    ("cuFFT", r"cufft\w*", r"cufft", "FFTW or a plain sum on the host, or a GPU"),
    ("NCCL", r"nccl\w*", r"p?nccl[A-Z]", _ONE_GPU),
    ("NVSHMEM", r"nvshmemx?", r"nvshmem", _ONE_GPU),
    ("NPP", r"nppi?\w*", r"npp[is]?[A-Z]", "image functions of the host, or a GPU"),
    ("nvJPEG", r"nvjpeg\w*", r"nvjpeg", "images in PGM, PPM or raw bytes, which the host reads"),
    ("NVRTC", r"nvrtc\w*", r"nvrtc", "kernels that nvcc compiles with the program"),
    ("NVML", r"nvml", r"nvml", "nothing: there is no GPU to ask"),
    ("CUPTI", r"cupti\w*", r"cupti", "the emulator's own counters: cudaemu --counters, Report.counters"),
    ("OptiX", r"optix\w*", r"optix", "a GPU"),
    ("OpenGL", r"(GL|GLES\d?|GLFW)/\w+|cuda_gl_interop|cudaGL|helper_gl|rendercheck_gles?|paramgl",
     r"cudaGraphics|cuGraphics|cudaGL|cuGL|gl[A-Z]|glut[A-Z]", _IMAGES),
    ("EGL", r"EGL/\w+|cudaEGL|cuda_egl_interop", r"cudaEGL|cuEGL|egl[A-Z]", _IMAGES),
    ("Vulkan", r"vulkan/\w+", r"vk[A-Z]", _IMAGES),
    ("launch over several GPUs", r"(?!)", r"cu(da)?LaunchCooperativeKernelMultiDevice", "a launch for each GPU"),
    ("Direct3D", r"d3d\w+|cuda_d3d\w+|rendercheck_d3d\w+", r"cudaD3D|cuD3D", _IMAGES),
]  # fmt: skip


def explained(said: str, release: str) -> list[str]:
    """Sentences for what an nvcc of that CUDA release complains about, in the order of its complaints."""
    major = int(release.partition(".")[0])
    hints = list(dict.fromkeys(each for line in _messages(said) for each in _of_message(line, major)))
    if major > 12 and any(f" CUDA {major}. Instead" in hint for hint in hints):
        hints.append('Or with the headers of CUDA 12, which had them: --cuda 12, or cuda="12"')
    return hints


def library(names: list[str]) -> str | None:
    """What to do about functions of libraries that the linker did not find; None if none of them is known."""
    for name, _, functions, instead in _LIBRARIES:
        if any(re.match(rf"_*(?:{functions})", each) for each in names):
            return f"The emulator has no {name}. What is possible: {instead}"
    return None


def _messages(said: str) -> Iterator[str]:
    """Each error with the line of source that is quoted below it."""
    for part in re.split(r"(?m)^(?=\S.*?(?::\d+|\(\d+\)): (?:fatal |catastrophic )?error)", said):
        if re.search(r"\berror\b", part):
            yield part


def _of_message(message: str, major: int) -> Iterator[str]:
    header = re.search(r'error: (\S+): No such file|could not open source file "([^"]+)"', message)
    if header:
        yield from _of_header(header[1] or header[2])
        return
    field = re.search(r'class "cudaDeviceProp" has no member "(\w+)"', message)
    if field and field[1] in _FIELDS:
        yield f"cudaDeviceProp::{field[1]} is not in CUDA {major}. Instead: {_FIELDS[field[1]]}"
        return
    scoped = re.search(r'"(thrust|cub)(?:::\w+)*" has no member (?:class )?"(\w+)"', message)
    if scoped and scoped[2] in _TEMPLATES[scoped[1]]:
        yield f"{scoped[1]}::{scoped[2]} is not in CUDA {major}. Instead: {_TEMPLATES[scoped[1]][scoped[2]]}"
        return
    for pattern in _OF_A_NAME:
        name = re.search(pattern, message)
        if name and name[1] in _NAMES:
            since = "12 and newer" if name[1] in _GONE_IN_12 else str(major)
            yield f"{name[1]} is not in CUDA {since}. Instead: {_NAMES[name[1]]}"
            return
    if re.search(r"too few arguments|cudaMemLocation|cudaGraphEdgeData|CUctxCreateParams", message):
        for call, instead in _CALLS.items():
            if re.search(rf"\b{call}(_v\d)?\b", message):
                yield f"{call} has other parameters since CUDA {major}. Instead: {instead}"
                return


# Headers of CUDA that kernels or host code use as they are, in packages of their own.
_PACKAGES = {
    r"nvtx3/\S+": "nvidia-nvtx",
    r"curand_\w+\.h": "nvidia-curand",
    r"(cub|thrust|cuda|nv)/\S+": "nvidia-cuda-cccl",
}
_MOVED = {
    "nvToolsExt.h": "NVTX 2 is not in CUDA 13 and newer. Instead: #include <nvtx3/nvToolsExt.h>, of pip's nvidia-nvtx",
    "thrust/optional.h": "thrust::optional is not in CUDA 13. Instead: cuda::std::optional of <cuda/std/optional>",
}


def _of_header(header: str) -> Iterator[str]:
    if header in _MOVED:
        yield _MOVED[header]
        return
    for pattern, package in _PACKAGES.items():
        if re.fullmatch(pattern, header):
            yield f"{header} is NVIDIA's own, a header that runs here: pip install {package}, beside nvcc"
            return
    if re.match(r"cut(lass|e)/", header):
        yield f"{header} is CUTLASS's, a library of headers: -I FOLDER/cutlass/include"
    for name, headers, _, instead in _LIBRARIES:
        if re.fullmatch(rf"(?:{headers})(?:\.h(?:pp|xx)?)?", header):
            yield f"The emulator has no {name}. What is possible: {instead}"
            return
