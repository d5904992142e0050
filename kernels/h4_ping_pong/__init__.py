"""Stage h4: one tile is stored while the next is multiplied."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Persistent blocks; two consumers with tiles of their own take turns, so that one rounds and stores, by TMA, "
    "while the other multiplies.",
    ladder="hopper",
    follows="h3_warp_specialized",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={"PING_PONG": (0, 1), "GROUP_M": (1, 8, 12, 16)},
    multiples={"M": 128, "N": 256, "K": 64},
    alignment=16,
    test_shapes={"more tiles than multiprocessors: several turns": (2304, 2048, 128)},
    counters=("global_store_requests", "global_store_sectors", "instructions.wgmma"),
)
