"""How the emulator's command talks: what is coloured, when it asks for patience."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudaemu import terminal

ROOT = Path(__file__).parents[2]
RED = "\x1b[31m"


def on_a_terminal(script: str, **environment: str) -> str:
    """What a script writes to stderr if that is a terminal."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    words = [sys.executable, "-c", f"from cudaemu import terminal\n{script}"]
    subprocess.run(words, cwd=ROOT, stderr=theirs, env=plain | environment, timeout=60, check=False)
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 1 << 16):
            said += piece
    except OSError:  # EIO: the other end is closed
        pass
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("script", ["terminal.say('found', 'red')", "terminal.complain(ValueError('wrong'))"])
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),  # no-color.org: "when present and not an empty string"
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_a_terminal_gets_colour_unless_it_is_unwanted(script, environment, coloured):
    said = on_a_terminal(script, **environment)
    assert (RED in said) == coloured and ("found" in said or "wrong" in said)
    assert coloured or "\x1b" not in said


def test_what_is_no_terminal_gets_plain_text(capsys):
    terminal.say("found", "red")
    terminal.complain(ValueError("wrong"))
    assert capsys.readouterr() == ("", "found\nerror: wrong\n")


def test_patience_is_asked_for_only_if_something_is_slow(capsys):
    with terminal.if_slow("compiling", after=0.2):
        pass
    time.sleep(0.4)
    assert capsys.readouterr().err == ""
    with terminal.if_slow("compiling", after=0.01):
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "compiling\n")
