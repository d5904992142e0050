"""The GPU loader. What needs no GPU, the build with nvcc, is tested everywhere."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace

import pytest
import torch

import kernels
from common import bench, check, gpu, toolchain
from common.cli import device
from common.errors import UserError

NAIVE = kernels.load(1)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def hopper(monkeypatch, tmp_path):
    """A GPU to build for, if not to run on, with an empty cache; with a CPU build of torch, the libraries it lacks."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "cache"))
    if not torch.backends.cuda.is_built():
        (tmp_path / "empty.cpp").touch()
        for name in ("c10_cuda", "torch_cuda"):
            library = tmp_path / f"lib{name}.so"
            flags = ["-shared", f"-Wl,-soname,{library}"]
            toolchain.run([toolchain.find_cxx(), *flags, tmp_path / "empty.cpp", "-o", library])
        monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))


def test_a_kernel_builds_to_its_launcher_alone(hopper, tmp_path):
    library = gpu.load(NAIVE.kernel("bf16", {"COALESCED": 0}))
    library.cudaGetErrorString.restype = ctypes.c_char_p
    refused = library.launch_gemm(None, None, None, 0, 1, 1, None)
    assert library.cudaGetErrorString(refused) == b"invalid argument"
    (built,) = (tmp_path / "cache").glob("gpu-*/")
    source = (built / "cuda.cu").read_text()
    assert source == f'#line 1 "{NAIVE.source}"\n{NAIVE.source.read_text()}'
    commands = (built / "build.ninja").read_text()
    assert "arch=compute_90,code=sm_90" in commands and "-DDTYPE=__nv_bfloat16" in commands


def test_a_build_is_kept_and_a_changed_source_built_anew(hopper, tmp_path):
    source = tmp_path / "mine.cu"
    source.write_text(NAIVE.source.read_text())
    first = gpu.load(NAIVE.kernel(source=source))
    started = time.monotonic()
    assert gpu.load(NAIVE.kernel(source=source)) is first and time.monotonic() - started < 0.5
    source.write_text(source.read_text().replace("if (M < 1", "if (M == 77 || M < 1"))
    changed = gpu.load(NAIVE.kernel(source=source))
    assert changed is not first
    assert changed.launch_gemm(None, None, None, 77, 1, 1, None) == 1  # refused: nothing is launched


def test_build_errors_are_those_of_nvcc_in_the_readers_own_lines(hopper, tmp_path):
    source = tmp_path / "my kernel.cu"
    source.write_text(NAIVE.source.read_text().replace("sum +=", "total +="))
    line = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if "total +=" in text)
    with pytest.raises(UserError) as error:
        gpu.load(NAIVE.kernel(source=source))
    assert str(error.value).startswith(f'{source}({line}): error: identifier "total" is undefined')
    assert "ninja" not in str(error.value) and "FAILED" not in str(error.value)


def test_a_source_without_the_launcher(hopper, tmp_path):
    source = tmp_path / "mine.cu"
    source.write_text(NAIVE.source.read_text().replace("launch_gemm", "launch_mine"))
    kernel = NAIVE.kernel(source=source)
    with pytest.raises(UserError, match="does not export launch_gemm: it must define extern"):
        gpu.bind(kernel, *check.prepare(kernel, (8, 8, 8)))


def pretend(monkeypatch, major: int, minor: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Old GPU")


def test_without_a_gpu_the_emulator_runs_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("common.terminal._announced", set())
    for _ in range(2):
        assert device(NAIVE, SimpleNamespace(device="auto")) == "emulator"
    assert capsys.readouterr().err.count("No GPU: running in the emulator") == 1
    with pytest.raises(UserError, match="--device gpu: No GPU"):
        device(NAIVE, SimpleNamespace(device="gpu"))


def test_a_gpu_too_old_for_the_stage_is_left_alone(monkeypatch, capsys):
    pretend(monkeypatch, 7, 5)
    assert device(NAIVE, SimpleNamespace(device="auto")) == "emulator"
    said = " ".join(capsys.readouterr().err.split())
    assert "01_naive needs compute capability 8.0 or newer, and Old GPU has 7.5: running in the emulator" in said


def test_a_gpu_that_fits_is_used(monkeypatch):
    pretend(monkeypatch, 12, 0)
    assert device(NAIVE, SimpleNamespace(device="auto")) == device(NAIVE, SimpleNamespace(device="gpu")) == "gpu"
    assert device(NAIVE, SimpleNamespace(device="emulator")) == "emulator"


def test_cuda_errors_carry_the_name_of_the_kernel():
    kernel = NAIVE.kernel("bf16")
    with pytest.raises(UserError, match="^01_naive bf16: CUDA error: an illegal memory access"):
        with gpu.errors(kernel):
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nlong advice")
    with pytest.raises(UserError, match="not enough memory on the GPU: CUDA out of memory"):
        with gpu.errors(kernel):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
    with pytest.raises(RuntimeError, match="^something else$"):
        with gpu.errors(kernel):
            raise RuntimeError("something else")


# On a GPU.


@on_gpu
def test_cold_build_takes_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    for stage in kernels.ladder():
        started = time.monotonic()
        gpu.load(stage.kernel())
        assert time.monotonic() - started <= 10


KERNELS = [kernel for stage in kernels.ladder() for kernel in stage.kernels()]


@pytest.fixture(scope="module")
def built():
    """All kernels, built side by side: one after the other they would take minutes."""
    bench.build(KERNELS, ())


@on_gpu
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.label)
def test_kernels_are_right_on_the_gpu(kernel, built):
    for shape in (*kernel.test_shapes(), *kernel.stage.spec.bench_shapes[:1]):
        result = check.check(kernel, shape, "gpu")
        assert result.ok, result.report


@on_gpu
def test_call_uses_the_current_stream():
    a, b = NAIVE.spec.inputs((512, 512, 512), "fp16", device="cuda")
    want = NAIVE(a, b)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late = a * 2  # on the stream, behind the sleep: the kernel must wait for it
        out = NAIVE(late, b)
        busy = not stream.query()
    stream.synchronize()
    assert busy
    assert torch.equal(out, want * 2)


@on_gpu
def test_call_can_be_captured_in_a_graph():
    a, b = NAIVE.spec.inputs((64, 64, 64), "fp16", device="cuda")
    want = NAIVE(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = NAIVE(a, b)
    a.mul_(2)
    graph.replay()
    assert torch.equal(out, want * 2)


@on_gpu
def test_wrong_elements_on_the_gpu_are_traced_in_the_emulator(command, tmp_path):
    store = "C[(size_t)row * N + col] = Element(sum"
    source = tmp_path / "mine.cu"
    source.write_text(NAIVE.source.read_text().replace(store, f"{store} + (row == 33 && col == 66)"))
    argv = ("test", "--device", "gpu", "--dtype", "fp16", "--sizes", "1024", "--variant", "COALESCED=1")
    status, out, _ = command(NAIVE.package, *argv, "--source", source)
    assert status == 1
    assert "34 (warp 1, lane 2)" in out


@on_gpu
def test_launch_errors_on_the_gpu(command, tmp_path):
    source = tmp_path / "mine.cu"
    source.write_text(NAIVE.source.read_text().replace("<<<grid, THREADS,", "<<<grid, 2048,"))
    status, _, err = command(NAIVE.package, "test", "--device", "gpu", "--sizes", "64", "--source", source)
    assert status == 2
    assert "01_naive fp16" in err and "CUDA error 1: invalid argument" in err  # more threads than __launch_bounds__
