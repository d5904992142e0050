"""The two kinds of failure that are not bugs here; the most common is an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class UserError(ValueError):
    """Something that the user can fix: the message says what is wrong and what to do. Exit status 2."""


class BadOption(UserError):
    """A command line, or an option, that cannot be: nothing was tried."""


class NotCompiled(UserError):
    """A source that does not compile or link."""


class ToolFailed(NotCompiled):
    """A tool's error about its input, which repeats as long as the input is the same."""


class CheckFailed(Exception):
    """A kernel that is wrong or breaks a rule of the hardware: the message is the report. Exit status 1."""


def pick(text: str, names: Sequence[str], what: str, owner: str) -> str:
    """`text` if it is one of `names`; otherwise a UserError that lists them, and the likeliest."""
    if text in names:
        return text
    likely = difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{likely[0]}'?" if likely else ""
    raise UserError(f"{owner} has no {what} '{text}'.{hint} It has: {', '.join(names) or 'none'}")
