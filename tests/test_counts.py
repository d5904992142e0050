"""Counters and what is derived from them."""

from __future__ import annotations

import pytest

import kernels
from common import counts, course
from cudaemu.errors import CheckFailed, UserError

NAIVE = kernels.load(1)


def test_derived_figures_follow_from_the_counters():
    counted = {
        "global_load_sectors": 64,
        "global_load_requests": 4,
        "global_store_sectors": 8,
        "cp_async_sectors": 16,
        "shared_load_requests": 10,
        "shared_load_wavefronts": 25,
        "shared_load_conflicts": 15,
        "instructions.fma": 40,
    }
    derived = counts.derive(counted)
    assert derived["sectors per global load"] == 16
    assert derived["wavefronts per shared load"] == 2.5
    assert derived["conflicts per shared load"] == 1.5
    assert derived["shared loads per FMA"] == 0.25
    assert derived["global bytes moved"] == 32 * (64 + 8 + 16)
    assert "sectors per cp.async" not in derived and "shared loads per tensor instruction" not in derived


def test_with_tensor_cores_loads_are_put_against_their_instructions():
    derived = counts.derive({"shared_load_requests": 8, "instructions.mma": 32, "instructions.fma": 1})
    assert derived["shared loads per tensor instruction"] == 0.25
    assert "shared loads per FMA" not in derived


@pytest.mark.parametrize(
    "before, after, said",
    [
        (64, 2, "÷ 32"),
        (2, 64, "× 32"),
        (5, 5, "="),
        (7, 0, "→ 0"),
        (0, 7, "new"),
        (0, 0, ""),
        (None, 3, ""),
    ],
)
def test_how_a_counter_moved(before, after, said):
    assert counts.change(before, after) == said


def test_rows_leave_out_what_nobody_does_and_mark_what_the_stage_is_about():
    columns = [{"instructions": 9, "a": 0, "global_load_sectors": 8}, {"instructions": 3, "a": 0, "b": 2}]
    found = counts.rows(columns, ["b"])
    assert [row for row in found if row[0] in ("instructions", "a", "b")] == [
        ("instructions", [9, 3], False),
        ("b", [0, 2], True),
    ]


def test_counters_of_a_kernel_are_what_its_shape_says():
    """01_naive at 64³ in fp16: every multiplication loads an element of A and one of B, a warp's lanes side by side."""
    m = n = k = 64
    c = counts.emulate(NAIVE.kernel("fp16"), (m, n, k)).counters
    warps = m * n // 32
    assert c["global_load_requests"] == 2 * k * warps
    assert c["global_load_sectors"] == k * warps * (1 + 2)  # A: one element for all lanes; B: 32 halves are two sectors
    assert c["global_store_sectors"] == 2 * warps
    assert c["instructions.fma"] == k * warps


def test_coalescing_is_seen_in_the_derived_figures():
    good, bad = (
        counts.derive(counts.emulate(NAIVE.kernel("fp16", {"COALESCED": value}), (64, 64, 64)).counters.flat())
        for value in (1, 0)
    )
    assert good["sectors per global load"] == 1.5
    assert bad["sectors per global load"] > 8 * good["sectors per global load"]


def test_what_the_sanitizer_finds_is_reported_instead_of_counters(edited):
    stage = kernels.load("02")
    barrier = "__syncthreads();  // everybody waits for all readers"
    with pytest.raises(CheckFailed, match="race"):
        counts.emulate(
            stage.kernel(source=edited(stage, (barrier, "// everybody waits for all readers"))), (40, 70, 33)
        )


def test_shapes_that_the_stage_refuses_are_not_run():
    with pytest.raises(UserError, match="multiple of 128"):
        counts.emulate(kernels.load("03").kernel(), (100, 100, 100))


def test_numbers_are_written_for_people():
    assert [counts.number(v) for v in (1234567, 2.5, 3.0, None)] == ["1,234,567", "2.5", "3", "–"]
    assert [counts.short(v) for v in (12, 65536, 1234567, 3 * 10**9)] == ["12", "65.5k", "1.23M", "3G"]


def test_what_a_stage_is_about_has_a_short_name():
    assert {stage.counters[0] for stage in course.everything()} <= set(counts.SHORT)
