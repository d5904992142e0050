"""The emulator's C++: without a warning."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from cudaemu import build, engine, process
from cudaemu.compiler import toolchain

STRICT = ["-Wall", "-Wextra", "-Werror", "-o", "/dev/null", "-c"]


@pytest.mark.full
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
