"""Stage 05: ldmatrix and mma.sync: layouts in our hands."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="mma.sync documents which lane holds which element, ldmatrix fills four 8 × 8 matrices at once: no "
    "detour for the result, and bank conflicts in plain sight.",
    dtypes=("fp16", "bf16"),
    multiples={"M": 128, "N": 256, "K": 32},
    alignment=16,
    counters=(
        "shared_load_conflicts",
        "instructions.mma",
        "instructions.ldmatrix",
        "shared_load_wavefronts",
        "shared_store_requests",
    ),
)
