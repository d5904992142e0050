"""A CUDA source as a library: its kernels and its functions, called by their names from Python."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cudaemu import calls, cpp
from cudaemu.arguments import parameter_list, parameter_names, source_text
from cudaemu.build import Build, PtxCheck
from cudaemu.compiler import cache
from cudaemu.compiler.symbols import demangle, readable
from cudaemu.errors import UserError
from cudaemu.options import COMPILING, DEFAULTS, Options, check_text
from cudaemu.report import Report


def load(source: Path | str, *, options: Options = DEFAULTS, **changes: Any) -> Library:
    """A CUDA source, given as a path or as its text, with kernels and functions that can be called.

    `options` say how it is compiled and run; fields of Options may be given as keywords, too: `arch="9.0"`.
    UserError if there is no such file or it does not compile."""
    if not isinstance(source, (str, os.PathLike)):
        raise UserError(f"source must be a path or the text of a CUDA source, got {source!r}")
    if source == "":
        raise UserError("source must be a path or the text of a CUDA source, got ''")
    path = _text_file(source) if isinstance(source, str) and ("\n" in source or "{" in source) else Path(source)
    if not path.is_file():
        raise UserError(f"cannot read {path}: " + ("it is a folder" if path.is_dir() else "there is no such file"))
    return Library(path, options.replace(**changes))


def _text_file(text: str) -> Path:
    """A file of the cache with that text, so that its products are found again."""
    folder = cache.folder() / "sources" / hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:20]
    path = folder / "source.cu"
    if not path.is_file() or path.read_text(encoding="utf-8", errors="surrogatepass") != text:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
        os.replace(temporary, path)
    return path


class Library:
    """The kernels and functions of one source. `load` makes them."""

    def __init__(self, source: Path, options: Options = DEFAULTS):
        """Compile `source`; `options` hold for all launches and calls."""
        self.source, self.options = source, options
        self._builds: dict[tuple[str | None, tuple[str, ...]], Build] = {}
        self._build()

    def __repr__(self) -> str:
        return f"Library({str(self.source)!r}, kernels: {', '.join(self.kernels) or 'none'})"

    def _build(self, call: str | None = None, instances: tuple[str, ...] = ()) -> Build:
        key = (call, instances)
        if key not in self._builds:
            self._builds[key] = calls.compiled(self.source, self.options, call, instances)
        return self._builds[key]

    @property
    def kernels(self) -> list[str]:
        """The readable names of the source's kernels (of templates: the instances that it launches)."""
        return [readable(symbol) for symbol in _entries(self._build().ptx)]

    def launch(
        self,
        kernel: str,
        grid: Sequence[int] | int,
        block: Sequence[int] | int,
        *args: Any,
        shared: int = 0,
        names: Sequence[str] | None = None,
        outputs: Sequence[str] = (),
        **changes: Any,
    ) -> Report:
        """Launch a `__global__` kernel by its name: "scale"; for a template "scale<float, 4>"; for an overload
        "scale(float*, int)".

        `grid` and `block` are one to three sizes. `args` are the kernel's parameters: NumPy arrays and CPU tensors for
        pointers (changed in place), numbers, bytes or ctypes structures; `shared` is dynamic shared memory in bytes.
        `names` and `outputs` are as in `run`; `changes` are fields of Options for this launch, such as
        `trace=Trace()`. UserError for an unknown kernel, or for arguments or a launch that do not fit."""
        options = self._changed(changes)
        build, symbol = self._find(kernel)
        called = names or parameter_names(source_text(self.source), readable(symbol), len(args))
        with PtxCheck(build):
            return calls.launch_kernel(build.ptx, symbol, grid, block, args, options, called, shared, outputs)

    def call(
        self,
        function: str,
        *args: Any,
        names: Sequence[str] | None = None,
        outputs: Sequence[str] = (),
        **changes: Any,
    ) -> Report:
        """Call a host function of the source, such as a launcher, in a process of its own: see `run`. `changes` are
        fields of Options for this call."""
        options = self._changed(changes)
        check_text("function", function, "the name of a function")
        build = self._build(function)
        if build.extension and not build.exports_launcher:
            return calls.call_extension(build, function, args, options, outputs)
        return calls.call_launcher(build, function, args, options, names, outputs)

    def _changed(self, changes: Mapping[str, Any]) -> Options:
        for name in changes:
            if name in COMPILING:
                raise UserError(f"{name} must be given when the source is compiled: cudaemu.load(..., {name}=...)")
        return self.options.replace(**changes)

    def _find(self, kernel: str) -> tuple[Build, str]:
        check_text("kernel", kernel, "the name of a kernel")
        build = self._build()
        wanted = _squeezed(kernel)
        symbols = _entries(build.ptx)
        found = [symbol for symbol in symbols if wanted in _spellings(symbol)]
        if not found and "<" in kernel:  # a template that nothing in the source launches so
            try:
                build = self._build(instances=(kernel,))
            except UserError as error:
                raise UserError(f"{self.source} cannot be compiled with the kernel {kernel}:\n{error}") from error
            found = [symbol for symbol in _entries(build.ptx) if wanted in _spellings(symbol)] or [
                symbol for symbol in _entries(build.ptx) if symbol not in symbols
            ]
        if len(found) == 1:
            return build, found[0]
        if found:
            several = "\n    ".join(_signature(symbol) for symbol in found)
            raise UserError(f"{self.source} has several kernels {kernel}; name one of\n    {several}")
        there = ", ".join(map(readable, symbols)) or "none"
        hint = ""
        if any(declared.name == kernel for declared in cpp.kernels(cpp.code(source_text(self.source)))):
            hint = f'; if it is a template, name an instance, such as "{kernel}<float>"'
        raise UserError(f"{self.source} has no kernel {kernel}, it has {there}{hint}")


def _entries(ptx: str) -> list[str]:
    return re.findall(r"^\s*(?:\.(?:visible|weak)\s+)*\.entry\s+([\w$]+)", ptx, re.MULTILINE)


def _signature(symbol: str) -> str:
    name = readable(symbol)
    return f"{name}({', '.join(parameter_list(demangle(symbol)))})" if symbol.startswith("_Z") else name


def _spellings(symbol: str) -> set[str]:
    """All names of a kernel: with and without parameters, template arguments and namespaces."""
    name, signature = _squeezed(readable(symbol)), _squeezed(_signature(symbol))
    bare = name.partition("<")[0]
    every = {symbol, name, signature, bare, signature.replace("(anonymousnamespace)::", "")}
    return every | {
        spelling.rpartition("::")[2] for spelling in (name, bare) if "<" not in spelling or "::" not in spelling
    }


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)
