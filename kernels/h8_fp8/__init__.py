"""Stage h8: 8-bit operands, a scale for each 64 rows."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Stage h7 in e4m3, which wgmma multiplies twice as fast: 64 rows of Q, K or V share a scale, Q and K are "
    "rotated by a Hadamard matrix, the scale of V goes into the weights. P stays in registers because V's keys are "
    "in P's order.",
    problem="attention_fp8",
    ladder="hopper-attention",
    follows="h7_flash_attention_3",
    min_arch="9.0a",
    unit="wgmma e4m3",
    dtypes=("fp16", "bf16"),
    variants={"HEAD_DIM": (64, 128), "KEYS": (64, 128)},
    multiples={"N": 128},
    alignment=16,
    test_shapes={
        "more tiles than multiprocessors: several turns": (1, 15, 256, 128),
        "several turns, narrow heads": (1, 15, 256, 64),
    },
    counters=("bulk_load_bytes", "instructions.barrier", "instructions.wgmma"),
    besides=(
        Stage(  # what comes before
            package=__name__,
            file="quantize.cu",
            idea="Q and K rotated, V transposed, all in e4m3; 64 rows share a scale.",
            problem="quantize",
            min_arch="9.0a",
            unit="FMA",
            dtypes=("fp16", "bf16"),
            variants={"HEAD_DIM": (64, 128), "ROTATE": (0, 1)},
            multiples={"N": 128},
            alignment=16,
        ),
    ),
    function="attention_fp8",
)
