"""Tables of what `bench` timed: ladders, variants, several precisions, sizes and modes of running side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import truediv
from typing import Any

from common import course, problem
from common.results.bound import Bounds
from common.results.markdown import (
    NOTHING,
    gigahertz,
    given,
    in_full,
    launch_note,
    markdown,
    milliseconds,
    number,
    pivot,
    table,
    tflops,
)
from common.results.runs import (
    ANY,
    Only,
    Record,
    Run,
    choose,
    every,
    named,
    not_zero,
    records,
    rungs,
    runs,
    settings_named,
    sizes,
    sustained,
    variant_records,
)

AtSizes = Mapping[str, Record]  # a row's records, by size
Cell = Callable[[Record], str | None]


@table("ladder")
def ladder_table(ladder: str, dtype: str, *size: str, only: Only = ANY, **settings: str) -> str:
    """TFLOP/s of every stage at each size; at the last × the stage that it follows, in time and in clocks, the share of
    the library, and that of the problem's bound (in clocks). A column for which nothing is recorded is left out."""
    found = rungs(ladder, dtype, only, **given(settings))
    if not found:
        return NOTHING
    shown = size or tuple(sizes(found))
    last = shown[-1]
    peer = next((r.peer.row["name"] for r in found if r.peer), "library")
    bounds = Bounds(only)
    step, share = f"× previous ({last})", f"% of {peer} ({last})"
    heads = (step, "in clocks", share, f"% of the problem's bound ({last})")
    columns: dict[str, list[str | None]] = {}
    above = ""
    for name in dict.fromkeys(r.row["name"] for r in sorted(found, key=lambda r: r.row["role"] == "peer")):
        at = {r.row["size"]: r for r in found if r.row["name"] == name}
        before = next(iter(at.values())).previous
        columns.setdefault("stage", []).append(course.rung(name, before.row["name"] if before else "", above))
        for each in shown:
            columns.setdefault(each, []).append(tflops(at[each].row["tflops"]) if each in at else None)
        record = at.get(last)
        compared: dict[str, str | None] = dict.fromkeys(heads)
        if record and record.row["role"] != "peer":
            of_problem = number(bounds.of_problem(record), "{:.1%}")
            steps_ = number(record.times(record.previous)), number(_times_in_clocks(record, record.previous))
            compared = dict(zip(heads, (*steps_, number(record.times(record.peer), "{:.1%}"), of_problem)))
        for head, cell in compared.items():
            columns.setdefault(head, []).append(cell)
        above = name
    always = {"stage", *shown, step, share}
    kept = {head: cells for head, cells in columns.items() if head in always or any(cells)}
    said = launch_note(found) + bounds.rates_of_problem([r for r in found if r.row["size"] == last])
    return markdown(list(kept), list(zip(*kept.values())), found) + said


def _times_in_clocks(record: Record, other: Record | None) -> float | None:
    """How many times fewer clocks than the other; None where they were not counted."""
    before = other and other.clocks
    return before / record.clocks if before and record.clocks else None


def both_times(record: Record | None, other: Record | None) -> str | None:
    """How many times as fast as the other, in time and in clocks: "1.04 (1.01)"."""
    in_time = number(record.times(other)) if record else None
    in_clocks = number(_times_in_clocks(record, other), " ({:.2f})") if record else None
    return in_time and in_time + (in_clocks or "")


def _at(
    run: Run,
    stage: str,
    dtype: str,
    settings: Mapping[str, int],
    shown: Sequence[str],
    peer: bool = False,
    **fields: Any,
) -> dict[str, Record]:
    """A run's rows of a stage's default kernel by size, with `peer` those that have one; {} unless all of `shown` are
    there. A setting that is not given is 0."""
    rows = records(run, name=stage, dtype=dtype, default=True, **fields)
    same = (r for r in rows if not_zero(r.row["settings"]) == not_zero(settings))
    found = {r.row["size"]: r for r in same if r.peer or not peer}
    return found if set(shown) <= set(found) else {}


def _time(record: Record) -> str:
    return milliseconds(record.row["ms"]["median"])


def _speed(record: Record | None) -> str | None:
    return None if record is None else tflops(record.row["tflops"])


def _clock(record: Record) -> str | None:
    return gigahertz(record.row)


def _both(stage: str, found: Iterable[Record], cells: Mapping[str, Cell]) -> list[tuple[str, Cell]]:
    """Columns of a stage, and the same of the library beside it; "" is headed by their names."""
    peer = next((record.peer.row["name"] for record in found if record.peer), "library")
    of_peer = {name: lambda record, cell=cell: record.peer and cell(record.peer) for name, cell in cells.items()}
    return [(name or who, cell) for who, side in ((stage, cells), (peer, of_peer)) for name, cell in side.items()]


@table("speed")
def speed_table(stage: str, *dtype: str, only: Only = ANY, **settings: str) -> str:
    """TFLOP/s of one stage, of the one that it follows and of the library at each size; the factors between them.

    All of the run in which the ladder was climbed highest. By default the stage's first dtype; a setting that is not
    given is as by default."""
    body: list[list[object]] = []
    sources: list[Record] = []
    shown: list[str] = []
    bounds = Bounds(only)
    for each in dtype or course.load(stage).dtypes[:1]:
        found = rungs(course.load(stage).ladder, each, only, **in_full(stage, each, settings))
        at = {r.row["size"]: r for r in found if r.row["name"] == stage}
        if not at:
            continue
        sources += found
        shown = shown or sizes(found)
        own = [at.get(size) for size in shown]
        for rows in ([r and r.previous for r in own], own, [r and r.peer for r in own]):
            label = next((r.row["name"] for r in rows if r), None)
            if label:
                body.append([f"{label}, {each}", *(r and tflops(r.row["tflops"]) for r in rows)])
        ratios = {
            "× previous": [number(r.times(r.previous)) if r else None for r in own],
            f"% of {label}": [number(r.times(r.peer), "{:.0%}") if r else None for r in own],
            "% of the problem's bound": [number(bounds.of_problem(r), "{:.0%}") if r else None for r in own],
        }
        body += [[f"{head}, {each}", *cells] for head, cells in ratios.items() if any(cells)]
    return markdown(["TFLOP/s", *shown], body, sources) if body else NOTHING


def _at_sizes(
    corner: str, rows: Iterable[tuple[str, AtSizes, AtSizes]], shown: Sequence[str], other: str, found: list[Record]
) -> str:
    """TFLOP/s of each row at each size, and how many times as fast as the `other` it is: label, its records, those of
    the other."""
    columns = [(f"TFLOP/s, {size}", lambda row, size=size: _speed(row[1].get(size))) for size in shown]
    columns += [
        (f"× {other}, {size} (in clocks)", lambda row, size=size: both_times(row[1].get(size), row[2].get(size)))
        for size in shown
    ]
    return pivot(corner, ((row[0], row) for row in rows), columns, found)


@table("variants")
def variants_table(stage: str, macro: str, *size: str, only: Only = ANY, **settings: str) -> str:
    """TFLOP/s of the values of one macro, × its default, in time and in clocks; all of one run."""
    found = variant_records(stage, macro, only, size, **given(settings))
    if not found:
        return NOTHING
    cases: dict[str, dict[int, dict[str, Record]]] = {}  # what is computed, but for the macro -> value -> size
    for record in found:
        row = record.row
        others = {name: value for name, value in row["settings"].items() if name != macro}
        case = cases.setdefault(settings_named(row | {"settings": others}), {})
        case.setdefault(row["variants"][macro], {})[row["size"]] = record
    default = found[0].row["defaults"][macro]
    rows = [
        (
            f"`{macro}={value}`" + " (default)" * (value == default) + f", {name}" * (len(cases) > 1),
            at,
            values.get(default, {}),
        )
        for name, values in cases.items()
        for value, at in sorted(values.items())
    ]
    return _at_sizes(macro, rows, size or sizes(found), "default", found)


@table("steps")
def steps_table(stage: str, *chosen: Mapping[str, int] | str, only: Only = ANY) -> str:
    """TFLOP/s of variants that differ in several macros, × the row above in time and in clocks; before them the stage
    before. All of one run.

    `chosen`: of each row the macros that are not as by default, as a mapping; after them sizes."""
    variants = [each for each in chosen if not isinstance(each, str)]
    shown = [each for each in chosen if isinstance(each, str)]

    def wanted(run: Run) -> list[list[Record]] | None:
        rows = records(run, name=stage)
        found = [[r for r in rows if r.row["variants"] == {**r.row["defaults"], **each}] for each in variants]
        return found if all(found) else None

    found = choose(runs("bench", only), wanted)
    if not found:
        return NOTHING
    shown = shown or sizes(found[0])
    labels = [named(each) and f"`{named(each)}`" or "(default)" for each in variants]
    if previous := [r.previous for r in found[0] if r.previous]:
        found, labels = [previous, *found], [previous[0].row["name"], *labels]
    at = [{r.row["size"]: r for r in each} for each in found]
    rows = list(zip(labels, at, [{}, *at]))
    return _at_sizes("variant", rows, shown, "the row above", [r for each in found for r in each])


def _long_runs(
    stage: str, dtype: str, shown: Sequence[str], only: Only, settings: Mapping[str, int]
) -> list[tuple[Run, dict[str, Record]]]:
    """Every run but the quick ones that timed a stage's default kernel and the library at all these sizes, oldest
    first; with its rows by size."""
    dates: set[str] = set()

    def new(run: Run) -> dict[str, Record]:
        quick = "--quick" in run["command"]
        found = {} if quick else _at(run, stage, dtype, settings, shown, peer=True, role="stage")
        if run["date"] in dates:  # rows that were kept in a file of their own
            return {}
        dates.update([run["date"]] if found else [])
        return found

    return every(reversed(runs("bench", only)), new)


@table("spread")
def spread_table(stage: str, dtype: str, *size: str, only: Only = ANY, **settings: str) -> str:
    """TFLOP/s of a stage and of the library, and the stage's share, from the lowest to the highest of all runs but the
    quick ones that have both at all these sizes: how far runs of the same kernel differ. Then their clocks and the SM
    clock, of the runs that counted them."""
    found = _long_runs(stage, dtype, size, only, given(settings))
    if not found:
        return NOTHING
    columns: dict[str, list[list[float]]] = {}  # by what it is of: of each size the value of each run
    for each in size:
        records_ = [at[each] for _, at in found]
        peers = [peer for r in records_ if (peer := r.peer)]
        columns.setdefault(stage, []).append([r.row["tflops"] for r in records_])
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
    return markdown([f"TFLOP/s, {dtype}", *size], body) + f"\n\n{median} Recorded: {len(found)} runs: {files}."


@table("together")
def together_table(stage: str, *size: str, only: Only = ANY) -> str:
    """A stage's default kernel and the library in every precision and setting that one run timed in the same rounds:
    TFLOP/s, share of the library, SM clock. Of the newest such run that has all these sizes."""

    def rounds(run: Run) -> list[Record] | None:
        rows = [r for r in records(run, name=stage, default=True) if r.row["size"] in (size or r.row["size"])]
        several = len({settings_named(r.row) for r in rows}) > 1
        return rows if run.get("together") and several and set(size) <= {r.row["size"] for r in rows} else None

    found = choose(runs("bench", only), rounds)
    if not found:
        return NOTHING
    rows = [
        (f"{settings_named(record.row)}, {each}", record)
        for each in size or sizes(found)
        for record in found
        if record.row["size"] == each
    ]
    share = ("share", lambda record: number(record.times(record.peer), "{:.0%}"))
    return pivot("TFLOP/s", rows, [*_both(stage, found, {"": _speed, "SM clock": _clock}), share], found)


@table("ragged")
def ragged_table(stage: str, dtype: str, *group: str, only: Only = ANY, **settings: str) -> str:
    """A stage and the library at sizes that tiles do not divide, × the time that each takes at the whole size above.

    `group`: "2048,2040,2047x2047x2040", the whole size first; all of the newest run that has them all. × whole is of
    clocks where they were counted: times at two sizes are not of one clock. A clock that no row has is no column."""
    groups = [each.split(",") for each in group]
    shown = [size for each in groups for size in each]
    at = choose(runs("bench", only), lambda run: _at(run, stage, dtype, given(settings), shown, peer=True))
    if not at:
        return NOTHING
    whole = {size: each[0] for each in groups for size in each}

    def ratio(record: Record) -> str | None:
        size = record.row["size"]
        base = at[whole[size]] if record.row["role"] != "peer" else at[whole[size]].peer
        if base is None or size == whole[size]:
            return None
        if record.clocks and base.clocks:
            return f"{record.clocks / base.clocks:.2f}"
        return f"{record.row['ms']['median'] / base.row['ms']['median']:.2f}"

    rows = [(size, at[size]) for size in shown]
    columns = _both(stage, at.values(), {"": _time, "× whole": ratio, "SM clock": _clock})
    kept = [(name, cell) for name, cell in columns if name != "SM clock" or any(cell(row) for _, row in rows)]
    return pivot("size", rows, kept, list(at.values()))


@table("uses")
def uses_table(stage: str, dtype: str, *size: str, only: Only = ANY, **settings: str) -> str:
    """A stage's default kernel at each of these sizes, a row each: time, TFLOP/s, TB/s of inputs and outputs, × peers.

    All of the newest run that has them all. A setting that is not given is as by default."""
    wanted = in_full(stage, dtype, settings)
    at = choose(runs("bench", only), lambda run: _at(run, stage, dtype, wanted, size))
    if not at:
        return NOTHING
    found = [at[each] for each in size]

    def terabytes(record: Record) -> str:
        row = record.row
        moved = problem.load(row["problem"]).bytes(tuple(row["shape"].values()), dtype, row["variants"])
        return f"{moved / row['ms']['median'] / 1e9:.2f}"

    def times(record: Record, peer: str) -> str | None:
        return number(record.times(record.beside(role="peer", name=peer)))

    columns: list[tuple[str, Cell]] = [("time", _time), ("TFLOP/s", _speed), ("TB/s", terabytes)]
    peers = dict.fromkeys(peer.row["name"] for record in found for peer in record.peers)
    columns += [(f"× {peer}", partial(times, peer=peer)) for peer in peers]
    return pivot("size", [(record.row["size"], record) for record in found], columns, found)


def beside(run: Run, name: str, label: str) -> tuple[list[str], list[list[object]], list[Record]]:
    """Head, rows and records: a stage beside `label`, a changed copy of its source that the same run timed with it."""
    found = [Record(run, row) for row in run["rows"] if row["name"] == name]
    ours = {each.row["size"]: each for each in found if not each.row.get("source")}
    changed = {each.row["size"]: each for each in found if each.row.get("source")}
    body: list[list[object]] = [
        [size, tflops(ours[size].row["tflops"]), tflops(each.row["tflops"]), both_times(each, ours[size])]
        for size, each in changed.items()
        if size in ours
    ]
    return [found[0].row["dtype"], f"{name}, TFLOP/s", label, "× (in clocks)"], body, found


@table("beside")
def beside_table(stage: str, file: str, *label: str, only: Only = ANY, timed: str = "") -> str:
    """A stage beside LABEL, a changed copy of its source that the run FILE.json timed with it; timed=sustained: as they
    were without a pause."""
    made = choose(runs("bench", only), lambda run: run if run["file"] == f"{file}.json" else None)
    made = sustained(made) if made and timed == "sustained" else made
    return markdown(*beside(made, stage, " ".join(label))) if made else NOTHING


@table("sustained")
def sustained_table(stage: str, dtype: str, peer: str, *size: str, only: Only = ANY, **settings: str) -> str:
    """What everything in a run delivers in bursts and without a pause, TFLOP/s, a row each; and the geometric means of
    its shares of a peer. Of the newest run in which this stage has both at all these sizes."""
    wanted = not_zero(given(settings))

    def at(run: Run) -> dict[tuple[str, str], Record]:
        rows = (r for r in records(run, dtype=dtype) if not_zero(r.row["settings"]) == wanted)
        return {(r.row["name"], r.row["size"]): r for r in rows if r.row.get("default", True)}

    def ways(run: Run) -> tuple[dict[tuple[str, str], Record], ...] | None:
        both = at(run), at(sustained(run))
        return both if all((stage, each) in found for found in both for each in size) else None

    both = choose(runs("bench", only), ways)
    if not both:
        return NOTHING

    body: list[list[object]] = []
    for name in dict.fromkeys(name for name, _ in both[0]):
        if not all((name, each) in both[1] for each in size):
            continue
        speeds = [[found[name, each].row["tflops"] for each in size] for found in both]
        peers = [[found[peer, each].row["tflops"] for each in size] for found in both]
        shares = [statistics.geometric_mean(map(truediv, *pair)) for pair in zip(speeds, peers)]
        body.append([name, *(tflops(each) for pair in zip(*speeds) for each in pair), *map(number, shares)])
    head = [f"{each}{mode}" for each in size for mode in (", bursts", ", sustained")]
    sources = [both[0][stage, each] for each in size]
    return markdown([f"TFLOP/s, {dtype}", *head, f"× {peer}, bursts", "sustained"], body, sources)
