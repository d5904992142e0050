"""Launches that are drawn from what a launcher takes: every argument is varied, and each launch is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import kernels
from common import course, launcher_check
from common.launcher_check import LAUNCHES, Deck, check_any
from common.problems.sdpa import Sdpa
from common.stage import Kernel, Stage

STAGES = [each for stage in course.everything() for each in (stage, *stage.besides)]
FINAL, FLASH = kernels.load("16"), kernels.load("h7")
Edited = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("compiled_once_per_test")

every_stage = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"{stage.name} {stage.problem}")


def drawn(kernel: Kernel, count: int = LAUNCHES) -> list[dict[str, Any]]:
    """The arguments of the launches that `test` draws."""
    deck, found = Deck(), []
    for seed in range(count):
        launch = kernel.stage.spec.any_launch(deck, kernel.multiples, kernel.dtype, kernel.variants, seed)
        found.append(kernel.arguments(launch.inputs, launch.outputs, launch.changed))
    return found


@every_stage
def test_every_argument_of_a_launcher_is_varied(stage: Stage):
    """Whoever gives a launcher one more says here how it varies, or `test` tries one value of it. A pointer that is
    never null varies with its tensor."""
    kernel = stage.kernel()
    calls = drawn(kernel)
    always = {*stage.spec.input_names, *stage.spec.output_names(kernel.variants)}
    values = {
        name: {
            None if each[name] is None else "memory" if isinstance(each[name], Tensor) else each[name] for each in calls
        }
        for name in calls[0]
        if name not in always
    }
    assert not [name for name, seen in values.items() if len(seen) < 2], values


@every_stage
def test_what_is_drawn_is_what_the_stage_takes(stage: Stage):
    kernel = stage.kernel()
    for seed in range(LAUNCHES):
        launch = stage.spec.any_launch(Deck(seed), kernel.multiples, kernel.dtype, kernel.variants, seed)
        kernel.check_shape(*stage.spec.shape(launch.inputs, kernel.variants))


def test_a_deck_gives_each_option_before_one_comes_again():
    deck, options = Deck(3), ("a", "b", "c")
    drawn_ = [deck("x", options) for _ in range(6)]
    assert sorted(drawn_[:3]) == sorted(drawn_[3:]) == [*options]
    assert drawn_ == [Deck_("x", options) for Deck_ in [Deck(3)] for _ in range(6)]


def test_attention_is_called_with_what_was_never_varied():
    """O with strides of its own, more parts than tiles, groups that divide no tile, axes of size 1 with any stride."""
    kernel = FINAL.kernel()
    calls = drawn(kernel)
    axes = ("batch", "head", "row")
    assert any([call[f"o_{axis}"] for axis in axes] != [call[f"q_{axis}"] for axis in axes] for call in calls)
    assert any(call["splits"] > math.ceil(call["N_KV"] / 64) for call in calls)
    packed = {call["H"] // call["H_KV"] for call in calls if call["N"] * call["H"] // call["H_KV"] <= 64}
    assert {3, 7} <= packed
    assert any(call["B"] == 1 and call["k_batch"] == 1 for call in calls)
    assert {call["LSE"] is None for call in calls} == {True, False}


@pytest.mark.core(every=24)
@every_stage
def test_launches_that_are_drawn_are_right(stage: Stage):
    """As `test` draws them; the next test has other dtypes and variants, too."""
    kernel, deck = stage.kernel(), Deck()
    for seed in range(LAUNCHES):
        result = check_any(kernel, deck, seed)
        assert result.ok and result.accuracies, result.report


@pytest.mark.full
@every_stage
def test_launches_that_hypothesis_draws_are_right(stage: Stage):
    every = stage.kernels()

    @hypothesis.settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @hypothesis.given(st.data())
    def check(data: st.DataObject) -> None:
        def choose(name: str, options: Sequence[Any]) -> Any:
            return data.draw(st.sampled_from(options), label=name)

        result = check_any(choose("kernel", every), choose)
        assert result.ok, result.report

    check()


@pytest.mark.full
@pytest.mark.parametrize(
    "number, variants, old, new, said",
    [
        ("16", {}, "row_offset(arguments.o, batch, head, row, packed)",
         "row_offset(arguments.q, batch, head, row, packed)", "wrong result"),
        ("16", {}, "min(splits, ceil_div(N_KV, BLOCK_KV))", "splits", "out of bounds"),
        ("16", {}, "(batches == 1 || strides.batch % VECTOR == 0)", "strides.batch % VECTOR == 0", "invalid argument"),
        ("h7", {}, "tensor_map(&O_map, arguments.O, arguments.o,", "tensor_map(&O_map, arguments.O, tensors.q,",
         "wrong"),
        ("h7", {}, "BOXES * ceil_div(BLOCK_Q, packed) * packed * 128", "BOXES * BLOCK_Q * 128", "deadlock"),
        ("h7", {}, "size == 1 ? 16 : (cuuint64_t)stride", "(cuuint64_t)stride", "invalid argument"),
    ],
    ids=["O as Q", "parts beyond the tiles", "a batch of one", "O's map as Q's", "packed heads", "an axis of one"],
)  # fmt: skip
def test_what_a_draw_shows(edited: Edited, number: str, variants: dict, old: str, new: str, said: str):
    stage = kernels.load(number)
    kernel, deck = stage.kernel("fp16", variants, edited(stage, (old, new))), Deck()
    reports = [result.report for seed in range(LAUNCHES) if not (result := check_any(kernel, deck, seed)).ok]
    assert reports and len(reports) < LAUNCHES and any(said in report for report in reports), reports


@pytest.mark.full
def test_what_lies_between_the_rows_of_an_output_is_left_alone(edited: Edited):
    """A zero beyond each row of O that has room there: the result is right, and nothing is out of bounds."""
    beside = (
        "          *reinterpret_cast<unsigned *>(&o[col]) =",
        "          if (col == 0 && arguments.o.row > HEAD_DIM && row + 1 < arguments.n && packed == 1)\n"
        "            o[HEAD_DIM] = Element(0.0f);\n",
    )
    kernel, deck = FINAL.kernel("fp16", source=edited(FINAL, (beside[0], beside[1] + beside[0]))), Deck()
    reports = [check_any(kernel, deck, seed).report for seed in range(3 * LAUNCHES)]  # one part, room, heads unpacked
    assert any("it writes between the rows of O" in report for report in reports), reports


@pytest.mark.core(every=8)
@every_stage
def test_launchers_refuse_what_no_kernel_takes(stage: Stage):
    kernel = stage.kernel()
    shape = min(kernel.test_shapes().values(), key=lambda shape: stage.spec.flops(shape, kernel.variants))
    said = launcher_check._takes_what_it_must_refuse(kernel, shape, 0)
    assert not said, "\n".join(map(str, said))


@pytest.mark.full
@pytest.mark.parametrize(
    "number, old, new, said",
    [
        ("16", "!(scale_log2 > 0 &&", "!(scale_log2 != 0 &&", "scale = -0.5 is not refused"),
        ("16", "H_KV < 1 || H % H_KV ||", "H_KV < 1 ||", "H = 3 and H_KV = 2 is not refused"),
        ("16", "if (splits > 1 && !(partial_O && partial_LSE))", "if (false)", "splits = 2 without partial_O"),
        ("h7", "scale_log2 < INFINITY", "true", "scale = inf is not refused"),
        ("hopper_matmul", "c_row < N ||", "", "c_row = "),
        ("13", "!(scale_log2 > 0 && scale_log2 < INFINITY)", "scale_log2 <= 0", "scale = nan is not refused"),
    ],
)
def test_what_is_not_refused_is_told(edited: Edited, number: str, old: str, new: str, said: str):
    stage = kernels.load(number)
    kernel = stage.kernel("fp16", source=edited(stage, (old, new)))
    shape = min(kernel.test_shapes().values(), key=lambda shape: stage.spec.flops(shape, kernel.variants))
    assert said in "\n".join(map(str, launcher_check._takes_what_it_must_refuse(kernel, shape, 0)))


def test_strides_of_axes_of_size_1_are_nobodys():
    """A call refused them, and advised `contiguous()`, which returns such a tensor as it is."""
    q = torch.ones(1, 1, 3, 64).half()
    odd = q.as_strided(q.shape, (1, 5, 64, 1))
    assert isinstance(FINAL.spec, Sdpa) and odd.contiguous().stride() == odd.stride()
    FINAL.spec.check_layout("Q", odd)
    kernels.load("hopper_matmul").spec.check_layout("A", q[0, 0, :1].as_strided((1, 64), (3, 1)))
