"""What Triton's compiler chose, as it is read out of its code, and where layouts put what a kernel copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.figures import layout, triton_code
from common.packages import has_triton
from cudaemu import Report
from cudaemu.errors import UserError

TTGIR = """
#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [8, 1], order = [1, 0]}>
#shared = #ttg.swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [1, 0]}>
#loc46 = loc("A"(#loc))
    %a_4 = ttg.local_alloc : () -> !ttg.memdesc<3x128x32xf16, #shared, #smem, mutable> loc(#loc62)
    %x = ttg.local_alloc %y : (tensor<128x64xf16, #blocked>) -> !ttg.memdesc<128x64xf16, #shared, #smem> loc(#loc94)
"""
of_triton = pytest.mark.skipif(not has_triton(), reason="Triton is not installed: pip install triton (a gigabyte)")


def test_layouts_and_buffers_are_read():
    ran = triton_code.Ran(TTGIR, Report(0, "", [], None, {}, [], None, 0.0, {}, None))
    shared = "swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [1, 0]}>"
    assert list(triton_code.layouts(ran)) == ["#blocked", "#shared"] and triton_code.layouts(ran)["#shared"] == shared
    assert triton_code.buffers(ran) == [("a", (3, 128, 32), shared), ("x", (128, 64), shared)]


def test_an_offset_holds_the_xor_of_the_bases_of_its_bits():
    found = triton_code.offsets([(0, 1), (0, 2), (1, 1), (2, 0)], (4, 4))
    assert sorted(found.ravel()) == list(range(16))
    assert found[0, 3] == 3 and found[1, 1] == 4 and found[3, 1] == 12 and found[1, 0] == 5


@of_triton
@pytest.mark.parametrize(("width", "per_phase", "phases"), [(16, 4, 2), (32, 2, 4), (64, 1, 8), (256, 1, 8)])
def test_triton_s_bases_are_those_of_the_xor(width, per_phase, phases):
    laid = f"swizzled_shared<{{vec = 8, perPhase = {per_phase}, maxPhase = {phases}, order = [1, 0]}}>"
    row, column = np.mgrid[:32, :width]
    ours = layout.tile_offset(row, column, width=width, element=2, xor=True)
    assert (2 * triton_code.offsets(triton_code.bases(laid, (32, width)), (32, width)) == ours).all()


@of_triton
def test_a_layout_of_registers_is_refused():
    with pytest.raises(UserError, match="must be swizzled_shared or nvmma_shared"):
        triton_code.bases("blocked<{sizePerThread = [1, 8]}>", (16, 16))


@of_triton
@pytest.mark.parametrize("options", [{"arch": "8.0"}, {"arch": "9.0", "tma": True, "block_k": 64}])
def test_the_example_multiplies_without_conflicts(options):
    from examples.triton.matmul import matmul

    torch.manual_seed(0)
    a, b, c = torch.randn(128, 160).half(), torch.randn(160, 256).half(), torch.full((128, 256), torch.nan).half()
    ran = triton_code.run(matmul, a, b, c, **options)
    assert (c.double() - a.double() @ b.double()).norm() < 5e-4 * c.double().norm()
    assert ran.report.counters["shared_load_conflicts"] == ran.report.counters["shared_store_conflicts"] == 0
    assert [name for name, _, _ in triton_code.buffers(ran)][:2] == ["a", "b"]
