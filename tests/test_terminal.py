"""What the commands print, whatever they print to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rich.text import Text

import kernels
from common import terminal
from common.stage import KERNELS
from cudaemu.terminal import NEAREST
from tests.printed import shown

ROOT = KERNELS.parent
DIFF = "-m kernels.02_block_tile diff --context 1000"


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script of bash in which `python` is ours; its output as the bytes that they are, read as UTF-8."""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONIOENCODING")}
    script = f'set -o pipefail; python() {{ {sys.executable} "$@"; }}; {script}'
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, env=kept | environment, timeout=60
    )


def test_a_narrow_terminal_cuts_nothing():
    wide = shell("python -m kernels list").stdout
    assert all(stage.name in wide and stage.summary in wide for stage in kernels.ladder())
    for columns in ("0", "1", "40", "nonsense"):
        assert shell("python -m kernels list", COLUMNS=columns).stdout == wide, columns


def test_tables_use_what_a_wide_terminal_has():
    made = terminal.table()
    made.add_column("x" * 100)
    assert shown(made, width=120) == "x" * 100


def test_a_title_is_as_wide_as_the_terminal_not_as_its_table():
    made = terminal.table()
    made.add_column("a")
    made.add_row("1")
    title, note = "a title of some words", "a note of some words, too"
    assert shown(terminal.titled(title, made, note)) == f"\n{title}\na\n1\n{note}"


@pytest.mark.parametrize(
    "label, lines",
    [
        ("02_block_tile fp16", ["02_block_tile", "fp16"]),
        ("10_register_double_buffer fp16 STAGES=2", ["10_register_", "double_buffer", "fp16", "STAGES=2"]),
        ("x fp16 (/a/very/long/name.cu)", ["x", "fp16", "(/a/very/long/name.cu)"]),
    ],
)
def test_labels_are_folded_at_blanks_and_underscores(label: str, lines: list[str]):
    assert terminal.fold(label).split("\n") == lines


def test_an_ascii_stream_gets_the_nearest_characters():
    text = shell("python -m kernels.07_cp_async; python -m kernels.07_cp_async test --help", PYTHONIOENCODING="ascii")
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout.isascii() and "Stage 07_cp_async" in text.stdout
    listed = shell("python -m kernels list", PYTHONIOENCODING="ascii").stdout
    assert "8 x 8 outputs per thread" in listed and "global > shared" in listed, "one for one: columns stay columns"


def test_a_reader_that_has_seen_enough_is_no_error():
    done = shell(f"python {DIFF} | true")  # is gone long before Python has something to print
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", [DIFF, "-m kernels list", "-m kernels.01_naive test --help"])
def test_a_full_disk_is_named(command: str):
    done = shell(f"python {command} > /dev/full")
    assert (done.returncode, done.stderr) == (2, "error: cannot write: No space left on device\n")


@pytest.mark.parametrize("command", [DIFF, "-m kernels list", "-m kernels.01_naive test --help"])
def test_a_closed_stdout_is_no_traceback(command: str):
    done = shell(f"python {command} >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_all_that_may_be_closed_may_be():
    done = shell("python -m kernels.99_nope test >&- 2>&-; python -m kernels.01_naive nope >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_announcements_are_made_once(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "_announced", set())
    for _ in range(2):
        terminal.announce("a sentence [of] words " * 10)
    assert capsys.readouterr().err == "a sentence [of] words " * 10 + "\n"


def test_progress_in_a_log_is_a_line_from_time_to_time(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # other tests of this process import it
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    with terminal.progress("outer", total=200) as update, terminal.progress("inner", total=1) as inner:
        for clock[0] in (1.0, 59.0, 61.0, 119.0, 122.0):
            update("text", advance=1)
            inner(completed=3)
        clock[0] = 300.0
        monkeypatch.setitem(sys.modules, "ipykernel", None)
    with terminal.progress("in a notebook", total=2) as update:
        clock[0] = 400.0
        update(advance=1)
    assert capsys.readouterr() == ("", "text: 3 of 200, 1 min\ntext: 5 of 200, 2 min\n")


def test_the_table_of_nearest_characters_has_no_other_ones():
    assert all(0 < code < 128 for code in NEAREST.values())
    assert shown(Text("→ × ÷").copy()).translate(NEAREST) == "> x /"
