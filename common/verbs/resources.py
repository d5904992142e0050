"""Verb `resources`: what a kernel needs of a GPU, found without one. ptxas reports registers, spills and shared memory,
the emulator how the launcher launches it; occupancy (cudaemu/hardware.py) follows from both.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rich.table import Table

from common import counts, terminal
from common.stage import Kernel, Stage
from common.verbs import options
from cudaemu import Launch, hardware
from cudaemu.compiler import ptxas
from cudaemu.compiler.ptxas import Usage
from cudaemu.errors import UserError
from cudaemu.hardware import Gpu

EXAMPLES = ("--dtype {dtype}", "--arch 9.0 12.0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_arch(parser)
    options.add_sizes(parser)


def run(stage: Stage, args: argparse.Namespace) -> int:
    gpus = [gpu for gpu in hardware.select(args.arch) if stage.arch.runs_on(gpu.arch)]
    if not gpus:
        raise UserError(f"{stage.name} needs {stage.needs}, got {' '.join(args.arch)}")
    for kernel in options.all_kernels(stage, args):
        asked = options.shapes(kernel, args, (), "emulator")
        found: dict[str, list[tuple[Gpu, Taken]]] = {}  # by function
        for gpu in gpus:
            with terminal.progress(f"compiling {kernel.label} for {stage.target(gpu.arch)}"):
                for name, taken in measure(kernel, gpu, asked).items():
                    found.setdefault(name, []).append((gpu, taken))
        for name, rows in found.items():
            terminal.out.print(terminal.titled(f"{kernel.label}: {name}", table(rows)))
    return 0


@dataclass(frozen=True)
class Taken:
    """What one kernel function needs of a GPU. `launch` is None if it was not launched, for the reason `why`."""

    usage: Usage
    launch: Launch | None
    why: str = ""


def table(rows: Sequence[tuple[Gpu, Taken]]) -> Table:
    """A row per GPU. Spills and a stack have columns only where there are any."""
    made = terminal.table(gap=1)
    local = any(taken.usage.stack or taken.usage.spill_stores for _, taken in rows)
    made.add_column("GPU", no_wrap=True)
    heads = ["threads", "regs", *(["spilled", "stack"] if local else []), "shared", "blocks", "warps", "occupancy"]
    shorter = {"shared memory": "shared", "registers": "regs"}
    for head in heads:
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("limited by")
    for gpu, taken in rows:
        usage, launch = taken.usage, taken.launch
        spilled = usage.spill_stores + usage.spill_loads
        cells = [str(usage.registers)]
        cells += [f"[red]{spilled}" if spilled else "0", str(usage.stack)] if local else []
        device = f"{gpu.arch} {gpu.devices.split(',')[0]}"
        if launch is None:
            made.add_row(device, "–", *cells, *["–"] * 4, taken.why)
            continue
        threads = prod(launch.block)
        fit = hardware.occupancy(gpu, threads, usage.registers, launch.shared)
        limiters = ", ".join(shorter.get(name, name) for name in fit.limiters)
        made.add_row(
            device,
            str(threads),
            *cells,
            f"{launch.shared:,}",
            str(fit.blocks),
            f"{fit.warps}/{gpu.warps}",
            f"{fit.share:.0%}" if fit.blocks else "[red]0%",
            limiters if fit.blocks else f"does not fit: {limiters}",
        )
    return made


def measure(kernel: Kernel, gpu: Gpu, asked: Sequence[tuple[int, ...]] = ()) -> dict[str, Taken]:
    """What each kernel function of the source, template instances apart, takes on this GPU, by its readable name.

    How it is launched comes from running the launcher at the shapes `asked` for, or at those that a test visits."""
    found = ptxas.usages(kernel.source, kernel.defines, kernel.stage.target(gpu.arch))
    shapes = asked or list(kernel.test_shapes().values())[: None if len(found) > 1 else 1]
    launches: dict[str, Launch] = {}
    refusals = []
    for shape in shapes:
        if not asked and len(launches) == len(found):
            break
        try:
            report = counts.emulate(
                kernel,
                shape,
                arch=gpu.arch,
                multiprocessors=None if asked else hardware.SLICE,  # which the shapes of a test are made for
                sanitize=False,
                counters=False,
            )
        except UserError as error:
            if "CUDA error" not in str(error):
                raise
            refusals.append(str(error))
            continue
        launches |= {launch.kernel: launch for launch in report.launches}
    for said in dict.fromkeys(refusals):
        terminal.err.print(f"{gpu.arch}: {said}", style="yellow", markup=False)
    why = "the launcher refuses" if refusals and not launches else "not launched"
    return {name: Taken(usage, launches.get(name), "" if name in launches else why) for name, usage in found.items()}
