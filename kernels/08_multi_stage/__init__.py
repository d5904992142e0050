"""Stage 08: a ring of tiles in flight."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="A ring of STAGES tiles: the copies for later slices are in flight while this one is multiplied, and "
    "one barrier per slice is enough.",
    dtypes=("fp16", "bf16"),
    variants={"STAGES": (2, 3, 4, 5), "PADDING": (0, 8)},
    multiples={"M": 128, "N": 256, "K": 32},
    alignment=16,
    counters=("instructions.barrier", "instructions.cp.async", "shared_load_conflicts"),
)
