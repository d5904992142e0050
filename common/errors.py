"""The two ways in which a command ends badly without being a bug of ours."""

from __future__ import annotations


class UserError(Exception):
    """Something that the user can mend: the message says what is wrong and what to do. Exit status 2."""


class CheckFailed(Exception):
    """A kernel that is wrong or breaks a rule of the hardware: the message is the report. Exit status 1."""
