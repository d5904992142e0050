"""The ceilings of the GPU at hand: what its arithmetic units deliver (ceiling.cu, hopper.cu), and its memory levels
(levels.py).

    python -m common.measure.ceiling [--sustained SECONDS] [--json FILE]

Bounds are computed from these (common/results/bound.py). `bench` measures those that it needs once per GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Group

from common import gpu, terminal
from common.dtypes import PRECISIONS
from common.measure import levels, nvml, stamps, timing
from common.measure.metadata import metadata, record
from common.results import runs
from common.results.runs import Row, Run
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from cudaemu.units import FMA, MMA, WGMMA

SOURCE = Path(__file__).with_name("ceiling.cu")
HOPPER = levels.HOPPER
STEPS = 4096  # about a millisecond on a data-centre GPU


@dataclass(frozen=True)
class Ceiling:
    """One setting of ceiling.cu or hopper.cu: a rate that no kernel of that kind can exceed."""

    key: str  # what bench rows call their limit
    name: str
    dtype: str
    operands: str = "registers"
    operation: int = 0
    unit: str = "TFLOP/s"
    per_clock: str = "FLOP/clock/SM"
    warps: tuple[int, ...] = (8, 16)  # of a block: the faster number counts
    per_step: int = 2 * 512 * 64 * 16  # operations of a block per step: 512 rows of A, 64 columns of B, 16 deep
    source: Path = SOURCE
    arch: Arch | None = None  # the one that it is built for; None: that of the current GPU

    @property
    def label(self) -> str:
        return f"ceiling: {self.name}"

    @property
    def defines(self) -> dict[str, str]:
        """The macros of the source that make this setting."""
        element = {"DTYPE": PRECISIONS[self.dtype].cpp}
        if self.source != SOURCE:
            return element
        return element | {"OPERATION": str(self.operation), "SHARED": str(int(self.operands == "shared memory"))}

    def runs_here(self) -> bool:
        """Whether the current GPU has these instructions."""
        here = gpu.capability()
        return self.arch is None or here is not None and self.arch.runs_on(here)

    def load(self) -> ctypes.CDLL:
        """The source with this setting, built for the current GPU."""
        return gpu.load(self.source, self.defines, self.arch or gpu.capability() or "8.0", self.label)


def _wgmma(dtype: str, k: int) -> Ceiling:
    """m64n256 of this depth: a step is 4 of them in each of two warpgroups."""
    return Ceiling(
        WGMMA.ceiling(dtype),
        f"wgmma m64n256k{k} {dtype}, operands from shared memory",
        dtype,
        "shared memory",
        warps=(8,),
        per_step=2 * 2 * 64 * 256 * 4 * k,
        source=HOPPER,
        arch=WGMMA.least,
    )


LIMITS = {
    each.key: each
    for each in (
        Ceiling(MMA.ceiling("fp16"), "mma.sync m16n8k16 fp16, operands from registers", "fp16"),
        Ceiling(MMA.ceiling("bf16"), "mma.sync m16n8k16 bf16, operands from registers", "bf16"),
        Ceiling(MMA.ceiling("tf32"), "mma.sync m16n8k8 tf32, operands from registers", "tf32"),
        Ceiling(
            FMA.ceiling("fp32"),
            "fp32 FMA, operands from registers",
            "fp32",
            operation=1,
            warps=(32,),
            per_step=2 * 32 * 1024,
        ),
        _wgmma("fp16", 16),
        _wgmma("bf16", 16),
        _wgmma("e4m3", 32),
    )
}
LDMATRIX = Ceiling(
    "ldmatrix fp16",
    "mma.sync m16n8k16 fp16, operands by ldmatrix, 64 × 64 per warp",
    "fp16",
    "shared memory",
    warps=(8,),
)
POWERS = Ceiling(
    "exp2",
    "powers of two (ex2.approx), operands from registers",
    "fp32",
    operation=2,
    unit="10¹²/s",
    per_clock="power/clock/SM",
    warps=(32,),
    per_step=8 * 1024,
)
MAXIMA = Ceiling(
    "ALU",
    "fp32 maxima (ALU pipe), operands from registers",
    "fp32",
    operation=3,
    unit="10¹²/s",
    per_clock="maximum/clock/SM",
    warps=(32,),
    per_step=16 * 1024,
)
ALL = (*LIMITS.values(), LDMATRIX, POWERS, MAXIMA)


def needed(keys: Sequence[str]) -> list[Ceiling]:
    """The ceilings of these keys, each once."""
    return [LIMITS[key] for key in dict.fromkeys(keys)]


def bind(ceiling: Ceiling, warps: int) -> tuple[Callable[[], None], Callable[[], levels.Run]]:
    """(call that launches one run, call that launches one and waits for it); builds the source if need be."""
    launcher = ceiling.load().launch_ceiling
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    sink = torch.empty(sms * warps * 32, device="cuda")
    times = torch.empty(sms, levels.STAMP, dtype=torch.int64, device="cuda")

    def call() -> None:
        levels.call(launcher, sink, times, STEPS, warps)

    def stamped() -> levels.Run:
        call()
        torch.cuda.synchronize()
        run = levels.Run(times.cpu())
        run.check()
        return run

    stamped()
    if not torch.isfinite(sink).all():
        raise UserError(f"{ceiling.label}: the kernel's sums are not finite")
    return call, stamped


def measure(ceiling: Ceiling, sustained: float = 0.0) -> Row:
    """One row of a ceiling run: the rate of single runs and, if asked for, of `sustained` seconds without a pause.

    What an SM does per clock comes from its own clock, so that it does not depend on how fast that was."""
    settings = []
    for warps in ceiling.warps:
        call, stamped = bind(ceiling, warps)
        counted = [stamped() for _ in range(levels.RUNS)]
        clocks = statistics.median(run.clocks for run in counted)
        mhz = statistics.median(run.mhz for run in counted)
        settings.append((clocks, mhz, warps, call))
    clocks, mhz, warps, call = min(settings, key=lambda setting: setting[0])
    with nvml.Monitor(nvml.current()) as monitor:
        single = timing.sample(call, timing.estimate(call), 2 * timing.ROUND_MS)
    ms = timing.summary(single.ms)
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    operations = ceiling.per_step * STEPS * sms
    row = {
        "key": ceiling.key,
        "name": ceiling.name,
        "value": operations / ms["median"] / 1e9,
        "unit": ceiling.unit,
        "per_clock": {"value": operations / sms / clocks, "unit": ceiling.per_clock, "mhz": round(mhz, 1)},
        "warps": warps,
        "ms": ms,
        "clock": timing.clock([single]),
        **monitor.summary(),
    }
    if sustained:
        held = timing.sustain(call, ms["median"], sustained)
        row["sustained"] = {"value": operations / held["ms"]["median"] / 1e9, **held}
    return row


def _cache() -> Path:
    name = re.sub(r"\W+", "-", torch.cuda.get_device_name())
    texts = [text for source in (SOURCE, HOPPER) for text in toolchain.source_texts(source)]
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()[:12]
    return cache.folder() / f"ceiling-{runs.SCHEMA}-{name}-{digest}.json"


def limits(keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """{key: {"name", "tflops", "date"}} of these ceilings on the GPU at hand: from the cache, or measured now.

    "tflops" is the peak: what the unit does per clock, at the GPU's highest clock; "per_clock" is that of all SMs, in
    operations."""
    path = _cache()
    run = runs.load(path) if path.exists() else head()
    known = {row["key"] for row in run["rows"]}
    new = [each for each in needed(keys) if each.key not in known]
    if new:
        run["date"] = metadata("ceiling")["date"]
        run["rows"] += [measure(each) for each in new]
        runs.save(run, path)
    rows = {row["key"]: row for row in run["rows"]}
    per_clock = {key: row["per_clock"] for key, row in rows.items()}
    return {
        each.key: {
            "name": rows[each.key]["name"],
            "tflops": per_clock[each.key]["value"]
            * run["sms"]
            * (run["highest_mhz"] or per_clock[each.key]["mhz"])
            / 1e6,
            "per_clock": per_clock[each.key]["value"] * run["sms"],
            "date": run["date"],
        }
        for each in needed(keys)
    }


def head() -> Run:
    """The head of a ceiling run, with what the GPU has: SMs, their highest clock in MHz if it is known, memory."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return metadata("ceiling") | {
        "sms": properties.multi_processor_count,
        "highest_mhz": nvml.current().highest_sm_clock(),
        "memory_bytes": properties.total_memory,
    }


def here() -> list[Ceiling]:
    """Those that the current GPU has."""
    return [each for each in ALL if each.runs_here()]


def build() -> None:
    """Build all that is measured, side by side: nvcc is what takes time."""
    jobs = [stamps.load, *(each.load for each in here())] + [
        lambda source=source: levels.load(source) for source in levels.sources()
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: job(), jobs))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m common.measure.ceiling",
        description="Measure what the GPU's units and memory levels deliver when nothing else is in the way: the limit "
        "of every kernel.",
    )
    parser.add_argument(
        "--sustained",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="also run the arithmetic units for this long without a pause (default 1; 0: do not)",
    )
    return record(parser, lambda options: measure_all(options.sustained), table, arguments, "ceilings")


def measure_all(sustained: float) -> Run:
    """A run of all ceilings of the current GPU, and its levels of memory."""
    run = head()
    with terminal.progress("building"):
        build()
    with terminal.progress("ceilings", total=len(here()) + levels.COUNT) as update:
        for ceiling in here():
            update(ceiling.label)
            run["rows"].append(measure(ceiling, sustained))
            update(advance=1)
        for row in levels.Levels().rows():
            run["rows"].append(row)
            update(row["name"], advance=1)
    runs.save(run | {"rows": [row for row in run["rows"] if row["key"] in LIMITS]}, _cache())
    return run


def table(run: Run) -> Group:
    """A ceiling run, a row per thing measured."""
    made = terminal.table()
    for column in ("what", "measured", "20–80 %", "per clock and SM", "MHz", "sustained", "MHz", "W"):
        made.add_column(column, justify="left" if column == "what" else "right")
    for row in run["rows"]:
        held = row.get("sustained", {})
        fast, slow = spread(row)
        per_clock = row["value"] if row["unit"].endswith("/clock/SM") else row.get("per_clock", {}).get("value")
        made.add_row(
            row["name"],
            f"{row['value']:.4g} {row['unit'].removesuffix('/clock/SM')}",
            f"{slow:.4g}–{fast:.4g}",
            f"{per_clock:.4g}" if per_clock else "",
            *(
                f"{value:.0f}" if value else ""
                for value in (
                    row.get("sm_mhz", {}).get("median"),
                    held.get("value"),
                    held.get("sm_mhz", {}).get("median"),
                    held.get("power_w", {}).get("median"),
                )
            ),
        )
    return terminal.titled(f"{run['gpu']}, {run['date'][:10]}", made)


def spread(row: Row) -> tuple[float, float]:
    """The row's value at the 20th and the 80th percentile of its times or samples, the larger one first."""
    if "ms" in row:
        return tuple(row["value"] * row["ms"]["median"] / row["ms"][p] for p in ("p20", "p80"))
    return row["samples"]["p80"], row["samples"]["p20"]


if __name__ == "__main__":
    sys.exit(main())
