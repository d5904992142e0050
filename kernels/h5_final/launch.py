"""A launch of this stage chooses its tile in the launcher. A check tries all its choices."""

from __future__ import annotations

from common.problem import Shape, Variants
from common.problems.matmul import SQUARE

CHOICES = (
    "128 × 256", "128 × 224", "128 × 192", "160 × 128", "128 × 128", "96 × 128", "128 × 64", "192 × 64", "96 × 192",
    "128 × 64, K in 2", "128 × 64, K in 4", "128 × 64, K in 8", "128 × 128, K in 4",
    "128 × 128, K in parts", "128 × 256, K in parts",
    "128 × 256, B shared", "128 × 192, B shared", "128 × 128, B shared",
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


def _squares(shape: Shape) -> int:
    m, n, _ = shape
    return -(-m // SQUARE) * -(-n // SQUARE)
