"""The emulator's C++, built in other ways than users build it: compilers do not warn, AddressSanitizer and UBSan find
nothing."""

from __future__ import annotations

import os
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
    host = ["-O1", "-std=c++17", "-fPIC", "-isystem", toolchain.find_nvcc().include]
    commands = [[cxx, *engine.FLAGS, *STRICT, source] for source in engine.SOURCES]
    commands += [[cxx, *host, *STRICT, source] for source in (build.RUNTIME, process.HERE / "runner.cpp")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda words: subprocess.run(words, capture_output=True, text=True), commands))
    assert not [each.stderr for each in done if each.returncode], f"{cxx} warns"


# ---- a machine that looks for its own mistakes (docs/emulator.md) ----


def watched(words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run Python with the machine that AddressSanitizer and UBSan watch: its exit status, what it printed, and what
    they found."""
    library = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("there is no libasan")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = f"print_stacktrace=1:log_path={folder / 'found'}"
    environment |= {"CUDAEMU_SANITIZE": "1", "CXX": "g++", "LD_PRELOAD": library, "UBSAN_OPTIONS": options}
    environment["ASAN_OPTIONS"] = f"detect_leaks=0:{options}"  # Python keeps what it allocates
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000)
    return done.returncode, done.stdout + done.stderr, "\n".join(path.read_text() for path in folder.glob("found*"))


TESTS = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
PROGRAMS = (*CORE, "cluster_reduce", "inline_ptx", "tensor_core_fragments", "tma_with_libcu", "wmma_shapes")
FILES = "engine", "races", "undefined", "mbarrier", "bulk", "calling", "tensor", "wgmma", "textures"
RUNS = {
    "instructions": [*TESTS, "tests/cudaemu/test_instructions.py"],
    "kernels": [*TESTS, *(f"tests/cudaemu/test_{name}.py" for name in FILES)],
    "programs": [*TESTS, "tests/cudaemu/test_program_files.py", "-k", " or ".join(PROGRAMS)],
    "mutants": ["-m", "tests.cudaemu.fuzz", "--stage", "run", "--count", "2000"],
}


@pytest.mark.parametrize("run", RUNS)
def test_the_machine_makes_no_mistake_of_its_own(run, tmp_path):
    status, said, found = watched(RUNS[run], tmp_path)
    assert status == 0 and not found, found or said[-3000:]


MISTAKE = """
import numpy as np
from cudaemu import engine
words, header = np.zeros(1024, np.uint32), np.array([1000, *[0] * (len(engine.core.Header._fields) - 1)], np.uint32)
engine.library().vm_program(b"mov.u32\\n", words.ctypes.data, header.ctypes.data, *[words.ctypes.data] * 4, 0)
"""


def test_a_mistake_is_found(tmp_path):
    """More instructions than there are words of them."""
    status, said, found = watched(["-c", MISTAKE], tmp_path)
    assert status and "heap-buffer-overflow" in found and "vm_program" in found, found or said[-3000:]
