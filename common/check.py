"""Verb `test`: is the result right, and does the kernel keep the rules of the hardware?

An output is right if it is finite everywhere and its error against fp64, over the whole tensor and at its worst
element, is at most twice the error that torch makes in the same dtype. fp32 may also use up the bound that rounding errors keep
to in all likelihood, √n · 2⁻²⁴ · Σ|terms| for a sum of n terms (Higham and Mary, "A new approach to probabilistic
rounding error analysis", SIAM J. Sci. Comput. 41, 2019): the order of the summation is the kernel's own affair.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from common import cli, terminal
from common.errors import CheckFailed, UserError
from common.stage import Kernel, Stage

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    "--dtype fp16 --sizes 256 128x256x64",
    "--source my_kernel.cu    # the same check for your own version",
)

SHOWN = 8  # wrong elements in a report
LOCATE_FLOPS = 2 * 256**3  # what the emulator does in seconds: how much work a report may spend on finding a thread


@dataclass(frozen=True)
class Accuracy:
    """How far one output is from fp64.

    `error` and `limit` are ‖out − ref‖ / ‖ref‖ (Frobenius); `worst` and `worst_limit` the largest |out − ref| of an
    element as a fraction of the root mean square of ref; `wrong` the number of elements beyond their limit, of `total`;
    `first` the first of them as (index, got, want), or the elements that are furthest off if only the whole is."""

    name: str
    error: float
    limit: float
    worst: float
    worst_limit: float
    wrong: int
    total: int
    first: tuple[tuple[tuple[int, ...], float, float], ...]

    @property
    def ok(self) -> bool:
        return self.wrong == 0 and self.error <= self.limit


def measure(kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Accuracy]:
    """The accuracy of each output that `kernel` computed of `inputs`, on the device that holds them."""
    spec = kernel.stage.spec
    references = spec.reference(inputs, kernel.variants)
    baselines = spec.baseline(inputs, kernel.dtype, kernel.variants)
    magnitudes = spec.magnitude(inputs, kernel.variants) if kernel.dtype == "fp32" else (None,) * len(outputs)
    terms = spec.terms(spec.shape(inputs, kernel.variants))
    compared = zip(spec.output_names, outputs, references, baselines, magnitudes, strict=True)
    return [_accuracy(*each, terms) for each in compared]


def _accuracy(
    name: str, output: Tensor, reference: Tensor, baseline: Tensor, magnitude: Tensor | None, terms: int
) -> Accuracy:
    off = (output.double() - reference).abs_()
    yardstick = (baseline.double() - reference).abs_()
    norm = max(reference.norm().item(), math.ulp(0.0))
    rms = norm / math.sqrt(reference.numel())
    limit, worst_limit = 2 * yardstick.norm().item(), 2 * yardstick.max().item()
    element_limit = worst_limit
    if magnitude is not None:
        limit = max(limit, _growth(terms, reference.numel()) * magnitude.norm().item())
        element_limit = (magnitude * _growth(terms, 1)).clamp_(min=worst_limit)
        worst_limit = element_limit.max().item()
    wrong = ~(off <= element_limit)  # true for NaN
    error = off.norm().item()
    indices = wrong.flatten().nonzero().flatten()
    if not len(indices) and error > limit:
        indices = off.flatten().topk(min(SHOWN, off.numel())).indices
    first = []
    for flat in indices[:SHOWN].tolist():
        index = _unravel(flat, output.shape)
        first.append((index, output[index].item(), reference[index].item()))
    worst = off.max().item()  # NaN if there is one
    return Accuracy(
        name, error / norm, limit / norm, worst / rms, worst_limit / rms, int(wrong.sum()), wrong.numel(), tuple(first)
    )


def _growth(terms: int, elements: int) -> float:
    """Bound of the error of a sum of `terms` in fp32, as a fraction of the sum of the terms' magnitudes.

    λ√n·u, with λ near 1 for an average over many elements and 6 for a single one; never more than the certain n·u."""
    return min((1 + 5 / math.sqrt(elements)) * math.sqrt(terms), terms) * 2.0**-24


def _unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        flat, last = divmod(flat, size)
        index.append(last)
    return tuple(reversed(index))


def verify(kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Accuracy]:
    """The accuracy of each output; CheckFailed with the first wrong elements and their threads if one is wrong."""
    found = measure(kernel, inputs, outputs)
    if not all(accuracy.ok for accuracy in found):
        raise CheckFailed(explain(kernel, inputs, outputs, found))
    return found


def explain(
    kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor], found: Sequence[Accuracy]
) -> str:
    """What is wrong with which elements, and which blocks and threads they belong to."""
    spec = kernel.stage.spec
    shape = spec.shape(inputs, kernel.variants)
    owners = _owners(kernel, shape)
    lines = [f"{kernel.label}, {spec.format(shape)}: wrong result"]
    for accuracy, axes, output in zip(found, spec.output_axes, outputs, strict=True):
        if accuracy.ok:
            continue
        wrong = f"{accuracy.wrong} of {accuracy.total} elements are wrong" if accuracy.wrong else "none stands out"
        lines.append(f"  {accuracy.name}: relative error {accuracy.error:.2e}, allowed {accuracy.limit:.2e}; {wrong}")
        rows = [(*axes, "got", "want", "block", "thread")]
        for index, got, want in accuracy.first:
            block, thread = _owner(owners, accuracy.name, index, got)
            rows.append((*map(str, index), f"{got:.6g}", f"{want:.6g}", block, thread))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines += ["    " + "  ".join(word.rjust(width) for word, width in zip(row, widths)) for row in rows]
    if owners is None:
        lines.append("  (a smaller size would name the block and the thread of each: --sizes)")
    return "\n".join(lines)


def _owner(owners: dict | None, name: str, index: tuple[int, ...], got: float) -> tuple[str, str]:
    if owners is None:
        return "?", "?"
    blocks, threads = owners[name]
    block, thread = int(blocks[index]), int(threads[index])
    if block < 0:
        return "none", "never written" if math.isnan(got) else "none"
    return str(block), f"{thread} (warp {thread // 32}, lane {thread % 32})"


def _owners(kernel: Kernel, shape: tuple[int, ...]) -> dict | None:
    """Who writes each element, {output: (block, thread)}: traced in the emulator, with the inner axes cut short.

    None if that would take long, or if the kernel does not get through there."""
    from common.emulator import Trace

    spec = kernel.stage.spec
    least = tuple(kernel.multiples.get(a, 1) if a in spec.inner_axes else size for a, size in zip(spec.axes, shape))
    if spec.flops(least, kernel.variants) > LOCATE_FLOPS:
        return None
    inputs, outputs = prepare(kernel, least)
    rows = 8_000_000
    with terminal.progress("finding the threads of the wrong elements"):
        try:
            report = kernel.emulate(inputs, outputs, counters=False, sanitize=False, trace=Trace(max_rows=rows))
        except UserError:
            return None
    return None if len(report.trace) >= rows else {name: report.writers(name) for name in spec.output_names}


def prepare(
    kernel: Kernel, shape: tuple[int, ...], device: str = "cpu", seed: int = 0
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Random inputs and NaN-filled outputs for a kernel."""
    spec = kernel.stage.spec
    inputs = spec.inputs(shape, kernel.dtype, seed=seed, device=device, variants=kernel.variants)
    return inputs, spec.outputs(shape, kernel.dtype, device=device, variants=kernel.variants)


@dataclass(frozen=True)
class Result:
    """One run of a kernel, judged: `report` says what is wrong, and is empty if nothing is."""

    kernel: Kernel
    shape: tuple[int, ...]
    device: str
    accuracies: tuple[Accuracy, ...]
    report: str

    @property
    def ok(self) -> bool:
        return not self.report


def check(kernel: Kernel, shape: tuple[int, ...], device: str, seed: int = 0) -> Result:
    """Run a kernel once on random inputs, on the "gpu" or in the "emulator" with its sanitizer, and judge it.

    UserError if it cannot be built or launched."""
    kernel.check_shape(*shape)
    reports = []
    if device == "gpu":
        from common import gpu

        inputs, outputs = gpu.run(kernel, lambda: prepare(kernel, shape, "cuda", seed))
    else:
        inputs, outputs = prepare(kernel, shape, "cpu", seed)
        report = kernel.emulate(inputs, outputs, counters=False)
        if report.findings:
            reports.append(f"{kernel.label}, {kernel.stage.spec.format(shape)}: the sanitizer found\n{report}")
        if report.status:  # stopped half-way: there is no result to judge
            return Result(kernel, shape, device, (), reports[0])
    accuracies = tuple(measure(kernel, inputs, outputs))
    if not all(accuracy.ok for accuracy in accuracies):
        reports.append(explain(kernel, inputs, outputs, accuracies))
    return Result(kernel, shape, device, accuracies, "\n".join(reports))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_kernel_arguments(parser)
    cli.add_sizes(parser)
    cli.add_device(parser)
    cli.add_seed(parser)


def run(stage: Stage, args: argparse.Namespace) -> int:
    pinned, dtypes = cli.variants(args), cli.dtypes(stage, args)
    if pinned:
        kernels = [stage.kernel(dtype, pinned, args.source) for dtype in dtypes or stage.dtypes]
    else:
        kernels = stage.kernels(dtypes, args.source)
    devices = [cli.device(stage, args)]
    if args.device == "auto" and devices == ["gpu"]:
        devices = ["emulator", "gpu"]  # the emulator's sanitizer sees what a right result can hide
    cases = [
        (kernel, shape, device)
        for device in devices
        for kernel in kernels
        for shape in cli.shapes(kernel, args, _shapes(kernel, device), devices[-1])
        if device == "gpu" or cli.emulable(kernel, shape)
    ]
    results = []
    with terminal.progress(f"testing {stage.name}", total=len(cases)) as update:
        for kernel, shape, device in cases:
            update(f"testing {kernel.label} {stage.spec.format(shape)} ({device})")
            results.append(check(kernel, shape, device, args.seed))
            update(advance=1)
    terminal.out.print(_table(results))
    failed = [result for result in results if not result.ok]
    for result in failed:
        terminal.out.print(f"\n{result.report}", markup=False, soft_wrap=True)
    verdict = f"{len(failed) or len(results)} of {len(results)} checks {'failed' if failed else 'passed'}"
    rules = ", sanitizer on" if "emulator" in devices else ""
    terminal.out.print(f"\n{stage.name}: {verdict} ({' and '.join(devices)}{rules}; seed {args.seed})", markup=False)
    return 1 if failed else 0


def _shapes(kernel: Kernel, device: str) -> list[tuple[int, ...]]:
    return [*kernel.test_shapes(), *(kernel.stage.spec.bench_shapes[:1] if device == "gpu" else ())]


def _table(results: Sequence[Result]) -> Table:
    table = Table("kernel", "size", "where", "output", box=None, pad_edge=False, header_style="bold")
    for column in ("error", "allowed"):
        table.add_column(column, justify="right")
    table.add_column("")
    for result in results:
        case = (escape(result.kernel.label), result.kernel.stage.spec.format(result.shape), result.device)
        for accuracy in result.accuracies:
            verdict = "ok" if result.ok else "[red]rules broken" if accuracy.ok else "[red]wrong"
            table.add_row(*case, accuracy.name, f"{accuracy.error:.1e}", f"{accuracy.limit:.1e}", verdict)
        if not result.accuracies:
            table.add_row(*case, *["-"] * 3, "[red]stopped")
    return table
