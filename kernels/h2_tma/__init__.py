"""Stage h2: one thread copies whole tiles."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="TMA copies boxes of a matrix that a tensor map describes, swizzled, and counts their bytes on an mbarrier; "
    "a second one says that a stage has been read.",
    ladder="hopper",
    follows="h1_wgmma",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={"STAGES": (2, 3, 4), "GROUP_M": (1, 8, 12, 16)},
    multiples={"M": 128, "N": 256, "K": 64},
    alignment=16,
    counters=("instructions", "cp_async_sectors", "instructions.barrier", "instructions.wgmma"),
)
