"""Names and places of host code's memory in findings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cudaemu
from cudaemu import build, errors
from cudaemu.compiler import toolchain

ROOT = Path(cudaemu.__file__).parents[1]
PROGRAM = r"""
#include <cuda_runtime.h>
#define CHECK(call) do { if (call) return 9; } while (0)
__global__ void k(int *p) { p[threadIdx.x] = 1; }
int main(int argc, char **) {
  int *first = nullptr, *second = nullptr;
  ALLOCATE
  k<<<1, 33>>>(second);
  cudaDeviceSynchronize();
}
"""
LINES = {  # how memory is allocated -> what the second array is called
    "cudaMalloc(&first, 128);\n cudaMalloc(&second, 128);": "second (cudaMalloc 2, line 8)",
    "cudaMalloc(&first, 128); cudaMalloc(&second, 128);": "second (cudaMalloc 2, line 7)",
    "CHECK(cudaMalloc(&first, 128)); CHECK(cudaMalloc(&second, 128));": "second (cudaMalloc 2, line 7)",
    "cudaMalloc(&first, 0); cudaMalloc(&second, 128);": "cudaMalloc 1 (line 7)",
    "if (argc > 5) cudaMalloc(&first, 128); else cudaMalloc(&second, 128);": "cudaMalloc 1 (line 7)",
}


@pytest.mark.core(every=5)
@pytest.mark.parametrize("allocate", LINES)
def test_arrays_have_their_names(allocate, tmp_path):
    """In a folder with a space; where it is not sure which of several calls on a line made it, it has no name."""
    path = tmp_path / "a folder" / "names.cu"
    path.parent.mkdir()
    path.write_text(PROGRAM.replace("ALLOCATE", allocate))
    report = cudaemu.program(path)
    assert f"just past the end of {LINES[allocate]}" in str(report.findings[0])


TWICE = r"""
#include <cuda_runtime.h>
int main() {
  int *p;
  cudaMalloc(&p, 128);
  cudaFree(p);
  return cudaFree(p) != cudaErrorInvalidValue;
}
"""


def test_what_is_freed_twice_says_where_it_was_freed(tmp_path):
    path = tmp_path / "twice.cu"
    path.write_text(TWICE)
    report = cudaemu.program(path)
    (finding,) = report.findings
    assert report.status == 0 and (finding.kind, finding.line) == ("double free", 7)
    assert finding.message == "p (cudaMalloc 1, line 5) was freed before, at twice.cu:6"


def test_a_program_with_cuda_errors_does_not_end_like_a_success(tmp_path):
    path = tmp_path / "refused.cu"
    path.write_text("#include <cuda_runtime.h>\nint main() { cudaFree((void *)8); }\n")
    said = subprocess.run([sys.executable, "-m", "cudaemu", path], capture_output=True, text=True, cwd=ROOT).stderr
    assert "0 launches, no findings, 1 CUDA error," in said


def test_what_a_user_can_mend_is_a_user_error(tmp_path):
    library = cudaemu.load('extern "C" cudaError_t f(int *p) { return cudaSuccess; }\n')
    for call in (
        lambda: library.call("f", np.zeros(8, np.int32)[::2]),
        lambda: library.call("f", np.zeros(8, np.int32), names=["a", "b"]),
        lambda: cudaemu.load(""),
        lambda: library.launch("f<1>; int main() {}", 1, 1),
    ):
        with pytest.raises(errors.UserError, match="must"):
            call()


def test_a_folder_of_headers_that_is_not_there_is_left_out(tmp_path):
    assert build._folders([tmp_path, tmp_path / "nowhere"]) == [tmp_path]


def test_what_is_compiled_is_announced_only_then(tmp_path):
    (tmp_path / "x.cpp").write_text(f"int f() {{ return {tmp_path.stat().st_ino}; }}\n")
    said = []
    for _ in range(2):
        toolchain.compile_cxx(tmp_path / "x.cpp", ["-c"], "x.o", building=lambda: said.append("building"))
    assert said == ["building"]


def test_errors_in_long_macros_are_short(tmp_path):
    (tmp_path / "m.cu").write_text("#define M " + "{ int a = 0; } " * 200 + "nothing = 1;\nvoid f() { M }\n")
    with pytest.raises(errors.UserError) as error:
        cudaemu.load(tmp_path / "m.cu").launch("k", 1, 1)
    assert "nothing" in str(error.value) and max(map(len, str(error.value).splitlines())) < 500
