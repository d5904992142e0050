"""Stage 07: global → shared without registers."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="cp.async copies 16 bytes from global to shared memory in the background: one instruction, no "
    "register in between.",
    dtypes=("fp16", "bf16"),
    variants={"PADDING": (0, 8)},
    multiples={"M": 128, "N": 256, "K": 32},
    alignment=16,
    counters=("instructions.store.shared", "instructions.cp.async", "instructions.load.global", "cp_async_sectors"),
)
