"""Stage 10: fragments loaded one step ahead."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Two sets of fragments: those of step k + 1 are loaded while step k is multiplied, so that no mma waits for "
    "ldmatrix, not even after a barrier.",
    dtypes=("fp16", "bf16"),
    variants={
        "STAGES": (2, 3, 4),
        "PREFETCH": (0, 1),
        "SWIZZLE": (0, 1),
        "GROUP_M": (1, 12),
    },
    multiples={"M": 128, "N": 256, "K": 32},
    alignment=16,
    test_shapes={"a second, lower group of rows of tiles": (1792, 768, 384)},
    counters=("instructions.integer", "instructions.barrier", "instructions.ldmatrix"),
)
