"""The verb `count`: counters of a stage beside those of the stage before, by line, saved."""

from __future__ import annotations

import json

import pytest

import kernels
from common.verbs import count
from cudaemu.errors import UserError
from tests.printed import shown


def test_a_stage_is_compared_with_the_one_before_and_a_variant_with_its_default(edited):
    second, first = kernels.load("02"), kernels.load("01")
    assert [k.label for k in count.compared(second.kernel("bf16"))] == ["01_naive bf16", "02_block_tile bf16"]
    assert [k.label for k in count.compared(first.kernel())] == ["01_naive fp16"]
    variant = first.kernel(variants={"COALESCED": 0})
    assert [k.label for k in count.compared(variant)] == ["01_naive fp16", "01_naive fp16 COALESCED=0"]
    mine = edited(second)
    assert [k.source for k in count.compared(second.kernel(source=mine))] == [second.source, mine]


def test_stages_of_two_problems_are_compared_where_both_compute_the_same():
    last, before = kernels.load("16"), kernels.load("15")
    both = [before.kernel(), last.kernel()]
    assert list(count.takes(both, last, (1, 2, 2, 256, 256, 128)).values()) == [
        (1, 2, 256, 128),
        (1, 2, 2, 256, 256, 128),
    ]
    for shape in ((1, 2, 1, 256, 256, 128), (1, 2, 2, 250, 250, 128)):  # grouped heads; no whole tiles
        assert count.takes(both, last, shape) == {both[1]: shape}
    with pytest.raises(UserError, match="N must be a multiple of 128"):
        count.takes(both[:1], before, (1, 2, 250, 128))


def test_the_command_prints_both_stages_saves_them_and_quotes_lines(command, tmp_path):
    path = tmp_path / "counts.json"
    status, out, _ = command("kernels.02_block_tile", "count", "--sizes", "64", "--lines", "--json", path)
    assert status == 0 and max(map(len, out.splitlines())) <= 80
    assert "01_naive" in out and "02_block_tile" in out and "÷" in out
    assert "▸ global_load_sectors" in out or "▸ global_load_bytes" in out
    assert "A_tile[thread_row]" in out
    before, after = json.loads(path.read_text())
    assert (before["kernel"], after["shape"]) == ("01_naive fp16", {"M": 64, "N": 64, "K": 64})
    assert after["counters"]["global_load_sectors"] < before["counters"]["global_load_sectors"]


def test_a_time_line_is_saved_for_one_kernel_and_one_size(command, tmp_path):
    """Of the stage, not of the one before it."""
    path = tmp_path / "events.json"
    status, out, _ = command("kernels.08_multi_stage", "count", "--sizes", "512x512x256", "--trace-events", path)
    assert status == 0 and "leaves out launch 0 (gemm_kernel): 4 of 8 blocks" in " ".join(out.split())
    written = json.loads(path.read_text())
    processes = [row["args"]["name"] for row in written["traceEvents"] if row["name"] == "process_name"]
    assert [name.rpartition(" ")[2] for name in processes] == ["0", "1", "2", "3"]
    assert sum(row.get("cat") == "cp.async" and row["pid"] == 0 for row in written["traceEvents"]) == 8 * 256 // 32
    status, _, error = command("kernels.08_multi_stage", "count", "--sizes", "256", "512", "--trace-events", path)
    assert status == 2 and "one kernel and one size" in error


def test_numbers_are_whole_at_eighty_columns():
    """Nine digits in every column of two kernels whose names are long."""
    kernel = kernels.load("10").kernel()
    names = ("instructions", "instructions.store.shared", "shared_store_wavefronts")
    text = shown(count.table([kernel, kernel], [dict.fromkeys(names, 123_456_789)] * 2, (256, 256, 256), ()))
    assert text.count("123,456,789") == 6 and "…" not in text and all(f"  {name}  " in text for name in names)


def test_wrong_sizes_and_places_are_refused(parse):
    with pytest.raises(UserError, match="multiple of 128"):
        count.run(kernels.load("03"), parse(count, "--sizes", "100"))
    with pytest.raises(UserError, match="cannot write"):
        count.run(kernels.load("01"), parse(count, "--sizes", "32", "--json", f"{__file__}/c.json"))
    with pytest.raises(UserError, match="cannot write .*: it is a folder"):
        count.run(kernels.load("01"), parse(count, "--sizes", "32", "--json", ""))


@pytest.mark.full
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_is_counted_fills_a_gpu(head_dim, command, tmp_path):
    """Stage 16 splits the keys of a grid that leaves multiprocessors empty: more work in all, and no step of a loop."""
    file, name = tmp_path / "counts.json", kernels.load("16").counters[0]
    done = command("kernels.16_final", "count", "--variant", f"HEAD_DIM={head_dim}", "--json", file)
    assert done.status == 0 and "▸ " + name in done.out
    before, after = (each["counters"]["instructions.barrier"] for each in json.loads(file.read_text()))
    assert before == 2 * after
