"""Tiles and swizzles: padding, the key of an XOR swizzle, where a chunk lies."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from common.figures import layout, swizzle
from common.figures.draw import plural
from common.practice.drills.question import Question, drill


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


@drill("bases", "where an element lies, by the bases of a linear layout", "senior")
def _bases(chance: random.Random) -> Question:
    width, rows = _chunks_of(chance) // 2, 32
    row, column = chance.randrange(1, rows), chance.randrange(0, width, 8)

    def offset(row: int, column: int) -> int:
        """In elements; it is its own XOR: what lies at the offsets of several bits is the XOR of their places."""
        return int(layout.tile_offset(np.array(row), np.array(column), width=width, element=2, xor=True)) // 2

    places = {offset(row, column): (row, column) for row in range(rows) for column in range(width)}
    bases = [places[1 << bit] for bit in range((rows * width).bit_length() - 1)]
    lies = offset(row, column)
    bits = [bit for bit in range(len(bases)) if lies >> bit & 1]
    return Question(
        f"A tile of {rows} × {width} numbers of 2 bytes lies in shared memory in a linear layout, as Triton's compiler "
        f"has them. The bases (row, column) of the bits of an offset in elements, from bit 0 on: "
        f"{', '.join(map(str, bases))}. At which byte offset is element ({row}, {column})?",
        {"offset": 2 * lies},
        f"The bits of the offset are those whose bases give ({row}, {column}) by XOR: "
        f"{', '.join(f'{bit} {bases[bit]}' for bit in bits)}. {lies:,} elements, {2 * lies:,} bytes.",
        figure=lambda: swizzle.explore(width=width, swizzle=True, column=column),
    )
