"""Of kernels.matmul: the product that a program calls on Hopper."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="The tile that reads least, for any size: smaller tiles and split-K over a cluster where a product is too "
    "small for it on every SM.",
    problem="matmul",
    ladder="hopper",
    follows="h5_final",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={"B_TRANSPOSED": (0, 1), "FP32_OUT": (0, 1), "GROUP_M": (0, 1, 4, 16)},
    together=("B_TRANSPOSED", "FP32_OUT"),
    multiples={"N": 8, "K": 8},
    alignment=16,
    function="matmul",
    recorded_as="h5_final",
    test_shapes={"more tiles than multiprocessors: several turns": (2304, 2048, 72)},
    counted_at=(2048, 2048, 128),  # enough tiles for the large ones
    counters=("bulk_load_bytes", "global_store_sectors", "instructions.wgmma"),
)
