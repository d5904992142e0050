"""Stage 12: online softmax; the warps split the keys."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Online softmax: a block walks over tiles of keys and corrects maximum, sum and output as it goes, so the N"
    " × N scores are never stored. The warps split the keys of a tile; maxima, sums and P meet in shared "
    "memory.",
    problem="attention",
    dtypes=("fp16", "bf16"),
    variants={"HEAD_DIM": (64, 128)},
    multiples={"N": 64},
    alignment=16,
    counters=(
        "cp_async_sectors",
        "instructions.barrier",
        "instructions.ldmatrix",
        "instructions.mma",
        "shared_load_wavefronts",
        "shared_load_conflicts",
        "shared_store_wavefronts",
    ),
)
