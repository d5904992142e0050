"""The GPU loader: a kernel.cu built by torch's load_inline, its launcher called through ctypes.

Only pointers, numbers and the stream are passed, in one piece, so that no torch header is compiled: a cold build takes
nvcc's time for the kernel alone. Builds are kept in the cache, keyed by everything that went into them.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from common import terminal, torch_private
from cudaemu import cpp
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import UserError
from cudaemu.hardware import Arch

# torch switches off the conversions and operators of half and __nv_bfloat16; a kernel.cu compiles as it would alone.
PLAIN_CUDA = [
    f"-U__CUDA_NO_{what}__"
    for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
]
ALIGNMENT = 256  # bytes, of tensors that share memory
NULL = struct.calcsize("P")  # bytes of a null pointer
OWN_VARIABLES = (
    "-Xcompiler=-fno-gnu-unique"  # static ones in templates are the process's, and not the build's, otherwise
)
FLAGS = ["-O3", "-lineinfo", "-std=c++17", OWN_VARIABLES, *PLAIN_CUDA]


def capability(device: torch.device | int | None = None) -> Arch | None:
    """The compute capability of a GPU (default: the current one); None where there is none."""
    if not torch.cuda.is_available():
        return None
    return Arch.of(torch.cuda.get_device_capability(device))


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """How many the GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


POINTER = "void *"
TYPES = {POINTER: "P", "int": "i", "long long": "q", "float": "f", "double": "d"}  # as the module struct has them


def signature(source: Path, symbol: str) -> dict[str, str]:
    """The parameters of a source's launcher, {name: one of TYPES}; the stream is a pointer.

    UserError if the source does not define it, or if it takes something else."""
    declared = cpp.exported(cpp.code(toolchain.read(source)), symbol)
    if declared is None:
        raise UserError(
            f'{source} does not export {symbol}: it must define extern "C" cudaError_t {symbol}(...) '
            "with the arguments that the stage's own kernel.cu has, or an exercise's TASK.md"
        )
    parameters: dict[str, str] = {}
    for kind, name in declared:
        plain = " ".join(kind.replace("const", " ").split())
        parameters[name] = POINTER if "*" in kind or plain == "cudaStream_t" else plain
        if parameters[name] not in TYPES:
            numbers = ", ".join(each for each in TYPES if each != POINTER)
            raise UserError(f"{source}: {symbol} must take pointers, {numbers}; got {name} as {plain}")
    return parameters


def entry(source: Path, symbol: str) -> str:
    """C++ of `launch_packed`, which Python calls: it takes the launcher's arguments in one piece, as struct packs them.

    ctypes converts arguments one by one: for 27 of them it took 2 of the 15 µs that a call may cost."""
    parameters = signature(source, symbol)
    members = " ".join(f"{kind} {name};" for name, kind in parameters.items())
    passed = ", ".join(f"packed->{name}" for name in parameters)
    return f"""struct Arguments {{ {members} }};
extern "C" int {symbol}({", ".join(parameters.values())});
extern "C" int launch_packed(const Arguments *packed) {{ return {symbol}({passed}); }}
"""


class Launcher:
    """An exported launcher of a built kernel, which takes addresses, then numbers, then the stream.

    UserError if the source has no such launcher."""

    def __init__(self, library: ctypes.CDLL, source: Path, symbol: str, label: str):
        self.parameters = signature(source, symbol)
        self.function = library.launch_packed
        self.function.argtypes = [ctypes.c_char_p]
        self.label = label
        self.error_string = library.cudaGetErrorString
        self.error_string.restype = ctypes.c_char_p

    def bind(
        self,
        device: torch.device,
        numbers: Sequence[int | float],
        outputs: Sequence[Tensor | None] = (),
        scratch: Sequence[Tensor | None] = (),
    ) -> Callable[..., list[Tensor]]:
        """`launch(*addresses)`: allocates tensors like `outputs` and `scratch`, launches with the addresses, theirs and
        the numbers, on torch's current stream of that GPU, and returns the outputs. None is a null pointer, as 0 is.

        A call does not wait for the kernel. UserError if CUDA refuses the launch, or if a number does not fit."""
        function, index = self.function, device.index
        empty_strided = torch_private.empty_strided(device.type)
        made = [(tuple(each.shape), each.stride(), each.dtype) for each in outputs if each is not None]
        size, offsets = _in_one_piece(scratch)
        pack, packed = self._packing(numbers, (*outputs, *scratch))
        current_device, current_stream = torch_private.current_device, torch_private.current_stream

        def launch(*addresses: int) -> list[Tensor]:
            if current_device() != index:
                with torch.cuda.device(device):
                    return launch(*addresses)
            results, places = [], []
            for each in made:  # a comprehension is a call, before Python 3.12
                result = empty_strided(*each)
                results.append(result)
                places.append(result.data_ptr())
            if size:
                memory = empty_strided((size,), (1,), torch.uint8)  # kept until all is launched: other threads allocate
                first = memory.data_ptr()
                places += [first + offset for offset in offsets]
            status = function(pack(*addresses, *places, packed, current_stream(index)))
            if status:
                raise UserError(
                    f"{self.label}: CUDA error {status}: {self.error_string(status).decode()}\n"
                    "The emulator names the launch and the limit: run the same with --device emulator"
                )
            return results

        return launch

    def _packing(
        self, numbers: Sequence[int | float], tensors: Sequence[Tensor | None]
    ) -> tuple[Callable[..., bytes], bytes]:
        """What packs all arguments into one piece, and the numbers, packed already; the last addresses are those of
        `tensors`, without those of None."""
        codes = [TYPES[kind] for kind in self.parameters.values()]
        first = len(codes) - 1 - len(numbers)
        try:
            packed = struct.pack("".join(codes[first:-1]), *numbers)
        except struct.error as error:
            names = dict(zip([*self.parameters][first:], numbers))
            raise UserError(f"{self.label}: the numbers must fit the launcher's types, got {names}: {error}") from error
        given = "P" * (first - len(tensors)) + "".join(f"{NULL}x" if each is None else "P" for each in tensors)
        return struct.Struct(f"{given}{len(packed)}sP").pack, packed


def _in_one_piece(tensors: Sequence[Tensor | None]) -> tuple[int, list[int]]:
    """(bytes of memory for all of them, where in it each begins that is not None)."""
    size, offsets = 0, []
    for each in tensors:
        if each is not None:
            offsets.append(size)
            size += -(-each.nbytes // ALIGNMENT) * ALIGNMENT
    return size, offsets


@contextmanager
def errors(label: str) -> Iterator[None]:
    """Turn CUDA errors that surface inside, at a synchronisation, into a UserError with the kernel's label."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(f"{label}: not enough memory on the GPU: {str(error).splitlines()[0]}") from error
    except RuntimeError as error:
        if "CUDA error" not in str(error):
            raise
        raise UserError(
            f"{label}: {str(error).splitlines()[0]}\n"
            "The emulator names the access, the thread and the line: run the same with --device emulator"
        ) from error


def load(source: Path, defines: Mapping[str, str], arch: str | Arch, label: str, symbol: str = "") -> ctypes.CDLL:
    """A kernel source's shared object, built for the compute capability `arch` if it is not in the cache.

    It has the entry of the launcher `symbol`, if one is given. UserError with nvcc's own message, in the lines of the
    source, if it does not compile."""
    target = Arch.of(arch).nvcc
    flags = [*FLAGS, f"-gencode=arch=compute_{target},code=sm_{target}"]
    flags += [f"-D{name}={value}" for name, value in defines.items()]
    nvcc = toolchain.find_nvcc()
    source = source.resolve()
    text, called = f'#line 1 "{source}"\n{toolchain.read(source)}', entry(source, symbol) if symbol else ""

    def build(directory: Path) -> None:
        with terminal.progress(f"building {label} for sm_{target}"):
            _build(text, called, flags, source.parent, nvcc, directory)

    key = [text, called, source, *flags, *toolchain.identity(toolchain.find_cxx(), nvcc), torch.__version__]
    return _open(cache.get("gpu", key, build, [source.parent, *toolchain.search_folders(())]) / "kernel.so")


@lru_cache
def _open(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def _build(text: str, called: str, flags: list[str], include: Path, nvcc: toolchain.Nvcc, directory: Path) -> None:
    """kernel.so in `directory`, from one CUDA source and the C++ of what is called in it, by load_inline."""
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
        cpp_extension.load_inline(
            name="kernel",
            cpp_sources=[called],
            cuda_sources=[text],
            extra_cuda_cflags=[*flags, "-MD", "-MF", "read.d"],  # in the place of torch's, which ninja removes
            extra_ldflags=[f"-L{directory}", "-Wl,-Bsymbolic"],  # every stage exports the same names
            extra_include_paths=[str(include)],
            build_directory=str(directory),
            with_cuda=True,
            is_python_module=False,
            no_implicit_headers=True,
        )
    except RuntimeError as error:
        raise UserError(_messages(str(error))) from error
    # torch numbers the later builds of a process (kernel_v1.so): all are called kernel.so here.
    next(directory.glob("kernel*.so")).rename(directory / "kernel.so")


def _messages(log: str) -> str:
    """What the compiler said, without ninja's commands and counting."""
    counting, command = r"\[\d+/\d+\]|FAILED:|ninja: |\d+ errors? detected", r"/\S*/(nvcc|\S*g?\+\+)( |$)"
    twice = "nvcc warning : incompatible redefinition for option 'dependency-output'"  # torch's, then ours: see _build
    noise = re.compile(rf"Error building extension|{counting}|{command}|{twice}")
    said = [line for line in log.splitlines() if line.strip() and not noise.match(line)]
    return "\n".join(said) or log
