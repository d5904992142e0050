"""Running a kernel on the GPU: its source built by torch's load_inline, its launcher called through ctypes.

Only pointers, sizes and the stream cross the border, so that no torch header is compiled: a cold build is nvcc's time
for the kernel alone. Builds are kept in the cache, named by all that went into them.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from common import terminal, toolchain
from common.errors import UserError
from common.stage import Kernel, Stage, read

# torch switches off the conversions and operators of half and __nv_bfloat16; a kernel.cu compiles as it would alone.
PLAIN_CUDA = [
    f"-U__CUDA_NO_{what}__"
    for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
]
FLAGS = ["-O3", "-lineinfo", "-std=c++17", *PLAIN_CUDA]
CTYPES = {int: ctypes.c_int, float: ctypes.c_float}

Tensors = tuple[Tensor, ...]


def unfit(stage: Stage) -> str | None:
    """Why this machine cannot run the stage on a GPU, or None if it can."""
    if not torch.cuda.is_available():
        return "No GPU"
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor < stage.min_arch:
        return (
            f"{stage.name} needs compute capability {stage.min_arch / 10:.1f} or newer, "
            f"and {torch.cuda.get_device_name()} has {major}.{minor}"
        )
    return None


def announce(stage: Stage) -> None:
    """Say, once, that the emulator runs the stage, and why."""
    terminal.announce(f"{unfit(stage)}: running in the emulator (all but the times is as on a GPU).")


def bind(kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Callable[[], None]:
    """Build the kernel and tie it to CUDA tensors: each call of the result launches it on torch's current stream.

    A call does not wait for the kernel. UserError if the source does not build, or if a launch is refused."""
    arguments, symbol = kernel.arguments(inputs, outputs)
    device = inputs[0].device
    library = load(kernel, device)
    try:
        launcher = getattr(library, symbol)
    except AttributeError:
        raise UserError(
            f'{kernel.source} does not export {symbol}: it must define extern "C" cudaError_t {symbol}(...) '
            f"with the arguments that it has in {kernel.stage.source}"
        ) from None
    values = [
        ctypes.c_void_p(value.data_ptr()) if isinstance(value, Tensor) else CTYPES[type(value)](value)
        for value in arguments.values()
    ]
    library.cudaGetErrorString.restype = ctypes.c_char_p
    kept = (*inputs, *outputs)  # the addresses in `values` stay valid as long as the closure lives

    def launch() -> None:
        with torch.cuda.device(kept[0].device):
            status = launcher(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if status:
            raise UserError(f"{kernel.label}: CUDA error {status}: {library.cudaGetErrorString(status).decode()}")

    return launch


def run(kernel: Kernel, prepare: Callable[[], tuple[Tensors, Tensors]]) -> tuple[Tensors, Tensors]:
    """Run the kernel once, to its end, on the CUDA inputs and outputs that `prepare` makes; returns both.

    UserError for what CUDA complains about, with the kernel's name."""
    with errors(kernel):
        inputs, outputs = prepare()
        bind(kernel, inputs, outputs)()
        torch.cuda.synchronize()
    return inputs, outputs


@contextmanager
def errors(kernel: Kernel) -> Iterator[None]:
    """Turn CUDA errors that surface inside, at a synchronisation, into a UserError with the kernel's name."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(f"{kernel.label}: not enough memory on the GPU: {str(error).splitlines()[0]}") from error
    except RuntimeError as error:
        if "CUDA error" not in str(error):
            raise
        raise UserError(
            f"{kernel.label}: {str(error).splitlines()[0]}\n"
            "The emulator names the access, the thread and the line: run the same with --device emulator"
        ) from error


def load(kernel: Kernel, device: torch.device | int | None = None) -> ctypes.CDLL:
    """The kernel's shared object, built for the GPU `device` if it is not in the cache.

    UserError with nvcc's own message, in the lines of the kernel's source, if it does not compile."""
    major, minor = torch.cuda.get_device_capability(device)
    arch = f"{major}{minor}"
    flags = [*FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    flags += [f"-D{name}={value}" for name, value in kernel.defines.items()]
    nvcc = toolchain.find_nvcc()
    source = kernel.source.resolve()
    text = f'#line 1 "{source}"\n{read(source)}'

    def build(directory: Path) -> None:
        with terminal.progress(f"building {kernel.label} for sm_{arch}"):
            _build(text, flags, source.parent, nvcc, directory)

    key = [*toolchain.source_texts(source), source, *flags, nvcc.path, nvcc.release, torch.__version__]
    return _open(toolchain.cached("gpu", key, build) / "kernel.so")


@lru_cache
def _open(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def _build(text: str, flags: list[str], include: Path, nvcc: toolchain.Nvcc, directory: Path) -> None:
    """kernel.so in `directory`, from one CUDA source, by load_inline."""
    if not shutil.which("ninja"):
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        if not shutil.which("ninja"):
            raise UserError("no ninja found, which torch builds kernels with. Install it: pip install ninja")
    toolchain.find_cxx()
    from torch.utils import cpp_extension  # a second of imports that only a build needs

    cpp_extension.CUDA_HOME = str(nvcc.home)  # what torch found by itself may be another toolkit, or none
    if not (nvcc.lib / "libcudart.so").exists():  # the pip packages have only the versioned name
        for versioned in nvcc.lib.glob("libcudart.so.*"):
            (directory / "libcudart.so").symlink_to(versioned)
    try:
        built = cpp_extension.load_inline(
            name="kernel",
            cpp_sources=[""],
            cuda_sources=[text],
            extra_cuda_cflags=flags,
            extra_ldflags=[f"-L{directory}", "-Wl,-Bsymbolic"],  # every stage exports the same names
            extra_include_paths=[str(include)],
            build_directory=str(directory),
            with_cuda=True,
            is_python_module=False,
            no_implicit_headers=True,
        )
    except RuntimeError as error:
        raise UserError(_messages(str(error))) from error
    Path(built).rename(directory / "kernel.so")  # torch numbers the libraries that one process builds
    # torch numbers the later builds of a process (kernel_v1.so): all are called kernel.so here.
    next(directory.glob("kernel*.so")).rename(directory / "kernel.so")


def _messages(log: str) -> str:
    """What the compiler said, without ninja's commands and counting."""
    counting, command = r"\[\d+/\d+\]|FAILED:|ninja: |\d+ errors? detected", r"/\S*/(nvcc|\S*g?\+\+)( |$)"
    noise = re.compile(rf"Error building extension|{counting}|{command}")
    said = [line for line in log.splitlines() if line.strip() and not noise.match(line)]
    return "\n".join(said) or log
