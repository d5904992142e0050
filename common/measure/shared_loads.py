"""What ptxas makes of a kernel's plain loads from shared memory: how many wavefronts the hardware counts for them.

nvcc's PTX has one load for each access in the source, and the emulator executes and counts those. ptxas makes one wide
load of several that read neighbouring bytes (eight `LDS.128` of 32 `ld.shared.f32`), and the hardware counts that one.
The machine code of the same file says which loads it merged, by source line; what a merged load costs follows from
the addresses that the kernel executed. So the hardware's count can be predicted exactly if the two lists of loads fit
in one way only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from common.figures import layout
from common.stage import Kernel
from cudaemu import Report
from cudaemu.compiler import sass
from cudaemu.compiler.symbols import readable
from cudaemu.hardware import Arch
from cudaemu.trace import Access, Space

COUNTERS = ("shared_load_wavefronts", "shared_load_conflicts")

Widths = Counter[int]  # bytes per lane -> how many loads are in the code
Runs = list[list[int]]  # instructions (pc) of a line that read neighbouring bytes, each run in the order of the bytes
Requests = Sequence[np.ndarray]  # executions of a load by a warp: [2, lanes], the lanes and their addresses


def merged(kernel: Kernel, report: Report, arch: str | Arch) -> dict[str, int] | None:
    """The COUNTERS as the hardware has them, of a `report` with counters and the trace of block 0.

    `arch` is the compute capability of the GPU. None if the machine code does not say which loads
    were merged, or if blocks differ."""
    found = {name: report.counters[name] for name in COUNTERS}
    for number, launch in enumerate(report.launches):
        plain = [place for place in launch.code if place.category == "load.shared"]
        if not plain:
            continue
        made = machine_code(kernel, launch.kernel, arch)
        executed = _executed(report, number)
        for line in sorted({place.line for place in plain}):
            widths = {place.pc: _width(place.text) for place in plain if place.line == line}
            own = {pc: executed[pc] for pc in widths if pc in executed}
            groups = partition(widths, own, made.get(line, Counter()))
            if groups is None:
                return None
            change = _change(groups, widths, own)
            if not any(change):
                continue
            wavefronts = sum(_cost(own[pc], widths[pc])[0] for pc in own) * prod(launch.grid)
            if wavefronts != report.lines[str(kernel.source.resolve()), line]["shared_load_wavefronts"]:
                return None  # blocks or launches differ
            for name, each in zip(COUNTERS, change):
                found[name] += each * prod(launch.grid)
    return found


def _change(groups: Sequence[Sequence[int]], widths: Mapping[int, int], executed: Mapping[int, Requests]) -> list[int]:
    """By how much merging changes the COUNTERS of one block."""
    change = [0] * len(COUNTERS)
    for group in groups:
        if len(group) > 1:
            after = _cost(executed[group[0]], sum(widths[pc] for pc in group))
            before = zip(*(_cost(executed[pc], widths[pc]) for pc in group))
            change = [total + wide - sum(narrow) for total, wide, narrow in zip(change, after, before)]
    return change


def machine_code(kernel: Kernel, function: str, arch: str | Arch) -> dict[int, Widths]:
    """Line of the source -> widths of the plain shared loads that one function of the machine code has there."""
    found: dict[int, Widths] = {}
    for name, code in sass.by_line(kernel.source, kernel.defines, kernel.stage.target(arch)).items():
        if readable(name) != function:
            continue
        for line, instruction in code:
            if re.match(r"LDS(\.|$)", instruction.opcode) and not instruction.text.startswith("@!PT"):  # "never"
                found.setdefault(line, Counter())[_opcode_width(instruction.opcode)] += 1
    return found


def partition(widths: Mapping[int, int], executed: Mapping[int, Requests], made: Widths) -> list[list[int]] | None:
    """How the loads of one line (pc -> bytes) make up those of the machine code: groups of one or more, in order.

    The machine code may have the line several times (unrolled, or copied for a loop's first turn). None if there is no
    way, or no telling which."""
    own = Counter(widths.values())
    asked, given = (sum(width * count for width, count in each.items()) for each in (own, made))
    if not given or given % asked:
        return None
    copies = given // asked
    if any(count % copies for count in made.values()):
        return None
    wanted = Counter({width: count // copies for width, count in made.items()})
    if wanted == own:
        return [[pc] for pc in widths]
    if set(executed) != set(widths):
        return None
    left = Counter(wanted)
    groups: list[list[int]] = []
    for run in _runs(widths, executed):
        groups += _cut(run, widths, executed, wanted)
    left.subtract(Counter(sum(widths[pc] for pc in group) for group in groups))
    return groups if not any(left.values()) else None


def _runs(widths: Mapping[int, int], executed: Mapping[int, Requests]) -> Runs:
    """The loads of a line, those that read neighbouring bytes in each execution together."""
    classes: list[list[tuple[int, int]]] = []  # (distance from the first, pc): the same base address in all executions
    for pc in widths:
        for found in classes:
            distance = _distance(executed[found[0][1]], executed[pc])
            if distance is not None:
                found.append((distance, pc))
                break
        else:
            classes.append([(0, pc)])
    runs: Runs = []
    for found in classes:
        end = None
        for distance, pc in sorted(found):
            if distance == end:
                runs[-1].append(pc)
            else:
                runs.append([pc])
            end = distance + widths[pc]
    return runs


def _distance(one: Requests, other: Requests) -> int | None:
    """By how many bytes all addresses of all executions differ; None if that is not one number, or lanes differ."""
    first, second = np.concatenate(one, axis=1), np.concatenate(other, axis=1)
    if len(one) != len(other) or first.shape != second.shape or (first[0] != second[0]).any():
        return None
    differences = np.unique(second[1] - first[1])
    return int(differences[0]) if len(differences) == 1 else None


def _cut(
    run: Sequence[int], widths: Mapping[int, int], executed: Mapping[int, Requests], wanted: Widths
) -> Iterator[list[int]]:
    """A run cut into the widest loads that the machine code has, each where its address is a multiple of its width."""
    at = 0
    while at < len(run):
        for width in sorted(wanted, reverse=True):
            group, size = [], 0
            for pc in run[at:]:
                if size >= width:
                    break
                group.append(pc)
                size += widths[pc]
            if size == width and all((addresses % width == 0).all() for _, addresses in executed[group[0]]):
                break
        else:
            group = [run[at]]
        yield group
        at += len(group)


def _cost(requests: Requests, width: int) -> tuple[int, int]:
    """Wavefronts and conflicts of requests for `width` bytes per lane."""
    wavefronts = conflicts = 0
    known: dict[bytes, tuple[int, int]] = {}
    for lanes, addresses in requests:
        offsets = addresses - addresses.min() // layout.LINE * layout.LINE  # the banks come round every line
        key = lanes.tobytes() + offsets.tobytes()
        if key not in known:
            served = layout.wavefronts(offsets, width, lanes, load=True)
            known[key] = served.count, served.conflicts
        wavefronts += known[key][0]
        conflicts += known[key][1]
    return wavefronts, conflicts


def _executed(report: Report, launch: int) -> dict[int, list[np.ndarray]]:
    """pc -> each time that a warp of block 0 of a launch executed this plain shared load, lanes in order."""
    trace = report.trace[report.trace["launch"] == launch]
    rows = trace[(trace["space"] == Space.SHARED) & (trace["kind"] == Access.LOAD) & (trace["block"] == 0)]
    if not len(rows):
        return {}
    rows = rows[np.lexsort((rows["thread"], rows["seq"], rows["thread"] // layout.WARP, rows["pc"]))]
    keys = np.stack([rows["pc"], rows["thread"] // layout.WARP, rows["seq"]], 1).astype(np.int64)
    starts = np.flatnonzero(np.r_[True, np.any(np.diff(keys, axis=0) != 0, axis=1)])
    found: dict[int, list[np.ndarray]] = {}
    for begin, end in zip(starts, np.r_[starts[1:], len(rows)]):
        request = np.stack([rows["thread"][begin:end] % layout.WARP, rows["addr"][begin:end]]).astype(np.int64)
        found.setdefault(int(rows["pc"][begin]), []).append(request)
    return found


def _width(ptx: str) -> int:
    """Bytes per lane of "ld.shared.v4.f32 {…}, […]": 16."""
    match = re.search(r"\bld\.\S*?shared\S*?(?:\.v(\d))?\.[busf](\d+)\s", ptx)
    assert match is not None, ptx
    return int(match[1] or 1) * int(match[2]) // 8


def _opcode_width(opcode: str) -> int:
    """Bytes per lane of "LDS.128" (16), "LDS" (4), "LDS.U16" (2)."""
    bits = re.search(r"\.(?:[US])?(8|16|32|64|128)\b", opcode)
    return int(bits[1]) // 8 if bits else 4
