"""Where the chunks of a shared-memory tile lie, and what the banks make of it: rows as they come, padding, XOR.

explore(width=64, swizzle=True)    a tile of your own
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from common.figures import layout
from common.figures.draw import (
    CONFLICT,
    FAINT,
    FREE,
    GRID,
    HUES,
    INK,
    NO_WAIT,
    WASTED,
    Picture,
    bare,
    picture,
    plural,
    rectangles,
    styled,
)
from cudaemu.errors import UserError

CHUNK = 16  # bytes: what a lane copies at once, and a row of one matrix of ldmatrix
GROUPS = layout.LINE // CHUNK  # groups of four banks, as wide as a chunk


def explore(
    width: int = 32, element: int = 2, padding: int = 0, swizzle: bool = False, column: int = 0, rows: int = 8
) -> Picture:
    """A shared-memory tile with rows of `width` + `padding` elements of `element` bytes, with or without XOR: where its
    16-byte chunks lie, and the wavefronts that the `rows` rows of one matrix of ldmatrix take at `column`.

    UserError for rows that are no whole chunks, and for XOR with rows that are no power of two.
    """
    chunks = _chunks(width, element, padding, swizzle)
    if not 0 <= column < width or column * element % CHUNK:
        raise UserError(
            f"column must be the first of a chunk, a multiple of {CHUNK // element} below {width}, got {column}"
        )
    served = layout.column_read(width=width, element=element, padding=padding, xor=swizzle, column=column, rows=rows)
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
    with styled():
        figure = picture(10, 0.95 + 0.24 * tall, takeaway)
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        inch = (4.5 / GROUPS, 0.24)
        if padding:
            spare = np.arange(rows)[:, None] * pitch + width * element + np.arange(0, padding * element, CHUNK)
            spare = spare[np.isin(spare // layout.LINE, lines)]
            rectangles(left, spare % layout.LINE // CHUNK, np.searchsorted(lines, spare // layout.LINE), 1, 1, WASTED)
        where = offsets[shown]
        rows_of = np.searchsorted(lines, where // layout.LINE)
        rectangles(left, where % layout.LINE // CHUNK, rows_of, 1, 1, colours, labels, inch)
        _groups(left, [f"{line * layout.LINE:,}" for line in lines], "byte offset" if tall > 3 else "")
        left.set_title("where row·chunk lies: 128 bytes per line")
        first = served.bank % (CHUNK // layout.WORD) == 0
        rectangles(
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
        handles = [Patch(color=FREE, label=NO_WAIT)]
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
        raise UserError(f"rows must be whole chunks for ldmatrix, multiples of {CHUNK} bytes, got {row}"
                        + (f" + {padding * element}" if padding else ""))  # fmt: skip
    if swizzle and min(row, layout.LINE) & (min(row, layout.LINE) - 1):
        raise UserError(f"with XOR a row must have a power of two of chunks, got {row // CHUNK}")
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
    bare(axes)


def cures(widths: Sequence[int] = (32, 64, 256), element: int = 2, padding: int = 8, column: int = 8) -> Picture:
    """Which group of banks each of the 8 rows of one ldmatrix matrix hits, as the rows come, padded, and with XOR."""
    kinds: dict[str, dict[str, Any]] = {
        "as they come": {},
        f"{padding * element} bytes of padding": {"padding": padding},
        "XOR": {"xor": True},
    }
    with styled():
        counts = {
            name: [layout.column_read(width=w, element=element, column=column, **how).count for w in widths]
            for name, how in kinds.items()
        }
        before, *after = counts.values()
        cured = all(count == 1 for column_ in after for count in column_)
        figure = picture(
            9,
            0.75 + 1.95 * len(widths),
            f"Rows of {', '.join(str(w * element) for w in widths)} bytes: {', '.join(map(str, before))} wavefronts "
            f"per matrix" + (", 1 with padding or XOR" if cured else ""),
        )
        panels = figure.subplots(len(widths), len(kinds), squeeze=False)
        for y, width in enumerate(widths):
            for x, (name, how) in enumerate(kinds.items()):
                served = layout.column_read(width=width, element=element, column=column, **how)
                first = served.bank % (CHUNK // layout.WORD) == 0
                axes = panels[y, x]
                rectangles(
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
            handles=[Patch(color=FREE, label=NO_WAIT), Patch(color=CONFLICT, label="had to wait")],
            loc="outside lower left",
            ncols=2,
        )
    return figure


Key = Callable[[np.ndarray], np.ndarray]  # row number -> what its chunk numbers are XORed with


def keys(maps: Mapping[str, tuple[int, Key]], rows: int = 16, takeaway: str = "") -> Picture:
    """In which group of banks each chunk of a tile lies: maps[title] = (bytes per row, key of a row).

    Below each map the wavefronts that 8 rows of one column of chunks take, at worst, wherever they begin.
    """
    row = np.arange(rows + 8)[:, None]
    return _groups_of_chunks(
        {title: row * size // CHUNK + (np.arange(size // CHUNK) ^ key(row)) for title, (size, key) in maps.items()},
        rows,
        takeaway,
    )


def executed(tiles: Mapping[str, np.ndarray], rows: int = 16, takeaway: str = "") -> Picture:
    """The same for tiles whose chunks a kernel has copied: tiles[title][row, chunk] is where it put them, in bytes."""
    return _groups_of_chunks({title: offsets // CHUNK for title, offsets in tiles.items()}, rows, takeaway)


def _groups_of_chunks(tiles: Mapping[str, np.ndarray], rows: int, takeaway: str) -> Picture:
    """tiles[title][row, chunk] is the number of the chunk's place."""
    with styled():
        wide = [places.shape[1] for places in tiles.values()]
        unit = min(0.34, 8.2 / sum(wide))
        figure = picture(2.0 + unit * sum(wide) + 0.65 * len(tiles), 1.1 + 0.22 * rows, takeaway)
        panels = figure.subplots(1, len(tiles), width_ratios=[max(count, 3) for count in wide], squeeze=False)[0]
        for axes, (title, places), chunks in zip(panels, tiles.items(), wide):
            group = places % GROUPS
            windows = np.lib.stride_tricks.sliding_window_view(group, 8, axis=0).reshape(-1, 8)
            worst = max(np.bincount(window).max() for window in windows)
            row, chunk = np.mgrid[0:rows, 0:chunks]
            rectangles(
                axes,
                chunk.ravel(),
                row.ravel(),
                1,
                1,
                [HUES[g] for g in group[:rows].ravel()],
                [str(g) for g in group[:rows].ravel()],
                inch=(unit, 0.22),
            )
            axes.add_patch(Rectangle((1, 4), 1, 8, fill=False, edgecolor=INK, linewidth=1.8, zorder=5))
            axes.set_xlim(0, chunks)
            axes.set_ylim(rows, 0)
            axes.set_xticks(np.arange(chunks) + 0.5, [str(c) for c in range(chunks)])
            axes.set_yticks(np.arange(rows) + 0.5, [str(r) for r in range(rows)])
            axes.set_xlabel("chunk")
            axes.set_title(f"{title}\nany 8 rows: {plural(worst, 'wavefront')}")
            bare(axes)
        panels[0].set_ylabel("row")
    return figure
