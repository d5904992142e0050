"""CuPy's kernels in the emulator: RawKernel and RawModule, its own, and faults at the line of the source."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("cupy_backends", reason="CuPy is not installed: pip install cupy-cuda13x nvidia-cuda-nvrtc")
pytestmark = pytest.mark.full

SCRIPT = '''
import sys
import numpy as np
import cupy as cp

n = 1000
kernel = cp.RawKernel(r"""
extern "C" __global__ void scale(const float *x, float *y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];  // here
}
""", "scale")
x = cp.arange(n, dtype=cp.float32)
y = cp.empty_like(x)
kernel((4,), (256,), (x, y, cp.int32(n + (len(sys.argv) > 1))))
module = cp.RawModule(code="template <class T> __global__ void fill(T *x, T value) { x[threadIdx.x] = value; }",
                      name_expressions=["fill<int>"])
z = cp.zeros(32, cp.int32)
module.get_function("fill<int>")((1,), (32,), (z, cp.int32(7)))
root = float(cp.sqrt(y).max())
print(np.array_equal(y.get(), 2 * np.arange(n)), int(z.sum()), root == float(np.sqrt(np.float32(1998))))
'''


def run(tmp_path, *words: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "cudaemu", "python", "--lines", str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


def test_raw_kernels_and_cupys_own(tmp_path):
    done = run(tmp_path)
    assert done.stdout.split() == ["True", "224", "True"], done.stderr
    assert "scale: <<<4, 256>>>" in done.stderr and "no findings" in done.stderr and not done.returncode


def test_a_bad_access_is_found_in_the_python_file(tmp_path):
    done = run(tmp_path, "fault")
    line = 1 + next(n for n, text in enumerate(SCRIPT.splitlines()) if text.endswith("// here"))
    assert f"at script.py:{line}, scale" in done.stderr and done.returncode == 99, done.stderr
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stderr, done.stderr
