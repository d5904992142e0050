"""The course: stages in order, found by number and name, each with the one before it."""

from __future__ import annotations

import ast
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
    """Stage 14 is a side branch: 15 goes on from 13. 16 and h5 compute another problem, in the same ladder.
    h6 changes h3 and computes attention, in a ladder of its own."""
    before = {stage.number: course.previous(stage) for stage in course.ladder()}
    assert {number: stage and stage.number for number, stage in before.items() if number > "11"} == {
        "12": None, "13": "12", "14": "13", "15": "13", "16": "15",
        "h1": "09", "h2": "h1", "h3": "h2", "h4": "h3", "h5": "h4", "h6": "h3", "h7": "h6",
            "h8": "h7",
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


def test_the_functions_of_stages_are_the_packages_own():
    """Listed for completion, and declared for type checkers as they are."""
    named = [stage.function for stage in course.ladder() if stage.function]
    assert named and set(named) < set(dir(kernels))
    tree = ast.parse(Path(kernels.__file__).read_text())
    declared = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for name in named:
        stage = next(stage for stage in course.ladder() if stage.function == name)
        body = ast.parse((stage.directory / f"{name}.py").read_text()).body
        (own,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
        assert ast.dump(declared[name].args) == ast.dump(own.args)
        assert declared[name].returns is not None and own.returns is not None
        assert ast.dump(declared[name].returns) == ast.dump(own.returns)
    with pytest.raises(AttributeError, match="module 'kernels' has no attribute 'atention'"):
        kernels.atention  # noqa: B018


def test_importing_the_kernels_changes_no_other_import():
    code = "import sys; before = list(sys.meta_path); import kernels; assert sys.meta_path == before"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
