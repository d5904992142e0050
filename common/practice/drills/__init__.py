"""Drills: any number of short questions with computed answers. The same seed asks the same ones.

    python -m kernels practice drill               what there is
    python -m kernels practice drill banks         ten questions in the terminal, and a score
    python -m kernels practice drill all --seed 7 --sheet test.md    a test sheet, and its key in test.key.md

Answers come from the code that the figures and the bounds use: layout (banks, sectors, tiles), fragments, hardware
(occupancy), attention_tiles (online softmax), problem (FLOP and bytes).
"""

# isort: off
# In this order their kinds are registered, and asked by `all`.
from common.practice.drills import threads, tiles, fragments, limits, waits, hopper  # noqa: F401
