"""Front ends' own tests in the emulator, unchanged: the tables of docs/front_ends.md.

pip install numba-cuda[cu13] filecheck ml_dtypes scipy psutil
python -m docs.front_ends numba --every 5      # numba-cuda's tests, one in five of each module
python -m docs.front_ends numba cudapy.test_atomics
pip install cupy-cuda13x nvidia-cuda-nvrtc
python -m docs.front_ends pytest test_raw.py   # CuPy's tests/cupy_tests/core_tests/test_raw.py, or other files
pip install nvidia-cutlass-dsl apache-tvm-ffi torch
python -m docs.front_ends cute cutlass/examples/python/CuTeDSL     # of NVIDIA/cutlass; tma: with that in their path

A test passes if it says so itself. Findings of the sanitizer are listed apart: some tests have faults.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
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

_ONCE = "--iterations 1 --warmup_iterations 0"
CUTE = {  # examples of CuTe DSL, made small
    "cute/ampere/kernel/elementwise/elementwise_add.py": "--M 64 --N 128",
    "cute/ampere/kernel/elementwise/elementwise_apply.py": "--M 128 --N 512",
    "cute/ampere/tutorial/elementwise_add_autotune.py": f"--M 64 --N 128 {_ONCE}",
    "cute/ampere/kernel/dense_gemm/sgemm.py": f"--mnk 256,128,64 {_ONCE}",
    "cute/ampere/kernel/dense_gemm/tensorop_gemm.py": "--mnkl 200,264,104,2 --benchmark none",
    "cute/ampere/kernel/attention/flash_attention_v2.py": (
        f"--batch_size 1 --seqlen_q 256 --seqlen_k 256 --num_head 2 --is_causal {_ONCE}"
    ),
    "cute/ampere/kernel/attention/hstu_attention.py": "--batch_size 1 --seqlen_q 128 --seqlen_kv 128 --num_head 2",
    "cute/hopper/kernel/attention/fmha.py": "--q_shape 1,256,2,128 --k_shape 1,256,2,128",
    "cute/hopper/kernel/cta_norm/cta_norm.py": "--M 8 --N 512",
    "cute/hopper/kernel/dense_gemm/dense_gemm.py": f"--mnkl 256,256,128,1 --cluster_shape_mn 2,1 {_ONCE}",
    "cute/hopper/kernel/dense_gemm/dense_gemm_persistent.py": f"--mnkl 256,256,128,1 {_ONCE}",
    "cute/hopper/kernel/dense_gemm/dense_gemm_fp8_2xacc.py": f"--mnkl 256,256,256,1 {_ONCE}",
    "cute/hopper/kernel/dense_gemm/dense_gemm_fp8_gelu_persistent.py": f"--mnkl 256,256,256,1 {_ONCE}",
    "cute/hopper/kernel/grouped_gemm/grouped_gemm.py": (
        f"--num_groups 2 --problem_sizes_mnkl (128,128,128,1),(256,128,64,1) {_ONCE}"
    ),
    "cute_ext/ampere/*.py": "",
    "dsl_tutorials/*.py": "",
    "experimental/primitives/*.py": "",
    "experimental/primitives/reduction/*.py": "",
    "experimental/primitives/tma/*.py": "",
    "experimental/primitives/tutorial/*.py": "",
}
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


def cute_examples(root: Path, words: list[str]) -> None:
    """Each in a process of its own: how it ended, how many launches, and what was found first."""
    for pattern, arguments in CUTE.items():
        for file in sorted(root.glob(pattern)):
            name = str(file.relative_to(root))
            if words and not any(word in name for word in words):
                continue
            command = [sys.executable, "-W", "ignore", "-m", "cudaemu", "python", str(file)]
            try:
                done = subprocess.run([*command, *arguments.split()], capture_output=True, text=True, timeout=5 * LIMIT)
                ended, said = str(done.returncode), done.stderr
            except subprocess.TimeoutExpired:
                ended, said = "too slow", ""
            launches = re.search(r"(\d+) launch", said)
            found = re.findall(r"^(\w[^\n]*: [^\n]*)\n    at ([^,\n]*)", said, re.MULTILINE)
            errors = [line for line in said.splitlines() if re.search(r"Error|error:", line)] or [_last(said)]
            first = f"{found[0][1]}: {found[0][0]}" if found else "" if ended == "0" else errors[-1].strip()
            print(f"| {name} | {ended} | {launches[1] if launches else 0} | {first[:200]} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("front_end", choices=("numba", "pytest", "cute"))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run one test in N of each module")
    args, words = parser.parse_known_args()
    table = Table()
    if args.front_end == "cute":
        cute_examples(Path(words[0]), words[1:])
        return 0
    if args.front_end == "numba":
        numba_tests(words, args.every, table)
    else:
        pytest_tests(words, table)
    table.show()
    sys.stdout.flush()
    os._exit(0)  # some tests leave the driver in a state in which Python cannot end


if __name__ == "__main__":
    main()
