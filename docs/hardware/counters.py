"""What a GPU and NVIDIA's own tools say of the programs that the emulator is held against.

    python -m docs.hardware.counters            # on a machine with a GPU: half a minute; writes counters.json
    python -m docs.hardware.counters --table    # anywhere: the table of docs/emulator.md, made of DIFFERENCES

- The examples under ncu: the counters that the emulator counts too, launch by launch.
- What the real runtime answers to runtime_probe.cu.
- With `--raw FILE`, the broken kernels under compute-sanitizer as well: see sanitizers.py, whose record that is.

counters.json is the record. The emulator's counters are equal to it, launch by launch, but for DIFFERENCES.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from common.measure import ncu
from cudaemu import METRICS
from cudaemu.compiler import sass, toolchain
from cudaemu.compiler.symbols import readable
from cudaemu.errors import UserError
from cudaemu.report import INCLUDED
from docs.hardware import sanitizers
from docs.hardware.programs import EXAMPLES, ROOT, executable, needed

RECORD = Path(__file__).with_suffix(".json")
PROBE = Path(__file__).with_name("runtime_probe.cu")
DOCUMENT = ROOT / "docs" / "emulator.md"
PATIENCE = 60  # seconds for one program


class Span(NamedTuple):
    """A count that depends on the order in which warps and blocks run."""

    least: int
    most: int | None = None

    def __str__(self) -> str:
        return f"at least {self.least:,}" if self.most is None else f"{self.least:,} to {self.most:,}"


class Difference(NamedTuple):
    """What ncu has otherwise than the emulator in each launch of a kernel of an example.

    `counts`: counter -> the emulator's, ncu's. `code`: opcode -> how many of it ptxas's code for the kernel has."""

    example: str
    kernel: str
    counts: Mapping[str, tuple[int | Span, int | Span]]
    code: Mapping[str, int]
    why: str


LOADS, LOAD_SECTORS = "global_load_requests", "global_load_sectors"
STORES, STORE_SECTORS = "global_store_requests", "global_store_sectors"
MMA = "instructions.mma"

DIFFERENCES = (
    Difference(
        "atomics",
        "everything",
        {MMA: (0, 6)},
        {"HFMA2.MMA": 3},
        "ptxas sets three registers by `HFMA2.MMA R2, -RZ, RZ, 0, 0` in each of 2 warps; ncu counts that among the "
        "tensor cores' instructions",
    ),
    Difference(
        "cluster_histogram",
        "histogram",
        {"shared_load_wavefronts": (128, 64)},
        {"LDS": 1},
        "`mine[bin]` is twice in the source and in the PTX; ptxas loads it once",
    ),
    Difference(
        "constant_stencil_3d",
        "stencil",
        {LOADS: (927, 486), LOAD_SECTORS: (2914, 2473)},
        {"LDG.E": 7},
        "`in[at]` is twice in the source and in the PTX; ptxas loads it once",
    ),
    Difference(
        "cooperative_groups",
        "tile_sums",
        {LOADS: (64, 32), LOAD_SECTORS: (256, 128)},
        {"LDG.E": 1},
        "`in[i]` is twice in the source and in the PTX; ptxas loads it once",
    ),
    Difference(
        "cooperative_groups",
        "smooth",
        {LOADS: (Span(600), Span(600)), LOAD_SECTORS: (Span(2700), Span(2700))},
        {"LD.E.STRONG.GPU": 1},
        "one thread of each of 4 blocks looks at the counter of `grid.sync()` until all have come, six times: 24 loads "
        "at least; how many more is chance, in each of the passes in which ncu reads its counters",
    ),
    Difference(
        "function_pointers",
        "apply",
        {STORES: (2, 6), STORE_SECTORS: (8, 24), MMA: (0, 2)},
        {"CALL.REL.NOINC": 1, "BSSY": 0, "STG.E": 1, "HFMA2.MMA": 1},
        "ptxas has nothing after the call at which lanes that went to different functions meet again (a `BSYNC`): "
        "those of each of the three store for themselves. In the emulator they meet where they parted. And a register "
        "is set by `HFMA2.MMA` in each of 2 warps",
    ),
    Difference(
        "function_pointers",
        "areas",
        {STORES: (2, 4), STORE_SECTORS: (8, 16)},
        {"CALL.REL.NOINC": 1, "BSSY": 0, "STG.E": 1},
        "likewise: lanes of two virtual functions",
    ),
    Difference(
        "gemv",
        "gemv",
        {MMA: (0, 74)},
        {"HFMA2.MMA": 2},
        "two registers are set by `HFMA2.MMA` in each of the 37 warps that have a row",
    ),
    Difference(
        "half_and_bfloat16",
        "fma_and_sum<__half2>",
        {MMA: (0, 40)},
        {"HFMA2.MMA": 2},
        "`__hfma2` is `HFMA2.MMA R11, R8, R19, R11`, 32 times, which ncu counts among the tensor cores' instructions; "
        "and a register is set by another in each of 8 warps",
    ),
    Difference(
        "half_and_bfloat16",
        "fma_and_sum<__nv_bfloat162>",
        {MMA: (0, 40)},
        {"HFMA2.MMA": 1, "HFMA2.MMA.BF16_V2": 1},
        "likewise",
    ),
    Difference(
        "layer_norm",
        "layer_norm",
        {"shared_load_wavefronts": (384, 192), MMA: (0, 96)},
        {"LDS.128": 14, "HFMA2.MMA": 3},
        "ptxas unrolls the sum over the warps and loads four floats at a time (`LDS.128`: two wavefronts instead of "
        "four); two registers are set by `HFMA2.MMA` in each of 48 warps",
    ),
    Difference(
        "layer_norm_registers",
        "layer_norm",
        {"shared_load_wavefronts": (896, 448), MMA: (0, 56)},
        {"LDS.128": 4, "HFMA2.MMA": 2},
        "as in layer_norm: four sums are one `LDS.128`, and a register is set in each of 56 warps (another one is "
        "in the slow path of a division)",
    ),
    Difference(
        "pipeline",
        "sums_of_squares",
        {MMA: (0, 12)},
        {"HFMA2.MMA": 1},
        "a register is set by `HFMA2.MMA` in each of 12 warps",
    ),
    Difference(
        "printf_assert_clock",
        "work",
        {LOADS: (0, 122), LOAD_SECTORS: (0, 122), STORES: (2, 196), STORE_SECTORS: (12, 206), MMA: (0, 9)},
        {"CALL.ABS.NOINC": 2, "HFMA2.MMA": 3},
        "`printf` is a call of the driver's `vprintf`, whose own loads and stores are counted, and 8 `HFMA2.MMA`: it "
        "brings format and values into a buffer. In the emulator it is one instruction",
    ),
    Difference(
        "recursion",
        "sizes",
        {LOADS: (86, 82), LOAD_SECTORS: (167, 227), STORES: (2, 6), STORE_SECTORS: (5, 9), MMA: (0, 22)},
        {"CALL.REL.NOINC": 2, "BSSY": 1, "HFMA2.MMA": 1},
        "as in function_pointers: nothing after the calls makes lanes meet that return from different depths; lanes "
        "at the same instruction in different depths may go together instead. And `HFMA2.MMA` sets a register in each "
        "call",
    ),
    Difference(
        "recursion",
        "numbers",
        {STORES: (1, 7), STORE_SECTORS: (2, 7), MMA: (0, 19)},
        {"CALL.REL.NOINC": 6, "HFMA2.MMA": 1},
        "likewise",
    ),
    Difference(
        "reduce_bandwidth",
        "sum",
        {MMA: (0, 300)},
        {"HFMA2.MMA": 5},
        "registers are set by `HFMA2.MMA`, up to five times in each of 64 warps",
    ),
    Difference(
        "reduce_last_block",
        "sum",
        {"shared_load_wavefronts": (1584, 432)},
        {"LDS.128": 32},
        "one thread adds up 128 values: ptxas unrolls that and loads four at a time",
    ),
    Difference(
        "reduce_shuffle",
        "sum",
        {MMA: (0, 128)},
        {"HFMA2.MMA": 1},
        "a register is set by `HFMA2.MMA` in each of 128 warps",
    ),
    Difference(
        "rms_norm",
        "rms_norm",
        {"shared_load_wavefronts": (640, 320), MMA: (0, 80)},
        {"LDS.128": 2, "HFMA2.MMA": 2},
        "as in layer_norm_registers: four sums are one `LDS.128`, and a register is set in each of 80 warps",
    ),
    Difference(
        "scan_look_back",
        "scan",
        {"shared_store_wavefronts": (942, Span(942, 960)), "shared_store_conflicts": (0, Span(0, 18))},
        {},
        "arbitration with other traffic, as in the stages",
    ),
    Difference(
        "scan_tiles",
        "scan",
        {
            LOADS: (Span(2300), Span(2300)),
            LOAD_SECTORS: (Span(37900), Span(37900)),
            "shared_load_wavefronts": (3330, 2738),
        },
        {"LDG.E.64.STRONG.GPU": 1, "LDS.128": 7},
        "how often a block looks at the sums of those before it depends on the order of the blocks; and four sums of "
        "warps are one `LDS.128`",
    ),
    Difference(
        "softmax",
        "softmax",
        {MMA: (0, 74)},
        {"HFMA2.MMA": 3},
        "two registers are set by `HFMA2.MMA` in each of 37 warps (the third is in the slow path of a division)",
    ),
    Difference(
        "softmax_registers",
        "softmax",
        {"shared_load_wavefronts": (1152, 576)},
        {"LDS.128": 4},
        "four values of warps are one `LDS.128`",
    ),
    Difference("texture", "slice", {MMA: (0, 48)}, {"HFMA2.MMA": 1}, "a register is set in each of 48 warps"),
    Difference("texture", "layer", {MMA: (0, 48)}, {"HFMA2.MMA": 1}, "likewise"),
    Difference(
        "tma_multicast",
        "multiply",
        {MMA: (0, 152)},
        {"HFMA2.MMA": 3},
        "registers are set by `HFMA2.MMA`, up to three times in each of 64 warps",
    ),
    Difference("tma_ring", "column_sums", {MMA: (0, 8)}, {"HFMA2.MMA": 1}, "likewise, in each of 8 warps"),
    Difference(
        "votes",
        "keep_positive",
        {STORE_SECTORS: (Span(67, 95), Span(67, 95))},
        {"ATOMG.E.ADD.STRONG.GPU": 1},
        "where a warp's values go, and so how many sectors they touch, depends on the order of the warps' `atomicAdd`",
    ),
    Difference(
        "votes",
        "count_keys",
        {LOADS: (64, 32), LOAD_SECTORS: (169, 125)},
        {"LDG.E": 1},
        "`keys[i]` is twice in the source and in the PTX; ptxas loads it once",
    ),
    Difference(
        "votes",
        "agree",
        {STORES: (3, 4), STORE_SECTORS: (3, 4)},
        {"WARPSYNC.EXCLUSIVE": 1},
        "the mask of the vote differs between lanes, so ptxas lets one group of lanes after the other go on "
        "(`WARPSYNC.EXCLUSIVE R0`), up to the store. In the emulator both groups store together",
    ),
)


def run(words: Sequence[str | Path], patience: float = PATIENCE) -> tuple[int | None, str]:
    """Exit status, None if it had to be killed, and all that it printed."""
    command = ["timeout", "--signal=KILL", str(patience), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return None if done.returncode in (124, 137, -9) else done.returncode, done.stdout


def counted(programs: Sequence[Path], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """ncu's counters of every launch of the programs: name -> [{"kernel", counter: count}]."""
    script = folder / "all.sh"
    script.write_text("".join(f"{program}\n" for program in programs))
    words: list[str | Path] = [
        ncu.find_ncu(),
        "--clock-control",
        "none",
        "--target-processes",
        "all",
        "--page",
        "raw",
        "--csv",
    ]
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

        def compiled(path: Path) -> Future[Path]:
            return pool.submit(executable, path, folder / path.stem, needed(path), flags=["-lineinfo"])

        examples, probe = list(map(compiled, EXAMPLES)), compiled(PROBE)
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


# ---- the emulator beside the record ----------------------------------------------------------------------------------


def recorded() -> dict[str, Any]:
    """counters.json."""
    return json.loads(RECORD.read_text())


def name_of(kernel: str) -> str:
    """ "tile" of ncu's "void tile<float>(const T1 *, int)": the name as the emulator's reports have it."""
    return kernel.removeprefix("void ").partition("(")[0]


def emulated(launches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The emulator's counters of every launch, which `cudaemu --json` writes, in the form of `counted`."""
    found: list[dict[str, Any]] = []
    for launch in launches:
        counts = launch["counters"]
        values = {key: counts.get(key, 0) + counts.get(INCLUDED.get(key, ""), 0) for key in METRICS}
        found.append({"kernel": launch["kernel"], **values})
    return found


def opcodes(example: str, kernel: str) -> list[str]:
    """The opcodes of a kernel's machine code, modifiers included, as ptxas makes it for sm_90."""
    path = next(path for path in EXAMPLES if path.stem == example)
    code = {readable(name): instructions for name, instructions in sass.functions(path, {}, "90").items()}
    return [instruction.opcode for instruction in code[kernel]]


def compare(example: str, ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What contradicts DIFFERENCES in the launches of an example, in words: the emulator's counters and ncu's."""
    names = [launch["kernel"] for launch in ours], [name_of(launch["kernel"]) for launch in theirs]
    if names[0] != names[1]:
        return [f"{example}: other launches: {names[0]}, recorded {names[1]}"]
    listed = {
        (each.kernel, key): pair for each in DIFFERENCES if each.example == example for key, pair in each.counts.items()
    }
    wrong = []
    for number, (mine, other) in enumerate(zip(ours, theirs)):
        for key in METRICS:
            where = f"{example}, launch {number}, {mine['kernel']}, {key}: {mine[key]}, ncu {other[key]}"
            pair = listed.get((mine["kernel"], key))
            if pair is None and mine[key] != other[key]:
                wrong.append(f"{where}: a difference that is not listed")
            elif pair is not None and not (_is(mine[key], pair[0]) and _is(other[key], pair[1])):
                wrong.append(f"{where}: listed as {pair[0]}, ncu {pair[1]}")
    return wrong


def _is(count: int, expected: int | Span) -> bool:
    if isinstance(expected, Span):
        return expected.least <= count and (expected.most is None or count <= expected.most)
    return count == expected


def table() -> str:
    """DIFFERENCES as docs/emulator.md has them."""
    lines = ["| Kernel | Counter: emulator → ncu | Why | In the machine code |", "| --- | --- | --- | --- |"]
    for each in DIFFERENCES:
        counts = [f"`{key}`: {_shown(ours)} → {_shown(ncu)}" for key, (ours, ncu) in each.counts.items()]
        code = [f"{times or 'no'} `{opcode}`" for opcode, times in each.code.items()]
        cells = [f"{each.example}: `{each.kernel}`", "<br>".join(counts), each.why, ", ".join(code) or "–"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(count: int | Span) -> str:
    return str(count) if isinstance(count, Span) else f"{count:,}"


MARKED = re.compile(r"(<!-- examples -->\n).*?(<!-- /examples -->)", re.S)


def with_table(text: str) -> str:
    """The document with the table in its place."""
    return MARKED.sub(lambda mark: f"{mark[1]}{table()}\n{mark[2]}", text)


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
    parser = argparse.ArgumentParser(prog="python -m docs.hardware.counters", description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record (default: counters.json beside this file)")
    parser.add_argument("--raw", type=Path, help="run the broken kernels under compute-sanitizer too: their record")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="programs at a time")
    parser.add_argument("--table", action="store_true", help="run nothing: write the table of docs/emulator.md")
    options = parser.parse_args()
    if options.table:
        DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.cores, Path(folder), print)
    options.out.write_text(json.dumps({**gpu(), **found}, indent=1) + "\n")
    print(f"written: {options.out}", flush=True)
    if options.raw:
        sanitizers.main(["--json", str(options.raw), "--unbroken", "--budget", "180"])


if __name__ == "__main__":
    main()
