"""torch.utils.cpp_extension without a GPU: `load` and `load_inline` with PyTorch's parameters, for the emulator.

    from cudaemu.torch_extensions import load_inline  # in place of torch.utils.cpp_extension

What they return has the extension's functions, which take and return CPU tensors. `reports` has the report of each
call. `options` are those of the emulator, for what is loaded from then on.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cudaemu.compiler import cache
from cudaemu.errors import CheckFailed, UserError
from cudaemu.library import Library
from cudaemu.options import DEFAULTS
from cudaemu.report import Report

options = DEFAULTS
reports: list[Report] = []  # of each call, in order

# What chooses a GPU is the emulator's option `arch`; what is for ptxas alone changes nothing here.
_NOT_PASSED = re.compile(
    r"-arch\b.*|--gpu-.*|-gencode=.*|--generate-code=.*|-code\b.*|--ptxas-options.*|-Xptxas=.*|-v$"
)
_WITH_A_WORD = ("-gencode", "-arch", "-code", "-Xptxas", "--generate-code", "--gpu-architecture")


class Extension:
    """What `load` returns: the extension's functions are its attributes."""

    def __init__(self, name: str, library: Library) -> None:
        self.__name__ = name
        self._library = library

    def __getattr__(self, function: str) -> Callable[..., Any]:
        if function.startswith("__"):
            raise AttributeError(function)

        def call(*args: Any) -> Any:
            report = self._library.call(function, *args)
            reports.append(report)
            if report.findings and report.status:
                raise CheckFailed(str(report))
            if report.status:
                raise RuntimeError(report.error)
            return report.result

        return call


def load(
    name: str,
    sources: str | Path | Sequence[str | Path],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: str | Sequence[str] | None = None,
    **_: Any,
) -> Extension:
    """PyTorch's `load`: compile files of an extension. Flags for the host's compiler are those of its includes and
    macros alone; what else PyTorch takes (`build_directory`, `verbose`, ...) changes nothing. UserError if it does not
    compile."""
    paths = [Path(each) for each in ([sources] if isinstance(sources, (str, Path)) else sources)]
    if not paths:
        raise UserError(f"sources must be files, got {sources!r}")
    host = [flag for flag in extra_cflags or () if re.match(r"-(D|U|I)", flag)]
    include = [extra_include_paths] if isinstance(extra_include_paths, str) else list(extra_include_paths or ())
    changed = options.replace(
        flags=[*options.flags, *host, *_flags(extra_cuda_cflags or ()), *(extra_ldflags or ())],
        include=[*options.include, *include],
        sources=[*options.sources, *paths[1:]],
    )
    return Extension(name, Library(paths[0], changed))


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    no_implicit_headers: bool = False,
    **more: Any,
) -> Extension:
    """PyTorch's `load_inline`: compile an extension that is given as text; the other parameters are those of `load`.

    The files are in the emulator's cache: findings show their lines."""
    cpp, cuda = (_texts(each) for each in (cpp_sources, cuda_sources))
    named = [functions] if isinstance(functions, str) else list(functions or ())
    if named:
        entries = "".join(f'  m.def("{each}", torch::wrap_pybind_function({each}), "{each}");\n' for each in named)
        cpp.append(f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{entries}}}")
    if not no_implicit_headers:
        cpp.insert(0, "#include <torch/extension.h>")
        cuda[:0] = ["#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>"] if cuda else []
    files = {"main.cpp": "\n".join(cpp), "cuda.cu": "\n".join(cuda)}
    digest = hashlib.sha256(repr(files).encode()).hexdigest()[:20]
    folder = cache.folder() / "sources" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        path = folder / file
        if text and not (path.is_file() and path.read_text(encoding="utf-8") == text + "\n"):
            path.write_text(text + "\n", encoding="utf-8")
    return load(name, [folder / file for file, text in files.items() if text], **more)


def _texts(sources: str | Sequence[str] | None) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources or ())


def _flags(given: Sequence[str]) -> list[str]:
    """nvcc's flags without those that choose a GPU or are for ptxas: PyTorch passes a text with several on as it is."""
    words = [word for flag in given for word in shlex.split(flag)]
    kept, skip = list[str](), False
    for word in words:
        if skip or word in _WITH_A_WORD:
            skip = not skip
        elif not _NOT_PASSED.fullmatch(word):
            kept.append(word)
    return kept
