"""A class graded: each kind of submission ends as a row, and only what the kernel has done has points."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from common.classroom import grading, repository, sandbox
from common.classroom.grading import ADVICE, CHEAT, Row
from common.classroom.sandbox import Limits
from common.practice import exercises, honest
from cudaemu import interrupts
from cudaemu.errors import UserError
from tests.classroom import submissions

EXERCISE = submissions.EXERCISE
RUN_HERE = ("right", "does-not-compile", "crash", "cheat-state", "starter", "empty", "missing", "cheat-host",
            "cheat-includes-ours")  # fmt: skip


@pytest.mark.full
def test_every_kind_is_judged_right(tmp_path):
    chosen = [kind for kind in submissions.kinds() if kind.name in RUN_HERE]
    assert len(chosen) == len(RUN_HERE)
    expected = submissions.write(tmp_path / "class", chosen, len(chosen))
    folders = grading.students(tmp_path / "class")
    rows = grading.grade(folders, [EXERCISE], seed=3, jobs=2, limits=Limits(seconds=300))
    grading.write(rows, tmp_path / "out", {"seed": 3})
    found = json.loads((tmp_path / "out" / "grades.json").read_text())
    assert submissions.compared(expected, found["rows"]) == []
    with open(tmp_path / "out" / "grades.csv", newline="") as file:
        assert {row["student"]: float(row["points"]) for row in csv.DictReader(file)} == {
            row.student: row.points for row in rows
        }
    assert {path.stem for path in (tmp_path / "out" / "feedback").iterdir()} == set(expected)
    state = next(row for row in rows if "state" in row.student)
    assert "three times" in state.report


def test_ctrl_c_ends_a_check(tmp_path):
    """Checks are waited for in other threads, which hear of no signal."""
    assert not sandbox.run(["true"], Limits(), tmp_path).status  # compilers have been asked
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(sandbox.run, ["sleep", "60"], Limits(), tmp_path)
        while not interrupts._tools:
            assert time.monotonic() - began < 30 and not ran.done()
            time.sleep(0.05)
        for end in [*interrupts._tools]:
            end()
    assert ran.result().status and time.monotonic() - began < 30


def test_a_loop_ends_when_its_time_is_over(tmp_path):
    ran = sandbox.run([sys.executable, "-c", "while True: pass"], Limits(seconds=1), tmp_path)
    assert ran.late and not ran.sent


def test_the_wall_holds():
    """All that `ESCAPES` tries is refused, and what is inside is gone afterwards."""
    assert sandbox.fault() == ""


def test_what_opens_the_wall_is_told(monkeypatch):
    monkeypatch.setitem(sandbox.ESCAPES, "a tool can be read", "open(sys.executable, 'rb').read(1)")
    sandbox.fault.cache_clear()
    assert sandbox.fault() == "a tool can be read"
    sandbox.fault.cache_clear()


def test_the_room_begins_with_its_contents_and_forgets(tmp_path):
    (tmp_path / "known").write_text("before")
    code = (
        "import os, pathlib; p = pathlib.Path('known'); t = p.read_text(); p.write_text('after'); "
        "os.write(int(os.environ['RESULT']), (t + p.read_text()).encode())"
    )
    words = ["env", "-C", str(tmp_path), sys.executable, "-c", code]
    ran = sandbox.run(words, Limits(seconds=60), tmp_path, ["known"])
    assert ran.sent == b"beforeafter", ran.said
    assert (tmp_path / "known").read_text() == "before"


def test_no_solution_is_behind_the_wall(tmp_path):
    """Not even for an exercise whose starter and checks are there."""
    course = repository.course_for(tmp_path, [EXERCISE, exercises.find("transpose")])
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.suffix in (".cu", ".md", ".patch")]
    assert {*course} == {"cudaemu", "common", "kernels"} and texts
    for exercise in (EXERCISE, exercises.find("transpose")):
        assert max(repository.shows(text, exercise) for text in texts) <= repository.SHOWN


def test_without_the_wall_nothing_is_graded_unless_it_is_asked_for(command, tmp_path, monkeypatch):
    (tmp_path / "class" / "ann" / "02_block_tile").mkdir(parents=True)
    monkeypatch.setattr(sandbox, "fault", lambda: "a home can be read")
    words = ("kernels", "grade", tmp_path / "class", "--to", tmp_path / "grades")
    done = command(*words)
    assert done.status == 2 and "a home can be read" in done.err and not (tmp_path / "grades").exists()
    assert command(*words, "--without-wall").status == 0


INCLUDES = {
    "a header of CUDA": ('// #include "x"\n#include <cuda_fp16.h>  // halves\n', False),
    "quotes": ('#include "OTHER"\n', True),
    "brackets": ("#include <OTHER>\n", True),
    "a way round": ("#include </usr/include/../..OTHER>\n", True),
    "a macro": ('#define F "OTHER"\n#include F\n', True),
    "a digraph": ('%:include "OTHER"\n', True),
    "splices": ('/* */ # /* */ inc\\\nlude "OTHER"\n', True),
    "import": ('#import "OTHER"\n', True),
    "a form feed": ('\f#include "OTHER"\n', True),
    "a vertical tab": ('#\vinclude "OTHER"\n', True),
    "a byte order mark": ('\ufeff#include "OTHER"\n', True),
    "a NUL": ('\0#include "OTHER"\n', True),
    "the next one": ('#include_next "OTHER"\n', True),
    "a raw string": ('const char *a = R"(/*)";\n#include "OTHER"\nconst char *b = R"(*/)";\n', True),
    "of device code": ('#ifdef __CUDA_ARCH__\n#include "OTHER"\n#endif\n', True),
    "of host code": ('#ifndef __CUDA_ARCH__\n#include "OTHER"\n#endif\n', True),
}


@pytest.mark.core(every=5)
@pytest.mark.parametrize("form", INCLUDES)
def test_the_preprocessor_decides_what_is_included(tmp_path, form):
    text, foreign = INCLUDES[form]
    (tmp_path / "other.h").write_text("int other;\n")
    source = tmp_path / "kernel.cu"
    source.write_text(text.replace("OTHER", str(tmp_path / "other.h")))
    said = honest.read(source, EXERCISE)
    assert bool(said) == foreign and ("other.h" in said) == foreign


def test_a_repair_may_free_memory_elsewhere_and_no_more(tmp_path):
    exercise = exercises.find("saxpy-bug-1")
    source = tmp_path / exercise.file
    ours = exercise.solution.read_text()
    source.write_text(ours)
    assert not honest.read(source, exercise)
    for old, new in (("wrong != 0", "0"), ("int main()", "#define wrong 0\nint main()"), ("y[i];", "2.0f;")):
        source.write_text(ours.replace(old, new, 1))
        assert "must stay" in honest.read(source, exercise)


@pytest.mark.core(every=3)
@pytest.mark.parametrize("linked", ["02_block_tile/kernel.cu", "02_block_tile", "practice"])
def test_a_link_to_somebody_else_s_file_is_no_submission(tmp_path, linked):
    theirs, student = exercises.find("02"), tmp_path / "class" / "eve"
    inside = f"practice/{linked}" if linked != "practice" else linked
    (tmp_path / "practice" / "02_block_tile").mkdir(parents=True)
    (tmp_path / "practice" / "02_block_tile" / "kernel.cu").write_text(theirs.solution.read_text())
    (student / inside).parent.mkdir(parents=True)
    (student / inside).symlink_to(tmp_path / inside)
    loop = tmp_path / "class" / "mallory" / "02_block_tile"
    loop.mkdir(parents=True)
    (loop / "kernel.cu").symlink_to("kernel.cu")
    rows = grading.grade([student, loop.parent], [theirs], 7, 1, Limits())
    assert [(row.outcome, row.points) for row in rows] == [(grading.MISSING, 0.0)] * 2


def test_a_hidden_shape_is_one_that_the_check_does_not_try():
    kernel = EXERCISE.kernel(EXERCISE.solution)
    drawn = {grading.hidden_shape(kernel, seed) for seed in range(6)}
    assert len(drawn) > 1 and not drawn & set(kernel.test_shapes().values())


def test_a_page_says_what_helps():
    page = grading.feedback("ann", [Row("ann", EXERCISE.name, CHEAT, report="the launcher launches no kernel")])
    assert ADVICE[CHEAT] in page and "no kernel" in page and EXERCISE.hints[0] in page and "0 of 10" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", __file__), "cannot write"),
        (("--seed", "9" * 20), "--seed: must be a whole number of 64 bits"),
        (("--classroom",), "GITHUB_OUTPUT is not set"),
    ],
)
def test_what_would_fail_after_all_checks_is_refused_before_them(command, tmp_path, monkeypatch, words, said):
    monkeypatch.delenv("GITHUB_OUTPUT", raising=False)
    monkeypatch.setattr(grading, "grade", lambda *words: pytest.fail("it has begun"))
    (tmp_path / "class" / "ann" / "02_block_tile").mkdir(parents=True)
    done = command("kernels", "grade", tmp_path / "class", "--to", tmp_path / "grades", *words)
    assert done.status == 2 and said in done.err and not (tmp_path / "grades").exists()


def test_folders_that_are_none(tmp_path):
    with pytest.raises(UserError, match="folder"):
        grading.students(tmp_path / "nowhere")
    with pytest.raises(UserError, match="student"):
        grading.students(tmp_path)
    for name in (b"\xff", b"x" * 251):  # no page of feedback can be called so
        os.mkdir(odd := os.path.join(os.fsencode(tmp_path), name))
        with pytest.raises(UserError, match="must have a name of UTF-8, 250 bytes at most; rename '"):
            grading.students(tmp_path)
        os.rmdir(odd)
    (tmp_path / "ann" / "unknown").mkdir(parents=True)
    with pytest.raises(UserError, match="exercise"):
        grading.asked(grading.students(tmp_path))
