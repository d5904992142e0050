"""Layouts to play with, and figures of the late GEMM stages: XOR and banks, blocks and L2, fragments in flight.

    explore(width=64, swizzle=True)    a tile of your own: where its chunks lie, and what the banks make of it

Nothing here runs a kernel but `executed_order`, which asks the emulator who wrote which tile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from common import layout
from common.errors import UserError
from common.figures import (
    CONFLICT,
    FREE,
    GRID,
    HUES,
    INK,
    STYLE,
    WASTED,
    Picture,
    _bare,
    _boxes,
    picture,
    plural,
)
from common.results import recorded, size_name, variants_name

if TYPE_CHECKING:
    from common.sass import Instruction
    from common.stage import Kernel

CHUNK = 16  # bytes: what a lane copies at once, and a row of one matrix of ldmatrix
GROUPS = layout.LINE // CHUNK  # groups of four banks, as wide as a chunk
FAINT = "#F4F4F4"

# ----------------------------------------------------------------------------------------------------- layouts of tiles


def explore(
    width: int = 32, element: int = 2, padding: int = 0, swizzle: bool = False, column: int = 0, rows: int = 8
) -> Picture:
    """A shared-memory tile with rows of `width` + `padding` elements of `element` bytes, with or without XOR: where its
    16-byte chunks lie, and the wavefronts that the `rows` rows of one matrix of ldmatrix take at `column`.

    UserError for rows that are no whole chunks, and for XOR with rows that are no power of two.
    """
    chunks = _chunks(width, element, padding, swizzle)
    if not 0 <= column < width or column * element % CHUNK:
        raise UserError(f"column: the first of a chunk, a multiple of {CHUNK // element} below {width}, not {column}")
    served = layout.column_read(
        width=width, element=element, padding=padding, xor=swizzle, column=column, rows=rows
    )
    pitch = (width + padding) * element
    cells = np.arange(rows)[:, None], np.arange(chunks)[None, :] * (CHUNK // element)
    offsets = layout.tile_offset(*cells, width=width, element=element, padding=padding, xor=swizzle)
    lines = np.unique(offsets // layout.LINE)
    if len(lines) > 2 * rows:  # then only those that the matrix touches
        lines = np.unique(offsets[:, column * element // CHUNK] // layout.LINE)
    shown = np.isin(offsets // layout.LINE, lines)
    turn = {int(row): int(t) for row, t in zip(served.lane, served.turn)}
    mine = np.arange(chunks)[None, :] == column * element // CHUNK
    colours = [
        (CONFLICT if turn[row] else FREE) if mine[0, chunk] else FAINT
        for row in range(rows)
        for chunk in range(chunks)
        if shown[row, chunk]
    ]
    labels = [f"{row}·{chunk}" for row in range(rows) for chunk in range(chunks) if shown[row, chunk]]
    bytes_ = f"rows of {width * element} bytes" + (f" + {padding * element} of padding" if padding else "")
    takeaway = (
        f"{bytes_[0].upper()}{bytes_[1:]}, {'XOR' if swizzle else 'no XOR'}: {rows} rows at chunk "
        f"{column * element // CHUNK} take {plural(served.count, 'wavefront')}"
    )
    tall = max(len(lines), served.count, 3)
    with matplotlib.rc_context(STYLE):
        figure = picture(10, 0.95 + 0.24 * tall, takeaway)
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        inch = (4.5 / GROUPS, 0.24)
        if padding:
            spare = np.arange(rows)[:, None] * pitch + width * element + np.arange(0, padding * element, CHUNK)
            spare = spare[np.isin(spare // layout.LINE, lines)]
            _boxes(left, spare % layout.LINE // CHUNK, np.searchsorted(lines, spare // layout.LINE), 1, 1, WASTED)
        where = offsets[shown]
        _boxes(left, where % layout.LINE // CHUNK, np.searchsorted(lines, where // layout.LINE), 1, 1, colours, labels,
               inch)  # fmt: skip
        _groups(left, [f"{line * layout.LINE:,}" for line in lines], "byte offset" if tall > 3 else "")
        left.set_title("where row·chunk lies: 128 bytes per line")
        first = served.bank % (CHUNK // layout.WORD) == 0
        _boxes(
            right,
            served.bank[first] // (CHUNK // layout.WORD),
            served.wavefront[first],
            1,
            1,
            [CONFLICT if t else FREE for t in served.turn[first]],
            [f"row {lane}" for lane in served.lane[first]],
            inch=(3.6 / GROUPS, 0.24),
        )
        _groups(right, [str(n + 1) for n in range(served.count)], "wavefront" if served.count > 2 else "")
        right.set_ylim(tall, 0)
        right.set_title("which row is served in which wavefront")
        handles = [Patch(color=FREE, label="served at once")]
        handles += [Patch(color=CONFLICT, label="had to wait")] if served.conflicts else []
        handles += [Patch(color=WASTED, label="padding: holds nothing")] if padding else []
        figure.legend(handles=handles, loc="outside lower left", ncols=4)
    return figure


def controls() -> object:
    """`explore` with a control for each argument where ipywidgets is installed; otherwise its picture."""
    try:
        from ipywidgets import interact
    except ImportError:
        return explore(swizzle=True)
    widths = (16, 32, 64, 128, 256)
    return interact(explore, width=widths, element=[2, 4], padding=[0, 8, 16], swizzle=True, column=[0, 8], rows=[8])


def _chunks(width: int, element: int, padding: int, swizzle: bool) -> int:
    row = width * element
    if min(width, element) < 1 or padding < 0 or row % CHUNK or padding * element % CHUNK:
        raise UserError(f"ldmatrix needs rows of whole chunks: multiples of {CHUNK} bytes, not {row}"
                        + (f" + {padding * element}" if padding else ""))  # fmt: skip
    if swizzle and min(row, layout.LINE) & (min(row, layout.LINE) - 1):
        raise UserError(f"XOR stays within a row only if that has a power of two of chunks, not {row // CHUNK}")
    return row // CHUNK


def _groups(axes: Axes, lines: Sequence[str], label: str) -> None:
    """Axes of 8 groups of 4 banks across and lines of 128 bytes, or wavefronts, down."""
    axes.set_xlim(0, GROUPS)
    axes.set_ylim(len(lines), 0)
    axes.set_xticks(np.arange(GROUPS) + 0.5, [f"{4 * group}–{4 * group + 3}" for group in range(GROUPS)])
    axes.set_yticks(np.arange(len(lines)) + 0.5, lines)
    axes.set_xlabel("banks")
    axes.set_ylabel(label)
    axes.hlines(np.arange(len(lines) + 1), 0, GROUPS, color=GRID, linewidth=0.5, zorder=0)
    axes.vlines(np.arange(GROUPS + 1), 0, len(lines), color=GRID, linewidth=0.5, zorder=0)
    _bare(axes)


def cures(widths: Sequence[int] = (32, 64, 256), element: int = 2, padding: int = 8, column: int = 8) -> Picture:
    """Which group of banks each of the 8 rows of one ldmatrix matrix hits, as the rows come, padded, and with XOR."""
    kinds = {"as they come": {}, f"{padding * element} bytes of padding": {"padding": padding}, "XOR": {"xor": True}}
    with matplotlib.rc_context(STYLE):
        counts = {
            name: [layout.column_read(width=w, element=element, column=column, **how).count for w in widths]
            for name, how in kinds.items()
        }
        before, *after = counts.values()
        cured = all(count == 1 for column_ in after for count in column_)
        figure = picture(
            9,
            0.75 + 1.95 * len(widths),
            f"Rows of {', '.join(str(w * element) for w in widths)} bytes: {', '.join(map(str, before))} wavefronts per "
            f"matrix" + (", 1 with padding or XOR" if cured else ""),
        )
        panels = figure.subplots(len(widths), len(kinds), squeeze=False)
        for y, width in enumerate(widths):
            for x, (name, how) in enumerate(kinds.items()):
                served = layout.column_read(width=width, element=element, column=column, **how)
                first = served.bank % (CHUNK // layout.WORD) == 0
                axes = panels[y, x]
                _boxes(
                    axes,
                    served.bank[first] // (CHUNK // layout.WORD),
                    served.lane[first],
                    1,
                    1,
                    [CONFLICT if t else FREE for t in served.turn[first]],
                )
                _groups(axes, [str(row) for row in range(8)], "row" if x == 0 else "")
                axes.set_xticks(np.arange(GROUPS) + 0.5, [str(group) for group in range(GROUPS)])
                axes.set_xlabel("group of 4 banks" if y == len(widths) - 1 else "")
                axes.set_title(f"{width * element}-byte rows, {name}:\n{plural(served.count, 'wavefront')}")
        figure.legend(
            handles=[Patch(color=FREE, label="served at once"), Patch(color=CONFLICT, label="had to wait")],
            loc="outside lower left",
            ncols=2,
        )
    return figure


Key = Callable[[np.ndarray], np.ndarray]  # row number -> what its chunk numbers are XORed with


def keys(maps: Mapping[str, tuple[int, Key]], rows: int = 16, takeaway: str = "") -> Picture:
    """In which group of banks each chunk of a tile lies: maps[title] = (bytes per row, key of a row).

    Below each map the wavefronts that 8 rows of one column of chunks take, at worst, wherever they begin.
    """
    with matplotlib.rc_context(STYLE):
        wide = [size // CHUNK for size, _ in maps.values()]
        unit = min(0.34, 8.2 / sum(wide))
        figure = picture(2.0 + unit * sum(wide) + 0.65 * len(maps), 1.1 + 0.22 * rows, takeaway)
        panels = figure.subplots(1, len(maps), width_ratios=[max(count, 3) for count in wide], squeeze=False)[0]
        for axes, (title, (size, key)), chunks in zip(panels, maps.items(), wide):
            row, chunk = np.mgrid[0 : rows + 8, 0:chunks]
            group = (row * size // CHUNK + (chunk ^ key(row))) % GROUPS
            windows = np.lib.stride_tricks.sliding_window_view(group, 8, axis=0).reshape(-1, 8)
            worst = max(np.bincount(window).max() for window in windows)
            group = group[:rows]
            _boxes(
                axes,
                chunk[:rows].ravel(),
                row[:rows].ravel(),
                1,
                1,
                [HUES[g] for g in group.ravel()],
                [str(g) for g in group.ravel()],
                inch=(unit, 0.22),
            )
            axes.add_patch(Rectangle((1, 4), 1, 8, fill=False, edgecolor=INK, linewidth=1.8, zorder=5))
            axes.set_xlim(0, chunks)
            axes.set_ylim(rows, 0)
            axes.set_xticks(np.arange(chunks) + 0.5, [str(c) for c in range(chunks)])
            axes.set_yticks(np.arange(rows) + 0.5, [str(r) for r in range(rows)])
            axes.set_xlabel("chunk")
            axes.set_title(f"{title}\nany 8 rows: {plural(worst, 'wavefront')}")
            _bare(axes)
        panels[0].set_ylabel("row")
    return figure


# ---------------------------------------------------------------------------------------------- the order of blocks, L2


def order(tiles_m: int, tiles_n: int, group_m: int) -> np.ndarray:
    """[tiles_m, tiles_n]: which block takes each tile, by the formula of phase 1 of stage 09."""
    block = np.arange(tiles_m * tiles_n)
    group, inside = np.divmod(block, group_m * tiles_n)
    height = np.minimum(group_m, tiles_m - group * group_m)
    found = np.empty((tiles_m, tiles_n), np.int64)
    found[group * group_m + inside % height, inside // height] = block
    return found


def executed_order(kernel: Kernel, shape: tuple[int, int, int]) -> tuple[np.ndarray, tuple[int, int]]:
    """([tiles_m, tiles_n]: which block wrote each tile of C in the emulator, (rows, columns) of a tile)."""
    from common import emulator

    spec = kernel.stage.spec
    inputs = spec.inputs(shape, kernel.dtype, variants=kernel.variants)
    outputs = spec.outputs(shape, kernel.dtype, variants=kernel.variants)
    trace = emulator.Trace(max_rows=16_000_000)
    report = kernel.emulate(inputs, outputs, counters=False, sanitize=False, trace=trace)
    block, _ = report.writers(spec.output_names[0])
    rows, columns = np.nonzero(block == block[0, 0])
    tile = int(rows.max()) + 1, int(columns.max()) + 1
    return block[:: tile[0], :: tile[1]], tile


def waves(orders: Mapping[str, np.ndarray], tile: tuple[int, int], running: int) -> Picture:
    """The tiles of C by the block that takes them; of the first `running` blocks also what they read of A and B."""
    high, wide = next(iter(orders.values())).shape
    unit = min(3.6 / wide, 0.4)
    down = max(0.15, unit * tile[0] / tile[1])
    needs = {}
    for name, blocks in orders.items():
        now = blocks < running
        needs[name] = now.any(1), now.any(0)
    sums = {name: int(a.sum() * tile[0] + b.sum() * tile[1]) for name, (a, b) in needs.items()}
    most, least = max(sums, key=sums.get), min(sums, key=sums.get)
    takeaway = (
        f"{running} blocks at a time need {sums[most]:,} rows and columns of A and B with {most}, "
        f"{sums[least]:,} with {least}"
    )
    with matplotlib.rc_context(STYLE):
        figure = picture(0.6 + (unit * (wide + 1.5) + 0.35) * len(orders), 1.0 + down * (high + 2), takeaway)
        for axes, (name, blocks) in zip(figure.subplots(1, len(orders), squeeze=False)[0], orders.items()):
            rows, columns = needs[name]
            y, x = np.mgrid[0:high, 0:wide]
            now = blocks < running
            _boxes(
                axes,
                x.ravel(),
                y.ravel(),
                1,
                1,
                [HUES[0] if n else FAINT for n in now.ravel()],
                [str(b) for b in blocks.ravel()],
                inch=(unit, down),
            )
            _boxes(axes, -1.3, np.arange(high), 1, 1, [HUES[4] if r else FAINT for r in rows])
            _boxes(axes, np.arange(wide), -2.0, 1, 1.6, [HUES[1] if c else FAINT for c in columns])
            axes.text(-0.8, -0.5, "A", ha="center", va="bottom", color=INK)
            axes.text(-0.35, -1.2, "B", ha="center", va="center", color=INK)
            axes.set_xlim(-1.4, wide)
            axes.set_ylim(high, -2.1)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{name}: {rows.sum()} × {tile[0]} rows of A,\n{columns.sum()} × {tile[1]} columns of B")
            _bare(axes)
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


def traffic(
    shape: tuple[int, int, int], tile: tuple[int, int], group_m: int, running: int = 132, element: int = 2
) -> Traffic:
    """Model: blocks run in waves of `running`, and a wave reads each byte of A and B that it needs once from memory."""
    m, n, k = shape
    blocks = order(-(-m // tile[0]), -(-n // tile[1]), group_m)
    wave = blocks // running
    numbers = np.unique(wave)
    rows = sum(int((wave == number).any(1).sum()) for number in numbers) * tile[0]
    columns = sum(int((wave == number).any(0).sum()) for number in numbers) * tile[1]
    scale = k * element / len(numbers)
    return Traffic(rows * scale, columns * scale, blocks.size * sum(tile) * scale)


def group_sizes(
    sizes: Sequence[int],
    tile: tuple[int, int],
    chosen: int,
    groups: Sequence[int] = (1, 2, 4, 8, 12, 16, 32),
    running: int = 132,
) -> Picture:
    """The model of `traffic` at square problems, as a function of GROUP_M, of which `chosen` is compared with 1."""
    found = {size: [traffic((size, size, size), tile, group, running) for group in groups] for size in sizes}
    saved = []
    for size, row in found.items():
        before, after = (row[groups.index(group)] for group in (1, chosen))
        saved.append(f"{1 - (after.a + after.b) / (before.a + before.b):.0%} fewer at {size}")
    with matplotlib.rc_context(STYLE):
        takeaway = f"Different bytes that {running} blocks read, GROUP_M = {chosen} against 1: {', '.join(saved)}"
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
            axes.set_title(f"M = N = K = {size}: of {row[0].asked / 1e6:,.0f} MB asked for;\n"
                           "above the bars: what L2 can serve at best")  # fmt: skip
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(length=0)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=2)
    return figure


# ------------------------------------------------------------------------------------ the main loop, as the GPU gets it


@dataclass(frozen=True)
class Load:
    """One ldmatrix of the main loop: its place and that of its first use, and the tensor instructions between them."""

    place: int
    use: int
    between: int
    operand: str  # "A" or "B"


@dataclass(frozen=True)
class Loop:
    """The main loop of a kernel in machine code: the places of the instructions that move or multiply, in order."""

    mma: tuple[int, ...]
    loads: tuple[Load, ...]
    copies: tuple[int, ...]
    barriers: tuple[int, ...]
    length: int


_KINDS = {"HMMA": "mma", "LDSM": "loads", "LDGSTS": "copies", "BAR": "barriers"}


def main_loop(instructions: Sequence[Instruction], turns: int = 1) -> Loop:
    """The loop with the most tensor instructions, `turns` times, in its steady state. UserError if there is none.

    An ldmatrix's first use is the first tensor instruction that reads one of the registers it wrote.
    """
    number = {i.address: at for at, i in enumerate(instructions)}
    bodies = []
    for at, i in enumerate(instructions):
        target = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", i.text)
        start = number.get(int(target[1], 16), at) if target else at
        if start < at:
            bodies.append([j for j in instructions[start : at + 1] if j.opcode.split(".")[0] in _KINDS])
    body = max(bodies, key=lambda b: sum(i.opcode.startswith("HMMA") for i in b), default=[])
    if not any(i.opcode.startswith("HMMA") for i in body):
        raise UserError("this kernel has no loop with tensor instructions")
    places: dict[str, list[int]] = {kind: [] for kind in _KINDS.values()}
    operand, first_use, writer = {}, {}, {}  # of a load, by its place; which load wrote a register
    for place, i in enumerate(body * (turns + 1)):  # one more turn, in which the last loads are used
        kind = _KINDS[i.opcode.split(".")[0]]
        places[kind].append(place)
        registers = [int(n) for n in re.findall(r"\bR(\d+)", i.text)]
        if kind == "mma":
            for base, count in ((registers[1], 4), (registers[2], 2)):
                for register in range(base, base + count):
                    if register in writer:
                        first_use.setdefault(writer[register], place)
        elif kind == "loads":
            operand[place] = "B" if ".MT" in i.opcode else "A"
            writer |= dict.fromkeys(range(registers[0], registers[0] + int(i.opcode.rsplit(".", 1)[1])), place)
    length = len(body) * turns
    loads = []
    for place, use in first_use.items():
        if place < length:
            loads.append(Load(place, use, sum(place < mma < use for mma in places["mma"]), operand[place]))
    shown = {kind: tuple(at for at in places[kind] if at < length) for kind in ("mma", "copies", "barriers")}
    return Loop(loads=tuple(sorted(loads, key=lambda load: load.place)), length=length, **shown)


def sass_loop(kernel: Kernel, arch: str = "90", function: str = "", turns: int = 1) -> Loop:
    """The main loop of a kernel compiled for `arch`: of the function whose (mangled) name has `function` in it."""
    from common import sass, toolchain

    functions = sass.parse(toolchain.disassemble(toolchain.cubin(kernel.source, kernel.defines, arch).path))
    found = [code for name, code in functions.items() if function in name]
    if not found:
        raise UserError(f"{kernel.label} has the functions {', '.join(functions)}, none with '{function}'")
    return main_loop(found[0], turns)


def fragments(loops: Mapping[str, Loop]) -> Picture:
    """When fragments are loaded and when they are first used, in the order of one warp's instructions."""
    lanes = {name: _lanes(loop.loads) for name, loop in loops.items()}
    heights = [max(lanes[name]) + 5 for name in loops]
    takeaway = "Copies and ldmatrix between a barrier and the next mma: " + ", ".join(
        f"{max(min(at for at in (*loop.mma, loop.length) if at > barrier) - barrier for barrier in loop.barriers) - 1} "
        f"in {name}"
        for name, loop in loops.items()
    )
    with matplotlib.rc_context(STYLE):
        figure = picture(12, 0.75 + sum(0.1 * h + 0.4 for h in heights), takeaway)
        panels = figure.subplots(len(loops), 1, height_ratios=heights, squeeze=False, sharex=True)[:, 0]
        end = max(max(loop.length, *(load.use for load in loop.loads)) for loop in loops.values())
        for axes, (name, loop) in zip(panels, loops.items()):
            for load, lane in zip(loop.loads, lanes[name]):
                hue = CONFLICT if not load.between else {"A": HUES[0], "B": HUES[4]}[load.operand]
                long = load.use - load.place
                axes.add_patch(Rectangle((load.place, lane + 4.1), long, 0.8, linewidth=0, facecolor=hue))
            axes.vlines(np.array(loop.mma) + 0.5, 0.1, 1.3, color="#777777", linewidth=1.8)
            axes.vlines(np.array(loop.copies) + 0.5, 1.8, 3.0, color="#C09000", linewidth=2)
            for at in loop.barriers:
                axes.axvline(at + 0.5, color="#CC3311", linewidth=1.4, zorder=4)
            axes.set_xlim(-1, end + 1)
            axes.set_ylim(max(lanes[name]) + 5.2, -0.2)
            axes.set_yticks([0.7, 2.4, 4.5 + max(lanes[name]) / 2], ["mma", "copies", "fragments"])
            between = np.median([load.between for load in loop.loads])
            axes.set_title(f"{name}: from an ldmatrix to its first use the warp begins {between:.0f} mma (median)")
            _bare(axes)
        panels[-1].set_xlabel("the warp's ldmatrix, mma, copies and barriers, in the order of the machine code")
        figure.legend(
            handles=[
                Patch(color=HUES[0], label="A: from ldmatrix to first mma"),
                Patch(color=HUES[4], label="B: likewise"),
                Patch(color=CONFLICT, label="no mma between: the warp waits"),
                Patch(color="#C09000", label="copy"),
                Patch(color="#CC3311", label="barrier"),
            ],
            loc="outside lower left",
            ncols=5,
        )
    return figure


def _lanes(loads: Sequence[Load]) -> list[int]:
    """For each bar the first line that is free where it begins."""
    free: list[int] = []
    lanes = []
    for load in loads:
        lane = next((n for n, until in enumerate(free) if until <= load.place), len(free))
        free[lane:] = [load.use, *free[lane + 1 :]]
        lanes.append(lane)
    return lanes


# ------------------------------------------------------------------------------------------------- the quad's transpose


def quad(rounds: Mapping[str, np.ndarray], takeaway: str) -> Picture:
    """Who holds which pair: rounds[title] is [lane, word] of 4 · lane + word, by where the pair was at the start."""
    with matplotlib.rc_context(STYLE):
        figure = picture(9.6, 1.55, takeaway)
        for axes, (title, words) in zip(figure.subplots(1, len(rounds)), rounds.items()):
            lane, word = np.mgrid[0:4, 0:4]
            source, tile = np.divmod(words.ravel(), 4)
            _boxes(
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
            _bare(axes)
    return figure


# ---------------------------------------------------------------------------------------------------- recorded profiles


def profiles(name: str, metrics: Sequence[str], dtype: str = "fp16") -> str:
    """Markdown: what ncu measured of a stage and of its variants, from the recorded runs."""
    records = [r for r in recorded(kind="profile", name=name, dtype=dtype) if set(metrics) & set(r.row["metrics"])]
    if not records:
        return f"*No profile of {name} recorded yet: `python -m kernels.{name} profile` on a GPU makes one.*"
    head = ["variant, size", *metrics]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * len(metrics)]
    for r in records:
        values = [f"{r.row['metrics'][m]:,.1f}" if m in r.row["metrics"] else "–" for m in metrics]
        label = f"`{variants_name(r.row.get('variants'))}`, {size_name(r.row['shape'])}"
        lines.append(f"| {label} | {' | '.join(values)} |")
    return "\n".join([*lines, "", f"*{records[0].source}*"])
