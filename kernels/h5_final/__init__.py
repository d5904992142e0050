"""Stage h5: a tile that reads less, at any size."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Two consumers share a tile of 128 × 256 by rows; TMA knows the edges; bias and activation are applied to "
    "accumulators.",
    problem="linear",
    ladder="hopper",
    follows="h4_ping_pong",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={"B_TRANSPOSED": (0, 1), "BLOCK_N": (128, 256), "BY_ROWS": (0, 1)},
    multiples={"N": 8, "K": 8},
    alignment=16,
    test_shapes={"more tiles than multiprocessors: several turns": (2304, 2048, 72)},
    counters=("bulk_load_bytes", "wgmma_bytes", "instructions.wgmma"),
)
