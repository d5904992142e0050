"""Drills: any number of short questions with computed answers. The same seed asks the same ones.

    python -m kernels practice drill               what there is
    python -m kernels practice drill banks         ten questions in the terminal, and a score
    python -m kernels practice drill all --seed 7 --sheet test.md    a test sheet, and its key in test.key.md

Answers come from the code that the figures and the bounds use: layout (banks, sectors, tiles), fragments, hardware
(occupancy), attention_tiles (online softmax), problem (FLOP and bytes).
"""

from __future__ import annotations

import argparse
import math
import random
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np

from common import problem, terminal
from common.figures import attention_tiles, draw, fragments, layout, machine, swizzle
from common.figures.draw import Picture, plural
from cudaemu import hardware
from cudaemu.errors import UserError, pick

SUMMARY = "short questions with computed answers: banks, sectors, fragments, occupancy, …"
COUNT = 10
MOST = 1000  # questions at a time
LEVELS = ("junior", "mid", "senior")
NEAR = Fraction(1, 100)  # how far from a large number an answer may be, by itself

Value = int | Fraction | str


@dataclass(frozen=True)
class Question:
    """What is asked: `parts` names each number or word of the answer, with its value.

    `code` is shown below the text as CUDA C++ (the tests compile it), `why` says how the answer comes about, `drawing`
    shows it in plain text of at most 80 columns, `figure` as a picture. `near`: 1 % off is right."""

    text: str
    parts: dict[str, Value]
    why: str
    code: str = ""
    drawing: str = ""
    figure: Callable[[], Picture] | None = None
    near: bool = False

    @property
    def answer(self) -> str:
        """The answer as a person writes it: "8 wavefronts", "lane 5, register 2"."""
        if len(self.parts) == 1:
            ((name, value),) = self.parts.items()
            return f"{name} {shown(value)}" if name in ("bank", "key", "offset") else f"{shown(value)} {name}".strip()
        return ", ".join(f"{name} {shown(value)}" for name, value in self.parts.items())

    def judge(self, text: str) -> bool:
        """Whether an answer is right. UserError, in words for the reader, if it cannot be read as one."""
        given = _split(text, len(self.parts))
        if len(given) != len(self.parts):
            wanted = ", ".join(self.parts)
            raise UserError(f"the answer must be {plural(len(self.parts), 'value')} ({wanted}), got '{text.strip()}'")
        return all(_same(word, name, value, self.near) for word, (name, value) in zip(given, self.parts.items()))


def shown(value: Value) -> str:
    """A number with separators; a fraction of a small power of two as a decimal number."""
    if isinstance(value, str):
        return value
    if isinstance(value, Fraction) and value.denominator > 1:
        return f"{float(value):.10g}"
    return f"{int(value):,}"


def _split(text: str, count: int) -> list[str]:
    """The words of an answer. Commas part them only if blanks do not: 65,536 is one number."""
    words = [word.strip(",") for word in re.split(r"[\s;]+", text.strip()) if word.strip(",")]
    if len(words) != count:
        words = [word for word in re.split(r"[\s;,]+", text.strip()) if word]
    return words


def _same(word: str, name: str, value: Value, near: bool) -> bool:
    if isinstance(value, str):
        return word.lower() == value.lower()
    try:
        number = Fraction(word.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{name} must be a number such as 12, 0.75 or 3/4, got '{word}'") from None
    return abs(number - value) <= abs(Fraction(value)) * NEAR if near else number == value


Maker = Callable[[random.Random], Question]


@dataclass(frozen=True)
class Kind:
    """A kind of question."""

    name: str
    title: str
    level: str  # one of LEVELS
    make: Maker


KINDS: dict[str, Kind] = {}


def drill(name: str, title: str, level: str) -> Callable[[Maker], Maker]:
    """Register what makes a question of that kind."""

    def register(make: Maker) -> Maker:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, title, level, make)
        return make

    return register


def questions(kind: str, seed: int, count: int = COUNT) -> list[Question]:
    """So many different questions of a kind, or of "all" kinds in turn; the same ones for the same seed.

    UserError for a kind that there is not, and where a kind has no more different ones."""
    names = list(KINDS) if kind == "all" else [pick(kind, tuple(KINDS), "drill", "practice")]
    generator = random.Random(f"{kind} {seed}")
    found: dict[str, Question] = {}
    for number in range(count):
        make = KINDS[names[number % len(names)]].make
        for _ in range(1000):
            made = make(generator)
            if made.text + made.code not in found:
                break
        else:
            raise UserError(f"drill '{kind}' has no {count} different questions; --count {len(found)} is possible")
        found[made.text + made.code] = made
    return list(found.values())


# --------------------------------------------------------------------------------------------------- threads and memory

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
        figure=lambda: draw.banks([offset], size, what=f"tile[{row}][{column}]", load=True),
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


# --------------------------------------------------------------------------------------------------- tiles and swizzles


def _chunks_of(chance: random.Random) -> int:
    return chance.choice([32, 64, 128, 256])


@drill("padding", "how much padding a tile needs", "mid")
def _padding(chance: random.Random) -> Question:
    width = chance.choice([16, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256])  # elements of 2 bytes
    takes = {pad: layout.column_read(width=width, padding=pad // 2).count for pad in range(0, 129, 16)}
    least = min(pad for pad, count in takes.items() if count == 1)
    return Question(
        f"A tile in shared memory has rows of {width * 2} bytes. How many bytes of padding per row, a multiple of 16 "
        "and as few as possible, let ldmatrix read 8 rows of one column of chunks in one wavefront? (0 is possible.)",
        {"bytes": least},
        "An odd number of 16-byte chunks from row to row visits all 8 groups of banks. "
        + ", ".join(f"{pad}: {plural(count, 'wavefront')}" for pad, count in takes.items() if pad <= least + 16)
        + ".",
        figure=lambda: swizzle.explore(width=width, padding=least // 2),
    )


KEYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "row % 2": lambda row: row % 2,
    "row % 4": lambda row: row % 4,
    "row % 8": lambda row: row % 8,
    "row / 2 % 4": lambda row: row // 2 % 4,
    "row / 4 % 2": lambda row: row // 4 % 2,
    "row / 8 % 8": lambda row: row // 8 % 8,
    "row / 2 % 8": lambda row: row // 2 % 8,
}


@lru_cache
def conflict_free(name: str, row_bytes: int) -> bool:
    """Whether chunk ^ KEYS[name] stays within a row, and 8 rows from a multiple of 8 on take one wavefront."""
    key = KEYS[name]
    chunks = row_bytes // swizzle.CHUNK
    row = np.arange(64)
    if int(key(row).max()) >= chunks:
        return False
    for chunk in range(chunks):
        offsets = row * row_bytes + (chunk ^ key(row)) * swizzle.CHUNK
        if any(layout.wavefronts(offsets[first : first + 8], swizzle.CHUNK).count > 1 for first in range(0, 64, 8)):
            return False
    return True


@drill("keys", "which key an XOR swizzle needs", "mid")
def _keys(chance: random.Random) -> Question:
    row_bytes = _chunks_of(chance)
    right = [name for name in KEYS if conflict_free(name, row_bytes)]
    wrong = [name for name in KEYS if name not in right]
    options = [chance.choice(right), *chance.sample(wrong, 3)]
    chance.shuffle(options)
    letter = next("abcd"[n] for n, name in enumerate(options) if name in right)
    name = options["abcd".index(letter)]
    listed = "".join(f"\n  {letter}) chunk ^ ({option})" for letter, option in zip("abcd", options))
    per_line = max(1, layout.LINE // row_bytes)
    return Question(
        f"Rows of {row_bytes} bytes, {row_bytes // swizzle.CHUNK} chunks of 16 bytes each. Where must chunk `chunk` of "
        f"row `row` go, so that it stays in its row and ldmatrix reads 8 rows (from a multiple of 8 on) of any column "
        f"of chunks in one wavefront?{listed}",
        {"key": letter},
        f"128 bytes hold {plural(per_line, 'row')}: rows that lie in the same group of banks must get different keys, "
        f"and a key must be below {row_bytes // swizzle.CHUNK}. {name} does both.",
        figure=lambda: swizzle.keys(
            {option: (row_bytes, KEYS[option]) for option in options}, takeaway=f"Rows of {row_bytes} bytes: {name}"
        ),
    )


@drill("swizzles", "where a swizzled chunk lies", "mid")
def _swizzles(chance: random.Random) -> Question:
    row_bytes = _chunks_of(chance)
    row, chunk = chance.randrange(1, 32), chance.randrange(row_bytes // swizzle.CHUNK)
    per_line, most = max(1, layout.LINE // row_bytes), min(8, row_bytes // swizzle.CHUNK)
    width = row_bytes // 2
    offset = int(layout.tile_offset(np.array(row), np.array(chunk * 8), width=width, element=2, xor=True))
    rule = f"row / {per_line} % {most}" if per_line > 1 else f"row % {most}"
    number = offset % row_bytes // swizzle.CHUNK
    return Question(
        f"Rows of {row_bytes} bytes; chunk c (16 bytes) of row r is stored as chunk c ^ ({rule}). At which byte "
        f"offset of the tile is chunk {chunk} of row {row}?",
        {"offset": offset},
        f"{chunk} ^ {row // per_line % most} = {number}; {row} · {row_bytes} + {number} · 16 = {offset:,}.",
        figure=lambda: swizzle.explore(width=width, swizzle=True, column=chunk * 8),
    )


# ------------------------------------------------------------------------------------------------------------ fragments


@drill("fragments", "which lane holds an element of an mma or wgmma fragment", "mid")
def _fragments(chance: random.Random) -> Question:
    what = chance.choice(["A", "B", "C", "wgmma"])
    if what == "wgmma":
        columns = chance.choice([64, 128, 256])
        held = fragments.accumulator(columns)
        row, column = chance.randrange(64), chance.randrange(columns)
        text = (
            f"The 64 × {columns} fp32 accumulator of a wgmma: which thread of the warpgroup (0 to 127) holds row "
            f"{row}, column {column}, and in which of its registers d[0] to d[{columns // 2 - 1}]?"
        )
        top, left = row // 16 * 16, column // 8 * 8
        part = slice(top, top + 16), slice(left, left + 8)
        shown_ = fragments.Fragment(held.lane[part], held.register[part])
        first = "thread"
    else:
        held = shown_ = fragments.mma(what)
        rows, columns = held.lane.shape
        row, column, top, left = chance.randrange(rows), chance.randrange(columns), 0, 0
        names = {"A": "16 × 16, row × k", "B": "16 × 8, k × column", "C": "16 × 8, fp32"}
        text = (
            f"mma.sync.m16n8k16 with fp16 inputs: which lane holds {what}[{row}][{column}] ({names[what]}), and in "
            f"which of its {int(held.register.max()) + 1} 32-bit registers (from 0)?"
        )
        first = "lane"
    lane, register = int(held.lane[row, column]), int(held.register[row, column])
    rule = {
        "A": "lane = row % 8 · 4 + k % 8 / 2; register = row / 8 + 2 · (k / 8)",
        "B": "lane = column · 4 + k % 8 / 2; register = k / 8",
        "C": "lane = row % 8 · 4 + column / 2; register = 2 · (row / 8) + column % 2",
        "wgmma": "warp = row / 16; within it as in C of mma.m16n8k16; 4 registers for each 8 columns",
    }[what]
    return Question(
        text,
        {first: lane, "register": register},
        rule + ".",
        drawing=_lanes(shown_, row - top, column - left, top, left),
        figure=lambda: fragments.tiles({"C": (f"lane {lane}", shown_)}, f"{what}: {first} {lane}, register {register}",
                                       "C", lane=lane),
    )  # fmt: skip


def _lanes(held: fragments.Fragment, row: int, column: int, top: int, left: int) -> str:
    """The lanes of a tile in plain text, the element asked for in brackets."""
    wide = len(str(held.lane.max()))
    head = "      " + "".join(f" {left + x:>{wide}} " for x in range(held.lane.shape[1]))
    lines = [
        f"{top + y:>4}: "
        + "".join(("[{}]" if (y, x) == (row, column) else " {} ").format(f"{n:>{wide}}") for x, n in enumerate(line))
        for y, line in enumerate(held.lane.tolist())
    ]
    return "\n".join(line.rstrip() for line in [head, *lines])


@drill("fp8-keys", "where a weight of fp8 attention is wanted in V", "senior")
def _keys_of_values(chance: random.Random) -> Question:
    keys = 128
    row, key = chance.randrange(64), chance.randrange(keys)
    thread, place = int(fragments.accumulator(keys).lane[row, key]), value_place(key)
    return Question(
        f"The scores of 64 queries and {keys} keys are the fp32 accumulator of a wgmma. Rounded to e4m3, four weights "
        "of a thread side by side become a register of the next product's first operand, in which the thread has "
        "columns t · 4 to t · 4 + 3 of each 16, where t = thread % 4. A thread takes its weights in the order of their "
        f"keys, and none moves to another thread. Which thread of the warpgroup (0 to 127) has the weight of query "
        f"{row} and key {key}, and at which place must that key be among the {keys} of V?",
        {"thread": thread, "place": place},
        f"Warp {row // 16}, lane {row % 8} · 4 + {key} % 8 / 2; t = {thread % 4} has keys {thread % 4 * 2}, "
        f"{thread % 4 * 2 + 1}, {thread % 4 * 2 + 8} and {thread % 4 * 2 + 9} of each 16. Key {key} is one of them: "
        f"{key // 16 * 16} + {thread % 4} · 4 + {place % 4}.",
    )


def value_place(key: int) -> int:
    """Where attention in fp8 has a key in V: the four of 16 that a lane of S has are side by side."""
    return key // 16 * 16 + key % 8 // 2 * 4 + key % 16 // 8 * 2 + key % 2


@drill("e4m3", "what a number becomes in 8 bits with a scale", "mid")
def _e4m3(chance: random.Random) -> Question:
    scale = Fraction(2) ** chance.randrange(-2, 3)
    least, most, part = chance.choice([(17, 440, 1), (1, 128, 64), (1, 32, 1024)])
    exact = Fraction(chance.randrange(least, most), part)
    rounded, unit = e4m3(exact), e4m3_unit(exact)
    return Question(
        f"The largest |x| of a block is {shown(448 * scale)}. Its numbers are divided by a scale, so that this becomes "
        f"448, the largest of e4m3, and rounded to e4m3 (to the nearest, ties to even). What does x = "
        f"{shown(exact * scale)} become in e4m3, and what is that times the scale?",
        {"e4m3": rounded, "number": rounded * scale},
        f"The scale is {shown(scale)}, x / scale = {shown(exact)}. There, e4m3 has the multiples of {shown(unit)} "
        "(4 significant bits; below 2⁻⁶ always 2⁻⁹).",
    )


def e4m3_unit(x: Fraction) -> Fraction:
    """The distance of the numbers of e4m3 around x > 0."""
    exponent = max(math.frexp(x)[1] - 1, -6)
    return Fraction(2) ** (exponent - 3)


def e4m3(x: Fraction) -> Fraction:
    """x > 0, rounded to e4m3; beyond 448 it is 448."""
    unit = e4m3_unit(x)
    return min(round(x / unit) * unit, Fraction(448))


# ------------------------------------------------------------------------------------------------ what fits, what binds


@drill("occupancy", "how many blocks an SM holds", "mid")
def _occupancy(chance: random.Random) -> Question:
    gpu = chance.choice(hardware.GPUS)
    while True:
        threads = chance.choice([64, 96, 128, 160, 192, 256, 288, 384, 512, 1024])
        registers = chance.choice([24, 32, 40, 48, 64, 72, 80, 96, 100, 112, 128, 150, 168, 200, 232, 255])
        shared = chance.choice([0, 0, 8, 16, 24, 32, 40, 48, 64, 72, 96, 100, 113, 160, 200]) * 1024
        found = hardware.occupancy(gpu, threads, registers, shared)
        if found.blocks and shared <= gpu.shared_per_block:
            break
    each = {
        "registers": hardware.occupancy(gpu, threads, registers, 0).blocks,
        "shared memory": hardware.occupancy(gpu, threads, None, shared).blocks,
        f"{gpu.warps} warps and {gpu.blocks} blocks": hardware.occupancy(gpu, threads, None, 0).blocks,
    }
    return Question(
        f"Compute capability {gpu.arch} ({gpu.devices}): 65,536 registers, {gpu.shared_kb} KB of shared memory, "
        f"{gpu.warps} warps and {gpu.blocks} blocks per SM. Blocks of {threads} threads, {registers} registers per "
        f"thread, {shared // 1024} KB of shared memory per block. How many blocks does an SM hold?",
        {"blocks": found.blocks},
        "A warp's registers come in units of 256, on its quarter of the SM; each block takes 1 KB of shared memory "
        "more. Room by " + ", ".join(f"{name}: {count}" for name, count in each.items())
        + f". {found.warps} of {gpu.warps} warps; first to end: {', '.join(found.limiters)}.",
        figure=lambda: machine.residents(gpu, threads, [shared], {"here": registers}),
    )  # fmt: skip


@drill("waves", "waves of blocks, and how full the last one is", "mid")
def _waves(chance: random.Random) -> Question:
    gpu, per_sm = chance.choice(hardware.GPUS), chance.choice([1, 1, 2, 2, 3, 4])
    tile, size = chance.choice([(128, 128), (128, 256), (256, 128), (64, 128)]), 1024 * chance.randrange(1, 9)
    blocks, at_once = (size // tile[0]) * (size // tile[1]), gpu.sms * per_sm
    waves = -(-blocks // at_once)
    return Question(
        f"C of {size} × {size} in tiles of {tile[0]} × {tile[1]}, a block each; {gpu.sms} SMs hold {per_sm} each. "
        "All blocks take the same time. How many waves is that, and how many blocks has the last one?",
        {"waves": waves, "last": blocks - (waves - 1) * at_once},
        f"{blocks:,} blocks, {at_once:,} at a time: {blocks / at_once:.2f} waves take the time of {waves}, so "
        f"{blocks / at_once / waves:.0%} of it is used.",
    )


@drill("flight", "how many warps a latency needs in flight", "mid")
def _flight(chance: random.Random) -> Question:
    latency, rate = chance.choice([24, 32, 200, 280, 400, 660, 800]), chance.choice([12, 16, 20, 32, 40, 64, 128])
    width, each = chance.choice([4, 8, 16]), chance.choice([1, 1, 2, 4])
    flying = latency * rate
    warp = width * layout.WARP * each
    return Question(
        f"A level of memory has a latency of {latency} clocks and delivers {rate} bytes per clock and SM. Each warp "
        f"has {plural(each, 'load')} of {width} bytes per lane in flight. How many bytes must be in flight on an SM "
        "for the full rate, and how many warps is that at least?",
        {"bytes": flying, "warps": -(-flying // warp)},
        f"Little's law: {latency} · {rate} = {flying:,} bytes; a warp has {warp:,} in flight.",
    )


@drill("bounds", "FLOP, bytes, and which of them binds", "mid")
def _bounds(chance: random.Random) -> Question:
    peak, bandwidth = chance.choice([20, 60, 300, 600, 900]), chance.choice([1, 2, 3, 4])  # TFLOP/s, TB/s
    if chance.random() < 0.7:
        spec, axes = problem.load("gemm"), ([1, 8, 16, 64, 512, 1024, 4096], *[[512, 1024, 2048, 4096, 8192]] * 2)
        what = "C[M,N] = A[M,K]·B[K,N] with M = {}, N = {}, K = {}, all in fp16"
    else:
        spec, axes = problem.load("attention"), ([1, 4, 8], [8, 16, 32], [256, 1024, 4096], [64, 128])
        what = "Attention without a mask, fused, B = {}, H = {}, N = {}, D = {}, all in fp16"
    shape = tuple(chance.choice(sizes) for sizes in axes)
    flops, moved = spec.flops(shape, {}), spec.bytes(shape, "fp16", {})
    ridge = Fraction(peak, bandwidth)
    binds = "arithmetic" if Fraction(flops, moved) > ridge else "memory"
    times = flops / peak * 1e-6, moved / bandwidth * 1e-6  # microseconds
    return Question(
        f"{what.format(*shape)}, each input read and the output written once. A GPU does {peak} TFLOP/s and "
        f"moves {bandwidth} TB/s. How many million FLOP, how many million bytes, and which binds: arithmetic or "
        "memory? (1 % off is right.)",
        {"FLOP": Fraction(flops, 10**6), "bytes": Fraction(moved, 10**6), "bound": binds},
        f"{times[0]:,.3g} µs of arithmetic, {times[1]:,.3g} µs of memory; {flops / moved:,.3g} FLOP per byte, the "
        f"ridge is at {float(ridge):,.3g}.",
        near=True,
    )


# ------------------------------------------------------------------------------------------------------ loops and waits


@drill("softmax", "the next m and l of an online softmax", "mid")
def _softmax(chance: random.Random) -> Question:
    tile, tiles = chance.choice([2, 4]), chance.choice([2, 3])
    scores = np.array([chance.randrange(-3, 6) for _ in range(tile * tiles)])
    steps = attention_tiles.online(scores, np.zeros(len(scores)), tile)
    before, after = steps[-2], steps[-1]
    listed = ", ".join(map(str, scores[-tile:].tolist()))
    return Question(
        f"An online softmax in base 2 (weights are 2^(score - m)) holds m = {before.m:g} and l = {before.l:.10g}. The "
        f"next tile has the scores {listed}. What are m and l then?",
        {"m": Fraction(after.m), "l": Fraction(after.l)},
        f"m = max({before.m:g}, {listed}) = {after.m:g}; l = {before.l:.10g} · 2^({before.m:g} - {after.m:g}) + "
        + " + ".join(f"{weight:.10g}" for weight in after.weights) + f" = {after.l:.10g}.",
        figure=lambda: attention_tiles.online_steps(scores, np.ones(len(scores)), tile),
    )  # fmt: skip


EXPONENTIALS = 16  # of an SM per clock


def tile_clocks(keys: int, head_dim: int, flops: int) -> tuple[int, int]:
    """Clocks of an SM for 64 queries and so many keys: of the products at so many FLOP each, of the exponentials."""
    return 2 * 2 * 64 * keys * head_dim // flops, 64 * keys // EXPONENTIALS


@drill("overlap", "what an attention tile takes if products hide its softmax, and if not", "senior")
def _overlap(chance: random.Random) -> Question:
    name, flops = chance.choice([("fp16", 4096), ("fp16", 4096), ("e4m3", 8192)])
    keys, head_dim = chance.choice([64, 96, 128, 160, 192]), chance.choice([64, 128, 192, 256])
    count = chance.choice([2, 3])
    products, weights = tile_clocks(keys, head_dim, flops)
    alone, least = count * (products + weights), count * max(products, weights)
    binds = "both bind" if products == weights else "products bind" if products > weights else "exponentials bind"
    return Question(
        f"Attention in {name}, D = {head_dim}: a block of {count} warpgroups with 64 queries each, alone on its SM, "
        f"takes a tile of {keys} keys. An SM multiplies {flops:,} FLOP and computes {EXPONENTIALS} exponentials per "
        "clock; count nothing else. How many clocks does the tile take the block if one thing is done at a time, and "
        "how many at least if the two units work at the same time?",
        {"one by one": alone, "at least": least},
        f"Products of a warpgroup: 4 · 64 · {keys} · {head_dim} FLOP / {flops:,} = {products:,} clocks; exponentials: "
        f"64 · {keys} / {EXPONENTIALS} = {weights:,}. One by one: {count} · ({products:,} + {weights:,}) = {alone:,}. "
        f"With both at work: {count} · {max(products, weights):,} = {least:,}; {binds}.",
    )


@drill("groups", "what a cp.async.wait_group lets pass", "mid")
def _groups(chance: random.Random) -> Question:
    stages = chance.randrange(2, 6)
    turn = chance.randrange(1, 12)
    behind = chance.random() < 0.5  # the next copies are committed after the wait, or before it
    committed = stages - 1 + turn + (0 if behind else 1)
    most = committed - turn - 1
    return Question(
        f"A ring of {stages} buffers. The prologue copies slices 0 to {stages - 2} and commits a group for each; every "
        f"turn of the loop commits one more, {'after' if behind else 'before'} its wait. Turn {turn} multiplies slice "
        f"{turn}. What is the largest N for which `cp.async.wait_group N` is enough, and how many groups has the "
        f"thread committed by then?",
        {"N": most, "committed": committed},
        f"{committed} groups, slices 0 to {committed - 1}; slice {turn} is there once at most the {most} newest are "
        "unfinished. The wait speaks for the thread alone: a barrier must follow.",
    )


def full_wait(slice_: int, stages: int) -> tuple[int, int]:
    """The stage of a slice, and the parity with which a consumer waits for its bytes: that of the n-th phase."""
    return slice_ % stages, slice_ // stages % 2


def empty_wait(slice_: int, stages: int) -> tuple[int, int]:
    """The stage of a slice, and the parity with which the producer waits until it may overwrite what was there: that
    of the phase before. On a fresh mbarrier a wait for parity 1 passes at once."""
    return slice_ % stages, slice_ // stages % 2 ^ 1


@drill("parity", "which stage and parity a wait on an mbarrier needs", "senior")
def _parity(chance: random.Random) -> Question:
    stages, slice_ = chance.randrange(2, 8), chance.randrange(0, 40)
    producer = chance.random() < 0.5
    stage, parity = (empty_wait if producer else full_wait)(slice_, stages)
    who = "the producer wait on `empty`, before it copies" if producer else "a consumer wait on `full`, before it reads"
    n = slice_ // stages
    before = "nothing: a fresh mbarrier passes a wait for parity 1" if not n else f"phase {n - 1} of `empty`"
    return Question(
        f"A ring of {stages} stages, each with an mbarrier `full` and an mbarrier `empty`, fresh after mbarrier.init. "
        f"On which stage, and with which parity, must {who} slice {slice_}?",
        {"stage": stage, "parity": parity},
        f"Slice {slice_} is number {n} in its stage. "
        + (f"The producer waits for {before}, parity {parity}." if producer else f"Phase {n}, parity {n} mod 2."),
    )


# --------------------------------------------------------------------------------------------------- Hopper's machinery

ELEMENTS = {"fp16": 2, "bf16": 2, "fp32": 4, "e4m3": 1}  # bytes
DEPTH = 32  # bytes of K that a wgmma takes
ROWS = 8  # of a pattern of the swizzle
REGISTERS = 1 << 16  # of an SM
LEAST, MOST_REGISTERS, UNIT = 24, 240, 8  # of setmaxnreg, as these questions have it


def step_of(name: str, swizzled: int, rows: int, depth: int, transposed: bool, step: int) -> tuple[int, int, int]:
    """What the descriptor of the n-th wgmma of a tile has in its fields, in bytes: start, leading, stride.

    The tile begins at 0, in boxes whose rows are as long as the swizzle. Rows of the operand lie along K: `rows` of
    them, and `depth` is within a box. `transposed`: rows of a box lie along M or N, and a box has `depth` of them."""
    if not transposed:
        return step * DEPTH, 16, ROWS * swizzled
    return step * DEPTH // ELEMENTS[name] * swizzled, depth * swizzled, ROWS * swizzled


@drill("descriptors", "what a wgmma descriptor says, and what lies under a swizzle", "senior")
def _descriptors(chance: random.Random) -> Question:
    if chance.random() < 0.5:
        return _under_swizzle(chance)
    transposed = chance.random() < 0.5
    name = chance.choice(["fp16", "bf16"] if transposed else ["fp16", "bf16", "e4m3"])
    swizzled = 128 if transposed else chance.choice([64, 128, 128])
    size = ELEMENTS[name]
    rows, depth = chance.choice([64, 128, 192, 256]), chance.choice([32, 64, 128]) if transposed else swizzled // size
    each = DEPTH // size
    step = chance.randrange(1, depth // each)
    start, leading, stride = step_of(name, swizzled, rows, depth, transposed, step)
    about = f"under the {swizzled}-byte swizzle; the tile begins at byte 0 of shared memory."
    if transposed:
        text = (
            f"B, {depth} × {rows} (k × n) in {name}, n contiguous, lies in boxes of {depth} rows × {swizzled // size} "
            f"columns, one after the other, {about} The wgmma multiplies {each} k at a time, with B transposed by its "
            f"descriptor. What are start address, leading and stride offset, in bytes, of the product of k = "
            f"{step * each} to {step * each + each - 1}, for all {rows} columns?"
        )
        why = (
            f"Each k is a row of {swizzled} bytes: {step * each} · {swizzled} = {start:,}. Leading: from a box of "
            f"columns to the next, {depth} · {swizzled} = {leading:,}. Stride: from 8 rows to the next 8, {stride:,}."
        )
        return Question(text, {"start": start, "leading": leading, "stride": stride}, why)
    text = (
        f"A, {rows} × {depth} in {name}, k contiguous: rows of {swizzled} bytes, {about} The wgmma multiplies {each} k "
        f"at a time. What are start address and stride offset, in bytes, in the descriptor of the product of k = "
        f"{step * each} to {step * each + each - 1}?"
    )
    why = (
        f"k is within a row: {step} · {DEPTH} bytes on, before the swizzle, which the hardware applies to the address. "
        f"Stride: from 8 rows to the next 8, 8 · {swizzled} = {stride:,}. The leading offset is not used."
    )
    return Question(text, {"start": start, "stride": stride}, why)


def _under_swizzle(chance: random.Random) -> Question:
    name = chance.choice(["fp16", "fp16", "fp32", "e4m3"])
    size = ELEMENTS[name]
    row, chunk, within = chance.randrange(1, 64), chance.randrange(8), chance.randrange(16 // size) * size
    offset = row * 128 + chunk * 16 + within
    column = ((chunk ^ row % 8) * 16 + within) // size
    return Question(
        f"TMA has written a box of 64 rows × {128 // size} columns of {name} with the 128-byte swizzle to a multiple "
        f"of 1,024 bytes. Which row and column lie {offset:,} bytes from the beginning of the tile?",
        {"row": row, "column": column},
        f"{offset:,} = {row} · 128 + {chunk} · 16 + {within}: row {row}, chunk {chunk} as it lies, which is chunk "
        f"{chunk} ^ {row % 8} = {chunk ^ row % 8} of the row; {chunk ^ row % 8} · {16 // size} + {within // size} = "
        f"{column}.",
    )


@drill("expect-tx", "how many bytes an mbarrier must expect", "mid")
def _expect(chance: random.Random) -> Question:
    name = chance.choice(["fp16", "fp16", "bf16", "fp32", "e4m3"])
    size = ELEMENTS[name]
    columns, rows = 128 // size, chance.choice([16, 32, 64, 128, 192, 256])
    count = chance.choice([1, 1, 2, 4])
    width, height = chance.randrange(4, 40) * 32, chance.randrange(70, 900)
    edge = chance.choice(["inside", "right", "below", "corner", "far"])
    x = chance.randrange(max(1, width // columns - 1)) * columns
    y = chance.randrange(2) * rows
    if edge in ("right", "corner"):
        x = max(0, width - columns // 2)
    if edge in ("below", "corner"):
        y = height - chance.randrange(1, min(rows, height))
    if edge == "far":
        x = -(-width // columns) * columns
    if edge == "inside":
        height = max(height, y + rows)
    copies = "A thread copies one box" if count == 1 else f"A thread copies {count} boxes, to {count} places,"
    each = rows * columns * size
    return Question(
        f"A tensor map of {height} × {width} in {name}, boxes of {rows} rows × {columns} columns. {copies} from row "
        f"{y}, column {x} on, by TMA, all on one mbarrier. How many bytes must expect_tx announce?",
        {"bytes": each * count},
        f"{rows} · {columns} · {size} = {each:,} bytes a box"
        + (f", {count} of them" if count > 1 else "")
        + ". What lies beyond the tensor is filled in, and counts like the rest: the whole box.",
    )


def consumers_registers(launched: int, producers: int, consumers: int, kept: int) -> tuple[int, int]:
    """Registers that each thread of the consumers can have, and how many of the block's are left over."""
    warpgroup = 128
    free = launched * warpgroup * (producers + consumers) - kept * warpgroup * producers
    each = min(free // (warpgroup * consumers) // UNIT * UNIT, MOST_REGISTERS)
    return each, free - each * warpgroup * consumers


@drill("setmaxnreg", "how many registers consumers can take", "mid")
def _setmaxnreg(chance: random.Random) -> Question:
    while True:
        producers, consumers = chance.choice([1, 1, 1, 2]), chance.randrange(1, 4)
        kept = chance.choice(range(LEAST, 64 + 1, UNIT))
        threads = 128 * (producers + consumers)
        most = min(REGISTERS // threads // UNIT * UNIT, 168)
        launched = chance.choice(range(most - 40, most + 1, UNIT))
        each, left = consumers_registers(launched, producers, consumers, kept)
        if kept < launched < each and (each < MOST_REGISTERS or chance.random() < 0.2):
            break
    blocks = plural(producers, "producer warpgroup") + " and " + plural(consumers, "consumer warpgroup")
    return Question(
        f"A block of {blocks}; each thread was launched with {launched} registers. The producers execute "
        f"setmaxnreg.dec {kept}. What is the largest number, a multiple of 8 and at most {MOST_REGISTERS}, that all "
        f"consumers can take with setmaxnreg.inc, and how many of the block's registers are left over then?",
        {"registers": each, "left": left},
        f"The block has {launched} · {threads} = {launched * threads:,}, no matter how many the SM has. Less {kept} · "
        f"{128 * producers} for the producers that is {launched * threads - kept * 128 * producers:,}, for "
        f"{128 * consumers} threads {(launched * threads - kept * 128 * producers) / (128 * consumers):.1f} each; down "
        f"to a multiple of 8, at most {MOST_REGISTERS}: {each}.",
    )


def clusters_at_once(multiprocessors: Sequence[int], per_sm: int, size: int) -> int:
    """How many clusters of that many blocks run at a time: each within a GPC, of so many multiprocessors."""
    return sum(each * per_sm // size for each in multiprocessors)


@drill("clusters", "how many clusters fit on GPCs", "senior")
def _clusters(chance: random.Random) -> Question:
    gpcs, per_sm, size = chance.randrange(5, 9), chance.choice([1, 1, 1, 2]), chance.choice([2, 4, 4, 6, 8])
    counts = sorted((chance.choice([14, 16, 16, 16, 17, 18, 18]) for _ in range(gpcs)), reverse=True)
    fit = clusters_at_once(counts, per_sm, size)
    free = sum(counts) * per_sm - fit * size
    listed = ", ".join(map(str, counts[:-1])) + f" and {counts[-1]}"
    most = "one block" if per_sm == 1 else f"{per_sm} blocks"
    return Question(
        f"A GPU has GPCs with {listed} SMs, and an SM holds {most} of a kernel. The blocks of a cluster run in one "
        f"GPC. How many clusters of {size} blocks run at a time, and for how many blocks is there room left that no "
        "cluster can use?",
        {"clusters": fit, "left": free},
        " + ".join(f"{each * per_sm // size}" for each in counts)
        + f" = {fit}: each GPC by itself, rounded down; {sum(counts) * per_sm} - {fit} · {size} = {free}. "
        "(cudaOccupancyMaxActiveClusters tells a GPU's own number.)",
    )


def share(slices: int, splits: int, rank: int) -> tuple[int, int]:
    """The first slice of a block that shares them with others, and how many it has: h5's rule."""
    first = slices * rank // splits
    return first, slices * (rank + 1) // splits - first


@drill("split-k", "which slices of a tile a block has", "mid")
def _split_k(chance: random.Random) -> Question:
    splits, depth = chance.choice([2, 3, 4, 6, 8]), chance.choice([32, 64, 64, 128])
    k, rank = 8 * chance.randrange(splits * depth // 8, 1025), chance.randrange(splits)
    slices = -(-k // depth)
    first, count = share(slices, splits, rank)
    return Question(
        f"K = {k}, slices of {depth}; {splits} blocks share the slices of a tile: block r has those from ⌊n · r / "
        f"{splits}⌋ to ⌊n · (r + 1) / {splits}⌋ - 1 of all n. How many slices are there, which is the first of block "
        f"{rank}, and how many has it?",
        {"slices": slices, "first": first, "count": count},
        f"n = ⌈{k} / {depth}⌉ = {slices}, the last one filled up with zeros if it is not whole; {slices} · {rank} / "
        f"{splits} = {slices * rank / splits:.2f}, {slices} · {rank + 1} / {splits} = "
        f"{slices * (rank + 1) / splits:.2f}.",
    )


# -------------------------------------------------------------------------------------------------------- in a terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", help="one of those that are listed without it, or all")
    parser.add_argument("--seed", type=_whole, metavar="N", help="the same questions again (default: new ones)")
    parser.add_argument("--count", type=_whole, default=COUNT, metavar="N", help=f"how many (default: {COUNT})")
    parser.add_argument("--sheet", type=Path, metavar="FILE.md", help="write them to a file, the key beside it")


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a whole number, got '{text}'")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Ask in the terminal, or write a sheet; without a kind, list the kinds."""
    if args.kind is None:
        if args.sheet or args.seed is not None:
            raise UserError(f"a drill must be one of {', '.join(KINDS)}, or all")
        listing()
        return 0
    if not 1 <= args.count <= MOST:
        raise UserError(f"--count must be 1 to {MOST}, got {args.count}")
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    asked = questions(args.kind, seed, args.count)
    if args.sheet:
        for path in sheet(args.kind, seed, asked, args.sheet):
            terminal.out.print(f"written: {path}", markup=False, soft_wrap=True)
        return 0
    terminal.out.print(
        f"{plural(len(asked), 'question')}, --seed {seed}. An empty line skips one, q ends.", markup=False
    )
    ask(asked)
    return 0


def listing() -> None:
    """The kinds, by level."""
    table = terminal.table()
    for head in ("drill", "level", "what is asked"):
        table.add_column(head)
    for kind in sorted(KINDS.values(), key=lambda kind: LEVELS.index(kind.level)):
        table.add_row(kind.name, kind.level, kind.title)
    terminal.out.print(table)


def ask(asked: Sequence[Question]) -> int:
    """Ask the questions on stdin; say after each answer whether it is right, and why; return how many were."""
    right = done = 0
    for number, question in enumerate(asked, 1):
        _say(f"\n{number}. {question.text}")
        if question.code:
            _say("\n" + _indented(question.code) + "\n")
        verdict = _answered(question)
        if verdict is None:
            break
        done += 1
        right += verdict
        said = "Right." if verdict else f"No: {question.answer}."
        _say(f"{said} {question.why}" + (f"\n\n{question.drawing}" if question.drawing else ""))
    _say(f"\n{right} of {done} right" + ("." if done == len(asked) else f", {len(asked) - done} not asked."))
    return right


def _answered(question: Question) -> bool | None:
    """Whether the answer that is typed is right, a skipped one is not; None: the reader has had enough."""
    prompt = ", ".join(name or "value" for name in question.parts)
    while True:
        try:
            text = input(f"{prompt}: ").strip()
        except (EOFError, KeyboardInterrupt):
            _say("")
            return None
        if text.lower() in ("q", "quit", "exit"):
            return None
        if not text:
            return False
        try:
            return question.judge(text)
        except UserError as error:
            _say(str(error))


def _say(text: str) -> None:
    terminal.out.print(text, markup=False)  # long lines wrap between words


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


# --------------------------------------------------------------------------------------------------------------- sheets


def sheet(kind: str, seed: int, asked: Sequence[Question], path: Path) -> tuple[Path, Path]:
    """Write a test sheet and, beside it, its key. UserError if one of the files is there already, or cannot be."""
    if path.is_dir():
        raise UserError(f"--sheet must be a file, such as test.md; {path} is a folder")
    key = path.with_suffix(".key" + (path.suffix or ".md"))
    path = path.with_suffix(path.suffix or ".md")
    made = f"Made by `python -m kernels practice drill {kind} --seed {seed} --count {len(asked)}`."
    sheets: dict[Path, list[str]] = {
        path: [f"# {kind}: {plural(len(asked), 'question')}\n"],
        key: [f"# Key to {path.name}\n", f"{made}\n"],
    }
    for number, question in enumerate(asked, 1):
        room = "  ".join(f"{name or 'value'}: ______" for name in question.parts)
        sheets[path] += [*_asked(number, question), f"{room}\n"]
        sheets[key] += [*_asked(number, question), _explained(question)]
    texts = {each: "\n".join(said) for each, said in sheets.items()}
    for each in texts:
        if each.exists():
            raise UserError(f"{each} exists already; nothing was written")
    try:
        for each, text in texts.items():
            each.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}") from None
    return path, key


def lines(asked: Sequence[Question]) -> Iterator[str]:
    """Questions as Markdown, each answer folded away below it."""
    for number, question in enumerate(asked, 1):
        yield from _asked(number, question)
        yield f"<details><summary>answer</summary>\n\n{_explained(question)}\n</details>\n"


def _asked(number: int, question: Question) -> Iterator[str]:
    text = question.text.replace("\n", "\n\n")
    yield f"**{number}.** {text}\n"
    if question.code:
        yield f"```cpp\n{question.code}\n```\n"


def _explained(question: Question) -> str:
    drawing = f"\n```text\n{question.drawing}\n```\n" if question.drawing else ""
    return f"**{question.answer}.** {question.why}\n{drawing}"
