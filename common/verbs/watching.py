"""Watching a source: checks it again whenever the file is saved."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common import terminal
from cudaemu.compiler import toolchain
from cudaemu.errors import ToolFailed, UserError

POLL = 0.05  # seconds between looks at a source that is watched


@dataclass(frozen=True)
class Key:
    """What a key does while a source is watched; `ends`: the watching, too."""

    word: str
    does: Callable[[], object]
    ends: bool = False


def watch(source: Path, check: Callable[[], object], keys: Mapping[str, Key] | None = None) -> None:
    """Call `check` now, and again after each change of the source or of what it includes, until Ctrl-C or a key.

    `keys` are read where stdin is a terminal.

    UserError if the first check raises one that no change of the source can fix."""
    again = False
    while True:
        text, started = toolchain.source_texts(source.resolve()), time.monotonic()
        try:
            check()
        except UserError as error:
            if not again and not isinstance(error, ToolFailed):
                raise
            terminal.complain(error)
        again = True
        seconds = time.monotonic() - started
        at = time.strftime("%H:%M:%S")
        said = f"\n{at}, {seconds:.1f} s; again when {source} changes (Ctrl-C ends)"
        terminal.err.print(said, markup=False, soft_wrap=True)
        with _single_keys(bool(keys)) as pressed:
            if pressed:
                named = "  ".join(f"{key} {what.word}" for key, what in (keys or {}).items())
                terminal.err.print(named, markup=False, style="bold")
            while _texts(source) in (text, None):
                key = (keys or {}).get(pressed()) if pressed else None
                if key is None:
                    time.sleep(POLL)
                    continue
                try:
                    key.does()
                except UserError as error:
                    terminal.complain(error)
                    continue
                if key.ends:
                    return


@contextmanager
def _single_keys(wanted: bool) -> Iterator[Callable[[], str] | None]:
    """Yields what reads a key without waiting for one, "" if none was pressed; None without a terminal."""
    if not (wanted and sys.stdin and sys.stdin.isatty()):
        yield None
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)  # Ctrl-C stays what it is
        yield lambda: os.read(number, 1).decode(errors="ignore") if select.select([number], [], [], 0)[0] else ""
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _texts(source: Path) -> list[str] | None:
    """The source with what it includes; None while there is none, since an editor is writing it."""
    try:
        return toolchain.source_texts(source.resolve())
    except UserError:
        return None
