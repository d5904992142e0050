"""Recorded runs: what a run is, how it is saved and loaded, and how its rows relate.

A run is one JSON file: what was run, where and when, and one row per thing measured. Ratios are only ever taken within
a run, between rows of one *case*: the same computation (part of the course, dtype, settings) at the same size.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from common import course
from cudaemu.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
SCHEMA = 2
Found = TypeVar("Found")
Run = dict[str, Any]  # what _HEAD names, and more
Row = dict[str, Any]  # what _ROW names for the run's kind, and more
Settings = tuple[tuple[str, int], ...]  # name and value, sorted, none of them 0
Case = tuple[str, str, Settings, str]  # part, dtype, settings, size
KINDS = ("bench", "ceiling", "first_kernels", "fp8", "fused", "profile", "scores", "timeline", "triton")

_HEAD = {"schema": int, "kind": str, "command": str, "date": str, "commit": str, "rows": list}
_CASE = {"part": str, "problem": str, "dtype": str, "shape": dict, "size": str, "settings": dict}
_ROW: dict[str, dict[str, Any]] = {
    "bench": {"role": str, "name": str, **_CASE, "ms": dict, "tflops": (int, float)},
    "ceiling": {"key": str, "name": str, "value": (int, float), "unit": str},
    "first_kernels": {"name": str, "size": str, "bytes": int, "ms": dict, "peer": dict},
    "fp8": {"name": str, "size": int, "head_dim": int, "flops": int, "ms": dict, "clock": dict},
    "fused": {"name": str, "size": int, "ms": dict, "clock": dict},
    "profile": {"name": str, **_CASE, "counters": dict, "metrics": dict},
    "scores": {
        "scores": str,
        "name": str,
        "dtype": str,
        "head_dim": int,
        "causal": int,
        "size": int,
        "ms": dict,
        "tflops": (int, float),
    },
    "timeline": {"name": str, **_CASE, "group": int, "event": str, "numbers": list, "begin": list, "end": list},
    "triton": {"problem": str, "name": str, "size": int, "ms": dict, "clock": dict},
}


def validate(run: object, where: str = "run") -> Run:
    """`run` itself if it has the schema's fields with their types; UserError naming the field otherwise."""

    def require(value: object, fields: Mapping[str, Any], place: str) -> None:
        if not isinstance(value, dict):
            raise UserError(f"{where}: {place} must be a JSON object")
        for name, kind in fields.items():
            if name not in value:
                raise UserError(f"{where}: {place} lacks '{name}'")
            if not isinstance(value[name], kind) or isinstance(value[name], bool):
                raise UserError(f"{where}: {place}: '{name}' has the wrong type ({type(value[name]).__name__})")

    require(run, _HEAD, "the run")
    assert isinstance(run, dict)
    if run["schema"] != SCHEMA:
        raise UserError(f"{where}: schema must be {SCHEMA}, got {run['schema']}")
    if run["kind"] not in KINDS:
        raise UserError(f"{where}: kind must be one of {', '.join(KINDS)}, got '{run['kind']}'")
    try:
        datetime.fromisoformat(run["date"])
    except ValueError:
        raise UserError(f"{where}: date must be in ISO format, got '{run['date']}'") from None
    for index, row in enumerate(run["rows"]):
        require(row, _ROW[run["kind"]], f"row {index}")
        if "ms" in row:
            require(row["ms"], dict.fromkeys(("median", "p20", "p80", "n"), (int, float)), f"row {index}, ms")
    return run


def as_text(run: Run) -> str:
    """A run as its file holds it: its head in a line, then a row per line, so that a diff shows which one changed."""
    head = json.dumps({name: value for name, value in run.items() if name != "rows"}, ensure_ascii=False)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in run["rows"])
    return f'{head[:-1]}, "rows": [\n{rows}\n]}}\n'


def save(run: Run, path: Path | str) -> Path:
    """Write a validated run; UserError where the file cannot be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_text(validate(run, str(path))), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


def load(path: Path | str) -> Run:
    """Read and validate one run; UserError names the file and what is wrong with it."""
    if Path(path).parent == RESULTS:
        used.add(Path(path).name)
    return _parsed(_text(path), str(path))


def _text(path: Path | str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _parsed(text: str, path: str) -> Run:
    try:
        return _renamed(validate(json.loads(text), path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} must be JSON: {error}") from None


def _renamed(run: Run) -> Run:
    """A run of before a kernel went from a stage to the library, in today's words: its rows, which have its variants,
    and the command."""
    for kernel in map(course.load, course.library()):
        was, macros = kernel.recorded_as, kernel.variants.keys()
        mine = [row for row in run["rows"] if row.get("name") == was and row.get("variants", {}).keys() == macros]
        for row in mine:
            row |= {"name": kernel.name, "label": row["label"].replace(was, kernel.name, 1)}
        if mine:
            words = {f"kernels.{was}": kernel.package, was.partition("_")[0]: kernel.name}
            run["command"] = " ".join(words.get(word, word) for word in run["command"].split(" "))
    return run


_parsed_once = lru_cache(_parsed)  # pages ask for the same text a hundred times; the answer never changes


@dataclass(frozen=True)
class Record:
    """One row and its run."""

    run: Run
    row: Row

    @property
    def case(self) -> Case:
        """What was computed, and how large: rows of one run with the same case may be compared."""
        return self.row["part"], self.row["dtype"], not_zero(self.row["settings"]), self.row["size"]

    @property
    def ladder(self) -> str:
        """The ladder of the row's stage; runs of before there were several of a part do not say it."""
        name: str = self.row["ladder"] if "ladder" in self.row else self.row["part"]
        return name

    def beside(self, **fields: Any) -> Record | None:
        """The row of this run and case that has these fields."""
        for row in self.run["rows"]:
            other = Record(self.run, row)
            if other.case == self.case and all(row.get(k) == v for k, v in fields.items()):
                return other
        return None

    def times(self, other: Record | None) -> float | None:
        """How many times as fast as `other` this is."""
        ratio: float | None = None if other is None else self.row["tflops"] / other.row["tflops"]
        return ratio

    @property
    def previous(self) -> Record | None:
        """The stage that this one follows, with its default variants, in the same run.

        The course says which that is; for a stage that it no longer has, the run."""
        name = self.row.get("previous")
        if self.row["name"] in course.names():
            before = course.previous(course.load(self.row["name"]))
            name = before and before.name
        return self.beside(name=name, default=True) if name else None

    @property
    def first(self) -> Record | None:
        """The first stage of the ladder, with its default variants, in the same run."""
        return self.beside(name=self.row["first"], default=True) if self.row.get("first") else None

    @property
    def peers(self) -> list[Record]:
        """The library's implementations of the same case in the same run, the one to compare with first."""
        rows = (Record(self.run, row) for row in self.run["rows"] if row["role"] == "peer")
        return [peer for peer in rows if peer.case == self.case]

    @property
    def peer(self) -> Record | None:
        """The library's implementation that stages are compared with: the first of its problem's peers."""
        return next(iter(self.peers), None)

    @property
    def clocks(self) -> float | None:
        """Clocks of an SM between the two events: the median time at the clock counted around these launches. None for
        runs of before that was counted."""
        counted: float | None = self.row.get("clock", {}).get("clocks")
        return counted

    @property
    def limit(self) -> dict[str, Any] | None:
        """{"name", "tflops", "per_clock", "date"} of the unit that does this row's arithmetic, measured on that GPU."""
        unit: dict[str, Any] | None = self.run.get("limits", {}).get(self.row.get("limit"))
        return unit

    @property
    def of_limit(self) -> float | None:
        """This row's share of its limit, in clocks where they were counted; else of the peak at the highest clock."""
        if self.limit is None:
            return None
        share: float
        if self.clocks and "per_clock" in self.limit:
            share = self.operations / self.clocks / self.limit["per_clock"]
        else:
            share = self.row["tflops"] / self.limit["tflops"]
        return share

    @property
    def operations(self) -> float:
        """FLOP of the problem."""
        flop: float = self.row["tflops"] * self.row["ms"]["median"] * 1e9
        return flop

    @property
    def source(self) -> str:
        """GPU and date: "NVIDIA H200, 2026-11-21"."""
        return f"{self.run['gpu']}, {self.run['date'][:10]}"


class Only(NamedTuple):
    """Which recorded runs something may be made of."""

    gpu: str | None = None  # with this in the GPU's name: "H200"
    run: str | None = None  # files, without their endings, with commas between; of their kinds no others: "uses-h5"


ANY = Only()
used: set[str] = set()  # the files that something was made of, for whoever clears it first and reads it then


def runs(kind: str | None = None, only: Only = ANY) -> list[Run]:
    """Every run in docs/results, newest first, with its file's name as "file"; before all others those of the GPU that
    most of them are of: who names no GPU means that one. UserError if `only` names a file that is not there."""
    found = [_parsed_once(_text(path), str(path)) | {"file": path.name} for path in sorted(RESULTS.glob("*.json"))]
    found.sort(key=lambda r: r["date"], reverse=True)
    home = next(iter(Counter(r.get("gpu") for r in found).most_common(1)), (None, 0))[0]
    found.sort(key=lambda r: r.get("gpu") != home)
    named = {f"{name}.json": None for name in only.run.split(",")} if only.run else {}
    kinds = {r["file"]: r["kind"] for r in found if r["file"] in named}
    if missing := [name for name in named if name not in kinds]:
        raise UserError(f"run must name files of docs/results without .json, got {only.run}: no {', '.join(missing)}")
    found = [r for r in found if r["file"] in kinds or r["kind"] not in kinds.values()]
    return [r for r in found if kind in (None, r["kind"]) and only.gpu in (None, *(r.get("gpu") or "").split())]


def choose(
    among: Iterable[Run], having: Callable[[Run], Found | None], rank: Callable[[Found], Any] | None = None
) -> Found | None:
    """What `having` finds in the run that something is to be made of: here, and nowhere else, is decided which run that
    is. The first, which is the newest, in which it finds anything; with `rank`, the one where that is greatest."""
    answers = ((run, found) for run in among if (found := having(run)))
    best = next(answers, None) if rank is None else max(answers, key=lambda each: rank(each[1]), default=None)
    if best is None:
        return None
    used.add(best[0]["file"])
    return best[1]


def every(among: Iterable[Run], having: Callable[[Run], Found | None]) -> list[tuple[Run, Found]]:
    """Each run in which `having` finds anything, and what: for what is made of all of them."""
    answers = [(run, found) for run in among if (found := having(run))]
    used.update(run["file"] for run, _ in answers)
    return answers


def records(run: Run, **fields: Any) -> list[Record]:
    """The run's rows of the project's own kernels and of peers that have these fields; readers' kernels left out."""
    own = (row for row in run["rows"] if row.get("source") is None)
    return [Record(run, row) for row in own if all(row.get(k) == v for k, v in fields.items())]


def recorded(kind: str = "bench", only: Only = ANY, **fields: Any) -> list[Record]:
    """The records of the newest run that has rows with these fields: one run, so that they may be compared.

    fields: name="NN_name", dtype="fp16", default=True, …"""
    found = choose(runs(kind, only), lambda run: records(run, **fields)) or []
    return sorted(found, key=lambda r: (r.row.get("role") != "peer", r.row["name"], work(r.row["shape"])))


def rungs(ladder: str, dtype: str, only: Only = ANY, **settings: int) -> list[Record]:
    """The stages of a ladder (default variants), the one that it starts from if that is of another ladder, and the
    peers, all of the run in which it was climbed highest; [] if none was.

    Of several such runs prefer one that timed each stage alone; then the newest. A setting
    that is not given is 0."""

    def climbed(run: Run) -> list[Record]:
        rows = [r for r in records(run, dtype=dtype) if not_zero(r.row["settings"]) == not_zero(settings)]
        own = [r for r in rows if r.ladder == ladder and r.row["role"] != "peer" and r.row.get("default")]
        cases = {r.case for r in own}
        stages = {r.row["name"] for r in own} | {r.previous.row["name"] for r in own if r.previous}
        return [
            r
            for r in rows
            if r.case in cases and (r.row["role"] == "peer" or (r.row.get("default") and r.row["name"] in stages))
        ]

    def height(rows: list[Record]) -> tuple[int, int]:
        names = {r.row["name"] for r in rows if r.row["role"] != "peer"}
        return len(names), len({r.row["name"] for r in rows if r.row["role"] == "stage"})

    return choose(runs("bench", only), climbed, rank=height) or []


def variant_records(
    name: str, macro: str, only: Only = ANY, shown: Sequence[str] = (), **settings: int
) -> list[Record]:
    """The rows of one stage, with these settings, that differ in one macro only, from the newest run with several of
    its values at all of the sizes `shown`."""

    def swept(run: Run) -> list[Record] | None:
        found = []
        for record in records(run, name=name):
            variants, defaults = record.row.get("variants", {}), record.row.get("defaults", {})
            others = {k for k, v in variants.items() if v != defaults.get(k)} - {macro} - set(record.row["settings"])
            if macro in variants and not others and settings.items() <= record.row["settings"].items():
                found.append(record)
        several = len({record.row["variants"][macro] for record in found}) > 1
        return found if several and set(shown) <= set(sizes(found)) else None

    return choose(runs("bench", only), swept) or []


def sustained(run: Run) -> Run:
    """The run's rows as they were without a pause (`bench --sustained`) in place of the bursts; no other rows."""
    return run | {"rows": [row | row["sustained"] for row in run["rows"] if "sustained" in row]}


def work(shape: Mapping[str, int]) -> int:
    """Product of a shape's axes, to sort sizes by."""
    product = 1
    for extent in shape.values():
        product *= int(extent)
    return product


def sizes(found: list[Record]) -> list[str]:
    """The sizes of these records, smallest first."""
    extents: dict[str, int] = {}
    for record in found:
        extents.setdefault(record.row["size"], work(record.row["shape"]))
    return sorted(extents, key=lambda size: (extents[size], len(size), size))


def named(variants: Mapping[str, int] | None) -> str:
    """{"COALESCED": 0} -> "COALESCED=0"."""
    return " ".join(f"{k}={v}" for k, v in (variants or {}).items())


def not_zero(settings: Mapping[str, int]) -> Settings:
    """Settings as they compare between stages: one that is 0 is as good as none."""
    return tuple(sorted((name, value) for name, value in settings.items() if value))


def settings_named(row: Row) -> str:
    """The row's dtype and settings that are not 0: "fp16", "fp16 HEAD_DIM=64 CAUSAL=1"."""
    return " ".join([row["dtype"], *(f"{k}={v}" for k, v in row["settings"].items() if v)])
