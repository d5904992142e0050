"""What ptxas says of a kernel: registers, spills, stack and shared memory, for one compute capability."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.compiler import toolchain
from common.compiler.symbols import readable
from common.errors import UserError


@dataclass(frozen=True)
class Usage:
    """What ptxas says of one kernel, for one compute capability. All but `registers` in bytes per thread or block."""

    kernel: str  # as in the object file: mangled
    registers: int  # per thread
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int  # per block


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


def usages(source: Path, defines: Mapping[str, str], arch: str) -> dict[str, Usage]:
    """ptxas' report of each __global__ function of the source, template instances apart, by its readable name."""
    log = toolchain.cubin(source, defines, arch).log
    return {readable(usage.kernel): usage for usage in parse(log)}
