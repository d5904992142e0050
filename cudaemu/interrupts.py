"""Ctrl-C: while a command's modules are imported, which takes a fifth of a second, and while other threads wait for
tools. This module imports little."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_tools: set[Callable[[], None]] = set()


def quiet_for(command: str) -> None:
    """If this process is that command, Ctrl-C ends it without a traceback, until `as_usual`. A program that only
    imports the package keeps its own way."""
    first = sys.argv[0] if sys.argv else ""
    module = " ".join(sys.orig_argv).partition(" -m")[2].split()[:1] if first == "-m" else []
    is_command = module == [command] or os.path.basename(first) == command
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def as_usual() -> None:
    """From here on, in a command, Ctrl-C ends the tools that run and raises KeyboardInterrupt; pressed again, it ends
    the process."""
    if signal.getsignal(signal.SIGINT) in (_end, signal.SIG_DFL, signal.default_int_handler):
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def ending(end: Callable[[], None]) -> Iterator[None]:
    """While the block runs, Ctrl-C calls `end`: Python waits for every thread, and a thread for its tool."""
    _tools.add(end)
    try:
        yield
    finally:
        _tools.discard(end)


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGINT, _end)
    for end in [*_tools]:
        end()
    raise KeyboardInterrupt


def _end(*_: object) -> None:
    show_cursor()
    os._exit(130)


def show_cursor() -> None:
    """A line of progress hides the cursor of a terminal, and may be ended before it shows it again."""
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\x1b[?25h")
