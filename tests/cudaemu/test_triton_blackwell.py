"""Triton's code for compute capability 12.0: the same kernels, and products with scales, whose layouts Triton knows
from elsewhere."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", "3.9", reason="Triton 3.9 or newer is not installed: pip install triton")
import triton.language as tl  # noqa: E402

from cudaemu import triton as device  # noqa: E402
from tests.cudaemu import triton_faults as faults  # noqa: E402
from tests.cudaemu.test_blackwell import VALUES  # noqa: E402

pytestmark = pytest.mark.full
SIZE, DEPTH = 64, 128


@pytest.fixture(autouse=True)
def emulator():
    device.use(arch="12.0")
    device.reports.clear()
    yield
    device.use()


@pytest.mark.parametrize("name", [kernel.__name__ for kernel in faults.KERNELS])
def test_right_kernels_have_no_findings(name):
    got, expected = faults.run(name)
    assert torch.allclose(got, expected, atol=2e-2, rtol=2e-2)
    assert not device.report().findings, device.report()


@triton.jit
def scaled(
    a, a_scales, b, b_scales, c, SIZE: tl.constexpr, WORDS: tl.constexpr, SCALES: tl.constexpr, FORMAT: tl.constexpr
):
    rows, words, scales = tl.arange(0, SIZE), tl.arange(0, WORDS), tl.arange(0, SCALES)
    left = tl.load(a + rows[:, None] * WORDS + words[None, :])
    right = tl.load(b + rows[None, :] * WORDS + words[:, None])
    of_a = tl.load(a_scales + rows[:, None] * SCALES + scales[None, :])
    of_b = tl.load(b_scales + rows[:, None] * SCALES + scales[None, :])
    sums = tl.dot_scaled(left, of_a, FORMAT, right, of_b, FORMAT)
    tl.store(c + rows[:, None] * SIZE + rows[None, :], sums)


@pytest.mark.parametrize(("format_", "part"), [("e4m3", 32), ("e5m2", 32), ("e2m1", 32), ("e2m1", 16)])
def test_products_with_scales(format_, part):
    torch.manual_seed(part)
    operands = []
    for _ in "ab":
        if format_ == "e2m1":
            data = torch.randint(0, 256, (SIZE, DEPTH // 2), dtype=torch.uint8)
            codes = torch.stack([data & 15, data >> 4], -1).reshape(SIZE, DEPTH)
            values = torch.from_numpy(VALUES["e2m1"]).float()[codes.long()]
        else:
            data = torch.randn(SIZE, DEPTH).to({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[format_])
            values = data.float()
        if part == 32:
            scales = torch.randint(120, 134, (SIZE, DEPTH // part), dtype=torch.uint8)
            factors = 2.0 ** (scales.float() - 127)
        else:
            scales = (torch.rand(SIZE, DEPTH // part) + 0.5).to(torch.float8_e4m3fn)
            factors = scales.float()
        operands.append((data, scales, (values * factors.repeat_interleave(part, 1)).double()))
    (a, a_scales, left), (b, b_scales, right) = operands
    c = torch.empty(SIZE, SIZE)
    scaled[(1,)](a, a_scales, b, b_scales, c, SIZE, a.shape[1], a_scales.shape[1], format_)
    expected = left @ right.T
    assert (c - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert not device.report().findings and device.report().counters["instructions.mma"] > 0
