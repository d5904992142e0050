"""The cases of `practice diagnose`: each is recorded, proved, and counted as it says."""

from __future__ import annotations

import random

import pytest

from common import counts, course
from common.practice import diagnose
from common.practice.diagnose import CASES, CAUSES, WORDS
from common.practice.drills.asking import ask

COUNTED = [case for case in CASES if case.kernel]


def test_there_are_thirty_cases_of_all_causes():
    assert len(CASES) >= 30 and CAUSES.keys() == WORDS.keys() == {case.cause for case in CASES}
    assert len({(case.before, case.after, case.size) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.before} {case.size}")
def test_each_case_is_proved_by_a_recorded_time(case):
    """The change helps, by more than times of one kernel differ; and something is shown to reason from."""
    assert case.factor > 1.05
    assert case.profile or case.counters or len(case.about) > 60
    shown = diagnose.evidence(case)
    assert case.before.split()[0] not in shown, "the name would tell"
    asked = diagnose.question(case, random.Random(1))
    shown_causes = [line[5:] for line in asked.text.splitlines()[-4:]]
    assert len(set(shown_causes)) == 4 and not any(
        {WORDS[each] for each in near} <= set(shown_causes) for near in diagnose.NEAR
    )
    assert asked.judge(asked.answer) and case.after in asked.why


@pytest.mark.full
@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case.before)
def test_the_counters_are_those_of_the_emulator(case):
    name, *variants = case.kernel
    stage = course.load(name)
    found = [
        counts.emulate(stage.kernel("fp16", each), case.shape, sanitize=False).counters.flat() for each in variants
    ]
    assert case.counters == {key: tuple(each.get(key, 0) for each in found) for key in case.counters}


def test_in_a_terminal_and_as_a_sheet(command, tmp_path, monkeypatch):
    done = command("kernels", "practice", "diagnose", "--seed", "3", "--count", "4", "--sheet", tmp_path / "cases.md")
    key = (tmp_path / "cases.key.md").read_text()
    assert done.status == 0 and "practice diagnose --seed 3 --count 4" in key and "× as fast" in key
    assert "× as fast" not in (tmp_path / "cases.md").read_text()
    assert command("kernels", "practice", "diagnose", "--count", "99").status == 2
    asked = [diagnose.question(case, random.Random(2)) for case in CASES[:2]]
    answers = iter(each.answer for each in asked)
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    assert ask(asked) == 2
