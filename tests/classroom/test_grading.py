"""A class graded: each kind of submission ends as a row, and only what the kernel has done has points."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from common.classroom import grading, honest, sandbox
from common.classroom.grading import ADVICE, CHEAT, Row
from common.classroom.sandbox import Limits
from common.practice import exercises
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
    assert "twice" in state.report


def test_ctrl_c_ends_a_check(tmp_path):
    """Checks are waited for in other threads, which hear of no signal."""
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


@pytest.mark.parametrize(("name", "program"), sandbox.WALLS)
def test_walls_hold(tmp_path, monkeypatch, name, program):
    if not shutil.which(program):
        pytest.skip(f"no {program} here")
    if not sandbox.holds(name):
        pytest.skip(f"{name} does not work here")
    monkeypatch.setattr(sandbox, "walls", lambda: name)
    room, outside = tmp_path / "room", tmp_path / "outside"
    room.mkdir()
    outside.mkdir()
    (room / "known").write_text("before")
    code = (
        "import os, pathlib, socket\n"
        "said = [pathlib.Path('known').read_text()]\n"
        "pathlib.Path('known').write_text('after')\n"
        "for what in (lambda: open(r'OUT', 'w'), lambda: socket.create_connection(('1.1.1.1', 53), 2),\n"
        "             lambda: pathlib.Path('big').write_bytes(bytes(1 << 25))):\n"
        "    try: what(); said.append('done')\n"
        "    except OSError: said.append('refused')\n"
        "os.write(int(os.environ['RESULT']), ' '.join(said).encode())\n"
    ).replace("OUT", str(outside / "out"))
    ran = sandbox.run([sys.executable, "-c", code], Limits(seconds=60, files=1 << 24), room, ["known"])
    assert ran.sent == b"before refused refused refused", ran.said
    assert (room / "known").read_text() == "before" and not list(outside.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('#include "x.h"\n', "#include"),
        ("#include </etc/passwd>\n", "#include"),
        ("#define F <cuda.h>\n#include F\n", "#include"),
        ('%:include "x.h"\n', "#include"),
        ('/* */ # /* */ inc\\\nlude "x.h"\n', "#include"),
        ("void f() { dlopen(0, 0); }\n", "dlopen"),
        ("// dlopen(0, 0)\n#include <cuda_fp16.h>  // halves\n", ""),
    ],
)
def test_what_a_source_names(tmp_path, text, said):
    source = tmp_path / "kernel.cu"
    source.write_text(text)
    assert said in honest.read(source, EXERCISE) and bool(honest.read(source, EXERCISE)) == bool(said)


def test_main_of_a_program_must_stand(tmp_path):
    exercise = exercises.find("transpose")
    source = tmp_path / exercise.file
    source.write_text(exercise.solution.read_text())
    assert not honest.read(source, exercise)
    head, _, _ = exercise.start.partition("int main(")
    source.write_text(head + "int main() { return 0; }\n")
    assert "main" in honest.read(source, exercise)


def test_a_repair_may_free_memory_elsewhere_in_main(tmp_path):
    exercise = exercises.find("saxpy-bug-1")
    source = tmp_path / exercise.file
    source.write_text(exercise.solution.read_text())
    assert not honest.read(source, exercise)
    source.write_text(exercise.solution.read_text().replace("wrong != 0", "0"))
    assert "main" in honest.read(source, exercise)


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
