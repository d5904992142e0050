"""Stage 13: the warps split the queries; P in registers."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Each warp has 16 queries to itself: a row's maximum is two shuffles away, no warp waits for another's "
    "scores, and two accumulator tiles of S are the next product's fragment of P as they are.",
    problem="attention",
    dtypes=("fp16", "bf16"),
    variants={"HEAD_DIM": (64, 128)},
    multiples={"N": 64},
    alignment=16,
    counters=(
        "instructions.barrier",
        "instructions.shuffle",
        "instructions.ldmatrix",
        "shared_load_wavefronts",
        "shared_store_wavefronts",
    ),
)
