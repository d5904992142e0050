"""What a launch of this stage chooses by its shape and the GPU: the number of blocks that share the keys."""

from __future__ import annotations

from common.problem import Shape, Variants
from common.problems.sdpa import best_splits

GROUP_Q = 64  # queries per warpgroup, as in kernel.cu; if there are no more, one warpgroup of a block multiplies
FEW_TILES = 5  # of keys: two parts then have two and three of them
MANY_TILES = 64  # of keys: with more, parts have several tiles anyway


def choose(shape: Shape, variants: Variants, multiprocessors: int) -> dict[str, int]:
    """{"splits"}: how many blocks share the keys of one tile of queries, so that all multiprocessors work."""
    b, h, h_kv, n, n_kv, d = shape
    group = h // h_kv
    packed = group if n * group <= GROUP_Q else 1
    rows = n * packed
    blocks = b * (h // packed) * -(-rows // _block_q(shape, variants, rows))
    whole = variants["CAUSAL"] or blocks >= multiprocessors  # a block has a multiprocessor to itself
    return {"splits": 1 if whole else best_splits(blocks, _tiles(shape, variants), multiprocessors)}


def others(shape: Shape, variants: Variants, multiprocessors: int) -> dict[str, dict[str, int]]:
    """Other choices for a check to launch, by name.

    At small sizes a block has at most one tile of keys, or none, where there are more parts than tiles; at large sizes
    several, in one part or in two unequal ones."""
    tiles = _tiles(shape, variants)
    if choose(shape, variants, multiprocessors)["splits"] == 1 or tiles > MANY_TILES:
        return {}
    if tiles >= FEW_TILES:
        return {"keys in two parts": {"splits": 2}}
    whole = shape[0] * shape[1] == 1 and shape[3] % GROUP_Q == shape[4] % variants["KEYS"] == 0
    more = {"more parts than tiles": {"splits": tiles + 3}} if whole else {}
    return {"keys not split": {"splits": 1}, **more}


def _block_q(shape: Shape, variants: Variants, rows: int) -> int:
    """The queries of a block, as the launcher in kernel.cu has them."""
    if rows <= GROUP_Q:
        return GROUP_Q
    wide, tenths = shape[5] == 64 and variants["MAX_WARPGROUPS"] == 3, 11 if variants["CAUSAL"] else 12
    return 192 if wide and 10 * -(-rows // 192) * 192 < tenths * -(-rows // 128) * 128 else 128


def _tiles(shape: Shape, variants: Variants) -> int:
    return -(-shape[4] // variants["KEYS"])
