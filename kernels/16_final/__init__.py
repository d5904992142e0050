"""Stage 16: an attention that a person would call."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="15 with weights before maxima and one barrier per tile; for any lengths: edges masked, hidden tiles skipped, "
    "grouped heads packed, few queries against many keys split over blocks and combined by log-sum-exp.",
    problem="sdpa",
    ladder="attention",
    dtypes=("fp16", "bf16"),
    variants={
        "HEAD_DIM": (64, 128),
        "CAUSAL": (0, 1),
        "MAX_WARP_Q": (16, 32),
    },
    together=("HEAD_DIM", "CAUSAL"),
    alignment=16,
    function="attention",
    counters=("instructions.float", "shared_load_wavefronts", "instructions.ldmatrix"),
)
