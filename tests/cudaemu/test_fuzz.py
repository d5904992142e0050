"""Thousands of broken PTX texts: each gives a result or a clear error, in time, and the process lives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.core(every=5)
@pytest.mark.parametrize(
    ("stage", "mutants"),
    [
        ("parse", range(800)),
        ("parse", range(800, 4000)),
        ("run", range(1000)),
        ("run", range(1000, 2000)),
        ("run --grammatical", range(1000)),
    ],
)
def test_mutants(stage, mutants):
    words = ["--stage", *stage.split(), "--from", str(mutants.start), "--count", str(mutants.stop)]
    command = [sys.executable, "-m", "tests.cudaemu.fuzz", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200)
    last = done.stderr.strip().splitlines()[-1:]
    assert done.returncode == 0, f"the process ended with {done.returncode} at {last}"
    *bad, outcomes = map(json.loads, done.stdout.splitlines())
    assert not bad, "\n\n".join(f"{case['case']}: {case['outcome']}" for case in bad[:10])
    assert outcomes["ran"] + outcomes["refused"] >= len(mutants) and min(outcomes.values()) > len(mutants) // 10
