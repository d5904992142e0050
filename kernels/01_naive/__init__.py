"""Stage 01: one thread computes one element of C, and the lanes of a warp read neighbours."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    title="naive",
    idea="One thread computes one element of C. The lanes of a warp take neighbouring columns, so that their loads "
    "fall into few, full sectors.",
    variants={"COALESCED": (0, 1)},
    counters=("global_load_requests", "global_load_sectors", "global_load_bytes"),
)
