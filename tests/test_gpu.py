"""The GPU loader. What needs no GPU, the build with nvcc, is tested everywhere."""

from __future__ import annotations

import ctypes
import re
import struct
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import kernels
from common import accuracy, course, gpu, torch_private
from common.verbs.options import device
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from tests.launches import EMPTY, from_four_threads, on_a_usual_host

NAIVE = kernels.load(1)


@pytest.fixture
def hopper(monkeypatch, tmp_path):
    """A GPU to build for, if not to run on, with an empty cache; with a CPU build of torch, the libraries it lacks."""
    monkeypatch.setattr(gpu, "capability", lambda device=None: Arch(9, 0))
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path / "cache"))
    if not torch.backends.cuda.is_built():
        (tmp_path / "empty.cpp").touch()
        for name in ("c10_cuda", "torch_cuda"):
            library = tmp_path / f"lib{name}.so"
            flags = ["-shared", f"-Wl,-soname,{library}"]
            toolchain.run([toolchain.find_cxx(), *flags, tmp_path / "empty.cpp", "-o", library])
        monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))


def test_a_kernel_builds_to_its_launcher_alone(hopper, tmp_path):
    library = NAIVE.kernel("bf16", {"COALESCED": 0}).load()
    library.cudaGetErrorString.restype = ctypes.c_char_p
    refused = library.launch_gemm(None, None, None, 0, 1, 1, None)
    assert library.cudaGetErrorString(refused) == b"invalid argument"
    assert library.launch_packed(struct.pack("PPPiiiP", 0, 0, 0, 0, 1, 1, 0)) == refused
    (built,) = (tmp_path / "cache").glob("gpu-*/*/")
    source = (built / "cuda.cu").read_text()
    assert source == f'#line 1 "{NAIVE.source}"\n{NAIVE.source.read_text()}'
    commands = (built / "build.ninja").read_text()
    assert "arch=compute_90,code=sm_90" in commands and "-DDTYPE=__nv_bfloat16" in commands


def test_a_build_is_kept_and_a_changed_source_built_anew(hopper, tmp_path):
    source = tmp_path / "mine.cu"
    source.write_text(NAIVE.source.read_text())
    first = NAIVE.kernel(source=source).load()
    started = time.monotonic()
    assert NAIVE.kernel(source=source).load() is first and time.monotonic() - started < 0.5
    source.write_text(source.read_text().replace("if (M < 1", "if (M == 77 || M < 1"))
    changed = NAIVE.kernel(source=source).load()
    assert changed is not first
    assert changed.launch_gemm(None, None, None, 77, 1, 1, None) == 1  # refused: nothing is launched


STATIC = """
#include <cuda_fp16.h>
#ifndef DTYPE
#define DTYPE half  // element type
#endif
template <int N> int calls() { static int made = 0; return ++made; }
extern "C" cudaError_t launch_gemm(const DTYPE *a, cudaStream_t stream) { return (cudaError_t)calls<1>(); }
"""


@pytest.mark.full
def test_builds_of_one_source_share_no_variables(hopper, tmp_path):
    """g++ has one of each static variable in a template for the whole process, unless it is told not to."""
    source = tmp_path / "mine.cu"
    source.write_text(STATIC)
    libraries = [NAIVE.kernel(dtype, source=source).load() for dtype in ("fp16", "fp32")]
    assert [library.launch_gemm(None, None) for library in (*libraries, *libraries)] == [1, 1, 2, 2]


def test_build_errors_are_those_of_nvcc_in_the_readers_own_lines(hopper, tmp_path):
    source = tmp_path / "my kernel.cu"
    source.write_text(NAIVE.source.read_text().replace("sum +=", "total +="))
    line = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if "total +=" in text)
    with pytest.raises(UserError) as error:
        NAIVE.kernel(source=source).load()
    assert str(error.value).startswith(f'{source}({line}): error: identifier "total" is undefined')
    assert "ninja" not in str(error.value) and "FAILED" not in str(error.value)


def test_a_source_without_the_launcher(hopper, tmp_path):
    source = tmp_path / "mine.cu"
    source.write_text(NAIVE.source.read_text().replace("launch_gemm", "launch_mine"))
    kernel = NAIVE.kernel(source=source)
    with pytest.raises(UserError, match="does not export launch_gemm"):
        kernel.launcher()


NOTE = """
#include <cstdio>
extern "C" const char *cudaGetErrorString(int status) { return status == 7 ? "seven" : "other"; }
extern "C" int launch_note(const void *a, void *b, int n, long long big, float x, double d, void *stream) {
  std::snprintf((char *)b, 64, "%d %d %lld %g %.17g %d", a == nullptr, n, big, x, d, (int)(long long)stream);
  return n == 7 ? 7 : 0;
}
"""


def test_a_bound_launcher_passes_addresses_numbers_and_the_current_stream(monkeypatch, tmp_path):
    source = tmp_path / "note.cu"
    source.write_text(
        'extern "C" cudaError_t launch_note(const half *a, half *b, int n, long long big, float x, double d, '
        "cudaStream_t stream)"
    )
    parts = {tmp_path / "note.cpp": NOTE, tmp_path / "entry.cpp": gpu.entry(source, "launch_note")}
    for part, text in parts.items():
        part.write_text(text)
    toolchain.run([toolchain.find_cxx(), "-shared", "-fPIC", *parts, "-o", tmp_path / "note.so"])
    launcher = gpu.Launcher(ctypes.CDLL(str(tmp_path / "note.so")), source, "launch_note", "02_note fp16")
    current = 3
    monkeypatch.setattr(torch_private, "current_device", lambda: current)
    monkeypatch.setattr(torch_private, "current_stream", lambda device: 100 * current + device)
    said = ctypes.create_string_buffer(64)
    address = ctypes.addressof(said)
    launcher.bind(torch.device("cuda", 3), [5, -(2**40) - 1, 0.25, 0.1])(0, address)
    assert said.value == b"1 5 -1099511627777 0.25 0.10000000000000001 303"
    refused = launcher.bind(torch.device("cuda", 3), [7, 1, 1.0, 1.0])
    with pytest.raises(UserError, match="^02_note fp16: CUDA error 7: seven\\n"):
        refused(address, address)
    for misfit in ([2**31, 1, 1.0, 1.0], [1, 1.5, 1.0, 1.0]):
        with pytest.raises(UserError, match=r"^02_note fp16: .*types, got {'n': \d+, 'big': "):
            launcher.bind(torch.device("cuda", 3), misfit)

    @contextmanager
    def other(device):
        nonlocal current
        current, before = device.index, current
        yield
        current = before

    monkeypatch.setattr(torch.cuda, "device", other)
    launcher.bind(torch.device("cuda", 1), [6, 2, 1.5, 2.5])(address, address)
    assert current == 3 and said.value == b"0 6 2 1.5 2.5 101"


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
    assert re.search("01_naive needs .*8.0.*Old GPU has 7.5: running in the emulator", said)


def test_a_gpu_that_fits_is_used(monkeypatch):
    pretend(monkeypatch, 12, 0)
    assert device(NAIVE, SimpleNamespace(device="auto")) == device(NAIVE, SimpleNamespace(device="gpu")) == "gpu"
    assert device(NAIVE, SimpleNamespace(device="emulator")) == "emulator"


def test_cuda_errors_carry_the_name_of_the_kernel():
    label = "01_naive bf16"
    with pytest.raises(UserError, match="^01_naive bf16: CUDA error: an illegal memory access"), gpu.errors(label):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nlong advice")
    with pytest.raises(UserError, match="^01_naive bf16: not enough memory"), gpu.errors(label):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
    with pytest.raises(RuntimeError, match="^something else$"), gpu.errors(label):
        raise RuntimeError("something else")


# On a GPU.


KERNELS = [kernel for stage in course.everything() for each in (stage, *stage.besides) for kernel in each.kernels()]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.label)


@pytest.mark.gpu
@pytest.mark.builds
@every_kernel
def test_it_builds(kernel):
    """Into the cache, where the other tests find it: what takes time is nvcc."""
    if kernel.stage.unfit:
        pytest.skip(kernel.stage.unfit)
    assert kernel.launcher()


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("stage", course.everything(), ids=lambda stage: stage.name)
def test_cold_build_takes_seconds(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path))
    started = time.monotonic()
    stage.kernel().load()
    assert time.monotonic() - started <= 20  # hopper_matmul took 10 on one host and 15 on another


@pytest.mark.gpu
@every_kernel
def test_kernels_are_right_on_the_gpu(kernel):
    if kernel.stage.unfit:
        pytest.skip(kernel.stage.unfit)
    large = kernel.stage.spec.bench_shapes(kernel.variants)[0]
    for shape in (*kernel.test_shapes().values(), large):
        result = accuracy.check(kernel, shape, "gpu")
        assert result.ok, result.report


@pytest.mark.gpu
def test_call_uses_the_current_stream():
    a, b = NAIVE.spec.inputs((512, 512, 512), "fp16", {}, device="cuda")
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


@pytest.mark.gpu
def test_call_can_be_captured_in_a_graph():
    a, b = NAIVE.spec.inputs((64, 64, 64), "fp16", {}, device="cuda")
    want = NAIVE(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = NAIVE(a, b)
    a.mul_(2)
    graph.replay()
    assert torch.equal(out, want * 2)


@pytest.mark.gpu
def test_wrong_elements_on_the_gpu_are_traced_in_the_emulator(command, tmp_path):
    store = "C[(size_t)row * N + col] = Element(sum"
    source = tmp_path / "mine.cu"
    source.write_text(NAIVE.source.read_text().replace(store, f"{store} + (row == 33 && col == 66)"))
    argv = ("test", "--device", "gpu", "--dtype", "fp16", "--sizes", "1024", "--variant", "COALESCED=1")
    status, out, _ = command(NAIVE.package, *argv, "--source", source)
    assert status == 1
    assert "34 (warp 1, lane 2)" in out


@pytest.mark.gpu
def test_launch_errors_on_the_gpu(command, edited):
    """A refused launch is a failed check, not the end of the test."""
    source = edited(NAIVE, ("<<<grid, THREADS,", "<<<grid, M > 64 ? 2048 : THREADS,"))
    argv = ("test", "--device", "gpu", "--dtype", "fp16", "--sizes", "64", "65", "--source", source)
    status, out, _ = command(NAIVE.package, *argv)
    assert status == 1  # more threads than __launch_bounds__ allow
    assert "65: 01_naive fp16" in out and "CUDA error 1: invalid argument" in out
    assert "2 of 4 checks failed" in out


@pytest.mark.gpu
def test_writes_to_inputs_are_reported_on_the_gpu(command, edited):
    end = "  // 3. Round once, at the end.\n"
    late = "  if (row == 5 && col == 0) const_cast<Element *>(B)[(size_t)(K - 1) * N] += Element(0.5f);\n"
    argv = ("test", "--device", "gpu", "--dtype", "fp16", "--sizes", "256", "--variant", "COALESCED=1", "--source")
    status, out, _ = command(NAIVE.package, *argv, edited(NAIVE, (end, late + end)))
    assert status == 1 and "the kernel writes to its input B: 1 element changed, the first B[255, 0]" in out


@pytest.mark.gpu
def test_calls_from_several_threads_and_devices_are_right():
    a, b = NAIVE.spec.inputs((256, 256, 256), "fp16", {}, device="cuda")
    want = NAIVE(a, b)
    assert all(torch.equal(each, want) for each in from_four_threads(lambda: NAIVE(a, b)))
    if torch.cuda.device_count() > 1:
        other = [tensor.to("cuda:1") for tensor in (a, b)]
        assert torch.equal(NAIVE(*other).cpu(), want.cpu()) and torch.cuda.current_device() == 0


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("stage", course.everything(), ids=lambda stage: stage.name)
def test_a_call_costs_the_host_fifteen_microseconds_beyond_torch_empty(stage):
    spec, kernel = stage.spec, stage.kernel()
    inputs = spec.inputs(spec.emulator_shapes(kernel.variants)[0], kernel.dtype, kernel.variants, device="cuda")
    assert on_a_usual_host(lambda: stage(*inputs, **kernel.changed)) <= 15 + EMPTY


@pytest.mark.gpu
def test_inputs_that_require_grad_are_refused_on_the_gpu():
    a, b = (tensor.requires_grad_() for tensor in NAIVE.spec.inputs((64, 64, 64), "fp16", {}, device="cuda"))
    with pytest.raises(UserError, match="no backward.* A "):
        NAIVE(a, b)
    with torch.no_grad():
        assert NAIVE(a, b).shape == (64, 64)
