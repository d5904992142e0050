"""Contests on a GPU that torch plays: checked before timed, the same computation only against the same."""

from __future__ import annotations

import pytest

import kernels
from common import accuracy, course
from common.measure import contest
from common.measure.contest import Entry, Heat
from common.results import runs
from common.results.runs import Record
from cudaemu.errors import CheckFailed


def heat(*numbers: int, dtype: str = "fp16", sizes: tuple[int, ...] = (128,)) -> Heat:
    """Stages beside each other at square sizes."""
    first = kernels.load(numbers[0])
    entries = [
        Entry(
            kernels.load(n).kernel(dtype), "stage", course.previous(kernels.load(n)), first if n != numbers[0] else None
        )
        for n in numbers
    ]
    return Heat(entries, [(size,) * 3 for size in sizes])


def test_everything_is_built_then_each_size_checked_then_timed(fake_gpu):
    contest.measure([heat(1, 2, sizes=(128, 256))], rounds=2)
    kinds = [what for what, _ in fake_gpu.log]
    assert kinds[:3] == ["build", "run", "run"] and fake_gpu.log[0][1] == ["01_naive fp16", "02_block_tile fp16"]
    assert kinds == ["build", *(["run"] * 2 + ["time"] * 6) * 2], "three contenders, two rounds, two sizes"


def test_rows_say_what_was_measured(fake_gpu):
    made = runs.validate(contest.measure([heat(1, 2, 3, dtype="fp32", sizes=(256,))], rounds=2))
    rows = {row["name"]: row for row in made["rows"]}
    row = rows["03_thread_tile"]
    assert (row["ms"]["median"], row["ms"]["n"]) == (1.0, 6)
    assert row["tflops"] == pytest.approx(2 * 256**3 / 1.0 / 1e9)
    assert 0 < row["check"]["error"] <= row["check"]["limit"]
    assert (row["role"], row["ladder"], row["previous"], row["first"]) == ("stage", "gemm", "02_block_tile", "01_naive")
    assert (row["dtype"], row["size"], row["limit"]) == ("fp32", "256", "FMA fp32")
    assert row["host_us"] == {"call": 9.5, "empty": 2.5}
    record = Record(made, row)
    assert (record.times(record.previous), record.times(record.first), record.times(record.peer)) == (4.0, 8.0, 0.5)
    assert row["clock"] == {"ghz": 1.5, "min": 1.5, "max": 1.5, "clocks": 1_500_000} and record.clocks == 1_500_000
    assert record.of_limit == pytest.approx(2 * 256**3 / 1_500_000 / 300e3), "in clocks, as the peak is"
    assert (made["empty"]["median"], made["timer_ns"], made["power_limit_w"]) == (0.002, 32, 700.0)


@pytest.mark.parametrize("wrong", ["01_naive", "02_block_tile"])
def test_a_wrong_kernel_is_never_timed(fake_gpu, monkeypatch, wrong):
    monkeypatch.setattr(accuracy, "explain", lambda kernel, *_: f"{kernel.label} is wrong")
    fake_gpu.wrong.add(wrong)
    with pytest.raises(CheckFailed, match=f"{wrong} fp16 is wrong"):
        contest.measure([heat(1, 2)], rounds=1)
    assert not [entry for entry in fake_gpu.log if entry[0] == "time"]


def test_a_kernel_that_writes_to_its_inputs_is_never_timed(fake_gpu, monkeypatch):
    def bind(kernel, inputs, outputs, right=contest.Kernel.bind):
        call = right(kernel, inputs, outputs)
        return lambda: (call(), inputs[1].zero_())

    monkeypatch.setattr(contest.Kernel, "bind", bind)
    with pytest.raises(CheckFailed, match="input B: 16384 "):
        contest.measure([heat(1)], rounds=1)


@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 1, 2)])
def test_who_cannot_take_a_size_stands_aside(fake_gpu, numbers):
    """Also the one by whose problem the sizes go: the library still runs."""
    made = contest.measure([heat(*numbers, sizes=(100, 128))], rounds=1)
    names = ("01_naive", "02_block_tile", "03_thread_tile", "cuBLAS")
    found = {(row["name"], row["size"]) for row in made["rows"]}
    assert found == {(name, size) for name in names for size in ("100", "128")} - {("03_thread_tile", "100")}
    assert [note for note in made["notes"] if "fp16 100: without 03_thread_tile fp16: 03_thread_tile: M must" in note]
    reverse = contest.measure([heat(1, 2, 3, sizes=(100,))], rounds=1)
    assert {row["name"] for row in reverse["rows"]} == {"01_naive", "02_block_tile", "cuBLAS"}


def test_two_parts_in_one_run_are_two_contests(fake_gpu, second_part):
    """Each has its own sizes, library and ratios, and nothing of one part is compared with the other."""
    first, second = second_part
    fake_gpu.speeds |= {"98_scale": 6.0, "99_scale_all": 2.0, "mul": 1.0, "add": 3.0}
    entries = [Entry(first.kernel(), "stage"), Entry(second.kernel(), "stage", first, first)]
    made = contest.measure([heat(1), Heat(entries, [(2, 64, 8), (4, 64, 8)])], rounds=1)
    runs.validate(made)
    rows = {(row["name"], row["size"]): row for row in made["rows"]}
    assert set(rows) == {("01_naive", "128"), ("cuBLAS", "128")} | {
        (name, size) for name in ("98_scale", "99_scale_all", "mul", "add") for size in ("2x64x8", "4x64x8")
    }
    own, other = rows["98_scale", "2x64x8"], rows["99_scale_all", "2x64x8"]
    assert own["shape"] == {"N": 128, "D": 8} and other["shape"] == {"B": 2, "N": 64, "D": 8}
    assert own["part"] == other["part"] == "scaling" and own["problem"] != other["problem"]
    record = Record(made, other)
    assert record.times(record.previous) == record.times(record.first) == pytest.approx(3.0)
    assert [peer.row["name"] for peer in record.peers] == ["mul", "add"] and record.times(record.peer) == 0.5
    assert Record(made, rows["01_naive", "128"]).peer.row["name"] == "cuBLAS"


def test_settings_keep_contests_apart(fake_gpu, second_part):
    _, stage = second_part
    fake_gpu.speeds |= {"99_scale_all": 2.0, "mul": 1.0, "add": 3.0}
    heats = [Heat([Entry(stage.kernel("fp16", {"HALVES": v}), "stage")], [(2, 64, 8)]) for v in (0, 1)]
    made = contest.measure(heats, rounds=1)
    cases = {Record(made, row).case for row in made["rows"]}
    assert cases == {("scaling", "fp16", (), "2x64x8"), ("scaling", "fp16", (("HALVES", 1),), "2x64x8")}
    assert all(len(Record(made, row).peers) == 2 for row in made["rows"] if row["role"] == "stage")
    assert all(row["default"] for row in made["rows"] if row["role"] == "stage"), "a setting is not a choice"


def test_together_all_cases_of_one_size_take_turns(fake_gpu):
    """Those of one size only; each keeps its own peer."""
    heats = [heat(1, dtype="fp16", sizes=(128, 256)), heat(1, dtype="bf16", sizes=(128,))]
    made = contest.measure(heats, rounds=2, together=True)
    assert made["together"] is True
    timed = [what for kind, what in fake_gpu.log if kind == "time"]
    assert [sorted(timed[turn : turn + 4]) for turn in (0, 4)] == [["01_naive", "01_naive", "cuBLAS", "cuBLAS"]] * 2
    assert sorted(timed[8:]) == ["01_naive", "01_naive", "cuBLAS", "cuBLAS"], "the size that only one has"
    assert all(len(Record(made, row).peers) == 1 for row in made["rows"] if row["role"] == "stage")
    assert [(row["name"], row["dtype"], row["size"]) for row in made["rows"]] == [
        (name, dtype, size)
        for dtype, size in (("fp16", "128"), ("bf16", "128"), ("fp16", "256"))
        for name in ("01_naive", "cuBLAS")
    ]


def test_host_times_of_two_calls_are_of_the_same_moments(monkeypatch):
    """One whose speed halves between the samples of a call and those of another, had they been taken one by one."""
    now = 0.0

    def spend(us: float) -> None:
        nonlocal now
        now += us * 1e-6 * (2 if now > slow_from else 1)

    monkeypatch.setattr(contest.time, "perf_counter", lambda: now)
    monkeypatch.setattr(contest.torch.cuda, "synchronize", lambda: None)
    slow_from = contest.WARM_UP_S + 9 * contest.HOST_CALLS * 10e-6
    assert contest.host_costs([lambda: spend(10), lambda: spend(3)], 0.0) == [10, 3]
    now, slow_from = 0.0, -1.0
    assert contest.host_costs([lambda: spend(10), lambda: spend(3)], 0.0) == [20, 6]
