"""Verb `profile`: the hardware's own counters, read by ncu, beside the emulator's for the same launch.

ncu runs this module as a program (`launch`, below), which launches each kernel once between cudaProfilerStart and
cudaProfilerStop: only that is profiled. One process does all that a command asks for; where one kernel's launches end
and the next one's begin is marked by a launch of torch's own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from rich.console import Group
from rich.text import Text

from common import counts, course, gpu, terminal
from common.measure import contest, ncu, shared_loads
from common.measure.metadata import metadata
from common.results import runs
from common.stage import Kernel, Stage
from common.verbs import options
from cudaemu import Trace, hardware
from cudaemu.errors import UserError
from cudaemu.hardware import Arch

EXAMPLES = ("--sizes SIZE SIZE --json profile.json", "--dtype {dtype}")
LADDER_EXAMPLES = ("02 03 # some stages", "--json profile.json")

Job = tuple[Kernel, tuple[int, ...]]

SEPARATOR = "elementwise"  # in the name of the kernel that torch launches between two jobs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_sizes(parser)
    options.add_seed(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the run")


def run(stage: Stage, args: argparse.Namespace) -> int:
    return run_ladder([stage], args)


def run_ladder(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    options.check_writable(args.json)
    jobs: list[Job] = []
    for stage in stages:
        for kernel in options.kernels(stage, args):
            spec = stage.spec
            large = spec.bench_shapes(kernel.variants)
            default = [*spec.emulator_shapes(kernel.variants)[:1], large[len(large) // 2]]
            jobs += [(kernel, shape) for shape in options.shapes(kernel, args, default, "gpu")]
    reason = next((stage.unfit for stage in stages if stage.unfit), None)
    if reason or not ncu.available():
        for kernel in dict.fromkeys(kernel for kernel, _ in jobs):
            for record in runs.recorded(kind="profile", name=kernel.stage.name, dtype=kernel.dtype):
                for each in tables(record.row, f"recorded, not measured now: {record.source}"):
                    terminal.out.print(each)
        raise UserError(f"{reason}: there are no hardware counters to read.\n{ncu.NO_NCU}" if reason else ncu.NO_NCU)
    contest.build([kernel for kernel, _ in jobs])  # built here, so that ncu watches no compiler
    made = metadata("profile")
    with terminal.progress(f"profiling {len(jobs)} launches with ncu"):
        launches, unknown = ncu.collect(launch_command(jobs, args.seed), ncu.metrics())
    with (
        terminal.progress("counting in the emulator", total=len(jobs)) as update,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):

        def counted(job: Job, measured: Sequence[ncu.Launch]) -> runs.Row:
            found = _row(job, ncu.totals(measured), args.seed, unknown)
            update(f"counted {job[0].label} in the emulator", advance=1)
            return found

        made["rows"] = list(pool.map(counted, jobs, by_job(launches, len(jobs))))
    for row in made["rows"]:
        for each in tables(row, made["gpu"]):
            terminal.out.print(each)
    if unknown:
        terminal.out.print(f"not known to this ncu or GPU: {', '.join(unknown)}", markup=False)
    if args.json:
        terminal.err.print(f"saved {runs.save(made, args.json)}", markup=False)
    return 0


def by_job(launches: Sequence[ncu.Launch], count: int) -> list[list[ncu.Launch]]:
    """The launches of each job, torch's own left out."""
    found: list[list[ncu.Launch]] = [[]]
    for launch in launches:
        if SEPARATOR in launch.kernel:
            found.append([])
        else:
            found[-1].append(launch)
    if len(found) != count + 1:
        raise UserError(f"ncu saw {len(found) - 1} of {count} kernels")
    return found[:count]


def _row(job: Job, measured: dict[str, float], seed: int, unknown: Sequence[str]) -> runs.Row:
    kernel, shape = job
    spec, stage = kernel.stage.spec, kernel.stage
    counted = merged = None
    if spec.flops(shape, kernel.variants) <= spec.flops(spec.emulator_shapes(kernel.variants)[0], kernel.variants) * 64:
        arch, traced = _arch(stage), Trace(blocks=range(1))
        report = counts.emulate(kernel, shape, seed, sanitize=False, arch=arch, trace=traced)
        counted = {**report.counters.flat(), ncu.LAUNCHES: len(report.launches)}
        merged = shared_loads.merged(kernel, report, arch)
    return {
        "name": stage.name,
        "label": kernel.label,
        "ladder": stage.ladder,
        "part": spec.part,
        "problem": spec.name,
        "dtype": kernel.dtype,
        "settings": kernel.settings,
        "variants": dict(kernel.variants),
        "defaults": dict(kernel.defaults),
        "default": kernel.default,
        "source": kernel.origin,
        "shape": dict(zip(spec.axes, shape)),
        "size": spec.format(shape),
        "counters": ncu.compare(counted, measured, merged),
        "metrics": dict(ncu.hardware(measured)),
        "unknown": list(unknown),
    }


def _arch(stage: Stage) -> Arch:
    """The compute capability that the emulator stands in for: the GPU's own, if it has its limits."""
    here = gpu.capability()
    return here if here in {each.arch for each in hardware.GPUS} else stage.arch


def tables(row: runs.Row, where: str) -> list[Group]:
    """Emulator beside ncu, where the emulator ran too; then what only the hardware knows."""
    size = row["size"]
    made = []
    if any(pair["emulator"] is not None for pair in row["counters"].values()):
        pairs = {key: pair for key, pair in row["counters"].items() if pair["emulator"] or pair["ncu"]}
        equal = sum(pair.get("code", pair["emulator"]) == pair["ncu"] for pair in pairs.values())
        known = {pair["why"]: None for pair in pairs.values() if "why" in pair}
        numbers = {why: number for number, why in enumerate(known, 1)}
        table = terminal.table()
        table.add_column("counter", no_wrap=True)
        for head in ("emulator", "ncu", "difference"):
            table.add_column(head, justify="right", no_wrap=True)
        for key, pair in pairs.items():
            expected = pair.get("code", pair["emulator"])
            same = expected == pair["ncu"]
            off = "=" if same else f"{expected / pair['ncu'] - 1:+.1%}" if pair["ncu"] else "ncu has none"
            if "why" in pair:
                off += f" ({numbers[pair['why']]})"
            style = "green" if same else "" if "why" in pair else "yellow"
            table.add_row(key, f"{expected:,}", f"{pair['ncu']:,}", Text(off, style=style))
        title = f"{row['label']} {size}: {equal} of {len(pairs)} counters equal ({where})"
        notes = [f"({number}) {why}" for why, number in numbers.items()]
        merged = [f"{key} {pair['emulator']:,}" for key, pair in pairs.items() if "code" in pair]
        notes += [f"without merging: {', '.join(merged)}"] if merged else []
        made.append(terminal.titled(title, table, *notes, "ncu's names of these counters: docs/emulator.md"))
    table = terminal.table()
    table.show_header = False
    table.add_column()
    table.add_column(justify="right")
    for name, value in row["metrics"].items():
        unit = ncu.HARDWARE[name][1] if name in ncu.HARDWARE else "warps per issue"
        table.add_row(name, f"{value:,.2f}".rstrip("0").rstrip(".") + f" {unit}")
    return [*made, terminal.titled(f"{row['label']} {size}: what only the hardware knows ({where})", table)]


def launch_command(jobs: Sequence[Job], seed: int) -> list[str]:
    """The command line with which ncu runs `launch` of these jobs."""
    words = [[k.stage.name, k.dtype, dict(k.variants), str(k.source.resolve()), list(shape)] for k, shape in jobs]
    return [sys.executable, "-m", "common.verbs.profile", json.dumps(words), str(seed)]


def launch(arguments: Sequence[str]) -> int:
    """The program that ncu watches: each kernel twice, the second time between the profiler's start and stop."""
    words, seed = json.loads(arguments[0]), int(arguments[1])
    mark = torch.zeros(1, device="cuda")
    for name, dtype, variants, source, shape in words:
        stage = course.load(name)
        kernel = stage.kernel(dtype, variants, None if Path(source) == stage.source.resolve() else Path(source))
        with gpu.errors(kernel.label):
            spec = stage.spec
            inputs = spec.inputs(tuple(shape), dtype, kernel.variants, seed=seed, device="cuda")
            outputs = spec.outputs(tuple(shape), dtype, kernel.variants, "cuda")
            call = kernel.bind(inputs, outputs)
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            call()
            mark.add_(1)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(launch(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
