"""The emulator with the compilers that pip brings: two CUDA releases, whose launch code and PTX differ."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import cudaemu
from cudaemu.build import compile_host
from cudaemu.compiler import toolchain
from tests.cudaemu import releases

ROOT = Path(__file__).parents[2]
OLDER = "13.0"  # what torch 2.11 pins


def _pip_home() -> Path:
    """The toolkit among the pip packages of this environment: a newer release."""
    for entry in sys.path:
        for nvcc in sorted(Path(entry).glob("nvidia/cu*/bin/nvcc"), reverse=True):
            return nvcc.parents[1]
    pytest.fail("the environment has no nvcc from pip, which the project depends on")


@pytest.fixture(params=["older", "newer"])
def nvcc(request, monkeypatch) -> toolchain.Nvcc:
    home = releases.from_pip(OLDER) if request.param == "older" else _pip_home()
    monkeypatch.setenv("CUDA_HOME", str(home))
    nvcc = toolchain.find_nvcc()
    assert nvcc.home == home
    if request.param == "newer" and nvcc.release == OLDER:
        pytest.skip(f"torch pins release {OLDER} in this environment: there is no newer one")
    return nvcc


@pytest.mark.full
def test_a_stage_runs(nvcc, request):
    newer = "newer" in request.node.name
    assert (tuple(map(int, nvcc.release.split("."))) > (13, 0)) if newer else nvcc.release == OLDER
    a, b, c = torch.randn(128, 32).half(), torch.randn(32, 256).half(), torch.full((128, 256), torch.nan).half()
    report = cudaemu.run(
        ROOT / "kernels" / "03_thread_tile" / "kernel.cu",
        "launch_gemm",
        [a, b, c, 128, 256, 32, None],
        names=["A", "B", "C", "M", "N", "K", "stream"],
        outputs=["C"],
    )
    assert report.ok, report
    assert torch.allclose(c.float(), a.float() @ b.float(), rtol=2e-3, atol=1e-2)
    assert report.counters["instructions.fma"] == 128 * 256 * 32 // 32


@pytest.mark.full
def test_launch_code_is_this_releases(nvcc):
    """The PTX names the release that wrote it: the compiler asked for is the one that ran."""
    build = compile_host(ROOT / "kernels" / "01_naive" / "kernel.cu")
    assert f"release {nvcc.release}" in build.ptx
