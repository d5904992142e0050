"""A launch of this kernel chooses its tile in the launcher. A check tries all its choices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from common.problem import Shape, Variants
from common.problems.matmul import SQUARE

CHOICES = (
    "128 × 256", "128 × 224", "128 × 192", "160 × 128", "128 × 128", "96 × 128", "128 × 64", "192 × 64", "96 × 192",
    "128 × 64, K in 2", "128 × 64, K in 4", "128 × 64, K in 8", "128 × 128, K in 4",
    "128 × 128, K in parts", "128 × 256, K in parts",
    "128 × 256, B shared", "128 × 192, B shared", "128 × 128, B shared",
    "192 × 192", "192 × 192, B shared",
)  # fmt: skip
OURS = -1  # the launcher's own
DEEP = 8192  # K; below it, sums that pass through global memory do not pay
MOST = 16  # parts of a tile


def choose(shape: Shape, variants: Variants, multiprocessors: int) -> dict[str, int]:
    """{"choice", "room"}: the tile and the split, by their number in kernel.cu; for how many squares of C there is room
    where the launcher may let sums pass through global memory."""
    squares = _squares(shape)
    deep = shape[2] >= DEEP and squares <= multiprocessors
    return {"choice": OURS, "room": min(2 * multiprocessors, MOST * squares) if deep else 0}


def others(shape: Shape, variants: Variants, multiprocessors: int) -> dict[str, dict[str, int]]:
    """Other choices for a check to launch, by name: every choice, since the launcher takes few of them at small sizes;
    parts only where two of each tile find a multiprocessor.

    At large sizes one is enough: the choices were compared at small ones."""
    if shape[0] * shape[1] * shape[2] > 1 << 24:
        return {}
    squares = _squares(shape)
    room = 6 * squares  # three parts, where tiles of 256 columns are half empty
    return {
        f"tiles of {what}": {"choice": number, "room": room}
        for number, what in enumerate(CHOICES)
        if "parts" not in what or 2 * squares <= multiprocessors
    }


class Estimate(NamedTuple):
    """What the launcher expects of a choice; infinite where it would not take it."""

    us: float
    name: str
    tiles: int
    blocks_per_tile: int
    waves: int


H200 = {1: 132, 2: 66, 4: 30, 8: 15}  # clusters of so many blocks, at a time: what its driver answered


def estimates(shape: Shape) -> list[Estimate]:
    """Each choice's estimate on an H200, of whole matrices, B as [K, N]: the arithmetic of launch_matmul in kernel.cu,
    with its constants."""
    m, n, k = shape
    text = Path(__file__).with_name("kernel.cu").read_text(encoding="utf-8")
    constants = re.findall(r"choice<(\d+), (\d+), (\w+)(?:, (\d+))?>\((\d+), (\d+), (\d+)\)", text)
    rows = [[0 if word == "APART" else int(word or 1) for word in words] for words in constants]
    room = choose(shape, {}, H200[1])["room"]
    a_lines, b_lines = (2 if row % 64 else 1 for row in (k, n))  # of 128 bytes, that a row of a box covers
    slices = -(-k // 64)
    found = []
    for name, (block_m, block_n, splits, sharers, slice_ns, tile_ns, launch_ns) in zip(CHOICES, rows, strict=True):
        tiles = -(-m // (block_m * sharers)) * -(-n // block_n)  # of sharers, pairs of tiles
        parts = splits or min(room * SQUARE // block_n // tiles, MOST, H200[1] // tiles, max(slices // 8, 2))
        waves = -(-tiles // H200[splits * sharers]) if splits else -(-tiles * parts // H200[1])
        if a_lines * b_lines > 1:
            lines = block_m * a_lines + 64 * -(-block_n // 64) * b_lines // sharers
            slice_ns = max(slice_ns, lines * 1200 // 1000)
        read_ns = 0 if splits else (m + n) * k * 2 // 3000  # what device memory takes at least
        us = float("inf")
        if parts >= (1 if splits else 2) and (sharers == 1 or a_lines * b_lines > 1):
            us = (launch_ns + waves * tile_ns + max(waves * -(-slices // parts) * slice_ns, read_ns)) / 1000
        found.append(Estimate(us, name, tiles, parts, waves))
    return found


def _squares(shape: Shape) -> int:
    m, n, _ = shape
    return -(-m // SQUARE) * -(-n // SQUARE)
