"""The course: stages in order, found by number and name, each with the one before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kernels
from common import course
from cudaemu.errors import UserError

ROOT = Path(kernels.__file__).parent.parent
NAIVE, BLOCK_TILE, THREAD_TILE = (course.load(number) for number in (1, 2, 3))


def test_stages_are_found_by_number_and_name():
    numbers = [stage.number for stage in course.ladder()]
    digits = [number for number in numbers if number.isdigit()]
    assert digits == [f"{n:02}" for n in range(1, len(digits) + 1)] and numbers == sorted(numbers)
    assert course.load(3) is course.load("3") is course.load("03") is course.load("03_thread_tile") is THREAD_TILE
    assert kernels.load(3) is THREAD_TILE and kernels.ladder() is course.ladder()


@pytest.mark.parametrize(
    "wanted, hint", [("03_thred_tile", "Did you mean '03_thread_tile'?"), (99, "01_naive, 02"), ("²", "no stage '²'")]
)
def test_unknown_stage_lists_the_stages(wanted, hint):
    with pytest.raises(UserError) as error:
        course.load(wanted)
    assert hint in str(error.value)


def test_a_stage_follows_the_one_before_it_in_its_ladder(second_part):
    first, second = second_part
    assert course.previous(THREAD_TILE) is BLOCK_TILE and course.previous(NAIVE) is None
    assert course.previous(first) is None and course.previous(second) is first
    assert course.ladder(second) == second_part
    assert course.ladder(NAIVE)[0] is NAIVE and first not in course.ladder(NAIVE)


def test_a_stage_may_follow_an_earlier_one():
    """Stage 14 is a side branch: 15 goes on from 13. 16 computes another problem, in the same ladder."""
    before = {stage.number: course.previous(stage) for stage in course.ladder()}
    assert {number: stage and stage.number for number, stage in before.items() if number > "11"} == {
        "12": None, "13": "12", "14": "13", "15": "13", "16": "15",
    }  # fmt: skip


def test_a_counterpart_computes_the_same():
    """Dtype and settings are kept, a stage's own choices are not; a stage that lacks them has no counterpart."""
    last = next(stage for stage in course.ladder() if "B_TRANSPOSED" in stage.variants)
    straight, turned = last.kernel("fp16", {"STAGES": 2}), last.kernel("fp16", {"B_TRANSPOSED": 1})
    found = course.counterpart(NAIVE, straight)
    assert found is not None and found.label == "01_naive fp16" and found.variants == {"COALESCED": 1}
    assert course.counterpart(NAIVE, turned) is None
    again = course.counterpart(last, last.kernel("fp16", {"B_TRANSPOSED": 1, "STAGES": 2}))
    assert again is not None and again.changed == {"B_TRANSPOSED": 1}
    assert course.counterpart(NAIVE, last.kernel("tf32")) is None and course.counterpart(None, straight) is None


def test_listing_stages_and_what_they_change_imports_no_torch():
    code = """import sys, kernels
from common.verbs import diff
assert kernels.ladder() and diff.diff(kernels.load(3)).lines
assert 'torch' not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    "name, words", [("03_thread", "Did you mean '03_thread_tile'?"), ("99_nope", "the course has no stage '99_nope'")]
)
def test_a_module_of_no_stage_names_those_that_there_are(name: str, words: str):
    done = python("-m", f"kernels.{name}", "test")
    assert done.returncode == 1 and words in done.stderr and "01_naive" in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_importing_no_stage_stays_an_import_error():
    done = python("-c", "import kernels.nothing")
    assert done.returncode == 1 and "ModuleNotFoundError: the course has no stage 'nothing'" in done.stderr
    found = "import importlib.util as u; print(u.find_spec('kernels.01_naive').name, u.find_spec('json.tool').name)"
    assert python("-c", f"import kernels; {found}").stdout == "kernels.01_naive json.tool\n"
