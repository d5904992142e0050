"""The commands of docs/results/record.sh, and those that recorded runs name: the command line takes each of them.

All stages, and all changes that were tried, are in the script."""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from common import cli, course
from common.measure import contest, ncu
from common.results import runs
from common.results.runs import RESULTS
from common.verbs import bench, options
from cudaemu.errors import UserError

SCRIPT = RESULTS / "record.sh"
GONE = {  # runs of what the course no longer has; who shows them names their commit
    "tried-15-64.json": "has no stage",
    "tried-15-128.json": "has no stage",
    "steps-10.json": "has no variant",
    "one-way-16-64.json": "has no trial",
    "one-way-16-128.json": "has no trial",
}
STAGES = course.everything()
TRIALS = [(stage, name) for stage in STAGES for name in options.trials(stage)]


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """The words of all commands of the script, by the names of the files that they make."""
    folder = tmp_path_factory.mktemp("record")
    stub = folder / "python"
    stub.write_text(
        "#!/usr/bin/env bash\n"
        'printf "%s\\n" "$@" | python3 -c "import json, sys; '
        'print(json.dumps(sys.stdin.read().splitlines()))" >>"$LOG"\n'
    )
    stub.chmod(0o755)
    log = folder / "log"
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "PYTHON": str(stub), "LOG": str(log)}
    done = subprocess.run(["bash", SCRIPT, folder], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {words[-1].rpartition("/")[2]: words[1:-2] for words in lines}


@pytest.fixture
def take(fake_gpu, monkeypatch, capsys):
    """take(package, words): what would be measured. UserError for words that the command line does not know."""
    asked: list = []

    def build(found):
        asked.extend(found)
        raise UserError("no need to measure")

    monkeypatch.setattr(bench, "_measure", lambda heats, args: asked.extend(heats) or 0)
    monkeypatch.setattr(contest, "build", build)
    monkeypatch.setattr(ncu, "available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def call(package: str, words: list[str]) -> list:
        asked.clear()
        try:
            if package.startswith("kernels"):
                cli._dispatch(package, words)
            else:
                assert importlib.import_module(package).main(words) == 2 and "need a GPU" in capsys.readouterr().err
        except UserError as error:
            if "no need" not in str(error):
                raise
        return list(asked)

    return call


def test_all_commands_are_taken(commands, take):
    asked = [each for package, *words in commands.values() for each in take(package, words)]
    benched = {e.kernel.stage.name for heat in asked if isinstance(heat, contest.Heat) for e in heat.entries}
    profiled = {kernel.stage.name for kernel in asked if not isinstance(kernel, contest.Heat)}
    assert benched == profiled == {stage.name for stage in STAGES}


def test_recorded_runs_name_commands_that_are_taken_and_their_own_files(commands, take):
    """So that whoever reads one can type it: in the script most of them are the same."""
    known, gone = {tuple(words) for words in commands.values()}, {}
    for run in runs.runs():
        python, m, package, *words = shlex.split(run["command"])
        assert (python, m, words[-2:]) == ("python", "-m", ["--json", run["file"]])
        assert not [word for word in words if "/" in word and not Path(runs.ROOT, word).exists()]
        if (package, *words[:-2]) in known:
            continue
        try:
            take(package, words[:-2])
        except UserError as error:
            gone[run["file"]] = str(error)
    assert set(gone) == set(GONE) and all(why in gone[file] for file, why in GONE.items()), gone


@pytest.mark.parametrize("stage, name", TRIALS, ids=lambda each: getattr(each, "number", each))
def test_a_trial_changes_its_stage_s_kernel(stage, name):
    source = options.write_trial(stage, name)
    assert source.read_text() != stage.source.read_text()
    assert options.trials(stage)[name].source == stage.source.relative_to(runs.ROOT).as_posix()
    assert options.trials(stage)[name].first("Trial")


def test_every_trial_is_timed_by_the_script(commands):
    timed = {
        (package.rpartition(".")[2], words[words.index("--trial") + 1])
        for package, *words in commands.values()
        if "--trial" in words
    }
    assert timed == {(stage.name, name) for stage, name in TRIALS}


def test_a_trial_is_named_by_its_patch_and_not_by_the_file_that_it_makes(take):
    with pytest.raises(UserError, match="has no trial 'one-wy'. Did you mean 'one-way'"):
        take("kernels.11_any_shape", ["bench", "--trial", "one-wy"])
    (heat,) = take("kernels.11_any_shape", ["bench", "--trial", "one-way", "--sizes", "256"])
    ours, changed = (entry.kernel for entry in heat.entries[-2:])
    assert (ours.origin, changed.origin) == (None, "trials/one-way.patch")
    assert changed.label == f"{ours.label} (trials/one-way.patch)"
    with pytest.raises(UserError, match="--trial must be given to one stage"):
        take("kernels", ["bench", "--trial", "one-way"])
