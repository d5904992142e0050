"""The main loop in machine code: when fragments are loaded and when they are used."""

from __future__ import annotations

import pytest

import kernels
from common.figures import loop
from cudaemu.compiler.sass import Instruction
from cudaemu.errors import UserError

LISTING = [
    "LDSM.16.M88.4 R8, [R2]",  # before the loop
    "HMMA.16816.F32 R20, R8.reuse, R12, R20",  # 0: the loop begins
    "LDSM.16.M88.4 R8, [R3]",  # 1: used in the next turn, as place 5 + 0
    "BAR.SYNC.DEFER_BLOCKING 0x0",  # 2
    "LDSM.16.MT88.4 R12, [R4]",  # 3: used by the mma that follows
    "HMMA.16816.F32 R24, R16, R14, R24",  # 4
    "@!P0 BRA 0x10",
]


def test_the_first_use_of_each_fragment_is_found():
    found = loop.main_loop([Instruction(16 * n, text) for n, text in enumerate(LISTING)])
    assert (found.mma, found.barriers, found.copies, found.length) == ((0, 4), (2,), (), 5)
    assert found.loads == (loop.Load(1, 5, 1, transposed=False), loop.Load(3, 4, 0, transposed=True))
    with pytest.raises(UserError, match="no loop with tensor instructions"):
        loop.main_loop([Instruction(0, "EXIT")])


@pytest.mark.full
def test_double_buffering_leaves_no_mma_without_its_fragments():
    """After the barrier of stage 09 the tensor cores wait for ldmatrix, in stage 10 they do not."""
    before = loop.sass_loop(kernels.load("09").kernel("fp16"))
    after = loop.sass_loop(kernels.load("10").kernel("fp16"))
    assert min(load.between for load in before.loads) == 0 < min(load.between for load in after.loads)
    assert (len(after.loads), len(after.mma)) == (len(before.loads), len(before.mma))


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(UserError, match="none with 'nothing'"):
        loop.sass_loop(kernels.load("09").kernel("fp16"), function="nothing")


def test_the_operands_have_the_names_that_the_caller_gives_them():
    """What ldmatrix brings is A and B in one kernel, K and V in another: the machine code does not say."""
    found = loop.main_loop([Instruction(16 * n, text) for n, text in enumerate(LISTING)])
    for names in ((), (("K", "V"),)):
        picture = loop.fragments({"stage": found}, *names)
        texts = [text.get_text() for text in picture.legends[0].get_texts()]
        first, second = names[0] if names else ("ldmatrix", "ldmatrix.trans")
        assert texts[:2] == [f"{first}: from ldmatrix to first mma", f"{second}: likewise"]
        assert picture._repr_png_().startswith(b"\x89PNG")
