"""Tables of what `bench` timed: ladders, variants, several precisions, sizes and modes of running side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from common import course, problem
from common.results.bound import Bounds
from common.results.markdown import (
    NOTHING,
    gigahertz,
    given,
    launch_note,
    markdown,
    milliseconds,
    number,
    table,
    tflops,
)
from common.results.runs import (
    Record,
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


@table("ladder")
def ladder_table(ladder: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of every stage at each size; at the last × the stage that it follows, in time and in clocks, the share of
    the library, and that of the problem's bound (in clocks). A column for which nothing is recorded is left out."""
    found = rungs(ladder, dtype, gpu, **given(settings))
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
            steps_ = number(record.times(record.previous)), number(_times_in_clocks(record, record.previous))
            compared = dict(zip(heads, (*steps_, number(record.times(record.peer), "{:.1%}"), of_problem)))
        for head, cell in compared.items():
            columns.setdefault(head, []).append(cell)
        above = name
    always = {"stage", *shown, step, share}
    kept = {head: cells for head, cells in columns.items() if head in always or any(cells)}
    return markdown(list(kept), list(zip(*kept.values())), found) + launch_note(found)


def _times_in_clocks(record: Record, other: Record | None) -> float | None:
    """How many times fewer clocks than the other; None where they were not counted."""
    before = other and other.clocks
    return before / record.clocks if before and record.clocks else None


def both_times(record: Record | None, other: Record | None) -> str | None:
    """How many times as fast as the other, in time and in clocks: "1.04 (1.01)"."""
    in_time = number(record.times(other)) if record else None
    in_clocks = number(_times_in_clocks(record, other), " ({:.2f})") if record else None
    return in_time and in_time + (in_clocks or "")


@table("speed")
def speed_table(ladder: str, name: str, *dtypes: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of one stage, of the one that it follows and of the library at each size; the factors between them.

    All of the run in which the ladder was climbed highest."""
    body: list[list[object]] = []
    sources: list[Record] = []
    shown: list[str] = []
    bounds = Bounds()
    for dtype in dtypes:
        found = rungs(ladder, dtype, gpu, **given(settings))
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


@table("variants")
def variants_table(name: str, macro: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of the values of one macro, × its default, in time and in clocks; all of one run."""
    found = variant_records(name, macro, gpu, shown, **given(settings))
    if not found:
        return NOTHING
    shown = shown or tuple(sizes(found))
    head = [macro, *(f"TFLOP/s, {size}" for size in shown), *(f"× default, {size} (in clocks)" for size in shown)]
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
            ratios = [both_times(r, base.get(size)) for size, r in zip(shown, rows, strict=True)]
            label = f"`{macro}={value}`" + (" (default)" if value == default else "")
            label += f", {name}" if len(cases) > 1 else ""
            body.append([label, *(r and tflops(r.row["tflops"]) for r in rows), *ratios])
    return markdown(head, body, found)


def steps(name: str, chosen: Sequence[Mapping[str, int]], *shown: str, gpu: str | None = None) -> str:
    """TFLOP/s of variants that differ in several macros, × the row above in time and in clocks; before them the stage
    before. All of one run.

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
        ratios = [both_times(at.get(size), above.get(size)) for size in shown]
        body.append([label, *(size in at and tflops(at[size].row["tflops"]) or None for size in shown), *ratios])
        above = at
    head = [
        "variant",
        *(f"TFLOP/s, {size}" for size in shown),
        *(f"× the row above, {size} (in clocks)" for size in shown),
    ]
    return markdown(head, body, [r for each in rows for r in each])


def _long_runs(
    name: str, dtype: str, shown: Sequence[str], gpu: str | None, settings: Mapping[str, str]
) -> list[tuple[dict, dict[str, Record]]]:
    """Every run but the quick ones that timed a stage's default kernel and the library at all these sizes, oldest
    first; with its rows by size. A setting that is not given is 0."""
    wanted = not_zero(given(settings))
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
    wanted = not_zero(given(settings))
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
    wanted = not_zero(given(settings))
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


def beside(run: dict, name: str, label: str) -> tuple[list[str], list[list[object]], list[Record]]:
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
def beside_table(name: str, run: str, *label: str, gpu: str | None = None) -> str:
    """`beside` of docs/results/RUN.json; the label's words follow."""
    made = [each for each in runs(kind="bench", gpu=gpu) if each["file"] == f"{run}.json"]
    return markdown(*beside(made[0], name, " ".join(label))) if made else NOTHING


@table("sustained")
def sustained_table(name: str, dtype: str, peer: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """What everything in a run delivers in bursts and without a pause, TFLOP/s, a row each; and the geometric means of
    its shares of a peer. Of the newest run in which this stage has both at all these sizes."""
    wanted = not_zero(given(settings))

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
