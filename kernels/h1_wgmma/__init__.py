"""Stage h1: the tensor cores read shared memory by themselves."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="A warpgroup starts 64 × 256 × 16 products with one instruction, which takes A and B from shared memory as a "
    "descriptor says: no ldmatrix, no registers for fragments.",
    ladder="hopper",
    follows="09_swizzle",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={"STAGES": (2, 3, 4), "GROUP_M": (1, 8, 12, 16)},
    multiples={"M": 128, "N": 256, "K": 64},
    alignment=16,
    counters=("instructions.ldmatrix", "instructions.wgmma", "cp_async_sectors"),
)
