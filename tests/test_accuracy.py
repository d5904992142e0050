"""What counts as right: what passes, what does not, and what is said then. Results are torch's here, not kernels'."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kernels
from common import accuracy
from common.accuracy import Accuracy, Instance
from common.stage import Kernel
from cudaemu import calls
from cudaemu.errors import CheckFailed, UserError

NAIVE = kernels.load(1)
SHAPE = (96, 80, 64)


def summed(a: Tensor, b: Tensor) -> Tensor:
    """A · B in fp32, term by term, as a plain kernel sums."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k : k + 1].float() * b[k : k + 1].float()
    return total


def computed(kernel: Kernel, shape=SHAPE, seed: int = 0) -> tuple[Instance, Tensor]:
    """An instance, and its output as a right kernel would leave it: summed in fp32, rounded once."""
    instance = accuracy.make(kernel, shape, seed=seed)
    (c,) = instance.outputs()
    c.copy_(summed(*instance.inputs))
    return instance, c


def judged(instance: Instance, c: Tensor) -> Accuracy:
    (found,) = instance.judge((c,))
    return found


@pytest.mark.parametrize("dtype", NAIVE.dtypes)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 2), (3, 1, 5), (1, 7, 100), SHAPE, (64, 64, 2048)])
def test_a_sequential_sum_is_right(dtype: str, shape: tuple[int, ...]):
    for seed in range(20 if math.prod(shape) < 1000 else 2):  # a few elements meet chance: try it often
        instance, c = computed(NAIVE.kernel(dtype), shape, seed)
        found = judged(instance, c)
        assert found.ok and found.error <= found.limit and found.worst <= found.worst_limit and found.wrong == 0


# What a kernel may do wrong: (inputs, result) -> changes the result in place.


def one_element_off(a, b, c):
    c[5, 7] *= 1.05


def one_element_nan(a, b, c):
    c[95, 79] = torch.nan


def one_element_infinite(a, b, c):
    c[0, 0] = torch.inf


def one_row_moved(a, b, c):
    c[10] = c[11].clone()


def last_term_left_out(a, b, c):
    c -= (a[:, -1:].float() * b[-1:].float()).to(c.dtype)


def summed_in_sixteen_bits(a, b, c):
    total = torch.zeros_like(c)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    c.copy_(total)


def each_product_rounded(a, b, c):
    total = torch.zeros(c.shape)
    for k in range(a.shape[1]):
        total += (a[:, k : k + 1].float() * b[k : k + 1].float()).to(c.dtype).float()
    c.copy_(total)


def cut_instead_of_rounded(a, b, c):
    total = summed(a, b)
    c.copy_(total)
    beyond = c.float().abs() > total.abs()
    c[beyond] = (c.view(torch.int16) - 1).view(c.dtype)[beyond]  # the next number towards zero


def inputs_rounded_to_tf32(a, b, c):
    c.copy_(torch.matmul(*((x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for x in (a, b))))


ANY_DTYPE = (one_element_off, one_element_nan, one_element_infinite, one_row_moved, last_term_left_out)
SIXTEEN_BITS = (summed_in_sixteen_bits, each_product_rounded, cut_instead_of_rounded)


@pytest.mark.parametrize(
    "dtype, spoil",
    [
        *((dtype, spoil) for dtype in NAIVE.dtypes for spoil in ANY_DTYPE),
        *((dtype, spoil) for dtype in ("fp16", "bf16") for spoil in SIXTEEN_BITS),
        ("fp32", inputs_rounded_to_tf32),
    ],
)
def test_what_is_wrong_does_not_pass(dtype: str, spoil: Callable[[Tensor, Tensor, Tensor], None]):
    instance, c = computed(NAIVE.kernel(dtype))
    spoil(*instance.inputs, c)
    found = judged(instance, c)
    assert not found.ok and found.first


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("spoil", [each_product_rounded, cut_instead_of_rounded])
def test_careless_rounding_is_seen_in_the_whole_and_in_no_element(dtype: str, spoil):
    """Each element is as near as torch's furthest: only the root mean square tells."""
    instance, c = computed(NAIVE.kernel(dtype), (256, 256, 16))
    spoil(*instance.inputs, c)
    found = judged(instance, c)
    assert found.limit < found.error < 2.5 * found.limit
    if spoil is each_product_rounded:
        assert found.wrong == 0 and len(found.first) == accuracy.SHOWN
        furthest = [abs(got - want) for _, got, want in found.first]
        assert furthest == sorted(furthest, reverse=True)


def test_an_output_that_nobody_wrote_is_wrong_everywhere():
    instance = accuracy.make(NAIVE.kernel(), SHAPE)
    (found,) = instance.judge(instance.outputs())
    assert found.wrong == found.total == 96 * 80 and math.isnan(found.error) and not found.ok


def test_what_is_judged_is_all_outputs_and_all_extra_ones_or_none():
    """O, and log-sum-exp where a launch was asked for it; without an output there is nothing that could be wrong."""
    instance = accuracy.make(kernels.load("16").kernel("fp16", {"HEAD_DIM": 64}), (1, 1, 1, 8, 70, 64))
    (o,), lse = instance.outputs(), instance.references[1].float()
    assert [found.name for found in instance.judge((o,))] == ["O"]
    assert [(found.name, found.ok) for found in instance.judge((o, lse))] == [("O", False), ("LSE", True)]
    for count in (0, 3):
        with pytest.raises(ValueError, match="zip"):
            instance.judge((o, lse, lse)[:count])


def test_errors_are_relative_to_the_whole_and_to_an_average_element():
    instance, c = computed(NAIVE.kernel("fp32"))
    (reference,) = instance.references
    c.copy_(reference * 1.5)
    worst = (0.5 * reference).abs().max() / reference.square().mean().sqrt()
    found = judged(instance, c)
    assert found.error == pytest.approx(0.5, rel=1e-6) and found.worst == pytest.approx(worst.item(), rel=1e-6)


def test_the_limits_of_sixteen_bits_come_from_torch():
    kernel = NAIVE.kernel("fp16")
    instance, c = computed(kernel)
    a, b = (x.double() for x in instance.inputs)
    off = (instance.inputs[0].float() @ instance.inputs[1].float()).half().double() - a @ b
    found = judged(instance, c)
    assert found.limit == pytest.approx(1.25 * (off.norm() / (a @ b).norm()).item(), rel=1e-6)
    rms = (a @ b).square().mean().sqrt()
    assert found.worst_limit == pytest.approx((2 * off.abs().max() / rms).item(), rel=1e-6)


def test_inputs_depend_on_the_seed_alone():
    kernel = NAIVE.kernel()
    first, again, other = (accuracy.make(kernel, SHAPE, seed=seed).inputs for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][:64, :64], first[1][:64, :64])


def test_what_a_kernel_that_stopped_left_in_its_inputs_is_not_there_for_the_next(monkeypatch):
    def writes_and_stops(kernel, inputs, *_, **__):
        inputs[0].zero_()
        raise UserError("stopped half-way")

    kernel = NAIVE.kernel()
    with monkeypatch.context() as patched:
        patched.setattr(Kernel, "emulate", writes_and_stops)
        with pytest.raises(UserError, match="half-way"):
            accuracy.check(kernel, SHAPE, "emulator")
    assert accuracy.check(kernel, SHAPE, "emulator").ok


# Inputs that make special results.


@pytest.mark.parametrize("dtype", NAIVE.dtypes)
def test_a_result_of_zeros_has_to_be_zero(dtype: str):
    kernel = NAIVE.kernel(dtype)
    a, b = kernel.stage.spec.inputs(SHAPE, dtype, {})
    instance = accuracy.given(kernel, (torch.zeros_like(a), b))
    (c,) = instance.outputs()
    assert judged(instance, c.zero_()).ok
    c[1, 2] = 1e-6
    found = judged(instance, c)
    assert (found.wrong, found.limit, found.error) == (1, 0.0, pytest.approx(1e-6, rel=0.1))
    with pytest.raises(CheckFailed, match=r"\d.\d\de-0[67], .* 0\.00e\+00; 1 of 7680"):  # error, allowed, wrong
        accuracy.verify(kernel, instance, (c,))


@pytest.mark.parametrize("dtype", NAIVE.dtypes)
def test_what_is_not_finite_has_to_be_what_the_reference_is(dtype: str):
    """One infinity and one NaN in A spoil two rows of C; the others are judged as ever."""
    kernel = NAIVE.kernel(dtype)
    a, b = kernel.stage.spec.inputs(SHAPE, dtype, {})
    a[3, 5], a[4, 6] = torch.inf, torch.nan
    instance = accuracy.given(kernel, (a, b))
    c = summed(a, b).to(a.dtype)
    assert judged(instance, c).ok
    for index, value in (((3, 0), 1.0), ((3, 1), -c[3, 1]), ((3, 2), torch.nan), ((4, 0), 1.0), ((5, 0), torch.inf)):
        other = c.clone()
        other[index] = value
        found = judged(instance, other)
        assert found.wrong == 1 and [at for at, _, _ in found.first] == [index]
    spoilt = c.clone()
    spoilt[10] = c[11]
    assert judged(instance, spoilt).wrong > 70


def test_beyond_the_range_of_the_dtype_infinity_is_right():
    kernel = NAIVE.kernel("fp16")
    a, b = kernel.stage.spec.inputs(SHAPE, "fp16", {})
    a[0], b[:, 0] = 200.0, 200.0  # 64 · 200² is more than 65504
    instance = accuracy.given(kernel, (a, b))
    c = summed(a, b).half()
    assert c[0, 0] == torch.inf and judged(instance, c).ok
    c[0, 0] = 65504
    assert judged(instance, c).wrong == 1


# Inputs are for reading.


@pytest.mark.parametrize("dtype", NAIVE.dtypes)
def test_references_are_those_of_the_inputs_as_they_were(dtype: str):
    """A kernel that sums one product, and makes that right by wiping the rest of A out."""
    instance, c = computed(NAIVE.kernel(dtype))
    a, b = instance.inputs
    a[:, 1:] = 0
    c.copy_(summed(a, b))
    assert not judged(instance, c).ok
    changed = 96 * 63
    assert list(instance.overwritten().values()) == [
        f"the kernel writes to its input A: {changed} elements changed, the first A[0, 1]"
    ]
    assert instance.overwritten() == {}, "they are restored"
    assert judged(instance, summed(*instance.inputs).to(a.dtype)).ok


def test_each_changed_input_is_named_and_nan_is_equal_to_itself():
    kernel = NAIVE.kernel("fp32")
    a, b = kernel.stage.spec.inputs(SHAPE, "fp32", {})
    a[0, 0] = torch.nan
    instance = accuracy.given(kernel, (a, b))
    assert instance.overwritten() == {}
    b[63, 79] = -b[63, 79]
    assert instance.overwritten() == {"B": "the kernel writes to its input B: 1 element changed, the first B[63, 79]"}
    b[7, 0], a[1, 2] = 0.0, torch.nan
    assert [said[:37] for said in instance.overwritten().values()] == [
        f"the kernel writes to its input {x}: 1 e" for x in "AB"
    ]


def test_a_written_input_fails_even_if_the_result_is_right():
    kernel = NAIVE.kernel()
    instance, c = computed(kernel)
    instance.inputs[0][0, 0] += 1
    with pytest.raises(CheckFailed, match="01_naive fp16, 96x80x64: .* input A: 1 element"):
        accuracy.verify(kernel, instance, (c,))
    assert accuracy.verify(kernel, instance, (c,))[0].ok


# More than one launch.


def test_other_launches_are_judged_and_named(monkeypatch):
    kernel = NAIVE.kernel()
    tried = []

    def other_launches(inputs, variants):
        tried.append([each.shape for each in inputs])
        return {"as ever": {}, "half of the sum": {"K": 32}}

    monkeypatch.setattr(kernel.stage.spec, "other_launches", other_launches)
    result = accuracy.check(kernel, SHAPE, "emulator")
    assert tried == [[(96, 64), (64, 80)]] and not result.ok
    assert result.report.startswith("01_naive fp16, 96x80x64, half of the sum: wrong result")


def test_what_a_stage_may_choose_is_tried_too(monkeypatch):
    """Few queries, many keys: split over blocks as the stage does, and in two parts."""
    kernel, titles, emulate = kernels.load("16").kernel(), [], accuracy.emulate

    def noted(*args, **options):
        titles.append(args[2].partition(", ")[2])
        return emulate(*args, **options)

    monkeypatch.setattr(accuracy, "emulate", noted)
    assert accuracy.check(kernel, (1, 2, 1, 3, 330, 128), "emulator").ok
    size = "1x2x1x3x330"
    assert titles == [size, f"{size}, with LSE", f"{size}, keys in two parts", f"{size}, keys in two parts, with LSE"]


# The report.


def test_verify_raises_with_the_report():
    kernel = NAIVE.kernel()
    instance, c = computed(kernel)
    c[2, 3] = 1000
    with pytest.raises(CheckFailed, match=r"01_naive fp16, 96x80x64: wrong.*\n.*1 of 7680"):
        accuracy.verify(kernel, instance, (c,))


def test_where_all_wrong_elements_are_is_told():
    """Axes of which they take a part; of a single one the table tells."""
    kernel = NAIVE.kernel()
    instance, c = computed(kernel)
    c[64:96, 7] = 1000
    with pytest.raises(CheckFailed, match="32 of 7680 elements are wrong, all of them in row 64 to 95, col 7\n"):
        accuracy.verify(kernel, instance, (c,))
    instance, c = computed(kernel)
    c[64, 7] = 1000
    with pytest.raises(CheckFailed, match="1 of 7680 elements are wrong\n"):
        accuracy.verify(kernel, instance, (c,))


def test_where_no_element_stands_out_those_furthest_off_are_shown():
    kernel = NAIVE.kernel("bf16")
    instance, c = computed(kernel)
    each_product_rounded(*instance.inputs, c)
    with pytest.raises(CheckFailed) as failure:
        accuracy.verify(kernel, instance, (c,))
    lines = str(failure.value).splitlines()
    assert lines[1].endswith("; none stands out") and len(lines) == 3 + accuracy.SHOWN


def test_a_check_compiles_once_however_many_launches_it_has(monkeypatch):
    kernel, compiled = kernels.load("16").kernel(), []
    real = calls.compile_host
    monkeypatch.setattr(calls, "compile_host", lambda *given, **named: compiled.append(given) or real(*given, **named))
    shape = (1, 1, 1, 3, 200, 128)
    assert len(kernel.other_launches(accuracy.make(kernel, shape).inputs)) > 0
    for count in (1, 2):  # the next check looks at the source again
        assert accuracy.check(kernel, shape, "emulator").ok and len(compiled) == count
