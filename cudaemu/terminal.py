"""What the commands print: results on stdout, everything that only accompanies them on stderr.

Output is made for 80 columns, and is never narrower: a terminal that wraps loses nothing, a cell that is cut does.
Streams that cannot write a character (an ASCII terminal) get the nearest that they can.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import sys
import threading
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

from cudaemu.errors import CheckFailed, UserError

WIDTH = 80  # columns


class _Console(Console):
    """A console without two of rich's habits: it does not cut cells, nor end the program at a broken pipe."""

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

NEAREST = str.maketrans("→×÷–−▸·…µ±√≤≥“”’█━╸╺", '>x/-->*.u~v<>""\'#---')
_announced: set[str] = set()
_display = threading.Lock()  # rich shows one live display at a time: an inner one, or another thread's, stays silent


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """What is written for characters that the stream's encoding lacks: one for one, so that columns stay columns."""
    assert isinstance(error, UnicodeEncodeError)
    spelt = error.object[error.start : error.end].translate(NEAREST)
    return spelt.encode(error.encoding, "replace").decode(error.encoding), error.end


def prepare() -> None:
    """Make stdout and stderr take every character, whatever their encoding."""
    codecs.register_error("nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="nearest")


def finish() -> None:
    """Write out what is left. OSError if stdout does not take it."""
    if sys.stdout is not None:
        sys.stdout.flush()


def abandon() -> None:
    """Send what is still to come to nowhere: stdout takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def announce(text: str) -> None:
    """Say something on stderr that is worth saying once per process."""
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
    """A kernel's label in lines of `width` at most, for a head of a column: new ones begin at blanks, or behind a _."""
    lines = []
    for word in label.split():
        lines.append("")
        for piece in re.findall(r"[^_]*_?", word):
            if len(lines[-1]) + len(piece) > width:
                lines.append("")
            lines[-1] += piece
    return "\n".join(filter(None, lines))


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, or a spinner if the total is unknown; nothing if stderr is no terminal.

    Yields `update(text=None, advance=0, completed=None, total=None)`, which may be called from other threads."""
    if not err.is_terminal or not _display.acquire(blocking=False):
        yield lambda *_, **__: None
        return
    try:
        measure: tuple[ProgressColumn, ...] = () if total is None else (BarColumn(), MofNCompleteColumn())
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *measure, TimeElapsedColumn())
        with Progress(*columns, console=err, transient=True) as display:
            task = display.add_task(text, total=total)

            def update(text: str | None = None, **change: Any) -> None:
                display.update(task, description=text, **change)

            yield update
    finally:
        _display.release()


def complain(error: UserError) -> None:
    """Say what is wrong with what the user gave."""
    err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)


def leave(run: Callable[[], int]) -> NoReturn:
    """Exit with the status that `run` gives, or with the one for what it raises, said in words."""
    prepare()
    try:
        try:
            status = run()
        except SystemExit as shown:  # argparse has printed its help
            status = int(shown.code or 0)
        finish()
    except UserError as error:
        complain(error)
        status = 2
    except CheckFailed as failure:
        err.print(str(failure), markup=False, soft_wrap=True)
        status = 1
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        abandon()
        status = 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF):
            raise
        abandon()
        where = f" {error.filename}" if error.filename else ""
        err.print(f"error: cannot write{where}: {error.strerror}", markup=False, soft_wrap=True)
        status = 2
    raise SystemExit(status)
