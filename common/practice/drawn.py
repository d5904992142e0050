"""What the threads of a reader's program read and wrote, in plain text, from the emulator's trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import cudaemu
from common import terminal
from common.figures import layout
from common.figures.draw import plural
from common.practice.drills.threads import bank_strip, sector_strip
from common.practice.exercises import Exercise
from cudaemu import Options, Report, Trace
from cudaemu.trace import Access, Space

MOST = 6  # requests that are drawn
KINDS = {Access.LOAD: "load", Access.STORE: "store"}
PLACES = {Space.GLOBAL: "global", Space.SHARED: "shared"}


def accesses(source: Path, exercise: Exercise) -> str:
    """The requests of the first warp of the first launch of a program, one for each access in the source, with the
    sectors or the banks that they touch; lines of at most 80 columns. UserError if it does not compile or run."""
    options = Options(trace=Trace(range(1), max_rows=200_000), counters=False, sanitize=False)
    if exercise.arch:
        options = options.replace(arch=exercise.arch)
    with terminal.progress(f"drawing {source.name}"):
        report = cudaemu.program(source, exercise.words, options=options)
    return "\n".join(_lines(report, source))


def _lines(report: Report, source: Path) -> Iterator[str]:
    rows = report.trace
    rows = rows[(rows["launch"] == 0) & (rows["block"] == 0) & (rows["thread"] < layout.WARP)]
    rows = rows[np.isin(rows["kind"], list(KINDS)) & np.isin(rows["space"], list(PLACES))]
    found: dict[tuple[int, int, int], list[np.ndarray]] = {}
    for sequence in np.unique(rows["seq"]):
        request = rows[rows["seq"] == sequence]
        place = report.source(request[0])
        found.setdefault((place.line, int(request["space"][0]), int(request["kind"][0])), []).append(request)
    if not found:
        yield "The first warp reads and writes no memory."
        return
    kernel = report.launches[0].kernel
    yield f"What the first warp of {kernel} reads and writes in {source.name}:"
    yield "(numbers: lanes in each sector of a line of 128 bytes)"
    for (line, space, kind), requests in list(found.items())[:MOST]:
        first = requests[0]
        addresses, size = first["addr"].astype(np.int64), int(first["size"][0])
        of = f", the first of {len(requests)}" if len(requests) > 1 else ""
        what = f"{PLACES[Space(space)]} {KINDS[Access(kind)]}{of}"
        head = f"  line {line}, {what}: {plural(len(first), 'lane')} × {plural(size, 'byte')}, "
        if space == Space.GLOBAL:
            touched = len(layout.sectors(addresses, size))
            least = -(-len(np.unique(addresses)) * size // layout.SECTOR)
            yield head + plural(touched, "sector") + (f" ({least} hold as much)" if touched > least else "")
            relative = addresses - addresses.min() // layout.LINE * layout.LINE
            yield from (f"    {each}" for each in sector_strip(relative, size).splitlines()[:-1])
        else:
            lanes = first["thread"].astype(np.int64) % layout.WARP
            served = layout.wavefronts(addresses, size, lanes, kind == Access.LOAD)
            yield head + plural(served.count, "wavefront")
            if served.count > -(-len(first) * size // layout.LINE):
                yield from (f"  {each}" for each in bank_strip(served).splitlines())
    if len(found) > MOST:
        yield f"  … and {len(found) - MOST} more"
