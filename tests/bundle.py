"""Many kernels, or programs, compiled at once, which takes a fifth of the time that compiling each of them does.

The compiler sees one source that includes each of theirs, with its macros and in a namespace of its own, and a
launcher, or a main, that is told which of them to call. Places in findings stay those of the sources.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

import cudaemu
import kernels
from common import gpu
from common.stage import Kernel
from cudaemu import Report
from cudaemu.build import compile_host
from cudaemu.compiler import ptxas, toolchain
from cudaemu.compiler.toolchain import asks_for_capability
from cudaemu.hardware import Arch, model
from tests.cudaemu.sources import source as kept

LAUNCHER = "launch_part"
# The ring of two tiles that launchers of three have for GPUs with less shared memory than 8.0's, and what stands there
# instead: of a variant no test launches it, and it is a third of what there is to compile.
RING_OF_2 = {
    "10_register_double_buffer": (": gemm_kernel<2>", ": nullptr"),
    "11_any_shape": ("launch_tiles<256, 64, 2>(A, B, C, M, N, K, stream)", "cudaErrorNotSupported"),
}
POINTER = """struct Pointer {
  void *value;
  template <typename T> operator T *() const { return static_cast<T *>(value); }
};"""  # to whatever a launcher takes


@dataclass(frozen=True, eq=False)
class Part(Kernel):
    """A kernel that is the part `number` of the source `bundle`."""

    bundle: Path
    number: int

    def prepare(self, arch: Arch) -> None:
        cudaemu.prepare(self.bundle, LAUNCHER, arch=arch)

    def call_launcher(self, arguments: Mapping[str, Any], **options: Any) -> Report:
        names, values = ["number", *arguments], [self.number, *arguments.values()]
        return cudaemu.run(self.bundle, LAUNCHER, values, names=names, **options)

    @cached_property
    def ptx(self) -> str:
        """That of the part alone, for the oldest GPU of the stage. Its kernels are called as in the bundle; a variant's
        lack RING_OF_2."""
        build = compile_host(self.bundle, arch=self.stage.arch, call=LAUNCHER)
        kept, end = [], "\n}\n"
        for piece in build.ptx.split(end):
            before, entry, kernel = piece.partition("\n.visible .entry ")
            others = entry and not re.match(f"{mangled(self.number)}[0-9]", kernel)
            kept.append(before + "\n" if others else piece + end)
        return "".join(kept).removesuffix(end)

    def executable_lines(self) -> frozenset[int]:
        """Those of all parts together: the bundle's kernels are called alike."""
        found = cudaemu.executable_lines(self.bundle, arch=self.stage.arch, symbol=LAUNCHER, file=self.source)
        return frozenset().union(*found.values())


def parts(together: Sequence[Kernel]) -> list[Part]:
    """The same kernels, of one problem, to be compiled as one."""
    path = launcher([(_needed(kernel), kernel.defines) for kernel in together], together[0].stage.symbol)
    return [
        Part(**{field.name: getattr(kernel, field.name) for field in fields(Kernel)}, bundle=path, number=number)
        for number, kernel in enumerate(together)
    ]


def _needed(kernel: Kernel) -> Path:
    """Its source; that of a stage's variant, with the same lines, without RING_OF_2."""
    launched, instead = RING_OF_2.get(kernel.stage.name, ("", ""))
    if not launched or not kernel.changed or kernel.source != kernel.stage.source or kernel.variants["STAGES"] != 3:
        return kernel.source
    text = kernel.source.read_text()
    assert text.count(launched) == 1, f"{kernel.source} has no '{launched}'"
    return _kept([f'#line 1 "{kernel.source}"', *text.replace(launched, instead).splitlines()])


@cache
def _complete(source: Path, dtype: str) -> list[Part]:
    """The kernels of a stage that a complete test visits, as test_kernels.py has them compiled; none for a source that
    is not a stage's own."""
    return next((parts(stage.kernels([dtype])) for stage in kernels.ladder() if stage.source == source), [])


def _alike(source: Path, arch: Arch) -> list[Part]:
    """Of those, the ones whose PTX for the oldest GPU of their stage is, but for its .target, the PTX for `arch`: also
    for 9.0, where cuda_bf16.h alone is another."""
    same = ("8.0",) if asks_for_capability(source) else ("8.0", "8.6", "8.9", "9.0")
    return [
        part
        for stage in kernels.ladder()
        if stage.source == source and stage.min_arch == "8.0" and str(arch) in same
        for dtype in stage.dtypes
        if (str(arch), dtype) != ("9.0", "bf16")
        for part in _complete(source, dtype)
    ]


def compile_together(patch: pytest.MonkeyPatch) -> None:
    """A kernel that test_kernels.py compiles with the others of its stage is taken from there, whoever asks for it or
    for its machine code."""
    prepare, call_launcher, alone = Kernel.prepare, Kernel.call_launcher, ptxas.cubin

    def known(kernel: Kernel, compiled_for: Arch, arch: str | Arch) -> Part | None:
        if compiled_for != kernel.stage.arch:
            return None
        same = (each for each in _complete(kernel.source, kernel.dtype) if each.variants == kernel.variants)
        found = next(same, None)
        less = model(arch).shared_per_block < model("8.0").shared_per_block
        return None if found and less and _needed(found) != found.source else found

    def prepared(kernel: Kernel, arch: Arch) -> None:
        found = known(kernel, arch, arch)
        found.prepare(arch) if found else prepare(kernel, arch)

    def called(kernel: Kernel, arguments: Mapping[str, Any], **options: Any) -> Report:
        found = known(kernel, options["compiled_for"], options["arch"])
        if found is not None:
            return found.call_launcher(arguments, **options)
        return call_launcher(kernel, arguments, **options)

    def cubin(source: Path, defines: Mapping[str, str] | None, arch: str | Arch) -> ptxas.Cubin:
        arch = Arch.of(arch)
        found = next((part for part in _alike(source, arch) if part.defines == defines), None)
        if found is not None:
            return assemble(found.ptx, arch)
        for stage in kernels.ladder() if arch == Arch(9, 0) else ():
            if stage.source == source and asks_for_capability(source) and stage.kernel().defines == defines:
                return assemble(compile_host(source, defines, arch, call=stage.symbol).ptx, arch)  # as in test_ncu.py
        return alone(source, defines, arch)

    patch.setattr(Kernel, "prepare", prepared)
    patch.setattr(Kernel, "call_launcher", called)
    patch.setattr(ptxas, "cubin", cubin)


def assemble(ptx: str, arch: Arch) -> ptxas.Cubin:
    """What ptxas makes of a PTX text, for the GPUs of compute capability `arch`, whatever its .target says."""
    nvcc = toolchain.find_nvcc()
    flags = [f"-arch=sm_{arch.nvcc}", "-m64", "-v", "--generate-line-info"]  # as nvcc calls it

    def build(out: Path) -> None:
        text = re.sub(r"^\.target sm_\w+", f".target sm_{arch.nvcc}", ptx, count=1, flags=re.MULTILINE)
        (out / "kernel.ptx").write_text(text)
        said = toolchain.run([toolchain.find_tool("ptxas", nvcc), *flags, "kernel.ptx", "-o", "kernel.cubin"], out)
        (out / "kernel.ptx").unlink()
        (out / "kernel.log").write_text(said)

    out = toolchain.cached("assembled", [ptx, nvcc.path, nvcc.release, *flags], build)
    return ptxas.Cubin(out / "kernel.cubin", (out / "kernel.log").read_text())


def launcher(sources: Sequence[tuple[Path, Mapping[str, str]]], symbol: str) -> Path:
    """A source that has each of these, with macros of its own, and LAUNCHER: its first argument is the number of the
    one whose launcher `symbol` is to be called, with the others. All take the same arguments."""
    lines = _included([(path, {**macros, symbol: f"{symbol}_{n}"}) for n, (path, macros) in enumerate(sources)])
    declared = re.search(rf'^extern "C" cudaError_t {symbol}\(([^)]*)\)', sources[0][0].read_text(), re.M)
    parameters = declared[1].split(",")
    names = [parameter.replace("*", " ").split()[-1] for parameter in parameters]
    pointers = ["*" in parameter for parameter in parameters]
    takes = [f"void *{name}" if pointer else text for text, name, pointer in zip(parameters, names, pointers)]
    gives = [f"Pointer{{{name}}}" if pointer else name for name, pointer in zip(names, pointers)]
    lines += [
        POINTER,
        f'extern "C" cudaError_t {LAUNCHER}(int number, {", ".join(map(str.strip, takes))}) {{',
        "  switch (number) {",
    ]
    lines += [
        f"    case {number}: return part_{number}::{symbol}_{number}({', '.join(gives)});"
        for number in range(len(sources))
    ]
    return _kept([*lines, "  }", "  return cudaErrorInvalidValue;", "}"])


def call(source: Path, symbol: str, arguments: Mapping[str, Any], **options: Any) -> Report:
    """emulator.run for one of several launchers of a source, with all of its arguments but the stream. They are
    compiled once, with a LAUNCHER that takes the number of the one that it calls, whole numbers and pointers, as many
    as any of them has, and a stream."""
    symbols = re.findall(r'^extern "C" cudaError_t (\w+)\(', source.read_text(), re.M)
    takes = [_places(source, each) for each in symbols]
    places = sorted(set().union(*(each.values() for each in takes)))  # n0, n1 ... p0, p1 ...
    lines = [
        f'#include "{source}"',
        POINTER,
        f'extern "C" cudaError_t {LAUNCHER}(',
        "    int number,",
        *(f"    {'void *' if place[0] == 'p' else 'long long '}{place}," for place in places),
        "    cudaStream_t stream) {",
        "  switch (number) {",
        *(f"    case {n}: return {each}({', '.join([*map(_value, own.values()), 'stream'])});"
          for n, (each, own) in enumerate(zip(symbols, takes))),
        "  }",
        "  return cudaErrorInvalidValue;",
        "}",
    ]  # fmt: skip
    own = takes[symbols.index(symbol)]
    given: dict[str, Any] = {place: None if place[0] == "p" else 0 for place in places}
    given |= {own[name]: value for name, value in arguments.items()}
    called = {place: place for place in places} | {place: name for name, place in own.items()}
    values, names = [symbols.index(symbol), *given.values(), None], ["number", *called.values(), "stream"]
    return cudaemu.run(_kept(lines), LAUNCHER, values, names=names, **options)


def _places(source: Path, symbol: str) -> dict[str, str]:
    """The parameters of a launcher but the stream, and which of `call`'s each one is."""
    *parameters, _ = gpu.signature(source, symbol).items()
    count = {kind: itertools.count() for kind in "pn"}
    kinds = [(name, "p" if kind == gpu.POINTER else "n") for name, kind in parameters]
    return {name: f"{kind}{next(count[kind])}" for name, kind in kinds}


def _value(place: str) -> str:
    return f"Pointer{{{place}}}" if place[0] == "p" else place


def program(sources: Sequence[Path], macros: Sequence[Mapping[str, str]] = ()) -> Path:
    """A program that is each of these, with macros of its own: its first argument is the number of the one to be run,
    with the others."""
    each = zip(sources, macros or [{}] * len(sources), strict=True)
    lines = _included([(source, {**own, "main": f"main_{number}"}) for number, (source, own) in enumerate(each)])
    lines += ["int main(int count, char **words) {", "  switch (atoi(words[1])) {"]
    for number, source in enumerate(sources):
        arguments = "" if "int main()" in source.read_text() else "count - 1, words + 1"
        lines.append(f"    case {number}: return part_{number}::main_{number}({arguments});")
    return _kept(["#include <cstdlib>", *lines, "  }", "  return -1;", "}"])


def copies(text: str, macros: Sequence[Mapping[str, str]]) -> Path:
    """A source that has this one once for each set of macros."""
    path = _kept(text.splitlines())
    return _kept(_included([(path, each) for each in macros]))


def _kept(lines: Sequence[str]) -> Path:
    text = "\n".join([*lines, ""])
    return kept(text, f"bundle-{hashlib.sha256(text.encode()).hexdigest()[:20]}")


def mangled(number: int) -> str:
    """How the mangled names of a part begin."""
    part = f"part_{number}"
    return f"_ZN{len(part)}{part}"


def bare(name: str) -> str:
    """A name without those of parts, as it is in the source alone."""
    return re.sub(r"\bpart_\d+::", "", name)


def _included(sources: Sequence[tuple[Path, Mapping[str, str]]]) -> list[str]:
    """Each source, with macros of its own, in a namespace of its own: the headers of all stand before, outside."""
    headers = [
        f'#include "{source.parent / name[1:-1]}"' if name[0] == '"' else f"#include {name}"
        for source, _ in sources
        for name in re.findall(r"^#include (<.*>|\".*\")$", source.read_text(), re.M)
    ]
    lines = list(dict.fromkeys(headers))
    for number, (source, macros) in enumerate(sources):
        lines += [f"#define {name} {value}" for name, value in macros.items()]
        lines += [f"namespace part_{number} {{", f'#include "{source}"', "}"]
        lines += [f"#undef {name}" for name in macros]
    return lines
