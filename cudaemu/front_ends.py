"""Numba, CuPy, cuda.core, CuTe DSL: what has to be said to them, so that they give PTX with lines to the driver.

NVIDIA's compilers in them would make machine code. So a library of ours stands before NVRTC and nvJitLink
(host/libnvrtc.cpp, host/libnvjitlink.cpp): loaded first, by the same name. The rest are environment variables, and
options that modules get as they are imported.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from cudaemu.compiler import cache, toolchain
from cudaemu.hardware import Gpu
from cudaemu.process import HERE

# Their own files are not the user's.
PACKAGES = {"cuda", "cupy", "cupyx", "cupy_backends", "cutlass", "nvidia_cutlass_dsl", "numba", "numba_cuda"}
COMPILERS = {"libnvrtc.so": "libnvrtc.cpp", "libnvJitLink.so": "libnvjitlink.cpp"}
FLAGS = ["-shared", "-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden"]


def prepare(gpu: Gpu) -> None:
    """Settle what the front ends find when they are imported."""
    for name, source in COMPILERS.items():
        for real in _installed(name):
            flags = [*FLAGS, f"-Wl,-soname,{real.name}"]
            loaded = ctypes.CDLL(str(toolchain.compile_cxx(HERE / source, flags, name, after=["-ldl"])))
            loaded.emulator_real(str(real).encode())
    folder = cache.folder() / "front ends"  # what is kept there is PTX, not what a GPU would need
    os.environ["NUMBA_CACHE_DIR"] = str(folder / "numba")
    os.environ["CUPY_CACHE_DIR"] = str(folder / "cupy")
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
    for module, change in CHANGES.items():
        if module in sys.modules:
            change(sys.modules[module])


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


def _numba(module: ModuleType) -> None:
    """Kernels have lines, unless they are compiled for a debugger, and then have them anyway."""
    before = module.CUDADispatcher.__init__

    def init(self: Any, py_func: Any, targetoptions: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        targetoptions["lineinfo"] = not targetoptions.get("debug")
        before(self, py_func, targetoptions, *args, **kwargs)

    module.CUDADispatcher.__init__ = init


CHANGES: dict[str, Callable[[ModuleType], None]] = {"numba.cuda.dispatcher": _numba}
