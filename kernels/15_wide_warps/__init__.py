"""Stage 15: 32 queries per warp."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Follows 13: a warp with 32 queries reads keys and values half as often per query, so the tensor cores become "
    "the bound. O is corrected only when a maximum has grown by more than 8.",
    problem="attention",
    follows="13_split_q",
    dtypes=("fp16", "bf16"),
    variants={"HEAD_DIM": (64, 128), "WARP_Q": (16, 32), "LAZY_RESCALE": (0, 1)},
    multiples={"N": 128},
    alignment=16,
    counters=("shared_load_wavefronts", "instructions.ldmatrix", "instructions.barrier", "instructions.shuffle"),
)
