"""Times: contenders in turns, medians and spreads."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from common.measure import nvml, stamps, timing
from common.measure.timing import Contender, Round


def test_contenders_take_turns_and_none_always_follows_the_same():
    order: list[str] = []
    contenders = [Contender(name, call=lambda: None, estimate=1.0) for name in "abc"]
    sampler, before = lambda call, estimate, ms: Round([ms, ms]), lambda c: order.append(c.label)
    timing.interleave(contenders, rounds=6, round_ms=10, sampler=sampler, before=before)
    assert [sorted(order[turn : turn + 3]) for turn in range(0, 18, 3)] == [list("abc")] * 6
    for name in "abc":
        assert len({before for before, after in zip(order, order[1:]) if after == name} - {name}) == 2
    assert [len(c.samples) for c in contenders] == [12, 12, 12]


def test_a_slow_contender_takes_part_in_fewer_rounds_but_at_least_one():
    estimates = {"fast": 1.0, "slow": timing.SLOW_MS / 2, "endless": 100 * timing.SLOW_MS}
    contenders = [Contender(name, lambda: None, estimate) for name, estimate in estimates.items()]
    timing.interleave(contenders, rounds=5, sampler=lambda *_: Round([1.0]))
    assert [len(c.samples) for c in contenders] == [5, 2, 1]


def test_drift_meets_all_contenders():
    """A clock that slows down by a half during the run must not favour either of two equal kernels."""
    now = [0.0]

    def sampler(call, estimate, ms):
        now[0] += 1
        return Round([1.0 + now[0] / 20])

    contenders = [Contender(name, lambda: None, 1.0) for name in "ab"]
    timing.interleave(contenders, rounds=10, sampler=sampler)
    a, b = (timing.summary(c.samples)["median"] for c in contenders)
    assert a == pytest.approx(b, rel=0.03)


def test_the_clock_is_that_of_all_rounds_together():
    """A long round counts for more; rounds without stamps have no say."""
    rounds = [Round([1.0], clocks=1800, ns=1000), Round([1.0]), Round([1.0], clocks=4500, ns=3000)]
    assert timing.clock(rounds) == {"ghz": 1.575, "min": 1.5, "max": 1.8}
    assert timing.clock([Round([1.0])]) == {}


def test_marks_are_outside_of_the_two_events_of_each_run(monkeypatch):
    """What they launch is not timed; warm-up runs have none. A GPU that comes too early is kept busy longer."""
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")

        def query(self):
            return next(late)

        def elapsed_time(self, other):
            return 0.5

    late = iter([False, False, True, False])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(timing, "_filler", lambda device: SimpleNamespace(sum=lambda: log.append("clear")))
    found = timing.timed_runs(lambda: log.append("call"), 1, 2, mark=lambda: log.append("mark"))
    assert found == [0.5, 0.5]
    run = ["clear", "mark", "event", "call", "event", "mark"]
    assert log == ["call", *run * 2, "wait"]
    log.clear()
    timing.timed_runs(lambda: log.append("call"), 0, 2, mark=lambda: log.append("mark"))
    assert log == [*run, "clear", *run, "wait"]  # the GPU had come to the first before all of it was launched


def test_a_sustained_run_times_its_second_half_in_parts(monkeypatch):
    """Nothing waits between the first call and the last; each part's sample is the mean of its runs."""
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            self.at = 0

        def record(self):
            self.at = log.count("call")
            log.append("event")

        def elapsed_time(self, other):
            return 2.0 * (other.at - self.at)

    class Stamps:
        def __init__(self, launches):
            assert launches == 1

        def mark(self):
            log.append("mark")

        def counted(self):
            return 1700, 1000

    device = SimpleNamespace(sm_clock=lambda: 1.0, power=lambda: 650.0, reasons=lambda: ())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    monkeypatch.setattr(nvml, "current", lambda: device)
    monkeypatch.setattr(stamps, "Stamps", Stamps)
    found = timing.sustain(lambda: log.append("call"), 1.0, 0.06)
    part = [*["call"] * 3, "event"]
    assert log == [*["call"] * 30, "mark", "event", *part * timing.PARTS, "mark", "wait"]
    assert found["ms"] == {"median": 2.0, "p20": 2.0, "p80": 2.0, "n": timing.PARTS}
    assert found["seconds"] == 0.06 and found["clock"]["ghz"] == 1.7
    log.clear()
    assert timing.sustain(lambda: log.append("call"), 100.0, 0.06)["ms"]["n"] == 1, "a run longer than that"
    assert log == ["call", "mark", "event", "call", "event", "mark", "wait"]


def test_summary_is_median_and_the_middle_three_fifths():
    samples = [float(x) for x in range(1, 12)]
    random.Random(0).shuffle(samples)
    assert timing.summary(samples) == {"median": 6.0, "p20": 3.0, "p80": 9.0, "n": 11}
    assert timing.summary([4.0]) == {"median": 4.0, "p20": 4.0, "p80": 4.0, "n": 1}


def test_a_row_has_times_and_clock_of_all_rounds():
    contender = timing.Contender(
        "mine", lambda: None, rounds=[timing.Round([1.0, 2.0], 30, 20), timing.Round([3.0], 10, 20)]
    )
    assert contender.row["name"] == "mine" and contender.row["ms"]["median"] == 2.0 and contender.row["ms"]["n"] == 3
    assert contender.row["clock"] == {"ghz": 1.0, "min": 0.5, "max": 1.5}
