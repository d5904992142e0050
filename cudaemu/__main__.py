"""The command `cudaemu [OPTIONS] FILE.cu... [ARGS...]` (or `python -m cudaemu`): run a CUDA program without a GPU."""

from __future__ import annotations

import argparse
import json
import linecache
import os
import runpy
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import cudaemu
from cudaemu import calls, engine, hardware
from cudaemu.build import COMPILED, LINKED
from cudaemu.compiler import cache, toolchain
from cudaemu.compiler.symbols import apart
from cudaemu.errors import BadOption, CheckFailed, NotCompiled, UserError
from cudaemu.hardware import Arch
from cudaemu.options import Options
from cudaemu.report import Counters, Report, Trace
from cudaemu.session import Session
from cudaemu.terminal import CLEAR_LINE, if_slow, is_watched, leave, say
from cudaemu.timeline import Events

FIRST_WORD = 10  # seconds before a launch reports its progress where stderr is no terminal; then twice as many, ...
# Exit statuses that programs do not use: something was found, whatever the program returned itself; it cannot be run
# here, or not to its end; it does not compile; the command is wrong.
FINDINGS_STATUS, NOT_RUN_STATUS, NOT_COMPILED_STATUS, USAGE_STATUS = 99, 98, 97, 96
DESCRIPTION = """Run a CUDA program without a GPU: compile FILE.cu, a source with a main(),
and execute it on the CPU, with the hardware's counters and a sanitizer.
ARGS are passed to the program; options of cudaemu go before FILE.cu. Files of
the program that follow are compiled and linked as well; -- ends their list.

Findings are printed after the launch that made them, a summary of all kernels
at the end, both on standard error. The program's own output is left alone."""
EXAMPLES = f"""exit status:
  the program's own (128 + N if signal N ended it), or
  {FINDINGS_STATUS}   something was found (--error-exitcode: another number)
  {NOT_RUN_STATUS}   it cannot be run here, or not to its end: no compiler, an unknown instruction
  {NOT_COMPILED_STATUS}   it does not compile or link
  {USAGE_STATUS}   the command is wrong
  130  Ctrl-C

examples:
  cudaemu saxpy.cu                     run a program
  cudaemu saxpy.cu 1024 --verbose      run it with two arguments
  cudaemu --arch 9.0 -D TILE=32 -I include saxpy.cu
                                       for compute capability 9.0, with a macro
                                       and a folder of headers
  cudaemu --flags="-std=c++20 --extended-lambda" saxpy.cu
  cudaemu --counters --lines saxpy.cu  all counters; the main ones by source line
  cudaemu -q --json out.json saxpy.cu  findings only; a report for other programs
  cudaemu python script.py             a Python script that uses Numba, CuPy, cuda-python or CuTe DSL
  cudaemu triton script.py             a Python script with Triton's kernels: cudaemu triton --help
  cudaemu main.cu kernels.cu io.cpp -I include -- 1024
                                       a program of several files, with arguments;
                                       --flags=-rdc=true as with nvcc

From Python: import cudaemu; help(cudaemu)"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] in (["python"], ["triton"]):
        leave(lambda: _run_script(words[0], _script_parser(words[0]).parse_args(words[1:])), _not_run)
    leave(lambda: _run(_parse(words)), _not_run)


def _not_run(error: Exception) -> int:
    """The exit status of an error that is not the program's."""
    if isinstance(error, BadOption):
        return USAGE_STATUS
    return NOT_COMPILED_STATUS if isinstance(error, NotCompiled) else NOT_RUN_STATUS


def _status(args: argparse.Namespace, report: Report) -> int:
    return args.error_exitcode if report.findings else report.status


def _exit_status(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 256):
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 255, got '{text}'")
    return int(text)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line. If there is a `--`, files and options come before it in any order."""
    if "--" in words:
        end = list(words).index("--")
        with suppress(UserError):
            args = _parser(files="*").parse_intermixed_args(words[:end])
            if args.file is not None and all(map(_is_source, args.args)):
                args.sources, args.args = [Path(word) for word in args.args], list(words[end + 1 :])
                return args
    args = _parser().parse_args(words)
    args.sources = [Path(word) for word in takewhile(_is_source, args.args)]
    args.args = args.args[len(args.sources) :]
    return args


def _is_source(word: str) -> bool:
    path = Path(word)
    return path.suffix in (*COMPILED, *LINKED) and path.is_file()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadOption(f"{message}\nSee {self.prog} --help")


class _Version(argparse.Action):
    """Print the versions of the emulator and of the compilers that it uses."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"cudaemu {cudaemu.__version__}")
        for name, describe in (("nvcc", _nvcc_version), ("g++", _cxx_version)):
            try:
                print(describe())
            except UserError as error:
                print(f"{name}: {str(error).splitlines()[0].partition('. ')[0]}")
        parser.exit()


class _Cache(argparse.Action):
    """--cache: print the cache's folder and size; --clear-cache: empty it first."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, __: object, option: str | None = None) -> NoReturn:
        before = cache.size()
        if option == "--clear-cache":
            cache.clear()
        after = cache.size()
        freed = f", {_megabytes(before - after)} freed" if option == "--clear-cache" else ""
        print(f"{cache.folder()}: {_megabytes(after)} of at most {_megabytes(cache.limit())}{freed}")
        parser.exit()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _nvcc_version() -> str:
    nvcc = toolchain.find_nvcc()
    return f"nvcc {nvcc.release} ({nvcc.path})"


def _cxx_version() -> str:
    cxx = toolchain.find_cxx()
    name, asked = ("clang++", "-dumpversion") if toolchain.is_clang(cxx) else ("g++", "-dumpfullversion")
    return f"{name} {toolchain.run([cxx, asked]).strip()} ({cxx})"


def _parser(files: str = argparse.REMAINDER) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="cudaemu",
        usage="%(prog)s [OPTIONS] FILE.cu [FILES...] [ARGS...]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE.cu", help="the program's source")
    parser.add_argument("args", nargs=files, metavar="ARGS", help="the program's arguments")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions of cudaemu and its compilers")
    parser.add_argument("--cache", action=_Cache, nargs=0, help="print where compiled code is kept, and its size")
    parser.add_argument("--clear-cache", action=_Cache, nargs=0, help="remove all compiled code")

    compiling = parser.add_argument_group("compiling")
    add = compiling.add_argument
    capabilities = ", ".join(str(gpu.arch) for gpu in hardware.GPUS)
    capabilities += " (default: 8.0); 9.0a for wgmma"
    add("--arch", default="8.0", metavar="X.Y", help=f"compute capability: {capabilities}")
    add("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro")
    add("--cuda", metavar="12", help="the CUDA that the source is written for, if older than the compiler")
    add("-I", dest="include", action="append", default=[], metavar="FOLDER", help="search a folder for headers")
    add("--flags", action="append", default=[], metavar="WORDS", help='more options for nvcc: --flags="-std=c++20 -lz"')

    checking = parser.add_argument_group("checking")
    add = checking.add_argument
    add("--leaks", action="store_true", help="report memory that is not freed at the end, too")

    running = parser.add_argument_group("running")
    add = running.add_argument
    add("--timeout", type=float, metavar="S", help="end host code that runs for S seconds without calling CUDA")
    _add_common(checking.add_argument, running.add_argument, parser.add_argument_group("reporting").add_argument)
    return parser


def _add_common(check: Any, run: Any, add: Any) -> None:
    """Options of programs and of Python's scripts."""
    check("--no-sanitize", action="store_true", help="do not look for races, uninitialised reads, ... (faster)")
    check("--strict", action="store_true", help="count notes as findings, and check disputed rules, too")
    found = f"the exit status if anything was found (default: {FINDINGS_STATUS})"
    check("--error-exitcode", type=_exit_status, default=FINDINGS_STATUS, metavar="N", help=found)
    run("--threads", type=int, metavar="N", help="cores to use (default: all)")
    add("-q", "--quiet", action="store_true", help="print findings only, no summary")
    add("--counters", action="store_true", help="print all counters of each kernel, not only the main ones")
    add("--lines", action="store_true", help="print the main counters of each source line")
    add("--no-counters", action="store_true", help="do not count (faster)")
    formats = (
        "print findings as annotations of GitHub Actions (stderr), or as SARIF 2.1.0 or JSON (stdout, or --output)"
    )
    add("--format", choices=("github", "sarif", "json"), help=formats)
    add("--output", metavar="FILE", help="where --format sarif and json write")
    add("--json", metavar="FILE", help="write findings and counters to FILE (-: standard output)")
    add("--trace", metavar="FILE", help="write the executed memory accesses to FILE, a NumPy .npy")
    add("--trace-rows", type=int, default=4_000_000, metavar="N", help="how many at most (default: 4,000,000)")
    events = "write who waited for whom, copies and products to FILE, for ui.perfetto.dev or chrome://tracing"
    add("--trace-events", metavar="FILE", help=events)
    add("--trace-blocks", type=int, default=4, metavar="N", help="... for the first N blocks of a launch (default: 4)")


TRITON = """Run a Python script with Triton's kernels without a GPU: Triton compiles them,
the emulator runs them on the CPU, with the hardware's counters and a sanitizer.
To the script, torch's device "cuda" is there, and its tensors are on the CPU.

Findings are printed after the launch that made them, a summary of all kernels
at the end, both on standard error. The script's own output is left alone."""


PYTHON = """Run a Python script that uses CUDA without a GPU: Numba, CuPy's kernels,
cuda-python and CuTe DSL compile them, the emulator runs them on the CPU, with
the hardware's counters and a sanitizer. It takes the place of the driver.

Findings are printed after the launch that made them, a summary of all kernels
at the end, both on standard error. The script's own output is left alone."""


def _script_parser(command: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"cudaemu {command}",
        usage="%(prog)s [OPTIONS] SCRIPT.py [ARGS...]   or   %(prog)s [OPTIONS] -m MODULE [ARGS...]",
        description=TRITON if command == "triton" else PYTHON,
        epilog=EXAMPLES.partition("examples:")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help="SCRIPT.py is the name of a module: pytest, say")
    add("--arch", default="9.0", metavar="X.Y", help="compute capability of the GPU (default: 9.0)")
    if command == "triton":
        add("--tune", choices=("first", "all"), default="first", help="configurations of autotuned kernels to run")
    _add_common(add, add, parser.add_argument_group("reporting").add_argument)
    add("file", metavar="SCRIPT.py", help="the script")
    add("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its arguments")
    return parser


def _options(args: argparse.Namespace) -> Options:
    try:
        flags = [word for words in args.flags for word in shlex.split(words)]
    except ValueError as error:
        raise BadOption(f"--flags: {error}") from error
    return Options(
        arch=args.arch,
        defines={word.partition("=")[0]: word.partition("=")[2] or "1" for word in args.defines},
        flags=flags,
        include=args.include,
        sources=args.sources,
        cuda=args.cuda,
        leaks=args.leaks,
        timeout=args.timeout,
        **_common(args),
    )


def _common(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "counters": not args.no_counters,
        "sanitize": not args.no_sanitize,
        "strict": args.strict,
        "trace": Trace(max_rows=args.trace_rows) if args.trace else None,
        "events": Events(range(args.trace_blocks)) if args.trace_events else None,
        "threads": args.threads,
        "on_finding": _tell,
    }


def _run(args: argparse.Namespace) -> int:
    if args.file is None:
        raise BadOption("no program given: name a CUDA source, as in cudaemu saxpy.cu\nSee cudaemu --help")
    if not args.file.is_file():
        raise BadOption(
            f"cannot read {args.file}: " + ("it is a folder" if args.file.is_dir() else "there is no such file")
        )
    if args.output and args.format not in ("sarif", "json"):
        raise BadOption("--output must be given with --format sarif or json")
    args.arch = Arch.of(args.arch)
    bar, refusals, sessions = _Bar(), _Refusals(), list[Session]()
    options = _options(args).replace(progress=bar, on_refusal=refusals)
    engine.library()  # announces the wait before the program prints anything
    try:
        with if_slow(f"compiling {args.file.name} ..."):
            build = calls.compiled(args.file, options)
        command = (str(args.file.with_suffix("")), *args.args)
        report = calls.run_program(build, command, options, own_terminal=True, into=sessions)
    except BaseException:
        bar.clear()
        if sessions and sessions[0].launches and not args.quiet:  # the launches so far
            _summary(args, sessions[0].report(0, ""), refusals.count)
        raise
    _tell_all(args, report, refusals.count)
    return _status(args, report)


def triton_options(words: Sequence[str]) -> argparse.Namespace:
    """Options of `cudaemu triton` for the script that runs already."""
    args = _script_parser("triton").parse_args([*words, sys.argv[0] or "-", *sys.argv[1:]])
    args.arch = Arch.of(args.arch)
    return args


def start_script(command: str, args: argparse.Namespace) -> Callable[[int], int]:
    """Make the emulator the device of a Python script. What is returned is to be called at the script's end, with its
    status: it tells what was found, and returns the status to exit with."""
    engine.library()
    bar, refusals = _Bar(), _Refusals()
    options = {"arch": args.arch, "progress": bar, **_common(args)}
    device: Any
    if command == "triton":
        try:
            from cudaemu import triton as device
        except ImportError as error:
            raise UserError(f"Triton and torch must be installed (pip install triton torch): {error}") from error
        device.use(args.tune, **options)
    else:
        from cudaemu import driver as device

        device.use(**options, on_refusal=refusals)

    def end(status: int) -> int:
        bar.clear()
        report = device.report()
        report.status = status
        _tell_all(args, report, refusals.count)
        return _status(args, report)

    return end


def _run_script(command: str, args: argparse.Namespace) -> int:
    if not args.module and not Path(args.file).is_file():
        raise BadOption(f"cannot read {args.file}: there is no such file")
    args.arch = Arch.of(args.arch)
    if command == "triton":
        os.environ.pop("TRITON_DEFAULT_BACKEND", None)  # the other way to say the same
    end, status = start_script(command, args), 0
    not_compiled: tuple[type[Exception], ...] = ()
    if command == "triton":
        from triton import CompilationError

        not_compiled = (CompilationError,)
    sys.argv = [args.file, *args.args]
    try:
        if args.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(args.file, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(args.file).resolve().parent))
            runpy.run_path(args.file, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            say(ended.code)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except CheckFailed:
        status = 1  # it has been told
    except UserError:
        raise
    except Exception as error:
        traceback.print_exc()
        status = NOT_COMPILED_STATUS if isinstance(error, not_compiled) else 1
    return end(status)


def _tell_all(args: argparse.Namespace, report: Report, refused: int = 0) -> None:
    """The summary, and the files that were asked for."""
    if not args.quiet:
        _summary(args, report, refused)
    if args.format == "github":
        for finding in report.findings:
            say(_annotation(finding))
    elif args.format:
        record = _sarif(report) if args.format == "sarif" else _record(args, report)
        _write_record(record, args.output or "-", f"--format {args.format}")
    if args.json:
        _write_record(_record(args, report), args.json, "--json -")
    if args.trace:
        _write_trace(Path(args.trace), report)
    if args.trace_events:
        report.timeline.write(args.trace_events)
        for left_out in report.timeline.left_out:
            say(f"{args.trace_events} leaves out {left_out}")


class _Bar:
    """Progress of a long launch: on a terminal a line that changes, elsewhere a line now and then."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._next = FIRST_WORD
        self._shown = False

    def __call__(self, done: int, blocks: int) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if done >= blocks:
            self._since, self._next = None, FIRST_WORD
            self.clear()
        elif is_watched():
            if now - self._since > 1:
                sys.stderr.write(f"{CLEAR_LINE}emulating: {done:,} of {blocks:,} blocks")
                sys.stderr.flush()
                self._shown = True
        elif now - self._since > self._next:  # a log: few lines
            say(f"emulating: {done:,} of {blocks:,} blocks after {self._next} s; Ctrl-C ends it")
            self._next *= 2

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()
            self._shown = False


def _tell(finding: object) -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    say(f"{finding}\n", "red")


class _Refusals:
    """Says each CUDA error as it comes, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, code: int, why: str) -> None:
        self.count += 1
        say(f"CUDA error {code}: {why}", "yellow")


MAIN_COUNTERS = {  # of --lines: column and counter
    "instructions": "instructions",
    "loaded": "global_load_sectors",
    "stored": "global_store_sectors",
    "wavefronts": "shared_load_wavefronts",
    "conflicts": "shared_load_conflicts",
}


def _summary(args: argparse.Namespace, report: Report, refusals: int) -> None:
    kernels: dict[str, list[Any]] = {}
    for launch in report.launches:
        kernels.setdefault(launch.kernel, []).append(launch)
    say()
    for note in report.notes:
        say(f"note: {note}\n")
    shorts = apart(kernels)
    for name, launches in kernels.items():
        total = _total(launches)
        grid, block = ("x".join(map(str, _trimmed(size))) for size in (launches[-1].grid, launches[-1].block))
        crowd = f"{len(launches):,} launches, the last " if len(launches) > 1 else ""
        say(f"{shorts[name]}: {crowd}<<<{grid}, {block}>>>", "bold")
        if not args.no_counters:
            say(f"    {_sentence(total)}")
    if args.counters:
        for name, launches in kernels.items():
            say(f"\n{name}", "bold")
            for key, number in _total(launches).flat().items():
                if number:
                    metric = cudaemu.METRICS.get(key, "")
                    say(f"  {key:<28} {number:>16,}  {metric}".rstrip())
    if args.lines:
        _lines(report)
    found = len(report.findings)
    said = f"{found} finding{'s' * (found != 1)}" if found else "no findings"
    said += f", {refusals} CUDA error{'s' * (refusals != 1)}" if refusals else ""
    made = sum(map(len, kernels.values()))
    say(
        f"emulator, compute capability {args.arch}: {made:,} launch{'es' * (made != 1)}, {said}, "
        f"{report.seconds:.1f} s{', exit status ' + str(report.status) if report.status else ''}",
        "red" if found else "yellow" if refusals else None,
    )


def _sentence(total: Counters) -> str:
    """What was executed and moved; what is zero is left out."""
    said = [f"{total['instructions']:,} warp instructions"]
    for space, unit in (("global", "sectors"), ("shared", "wavefronts")):
        for verb in ("load", "store"):
            if total[f"{space}_{verb}_requests"]:
                conflicts = total[f"{space}_{verb}_conflicts"] if space == "shared" else 0
                of = f" ({conflicts:,} of them conflicts)" if conflicts else ""
                said.append(f"{space} {verb}s {total[f'{space}_{verb}_{unit}']:,} {unit}{of}")
    if total["cp_async_requests"]:
        said.append(f"cp.async {total['cp_async_sectors']:,} sectors")
    for verb in ("load", "store"):
        if total[f"bulk_{verb}_requests"]:
            said.append(f"bulk {verb}s {total[f'bulk_{verb}_bytes']:,} bytes")
    if total["wgmma_bytes"]:
        said.append(f"wgmma {total['wgmma_bytes']:,} bytes from shared memory")
    return "; ".join(said)


def _lines(report: Report) -> None:
    rows = [("line", *MAIN_COUNTERS, "source")]
    for (file, line), counters in sorted(report.lines.items()):
        values = (f"{counters[key]:,}" for key in MAIN_COUNTERS.values())
        rows.append((f"{Path(file).name}:{line}", *values, linecache.getline(file, line).strip()))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    say()
    for first, *numbers, source in rows:
        aligned = "  ".join(number.rjust(width) for number, width in zip(numbers, widths[1:]))
        say(f"{first.ljust(widths[0])}  {aligned}  {source}")


def _total(launches: Sequence[Any]) -> Counters:
    total = Counters()
    for launch in launches:
        total += launch.counters
    return total


def _trimmed(size: tuple[int, int, int]) -> tuple[int, ...]:
    return size if size[2] > 1 else size[:2] if size[1] > 1 else size[:1]


def _annotation(finding: Any) -> str:
    """A workflow command of GitHub Actions, which shows the finding at its line of a pull request."""

    def escaped(text: object, more: str = "") -> str:
        return "".join(f"%{ord(letter):02X}" if letter in "%\r\n" + more else letter for letter in str(text))

    properties = {"file": _relative(finding.file), "line": finding.line} if finding.file and finding.line else {}
    listed = ",".join(
        f"{name}={escaped(value, ':,')}" for name, value in (properties | {"title": finding.kind}).items()
    )
    return f"::error {listed}::{escaped(finding.message)}"


def _relative(file: str) -> str:
    """A path below the working folder, as code hosts name it; others stay absolute."""
    path = Path(file).resolve()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.as_posix()


def _sarif(report: Report) -> dict[str, Any]:
    """SARIF 2.1.0: a rule for each kind of finding."""
    results = []
    for finding in report.findings:
        result: dict[str, Any] = {
            "ruleId": finding.kind.replace(" ", "-"),
            "level": "error",
            "message": {"text": finding.message},
        }
        if finding.file:
            where: dict[str, Any] = {"artifactLocation": {"uri": quote(_relative(finding.file))}}
            if finding.line:
                where["region"] = {"startLine": finding.line}
            result["locations"] = [{"physicalLocation": where}]
        results.append(result)
    kinds = sorted({finding.kind for finding in report.findings})
    rules = [{"id": kind.replace(" ", "-"), "shortDescription": {"text": kind}} for kind in kinds]
    driver = {"name": "cudaemu", "version": cudaemu.__version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _record(args: argparse.Namespace, report: Report) -> dict[str, Any]:
    return {
        "program": str(args.file),
        "arguments": args.args,
        "arch": str(args.arch),
        "status": report.status,
        "seconds": round(report.seconds, 3),
        "findings": [asdict(finding) for finding in report.findings],
        "launches": [
            {
                "kernel": launch.kernel,
                "grid": launch.grid,
                "block": launch.block,
                "shared": launch.shared,
                "counters": {name: number for name, number in launch.counters.flat().items() if number},
            }
            for launch in report.launches
        ],
    }


def _write_record(record: dict[str, Any], to: str, option: str) -> None:
    text = json.dumps(record, indent=1) + "\n"
    if to == "-":
        if sys.stdout is None:
            raise UserError(f"{option} writes to standard output, which is closed")
        sys.stdout.write(text)
        return
    try:
        Path(to).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {to}: {error.strerror}") from error


def _write_trace(path: Path, report: Report) -> None:
    import numpy as np

    try:
        with open(path, "wb") as file:
            np.save(file, report.trace)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


if __name__ == "__main__":
    main()
