"""Verb `test`: is the result right, and does the kernel keep the rules of the hardware?

Every kernel of the stage runs at every shape that its problem and its stage ask for, and with every pattern of inputs.
common/accuracy.py says what is right; in the emulator the sanitizer says whether the rules are kept.
"""

from __future__ import annotations

import argparse
import linecache
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from common import terminal
from common.stage import Kernel, Stage
from common.verbs import options
from common.verbs.watching import watch
from cudaemu import hardware
from cudaemu.compiler.toolchain import read
from cudaemu.errors import UserError
from cudaemu.hardware import Arch

if TYPE_CHECKING:
    from common.accuracy import Complaint, Result
    from common.problem import Shape

EXAMPLES = (
    "--dtype {dtype} --sizes SIZE SIZE",
    "--source my_kernel.cu # the same check for your own version",
    "--source my_kernel.cu --dtype {dtype} --sizes SIZE --watch # again whenever you save it",
    "--coverage # the lines that no check executed",
)
LADDER_EXAMPLES = ("01 02 # some stages",)
NEWER = "what is compiled for newer GPUs"
HEAD_START = 0.1  # seconds for the compiler to start: importing torch holds Python's lock for several times as long


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_sizes(parser)
    options.add_device(parser)
    options.add_seed(parser)
    parser.add_argument("--coverage", action="store_true", help="also list the source lines that no check executed")
    parser.add_argument("--watch", action="store_true", help="check again whenever the source changes, until Ctrl-C")
    parser.add_argument("--details", action="store_true", help="a row for every check, not one per kernel")


def run(stage: Stage, args: argparse.Namespace) -> int:
    if args.watch:
        watch(args.source or stage.source, lambda: _run(stage, args))
    return _run(stage, args)


def _run(stage: Stage, args: argparse.Namespace) -> int:
    pinned, dtypes = options.variants(args), options.dtypes(stage, args)
    kernels: list[Kernel] = []
    for each in options.sources(stage, args):
        known = {name: v for name, v in pinned.items() if each is stage or name in each.variants}
        kernels += _kernels(each, dtypes, known, args)
    small = min(hardware.GPUS, key=lambda gpu: gpu.shared_kb).arch  # where less fits, launchers choose differently
    builds = [(kernel, stage.arch) for kernel in kernels if args.device != "gpu"]
    if builds and not args.sizes:
        if newer := _newer(kernels[0]):  # its code is compiled for no other: whoever cannot spell it is told at once
            builds.insert(0, (kernels[0], newer))
        if stage.arch.runs_on(small):
            builds.append((kernels[0], stage.target(small)))
    with _building(builds):
        return _check(stage, kernels, small, args)


def _kernels(
    stage: Stage, dtypes: Sequence[str] | None, pinned: Mapping[str, int], args: argparse.Namespace
) -> list[Kernel]:
    """All of a stage; with pinned variants one per dtype."""
    found = stage.kernels(dtypes, args.source)
    if not pinned:
        return found
    return [stage.kernel(dtype, pinned, args.source) for dtype in dict.fromkeys(kernel.dtype for kernel in found)]


def _check(stage: Stage, kernels: Sequence[Kernel], small: Arch, args: argparse.Namespace) -> int:
    """Check them, the first also on a GPU of the compute capability `small`, and what no single launch shows."""
    from common import accuracy, launcher_check  # they import torch, by which time the first kernel is compiled

    devices = [options.device(stage, args)]
    if args.device == "auto" and devices == ["gpu"]:
        devices = ["emulator", "gpu"]  # the emulator's sanitizer sees what a right result can hide
    firsts = list({kernel.stage.problem: kernel for kernel in reversed(kernels)}.values())[::-1]
    found = [
        (kernel, shape, why, device, pattern)
        for device in devices
        for kernel in kernels
        for why, shape in _shapes(kernel, kernel in firsts, device, args).items()
        for pattern in kernel.stage.spec.patterns_at(shape, kernel.multiples, kernel.variants)
        if device == "gpu" or options.emulable(kernel, shape)
    ]
    first = kernels[0]
    if "emulator" in devices and not args.sizes:
        shapes = first.test_shapes()
        if stage.arch.runs_on(small):
            found += [(first, shape, why, f"emulator {small}", "normal") for why, shape in shapes.items()]
        if newer := _newer(first):
            found.insert(0, (first, [*shapes.values()][-1], NEWER, f"emulator {newer}", "normal"))
    results = []
    far = (
        [] if args.sizes else [(device, why, sizes) for device in devices for why, sizes in _far(first, device).items()]
    )
    others = "emulator" in devices and not args.sizes
    try:
        with terminal.progress(f"testing {stage.name}", total=len(found) + len(far) + others) as update:
            for kernel, shape, why, device, pattern in found:
                update(f"testing {kernel.label} {stage.spec.format(shape)} ({device})")
                counters = args.coverage and device != "gpu"
                result = accuracy.check(kernel, shape, device, args.seed, pattern, counters=counters)
                results.append(replace(result, why=why if pattern == "normal" else f"{why}; {pattern}"))
                update(advance=1)
            for device, why, sizes in far:
                update(f"testing {first.label} with {why} ({device})")
                results.append(launcher_check.check_far(first, sizes, device, args.seed, why))
                update(advance=1)
            if others:
                update(f"testing the launcher of {first.label}")
                for kernel in firsts:
                    results.append(
                        replace(launcher_check.check(kernel, args.seed), why="what the launcher does besides")
                    )
                update(advance=1)
    except UserError:  # a kernel that does not compile: what was checked before it is told all the same
        if results:
            terminal.out.print(terminal.titled(stage.name, table(results, details=args.details)))
        raise
    title = f"{stage.name} ({args.source})" if args.source else stage.name
    terminal.out.print(terminal.titled(title, table(results, details=args.details)))
    failed = [result for result in results if not result.ok]
    for text in complaints(failed):
        terminal.out.print(f"\n{text}", markup=False, soft_wrap=True)
    if args.coverage:
        _print_coverage(results)
    noted = {note.key: note for result in reversed(results) for note in result.notes}
    if noted:
        counted = f"{len(noted)} note{'s' * (len(noted) > 1)}"
        listed = "\n".join(str(note) for note in reversed(noted.values()))
        terminal.out.print(f"\n{counted}: {listed}", markup=False, soft_wrap=True)
    verdict = f"{len(failed) or len(results)} of {len(results)} checks {'failed' if failed else 'passed'}"
    rules = ", sanitizer on" if "emulator" in devices else ""
    terminal.out.print(f"\n{stage.name}: {verdict} ({' and '.join(devices)}{rules}; seed {args.seed})", markup=False)
    return 1 if failed else 0


@contextmanager
def _building(builds: Sequence[tuple[Kernel, Arch]]) -> Iterator[None]:
    """Compile kernels for the emulator, for a compute capability each, one after the other in the background."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        begun = [pool.submit(kernel.prepare, arch) for kernel, arch in builds]
        wait(begun[:1], HEAD_START)
        try:
            yield
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _shapes(kernel: Kernel, first: bool, device: str, args: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """What each shape is for -> the shape: those of --sizes, or all that the problem and the stage ask for."""
    spec = kernel.stage.spec
    if args.sizes:
        return {f"--sizes {spec.format(shape)}": shape for shape in options.shapes(kernel, args, (), device)}
    shapes = kernel.test_shapes()
    if first:  # one kernel shows which integers a stage counts with
        shapes |= spec.wide_shapes(kernel.multiples, kernel.variants)
    if device == "gpu":
        shapes["large enough to fill a GPU"] = spec.bench_shapes(kernel.variants)[0]
    return shapes


def _far(kernel: Kernel, device: str) -> Mapping[str, Sequence[tuple[Shape, Shape]]]:
    """Inputs that reach beyond 32 bits, by what they are: those that the GPU has room for. In the emulator one block
    runs, where it makes the last part and no more."""
    from common import launcher_check

    found = kernel.stage.spec.far_inputs(kernel.multiples, kernel.variants)
    if device == "gpu":
        return {why: sizes for why, sizes in found.items() if launcher_check.fits(kernel, sizes)}
    return found if launcher_check.last_is_last(kernel) else {}


def _newer(kernel: Kernel) -> Arch | None:
    """The oldest GPU for which the source is compiled otherwise than for the oldest that the stage runs on."""
    asked = {Arch.of(f"{n[:-2]}.{n[-2]}") for n in re.findall(r"__CUDA_ARCH__\s*>=?\s*(\d{3,4})", read(kernel.source))}
    known = [gpu.arch for gpu in hardware.GPUS if gpu.arch in asked and gpu.arch > kernel.stage.arch]
    return None if kernel.stage.arch.exact else min(known, default=None)


def table(results: Sequence[Result], details: bool = False) -> Table:
    """A row per kernel and place, with its worst check; with `details` one per check."""
    made = terminal.table()
    for column in ("kernel", "where"):
        made.add_column(column)
    if details:
        made.add_column("size")
        made.add_column("what for")
    else:
        made.add_column("checks", justify="right")
    for column in ("error", "allowed"):
        made.add_column(column, justify="right")
    made.add_column("")
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for number, result in enumerate(results):
        kernel = result.kernel
        name = (
            kernel.short
            if kernel.stage.problem == results[0].kernel.stage.problem
            else f"{kernel.stage.problem}: {kernel.short}"
        )
        groups.setdefault((name, result.device, number if details else 0), []).append(result)
    for (name, device, _), group in groups.items():
        worst = max((a for r in group for a in r.accuracies), key=lambda a: a.ratio, default=None)
        first = group[0]
        size = (first.kernel.stage.spec.format(first.shape), escape(first.why)) if details else (str(len(group)),)
        error = (f"{worst.error:.1e}", f"{worst.limit:.1e}") if worst else ("–", "–")
        made.add_row(name, device, *size, *error, _verdict(group))
    return made


def complaints(failed: Sequence[Result]) -> list[str]:
    """What is wrong, each mistake once: as the first check reports it, and in how many others it occurs."""
    checks: dict[tuple[object, ...], list[Complaint]] = {}
    for result in failed:
        for key, said in {each.key: each for each in reversed(result.complaints)}.items():
            checks.setdefault(key, []).append(said)
    texts, title = [], ""
    for result in failed:
        for first in result.complaints:
            met = checks.pop(first.key, [])
            if not met:  # reported before
                continue
            text = str(first) if first.title != title else first.text
            title = first.title
            others = len(met) - 1
            texts.append(text + (f"\n    also in {others} other check{'s' * (others > 1)}" if others else ""))
    return texts


def _verdict(group: Sequence[Result]) -> str:
    failed = [result for result in group if not result.ok]
    if not failed:
        return "ok"
    if any(not result.accuracies for result in failed):
        kind = "stopped"
    elif all(accuracy.ok for result in failed for accuracy in result.accuracies):
        kind = "rules broken"
    else:
        kind = "wrong"
    return f"[red]{kind}" + (f" in {len(failed)}" if len(group) > 1 else "")


def uncovered(results: Sequence[Result]) -> dict[int, tuple[str, ...]]:
    """Lines of the source with code that no check executed -> the kernels, as they were built, that have them.

    A line counts as executed if any instance of a template, at any dtype, variant and shape, executed it."""
    executed = {line for result in results for line in result.lines or ()}
    kernels = {result.kernel.short: result.kernel for result in results if result.lines is not None}
    left: dict[int, set[str]] = {}
    for kernel in kernels.values():
        for line in kernel.executable_lines() - executed - {0}:  # 0: the compiler's own code, which has no line
            left.setdefault(line, set()).add(kernel.short)
    return {line: tuple(sorted(labels)) for line, labels in sorted(left.items())}


def _print_coverage(results: Sequence[Result]) -> None:
    out = terminal.out
    counted = [result for result in results if result.lines is not None]
    if not counted:
        out.print("\nno coverage: the emulator counts lines, and nothing ran there", style="yellow")
        return
    source = counted[0].kernel.source
    left = uncovered(results)
    if not left:
        out.print(f"\n{source.name}: every line with code was executed", markup=False)
        return
    made = terminal.table()
    made.add_column("line", justify="right", no_wrap=True)
    made.add_column("as built for")
    made.add_column("source", no_wrap=True)
    for line, labels in left.items():
        made.add_row(str(line), labels[0], escape(linecache.getline(str(source.resolve()), line).strip()))
    lines = "1 line" if len(left) == 1 else f"{len(left)} lines"
    out.print(terminal.titled(f"{source.name}: {lines} with code that no check executed", made))
