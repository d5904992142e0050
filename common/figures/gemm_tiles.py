"""Matrix products: which block takes which tile of C, in which order, and what of A and B they then share in L2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Patch

import cudaemu
from common.figures.draw import FAINT, HUES, INK, Picture, bare, picture, rectangles, styled
from cudaemu.errors import UserError

if TYPE_CHECKING:
    from common.stage import Kernel
    from cudaemu import Report


def executed_order(kernel: Kernel, shape: tuple[int, int, int]) -> tuple[np.ndarray, tuple[int, int]]:
    """([tiles_m, tiles_n]: which block wrote each tile of C in the emulator, (rows, columns) of a tile).

    UserError for a kernel whose problem is not a matrix product."""
    spec = kernel.stage.spec
    if spec.name != "gemm":
        raise UserError(f"{kernel.label} computes {spec.formula}: it has no tiles of C")
    inputs = spec.inputs(shape, kernel.dtype, kernel.variants)
    outputs = spec.outputs(shape, kernel.dtype, kernel.variants)
    trace = cudaemu.Trace(max_rows=16_000_000)
    report = kernel.emulate(inputs, outputs, counters=False, sanitize=False, trace=trace)
    block, _ = report.writers("C")
    rows, columns = np.nonzero(block == block[0, 0])
    tile = int(rows.max()) + 1, int(columns.max()) + 1
    return block[:: tile[0], :: tile[1]], tile


def shares(reports: Mapping[str, Report], tensor: str = "C") -> Picture:
    """Which block writes which part of an output: one panel for each traced launch."""
    written = {name: report.writers(tensor)[0] for name, report in reports.items()}
    high, wide = next(iter(written.values())).shape
    inch = 3.2 / wide
    used = {name: len(np.unique(blocks)) for name, blocks in written.items()}
    with styled():
        takeaway = f"{tensor}, {high} × {wide}, by the block that stores it: " + ", ".join(map(str, used.values()))
        figure = picture(0.5 + 3.6 * len(written), 0.55 + inch * high, f"{takeaway} blocks at work")
        for axes, (name, blocks) in zip(figure.subplots(1, len(written), squeeze=False)[0], written.items()):
            areas = []
            for block in np.unique(blocks):
                y, x = np.nonzero(blocks == block)
                areas.append((x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1, int(block)))
            x, y, width, height, numbers = np.array(areas).T
            colours = [HUES[n % len(HUES)] for n in numbers.tolist()]
            rectangles(axes, x, y, width, height, colours, [str(n) for n in numbers.tolist()], (inch, inch))
            axes.set_xlim(0, wide)
            axes.set_ylim(high, 0)
            axes.set_xticks([0, wide])
            axes.set_yticks([0, high])
            axes.set_title(name)
            bare(axes)
    return figure


def waves(orders: Mapping[str, np.ndarray], tile: tuple[int, int], running: int) -> Picture:
    """The tiles of C by the block that takes them; of the first `running` blocks also what they read of A and B."""
    high, wide = next(iter(orders.values())).shape
    unit = min(3.6 / wide, 0.4)
    down = max(0.15, unit * tile[0] / tile[1])
    needs = {}
    for name, blocks in orders.items():
        now = blocks < running
        needs[name] = np.asarray(now.any(1)), np.asarray(now.any(0))
    sums = {name: int(a.sum() * tile[0] + b.sum() * tile[1]) for name, (a, b) in needs.items()}
    most, least = max(sums, key=lambda name: sums[name]), min(sums, key=lambda name: sums[name])
    takeaway = (
        f"{running} blocks at a time need {sums[most]:,} rows and columns of A and B with {most}, "
        f"{sums[least]:,} with {least}"
    )
    with styled():
        figure = picture(0.6 + (unit * (wide + 1.5) + 0.35) * len(orders), 1.0 + down * (high + 2), takeaway)
        for axes, (name, blocks) in zip(figure.subplots(1, len(orders), squeeze=False)[0], orders.items()):
            rows, columns = needs[name]
            y, x = np.mgrid[0:high, 0:wide]
            now = blocks < running
            rectangles(
                axes,
                x.ravel(),
                y.ravel(),
                1,
                1,
                [HUES[0] if n else FAINT for n in now.ravel()],
                [str(b) for b in blocks.ravel()],
                inch=(unit, down),
            )
            rectangles(axes, -1.3, np.arange(high), 1, 1, [HUES[4] if r else FAINT for r in rows])
            rectangles(axes, np.arange(wide), -2.0, 1, 1.6, [HUES[1] if c else FAINT for c in columns])
            axes.text(-0.8, -0.5, "A", ha="center", va="bottom", color=INK)
            axes.text(-0.35, -1.2, "B", ha="center", va="center", color=INK)
            axes.set_xlim(-1.4, wide)
            axes.set_ylim(high, -2.1)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{name}: {rows.sum()} × {tile[0]} rows of A,\n{columns.sum()} × {tile[1]} columns of B")
            bare(axes)
        figure.legend(
            handles=[
                Patch(color=HUES[0], label=f"the first {running} blocks"),
                Patch(color=HUES[4], label="their rows of A"),
                Patch(color=HUES[1], label="their columns of B"),
            ],
            loc="outside lower left",
            ncols=3,
        )
    return figure


@dataclass(frozen=True)
class Traffic:
    """Bytes that a launch's waves read of A and B, on average: different ones, and all that the blocks ask for."""

    a: float
    b: float
    asked: float

    @property
    def found(self) -> float:
        """The share of the requests that L2 can serve if the blocks of a wave read each slice together."""
        return 1 - (self.a + self.b) / self.asked


def traffic(blocks: np.ndarray, tile: tuple[int, int], depth: int, running: int = 132, element: int = 2) -> Traffic:
    """Model: blocks run in waves of `running`, and a wave reads each byte of A and B that it needs once from memory.

    `blocks`: [tiles_m, tiles_n], which block takes each tile; `depth`: K."""
    wave = blocks // running
    numbers = np.unique(wave)
    rows = sum(int((wave == number).any(1).sum()) for number in numbers) * tile[0]
    columns = sum(int((wave == number).any(0).sum()) for number in numbers) * tile[1]
    scale = depth * element / len(numbers)
    return Traffic(rows * scale, columns * scale, blocks.size * sum(tile) * scale)


def group_sizes(
    order: Callable[[int, int, int], np.ndarray],
    sizes: Sequence[int],
    tile: tuple[int, int],
    chosen: int,
    groups: Sequence[int] = (1, 2, 4, 8, 12, 16, 32),
    running: int = 132,
) -> Picture:
    """The model of `traffic` at square problems, as a function of GROUP_M; compares `chosen` with 1.

    `order(tiles_m, tiles_n, group_m)`: which block takes each tile."""
    found = {}
    for size in sizes:
        tiles = -(-size // tile[0]), -(-size // tile[1])
        found[size] = [traffic(order(*tiles, group), tile, size, running) for group in groups]
    saved = []
    for size, row in found.items():
        before, after = (row[groups.index(group)] for group in (1, chosen))
        saved.append(f"{1 - (after.a + after.b) / (before.a + before.b):.0%} fewer at {size}")
    with styled():
        takeaway = f"Different bytes that a wave reads, GROUP_M = {chosen} against 1: {', '.join(saved)}"
        figure = picture(9.8, 3.1, takeaway)
        for axes, (size, row) in zip(figure.subplots(1, len(sizes), squeeze=False)[0], found.items()):
            a, b = np.array([t.a for t in row]) / 1e6, np.array([t.b for t in row]) / 1e6
            at = np.arange(len(groups))
            axes.bar(at, a, 0.72, color=HUES[4], label="of A")
            axes.bar(at, b, 0.72, bottom=a, color=HUES[1], label="of B")
            for place, top, wave in zip(at, a + b, row):
                axes.text(place, top, f"{wave.found:.0%}", ha="center", va="bottom", fontsize=8, color=INK)
            axes.set_xticks(at, [str(group) for group in groups])
            axes.set_xlabel("GROUP_M")
            axes.set_ylabel("different megabytes per wave")
            axes.set_ylim(0, 1.12 * (a + b).max())
            axes.set_title(f"M = N = K = {size}: of {row[0].asked / 1e6:,.0f} MB asked for (mean of the waves);\n"
                           "above the bars: what L2 can serve at best")  # fmt: skip
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(length=0)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=2)
    return figure
