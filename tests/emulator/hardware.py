"""What a GPU and NVIDIA's own tools say of the programs that the emulator is held against.

    python -m tests.emulator.hardware            # on a machine with a GPU: about a minute; writes hardware.json
    python -m tests.emulator.hardware --docs     # anywhere: writes docs/broken.md from it

- The broken kernels (broken.py) under compute-sanitizer's four tools: which of them finds what.
- The examples under ncu: the counters that the emulator counts too, launch by launch.
- What the real runtime answers to runtime_probe.cu.

hardware.json is the record; test_hardware.py holds the emulator to it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common.compiler import toolchain
from common.emulator import METRICS
from common.errors import UserError
from common.measure import ncu
from tests.emulator import broken

RECORD = Path(__file__).with_suffix(".json")
DOCUMENT = broken.ROOT / "docs" / "broken.md"
EXAMPLES = sorted((broken.ROOT / "examples").glob("*.cu"))
PROBE = Path(__file__).with_name("runtime_probe.cu")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PATIENCE = 12  # seconds: some of the broken kernels wait for ever
SAID_BYTES = 6000  # of a tool's words, enough for the first of thousands of reports


def executable(path: Path, folder: Path, name: str, defines: Mapping[str, str] = {}) -> Path:
    """A program compiled for the GPU that is here. Include files are found beside it and in the repository."""
    nvcc, out = toolchain.find_nvcc(), folder / name
    flags = ["-std=c++17", "-lineinfo", "-arch=native", *toolchain.define_flags(defines)]
    link = [f"-L{nvcc.lib}", f"-Xlinker=-rpath={nvcc.lib}"]
    toolchain.run([nvcc.path, "-ccbin", toolchain.find_cxx(), *flags, path, *link, "-o", out])
    return out


def find_sanitizer() -> str:
    """Path of compute-sanitizer: on the PATH, or beside nvcc; UserError if there is none."""
    nvcc = toolchain.find_nvcc()
    places = os.pathsep.join([os.environ.get("PATH", ""), str(nvcc.home / "bin"), "/usr/local/cuda/bin"])
    found = shutil.which("compute-sanitizer", path=places)
    if found is None:
        raise UserError("no compute-sanitizer found: it comes with the CUDA toolkit, in its bin folder")
    return found


def run(words: Sequence[str | Path], patience: float = PATIENCE) -> tuple[int | None, str]:
    """Exit status, None if it had to be killed, and all that it printed."""
    command = ["timeout", "--signal=KILL", str(patience), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return None if done.returncode in (124, 137, -9) else done.returncode, done.stdout


def sanitized(program: Path, arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each tool says of a program. `errors`: how many; None if it had to be killed before it could tell."""
    found = {}
    for tool in TOOLS:
        started = time.perf_counter()
        status, text = run([find_sanitizer(), "--tool", tool, "--print-limit", "20", program, *arguments])
        said = understood(text)
        found[tool] = {**said, "status": status, "seconds": round(time.perf_counter() - started, 1)}
        found[tool]["said"] = text[:SAID_BYTES] + ("\n...\n" + text[-500:] if len(text) > SAID_BYTES else "")
    return found


def understood(text: str) -> dict[str, Any]:
    """The kinds of a tool's reports, the source lines that they name, and how many it counted."""
    total = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", text)
    kinds: dict[str, None] = {}
    for report in re.split(r"^=========\s*$", text, flags=re.MULTILINE):
        first = re.search(r"^========= (?!COMPUTE-|\w+ SUMMARY|Target |\s)(.+)", report, re.MULTILINE)
        if first:
            kinds[re.sub(r" access at .*", " access", first[1]).strip()] = None
    lines = {int(line) for line in re.findall(r"\+0x[0-9a-f]+ in \S+:(\d+)", text)}  # frames of the device
    return {"errors": int(total[1]) if total else None, "kinds": [*kinds][:6], "lines": sorted(lines)[:20]}


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

    find_sanitizer()
    cases = broken.every()
    with ThreadPoolExecutor(cores) as pool:

        def checked(case: broken.Broken) -> dict[str, dict[str, Any]]:
            return sanitized(executable(case.program, folder, case.name, case.defines), case.arguments)

        examples = [pool.submit(executable, path, folder, path.stem) for path in EXAMPLES]
        probe = pool.submit(executable, PROBE, folder, PROBE.stem)
        futures: dict[str, Future] = {case.name: pool.submit(checked, case) for case in cases}
        answers = run([probe.result()])[1].splitlines()
        note("the runtime has been asked")
        sanitizer: dict[str, Any] = {}
        for name, future in futures.items():
            try:
                sanitizer[name] = future.result()
            except UserError as error:
                note(f"{name}: {error}")
        programs = [example.result() for example in examples]
    note(f"{len(sanitizer)} of {len(cases)} broken programs have been sanitized")
    try:
        counts = counted(programs, folder)
    except UserError as error:
        counts = {}
        note(str(error))
    note(f"{sum(map(len, counts.values()))} launches of {len(counts)} examples have been counted")
    return {"sanitizer": sanitizer, "counts": counts, "runtime": answers}


WORDS = (  # how a tool's report begins -> a word or two for a table
    (r"Invalid __(\w+)__ (\w+)", r"invalid \1 \2"),
    (r"Uninitialized __(\w+)__ memory read", r"uninitialised \1 read"),
    (r"(?:Error|Warning): Race reported.*", "race"),
    (r"Barrier error detected. (.*?)\.?$", r"\1"),
    (r"Program hit (\w+).*", r"*\1*"),
)


def words(found: Mapping[str, Any]) -> str:
    """What a tool said of a program, for a table: its first report; in italics if only a call of CUDA failed."""
    if found["status"] is None:
        return "(does not end)"
    every = [found_word for kind in found["kinds"] if (found_word := _word(kind))]
    return next((word for word in every if not word.startswith("*")), every[0] if every else "–")


def _word(kind: str) -> str:
    for pattern, word in WORDS:
        if match := re.match(pattern, kind):
            return match.expand(word)
    return kind.split(".")[0]


def reports(found: Mapping[str, Any]) -> bool:
    """Whether the tool itself found something: not merely that a call failed, which any program can see."""
    return any(not _word(kind).startswith("*") for kind in found["kinds"])


def document(record: Mapping[str, Any]) -> str:
    """docs/broken.md: every broken kernel, what the emulator finds in it, and what compute-sanitizer does."""
    cases = {case.name: case for case in broken.every()}
    known = {name: tools for name, tools in record["sanitizer"].items() if name in cases}
    by_tool = {tool: sum(reports(tools[tool]) for tools in known.values()) for tool in TOOLS}
    any_tool = sum(any(map(reports, tools.values())) for tools in known.values())
    rows = [
        f"| [{name}](../tests/emulator/broken/{name}.patch) | {cases[name].what} | {cases[name].fields['Finds']} | "
        + " | ".join(words(tools[tool]) for tool in TOOLS)
        + " |"
        for name, tools in known.items()
    ]
    counts = " | ".join(f"{by_tool[tool]} of {len(known)}" for tool in TOOLS)
    return (
        f"""# Broken kernels, and who finds what

Small edits of the stages and the examples, kept as patches in [tests/emulator/broken/](../tests/emulator/broken/).
The emulator finds each of them at its line, with block and thread (tests/emulator/test_broken.py), and nothing in the
unbroken programs. Beside it: compute-sanitizer {record["compute-sanitizer"]} on the same programs, one of its tools at
a time, on an {record["gpu"]} (driver {record["driver"]}, CUDA {record["cuda"]}, {record["date"]}).
`python -m tests.emulator.hardware` measures it, with `--docs` it writes this page.

| | emulator | {" | ".join(TOOLS)} |
| --- | --- | {" | ".join("---" for _ in TOOLS)} |
| found | {len(known)} of {len(known)} | {counts} |

One at least of the four tools finds {any_tool} of {len(known)}. *In italics*: the tool has no report of its own, but a
call of CUDA failed, as it would without the tool. (does not end): killed after {PATIENCE} s.

| kernel | what is broken | emulator | {" | ".join(TOOLS)} |
| --- | --- | --- | {" | ".join("---" for _ in TOOLS)} |
"""
        + "\n".join(rows)
        + "\n"
    )


def gpu() -> dict[str, str]:
    """The GPU, its driver, and the tools' versions."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = run(query)[1].strip().splitlines()[0].split(", ")
    versions = {tool: run([path, "--version"])[1] for tool, path in (("compute-sanitizer", find_sanitizer()),)}
    version = {tool: (re.search(r"[Vv]ersion (\S+)", text) or ["", text[:80]])[1] for tool, text in versions.items()}
    return {
        "gpu": name,
        "driver": driver,
        "cuda": toolchain.find_nvcc().release,
        **version,
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.hardware", description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record (default: hardware.json beside this file)")
    parser.add_argument("--raw", type=Path, help="where to put all that compute-sanitizer said")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="programs at a time")
    parser.add_argument("--docs", action="store_true", help="measure nothing: write docs/broken.md from the record")
    options = parser.parse_args()
    if options.docs:
        DOCUMENT.write_text(document(json.loads(options.out.read_text())))
        print(f"written: {DOCUMENT}")
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.cores, Path(folder), print)
    said = {name: {tool: one.pop("said") for tool, one in tools.items()} for name, tools in found["sanitizer"].items()}
    if options.raw:
        options.raw.write_text(json.dumps(said, indent=1) + "\n")
    options.out.write_text(json.dumps({**gpu(), **found}, indent=1) + "\n")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
