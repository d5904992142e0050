"""The problems attention and sdpa, and the kernels of stages 16 and h7 on inputs that a person might have."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import hypothesis
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

import kernels
from common import accuracy, problem
from common.stage import Kernel
from cudaemu import hardware
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from kernels import attention
from kernels.library import attention as module

STAGE = kernels.load("16")


class Own(NamedTuple):
    """Kernels of a stage that differ in all that is computed."""

    number: str
    plain: Kernel
    causal: Kernel
    bf16: Kernel


def own(number: str) -> Own:
    stage = kernels.load(number)
    plain, causal = stage.kernel("fp16", {"HEAD_DIM": 64}), stage.kernel("fp16", {"CAUSAL": 1})
    return Own(number, plain, causal, stage.kernel("bf16"))


OWN = [own("16"), own("h7")]
PLAIN, CAUSAL = OWN[0].plain, OWN[0].causal
every_stage = pytest.mark.parametrize("own", OWN, ids=lambda own: own.number)
SPEC = problem.load("sdpa")


def inputs(
    kernel: Kernel, b: int, h: int, h_kv: int, n: int, n_kv: int, pattern: str = "normal", device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (b, h, h_kv, n, n_kv, kernel.variants["HEAD_DIM"])
    return SPEC.inputs(shape, kernel.dtype, kernel.variants, pattern=pattern, device=device)


def emulated(
    kernel: Kernel, tensors: tuple[Tensor, ...], changed: Mapping | None = None, with_lse: bool = True, **options
) -> tuple[Tensor, ...]:
    """O, and LSE if it is asked for, from the emulator with its sanitizer on."""
    shape = SPEC.shape(tensors, kernel.variants)
    (o,) = (each.fill_(torch.nan) for each in SPEC.outputs(shape, kernel.dtype, kernel.variants))
    asked = {"LSE": torch.full(o.shape[:3], torch.nan)} if with_lse else {}
    report = kernel.emulate(tensors, (o,), changed={**asked, **(changed or {})}, **options)
    assert report.status == 0 and not report.findings, str(report)
    return o, *asked.values()


def assert_right(kernel: Kernel, tensors: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """As accuracy judges: an error of at most twice torch's own in 16 bits; where the reference is infinite or NaN, so
    is the output."""
    for found in accuracy.given(kernel, tensors).judge(outputs):
        assert found.ok, found


def assert_emulated_right(kernel: Kernel, *shape: int, pattern: str = "normal") -> None:
    """However it is launched."""
    tensors = inputs(kernel, *shape, pattern=pattern)
    for changed in ({}, *kernel.other_launches(tensors).values()):
        outputs = emulated(kernel, tensors, changed, with_lse=False)
        assert_right(kernel, tensors, outputs + tuple(changed[name] for name in SPEC.extra_names if name in changed))


# ---- the problems ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["attention", "sdpa"])
def test_a_problem_answers_in_one_order(name):
    """Names, tensors, axes and scalars agree with each other for every setting."""
    spec = problem.load(name)
    assert spec.name == name
    for values in itertools.product((64, 128), (0, 1)):
        variants = dict(zip(("HEAD_DIM", "CAUSAL"), values))
        for shape in (*spec.emulator_shapes(variants), *spec.test_shapes({}, variants).values()):
            tensors = spec.inputs(shape, "bf16", variants)
            outputs = spec.outputs(shape, "bf16", variants)
            assert [tensor.shape for tensor in tensors] == [*spec.input_shapes(shape, variants)]
            assert spec.shape(tensors, variants) == shape and spec.parse(spec.format(shape), variants) == shape
            spec.check(shape, variants)
            launches = spec.other_launches(tensors, variants).values()
            extras = next(([changed[name] for name in spec.extra_names] for changed in launches), [])
            assert len(extras) == len(spec.extra_names) and set(spec.extra_names) <= set(spec.scratch_names)
            described = [*outputs, *extras]
            assert [len(axes) for axes in spec.output_axes(variants)] == [output.dim() for output in described]
            for found in (spec.reference(tensors, variants), spec.baseline(tensors, "bf16", variants)):
                assert [each.shape for each in found] == [output.shape for output in described]
            assert set(spec.implied(tensors)) <= set(spec.settings) and len(spec.output_names(variants)) == len(outputs)
            assert len(spec.scratch(shape, variants)) == len(spec.scratch_names)


def test_sizes_of_two_problems_are_the_same_computation():
    attention_spec = problem.load("attention")
    variants = {"HEAD_DIM": 64, "CAUSAL": 0}
    assert SPEC.like(attention_spec, (2, 3, 100, 64)) == (2, 3, 3, 100, 100, 64)
    assert attention_spec.like(SPEC, (2, 3, 3, 100, 100, 64)) == (2, 3, 100, 64)
    with pytest.raises(UserError, match="size must .*2x4x2x5x9"):
        attention_spec.like(SPEC, (2, 4, 2, 5, 9, 64))
    assert SPEC.flops((1, 2, 1, 3, 5, 64), variants) == 2 * SPEC.flops((1, 2, 1, 3, 5, 64), {"CAUSAL": 1})
    assert SPEC.bytes((1, 2, 1, 3, 5, 64), "fp16", variants) == 2 * (2 * 2 * 3 + 2 * 5) * 64


@pytest.mark.parametrize("text", ["", "0", "1x2", "1x2x3x4x5x6", "a", "1x3x2x4x5"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UserError):
        SPEC.check(SPEC.parse(text, {"HEAD_DIM": 64}), {"HEAD_DIM": 64})


def test_references_are_torchs_own():
    """In fp64, at random: against torch's math, and the 16-bit yardstick not far from them."""
    st = hypothesis.strategies
    few, axis = st.integers(1, 3), st.integers(1, 40)
    dtypes = st.sampled_from(["fp16", "bf16"])

    @hypothesis.settings(max_examples=80, deadline=None, derandomize=True)
    @hypothesis.given(
        few, few, few, axis, axis, st.booleans(), dtypes, st.sampled_from(SPEC.patterns), st.integers(0, 99)
    )
    def each(b, h_kv, group, n, n_kv, is_causal, dtype, pattern, seed):
        variants = {"HEAD_DIM": 64, "CAUSAL": int(is_causal)}
        shape = (b, h_kv * group, h_kv, n, n_kv, 64)
        tensors = SPEC.inputs(shape, dtype, variants, seed=seed, pattern=pattern)
        o, lse = SPEC.reference(tensors, variants)
        want = torch_sdpa(*(tensor.double() for tensor in tensors), is_causal=is_causal, enable_gqa=True)
        assert torch.allclose(o, want, atol=1e-12, rtol=1e-9)
        scores = tensors[0].double() @ tensors[1].double().repeat_interleave(group, 1).mT / 8
        hidden = torch.ones(n, n_kv, dtype=torch.bool).triu(1) if is_causal else torch.zeros(n, n_kv, dtype=torch.bool)
        weights = (scores.masked_fill(hidden, -torch.inf) - lse[..., None]).exp()
        seen = lse > -torch.inf  # of the other queries all scores are -inf
        assert torch.allclose(weights.sum(-1)[seen], torch.ones(()).double(), atol=1e-9) and not o[~seen].any()
        near, near_lse = SPEC.baseline(tensors, dtype, variants)
        unit = {"fp16": 2**-9, "bf16": 2**-6}[dtype]
        rounding = unit * tensors[2].double().abs().amax() * (4 if pattern in ("huge", "equal", "low") else 1)
        assert (near.double() - o).abs().max() <= rounding and torch.allclose(
            near_lse.double(), lse, rtol=1e-5, atol=1e-4
        )

    each()


@pytest.mark.parametrize("pattern", ["low", "rising"])
def test_the_limits_of_the_log_sum_exp_leave_room_for_how_tensor_cores_add(pattern):
    """An A100, the worst: 8 products and the sum so far are aligned to the largest, and what lies more than one bit
    behind its last place is cut off. In these patterns most products of a score have one sign."""

    def cut(x: Tensor, largest: Tensor, bits: int) -> Tensor:
        unit = 2 ** (largest.abs().log2().floor() - bits)
        return (x / unit).trunc() * unit

    tensors = SPEC.inputs((1, 1, 1, 8, 2000, 128), "fp16", {"CAUSAL": 0}, pattern=pattern)
    q, k = (each[0, 0].double() for each in tensors[:2])
    scores = torch.zeros(8, 2000).double()
    for column in range(0, 128, 8):
        terms = torch.stack((scores, *(q[:, None, at] * k[None, :, at] for at in range(column, column + 8))))
        total = cut(terms, terms.abs().amax(0), 24).sum(0)
        scores = cut(total, total, 23)
    references = SPEC.reference(tensors, {"CAUSAL": 0})
    _, tolerance = SPEC.tolerances(tensors, "fp16", {"CAUSAL": 0}, references)
    off = (scores * 128**-0.5).logsumexp(-1) - references[1][0, 0]
    assert 0.1 * tolerance.whole < off.norm() < tolerance.whole and off.abs().max() < tolerance.element


def test_a_check_launches_with_several_tiles_in_a_part_as_well():
    """Of the sizes that the emulator is given most parts are one tile: there, nothing is ever corrected."""
    for n_kv, splits in ((200, 1), (401, 2)):
        shape = (2, 4, 2, 100, n_kv)
        tensors = inputs(PLAIN, *shape)
        arguments = PLAIN.arguments(tensors, SPEC.outputs((*shape, 64), "fp16", PLAIN.variants))
        assert arguments["splits"] == -(-n_kv // 64)
        lse, changed, both = PLAIN.other_launches(tensors).values()
        assert [*lse] == ["LSE"] and lse["LSE"].isnan().all() and both.keys() == {*lse, *changed}
        assert changed.keys() == {"splits", "partial_O", "partial_LSE"} and changed["splits"] == splits
        assert (changed["partial_O"] is None) == (splits == 1)
        assert [*CAUSAL.other_launches(inputs(CAUSAL, *shape))] == ["with LSE"]
    assert [*PLAIN.other_launches(inputs(PLAIN, 1, 1, 1, 257, 64))] == ["with LSE"]


def test_a_check_launches_with_another_scale_as_well():
    tensors = inputs(PLAIN, 1, 1, 1, 1, 64)
    lse, scaled = PLAIN.other_launches(tensors).values()
    assert torch.equal(scaled["Q"], tensors[0] / 2) and scaled["scale"] == 2 / 8


@pytest.mark.full
def test_a_check_sees_heads_packed_that_have_too_many_queries_for_it(edited):
    """100 queries, where the tile of packed heads has 64 rows."""
    more = ("(long long)(H / H_KV) <= WGMMA_M ?", "(long long)(H / H_KV) <= 2 * WGMMA_M ?")
    stage = kernels.load("h7")
    kernel = stage.kernel("fp16", {"HEAD_DIM": 64}, edited(stage, more))
    shape = next(shape for why, shape in kernel.test_shapes().items() if "too many queries to be packed" in why)
    assert not accuracy.check(kernel, shape, "emulator").ok


@pytest.mark.core(every=2)
@pytest.mark.parametrize("half", [0, 1])
def test_a_check_sees_a_vote_that_asks_half_of_the_rows(edited, half):
    stage = kernels.load("h7")
    both, one = "fmaxf(above[0], above[1]) > MOST", f"above[{half}] > MOST"
    kernel = stage.kernel("fp16", {"HEAD_DIM": 64}, edited(stage, (both, one)))
    assert not accuracy.check(kernel, (2, 4, 2, 100, 200, 64), "emulator", pattern="apart").ok


def test_an_element_may_be_off_by_two_roundings_of_the_largest():
    """One key: torch's O is V exactly, and its furthest element says nothing. More keys: as everywhere."""
    for n_kv, exactly in ((1, True), (200, False)):
        tensors = inputs(PLAIN, 1, 1, 1, 1, n_kv)
        instance = accuracy.given(PLAIN, tensors)
        off = (SPEC.baseline(tensors, "fp16", PLAIN.variants)[0].double() - instance.references[0]).abs().max().item()
        largest, norm = instance.references[0].abs().max().item(), instance.references[0].norm().item()
        rounded_twice = 2.0 ** (math.floor(math.log2(largest)) - 11) + largest * 2.0**-11
        limit = instance.tolerances[0]
        assert (off == 0) == exactly and limit.element == max(rounded_twice, 2 * off)
        assert limit.whole >= norm * 2.0**-11 / 3**0.5


def test_keys_are_split_where_the_gpu_would_stay_empty():
    """All multiprocessors have work, no part is without a key, and no more parts than that."""
    sms = 132

    def splits_of(shape: tuple[int, ...], causal: int = 0, sms: int = sms) -> int:
        return STAGE.chooser.choose(shape, {"CAUSAL": causal, "MAX_WARP_Q": 32}, sms)["splits"]

    for h, n, n_kv, d in itertools.product((1, 8, 32), (1, 16, 70), (1, 64, 100, 8192, 65536), (64, 128)):
        shape = (1, h, max(1, h // 4), n, n_kv, d)
        splits = splits_of(shape)
        tiles = -(-n_kv // 64)
        assert 1 <= splits <= tiles and splits_of(shape, 1) == 1
    slots = 2 * sms
    assert splits_of((1, 32, 8, 1, 65536, 128)) * 8 >= 0.9 * slots  # 8 groups of heads
    assert splits_of((64, 32, 8, 1, 65536, 128)) == 1  # they fill it by themselves
    assert splits_of((1, 1, 1, 1, 64, 128)) == 1
    few = {"CAUSAL": 0, "MAX_WARP_Q": 16}  # 64 queries per block: twice as many blocks, which need no parts
    filled = (2, 54, 54, 256, 256, 128)
    assert STAGE.chooser.choose(filled, few, 216)["splits"] == 1 < splits_of(filled, sms=216)
    assert f"constexpr int BLOCK_KV = {STAGE.chooser.BLOCK_KV};" in STAGE.source.read_text()


# ---- in the emulator -------------------------------------------------------------------------------------------------


@pytest.mark.core(every=9)
@every_stage
@pytest.mark.parametrize("n", [1, 16, 17, 63, 64, 65, 129])
def test_lengths_on_both_sides_of_a_tile(own, n):
    for n_kv in (1, 15, 64, 65, 191) if n in (17, 65) else (1, 128, 130):
        assert_emulated_right(own.plain, 1, 2, 2, n, n_kv)


@pytest.mark.core(every=15)
@every_stage
@pytest.mark.parametrize(
    "n, n_kv", [(200, 200), (200, 70), (70, 200), (129, 1), (1, 129), (64, 64), (128, 65), (190, 127)]
)
def test_a_causal_mask_at_every_alignment_to_the_tiles(own, n, n_kv):
    """Query i sees keys 0 to i: among 200 queries the mask ends at each key of a tile, for each row of a warp."""
    assert_emulated_right(own.causal, 1, 1, 1, n, n_kv)


@pytest.mark.core(every=6)
@every_stage
@pytest.mark.parametrize("n_kv", range(1, 66, 8))
def test_a_causal_mask_and_an_end_of_the_keys(own, n_kv):
    assert_emulated_right(own.causal, 1, 1, 1, 80, n_kv)


@every_stage
def test_sections_of_heads_that_a_causal_grid_is_ordered_by(own):
    """8192 keys: sections of four heads; six heads are one and a half."""
    assert_emulated_right(own.causal, 1, 6, 6, 140, 8192)


@pytest.mark.core(every=5)
@every_stage
@pytest.mark.parametrize("group", range(1, 9))
def test_groups_of_heads_of_every_size(own, group):
    """Few queries: heads of a group share a tile. More queries: each has its own."""
    assert_emulated_right(own.bf16 if group in (3, 8) else own.plain, 2, 2 * group, 2, 7, 90)
    if group in (2, 5):
        assert_emulated_right(own.plain, 1, group, 1, 66, 90)
        assert_emulated_right(own.causal, 1, group, 1, 12, 9)


@pytest.mark.core(every=3)
@every_stage
@pytest.mark.parametrize("n", [3, 65])
def test_any_number_of_parts(own, n):
    """700 keys are 11 tiles of stage 16, 6 of h7: every number of parts, and more than there are tiles."""
    tensors = inputs(own.plain, 1, 2, 1, n, 700)
    rows = (1, 2, n)
    for splits in (1, 2, 3, 4, 5, 6, 10, 11, 12) if n == 3 else (1, 4, 11):
        scratch = {"partial_O": torch.empty(splits, *rows, 64), "partial_LSE": torch.empty(splits, *rows)}
        for with_lse in (False, True):
            assert_right(own.plain, tensors, emulated(own.plain, tensors, {"splits": splits, **scratch}, with_lse))


@pytest.mark.core(every=12)
@every_stage
@pytest.mark.parametrize("pattern", SPEC.patterns)
def test_logits_that_an_online_softmax_fails_on_if_it_is_careless(own, pattern):
    assert_emulated_right(own.plain, 1, 2, 2, 70, 200, pattern=pattern)
    assert_emulated_right(own.causal, 1, 1, 1, 140, 140, pattern=pattern)
    assert_emulated_right(own.bf16, 1, 4, 2, 3, 600, pattern=pattern)  # in parts


@pytest.mark.core(every=6)
@every_stage
@pytest.mark.parametrize("scale", [1e7, 1e8, 1e9])
def test_logits_that_fp32_has_no_fractions_of(own, scale):
    """Of 10^9 and more, whose products with the scale are rounded by 32 and more: the largest still weighs 1."""
    for kernel, shape in (
        (own.plain, (1, 2, 2, 70, 200)),
        (own.causal, (1, 1, 1, 140, 140)),
        (own.bf16, (1, 4, 2, 3, 600)),
    ):
        tensors = inputs(kernel, *shape)
        (o,) = emulated(kernel, tensors, {"scale": scale}, with_lse=False)
        (want, _) = SPEC.reference(
            (tensors[0].double() * (scale * shape_scale(tensors)), *tensors[1:]), kernel.variants
        )
        assert torch.equal(o.isfinite(), want.isfinite()) and (o.double() - want).abs().max() < 1e-2


def shape_scale(tensors: tuple[Tensor, ...]) -> float:
    """What turns the reference's own scale, 1 / √D, into 1."""
    return tensors[0].shape[-1] ** 0.5


@pytest.mark.core(every=4)
@every_stage
@pytest.mark.parametrize("first", [0, 19_999])
def test_many_small_weights_beside_a_large_one_are_not_lost(own, first):
    """2^-21.6 each, which half precision rounds to 5 times its smallest number. That is so for weights of 1 at most, as
    torch's are; of weights of 1/8 at most they would become 1 time that number, which is 56 % too much."""
    q, k, v = torch.zeros(1, 1, 1, 64).half(), torch.zeros(1, 1, 20_000, 64).half(), torch.ones(1, 1, 20_000, 64).half()
    q[..., 0], k[..., 0] = 8, -15
    k[0, 0, first] = v[0, 0, first] = 0
    changed = {"splits": 1, **dict.fromkeys(("partial_O", "partial_LSE"))}
    (o,) = emulated(own.plain, (q, k, v), changed, with_lse=False, counters=False, sanitize=False)
    (want, _) = SPEC.reference((q, k, v), own.plain.variants)
    assert ((o.double() / want - 1).abs() < 0.03).all()


@pytest.mark.core(every=4)
@pytest.mark.parametrize("number", ["12", "13", "14", "15"])
def test_the_same_logits_in_the_stages_before(number):
    kernel = kernels.load(number).kernel("fp16", {"HEAD_DIM": 64})
    for pattern in ("huge", "equal", "low", "dominated"):
        result = accuracy.check(kernel, (1, 1, 256, 64), "emulator", pattern=pattern)
        assert result.ok, result.report


@pytest.mark.full
def test_more_heads_than_a_grid_has_rows():
    """65537 of them, one key each: O is V."""
    q, k, v = (torch.randn(65537, 1, 1, 64).half() for _ in range(3))
    outputs = emulated(PLAIN, (q, k, v), sanitize=False, counters=False)
    assert torch.equal(outputs[0], v)
    assert torch.allclose(outputs[1], (q.float() * k.float()).sum(-1) / 8, atol=1e-5)


INF, NAN = torch.inf, torch.nan


@pytest.mark.core(every=9)
@every_stage
@pytest.mark.parametrize("which", ["plain", "causal"])
@pytest.mark.parametrize("name", "qkv")
@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_nan_and_infinity_stay_where_they_belong(own, which, name, value):
    """As torch has them, wherever a query sees the key. Hidden keys: the next test."""
    kernel = getattr(own, which)
    for row in (0, 69, 149):
        tensors = dict(zip("qkv", inputs(kernel, 1, 2, 2, 150, 150)))
        tensors[name][0, 1, row, 5] = value
        tensors["q"][..., 5].abs_()  # one sign: a score is +inf or -inf, and not one of each
        given = tuple(tensors.values())
        o, lse = emulated(kernel, given)
        want, want_lse = SPEC.reference(given, kernel.variants)
        want_lse[want_lse == INF] = NAN  # inf - inf, here as in O
        seen = slice(None) if name == "q" or which == "plain" else slice(row, None)  # queries that see the key
        assert torch.equal(o[0, 0].isnan(), want[0, 0].isnan())  # the other head knows nothing of it
        for got, right in ((o[0, 1, seen], want[0, 1, seen]), (lse[0, 1, seen], want_lse[0, 1, seen])):
            finite = right.isfinite()
            assert torch.equal(
                got.double().where(~finite, 0.0).nan_to_num(7.0), right.where(~finite, 0.0).nan_to_num(7.0)
            )
            assert torch.allclose(got.double()[finite], right[finite], atol=3e-3)


@every_stage
def test_hidden_keys_weigh_nothing_but_are_multiplied(own):
    """Where a causal mask hides a key its weight is 0. A NaN in K is never felt; one in V is, as 0 · NaN, by the
    queries whose tile of keys has it (torch's math: by all queries; its flash kernels: likewise by some)."""
    q, k, v = inputs(own.causal, 1, 1, 1, 200, 200)
    want, _ = SPEC.reference((q, k, v), own.causal.variants)
    k[0, 0, 130] = v[0, 0, 130] = NAN
    o, lse = emulated(own.causal, (q, k, v))
    assert o[0, 0, 130:].isnan().all() and lse[0, 0, 130:].isnan().all()  # these see it
    assert torch.allclose(o[0, 0, :128].double(), want[0, 0, :128], atol=3e-3)  # whose warps never read that tile
    assert not lse[0, 0, :130].isnan().any()
    v[0, 0, 130] = 1
    o, _ = emulated(own.causal, (q, k, v))
    assert torch.allclose(o[0, 0, :130].double(), want[0, 0, :130], atol=3e-3)


@pytest.mark.core(every=3)
@every_stage
@pytest.mark.parametrize("splits", [1, 3])
def test_rows_without_a_finite_score(own, splits):
    """All scores -inf: O is 0, as torch has it. The first tiles of keys alone: as if they were not there."""
    q, k, v = inputs(own.plain, 1, 3, 3, 5, 300)
    q = q.abs()
    k[0, 0, :, 3] = -INF
    k[0, 1, :140, 3] = -INF
    k[0, 2, 140:, 3] = -INF
    scratch = {"partial_O": torch.empty(splits, 1, 3, 5, 64), "partial_LSE": torch.empty(splits, 1, 3, 5)}
    outputs = emulated(own.plain, (q, k, v), {"splits": splits, **scratch})
    assert_right(own.plain, (q, k, v), outputs)
    assert_right(own.plain, (q, k, v), emulated(own.plain, (q, k, v), {"splits": splits, **scratch}, with_lse=False))
    assert not outputs[0][0, 0].any() and (outputs[1][0, 0] == -INF).all() and outputs[0][0, 1:].isfinite().all()
    assert torch.allclose(outputs[0].double(), torch_sdpa(q.double(), k.double(), v.double()), atol=2e-3)


@every_stage
def test_a_causal_row_whose_only_key_is_minus_infinity(own):
    q, k, v = inputs(own.causal, 1, 1, 1, 130, 130)
    q = q.abs()
    k[0, 0, 0, 9] = -INF
    outputs = emulated(own.causal, (q, k, v))
    assert_right(own.causal, (q, k, v), outputs)
    assert not outputs[0][0, 0, 0].any() and outputs[1][0, 0, 0] == -INF


def test_views_of_one_tensor():
    """Q, K and V side by side in [B, N, 3, H, D], as a linear layer leaves them, are read in place; a Q that begins
    6 bytes late is copied first."""
    packed = torch.randn(2, 75, 3, 2, 64).half()
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    late = torch.randn(q.numel() + 3).half()[3:].view(q.shape)
    for each in (q, late):
        o, lse = attention(each, k, v, return_lse=True)
        assert o.stride() == torch.empty_like(each).stride()
        assert_right(PLAIN, (each, k, v), (o, lse))


@pytest.mark.core(every=4)
@every_stage
@pytest.mark.parametrize("which", ["plain", "causal"])
def test_few_queries_of_grouped_heads_with_strides(own, which):
    """Packed into one tile: rows of it are neither neighbours nor in one head, and batches lie far apart."""
    kernel = getattr(own, which)
    tensors = SPEC.inputs((2, 4, 2, 3, 150, kernel.variants["HEAD_DIM"]), "fp16", kernel.variants, pattern="strided")
    assert_right(kernel, tensors, emulated(kernel, tensors))


@pytest.mark.full
@every_stage
def test_random_sizes_parts_and_patterns(own):
    st = hypothesis.strategies

    @hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
    @hypothesis.given(
        st.sampled_from([own.plain, own.causal, own.bf16]),
        st.booleans(),
        *(st.integers(1, 2), st.integers(1, 2), st.integers(1, 4), st.integers(8, 150), st.integers(1, 260)),
        *(st.integers(1, 6), st.sampled_from(SPEC.patterns), st.integers(0, 99)),
    )
    def each(kernel, with_lse, b, h_kv, group, n, n_kv, splits, pattern, seed):
        shape = (b, h_kv * group, h_kv, n, n_kv, kernel.variants["HEAD_DIM"])
        tensors = SPEC.inputs(shape, kernel.dtype, kernel.variants, pattern=pattern, seed=seed)
        changed: dict = {"splits": 1}
        if splits > 1 and not kernel.variants["CAUSAL"]:
            rows = (splits, *shape[:2], n)
            changed = {"splits": splits, "partial_O": torch.empty(*rows, shape[5]), "partial_LSE": torch.empty(rows)}
        assert_right(kernel, tensors, emulated(kernel, tensors, changed, with_lse))

    each()


@pytest.mark.core(every=6)
@pytest.mark.parametrize("multiprocessors", [1, 3])
@pytest.mark.parametrize("which", ["plain", "causal", "bf16"])
def test_blocks_that_compute_tile_after_tile(which, multiprocessors):
    """Persistent ones, of h7: three and more each, the rings going on from one to the next, in a last turn that is not
    everybody's; parts of keys likewise."""
    kernel = getattr(OWN[1], which)
    tensors = inputs(kernel, 1, 4, 2, 500, 260)
    outputs = emulated(kernel, tensors, {"splits": 1}, multiprocessors=multiprocessors)
    assert_right(kernel, tensors, outputs)
    if which == "causal":
        return
    tensors, d = inputs(kernel, 3, 8, 2, 5, 900), kernel.variants["HEAD_DIM"]
    scratch = {"partial_O": torch.empty(3, 3, 8, 5, d), "partial_LSE": torch.empty(3, 3, 8, 5)}
    outputs = emulated(kernel, tensors, {"splits": 3, **scratch}, multiprocessors=multiprocessors)
    assert_right(kernel, tensors, outputs)


@pytest.mark.full
def test_blocks_for_few_queries_fit_every_gpu():
    """Both rings at HEAD_DIM 128 take 80 KB: as much as a block may have from compute capability 8.0 on. From 9.0 on
    the second kernel is launched early, and waits."""
    decoding = STAGE.kernel("fp16")
    tensors = inputs(decoding, 1, 4, 1, 2, 300)
    for capability in ("8.0", "8.6", "8.9", "9.0", "12.0"):
        newer = Arch.of("9.0").runs_on(capability)  # up to there the PTX is the same, but for the name of its target
        compiled_for = capability if newer else "8.0"
        shape = SPEC.shape(tensors, decoding.variants)
        outputs = SPEC.outputs(shape, "fp16", decoding.variants)
        report = decoding.emulate(tensors, outputs, arch=capability, compiled_for=compiled_for, sanitize=False)
        launch, second = report.launches
        assert report.status == 0 and launch.kernel == "attention_kernel<16, true, false>"
        assert second.kernel == "combine_kernel"
        assert launch.shared <= hardware.model(capability).shared_per_block
        assert_right(decoding, tensors, outputs)


@pytest.mark.full
def test_code_without_the_wait_is_not_launched_early(edited):
    """A build for 8.0 has no griddepcontrol.wait: on a newer GPU its second kernel begins when the first has ended."""
    inquiry = ("compiled.ptxVersion >= 90", "1")
    kinds = []
    for source in (None, edited(STAGE, inquiry)):
        decoding = STAGE.kernel("fp16", source=source)
        tensors = inputs(decoding, 1, 4, 1, 2, 300)
        outputs = SPEC.outputs(SPEC.shape(tensors, decoding.variants), "fp16", decoding.variants)
        report = decoding.emulate(tensors, outputs, arch="9.0", compiled_for="8.0")
        assert [launch.kernel for launch in report.launches][1:] == ["combine_kernel"]
        kinds.append({finding.kind for finding in report.findings})
    assert kinds[0] == set() and kinds[1], "launched early whatever it was compiled for, and nobody waits"


REFUSED = {
    "scale of 0": {"scale": 0.0},
    "negative scale": {"scale": -0.5},
    "scale that is infinite times log2 e": {"scale": 3e38},
    "scale of NaN": {"scale": NAN},
    "heads that do not divide": {"H_KV": 2},
    "no keys": {"N_KV": 0},
    "no queries": {"N": 0},
    "no parts": {"splits": 0},
    "parts of a causal row": {"splits": 2},
    "rows between multiples of 16 bytes": {"k_row": 132},
    "heads between multiples of 16 bytes": {"o_head": 4 * 128 + 4},
    "no output": {"O": None},
}


@every_stage
def test_the_launcher_refuses_parts_without_memory_for_them(own):
    tensors = inputs(own.plain, 1, 1, 1, 4, 200)
    changed = {"splits": 2, "partial_LSE": None}
    report = own.plain.emulate(
        tensors,
        SPEC.outputs((1, 1, 1, 4, 200, 64), "fp16", own.plain.variants),
        changed=changed,
        refused_is_error=False,
    )
    assert report.status == 1 and not report.launches


@every_stage
@pytest.mark.parametrize("changed", REFUSED.values(), ids=REFUSED.keys())
def test_the_launcher_refuses_what_the_kernels_cannot_take(own, changed):
    tensors = inputs(own.causal, 1, 3, 3, 4, 9)
    outputs = SPEC.outputs(SPEC.shape(tensors, own.causal.variants), "fp16", own.causal.variants)
    report = own.causal.emulate(tensors, outputs, changed=changed, refused_is_error=False)
    assert report.status == 1 and not report.launches


# ---- on a GPU --------------------------------------------------------------------------------------------------------
# Chosen by `-k on_the_gpu`, with those of test_attention.py: some 30 s, kernels built anew.

GPU_KERNELS = [
    STAGE.kernel(dtype, {"HEAD_DIM": d, "CAUSAL": causal})
    for dtype, d, causal in itertools.product(("fp16", "bf16"), (64, 128), (0, 1))
]
every_gpu_kernel = pytest.mark.parametrize("kernel", GPU_KERNELS, ids=lambda kernel: kernel.short)


@pytest.fixture(scope="module")
def built() -> None:
    """All kernels that `attention` launches on this GPU, built side by side."""
    device = torch.device("cuda", torch.cuda.current_device())

    def build(kernel: Kernel) -> None:
        for few in (False, True):
            module._built(kernel.dtype, device, kernel.variants["HEAD_DIM"], bool(kernel.variants["CAUSAL"]), few)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, GPU_KERNELS))  # raises what one of them raised


def assert_right_on_gpu(kernel: Kernel, tensors: tuple[Tensor, ...]) -> None:
    causal = bool(kernel.variants["CAUSAL"])
    assert_right(kernel, tensors, attention(*tensors, is_causal=causal, enable_gqa=True, return_lse=True))


@pytest.mark.gpu
@every_gpu_kernel
def test_lengths_groups_and_patterns_on_the_gpu(kernel, built):
    for n, n_kv in itertools.product((1, 17, 64, 65, 128, 333, 1024), (1, 63, 64, 65, 200, 1111)):
        assert_right_on_gpu(kernel, inputs(kernel, 2, 3, 3, n, n_kv, device="cuda"))
    for group, n in itertools.product(range(1, 9), (1, 7, 70)):
        assert_right_on_gpu(kernel, inputs(kernel, 2, 2 * group, 2, n, 3000, device="cuda"))
    for pattern in SPEC.patterns:
        assert_right_on_gpu(kernel, inputs(kernel, 2, 4, 4, 700, 700, pattern, "cuda"))
        if not kernel.variants["CAUSAL"]:  # decoding, with rows enough to compare errors with those of torch
            assert_right_on_gpu(kernel, inputs(kernel, 4, 16, 4, 3, 5000, pattern, "cuda"))


@pytest.mark.gpu
def test_many_heads_on_the_gpu(built):
    q, k, v = (torch.randn(70000, 2, 3, 64, device="cuda").half() for _ in range(3))
    scores = (q[..., :, None, :].float() * k[..., None, :, :].float()).sum(-1) / 8  # torch's own fail on so many
    want = (scores.softmax(-1)[..., None] * v[..., None, :, :].float()).sum(-2)
    assert (attention(q, k, v).float() - want).abs().max() < 5e-3


@pytest.mark.gpu
@every_gpu_kernel
def test_long_sequences_on_the_gpu(kernel, built):
    """Some rows of the first head and of the last. So many heads that their queries are more elements than an int has,
    in the end."""
    causal, unit = bool(kernel.variants["CAUSAL"]), {"fp16": 2**-11, "bf16": 2**-8}[kernel.dtype]
    d = kernel.variants["HEAD_DIM"]
    many = 2**31 // (65536 * d) + 2
    for b, h, h_kv, n, n_kv in ((1, 2, 2, 65536, 65536), (2, 32, 8, 1, 65536), (1, many, many, 65536, 100)):
        q, k, v = (torch.randn(b, heads, length, d, device="cuda", dtype=kernel.torch_dtype)
                   for heads, length in ((h, n), (h_kv, n_kv), (h_kv, n_kv)))  # fmt: skip
        o, lse = attention(q, k, v, is_causal=causal, enable_gqa=True, return_lse=True)
        rows = torch.tensor([0, 1, 63, 64, 127, 128, n // 2, n // 3, n - 2, n - 1], device="cuda").clamp(0, n - 1)
        for batch, head in ((0, 0), (b - 1, h - 1)):
            keys, values = k[batch, head * h_kv // h].double(), v[batch, head * h_kv // h].double()
            scores = q[batch, head, rows].double() @ keys.mT * d**-0.5
            if causal:
                scores.masked_fill_(torch.arange(n_kv, device="cuda") > rows[:, None], -INF)
            weights = scores.softmax(-1)
            off = (o[batch, head, rows].double() - weights @ values).abs()
            assert (off <= 4 * unit * (weights @ values.abs())).all()  # weights and O are rounded, once each
            assert torch.allclose(lse[batch, head, rows].double(), scores.logsumexp(-1), rtol=1e-5, atol=5e-5)


@pytest.mark.gpu
def test_nan_infinity_and_views_on_the_gpu(built):
    q, k, v = inputs(PLAIN, 1, 2, 2, 300, 300, device="cuda")
    q[..., 5].abs_()
    for tensor, value in itertools.product((q, k, v), (NAN, INF, -INF)):
        kept = tensor[0, 1, 70, 5].clone()
        tensor[0, 1, 70, 5] = value
        o = attention(q, k, v)
        want, _ = SPEC.reference((q, k, v), PLAIN.variants)
        assert torch.equal(o.isnan(), want.isnan()) and torch.equal(o.isinf(), want.isinf())
        tensor[0, 1, 70, 5] = kept
    packed = torch.randn(2, 500, 3, 4, 128, device="cuda").bfloat16()
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    want = attention(*(each.contiguous() for each in (q, k, v)))
    o = attention(q, k, v)
    assert torch.equal(o, want) and o.stride() == torch.empty_like(q).stride() != want.stride()
    late = torch.empty(q.numel() + 3, dtype=q.dtype, device="cuda")[3:].view(q.shape).copy_(q)
    assert torch.equal(attention(late, k, v), want)


@pytest.mark.gpu
def test_threads_with_calls_of_many_kinds_on_the_gpu(built):
    """Plans are found, and made, by several threads at once, each with a stream of its own."""

    def work(seed: int) -> bool:
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for n in range(1, 40):
                q, k, v = torch.randn(3, 1, 2, n + seed, 64, device="cuda", generator=generator).half()
                want = torch_sdpa(q.float(), k.float(), v.float(), is_causal=bool(n % 2))
                if not (attention(q, k, v, is_causal=bool(n % 2)).float() - want).abs().max() < 5e-3:
                    return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


# ---- what it is compared with ----------------------------------------------------------------------------------------


@pytest.mark.core(every=5)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", [(2, 4, 4, 70, 70), (2, 4, 2, 50, 90), (1, 8, 2, 33, 33), (1, 8, 1, 1, 200)], ids=str)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_without_fusion_is_attention_in_16_bits(dtype, shape, causal):
    kernel = STAGE.kernel(dtype, {"CAUSAL": causal, "HEAD_DIM": 64})
    tensors = inputs(kernel, *shape)
    before = [tensor.clone() for tensor in tensors]
    out = SPEC.peers(dtype, kernel.variants)["matmul+softmax"](*tensors)
    right, _ = SPEC.reference(tensors, kernel.variants)
    assert out.dtype == tensors[0].dtype and out.shape == tensors[0].shape
    assert (out - right).norm() < 4 * torch.finfo(out.dtype).eps * right.norm()
    assert all(map(torch.equal, tensors, before))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", [(2, 8, 8, 1000, 1000), (2, 8, 2, 512, 512)], ids=str)
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [0, 1])
def test_the_libraries_compute_what_the_stages_do(dtype, shape, d, causal):
    kernel = STAGE.kernel(dtype, {"CAUSAL": causal, "HEAD_DIM": d})
    tensors = inputs(kernel, *shape, device="cuda")
    right, _ = SPEC.reference(tensors, kernel.variants)
    for name, function in SPEC.peers(dtype, kernel.variants).items():
        out = function(*tensors)
        assert out.dtype == tensors[0].dtype and out.shape == tensors[0].shape, name
        assert (out - right).norm() < 4 * torch.finfo(out.dtype).eps * right.norm(), name
