"""Triton's kernels in the emulator: values, reports, faults at the Python line, and no findings where there is no
fault."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", "3.9", reason="Triton 3.9 or newer is not installed: pip install triton (a gigabyte)")

from cudaemu import CheckFailed, UserError  # noqa: E402
from cudaemu import triton as device  # noqa: E402
from tests.cudaemu import triton_faults as faults  # noqa: E402

device.stop()  # other tests are run beside these
NAMES = [kernel.__name__ for kernel in faults.KERNELS]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def emulator():
    device.use()
    device.reports.clear()
    yield
    device.stop()


@pytest.mark.full
@pytest.mark.parametrize("arch", ["8.0", "9.0"])
@pytest.mark.parametrize("name", NAMES)
def test_right_kernels_have_no_findings(name, arch):
    device.use(arch=arch)
    got, expected = faults.run(name)
    assert torch.allclose(got, expected, atol=2e-2, rtol=2e-2)
    assert not device.report().findings, device.report()


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_race_is_found_at_its_line(name):
    faults.run(name, faults.RACE)
    found = device.report().findings
    assert found and {each.kind for each in found} == {"global race"}, device.report()
    assert {each.line for each in found} <= faults.lines(faults.KERNELS[NAMES.index(name)], "race"), device.report()


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_mask_too_wide_is_found_at_its_line(name):
    with pytest.raises(CheckFailed, match="out of bounds"):
        faults.run(name, faults.BOUNDS)
    (found,) = device.report().findings
    assert found.kind == "out of bounds global" and not device.report().ok
    assert found.line in faults.lines(faults.KERNELS[NAMES.index(name)], "bounds"), device.report()


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_unset_memory_is_found_at_its_line(name):
    faults.run(name, unset=True)
    found = device.report().findings
    assert {each.kind for each in found} == {"uninitialised global read"}, device.report()
    assert {each.line for each in found} <= faults.lines(faults.KERNELS[NAMES.index(name)], "unset"), device.report()


def test_a_kernel_runs_on_cpu_tensors_and_says_what_it_did():
    got, expected = faults.run("add")
    report = device.reports[-1]
    assert torch.equal(got, expected) and report.ok
    assert report.counters["global_load_sectors"] == 250 and report.counters["global_store_sectors"] == 125
    at = min(faults.lines(faults.add, "bounds"))
    assert report.lines[faults.__file__, at]["global_load_sectors"] == 125


@pytest.mark.full
def test_cuda_is_the_cpu():
    x = torch.zeros(4, device="cuda")
    assert x.is_cuda and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    y = torch.ones(4)
    z = y.cuda()
    z += 1
    assert y.sum() == 4 and z.cpu().sum() == 8  # another memory, as on a GPU
    assert (x.to("cuda", torch.float64) + 1).dtype is torch.float64
    assert x.device == torch.device("cuda:0") == torch.empty_like(x).device and not x.is_cpu and x.get_device() == 0
    drawn = torch.rand(3, device=x.device, generator=torch.Generator(device=x.device).manual_seed(1))
    assert drawn.device.type == "cuda" and torch.ones(2, device=drawn.device).sum() == 2
    with torch.device("cuda"):
        assert torch.zeros(1).device == x.device and str(x.cpu()) == "tensor([0., 0., 0., 0.])"


@pytest.mark.full
def test_torchs_extensions_are_compiled_for_the_emulator():
    from torch.utils import cpp_extension

    cuda = """__global__ void twice_kernel(float *x) { x[threadIdx.x] *= 2; }
    void twice(torch::Tensor x) { twice_kernel<<<1, x.numel()>>>(x.data_ptr<float>()); }"""
    module = cpp_extension.load_inline("extension", "void twice(torch::Tensor x);", cuda, functions=["twice"])
    x = torch.ones(64, device="cuda")
    module.twice(x)
    assert torch.equal(x, torch.full((64,), 2.0)) and [each.kernel for each in device.report().launches] == [
        "twice_kernel"
    ]
    device.stop()
    assert cpp_extension.load_inline.__module__ == "torch.utils.cpp_extension"


@pytest.mark.full
def test_what_torch_has_written_is_set():
    x = torch.empty(1000)
    x[:] = 1
    faults.add[(8,)](x, torch.ones(1000), torch.empty(1000), 1000, FAULT=0, B=128)
    assert not device.report().findings


@pytest.mark.full
def test_a_gpu_after_another_has_its_own_shared_memory():
    """Of the first Triton remembers how much there is."""
    from examples.triton.matmul import matmul

    a, b, c = torch.ones(128, 64).half(), torch.ones(64, 256).half(), torch.empty(128, 256).half()
    for arch, options in (("8.0", {"block_k": 32}), ("9.0", {"block_k": 64})):
        device.use(arch=arch)
        matmul(a, b, c, **options)
        assert (c == 64).all()
    assert device.reports[-1].launches[0].shared > 164 << 10 > device.reports[-2].launches[0].shared


@pytest.mark.full
def test_wrong_options():
    with pytest.raises(UserError, match="tune must be"):
        device.use(tune="some")
    with pytest.raises(UserError, match="flags is an option for CUDA sources"):
        device.use(flags=["-O1"])


CANNOT_COMPILE = """
import torch, triton, triton.language as tl
@triton.jit
def fill(x, n: tl.constexpr):
    tl.store(x + tl.arange(0, n), nothing_of_this_name)
fill[(1,)](torch.zeros(32, device="cuda"), 32)
"""


@pytest.mark.full
def test_exit_statuses_of_the_command(tmp_path):
    """The script's own; 97 if a kernel does not compile; 96 if the command is wrong."""
    script = tmp_path / "script.py"
    for text, options, status in (
        ("raise SystemExit(5)", [], 5),
        ("raise ValueError('no')", [], 1),
        (CANNOT_COMPILE, [], 97),
        ("", ["--arch", "7.0"], 96),
        ("", ["--error-exitcode", "0"], 96),
    ):
        script.write_text(text)
        words = [sys.executable, "-m", "cudaemu", "triton", *options, str(script)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr


@pytest.mark.full
def test_pytest_refuses_a_wrong_option_as_one(tmp_path):
    """By its own exit status for that, 4."""
    installed = any(each.value == "cudaemu.pytest_plugin" for each in entry_points(group="pytest11"))
    words = [
        *(() if installed else ("-p", "cudaemu.pytest_plugin")),
        "--cudaemu",
        "--cudaemu-arch",
        "7.0",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4 and "the compute capability must be one of" in done.stderr


SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

assert torch.cuda.is_available()
x, y = torch.empty(1000, device="cuda"), torch.empty(1000, device="cuda")
x[:] = 3.0
double[(8,)](x, y, 1000, B=128)
assert (y.cpu() == 6).all()
print("capability", torch.cuda.get_device_capability())
if __name__ == "__main__":
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "import runpy; runpy.run_path(%r)" % __file__], check=True)
"""


@pytest.mark.full
def test_an_environment_variable_of_tritons_chooses_the_emulator(tmp_path):
    """For the script and for the processes that it starts; without it the installed entry point does nothing."""
    door = tmp_path / "packages" / "door-1.dist-info"
    door.mkdir(parents=True)
    (door / "METADATA").write_text("Metadata-Version: 2.1\nName: door\nVersion: 1\n")
    (door / "entry_points.txt").write_text("[triton.backends]\ncudaemu = cudaemu.triton_backend\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{door.parent}:{ROOT}",
        "TRITON_DEFAULT_BACKEND": "cudaemu",
        "CUDAEMU_TRITON": "--arch 8.0 --threads 1",
    }
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == 2 * "capability (8, 0)\n"
    assert done.stderr.count("emulator, compute capability 8.0: 1 launch, no findings") == 2, done.stderr
    del environment["TRITON_DEFAULT_BACKEND"]
    loaded = "import sys, triton; print([name for name in sys.modules if name.startswith('cudaemu')])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, env=environment, check=True)
    assert "cudaemu.triton_backend.driver" in done.stdout and "cudaemu.triton'" not in done.stdout
