"""The course's figures, drawn from arrays of addresses and threads. One palette, one look, computed titles.

Each function returns a `Picture`: a matplotlib figure that a notebook shows as PNG and that `savefig` writes as PNG
or SVG. Colours are Paul Tol's 'light' scheme, which colour-blind readers can tell apart and which carries black text:
a warp is a hue.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle
from numpy.typing import ArrayLike
from PIL import Image

from common.figures import layout

HUES = ("#77AADD", "#EE8866", "#BBCC33", "#FFAABB", "#44BB99", "#EEDD88", "#99DDFF", "#AAAA00")  # warp w: HUES[w % 8]
SHARED_BY_WARPS = "#C8C8C8"  # touched by several warps
FREE = "#99DDFF"  # served without a conflict
CONFLICT = "#EE8866"  # had to wait for a bank
NO_WAIT = "first at its bank"  # of the lanes that are served together
WASTED = "#E4E4E4"  # moved, but not asked for
FAINT = "#F4F4F4"  # there, but not what the figure is about
INK = "#222222"
GRID = "#DDDDDD"

STYLE = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.6,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.labelcolor": "#333333",
    "figure.titlesize": 11,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "hatch.linewidth": 0.4,
    "hatch.color": "#AAAAAA",
}
DPI = 100


def styled() -> AbstractContextManager[None]:
    """Figures drawn inside have our style."""
    return matplotlib.rc_context(STYLE)  # type: ignore[arg-type]


class Picture(Figure):
    """A matplotlib figure that displays itself in a notebook, without pyplot state."""

    def _repr_png_(self) -> bytes:
        """PNG in 64 colours, which look the same in these figures and take a third of the bytes in a notebook."""
        canvas, file = FigureCanvasAgg(self), io.BytesIO()
        canvas.draw()
        drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        drawn.quantize(64, dither=Image.Dither.NONE).save(file, "png", optimize=True)
        return file.getvalue()


class Beside:
    """Pictures side by side, displayed as one."""

    def __init__(self, *pictures: Picture):
        self.pictures = pictures

    def _repr_png_(self) -> bytes:
        drawn = [Image.open(io.BytesIO(picture._repr_png_())).convert("RGB") for picture in self.pictures]
        row = Image.new("RGB", (sum(each.width for each in drawn), max(each.height for each in drawn)), "white")
        for number, each in enumerate(drawn):
            row.paste(each, (sum(other.width for other in drawn[:number]), 0))
        file = io.BytesIO()
        row.quantize(64, dither=Image.Dither.NONE).save(file, "png", optimize=True)
        return file.getvalue()


def picture(width: float, height: float, takeaway: str, source: str = "") -> Picture:
    """An empty picture of `width` x `height` inches; its headline is `takeaway`, below it a line of the `source`."""
    lines = textwrap.wrap(takeaway, int(width * 10.2))
    head = 0.08 + 0.185 * len(lines) + (0.2 if source else 0) + 0.06  # inches above the axes
    height += head
    below = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - head / height))
    figure = Picture(figsize=(width, height), dpi=DPI, layout=below, facecolor="white")
    figure.text(0.08 / width, 1 - 0.08 / height, "\n".join(lines), va="top", fontsize=11, fontweight="bold", color=INK)
    if source:
        size = 8.5
        line = figure.text(
            0.08 / width,
            1 - (0.1 + 0.185 * len(lines)) / height,
            source,
            va="top",
            fontfamily="monospace",
            fontsize=size,
            color="#0B5394",
        )
        renderer = FigureCanvasAgg(figure).get_renderer()
        while line.get_window_extent(renderer).x1 > 0.99 * width * DPI:
            size -= 0.25
            line.set_fontsize(size)
    return figure


def ranges(numbers: Sequence[int]) -> str:
    """The numbers, sorted, runs joined: [0, 1, 2, 8] -> '0–2, 8'."""
    parts: list[list[int]] = []
    for number in sorted({int(n) for n in numbers}):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in parts)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def bare(axes: Axes) -> None:
    """No ticks and no frame."""
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def rectangles(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    width: ArrayLike,
    height: ArrayLike,
    colours: str | Sequence[str],
    labels: Sequence[str] | None = None,
    inch: tuple[float, float] = (0.25, 0.25),
    edge: str = "white",
    line: float = 0.6,
) -> None:
    """Rectangles with labels; `inch` is the size of one data unit on paper (x, y), which decides the labels' size."""
    x, y, width, height = np.broadcast_arrays(np.asarray(x, float), y, width, height)
    corners = np.stack(
        [
            np.stack([x, y], -1),
            np.stack([x + width, y], -1),
            np.stack([x + width, y + height], -1),
            np.stack([x, y + height], -1),
        ],
        axis=1,
    )
    axes.add_collection(PolyCollection(list(corners), facecolors=colours, edgecolors=edge, linewidths=line))
    if labels is None:
        return
    sizes = {}  # label -> (points, whether it is turned)
    for w, h, label in zip(width, height, labels):
        across, down = 72 * inch[0] * w, 72 * inch[1] * h  # in points
        level = min(9.0, down * 0.62, across / (0.66 * max(1, len(label))))
        upright = min(9.0, across * 0.62, down / (0.66 * max(1, len(label))))
        turned = level < 5 and upright > level and across < down
        sizes[w, h, label] = (upright if turned else level, turned)
    common = min(points for points, _ in sizes.values())
    for left, top, w, h, label in zip(x, y, width, height, labels):
        points, turned = sizes[w, h, label]
        if label and points >= 3.5:
            middle = (left + w / 2, top + h / 2)
            axes.text(*middle, label, ha="center", va="center" if turned else "center_baseline", color=INK,
                      rotation=90 if turned else 0, fontsize=common if common >= 5 else points,
                      in_layout=False)  # fmt: skip


# ------------------------------------------------------------------------------------------------- shared memory: banks


def banks(
    addresses: np.ndarray,
    size: int,
    lanes: np.ndarray | None = None,
    what: str = "request",
    source: str = "",
    load: bool = False,
) -> Picture:
    """One shared-memory request: above, where its words lie; below, which lanes each bank serves in each wavefront.

    `addresses` are byte offsets in shared memory, one per active lane, of accesses of `size` bytes; `load` as in
    `layout.wavefronts`.
    """
    served = layout.wavefronts(addresses, size, lanes, load)
    takeaway = f"{what}: {plural(served.count, 'wavefront')}" + (
        f" where {served.minimum} would do, {plural(served.conflicts, 'bank conflict')}"
        if served.conflicts
        else ", no bank conflict"
    )
    row_of_word = served.word // layout.BANKS
    rows = np.unique(row_of_word)
    lines = np.searchsorted(rows, row_of_word)
    tall = len(rows) + served.count > 24  # then the two panels are side by side, in smaller cells
    cell = 0.18 if tall else 0.27
    with styled():
        if tall:
            figure = picture(13.5, 1.2 + cell * max(len(rows), served.count), takeaway, source)
            above, below = figure.subplots(1, 2)
        else:
            figure = picture(10, 1.45 + cell * (len(rows) + served.count), takeaway, source)
            above, below = figure.subplots(2, 1, height_ratios=[len(rows) + 0.5, served.count + 0.5])
        _words(above, served.bank, lines, served, (cell, cell))
        _bank_axes(above, len(rows), "byte offset", [f"{row * layout.LINE:,}" for row in rows])
        above.set_title("where the words lie: 128 bytes per row, one word per bank; the numbers are lanes")
        _words(below, served.bank, served.wavefront, served, (cell, cell))
        names = [str(n + 1) for n in range(served.count)]
        _bank_axes(below, max(len(rows), served.count) if tall else served.count, "wavefront", names)
        below.set_title("how they are served: one word per bank and wavefront, to all lanes that want it")
        below.set_xlabel("bank")
        handles = [Patch(color=FREE, label=NO_WAIT)]
        if served.conflicts:
            handles.append(Patch(color=CONFLICT, label="had to wait: its bank was busy with another word"))
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def label_rows(axes: Axes, label: str, names: Sequence[str], least: int = 4) -> None:
    """Name rows of height 1 and say what the names are: beside the axis, or, where it is too short, in each name."""
    if len(names) >= least:
        axes.set_ylabel(label)
    else:
        names = [f"{label} {name}" for name in names]
    axes.set_yticks(np.arange(len(names)) + 0.5, names)


def _bank_axes(axes: Axes, rows: int, label: str, names: Sequence[str]) -> None:
    axes.set_xlim(0, layout.BANKS)
    axes.set_ylim(rows, 0)
    axes.set_xticks(np.arange(layout.BANKS) + 0.5, [str(bank) for bank in range(layout.BANKS)])
    label_rows(axes, label, names)
    axes.hlines(np.arange(rows + 1), 0, layout.BANKS, color=GRID, linewidth=0.5, zorder=0)
    axes.vlines(np.arange(layout.BANKS + 1), 0, rows, color=GRID, linewidth=0.5, zorder=0)
    bare(axes)


def _words(
    axes: Axes, column: np.ndarray, row: np.ndarray, served: layout.Wavefronts, inch: tuple[float, float]
) -> None:
    """A box per word, merged along the banks while the same lanes want the neighbours."""
    cells: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for x, y, turn, lane in zip(column, row, served.turn, served.lane):
        kept = cells.setdefault((int(y), int(x)), (int(turn), []))
        kept[1].append(int(lane))
    merged: list[list[Any]] = []
    for (y, x), (turn, lanes) in sorted(cells.items()):
        same = merged and merged[-1][1] == y and merged[-1][0] + merged[-1][2] == x and merged[-1][3:] == [turn, lanes]
        if same and merged[-1][2] < 4:
            merged[-1][2] += 1
        else:
            merged.append([x, y, 1, turn, lanes])
    rectangles(
        axes,
        [m[0] for m in merged],
        [m[1] for m in merged],
        [m[2] for m in merged],
        1,
        [CONFLICT if m[3] else FREE for m in merged],
        [ranges(m[4]) for m in merged],
        inch=inch,
    )


# ----------------------------------------------------------------------------------------------- global memory: sectors


def sectors(
    addresses: ArrayLike,
    size: int,
    lanes: ArrayLike | None = None,
    what: str = "request",
    element: int = 4,
    warp: int = 0,
    source: str = "",
    store: bool = False,
) -> Picture:
    """One global-memory request: the cache lines it touches, the sectors it moves, and the bytes that lanes asked for.

    `addresses` are byte addresses, one per active lane, of accesses of `size` bytes; a cell is `element` bytes.
    """
    addresses = np.asarray(addresses, dtype=np.int64)
    lanes = np.arange(len(addresses)) if lanes is None else np.asarray(lanes)
    touched = layout.sectors(addresses, size)
    wanted: dict[int, list[int]] = {}
    for lane, address in zip(lanes, addresses):
        for cell in range(int(address) // element, (int(address) + size - 1) // element + 1):
            wanted.setdefault(cell, []).append(int(lane))
    used = len(wanted) * element
    moved = len(touched) * layout.SECTOR
    have, use, asked, rest = (
        ("touched", "written", "written by", "touched with its sector, not written")
        if store
        else ("moved", "used", "asked for by", "moved with its sector, unused")
    )
    share = f"{moved:,} bytes {have}, {used:,} {use} ({100 * used / moved:.0f} %)"
    takeaway = f"{what}: {plural(len(touched), 'sector')}; {share}"
    lines = np.unique(touched // (layout.LINE // layout.SECTOR))
    per_line = layout.LINE // element
    unit = layout.SECTOR // element
    height = 0.24
    with styled():
        figure = picture(10, 0.85 + height * len(lines), takeaway, source)
        axes = figure.subplots()
        y = np.searchsorted(lines, touched * layout.SECTOR // layout.LINE)
        x = touched % (layout.LINE // layout.SECTOR) * unit
        rectangles(axes, x, y, unit, 1, WASTED, edge="none")
        cells = np.array(sorted(wanted))
        merged: list[list[Any]] = []  # neighbouring cells that the same lanes want, within a sector
        for cell in cells:
            line, column = int(np.searchsorted(lines, cell // per_line)), int(cell % per_line)
            if (
                merged
                and merged[-1][1] == line
                and merged[-1][0] + merged[-1][2] == column
                and column % unit
                and merged[-1][3] == wanted[int(cell)]
            ):
                merged[-1][2] += 1
            else:
                merged.append([column, line, 1, wanted[int(cell)]])
        rectangles(
            axes,
            [m[0] for m in merged],
            [m[1] for m in merged],
            [m[2] for m in merged],
            1,
            HUES[warp % len(HUES)],
            [ranges(m[3]) for m in merged],
            inch=(8.9 / per_line, height),
        )
        everywhere = np.arange(4 * len(lines))
        rectangles(axes, everywhere % 4 * unit, everywhere // 4, unit, 1, "none", edge=GRID, line=0.7)
        rectangles(axes, x, y, unit, 1, "none", edge="#666666", line=1.0)
        axes.set_xlim(0, per_line)
        axes.set_ylim(len(lines), 0)
        axes.set_xticks((np.arange(4) + 0.5) * unit, [f"sector {n}: bytes {32 * n}–{32 * n + 31}" for n in range(4)])
        first = lines.min() if len(lines) else 0
        names = [f"+{(line - first) * layout.LINE:,}" for line in lines]
        if len(lines) >= 6:
            label_rows(axes, "cache line (bytes from the first)", names)
        else:
            label_rows(axes, "line", names, least=len(lines) + 1)
        bare(axes)
        figure.legend(
            handles=[
                Patch(color=HUES[warp % len(HUES)], label=f"{asked} the lanes of these numbers, {size} bytes each"),
                Patch(color=WASTED, label=rest),
            ],
            loc="outside lower left",
            ncols=2,
        )
    return figure


# ------------------------------------------------------------------------------------------ cp.async: lines to lines


def copies(
    sources: ArrayLike, targets: ArrayLike, lanes: ArrayLike | None = None, what: str = "copy", source: str = ""
) -> Picture:
    """One `cp.async` request of 16 bytes per lane past L1: what it takes of each line of 128 bytes of global memory,
    and where that goes in shared memory. `sources` and `targets` are byte offsets, one per active lane.
    """
    sources, targets = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
    lanes = np.arange(len(sources)) if lanes is None else np.asarray(lanes)
    pairs = [sector for sector, _ in layout.copied_sectors(sources, targets)]
    parted = [pairs.count(sector) > 1 for sector in (sources // layout.SECTOR).tolist()]
    takeaway = f"{what}: {plural(len(pairs), 'sector')} from L2"
    if any(parted):
        takeaway += f" where {len(set(pairs))} hold the data: halves of a sector go to different ones"
    panels = {"global memory": sources, "shared memory": targets}
    most = max(len(np.unique(offsets // layout.LINE)) for offsets in panels.values())
    cell = 0.24 if most <= 12 else 0.17
    with styled():
        figure = picture(10, 0.85 + cell * most, takeaway, source)
        for axes, (title, offsets) in zip(figure.subplots(1, 2), panels.items()):
            lines = np.unique(offsets // layout.LINE)
            x, y = offsets % layout.LINE // 16, np.searchsorted(lines, offsets // layout.LINE)
            colours = [CONFLICT if twice else FREE for twice in parted]
            rectangles(axes, x, y, 1, 1, colours, [str(lane) for lane in lanes], inch=(0.5, cell))
            every = np.arange(4 * len(lines))
            rectangles(axes, every % 4 * 2, every // 4, 2, 1, "none", edge="#666666", line=0.9)
            axes.set_xlim(0, layout.LINE // 16)
            axes.set_ylim(most, 0)
            axes.set_xticks(np.arange(4) * 2 + 1, [f"sector {n}" for n in range(4)])
            axes.set_yticks(np.arange(len(lines)) + 0.5, [f"{line * layout.LINE:,}" for line in lines])
            axes.set_title(f"{title}, 128 bytes per row")
            bare(axes)
        handles = [Patch(color=FREE, label="its sector is fetched once (the numbers are lanes)")]
        if any(parted):
            handles.append(Patch(color=CONFLICT, label="its sector is fetched twice, once for each half"))
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


# ------------------------------------------------------------------------------------------ which thread, which element


def threads(
    thread: ArrayLike,
    row: ArrayLike,
    column: ArrayLike,
    width: ArrayLike,
    shape: tuple[int, int],
    what: str,
    warp: int = 0,
    lane: int | None = None,
) -> Picture:
    """Which thread touches which element of a matrix: one entry of `thread`, `row`, `column`, `width` per access.

    An access covers `width` neighbouring elements of a row, from `column` on; `shape` is that of the whole matrix.
    Small tiles show every warp's lanes; large ones, and those in which a `lane` is to be outlined, the warps on the
    left and on the right the lanes of `warp`.
    """
    thread, row, column, width = (
        np.asarray(array, dtype=np.int64) for array in np.broadcast_arrays(thread, row, column, width)
    )
    top, left, bottom, right = row.min(), column.min(), row.max() + 1, (column + width).max()
    boxes = _joined(_by_box(thread, row, column, width))
    several = any(len({who // layout.WARP for who in box[4]}) > 1 for box in boxes)
    across, down = _cell(boxes, 0.26, 9.0)
    with styled():
        if (
            lane is None
            and len(boxes) <= 1100
            and down * (bottom - top) <= 8.5
            and down * min(box[3] for box in boxes) >= 0.14
        ):
            figure = picture(max(7.5, 1.2 + across * (right - left)), 1.0 + down * (bottom - top), what)
            axes = figure.subplots()
            _lanes(axes, boxes, (across, down))
            _frame(axes, (top, left, bottom, right), shape, (across, down))
            _warp_legend(figure, np.unique(thread // layout.WARP), several)
            return figure
        mine = thread // layout.WARP == warp
        y0, x0, *around = _run(row[mine], column[mine], width[mine])
        y1, x1 = min(around[0], y0 + 32), min(around[1], x0 + max(64, 8 * width.max()))
        cut = row[mine].max() >= y1 or (column + width)[mine].max() > x1
        part = f", its first {y1 - y0} × {x1 - x0}" if cut else ""
        mine &= (row >= y0) & (row < y1) & (column >= x0) & (column < x1)
        mine_boxes = _joined(_by_box(thread[mine], row[mine], column[mine], width[mine]))
        across, down = _cell(mine_boxes, 0.22, 7.2)
        detail = (max(2.5, across * (x1 - x0)), max(2.0, down * (y1 - y0)))
        scale = min(4.5 / (right - left), max(detail[1], 3.2) / (bottom - top))
        overview = (scale * (right - left), scale * (bottom - top))
        figure = picture(2.0 + overview[0] + detail[0], 1.2 + max(overview[1], detail[1]), what)
        whole, zoom = figure.subplots(1, 2, width_ratios=[overview[0], detail[0]])
        _warps(whole, thread, row, column, width, (top, left, bottom, right), scale)
        _frame(whole, (top, left, bottom, right), shape, (scale, scale))
        whole.add_patch(
            Rectangle((x0, y0), around[1] - x0, around[0] - y0, fill=False, edgecolor=INK, linewidth=1.4, clip_on=False)
        )
        whole.set_title("warps")
        _lanes(zoom, mine_boxes, (across, down))
        _frame(zoom, (y0, x0, y1, x1), shape, (across, down))
        _outline(zoom, thread[mine], row[mine], column[mine], width[mine], warp, lane)
        zoom.set_title(f"lanes of warp {warp}{part}" + ("" if lane is None else f"; outlined: lane {lane}"))
    return figure


def _run(row: np.ndarray, column: np.ndarray, width: np.ndarray) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) of the first rows without a gap."""
    rows = np.unique(row)
    gaps = np.flatnonzero(np.diff(rows) > 1)
    return rows[0], column.min(), rows[gaps[0] if len(gaps) else -1] + 1, (column + width).max()


def _cell(boxes: list[tuple[int, int, int, int, list[int]]], largest: float, room: float) -> tuple[float, float]:
    """Inches per column and per row: squares of at most `largest` in `room` inches, if labels can be read in them."""
    row, column, width, height = np.array([box[:4] for box in boxes]).T
    columns, rows = (column + width).max() - column.min(), (row + height).max() - row.min()
    across = min(largest, room / columns)
    down = min(max(across, 0.16 / height.min()), 8.0 / rows)
    return (0.5, min(down, 0.19)) if columns <= 4 else (across, down)


def _by_box(
    thread: np.ndarray, row: np.ndarray, column: np.ndarray, width: np.ndarray
) -> dict[tuple[int, int, int], list[int]]:
    boxes: dict[tuple[int, int, int], list[int]] = {}
    for key in zip(row.tolist(), column.tolist(), width.tolist(), thread.tolist()):
        boxes.setdefault(key[:3], []).append(key[3])
    return boxes


def _joined(boxes: dict[tuple[int, int, int], list[int]]) -> list[tuple[int, int, int, int, list[int]]]:
    """(row, column, width, height, threads) of the accesses, joined with those below that the same threads make."""
    growing: dict[tuple[int, int], list[Any]] = {}  # (column, width) -> [row, height, threads] of the lowest box there
    done = []
    for (row, column, width), threads_here in sorted(boxes.items()):
        above = growing.get((column, width))
        if above and above[0] + above[1] == row and above[2] == threads_here:
            above[1] += 1
            continue
        if above:
            done.append((above[0], column, width, above[1], above[2]))
        growing[column, width] = [row, 1, threads_here]
    return done + [(row, column, width, height, who) for (column, width), (row, height, who) in growing.items()]


def _lanes(axes: Axes, boxes: list[tuple[int, int, int, int, list[int]]], inch: tuple[float, float]) -> None:
    colours, labels = [], []
    for *_, threads_here in boxes:
        warps = sorted({thread // layout.WARP for thread in threads_here})
        colours.append(HUES[warps[0] % len(HUES)] if len(warps) == 1 else SHARED_BY_WARPS)
        lanes = ranges([thread % layout.WARP for thread in threads_here])
        labels.append(lanes if len(warps) == 1 else f"{len(threads_here)}×")
    row, column, width, height = np.array([box[:4] for box in boxes]).T
    rectangles(axes, column, row, width, height, colours, labels, inch=inch)


def _warps(
    axes: Axes,
    thread: np.ndarray,
    row: np.ndarray,
    column: np.ndarray,
    width: np.ndarray,
    box: tuple[int, int, int, int],
    scale: float,
) -> None:
    """Each element in the hue of its warp, grey where several warps meet; a warp's name in the middle of its part."""
    top, left, bottom, right = box
    reach = np.arange(width.max())
    rows = np.repeat(row, len(reach)).reshape(-1, len(reach)) - top
    columns = column[:, None] + reach - left
    inside = reach < width[:, None]
    warps = np.repeat(thread // layout.WARP, len(reach)).reshape(-1, len(reach))
    lowest = np.full((bottom - top, right - left), np.iinfo(np.int64).max)
    highest = np.full((bottom - top, right - left), -1)
    np.minimum.at(lowest, (rows[inside], columns[inside]), warps[inside])
    np.maximum.at(highest, (rows[inside], columns[inside]), warps[inside])
    rgba = np.ones((bottom - top, right - left, 3))
    palette = np.array([matplotlib.colors.to_rgb(hue) for hue in HUES])
    alone = (highest >= 0) & (lowest == highest)
    rgba[alone] = palette[highest[alone] % len(HUES)]
    rgba[(highest >= 0) & ~alone] = matplotlib.colors.to_rgb(SHARED_BY_WARPS)
    axes.imshow(rgba, extent=(left, right, bottom, top), interpolation="nearest", aspect="auto")
    for warp in np.unique(highest[alone]):
        ys, xs = np.nonzero(alone & (highest == warp))
        rows_of_warp = np.unique(ys)
        wide = (np.ptp(xs) + 1) * scale * 72  # in points
        for run in np.split(rows_of_warp, np.flatnonzero(np.diff(rows_of_warp) > 1) + 1):
            size = min(9.0, 0.7 * len(run) * scale * 72, wide / 4.5)
            if size >= 4:
                middle = (left + (xs.min() + xs.max() + 1) / 2, top + (run[0] + run[-1] + 1) / 2)
                axes.text(*middle, f"warp {warp}", ha="center", va="center_baseline", fontsize=size, color=INK)


def _frame(axes: Axes, box: tuple[int, int, int, int], shape: tuple[int, int], inch: tuple[float, float]) -> None:
    top, left, bottom, right = box
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect(inch[1] / inch[0])
    axes.set_anchor("NW")
    for axis, first, last, unit in ((axes.xaxis, left, right, inch[0]), (axes.yaxis, top, bottom, inch[1])):
        step = next(step for step in (1 << n for n in range(40)) if step * unit >= 0.3)  # inches between two numbers
        ticks = np.arange(first, last, step)
        axis.set_ticks(ticks + 0.5, [str(tick) for tick in ticks])
    axes.set_xlabel(f"column (of {shape[1]})")
    axes.set_ylabel(f"row (of {shape[0]})")
    axes.tick_params(length=0)


def _outline(
    axes: Axes, thread: np.ndarray, row: np.ndarray, column: np.ndarray, width: np.ndarray, warp: int, lane: int | None
) -> None:
    if lane is None:
        return
    mine = thread == warp * layout.WARP + lane
    owned = {(y, x + reach) for y, x, w in zip(row[mine], column[mine], width[mine]) for reach in range(w)}
    for y, x in owned:  # only the edges between what is owned and what is not
        for (dy, dx), ends in (
            ((-1, 0), ((x, x + 1), (y, y))),
            ((1, 0), ((x, x + 1), (y + 1, y + 1))),
            ((0, -1), ((x, x), (y, y + 1))),
            ((0, 1), ((x + 1, x + 1), (y, y + 1))),
        ):
            if (y + dy, x + dx) not in owned:
                axes.plot(*ends, color=INK, linewidth=2, solid_capstyle="projecting", clip_on=False)


def _warp_legend(figure: Picture, warps: np.ndarray, several: bool) -> None:
    if several:
        figure.legend(
            handles=[Patch(color=SHARED_BY_WARPS, label="several warps: the number of threads")],
            loc="outside lower left",
        )
        return
    handles = [
        Patch(
            color=hue,
            label=("warp " if np.sum(warps % len(HUES) == n) == 1 else "warps ")
            + ranges(warps[warps % len(HUES) == n]),
        )
        for n, hue in enumerate(HUES)
        if np.any(warps % len(HUES) == n)
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4 if len(warps) > len(HUES) else 8)


# ---------------------------------------------------------------------------------------------------- footprint, rhythm


def footprint(
    panels: dict[str, dict[str, Any]], mosaic: str | None, takeaway: str, block: int, warp: int, lane: int
) -> Picture:
    """What a block, one of its warps and one of its lanes touch of each matrix, arranged as `mosaic` says.

    panels[name] has "shape" (rows, columns), arrays "thread", "row", "column", "width" of accesses, and "title".
    """
    rows: list[Any] = [list(line) for line in mosaic.split(";")] if mosaic else [list(panels)]
    place = {name: (y, x) for y, line in enumerate(rows) for x, name in enumerate(line) if name != "."}
    heights = [max(panels[n]["shape"][0] for n in line if n != ".") for line in rows]
    widths = [max(panels[line[x]]["shape"][1] for line in rows if line[x] != ".") for x in range(len(rows[0]))]
    scale = min(7.5 / sum(widths), 5.2 / sum(heights))
    with styled():
        figure = picture(max(7.5, 2.0 + scale * sum(widths)), 1.0 + 0.65 * len(rows) + scale * sum(heights), takeaway)
        engine = figure.get_layout_engine()
        assert isinstance(engine, ConstrainedLayoutEngine)
        engine.set(h_pad=0.12)  # a panel's title keeps off the numbers of the one above
        axes_of = figure.subplot_mosaic(rows, empty_sentinel=".", height_ratios=heights, width_ratios=widths)
        for name in place:
            panel, axes = panels[name], axes_of[name]
            thread, row, column, width = (panel[key] for key in ("thread", "row", "column", "width"))
            image = np.zeros((*panel["shape"], 4))  # transparent where nothing is touched: the grid shows through
            for mask, colour in (
                (np.ones(len(thread), bool), "#D6E4F5"),
                (thread // layout.WARP == warp, HUES[warp % len(HUES)]),
                (thread == warp * layout.WARP + lane, "#1F3A5F"),
            ):
                for reach in range(int(width.max()) if len(width) else 0):
                    here = mask & (reach < width)
                    image[row[here], column[here] + reach] = matplotlib.colors.to_rgba(colour)
            high, wide = panel["shape"]
            axes.imshow(image, extent=(0, wide, high, 0), interpolation="nearest", aspect="equal", zorder=2)
            margin = max(high, wide) / 100  # or the frame covers what lies at an edge
            axes.set(xlim=(-margin, wide + margin), ylim=(high + margin, -margin), axisbelow=True)
            axes.set_title(panel["title"], wrap=False)
            for axis, extent in ((axes.xaxis, wide), (axes.yaxis, high)):
                step = next(step for step in (8, 16, 32, 64, 128, 256, 512, 1 << 40) if extent / step <= 8)
                axis.set_ticks(np.arange(0, extent + 1, step))
            axes.grid(color="#EEEEEE", linewidth=0.5)
            axes.tick_params(length=0)
        figure.legend(
            handles=[
                Patch(color="#D6E4F5", label=f"block {block}"),
                Patch(color=HUES[warp % len(HUES)], label=f"its warp {warp}"),
                Patch(color="#1F3A5F", label=f"lane {lane} of that warp"),
            ],
            loc="outside lower left",
            ncols=3,
        )
    return figure


RHYTHM = ("global load", "async copy", "shared store", "shared load", "global store", "atomic", "local")


def rhythm(lanes_of_time: dict[str, np.ndarray], length: int, what: str) -> Picture:
    """In which order one warp makes its memory requests: one track per kind, a mark per request."""
    tracks = [name for name in RHYTHM if name in lanes_of_time]
    with styled():
        figure = picture(10, 0.6 + 0.36 * len(tracks), what)
        axes = figure.subplots()
        for y, name in enumerate(tracks):
            when = lanes_of_time[name]
            axes.vlines(
                when, y + 0.12, y + 0.88, color=HUES[RHYTHM.index(name)], linewidth=min(2.0, max(0.5, 500 / length))
            )
        axes.set_xlim(0, length)
        axes.set_ylim(len(tracks), 0)
        axes.set_yticks(np.arange(len(tracks)) + 0.5, [f"{name} ({len(lanes_of_time[name])})" for name in tracks])
        axes.set_xlabel("memory instructions of the warp, in the order of execution")
        axes.hlines(np.arange(len(tracks) + 1), 0, length, color=GRID, linewidth=0.5)
        bare(axes)
    return figure
