"""Stage h3: one warp copies, the others multiply."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="A producer fills the ring as far ahead as it is long; two consumers multiply, with the registers that the "
    "producer gives away.",
    ladder="hopper",
    follows="h2_tma",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={"STAGES": (2, 3, 4), "GROUP_M": (1, 8, 12, 16)},
    multiples={"M": 128, "N": 256, "K": 64},
    alignment=16,
    counters=("instructions.barrier", "cp_async_sectors", "instructions.wgmma"),
)
