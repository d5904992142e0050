"""A repository for students: chosen exercises and their checks, without our solutions.

    DIR/README.md Makefile requirements.txt .devcontainer/ .github/workflows/classroom.yml
    DIR/practice/NAME/              an exercise's starter and its task
    DIR/cudaemu/ common/            the emulator and the harness, as they are here
    DIR/kernels/NN_name/            a stage; its kernel.cu has macros and declares the launcher
    DIR/kernels/NN_name/practice/   pages with fewer hints, and starters (common/practice/exercises.py)

A step begins with the stage before it. If that is the solution of another exercise in the same handout, it begins with
the reader's own. Exercises whose starter would show another's solution cannot be handed out together.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cudaemu
from common import course
from common.practice import exercises
from common.practice.check import POINTS
from common.practice.exercises import FIRST, ROOT, START, Exercise
from common.practice.folder import command, signature
from common.practice.patches import is_code
from common.stage import macros
from cudaemu.errors import UserError

HINTS = 2  # of each exercise: the last one is often the solution in words
SHOWN = 0.5  # of the lines of a solution: a text with more of them shows it
TORCH_FOR_CPU = "https://download.pytorch.org/whl/cpu"
MINUTES = 10  # that the workflow may take for an exercise

MAKEFILE = """\
# make setup   a virtual environment with all that the checks need (a few minutes, once)
# make check   check every exercise; points and a page of feedback go to grades/

PYTHON ?= python3

.PHONY: setup check
check: .venv/.ready
	.venv/bin/python -m kernels grade . --to grades{chosen}

setup: .venv/.ready

# Without a GPU, torch's CPU build is enough and 20 times smaller.
.venv/.ready: requirements.txt
	@command -v g++ >/dev/null || {{ echo "error: no g++; try: apt install g++"; exit 2; }}
	$(PYTHON) -m venv .venv
	nvidia-smi -L >/dev/null 2>&1 || .venv/bin/pip install -q --index-url {index} torch || true
	.venv/bin/pip install -q -r requirements.txt
	@touch $@
"""

README = """\
# CUDA exercises

You write, the repository checks. No GPU is needed: an emulator runs your kernels, its sanitizer finds broken rules, and
its counters show what they moved. You need Linux, Python 3.10 or newer, g++ and make.

```
make setup     # once, then: source .venv/bin/activate
make check     # check every exercise, as the grade is made
```

| exercise | what | level | points | check it alone |
| --- | --- | --- | --- | --- |
{rows}

Each folder in `practice/` has the file that you write and `TASK.md`: what to write, what to predict on paper, what must
hold. `--watch` instead of `--check` checks at each save, `--hint` gives the next of {hints} hints.
{own}
Push your repository: its workflow runs the same check, with other inputs and sizes, and reports the points.

## For the teacher

Made by version {version} of the course. None of our solutions is in here, nor in a package that `requirements.txt`
installs. In GitHub Classroom, take this repository as the template of an assignment, choose no other tests, and protect
`.github/**/*`, `cudaemu/**/*`, `common/**/*`, `kernels/**/*` and `Makefile`. Students could change their own copy of
the check all the same: for the grades that count use yours, `python -m kernels grade SUBMISSIONS`.
"""

WORKFLOW = """\
# Points for GitHub Classroom: the check that `make check` runs, on the student's own runner.
name: Autograding
on: [push, workflow_dispatch]
permissions:
  contents: read
  actions: read
  checks: write

jobs:
  grade:
    runs-on: ubuntu-24.04
    timeout-minutes: {minutes}
    if: github.actor != 'github-classroom[bot]'
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: make setup
      - id: course
        run: .venv/bin/python -m kernels grade . --to grades --classroom{chosen}
      - uses: classroom-resources/autograding-grading-reporter@v1
        if: always()
        env:
          COURSE_RESULTS: ${{{{ steps.course.outputs.result }}}}
        with:
          runners: course
"""

DEVCONTAINER = {
    "name": "CUDA exercises",
    "image": "mcr.microsoft.com/devcontainers/python:3.12-bookworm",
    "postCreateCommand": "make setup",
    "hostRequirements": {"cpus": 2, "memory": "8gb", "storage": "16gb"},
    "customizations": {"vscode": {"extensions": ["ms-python.python", "ms-vscode.cpptools"]}},
}

IGNORED = ".venv/\n__pycache__/\n/grades/\n/practice/.progress.json\n"


def handout(chosen: Sequence[Exercise], to: Path) -> None:
    """Make the repository `to`, whole or not at all. UserError if `to` is not empty, if the exercises cannot be handed
    out together, or if this is not a checkout of the course."""
    begins = beginnings(chosen)
    if os.path.lexists(to) and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} must be a new or an empty folder: nothing is overwritten")
    if not (ROOT / "pyproject.toml").is_file():
        raise UserError(f"handout must run in a checkout of the course; {ROOT} has no pyproject.toml")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    except OSError as error:
        raise UserError(f"cannot make {to}: {error.strerror}") from None
    try:
        _fill(made, chosen, begins)
        _commit(made)
        made.chmod(0o755)
        os.rename(made, to)
    except OSError as error:
        raise UserError(f"cannot make {to}: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def beginnings(chosen: Sequence[Exercise]) -> dict[str, str]:
    """{name: the exercise whose solution, the reader's own, is its starter}. UserError if a starter would show the
    solution of another."""
    steps = {each.stage: each.name for each in chosen if each.kind == "step" and each.stage}
    found = {}
    for each in chosen:
        before = course.previous(each.stage) if each.kind == "step" and each.stage and not each.patch.source else None
        if before in steps:
            found[each.name] = steps[before]
            continue
        for other in chosen:
            if other is not each and shows(each.start, other) > SHOWN:
                raise UserError(
                    f"the starter of {each.name} shows the solution of {other.name}: hand out one after the other"
                )
    return found


def solution_lines(exercise: Exercise) -> set[str]:
    """The lines of code that are in our solution and not in its starter, without blanks at their ends."""
    ours, begun = (
        {line.strip() for line in text.splitlines() if is_code(line)}
        for text in (exercise.solution.read_text(encoding="utf-8"), exercise.start)
    )
    return {line for line in ours - begun if len(line) > 3}  # not "});"


def shows(text: str, exercise: Exercise) -> float:
    """The share of a solution's lines that a text has."""
    lines = solution_lines(exercise)
    return len(lines & {line.strip() for line in text.splitlines()}) / max(1, len(lines))


def course_for(made: Path, chosen: Sequence[Exercise]) -> dict[str, Path]:
    """What a check of one of these exercises needs of the course, {name in its root: where that is}, without our
    solutions: in `made`, an empty folder, or where it is if this is a repository that was handed out."""
    names = ("cudaemu", "common", "kernels")
    if not (ROOT / "pyproject.toml").is_file():
        return {name: ROOT / name for name in names}
    _course(made, chosen, {})
    return {name: made / name for name in names}


def _course(made: Path, chosen: Sequence[Exercise], begins: dict[str, str]) -> None:
    """The packages, and of each exercise its page, its starter and what its stage is."""
    for package in ("cudaemu", "common"):
        shutil.copytree(ROOT / package, made / package, ignore=shutil.ignore_patterns(FIRST.name))
    for name in ("__init__.py", "__main__.py"):
        _copy(ROOT / "kernels" / name, made)
    for each in chosen:
        if each.stage:
            for path in each.stage.directory.glob("*.py"):
                if path.name in ("__init__.py", "__main__.py", "choices.py"):
                    _copy(path, made)
            (made / each.solution.relative_to(ROOT)).write_text(declared(each), encoding="utf-8")
        page = made / (
            FIRST.relative_to(ROOT) if each.stage is None else each.stage.directory.relative_to(ROOT) / "practice"
        )
        page = page / (
            "step.md" if each.kind == "step" else f"{each.name.partition('-')[2] if each.stage else each.name}.md"
        )
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_page(each, begins.get(each.name, "")), encoding="utf-8")
        if each.name not in begins:
            page.with_suffix(START).write_text(each.start, encoding="utf-8")


def _fill(made: Path, chosen: Sequence[Exercise], begins: dict[str, str]) -> None:
    _course(made, chosen, begins)
    _copy(ROOT / "LICENSE", made)
    names = "".join(f" --exercise {each.name}" for each in chosen)
    rows = "\n".join(
        f"| `{each.name}` | {each.title} | {each.level} | {POINTS} | `{command(each)} --check` |" for each in chosen
    )
    own = "".join(
        f"\n`{name}` begins with your own solution of `{before}`. When that is solved: "
        f"`{command(exercises.find(name))}`\n"
        for name, before in begins.items()
    )
    _write(made / "README.md", README.format(rows=rows, hints=HINTS, own=own, version=cudaemu.__version__))
    _write(made / "Makefile", MAKEFILE.format(chosen=names, index=TORCH_FOR_CPU))
    _write(made / "requirements.txt", "\n".join(_requirements()) + "\n")
    _write(made / ".gitignore", IGNORED)
    _write(made / ".devcontainer" / "devcontainer.json", json.dumps(DEVCONTAINER, indent=2) + "\n")
    minutes = MINUTES * (1 + len(chosen))
    _write(made / ".github" / "workflows" / "classroom.yml", WORKFLOW.format(chosen=names, minutes=minutes))
    begin = (  # there, by its own code: it must work without ours
        "from common.practice.exercises import find; from common.practice.folder import Folder; import sys\n"
        "for name in sys.argv[1:]: Folder(find(name)).begin()"
    )
    words = [sys.executable, "-c", begin, *(each.name for each in chosen if each.name not in begins)]
    done = subprocess.run(words, cwd=made, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."})
    if done.returncode:
        raise UserError(f"the handout does not work: {done.stderr.strip()[-2000:]}")
    for folder in [*made.rglob("__pycache__")]:
        shutil.rmtree(folder)


def _copy(path: Path, made: Path) -> None:
    _write(made / path.relative_to(ROOT), path.read_text(encoding="utf-8"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def declared(exercise: Exercise) -> str:
    """What a solution of a stage's exercise must have: its macros, its launcher."""
    assert exercise.stage is not None
    lines = [
        f"// {exercise.stage.name}: the macros and the launcher that every solution has. Yours is in practice/.",
        "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_runtime.h>\n",
    ]
    for name, macro in macros(exercise.solution).items():
        lines.append(f"#ifndef {name}\n#define {name} {macro.default}  // {macro.help}\n#endif")
    return "\n".join([*lines, "\nusing Element = DTYPE;\n", signature(exercise)]) + "\n"


def _page(exercise: Exercise, begins: str) -> str:
    """The exercise's own page, with fewer hints and without the solution."""
    fields = {key: values for key, values in exercise.patch.fields.items() if key in (*exercises.PAGE, *exercises.MORE)}
    fields["Hint"] = exercise.hints[:HINTS]
    if exercise.limit is not None:
        fields["Limit"] = (str(exercise.limit),)
    if exercise.stage is None:
        fields["File"] = (exercise.solution.relative_to(ROOT).as_posix(),)
    if begins:
        fields["Begins"] = (begins,)
    head = "\n".join(f"{key}: {value}" for key, values in fields.items() for value in values)
    return f"{head}\n\n{exercise.task}\n"


def _requirements() -> list[str]:
    """What the checks need, as this project's own file has it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = []
    for table, wanted in (("dependencies", ".*"), ("course", "torch|rich|matplotlib")):
        listed = re.search(rf"^{table} = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
        assert listed is not None
        found += [each for each in re.findall(r'^ *"([^"]+)"', listed[1], re.MULTILINE) if re.match(wanted, each)]
    return found


def _commit(made: Path) -> None:
    """The first commit, where there is git."""
    if shutil.which("git") is None:
        return
    git = ["git", "-C", str(made), "-c", "user.name=handout", "-c", "user.email=handout@localhost"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Exercises"]):
        done = subprocess.run([*git, *words], capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"git {words[0]}: {done.stderr.strip()}")


__all__ = ["beginnings", "declared", "handout", "shows", "solution_lines"]
