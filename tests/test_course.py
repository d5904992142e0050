"""The course: stages in order, found by number and name, each with the one before it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from common import course
from common.verbs import diff
from cudaemu.errors import UserError

ROOT = Path(kernels.__file__).parent.parent
NAIVE, BLOCK_TILE, THREAD_TILE = (course.load(number) for number in (1, 2, 3))


def test_stages_are_found_by_number_and_name():
    numbers = [stage.number for stage in course.ladder()]
    digits = [number for number in numbers if number.isdigit()]
    assert digits == [f"{n:02}" for n in range(1, len(digits) + 1)]
    assert numbers[len(digits) :] == [f"h{n}" for n in range(1, len(numbers) - len(digits) + 1)]
    assert course.load(3) is course.load("3") is course.load("03") is course.load("03_thread_tile") is THREAD_TILE
    assert kernels.load(3) is THREAD_TILE and kernels.ladder() is course.ladder()


@pytest.mark.parametrize(
    "wanted, hint", [("03_thred_tile", "Did you mean '03_thread_tile'?"), (99, "01_naive, 02"), ("²", "no stage '²'")]
)
def test_unknown_stage_lists_the_stages(wanted, hint):
    with pytest.raises(UserError) as error:
        course.load(wanted)
    assert hint in str(error.value)


@pytest.mark.parametrize("text", ["01", "16", "99", "h1", "h9", "h10", "h12"])
def test_numbers_of_stages(text):
    assert re.fullmatch(course.NUMBER, text)


@pytest.mark.parametrize("text", ["1", "100", "h", "h0", "h01", "h100", "t1", "library"])
def test_other_folders_are_no_stages(text):
    assert not re.match(rf"({course.NUMBER})_", f"{text}_name")


def test_two_digits_come_after_one():
    names = ["h10_b", "h2_z", "09_a", "h1_c", "h12_a", "h9_a", "10_a", "h11_a"]
    assert " ".join(sorted(names, key=course.order)) == "09_a 10_a h1_c h2_z h9_a h10_b h11_a h12_a"


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
    assert {number: stage and stage.number for number, stage in before.items()}.items() >= {
        "12": None, "13": "12", "14": "13", "15": "13", "16": "15",
        "h1": "09", "h2": "h1", "h3": "h2", "h4": "h3", "h5": "h4", "h6": "h3", "h7": "h6", "h8": "h7",
    }.items()  # fmt: skip


def test_a_kernel_of_the_library_has_what_a_stage_has_and_is_none():
    """It is found by its name, and in no ladder; what it follows says what it goes beyond."""
    (kernel,) = map(course.load, course.library())
    assert kernel not in course.ladder() and kernel in course.everything() and kernel.name not in course.names()
    assert kernel.number == kernel.name == "hopper_matmul" and kernel.of_library and not NAIVE.of_library
    assert kernel.source.exists() and course.previous(kernel) is course.load("h5") is not course.ladder(kernel)[0]


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


def test_a_helper_that_only_moved_behind_the_kernel_is_no_change():
    """h5 has h4's helpers at its end: its diff tells of those that are new."""
    lines = diff.diff(course.load("h5"), context=0).lines
    assert '-  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");' not in lines
    assert any(line.startswith("+__device__ __forceinline__ bool elect_one()") for line in lines)
    assert any(line.startswith("-__device__ __forceinline__ void named_barrier_sync(") for line in lines)
    assert not [line for line in lines if re.match(r"[+-].*void (mbarrier_init|tma_load|wgmma_wait)\(.*\{", line)]


LIBRARY = {"attention": "16_final", "attention_fp8": "h8_fp8", "matmul": "hopper_matmul"}  # what each begins with


def test_the_functions_of_the_library_are_the_package_s_own():
    """Listed for completion, named by their stages, and those that type checkers see."""
    assert {path.stem for path in (ROOT / "kernels" / "library").glob("[!_]*.py")} == set(LIBRARY)
    assert {stage.function: stage.name for stage in course.everything() if stage.function} == LIBRARY
    assert set(LIBRARY) <= set(kernels.__all__) <= set(dir(kernels))
    tree = ast.parse(Path(kernels.__file__).read_text())
    (told,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    assert [ast.unparse(node) for node in told.body] == [
        f"from kernels.library.{name} import {name}" for name in LIBRARY
    ]
    for name in LIBRARY:
        module = importlib.import_module(f"kernels.library.{name}")
        assert getattr(kernels, name) is getattr(module, name)
    with pytest.raises(AttributeError, match="module 'kernels' has no attribute 'atention'"):
        kernels.atention  # noqa: B018


@pytest.mark.parametrize("name", ["attention", "matmul"])
def test_a_function_s_arguments_are_those_of_its_tuple_and_its_operator(name):
    module = importlib.import_module(f"kernels.library.{name}")
    signature = inspect.signature(getattr(module, name)).parameters
    told = {each.name: None if each.default is each.empty else each.default for each in signature.values()}
    fields, defaults = module.Arguments._fields, module.Arguments._field_defaults
    assert told == {field: defaults.get(field) for field in fields}
    operator = {
        each.name: each.default_value for each in getattr(torch.ops.gpu_kernels_course, name).default._schema.arguments
    }
    assert operator == {each: told[each] for each in operator} and set(told) - set(operator) <= {"out"}


@pytest.mark.core(every=2)
@pytest.mark.parametrize("name", ["", *LIBRARY])
def test_a_function_imports_the_one_stage_that_it_begins_with(name):
    """And the package alone none, nor torch."""
    code = f"""import sys, kernels
{f"from kernels import {name}" if name else ""}
from common import course
stages = [name for name in kernels.names() if f"kernels.{{name}}" in sys.modules]
stages += [name for name in course.library() if f"kernels.library.{{name}}" in sys.modules]
print(*stages, "torch" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ([LIBRARY[name], "True"] if name else ["False"])


def test_importing_the_kernels_changes_no_other_import():
    code = "import sys; before = list(sys.meta_path); import kernels; assert sys.meta_path == before"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
