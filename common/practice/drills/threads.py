"""Threads and memory: warps, banks, wavefronts, sectors, shuffles."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from common.figures import draw, layout
from common.figures.draw import plural
from common.practice.drills.question import Question, drill

TYPES = {"char": 1, "half": 2, "float": 4, "double": 8, "float2": 8, "float4": 16}
DIGITS = "0123456789abcdefghijklmnopqrstuv"  # a lane in one character
SHOWN = 8  # wavefronts, or lines, of a drawing


@drill("warps", "which warp and lane a thread is in", "junior")
def _warps(chance: random.Random) -> Question:
    x, y, z = chance.choice([(8, 8, 4), (16, 16, 1), (32, 8, 1), (24, 4, 2), (48, 4, 1), (10, 10, 1), (20, 6, 2)])
    at = chance.randrange(x), chance.randrange(y), chance.randrange(z)
    number = at[0] + x * (at[1] + y * at[2])
    return Question(
        f"A block of {x} × {y} × {z} threads. Which warp, and which lane of it, is the thread with "
        f"threadIdx = ({at[0]}, {at[1]}, {at[2]})?",
        {"warp": number // layout.WARP, "lane": number % layout.WARP},
        f"x counts first: {at[0]} + {x} · ({at[1]} + {y} · {at[2]}) = {number} = {number // 32} · 32 + {number % 32}.",
    )


@drill("banks", "in which bank an element lies", "junior")
def _banks(chance: random.Random) -> Question:
    type_ = chance.choice(["char", "half", "float", "float", "double"])
    rows, columns = chance.choice([16, 32, 64]), chance.choice([8, 16, 17, 20, 32, 33, 36, 40, 64, 65, 72])
    row, column = chance.randrange(rows), chance.randrange(columns)
    size = TYPES[type_]
    offset = (row * columns + column) * size
    bank = int(layout.wavefronts(np.array([offset]), size).bank[0])
    return Question(
        "The array begins at offset 0 of shared memory. In which bank (0 to 31) does the element begin?",
        {"bank": bank},
        f"offset ({row} · {columns} + {column}) · {size} = {offset:,} bytes; word {offset:,} / 4 = {offset // 4:,}; "
        f"bank {offset // 4:,} mod 32 = {bank}.",
        f"__shared__ {type_} tile[{rows}][{columns}];\nvalue = tile[{row}][{column}];",
        figure=lambda: draw.banks(np.array([offset]), size, what=f"tile[{row}][{column}]", load=True),
    )


@drill("wavefronts", "how many wavefronts a request to shared memory takes", "junior")
def _wavefronts(chance: random.Random) -> Question:
    lane = np.arange(layout.WARP)
    type_ = chance.choice(["float"] * 4 + ["half", "double", "float2", "float4"])
    size = TYPES[type_]
    shape = chance.choice(["column", "stride", "stride", "shared", "two rows"])
    if shape == "column":
        columns, column = chance.choice([8, 16, 17, 20, 32, 33, 34, 36, 40, 48]), chance.randrange(8)
        declared, index, element = f"[32][{columns}]", f"[threadIdx.x][{column}]", lane * columns + column
    elif shape == "stride":
        stride, start = chance.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32]), chance.randrange(4)
        count = 31 * stride + start + 1
        declared, index = f"[{count}]", f"[threadIdx.x * {stride} + {start}]"
        element = lane * stride + start
    elif shape == "shared":
        among = chance.choice([2, 4, 8, 16])
        declared, index, element = "[32]", f"[threadIdx.x / {among}]", lane // among
    else:
        columns, width = chance.choice([16, 24, 32, 40, 64]), chance.choice([8, 16])
        declared = f"[{layout.WARP // width}][{columns}]"
        index, element = f"[threadIdx.x / {width}][threadIdx.x % {width}]", lane // width * columns + lane % width
    load = shape == "shared" or chance.random() < 0.7
    access = f"value = tile{index};" if load else f"tile{index} = value;"
    if not load and len(set(element.tolist())) < layout.WARP:
        access, load = f"value = tile{index};", True
    offsets = element * size
    served = layout.wavefronts(offsets, size, load=load)
    together = layout.WARP // max(1, size // layout.WORD)
    why = f"{plural(size, 'byte')} per lane"
    why += f": at best {together} lanes at a time. " if together < layout.WARP else ". "
    why += f"Without conflicts it would take {served.minimum}; {plural(served.conflicts, 'conflict')}."
    return Question(
        "Lanes 0 to 31 of a warp are threads 0 to 31. How many wavefronts does the request take?",
        {"wavefronts": served.count},
        why,
        f"__shared__ {type_} tile{declared};\n{access}",
        bank_strip(served),
        lambda: draw.banks(offsets, size, what=access, load=load),
    )


def bank_strip(served: layout.Wavefronts) -> str:
    """Which lane each bank serves in each wavefront, a character each."""
    lines = ["bank         " + "".join(f"{bank:<16}" for bank in range(0, layout.BANKS, 8))]
    for turn in range(min(served.count, SHOWN)):
        cells = ["·"] * layout.BANKS
        for bank, lane in zip(served.bank[served.wavefront == turn][::-1], served.lane[served.wavefront == turn][::-1]):
            cells[bank] = DIGITS[lane]
        lines.append(f"wavefront {turn + 1:<2} {' '.join(cells)}")
    if served.count > SHOWN:
        lines.append(f"… and {served.count - SHOWN} more")
    return "\n".join([*lines, "lanes 0–9, a = 10 … v = 31; of those that share a word, the first"])


@drill("sectors", "how many sectors and lines a request to global memory touches", "junior")
def _sectors(chance: random.Random) -> Question:
    lane = np.arange(layout.WARP)
    type_ = chance.choice(["float"] * 3 + ["char", "half", "double", "float2", "float4"])
    size = TYPES[type_]
    shape = chance.choice(["row", "stride", "column", "tile", "shared"])
    if shape == "row":
        start = chance.choice([0, 1, 2, 4, 5, 8, 12, 16, 20, 30])
        index, element = f"threadIdx.x + {start}", lane + start
    elif shape == "stride":
        stride = chance.choice([2, 3, 4, 5, 6, 8, 10])
        index, element = f"threadIdx.x * {stride}", lane * stride
    elif shape == "column":
        columns = chance.choice([16, 20, 64, 100, 256, 1024])
        index, element = f"threadIdx.x * {columns} + {chance.randrange(4)}", lane * columns
        element = element + int(index[-1])
    elif shape == "tile":
        width, pitch = chance.choice([4, 8, 16]), chance.choice([24, 50, 64, 100, 512])
        index = f"threadIdx.x / {width} * {pitch} + threadIdx.x % {width}"
        element = lane // width * pitch + lane % width
    else:
        among, start = chance.choice([2, 4, 8, 32]), chance.randrange(8)
        index, element = f"threadIdx.x / {among} + {start}", lane // among + start
    load = shape == "shared" or chance.random() < 0.7
    access = f"value = x[{index}];" if load else f"x[{index}] = value;"
    addresses = element * size
    touched = layout.sectors(addresses, size)
    lines = np.unique(touched * layout.SECTOR // layout.LINE)
    asked = len(np.unique(addresses)) * size
    return Question(
        f"x points to {type_} and is a multiple of 256 bytes. How many sectors, and how many cache lines, does the "
        "request of threads 0 to 31 touch?",
        {"sectors": len(touched), "lines": len(lines)},
        f"{plural(asked, 'different byte')}; {plural(len(touched), 'sector')} move {len(touched) * layout.SECTOR:,}.",
        access,
        sector_strip(addresses, size),
        lambda: draw.sectors(addresses, size, what=access, element=min(size, 4), store=not load),
    )


def sector_strip(addresses: np.ndarray, size: int) -> str:
    """How many lanes touch each of the four sectors of each line."""
    reached = [layout.sectors(addresses[n : n + 1], size) for n in range(len(addresses))]
    count: dict[int, int] = {}
    for sector in np.concatenate(reached).tolist():
        count[sector] = count.get(sector, 0) + 1
    per_line = layout.LINE // layout.SECTOR
    lines = sorted({sector // per_line for sector in count})
    text = [
        f"line {line:<6,}" + "".join(f"{count.get(line * per_line + n) or '·':>4}" for n in range(per_line))
        for line in lines[:SHOWN]
    ]
    more = [f"… and {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
    return "\n".join([*text, *more, "lanes in each sector of a line; · is not fetched"])


@drill("shuffles", "what a lane holds after shuffles", "junior")
def _shuffles(chance: random.Random) -> Question:
    lane, value = np.arange(layout.WARP), np.arange(layout.WARP)
    lines, steps = [], chance.choice([1, 2, 3])
    how = chance.choice(["xor", "down", "up"])
    for distance in sorted(chance.sample([1, 2, 4, 8, 16], steps), reverse=how == "down"):
        source = {"xor": lane ^ distance, "down": lane + distance, "up": lane - distance}[how]
        source = np.where((source < 0) | (source >= layout.WARP), lane, source)  # a lane that is not there: one's own
        value = value + value[source]
        lines.append(f"value += __shfl_{how}_sync(0xffffffffu, value, {distance});")
    asked = chance.randrange(layout.WARP)
    return Question(
        f"Each lane begins with value = its number, 0 to 31. What is value in lane {asked} at the end?",
        {"": int(value[asked])},
        "down reads lane + d, up lane - d, xor lane ^ d; where that lane does not exist, one's own value.",
        "int value = threadIdx.x;\n" + "\n".join(lines),
        "\n".join(["lane   " + _cells(range(8)), *(f"{n:>4} + {_cells(value[n : n + 8])}" for n in range(0, 32, 8))]),
    )


def _cells(values: Iterable[int]) -> str:
    return " ".join(f"{value:>4}" for value in values)
