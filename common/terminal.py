"""What the commands print: results on stdout, everything that only accompanies them on stderr."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

PLAIN = {
    "box": None,
    "pad_edge": False,
    "header_style": "bold",
    "title_justify": "left",
    "title_style": "bold",
}  # tables

_announced: set[str] = set()
_display = threading.Lock()  # rich shows one live display at a time: an inner one, or another thread's, stays silent


def announce(text: str) -> None:
    """Say something on stderr that is worth saying once per process."""
    if text not in _announced:
        _announced.add(text)
        err.print(text, style="yellow", markup=False)


@contextmanager
def progress(text: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, or a spinner if the total is unknown; nothing if stderr is no terminal.

    Yields `update(text=None, advance=0, completed=None, total=None)`, which may be called from other threads."""
    if not err.is_terminal or not _display.acquire(blocking=False):
        yield lambda *_, **__: None
        return
    try:
        measure = () if total is None else (BarColumn(), MofNCompleteColumn())
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *measure, TimeElapsedColumn())
        with Progress(*columns, console=err, transient=True) as display:
            task = display.add_task(text, total=total)

            def update(text: str | None = None, **change: float) -> None:
                display.update(task, description=text, **change)

            yield update
    finally:
        _display.release()
