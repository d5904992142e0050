"""Fragments: which lane holds what, where fp8 attention wants a weight, what 8 bits make of a number."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from common.figures import fragments
from common.practice.drills.question import Question, drill, shown


@drill("fragments", "which lane holds an element of an mma fragment", "mid")
def _fragments(chance: random.Random) -> Question:
    what = chance.choice(["A", "B", "C"])
    held = fragments.mma(what)
    rows, columns = held.lane.shape
    row, column = chance.randrange(rows), chance.randrange(columns)
    names = {"A": "16 × 16, row × k", "B": "16 × 8, k × column", "C": "16 × 8, fp32"}
    rules = {
        "A": "lane = row % 8 · 4 + k % 8 / 2; register = row / 8 + 2 · (k / 8)",
        "B": "lane = column · 4 + k % 8 / 2; register = k / 8",
        "C": "lane = row % 8 · 4 + column / 2; register = 2 · (row / 8) + column % 2",
    }
    text = (
        f"mma.sync.m16n8k16 with fp16 inputs: which lane holds {what}[{row}][{column}] ({names[what]}), and in "
        f"which of its {int(held.register.max()) + 1} 32-bit registers (from 0)?"
    )
    return _asked(text, "lane", held, row, column, rules[what], what)


@drill("accumulators", "which thread holds an element of a wgmma's accumulator", "senior")
def _accumulators(chance: random.Random) -> Question:
    columns = chance.choice([64, 128, 256])
    held = fragments.accumulator(columns)
    row, column = chance.randrange(64), chance.randrange(columns)
    text = (
        f"The 64 × {columns} fp32 accumulator of a wgmma: which thread of the warpgroup (0 to 127) holds row "
        f"{row}, column {column}, and in which of its registers d[0] to d[{columns // 2 - 1}]?"
    )
    rule = "warp = row / 16; within it as in C of mma.m16n8k16; 4 registers for each 8 columns"
    return _asked(text, "thread", held, row, column, rule, "wgmma")


def _asked(text: str, first: str, held: fragments.Fragment, row: int, column: int, rule: str, what: str) -> Question:
    """A question for the place of an element; what is drawn of a large tile is the 16 × 8 around it."""
    lane, register = int(held.lane[row, column]), int(held.register[row, column])
    top, left = (row // 16 * 16, column // 8 * 8) if what == "wgmma" else (0, 0)
    part = (slice(top, top + 16), slice(left, left + 8)) if what == "wgmma" else (slice(None), slice(None))
    drawn = fragments.Fragment(held.lane[part], held.register[part])
    return Question(
        text,
        {first: lane, "register": register},
        rule + ".",
        drawing=_lanes(drawn, row - top, column - left, top, left),
        figure=lambda: fragments.tiles({"C": (f"lane {lane}", drawn)}, f"{what}: {first} {lane}, register {register}",
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
