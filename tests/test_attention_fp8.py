"""Attention in fp8: the kernel that quantizes, and both together as a function. tests/test_kernels.py has the other."""

from __future__ import annotations

import math

import pytest
import torch

import kernels
from common import accuracy
from common.problems import quantize as problem
from cudaemu.errors import UserError
from kernels import attention_fp8

STAGE = kernels.load("h8")
(quantize,) = STAGE.besides
DEVICES = ["emulator", pytest.param("gpu", marks=pytest.mark.gpu)]
QUANTIZE = quantize.kernels()


def inputs(n: int = 256, dtype: torch.dtype = torch.float16, outliers: float = 0, d: int = 128) -> list[torch.Tensor]:
    """Q, K and V [1, 2, n, d], random normal; to one in a thousand comes a number `outliers` times as large, as in the
    trial of the FlashAttention-3 paper."""
    generator = torch.Generator().manual_seed(0)
    shape = 1, 2, n, d
    made = [torch.randn(shape, generator=generator) for _ in range(3)]
    rare = [torch.rand(shape, generator=generator) < 1e-3 for _ in made]
    large = [outliers * torch.randn(shape, generator=generator) for _ in made]
    return [(each + chosen * more).to(dtype) for each, chosen, more in zip(made, rare, large)]


def error(o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> float:
    """‖O − exact‖ / ‖exact‖."""
    q, k, v = (each.double() for each in (q, k, v))
    exact = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
    return ((o.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_keys_whose_values_are_0_have_their_weight(first, device):
    """The scale of V is in the weights: far below the others' it would make them 0, and l would lack these keys."""
    q = torch.zeros(1, 1, 512, 128, dtype=torch.float16, device="cuda" if device == "gpu" else "cpu")
    v = q + first
    v[:, :, 256:] = 1 - first
    assert (attention_fp8(q, q, v) == 0.5).all()


@pytest.mark.core(every=6)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", QUANTIZE, ids=lambda kernel: kernel.short)
def test_the_kernel_that_quantizes(kernel, device):
    for shape in kernel.test_shapes().values():
        for pattern in quantize.spec.patterns_at(shape, kernel.multiples, kernel.variants):
            assert not (found := accuracy.check(kernel, shape, device, pattern=pattern).report), found


@pytest.mark.full
def test_the_verbs_have_both_files(command, edited):
    """A reader's own version is of the file whose launcher it has."""
    words = STAGE.package, "test", "--device", "emulator", "--sizes", "1x1x128", "--dtype", "fp16"
    said = command(*words)
    assert said.status == 0 and "quantize: fp16" in said.out
    said = command(*words, "--source", edited(quantize, ("i % 4 / 2 * 8 + t * 2 + i % 2", "t * 4 + i % 4")))
    assert said.status == 1 and "V8: relative error" in said.out and "KEYS" not in said.out
    said = command(*words, "--source", edited(STAGE, ("ROOM = 4", "ROOM = 3")))
    assert said.status == 0 and "KEYS" in said.out and "ROTATE" not in said.out
    for words in (("resources", "--variant", "HEAD_DIM=64"), ("sass",), ("count", "--sizes", "1x1x128")):
        said = command(STAGE.package, *words)
        assert said.status == 0 and "h8_fp8 " in said.out and "quantize.cu" in said.out


@pytest.mark.full
def test_a_check_has_blocks_with_several_tiles(edited):
    """What a block leaves to its next tile: TMA may still read O where the next one is written."""
    known = "if (lane == 0) bulk_wait_read<0>();  // TMA has read the last tile's O,"
    kernel = STAGE.kernel("fp16", source=edited(STAGE, (known, "")))
    shape = next(shape for why, shape in kernel.test_shapes().items() if "several turns" in why)
    assert "copy in flight" in accuracy.check(kernel, shape, "emulator").report


def test_a_rotation_leaves_products_as_they_are():
    q, k, _ = (each.double() for each in inputs())
    turned = problem.rotated(q), problem.rotated(k)
    assert torch.allclose(turned[0] @ turned[1].mT, q @ k.mT)
    assert torch.allclose(problem.rotated(torch.eye(128).double()).abs(), torch.tensor(128**-0.5).double())


def test_numbers_come_back():
    """V with its keys in order; zeros stay zeros; no number is further off than half of the last bit of its block."""
    tensors = inputs()
    tensors[2][:, :, :64] = 0
    q, k, v = problem.dequantized(problem.quantized(tensors, rotate=False), torch.float32)
    for got, want in zip((q, k, v), tensors):
        blocks = want.float().abs().unflatten(2, (-1, 64))
        unit = torch.maximum(blocks / 16, blocks.amax((-2, -1), keepdim=True) * 2.0**-10 / 448).flatten(2, 3)
        assert ((got - want).abs() <= unit * 1.01).all()
    assert not v[:, :, :64].any()


@pytest.mark.core(every=4)
@pytest.mark.parametrize("d", STAGE.variants["HEAD_DIM"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_attention(device, dtype, d):
    tensors = [each.to(device) for each in inputs(dtype=dtype, d=d)]
    o = attention_fp8(*tensors)
    assert o.dtype == dtype and o.shape == tensors[0].shape and o.device == tensors[0].device
    assert error(o, *tensors) < 0.06


@pytest.mark.full
def test_rotation_pays_with_outliers():
    """The same launch of the second kernel, of Q and K rotated and as they are."""
    tensors = inputs(n=512, outliers=10)
    turned, plain = (error(STAGE(*quantize(*tensors, ROTATE=rotate)), *tensors) for rotate in (1, 0))
    assert turned < 0.06 and turned < 0.9 * plain


def test_what_does_not_fit():
    q, k, v = inputs()
    for wrong, said in (
        ((q[:, :, :100], k[:, :, :100], v[:, :, :100]), "contiguous"),
        ((q[:, :, :100].contiguous(),) * 3, "N must be a multiple of 128, got 100"),
        ((q, k, v[:, :1].contiguous()), "must have one shape"),
        ((q, k.bfloat16(), v), "K must have Q's dtype"),
        ((q.float(), k.float(), v.float()), "dtype must be one of"),
        ((q[..., :32].contiguous(),) * 3, "HEAD_DIM must be one of 64, 128"),
    ):
        with pytest.raises(UserError, match=said):
            attention_fp8(*wrong)
    quantized = problem.quantized((q, k, v))
    for place, wrong, said in (
        (0, quantized[0].half(), "Q8 must have the dtype torch.float8_e4m3fn"),
        (2, quantized[0], r"V8 \[B, H, D, N\]"),
        (3, quantized[3].half(), "scales must have the dtype torch.float32"),
        (3, quantized[3][:2].contiguous(), r"scales \[3, B, H, N / 64\]"),
    ):
        with pytest.raises(UserError, match=said):
            STAGE(*(wrong if i == place else each for i, each in enumerate(quantized)))
