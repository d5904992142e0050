"""Recorded runs: saved and loaded whole, compared within one run and one case."""

from __future__ import annotations

import json

import pytest

from common.measure.metadata import command, metadata
from common.results import runs
from common.results.runs import Record
from cudaemu.errors import UserError
from tests.results.recorded import row, run


def test_a_saved_run_is_loaded_as_it_was(tmp_path):
    made = run(row("01_naive", 5.0))
    assert runs.load(runs.save(made, tmp_path / "new" / "run.json")) == made
    with pytest.raises(UserError, match="cannot write"):
        runs.save(made, tmp_path / "new" / "run.json" / "below.json")


@pytest.mark.parametrize(
    "broken, message",
    [
        (lambda r: r.pop("date"), "lacks 'date'"),
        (lambda r: r.update(schema=1), "schema must be 2, got 1"),
        (lambda r: r.update(kind="poem"), "kind must .*'poem'"),
        (lambda r: r.update(date="yesterday"), "date must .*'yesterday'"),
        (lambda r: r["rows"][0].update(tflops="fast"), "row 0: 'tflops' .*type"),
        (lambda r: r["rows"][0].update(tflops=True), "row 0: 'tflops' .*type"),
        (lambda r: r["rows"][0].pop("settings"), "row 0 lacks 'settings'"),
        (lambda r: r["rows"][0]["ms"].pop("p80"), "row 0, ms lacks 'p80'"),
        (lambda r: r["rows"].append([]), "row 1 must be a JSON object"),
    ],
)
def test_a_run_that_lacks_something_is_refused_by_name(tmp_path, broken, message):
    made = run(row("01_naive", 5.0))
    broken(made)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(made))
    with pytest.raises(UserError, match=message) as error:
        runs.load(path)
    assert str(path) in str(error.value)


def test_what_is_no_run_at_all_is_said(tmp_path):
    (tmp_path / "run.json").write_text("{")
    for name, message in (("run.json", "run.json must be JSON"), ("none.json", "cannot read .*none.json")):
        with pytest.raises(UserError, match=message):
            runs.load(tmp_path / name)


def test_the_newest_run_counts_and_a_readers_own_kernel_does_not(record):
    record("b", run(row("01_naive", 5.0), row("02_block_tile", 7.0), date="2026-11-21T10:00:00+00:00"))
    mine = row("02_block_tile", 99.0, source="mine.cu")
    record("a", run(row("02_block_tile", 8.0), mine, date="2026-11-22T10:00:00+00:00"))
    assert [(r.row["name"], r.row["tflops"]) for r in runs.recorded()] == [("02_block_tile", 8.0)], (
        "one run, the newest"
    )
    assert [r.row["tflops"] for r in runs.recorded(name="01_naive")] == [5.0]
    assert runs.recorded(name="02_block_tile")[0].source == "NVIDIA H200, 2026-11-22"
    assert runs.recorded(name="09_swizzle") == [] and runs.recorded(kind="profile") == []


def test_runs_of_one_gpu_are_asked_for_by_a_word_of_its_name(record):
    record("one", run(row("01_naive", 5.0), gpu="NVIDIA H200"))
    record("two", run(row("01_naive", 3.0), gpu="NVIDIA H200 NVL", date="2026-11-22T10:00:00+00:00"))
    record("three", run(row("01_naive", 2.0), gpu="NVIDIA H20", date="2026-11-23T10:00:00+00:00"))
    assert [found["gpu"] for found in runs.runs()] == ["NVIDIA H20", "NVIDIA H200 NVL", "NVIDIA H200"]
    assert [found["gpu"] for found in runs.runs(only=runs.Only("H200"))] == ["NVIDIA H200 NVL", "NVIDIA H200"]
    assert [r.row["tflops"] for r in runs.recorded(only=runs.Only("H20"))] == [2.0] and runs.runs(
        only=runs.Only("A100")
    ) == []


def test_who_names_no_gpu_means_the_one_that_most_runs_are_of(record):
    record("one", run(row("01_naive", 5.0), gpu="NVIDIA H200"))
    record("two", run(row("01_naive", 6.0), gpu="NVIDIA H200", date="2026-11-22T10:00:00+00:00"))
    record("three", run(row("01_naive", 2.0), gpu="NVIDIA H100 80GB HBM3", date="2026-11-23T10:00:00+00:00"))
    assert [found["file"] for found in runs.runs()] == ["two.json", "one.json", "three.json"]
    assert [r.row["tflops"] for r in runs.recorded()] == [6.0]
    assert [r.row["tflops"] for r in runs.recorded(only=runs.Only("H100"))] == [2.0]


# ---- a case ----


def test_a_case_is_what_was_computed_and_how_large():
    base = Record({}, row("01_naive", 5.0))
    same = {
        "problem": "another of the part",
        "shape": {"B": 1, "M": 4096},
        "settings": {"B_TRANSPOSED": 0, "CAUSAL": 0},
        "variants": {"STAGES": 3},
        "source": "mine.cu",
    }
    other = {"part": "attention", "dtype": "bf16", "size": "2048", "settings": {"B_TRANSPOSED": 1}}
    for name, value in same.items():
        assert Record({}, base.row | {name: value}).case == base.case, name
    for name, value in other.items():
        assert Record({}, base.row | {name: value}).case != base.case, name


def test_settings_are_told_apart_in_any_order_and_zero_is_none():
    assert runs.not_zero({"CAUSAL": 1, "HEAD_DIM": 64}) == runs.not_zero({"HEAD_DIM": 64, "CAUSAL": 1, "GROUPS": 0})
    assert runs.not_zero({"HEAD_DIM": 64}) != runs.not_zero({"HEAD_DIM": 128})
    assert runs.settings_named(row("x", 1.0, settings={"HEAD_DIM": 64, "CAUSAL": 0})) == "fp16 HEAD_DIM=64"


def test_ratios_are_taken_within_one_case():
    made = run(
        row("01_naive", 4.0),
        row("02_block_tile", 10.0, previous="01_naive", first="01_naive"),
        row("02_block_tile", 99.0, default=False, variants={"X": 1}),
        row("03_thread_tile", 40.0, previous="02_block_tile", first="01_naive"),
        row("01_naive", 1.0, size=8192),
        row("01_naive", 1.0, dtype="bf16"),
        row("01_naive", 1.0, settings={"B_TRANSPOSED": 1}),
        row("cuBLAS", 400.0, role="peer"),
        row("other", 500.0, role="peer"),
        row("cuBLAS", 800.0, role="peer", size=8192),
        row("cuBLAS", 900.0, role="peer", settings={"B_TRANSPOSED": 1}),
        limits={"mma.sync fp16": {"name": "mma.sync", "tflops": 640.0}},
    )
    first, _, _, third, *_ = (Record(made, each) for each in made["rows"])
    assert third.times(third.previous) == 4.0
    assert third.times(third.first) == 10.0
    assert third.times(third.peer) == 40.0 / 400.0 and [p.row["name"] for p in third.peers] == ["cuBLAS", "other"]
    assert third.of_limit == 40.0 / 640.0
    assert first.previous is None and first.times(first.previous) is None


def test_a_unit_that_nobody_measured_has_no_limit():
    made = run(row("01_naive", 4.0, limit="wgmma fp16"), limits={})
    record = Record(made, made["rows"][0])
    assert record.limit is None and record.of_limit is None


def test_sizes_go_by_the_work_in_them():
    shapes = {"16x8": {"N": 16, "D": 8}, "9x9": {"N": 9, "D": 9}, "4096": {"M": 4096, "N": 4096, "K": 4096}}
    found = [Record({}, row("x", 1.0, shape=shape) | {"size": size}) for size, shape in shapes.items()]
    assert runs.sizes(found) == ["9x9", "16x8", "4096"]


def test_a_command_names_no_folder_that_it_wrote_to():
    words = ["python3", "-m", "kernels.01_naive", "bench", "--source", "a/b.cu", "--json", "/tmp/x y.json", "--quick"]
    said = "python -m kernels.01_naive bench --source a/b.cu --json 'x y.json' --quick"
    assert command(words) == said and command([]) == ""


def test_metadata_heads_a_valid_run(monkeypatch):
    monkeypatch.setenv("KERNELS_COMMIT", "0123abc-dirty")
    made = runs.validate(metadata("bench"))
    assert (made["commit"], made["dirty"]) == ("0123abc", True)
    assert made["command"].startswith("python ")


def test_runs_from_before_a_kernel_went_to_the_library_are_the_library_s():
    """h5_final's rows with the variants that hopper_matmul has now: its name, its label and its command. A row of the
    stage that has that name today keeps it."""
    made = runs.load(runs.RESULTS / "apart-h5.json")
    labels = {row["label"] for row in made["rows"] if row["name"] == "hopper_matmul"}
    assert "hopper_matmul fp16" in labels and not [row for row in made["rows"] if row["name"] == "h5_final"]
    assert made["command"].startswith("python -m kernels.library.hopper_matmul bench --variant B_TRANSPOSED=0 ")
    ladder = runs.load(runs.RESULTS / "ladder-hopper-h100.json")
    assert "bench h1 h2 h3 h4 hopper_matmul --sizes" in ladder["command"]
    row = next(row for row in ladder["rows"] if row["name"] == "hopper_matmul")
    lesson = row | {"name": "h5_final", "label": "h5_final fp16", "variants": {"B_TRANSPOSED": 0, "BLOCK_N": 256}}
    kept = runs._renamed({"command": "python -m kernels bench h4 h5", "rows": [lesson]})
    assert kept == {"command": "python -m kernels bench h4 h5", "rows": [lesson]}


def test_what_is_recorded_in_the_project_is_valid_and_has_a_row_per_line():
    assert runs.runs()
    for path in runs.RESULTS.glob("*.json"):
        made, text = runs.load(path), path.read_text(encoding="utf-8")
        assert text == runs.as_text(json.loads(text)), f"{path.name} must be written by runs.save"
        assert text.count("\n") == len(made["rows"]) + 2
