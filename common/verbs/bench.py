"""Verb `bench`: how fast is a stage, beside the library, the stage before it and what the GPU can do at all?

Nothing is timed before its result has been checked (common/measure/contest.py). Where there is no GPU there are no
times: the emulator checks and counts instead, and recorded times are shown as what they are.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from common import accuracy, counts, course, terminal
from common.results import markdown, plot, runs
from common.results.runs import Record
from common.stage import Kernel, Stage
from common.verbs import count, options
from cudaemu.errors import CheckFailed, UserError

if TYPE_CHECKING:
    from common.measure.contest import Entry, Heat
    from cudaemu import Report

EXAMPLES = (
    "--dtype {dtype} --sizes SIZE SIZE",
    "--dtype all --json run.json --plot run.png",
    "--variant {variant}=all # every value of a variant",
    "--variant all # the default, then every other value of every variant",
)
LADDER_EXAMPLES = ("01 02 03 --quick # some stages", "--dtype all --json run.json --plot run.png")

ROUNDS, QUICK_ROUNDS, QUICK_MS = 5, 2, 20.0
SHARES = 2  # the libraries of which a share is shown, the first ones; all have a row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_sizes(parser)
    options.add_device(parser)
    options.add_seed(parser)
    parser.add_argument(
        "--repeat",
        type=int,
        default=ROUNDS,
        metavar="ROUNDS",
        help="rounds; each times all contenders in turn (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a first impression")
    parser.add_argument(
        "--together",
        action="store_true",
        help="time what differs in dtype or settings in the same rounds too, so that it may be compared",
    )
    parser.add_argument(
        "--sustained",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="then also run each contender for this long without a pause, L2 as the last run left it: a second table",
    )
    parser.add_argument("--details", action="store_true", help="without a GPU: all counters and recorded runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the run (docs/results/ holds recorded ones)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw TFLOP/s over size (.png, .svg or .pdf)")


def run(stage: Stage, args: argparse.Namespace) -> int:
    _refuse_early(args)
    if options.device(stage, args) == "emulator":
        return _count_one(stage, args)
    asked = [kernel for dtype in _dtypes(stage, args) for kernel in sweep(stage, dtype, args)]
    return _measure([heat for case in _cases(asked) for heat in _one_stage(case, args)], args)


def run_ladder(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    _refuse_early(args)
    able = [stage for stage in stages if options.device(stage, args) == "gpu"]
    if not able:
        return _count_ladder(stages, args)
    dtypes = _ladder_dtypes(able, args)
    asked = [
        kernel for dtype in dtypes for stage in able if dtype in stage.dtypes for kernel in _rung(stage, dtype, args)
    ]
    if not asked:
        raise UserError(f"no stage computes that: {' '.join(dtypes)} {' '.join(args.variant)}")
    return _measure([heat for case in _cases(asked) for heat in _whole_part(case, args)], args)


def _refuse_early(args: argparse.Namespace) -> None:
    """UserError for options that would fail only after the run."""
    if args.repeat < 1:
        raise UserError(f"--repeat must be a whole number >= 1, got {args.repeat}")
    if not 0 <= args.sustained < math.inf:
        raise UserError(f"--sustained must be a number of seconds >= 0, got {args.sustained:g}")
    if args.plot and args.plot.suffix not in plot.SUFFIXES:
        raise UserError(f"--plot {args.plot}: the name must end in {', '.join(plot.SUFFIXES)}")
    options.check_writable(args.json, args.plot)


# --- which kernels ---------------------------------------------------------------------------------------------------


def _dtypes(stage: Stage, args: argparse.Namespace) -> list[str]:
    """What --dtype asks for: a list, "all", or by default the stage's first."""
    return options.dtypes(stage, args) or [stage.dtypes[0]]


def _ladder_dtypes(stages: Sequence[Stage], args: argparse.Namespace) -> list[str]:
    names = list(dict.fromkeys(dtype for stage in stages for dtype in stage.dtypes))
    wanted = names if args.dtype == "all" else [stages[0].dtypes[0]] if args.dtype is None else args.dtype.split(",")
    for dtype in wanted:
        if dtype not in names:
            raise UserError(f"--dtype must be one of {', '.join(names)}, got '{dtype}'")
    return wanted


def sweep(stage: Stage, dtype: str, args: argparse.Namespace) -> list[Kernel]:
    """The kernels that --variant and --source or --trial ask for. NAME=all stands for every value of that variant;
    "all" for the default and every other value of every variant in turn, but of those that are given beside it."""
    swept = [text.partition("=")[0].strip() for text in args.variant if text.partition("=")[2].strip() == "all"]
    rest = [text for text in args.variant if text != "all" and text.partition("=")[2].strip() != "all"]
    fixed = argparse.Namespace(variant=rest)
    if "all" in args.variant:
        if swept:
            raise UserError(f"--variant all means all variants, {swept[0]}=all among them")
        return options.named(stage.kernels([dtype], args.source, options.variants(fixed)), args)
    choices = [options.variants(fixed)]
    for name in swept:
        if name not in stage.variants:
            stage.kernel(dtype, {name: 0}, args.source)  # complains as for any other wrong variant
        choices = [{**chosen, name: value} for chosen in choices for value in stage.variants[name]]
    return options.named([stage.kernel(dtype, chosen, args.source) for chosen in choices], args)


def _rung(stage: Stage, dtype: str, args: argparse.Namespace) -> list[Kernel]:
    """A stage's kernels in a ladder: its defaults, with the settings that --variant asks for; [] if it lacks one.

    A setting that is 0 need not exist."""
    names = [text.partition("=")[0].strip() for text in args.variant]
    settings = {name for each in course.ladder() for name in each.spec.settings}
    for name in names:
        if name not in settings:
            raise UserError(
                f"--variant {name} must be given to one stage: python -m kernels.NN_name bench; the ladder takes "
                f"{', '.join(sorted(settings))}"
            )
    mine = [text for text, name in zip(args.variant, names) if name in stage.variants]
    if any(text.partition("=")[2].strip() not in ("0", "all") for text in args.variant if text not in mine):
        return []
    return sweep(stage, dtype, argparse.Namespace(variant=mine, source=None, trial=None))


def _cases(asked: Sequence[Kernel]) -> list[list[Kernel]]:
    """The kernels that compute the same: part, dtype, settings."""
    found: dict[tuple[str, str, runs.Settings], list[Kernel]] = {}
    for kernel in asked:
        found.setdefault((kernel.stage.spec.part, kernel.dtype, runs.not_zero(kernel.settings)), []).append(kernel)
    return list(found.values())


def _entry(kernel: Kernel, role: str) -> Entry:
    from common.measure.contest import Entry

    first = course.ladder(kernel.stage)[0]
    return Entry(kernel, role, course.previous(kernel.stage), first if first is not kernel.stage else None)


def _one_stage(asked: Sequence[Kernel], args: argparse.Namespace) -> list[Heat]:
    """One stage is measured: the first of its ladder, the one that it follows, and what was asked for.

    Besides a reader's own --source, or a --trial, the stage itself runs, too."""
    from common.measure.contest import Heat

    kernel = asked[0]
    stage = kernel.stage
    first, previous = course.ladder(stage)[0], course.previous(stage)
    entries = []
    if first not in (stage, previous) and (found := course.counterpart(first, kernel)):
        entries.append(_entry(found, "first"))
    if found := course.counterpart(previous, kernel):
        entries.append(_entry(found, "previous"))
    if args.source:
        entries.append(_entry(stage.kernel(kernel.dtype, kernel.settings), "stage"))
    entries += [_entry(each, "stage") for each in asked]
    shapes = options.shapes(kernel, args, stage.spec.bench_shapes(kernel.variants), "gpu")
    for each in asked:
        for shape in shapes if args.sizes else ():
            each.check_shape(*shape)
    return [Heat(entries, shapes)]


def _whole_part(asked: Sequence[Kernel], args: argparse.Namespace) -> list[Heat]:
    """All stages that compute the same; those that cannot take a size are left out of it."""
    from common.measure.contest import Heat

    last = asked[-1]
    spec = last.stage.spec
    shapes = options.shapes(last, args, spec.bench_shapes(last.variants), "gpu")
    return [Heat([_entry(kernel, "stage") for kernel in asked], shapes)]


# --- with a GPU ------------------------------------------------------------------------------------------------------


def _measure(heats: Sequence[Heat], args: argparse.Namespace) -> int:
    """Measure, print, save, draw."""
    from common.measure import contest, timing

    rounds, round_ms = (QUICK_ROUNDS, QUICK_MS) if args.quick else (args.repeat, timing.ROUND_MS)
    made = contest.measure(
        heats, rounds=rounds, round_ms=round_ms, seed=args.seed, together=args.together, sustained=args.sustained
    )
    where = f"{made['gpu']}, {made['date'][:10]}"
    held = runs.sustained(made)
    found, without_pause = ([Record(run, row) for row in run["rows"]] for run in (made, held))
    for table in record_tables(found, where):
        terminal.out.print(table)
    for table in record_tables(without_pause, f"{args.sustained:g} s without a pause: {where}"):
        terminal.out.print(table)
    for line in footnotes(found):
        terminal.out.print(line, markup=False)
    for note in made["notes"]:
        terminal.out.print(note, markup=False)
    if args.json:
        terminal.err.print(f"saved {runs.save(made, args.json)}", markup=False)
    if args.plot:
        own = [record for record in found if record.row.get("source") is None]
        figure = plot.plot(own, where)
        terminal.err.print(f"drawn {plot.save(figure, args.plot)}", markup=False)
    return 0


def record_tables(found: Sequence[Record], title: str) -> list[Group]:
    """A table per case and size: times and ratios, each within its own run."""
    groups: dict[runs.Case, list[Record]] = {}
    for record in found:
        groups.setdefault(record.case, []).append(record)
    return [_record_table(group, title) for group in groups.values()]


def _record_table(group: Sequence[Record], title: str) -> Group:
    labels = [_label(record.row) for record in group]
    made = terminal.table(gap=1)
    made.add_column("kernel", min_width=max(len(word) for label in labels for word in label.split() if word[0] != "("))
    peers = [peer.row["name"] for peer in group[0].peers[:SHARES]]
    for head in ("ms", "±", "TFLOP/s", "× prev", *(f"% {peer}" for peer in peers), "% peak", "GHz"):
        made.add_column(head, justify="right", no_wrap=True)
    for label, record in zip(labels, group):
        row, ms = record.row, record.row["ms"]
        peer = row["role"] == "peer"
        shares = [None if peer else record.times(each) for each in record.peers[:SHARES]]
        style = "bold" if row["role"] == "stage" else "dim" if peer else ""
        made.add_row(
            Text(label),
            f"{ms['median']:.4g}",
            f"{(ms['p80'] - ms['p20']) / 2 / ms['median']:.1%}",
            markdown.tflops(row["tflops"]),
            markdown.number(record.times(record.previous)) or "",
            *(markdown.number(share, "{:.1%}") or "" for share in shares),
            markdown.number(record.of_limit if not peer else None, "{:.1%}") or "",
            markdown.number(row.get("clock", {}).get("ghz"), "{:.3f}") or "",
            style=style,
        )
    row = group[0].row
    return terminal.titled(f"{runs.settings_named(row)}, {row['size']} ({title})", made)


def _label(row: runs.Row) -> str:
    """The row's label without what the table's title says."""
    label: str = row["label"].replace(f" {row['dtype']}", "", 1)
    for name, value in row["settings"].items():
        label = label.replace(f" {name}={value}", "", 1)
    return label


def footnotes(found: Sequence[Record]) -> list[str]:
    """What the tables' columns mean, and what a call costs the host."""
    said = ["", "± half the distance between the 20th and the 80th percentile"]
    limits = {r.row["limit"]: r.limit for r in found if r.limit}
    said += [
        f"peak: {b['name']}: {b['per_clock']:,.0f} FLOP per clock, measured {b['date'][:10]}"
        if "per_clock" in b
        else f"peak: {b['name']}: {b['tflops']:.0f} TFLOP/s, measured {b['date'][:10]}"
        for b in limits.values()
    ]
    if any("sustained" in r.row for r in found):
        said.append(
            "without a pause: each runs alone, one after the other; the second half is timed, ± of its tenths; L2 is "
            "not cleared; a kernel shorter than its launch leaves pauses"
        )
    if any(r.clocks for r in found):
        said.append("GHz: the mean SM clock of the timed launches, counted around each of them")
    for reason in dict.fromkeys(name for r in found for name in r.row.get("limited_by", {})):
        most = max(r.row["limited_by"].get(reason, 0.0) for r in found if "limited_by" in r.row)
        said.append(f"limits the clock, says the driver: {reason}, in up to {most:.0%} of the readings of a row")
    for empty in {r.run["empty"]["median"] for r in found if "empty" in r.run}:
        said.append(f"an empty kernel takes {empty * 1e3:.1f} µs between the same two events")
    calls = [r.row["host_us"] for r in found if r.row.get("host_us")]
    if calls:
        empty = min(each["empty"] for each in calls)
        least, most = min(each["call"] for each in calls), max(each["call"] for each in calls)
        span = f"{least:.1f}" if f"{least:.1f}" == f"{most:.1f}" else f"{least:.1f} to {most:.1f}"
        said.append(f"a call takes {span} µs of the host's time, {empty:.1f} µs of them for torch.empty")
    return said


# --- without one -----------------------------------------------------------------------------------------------------


def _count_one(stage: Stage, args: argparse.Namespace) -> int:
    """Check in the emulator, counters beside those of the stage before, recorded times. Exit status 1 if wrong."""
    wrong = False
    for dtype in _dtypes(stage, args):
        by_shape: dict[tuple[int, ...], list[Kernel]] = {}  # HEAD_DIM is part of a shape
        for kernel in sweep(stage, dtype, args):
            by_shape.setdefault(_counted_at(kernel, args), []).append(kernel)
        for shape, swept in by_shape.items():
            columns = list(swept)
            if args.source:
                columns.insert(0, stage.kernel(dtype, swept[0].settings))
            elif before := course.counterpart(course.previous(stage), swept[0]):
                columns.insert(0, before)
            own = count.takes(columns, stage, shape)
            columns = list(own)
            try:
                reports = [_emulated(kernel, own[kernel], args.seed, say=kernel in swept) for kernel in columns]
            except CheckFailed as failure:
                wrong = True
                terminal.err.print(str(failure), markup=False, soft_wrap=True)
                continue
            counted = [report.counters.flat() for report in reports]
            if not args.details:
                counted = [{name: each.get(name, 0) for name in stage.counters} for each in counted]
            terminal.out.print(count.table(columns, counted, shape, stage.counters if args.details else ()))
    asked = [kernel for dtype in _dtypes(stage, args) for kernel in sweep(stage, dtype, args)]
    cases = {(kernel.dtype, runs.not_zero(kernel.settings)): kernel for kernel in asked}  # what they compute
    found = [r for kernel in cases.values() for r in recorded(kernel, args.sizes)]
    for table in record_tables(found, f"recorded, not measured now: {found[0].source}" if found else ""):
        terminal.out.print(table)
    if not found:
        terminal.out.print("\nNo GPU times are recorded for this yet (docs/results/).")
    _nothing_saved(args)
    if not args.details:
        terminal.out.print("\nmore: --details for all counters, --dtype all; `count --lines` says which line does it")
    return 1 if wrong else 0


def recorded(kernel: Kernel, sizes: Sequence[str] | None) -> list[Record]:
    """The recorded times of a kernel's stage from the run of its ladder, with the stage that it follows and the peers,
    all of the same computation."""
    stage = kernel.stage
    found = runs.rungs(stage.ladder, kernel.dtype, runs.ANY, **kernel.settings)
    previous = course.previous(stage)
    names = {stage.name, previous.name if previous else ""}
    shown = [r for r in found if r.row["role"] == "peer" or r.row["name"] in names]
    wanted = [size for text in sizes or () for size in text.split(",")]
    return [r for r in shown if r.row["size"] in wanted] or shown


def _counted_at(kernel: Kernel, args: argparse.Namespace) -> tuple[int, ...]:
    """The shape at which a kernel is counted: the first of --sizes, or what the last stage of its ladder asks for."""
    stage = kernel.stage
    default = course.ladder(stage)[-1].counted_at or stage.spec.emulator_shapes(kernel.variants)[-1]
    return options.shapes(kernel, args, [default], "emulator")[0]


def _count_ladder(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    """One screen: which stages are right, what each moved, and the recorded times. Exit status 1 if one is wrong."""
    if args.variant:
        raise UserError("--variant must be given to one stage: python -m kernels.NN_name bench")
    if args.dtype not in (None, "all"):
        named = _ladder_dtypes(stages, args)[0]
        stages = [stage for stage in stages if named in stage.dtypes]
    if args.details:
        for stage in stages:
            _count_one(stage, argparse.Namespace(**{**vars(args), "json": None, "plot": None}))
        return 0
    wrong: list[str] = []
    counted: dict[str, Mapping[str, int]] = {}
    verdicts: dict[str, Text] = {}
    joined: dict[str, dict[str, Mapping[str, int]]] = {}  # ladder -> the stage of another one that it starts from
    shapes: dict[str, str] = {}
    with terminal.progress("checking the stages in the emulator", total=len(stages)) as update:
        for stage in stages:
            kernel = stage.kernel(args.dtype.split(",")[0] if args.dtype not in (None, "all") else None)
            update(f"checking {kernel.label} in the emulator")
            try:
                shape = _counted_at(kernel, args)
                shapes[stage.ladder] = stage.spec.format(shape)
                counted[stage.name] = _emulated(kernel, shape, args.seed, say=False).counters.flat()
                verdicts[stage.name] = Text("ok", style="green")
                before = course.previous(stage)
                other = course.counterpart(before, kernel) if before and before.ladder != stage.ladder else None
                if other and other.stage.spec.part == stage.spec.part:
                    took = counts.emulate(other, other.stage.spec.like(stage.spec, shape), args.seed, sanitize=False)
                    joined[stage.ladder] = {other.stage.name: took.counters.flat()}
            except CheckFailed as failure:
                wrong.append(str(failure))
                verdicts[stage.name] = Text("no", style="red")
            update(advance=1)
    for ladder in dict.fromkeys(stage.ladder for stage in stages):
        mine = [stage for stage in stages if stage.ladder == ladder]
        known = counted | joined.get(ladder, {})
        terminal.out.print(_ladder_table(mine, known, verdicts, shapes.get(ladder, ""), args))
    for report in wrong:
        terminal.err.print(report, markup=False, soft_wrap=True)
    _nothing_saved(args)
    terminal.out.print(f"\nnext: python -m {stages[-1].package}   (its verbs); or this with --details")
    return 1 if wrong else 0


def _ladder_table(
    stages: Sequence[Stage],
    counted: Mapping[str, Mapping[str, int]],
    verdicts: Mapping[str, Text],
    shape: str,
    args: argparse.Namespace,
) -> Group:
    """A row per stage: right or not; the counter it is about, before and after ("–" where the stage before computes
    something else); recorded TFLOP/s and ratios."""
    dtype = args.dtype.split(",")[0] if args.dtype not in (None, "all") else stages[0].dtypes[0]
    settings = next((stage.kernel(dtype).settings for stage in stages if dtype in stage.dtypes), {})
    found = runs.rungs(stages[0].ladder, dtype, runs.ANY, **settings)
    sizes = runs.sizes(found)
    last = sizes[-1] if sizes else ""
    at = {r.row["name"]: r for r in found if r.row["size"] == last}
    where = f"; recorded: {last} on {found[0].source}" if found else "; no times are recorded yet"
    made = terminal.table(gap=1)
    made.add_column("stage", no_wrap=True)
    made.add_column("", no_wrap=True)
    made.add_column("counter", no_wrap=True)
    for head in ("before → after", "TFLOP/s", "× prev", "% lib"):
        made.add_column(head, justify="right", no_wrap=True)
    above = ""
    for stage in stages:
        name = stage.counters[0]
        before = course.previous(stage)
        same = before is not None and before.spec.part == stage.spec.part
        old, new = (
            counts.short(counted[each.name].get(name, 0)) if each and each.name in counted else "–"
            for each in (before if same else None, stage)
        )
        moved = f"{old} → {new}" if before and new != "–" else new
        record = at.get(stage.name)
        made.add_row(
            course.rung(stage.name, before.name if before else "", above),
            verdicts.get(stage.name, Text("")),
            counts.SHORT.get(name, name),
            moved,
            markdown.tflops(record.row["tflops"]) if record else "–",
            (markdown.number(record.times(record.previous)) if record else None) or "–",
            (markdown.number(record.times(record.peer), "{:.1%}") if record else None) or "–",
        )
        above = stage.name
    title = f"{stages[0].spec.formula}, {dtype}: checked and counted at {shape} in the emulator{where}"
    return terminal.titled(title, made, *_gain(stages, counted))


GAINS = {  # what a ladder is climbed for: name -> the counters that it is the sum of
    "sectors read": ("global_load_sectors", "cp_async_sectors", "bulk_load_sectors"),
    "sectors written": ("global_store_sectors", "bulk_store_sectors"),
    "shared-memory wavefronts": ("shared_load_wavefronts", "shared_store_wavefronts"),
    "barriers": ("instructions.barrier",),
    "instructions": ("instructions",),
}


def _gain(stages: Sequence[Stage], counted: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line that says how many times fewer of GAINS the last stage needs than the first; none if one is missing."""
    first, last = (counted.get(stage.name) for stage in (stages[0], stages[-1]))
    if len(stages) < 2 or first is None or last is None:
        return []
    said = []
    for name, counters in GAINS.items():
        old, new = (sum(each.get(counter, 0) for counter in counters) for each in (first, last))
        if 0 < new < old:
            said.append(f"{name} {counts.short(old)} → {counts.short(new)} (÷ {old / new:.3g})")
    return [f"from {stages[0].name} to {stages[-1].name}: {', '.join(said)}"] if said else []


def _nothing_saved(args: argparse.Namespace) -> None:
    if args.json or args.plot:
        terminal.err.print("no file written: without a GPU there are no times to save or to draw", style="yellow")


def _emulated(kernel: Kernel, shape: tuple[int, ...], seed: int, say: bool) -> Report:
    """Emulate one kernel with counters and sanitizer; say that it is right, or CheckFailed. The report."""
    name = kernel.stage.spec.format(shape)
    with terminal.progress(f"{kernel.label} {name} in the emulator"):
        instance = accuracy.make(kernel, shape, "cpu", seed)
        outputs = instance.outputs()
        report = kernel.emulate(instance.inputs, outputs)
    report.raise_if_findings()
    found = accuracy.verify(kernel, instance, outputs)
    if say:
        worst = max(found, key=lambda each: each.error / each.limit if each.limit else each.error)
        terminal.out.print(
            f"{kernel.label}, {name}: right (error {worst.error:.1e}, allowed {worst.limit:.1e}), "
            f"and the sanitizer found nothing",
            markup=False,
        )
    return report
