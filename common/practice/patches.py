"""Patches whose first lines say what they are for: a kernel broken on purpose, a kernel with a hole, a
change that was tried and timed.

    Key: value              lines of this kind, each key once unless the reader of the file lets it repeat
    (a blank line)
    prose                   may be missing, with the blank line
    --- a/FILE              a unified diff of one file; a page that changes nothing has none
    +++ b/FILE

git and patch take such a file as it is. Pieces are found by their text, not by their line numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Hunk:
    """A piece of a unified diff: whole lines that are in the source once, and those that replace them."""

    old: str
    new: str


@dataclass(frozen=True)
class Patch:
    """One file: its keys and prose, and what it changes in `source`, from the repository's root ("": nothing)."""

    path: Path
    fields: Mapping[str, tuple[str, ...]]
    prose: str
    source: str
    hunks: tuple[Hunk, ...]

    def first(self, key: str, default: str = "") -> str:
        """The value of a key that is there once; `default` if it is not."""
        return self.fields.get(key, (default,))[0]

    def apply(self, text: str) -> str:
        """The source with the changes made. ValueError if the patch does not fit it."""
        for hunk in self.hunks:
            if (times := text.count(hunk.old)) != 1:
                raise ValueError(f"{self.path.name}: {self.source} has this {times} times:\n{hunk.old}")
            text = text.replace(hunk.old, hunk.new)
        return text

    @property
    def lines(self) -> int:
        """How many lines it removes and adds that hold code."""
        changed = (set(h.old.splitlines()) ^ set(h.new.splitlines()) for h in self.hunks)
        return sum(is_code(line) for lines in changed for line in lines)


def is_code(line: str) -> bool:
    """Whether a line holds more than blanks and a comment to the end of the line."""
    return bool(re.sub(r"//.*", "", line).strip())


def read(path: Path, required: Sequence[str], optional: Sequence[str] = (), repeated: Sequence[str] = ()) -> Patch:
    """The patch in a file; keys are `required` or `optional`, and those in `repeated` may be there more than once.

    ValueError, naming the file and the line, if it is not such a patch."""
    text = path.read_text(encoding="utf-8")
    head, dashes, diff = text.partition("\n--- a/")
    head, _, prose = head.partition("\n\n")
    fields: dict[str, tuple[str, ...]] = {}
    for line in head.rstrip("\n").split("\n"):
        key, colon, value = line.partition(":")
        if not colon or key not in (*required, *optional) or (key in fields and key not in repeated):
            raise ValueError(
                f"{path.name}: the lines before a patch must be 'Key: value' with a known key, got '{line}'"
            )
        fields[key] = (*fields.get(key, ()), value.strip())
    if missing := [key for key in required if key not in fields]:
        raise ValueError(f"{path.name} does not say '{missing[0]}:'")
    source, hunks = _hunks(path.name, dashes.lstrip("\n") + diff) if dashes else ("", ())
    return Patch(path, fields, prose.strip(), source, hunks)


def _hunks(name: str, diff: str) -> tuple[str, tuple[Hunk, ...]]:
    """The file that a unified diff changes, and its pieces."""
    header = re.match(r"--- a/(\S+)\n\+\+\+ b/(\S+)\n(?=@@ )", diff)
    if not header or header[1] != header[2]:
        raise ValueError(f"{name} changes no single file, named with a/ and b/")
    hunks = []
    for piece in re.split(r"^(?=@@ )", diff[header.end() :], flags=re.M)[1:]:
        first, *lines = piece.rstrip("\n").split("\n")
        lengths = re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", first)
        old, new = ([line[1:] + "\n" for line in lines if line[:1] != other] for other in "+-")
        if not lengths or (len(old), len(new)) != tuple(int(length or 1) for length in lengths.groups()):
            raise ValueError(f"{name}: the piece '{first}' is not as long as it says")
        hunks.append(Hunk("".join(old), "".join(new)))
    return header[1], tuple(hunks)
