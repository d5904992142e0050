"""Stage h7: softmax under the products: FlashAttention-3."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="FlashAttention-3: the next scores are started before the product of these weights with V and weighed while "
    "it runs, and warpgroups take turns to start their products. Features of stage 16, by tensor maps.",
    problem="sdpa",
    ladder="hopper-attention",
    follows="h6_wgmma_attention",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={
        "HEAD_DIM": (64, 128),
        "CAUSAL": (0, 1),
        "KEYS": (64, 128),
        "MAX_WARPGROUPS": (2, 3),
        "PERSISTENT": (0, 1),
        "PING_PONG": (0, 1, 2),
        "SCORES_AHEAD": (0, 1),
        "LAZY_RESCALE": (0, 1),
    },
    together=("HEAD_DIM", "CAUSAL"),
    alignment=16,
    test_shapes={
        "more tiles than multiprocessors: several turns of several tiles of keys": (1, 15, 15, 200, 200, 128),
        "three turns of one warpgroup": (1, 30, 30, 40, 128, 128),
        "three turns of one warpgroup, narrow heads": (1, 30, 30, 40, 128, 64),
        "several turns of two warpgroups, narrow heads": (1, 15, 15, 200, 200, 64),
        "three turns of three warpgroups": (1, 30, 30, 150, 150, 64),
        "three warpgroups, several tiles of keys": (1, 1, 1, 150, 401, 64),
        "three tiles of keys under a mask": (1, 1, 1, 330, 330, 128),
        "three warpgroups, three tiles of keys under a mask": (1, 1, 1, 330, 330, 64),
        "two warpgroups, three tiles of keys under a mask": (1, 1, 1, 640, 640, 64),
    },
    counters=("instructions.float", "global_store_sectors", "instructions.barrier", "instructions.wgmma"),
)
