"""Verb `tune`: which tile shapes are best on this GPU?

For stages with a table of tiles (common/tiles.py says what that is): every choice of the tile macros is built, checked
and timed, interleaved, at shapes typical of what people run. The best choice for each of the problem's settings
goes into the user's cache, where the stage's function finds it; the defaults stay unless another choice is faster by
more than chance.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from common import accuracy, course, terminal, tiles
from common.problem import Shape
from common.stage import Kernel, Stage
from common.tiles import Choice
from cudaemu.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = ("--dtype {dtype}", "--record # for the course's own table: what everybody gets on such a GPU")

ROUNDS, ROUND_MS = 3, 40.0
CHANCE = 1.01  # choices whose times differ by less are equal

Times = dict[str, list[float]]  # size -> ms of each choice, in the order of `choices`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", metavar="TYPE", help="the element type to measure with (default: the stage's first)")
    parser.add_argument(
        "--record", action="store_true", help="write to the stage's tiles.json, not to your cache: for maintainers"
    )


def run(stage: Stage, args: argparse.Namespace) -> int:
    if not tiles.macros(stage):
        able = ", ".join(each.name for each in course.ladder() if tiles.macros(each)) or "none"
        raise UserError(f"{stage.name} has no tiles to choose; stages that have: {able}")
    kernels = {tiles.key(found[0].settings): found for found in candidates(stage, args.dtype)}
    if stage.unfit:
        raise UserError(f"tune measures on a GPU. {stage.unfit}")
    from common import gpu
    from common.measure import contest
    from common.measure.metadata import metadata

    contest.build([kernel for found in kernels.values() for kernel in found])
    measured = {settings: measure(found) for settings, found in kernels.items()}
    chosen = {settings: best(kernels[settings], times) for settings, times in measured.items()}
    about = metadata("tune")
    for settings, times in measured.items():
        title = f"{stage.name} {args.dtype or stage.dtypes[0]} {settings}, {about['gpu']}"
        said = tiles.key(chosen[settings])
        note = f"µs, median of {ROUNDS} rounds; best: {said}"
        terminal.out.print(terminal.titled(title, table(kernels[settings], times, chosen[settings]), note))
    entry = {"gpu": about["gpu"], "capability": str(gpu.capability()), "date": about["date"], "choices": chosen}
    terminal.err.print(f"saved {tiles.save(stage, entry, record=args.record)}", markup=False)
    return 0


def candidates(stage: Stage, dtype: str | None = None) -> list[list[Kernel]]:
    """For each of the problem's settings, the kernels with every choice of the tile macros, the default first."""
    macros = tiles.macros(stage)
    found = []
    for values in itertools.product(*(stage.variants[name] for name in stage.spec.settings)):
        settings = dict(zip(stage.spec.settings, values))
        each = [
            stage.kernel(dtype, {**settings, **dict(zip(macros, choice))})
            for choice in itertools.product(*(stage.variants[name] for name in macros))
        ]
        found.append(sorted(each, key=lambda kernel: not kernel.default))
    return found


def shapes_of(kernel: Kernel) -> Sequence[Shape]:
    """The shapes at which the choices are timed: those of the stage's table, or else of its problem."""
    spec = kernel.stage.spec
    own = [spec.parse(text, kernel.variants) for text in tiles.shapes(kernel.stage)]
    return own or spec.tune_shapes(kernel.variants)


def choice(kernel: Kernel) -> Choice:
    """What a kernel's tile macros are set to."""
    return {name: kernel.variants[name] for name in tiles.macros(kernel.stage)}


def measure(kernels: Sequence[Kernel]) -> Times:
    """Check and time kernels that compute the same on the GPU. CheckFailed if one is wrong."""
    import torch

    from common import gpu
    from common.measure import timing

    spec = kernels[0].stage.spec
    found = {}
    shapes = shapes_of(kernels[0])
    with terminal.progress(f"tuning {kernels[0].label}", total=len(shapes)) as update:
        for shape in shapes:
            update(f"tuning {kernels[0].label} {spec.format(shape)}")
            contenders = []
            with gpu.errors(kernels[0].label):
                instance = accuracy.make(kernels[0], shape, "cuda")
                for kernel in kernels:
                    outputs = instance.outputs()
                    call = kernel.bind(instance.inputs, outputs)
                    call()
                    torch.cuda.synchronize()
                    accuracy.verify(kernel, instance, outputs)
                    contenders.append(timing.Contender(kernel.label, call, timing.estimate(call)))
            timing.interleave(contenders, ROUNDS, ROUND_MS)
            found[spec.format(shape)] = [statistics.median(contender.samples) for contender in contenders]
            update(advance=1)
    return found


def best(kernels: Sequence[Kernel], times: Mapping[str, Sequence[float]]) -> Choice:
    """The choice that is fastest in the geometric mean over the sizes; the first unless that is more than chance."""
    means = [math.exp(statistics.fmean(map(math.log, each))) for each in zip(*times.values())]
    fastest = min(range(len(means)), key=means.__getitem__)
    return choice(kernels[fastest if means[0] / means[fastest] > CHANCE else 0])


def table(kernels: Sequence[Kernel], times: Mapping[str, Sequence[float]], chosen: Choice) -> Table:
    """A row per choice, a column per size."""
    made = terminal.table()
    for name in tiles.macros(kernels[0].stage):
        made.add_column(terminal.fold(name), justify="right")
    for size in times:
        made.add_column(size, justify="right", no_wrap=True)
    made.add_column("")
    for position, kernel in enumerate(kernels):
        mine = choice(kernel)
        cells = [f"{column[position] * 1e3:.4g}" for column in times.values()]
        made.add_row(*map(str, mine.values()), *cells, "best" if mine == chosen else "")
    return made
