"""Stage 03: 8 × 8 outputs per thread in registers."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="A thread that owns 8 × 8 outputs reads 8 + 8 values from shared memory for 64 multiplications, where stage "
    "02 reads two for each; loads are 128 bits wide.",
    unit="FMA",
    multiples={"M": 128, "N": 128, "K": 16},
    alignment=16,
    counters=("shared_load_requests", "shared_load_wavefronts", "shared_load_conflicts", "global_load_requests"),
)
