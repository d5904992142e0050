"""Verb `resources`: what a kernel takes from a GPU, known without one. ptxas says registers, spills and shared memory,
the emulator how the launcher launches it; occupancy (common/hardware.py) follows from both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import prod

from rich.table import Table
from rich.text import Text

from common import counts, hardware, terminal
from common.compiler import ptxas
from common.emulator import Launch
from common.errors import UserError
from common.hardware import Gpu
from common.stage import Kernel, Stage
from common.verbs import options

EXAMPLES = ("--dtype fp32", "--arch 8.6 9.0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_arch(parser)
    options.add_sizes(parser)


def run(stage: Stage, args: argparse.Namespace) -> int:
    gpus = [gpu for gpu in hardware.select(args.arch) if hardware.runs_on(stage.min_arch, gpu.capability)]
    if not gpus:
        raise UserError(f"{stage.name} needs compute capability {stage.min_arch} or newer")
    for kernel in options.kernels(stage, args):
        asked = options.shapes(kernel, args, (), "emulator")
        made = Table(title=f"\n{kernel.label}", collapse_padding=True, **terminal.PLAIN)
        made.add_column("GPU", no_wrap=True)
        for head in (
            "threads",
            "regis-\nters",
            "bytes\nspilled",
            "bytes\nstack",
            "shared\n/ block",
            "blocks\n/ SM",
            "warps\n/ SM",
            "occu-\npancy",
        ):
            made.add_column(head, justify="right", no_wrap=True)
        made.add_column("limited by")
        for gpu in gpus:
            with terminal.progress(f"compiling {kernel.label} for {gpu.capability}"):
                rows = list(table_rows(kernel, gpu, asked))
            device = f"{gpu.capability} {gpu.devices.split(',')[0]}"
            if len(rows) == 1:
                made.add_row(device, *rows[0][1:])
            else:
                made.add_row(device)
                for name, *cells in rows:
                    made.add_row(f"  {name}", *cells)
        terminal.out.print(made)
    return 0


def table_rows(kernel: Kernel, gpu: Gpu, asked: Sequence[tuple[int, ...]] = ()) -> Iterator[list[str | Text]]:
    """A row of cells for each kernel of the source, template instances apart: its name, then what it takes on this GPU.

    How it is launched comes from running the launcher at the shapes `asked` for, or at those that a test visits."""
    found = ptxas.usages(kernel.source, kernel.defines, gpu.arch)
    shapes = asked or list(kernel.test_shapes().values())[: None if len(found) > 1 else 1]
    launches: dict[str, Launch] = {}
    refusals = []
    for shape in shapes:
        if not asked and len(launches) == len(found):
            break
        try:
            report = counts.emulate(kernel, shape, arch=gpu.capability, sanitize=False, counters=False)
        except UserError as error:
            if "CUDA error" not in str(error):
                raise
            refusals.append(str(error))
            continue
        launches |= {launch.kernel: launch for launch in report.launches}
    for said in dict.fromkeys(refusals):
        terminal.err.print(f"{gpu.capability}: {said}", style="yellow", markup=False)
    for name, usage in found.items():
        spilled = usage.spill_stores + usage.spill_loads
        taken = [str(usage.registers), Text(str(spilled), style="red" if spilled else ""), str(usage.stack)]
        if name not in launches:
            why = "the launcher refuses" if refusals and not launches else "not launched here"
            yield [name, "–", *taken, *["–"] * 4, why]
            continue
        launch = launches[name]
        threads = prod(launch.block)
        fit = hardware.occupancy(gpu, threads, usage.registers, launch.shared)
        yield [
            name,
            str(threads),
            *taken,
            f"{launch.shared:,}",
            str(fit.blocks),
            f"{fit.warps}/{gpu.warps}",
            Text(f"{fit.share:.0%}", style="" if fit.blocks else "red"),
            ", ".join(fit.limiters) if fit.blocks else f"does not fit: {', '.join(fit.limiters)}",
        ]
