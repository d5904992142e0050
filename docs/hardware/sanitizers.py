"""The broken kernels of broken/ under NVIDIA's compute-sanitizer, beside what the emulator finds.

    python -m docs.hardware.sanitizers --unbroken --json raw.json   # on a machine with a GPU: runs them
    python -m docs.hardware.sanitizers --from raw.json              # anywhere: sanitizers.json, and the table of
                                                                     # docs/sanitizers.md made of it

Each kernel becomes a program: an example has its main, a stage gets one of the drivers in drivers/. Each program runs
under each tool. The record is written anew again and again, with what the tools printed: whatever fails, hangs or is
not reached in time (--budget) leaves the others as they are. `--unbroken` runs the kernels before they were broken,
too; `--rest` only what sanitizers.json, which has the verdicts without the printed lines, does not know yet.

`--faults` is for the programs of examples/faults/ instead: faults.json, and the table of examples/faults/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from cudaemu.compiler import toolchain
from docs.hardware import faults, suite
from docs.hardware.faults import Fault
from docs.hardware.programs import ROOT, executable, needed
from docs.hardware.suite import Broken

Entry = Broken | Fault


TOOLS: dict[str, tuple[str, ...]] = {
    # and their options; --racecheck-report all: single hazards, which name copies in flight, and their analysis
    "memcheck": (),
    "racecheck": ("--racecheck-report", "all"),
    "initcheck": ("--initcheck-address-space", "all"),
    "synccheck": (),
}


@dataclass(frozen=True)
class Collection:
    """Programs with a defect; their record; the document with the table, and that table's first columns; tools."""

    entries: Callable[[], Sequence[Entry]]
    record: Path
    document: Path
    columns: tuple[str, ...]
    cells: Callable[[Any], tuple[str, ...]]
    tools: Mapping[str, tuple[str, ...]]


BROKEN = Collection(
    suite.suite,
    Path(__file__).with_suffix(".json"),
    ROOT / "docs" / "sanitizers.md",
    ("patch", "what is broken", "the emulator"),
    lambda broken: (f"[{broken.name}](../examples/broken/{broken.name}.patch)", broken.what, broken.kind),
    TOOLS | {"memcheck": ("--leak-check", "full")},
)
FAULTS = Collection(
    faults.faults,
    Path(__file__).with_name("faults.json"),
    faults.FOLDER / "README.md",
    ("program", "what is wrong", "public", "the emulator"),
    lambda fault: (f"[{fault.name}]({fault.name}.cu)", fault.what, fault.fields["Public"], fault.said),
    TOOLS,  # no leak check: none of the programs frees its memory, the right ones neither
)
# A program's own exit status is no error here: some are wrong only because they are broken, and say so.
OPTIONS = (
    "--show-backtrace",
    "no",
    "--print-limit",
    "4",
    "--error-exitcode",
    "9",
    "--check-exit-code",
    "no",
    "--launch-timeout",
    "30",
)
FIRST_PORT, PORTS = 49152, 16  # where compute-sanitizer meets its program; for each of those that run at a time
HEAD, TAIL = 50, 10  # lines that are kept of what a tool printed
# Lines of a report's first level that are no findings.
FRAME = re.compile(
    r"COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application (returned|terminated)|"
    r"(Error: )?process didn't terminate successfully|Saved host backtrace|Fatal UVM|No CUDA-application"
)
TROUBLE = re.compile(  # the tool itself could not do its work
    r"No attachable process|Device not supported|[Uu]nrecogni[sz]ed option|Internal (Sanitizer )?[Ee]rror|"
    r"Unable to (find|launch|initialize)|Target application terminated before"
)
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


@dataclass(frozen=True)
class Program:
    """A program to be built and run: `broken` with its defect, or (name ends with "/unbroken") without."""

    name: str
    broken: Entry
    text: str


def unbroken_names(entries: Iterable[Entry]) -> dict[str, str]:
    """The name of the program without the defect, for each entry: one for all that run the same source alike."""
    first: dict[tuple, str] = {}
    return {each.name: first.setdefault((each.source, tuple(each.run)), f"{each.name}/unbroken") for each in entries}


def programs(entries: Iterable[Entry], unbroken: bool) -> list[Program]:
    """Those with a defect, then, once each, those without."""
    entries = list(entries)
    found = [Program(broken.name, broken, broken.text) for broken in entries]
    if unbroken:
        names = unbroken_names(entries)
        found += [
            Program(names[broken.name], broken, broken.before)
            for broken in entries
            if names[broken.name] == f"{broken.name}/unbroken" and broken.before is not None
        ]
    return found


def build(program: Program, folder: Path, arch: str) -> Path:
    """Compile it; ToolFailed with what nvcc said."""
    text, _, defines = suite.program(program.broken, program.text)
    place = folder / program.name.replace("/", "-")
    place.mkdir()
    source, product = place / Path(program.broken.source).name, place / "program"
    source.write_text(text)
    original = ROOT / program.broken.source
    wanted = needed(original) if program.broken.is_program else program.broken.kernel(original).stage.min_arch
    flags = ["-O3", "-lineinfo", "-I", str(original.parent), *toolchain.define_flags(defines)]
    return executable(source, product, wanted, arch, flags)


def execute(command: Sequence[object], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Exit status, None if it had to be killed, and what it printed on either stream.

    Whatever program of `folder` still runs then is ended: one that hangs would keep the GPU busy for the others."""
    with tempfile.TemporaryFile("w+", errors="replace", dir=folder) as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:  # not even now: the driver holds it
                    status = None
            end_programs_of(folder)
        output.seek(0)
        return status, output.read(1 << 20)


def end_programs_of(folder: Path) -> None:
    """Kill the processes whose program lies in this folder, which is this run's own."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "exe")).is_relative_to(folder.resolve()):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # it has ended, or is somebody else's
            continue


def digest(status: int | None, output: str) -> dict[str, Any]:
    """What a tool's report comes to.

    "verdict": "found", "clean", "timeout" (nothing found until then) or "failed" (the tool could not do its work)."""
    lines = [line[9:].rstrip() for line in output.splitlines() if line.startswith("=========")]
    first = [number for number, line in enumerate(lines) if re.match(r" \S", line) and not FRAME.match(line[1:])]
    trouble = [lines[number][1:] for number in first if TROUBLE.search(lines[number])]
    messages = [number for number in first if lines[number][1:] not in trouble]
    counted = sum(int(count) for count in SUMMARY.findall("\n".join(lines)))

    def consequence(number: int) -> int:
        """A call that fails may have its reason beside it; what is not freed is often what a failed call left."""
        return sum(lines[number].startswith(start) * rank for rank, start in ((1, " Program hit"), (2, " Leaked")))

    at, said = "", (trouble or [""])[0]
    for number in sorted(messages, key=consequence)[:1]:
        end = next((other for other in first if other > number), len(lines))
        found = re.search(r" in (?:\S*/)?([^\s/]+\.cu:\d+)", " ".join(lines[number:end]))
        at, said = found[1] if found else "", lines[number][1:]
    if messages or counted:
        verdict = "found"
    elif status is None:
        verdict = "timeout"
    elif trouble or not SUMMARY.search("\n".join(lines)):
        verdict = "failed"
    else:
        verdict = "clean"
    return {
        "verdict": verdict,
        "message": said,
        "at": at,
        "status": status,
        "in flight": "invalid memcpy_async synchronization" in output,  # racecheck's word for a copy not waited for
    }


class Run:
    """All programs under all tools, and the record of it."""

    def __init__(self, args: argparse.Namespace, about: Mapping[str, Any]):
        self.args, self.started, self.lock = args, time.monotonic(), Lock()
        self.record: dict[str, Any] = {"about": dict(about), "programs": {}}
        self.written = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def note(self, program: Program, tool: str, result: Mapping[str, Any]) -> None:
        with self.lock:
            self.record["programs"].setdefault(program.name, {})[tool] = dict(result)
            if time.monotonic() - self.written > 1:
                self.write()

    def write(self) -> None:
        self.record["about"]["seconds"] = round(self.seconds, 1)
        self.args.json.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.args.json.with_suffix(".part")
        temporary.write_text(json.dumps(self.record, indent=1, sort_keys=True) + "\n")
        temporary.replace(self.args.json)
        self.written = time.monotonic()

    def build_all(self, chosen: Sequence[Program], folder: Path) -> dict[str, Path]:
        """The programs that could be built, by their names."""
        built: dict[str, Path] = {}

        def one(program: Program) -> None:
            if self.seconds > self.args.budget:
                self.note(program, "build", {"verdict": "not reached"})
                return
            try:
                built[program.name] = build(program, folder, self.args.arch)
            except Exception as error:  # whatever it is, the others go on
                self.note(program, "build", {"verdict": "failed", "message": str(error)[-2000:]})

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            longest = sorted(chosen, key=lambda program: -len(program.text))
            list(pool.map(one, longest))
        return built

    def run_all(
        self,
        chosen: Sequence[Program],
        built: Mapping[str, Path],
        tools: Mapping[str, Sequence[str]],
        known: Set[tuple[str, str]],
    ) -> None:
        """Each under each tool: those that should find something first, those that hang last, and not what is known."""

        def rank(work: tuple[Program, str]) -> tuple[bool, bool, bool]:
            program, tool = work
            hangs = program.broken.kind == "deadlock"
            return hangs, program.name.endswith("/unbroken"), tool not in program.broken.tools

        wanted = ((program, tool) for program in chosen if program.name in built for tool in tools)
        work = sorted(((program, tool) for program, tool in wanted if (program.name, tool) not in known), key=rank)
        ports: SimpleQueue[int] = SimpleQueue()
        for number in range(self.args.jobs):
            ports.put(FIRST_PORT + number * PORTS)

        def one(item: tuple[Program, str]) -> None:
            program, tool = item
            if self.seconds > self.args.budget:
                self.note(program, tool, {"verdict": "not reached"})
                return
            port, began = ports.get(), self.seconds
            try:
                _, arguments, _ = suite.program(program.broken, program.text)
                path = built[program.name].parent / tool / "program"  # a folder for each run: see execute
                path.parent.mkdir()
                os.link(built[program.name], path)
                options = ["--tool", tool, *tools[tool], *OPTIONS, "--port", port]
                status, output = execute(
                    [self.args.sanitizer, *options, path, *arguments], path.parent, self.args.timeout
                )
                result = digest(status, output)
                lines = output.splitlines()
                kept = lines if len(lines) <= HEAD + TAIL else lines[:HEAD] + lines[-TAIL:]
                self.note(program, tool, {**result, "seconds": round(self.seconds - began, 1), "output": kept})
            except Exception as error:  # whatever it is, the others go on
                self.note(program, tool, {"verdict": "failed", "message": repr(error)})
            finally:
                ports.put(port)

        for program, tool in work[:1]:  # alone: does the tool work here at all?
            one((program, tool))
            first = self.record["programs"][program.name][tool]
            if first["verdict"] == "failed":
                said = "\n".join(first.get("output", [first.get("message", "")]))
                raise SystemExit(f"{self.args.sanitizer} cannot do its work here:\n{said}")
        with ThreadPoolExecutor(self.args.jobs) as pool:
            list(pool.map(one, work[1:]))


def options_of(sanitizer: str, tools: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The tools with those of their options that this release has."""
    known = subprocess.run([sanitizer, "--help"], capture_output=True, text=True, check=False).stdout
    return {tool: options if not options or options[0].lstrip("-") in known else () for tool, options in tools.items()}


def find_sanitizer() -> str | None:
    home = toolchain.find_nvcc().home
    places = [home / "bin", home / "compute-sanitizer", Path("/usr/local/cuda/bin")]
    found = (shutil.which("compute-sanitizer", path=str(place)) for place in places)
    return shutil.which("compute-sanitizer") or next(filter(None, found), None)


def about(sanitizer: str) -> dict[str, Any]:
    def said(*command: str) -> str:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return ""

    gpu = said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").split("\n")[0]
    name, _, driver = gpu.partition(", ")
    version = re.search(r"[Vv]ersion ([\w.]+)", said(sanitizer, "--version"))
    return {
        "gpu": name,
        "driver": driver,
        "cuda": toolchain.find_nvcc().release,
        "sanitizer": version[1] if version else "",
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


# ---- the record and its table ----------------------------------------------------------------------------------------


def judged(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without what the tools printed; the verdicts are made anew of that."""
    programs: dict[str, Any] = {}
    for name, results in record["programs"].items():
        for tool, result in results.items():
            kept = {key: value for key, value in result.items() if key not in ("output", "seconds")}
            if "output" in result:
                kept |= digest(result["status"], "\n".join(result["output"]))
            programs.setdefault(name, {})[tool] = kept
    return {"about": record["about"], "programs": programs}


def ran(record: Mapping[str, Any] | None) -> frozenset[tuple[str, str]]:
    """The programs and tools that have a verdict."""
    programs = record["programs"].items() if record else ()
    return frozenset(
        (name, tool)
        for name, results in programs
        for tool, result in results.items()
        if result["verdict"] not in ("not reached", "failed")
    )


def joined(earlier: Mapping[str, Any] | None, later: Mapping[str, Any]) -> dict[str, Any]:
    """Two records of the same GPU and software as one; of any other, only the later one."""
    parts = ("gpu", "driver", "cuda", "sanitizer")
    if earlier is None or any(earlier["about"][part] != later["about"][part] for part in parts):
        return dict(later)
    done, programs = ran(later), {name: dict(results) for name, results in earlier["programs"].items()}
    for name, results in later["programs"].items():
        mine = programs.setdefault(name, {})
        mine |= {tool: result for tool, result in results.items() if (name, tool) in done or tool not in mine}
        if any((name, tool) in done for tool in TOOLS):
            mine.pop("build", None)  # it failed once, and does no more
    return {"about": later["about"], "programs": programs}


WORDS = (  # what a tool's message comes to in the table
    (r"Invalid __(\w+)__ (\w+)", r"invalid \1 \2"),
    (r"Uninitialized __(\w+)__ memory read", r"uninitialised \1 read"),
    (r"Host API memory access error", "uninitialised copy to the host"),
    (r".*Potential (\w+) hazard.*", r"\1 hazard"),
    (r".*Race reported.*", "race"),
    (r"Barrier error detected\. (.*?)\.?$", r"\1"),
    (r"Program hit (\w+).*", r"\1"),
    (r"Leaked .*", "leak"),
    (r"Warp assert", "assertion"),
    (r"Warpgroup MMA sequence error.*incomplete warpgroup.*", "incomplete warpgroup"),
)
ALSO_UNBROKEN = "also unbroken"  # the verdict of a tool that says the same of the kernel before it was broken
VERDICTS = {
    ALSO_UNBROKEN: "*said of the unbroken kernel, too*",
    "clean": "–",
    "timeout": "*hangs*",
    "failed": "*failed*",
    "not reached": "*not run*",
}


def cell(result: Mapping[str, Any] | None) -> str:
    """A tool's verdict, as the table has it."""
    if result is None:
        return VERDICTS["not reached"]
    if result["verdict"] != "found":
        return VERDICTS[result["verdict"]]
    said = "copy in flight" if result.get("in flight") else result["message"]
    for pattern, words in WORDS:
        if match := re.match(pattern, said):
            said = match.expand(words)
            break
    if said.startswith("cuda"):
        return f"`{said}`"
    return said if said[1:2].isupper() else said[:1].lower() + said[1:]


def findings(record: Mapping[str, Any] | None, entries: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """{entry: {tool: what it said}} of a record. What a tool also says of the unbroken kernel is no finding."""
    programs, names = record["programs"] if record else {}, unbroken_names(entries)

    def judged(result: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
        same = result["verdict"] == before.get("verdict") == "found" and cell(result) == cell(before)
        return {**result, "verdict": ALSO_UNBROKEN} if same else result

    return {
        each.name: {
            tool: judged(result, programs.get(names[each.name], {}).get(tool, {}))
            for tool, result in programs.get(each.name, {}).items()
        }
        for each in entries
    }


def table(record: Mapping[str, Any] | None, entries: Sequence[Entry], of: Collection = BROKEN) -> str:
    """Program, how it is broken, what the emulator says of it; and what each of the tools says, by a record."""
    found = findings(record, entries)
    rows = [[*of.columns, *TOOLS], ["---"] * (len(of.columns) + len(TOOLS))]
    rows += [[*of.cells(entry), *(cell(found[entry.name].get(tool)) for tool in TOOLS)] for entry in entries]
    wrong = [entry for entry in entries if not entry.is_right]
    verdicts = [[found[entry.name].get(tool, {}).get("verdict") for entry in wrong] for tool in TOOLS]
    done = [[v for v in each if v in ("found", "clean", "timeout", ALSO_UNBROKEN)] for each in verdicts]
    totals = [f"**{each.count('found')} of {len(each)}**" if each else VERDICTS["not reached"] for each in done]
    emulated = f"**{sum(entry.is_found for entry in wrong)} of {len(wrong)}**"
    rows.append(["**found**", *[""] * (len(of.columns) - 2), emulated, *totals])
    if right := {entry.name for entry in entries if entry.is_right}:
        right |= set(unbroken_names(wrong).values())
        results = [record["programs"].get(name, {}) if record else {} for name in right]
        said = [[each[tool]["verdict"] for each in results if tool in each] for tool in TOOLS]
        totals = [f"**{each.count('found')} of {len(each)}**" if each else VERDICTS["not reached"] for each in said]
        rows.append(["**said of right programs**", *[""] * (len(of.columns) - 2), f"**0 of {len(right)}**", *totals])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if record:
        about = record["about"]
        release = f"CUDA {about['cuda']}, compute-sanitizer {about['sanitizer']}"
        lines += ["", f"Recorded: {about['gpu']}, driver {about['driver']}, {release}, {about['date']}."]
    return "\n".join(lines)


MARKED = re.compile(r"(<!-- sanitizers -->\n).*?(<!-- /sanitizers -->)", re.S)


def recorded(of: Collection = BROKEN) -> dict[str, Any] | None:
    """Its record, if there is one."""
    return json.loads(of.record.read_text()) if of.record.exists() else None


def with_table(text: str, record: Mapping[str, Any] | None, of: Collection = BROKEN) -> str:
    """The document with the table in its place."""
    return MARKED.sub(lambda mark: f"{mark[1]}{table(record, of.entries(), of)}\n{mark[2]}", text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", action="store_true", help="the programs of examples/faults, and their own record")
    parser.add_argument("--json", type=Path, help="where the record goes (default: sanitizers.json or faults.json)")
    parser.add_argument("--from", dest="raw", type=Path, help="run nothing: write that record and the table of it")
    parser.add_argument("--table", action="store_true", help="run nothing: write the table of the record")
    parser.add_argument("--unbroken", action="store_true", help="run the kernels before they were broken, too")
    parser.add_argument("--rest", action="store_true", help="run only what the record does not know")
    parser.add_argument("--only", nargs="*", default=[], help="pieces of names: only those kernels")
    parser.add_argument("--jobs", type=int, default=12, help="programs that run at a time")
    parser.add_argument("--timeout", type=float, default=15, help="seconds for one program under one tool")
    parser.add_argument("--budget", type=float, default=300, help="seconds after which nothing more is begun")
    parser.add_argument("--arch", default="native", help="nvcc's -arch")
    parser.add_argument("--sanitizer", help="compute-sanitizer (default: found on the PATH, or beside nvcc)")
    args = parser.parse_args(argv)
    of = FAULTS if args.faults else BROKEN
    args.json = args.json or of.record
    if args.raw:
        record = joined(recorded(of), judged(json.loads(args.raw.read_text())))
        args.json.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if args.raw or args.table:
        of.document.write_text(with_table(of.document.read_text(), recorded(of), of))
        return 0
    args.sanitizer = args.sanitizer or find_sanitizer()
    if args.sanitizer is None:
        parser.error("no compute-sanitizer found: it is part of the CUDA toolkit")
    args.json = args.json.absolute()
    entries = [each for each in of.entries() if not args.only or any(piece in each.name for piece in args.only)]
    known = ran(recorded(of)) if args.rest else frozenset()
    chosen = [p for p in programs(entries, args.unbroken) if any((p.name, tool) not in known for tool in TOOLS)]
    run = Run(args, about(args.sanitizer))
    tools = options_of(args.sanitizer, of.tools)
    run.record["about"]["options"] = {tool: " ".join([*options, *OPTIONS]) for tool, options in tools.items()}
    with tempfile.TemporaryDirectory() as folder:
        built = run.build_all(chosen, Path(folder))
        print(f"{len(built)} of {len(chosen)} programs built, {run.seconds:.0f} s", flush=True)
        try:
            run.run_all(chosen, built, tools, known)
        finally:
            run.write()
    verdicts = [result["verdict"] for results in run.record["programs"].values() for result in results.values()]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
    print(f"{args.json}: {counted}; {run.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
