"""Verb `bench`: how fast is a stage, beside the library, the stage before it and what the GPU can do at all?

Nothing is timed before its result has been checked, on the very tensors that are then timed. All contenders of a size
are timed in turns within one run (common/timing.py), so that their ratios mean something; ratios across runs are not
made. Where there is no GPU there are no times: the emulator checks and counts instead, and recorded times are shown as
what they are.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from common import check, cli, count, results, terminal, timing
from common.errors import CheckFailed, UserError
from common.results import Record, tflops
from common.stage import Kernel, Stage

EXAMPLES = (
    "--sizes 4096 --dtype fp32",
    "--dtype all --json run.json --plot run.png",
    "--sizes 2048 --variant COALESCED=all    # every value of a variant (here: of 01_naive)",
)

QUICK_ROUNDS, QUICK_MS = 2, 20.0
DEVICE = "cuda"


@dataclass(frozen=True)
class Entry:
    """A kernel that takes part in a run, and as what: "stage" (asked for), "previous" or "first"."""

    kernel: Kernel
    role: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_kernel_arguments(parser)
    cli.add_sizes(parser)
    cli.add_device(parser)
    cli.add_seed(parser)
    parser.add_argument("--repeat", type=int, default=timing.ROUNDS, metavar="ROUNDS",
                        help="rounds; each times all contenders in turn (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a first impression")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the run (docs/results/ holds recorded ones)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw TFLOP/s over size (.png, .svg or .pdf)")


def run(stage: Stage, args: argparse.Namespace) -> int:
    _refuse_early(args)
    if cli.device(stage, args) == "emulator":
        return _without_gpu([stage], args)
    return _with_gpu({dtype: entries(stage, dtype, args) for dtype in dtypes(stage, args)}, args)


def run_ladder(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    _refuse_early(args)
    if args.variant:
        raise UserError("--variant belongs to one stage: python -m kernels.NN_name bench")
    able = [stage for stage in stages if cli.device(stage, args) == "gpu"]
    if not able:
        return _without_gpu(stages, args)
    names = list(dict.fromkeys(dtype for stage in able for dtype in stage.dtypes))
    wanted = names if args.dtype == "all" else args.dtype.split(",") if args.dtype else [able[0].dtypes[0]]
    for dtype in wanted:
        if dtype not in names:
            raise UserError(f"no stage has dtype '{dtype}'; there is {', '.join(names)}")
    return _with_gpu({dtype: [Entry(stage.kernel(dtype), "stage") for stage in able if dtype in stage.dtypes]
                      for dtype in wanted}, args, strict=False)


def _refuse_early(args: argparse.Namespace) -> None:
    """UserError for what would only fail after the run."""
    if args.repeat < 1:
        raise UserError(f"--repeat takes a whole number >= 1, not {args.repeat}")
    if args.plot and args.plot.suffix not in results.FIGURES:
        raise UserError(f"--plot {args.plot}: the name must end in {', '.join(results.FIGURES)}")
    for path in filter(None, (args.json, args.plot)):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(f"cannot write {path}")


def dtypes(stage: Stage, args: argparse.Namespace) -> list[str]:
    """What --dtype asks for: a list, "all", or by default the stage's first."""
    return list(stage.dtypes) if args.dtype == "all" else cli.dtypes(stage, args) or [stage.dtypes[0]]


def sweep(stage: Stage, dtype: str, args: argparse.Namespace) -> list[Kernel]:
    """The kernels that --variant and --source ask for; NAME=all stands for every value of that variant."""
    swept = [text.partition("=")[0].strip() for text in args.variant if text.partition("=")[2].strip() == "all"]
    fixed = argparse.Namespace(variant=[text for text in args.variant if text.partition("=")[2].strip() != "all"])
    choices = [cli.variants(fixed)]
    for name in swept:
        if name not in stage.variants:
            stage.kernel(dtype, {name: 0}, args.source)  # complains as for any other wrong variant
        choices = [{**chosen, name: value} for chosen in choices for value in stage.variants[name]]
    return [stage.kernel(dtype, chosen, args.source) for chosen in choices]


def first_stage(stage: Stage) -> Stage:
    """The first stage of the part that `stage` belongs to."""
    while stage.previous:
        stage = stage.previous
    return stage


def entries(stage: Stage, dtype: str, args: argparse.Namespace) -> list[Entry]:
    """Who takes part when one stage is measured, in ladder order: the part's first stage, the previous one, this one.

    Besides a reader's own --source, the stage itself runs, too.
    """
    first, previous = first_stage(stage), stage.previous
    found = []
    if first is not stage and first is not previous and dtype in first.dtypes:
        found.append(Entry(first.kernel(dtype), "first"))
    if previous and dtype in previous.dtypes:
        found.append(Entry(previous.kernel(dtype), "previous"))
    if args.source:
        found.append(Entry(stage.kernel(dtype), "stage"))
    return found + [Entry(kernel, "stage") for kernel in sweep(stage, dtype, args)]


# --- with a GPU ------------------------------------------------------------------------------------------------------


def _with_gpu(chosen: dict[str, list[Entry]], args: argparse.Namespace, strict: bool = True) -> int:
    """Measure, print, save, draw. strict: a size that a kernel asked for cannot take is an error, not left out."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for dtype, found in chosen.items():
        for kernel in [entry.kernel for entry in found if entry.role == "stage"][:None if strict else 1]:
            shapes[dtype] = cli.shapes(kernel, args, kernel.stage.spec.bench_shapes, "gpu")
    rounds, round_ms = (QUICK_ROUNDS, QUICK_MS) if args.quick else (args.repeat, timing.ROUND_MS)
    made = measure(chosen, shapes, rounds=rounds, round_ms=round_ms, seed=args.seed)
    for dtype in chosen:
        terminal.out.print(table(made, dtype))
    for note in made["notes"]:
        terminal.out.print(note, markup=False)
    if args.json:
        terminal.err.print(f"saved {results.save(made, args.json)}", markup=False)
    if args.plot:
        title = f"{made['gpu']}, {made['date'][:10]}"
        terminal.err.print(f"drawn {results.save_figure(results.plot(made['rows'], made['limits'], title), args.plot)}",
                           markup=False)
    return 0


def measure(chosen: dict[str, list[Entry]], shapes: dict[str, Sequence[tuple[int, ...]]], *,
            rounds: int = timing.ROUNDS, round_ms: float = timing.ROUND_MS, seed: int = 0) -> dict:
    """Check and time kernels and their peers on the GPU: dtype -> kernels, dtype -> shapes. A run as results.py has it.

    CheckFailed, before anything of that size is timed, if a kernel is wrong; UserError if one cannot be built.
    """
    from common import ceiling, nvml

    build([entry.kernel for found in chosen.values() for entry in found], chosen)
    made = results.metadata("bench") | {"limits": ceiling.limits(list(chosen)), "notes": []}
    device = nvml.current()
    total = sum(len(shapes[dtype]) * (len(found) + 1) * (rounds + 1) for dtype, found in chosen.items())
    with terminal.progress("measuring", total=total) as update:
        for dtype, found in chosen.items():
            for shape in shapes[dtype]:
                made["rows"] += _measure_size(found, dtype, shape, rounds, round_ms, seed, device, made["notes"],
                                              update)
    made["clocks"] = {key: {"min": min(row[key]["min"] for row in made["rows"] if key in row),
                            "max": max(row[key]["max"] for row in made["rows"] if key in row)}
                      for key in ("sm_mhz", "power_w") if any(key in row for row in made["rows"])}
    return made


def build(kernels: Sequence[Kernel], dtypes: Sequence[str]) -> None:
    """Build all kernels and the ceilings of these dtypes, side by side: nvcc is what takes time."""
    from common import ceiling, gpu

    wanted = list({kernel.label: kernel for kernel in kernels}.values())
    wanted += [ceiling.LIMITS[dtype] for dtype in dtypes if dtype in ceiling.LIMITS]
    with terminal.progress("building", total=len(wanted)) as update, ThreadPoolExecutor(os.cpu_count()) as pool:
        def one(kernel) -> None:
            gpu.load(kernel)
            update(f"built {kernel.label}", advance=1)

        list(pool.map(one, wanted))


def _measure_size(found: Sequence[Entry], dtype: str, shape: tuple[int, ...], rounds: int, round_ms: float, seed: int,
                  device, notes: list[str], update) -> list[dict]:
    """The rows of one dtype and shape."""
    import torch

    from common import gpu, nvml

    spec = found[-1].kernel.stage.spec
    size = f"{dtype} {spec.format(shape)}"
    pool: list[tuple[torch.Tensor, ...]] = []
    contenders: list[timing.Contender] = []
    rows: list[dict] = []

    def shared(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """`inputs`, or equal ones that another contender has: memory is kept for the outputs."""
        for known in pool:
            if len(known) == len(inputs) and all(map(torch.equal, known, inputs)):
                return known
        pool.append(inputs)
        return inputs

    for entry in found:
        kernel = entry.kernel
        try:
            kernel.check_shape(*shape)
        except UserError as error:
            notes.append(f"{size}: without {kernel.label}: {error}")
            continue
        update(f"checking {kernel.label} {spec.format(shape)}", advance=1)
        with gpu.errors(kernel):
            inputs, outputs = check.prepare(kernel, shape, DEVICE, seed)
            inputs = shared(inputs)
            call = gpu.bind(kernel, inputs, outputs)
            call()
            torch.cuda.synchronize()
            accuracies = check.verify(kernel, inputs, outputs)
            contenders.append(timing.Contender(kernel.label, call, timing.estimate(call)))
        rows.append(kernel_row(entry, dtype, shape, accuracies))
    asked = found[-1].kernel
    inputs = shared(spec.inputs(shape, dtype, seed=seed, device=DEVICE, variants=asked.variants))
    for name, function in spec.peers(dtype, asked.variants).items():
        call = lambda function=function: function(*inputs)  # noqa: E731
        contenders.append(timing.Contender(name, call, timing.estimate(call)))
        rows.append({"role": "peer", "name": name, "label": name, "limit": dtype, **_of_size(asked, dtype, shape)})
    with nvml.Monitor(device) as monitor:
        def turn(contender: timing.Contender) -> None:
            monitor.tag = contender.label
            update(f"timing {contender.label} {spec.format(shape)}", advance=1)

        timing.interleave(contenders, rounds, round_ms, before=turn)
    for row, contender in zip(rows, contenders, strict=True):
        row["ms"] = timing.summary(contender.samples)
        row["tflops"] = row.pop("flops") / row["ms"]["median"] / 1e9
        row |= monitor.summary(contender.label)
        if timing.rounds_for(contender.estimate, rounds) < rounds:
            notes.append(f"{size}: {contender.label} takes {contender.estimate:.0f} ms per run and was timed "
                         f"{len(contender.samples)} times only")
    return rows


def _of_size(kernel: Kernel, dtype: str, shape: tuple[int, ...]) -> dict:
    spec = kernel.stage.spec
    return {"problem": spec.name, "dtype": dtype, "shape": dict(zip(spec.axes, shape)),
            "flops": spec.flops(shape, kernel.variants)}


def kernel_row(entry: Entry, dtype: str, shape: tuple[int, ...], accuracies: Sequence[check.Accuracy]) -> dict:
    """What a row says of a kernel before it is timed; `flops` gives way to `tflops` afterwards."""
    kernel, stage = entry.kernel, entry.kernel.stage
    return {
        "role": entry.role, "name": stage.name, "label": kernel.label, "number": stage.number,
        "previous": stage.previous and stage.previous.name,
        "first": first_stage(stage).name if stage.previous else None,
        "variants": dict(kernel.variants), "default": not kernel.changed,
        "source": None if kernel.source == stage.source else str(kernel.source),
        "limit": dtype, **_of_size(kernel, dtype, shape),
        "check": {"error": max(a.error for a in accuracies), "limit": min(a.limit for a in accuracies)},
    }


def table(made: dict, dtype: str, title: str | None = None) -> Table:
    """The rows of one dtype, a section per size."""
    return record_table([Record(made, row) for row in made["rows"] if row["dtype"] == dtype], title or
                        f"{dtype} on {made['gpu']}, {made['date'][:10]}")


def record_table(records: Sequence[Record], title: str) -> Table:
    """Times and ratios; each ratio is within the run that its record comes from."""
    peers = list(dict.fromkeys(r["name"] for record in records for r in record.run["rows"] if r["role"] == "peer"))
    made = Table(title=f"\n{title}", padding=(0, 1), caption_justify="left", **terminal.PLAIN)
    made.add_column("size, kernel", overflow="fold")
    shares_of = (f"% of\n{peer}" for peer in peers)
    for head in ("ms", "±", "TFLOP/s", "× prev.", "× first", *shares_of, "% of\nlimit", "MHz"):
        made.add_column(head, justify="right", no_wrap=True)
    before = None
    for record in records:
        row, ms = record.row, record.row["ms"]
        size = results.size_name(row["shape"])
        if before != size:
            if before is not None:
                made.add_row()
            made.add_row(size)
        shares = [record.times(record.beside(role="peer", name=name)) for name in peers]
        limit = record.limit
        style = "bold" if row["role"] == "stage" else "dim" if row["role"] == "peer" else ""
        made.add_row(
            Text("  " + row["label"].replace(f" {row['dtype']}", "", 1)), f"{ms['median']:.4g}",
            f"{(ms['p80'] - ms['p20']) / 2 / ms['median']:.1%}", tflops(row["tflops"]),
            *(f"{ratio:.2f}" if ratio else "" for ratio in (record.times(record.previous), record.times(record.first))),
            *(f"{share:.1%}" if share and row["role"] != "peer" else "" for share in shares),
            f"{row['tflops'] / limit['tflops']:.1%}" if limit else "",
            f"{row['sm_mhz']['median']:.0f}" if "sm_mhz" in row else "", style=style)
        before = size
    said = ["± half the distance between the 20th and the 80th percentile"]
    bounds = {r.row["limit"]: r.limit for r in records if r.limit}
    said += [f"limit: {b['name']}, {b['tflops']:.0f} TFLOP/s, measured {b['date'][:10]}" for b in bounds.values()]
    made.caption = "\n".join(said)
    return made


# --- without one -----------------------------------------------------------------------------------------------------


def _without_gpu(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    """Check in the emulator, counters beside those of the stage before, recorded times. Exit status 1 if wrong."""
    wrong = []
    for stage in stages:
        asked = [d for d in dtypes(stage, args) if d in stage.dtypes] if len(stages) == 1 else [stage.dtypes[0]]
        for dtype in asked:
            kernels = sweep(stage, dtype, args)
            shape = cli.shapes(kernels[-1], args, stage.spec.emulator_shapes[:1], "emulator")[0]
            columns = [Entry(kernel, "stage") for kernel in kernels]
            if args.source:
                columns.insert(0, Entry(stage.kernel(dtype), "own"))
            elif stage.previous and dtype in stage.previous.dtypes:
                columns.insert(0, Entry(stage.previous.kernel(dtype), "previous"))
            try:
                reports = [_emulated(entry, shape, args.seed) for entry in columns]
            except CheckFailed as failure:
                wrong.append(stage.name)
                terminal.err.print(str(failure), markup=False, soft_wrap=True)
                continue
            shown = [entry.kernel for entry in columns]
            terminal.out.print(count.table(shown, [r.counters.flat() for r in reports], shape, stage.counters))
    for line in recorded_lines(stages, args):
        terminal.out.print(line)
    if args.json or args.plot:
        terminal.err.print("no file written: without a GPU there are no times to save or to draw", style="yellow")
    return 1 if wrong else 0


def _emulated(entry: Entry, shape: tuple[int, ...], seed: int):
    """Emulate one kernel with counters and sanitizer; say that it is right, or CheckFailed. The report."""
    kernel = entry.kernel
    kernel.check_shape(*shape)
    name = kernel.stage.spec.format(shape)
    with terminal.progress(f"{kernel.label} {name} in the emulator"):
        inputs, outputs = check.prepare(kernel, shape, "cpu", seed)
        report = kernel.emulate(inputs, outputs)
    report.raise_if_findings()
    found = check.verify(kernel, inputs, outputs)
    if entry.role != "previous":
        worst = max(found, key=lambda accuracy: accuracy.error / accuracy.limit)
        terminal.out.print(f"{kernel.label}, {name}: right (error {worst.error:.1e}, allowed {worst.limit:.1e}), "
                           f"and the sanitizer found nothing", markup=False)
    return report


def recorded_lines(stages: Sequence[Stage], args: argparse.Namespace) -> list[Table | str]:
    """The recorded GPU times of these stages: one table per GPU, date and dtype, marked as recorded."""
    names = {stage.name for stage in stages}
    problems = {stage.spec.name for stage in stages}
    shapes = {stages[0].spec.parse(w) for text in args.sizes for w in text.split(",")} if args.sizes else None
    wanted = None if args.dtype in (None, "all") else args.dtype.split(",")
    records = [r for r in results.recorded(default=True) if r.row["name"] in names and r.row["role"] != "peer"
               and (wanted is None or r.row["dtype"] in wanted)]
    if shapes and any(tuple(r.row["shape"].values()) in shapes for r in records):
        records = [r for r in records if tuple(r.row["shape"].values()) in shapes]
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.row["dtype"], record.source, record.run["file"]), []).append(record)
    if not groups:
        return [Text("No GPU times are recorded for this yet (docs/results/).")]
    made: list[Table | str] = []
    for (dtype, source, file), found in groups.items():
        sizes = {results.size_name(r.row["shape"]): results.work(r.row["shape"]) for r in found}
        run = found[0].run
        peers = [Record(run, row) for row in run["rows"] if row["role"] == "peer" and row["dtype"] == dtype
                 and row["problem"] in problems and results.size_name(row["shape"]) in sizes]
        order = sorted(found + peers, key=lambda r: (sizes[results.size_name(r.row["shape"])], r.row["role"] == "peer",
                                                     r.row.get("number", 0)))
        made.append(record_table(order, f"recorded, not measured now: {dtype} on {source} (docs/results/{file})"))
    return made
