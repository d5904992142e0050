"""Numba, CuPy, cuda.core, CuTe DSL: what has to be said to them, so that they give PTX with lines to the driver.

NVIDIA's compilers in them would make machine code. So a library of ours stands before NVRTC and nvJitLink
(host/libnvrtc.cpp, host/libnvjitlink.cpp): loaded first, by the same name. The rest are environment variables, and
options that modules get as they are imported.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.abc
import importlib.util
import linecache
import os
import re
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol

import numpy as np

from cudaemu.compiler import cache, toolchain
from cudaemu.errors import UserError
from cudaemu.memory import PAGE
from cudaemu.process import HERE

# Their own files are not the user's.
PACKAGES = {"cuda", "cupy", "cupyx", "cupy_backends", "cutlass", "nvidia_cutlass_dsl", "numba", "numba_cuda"}
COMPILERS = {"libnvrtc.so": "libnvrtc.cpp", "libnvJitLink.so": "libnvjitlink.cpp"}
FLAGS = ["-shared", "-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden"]


class Device(Protocol):
    """What a front end wants of the device for tensors of torch."""

    def use_torch(self) -> None:
        """torch is there: its CUDA device is the CPU from now on."""

    def lend(self, tensor: Any) -> object:
        """A tensor as an array of the GPU's, for DLPack, whose memory kernels may touch from now on."""


def prepare(device: Device, driver: Path) -> None:
    """Settle what the front ends find when they are imported; `driver` is the library of the driver's stand-in."""
    for name, source in COMPILERS.items():
        for real in _installed(name):
            flags = [*FLAGS, f"-Wl,-soname,{real.name}"]
            loaded = ctypes.CDLL(str(toolchain.compile_cxx(HERE / source, flags, name, after=["-ldl"])))
            loaded.emulator_real(str(real).encode())
            if name == "libnvrtc.so":
                loaded.emulator_sources(_WHERE)
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # with lines of this source
    os.environ["CUPY_ACCELERATORS"] = ""  # they are machine code
    os.environ["CUTE_DSL_LIBS"] = str(driver)  # what CuTe DSL's host code calls (host/cute.h)
    os.environ["CUTE_DSL_LINEINFO"] = "1"
    _devices[:] = [device]
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
    for module, change in CHANGES.items():
        if module in sys.modules:
            change(sys.modules[module])


_devices: list[Device] = []  # the one that is emulated


def _installed(name: str) -> Iterator[Path]:
    """The libraries of that name in pip's packages, one for each release, and in the toolkit."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(root) for root in (spec and spec.submodule_search_locations) or ()]
    found = [path for folder in folders for path in sorted(folder.glob(f"*/lib/{name}.*"))]
    if home := os.environ.get("CUDA_HOME"):
        found += sorted(Path(home).glob(f"lib64/{name}.*"))
    named: set[str] = set()
    for path in found:
        if re.fullmatch(rf"{re.escape(name)}\.\d+", path.name) and path.name not in named:
            named.add(path.name)
            yield path


def is_users(file: str) -> bool:
    """Whether a file is the user's: none of Python's own, of the emulator or of the front ends (but their tests)."""
    if file not in _users:
        _users[file] = _is_users(file)
    return _users[file]


_users: dict[str, bool] = {}


def _is_users(file: str) -> bool:
    path = Path(file)
    if file.startswith("<") or path.is_relative_to(HERE.parent):
        return False
    for scheme in ("purelib", "platlib"):
        folder = Path(sysconfig.get_path(scheme))
        if path.is_relative_to(folder):
            parts = path.relative_to(folder).parts
            return "tests" in parts or parts[0] not in PACKAGES
    return not path.is_relative_to(sysconfig.get_path("stdlib"))


def users_frames() -> Iterator[FrameType]:
    """The frames of the user's code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@lru_cache(maxsize=4096)
def _directive(source: str, files: tuple[str, ...]) -> ctypes.Array[ctypes.c_char]:
    """Where NVRTC shall say that a source's lines are: in the Python file that has it as text, or in a copy."""
    for file in files:
        before, found, _ = "".join(linecache.getlines(file)).partition(source)
        if found:
            return _line(before.count("\n") + 1, file)
    name = re.search(r"__global__[^;{(]*?(\w+)\s*\(", source)
    folder = cache.folder() / "front ends" / hashlib.sha256(source.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{name[1] if name else 'kernel'}.cu"
    copy.write_text(source, encoding="utf-8", errors="surrogateescape")
    return _line(1, copy)


def _line(number: int, file: Path | str) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(f'#line {number} "{file}"\n'.encode(errors="surrogateescape"))


def _where(source: bytes, _name: bytes) -> int | None:
    if not source.strip():
        return None
    files = tuple(dict.fromkeys(frame.f_code.co_filename for frame in users_frames()))
    return ctypes.addressof(_directive(source.decode(errors="surrogateescape"), files))  # lru_cache holds it


_WHERE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)(_where)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Changes a module of CHANGES as soon as it is imported."""

    def __init__(self) -> None:
        self.busy = False

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in CHANGES or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.busy = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def then(module: ModuleType) -> None:
            execute(module)
            CHANGES[fullname](module)

        spec.loader.exec_module = then  # type: ignore[method-assign]
        return spec


# ---- a CUDA runtime within an extension module ----------------------------------------------------------------------

_LEAP = {  # an instruction that goes on at the address behind it
    "x86_64": bytes.fromhex("ff2500000000"),
    "aarch64": bytes.fromhex("5000005800021fd6"),
}
_SYMBOL = np.dtype([("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("at", "u8"), ("size", "u8")])


def _static_runtime(module: ModuleType) -> None:
    """Have the functions of the CUDA runtime that was linked into an extension module go on in the stand-in's. NVIDIA's
    own asks the driver for tables that are not documented. They are found by their names in the file's symbols."""
    file = Path(str(module.__file__)).resolve()
    base, length = _where_loaded(file), len(_leap(0))
    functions = _functions(file).items() if base is not None else ()
    _lead_away({name: (base or 0) + at for name, (at, size) in functions if size >= length})


def _bindings_runtime(module: ModuleType) -> None:
    """The same where the functions around the runtime's are known: those that other modules of Cython call."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    capsules = module.__pyx_capi__
    _lead_away({each.removeprefix("_"): get(made, name(made)) for each, made in capsules.items()})


def _leap(to: int) -> bytes:
    return _LEAP.get(os.uname().machine, b"") + to.to_bytes(8, "little")


def _lead_away(functions: Mapping[str, int]) -> None:
    """Have functions of the CUDA runtime, by name and address, begin with a leap to the stand-in's."""
    driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    driver.emulator_absent.restype = ctypes.c_void_p
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for name, at in functions.items():
        if not re.match(r"(__)?cuda[A-Z]", name) or os.uname().machine not in _LEAP:
            continue
        try:
            there = ctypes.cast(getattr(driver, name), ctypes.c_void_p).value
        except AttributeError:
            there = driver.emulator_absent(name.encode())
        code = _leap(int(there or 0))
        first = at // PAGE * PAGE
        pages = at + len(code) - first
        if libc.mprotect(first, pages, 7) != 0:  # read, write, execute
            raise UserError(f"the CUDA runtime's {name} cannot be replaced: {os.strerror(ctypes.get_errno())}")
        ctypes.memmove(at, code, len(code))
        libc.mprotect(first, pages, 5)


def _where_loaded(file: Path) -> int | None:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        starts = (line.split(maxsplit=5) for line in maps)
        return next((int(each[0].partition("-")[0], 16) for each in starts if each[5:] == [f"{file}\n"]), None)


def _functions(file: Path) -> dict[str, tuple[int, int]]:
    """Offset and size of each function in an object's table of symbols."""
    data: Any = np.memmap(file, np.uint8, mode="r")
    (sections,), (each, count) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<HH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + each * n) for n in range(count)]
    for _, kind, _, _, offset, size, names, *_ in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        symbols = np.frombuffer(data[offset : offset + size], _SYMBOL)
        text = data[headers[names][4] :][: headers[names][5]].tobytes()
        functions = symbols[(symbols["info"] & 15 == 2) & (symbols["section"] != 0)]
        return {
            text[int(row["name"]) : text.index(0, int(row["name"]))].decode(): (int(row["at"]), int(row["size"]))
            for row in functions
        }
    return {}


def _cupy(module: ModuleType) -> None:
    """Each array is an allocation of its own, so that what lies beside it is not another."""
    module.cuda.set_allocator(None)
    module.cuda.set_pinned_memory_allocator(None)


def _cupy_compiler(module: ModuleType) -> None:
    """What nvcc makes for CuPy is PTX, too."""
    before = module.compile_using_nvcc

    def compiled(
        source: Any,
        options: Any = (),
        arch: Any = None,
        filename: str = "kern.cu",
        code_type: str = "cubin",
        **more: Any,
    ) -> Any:
        if more.get("separate_compilation"):
            raise UserError("the emulator does not have CuPy's relocatable device code by nvcc")
        ptx = before(source, (*options, "-lineinfo"), arch, filename, "ptx", **more)
        return ptx.encode() if code_type == "cubin" and isinstance(ptx, str) else ptx

    vars(module)["compile_using_nvcc"] = compiled


def _numba(module: ModuleType) -> None:
    """Kernels have lines: those of a debugger, or else these, unless Numba cannot make them."""
    before, make = module.CUDADispatcher.__init__, module._Kernel.__init__

    def init(self: Any, py_func: Any, targetoptions: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        targetoptions["lineinfo"] = not targetoptions.get("debug")
        targetoptions["lto"] = False  # so what is linked is PTX, too, and all of it keeps its lines
        before(self, py_func, targetoptions, *args, **kwargs)

    def kernel(self: Any, py_func: Any, argtypes: Any, **kwargs: Any) -> None:
        try:
            make(self, py_func, argtypes, **kwargs)
        except (ArithmeticError, LookupError, AttributeError):  # of a tuple of nothing, for one
            make(self, py_func, argtypes, **{**kwargs, "lineinfo": False})

    module.CUDADispatcher.__init__, module._Kernel.__init__ = init, kernel


def _numba_codegen(module: ModuleType) -> None:
    """What Numba keeps on disk for the emulator is not what a GPU gets."""
    before = module.JITCUDACodegen.magic_tuple
    module.JITCUDACodegen.magic_tuple = lambda self: (*before(self), "cudaemu")


def _cute_compiler(module: ModuleType) -> None:
    """What CuTe DSL's compiler puts into a module as machine code is PTX, and so is what it keeps of that in files."""
    before = module.Compiler.compile

    def compiled(self: Any, given: Any, pipeline: str, *args: Any, **kwargs: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            kept = dict(re.findall(r"dump-(ptx|cubin)-path='?([^'\s}]+)", pipeline))
            if "ptx" not in kept:
                kept["ptx"] = f"{folder}/kernels"
                pipeline = pipeline.replace("cubin-format=bin", f"cubin-format=bin dump-ptx-path={kept['ptx']}")
            made = before(self, given, pipeline, *args, **kwargs)
            files = {kind: sorted(Path(path).parent.glob(f"{Path(path).name}.*.{kind}")) for kind, path in kept.items()}
            if files["ptx"]:
                text = files["ptx"][0].read_bytes()
                _put_ptx(given, text)
                for file in files.get("cubin", ()):
                    file.write_bytes(text)
        return made

    module.Compiler.compile = compiled


def _put_ptx(compiled: Any, text: bytes) -> None:
    """In place of the machine code in a module of LLVM's dialect."""
    ir = importlib.import_module("cutlass._mlir.ir")
    content = text + b"\0"
    with compiled.context:
        for each in compiled.body.operations:
            if each.operation.name == "llvm.mlir.global" and str(each.attributes["sym_name"]) == '"kernels_binary"':
                each.attributes["value"] = ir.StringAttr.get(content)
                each.attributes["global_type"] = ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{len(content)} x i8>"))


def _cute_runtime(module: ModuleType) -> None:
    """Kernels may touch the memory of tensors of torch that become CuTe's."""
    before = module._Tensor.__init__

    def init(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
        before(self, _lent(tensor), *args, **kwargs)

    module._Tensor.__init__ = init


def _cute_tvm(module: ModuleType) -> None:
    """The same where functions are called by TVM's convention."""

    def lending(before: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return before(self, *map(_lent, args), **{name: _lent(value) for name, value in kwargs.items()})

        return call

    for owner in (module.TVMFFIJitCompiledFunction, module.TVMFFIJitCompiledFunctionWithKwargs):
        owner.__call__ = lending(owner.__call__)


def _lent(value: Any) -> Any:
    """A tensor of torch as an array of the GPU's, also in a tuple or list; anything else as it is."""
    if type(value) in (tuple, list):
        return type(value)(map(_lent, value))
    is_tensor = "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)
    return _devices[0].lend(value) if is_tensor else value


def _cute(_module: ModuleType) -> None:
    if "torch" in sys.modules and "cutlass" in sys.modules:
        _devices[0].use_torch()


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "numba.cuda.codegen": _numba_codegen,
    "numba.cuda.dispatcher": _numba,
    "cupy": _cupy,
    "cupy.cuda.compiler": _cupy_compiler,
    "cupy_backends.cuda.api.runtime": _static_runtime,
    **dict.fromkeys((f"cupy.cuda.{name}" for name in ("cub", "thrust", "jitify")), _static_runtime),
    "cupy.random._generator_api": _static_runtime,
    "cuda.bindings._internal.runtime": _bindings_runtime,
    "cutlass.base_dsl.compiler": _cute_compiler,
    "cutlass.cute.runtime": _cute_runtime,
    "cutlass.cutlass_dsl.tvm_ffi_provider": _cute_tvm,
    "cutlass": _cute,
    "torch": _cute,
}
