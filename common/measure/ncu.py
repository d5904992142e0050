"""The hardware's own counters, read by ncu (NVIDIA Nsight Compute), and how the emulator's compare with them.

Clocks are left as they are (`--clock-control none`); caches are flushed before each of ncu's passes, its default.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common.results.runs import ROOT
from cudaemu.errors import UserError
from cudaemu.report import INCLUDED, METRICS

# What only hardware counts: name -> (metric, unit)
HARDWARE = {
    "duration": ("gpu__time_duration.sum", "ns"),
    "SM clock": ("smsp__cycles_elapsed.avg.per_second", "Hz"),
    "registers per thread": ("launch__registers_per_thread", ""),
    "achieved occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "%"),
    "instructions": ("smsp__inst_executed.sum", "warp instructions"),
    "instructions, FMA pipe": ("smsp__inst_executed_pipe_fma.sum", "warp instructions"),
    "instructions, ALU pipe": ("smsp__inst_executed_pipe_alu.sum", "warp instructions"),
    "instructions, XU pipe": ("smsp__inst_executed_pipe_xu.sum", "warp instructions"),
    "instructions, LSU pipe": ("smsp__inst_executed_pipe_lsu.sum", "warp instructions"),
    "tensor pipe busy": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "%"),
    "FMA pipe busy": ("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active", "%"),
    "issue slots busy": ("smsp__issue_active.avg.pct_of_peak_sustained_active", "%"),
    "shared-memory wavefronts, of peak": (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",
        "%",
    ),
    "L1 wavefronts, tags, global loads": ("l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_ld.sum", "wavefronts"),
    "L1 wavefronts, data": ("l1tex__data_pipe_lsu_wavefronts.sum", "wavefronts"),
    "L1 bank reads, of peak": ("l1tex__data_bank_reads.avg.pct_of_peak_sustained_elapsed", "%"),
    "L1 bank writes, of peak": ("l1tex__data_bank_writes.avg.pct_of_peak_sustained_elapsed", "%"),
    "L1 writes to registers, of peak": ("l1tex__lsu_writeback_active.avg.pct_of_peak_sustained_elapsed", "%"),
    "L1 requests, of peak": ("l1tex__lsuin_requests.avg.pct_of_peak_sustained_elapsed", "%"),
    "L1 hit rate": ("l1tex__t_sector_hit_rate.pct", "%"),
    "L2 → L1": ("l1tex__m_xbar2l1tex_read_bytes.sum", "byte"),
    "L2 sectors for L1": ("lts__t_sectors_srcunit_tex.sum", "sectors"),
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
    "branch": "branch_resolving",
    "constant not cached (IMC)": "imc_miss",
}
LAUNCHES = "launches"  # among a run's counters: how many it is of
PREDICATED = "copies that a predicate may switch off"  # in the machine code, beyond those that were executed
STALL_METRIC = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

NO_NCU = """no ncu found (NVIDIA Nsight Compute), which reads a GPU's counters. On a machine with a GPU: install it \
(it comes with the CUDA toolkit, or from developer.nvidia.com/nsight-compute) and put it on the PATH.
Without a GPU: `count` gives the emulator's counters of the same names."""
NO_PERMISSION = """ncu may not read this GPU's counters: the driver allows it to administrators only. Run as root, or
see developer.nvidia.com/ERR_NVGPUCTRPERM for how to allow it to all users."""


def find_ncu() -> str:
    """Path of ncu: on the PATH, in CUDA_HOME or where NVIDIA's packages put it; UserError if there is none."""
    places = [
        os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin",
        "/usr/local/cuda/bin",
        *sorted(map(str, Path("/opt/nvidia/nsight-compute").glob("*")), reverse=True),
    ]
    found = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(places))
    if found is None:
        raise UserError(NO_NCU)
    return found


def metrics() -> list[str]:
    """All metrics that are asked for, the emulator's counterparts first."""
    stalls = (STALL_METRIC.format(reason) for reason in STALLS.values())
    return [*METRICS.values(), *(name for name, _ in HARDWARE.values()), *stalls]


@dataclass(frozen=True)
class Launch:
    """One profiled launch: the kernel's name, and metric -> value."""

    kernel: str
    values: dict[str, float]


def parse(text: str) -> list[Launch]:
    """ncu's `--page raw --csv`: the profiled launches; columns that are not numbers are left out.

    UserError with what ncu said if there is no table in it.
    """
    start = re.search(r'^"ID",', text, re.MULTILINE)
    if start is None:
        raise UserError(f"ncu gave no table; it said:\n{text.strip() or '(nothing)'}")
    launches = []
    for row in csv.DictReader(io.StringIO(text[start.start() :])):
        if not (row["ID"] or "").strip().isdigit():  # the row of units, and what ncu says after the table
            continue
        values = {}
        for name, value in row.items():
            try:
                values[name] = float(value.replace(",", ""))
            except (AttributeError, ValueError):
                continue
        launches.append(Launch(row.get("Kernel Name") or "", values))
    return launches


def collect(command: Sequence[str], names: Sequence[str]) -> tuple[list[Launch], list[str]]:
    """Run `command` under ncu: (its profiled launches; metrics that this GPU or this ncu does not have)."""
    ncu, wanted, unknown = find_ncu(), list(dict.fromkeys(names)), []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "ncu.csv"
            words = [
                ncu,
                "--clock-control",
                "none",
                "--profile-from-start",
                "off",
                "--page",
                "raw",
                "--csv",
                "--print-units",
                "base",
                "--metrics",
                ",".join(wanted),
                "--log-file",
                str(log),
                *command,
            ]
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", cwd=ROOT)
            said = (log.read_text(errors="replace") if log.exists() else "") + done.stderr
        missing = [name for name in wanted if re.search(rf"(?i)failed to find metric.*{re.escape(name)}", said)]
        if not missing:
            break
        unknown += missing
        wanted = [name for name in wanted if name not in missing]
    if "ERR_NVGPUCTRPERM" in said:
        raise UserError(NO_PERMISSION)
    if done.returncode:
        printed = "\n".join(filter(None, (said.strip(), done.stdout.strip())))
        raise UserError(f"ncu failed with exit status {done.returncode}:\n{printed}")
    return parse(said), unknown


def totals(launches: Sequence[Launch]) -> dict[str, float]:
    """One value per metric: sums over the launches, and of ratios that of the longest launch."""
    if not launches:
        raise UserError("ncu saw no kernel launch")
    values = [launch.values for launch in launches]
    longest = max(values, key=lambda each: each.get(HARDWARE["duration"][0], 0.0))
    return {
        name: sum(each.get(name, 0.0) for each in values) if name.endswith(".sum") else value
        for name, value in longest.items()
    }


class Caveat(NamedTuple):
    """A known reason for which the hardware's count may be another than the emulator's, and how far."""

    counters: tuple[str, ...]
    holds: Callable[[Mapping[str, int]], bool]  # of a kernel with these counts in the emulator
    limits: Callable[[int, Mapping[str, int]], tuple[float, float]]  # (expected count, all) -> least, most of ncu's
    why: str


# Measured on an H200 with CUDA 13.0, 2026-11-21. Stores: at most 16 % more wavefronts.
CAVEATS = (
    Caveat(
        ("shared_store_wavefronts", "shared_store_conflicts"),
        lambda counts: counts.get("shared_store_wavefronts", 0) > 0,  # stmatrix stores, too
        lambda count, counts: (count, count + counts["shared_store_wavefronts"] / 4),
        "the hardware adds arbitration with other traffic, which varies from run to run",
    ),
    Caveat(
        ("shared_load_wavefronts", "shared_load_conflicts"),
        lambda counts: counts.get("cp_async_requests", 0) > 0 or counts.get("shared_store_wavefronts", 0) > 0,
        lambda count, counts: (count, count + counts["shared_load_wavefronts"] / 100),
        "now and then a load waits for what is written to shared memory, which ncu counts as a conflict",
    ),
    Caveat(
        ("instructions.mma",),
        lambda counts: counts.get(LAUNCHES, 1) > 1,
        lambda count, _: (count, 2 * count),
        "ptxas sets registers by HFMA2.MMA, which ncu counts among them: some per block of a launch's second kernel",
    ),
    Caveat(
        ("cp_async_sectors",),
        lambda counts: counts.get("cp_async_requests", 0) > 0,
        lambda count, counts: (0, 2 * count) if counts.get(PREDICATED) else (count, count),
        "ncu counts them by patching the machine code, and miscounts copies under a predicate; the hardware's own "
        "global_load_sectors, which include them, are right",
    ),
    Caveat(
        ("instructions.cp.async",),
        lambda counts: counts.get("cp_async_requests", 0) > 0,
        lambda count, _: (count, 2 * count),
        "ptxas turns the branch around the copies into predicates, and ncu counts copies that are switched off",
    ),
    Caveat(
        ("global_load_sectors",),
        lambda counts: counts.get("cp_async_requests", 0) > 0,
        lambda count, counts: (count - counts["cp_async_sectors"] / 2, count),
        "L1 counts some of the sectors once that cp.async fetches twice, for two places in shared memory",
    ),
)


MERGED = "ptxas merges loads from neighbouring addresses: this is the count of its machine code"


def compare(
    counts: Mapping[str, int] | None, measured: Mapping[str, float], merged: Mapping[str, int] | None = None
) -> dict[str, dict[str, Any]]:
    """{counter: {"emulator", "ncu", "metric"}} of the counters that both have; emulator None where it did not run.

    `merged` are the counters that ptxas changes, as they follow from its machine code (shared_loads.py); where one does
    change, the pair has it as "code". A pair whose ncu is neither has "why" if one of CAVEATS explains it. Tensor
    instructions are compared only if there are any.
    """
    pairs: dict[str, dict[str, object]] = {}
    copies = "instructions.cp.async"
    predicated = {PREDICATED: int(measured.get(METRICS[copies], 0)) - (counts or {}).get(copies, 0)}
    for key, metric in METRICS.items():
        counted = int((counts or {}).get(key, 0) + (counts or {}).get(INCLUDED.get(key, ""), 0))
        if metric not in measured or (key == "instructions.mma" and counts is not None and not counted):
            continue
        pair = pairs[key] = {"emulator": None, "ncu": int(measured[metric]), "metric": metric}
        if counts is None:
            continue
        pair["emulator"] = counted
        expected = (merged or {}).get(key, counted)
        reasons: list[str | None] = []
        if expected != counted:
            pair["code"] = expected
            reasons.append(MERGED)
        if expected != pair["ncu"]:
            reasons.append(_explained(key, expected, int(measured[metric]), {**counts, **(merged or {}), **predicated}))
        if reasons and None not in reasons:
            pair["why"] = "; ".join(filter(None, reasons))
    return pairs


def _explained(key: str, expected: int, ncu: int, counts: Mapping[str, int]) -> str | None:
    for caveat in CAVEATS:
        if key in caveat.counters and caveat.holds(counts):
            least, most = caveat.limits(expected, counts)
            if least <= ncu <= most:
                return caveat.why
    return None


def hardware(measured: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """What only the hardware knows, by the names of HARDWARE and STALLS."""
    for name, (metric, _) in HARDWARE.items():
        if metric in measured:
            yield name, measured[metric]
    for name, reason in STALLS.items():
        if STALL_METRIC.format(reason) in measured:
            yield f"stall: {name}", measured[STALL_METRIC.format(reason)]


def available() -> bool:
    """Whether there is an ncu."""
    try:
        return bool(find_ncu())
    except UserError:
        return False
