"""Verb `count`: what a stage executes and moves, counted by the emulator, beside the stage before it."""

from __future__ import annotations

import argparse
import json
import linecache
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from common import counts, course, terminal
from common.counts import DERIVED, Counts, change, number, rows
from common.stage import Kernel, Stage
from common.verbs import options
from cudaemu import Events
from cudaemu.errors import UserError

if TYPE_CHECKING:
    from common.problem import Shape
    from cudaemu import Report, Timeline

EXAMPLES = (
    "--dtype {dtype} --sizes SIZE SIZE",
    "--lines # which source line does it",
    "--variant {variant}={value} # beside the default",
)


def table(beside: Sequence[Kernel], counted: Sequence[Counts], shape: Sequence[int], about: Sequence[str]) -> Group:
    """The counters of the kernels side by side; with two of them also how each counter moved."""
    spec = beside[-1].stage.spec
    made = terminal.table()
    made.add_column("counter", no_wrap=True)
    for kernel in beside:
        made.add_column(terminal.fold(kernel.label), justify="right", no_wrap=True)
    if len(beside) == 2:
        made.add_column("change", justify="right", no_wrap=True)
    plain = True
    for name, values, mine in rows(counted, about):
        if name in DERIVED and plain:
            made.add_row()
            plain = False
        style = "bold" if mine else ""
        cells = [Text(("▸ " if mine else "  ") + name, style=style), *(Text(number(v), style=style) for v in values)]
        if len(beside) == 2:
            cells.append(Text(change(*values), style=style))
        made.add_row(*cells)
    notes = ["▸ what this stage is about"] if any(mine for *_, mine in rows(counted, about)) else []
    return terminal.titled(f"{spec.format(tuple(shape))}, counted in the emulator", made, *notes)


LINE_COLUMNS = {
    "instructions": "instr.",
    "global_load_sectors": "global\nload\nsectors",
    "global_store_sectors": "global\nstore\nsectors",
    "cp_async_sectors": "cp.async\nsectors",
    "shared_load_wavefronts": "shared\nload\nwavefr.",
    "shared_load_conflicts": "shared\nload\nconflicts",
    "shared_store_wavefronts": "shared\nstore\nwavefr.",
    "shared_store_conflicts": "shared\nstore\nconflicts",
}


def line_table(kernel: Kernel, report: Report) -> Group:
    """The counters of each source line that executed something, the line quoted."""
    lines = {key: counters for key, counters in sorted(report.lines.items()) if counters["instructions"]}
    shown = [name for name in LINE_COLUMNS if any(counters[name] for counters in lines.values())]
    made = terminal.table(gap=1)
    made.add_column("line", justify="right", no_wrap=True)
    for name in shown:
        made.add_column(LINE_COLUMNS[name], justify="right", no_wrap=True)
    made.add_column("source")
    for (file, line), counters in lines.items():
        own = bool(file) and Path(file).resolve() == kernel.source.resolve()
        quoted = linecache.getline(file, line).strip() if file else ""
        where = str(line or "") if own else f"{Path(file).name}:{line}".removesuffix(":0")
        made.add_row(
            where,
            *(number(counters[name]) if counters[name] else "" for name in shown),
            Text(quoted, no_wrap=True, overflow="ellipsis"),
        )
    return terminal.titled(f"{kernel.label}, by source line", made)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_sizes(parser)
    options.add_seed(parser)
    parser.add_argument("--lines", action="store_true", help="also the counters of each source line, quoted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the counters")
    events = "save when each warp of the first blocks waited, copied, multiplied: for ui.perfetto.dev, chrome://tracing"
    parser.add_argument("--trace-events", type=Path, metavar="FILE", help=events)


def run(stage: Stage, args: argparse.Namespace) -> int:
    saved = []
    options.check_writable(args.json, args.trace_events)
    kernels = options.kernels(stage, args) if args.trace_events else options.all_kernels(stage, args)
    if args.trace_events and len(kernels) * len(args.sizes or [0]) > 1:
        raise UserError("--trace-events must have one kernel and one size")
    for kernel in kernels:
        stage = kernel.stage
        for shape in options.shapes(kernel, args, stage.spec.emulator_shapes(kernel.variants)[-1:], "emulator"):
            reports = []
            own = takes(compared(kernel), stage, shape)
            beside = list(own)
            for each in beside:
                with terminal.progress(f"counting {each.label} {stage.spec.format(shape)}"):
                    noted = Events() if args.trace_events and each == kernel else None
                    reports.append(counts.emulate(each, own[each], args.seed, events=noted))
            if args.trace_events:
                save_timeline(reports[-1].timeline, args.trace_events)
            counted = [report.counters.flat() for report in reports]
            terminal.out.print(table(beside, counted, shape, stage.counters))
            if args.lines:
                terminal.out.print(line_table(kernel, reports[-1]))
            saved += [
                {"kernel": each.label, "shape": dict(zip(each.stage.spec.axes, own[each])), "counters": dict(found)}
                for each, found in zip(beside, counted)
            ]
    if args.json:
        try:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {args.json}: {error.strerror}") from None
    return 0


def save_timeline(made: Timeline, path: Path) -> None:
    """Write the timeline to a file; say what it leaves out."""
    made.write(path)
    for left_out in made.left_out:
        terminal.out.print(f"{path} leaves out {left_out}")


def takes(kernels: Sequence[Kernel], stage: Stage, shape: Shape) -> dict[Kernel, Shape]:
    """The shape of each kernel's own problem that is the same computation as the stage's at `shape`; kernels of other
    stages that cannot compute it are left out."""
    found = {}
    for kernel in kernels:
        try:
            own = kernel.stage.spec.like(stage.spec, shape)
            kernel.check_shape(*own)
        except UserError:
            if kernel.stage is stage:
                raise
        else:
            found[kernel] = own
    return found


def compared(kernel: Kernel) -> list[Kernel]:
    """The kernel, and before it what it is compared with: the stage's own file if it is a reader's, the stage's default
    if it is a variant, else the stage before, if there is one that computes the same."""
    stage = kernel.stage
    if kernel.source != stage.source or not kernel.default:
        return [stage.kernel(kernel.dtype, kernel.settings), kernel]
    before = course.counterpart(course.previous(stage), kernel)
    return [before, kernel] if before else [kernel]
