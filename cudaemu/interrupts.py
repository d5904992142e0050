"""Ctrl-C while the command's modules are imported, which takes a fifth of a second. This one imports little."""

from __future__ import annotations

import os
import signal
import sys


def quiet_for(command: str) -> None:
    """If this process is that command, Ctrl-C ends it without a traceback, until `as_usual`. A program that only
    imports the package keeps its own way."""
    first = sys.argv[0] if sys.argv else ""
    module = " ".join(sys.orig_argv).partition(" -m")[2].split()[:1] if first == "-m" else []
    is_command = module == [command] or os.path.basename(first) == command
    if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def as_usual() -> None:
    """From here on a KeyboardInterrupt is caught."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os._exit(130)
