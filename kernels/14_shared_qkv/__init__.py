"""Stage 14: Q in registers; one buffer for Q, K and V."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="A side branch of 13 that does not pay: Q is read from shared memory once, into registers, and its buffer "
    "then serves K and V in turn. A third of the shared memory is enough, but a copy no longer runs beside a product.",
    problem="attention",
    dtypes=("fp16", "bf16"),
    variants={"HEAD_DIM": (64, 128), "Q_IN_REGISTERS": (0, 1), "BUFFERS": (1, 2, 4)},
    multiples={"N": 64},
    alignment=16,
    counters=("instructions.ldmatrix", "shared_load_wavefronts", "instructions.barrier", "shared_load_conflicts"),
)
