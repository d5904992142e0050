"""docs/results/record.sh: each of its commands is one that the command line takes, and all stages are in them."""

from __future__ import annotations

import json
import subprocess

import pytest

import kernels
from common import cli
from common.measure import contest, ncu
from common.results.runs import RESULTS
from common.verbs import bench
from cudaemu.errors import UserError

SCRIPT = RESULTS / "record.sh"


@pytest.fixture
def commands(tmp_path):
    """The words of all commands of the script, by the names of the files that they make."""
    stub = tmp_path / "python"
    stub.write_text(
        "#!/usr/bin/env bash\n"
        'printf "%s\\n" "$@" | python3 -c "import json, sys; '
        'print(json.dumps(sys.stdin.read().splitlines()))" >>"$LOG"\n'
    )
    stub.chmod(0o755)
    log = tmp_path / "log"
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "PYTHON": str(stub), "LOG": str(log)}
    done = subprocess.run(["bash", SCRIPT, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {words[-1].rpartition("/")[2]: words[1:-2] for words in lines}


def test_all_commands_are_taken(commands, fake_gpu, monkeypatch):
    asked: dict[str, list] = {}
    name = ""

    def build(found):
        asked[name] = list(found)
        raise UserError("no need to measure")

    monkeypatch.setattr(bench, "_measure", lambda heats, args: asked.update({name: heats}) or 0)
    monkeypatch.setattr(contest, "build", build)
    monkeypatch.setattr(ncu, "available", lambda: True)
    for name, (package, *words) in commands.items():
        if package.startswith("kernels"):
            try:
                cli._dispatch(package, words)
            except UserError as error:
                assert "no need" in str(error), (name, error)
        else:
            assert package in {f"common.measure.{module}" for module in ("ceiling", "first", "fused")} and not words
    benched = {
        e.kernel.stage.name for heats in asked.values() for h in heats if isinstance(h, contest.Heat) for e in h.entries
    }
    profiled = {k.stage.name for found in asked.values() for k in found if not isinstance(k, contest.Heat)}
    assert benched == profiled == set(kernels.names())
