"""Tables of where the clocks go: what binds a stage, what its warps wait for, the hardware's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common import course
from common.results.bound import Bound, Bounds, profiled_clocks
from common.results.markdown import (
    NOTHING,
    gigahertz,
    given,
    in_full,
    launch_note,
    limited_by,
    markdown,
    milliseconds,
    number,
    quantity,
    table,
    tflops,
)
from common.results.runs import ANY, Case, Only, Record, Run, choose, every, records, rungs, runs, settings_named, sizes


def short_stall(name: str) -> str:
    """ "long scoreboard (global, local memory)" -> "long scoreboard"."""
    return name.split(" (")[0]


SIGNIFICANT = 0.05  # of the measured clocks: what needs fewer is not shown


@table("bounds")
def bounds_table(ladder: str, dtype: str, size: str, only: Only = ANY, **settings: str) -> str:
    """What binds each stage of a ladder at one size, how near it comes, in clocks, and what its warps wait for."""
    found = [r for r in rungs(ladder, dtype, only, **given(settings)) if r.row["size"] == size]
    bounds = Bounds(only)
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
    return markdown([*head, "longest stalls, warps per issue"], body, sources) + bounds.rates_of_problem(found)


@table("clocks")
def clocks_table(ladder: str, dtype: str, *size: str, only: Only = ANY, **settings: str) -> str:
    """The mean SM clock of the timed launches of stages and libraries, with what the driver says limited it."""
    found = [r for r in rungs(ladder, dtype, only, **given(settings)) if "clock" in r.row]
    if not found:
        return NOTHING
    body: list[list[object]] = []
    for name in dict.fromkeys(r.row["name"] for r in found):
        at = {r.row["size"]: r.row for r in found if r.row["name"] == name}
        cells = [gigahertz(at[each]) if each in at else None for each in size]
        reasons = [limited_by(at[each]) if each in at else None for each in size]
        body.append([name, *(cell and f"{cell} ({why or 'not asked'})" for cell, why in zip(cells, reasons))])
    limits = {f"{r.run['power_limit_w']:.0f} W" for r in found if r.run.get("power_limit_w")}
    limit = f"\nEnforced power limit: {', '.join(sorted(limits))}." if limits else ""
    return markdown([f"SM clock (limited by), {dtype}", *size], body, found) + limit


@table("verdict")
def verdict_table(stage: str, dtype: str = "fp16", size: str | None = None, only: Only = ANY, **settings: str) -> str:
    """What binds one stage, in clocks: the resources that it needs for long, the bound, what was measured, what warps
    wait for.

    Where something is not recorded yet, what, and how to record it. `size`: by default the one that a profile has by
    default; a setting that is not given is as by default."""
    bounds = _bounds((stage,), dtype, size, only, settings)
    return bounds if isinstance(bounds, str) else "\n".join([_needs(bounds[0]), "", _conclusion(bounds[0])])


@table("needs")
def needs_table(*stage: str, dtype: str = "fp16", size: str | None = None, only: Only = ANY, **settings: str) -> str:
    """The fewest clocks that stages need of each resource, side by side, and the measured ones of all but the last.

    The last one's can be predicted from them. Resources that no stage needs much of are left out."""
    bounds = _bounds(stage, dtype, size, only, settings)
    if isinstance(bounds, str):
        return bounds
    clocks = [{need.resource: need.clocks for need in bound.needs} for bound in bounds]
    longest = {name: max(each.get(name, 0.0) for each in clocks) for each in clocks for name in each}
    least = SIGNIFICANT * bounds[0].measured
    shown = sorted((name for name, most in longest.items() if most >= least), key=lambda name: -longest[name])
    body: list[list[object]] = [[name, *(number(each.get(name), "{:,.0f}") for each in clocks)] for name in shown]
    body.append(["measured", *(f"{bound.measured:,.0f}" for bound in bounds[:-1]), "below"])
    head = [f"fewest clocks, {settings_named(bounds[0].record.row)}, {bounds[0].record.row['size']}", *stage]
    return markdown(head, body, [each for bound in bounds for each in (bound.profile, Record(bound.ceilings, {}))])


@table("waits")
def waits_table(*stage: str, dtype: str = "fp16", size: str | None = None, only: Only = ANY, **settings: str) -> str:
    """What the time of a resident warp goes into, stage by stage, in per cent of it, as ncu counted; how busy the pipes
    are, and how many clocks an SM took."""
    bounds = _bounds(stage, dtype, size, only, settings)
    if isinstance(bounds, str):
        return bounds
    shares = [bound.waits() for bound in bounds]
    longest = {name: max(each.get(name, 0.0) for each in shares) for each in shares for name in each}
    shown = sorted((name for name, share in longest.items() if share >= SIGNIFICANT), key=lambda name: -longest[name])
    body: list[list[object]] = [[name, *(f"{each.get(name, 0.0):.0%}" for each in shares)] for name in shown]
    for name in dict.fromkeys(name for bound in bounds for name in bound.busy):
        body.append([f"**{name} busy**", *(number(bound.busy.get(name), "{:.0f}%") for bound in bounds)])
    body.append(["**clocks of an SM**", *(number(profiled_clocks(bound.profile), "{:,.0f}") for bound in bounds)])
    head = [f"of a warp's time, {settings_named(bounds[0].record.row)}, {bounds[0].record.row['size']}", *stage]
    return markdown(head, body, [bound.profile for bound in bounds])


@table("in_clocks")
def in_clocks_table(*stage: str, dtype: str = "fp16", only: Only = ANY, **settings: str) -> str:
    """How many clocks stages take, size by size, × the row above; how near they come to the problem's bound and to
    their own; the SM clock of the timed launches and what limited it, in the driver's words."""
    full = in_full(stage[-1], dtype, settings)
    body: list[list[object]] = []
    sources: list[Record] = []
    bounds = Bounds(only)
    found = rungs(course.load(stage[-1]).ladder, dtype, only, **full)
    for size in sizes(found):
        above: float | None = None
        for record in sorted(
            (r for r in found if r.row["size"] == size and r.row["name"] in stage),
            key=lambda r: stage.index(r.row["name"]),
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
        settings_named({"dtype": dtype, "settings": full}),
        "clocks",
        "× the row above",
        "% of the problem's bound",
    ]
    head += ["own bound, clocks", "% of own bound", "SM clock", "limited by"]
    return markdown(head, body, sources) + launch_note(sources) if body else NOTHING


@table("predicted")
def predicted_table(*stage: str, dtype: str = "fp16", only: Only = ANY, **settings: str) -> str:
    """Two stages' clocks, size by size: what the second one would take if the gap between the first one's bound and
    its time came on top of the second one's bound, and what it took."""
    full = in_full(stage[-1], dtype, settings)
    body: list[list[object]] = []
    sources: list[Record] = []
    bounds = Bounds(only)
    found = rungs(course.load(stage[-1]).ladder, dtype, only, **full)
    for size in sizes(found):
        at = {r.row["name"]: bounds.of(r) for r in found if r.row["size"] == size and r.row["name"] in stage}
        before, after = map(at.get, stage)
        if before is None or after is None:
            continue
        gap = before.measured - before.clocks
        clocks = [before.measured, before.clocks, gap, after.clocks, after.clocks + gap, after.measured]
        body.append([size, *(f"{each:,.0f}" for each in clocks), f"{after.measured / clocks[-2]:.2f}"])
        sources += [before.record, before.profile, after.profile]
    first, second = (name.partition("_")[0] for name in stage)
    head = [
        settings_named({"dtype": dtype, "settings": full}),
        f"{first} took",
        f"bound of {first}",
        "gap",
        f"bound of {second}",
        f"prediction for {second}: its bound + the gap",
        f"{second} took",
        "÷ prediction",
    ]
    return markdown(head, body, sources) if body else NOTHING


def _bounds(
    stages: Sequence[str], dtype: str, size: str | None, only: Only, settings: Mapping[str, str]
) -> list[Bound] | str:
    """The bounds of stages' recorded rows, or what has to be recorded for one. Size and settings that are not given are
    as by default for the last stage."""
    last = course.load(stages[-1])
    kernel = last.kernel(dtype, given(settings))
    if size is None:
        shapes = last.spec.bench_shapes(kernel.variants)
        size = last.spec.format(shapes[len(shapes) // 2])
    rows = [r for r in rungs(last.ladder, dtype, only, **kernel.settings) if r.row["size"] == size]
    names, bounds, found = settings_named({"dtype": dtype, "settings": kernel.settings}), Bounds(only), []
    for stage in stages:
        row = next((r for r in rows if r.row["name"] == stage), None)
        if row is None:
            return f"*No run of {stage} {names} at {size} is recorded yet.*"
        bound = bounds.of(row)
        if bound is None:
            return f"*What binds {stage} {names} at {size} cannot be said yet. {bounds.missing(row)}*"
        found.append(bound)
    return found


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


@table("profile")
def profile_table(stage: str, dtype: str = "fp16", only: Only = ANY, **settings: str) -> str:
    """What the emulator counted beside what ncu counted for the same launch."""
    wanted = given(settings).items()

    def counted(run: Run) -> list[tuple[Record, str, Mapping[str, Any]]]:
        rows = records(run, name=stage, dtype=dtype, default=True)
        same = [r for r in rows if wanted <= r.row["settings"].items()]
        pairs = [(r, key, pair) for r in same for key, pair in r.row["counters"].items()]
        return [each for each in pairs if each[2].get("emulator") is not None]

    found = choose(runs("profile", only), counted)
    if not found:
        return NOTHING
    body = [[f"{key}, {r.row['size']}", _counted(c), f"{c['ncu']:,}", f"`{c['metric']}`"] for r, key, c in found]
    return markdown(["counter, size", "emulator", "ncu", "metric"], body, [r for r, _, _ in found])


@table("differences")
def differences_table(only: Only = ANY) -> str:
    """Counters in which ncu differs from the emulator: in how many of the compared launches, the largest difference,
    and why, as the newest profile of each kernel and size has it."""
    compared: set[tuple[Case, str]] = set()
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}  # counter and reason -> how far off, and where
    sources: list[Record] = []
    for _, rows in every(runs("profile", only), lambda run: records(run, default=True)):
        for record in rows:
            pairs = {key: pair for key, pair in record.row["counters"].items() if pair.get("emulator") is not None}
            if not pairs or (record.case, record.row["name"]) in compared:
                continue
            compared.add((record.case, record.row["name"]))
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


def _counted(pair: Mapping[str, Any]) -> str:
    """The emulator's count; as ptxas merged the loads, if it did."""
    return f"{pair['code']:,} ({pair['emulator']:,} unmerged)" if "code" in pair else f"{pair['emulator']:,}"
