from __future__ import annotations

import io
import json
from argparse import ArgumentParser

import pytest
from rich.console import Console

import kernels
from common import count
from common.errors import CheckFailed, UserError


def parse(*words):
    parser = ArgumentParser()
    count.add_arguments(parser)
    return parser.parse_args(words)


def text_of(table, width=200):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_derived_figures_follow_from_the_counters():
    counts = {"global_load_sectors": 64, "global_load_requests": 4, "global_store_sectors": 8, "cp_async_sectors": 16,
              "shared_load_requests": 10, "shared_load_wavefronts": 25, "shared_load_conflicts": 15,
              "instructions.fma": 40}
    derived = count.derive(counts)
    assert derived["sectors per global load"] == 16
    assert derived["wavefronts per shared load"] == 2.5
    assert derived["conflicts per shared load"] == 1.5
    assert derived["shared loads per FMA"] == 0.25
    assert derived["global bytes moved"] == 32 * (64 + 8 + 16)
    assert "sectors per cp.async" not in derived and "shared loads per tensor instruction" not in derived


def test_with_tensor_cores_loads_are_put_against_their_instructions():
    derived = count.derive({"shared_load_requests": 8, "instructions.mma": 32, "instructions.fma": 1})
    assert derived["shared loads per tensor instruction"] == 0.25
    assert "shared loads per FMA" not in derived


@pytest.mark.parametrize("before, after, said", [
    (64, 2, "÷ 32"), (2, 64, "× 32"), (5, 5, "="), (7, 0, "→ 0"), (0, 7, "new"), (0, 0, ""), (None, 3, ""),
])
def test_how_a_counter_moved(before, after, said):
    assert count.change(before, after) == said


def test_rows_leave_out_what_nobody_does_and_mark_what_the_stage_is_about():
    rows = count.rows([{"instructions": 9, "a": 0, "global_load_sectors": 8},
                       {"instructions": 3, "a": 0, "b": 2}], ["b"])
    assert [(name, values, mine) for name, values, mine in rows if name in ("instructions", "a", "b")] == [
        ("instructions", [9, 3], False), ("b", [0, 2], True)]


def test_a_stage_is_compared_with_the_one_before_and_a_variant_with_its_default(tmp_path):
    second, first = kernels.load("02"), kernels.load("01")
    assert [k.label for k in count.compared(second.kernel("bf16"))] == ["01_naive bf16", "02_block_tile bf16"]
    assert [k.label for k in count.compared(first.kernel())] == ["01_naive fp16"]
    assert [k.label for k in count.compared(first.kernel(variants={"COALESCED": 0}))] == [
        "01_naive fp16", "01_naive fp16 COALESCED=0"]
    mine = tmp_path / "mine.cu"
    mine.write_text(second.source.read_text())
    assert [k.source for k in count.compared(second.kernel(source=mine))] == [second.source, mine]


def test_counters_of_a_kernel_are_what_its_shape_says():
    """01_naive at 64³ in fp16: every multiplication loads an element of A and one of B, a warp's lanes side by side."""
    m = n = k = 64
    report = count.emulate(kernels.load("01").kernel("fp16"), (m, n, k))
    warps, c = m * n // 32, report.counters
    assert c["global_load_requests"] == 2 * k * warps
    assert c["global_load_sectors"] == k * warps * (1 + 2)  # A: one element for all lanes; B: 32 halves are two sectors
    assert c["global_store_sectors"] == 2 * warps
    assert c["instructions.fma"] == k * warps


def test_coalescing_is_seen_in_the_derived_figures():
    first = kernels.load("01")
    good, bad = (count.derive(count.emulate(first.kernel("fp16", {"COALESCED": value}), (64, 64, 64)).counters.flat())
                 for value in (1, 0))
    assert good["sectors per global load"] == 1.5
    assert bad["sectors per global load"] > 8 * good["sectors per global load"]


def test_the_command_prints_both_stages_saves_them_and_quotes_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("common.terminal.out", Console(width=200, highlight=False))
    path = tmp_path / "counts.json"
    assert count.run(kernels.load("02"), parse("--sizes", "64", "--lines", "--json", str(path))) == 0
    out = capsys.readouterr().out
    assert "01_naive" in out and "02_block_tile" in out and "÷" in out
    assert "▸ global_load_sectors" in out or "▸ global_load_bytes" in out
    assert "A_tile[thread_row][thread_col] = " in out
    before, after = json.loads(path.read_text())
    assert (before["kernel"], after["shape"]) == ("01_naive fp16", {"M": 64, "N": 64, "K": 64})
    assert after["counters"]["global_load_sectors"] < before["counters"]["global_load_sectors"]


def test_what_the_sanitizer_finds_is_reported_instead_of_counters(tmp_path):
    stage = kernels.load("02")
    broken = tmp_path / "broken.cu"
    lines = stage.source.read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if "__syncthreads()" in line)
    broken.write_text("".join(lines[:last] + lines[last + 1:]))
    with pytest.raises(CheckFailed, match="race"):
        count.run(stage, parse("--sizes", "64", "--source", str(broken)))


def test_wrong_sizes_are_refused():
    with pytest.raises(UserError, match="multiple of 128"):
        count.run(kernels.load("03"), parse("--sizes", "100"))
    with pytest.raises(UserError, match="cannot write"):
        count.run(kernels.load("01"), parse("--sizes", "32", "--json", "/no/such/folder/c.json"))


def test_numbers_are_written_for_people():
    assert [count.number(v) for v in (1234567, 2.5, 3.0, None)] == ["1,234,567", "2.5", "3", "–"]
