"""Stage 02: tiles in shared memory."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="The threads of a block fetch a K slice of their rows of A and columns of B once, together, into shared "
    "memory, and read from there 32 times.",
    unit="FMA",
    counters=("global_load_sectors", "global_load_bytes", "shared_load_requests", "shared_load_wavefronts"),
)
