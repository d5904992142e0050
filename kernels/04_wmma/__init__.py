"""Stage 04: tensor cores through WMMA."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Tensor cores multiply 16 × 16 tiles, a warp at a time. WMMA loads, multiplies and stores them as "
    "fragments whose layout is unspecified.",
    dtypes=("fp16", "bf16"),
    variants={"BLOCK_N": (128, 256), "BLOCK_K": (16, 32)},
    multiples={"M": 128, "N": 256, "K": 32},
    alignment=16,
    counters=("instructions.fma", "instructions.mma", "shared_load_requests", "shared_load_conflicts"),
)
