"""Stage 15: 32 queries per warp; all that can overlaps."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Follows 13: a warp with 32 queries reads keys and values half as often. Each product runs in 16 steps, which "
    "load the next step's fragments and copy a part of a later tile; one barrier per tile; O is corrected only when it "
    "must be.",
    problem="attention",
    follows="13_split_q",
    dtypes=("fp16", "bf16"),
    variants={
        "HEAD_DIM": (64, 128),
        "WARP_Q": (16, 32),
        "FRAGMENTS_AHEAD": (0, 1),
        "SPREAD_COPIES": (0, 1),
        "LAZY_RESCALE": (0, 1),
    },
    multiples={"N": 128},
    alignment=16,
    counters=("shared_load_wavefronts", "instructions.ldmatrix", "instructions.barrier", "instructions.shuffle"),
)
