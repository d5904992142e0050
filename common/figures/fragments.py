"""Figures of the tensor-core stages: which lane and register holds which element, and which banks a matrix meets.

A fragment is drawn from what an executed probe left in the registers: fill a tile with the index of each element, load
it, and let every lane write its registers out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from numpy.typing import ArrayLike

from common.figures import layout
from common.figures.draw import (
    CONFLICT,
    FREE,
    GRID,
    HUES,
    INK,
    Picture,
    bare,
    picture,
    plural,
    rectangles,
    styled,
)

CELL = 0.25  # inches


@dataclass(frozen=True)
class Fragment:
    """Who holds which element of a tile: `lane` and `register` are arrays of the tile's shape (rows, columns)."""

    lane: np.ndarray
    register: np.ndarray

    def of(self, lane: int) -> list[tuple[int, int, int]]:
        """(register, row, column) of each element that a lane holds, in the order of its registers."""
        rows, columns = np.nonzero(self.lane == lane)
        return sorted(zip(self.register[rows, columns].tolist(), rows.tolist(), columns.tolist()))


def fragment(held: ArrayLike, shape: tuple[int, int], registers: int) -> Fragment:
    """From a probe: held[lane][slot] is the index (row · columns + column) of an element of a tile of `shape`, the
    slots of a lane being those of its `registers` in order. ValueError unless each element is held exactly once."""
    held = np.asarray(held).astype(np.int64).reshape(layout.WARP, registers, -1)
    if sorted(held.ravel().tolist()) != list(range(shape[0] * shape[1])):
        raise ValueError(f"the lanes hold {len(np.unique(held))} different elements, not each of {shape} once")
    lane, register = np.zeros(held.size, np.int64), np.zeros(held.size, np.int64)
    lane[held] = np.arange(layout.WARP)[:, None, None]
    register[held] = np.arange(registers)[:, None]
    return Fragment(lane.reshape(shape), register.reshape(shape))


def mma(operand: str) -> Fragment:
    """Who holds which element of an operand of mma.m16n8k16, from the PTX ISA: "A" (16 × 16), "B" (16 × 8, k by n) or
    "C" (16 × 8, the same for D). A register of A or B has two elements of 16 bits, one of C an fp32 element."""
    row, column = np.mgrid[0:16, 0 : 16 if operand == "A" else 8]
    if operand == "B":
        return Fragment(column * 4 + row % 8 // 2, row // 8)
    register = row // 8 + column // 8 * 2 if operand == "A" else row // 8 * 2 + column % 2
    return Fragment(row % 8 * 4 + column % 8 // 2, register)


def accumulator(columns: int) -> Fragment:
    """Who holds which element of the 64 × `columns` accumulator of a `wgmma`, from the PTX ISA: each warp has 16 rows,
    and each 16 × 8 of them as in C of mma.m16n8k16. 'Lane' is the thread of the warpgroup, 0 to 127."""
    row, column = np.mgrid[0:64, 0:columns]
    tile = mma("C")
    return Fragment(
        row // 16 * layout.WARP + tile.lane[row % 16, column % 8], column // 8 * 4 + tile.register[row % 16, column % 8]
    )


def rows_given(addresses: ArrayLike, lanes: ArrayLike, row_bytes: int) -> Fragment:
    """Which lane's address brings which element, for a traced `ldmatrix` of a 16 × 16 tile whose rows are `row_bytes`
    apart: 'register' is then the number of the 8 × 8 matrix."""
    addresses, lanes = np.asarray(addresses, np.int64), np.asarray(lanes, np.int64)
    row, byte = np.divmod(addresses - addresses.min(), row_bytes)
    lane, matrix = np.zeros((16, 16), np.int64), np.zeros((16, 16), np.int64)
    for reach in range(8):
        lane[row, byte // 2 + reach], matrix[row, byte // 2 + reach] = lanes, lanes // 8
    return Fragment(lane, matrix)


def tiles(
    panels: Mapping[str, tuple[str, Fragment]],
    what: str,
    mosaic: str,
    lane: int | None = None,
    word: str = "register",
    axes_names: Mapping[str, tuple[str, str]] | None = None,
    source: str = "",
) -> Picture:
    """Tiles side by side, as `mosaic` arranges them: the number in a box is the lane that holds it, the colour which of
    its registers (`word`); the boxes of `lane` are outlined.

    panels[name] is (title, Fragment); axes_names[name] names its rows and columns. A box is what a lane holds in one
    register of neighbouring elements.
    """
    grid: list[Any] = [list(line) for line in mosaic.split(";")]
    shapes = {name: shown.lane.shape for name, (_, shown) in panels.items()}
    heights = [max(shapes[n][0] for n in line if n != ".") for line in grid]
    widths = [max(shapes[line[x]][1] for line in grid if line[x] != ".") for x in range(len(grid[0]))]
    with styled():
        size = (0.6 * len(widths) + CELL * sum(widths), 0.5 + 0.6 * len(heights) + CELL * sum(heights))
        figure = picture(max(7.5, size[0]), size[1], what, source)
        found = figure.subplot_mosaic(grid, empty_sentinel=".", height_ratios=heights, width_ratios=widths)
        for name, (title, shown) in panels.items():
            _tile(found[name], shown, lane, *((axes_names or {}).get(name, ("row", "column"))))
            found[name].set_title(title)
        held = np.unique(np.concatenate([shown.register.ravel() for _, shown in panels.values()])).tolist()
        handles = [Patch(color=HUES[n % len(HUES)], label=f"{word} {n}") for n in held]
        if lane is not None:
            handles.append(Patch(facecolor="none", edgecolor=INK, linewidth=1.6, label=f"lane {lane}"))
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))
        if lane is not None and grid[0][0] == ".":  # room for words
            lines = [f"lane {lane} holds\n"]
            for name, (_, shown) in panels.items():
                for number in range(1 + int(shown.register.max())):
                    own = [f"{name}[{y}, {x}]" for held, y, x in shown.of(lane) if held == number]
                    lines.append(f"{name} register {number}:  {'  '.join(own)}")
                lines.append("")
            figure.text(0.05, 0.9, "\n".join(lines), va="top", fontfamily="monospace", fontsize=9, color=INK)
    return figure


def _tile(axes: Axes, shown: Fragment, lane: int | None, rows: str, columns: str) -> None:
    height, width = shown.lane.shape
    owner = shown.lane * 1000 + shown.register
    boxes = []
    seen = np.zeros(owner.shape, bool)
    for y in range(height):
        for x in range(width):
            if seen[y, x]:
                continue
            right, down = x + 1, y + 1
            while right < width and owner[y, right] == owner[y, x]:
                right += 1
            while down < height and (owner[down, x:right] == owner[y, x]).all():
                down += 1
            seen[y:down, x:right] = True
            boxes.append((x, y, right - x, down - y, int(shown.lane[y, x]), int(shown.register[y, x])))
    x, y, wide, high, lanes, registers = np.array(boxes).T
    rectangles(
        axes, x, y, wide, high, [HUES[n % len(HUES)] for n in registers], [str(n) for n in lanes], inch=(CELL, CELL)
    )
    for left, top, w, h in zip(x[lanes == lane], y[lanes == lane], wide[lanes == lane], high[lanes == lane]):
        axes.add_patch(Rectangle((left, top), w, h, fill=False, edgecolor=INK, linewidth=2, clip_on=False, zorder=3))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_aspect("equal")
    axes.set_anchor("NW")
    axes.set_xticks(np.arange(0, width, 2) + 0.5, [str(n) for n in range(0, width, 2)])
    axes.set_yticks(np.arange(0, height, 2) + 0.5, [str(n) for n in range(0, height, 2)])
    axes.set_xlabel(columns, labelpad=1)
    axes.set_ylabel(rows, labelpad=6)
    bare(axes)


# -------------------------------------------------------------------------------------------- eight lanes, eight groups


def bank_groups(requests: Mapping[str, Sequence[int]], what: str, columns: int = 2) -> Picture:
    """Eight 16-byte accesses that shared memory would serve together, and the eight groups of four banks.

    requests[title] holds their byte offsets, in the order of the lanes; the number in a box is the wavefront that
    serves it. `columns` panels to a line.
    """
    lines = -(-len(requests) // columns)
    inch = (0.55, 0.24)
    with styled():
        figure = picture(columns * (8 * inch[0] + 1.1), lines * (8 * inch[1] + 0.75) + 0.3, what)
        every = np.atleast_1d(figure.subplots(lines, columns)).ravel()
        for axes, (title, addresses) in zip(every, requests.items()):
            offsets = np.asarray(addresses, np.int64)
            served = layout.wavefronts(offsets, 16)
            turn = np.array([served.wavefront[served.lane == lane].max() for lane in range(len(offsets))])
            group, colours = offsets % layout.LINE // 16, [CONFLICT if n else FREE for n in turn]
            rectangles(axes, group, np.arange(len(offsets)), 1, 1, colours, [str(n + 1) for n in turn], inch=inch)
            axes.set_xlim(0, 8)
            axes.set_ylim(len(offsets), 0)
            axes.set_xticks(np.arange(8) + 0.5, [f"{4 * n}–{4 * n + 3}" for n in range(8)])
            axes.set_yticks(np.arange(len(offsets)) + 0.5, [f"lane {n}: {at:,}" for n, at in enumerate(offsets)])
            axes.hlines(np.arange(len(offsets) + 1), 0, 8, color=GRID, linewidth=0.5, zorder=0)
            axes.vlines(np.arange(9), 0, len(offsets), color=GRID, linewidth=0.5, zorder=0)
            used = len(np.unique(group))
            axes.set_title(f"{title}\n{used} of 8 groups of banks, {plural(served.count, 'wavefront')}")
            bare(axes)
        for axes in every[len(requests) :]:
            axes.set_axis_off()
        for axes in every[-columns:]:
            axes.set_xlabel("banks")
        figure.legend(
            handles=[
                Patch(color=FREE, label="served in the first wavefront"),
                Patch(color=CONFLICT, label="had to wait (the number is its wavefront); left: byte offset"),
            ],
            loc="outside lower left",
            ncols=2,
        )
    return figure


# --------------------------------------------------------------------------------------------------- instruction mix


MIX = {  # what a warp instruction is for -> the emulator's kinds of instruction
    "FMA": ("fma",),
    "tensor (mma)": ("mma", "wmma"),
    "shared memory": ("load.shared", "store.shared", "ldmatrix"),
    "global memory": ("load.global", "store.global", "cp.async"),
    "barriers": ("barrier",),
}


def mix(counts: Mapping[str, Mapping[str, int]], what: str) -> Picture:
    """What kinds of instructions kernels execute: absolute on the left, as shares on the right.

    counts[label] are the counters of one run, as common.count has them."""
    kinds = [*MIX, "all else"]
    values = np.array(
        [[sum(found.get(f"instructions.{kind}", 0) for kind in MIX[name]) for name in MIX] for found in counts.values()]
    )
    total = np.array([found["instructions"] for found in counts.values()])
    values = np.c_[values, total - values.sum(1)]
    with styled():
        figure = picture(10, 0.75 + 0.42 * len(counts), what)
        for axes, shown, title in zip(
            figure.subplots(1, 2, sharey=True),
            (values, 100 * values / total[:, None]),
            ("warp instructions executed", "per cent of them"),
        ):
            left = np.cumsum(shown, 1) - shown
            for n in range(len(kinds)):
                axes.barh(np.arange(len(counts)), shown[:, n], left=left[:, n], color=HUES[n], height=0.7)
            axes.set_yticks(np.arange(len(counts)), list(counts))
            axes.set_ylim(len(counts) - 0.5, -0.5)
            axes.set_title(title)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            for y, (row, start) in enumerate(zip(shown, left)):
                for value, at in zip(row, start):
                    if title.startswith("per") and value >= 6:
                        axes.text(at + value / 2, y, f"{value:.0f}", ha="center", va="center_baseline", color=INK)
                if not title.startswith("per"):
                    axes.text(row.sum(), y, f" {row.sum():,}", va="center_baseline", color=INK)
            axes.set_xlim(0, 100 if title.startswith("per") else 1.2 * total.max())
            bare(axes)
        used = [n for n in range(len(kinds)) if values[:, n].any()]
        figure.legend(
            handles=[Patch(color=HUES[n], label=kinds[n]) for n in used], loc="outside lower left", ncols=len(used)
        )
    return figure


# ------------------------------------------------------------------------------------------------- the quad's transpose


def quad(rounds: Mapping[str, np.ndarray], takeaway: str) -> Picture:
    """Who holds which pair: rounds[title] is [lane, word] of 4 · lane + word, by where the pair was at the start."""
    with styled():
        figure = picture(9.6, 1.55, takeaway)
        for axes, (title, words) in zip(figure.subplots(1, len(rounds)), rounds.items()):
            lane, word = np.mgrid[0:4, 0:4]
            source, tile = np.divmod(words.ravel(), 4)
            rectangles(
                axes,
                word.ravel(),
                lane.ravel(),
                1,
                1,
                [HUES[t] for t in tile],
                [f"T{t} P{s}" for s, t in zip(source, tile)],
                inch=(0.68, 0.3),
            )
            axes.set_xlim(0, 4)
            axes.set_ylim(4, 0)
            axes.set_xticks(np.arange(4) + 0.5, [f"word {n}" for n in range(4)])
            axes.set_yticks(np.arange(4) + 0.5, [f"lane {n}" for n in range(4)])
            axes.set_title(title)
            bare(axes)
    return figure
