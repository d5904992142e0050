"""The public faults of examples/faults/: small programs, wrong as they are and right with -DCORRECTED.

The comment at the top of each says what is wrong, and then:

    Public:   where the fault was reported: repository, and issue, pull request or file
    Finding:  what the emulator must find (docs/emulator.md); "(strict)" if only a strict run does; "wrong result" if
              the program itself must notice; "refused launch" if CUDA says why; "none: " and the reason if it finds
              nothing
    Right:    instead of Finding: the program is right as it is, and some tool or compiler took it for wrong
    PTX:      of a disputed rule: what the text of PTX says
    Hardware: ... and what is known of hardware

"// <- finding" marks the lines at which it may be found. tests/cudaemu/test_faults.py holds the emulator to it;
`python -m docs.hardware.sanitizers --faults` runs the programs under compute-sanitizer on a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from docs.hardware.programs import ROOT

FOLDER = ROOT / "examples" / "faults"
MARK = "// <- finding"
FIELDS = ("Public", "Finding", "Right", "PTX", "Hardware")
NONE, WRONG, REFUSED = "none", "wrong result", "refused launch"  # what is no kind of finding


@dataclass(frozen=True)
class Fault:
    """A program with one defect, or (`is_right`) with none. It has what sanitizers.py asks of a broken kernel."""

    name: str  # "no_wait_for_tile"
    text: str
    what: str
    fields: dict[str, str]

    is_program, run, tools = True, (), frozenset[str]()

    @property
    def source(self) -> str:
        return f"examples/faults/{self.name}.cu"

    @property
    def is_right(self) -> bool:
        return "Right" in self.fields

    @property
    def kind(self) -> str:
        """Of the finding, or NONE, WRONG, REFUSED."""
        return NONE if self.is_right else re.split(r": | \(strict\)", self.fields["Finding"])[0]

    @property
    def is_found(self) -> bool:
        return self.kind not in (NONE, WRONG)

    @property
    def is_strict(self) -> bool:
        return self.fields.get("Finding", "").endswith("(strict)")

    @property
    def lines(self) -> list[int]:
        """Those at which it may be found."""
        return [number for number, line in enumerate(self.text.split("\n"), 1) if MARK in line]

    @property
    def before(self) -> str | None:
        """The program without the defect, in the same lines but for the first two."""
        return None if self.is_right else f"#define CORRECTED\n#line 1\n{self.text}"

    @property
    def said(self) -> str:
        """The emulator's column of the table."""
        if self.is_right:
            return "nothing"
        if not self.is_found:
            return {NONE: "nothing", WRONG: "nothing, and the same wrong result"}[self.kind] + (
                f": {self.fields['Finding'].partition(': ')[2]}" if self.kind == NONE else ""
            )
        lines = ", ".join(map(str, self.lines))
        return f"{self.kind}{', strict' if self.is_strict else ''}: line {lines}"


@lru_cache
def faults() -> tuple[Fault, ...]:
    """All of them, in the order of their names; what is right comes last. ValueError for a file that does not say what
    it must."""
    read = (_read(path) for path in sorted(FOLDER.glob("*.cu")))
    return tuple(sorted(read, key=lambda fault: fault.is_right))


def _read(path: Path) -> Fault:
    text = path.read_text()
    what: list[str] = []
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        if not line.startswith("//"):
            break
        words = line[2:].strip()
        name, _, rest = words.partition(": ")
        if name in FIELDS:
            fields[name] = rest
        elif line.startswith("//   "):
            fields[list(fields)[-1]] += f" {words}"
        elif not fields:
            what.append(words)
    if not what or "Public" not in fields or ("Finding" in fields) == ("Right" in fields):
        raise ValueError(f"{path.name} must begin with what is wrong, 'Public:', and either 'Finding:' or 'Right:'")
    return Fault(path.stem, text, " ".join(what), fields)
