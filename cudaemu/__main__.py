"""Run a CUDA program without a GPU: `python -m cudaemu [OPTIONS] FILE.cu [ARGS...]`."""

from __future__ import annotations

import argparse
import json
import linecache
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import cudaemu
from cudaemu import terminal
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from cudaemu.report import Counters, Report, Trace
from cudaemu.session import Session

FINDINGS_STATUS = 99  # of a program in which the sanitizer found something, whatever it returned itself
DESCRIPTION = """Compile FILE.cu, a whole CUDA program with its main, and run it with ARGS on this machine's processor.
Options for the emulator stand before FILE; what stands behind it is the program's.

Findings are told as soon as the launch is over in which they were made, and with what the kernels executed at the end,
all on standard error: the program's own output stays as it is."""
STATUS = f"""exit status: the program's own (128 + the signal's number if one ended it); {FINDINGS_STATUS} if anything
was found; 2 if it cannot be compiled or run; 130 after Ctrl-C.

examples:
  python -m cudaemu examples/reduce_shuffle.cu
  python -m cudaemu --arch 9.0 -D TILE=32 -I include --counters mine.cu 1024 --verbose
  python -m cudaemu --flags="-Xptxas -v --extended-lambda" mine.cu"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit."""
    terminal.leave(lambda: _run(_parser().parse_args(argv)))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}\nSee {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m cudaemu",
        usage="%(prog)s [OPTIONS] FILE.cu [ARGS...]",
        description=DESCRIPTION,
        epilog=STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--arch", default="8.0", metavar="X.Y", help="compute capability to compile for (default: 8.0)")
    parser.add_argument(
        "-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro"
    )
    parser.add_argument("--defines", dest="defines", action="append", metavar="NAME[=VALUE]", help=argparse.SUPPRESS)
    parser.add_argument(
        "-I", dest="include", action="append", default=[], metavar="FOLDER", help="search for headers there"
    )
    parser.add_argument(
        "--flags", action="append", default=[], metavar="WORDS", help='more for nvcc: --flags="-std=c++20 -lz"'
    )
    parser.add_argument(
        "--no-sanitize", action="store_true", help="do not look for races, uninitialised reads, ... (faster)"
    )
    parser.add_argument("--leaks", action="store_true", help="memory that is never freed is a finding, too")
    parser.add_argument("--no-counters", action="store_true", help="do not count (faster)")
    parser.add_argument("--counters", action="store_true", help="all counters of each kernel, not only the main ones")
    parser.add_argument("--lines", action="store_true", help="the main counters of each source line, too")
    parser.add_argument("--json", metavar="FILE", help="write findings and counters to FILE (-: standard output)")
    parser.add_argument("--trace", metavar="FILE", help="write the executed memory accesses to FILE, a NumPy .npy")
    parser.add_argument(
        "--trace-rows", type=int, default=4_000_000, metavar="N", help="at most so many (default: 4,000,000)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="cores to use (default: all)")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="end host code that has not called CUDA for S seconds"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="only findings, no summary")
    parser.add_argument("file", type=Path, metavar="FILE.cu")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="the program's arguments")
    return parser


def _run(args: argparse.Namespace) -> int:
    sessions: list[Session] = []
    args.arch = Arch.of(args.arch)
    if not args.file.is_file():
        raise UserError(
            f"cannot read {args.file}: " + ("it is a folder" if args.file.is_dir() else "there is no such file")
        )
    try:
        flags = [word for words in args.flags for word in shlex.split(words)]
    except ValueError as error:
        raise UserError(f"--flags: {error}") from error
    bar = _Bar()
    try:
        report = cudaemu.program(
            args.file,
            args.args,
            defines={word.partition("=")[0]: word.partition("=")[2] or "1" for word in args.defines},
            arch=args.arch,
            flags=flags,
            include=args.include,
            counters=not args.no_counters,
            sanitize=not args.no_sanitize,
            trace=Trace(max_rows=args.trace_rows) if args.trace else None,
            threads=args.threads,
            patience=args.timeout,
            leaks=args.leaks,
            own_terminal=True,
            progress=bar,
            on_finding=_tell,
            on_refusal=_tell_refusal,
            into=sessions,
        )
    except BaseException:
        bar.clear()
        if sessions and sessions[0].launches and not args.quiet:  # what there is until then
            _summary(args, sessions[0].report(0, ""))
        raise
    if not args.quiet:
        _summary(args, report)
    if args.json:
        _write_json(args, report)
    if args.trace:
        _write_trace(Path(args.trace), report)
    return FINDINGS_STATUS if report.findings else report.status


class _Bar:
    """Progress of a launch that takes its time, on a terminal."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._shown = False

    def __call__(self, done: int, blocks: int) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if done >= blocks:
            self._since = None
            self.clear()
        elif now - self._since > 1 and terminal.err.is_terminal:
            sys.stderr.write(f"\r\x1b[Kemulating: {done:,} of {blocks:,} blocks")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def _tell(finding: object) -> None:
    sys.stdout.flush()
    terminal.err.print(f"{finding}\n", markup=False, soft_wrap=True, style="red")


def _tell_refusal(code: int, why: str) -> None:
    terminal.err.print(f"CUDA error {code}: {why}", markup=False, soft_wrap=True, style="yellow")


MAIN_COUNTERS = {  # of --lines: column and counter
    "instructions": "instructions",
    "loaded": "global_load_sectors",
    "stored": "global_store_sectors",
    "wavefronts": "shared_load_wavefronts",
    "conflicts": "shared_load_conflicts",
}


def _summary(args: argparse.Namespace, report: Report) -> None:
    err = terminal.err
    kernels: dict[str, list[Any]] = {}
    for launch in report.launches:
        kernels.setdefault(launch.kernel, []).append(launch)
    err.print()
    for note in report.notes:
        err.print(f"note: {note}\n", markup=False, soft_wrap=True)
    for name, launches in kernels.items():
        total = _total(launches)
        grid, block = ("x".join(map(str, _trimmed(size))) for size in (launches[-1].grid, launches[-1].block))
        crowd = f"{len(launches):,} launches, the last " if len(launches) > 1 else ""
        err.print(f"{_short(name)}: {crowd}<<<{grid}, {block}>>>", style="bold", markup=False, soft_wrap=True)
        if not args.no_counters:
            err.print(f"    {_sentence(total)}", markup=False, soft_wrap=True)
    if args.counters:
        for name, launches in kernels.items():
            err.print(f"\n{name}", style="bold", markup=False)
            for key, number in _total(launches).flat().items():
                if number:
                    metric = cudaemu.METRICS.get(key, "")
                    err.print(f"  {key:<28} {number:>16,}  {metric}".rstrip(), markup=False, soft_wrap=True)
    if args.lines:
        _lines(report)
    found = len(report.findings)
    said = f"{found} finding{'s' * (found != 1)}" if found else "no findings"
    made = sum(map(len, kernels.values()))
    err.print(
        f"emulator, compute capability {args.arch}: {made:,} launch{'es' * (made != 1)}, {said}, "
        f"{report.seconds:.1f} s{', exit status ' + str(report.status) if report.status else ''}",
        style="red" if found else None,
        markup=False,
    )


def _short(name: str) -> str:
    """A kernel's name without long template arguments and the namespaces of libraries."""
    if len(name) <= 40:
        return name
    bare = name.partition("<")[0]
    return bare.rpartition("::")[2] + ("<...>" if "<" in name else "")


def _sentence(total: Counters) -> str:
    """What was executed and moved, as far as there is any of it."""
    said = [f"{total['instructions']:,} warp instructions"]
    for space, unit in (("global", "sectors"), ("shared", "wavefronts")):
        for verb in ("load", "store"):
            if total[f"{space}_{verb}_requests"]:
                conflicts = total[f"{space}_{verb}_conflicts"] if space == "shared" else 0
                of = f" ({conflicts:,} of them conflicts)" if conflicts else ""
                said.append(f"{space} {verb}s {total[f'{space}_{verb}_{unit}']:,} {unit}{of}")
    if total["cp_async_requests"]:
        said.append(f"cp.async {total['cp_async_sectors']:,} sectors")
    return "; ".join(said)


def _lines(report: Report) -> None:
    rows = [("line", *MAIN_COUNTERS, "source")]
    for (file, line), counters in sorted(report.lines.items()):
        values = (f"{counters[key]:,}" for key in MAIN_COUNTERS.values())
        rows.append((f"{Path(file).name}:{line}", *values, linecache.getline(file, line).strip()))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    terminal.err.print()
    for first, *numbers, source in rows:
        aligned = "  ".join(number.rjust(width) for number, width in zip(numbers, widths[1:]))
        terminal.err.print(f"{first.ljust(widths[0])}  {aligned}  {source}", markup=False, soft_wrap=True)


def _total(launches: Sequence[Any]) -> Counters:
    total = Counters()
    for launch in launches:
        total += launch.counters
    return total


def _trimmed(size: tuple[int, int, int]) -> tuple[int, ...]:
    return size if size[2] > 1 else size[:2] if size[1] > 1 else size[:1]


def _write_json(args: argparse.Namespace, report: Report) -> None:
    record = {
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
    text = json.dumps(record, indent=1) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
        return
    try:
        Path(args.json).write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {args.json}: {error.strerror}") from error


def _write_trace(path: Path, report: Report) -> None:
    import numpy as np

    try:
        with open(path, "wb") as file:
            np.save(file, report.trace)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


if __name__ == "__main__":
    main()
