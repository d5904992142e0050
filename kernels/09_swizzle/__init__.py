"""Stage 09: XOR instead of padding; blocks in L2's order."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Chunks of 16 bytes permuted by XOR are free of conflicts without padding; blocks that run together "
    "take neighbouring tiles and share them in L2.",
    dtypes=("fp16", "bf16"),
    variants={"STAGES": (2, 3, 4), "SWIZZLE": (0, 1), "GROUP_M": (1, 8, 12, 16)},
    multiples={"M": 128, "N": 256, "K": 32},
    alignment=16,
    test_shapes={"a second, lower group of rows of tiles": (1792, 768, 384)},
    counters=("cp_async_sectors", "shared_load_conflicts"),
)
