"""Stage 06: padded rows, no bank conflicts."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Rows of the shared tiles are 16 bytes longer than needed: the 8 rows of a matrix start in different "
    "banks and are read in one go.",
    dtypes=("fp16", "bf16"),
    variants={"PADDING": (0, 8)},
    multiples={"M": 128, "N": 256, "K": 32},
    alignment=16,
    counters=("shared_load_conflicts", "shared_load_wavefronts", "shared_store_conflicts"),
)
