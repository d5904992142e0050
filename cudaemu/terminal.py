"""A command's output: results on stdout, everything else on stderr, in colour on a terminal.

Streams that cannot write a character (an ASCII terminal) get a similar one.
"""

from __future__ import annotations

import codecs
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from cudaemu import interrupts
from cudaemu.errors import CheckFailed, UserError

NEAREST = str.maketrans("→×÷–−▸·…µ±√≤≥“”’█━╸╺", '>x/-->*.u~v<>""\'#---')
STYLES = {"bold": "1", "red": "31", "yellow": "33"}  # of ANSI's escape codes
CLEAR_LINE = "\r\x1b[K"


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


def hold_standard_descriptors() -> None:
    """Open those of the descriptors 0 to 2 that are closed (`>&-`) to nowhere: what is opened next is not to get their
    numbers, which every program that is started takes for its streams."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def finish() -> None:
    """Write out what is left. OSError if stdout does not take it."""
    if sys.stdout is not None:
        sys.stdout.flush()


def abandon() -> None:
    """Discard the rest of the output: stdout is closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def show(text: str) -> None:
    """Write to stdout, if there is one."""
    if sys.stdout is not None:
        sys.stdout.write(text)


def is_watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def styled(text: str, style: str | None) -> str:
    """`text` in one of STYLES if stderr is a terminal that shows them; NO_COLOR (no-color.org) turns them off."""
    if style is None or not is_watched() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def say(text: str = "", style: str | None = None) -> None:
    """Print a line on stderr; `style` is one of STYLES."""
    if sys.stderr is not None:
        print(styled(text, style), file=sys.stderr, flush=True)


def complain(error: UserError) -> None:
    """Print an error about the user's input."""
    say(f"{styled('error:', 'red')} {error}")


@contextmanager
def if_slow(text: str, after: float = 1.0) -> Iterator[None]:
    """Say `text` on stderr if the block takes longer than `after` seconds."""
    timer = threading.Timer(after, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def leave(run: Callable[[], int], unusable: Callable[[Exception], int] = lambda error: 2) -> NoReturn:
    """Exit with the status that `run` returns, or print what it raises and exit with the status for that: what
    `unusable` makes of a UserError, and of output that cannot be written."""
    prepare()
    try:
        try:
            interrupts.as_usual()
            status = run()
        except SystemExit as shown:  # argparse has printed its help
            status = int(shown.code or 0)
        finish()
    except UserError as error:
        complain(error)
        status = unusable(error)
    except CheckFailed as failure:
        say(str(failure))
        status = 1
    except KeyboardInterrupt:
        interrupts.show_cursor()
        status = 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        abandon()
        status = 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF):
            raise
        abandon()
        where = f" {error.filename}" if error.filename else ""
        say(f"error: cannot write{where}: {error.strerror}")
        status = unusable(error)
    raise SystemExit(status)
