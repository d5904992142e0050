"""Kernels broken on purpose: small edits of the stages and the examples, kept as patches in broken/.

Each patch begins with what it breaks and what must be found: a kind of finding, at a line with a certain text, of a
certain block and thread (of the first one, on one core), in words that a learner understands. `program` applies one,
and makes a program of it that runs in the emulator and on a GPU alike. test_broken.py holds the emulator to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.emulator.sources import source

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_suffix("")
FIELDS = ("Finds", "Line", "Says", "Block", "Thread", "Arguments", "Defines")


@dataclass(frozen=True)
class Broken:
    """One patch. `what`: what is broken, in a sentence or two. `fields`: what else stands at its top, by name."""

    name: str
    what: str
    fields: dict[str, str]
    target: Path
    hunks: list[tuple[list[str], list[str]]]

    @property
    def arguments(self) -> list[str]:
        return self.fields.get("Arguments", "").split()

    @property
    def defines(self) -> dict[str, str]:
        return dict(word.split("=") for word in self.fields.get("Defines", "").split())

    @cached_property
    def text(self) -> str:
        """The broken source. AssertionError if what the patch replaces stands there no more, or more than once."""
        text = self.target.read_text()
        for before, after in self.hunks:
            old, new = "\n".join(before) + "\n", "\n".join(after) + "\n"
            assert text.count(old) == 1, f"{self.name}.patch: {self.target} has this {text.count(old)} times:\n{old}"
            text = text.replace(old, new)
        return text

    @property
    def program(self) -> Path:
        """The broken source as a program: an example as it is, a stage in a file that includes it and has a main."""
        return program(self.text, self.target, self.name)

    @property
    def lines(self) -> set[int]:
        """The lines at which the finding may be."""
        wanted = self.fields["Line"]
        return {number for number, line in enumerate(self.text.splitlines(), 1) if wanted in line}


def program(text: str, target: Path, name: str) -> Path:
    """The text of a stage or an example, `target`, as a program."""
    path = source(text, f"broken_{name}")
    if target.name != "kernel.cu":
        return path
    launcher = next(head for head in ("gemm", "attention", "sdpa") if f"launch_{head}(" in text)
    return source(f'#include "{path.name}"\n#include "{FOLDER / launcher}.h"\n', f"broken_{name}_main")


def read(path: Path) -> Broken:
    """A patch. Its hunks are found by their text, wherever it stands: line numbers do not matter."""
    head, _, diff = path.read_text().partition("\n--- a/")
    fields = dict(re.findall(rf"^({'|'.join(FIELDS)}): (.*)$", head, re.MULTILINE))
    what = re.split(rf"^(?:{'|'.join(FIELDS)}): ", head, maxsplit=1, flags=re.MULTILINE)[0]
    hunks = [
        ([line[1:] for line in lines if line[0] in " -"], [line[1:] for line in lines if line[0] in " +"])
        for lines in (hunk.splitlines()[1:] for hunk in re.split(r"^@@ ", diff, flags=re.MULTILINE)[1:])
    ]
    return Broken(path.stem, " ".join(what.split()), fields, ROOT / diff.splitlines()[0].split()[0], hunks)


def every() -> list[Broken]:
    return [read(path) for path in sorted(FOLDER.glob("*.patch"))]
