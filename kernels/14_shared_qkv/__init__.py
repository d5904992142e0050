"""Stage 14: Q in registers; one buffer for Q, K and V."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="Q is read from shared memory once, into registers; its buffer then serves K and V in turn. A third of the "
    "shared memory is enough, at the price of copies that hide behind less. A side branch: stage 15 follows 13.",
    problem="attention",
    dtypes=("fp16", "bf16"),
    variants={"HEAD_DIM": (64, 128), "Q_IN_REGISTERS": (0, 1), "BUFFERS": (1, 2, 4)},
    multiples={"N": 64},
    alignment=16,
    counters=("instructions.ldmatrix", "shared_load_wavefronts", "instructions.barrier", "shared_load_conflicts"),
)
