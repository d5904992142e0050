"""A kernel compiled by ptxas for one compute capability, and ptxas' report: registers, spills, shared memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cudaemu.compiler import cache, toolchain
from cudaemu.compiler.symbols import readable
from cudaemu.errors import UserError
from cudaemu.hardware import Arch


@dataclass(frozen=True)
class Cubin:
    """A kernel source compiled for one GPU. `log` is what `ptxas -v` said: registers, spills, shared memory."""

    path: Path
    log: str


@dataclass(frozen=True)
class Usage:
    """ptxas' report of one kernel, for one compute capability. All but `registers` in bytes per thread or block."""

    kernel: str  # as in the object file: mangled
    registers: int  # per thread
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int  # per block


def cubin(source: Path, defines: Mapping[str, str] | None = None, arch: str | Arch = "8.0") -> Cubin:
    """Compile a kernel's device code for the GPUs of compute capability `arch`, as a GPU build would.

    UserError with the compiler's own message if it does not compile."""
    nvcc, cxx, source = toolchain.find_nvcc(), toolchain.find_cxx(), source.resolve()
    macros = toolchain.define_flags(defines)
    flags = ["-O3", "-lineinfo", "-std=c++17", *macros, f"-arch=sm_{Arch.of(arch).nvcc}", "-Xptxas=-v", "-cubin"]

    def build(out: Path) -> None:
        depfile = ["-MD", "-MF", "read.d"]
        log = toolchain.run([nvcc.path, "-ccbin", cxx, *flags, *depfile, source, "-o", "kernel.cubin"], cwd=out)
        (out / "kernel.log").write_text(log, encoding="utf-8")

    out = cache.get("cubin", [source, *toolchain.identity(cxx, nvcc), *flags], build, toolchain.search_folders(()))
    return Cubin(out / "kernel.cubin", (out / "kernel.log").read_text(encoding="utf-8"))


def parse(log: str) -> list[Usage]:
    """The kernels in what `ptxas -v` printed; UserError if it holds none."""
    usages = []
    for entry in re.split(r"(?=ptxas info\s*: Compiling entry function)", log):
        name = re.match(r"ptxas info\s*: Compiling entry function '([^']+)'", entry)
        registers = re.search(r"Used (\d+) registers", entry)
        if not name or not registers:
            continue
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", entry)
        stack, stores, loads = map(int, frame.groups()) if frame else (0, 0, 0)
        shared = re.search(r"(\d+) bytes smem", entry)
        usages.append(Usage(name[1], int(registers[1]), stack, stores, loads, int(shared[1]) if shared else 0))
    if not usages:
        raise UserError("ptxas reported no kernel: does the source define a __global__ function?")
    return usages


def usages(source: Path, defines: Mapping[str, str], arch: str | Arch) -> dict[str, Usage]:
    """ptxas' report of each __global__ function of the source, template instances apart, by its readable name."""
    log = cubin(source, defines, arch).log
    return {readable(usage.kernel): usage for usage in parse(log)}
