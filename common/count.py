"""Verb `count`: what a stage executes and moves, counted by the emulator, beside the stage before it."""

from __future__ import annotations

import argparse
import json
import linecache
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from common import cli, terminal
from common.errors import UserError
from common.stage import Kernel, Stage

if TYPE_CHECKING:
    from common.emulator import Report

EXAMPLES = (
    "--sizes 128 --dtype fp32",
    "--lines    # which source line does it",
    "--variant COALESCED=0    # beside the default (here: of 01_naive)",
)

Counts = Mapping[str, int]

SECTOR = 32  # bytes


def _ratio(above: str, *below: str) -> Callable[[Counts], float | None]:
    """above / (sum of below), None where there is nothing to divide by."""

    def value(counts: Counts) -> float | None:
        total = sum(counts.get(name, 0) for name in below)
        return counts.get(above, 0) / total if total else None

    return value


def _global_bytes(counts: Counts) -> int:
    sectors = ("global_load_sectors", "global_store_sectors", "cp_async_sectors")
    return SECTOR * sum(counts.get(name, 0) for name in sectors)


# What people ask counters for: name -> (value, what it says)
DERIVED: dict[str, tuple[Callable[[Counts], float | None], str]] = {
    "sectors per global load": (_ratio("global_load_sectors", "global_load_requests"),
                                "32 lanes that read 2, 4, 16 bytes side by side touch 2, 4, 16"),
    "sectors per global store": (_ratio("global_store_sectors", "global_store_requests"), "likewise"),
    "sectors per cp.async": (_ratio("cp_async_sectors", "cp_async_requests"),
                             "16 with 16 bytes per lane; more if halves of a sector part"),
    "wavefronts per shared load": (_ratio("shared_load_wavefronts", "shared_load_requests"),
                                   "one per 128 bytes without conflicts: ldmatrix.x4 4"),
    "wavefronts per shared store": (_ratio("shared_store_wavefronts", "shared_store_requests"), "likewise"),
    "conflicts per shared load": (_ratio("shared_load_conflicts", "shared_load_requests"), "0 is best"),
    "conflicts per shared store": (_ratio("shared_store_conflicts", "shared_store_requests"), "0 is best"),
    "shared loads per FMA": (_ratio("shared_load_requests", "instructions.fma"), "per warp instruction"),
    "shared loads per tensor instruction": (
        _ratio("shared_load_requests", "instructions.mma", "instructions.wmma"), "per warp instruction"),
    "global bytes moved": (_global_bytes, "32 per sector, loads and stores, before any cache"),
}


def derive(counts: Counts) -> dict[str, float]:
    """The derived figures that these counters give."""
    values = {name: value(counts) for name, (value, _) in DERIVED.items()}
    uses_tensor_cores = counts.get("instructions.mma", 0) + counts.get("instructions.wmma", 0) > 0
    if uses_tensor_cores:
        values["shared loads per FMA"] = None
    return {name: value for name, value in values.items() if value is not None}


def emulate(kernel: Kernel, shape: Sequence[int], seed: int = 0, **options) -> Report:
    """Run `kernel` in the emulator on random inputs with counters and sanitizer; CheckFailed if it finds something."""
    kernel.check_shape(*shape)
    spec = kernel.stage.spec
    inputs = spec.inputs(tuple(shape), kernel.dtype, seed=seed, variants=kernel.variants)
    outputs = spec.outputs(tuple(shape), kernel.dtype, variants=kernel.variants)
    report = kernel.emulate(inputs, outputs, **options)
    report.raise_if_findings()
    return report


def number(value: float | None) -> str:
    """1234567 -> "1,234,567"; 2.5 -> "2.5"; None -> "–"."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def change(before: float | None, after: float | None) -> str:
    """How a counter moved: "÷ 32", "× 1.5", "=", "→ 0", "new"."""
    if before is None or after is None or (before == 0 and after == 0):
        return ""
    if before == after:
        return "="
    if before == 0:
        return "new"
    if after == 0:
        return "→ 0"
    return f"× {after / before:.3g}" if after > before else f"÷ {before / after:.3g}"


def rows(counts: Sequence[Counts], about: Sequence[str] = ()) -> list[tuple[str, list[float | None], bool]]:
    """(name, value per column, whether the stage is about it): counters, then derived figures; no all-zero rows."""
    names = sorted(dict.fromkeys(name for column in counts for name in column), key=_order)
    derived = [derive(column) for column in counts]
    table = [(name, [column.get(name, 0) for column in counts], name in about) for name in names]
    table += [(name, [column.get(name) for column in derived], False)
              for name in DERIVED if any(name in column for column in derived)]
    return [row for row in table if any(row[1])]


def _order(name: str) -> tuple[bool, str]:
    """Sorts instructions, by kind, before all else, which keeps its order."""
    counts_instructions = name.startswith("instructions")
    return not counts_instructions, name if counts_instructions else ""


def table(kernels: Sequence[Kernel], counts: Sequence[Counts], shape: Sequence[int], about: Sequence[str]) -> Table:
    """The counters of the kernels side by side; with two of them also how each counter moved."""
    spec = kernels[-1].stage.spec
    made = Table(title=f"\n{spec.format(tuple(shape))}, counted in the emulator", **terminal.PLAIN)
    made.add_column("counter", no_wrap=True)
    for kernel in kernels:
        made.add_column(kernel.label.replace(" ", "\n"), justify="right", no_wrap=True)
    if len(kernels) == 2:
        made.add_column("change", justify="right", no_wrap=True)
    counted = True
    for name, values, mine in rows(counts, about):
        if name in DERIVED and counted:
            made.add_row()
            counted = False
        style = "bold" if mine else ""
        cells = [Text(("▸ " if mine else "  ") + name, style=style), *(Text(number(v), style=style) for v in values)]
        if len(kernels) == 2:
            cells.append(Text(change(*values), style=style))
        made.add_row(*cells)
    if any(mine for *_, mine in rows(counts, about)):
        made.caption, made.caption_justify = "▸ what this stage is about", "left"
    return made


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


def line_table(kernel: Kernel, report: Report) -> Table:
    """The counters of each source line that executed something, the line quoted."""
    lines = {key: counters for key, counters in sorted(report.lines.items()) if counters["instructions"]}
    shown = [name for name in LINE_COLUMNS if any(counters[name] for counters in lines.values())]
    made = Table(title=f"\n{kernel.label}, by source line", **terminal.PLAIN)
    made.add_column("line", justify="right", no_wrap=True)
    for name in shown:
        made.add_column(LINE_COLUMNS[name], justify="right", no_wrap=True)
    made.add_column("source")
    for (file, line), counters in lines.items():
        own = bool(file) and Path(file).resolve() == kernel.source.resolve()
        quoted = linecache.getline(file, line).strip() if file else ""
        where = str(line or "") if own else f"{Path(file).name}:{line}".removesuffix(":0")
        made.add_row(where,
                     *(number(counters[name]) if counters[name] else "" for name in shown),
                     Text(quoted, no_wrap=True, overflow="ellipsis"))
    return made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_kernel_arguments(parser)
    cli.add_sizes(parser)
    cli.add_seed(parser)
    parser.add_argument("--lines", action="store_true", help="also the counters of each source line, quoted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the counters")


def run(stage: Stage, args: argparse.Namespace) -> int:
    saved = []
    for kernel in cli.kernels(stage, args):
        beside = compared(kernel)
        for shape in cli.shapes(kernel, args, stage.spec.emulator_shapes[:1], "emulator"):
            reports = []
            for each in beside:
                with terminal.progress(f"counting {each.label} {stage.spec.format(shape)}"):
                    reports.append(emulate(each, shape, args.seed))
            counts = [report.counters.flat() for report in reports]
            terminal.out.print(table(beside, counts, shape, stage.counters))
            if args.lines:
                terminal.out.print(line_table(kernel, reports[-1]))
            saved += [{"kernel": each.label, "shape": dict(zip(stage.spec.axes, shape)), "counters": dict(found)}
                      for each, found in zip(beside, counts)]
    if args.json:
        try:
            args.json.write_text(json.dumps(saved, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {args.json}: {error.strerror}") from None
    return 0


def compared(kernel: Kernel) -> list[Kernel]:
    """The kernel, and before it what it is compared with: the stage's own file if it is a reader's, the stage's default
    if it is a variant, else the stage before, if there is one that has this dtype."""
    stage = kernel.stage
    if kernel.source != stage.source or kernel.changed:
        return [stage.kernel(kernel.dtype), kernel]
    if stage.previous and kernel.dtype in stage.previous.dtypes:
        return [stage.previous.kernel(kernel.dtype), kernel]
    return [kernel]
