"""The tables of README.md, docs/ and docs/appendix/.

What is between `<!-- results:NAME ARGUMENTS -->` and `<!-- /results -->` is made by this module from the recorded runs:

    results:ladder LADDER DTYPE [SIZE …]      TFLOP/s of every stage; step and share of the library at the last size
    results:speed LADDER STAGE DTYPE …        one stage beside the one it follows and the library, at every size
    results:variants STAGE MACRO [SIZE …]   the values of one macro side by side, all from one run
    results:spread STAGE DTYPE SIZE …       a stage and the library, from the slowest to the fastest long run
    results:together STAGE [SIZE …]         precisions and settings that one run timed in the same rounds
    results:ragged STAGE DTYPE WHOLE,SIZE,… what other sizes cost, as multiples of the time that the first of each takes
    results:uses STAGE DTYPE SIZE …         one stage at each of these sizes: time, speed, bytes per second, × libraries
    results:limits                          the measured rates of the arithmetic units
    results:first                           the first kernels of examples/ beside torch and the rate of device memory
    results:fused                           a product and what follows it, in one kernel and in two
    results:levels                          the memory levels: size, latency, bandwidth
    results:latencies                       what waiting for one thing takes
    results:flight                          what must be in flight for each level to deliver all that it can
    results:bounds LADDER DTYPE SIZE          what binds each stage, how near it comes, what its warps wait for
    results:clocks LADDER DTYPE SIZE …        the SM clock of the timed launches, and what limits it
    results:profile STAGE                   the emulator's counters beside ncu's
    results:differences                     in which counters ncu differs from the emulator, and why
    results:plot LADDER DTYPE [SIZE …]        the ladder as a figure
    results:runs                            the runs themselves: file, GPU, software, date, command

Further arguments: `gpu=H200` (default: the GPU that most runs are of), `NAME=VALUE` (a setting of the problem, such as
HEAD_DIM=64). The rows of a table come from one run, which is named below it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from common import course, problem
from common.results import plot
from common.results.bound import Bound, Bounds, profiled_clocks
from common.results.runs import RESULTS, ROOT, Record, named, not_zero, records, runs, settings_named, sizes, sustained
from cudaemu.errors import UserError
from cudaemu.hardware import GPUS, Gpu

NOTHING = "*No run recorded yet.*"

TABLES: dict[str, Callable[..., str]] = {}


def table(name: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register what fills `<!-- results:NAME … -->`."""

    def register(function: Callable[..., str]) -> Callable[..., str]:
        TABLES[name] = function
        return function

    return register


def markdown(head: Sequence[str], body: Iterable[Sequence[object]], sources: Sequence[Record] = ()) -> str:
    """A table whose first column is left-aligned, and the runs it comes from."""
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join("–" if cell is None else str(cell) for cell in row) + " |" for row in body]
    origins: dict[str, dict[str, None]] = {}  # where and when -> the files
    for r in sources:
        software = f"driver {r.run['driver']}, CUDA {r.run['cuda']}, torch {r.run['torch']}"
        origins.setdefault(f"{r.run['gpu']}, {software}, {r.run['date'][:10]}", {})[f"[{r.run['file']}]"] = None
    said = [f"Recorded: {origin}, {', '.join(files)}." for origin, files in origins.items()]
    return "\n".join(lines + ([""] + said if said else []))


def number(value: float | None, form: str = "{:.2f}") -> str | None:
    """The value in that form; None stays None."""
    return None if value is None else form.format(value)


def tflops(value: float) -> str:
    """Three significant figures: 0.36, 5.24, 51.2, 652."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def rungs(ladder: str, dtype: str, gpu: str | None = None, **settings: int) -> list[Record]:
    """The stages of a ladder (default variants), the one that it starts from if that is of another ladder, and the
    peers, all of the run in which it was climbed highest; [] if none was.

    Of several such runs prefer one that timed each stage alone; then the newest. A setting
    that is not given is 0."""

    def climbed(run: dict) -> list[Record]:
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

    return max((climbed(run) for run in runs(kind="bench", gpu=gpu)), key=height, default=[])


def _settings(words: Mapping[str, str]) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in words.items()}
    except ValueError:
        given = " ".join(f"{name}={value}" for name, value in words.items())
        raise UserError(f"a setting must be NAME=VALUE with a whole number, got '{given}'") from None


@table("ladder")
def ladder_table(ladder: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of every stage at each size; at the last × the stage that it follows, in time and in clocks, the share of
    the library, and that of the problem's bound (in clocks). A column for which nothing is recorded is left out."""
    found = rungs(ladder, dtype, gpu, **_settings(settings))
    if not found:
        return NOTHING
    shown = shown or tuple(sizes(found))
    last = shown[-1]
    peer = next((r.peer.row["name"] for r in found if r.peer), "library")
    bounds = Bounds()
    step, share = f"× previous ({last})", f"% of {peer} ({last})"
    heads = (step, "in clocks", share, f"% of the problem's bound ({last})")
    columns: dict[str, list[str | None]] = {}
    above = ""
    for name in dict.fromkeys(r.row["name"] for r in sorted(found, key=lambda r: r.row["role"] == "peer")):
        at = {r.row["size"]: r for r in found if r.row["name"] == name}
        before = next(iter(at.values())).previous
        columns.setdefault("stage", []).append(course.rung(name, before.row["name"] if before else "", above))
        for size in shown:
            columns.setdefault(size, []).append(tflops(at[size].row["tflops"]) if size in at else None)
        record = at.get(last)
        compared: dict[str, str | None] = dict.fromkeys(heads)
        if record and record.row["role"] != "peer":
            of_problem = number(bounds.of_problem(record), "{:.1%}")
            steps_ = number(record.times(record.previous)), number(_times_in_clocks(record))
            compared = dict(zip(heads, (*steps_, number(record.times(record.peer), "{:.1%}"), of_problem)))
        for head, cell in compared.items():
            columns.setdefault(head, []).append(cell)
        above = name
    always = {"stage", *shown, step, share}
    kept = {head: cells for head, cells in columns.items() if head in always or any(cells)}
    return markdown(list(kept), list(zip(*kept.values())), found) + _launch_note(found)


def _times_in_clocks(record: Record) -> float | None:
    """How many times fewer clocks than the stage before; None where they were not counted."""
    before = record.previous and record.previous.clocks
    return before / record.clocks if before and record.clocks else None


def _launch_note(found: Sequence[Record]) -> str:
    """What an empty kernel takes between the two events, in the run of these records; "" if it was not timed."""
    times = {r.run["file"]: r.run["empty"]["median"] for r in found if "empty" in r.run}
    return "".join(f"\nAn empty kernel took {ms * 1e3:.1f} µs between the same two events." for ms in times.values())


def limited_by(row: Mapping) -> str | None:
    """What limited the clock while a row was timed, in the driver's words, with the share of its readings; None for
    runs of before it was asked."""
    if "limited_by" not in row:
        return None
    return ", ".join(f"{reason} {share:.0%}" for reason, share in row["limited_by"].items()) or "nothing"


def gigahertz(row: Mapping) -> str | None:
    """The mean SM clock of a row's timed launches; None for runs of before it was counted."""
    return number(row.get("clock", {}).get("ghz"), "{:.3f} GHz")


@table("speed")
def speed_table(ladder: str, name: str, *dtypes: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of one stage, of the one that it follows and of the library at each size; the factors between them.

    All of the run in which the ladder was climbed highest."""
    body: list[list[object]] = []
    sources: list[Record] = []
    shown: list[str] = []
    bounds = Bounds()
    for dtype in dtypes:
        found = rungs(ladder, dtype, gpu, **_settings(settings))
        at = {r.row["size"]: r for r in found if r.row["name"] == name}
        if not at:
            continue
        sources += found
        shown = shown or sizes(found)
        own = [at.get(size) for size in shown]
        for rows in ([r and r.previous for r in own], own, [r and r.peer for r in own]):
            label = next((r.row["name"] for r in rows if r), None)
            if label:
                body.append([f"{label}, {dtype}", *(r and tflops(r.row["tflops"]) for r in rows)])
        ratios = {
            "× previous": [number(r.times(r.previous)) if r else None for r in own],
            f"% of {label}": [number(r.times(r.peer), "{:.0%}") if r else None for r in own],
            "% of the problem's bound": [number(bounds.of_problem(r), "{:.0%}") if r else None for r in own],
        }
        body += [[f"{head}, {dtype}", *cells] for head, cells in ratios.items() if any(cells)]
    return markdown(["TFLOP/s", *shown], body, sources) if body else NOTHING


def variant_records(
    name: str, macro: str, gpu: str | None = None, shown: Sequence[str] = (), **settings: int
) -> list[Record]:
    """The rows of one stage, with these settings, that differ in one macro only, from the newest run with several of
    its values at all of the sizes `shown`."""
    for run in runs(kind="bench", gpu=gpu):
        found = []
        for record in records(run, name=name):
            variants, defaults = record.row.get("variants", {}), record.row.get("defaults", {})
            others = {k for k, v in variants.items() if v != defaults.get(k)} - {macro} - set(record.row["settings"])
            if macro in variants and not others and settings.items() <= record.row["settings"].items():
                found.append(record)
        if len({record.row["variants"][macro] for record in found}) > 1 and set(shown) <= set(sizes(found)):
            return found
    return []


@table("variants")
def variants_table(name: str, macro: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of the values of one macro, × its default; all of one run."""
    found = variant_records(name, macro, gpu, shown, **_settings(settings))
    if not found:
        return NOTHING
    shown = shown or tuple(sizes(found))
    head = [macro, *(f"TFLOP/s, {size}" for size in shown), *(f"× default, {size}" for size in shown)]
    cases: dict[str, dict[int, dict[str, Record]]] = {}  # what is computed, but for the macro -> value -> size
    for record in found:
        row = record.row
        others = {name: value for name, value in row["settings"].items() if name != macro}
        case = cases.setdefault(settings_named(row | {"settings": others}), {})
        case.setdefault(row["variants"][macro], {})[row["size"]] = record
    body: list[list[object]] = []
    for name, values in cases.items():
        default = found[0].row["defaults"][macro]
        for value, at in sorted(values.items()):
            rows = [at.get(size) for size in shown]
            base = values.get(default, {})
            ratios = [r.times(base.get(r.row["size"])) if r else None for r in rows]
            label = f"`{macro}={value}`" + (" (default)" if value == default else "")
            label += f", {name}" if len(cases) > 1 else ""
            body.append([label, *(r and tflops(r.row["tflops"]) for r in rows), *(number(ratio) for ratio in ratios)])
    return markdown(head, body, found)


def steps(name: str, chosen: Sequence[Mapping[str, int]], *shown: str, gpu: str | None = None) -> str:
    """TFLOP/s of variants that differ in several macros, × the row above; before them the stage before. All of one run.

    `chosen`: of each row the macros that are not as by default."""
    for run in runs(kind="bench", gpu=gpu):
        found = [
            [r for r in records(run, name=name) if r.row["variants"] == {**r.row["defaults"], **each}]
            for each in chosen
        ]
        if all(found):
            break
    else:
        return NOTHING
    previous = [r.previous for r in found[0] if r.previous]
    rows = [*([previous] if previous else []), *found]
    labels = [previous[0].row["name"]] if previous else []
    labels += [named(each) and f"`{named(each)}`" or "(default)" for each in chosen]
    shown = shown or tuple(sizes(found[0]))
    body: list[list[object]] = []
    above: dict[str, Record] = {}
    for label, records_ in zip(labels, rows, strict=True):
        at = {r.row["size"]: r for r in records_}
        ratios = [at[size].times(above.get(size)) if size in at else None for size in shown]
        body.append(
            [label, *(size in at and tflops(at[size].row["tflops"]) or None for size in shown), *map(number, ratios)]
        )
        above = at
    head = ["variant", *(f"TFLOP/s, {size}" for size in shown), *(f"× the row above, {size}" for size in shown)]
    return markdown(head, body, [r for each in rows for r in each])


def _long_runs(
    name: str, dtype: str, shown: Sequence[str], gpu: str | None, settings: Mapping[str, str]
) -> list[tuple[dict, dict[str, Record]]]:
    """Every run but the quick ones that timed a stage's default kernel and the library at all these sizes, oldest
    first; with its rows by size. A setting that is not given is 0."""
    wanted = not_zero(_settings(settings))
    found: list[tuple[dict, dict[str, Record]]] = []
    for run in reversed(runs(kind="bench", gpu=gpu)):
        rows = [] if "--quick" in run["command"] else records(run, name=name, dtype=dtype, default=True, role="stage")
        at = {r.row["size"]: r for r in rows if not_zero(r.row["settings"]) == wanted and r.peer}
        known = run["date"] in [each["date"] for each, _ in found]  # rows that were kept in a file of their own
        if set(shown) <= set(at) and not known:
            found.append((run, at))
    return found


@table("spread")
def spread_table(name: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of a stage and of the library, and the stage's share, from the lowest to the highest of all runs but the
    quick ones that have both at all these sizes: how far runs of the same kernel differ. Then their clocks and the SM
    clock, of the runs that counted them."""
    found = _long_runs(name, dtype, shown, gpu, settings)
    if not found:
        return NOTHING
    columns: dict[str, list[list[float]]] = {}  # by what it is of: of each size the value of each run
    for size in shown:
        records_ = [at[size] for _, at in found]
        peers = [peer for r in records_ if (peer := r.peer)]
        columns.setdefault(name, []).append([r.row["tflops"] for r in records_])
        columns.setdefault(peers[0].row["name"], []).append([peer.row["tflops"] for peer in peers])
        columns.setdefault("share", []).append([share for r in records_ if (share := r.times(r.peer))])
        for of in (records_, peers):
            label = of[0].row["name"]
            columns.setdefault(f"{label}, clocks", []).append([r.clocks for r in of if r.clocks])
            columns.setdefault(f"{label}, GHz", []).append([r.row["clock"]["ghz"] for r in of if r.clocks])
    body: list[list[object]] = []
    forms: dict[str, Callable[[float], str]] = {
        "share": "{:.0%}".format,
        "clocks": "{:,.0f}".format,
        "GHz": "{:.2f}".format,
    }
    for label, values in columns.items():
        form = forms.get(label.rpartition(", ")[2], tflops)
        if any(values):
            body.append([label, *(f"{form(min(each))} to {form(max(each))}" if each else None for each in values)])
    means = [statistics.geometric_mean([share for r in at.values() if (share := r.times(r.peer))]) for _, at in found]
    files = ", ".join(f"[{run['file']}]" for run, _ in found)
    median = f"Median over the runs of the share's geometric mean: {statistics.median(means):.3f}."
    return markdown([f"TFLOP/s, {dtype}", *shown], body) + f"\n\n{median} Recorded: {len(found)} runs: {files}."


@table("together")
def together_table(name: str, *shown: str, gpu: str | None = None) -> str:
    """A stage's default kernel and the library in every precision and setting that one run timed in the same rounds:
    TFLOP/s, share of the library, SM clock. Of the newest such run that has all these sizes."""
    for run in runs(kind="bench", gpu=gpu):
        rows = [r for r in records(run, name=name, default=True) if r.row["size"] in (shown or r.row["size"])]
        cases = dict.fromkeys(settings_named(r.row) for r in rows)
        if run.get("together") and len(cases) > 1 and set(shown) <= {r.row["size"] for r in rows}:
            break
    else:
        return NOTHING
    body: list[list[object]] = []
    for size in shown or sizes(rows):
        for record in (r for r in rows if r.row["size"] == size):
            peer = record.peer
            body.append(
                [
                    f"{settings_named(record.row)}, {size}",
                    tflops(record.row["tflops"]),
                    gigahertz(record.row),
                    peer and tflops(peer.row["tflops"]),
                    peer and gigahertz(peer.row),
                    number(record.times(peer), "{:.0%}"),
                ]
            )
    peers = [r.peer.row["name"] for r in rows if r.peer]
    head = ["TFLOP/s", name, "SM clock", *(peers[:1] or ["library"]), "SM clock", "share"]
    return markdown(head, body, rows)


@table("ragged")
def ragged_table(name: str, dtype: str, *groups: str, gpu: str | None = None, **settings: str) -> str:
    """A stage and the library at sizes that tiles do not divide, × the time that each takes at the whole size above.

    `groups`: "2048,2040,2047x2047x2040", the whole size first; all of the newest run that has them all. × whole is of
    clocks where they were counted: times at two sizes are not of one clock. A clock that no row has is no column."""
    wanted = not_zero(_settings(settings))
    grouped = [group.split(",") for group in groups]
    for run in runs(kind="bench", gpu=gpu):
        rows = records(run, name=name, dtype=dtype, default=True)
        at = {r.row["size"]: r for r in rows if not_zero(r.row["settings"]) == wanted and r.peer}
        if {size for group in grouped for size in group} <= set(at):
            break
    else:
        return NOTHING
    body: list[list[object]] = []
    for group in grouped:
        for size in group:
            cells: list[object] = [size]
            for record, whole in ((at[size], at[group[0]]), (at[size].peer, at[group[0]].peer)):
                assert record and whole  # `at` holds only what has a peer
                ms, least = record.row["ms"]["median"], whole.row["ms"]["median"]
                took, base = (record.clocks, whole.clocks) if record.clocks and whole.clocks else (ms, least)
                ratio = None if size == group[0] else f"{took / base:.2f}"
                cells += [milliseconds(ms), ratio, gigahertz(record.row)]
            body.append(cells)
    peers = [r.peer.row["name"] for r in at.values() if r.peer]
    heads = ["size", *(head for each in (name, peers[0]) for head in (each, "× whole", "SM clock"))]
    kept = [n for n, head in enumerate(heads) if head != "SM clock" or any(row[n] for row in body)]
    return markdown([heads[n] for n in kept], [[row[n] for n in kept] for row in body], list(at.values()))


@table("uses")
def uses_table(name: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """A stage's default kernel at each of these sizes, a row each: time, TFLOP/s, TB/s of inputs and outputs, × peers.

    All of the newest run that has them all."""
    wanted = not_zero(_settings(settings))
    for run in runs(kind="bench", gpu=gpu):
        rows = records(run, name=name, dtype=dtype, default=True)
        at = {r.row["size"]: r for r in rows if not_zero(r.row["settings"]) == wanted}
        if set(shown) <= set(at):
            break
    else:
        return NOTHING
    found = [at[size] for size in shown]
    peers = list(dict.fromkeys(peer.row["name"] for record in found for peer in record.peers))
    body: list[list[object]] = []
    for record in found:
        row, by_name = record.row, {peer.row["name"]: peer for peer in record.peers}
        moved = problem.load(row["problem"]).bytes(tuple(row["shape"].values()), dtype, row["variants"])
        ratios = [record.times(by_name[peer]) if peer in by_name else None for peer in peers]
        speed = f"{moved / row['ms']['median'] / 1e9:.2f}"
        cells = [milliseconds(row["ms"]["median"]), tflops(row["tflops"]), speed, *map(number, ratios)]
        body.append([row["size"], *cells])
    return markdown(["size", "time", "TFLOP/s", "TB/s", *(f"× {peer}" for peer in peers)], body, found)


@table("sustained")
def sustained_table(name: str, dtype: str, peer: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """What everything in a run delivers in bursts and without a pause, TFLOP/s, a row each; and the geometric means of
    its shares of a peer. Of the newest run in which this stage has both at all these sizes."""
    wanted = not_zero(_settings(settings))

    def at(run: dict) -> dict[tuple[str, str], Record]:
        rows = (r for r in records(run, dtype=dtype) if not_zero(r.row["settings"]) == wanted)
        return {(r.row["name"], r.row["size"]): r for r in rows if r.row.get("default", True)}

    for run in runs(kind="bench", gpu=gpu):
        both = at(run), at(sustained(run))
        if all((name, size) in found for found in both for size in shown):
            break
    else:
        return NOTHING
    body: list[list[object]] = []
    for each in dict.fromkeys(row for row, _ in both[0]):
        if not all((each, size) in both[1] for size in shown):
            continue
        speeds = [tflops(found[each, size].row["tflops"]) for size in shown for found in both]
        shares = [
            statistics.geometric_mean(
                found[each, size].row["tflops"] / found[peer, size].row["tflops"] for size in shown
            )
            for found in both
        ]
        body.append([each, *speeds, *(number(share) for share in shares)])
    head = [f"{size}{mode}" for size in shown for mode in (", bursts", ", sustained")]
    sources = [found[name, size] for found in both[:1] for size in shown]
    return markdown([f"TFLOP/s, {dtype}", *head, f"× {peer}, bursts", "sustained"], body, sources)


def _ceilings(gpu: str | None) -> tuple[dict, dict[str, dict]]:
    """The newest ceiling run of a GPU, and its rows by their keys; ({}, {}) if there is none."""
    run = next(iter(runs(kind="ceiling", gpu=gpu)), {})
    return run, {row["key"]: row for row in run.get("rows", ())}


@table("limits")
def limits_table(gpu: str | None = None) -> str:
    """What the arithmetic units do: per clock; in single launches and for a second without a pause, with the SM clock
    that follows from rate and rate per clock."""
    run, rows = _ceilings(gpu)
    if not run:
        return NOTHING
    body = []
    for row in rows.values():
        if "ms" not in row or "per_clock" not in row:
            continue
        each, held = row["per_clock"]["value"], row.get("sustained", {})

        def cells(rate: float | None, each: float = each) -> list[str | None]:
            ghz = rate and rate * 1e3 / each / run["sms"]
            return [number(rate, "{:,.4g}"), number(ghz, "{:.2f} GHz")]

        power = number(held.get("power_w", {}).get("median"), "{:.0f} W")
        body.append([row["name"], f"{each:,.4g}", *cells(row["value"]), *cells(held.get("value")), power])
    head = [
        "10¹² per second",
        "per clock and SM",
        "single launches",
        "SM clock",
        "one second without a pause",
        "SM clock",
    ]
    return markdown([*head, "power"], body, [Record(run, {})])


LEVELS = (  # of memory: name, the keys of its latency and of its rate
    ("shared memory", "shared", "shared load"),
    ("L1", "L1", "L1"),
    ("L2", "L2", "L2"),
    ("device memory", "DRAM", "DRAM read"),
)


def _bytes_per_clock(row: Mapping) -> float:
    """What a level delivers to an SM."""
    return row["value"] if "clock" in row["unit"] else row["per_clock"]["value"]


@table("first")
def first_table(gpu: str | None = None) -> str:
    """The first kernels of examples/ beside torch: time, the least bytes per second, what share of the rate of device
    memory that is. Of the newest such run."""
    run = next(iter(runs(kind="first", gpu=gpu)), None)
    if run is None:
        return NOTHING
    ceilings = [row for made in runs(kind="ceiling", gpu=run["gpu"].split()[-1])[:1] for row in made["rows"]]
    memory = next((row["value"] for row in ceilings if row["key"] == "DRAM read"), None)
    body: list[list[object]] = []
    for row in run["rows"]:
        mine, theirs = row["ms"]["median"], row["peer"]["ms"]["median"]
        rate = row["bytes"] / mine / 1e9
        share = number(memory and rate / memory, "{:.0%}")
        cells = [f"{mine * 1e3:,.0f} µs", f"{rate:.2f}", share, f"`{row['peer']['name']}`", f"{theirs * 1e3:,.0f} µs"]
        body.append([f"{row['name']}, {row['size']}", *cells, f"{theirs / mine:.2f}"])
    head = ["kernel", "time", "TB/s", "% of device memory", "torch", "its time", "× torch"]
    said = (
        f"Recorded: {run['gpu']}, driver {run['driver']}, CUDA {run['cuda']}, torch {run['torch']}, {run['date'][:10]}"
    )
    return markdown(head, body) + f"\n\n{said}, [{run['file']}]."


def fused_cells(run: Mapping) -> tuple[list[str], list[list[str]]]:
    """Of a run of measure/fused.py, a row per size: what the product takes, and what follows it in its kernel or in one
    of its own."""
    sizes: dict[int, dict[str, float]] = {}
    for row in run["rows"]:
        sizes.setdefault(row["size"], {})[row["name"]] = row["ms"]["median"] * 1e3
    names = list(dict.fromkeys(row["name"] for row in run["rows"]))
    body = []
    for size, us in sizes.items():
        _, one, two = (us[name] for name in names)
        body.append([str(size), *(f"{us[name]:,.1f} µs" for name in names), f"{two - one:,.1f} µs", f"{two / one:.2f}"])
    return ["M = N = K", *names, "saved", "×"], body


@table("fused")
def fused_table(gpu: str | None = None) -> str:
    """What fusion saves: the newest run of measure/fused.py."""
    run = next(iter(runs(kind="fused", gpu=gpu)), None)
    if run is None:
        return NOTHING
    said = f"Recorded: {run['gpu']}, driver {run['driver']}, CUDA {run['cuda']}, torch {run['torch']}"
    return markdown(*fused_cells(run)) + f"\n\n{said}, {run['date'][:10]}, [{run['file']}]."


@table("levels")
def levels_table(gpu: str | None = None) -> str:
    """What each level of memory holds, how long a load waits for it, and what it delivers."""
    run, rows = _ceilings(gpu)
    model = next((each for each in GPUS if run.get("gpu") and gpu_named(run["gpu"], each)), None)
    if "latency shared" not in rows or model is None:
        return NOTHING

    def latency(key: str) -> str:
        return f"{rows[f'latency {key}']['value']:.0f}"

    def all_sms(key: str) -> str:
        row = rows[key]
        tb = row["value"] if row["unit"] == "TB/s" else row["value"] * run["sms"] * run["highest_mhz"] / 1e6
        return f"{tb:.3g} TB/s"

    holds = (
        f"{model.shared_kb} KB per SM",
        "what shared memory leaves",
        f"{model.l2_mb} MB",
        f"{run['memory_bytes'] / 1e9:.0f} GB",
    )
    body: list[list[object]] = [["registers", f"{model.registers * 4 >> 10} KB per SM", latency("FMA"), None, None]]
    for (name, waits, delivers), size in zip(LEVELS, holds):
        clocks = latency(waits) + (f" ({latency('L2 nearest')} to {latency('L2 farthest')})" if waits == "L2" else "")
        body.append([name, size, clocks, number(_bytes_per_clock(rows[delivers]), "{:.3g}"), all_sms(delivers)])
    head = ["level", "holds", "latency, clocks", "bytes per clock and SM", "all SMs together"]
    return markdown(head, body, [Record(run, {})])


@table("tma")
def tma_table(gpu: str | None = None) -> str:
    """What TMA brings from L2 to all SMs together, by how many SMs share a chunk and whether it is sent to several."""
    run, rows = _ceilings(gpu)
    body = [
        [row["name"], number(_bytes_per_clock(row), "{:.3g}"), f"{row['value']:.3g} TB/s"]
        for key, row in rows.items()
        if key == "L2" or key.startswith("L2, TMA")
    ]
    head = ["what arrives", "bytes per clock and SM", "all SMs together"]
    return markdown(head, body, [Record(run, {})]) if len(body) > 1 else NOTHING


def gpu_named(name: str, model: Gpu) -> bool:
    """Whether a GPU called "NVIDIA H200" is one of the devices of that compute capability."""
    return any(device in name.split() for device in re.split(r",\s*", model.devices))


@table("latencies")
def latencies_table(gpu: str | None = None) -> str:
    """What waiting for one thing takes, in clocks of the SM and in nanoseconds; a launch in microseconds."""
    run, rows = _ceilings(gpu)
    found = [row for key, row in rows.items() if key.startswith("latency ")]
    if not found:
        return NOTHING
    body: list[list[object]] = []
    for row in sorted(found, key=lambda row: row["value"]):
        mhz = row.get("sm_mhz", {}).get("median")
        body.append([row["name"], f"{row['value']:.4g}", number(mhz and row["value"] / mhz * 1e3, "{:.3g} ns")])
    if "launch" in rows:
        body.append([rows["launch"]["name"], None, f"{rows['launch']['value'] * 1e3:,.0f} ns"])
    return markdown(["latency of", "clocks", "time"], body, [Record(run, {})])


@table("flight")
def flight_table(gpu: str | None = None) -> str:
    """Little's law: bytes in flight = latency × bytes per clock, on each SM; as loads of a warp."""
    run, rows = _ceilings(gpu)
    if "latency shared" not in rows:
        return NOTHING
    body: list[list[object]] = []
    for name, waits, delivers in LEVELS:
        latency, rate = rows[f"latency {waits}"]["value"], _bytes_per_clock(rows[delivers])
        flight = latency * rate
        body.append(
            [name, f"{latency:.0f}", f"{rate:.3g}", f"{flight:,.0f}", math.ceil(flight / 128), math.ceil(flight / 512)]
        )
    head = ["level", "latency, clocks", "bytes per clock and SM", "bytes in flight per SM", "warps, 4 bytes per lane"]
    return markdown([*head, "warps, 16 bytes per lane"], body, [Record(run, {})])


@table("bounds")
def bounds_table(ladder: str, dtype: str, size: str, gpu: str | None = None, **settings: str) -> str:
    """What binds each stage of a ladder at one size, how near it comes, in clocks, and what its warps wait for."""
    found = [r for r in rungs(ladder, dtype, gpu, **_settings(settings)) if r.row["size"] == size]
    bounds = Bounds()
    body: list[list[object]] = []
    sources: list[Record] = []
    for record in found:
        if record.row["role"] == "peer":
            continue
        bound = bounds.of(record)
        problems = number(bounds.of_problem(record), "{:.0%}")
        if bound is None:
            body.append([record.row["name"], None, None, number(record.clocks, "{:,.0f}"), None, problems, None])
            continue
        sources += [record, bound.profile, Record(bound.ceilings, {})]
        stalls = ", ".join(f"{short_stall(name)} {value:.1f}" for name, value in bound.stalls())
        cells = [f"{bound.clocks:,.0f}", f"{bound.measured:,.0f}", f"{bound.share:.0%}", problems, stalls]
        body.append([record.row["name"], bound.needs[0].resource, *cells])
    if not body:
        return NOTHING
    head = [f"stage, {dtype} {size}", "bound by", "bound, clocks", "measured", "% of bound", "% of the problem's bound"]
    return markdown([*head, "longest stalls, warps per issue"], body, sources)


@table("clocks")
def clocks_table(ladder: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """The mean SM clock of the timed launches of stages and libraries, with what the driver says limited it."""
    found = [r for r in rungs(ladder, dtype, gpu, **_settings(settings)) if "clock" in r.row]
    if not found:
        return NOTHING
    body: list[list[object]] = []
    for name in dict.fromkeys(r.row["name"] for r in found):
        at = {r.row["size"]: r.row for r in found if r.row["name"] == name}
        cells = [gigahertz(at[size]) if size in at else None for size in shown]
        reasons = [limited_by(at[size]) if size in at else None for size in shown]
        body.append([name, *(cell and f"{cell} ({why or 'not asked'})" for cell, why in zip(cells, reasons))])
    limits = {f"{r.run['power_limit_w']:.0f} W" for r in found if r.run.get("power_limit_w")}
    limit = f"\nEnforced power limit: {', '.join(sorted(limits))}." if limits else ""
    return markdown([f"SM clock (limited by), {dtype}", *shown], body, found) + limit


def short_stall(name: str) -> str:
    """ "long scoreboard (global, local memory)" -> "long scoreboard"."""
    return name.split(" (")[0]


SIGNIFICANT = 0.05  # of the measured clocks: what needs fewer is not shown


def verdict(
    ladder: str, stage: str, dtype: str, size: str, gpu: str | None = None, settings: Mapping[str, int] | None = None
) -> str:
    """What binds one stage, in clocks: the resources that it needs for long, the bound, what was measured, what warps
    wait for.

    Where something is not recorded yet, what, and how to record it."""
    bound = _bound(ladder, stage, dtype, size, gpu, settings)
    return bound if isinstance(bound, str) else "\n".join([_needs(bound), "", _conclusion(bound)])


def needs(
    ladder: str,
    stages: Sequence[str],
    dtype: str,
    size: str,
    gpu: str | None = None,
    settings: Mapping[str, int] | None = None,
) -> str:
    """The fewest clocks that stages need of each resource, side by side, and the measured ones of all but the last.

    The last one's can be predicted from them. Resources that no stage needs much of are left out."""
    found = [_bound(ladder, stage, dtype, size, gpu, settings) for stage in stages]
    for bound in found:
        if isinstance(bound, str):
            return bound
    bounds = [bound for bound in found if not isinstance(bound, str)]
    clocks = [{need.resource: need.clocks for need in bound.needs} for bound in bounds]
    longest = {name: max(each.get(name, 0.0) for each in clocks) for each in clocks for name in each}
    least = SIGNIFICANT * bounds[0].measured
    shown = sorted((name for name, most in longest.items() if most >= least), key=lambda name: -longest[name])
    body: list[list[object]] = [[name, *(number(each.get(name), "{:,.0f}") for each in clocks)] for name in shown]
    body.append(["measured", *(f"{bound.measured:,.0f}" for bound in bounds[:-1]), "below"])
    head = [f"fewest clocks, {settings_named(bounds[0].record.row)}, {size}", *stages]
    return markdown(head, body, [each for bound in bounds for each in (bound.profile, Record(bound.ceilings, {}))])


def waits(
    ladder: str,
    stages: Sequence[str],
    dtype: str,
    size: str,
    gpu: str | None = None,
    settings: Mapping[str, int] | None = None,
) -> str:
    """What the time of a resident warp goes into, stage by stage, in per cent of it, as ncu counted; how busy the pipes
    are, and how many clocks an SM took."""
    found = [_bound(ladder, stage, dtype, size, gpu, settings) for stage in stages]
    for bound in found:
        if isinstance(bound, str):
            return bound
    bounds = [bound for bound in found if not isinstance(bound, str)]
    shares = [bound.waits() for bound in bounds]
    longest = {name: max(each.get(name, 0.0) for each in shares) for each in shares for name in each}
    shown = sorted((name for name, share in longest.items() if share >= SIGNIFICANT), key=lambda name: -longest[name])
    body: list[list[object]] = [[name, *(f"{each.get(name, 0.0):.0%}" for each in shares)] for name in shown]
    for name in dict.fromkeys(name for bound in bounds for name in bound.busy):
        body.append([f"**{name} busy**", *(number(bound.busy.get(name), "{:.0f}%") for bound in bounds)])
    body.append(["**clocks of an SM**", *(number(profiled_clocks(bound.profile), "{:,.0f}") for bound in bounds)])
    head = [f"of a warp's time, {settings_named(bounds[0].record.row)}, {size}", *stages]
    return markdown(head, body, [bound.profile for bound in bounds])


def in_clocks(
    ladder: str,
    stages: Sequence[str],
    dtype: str,
    gpu: str | None = None,
    settings: Mapping[str, int] | None = None,
) -> str:
    """How many clocks stages take, size by size, × the row above; how near they come to the problem's bound and to
    their own; the SM clock of the timed launches and what limited it, in the driver's words."""
    settings = settings or {}
    body: list[list[object]] = []
    sources: list[Record] = []
    bounds = Bounds()
    found = rungs(ladder, dtype, gpu, **settings)
    for size in sizes(found):
        above: float | None = None
        for record in sorted(
            (r for r in found if r.row["size"] == size and r.row["name"] in stages),
            key=lambda r: stages.index(r.row["name"]),
        ):
            bound, clocks = bounds.of(record), bounds.clocks(record)
            if clocks is None:
                continue
            body.append(
                [
                    f"{record.row['name']}, {size}",
                    f"{clocks:,.0f}",
                    number(above and above / clocks, "{:.3f}"),
                    number(bounds.of_problem(record), "{:.0%}"),
                    bound and f"{bound.clocks:,.0f}",
                    bound and f"{bound.share:.0%}",
                    gigahertz(record.row),
                    limited_by(record.row),
                ]
            )
            above = clocks
            sources += [record, *([bound.profile] if bound else [])]
    head = [
        settings_named({"dtype": dtype, "settings": settings}),
        "clocks",
        "× the row above",
        "% of the problem's bound",
    ]
    head += ["own bound, clocks", "% of own bound", "SM clock", "limited by"]
    return markdown(head, body, sources) + _launch_note(sources) if body else NOTHING


def predicted(
    ladder: str,
    stages: Sequence[str],
    dtype: str,
    gpu: str | None = None,
    settings: Mapping[str, int] | None = None,
) -> str:
    """Two stages' clocks, size by size: what the second one would take if the gap between the first one's bound and
    its time came on top of the second one's bound, and what it took."""
    settings = settings or {}
    body: list[list[object]] = []
    sources: list[Record] = []
    bounds = Bounds()
    found = rungs(ladder, dtype, gpu, **settings)
    for size in sizes(found):
        at = {r.row["name"]: bounds.of(r) for r in found if r.row["size"] == size and r.row["name"] in stages}
        before, after = (at.get(stage) for stage in stages)
        if before is None or after is None:
            continue
        gap = before.measured - before.clocks
        clocks = [before.measured, before.clocks, gap, after.clocks, after.clocks + gap, after.measured]
        body.append([size, *(f"{each:,.0f}" for each in clocks), f"{after.measured / clocks[-2]:.2f}"])
        sources += [before.record, before.profile, after.profile]
    first, second = (stage.partition("_")[0] for stage in stages)
    head = [
        settings_named({"dtype": dtype, "settings": settings}),
        f"{first} took",
        f"bound of {first}",
        "gap",
        f"bound of {second}",
        f"prediction for {second}: its bound + the gap",
        f"{second} took",
        "÷ prediction",
    ]
    return markdown(head, body, sources) if body else NOTHING


def _bound(
    ladder: str, stage: str, dtype: str, size: str, gpu: str | None, settings: Mapping[str, int] | None
) -> Bound | str:
    """The bound of a stage's recorded row, or what has to be recorded for it."""
    settings = settings or {}
    names = settings_named({"dtype": dtype, "settings": settings})
    found = [r for r in rungs(ladder, dtype, gpu, **settings) if r.row["name"] == stage and r.row["size"] == size]
    if not found:
        return f"*No run of {stage} {names} at {size} is recorded yet.*"
    bounds = Bounds()
    missing = f"*What binds {stage} {names} at {size} cannot be said yet. {bounds.missing(found[0])}*"
    return bounds.of(found[0]) or missing


def _needs(bound: Bound) -> str:
    row = bound.record.row
    body = [
        [
            each.resource,
            quantity(each.count, each.unit),
            f"{quantity(each.rate, each.unit)}/s" if each.per_second else f"{each.rate:,.4g} per clock and SM",
            f"{each.clocks:,.0f}",
            f"{each.clocks / bound.measured:.0%}",
        ]
        for each in bound.needs
        if each.clocks >= SIGNIFICANT * bound.measured
    ]
    head = [f"{settings_named(row)}, {row['size']}", "needs", "there is", "fewest clocks", "of the measured"]
    return markdown(head, body)


def _conclusion(bound: Bound) -> str:
    row, metrics = bound.record.row, bound.profile.row["metrics"]
    stalls = ", ".join(f"{name} {value:.2f}" for name, value in bound.stalls())
    busy = [f"{name} {value:.0f} % of the time" for name, value in bound.busy.items()]
    if "achieved occupancy" in metrics:
        busy.append(f"occupancy {metrics['achieved occupancy']:.0f} %")
    where = "" if bound.record.clocks else ", counted by ncu"
    clock, reasons = gigahertz(row), limited_by(row)
    share = (
        f" The problem's own bound is {bound.problem:,.0f}: {bound.problem / bound.measured:.0%}."
        if bound.problem
        else ""
    )
    said = [
        f"**Bound: {bound.clocks:,.0f} clocks by {bound.needs[0].resource}. Measured: {bound.measured:,.0f}{where}; "
        f"the bound is {bound.share:.0%} of that.**{share}",
        f"Time: {milliseconds(row['ms']['median'])}, {tflops(row['tflops'])} TFLOP/s"
        + (f", at {clock}" if clock else "")
        + (f"; limited by: {reasons}" if reasons else "")
        + ".",
        f"Longest stalls, in warps per issued instruction: {stalls}." if stalls else "",
        f"Busy: {', '.join(busy)}." if busy else "",
        f"Recorded: {bound.record.source}: times [{bound.record.run['file']}], counts [{bound.profile.run['file']}], "
        f"rates [{bound.ceilings['file']}].",
    ]
    return "\n\n".join(line for line in said if line)


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


@table("profile")
def profile_table(name: str, dtype: str = "fp16", gpu: str | None = None, **settings: str) -> str:
    """What the emulator counted beside what ncu counted for the same launch."""
    wanted = _settings(settings).items()
    for run in runs(kind="profile", gpu=gpu):
        rows = records(run, name=name, dtype=dtype, default=True)
        found = [r for r in rows if wanted <= r.row["settings"].items()]
        body = [
            [f"{key}, {r.row['size']}", _counted(c), f"{c['ncu']:,}", f"`{c['metric']}`"]
            for r in found
            for key, c in r.row["counters"].items()
            if c.get("emulator") is not None
        ]
        if body:
            break
    else:
        return NOTHING
    return markdown(["counter, size", "emulator", "ncu", "metric"], body, found)


@table("differences")
def differences_table(gpu: str | None = None) -> str:
    """Counters in which ncu differs from the emulator: in how many of the compared launches, the largest difference,
    and why, as the newest profile of each kernel and size has it."""
    compared: set[tuple] = set()
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}  # counter and reason -> how far off, and where
    sources: list[Record] = []
    for run in runs(kind="profile", gpu=gpu):
        for record in records(run, default=True):
            pairs = {key: pair for key, pair in record.row["counters"].items() if pair.get("emulator") is not None}
            if not pairs or record.case + (record.row["name"],) in compared:
                continue
            compared.add(record.case + (record.row["name"],))
            sources.append(record)
            for key, pair in pairs.items():
                ours, ncu = pair.get("code", pair["emulator"]), pair["ncu"]
                if ours != ncu:
                    where = (
                        f"{record.row['name']}, {settings_named(record.row)}, {record.row['size']}: {ours:,} → {ncu:,}"
                    )
                    off = abs(ours - ncu) / max(ours, 1)
                    found.setdefault((key, pair.get("why", "not known")), []).append((off, where))
    if not compared:
        return NOTHING
    body = [
        [f"`{key}`", f"{len(each)} of {len(compared)}", max(each)[1], why] for (key, why), each in sorted(found.items())
    ]
    head = ["counter", "launches that differ", "the largest difference, emulator → ncu", "why"]
    return markdown(head, body, sources)


def _counted(pair: Mapping) -> str:
    """The emulator's count; as ptxas merged the loads, if it did."""
    return f"{pair['code']:,} ({pair['emulator']:,} unmerged)" if "code" in pair else f"{pair['emulator']:,}"


@table("plot")
def plot_link(ladder: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """A figure of the ladder; `regenerate` draws it."""
    if not rungs(ladder, dtype, gpu, **_settings(settings)):
        return NOTHING
    return f"![TFLOP/s of the stages, {ladder}, {dtype}](FIGURES/{_figure_name(ladder, dtype, gpu, settings)})"


def _figure_name(ladder: str, dtype: str, gpu: str | None, settings: Mapping[str, str]) -> str:
    words = ["ladder", ladder, dtype, *(f"{name}{value}" for name, value in settings.items()), *([gpu] if gpu else [])]
    return "-".join(words).lower() + ".svg"


@table("runs")
def runs_table() -> str:
    """Every recorded run."""
    found = runs()
    if not found:
        return NOTHING
    body = [
        [
            f"[{r['file']}]",
            r["kind"],
            r["gpu"],
            r["date"][:10],
            r["commit"][:10] + (" + changes" if r.get("dirty") else ""),
            f"`{r['command']}`",
        ]
        for r in found
    ]
    return markdown(["run", "kind", "GPU", "date", "commit", "command"], body)


# --- documents -------------------------------------------------------------------------------------------------------

_MARKER = re.compile(r"(?P<open><!-- results:(?P<words>[^\n]*?) -->\n)(?P<body>.*?)(?P<close><!-- /results -->)", re.S)


def _arguments(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """["fp16", "gpu=H200"] -> (["fp16"], {"gpu": "H200"})."""
    pairs = [word.split("=", 1) for word in words]
    return [pair[0] for pair in pairs if len(pair) == 1], {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def fill(text: str, document: Path) -> tuple[str, list[tuple[str, ...]]]:
    """`text` with every marked region made anew, and the arguments of the plots that it refers to.

    UserError for a marker that names no table, has the wrong arguments, or is not closed.
    """
    figures: list[tuple[str, ...]] = []
    if text.count("<!-- results:") != len(_MARKER.findall(text)):
        raise UserError(f"{document}: a results marker is not closed by <!-- /results -->")

    def region(match: re.Match) -> str:
        name, *words = match["words"].split()
        if name not in TABLES:
            raise UserError(f"{document}: a table must be one of {', '.join(sorted(TABLES))}, got '{name}'")
        plain, keywords = _arguments(words)
        try:
            body = TABLES[name](*plain, **keywords)
        except TypeError:
            raise UserError(f"{document}: 'results:{match['words']}' has the wrong number of arguments") from None
        except UserError as error:
            raise UserError(f"{document}: {error}") from None
        if name == "plot" and "FIGURES/" in body:
            figures.append(tuple(words))
        here = Path(os.path.relpath(RESULTS, document.parent)).as_posix()
        body = re.sub(r"\[([\w.-]+\.json)\]", rf"[\1]({here}/\1)", body).replace("FIGURES/", f"{here}/")
        return f"{match['open']}{body}\n{match['close']}"

    return _MARKER.sub(region, text), figures


def documents() -> list[Path]:
    """The files that may hold markers."""
    return [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if p.exists()]


def _draw(words: Sequence[str], check: bool) -> Path | None:
    """Draw one ladder figure if its data have changed; its path if they had."""
    (ladder, dtype, *shown), keywords = _arguments(words)
    gpu = keywords.pop("gpu", None)
    found = [r for r in rungs(ladder, dtype, gpu, **_settings(keywords)) if not shown or r.row["size"] in shown]
    bounds = {r.row["limit"]: r.limit for r in found if r.limit}
    digest = hashlib.sha256(json.dumps([[r.row for r in found], bounds], sort_keys=True).encode()).hexdigest()[:16]
    path = RESULTS / _figure_name(ladder, dtype, gpu, keywords)
    if path.exists() and digest in path.read_text(encoding="utf-8"):
        return None
    if not check:
        plot.save(plot.plot(found, f"{found[0].source}: {settings_named(found[0].row)}"), path, digest)
    return path


def regenerate(check: bool = False) -> list[Path]:
    """Bring documents and figures up to date; the paths that were not (with check: only say which, write nothing)."""
    stale = []
    for document in documents():
        text = document.read_text(encoding="utf-8")
        filled, figures = fill(text, document)
        if filled != text:
            stale.append(document)
            if not check:
                document.write_text(filled, encoding="utf-8")
        stale += [path for words in figures if (path := _draw(words, check))]
    return stale
