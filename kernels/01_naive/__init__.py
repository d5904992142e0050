"""Stage 01: one thread per output; coalescing."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="One thread computes one element of C. The lanes of a warp take neighbouring columns, so that their loads "
    "fall into few, full sectors.",
    unit="FMA",
    variants={"COALESCED": (0, 1)},
    counters=("global_load_sectors", "global_load_requests", "global_load_bytes"),
)
