"""Numba's kernels in the emulator: values, reports, faults at the Python line, no findings where there is no fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install numba-cuda[cu13]")
pytestmark = pytest.mark.full

SCRIPT = """
import sys
import numpy as np
from numba import cuda, float32

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
BLOCK = 64

@cuda.jit(device=True)
def twice(value):
    return 2 * value

@cuda.jit
def reverse(x, out, extra):
    tile = cuda.shared.array(BLOCK, float32)
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    if i < x.size + extra:
        tile[t] = x[i]  # bounds unset
    if FAULT != "race":
        cuda.syncthreads()
    if i < x.size:
        out[i] = twice(tile[BLOCK - 1 - t])  # race

@cuda.jit
def total(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, 0, x[i])

n = 4 * BLOCK
x = np.arange(n, dtype=np.float32)
dx = cuda.device_array(n, np.float32) if FAULT == "unset" else cuda.to_device(x)
out = cuda.device_array(n, np.float32)
reverse[n // BLOCK + 1, BLOCK](dx, out, 1 if FAULT == "bounds" else 0)
expected = 2 * x.reshape(-1, BLOCK)[:, ::-1].reshape(-1)
sums = np.zeros(1, np.float32)
total[4, BLOCK](out, sums)
print(np.array_equal(out.copy_to_host(), expected), sums[0] == expected.sum())
"""


def run(tmp_path: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, int]]:
    """What became of it, and the number of the line with each mark."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    at = [word.startswith("-") for word in words].index(False) if any(not w.startswith("-") for w in words) else None
    options, rest = (words[:at], words[at:]) if at is not None else (words, ())
    command = [sys.executable, "-W", "ignore", "-m", "cudaemu", "python", *options, str(script), *rest]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    marks = {}
    for number, line in enumerate(SCRIPT.splitlines(), 1):
        for mark in line.partition("  # ")[2].split():
            marks[mark] = number
    return done, marks


@pytest.mark.parametrize("arch", ["8.0", "9.0"])
def test_right_kernels_have_no_findings(tmp_path, arch):
    done, _ = run(tmp_path, f"--arch={arch}", "--lines")
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert "2 launches, no findings" in done.stderr and not done.returncode, done.stderr
    assert "reverse: <<<5, 64>>>" in done.stderr and "out[i] = twice(tile[BLOCK - 1 - t])" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("race", "shared race"), ("bounds", "out of bounds global"), ("unset", "uninitialised global read")],
)
def test_a_fault_is_found_at_its_line(tmp_path, fault, kind):
    done, marks = run(tmp_path, fault)
    assert done.returncode == 99 and kind in done.stderr, done.stderr
    assert f"at script.py:{marks[fault]}, reverse" in done.stderr, done.stderr
