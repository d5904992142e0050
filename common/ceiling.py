"""The ceilings of the GPU at hand, measured with ceiling.cu: mma.sync for 16-bit and TF32 operands, FMA for fp32.

    python -m common.ceiling [--sustained SECONDS] [--json FILE]

A kernel's "% of limit" is its share of these. They are measured once per GPU and kept in the cache.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import results, timing
from common.errors import UserError
from common.stage import CPP_TYPES

SOURCE = Path(__file__).with_name("ceiling.cu")
STEPS = 4096  # about a millisecond on a data-centre GPU


@dataclass(frozen=True)
class Ceiling:
    """One setting of ceiling.cu; it has what the GPU loader asks of a kernel."""

    key: str  # what bench rows call their limit
    name: str
    dtype: str
    operands: str = "registers"
    operation: int = 0

    source = SOURCE

    @property
    def label(self) -> str:
        return f"ceiling: {self.name}, operands from {self.operands}"

    @property
    def defines(self) -> dict[str, str]:
        return {"DTYPE": CPP_TYPES[self.dtype], "OPERATION": str(self.operation),
                "SHARED": str(int(self.operands == "shared memory"))}


LIMITS = {
    "fp16": Ceiling("fp16", "mma.sync m16n8k16 fp16", "fp16"),
    "bf16": Ceiling("bf16", "mma.sync m16n8k16 bf16", "bf16"),
    "tf32": Ceiling("tf32", "mma.sync m16n8k8 tf32", "tf32"),
    "fp32": Ceiling("fp32", "fp32 FMA", "fp32", operation=1),
}
ALL = (*LIMITS.values(), Ceiling("fp16 ldmatrix", "mma.sync m16n8k16 fp16", "fp16", "shared memory"))


def bind(ceiling: Ceiling):
    """(call that launches one run, floating-point operations per run); builds ceiling.cu if need be."""
    import torch

    from common import gpu

    launcher = gpu.load(ceiling).launch_ceiling
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
    """One row of a ceiling run: TFLOP/s of single runs and, if asked for, of `sustained` seconds without a pause."""
    from common import nvml

    call, flops = bind(ceiling)
    device = nvml.current()
    with nvml.Monitor(device) as monitor:
        samples = timing.sample(call, timing.estimate(call), 2 * timing.ROUND_MS)
    ms = timing.summary(samples)
    row = {"name": ceiling.name, "key": ceiling.key, "dtype": ceiling.dtype, "operands": ceiling.operands,
           "tflops": flops / ms["median"] / 1e9, "ms": ms, **monitor.summary()}
    if sustained:
        with nvml.Monitor(device) as monitor:
            each = timing.sustain(call, ms["median"], sustained)
        monitor.samples = monitor.samples[len(monitor.samples) // 2:]  # the half that was timed
        row["sustained"] = {"tflops": flops / each / 1e9, "seconds": sustained, **monitor.summary()}
    return row


def _cache() -> Path:
    import torch

    from common import toolchain

    name = re.sub(r"\W+", "-", torch.cuda.get_device_name())
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return toolchain.cache_dir() / f"ceiling-{name}-{digest}.json"


def limits(keys: Sequence[str]) -> dict[str, dict]:
    """{key: {"name", "tflops", "date"}} of these ceilings on the GPU at hand: from the cache, or measured now."""
    path = _cache()
    run = results.load(path) if path.exists() else results.metadata("ceiling")
    known = {row["key"]: row for row in run["rows"]}
    new = [key for key in keys if key in LIMITS and key not in known]
    if new:
        run["date"] = results.metadata("ceiling")["date"]
        run["rows"] += [measure(LIMITS[key]) for key in new]
        results.save(run, path)
        known = {row["key"]: row for row in run["rows"]}
    return {key: {"name": known[key]["name"], "tflops": known[key]["tflops"], "date": run["date"]}
            for key in keys if key in known}


def main(arguments: Sequence[str] | None = None) -> int:
    from rich.table import Table

    from common import terminal

    parser = argparse.ArgumentParser(prog="python -m common.ceiling", description="Measure what the GPU's arithmetic "
                                     "units deliver when nothing else is in the way: the limit of every kernel here.")
    parser.add_argument("--sustained", type=float, default=3.0, metavar="SECONDS",
                        help="also run each for this long without a pause (default 3; 0: do not)")
    parser.add_argument("--json", metavar="FILE", help="save the run")
    options = parser.parse_args(arguments)
    try:
        import torch

        if not torch.cuda.is_available():
            raise UserError("ceilings are times: they need a GPU. Recorded ones are in docs/results/")
        run = results.metadata("ceiling")
        with terminal.progress("ceilings", total=len(ALL)) as update:
            for ceiling in ALL:
                update(ceiling.label)
                run["rows"].append(measure(ceiling, options.sustained))
                update(advance=1)
        known = [row for row in run["rows"] if row["key"] in LIMITS]
        results.save(run | {"rows": known}, _cache())
        if options.json:
            results.save(run, options.json)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = Table(title=f"{run['gpu']}, {run['date'][:10]}", **terminal.PLAIN)
    for column in ("what", "operands from", "TFLOP/s", "20–80 %", "sustained", "MHz", "W"):
        table.add_column(column, justify="left" if column in ("what", "operands from") else "right")
    for row in run["rows"]:
        held, ms = row.get("sustained", {}), row["ms"]
        fast, slow = (row["tflops"] * ms["median"] / ms[p] for p in ("p20", "p80"))
        table.add_row(row["name"], row["operands"], f"{row['tflops']:.1f}", f"{slow:.1f}–{fast:.1f}",
                      *(f"{value:.0f}" if value else "–" for value in (
                          held.get("tflops"), held.get("sm_mhz", {}).get("median"),
                          held.get("power_w", {}).get("median"))))
    terminal.out.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
