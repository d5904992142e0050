"""A launch of this stage chooses its tile in the launcher. A check tries all its choices."""

from __future__ import annotations

from common.problem import Shape, Variants

CHOICES = (
    "128 × 256", "128 × 192", "128 × 128", "128 × 64", "128 × 64, K in 2", "128 × 64, K in 4", "128 × 128, K in 4",
    "128 × 128, K in 6",
)  # fmt: skip
OURS = -1  # the launcher's own


def choose(shape: Shape, variants: Variants, multiprocessors: int) -> dict[str, int]:
    """{"choice"}: the tile and the split, by their number in kernel.cu."""
    return {"choice": OURS}


def others(shape: Shape, variants: Variants, multiprocessors: int) -> dict[str, dict[str, int]]:
    """Other choices for a check to launch, by name: every choice, since the launcher takes few of them at small sizes.

    At large sizes one is enough: the choices were compared at small ones."""
    if shape[0] * shape[1] * shape[2] > 1 << 24:
        return {}
    return {f"tiles of {what}": {"choice": number} for number, what in enumerate(CHOICES)}
