"""The emulator's C++, built in other ways than users build it: compilers do not warn, AddressSanitizer and UBSan find
nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cudaemu import build, engine, process
from cudaemu.compiler import toolchain
from tests.cudaemu.test_program_files import CORE

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]
STRICT = ["-Wall", "-Wextra", "-Werror", "-o", "/dev/null", "-c"]


@pytest.mark.parametrize("cxx", ["g++", "clang++"])
def test_no_compiler_warns(cxx):
    if shutil.which(cxx) is None:
        pytest.skip(f"there is no {cxx}")
    host = ["-O1", "-std=c++17", "-fPIC", "-isystem", toolchain.find_nvcc().include]  # which may lack the libraries'
    host += [f"-I{folder}" for folder in sorted(build.HEADERS.iterdir())]
    # Of g++ some warnings need the optimiser, and none more than -O2; clang++ has said all before it optimises.
    strict = [*STRICT, "-O2"] if cxx == "g++" else [*STRICT, "-fsyntax-only"]
    commands = [[cxx, *engine.FLAGS, *strict, source] for source in engine.SOURCES]
    commands += [[cxx, *host, *strict, source] for source in sorted(process.HERE.glob("*.cpp"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda words: subprocess.run(words, capture_output=True, text=True), commands))
    assert not [each.stderr for each in done if each.returncode], f"{cxx} warns"


# ---- a machine that looks for its own mistakes (docs/emulator.md) ----


def watched(words: list[str]) -> tuple[int, str]:
    """Run Python with the machine that AddressSanitizer and UBSan watch: its exit status, and what it said, from their
    first finding on if there is one."""
    library = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("there is no libasan")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"CUDAEMU_SANITIZE": "1", "CXX": "g++", "LD_PRELOAD": library}
    environment |= {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}  # Python keeps memory
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000)
    found = re.search(r".*(runtime error|ERROR: AddressSanitizer)", done.stderr)
    said = done.stderr[found.start() :] if found else (done.stdout + done.stderr)[-3000:]
    return done.returncode, said[:5000]


TESTS = ["-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider"]  # -s: what pytest captures goes with the process
FILES = "engine", "races", "undefined", "mbarrier", "bulk", "calling", "tensor", "wgmma", "textures"
PROGRAMS = (*CORE, "cluster_reduce", "inline_ptx", "tensor_core_fragments", "tma_with_libcu", "wmma_shapes")
RUN_PROGRAMS = """
import os, sys
from tests.cudaemu.test_program_files import FOLDER, PROGRAMS, main
os.chdir(FOLDER)
for name in sys.argv[1:]:
    try:
        main(PROGRAMS[name][0])
    except SystemExit as ended:
        assert ended.code == 0, name
"""
RUNS = {
    "instructions": [*TESTS, "tests/cudaemu/test_instructions.py"],
    "kernels": [*TESTS, *(f"tests/cudaemu/test_{name}.py" for name in FILES)],
    "programs": ["-c", RUN_PROGRAMS, *PROGRAMS],
    "mutants": ["-m", "tests.cudaemu.fuzz", "--stage", "run", "--count", "2000"],
}


@pytest.mark.parametrize("run", RUNS)
def test_the_machine_makes_no_mistake_of_its_own(run):
    status, said = watched(RUNS[run])
    assert status == 0 and "runtime error" not in said, said


MISTAKE = """
import numpy as np
from cudaemu import engine
words, header = np.zeros(1024, np.uint32), np.array([1000, *[0] * (len(engine.core.Header._fields) - 1)], np.uint32)
name = next(iter(engine.instructions())).encode() + b"\\n"
engine.library().vm_program(name, words.ctypes.data, header.ctypes.data, *[words.ctypes.data] * 4, 0)
"""


def test_a_mistake_is_found():
    """More instructions than there are words of them."""
    status, said = watched(["-c", MISTAKE])
    assert status and "heap-buffer-overflow" in said and "vm_program" in said, said
