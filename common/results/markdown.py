"""How a table of recorded runs is written: its head, rows, sources, and the values in its cells."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from common import course
from common.packages import CUTE
from common.results.runs import Only, Record, Row
from cudaemu.errors import UserError

NOTHING = "*No run recorded yet.*"
Shown = TypeVar("Shown")

TABLES: dict[str, Callable[..., str]] = {}


def table(name: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register what fills `<!-- results:NAME … -->`: it is called with the words that follow, and those of the form
    NAME=VALUE by name. gpu=… and run=… say which runs it may be made of, its argument `only`."""

    def register(function: Callable[..., str]) -> Callable[..., str]:
        @wraps(function)
        def made(*words: Any, gpu: str | None = None, run: str | None = None, **more: Any) -> str:
            return function(*words, only=Only(gpu, run), **more)

        TABLES[name] = made
        return made

    return register


def usage() -> str:
    """The tables, with the words that each takes."""
    lines = []
    for name, function in TABLES.items():
        words = [name]
        for each in inspect.signature(function).parameters.values():
            if each.kind == each.VAR_POSITIONAL:
                words.append(f"[{each.name.upper()} ...]")
            elif each.kind == each.POSITIONAL_OR_KEYWORD and each.name != "only":
                words.append(each.name.upper() if each.default is each.empty else f"[{each.name}=...]")
        about = " ".join((function.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"  {' '.join(words)}\n      {about}")
    return "\n".join(lines)


def pivot(
    corner: str,
    rows: Iterable[tuple[str, Shown]],
    columns: Sequence[tuple[str, Callable[[Shown], str | None]]],
    sources: Sequence[Record],
) -> str:
    """A table of rows of any kind, each with its label, and of columns, each with what it says of a row."""
    body = [[label, *(cell(row) for _, cell in columns)] for label, row in rows]
    return markdown([corner, *(head for head, _ in columns)], body, sources)


def markdown(head: Sequence[str], body: Iterable[Sequence[object]], sources: Sequence[Record] = ()) -> str:
    """A table whose first column is left-aligned, and the runs it comes from."""
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join("–" if cell is None else str(cell) for cell in row) + " |" for row in body]
    origins: dict[str, dict[str, None]] = {}  # where and when -> the files
    for r in sources:
        software = f"driver {r.run['driver']}, CUDA {r.run['cuda']}, torch {r.run['torch']}"
        if cute := r.run.get(CUTE):
            software += f", {CUTE} {cute}"
        origins.setdefault(f"{r.run['gpu']}, {software}, {r.run['date'][:10]}", {})[f"[{r.run['file']}]"] = None
    said = [f"Recorded: {origin}, {', '.join(files)}." for origin, files in origins.items()]
    return "\n".join(lines + ([""] + said if said else []))


def number(value: float | None, form: str = "{:.2f}") -> str | None:
    """The value in that form; None stays None."""
    return None if value is None else form.format(value)


def tflops(value: float) -> str:
    """Three significant figures: 0.36, 5.24, 51.2, 652."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def milliseconds(value: float) -> str:
    """Three significant figures: "0.0229 ms", "26.3 ms", "256 ms"."""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def quantity(value: float, unit: str) -> str:
    """1.37e11 FLOP -> "137 GFLOP", 1.6e9 bytes -> "1.6 GB", 3.4e7 wavefronts -> "34 M wavefronts"."""
    prefix, scale = next(((p, s) for p, s in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)) if value >= s), ("", 1))
    short = {"FLOP": "FLOP", "byte": "B"}.get(unit)
    return (
        f"{value / scale:.3g} {prefix}{short}" if short else f"{value / scale:.3g} {prefix} {unit}".replace("  ", " ")
    )


def gigahertz(row: Row) -> str | None:
    """The mean SM clock of a row's timed launches; None for runs of before it was counted."""
    return number(row.get("clock", {}).get("ghz"), "{:.3f} GHz")


def limited_by(row: Row) -> str | None:
    """What limited the clock while a row was timed, in the driver's words, with the share of its readings; None for
    runs of before it was asked."""
    if "limited_by" not in row:
        return None
    return ", ".join(f"{reason} {share:.0%}" for reason, share in row["limited_by"].items()) or "nothing"


def launch_note(found: Sequence[Record]) -> str:
    """What an empty kernel takes between the two events, in the run of these records; "" if it was not timed."""
    times = {r.run["file"]: r.run["empty"]["median"] for r in found if "empty" in r.run}
    return "".join(f"\nAn empty kernel took {ms * 1e3:.1f} µs between the same two events." for ms in times.values())


def given(words: Mapping[str, str]) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in words.items()}
    except ValueError:
        given = " ".join(f"{name}={value}" for name, value in words.items())
        raise UserError(f"a setting must be NAME=VALUE with a whole number, got '{given}'") from None


def in_full(stage: str, dtype: str, settings: Mapping[str, str]) -> dict[str, int]:
    """The settings of a stage's kernel: those given, the others as by default. UserError for one that it lacks."""
    return course.load(stage).kernel(dtype, given(settings)).settings
