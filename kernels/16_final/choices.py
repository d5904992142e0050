"""What a launch of this stage chooses by its shape and the GPU: the number of blocks that share the keys."""

from __future__ import annotations

from common.problem import Shape, Variants
from common.problems.sdpa import best_splits

BLOCK_KV = 64  # keys per tile, as in kernel.cu
SMALL_BLOCK_Q = 64  # queries per block if there are no more; otherwise as many as 4 warps take
FEW_TILES = 5  # of keys: two parts then have two and three of them
MANY_TILES = 64  # of keys: with more, parts have several tiles anyway


def choose(shape: Shape, variants: Variants, multiprocessors: int) -> dict[str, int]:
    """{"splits"}: how many blocks share the keys of one tile of queries, so that all multiprocessors work."""
    b, h, h_kv, n, n_kv, d = shape
    group = h // h_kv
    packed = group if n * group <= SMALL_BLOCK_Q else 1
    rows = n * packed
    block_q = SMALL_BLOCK_Q if rows <= SMALL_BLOCK_Q else 4 * variants["MAX_WARP_Q"]
    blocks = b * (h // packed) * -(-rows // block_q)
    slots = multiprocessors * (2 if d == 128 else 3)
    whole = variants["CAUSAL"] or blocks >= slots
    return {"splits": 1 if whole else best_splits(blocks, _tiles(shape), slots)}


def others(shape: Shape, variants: Variants, multiprocessors: int) -> dict[str, dict[str, int]]:
    """Other choices for a check to launch, by name.

    At small sizes a block has at most one tile of keys, or none, where there are more parts than tiles; at large sizes
    several, in one part or in two unequal ones."""
    if choose(shape, variants, multiprocessors)["splits"] == 1 or _tiles(shape) > MANY_TILES:
        return {}
    if _tiles(shape) >= FEW_TILES:
        return {"keys in two parts": {"splits": 2}}
    whole = shape[0] * shape[1] == 1 and shape[3] % SMALL_BLOCK_Q == shape[4] % BLOCK_KV == 0
    more = {"more parts than tiles": {"splits": _tiles(shape) + 3}} if whole else {}
    return {"keys not split": {"splits": 1}, **more}


def _tiles(shape: Shape) -> int:
    return -(-shape[4] // BLOCK_KV)
