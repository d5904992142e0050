"""The two ways in which a command ends without an answer."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend; the message says what to do. The command line prints it and exits with status 2."""


class CheckFailed(Exception):
    """A wrong result or a finding of the sanitizer. The command line prints the report and exits with status 1."""
