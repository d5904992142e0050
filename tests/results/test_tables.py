"""The tables of README and docs: made of recorded runs, each of one run, and up to date."""

from __future__ import annotations

import json
import re

import pytest

from common.results import documents, markdown, runs
from common.results.__main__ import main
from common.results.documents import TABLES
from cudaemu.errors import UserError
from tests.results.recorded import row, run

DOCUMENT = """# Title

<!-- results:ladder gemm fp16 2048 4096 -->
old
<!-- /results -->

between

<!-- results:plot gemm fp16 -->
<!-- /results -->
"""
LIMITS = {"mma.sync fp16": {"name": "mma.sync", "tflops": 640.0, "date": "2026-11-21"}}


def cells(table: str) -> list[list[str]]:
    """The rows of a table in Markdown, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return [line.strip("| ").split(" | ") for line in lines]


def test_documents_are_filled_and_then_up_to_date(record, tmp_path, capsys):
    rows = [row("01_naive", 4.0), row("02_block_tile", 10.0, previous="01_naive")]
    rows += [row("cuBLAS", 400.0, role="peer"), row("02_block_tile", 9.0, size=2048)]
    record("one", run(*rows, limits=LIMITS))
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT)
    assert main(["--check"]) == 1
    assert document.read_text() == DOCUMENT
    assert "README.md" in capsys.readouterr().out
    assert main([]) == 0
    text = document.read_text()
    assert "| 02_block_tile | 9.00 | 10.0 | 2.50 | 2.5% |\n" in text and "of bound" not in text
    assert "| cuBLAS | – | 400 | – | – |\n" in text
    assert "NVIDIA H200, driver 580, CUDA 13.0, torch 2.11.0, 2026-11-21, [one.json](docs/results/one.json)" in text
    assert "![TFLOP/s of the stages, gemm, fp16](docs/results/ladder-gemm-fp16.svg)" in text
    assert "old" not in text and "between" in text
    assert "<svg" in (tmp_path / "docs/results/ladder-gemm-fp16.svg").read_text()
    assert main(["--check"]) == 0
    record("two", run(row("02_block_tile", 20.0, previous="01_naive"), date="2026-11-22T10:00:00+00:00"))
    assert main(["--check"]) == 0  # a ladder is one run, the newest of those that climb highest
    rows = [row("01_naive", 4.0), row("02_block_tile", 20.0, previous="01_naive")]
    record("three", run(*rows, date="2026-11-23T10:00:00+00:00"))
    capsys.readouterr()
    assert main(["--check"]) == 1
    out = capsys.readouterr().out
    assert "README.md" in out and "ladder-gemm-fp16.svg" in out


@pytest.mark.parametrize(
    "marker, message",
    [
        ("<!-- results:laddder gemm fp16 -->\n<!-- /results -->", "got 'laddder'"),
        ("<!-- results:ladder gemm fp16 -->\n", "not closed"),
        ("<!-- results:limits 1 2 -->\n<!-- /results -->", "wrong number of arguments"),
        ("<!-- results:ladder gemm fp16 HEAD_DIM=wide -->\n<!-- /results -->", "HEAD_DIM=wide"),
    ],
)
def test_a_marker_that_means_nothing_is_an_error(record, tmp_path, capsys, marker, message):
    record("one", run(row("01_naive", 4.0)))
    (tmp_path / "README.md").write_text(marker)
    assert main(["--check"]) == 2
    assert message in capsys.readouterr().err


def test_a_ladder_is_of_one_part_one_dtype_and_exactly_these_settings(record):
    """Rows that compute something else stand in the same run, and in no table of this ladder."""
    turned, small, causal = {"B_TRANSPOSED": 1}, {"HEAD_DIM": 64, "CAUSAL": 0}, {"HEAD_DIM": 64, "CAUSAL": 1}
    attention = {"part": "attention", "problem": "attention"}
    rows = [row("01_naive", 4.0), row("10_last", 30.0, settings={"B_TRANSPOSED": 0}), row("cuBLAS", 400.0, role="peer")]
    rows += [row("10_last", 31.0, settings=turned), row("cuBLAS", 401.0, role="peer", settings=turned)]
    rows += [row("01_naive", 2.0, dtype="bf16"), row("10_last", 29.0, default=False, variants={"STAGES": 2})]
    rows += [
        row("12_flash", 50.0, settings={"HEAD_DIM": 64}, **attention),
        row("16_final", 60.0, settings=small, **attention),
    ]
    rows += [
        row("16_final", 61.0, settings=causal, **attention),
        row("SDPA", 55.0, role="peer", settings=small, **attention),
    ]
    record("one", run(*rows))

    def found(*words, **settings):
        return [(r.row["name"], r.row["tflops"]) for r in runs.rungs(*words, **settings)]

    assert found("gemm", "fp16") == [("01_naive", 4.0), ("10_last", 30.0), ("cuBLAS", 400.0)]
    assert found("gemm", "fp16", B_TRANSPOSED=1) == [("10_last", 31.0), ("cuBLAS", 401.0)]
    assert found("gemm", "fp16", B_TRANSPOSED=0) == found("gemm", "fp16")
    assert found("gemm", "bf16") == [("01_naive", 2.0)]
    assert found("attention", "fp16", HEAD_DIM=64) == [("12_flash", 50.0), ("16_final", 60.0), ("SDPA", 55.0)]
    assert found("attention", "fp16", HEAD_DIM=64, CAUSAL=1) == [("16_final", 61.0)]
    assert found("attention", "fp16") == [] == found("attention", "fp16", HEAD_DIM=128)
    made = TABLES["ladder"]("attention", "fp16", "4096", HEAD_DIM="64")
    assert [cell[:2] for cell in cells(made)] == [["12_flash", "50.0"], ["16_final", "60.0"], ["SDPA", "55.0"]]
    assert "% of SDPA (4096)" in made


def test_a_ladder_s_steps_are_in_time_and_in_clocks(record):
    """Twice as fast at half the clock are four times fewer clocks; a library has no step."""
    clocks = [{"clock": {"ghz": 2.0, "clocks": 4e6}}, {"clock": {"ghz": 1.0, "clocks": 1e6}}]
    rows = [row("01_naive", 4.0, **clocks[0]), row("02_block_tile", 8.0, previous="01_naive", **clocks[1])]
    record("one", run(*rows, row("cuBLAS", 16.0, role="peer", **clocks[1])))
    made = TABLES["ladder"]("gemm", "fp16", "4096")
    assert made.startswith("| stage | 4096 | × previous (4096) | in clocks | % of cuBLAS (4096) |\n")
    assert [cell[2:4] for cell in cells(made)] == [["–", "–"], ["2.00", "4.00"], ["–", "–"]]


def test_a_ladder_is_of_the_gpu_that_is_asked_for(record):
    record("old", run(row("01_naive", 4.0), row("02_block_tile", 8.0), gpu="NVIDIA H200"))
    record(
        "new", run(row("01_naive", 3.0), row("02_block_tile", 6.0), gpu="NVIDIA A100", date="2026-12-01T00:00:00+00:00")
    )
    assert cells(TABLES["ladder"]("gemm", "fp16"))[0][1] == "3.00", "any: the newest"
    assert cells(TABLES["ladder"]("gemm", "fp16", gpu="H200"))[0][1] == "4.00"
    assert TABLES["ladder"]("gemm", "fp16", gpu="B200") == markdown.NOTHING
    assert "ladder-gemm-fp16-h200.svg" in TABLES["plot"]("gemm", "fp16", gpu="H200")


def test_a_table_of_variants_is_of_one_run(record):
    """The default's row stands in every run: that of another run is not put beside these variants."""
    about = {"defaults": {"STAGES": 3}}
    rows = [
        row(
            "08_multi_stage",
            speed,
            variants={"STAGES": n},
            default=n == 3,
            clock={"clocks": clocks, "ghz": 1.5},
            **about,
        )
        for n, speed, clocks in ((2, 90.0, 500), (3, 100.0, 400))
    ]
    record("sweep", run(*rows, row("08_multi_stage", 50.0, size=2048, variants={"STAGES": 3}, **about)))
    newer = row("08_multi_stage", 300.0, variants={"STAGES": 3}, **about)
    record("ladder", run(newer, date="2026-12-01T00:00:00+00:00"))
    table = TABLES["variants"]("08_multi_stage", "STAGES", "4096")
    assert cells(table) == [["`STAGES=2`", "90.0", "0.90 (0.80)"], ["`STAGES=3` (default)", "100", "1.00 (1.00)"]]
    assert "sweep.json" in table and "ladder.json" not in table
    assert TABLES["variants"]("08_multi_stage", "PADDING") == markdown.NOTHING


def test_steps_are_of_one_run_each_compared_with_the_row_above(record):
    """A newer run that lacks a step is passed over, and so are variants that nobody asked for."""
    defaults = {"STAGES": 3, "DEEP": 1}

    def variant(tflops: float, **changed: int) -> dict:
        more = {"variants": defaults | changed, "defaults": defaults, "default": not changed}
        return row("10_last", tflops, previous="09_before", **more)

    whole = [row("09_before", 50.0), variant(40.0, STAGES=2, DEEP=0), variant(60.0, DEEP=0), variant(90.0)]
    record("whole", run(*whole, variant(10.0, STAGES=2)))
    record("part", run(row("09_before", 5.0), variant(6.0, DEEP=0), variant(9.0), date="2026-12-01T00:00:00+00:00"))
    asked = ({"STAGES": 2, "DEEP": 0}, {"DEEP": 0}, {})
    table = TABLES["steps"]("10_last", *asked, "4096")
    assert cells(table) == [
        ["09_before", "50.0", "–"],
        ["`STAGES=2 DEEP=0`", "40.0", "0.80"],
        ["`DEEP=0`", "60.0", "1.50"],
        ["(default)", "90.0", "1.50"],
    ]
    assert "whole.json" in table and "part.json" not in table
    assert TABLES["steps"]("10_last", {"STAGES": 4}) == markdown.NOTHING


def test_variants_of_different_settings_are_rows_of_their_own(record):
    about = {"defaults": {"STAGES": 3, "HEAD_DIM": 128}}
    rows = [
        row("13_split_q", 10.0 * n + d / 64, variants={"STAGES": n, "HEAD_DIM": d}, settings={"HEAD_DIM": d},
            default=n == 3, **about)
        for n in (2, 3) for d in (64, 128)
    ]  # fmt: skip
    record("sweep", run(*rows))
    found = cells(TABLES["variants"]("13_split_q", "STAGES", "4096"))
    assert [cell[0] for cell in found] == [
        "`STAGES=2`, fp16 HEAD_DIM=64",
        "`STAGES=3` (default), fp16 HEAD_DIM=64",
        "`STAGES=2`, fp16 HEAD_DIM=128",
        "`STAGES=3` (default), fp16 HEAD_DIM=128",
    ]
    (low, high) = cells(TABLES["variants"]("13_split_q", "STAGES", "4096", HEAD_DIM="64"))
    assert (low[0], low[2]) == ("`STAGES=2`", f"{21 / 31:.2f}") and high[2] == "1.00"


def test_a_table_of_one_setting_is_of_the_newest_run_with_that_setting(record):
    """A setting each has a run of its own: the newer one, of the other setting, is passed over."""
    about = {"defaults": {"STAGES": 3, "HEAD_DIM": 128}}
    counters = {"mma": {"emulator": 1, "ncu": 1, "metric": "m"}}
    for d, date in ((128, "2026-11-21T10:00:00+00:00"), (64, "2026-12-01T00:00:00+00:00")):
        rows = [
            row("13_split_q", 10.0 * n + d, variants={"STAGES": n, "HEAD_DIM": d}, settings={"HEAD_DIM": d},
                default=n == 3, counters=counters, metrics={}, **about)
            for n in (2, 3)
        ]  # fmt: skip
        record(f"sweep-{d}", run(*rows, date=date))
        record(f"counts-{d}", run(rows[1], date=date, kind="profile"))
    for d in ("128", "64"):
        assert f"sweep-{d}.json" in TABLES["variants"]("13_split_q", "STAGES", HEAD_DIM=d)
        assert f"counts-{d}.json" in TABLES["profile"]("13_split_q", HEAD_DIM=d)


def test_every_table_can_be_made_of_recorded_runs(record):
    measured = {"clock": {"ghz": 1.75}, "limited_by": {"power cap": 0.5}}
    about = {"defaults": {"COALESCED": 1}}
    rows = [
        row("01_naive", 4.0, variants={"COALESCED": 1}, **measured, **about),
        row("01_naive", 0.5, default=False, variants={"COALESCED": 0}, **about),
        row("02_block_tile", 8.0, previous="01_naive", sustained={"tflops": 6.0}),
        row("cuBLAS", 400.0, role="peer", sustained={"tflops": 200.0}),
    ]
    record("bench", run(*rows, limits=LIMITS, power_limit_w=700.0))
    both = [row("01_naive", 4.0, dtype=dtype, variants={"COALESCED": 1}) for dtype in ("fp16", "bf16")]
    record("together", run(*both, together=True, date="2026-11-20T10:00:00+00:00"))
    unit = {"key": "mma.sync fp16", "name": "mma.sync, from registers", "value": 640.4, "unit": "TFLOP/s"}
    unit |= {"ms": {"median": 1, "p20": 1, "p80": 1, "n": 9}, "per_clock": {"value": 2500.0, "unit": "FLOP/clock/SM"}}
    unit |= {"sustained": {"value": 622.0, "sm_mhz": {"median": 1880}}}
    rates = [("shared load", 128.0, "byte/clock/SM"), ("L1", 100.0, "byte/clock/SM"), ("L2", 5.0, "TB/s")]
    rates += [("L2, TMA, by multicast", 9.0, "TB/s")]
    rates += [("DRAM read", 4.0, "TB/s"), ("launch", 2.5, "µs")]
    clocks = {
        "FMA": 4.0,
        "shared": 29.4,
        "L1": 38.0,
        "L2": 260.0,
        "L2 nearest": 200.0,
        "L2 farthest": 350.0,
        "DRAM": 600.0,
    }
    levels = [{"key": k, "name": f"{k}, read", "value": v, "unit": u} for k, v, u in rates]
    for level in levels:
        level["per_clock"] = {"value": 20.0, "unit": "byte/clock/SM"}
    waits = [
        {"key": f"latency {k}", "name": f"{k}, chased", "value": v, "unit": "clocks", "sm_mhz": {"median": 2000.0}}
        for k, v in clocks.items()
    ]
    head = {"sms": 100, "highest_mhz": 2000.0, "memory_bytes": 141 << 30}
    record("ceiling", run(unit, *levels, *waits, kind="ceiling", **head))
    counters = {
        "global_load_sectors": {"emulator": 1234, "ncu": 1234, "metric": "l1tex__x.sum"},
        "shared_load_wavefronts": {"emulator": 1000, "code": 600, "ncu": 600, "metric": "l1tex__y.sum"},
        "not counted": {"emulator": None, "ncu": 5, "metric": "l1tex__z.sum"},
    }
    record("profile", run({**row("01_naive", 1.0), "size": "256", "counters": counters, "metrics": {}}, kind="profile"))
    add = {
        "name": "vector_add",
        "size": "8 floats",
        "bytes": 4_000_000_000,
        "ms": {"median": 2.0, "p20": 2.0, "p80": 2.0, "n": 9},
    }
    add["peer"] = {"name": "a + b", "ms": {"median": 3.0, "p20": 3.0, "p80": 3.0, "n": 9}}
    record("first", run(add, kind="first_kernels"))
    ways = [("alone", 0.200), ("one kernel", 0.210), ("two kernels", 0.231)]
    times = [{"name": name, "size": 4096, "clock": {}, "ms": add["ms"] | {"median": ms}} for name, ms in ways]
    record("fused", run(*times, kind="fused"))
    at = [{**each, "clock": {"ghz": 1.5}} for each in times]
    record("triton", run(*({"problem": "product", **each} for each in at), kind="triton", triton="3.9.0"))
    case = {"dtype": "fp16", "head_dim": 128, "size": 2048, "clock": {}}
    speeds = [("kernels.attention", 1.0), ("FA2", 3.0), ("cuDNN", 1.2)], [("kernels.attention", 2.0), ("cuDNN", 1.6)]
    told = [
        {**case, "scores": kind, "name": name, "causal": causal, "ms": add["ms"] | {"median": ms}, "tflops": 600 / ms}
        for kind, made in zip(("normal", "wide"), speeds)
        for causal in (0, 1)
        for name, ms in made
    ]
    record("scores", run(*told, kind="scores"))
    changed = row("01_naive", 2.0, size=512) | {"source": "/tmp/slower.cu"}
    record("slower", run(row("01_naive", 4.0, size=512), changed, date="2026-11-19T10:00:00+00:00"))
    arguments = {
        "first_kernels": [],
        "fused": [],
        "triton": ["product"],
        "scores": ["fp16", "128"],
        "fp8": [],
        "beside": ["01_naive", "slower", "a", "slower", "copy"],
        "ladder": ["gemm", "fp16"],
        "spread": ["01_naive", "fp16", "4096"],
        "together": ["01_naive", "4096"],
        "ragged": ["01_naive", "fp16", "4096"],
        "speed": ["02_block_tile", "fp16"],
        "steps": ["01_naive", {"COALESCED": 0}, {}, "4096"],
        "verdict": ["01_naive"],
        "needs": ["01_naive"],
        "waits": ["01_naive"],
        "in_clocks": ["02_block_tile"],
        "predicted": ["01_naive", "02_block_tile"],
        "variants": ["01_naive", "COALESCED"],
        "uses": ["01_naive", "fp16", "4096"],
        "sustained": ["02_block_tile", "fp16", "cuBLAS", "4096"],
        "limits": [],
        "levels": [],
        "tma": [],
        "latencies": [],
        "flight": [],
        "bounds": ["gemm", "fp16", "4096"],
        "clocks": ["gemm", "fp16", "2048", "4096"],
        "profile": ["01_naive"],
        "differences": [],
        "runs": [],
        "sources": [],
        "plot": ["gemm", "fp16"],
    }
    made = {name: TABLES[name](*words) for name, words in arguments.items()}
    assert set(made) == set(TABLES)
    assert ["`COALESCED=0`", "0.50", "0.12"] in cells(made["variants"])
    assert ["02_block_tile", "8.00", "6.00", "0.02", "0.03"] in cells(made["sustained"])
    assert cells(made["beside"]) == [["512", "4.00", "2.00", "0.50"]] and "| a slower copy |" in made["beside"]
    first = ["vector_add, 8 floats", "2,000 µs", "2.00", "50%", "`a + b`", "3,000 µs", "1.50"]  # of 4 TB/s
    assert cells(made["first_kernels"]) == [first]
    assert cells(made["triton"]) == [["4096", *(f"{us} µs, 1.50 GHz" for us in ("200.0", "210.0", "231.0"))]]
    assert cells(made["scores"]) == [
        ["normal", "600 (1.20)", "600 (1.20)"],
        ["wide", "300 (0.80)", "300 (0.80)"],
        ["geometric mean, least", "0.98, 0.80", "0.98, 0.80"],
    ]
    assert cells(made["fused"]) == [["4096", "200.0 µs", "210.0 µs", "231.0 µs", "21.0 µs", "1.10"]]
    # 2,500 per clock on 100 SMs: 250 TFLOP/s at 1 GHz
    assert cells(made["limits"]) == [["mma.sync, from registers", "2,500", "640.4", "2.56 GHz", "622", "2.49 GHz", "–"]]
    assert cells(made["levels"]) == [
        ["registers", "256 KB per SM", "4", "–", "–"],
        ["shared memory", "228 KB per SM", "29", "128", "25.6 TB/s"],
        ["L1", "what shared memory leaves", "38", "100", "20 TB/s"],
        ["L2", "60 MB", "260 (200 to 350)", "20", "5 TB/s"],
        ["device memory", "141 GiB", "600", "20", "4 TB/s"],
    ]
    assert cells(made["flight"]) == [  # latency × rate, both as shown; lines of 128 bytes, and warps' loads of 512
        ["shared memory", "29", "128", "3,712", "29", "8"],
        ["L1", "38", "100", "3,800", "30", "8"],
        ["L2", "260", "20", "5,200", "41", "11"],
        ["device memory", "600", "20", "12,000", "94", "24"],
    ]
    assert cells(made["tma"])[1] == ["L2, TMA, by multicast, read", "20", "9 TB/s"]
    assert cells(made["latencies"])[1] == ["shared, chased", "29.4", "14.7 ns"]
    assert cells(made["latencies"])[-1] == ["launch, read", "–", "2,500 ns"]
    assert cells(made["clocks"]) == [["01_naive", "–", "1.750 GHz (power cap 50%)"]]
    assert "Enforced power limit: 700 W." in made["clocks"]
    assert cells(made["bounds"])[0] == ["01_naive", *["–"] * 6]
    assert cells(made["profile"]) == [
        ["global_load_sectors, 256", "1,234", "1,234", "`l1tex__x.sum`"],
        ["shared_load_wavefronts, 256", "600 (1,000 unmerged)", "600", "`l1tex__y.sum`"],
    ]
    assert cells(made["differences"]) == []
    assert cells(made["spread"]) == [
        ["01_naive", "4.00 to 4.00"],
        ["cuBLAS", "400 to 400"],
        ["share", "1% to 1%"],
    ]
    assert cells(made["speed"]) == [
        ["01_naive, fp16", "4.00"],
        ["02_block_tile, fp16", "8.00"],
        ["cuBLAS, fp16", "400"],
        ["× previous, fp16", "2.00"],
        ["% of cuBLAS, fp16", "2%"],
    ]
    assert "`python -m kernels bench`" in made["runs"]


def test_differences_are_those_of_the_newest_profiles_the_largest_of_each(record):
    def profiled(name: str, ncu: int, size: int = 256, **more) -> dict:
        pair = {"emulator": 100, "ncu": ncu, "metric": "m"} | more
        return row(name, 1.0, size, counters={"stores": pair, "equal": {**pair, "ncu": 100, "code": 100}}, metrics={})

    rows = [profiled("01_naive", 105, why="chance"), profiled("02_block_tile", 90, why="chance")]
    rows += [profiled("03_thread_tile", 999, emulator=None), profiled("04_wmma", 80, code=80, why="merged")]
    record("new", run(*rows, kind="profile"))
    old = [profiled("01_naive", 500, why="chance"), profiled("01_naive", 101, 512)]
    record("old", run(*old, kind="profile", date="2025-01-01T00:00:00+00:00"))
    assert cells(TABLES["differences"]()) == [
        ["`stores`", "2 of 4", "02_block_tile, fp16, 256: 100 → 90", "chance"],
        ["`stores`", "1 of 4", "01_naive, fp16, 512: 100 → 101", "not known"],
    ]


# ---- which run a table is made of ----


def test_a_table_can_be_pinned_to_a_run(record):
    """Of other kinds than the named one, all runs count as before."""
    for name, speed, date in (("old", 4.0, "2026-11-21"), ("new", 5.0, "2026-11-22")):
        record(name, run(row("01_naive", speed), date=f"{date}T10:00:00+00:00"))
        counters = {"mma": {"emulator": 1, "ncu": speed, "metric": "m"}}
        profiled = row("01_naive", speed, counters=counters, metrics={})
        record(f"{name}-counts", run(profiled, kind="profile", date=f"{date}T10:00:00+00:00"))
    assert cells(TABLES["ladder"]("gemm", "fp16"))[0][1] == "5.00"
    assert cells(TABLES["ladder"]("gemm", "fp16", run="old"))[0][1] == "4.00"
    assert cells(TABLES["ladder"]("gemm", "fp16", run="old-counts,old"))[0][1] == "4.00"
    assert cells(TABLES["ladder"]("gemm", "fp16", run="old-counts"))[0][1] == "5.00"
    assert "old-counts.json" in TABLES["profile"]("01_naive", run="old-counts,old")
    assert "new-counts.json" in TABLES["profile"]("01_naive", run="old")
    assert TABLES["uses"]("01_naive", "fp16", "2048", run="old") == markdown.NOTHING
    with pytest.raises(UserError, match="run must name files of docs/results .*got old,older: no older.json"):
        TABLES["ladder"]("gemm", "fp16", run="old,older")


def test_a_page_can_list_what_each_table_is_made_of(record, tmp_path, capsys):
    """A new record that becomes the source of a table shows there, though the table may be as it was."""
    words = "spread 01_naive fp16 4096"
    pages = {"README.md": f"<!-- results:{words} -->\n<!-- /results -->\n<!-- results:uses 01_naive fp16 4096 -->\n"}
    pages["README.md"] += "<!-- /results -->"
    pages["docs/list.md"] = "<!-- results:sources -->\n<!-- /results -->\n<!-- results:runs -->\n<!-- /results -->"
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "notebooks").mkdir()
    for name, files in (("01_naive", ["new.json"]), ("00_start", [])):
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text(json.dumps({"metadata": {"runs": files}}))
    rows = row("01_naive", 4.0), row("cuBLAS", 400.0, role="peer")
    record("old", run(*rows))
    record("new", run(*rows, date="2026-11-22T10:00:00+00:00"))
    assert main([]) == 0
    linked = "[{0}.json](results/{0}.json)".format
    assert cells((tmp_path / "docs/list.md").read_text().partition("<!-- /results")[0]) == [
        ["README.md", f"`{words}`", f"{linked('new')}, {linked('old')}"],
        ["README.md", "`uses 01_naive fp16 4096`", linked("new")],
        ["notebooks/01_naive.ipynb", "–", linked("new")],
    ]
    record("newer", run(*rows, date="2026-11-23T10:00:00+00:00"))
    capsys.readouterr()
    assert main(["--check"]) == 1 and "docs/list.md" in capsys.readouterr().out
    (tmp_path / "README.md").write_text("<!-- results:laddder -->\n<!-- /results -->")
    assert main(["--check"]) == 2 and "README.md: a table must be one of" in capsys.readouterr().err


def test_every_recorded_run_is_shown_somewhere():
    """In a table, in a notebook, or in a document that names it."""
    listed = runs.ROOT / "docs" / "appendix" / "runs.md"
    texts = [path.read_text(encoding="utf-8") for path in documents.documents() if path != listed]
    shown = "".join([TABLES["sources"](), *texts])
    names = set(re.findall(r"[\w-]+\.json", shown))
    assert [made["file"] for made in runs.runs() if made["file"] not in names] == []


def test_tables_say_that_nothing_is_recorded(record):
    made = [TABLES[name]() for name in ("runs", "limits", "levels", "latencies", "flight")]
    made += [TABLES["ladder"]("gemm", "fp16"), TABLES["profile"]("01_naive"), TABLES["bounds"]("gemm", "fp16", "4096")]
    assert made == [markdown.NOTHING] * len(made)


def test_the_projects_own_documents_are_up_to_date():
    assert documents.regenerate(check=True) == []


def test_the_figures_that_are_there_are_shown_somewhere():
    shown = "".join(document.read_text(encoding="utf-8") for document in documents.documents())
    assert [path.name for path in runs.RESULTS.glob("*.svg") if path.name not in shown] == []


def test_a_stage_at_several_sizes_has_bytes_per_second_and_all_libraries(record):
    rows = [row("03_thread_tile", 20.0, size, dtype="fp32") for size in (1024, 2048)]
    record("one", run(*rows, *(row("cuBLAS", 40.0, size, role="peer", dtype="fp32") for size in (1024, 2048))))
    text = TABLES["uses"]("03_thread_tile", "fp32", "1024", "2048")
    assert text.startswith("| size | time | TFLOP/s | TB/s | × cuBLAS |")
    speed = 3 * 4 * 1024**2 / (2 * 1024**3 / 20e12) / 1e12
    assert cells(text)[0] == ["1024", "0.107 ms", "20.0", f"{speed:.2f}", "0.50"]
    assert TABLES["uses"]("03_thread_tile", "fp32", "1024", "77") == markdown.NOTHING


def test_the_spread_is_of_all_long_runs_of_one_problem(record):
    """Rows of another setting at the same size, variants and quick runs have no part in it."""
    turned = {"B_TRANSPOSED": 1}
    older = [row("11_any_shape", 300.0), row("cuBLAS", 600.0, role="peer")]
    older += [row("11_any_shape", 20.0, settings=turned), row("cuBLAS", 600.0, role="peer", settings=turned)]
    older += [row("11_any_shape", 10.0, default=False, variants={"STAGES": 2})]
    record("older", run(*older))
    clocked = {"clock": {"ghz": 1.5, "clocks": 342_000}}
    newer = [row("11_any_shape", 330.0), row("cuBLAS", 600.0, role="peer", **clocked)]
    record("newer", run(*newer, date="2026-12-01T00:00:00+00:00"))
    record("newer again", run(*newer, date="2026-12-01T00:00:00+00:00"))
    quick = run(*newer, row("cuBLAS", 1.0, role="peer"), date="2026-12-02T00:00:00+00:00")
    record("quick", quick | {"command": "python -m kernels bench --quick"})
    record("no library", run(row("11_any_shape", 5.0), date="2026-12-03T00:00:00+00:00"))
    text = TABLES["spread"]("11_any_shape", "fp16", "4096")
    assert cells(text) == [
        ["11_any_shape", "300 to 330"],
        ["cuBLAS", "600 to 600"],
        ["share", "50% to 55%"],
        ["cuBLAS, clocks", "342,000 to 342,000"],  # of the run that counted them
        ["cuBLAS, GHz", "1.50 to 1.50"],
    ]
    assert "0.525" in text and "2 runs: [older.json], [newer" in text
    assert cells(TABLES["spread"]("11_any_shape", "fp16", "4096", B_TRANSPOSED="1"))[0][1] == "20.0 to 20.0"


def test_what_was_timed_together_is_of_the_newest_such_run(record):
    """A newer run whose precisions were timed one after the other is passed over."""

    def rows(speed: float) -> list[dict]:
        clock = {"clock": {"ghz": 1.5, "clocks": 1}}
        both = [row("11_any_shape", speed, **clock), row("cuBLAS", 600.0, role="peer", **clock)]
        both += [row("11_any_shape", 440.0, dtype="bf16"), row("cuBLAS", 800.0, role="peer", dtype="bf16")]
        return both

    record("together", run(*rows(400.0), together=True))
    record("apart", run(*rows(100.0), together=False, date="2026-12-01T00:00:00+00:00"))
    record("one", run(*rows(100.0)[:2], together=True, date="2026-12-02T00:00:00+00:00"))
    text = TABLES["together"]("11_any_shape", "4096")
    assert cells(text) == [
        ["fp16, 4096", "400", "1.500 GHz", "600", "1.500 GHz", "67%"],
        ["bf16, 4096", "440", "–", "800", "–", "55%"],
    ]
    assert "together.json" in text and TABLES["together"]("11_any_shape", "2048") == markdown.NOTHING


def test_ragged_sizes_cost_multiples_of_the_whole_one_for_stage_and_library_alike(record):
    """All of one run, the newest that has every size; TFLOP/s differ by the work as well, times do not. In clocks where
    both rows have them."""
    shape = {"M": 2047, "N": 2047, "K": 2040}
    odd = {"size": "2047x2047x2040", "shape": shape}
    clock = lambda ghz, clocks: {"clock": {"ghz": ghz, "clocks": clocks}}  # noqa: E731
    rows = [row("11_any_shape", 400.0, 2048, **clock(2, 85_900)), row("cuBLAS", 600.0, 2048, role="peer")]
    rows += [row("11_any_shape", 200.0, 2048, **clock(1.5, 128_850)) | odd]
    rows += [row("cuBLAS", 150.0, 2048, role="peer", **clock(1.5, 172_000)) | odd]
    rows += [row("11_any_shape", 4.0, 2048, settings={"B_TRANSPOSED": 1})]
    record("ragged", run(*rows))
    newer = run(row("11_any_shape", 1.0, 2048), row("cuBLAS", 1.0, 2048, role="peer"), date="2026-12-01T00:00:00+00:00")
    record("newer", newer)
    words = ("11_any_shape", "fp16", "2048,2047x2047x2040")
    assert cells(TABLES["ragged"](*words)) == [
        ["2048", "0.0429 ms", "–", "2.000 GHz", "0.0286 ms", "–", "–"],
        ["2047x2047x2040", "0.0859 ms", "1.50", "1.500 GHz", "0.115 ms", "4.00", "1.500 GHz"],
    ]
    assert "ragged.json" in TABLES["ragged"](*words)
    without = run(*[{key: value for key, value in each.items() if key != "clock"} for each in rows])
    record("ragged", without)
    assert "SM clock" not in TABLES["ragged"](*words)
    assert cells(TABLES["ragged"](*words))[1] == ["2047x2047x2040", "0.0859 ms", "2.00", "0.115 ms", "4.00"]
    assert TABLES["ragged"](*words, "4096,4088") == markdown.NOTHING
