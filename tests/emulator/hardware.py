"""What a GPU and NVIDIA's own tools say of the programs that the emulator is held against.

    python -m tests.emulator.hardware    # on a machine with a GPU: half a minute; writes hardware.json

- The examples under ncu: the counters that the emulator counts too, launch by launch.
- What the real runtime answers to runtime_probe.cu.
- With `--raw FILE`, the broken kernels under compute-sanitizer as well: see sanitizers.py, whose record that is.

hardware.json is the record.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common.compiler import toolchain
from common.emulator import METRICS
from common.errors import UserError
from common.measure import ncu
from tests.emulator import sanitizers, suite

RECORD = Path(__file__).with_suffix(".json")
EXAMPLES = sorted((suite.ROOT / "examples").glob("*.cu"))
PROBE = Path(__file__).with_name("runtime_probe.cu")
PATIENCE = 60  # seconds for one program


def executable(path: Path, folder: Path, name: str, defines: Mapping[str, str] = {}) -> Path:
    """A program compiled for the GPU that is here. Include files are found beside it and in the repository."""
    nvcc, out = toolchain.find_nvcc(), folder / name
    flags = ["-std=c++17", "-lineinfo", "-arch=native", *toolchain.define_flags(defines)]
    link = [f"-L{nvcc.lib}", f"-Xlinker=-rpath={nvcc.lib}"]
    toolchain.run([nvcc.path, "-ccbin", toolchain.find_cxx(), *flags, path, *link, "-o", out])
    return out


def run(words: Sequence[str | Path], patience: float = PATIENCE) -> tuple[int | None, str]:
    """Exit status, None if it had to be killed, and all that it printed."""
    command = ["timeout", "--signal=KILL", str(patience), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return None if done.returncode in (124, 137, -9) else done.returncode, done.stdout


def counted(programs: Sequence[Path], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """ncu's counters of every launch of the programs: name -> [{"kernel", counter: count}]."""
    script = folder / "all.sh"
    script.write_text("".join(f"{program}\n" for program in programs))
    words = [ncu.find_ncu(), "--clock-control", "none", "--target-processes", "all", "--page", "raw", "--csv"]
    words += ["--print-units", "base", "--metrics", ",".join(METRICS.values()), "sh", script]
    status, text = run(words, 300)
    (folder / "ncu.txt").write_text(text)
    table = [line for line in text.splitlines() if line.startswith('"')]
    launches: dict[str, list[dict[str, Any]]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(table))):
        if not (row["ID"] or "").isdigit():  # the row of units
            continue
        values = {name: int(float(row[metric].replace(",", ""))) for name, metric in METRICS.items() if row.get(metric)}
        name = Path(row["Process Name"]).name
        launches.setdefault(name, []).append({"kernel": row["Kernel Name"], **values})
    if not launches:
        raise UserError(f"ncu gave no counters (exit status {status}):\n{text[-2000:]}")
    return launches


def measure(cores: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything. `cores` programs are compiled or run at a time, but those that ncu measures one after the other."""
    started = time.perf_counter()

    def note(text: str) -> None:
        say(f"{time.perf_counter() - started:6.1f} s  {text}")

    with ThreadPoolExecutor(cores) as pool:
        examples = [pool.submit(executable, path, folder, path.stem) for path in EXAMPLES]
        probe = pool.submit(executable, PROBE, folder, PROBE.stem)
        answers = run([probe.result()])[1].splitlines()
        note("the runtime has been asked")
        programs = [example.result() for example in examples]
    try:
        counts = counted(programs, folder)
    except UserError as error:
        counts = {}
        note(str(error))
    note(f"{sum(map(len, counts.values()))} launches of {len(counts)} examples have been counted")
    return {"counts": counts, "runtime": answers}


def gpu() -> dict[str, str]:
    """The GPU, its driver, and the release of CUDA."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = run(query)[1].strip().splitlines()[0].split(", ")
    return {
        "gpu": name,
        "driver": driver,
        "cuda": toolchain.find_nvcc().release,
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.hardware", description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record (default: hardware.json beside this file)")
    parser.add_argument("--raw", type=Path, help="run the broken kernels under compute-sanitizer too: their record")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="programs at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.cores, Path(folder), print)
    options.out.write_text(json.dumps({**gpu(), **found}, indent=1) + "\n")
    print(f"written: {options.out}", flush=True)
    if options.raw:
        sanitizers.main(["--json", str(options.raw), "--unbroken", "--budget", "180"])


if __name__ == "__main__":
    main()
