"""What the course's commands print, beyond plain lines (cudaemu.terminal): tables, titles, progress.

Output is made for 80 columns, and is never narrower: a terminal that wraps loses nothing, a cell that is cut does.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console, ConsoleDimensions, Group
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from cudaemu.terminal import complain, leave

__all__ = ["announce", "complain", "err", "fold", "leave", "out", "progress", "table", "titled"]

WIDTH = 80  # columns
PAUSE = 60.0  # seconds between lines that tell a log how far a command is


class _Console(Console):
    """A console without two of rich's habits: it does not cut cells, and does not end the program at a broken pipe."""

    least = WIDTH

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        width, height = super().size
        return ConsoleDimensions(max(self.least, width), height)

    def on_broken_pipe(self) -> NoReturn:
        raise  # called while the error is handled: the caller is to know


class _Accompaniment(_Console):
    """stderr: its lines wrap by themselves, and progress bars have to fit a narrow terminal."""

    least = 20


out = _Console(highlight=False)
err = _Accompaniment(stderr=True, highlight=False)

_announced: set[str] = set()
_display = threading.Lock()  # rich shows one live display at a time: an inner one, or another thread's, stays silent


def announce(text: str) -> None:
    """Print something on stderr once per process."""
    if text not in _announced:
        _announced.add(text)
        err.print(text, style="yellow", markup=False, soft_wrap=True)


def table(gap: int = 2) -> Table:
    """An empty table without lines, its columns `gap` apart."""
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")


def titled(title: str, body: Table, *notes: str) -> Group:
    """A table under its title, with notes below it; a blank line goes before."""
    return Group(Text(f"\n{title}", style="bold"), body, *(Text(note) for note in notes))


def fold(label: str, width: int = 14) -> str:
    """A kernel's label in lines of `width` at most, for a head of a column: new ones begin at blanks, or after a _."""
    lines = []
    for word in label.split():
        lines.append("")
        for piece in re.findall(r"[^_]*_?", word):
            if len(lines[-1]) + len(piece) > width:
                lines.append("")
            lines[-1] += piece
    return "\n".join(filter(None, lines))


class _Lines:
    """Progress for a log."""

    def __init__(self, text: str, total: float | None):
        self.text, self.total, self.done, self.guard = text, total, 0.0, threading.Lock()
        self.began = self.said = time.monotonic()

    def update(
        self, text: str | None = None, advance: float = 0, completed: float | None = None, total: float | None = None
    ) -> None:
        with self.guard:
            self.text, self.total = text or self.text, total or self.total
            self.done = self.done + advance if completed is None else completed
            now = time.monotonic()
            if self.total and now - self.said >= PAUSE:
                self.said = now
                minutes = int(now - self.began) // 60
                print(f"{self.text}: {self.done:g} of {self.total:g}, {minutes} min", file=sys.stderr, flush=True)


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, or a spinner if the total is unknown. In a log, which is no
    terminal, a line each minute, if the total is known; nothing in a notebook.

    Yields `update(text=None, advance=0, completed=None, total=None)`, which may be called from other threads."""
    if (not err.is_terminal and "ipykernel" in sys.modules) or not _display.acquire(blocking=False):
        yield lambda *_, **__: None
        return
    try:
        if not err.is_terminal:
            yield _Lines(text, total).update
            return
        measure: tuple[ProgressColumn, ...] = () if total is None else (BarColumn(), MofNCompleteColumn())
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *measure, TimeElapsedColumn())
        with Progress(*columns, console=err, transient=True) as display:
            task = display.add_task(text, total=total)

            def update(text: str | None = None, **change: Any) -> None:
                display.update(task, description=text, **change)

            yield update
    finally:
        _display.release()
