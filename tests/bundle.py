"""Many kernels of a stage compiled at once, which takes a fifth of the time that compiling each of them does.

The compiler sees one source that includes the stage's once per kernel, each time with that kernel's macros and in a
namespace of its own, and a launcher that is told which of them to call.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from common import emulator
from common.compiler import toolchain
from common.emulator import Report
from common.stage import Kernel

LAUNCHER = "launch_part"


@dataclass(frozen=True, eq=False)
class Part(Kernel):
    """A kernel that is the part `number` of the source `bundle`."""

    bundle: Path
    number: int

    def call_launcher(self, arguments: Mapping[str, Any], **options: Any) -> Report:
        names, values = ["number", *arguments], [self.number, *arguments.values()]
        return emulator.run(self.bundle, LAUNCHER, values, names=names, **options)

    def executable_lines(self) -> frozenset[int]:
        """Those of all parts together: the bundle's kernels are called alike."""
        found = emulator.executable_lines(self.bundle, arch=self.stage.min_arch, symbol=LAUNCHER, file=self.source)
        return frozenset().union(*found.values())


def parts(kernels: Sequence[Kernel]) -> list[Part]:
    """The same kernels of a stage's own source, to be compiled as one."""
    text = _text(kernels)
    path = toolchain.cache_dir() / "tests" / f"bundle-{hashlib.sha256(text.encode()).hexdigest()[:20]}.cu"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(text)
        temporary.rename(path)
    return [
        Part(**{field.name: getattr(kernel, field.name) for field in fields(Kernel)}, bundle=path, number=number)
        for number, kernel in enumerate(kernels)
    ]


def _text(kernels: Sequence[Kernel]) -> str:
    symbol, text = kernels[0].stage.symbol, kernels[0].source.read_text()
    lines = re.findall(r"^#include <.*>$", text, re.M)  # outside of all namespaces, once
    for number, kernel in enumerate(kernels):
        macros = {**kernel.defines, symbol: f"{symbol}_{number}"}
        lines += [f"#define {name} {value}" for name, value in macros.items()]
        lines += [f"namespace part_{number} {{", f'#include "{kernel.source}"', "}"]
        lines += [f"#undef {name}" for name in macros]
    declared = re.search(rf'^extern "C" cudaError_t {symbol}\(([^)]*)\)', text, re.M)[1].split(",")
    names = [parameter.replace("*", " ").split()[-1] for parameter in declared]
    pointers = ["*" in parameter for parameter in declared]
    takes = [f"void *{name}" if pointer else text for text, name, pointer in zip(declared, names, pointers)]
    gives = [f"Pointer{{{name}}}" if pointer else name for name, pointer in zip(names, pointers)]
    lines += [
        "struct Pointer {",
        "  void *value;",
        "  template <typename T> operator T *() const { return static_cast<T *>(value); }",
        "};",
        f'extern "C" cudaError_t {LAUNCHER}(int number, {", ".join(map(str.strip, takes))}) {{',
        "  switch (number) {",
    ]
    lines += [
        f"    case {number}: return part_{number}::{symbol}_{number}({', '.join(gives)});"
        for number in range(len(kernels))
    ]
    return "\n".join([*lines, "  }", "  return cudaErrorInvalidValue;", "}", ""])
