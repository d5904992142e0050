"""Verb `timeline`: when do the warpgroups of a block wait, copy, multiply and store?

A copy of the stage's kernel.cu, made by stamps.patch beside it, notes the SM's clock at each such moment
(common/measure/stamped.cuh). It runs on the GPU, where these are times, or in the emulator, where they are steps; its
result is checked first. On a GPU the stamps' own cost is measured: the copy beside the stage as it is.

The patch also says which figure shows most (common/figures/warps.py), and which sizes are stamped.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common import accuracy, course, terminal
from common.figures import warps
from common.measure import stamped
from common.measure.stamped import NS, STEPS, Row
from common.practice import patches
from common.results import plot, runs
from common.stage import Kernel, Stage
from common.verbs import options
from common.verbs.count import save_timeline
from cudaemu.errors import UserError

if TYPE_CHECKING:
    from rich.console import Group
    from torch import Tensor

    from common.figures.draw import Picture
    from common.problem import Shape
    from cudaemu import Timeline

EXAMPLES = ("--plot timeline.png", "--trace-events timeline.json # for ui.perfetto.dev, chrome://tracing")
DEVICE = "cuda"
ROUNDS, ROUND_MS = 2, 20.0
TILES = 2  # of each consumer are drawn
KINDS = {"scores": "S = Q · Kᵀ", "values": "O += P · V"}
AXES = {
    NS: "ns, by stamps of the SM's clock",
    STEPS: "steps of %clock64 in the emulator, by stamps; not the time of a GPU",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser, source=False)
    options.add_sizes(parser)
    options.add_device(parser)
    options.add_seed(parser)
    parser.add_argument("--block", type=int, default=0, metavar="N", help="which block of the grid (default: 0)")
    events = "save what it did when: for ui.perfetto.dev, chrome://tracing"
    parser.add_argument("--trace-events", type=Path, metavar="FILE", help=events)
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw its first tiles (.png, .svg or .pdf)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the run (docs/results/ holds recorded ones)")


def run(stage: Stage, args: argparse.Namespace) -> int:
    kernel = options.kernel(stage, args)
    patch = read(stage)
    where = options.device(stage, args)
    default = stage.spec.parse(patch.first("GPU" if where == "gpu" else "Emulator"), kernel.variants)
    shapes = options.shapes(kernel, args, [default], where)
    if len(shapes) > 1:
        raise UserError("--sizes must be one size for timeline")
    if args.plot and args.plot.suffix not in plot.SUFFIXES:
        raise UserError(f"--plot {args.plot}: the name must end in {', '.join(plot.SUFFIXES)}")
    options.check_writable(args.trace_events, args.plot, args.json)
    record = (_on_gpu if where == "gpu" else emulated)(kernel, with_stamps(kernel), shapes[0], args.seed, args.block)
    made, drawn = spans(record), figure(record)
    terminal.out.print(table(record))
    if args.trace_events:
        save_timeline(made, args.trace_events)
    if args.plot:
        terminal.err.print(f"drawn {plot.save(drawn, args.plot)}", markup=False)
    if args.json and where == "gpu":
        terminal.err.print(f"saved {runs.save(record, args.json)}", markup=False)
    elif args.json:
        terminal.err.print("no file written: without a GPU there are no times to save", style="yellow")
    return 0


# ---- the kernel that is stamped -------------------------------------------------------------------------------------


def read(stage: Stage) -> patches.Patch:
    """The patch that puts stamps into the stage's kernel."""
    path = stage.directory / "stamps.patch"
    if not path.exists():
        raise UserError(f"{stage.name} has no stamps.patch; stages that have: {', '.join(able()) or 'none'}")
    return patches.read(path, required=("Figure", "GPU", "Emulator"))


def able() -> list[str]:
    """The stages that can be stamped."""
    return [each.name for each in course.ladder() if (each.directory / "stamps.patch").exists()]


def with_stamps(kernel: Kernel) -> Kernel:
    """The same kernel with stamps."""
    stage = kernel.stage
    text = read(stage).apply(stage.source.read_text(encoding="utf-8"))
    return stage.kernel(kernel.dtype, kernel.variants, stamped.write(text))


# ---- a run ----------------------------------------------------------------------------------------------------------


def _changed(kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, int]:
    """The launcher's arguments that are not the stage's own choice: the keys of a tile of queries stay in a block."""
    return {"splits": 1} if "splits" in kernel.arguments(inputs, outputs) else {}


def emulated(plain: Kernel, kernel: Kernel, shape: Shape, seed: int = 0, block: int = 0) -> runs.Run:
    """A run in the emulator, on a GPU of one multiprocessor: there blocks that are persistent have several tiles."""
    from common.measure.metadata import metadata

    instance = accuracy.make(kernel, shape, "cpu", seed)
    outputs, stamps = instance.outputs(), stamped.room("cpu")
    changed = {**_changed(kernel, instance.inputs, outputs), "stamps": stamps}
    report = kernel.emulate(instance.inputs, outputs, changed=changed, counters=False, multiprocessors=1)
    report.raise_if_findings()
    accuracy.verify(kernel, instance, outputs)
    return _record(metadata("timeline") | {"gpu": None}, plain, shape, block, stamped.rows(stamps, block, STEPS))


def _on_gpu(plain: Kernel, kernel: Kernel, shape: Shape, seed: int, block: int) -> runs.Run:
    """A run on the GPU. The stamps are those of its last timed launch: L2 is cold, the clock is up."""
    import torch

    from common import gpu
    from common.measure import contest, timing
    from common.measure.metadata import metadata

    contest.build([plain, kernel])
    with gpu.errors(kernel.label):
        instance = accuracy.make(kernel, shape, DEVICE, seed)
        outputs, stamps = instance.outputs(), stamped.room(DEVICE)
        changed = _changed(kernel, instance.inputs, outputs)
        contenders = []
        for each, more in ((plain, {}), (kernel, {"stamps": stamps.data_ptr()})):
            call = each.bind(instance.inputs, outputs, {**changed, **more})
            for output in outputs:
                output.fill_(torch.nan)
            call()
            torch.cuda.synchronize()
            accuracy.verify(each, instance, outputs)
            contenders.append(timing.Contender(each.label, call, timing.estimate(call)))
        timing.interleave(contenders, ROUNDS, ROUND_MS)
    ms = [timing.summary(each.samples) for each in contenders]
    made = metadata("timeline") | {"ms": {"plain": ms[0], "stamped": ms[1]}}
    return _record(made, plain, shape, block, stamped.rows(stamps, block, NS))


def _record(made: runs.Run, kernel: Kernel, shape: Shape, block: int, rows: Sequence[Row]) -> runs.Run:
    """A run as results/runs.py has it."""
    spec = kernel.stage.spec
    case = {
        "name": kernel.stage.name,
        "label": kernel.label,
        "part": spec.part,
        "problem": spec.name,
        "dtype": kernel.dtype,
        "shape": dict(zip(spec.axes, shape)),
        "size": spec.format(shape),
        "settings": kernel.settings,
        "variants": dict(kernel.variants),
        "default": kernel.default,
    }
    return made | {"block": block, "rows": [{**case, **row} for row in rows]}


# ---- what is shown of it --------------------------------------------------------------------------------------------


def _unit(record: runs.Run) -> str:
    return NS if record["gpu"] else STEPS


def spans(record: runs.Run) -> Timeline:
    """The record as a timeline."""
    return stamped.timeline(record["rows"], record["rows"][0]["label"], _unit(record), record["block"])


def figure(*records: runs.Run) -> Picture:
    """The first tiles of the block, as the stage's patch says; of several runs of a stage where that is `overlaps`."""
    made = [_run_of(record) for record in records]
    ends = [_first_tiles(record) for record in records]
    name = read(course.load(records[0]["rows"][0]["name"])).first("Figure")
    if name == "overlaps":
        return warps.overlaps(*made, kinds=KINDS, ends=ends)
    return warps.ring(made[0]) if name == "ring" else warps.turns(made[0], end=ends[0])


def _run_of(record: runs.Run) -> warps.Run:
    row, unit = record["rows"][0], _unit(record)
    where = f"{record['gpu']}, {record['date'][:10]}; {_cost(record)}" if record["gpu"] else "in the emulator"
    return warps.Run(spans(record), f"{row['label']}, {row['size']}, {where}", (), record["block"], unit, AXES[unit])


def _first_tiles(record: runs.Run) -> int:
    """When the last warpgroup has stored its first tiles; 0 if nobody stores."""
    stored = [row["end"] for row in record["rows"] if row["event"] == "STORES"]
    return max((each[:TILES][-1] for each in stored), default=0)


def _cost(record: runs.Run) -> str:
    plain, stamps = (record["ms"][name]["median"] for name in ("plain", "stamped"))
    return f"with stamps {stamps * 1e3:.1f} µs, without {plain * 1e3:.1f} µs ({stamps / plain - 1:+.1%})"


def table(record: runs.Run) -> Group:
    """How long each thing took, for each warpgroup; and on a GPU what the stamps cost."""
    unit, row = _unit(record), record["rows"][0]
    made = terminal.table()
    for column in ("warpgroup", "what", "times", f"median, {unit}", f"longest, {unit}", "of its time"):
        made.add_column(column, justify="left" if column == "what" else "right")
    whole = {each["group"]: each["end"][0] - each["begin"][0] for each in record["rows"] if each["event"] == "BLOCK"}
    for each in record["rows"]:
        took = [end - begin for begin, end in zip(each["begin"], each["end"])]
        cells = (f"{statistics.median(took):,.0f}", f"{max(took):,}", f"{sum(took) / whole[each['group']]:.1%}")
        made.add_row(str(each["group"]), each["event"].lower().replace("_", " "), str(len(took)), *cells)
    where = f"{record['gpu']}, {record['date'][:10]}" if record["gpu"] else "steps in the emulator, not time"
    note = _cost(record) if "ms" in record else ""
    return terminal.titled(f"{row['label']}, {row['size']}, block {record['block']} ({where})", made, note)
