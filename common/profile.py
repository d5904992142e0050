"""Verb `profile`: the hardware's own counters, read by ncu, beside the emulator's for the same launch.

ncu runs this module as a program (`launch`, below), which launches the kernel once between cudaProfilerStart and
cudaProfilerStop: only that is profiled. Clocks are left as they are (`--clock-control none`); caches are flushed before
each of ncu's passes, which is its default.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from common import cli, count, results, terminal
from common.errors import UserError
from common.stage import Kernel, Stage

EXAMPLES = ("--sizes 256 4096 --json profile.json", "--dtype bf16")

# What only the hardware knows: name -> (metric, unit)
HARDWARE = {
    "duration": ("gpu__time_duration.sum", "ns"),
    "registers per thread": ("launch__registers_per_thread", ""),
    "achieved occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "%"),
    "tensor pipe busy": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "%"),
    "FMA pipe busy": ("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active", "%"),
    "issue slots busy": ("smsp__issue_active.avg.pct_of_peak_sustained_active", "%"),
    "shared-memory wavefronts, of peak": (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed", "%"),
    "L1 hit rate": ("l1tex__t_sector_hit_rate.pct", "%"),
    "L2 hit rate": ("lts__t_sector_hit_rate.pct", "%"),
    "L2 sectors, of peak": ("lts__t_sectors.avg.pct_of_peak_sustained_elapsed", "%"),
    "device memory read": ("dram__bytes_read.sum", "byte"),
    "device memory written": ("dram__bytes_write.sum", "byte"),
    "device memory, of peak": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
}
# Why warps that could not issue did not: average warps per scheduler and issued instruction.
STALLS = {
    "long scoreboard (global, local memory)": "long_scoreboard",
    "short scoreboard (shared memory, ldmatrix)": "short_scoreboard",
    "barrier": "barrier",
    "fixed-latency wait": "wait",
    "math pipe busy": "math_pipe_throttle",
    "memory queue full (MIO)": "mio_throttle",
    "global queue full (LG)": "lg_throttle",
    "not selected": "not_selected",
    "no instruction": "no_instruction",
    "dispatch": "dispatch_stall",
    "memory barrier": "membar",
}
STALL_METRIC = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

NO_NCU = """no ncu found (NVIDIA Nsight Compute), which reads a GPU's counters. On a machine with a GPU: install it \
(it comes with the CUDA toolkit, or from developer.nvidia.com/nsight-compute) and put it on the PATH.
Without a GPU: `count` gives the emulator's counters of the same names."""
NO_PERMISSION = """ncu may not read this GPU's counters: the driver allows it to administrators only. Run as root, or
see developer.nvidia.com/ERR_NVGPUCTRPERM for how to allow it to all users."""


def find_ncu() -> str:
    """Path of ncu: on the PATH, in CUDA_HOME or where NVIDIA's packages put it; UserError if there is none."""
    places = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin", "/usr/local/cuda/bin",
              *sorted(map(str, Path("/opt/nvidia/nsight-compute").glob("*")), reverse=True)]
    found = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(places))
    if found is None:
        raise UserError(NO_NCU)
    return found


def metrics() -> list[str]:
    """All metrics that are asked for, the emulator's counterparts first."""
    from common.emulator.report import METRICS

    stalls = (STALL_METRIC.format(reason) for reason in STALLS.values())
    return [*METRICS.values(), *(name for name, _ in HARDWARE.values()), *stalls]


def parse(text: str) -> list[dict[str, float]]:
    """ncu's `--page raw --csv`: per profiled launch, metric -> value; columns that are no numbers are left out.

    UserError with what ncu said if there is no table in it.
    """
    start = re.search(r'^"ID",', text, re.MULTILINE)
    if start is None:
        raise UserError(f"ncu gave no table; it said:\n{text.strip() or '(nothing)'}")
    launches = []
    for row in csv.DictReader(io.StringIO(text[start.start():])):
        if not (row["ID"] or "").strip().isdigit():  # the row of units, and what ncu says after the table
            continue
        values = {}
        for name, value in row.items():
            try:
                values[name] = float(value.replace(",", ""))
            except (AttributeError, ValueError):
                continue
        launches.append(values)
    return launches


def collect(command: Sequence[str], names: Sequence[str]) -> tuple[list[dict[str, float]], list[str]]:
    """Run `command` under ncu: (per launch, metric -> value; metrics that this GPU or this ncu does not have)."""
    ncu, wanted, unknown = find_ncu(), list(dict.fromkeys(names)), []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "ncu.csv"
            words = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--page", "raw", "--csv",
                     "--print-units", "base", "--metrics", ",".join(wanted), "--log-file", str(log), *command]
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", cwd=results.ROOT)
            said = (log.read_text(errors="replace") if log.exists() else "") + done.stderr
        missing = [name for name in wanted if re.search(rf"(?i)failed to find metric.*{re.escape(name)}", said)]
        if not missing:
            break
        unknown += missing
        wanted = [name for name in wanted if name not in missing]
    if "ERR_NVGPUCTRPERM" in said:
        raise UserError(NO_PERMISSION)
    if done.returncode:
        words = "\n".join(filter(None, (said.strip(), done.stdout.strip())))
        raise UserError(f"ncu failed with exit status {done.returncode}:\n{words}")
    return parse(said), unknown


def totals(launches: Sequence[dict[str, float]]) -> dict[str, float]:
    """One value per metric: sums over the launches, and of ratios that of the longest launch."""
    if not launches:
        raise UserError("ncu saw no kernel launch")
    longest = max(launches, key=lambda launch: launch.get(HARDWARE["duration"][0], 0.0))
    return {name: sum(launch.get(name, 0.0) for launch in launches) if name.endswith(".sum") else value
            for name, value in longest.items()}


class Caveat(NamedTuple):
    """A known reason for which the hardware's count may be another than the emulator's, and how far."""

    counters: tuple[str, ...]
    holds: Callable[[Mapping[str, int]], bool]  # of a kernel with these counts in the emulator
    limits: Callable[[int, Mapping[str, int]], tuple[float, float]]  # (emulator's count, all) -> least, most of ncu's
    why: str


# Measured on an H200 with CUDA 13.0, 2026-11-21. Stores: at most 16 % more wavefronts.
CAVEATS = (
    Caveat(("shared_store_wavefronts", "shared_store_conflicts"),
           lambda counts: counts.get("instructions.store.shared", 0) > 0,
           lambda count, counts: (count, count + counts["shared_store_wavefronts"] / 4),
           "the hardware adds arbitration with other traffic, which varies from run to run"),
    Caveat(("shared_load_wavefronts", "shared_load_conflicts"),
           lambda counts: counts.get("instructions.load.shared", 0) > 0,
           lambda count, _: (count / 2, count),
           "ptxas merges narrow loads of neighbours"),
    Caveat(("shared_load_wavefronts", "shared_load_conflicts"),
           lambda counts: counts.get("cp_async_requests", 0) > 0,
           lambda count, counts: (count, count + counts["shared_load_wavefronts"] / 100),
           "now and then a load waits for a copy that is written to shared memory, which ncu counts as a conflict"),
    Caveat(("instructions.cp.async",),
           lambda counts: counts.get("cp_async_requests", 0) > 0,
           lambda count, _: (count, 2 * count),
           "ptxas turns the branch around the copies into predicates, and ncu counts copies that are switched off"),
    Caveat(("global_load_sectors",),
           lambda counts: counts.get("cp_async_requests", 0) > 0,
           lambda count, counts: (count - counts["cp_async_sectors"] / 2, count),
           "L1 counts some of the sectors once that cp.async fetches twice, for two places in shared memory"),
)


def compare(counts: Mapping[str, int] | None, measured: Mapping[str, float]) -> dict[str, dict]:
    """{counter: {"emulator", "ncu", "metric"}} of the counters that both have; emulator None where it did not run.

    A pair that differs has "why" if one of CAVEATS explains it. Tensor instructions are compared only if there are any:
    the hardware counts one per warp in kernels that have none.
    """
    from common.emulator.report import INCLUDED, METRICS

    pairs = {}
    for key, metric in METRICS.items():
        if metric not in measured or (key == "instructions.mma" and counts is not None and not counts.get(key)):
            continue
        pair = pairs[key] = {"emulator": None, "ncu": int(measured[metric]), "metric": metric}
        if counts is None:
            continue
        pair["emulator"] = int(counts.get(key, 0) + counts.get(INCLUDED.get(key, ""), 0))
        if pair["emulator"] != pair["ncu"] and (why := _explained(key, pair["emulator"], pair["ncu"], counts)):
            pair["why"] = why
    return pairs


def _explained(key: str, emulator: int, ncu: int, counts: Mapping[str, int]) -> str | None:
    for caveat in CAVEATS:
        if key in caveat.counters and caveat.holds(counts):
            least, most = caveat.limits(emulator, counts)
            if least <= ncu <= most:
                return caveat.why
    return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_kernel_arguments(parser)
    cli.add_sizes(parser)
    cli.add_seed(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the run")


def run(stage: Stage, args: argparse.Namespace) -> int:
    from common import gpu

    kernels = cli.kernels(stage, args)
    spec = stage.spec
    default = [*spec.emulator_shapes[:1], spec.bench_shapes[len(spec.bench_shapes) // 2]]
    shapes = [cli.shapes(kernel, args, default, "gpu") for kernel in kernels]
    reason = gpu.unfit(stage)
    if reason or not _has_ncu():
        for record in results.recorded(kind="profile", name=stage.name):
            if record.row["dtype"] in {kernel.dtype for kernel in kernels}:
                for each in tables(record.row, f"recorded, not measured now: {record.source}"):
                    terminal.out.print(each)
        raise UserError(f"{reason}: there are no hardware counters to read.\n{NO_NCU}" if reason else NO_NCU)
    made = results.metadata("profile")
    for kernel, wanted in zip(kernels, shapes):
        gpu.load(kernel)  # built here, so that ncu watches no compiler
        for shape in wanted:
            with terminal.progress(f"profiling {kernel.label} {spec.format(shape)}"):
                launches, unknown = collect(launch_command(kernel, shape, args.seed), metrics())
                measured = totals(launches)
            counts = None
            if spec.flops(shape, kernel.variants) <= cli.EMULATOR_FLOPS:
                with terminal.progress(f"counting {kernel.label} {spec.format(shape)} in the emulator"):
                    report = count.emulate(kernel, shape, args.seed, sanitize=False, arch=_arch(stage))
                counts = report.counters.flat()
            row = {"name": stage.name, "label": kernel.label, "number": stage.number, "problem": spec.name,
                   "dtype": kernel.dtype, "variants": dict(kernel.variants), "default": not kernel.changed,
                   "source": None if kernel.source == stage.source else str(kernel.source),
                   "shape": dict(zip(spec.axes, shape)), "counters": compare(counts, measured),
                   "metrics": {name: value for name, value in hardware(measured)}, "unknown": unknown}
            made["rows"].append(row)
            for each in tables(row, made["gpu"]):
                terminal.out.print(each)
            if unknown:
                terminal.out.print(f"not known to this ncu or GPU: {', '.join(unknown)}", markup=False)
    if args.json:
        terminal.err.print(f"saved {results.save(made, args.json)}", markup=False)
    return 0


def _arch(stage: Stage) -> int:
    """What the emulator compiles for: the GPU's own compute capability, if it models that one."""
    import torch

    from common import resources

    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor if f"{major}.{minor}" in {gpu.capability for gpu in resources.GPUS} else stage.min_arch


def _has_ncu() -> bool:
    try:
        return bool(find_ncu())
    except UserError:
        return False


def hardware(measured: dict[str, float]) -> Iterable[tuple[str, float]]:
    """What only the hardware knows, by the names of HARDWARE and STALLS."""
    for name, (metric, _) in HARDWARE.items():
        if metric in measured:
            yield name, measured[metric]
    for name, reason in STALLS.items():
        if STALL_METRIC.format(reason) in measured:
            yield f"stall: {name}", measured[STALL_METRIC.format(reason)]


def tables(row: dict, where: str | None) -> list[Table]:
    """Emulator beside ncu, where the emulator ran too; then what only the hardware knows."""
    size = results.size_name(row["shape"])
    made = []
    if any(pair["emulator"] is not None for pair in row["counters"].values()):
        pairs = {key: pair for key, pair in row["counters"].items() if pair["emulator"] or pair["ncu"]}
        equal = sum(pair["emulator"] == pair["ncu"] for pair in pairs.values())
        known = {pair["why"]: None for pair in pairs.values() if "why" in pair}
        numbers = {why: number for number, why in enumerate(known, 1)}
        title = f"\n{row['label']} {size}: {equal} of {len(pairs)} counters equal ({where})"
        caption = "\n".join(f"({number}) {why}" for why, number in numbers.items()) or None
        table = Table(title=title, caption=caption, caption_justify="left", **terminal.PLAIN)
        table.add_column("counter", no_wrap=True)
        for head in ("emulator", "ncu", "difference"):
            table.add_column(head, justify="right")
        table.add_column("metric")
        for key, pair in pairs.items():
            same = pair["emulator"] == pair["ncu"]
            off = "=" if same else f"{pair['emulator'] / pair['ncu'] - 1:+.1%}" if pair["ncu"] else "ncu has none"
            if "why" in pair:
                off += f" ({numbers[pair['why']]})"
            style = "green" if same else "" if "why" in pair else "yellow"
            table.add_row(key, f"{pair['emulator']:,}", f"{pair['ncu']:,}", Text(off, style=style), pair["metric"])
        made.append(table)
    table = Table(title=f"\n{row['label']} {size}: what only the hardware knows ({where})",
                  **terminal.PLAIN)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in row["metrics"].items():
        unit = HARDWARE[name][1] if name in HARDWARE else "warps per issue"
        table.add_row(name, f"{value:,.2f}".rstrip("0").rstrip(".") + f" {unit}")
    return [*made, table]


def launch_command(kernel: Kernel, shape: Sequence[int], seed: int) -> list[str]:
    """The command line with which ncu runs `launch` of this kernel."""
    words = [sys.executable, "-m", "common.profile", kernel.stage.name, "--dtype", kernel.dtype, "--source",
             str(kernel.source.resolve()), "--sizes", kernel.stage.spec.format(tuple(shape)), "--seed", str(seed)]
    for name, value in kernel.variants.items():
        words += ["--variant", f"{name}={value}"]
    return words


def launch(arguments: Sequence[str] | None = None) -> int:
    """The program that ncu watches: launch one kernel twice, the second time between the profiler's start and stop."""
    import torch

    import kernels
    from common import check, gpu

    parser = argparse.ArgumentParser(prog="python -m common.profile", description="What `profile` runs under ncu.")
    parser.add_argument("stage")
    cli.add_kernel_arguments(parser)
    cli.add_sizes(parser)
    cli.add_seed(parser)
    args = parser.parse_args(arguments)
    kernel = cli.kernel(kernels.load(args.stage), args)
    (shape,) = cli.shapes(kernel, args, (), "gpu")
    inputs, outputs = gpu.run(kernel, lambda: check.prepare(kernel, shape, "cuda", args.seed))
    again = gpu.bind(kernel, inputs, outputs)
    torch.cuda.profiler.start()
    again()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(launch())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
