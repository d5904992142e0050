"""The problem gemm: what it computes, its sizes as a person writes them, its yardsticks."""

from __future__ import annotations

import pytest
import torch

from common import problem
from cudaemu.errors import UserError

GEMM = problem.load("gemm")
STRAIGHT, TURNED = {"B_TRANSPOSED": 0}, {"B_TRANSPOSED": 1}


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "tf32"])
def test_b_may_be_given_transposed(dtype: str):
    a, b = GEMM.inputs((5, 7, 3), dtype, STRAIGHT)
    a_again, b_turned = GEMM.inputs((5, 7, 3), dtype, TURNED)
    assert torch.equal(a, a_again) and torch.equal(b_turned, b.t()) and b_turned.is_contiguous()
    assert GEMM.shape((a, b), STRAIGHT) == GEMM.shape((a, b_turned), TURNED) == (5, 7, 3)
    (reference,), (other,) = GEMM.reference((a, b), STRAIGHT), GEMM.reference((a, b_turned), TURNED)
    assert torch.equal(reference, other)
    torch.testing.assert_close(GEMM.baseline((a, b_turned), dtype, TURNED), GEMM.baseline((a, b), dtype, STRAIGHT))
    (peer,) = GEMM.peers(dtype, TURNED).values()
    torch.testing.assert_close(peer(a, b_turned), a @ b)
    with pytest.raises(UserError, match=r"here B is given as \[N, K\]"):
        GEMM.shape((a, b), TURNED)


def test_the_yardstick_of_tf32_rounds_the_inputs():
    one = torch.tensor([[1.0 + 2.0**-11 + 2.0**-20]])  # lies just above the middle of two TF32 numbers
    assert GEMM.baseline((one, torch.ones(1, 1)), "tf32", {})[0].item() == 1 + 2.0**-10
    assert GEMM.baseline((one, torch.ones(1, 1)), "fp32", {})[0].item() == one.item()


@pytest.mark.parametrize("text, shape", [("64", (64, 64, 64)), ("5x7x3", (5, 7, 3)), ("5X7X3", (5, 7, 3))])
def test_sizes_are_read_as_a_person_writes_them(text: str, shape: tuple[int, ...]):
    assert GEMM.parse(text, {}) == shape and GEMM.format(shape) == text.lower()


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "12x13", "1x2x3x4", "big", "²"])
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(UserError):
        GEMM.parse(text, {})


def test_test_shapes_keep_to_multiples_and_are_ragged_where_they_may():
    free, whole = GEMM.test_shapes({}, {}), GEMM.test_shapes({"M": 128, "N": 256, "K": 32}, {})
    ragged = {"ragged in M", "ragged in N", "ragged in K", "ragged in M, N, K"}
    assert set(free) - set(whole) == ragged and not set(whole) - set(free)
    assert all(m % 128 == n % 256 == k % 32 == 0 for m, n, k in whole.values())
    cut = {why: tuple(axis for axis, size in zip("MNK", free[why]) if size % 32) for why in ragged}
    assert cut == {why: tuple(why.removeprefix("ragged in ").split(", ")) for why in ragged}
    chunks = GEMM.test_shapes({"K": 8}, {})  # whole chunks, but not whole slices
    assert ragged < set(chunks) and all(k % 8 == 0 for _, _, k in chunks.values()) and chunks["ragged in K"][2] % 16
    for shapes in (free, whole, chunks):
        assert any(k >= 4616 for _, _, k in shapes.values()) and any(m > 32 and n > 32 for m, n, _ in shapes.values())


def test_wide_and_far_sizes_are_beyond_16_and_32_bits():
    for multiples in ({}, {"M": 128, "N": 256, "K": 64}):
        wide, far = GEMM.wide_shapes(multiples, {}), GEMM.far_inputs(multiples, {})
        assert [max(shape) == shape[at] > 1 << 15 for at, shape in enumerate(wide.values())] == [True, True]
        shapes = [(a[0], b[1], a[1]) for ((a, _), (b, _)) in far.values()]
        elements = [(m * k, k * n, m * n) for m, n, k in shapes]
        assert [[size > 1 << 32 for size in sizes] for sizes in elements] == [[True, False, True], [False, True, True]]
        steps = [multiples.get(axis, 1) for axis in "MNK"]
        assert all(size % step == 0 for shape in [*wide.values(), *shapes] for size, step in zip(shape, steps))


def test_work_and_bytes():
    assert GEMM.flops((2, 3, 5), {}) == 2 * 2 * 3 * 5
    assert GEMM.bytes((2, 3, 5), "fp16", {}) == 2 * (2 * 5 + 5 * 3 + 2 * 3)


@pytest.mark.parametrize("name", ["gemm"])
def test_a_problem_answers_in_one_order(name: str):
    """Names, tensors, axes and scalars agree with each other for every setting."""
    spec = problem.load(name)
    assert spec.name == name
    for variants in ({}, *({setting: 1} for setting in spec.settings)):
        shape = spec.emulator_shapes(variants)[0]
        inputs = spec.inputs(shape, "fp16", variants)
        outputs = spec.outputs(shape, "fp16", variants)
        assert len(inputs) == len(spec.input_names) and len(outputs) == len(spec.output_names(variants))
        assert spec.shape(inputs, variants) == shape and spec.parse(spec.format(shape), variants) == shape
        assert [len(axes) for axes in spec.output_axes(variants)] == [output.dim() for output in outputs]
        assert [r.shape for r in spec.reference(inputs, variants)] == [output.shape for output in outputs]
        assert [b.dtype for b in spec.baseline(inputs, "fp16", variants)] == [output.dtype for output in outputs]
        assert set(spec.inner_axes) < set(spec.axes) and set(spec.implied(inputs)) <= set(spec.settings)
