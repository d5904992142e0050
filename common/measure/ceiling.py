"""The ceilings of the GPU at hand, measured with ceiling.cu: mma.sync for 16-bit and TF32 operands, FMA for fp32.

    python -m common.measure.ceiling [--sustained SECONDS] [--json FILE]

A kernel's "% of limit" is its share of these. They are measured once per GPU and kept in the cache.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from common import hardware, terminal
from common.compiler import gpu, toolchain
from common.errors import UserError
from common.measure import nvml, timing
from common.measure.metadata import metadata
from common.results import runs
from common.stage import CPP_TYPES

SOURCE = Path(__file__).with_name("ceiling.cu")
STEPS = 4096  # about a millisecond on a data-centre GPU


@dataclass(frozen=True)
class Ceiling:
    """One setting of ceiling.cu: a rate that no kernel of that kind can exceed."""

    key: str  # what bench rows call their limit
    name: str
    dtype: str
    operands: str = "registers"
    operation: int = 0
    unit: str = "TFLOP/s"

    @property
    def label(self) -> str:
        return f"ceiling: {self.name}"

    @property
    def defines(self) -> dict[str, str]:
        """The macros of ceiling.cu that make this setting."""
        shared = str(int(self.operands == "shared memory"))
        return {"DTYPE": CPP_TYPES[self.dtype], "OPERATION": str(self.operation), "SHARED": shared}

    def load(self) -> ctypes.CDLL:
        """ceiling.cu with this setting, built for the current GPU."""
        return gpu.load(SOURCE, self.defines, hardware.nvcc_arch(gpu.capability() or "8.0"), self.label)


LIMITS = {
    each.key: each
    for each in (
        Ceiling("mma.sync fp16", "mma.sync m16n8k16 fp16, operands from registers", "fp16"),
        Ceiling("mma.sync bf16", "mma.sync m16n8k16 bf16, operands from registers", "bf16"),
        Ceiling("mma.sync tf32", "mma.sync m16n8k8 tf32, operands from registers", "tf32"),
        Ceiling("FMA fp32", "fp32 FMA, operands from registers", "fp32", operation=1),
    )
}
ALL = (
    *LIMITS.values(),
    Ceiling("ldmatrix fp16", "mma.sync m16n8k16 fp16, operands by ldmatrix, 64 × 64 per warp", "fp16", "shared memory"),
)


def needed(keys: Sequence[str]) -> list[Ceiling]:
    """The ceilings of these keys, each once; keys that nobody measures are left out."""
    return [LIMITS[key] for key in dict.fromkeys(keys) if key in LIMITS]


def bind(ceiling: Ceiling) -> tuple[Callable[[], None], float]:
    """(call that launches one run, floating-point operations per run); builds ceiling.cu if need be."""
    launcher = ceiling.load().launch_ceiling
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    sink = torch.empty(sms * 4 * 256, device="cuda")
    flops = ctypes.c_double()

    def call() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = launcher(ctypes.c_void_p(sink.data_ptr()), ctypes.byref(flops), ctypes.c_int(STEPS), stream)
        if status:
            raise UserError(f"{ceiling.label}: CUDA error {status}")

    call()
    torch.cuda.synchronize()
    if not torch.isfinite(sink[: sms * 256]).all():
        raise UserError(f"{ceiling.label}: the kernel's sums are not finite")
    return call, flops.value


def measure(ceiling: Ceiling, sustained: float = 0.0) -> dict:
    """One row of a ceiling run: the rate of single runs and, if asked for, of `sustained` seconds without a pause."""
    call, flops = bind(ceiling)
    device = nvml.current()
    with nvml.Monitor(device) as monitor:
        samples = timing.sample(call, timing.estimate(call), 2 * timing.ROUND_MS)
    ms = timing.summary(samples)
    row = {
        "key": ceiling.key,
        "name": ceiling.name,
        "value": flops / ms["median"] / 1e9,
        "unit": ceiling.unit,
        "ms": ms,
        **monitor.summary(),
    }
    if sustained:
        with nvml.Monitor(device) as monitor:
            each = timing.sustain(call, ms["median"], sustained)
        monitor.samples = monitor.samples[len(monitor.samples) // 2 :]  # the half that was timed
        row["sustained"] = {"value": flops / each / 1e9, "seconds": sustained, **monitor.summary()}
    return row


def _cache() -> Path:
    name = re.sub(r"\W+", "-", torch.cuda.get_device_name())
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return toolchain.cache_dir() / f"ceiling-{runs.SCHEMA}-{name}-{digest}.json"


def limits(keys: Sequence[str]) -> dict[str, dict]:
    """{key: {"name", "tflops", "date"}} of these ceilings on the GPU at hand: from the cache, or measured now."""
    path = _cache()
    run = runs.load(path) if path.exists() else metadata("ceiling")
    known = {row["key"] for row in run["rows"]}
    new = [each for each in needed(keys) if each.key not in known]
    if new:
        run["date"] = metadata("ceiling")["date"]
        run["rows"] += [measure(each) for each in new]
        runs.save(run, path)
    rows = {row["key"]: row for row in run["rows"]}
    return {
        each.key: {"name": rows[each.key]["name"], "tflops": rows[each.key]["value"], "date": run["date"]}
        for each in needed(keys)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m common.measure.ceiling",
        description="Measure what the GPU's units deliver when nothing else is in the way: the limit of every kernel.",
    )
    parser.add_argument(
        "--sustained",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="also run each for this long without a pause (default 3; 0: do not)",
    )
    parser.add_argument("--json", metavar="FILE", help="save the run")
    options = parser.parse_args(arguments)
    try:
        if not torch.cuda.is_available():
            raise UserError("ceilings are times: they need a GPU. Recorded ones are in docs/results/")
        run = metadata("ceiling")
        with terminal.progress("ceilings", total=len(ALL)) as update:
            for ceiling in ALL:
                update(ceiling.label)
                run["rows"].append(measure(ceiling, options.sustained))
                update(advance=1)
        runs.save(run | {"rows": [row for row in run["rows"] if row["key"] in LIMITS]}, _cache())
        if options.json:
            runs.save(run, options.json)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = terminal.table()
    for column in ("what", "measured", "20–80 %", "sustained", "MHz", "W"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in run["rows"]:
        held, ms = row.get("sustained", {}), row["ms"]
        fast, slow = (row["value"] * ms["median"] / ms[p] for p in ("p20", "p80"))
        table.add_row(
            row["name"],
            f"{row['value']:.1f} {row['unit']}",
            f"{slow:.1f}–{fast:.1f}",
            *(
                f"{value:.0f}" if value else "–"
                for value in (
                    held.get("value"),
                    held.get("sm_mhz", {}).get("median"),
                    held.get("power_w", {}).get("median"),
                )
            ),
        )
    terminal.out.print(terminal.titled(f"{run['gpu']}, {run['date'][:10]}", table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
