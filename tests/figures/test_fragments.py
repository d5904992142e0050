"""Fragments as a probe reports them, and what the figures of the tensor-core stages compute."""

from __future__ import annotations

import numpy as np
import pytest

from common.figures import fragments

LANE, SLOT = np.meshgrid(np.arange(32), np.arange(4), indexing="ij")
C_INDEX = (LANE // 4 + SLOT // 2 * 8) * 8 + LANE % 4 * 2 + SLOT % 2  # PTX ISA: C of mma.m16n8k16


def titles(picture) -> list[str]:
    return [axes.get_title(loc="left") for axes in picture.axes]


def test_fragment_inverts_what_the_lanes_hold():
    c = fragments.fragment(C_INDEX, (16, 8), registers=4)
    assert c.of(22) == [(0, 5, 4), (1, 5, 5), (2, 13, 4), (3, 13, 5)]
    assert c.lane[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_fragment_refuses_a_probe_that_missed_an_element():
    held = C_INDEX.copy()
    held[0, 0] = held[0, 1]
    with pytest.raises(ValueError, match="127 different"):
        fragments.fragment(held, (16, 8), registers=4)


@pytest.mark.parametrize("row_bytes", [32, 80, 512])
def test_rows_given_puts_each_lane_at_the_row_that_it_points_at(row_bytes):
    lanes = np.arange(32)
    given = fragments.rows_given(4096 + lanes % 16 * row_bytes + lanes // 16 * 16, lanes, row_bytes)
    assert given.lane[5].tolist() == [5] * 8 + [21] * 8
    assert given.register[::8, ::8].tolist() == [[0, 2], [1, 3]]


def test_tiles_draws_one_box_per_register_and_outlines_a_lane():
    c = fragments.fragment(C_INDEX, (16, 8), registers=4)
    drawn = fragments.tiles(dict.fromkeys("ABC", ("C", c)), "what", ".B;AC", lane=9)
    axes = drawn.axes[-1]
    assert sorted(text.get_text() for text in axes.texts) == sorted(str(n) for n in LANE.ravel())
    assert sorted(patch.get_xy() for patch in axes.patches) == [(2, 2), (2, 10), (3, 2), (3, 10)]
    assert "C register 3:  C[10, 3]" in drawn.texts[-1].get_text()
    assert drawn._repr_png_().startswith(b"\x89PNG")


def test_bank_groups_say_how_many_groups_and_wavefronts():
    rows = np.arange(8)
    drawn = fragments.bank_groups({"64": rows * 64, "80": rows * 80, "512": rows * 512}, "what")
    assert titles(drawn)[:3] == [
        "64\n2 of 8 groups of banks, 4 wavefronts",
        "80\n8 of 8 groups of banks, 1 wavefront",
        "512\n1 of 8 groups of banks, 8 wavefronts",
    ]
    assert drawn._repr_png_().startswith(b"\x89PNG")


def test_mix_adds_up():
    counts = {"a": {"instructions": 100, "instructions.fma": 60, "instructions.ldmatrix": 10, "instructions.move": 30}}
    absolute, shares = fragments.mix(counts, "what").axes
    assert [patch.get_width() for patch in absolute.patches] == [60, 0, 10, 0, 0, 30]
    assert sum(patch.get_width() for patch in shares.patches) == pytest.approx(100)
    assert {text.get_text() for text in shares.texts} == {"60", "10", "30"}
