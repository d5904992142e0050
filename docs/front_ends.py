"""Front ends' own tests in the emulator, unchanged: the tables of docs/front_ends.md.

pip install numba-cuda[cu13] filecheck ml_dtypes scipy psutil
python -m docs.front_ends numba --every 5      # numba-cuda's tests, one in five of each module
python -m docs.front_ends numba cudapy.test_atomics
pip install cupy-cuda13x nvidia-cuda-nvrtc
python -m docs.front_ends pytest test_raw.py   # CuPy's tests/cupy_tests/core_tests/test_raw.py, or other files

A test passes if it says so itself. Findings of the sanitizer are listed apart: some tests have faults.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import unittest
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIMIT = 60  # seconds of processor time for a test
FOLDERS = ("cudapy", "doc_examples", "cudadrv", "nrt")  # of numba.cuda.tests
WHY = {  # why a test fails: the first of these that its error has
    r"invalid device ordinal": "needs two GPUs",
    r"libcurand|curand": "cuRAND, a library of machine code",
    r"LTO is not enabled|lto_ptx": "reads what link-time optimisation made",
    r"CalledProcessError|cannot open shared object|multiprocessing|run_in_subprocess|ForkServer": (
        "starts a process of its own, which has no emulator"
    ),
    r"cuIpc": "memory that processes share",
    r"regs|const_mem|local_mem|num_regs": "what only ptxas knows",
    r"cache|saves|check_pycache": "what is kept on disk",
    r"machine code|NO_BINARY|cubin": "machine code, refused in words",
    r"cudadevrt|LaunchDevice": "a kernel launches a kernel, refused in words",
    r"does not have this function|NOT_SUPPORTED": "a function of the driver, refused in words",
    r"TooSlow": "takes more than a minute",
}


class TooSlow(Exception):
    """A test has used its processor time."""


@dataclass
class Table:
    outcomes: Counter[str] = field(default_factory=Counter)
    why: dict[str, list[str]] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)
    launches: int = 0

    def add(self, name: str, outcome: str, error: str, report: Any) -> None:
        self.outcomes[outcome] += 1
        self.launches += len(report.launches)
        if outcome == "failed":
            reason = next((words for text, words in WHY.items() if re.search(text, error)), "other: " + _last(error))
            if report.findings:
                reason = "a fault of the test, which the sanitizer found"
            self.why.setdefault(reason, []).append(name)
        if report.findings:
            self.found[name] = str(report.findings[0]).splitlines()[0]

    def show(self) -> None:
        print(dict(self.outcomes), f"{self.launches} launches")
        for reason, names in sorted(self.why.items(), key=lambda each: -len(each[1])):
            print(f"| {len(names)} | {reason} | {', '.join(names)} |")
        for name, finding in self.found.items():
            print(f"found: {name}: {finding}")


def _last(error: str) -> str:
    lines = [line for line in error.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def numba_tests(names: list[str], every: int, table: Table) -> None:
    from cudaemu import driver

    warnings.simplefilter("ignore")
    spec = find_spec("numba_cuda")
    root = Path(next(iter(spec.submodule_search_locations or []))) / "numba/cuda/tests" if spec else Path()
    everything = [f"{folder}.{path.stem}" for folder in FOLDERS for path in sorted((root / folder).glob("test_*.py"))]
    signal.signal(signal.SIGPROF, _too_slow)
    for module in names or everything:
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName(f"numba.cuda.tests.{module}")
        except unittest.SkipTest:
            continue
        except BaseException as error:  # pytest's own way to skip
            print(f"{module}: {error}", flush=True)
            continue
        for number, test in enumerate(_each(suite)):
            if number % every != zlib.crc32(module.encode()) % every:
                continue
            driver.clear()
            result = unittest.TestResult()
            signal.setitimer(signal.ITIMER_PROF, LIMIT)
            try:
                test.run(result)
            except Exception as error:
                result.errors.append((test, repr(error)))
            signal.setitimer(signal.ITIMER_PROF, 0)
            outcome = "skipped" if result.skipped else "passed" if result.wasSuccessful() else "failed"
            error = (result.errors or result.failures or [(test, "")])[0][1]
            name = test.id().removeprefix("numba.cuda.tests.")
            table.add(name, outcome, error, driver.report())
            print(name, outcome, flush=True)


def _too_slow(*_: object) -> None:
    raise TooSlow


def _each(suite: Any) -> Iterator[unittest.TestCase]:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _each(part)
        else:
            yield part


class _Listener:
    """What pytest says of each test."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def pytest_runtest_logreport(self, report: Any) -> None:
        from cudaemu import driver

        if report.when == "call" or report.skipped:
            outcome = "skipped" if report.skipped else report.outcome
            self.table.add(report.nodeid.rpartition("::")[2], outcome, report.longreprtext, driver.report())


def pytest_tests(words: list[str], table: Table) -> None:
    import pytest

    options = ["-q", "-p", "no:cacheprovider", "-p", "cudaemu.pytest_plugin", "--cudaemu"]
    pytest.main([*options, *words], plugins=[_Listener(table)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("front_end", choices=("numba", "pytest"))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run one test in N of each module")
    args, words = parser.parse_known_args()
    table = Table()
    if args.front_end == "numba":
        numba_tests(words, args.every, table)
    else:
        pytest_tests(words, table)
    table.show()
    sys.stdout.flush()
    os._exit(0)  # some tests leave the driver in a state in which Python cannot end


if __name__ == "__main__":
    main()
