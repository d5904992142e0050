"""`new`: the skeleton of a stage; and that the course's own stages lack nothing."""

from __future__ import annotations

import pytest

import kernels
from common import course
from common.practice import exercises
from common.stage import Stage, macros
from common.verbs import new


@pytest.mark.parametrize("stage", kernels.ladder(), ids=lambda stage: stage.name)
def test_a_stage_has_all_that_a_stage_has(stage: Stage):
    assert not (missing := list(new.missing(stage))), "\n".join(missing)


NEXT, HOPPER = new.next_numbers()


@pytest.mark.parametrize(
    "words, said",
    [
        (
            (f"{NEXT}name", "--after", "11"),
            f"must be {NEXT}_name or {HOPPER}_name, in lower case; got '{NEXT}name'",
        ),
        ((f"{NEXT}_Name", "--after", "11"), "in lower case; got"),
        (("t1_triton", "--after", "11"), "in lower case; got 't1_triton'"),
        (("h09_name", "--after", "h8"), "in lower case; got 'h09_name'"),
        (
            ("11_again", "--after", "11"),
            f"next stage must be {NEXT} or {HOPPER}, got '11_again' (11 is 11_any_shape)",
        ),
        (("97_name", "--after", "11"), f"the next stage must be {NEXT} or {HOPPER}, got '97_name'\n"),
        ((f"{NEXT}_name", "--after", "97"), "the course has no stage '97'"),
        ((f"{NEXT}_name",), "the following arguments are required: --after"),
    ],
)
def test_what_is_no_new_stage(stages_folder, command, words, said):
    done = command("kernels", "new", *words)
    assert done.status == 2 and said in done.err and len(list(stages_folder.glob("*_*"))) == len(course.names())


def test_a_name_that_is_taken(stages_folder, command):
    (stages_folder / f"{NEXT}_mine").mkdir()
    done = command("kernels", "new", f"{NEXT}_mine", "--after", "11")
    assert done.status == 2 and f"kernels/{NEXT}_mine is there, and is no stage" in done.err


@pytest.mark.parametrize(
    "name, before", [(f"{NEXT}_two_words", "11"), (f"{HOPPER}_choices", "h7"), (f"{NEXT}_pair", "h8")]
)
def test_a_skeleton_is_a_stage(stages_folder, command, name, before):
    old = kernels.load(before)
    done = command("kernels", "new", name, "--after", before)
    assert done.status == 0, done.err
    made = course.load(name)
    assert course.names() == tuple(sorted(course.names(), key=course.order)) and made in course.ladder()
    assert course.previous(made) is old and (made.ladder, made.variants, made.multiples) == (
        old.ladder,
        old.variants,
        old.multiples,
    )
    assert not made.function and len(made.besides) == len(old.besides) and macros(made.source) == macros(old.source)
    own, others = (each.source.read_text().split("\n") for each in (made, old))
    words = name.partition("_")[2].replace("_", " ")
    assert own[1:] == others[1:] and own[0].startswith(f"// Stage {made.number} · {words}: ")
    assert {path.name for path in made.directory.iterdir() if path.is_file()} == {
        each.name for each in old.directory.iterdir() if each.suffix in (".py", ".cu")
    }
    assert (made.chooser is None) == (old.chooser is None)
    files = {line.strip().partition(": ")[0] for line in done.out.partition("Still to do:\n")[2].splitlines()}
    assert files == {
        f"kernels/{name}/kernel.cu",
        f"kernels/{name}/__init__.py",
        f"kernels/{name}/practice/step.md",
        f"examples/broken/{made.number}-NAME.patch",
        f"notebooks/{name}.ipynb",
        "README.md",
        "docs/results/record.sh",
        "docs/performance.md",
        "CHANGELOG.md",
    }


def test_a_skeleton_runs(stages_folder, command):
    assert command("kernels", "new", f"{NEXT}_again", "--after", "01").status == 0
    done = command(f"kernels.{NEXT}_again", "test", "--device", "emulator", "--sizes", "40", "--dtype", "fp16")
    assert done.status == 0 and f"{NEXT}_again" in done.out, done.err


def test_what_is_there_is_not_missing(stages_folder, command, monkeypatch, tmp_path):
    """Each file in turn, until nothing is."""
    command("kernels", "new", f"{NEXT}_new", "--after", "01")
    stage = course.load(NEXT)
    folder, broken = stage.directory, tmp_path / "examples" / "broken"
    monkeypatch.setattr(exercises, "ROOT", tmp_path)
    monkeypatch.setattr(exercises, "BROKEN", broken)
    link = f"| [{NEXT}_new](kernels/{NEXT}_new/kernel.cu) · [notebook](notebooks/{NEXT}_new.ipynb) | x | y |\n"
    kernel = (folder / "kernel.cu").read_text().replace(new.TO_SAY, "said")
    steps = {
        folder / "kernel.cu": kernel,
        folder / "kernel.cu ": kernel + "\n// new\n",
        folder / "__init__.py": (folder / "__init__.py").read_text().replace(new.TO_SAY, "said"),
        folder / "practice" / "step.md": "Title: x\n",
        broken / f"{NEXT}-x.patch": f"--- a/kernels/{NEXT}_new/kernel.cu\n+++ b/kernels/{NEXT}_new/kernel.cu\n",
        tmp_path / "notebooks" / f"{NEXT}_new.ipynb": "{}",
        tmp_path / "README.md": link,
        tmp_path / "docs" / "results" / "record.sh": f'gemm="01 02 {NEXT}"\n',
        tmp_path / "docs" / "performance.md": f"| {NEXT}_new | 4.0 |\n",
    }
    left = list(new.missing(stage))
    assert len(left) == len(steps)
    for path, text in steps.items():
        path = path.with_name(path.name.strip())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        gone = left.pop(0)
        assert list(new.missing(stage)) == left, gone
