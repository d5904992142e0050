"""The other kernel of the stage: Q, K and V in 16 bits become e4m3 with scales.

python -m kernels.h8_fp8.quantize test | bench
"""

from common.cli import main
from common.stage import Stage

stage = Stage(
    package=__package__,
    idea="Q and K rotated, V transposed, all in e4m3: 64 rows share a scale.",
    problem="quantize",
    min_arch="9.0a",
    unit="FMA",
    dtypes=("fp16", "bf16"),
    variants={"HEAD_DIM": (64, 128), "ROTATE": (0, 1)},
    multiples={"N": 128},
    alignment=16,
)

if __name__ == "__main__":
    main(__package__, stage)
