"""The tiers of the tests, their shards, and what ends a run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiers import core

ROOT = Path(__file__).parents[1]
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # of this run's own

THREE_TIERS = """
import pytest
from tests.tiers import core

def test_core(): pass
@pytest.mark.full
def test_full(): pass
@pytest.mark.gpu
def test_gpu(): pass
@pytest.mark.parametrize("number", core(range(4), lambda number: number % 2))
def test_number(number): pass
"""

# A test that an interrupt of its process alone does not end, with a program that it has started.
STUBBORN = """
import subprocess, time
from pathlib import Path

def test_that_hangs():
    program = subprocess.Popen(["sleep", "600"])
    Path({started!r}).write_text(str(program.pid))
    while True:
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            pass
"""


def command(folder: Path, text: str, *words: str) -> list[str]:
    """A run of the tests in `text` by the rules of this folder."""
    (folder / "test_of_a_run.py").write_text(text)
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    markers = "markers=full: x\n gpu: x"
    return [sys.executable, "-m", "pytest", *options, "-o", markers, *words, str(folder)]


def run(folder: Path, text: str, *words: str) -> str:
    done = subprocess.run(
        command(folder, text, *words), cwd=ROOT, env=OUTSIDE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_of_each_kind_is_in_the_core():
    marked = core(
        [3, (1, "a"), pytest.param(5, marks=pytest.mark.alone, id="five"), 4, 6, 7], lambda n, *_: n % 2 or None
    )
    assert [each.values for each in marked] == [(3,), (1, "a"), (5,), (4,), (6,), (7,)]
    assert [[mark.name for mark in each.marks] for each in marked] == [
        [],
        ["full"],
        ["alone", "full"],
        ["full"],
        ["full"],
        ["full"],
    ]
    assert [each.id for each in marked] == [None, None, "five", None, None, None]


@pytest.mark.full
@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_the_core_leaves_out_is_said(processes, tmp_path):
    said = run(tmp_path, THREE_TIERS, "-n", processes, "-m", "not full and not gpu")
    assert "3 passed" in said and "Left out: 3 `make test-all` runs them; 1 need a GPU, `make test-gpu`" in said
    assert "Left out" not in run(tmp_path, THREE_TIERS)


@pytest.mark.full
def test_shards_are_all_tests_once(tmp_path):
    found = [re.findall(r"::(\S+)", run(tmp_path, THREE_TIERS, "--co", "--shard", f"{n}/3")) for n in (1, 2, 3)]
    assert sorted(sum(found, [])) == sorted(re.findall(r"::(\S+)", run(tmp_path, THREE_TIERS, "--co")))
    assert [len(each) for each in found] == [3, 2, 2]
    with pytest.raises(AssertionError, match="--shard must be I/N"):
        run(tmp_path, THREE_TIERS, "--shard", "4/3")


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_pytest_alone_ends_its_processes_and_theirs(number, tmp_path):
    note = tmp_path / "started"
    words = command(tmp_path, STUBBORN.format(started=str(note)), "-n", "1")
    run = subprocess.Popen(
        words, cwd=ROOT, env=OUTSIDE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    program = Path("/proc", note.read_text())
    assert program.exists()
    os.kill(run.pid, number)
    assert run.wait(300) == pytest.ExitCode.INTERRUPTED
    deadline = (
        time.monotonic() + 10
    )  # its parent has ended: when it is taken from the table is up to the machine's init
    while program.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not program.exists() or " Z " in (program / "stat").read_text()
