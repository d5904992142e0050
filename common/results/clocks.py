"""Tables of where the clocks go: what binds a stage, what its warps wait for, the hardware's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.results.bound import Bound, Bounds, profiled_clocks
from common.results.markdown import (
    NOTHING,
    gigahertz,
    given,
    launch_note,
    limited_by,
    markdown,
    milliseconds,
    number,
    quantity,
    table,
    tflops,
)
from common.results.runs import Record, records, rungs, runs, settings_named, sizes


def short_stall(name: str) -> str:
    """ "long scoreboard (global, local memory)" -> "long scoreboard"."""
    return name.split(" (")[0]


SIGNIFICANT = 0.05  # of the measured clocks: what needs fewer is not shown


@table("bounds")
def bounds_table(ladder: str, dtype: str, size: str, gpu: str | None = None, **settings: str) -> str:
    """What binds each stage of a ladder at one size, how near it comes, in clocks, and what its warps wait for."""
    found = [r for r in rungs(ladder, dtype, gpu, **given(settings)) if r.row["size"] == size]
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
    found = [r for r in rungs(ladder, dtype, gpu, **given(settings)) if "clock" in r.row]
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
    return markdown(head, body, sources) + launch_note(sources) if body else NOTHING


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


@table("profile")
def profile_table(name: str, dtype: str = "fp16", gpu: str | None = None, **settings: str) -> str:
    """What the emulator counted beside what ncu counted for the same launch."""
    wanted = given(settings).items()
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
