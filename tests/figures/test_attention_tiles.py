"""Attention's figures: the online softmax is softmax, warps read what the stages say, a tile costs what is executed."""

from __future__ import annotations

import numpy as np
import pytest

import kernels
from common import counts
from common.figures import accesses, attention_tiles
from cudaemu.errors import UserError

ONE_TILE = (1, 1, 64, 128)
RATES = {
    "mma.sync fp16": 2048.0,
    "exp2": 16.0,
    "FMA fp32": 256.0,
    "ALU": 64.0,
    "ldmatrix": 128.0,
    "ldmatrix + cp.async": 128.0,
}


@pytest.mark.parametrize("tile", [1, 3, 4, 12])
def test_online_softmax_is_softmax_however_the_row_is_cut(tile: int):
    scores, values = np.random.default_rng(0).normal(0, 6, (2, 12))
    steps = attention_tiles.online(scores, values, tile)
    weights = np.exp2(scores - scores.max())
    assert steps[-1].o / steps[-1].l == pytest.approx(weights @ values / weights.sum(), rel=1e-12)
    assert steps[-1].m == scores.max() and steps[0].correction == 0 and len(steps) == 12 // tile


def test_only_a_new_maximum_corrects_what_was_summed():
    steps = attention_tiles.online(np.array([1.0, 3, 2, 2, 6, 0]), np.ones(6), 2)
    assert [step.correction for step in steps] == [0, 1, 2**-3]
    assert [step.m for step in steps] == [3, 3, 6]
    picture = attention_tiles.online_steps(np.array([1.0, 3, 2, 2, 6, 0]), np.ones(6), 2)
    assert picture.texts[0].get_text().startswith("3 tiles, 1 correction of what was summed before: o / l = 1.0000")


def test_split_kv_shares_queries_and_split_q_keys():
    split_kv, split_q = (accesses.run(kernels.load(number), ONE_TILE) for number in ("12", "13"))
    before, after = attention_tiles.read_by(split_kv), attention_tiles.read_by(split_q)
    assert before["Q"].all() and before["P"].all() and before["P"].shape == (64, 8, 4)
    assert (before["K"].sum(-1) == 1).all() and (before["V"].sum(-1) == 1).all()
    assert after["K"].all() and after["V"].all() and "P" not in after and (after["Q"].sum(-1) == 1).all()
    for warp in range(4):  # 16 keys, 16 queries, a quarter of the columns
        assert before["K"][16 * warp : 16 * warp + 16, :, warp].all() and after["Q"][16 * warp, :, warp].all()
        assert before["V"][:, 4 * warp : 4 * warp + 4, warp].all()
    title = attention_tiles.readers(split_kv, split_q).texts[0].get_text().replace("\n", " ")
    assert "12_flash_attention: Q 4, K 1, P 4, V 1; 13_split_q: Q 1, K 4" in title


def test_a_buffer_that_is_filled_twice_is_refused():
    with pytest.raises(UserError, match="buffer twice"):
        attention_tiles.read_by(accesses.run(kernels.load("13"), (1, 1, 128, 128)))


@pytest.mark.full
@pytest.mark.core(every=4)
@pytest.mark.parametrize("number, head_dim", [("12", 64), ("13", 128), ("14", 128), ("15", 128)])
def test_a_tile_costs_what_the_emulator_executes(number: str, head_dim: int):
    """Twice the keys of one head: what is added is tiles. The rates above make an mma 8 clocks of a scheduler, a
    wavefront 4; the exponentials are one per score, and one correction per row and quad."""
    kernel = kernels.load(number).kernel("fp16", {"HEAD_DIM": head_dim})
    found = attention_tiles.cost(kernel, RATES)
    queries = 128  # a multiple of every BLOCK_Q
    few, many = (counts.emulate(kernel, (1, 1, n, head_dim), sanitize=False).counters for n in (queries, 2 * queries))
    tiles = 2 * queries // 16 * (2 * queries // 64) - 2 * (queries // 16 * (queries // 64))

    def per_tile(*names: str) -> float:
        return sum(many[name] - 2 * few[name] for name in names) / tiles

    assert found.of("tensor cores") == pytest.approx(per_tile("instructions.mma") * 8)
    wavefronts = per_tile("shared_load_wavefronts", "shared_store_wavefronts") + per_tile("cp_async_sectors") / 4
    assert found.of("shared memory") == pytest.approx(4 * wavefronts)
    apart = attention_tiles.cost(kernel, RATES | {"ldmatrix + cp.async": 192.0})  # copies have a path of their own
    assert apart.of("shared memory") == pytest.approx(4 * (wavefronts - per_tile("cp_async_sectors") / 4))
    corrections = 8 if number == "12" else 2  # of the rows that a warp has, per 16 queries and 64 keys
    assert found.of("exp2 (XU)") == pytest.approx((16 * 64 / 32 + corrections) * 8)
    assert found.of("issue slots") == pytest.approx(sum(found.instructions.values()), rel=0.01)
    scores, of_o = 16 * 64 // 32, 16 * head_dim // 32  # numbers that a lane has of each; besides, rows' own corrections
    assert 0 <= found.instructions["exponentials"] - 3 * scores <= 4 * corrections, "product, difference, power"
    assert 0 <= found.instructions["correction of O"] - of_o <= corrections


@pytest.mark.full
def test_what_a_warp_seldom_needs_can_be_left_out():
    """15: O's correction. 16: maxima, corrections and the second weights; what is left is an FMA and a power of two per
    score, the largest of 16 registers, three at a time, with two comparisons and a vote, and the larger of two maxima,
    with a comparison and a vote. Its sums are four more tensor instructions."""
    scores, products = 16 * 64 // 32, 2 * 8 * 8  # per lane; per warp, of 16 × 64 scores at D = 128
    stages = {number: kernels.load(number).kernel("fp16", {"HEAD_DIM": 128}) for number in ("15", "16")}
    plain = "ILi32ELb0ELb0"  # attention_kernel<32, false, false>
    wide, final = (
        attention_tiles.cost(kernel, RATES, function=name, seldom=False)
        for kernel, name in zip(stages.values(), ("", plain))
    )
    assert "correction of O" not in wide.instructions and "correction of O" not in final.instructions
    assert wide.of("exp2 (XU)") == final.of("exp2 (XU)") == scores * 8
    assert final.instructions["exponentials"] == 2 * scores and final.instructions["maxima"] == 16 // 2 + 2 + 1 + 3
    assert final.of("tensor cores") == (products + 4) * 8
    again = attention_tiles.cost(stages["16"], RATES, function=plain)
    assert again.of("exp2 (XU)") == (2 * scores + 2) * 8  # two rows of a lane are corrected


def test_a_predicate_serves_a_vote_and_later_something_else():
    """In stage 15 it guards the copies of the next tile, which are executed in every turn."""
    kernel = kernels.load("15").kernel()
    always, all_of_it = (attention_tiles.loop(kernel, seldom=each) for each in (False, True))
    assert len(always) < len(all_of_it)
    copies = [sum(i.opcode.startswith("LDGSTS") for i in body) for body in (always, all_of_it)]
    assert copies[0] == copies[1] > 0


def test_what_binds_is_the_longest_bar():
    made = {number: attention_tiles.cost(kernels.load(number).kernel(), RATES) for number in ("13", "15")}
    title = attention_tiles.costs(made).texts[0].get_text().replace("\n", " ")
    longest = max(made["13"].of(name) for name in attention_tiles.RESOURCES)
    assert f"13: shared memory, {longest:,.0f} clocks" in title and "15: tensor cores, 1,024 clocks" in title
    with pytest.raises(UserError, match="none with 'nothing'"):
        attention_tiles.cost(kernels.load("13").kernel(), RATES, function="nothing")
