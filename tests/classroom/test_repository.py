"""A handout works by itself, and has no solution in any of its files."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest

from common.classroom import repository
from common.cli import main
from common.practice import exercises
from common.practice.exercises import ROOT, START
from cudaemu.errors import UserError

NAMES = ("02", "05", "06", "transpose", "03-bug-1")  # steps of which one begins with another, a program, a repair
CHOSEN = [exercises.find(name) for name in NAMES]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "students"
    repository.handout(CHOSEN, folder)
    return folder


def there(folder, *words, **environment):
    """What a command of the handout does: its status, its words."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", "kernels", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**kept, **environment})
    return done.returncode, done.stdout + done.stderr


def test_no_file_shows_a_solution(made):
    """What other exercises begin with has some of its lines: they are kernels of the same course."""
    files = [path for path in made.rglob("*") if path.is_file() and ".git" not in path.relative_to(made).parts]
    begun = {path for path in files if path.name.endswith(START) or path.parent.parent == made / "practice"}
    ours = "\n".join(path.read_text(encoding="utf-8") for path in files if path not in begun)
    for exercise in CHOSEN:
        told = repository.declared(exercise) if exercise.stage else ""
        secret = repository.solution_lines(exercise) - {line.strip() for line in told.splitlines()}
        assert secret, f"{exercise.name}: a check of nothing"
        found = secret & {line.lstrip("+-").strip() for line in ours.splitlines()}  # in a patch, too
        assert len(found) <= len(secret) // 8, (exercise.name, found)  # what an instruction looks like is no secret
        for path in begun:
            shown = repository.shows(path.read_text(encoding="utf-8"), exercise)
            assert shown < repository.SHOWN, (exercise.name, path)


def test_git_has_the_files_and_no_history(made):
    def git(*words):
        return subprocess.run(["git", "-C", str(made), *words], capture_output=True, text=True, check=True).stdout

    assert git("rev-list", "--count", "--all").strip() == "1" and not git("status", "--porcelain")


@pytest.mark.full
def test_points_reach_github_classroom(made, tmp_path):
    exercise, other = exercises.find("02"), exercises.find("transpose")
    mine = made / "practice" / exercise.name / exercise.file
    begun = mine.read_text()
    output, summary = tmp_path / "output", tmp_path / "summary"
    try:
        mine.write_text(exercise.solution.read_text())
        made.joinpath("cudaemu").rename(made / "copied")
        made.joinpath("cudaemu").symlink_to(ROOT / "cudaemu")  # whose machine is built: a minute less
        status, said = there(
            made, "grade", ".", "--exercise", exercise.name, "--exercise", other.name, "--to", str(tmp_path / "grades"),
            "--classroom", GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY=str(summary),
        )  # fmt: skip
    finally:
        made.joinpath("cudaemu").unlink()
        made.joinpath("copied").rename(made / "cudaemu")
        mine.write_text(begun)
    assert status == 0, said
    result = json.loads(base64.b64decode(output.read_text().removeprefix("result=")))
    assert [(test["name"], test["status"], test["score"]) for test in result["tests"]] == [
        (exercise.name, "pass", 10),
        (other.name, "fail", 0),
    ]
    assert (result["max_score"], result["status"]) == (20, "fail")
    assert other.title in summary.read_text()


@pytest.mark.full
def test_a_step_begins_with_the_students_own(made):
    before, after = (made / "practice" / exercises.find(name).name / "kernel.cu" for name in ("05", "06"))
    begun = before.read_text()
    try:
        before.unlink()
        assert there(made, "practice", "06")[0] == 2 and not after.exists()
        before.write_text(begun + "// mine\n")
        assert there(made, "practice", "06")[0] == 0
        assert after.read_text() == begun + "// mine\n"
    finally:
        before.write_text(begun)


@pytest.mark.full
def test_there_are_hints_and_no_solution(made):
    status, said = there(made, "practice", "--list")
    assert status == 0 and all(exercise.name in said for exercise in CHOSEN)
    assert there(made, "practice", "02", "--solution")[0] == 2
    told = [there(made, "practice", "transpose", "--hint")[1] for _ in range(3)]
    assert told[1] == told[2] != told[0] and CHOSEN[3].hints[-1] not in "".join(told)


@pytest.mark.full
def test_programs_alone_need_no_stage(tmp_path):
    repository.handout([exercises.find("saxpy-bug-1")], tmp_path / "programs")
    for words in ((), ("practice",), ("grade", "--help")):
        status, said = there(tmp_path / "programs", *words)
        assert status == 0, said
    assert there(tmp_path / "programs", "bench")[0] == 2


def test_what_cannot_be_handed_out(tmp_path, monkeypatch, capsys):
    step, hole = exercises.find("06"), exercises.find("06-stores")
    with pytest.raises(UserError, match=f"{hole.name} .* {step.name}"):  # a hole shows the rest of its stage
        repository.handout([step, hole], tmp_path / "new")
    (tmp_path / "mine").write_text("kept")
    for place in (tmp_path, tmp_path / "mine", tmp_path / "mine" / "below"):
        with pytest.raises(UserError, match=place.name):
            repository.handout(CHOSEN[:1], place)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"] and (tmp_path / "mine").read_text() == "kept"
    with pytest.raises(SystemExit, match="2"):
        main("kernels", ["handout", "02", "nonsense", "--to", str(tmp_path / "new")])
    assert "nonsense" in capsys.readouterr().err
    monkeypatch.setattr(repository, "ROOT", ROOT / "common")
    with pytest.raises(UserError, match="checkout"):
        repository.handout(CHOSEN[:1], tmp_path / "new")
