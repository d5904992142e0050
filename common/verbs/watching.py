"""Watching a source: checks it again whenever the file is saved."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from common import terminal
from cudaemu.compiler import toolchain
from cudaemu.errors import ToolFailed, UserError

POLL = 0.05  # seconds between looks at a source that is watched


def watch(source: Path, check: Callable[[], object]) -> NoReturn:
    """Call `check` now, and again after each change of the source or of what it includes, until Ctrl-C.

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
        terminal.err.print(
            f"\n{seconds:.1f} s; again when {source} changes (Ctrl-C ends)", markup=False, soft_wrap=True
        )
        while _texts(source) in (text, None):
            time.sleep(POLL)


def _texts(source: Path) -> list[str] | None:
    """The source with what it includes; None while there is none, since an editor is writing it."""
    try:
        return toolchain.source_texts(source.resolve())
    except UserError:
        return None
