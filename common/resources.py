"""Verb `resources`: what a kernel takes from a GPU, known without one. ptxas says registers, spills and shared memory,
the emulator how the launcher launches it; occupancy follows from both.

Occupancy follows cuda_occupancy.h, which the CUDA toolkit carries and the tests compile to compare with: warps get
registers in units of 256, on the quarter of the SM they live on; a block's shared memory counts in units of 128 bytes,
with 1 KB more for the system; and the SM holds a fixed number of blocks and of warps.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from rich.table import Table
from rich.text import Text

from common import cli, count, terminal, toolchain
from common.errors import UserError
from common.stage import Kernel, Stage

EXAMPLES = ("--dtype fp32", "--arch 8.6 9.0")


@dataclass(frozen=True)
class Gpu:
    """An SM's limits, from the CUDA programming guide's table of technical specifications per compute capability."""

    capability: str
    devices: str
    shared_kb: int  # shared memory per SM; a block can have 1 KB less
    warps: int  # resident warps per SM
    blocks: int  # resident blocks per SM

    registers = 65536  # 32-bit registers per SM
    quarters = 4  # each with its own scheduler and a quarter of the registers
    register_unit = 256  # registers given to a warp are a multiple of this
    shared_unit = 128  # bytes of shared memory given to a block are a multiple of this
    shared_system = 1024  # bytes per block that the system takes
    threads_per_block = 1024
    registers_per_thread = 255

    @property
    def arch(self) -> str:
        """"8.0" -> "80", as nvcc spells it."""
        return self.capability.replace(".", "")

    @property
    def shared_per_block(self) -> int:
        return self.shared_kb * 1024 - self.shared_system


GPUS = (
    Gpu("8.0", "A100", shared_kb=164, warps=64, blocks=32),
    Gpu("8.6", "RTX 3090", shared_kb=100, warps=48, blocks=16),
    Gpu("8.9", "RTX 4090, L40S", shared_kb=100, warps=48, blocks=24),
    Gpu("9.0", "H100, H200", shared_kb=228, warps=64, blocks=32),
)


@dataclass(frozen=True)
class Usage:
    """What ptxas says of one kernel, for one compute capability. All but `registers` in bytes per thread or block."""

    kernel: str  # as in the object file: mangled
    registers: int  # per thread
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int  # per block


@dataclass(frozen=True)
class Occupancy:
    """How many blocks an SM holds, how full of warps that is, and which resource ends first."""

    blocks: int
    warps: int
    share: float
    limiters: tuple[str, ...]


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(gpu: Gpu, threads: int, registers: int, shared: int) -> Occupancy:
    """Theoretical occupancy of blocks of `threads` threads, `registers` per thread, `shared` bytes (static + dynamic).

    0 blocks, and the reason as the limiter, if a single block does not fit.
    """
    warps = -(-threads // 32)
    per_warp = round_up(registers * 32, gpu.register_unit)
    room = gpu.registers // gpu.quarters // per_warp * gpu.quarters  # warps for which the registers last
    # The launch check counts a block's warps as if each quarter held as many of them as the fullest one.
    fits = registers <= gpu.registers_per_thread and per_warp * round_up(warps, gpu.quarters) <= gpu.registers
    limits = {
        "registers": room // warps if fits else 0,
        "shared memory": gpu.shared_kb * 1024 // round_up(shared + gpu.shared_system, gpu.shared_unit),
        "warps": gpu.warps // warps,
        "blocks": gpu.blocks,
    }
    if threads > gpu.threads_per_block:
        limits["threads per block"] = 0
    blocks = min(limits.values())
    limiters = tuple(name for name, limit in limits.items() if limit == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / gpu.warps, limiters)


def parse_ptxas(log: str) -> list[Usage]:
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


def select_gpus(names: Sequence[str] | None) -> tuple[Gpu, ...]:
    """The GPUs of these compute capabilities ("8.6" or "86"; None: all); UserError for an unknown one."""
    if not names:
        return GPUS
    by_name = {key: gpu for gpu in GPUS for key in (gpu.capability, gpu.arch)}
    for name in names:
        if name not in by_name:
            raise UserError(f"unknown compute capability '{name}', there are {', '.join(g.capability for g in GPUS)}")
    return tuple(by_name[name] for name in names)


def usages(kernel: Kernel, gpu: Gpu) -> dict[str, Usage]:
    """ptxas' report of each __global__ function of the source, by its name there."""
    from common.emulator.report import readable

    log = toolchain.cubin(kernel.source, kernel.defines, gpu.arch).log
    return {readable(usage.kernel): usage for usage in parse_ptxas(log)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_kernel_arguments(parser)
    add_arch(parser)
    cli.add_sizes(parser)


def add_arch(parser: argparse.ArgumentParser) -> None:
    """--arch: for which GPUs to compile."""
    names = ", ".join(f"{gpu.capability} ({gpu.devices})" for gpu in GPUS)
    parser.add_argument("--arch", nargs="+", metavar="X.Y", help=f"compute capabilities: {names}")


def run(stage: Stage, args: argparse.Namespace) -> int:
    gpus = [gpu for gpu in select_gpus(args.arch) if int(gpu.arch) >= stage.min_arch]
    if not gpus:
        raise UserError(f"{stage.name} needs compute capability {stage.min_arch / 10:.1f} or newer")
    for kernel in cli.kernels(stage, args):
        shape = cli.shapes(kernel, args, kernel.test_shapes()[:1], "emulator")[0]
        made = Table(title=f"\n{kernel.label}, launched for {stage.spec.format(shape)}", collapse_padding=True,
                     **terminal.PLAIN)
        made.add_column("GPU", no_wrap=True)
        for head in ("threads", "regis-\nters", "bytes\nspilled", "bytes\nstack", "shared\n/ block", "blocks\n/ SM",
                     "warps\n/ SM", "occu-\npancy"):
            made.add_column(head, justify="right", no_wrap=True)
        made.add_column("limited by")
        for gpu in gpus:
            with terminal.progress(f"compiling {kernel.label} for {gpu.capability}"):
                for cells in table_rows(kernel, gpu, shape):
                    made.add_row(*cells)
        terminal.out.print(made)
    return 0


def table_rows(kernel: Kernel, gpu: Gpu, shape: tuple[int, ...]) -> Iterator[list[str | Text]]:
    """A row of cells for each kernel that the launcher launches on this GPU; one that says so if it refuses to."""
    device = f"{gpu.capability} {gpu.devices.split(',')[0]}"
    found = usages(kernel, gpu)
    try:
        report = count.emulate(kernel, shape, arch=int(gpu.arch), sanitize=False, counters=False)
    except UserError as error:
        if "CUDA error" not in str(error):
            raise
        terminal.err.print(f"{device}: {error}", style="yellow", markup=False)
        yield [device, *["–"] * 8, "the launcher refuses"]
        return
    launches = {launch.kernel: launch for launch in report.launches}
    for name, launch in launches.items():
        usage, threads = found[name], prod(launch.block)
        fit = occupancy(gpu, threads, usage.registers, launch.shared)
        spilled = usage.spill_stores + usage.spill_loads
        yield [
            device if len(launches) == 1 else f"{device}, {name}", str(threads), str(usage.registers),
            Text(str(spilled), style="red" if spilled else ""), str(usage.stack), f"{launch.shared:,}", str(fit.blocks),
            f"{fit.warps}/{gpu.warps}", Text(f"{fit.share:.0%}", style="" if fit.blocks else "red"),
            ", ".join(fit.limiters) if fit.blocks else f"does not fit: {', '.join(fit.limiters)}"]
