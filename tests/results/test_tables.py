from __future__ import annotations

import json

import pytest

from common import results
from common.errors import UserError


def row(name, tflops, size=4096, role="stage", dtype="fp16", **more):
    times = {
        "median": 2 * size**3 / tflops / 1e9,
        "p20": 2 * size**3 / tflops / 1e9 * 0.9,
        "p80": 2 * size**3 / tflops / 1e9 * 1.1,
        "n": 50,
    }
    own = {} if role == "peer" else {"number": int(name[:2]), "variants": {}, "default": True, "limit": dtype}
    return {
        "role": role,
        "name": name,
        "problem": "gemm",
        "dtype": dtype,
        "shape": dict.fromkeys("MNK", size),
        "ms": times,
        "tflops": tflops,
        **own,
        **more,
    }


def run(*rows, date="2026-11-21T10:00:00+00:00", kind="bench", **more):
    return {
        "schema": 1,
        "kind": kind,
        "command": "python -m kernels bench",
        "date": date,
        "commit": "abc",
        "dirty": False,
        "gpu": "NVIDIA H200",
        "driver": "580",
        "cuda": "13.0",
        "torch": "2.11.0",
        "rows": list(rows),
        **more,
    }


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A project whose docs/results is empty; returns a function that records a run there."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "docs" / "results")
    return lambda name, made: results.save(made, tmp_path / "docs" / "results" / f"{name}.json")


def test_a_saved_run_is_loaded_as_it_was(tmp_path):
    made = run(row("01_naive", 5.0))
    assert results.load(results.save(made, tmp_path / "new" / "run.json")) == made


@pytest.mark.parametrize(
    "broken, message",
    [
        (lambda r: r.pop("date"), "lacks 'date'"),
        (lambda r: r.update(schema=2), "schema 2"),
        (lambda r: r.update(kind="poem"), "unknown kind 'poem'"),
        (lambda r: r.update(date="yesterday"), "no ISO date"),
        (lambda r: r["rows"][0].update(tflops="fast"), "row 0: 'tflops' has the wrong type"),
        (lambda r: r["rows"][0]["ms"].pop("p80"), "row 0, ms lacks 'p80'"),
        (lambda r: r["rows"].append([]), "row 1 is not a JSON object"),
    ],
)
def test_a_run_that_lacks_something_is_refused_by_name(tmp_path, broken, message):
    made = run(row("01_naive", 5.0))
    broken(made)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(made))
    with pytest.raises(UserError, match=message) as error:
        results.load(path)
    assert str(path) in str(error.value)
    with pytest.raises(UserError, match="not JSON"):
        path.write_text("{")
        results.load(path)


def test_the_newest_run_counts_and_a_readers_own_kernel_does_not(recorded):
    recorded("b", run(row("01_naive", 5.0), row("02_block_tile", 7.0), date="2026-11-21T10:00:00+00:00"))
    recorded(
        "a",
        run(row("02_block_tile", 8.0), row("02_block_tile", 99.0, source="mine.cu"), date="2026-11-22T10:00:00+00:00"),
    )
    assert [(r.row["name"], r.row["tflops"]) for r in results.recorded()] == [("01_naive", 5.0), ("02_block_tile", 8.0)]
    assert results.recorded(name="02_block_tile")[0].source == "NVIDIA H200, 2026-11-22"


def test_ratios_are_taken_within_one_run_and_one_size(recorded):
    recorded("old", run(row("01_naive", 5.0), row("cuBLAS", 700.0, role="peer")))
    recorded(
        "new",
        run(
            row("01_naive", 4.0),
            row("02_block_tile", 10.0, previous="01_naive", first="01_naive"),
            row("03_thread_tile", 40.0, previous="02_block_tile", first="01_naive"),
            row("01_naive", 1.0, size=8192),
            row("cuBLAS", 400.0, role="peer"),
            row("other", 500.0, role="peer"),
            row("cuBLAS", 800.0, role="peer", size=8192),
            date="2026-11-23T10:00:00+00:00",
            limits={"fp16": {"name": "mma.sync", "tflops": 640.0}},
        ),
    )
    (third,) = results.recorded(name="03_thread_tile")
    assert third.times(third.previous) == 4.0
    assert third.times(third.first) == 10.0
    assert third.times(third.peer) == 40.0 / 500.0
    assert third.row["tflops"] / third.limit["tflops"] == 40.0 / 640.0
    (first,) = results.recorded(name="01_naive", shape=dict.fromkeys("MNK", 4096))
    assert first.previous is None and first.times(first.previous) is None


def test_sizes_are_written_short_when_all_axes_agree():
    assert results.size_name({"M": 512, "N": 512, "K": 512}) == "512"
    assert results.size_name({"M": 512, "N": 256, "K": 1024}) == "512×256×1024"


DOCUMENT = """# Title

<!-- results:ladder fp16 2048 4096 -->
old
<!-- /results -->

between

<!-- results:plot fp16 -->
<!-- /results -->
"""


def test_documents_are_filled_and_then_up_to_date(recorded, tmp_path, capsys):
    recorded(
        "one",
        run(
            row("01_naive", 4.0),
            row("02_block_tile", 10.0, previous="01_naive"),
            row("cuBLAS", 400.0, role="peer"),
            row("02_block_tile", 9.0, size=2048),
            limits={"fp16": {"name": "mma.sync", "tflops": 640.0}},
        ),
    )
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT)
    assert results.main(["--check"]) == 1
    assert document.read_text() == DOCUMENT
    assert "README.md" in capsys.readouterr().out
    assert results.main([]) == 0
    text = document.read_text()
    assert "| 02_block_tile | 9.00 | 10.0 | 2.50 | 2.5% | 1.6% |" in text
    assert "| cuBLAS | – | 400 | – | – | – |" in text
    assert "NVIDIA H200, driver 580, CUDA 13.0, torch 2.11.0, 2026-11-21, [one.json](docs/results/one.json)" in text
    assert "![TFLOP/s of the stages, fp16](docs/results/ladder-fp16.svg)" in text
    assert "old" not in text and "between" in text
    assert "<svg" in (tmp_path / "docs/results/ladder-fp16.svg").read_text()
    assert results.main(["--check"]) == 0
    recorded("two", run(row("02_block_tile", 20.0, previous="01_naive"), date="2026-11-22T10:00:00+00:00"))
    assert results.main(["--check"]) == 0  # a ladder is one run, the newest of those that climb highest
    recorded(
        "three",
        run(row("01_naive", 4.0), row("02_block_tile", 20.0, previous="01_naive"), date="2026-11-23T10:00:00+00:00"),
    )
    assert results.main(["--check"]) == 1
    out = capsys.readouterr().out
    assert "README.md" in out and "ladder-fp16.svg" in out


@pytest.mark.parametrize(
    "marker, message",
    [
        ("<!-- results:laddder fp16 -->\n<!-- /results -->", "unknown table 'laddder'"),
        ("<!-- results:ladder fp16 -->\n", "not closed"),
        ("<!-- results:limits 1 2 -->\n<!-- /results -->", "wrong number of arguments"),
    ],
)
def test_a_marker_that_means_nothing_is_an_error(recorded, tmp_path, capsys, marker, message):
    (tmp_path / "README.md").write_text(marker)
    assert results.main(["--check"]) == 2
    assert message in capsys.readouterr().err


def test_every_table_can_be_made_of_recorded_runs(recorded):
    recorded(
        "bench",
        run(
            row("01_naive", 4.0),
            row("01_naive", 0.5, default=False, variants={"COALESCED": 0}),
            row("cuBLAS", 400.0, role="peer"),
        ),
    )
    ceiling = {
        "name": "mma.sync",
        "key": "fp16",
        "dtype": "fp16",
        "operands": "registers",
        "tflops": 652.4,
        "ms": {"median": 1, "p20": 1, "p80": 1, "n": 9},
        "sustained": {"tflops": 622.0, "sm_mhz": {"median": 1880}},
    }
    recorded("ceiling", run(ceiling, kind="ceiling"))
    counted = {
        "name": "01_naive",
        "number": 1,
        "problem": "gemm",
        "dtype": "fp16",
        "variants": {},
        "default": True,
        "shape": dict.fromkeys("MNK", 256),
        "metrics": {},
        "counters": {"global_load_sectors": {"emulator": 1234, "ncu": 1234, "metric": "l1tex__x.sum"}},
    }
    recorded("profile", run(counted, kind="profile"))
    made = {
        name: results.TABLES[name](*arguments)
        for name, arguments in {
            "ladder": ["fp16"],
            "share": ["01_naive", "fp16", "4096"],
            "stage": ["01_naive"],
            "variants": ["01_naive", "fp16"],
            "limits": [],
            "profile": ["01_naive"],
            "runs": [],
            "plot": ["fp16"],
        }.items()
    }
    assert set(made) == set(results.TABLES)
    assert "| `COALESCED=0` |" in made["variants"] and "| 0.50 | 0.1% |" in made["variants"]
    assert "| mma.sync | registers | 652 | 622 | 1880 MHz | – |" in made["limits"]
    assert "| global_load_sectors, 256 | 1,234 | 1,234 | `l1tex__x.sum` |" in made["profile"]
    assert "| 0.010 | 0.010 |" in made["share"] and "| **0.010** |" in made["share"]
    assert "| fp16, 4096 | " in made["stage"] and "| 4.00 | – | 1.0% | – | – |" in made["stage"]
    assert "`python -m kernels bench`" in made["runs"]


def test_tables_say_that_nothing_is_recorded(recorded):
    assert results.TABLES["ladder"]("fp16") == "*No run recorded yet.*"


def test_the_projects_own_documents_are_up_to_date():
    assert results.regenerate(check=True) == []


def test_metadata_makes_a_valid_run(monkeypatch):
    monkeypatch.setenv("KERNELS_COMMIT", "0123abc-dirty")
    made = results.validate(results.metadata("bench"))
    assert (made["commit"], made["dirty"]) == ("0123abc", True)
    assert made["command"].startswith("python ")
