"""No cheat has points, and no right solution loses any.

Of published ones (of contests and benchmarks of kernels): an output left from an earlier call and answers kept by shape
or pointer (gpu-mode/reference-kernels, ScalingIntelligence/KernelBench), zeros that pass, work that is
only done at the shapes that are checked, a verdict written by the submission itself.
"""

from __future__ import annotations

import pytest

from common.practice import exercises
from common.practice.check import check
from tests.classroom import cheats


def points(case: tuple[str, str], folder) -> float:
    exercise = exercises.find(case[0])
    source = folder / exercise.file
    source.write_text(case[1], encoding="utf-8", newline="")
    verdict = check(source, exercise, seed=5)
    print(verdict)
    return verdict.points


@pytest.mark.core(every=40)
@pytest.mark.parametrize("name", cheats.CHEATS)
def test_a_cheat_has_no_points(name, tmp_path):
    assert points(cheats.CHEATS[name], tmp_path) == 0


@pytest.mark.core(every=40)
@pytest.mark.parametrize("name", cheats.ODD)
def test_a_right_solution_in_an_odd_style_has_all(name, tmp_path):
    assert points(cheats.ODD[name], tmp_path) == 10


def test_there_are_many():
    assert len(cheats.CHEATS) >= 60 and len(cheats.ODD) >= 40
