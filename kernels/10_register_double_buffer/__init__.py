"""Stage 10: fragments loaded one step ahead."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="The fragments of step k + 1 are loaded while step k is multiplied. C leaves in whole 16-byte chunks, small "
    "problems get smaller tiles, and edges are copied with zeros.",
    dtypes=("fp16", "bf16", "tf32"),
    variants={
        "STAGES": (2, 3, 4),
        "SLICE_BYTES": (64, 128),
        "GROUP_M": (1, 8, 12, 16),
        "SWIZZLE": (0, 1),
        "DOUBLE_BUFFER": (0, 1),
        "B_TRANSPOSED": (0, 1),
        "TILE_N": (0, 64, 256),
        "EPILOGUE": (0, 1, 2),
    },
    multiples={"K": 8},
    alignment=16,
    counters=(
        "instructions.ldmatrix",
        "instructions.mma",
        "instructions.shuffle",
        "global_store_requests",
        "global_store_sectors",
    ),
)
