"""Stage h6: attention by wgmma; P its operand in registers."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Stage 13 on h3's machine: a producer brings Q, K and V by TMA, two warpgroups own 64 queries each. S comes "
    "from shared memory alone; P goes from accumulators to operand registers as it lies; V is transposed by its "
    "descriptor.",
    problem="attention",
    ladder="hopper-attention",
    follows="h3_warp_specialized",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={"HEAD_DIM": (64, 128), "KEYS": (64, 128)},
    multiples={"N": 128},
    alignment=16,
    counters=("instructions.wgmma", "instructions", "shared_load_wavefronts", "instructions.barrier"),
)
