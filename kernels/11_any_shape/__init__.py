"""Stage 11: any M and N, TF32, B transposed, small tiles."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Copies write zeros and stores stop where a tile reaches over an edge, in kernels of their own; small "
    "problems get smaller tiles; C leaves in whole 16-byte chunks; B may be transposed, fp32 runs as TF32.",
    dtypes=("fp16", "bf16", "tf32"),
    variants={
        "STAGES": (2, 3, 4),
        "SLICE_BYTES": (64, 128),
        "B_TRANSPOSED": (0, 1),
        "TILE_N": (0, 64, 256),
        "SWIZZLE": (0, 1),
        "GROUP_M": (1, 12),
    },
    multiples={"K": 8},
    alignment=16,
    test_shapes={
        "small tiles, whole, in two groups": (1792, 128, 512),
        "small tiles, whole chunks ragged in N": (128, 72, 128),
        "small tiles, whole and ragged ones, in two groups": (1700, 120, 328),
        "large tiles, whole, in two groups": (1792, 512, 384),
        "large tiles, whole chunks ragged": (700, 504, 264),
        "large tiles, ragged, rows of B and C that start anywhere": (700, 501, 264),
    },
    counters=("global_store_requests", "global_store_sectors", "instructions.shuffle"),
)
