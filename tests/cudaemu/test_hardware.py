"""The GPUs of the course: their limits, who runs whose code, and who fits on them."""

from __future__ import annotations

import itertools
import subprocess

import numpy as np
import pytest

import cudaemu
from cudaemu import hardware
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from cudaemu.hardware import GPUS, Arch, occupancy

A100, RTX3090, RTX4090, H100 = GPUS[:4]

# What the toolkit's own calculator says, asked over standard input: one line of numbers per question.
CALCULATOR = r"""
#include <cstdio>
#include <cstring>
#include "cuda_occupancy.h"
int main() {
  int major, minor, shared_kb, warps, threads, registers, shared;
  while (scanf("%d %d %d %d %d %d %d", &major, &minor, &shared_kb, &warps, &threads, &registers, &shared) == 7) {
    cudaOccDeviceProp device;
    memset(&device, 0, sizeof device);
    device.computeMajor = major, device.computeMinor = minor, device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = warps * 32, device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536, device.warpSize = 32;
    device.sharedMemPerBlock = 48 * 1024, device.sharedMemPerMultiprocessor = shared_kb * 1024;
    device.numSms = 100, device.sharedMemPerBlockOptin = (shared_kb - 1) * 1024;
    device.reservedSharedMemPerBlock = 1024;
    cudaOccFuncAttributes kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.maxDynamicSharedSizeBytes = (shared_kb - 1) * 1024;
    cudaOccDeviceState state;
    memset(&state, 0, sizeof state);
    state.carveoutConfig = 100;
    cudaOccResult result;
    const int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
    printf("%d\n", error ? -error : result.activeBlocksPerMultiprocessor);
  }
}
"""


def test_occupancy_is_what_the_toolkits_calculator_says(tmp_path):
    nvcc = toolchain.find_nvcc()
    if not (nvcc.include / "cuda_occupancy.h").exists():
        pytest.skip("this toolkit has no cuda_occupancy.h")
    source = tmp_path / "calculator.cpp"
    source.write_text(CALCULATOR)
    program = tmp_path / "calculator"
    toolchain.run([toolchain.find_cxx(), source, f"-I{nvcc.include}", "-o", program])
    shared = [0, 1, 4096, 16384, 49152, 50 * 1024, 99 * 1024, 99 * 1024 + 1, 128 * 1024, 163 * 1024, 227 * 1024]
    cases = list(
        itertools.product(
            GPUS, [32, 96, 128, 160, 256, 288, 512, 768, 1024], [16, 32, 33, 40, 64, 65, 72, 128, 168, 255], shared
        )
    )
    questions = "".join(
        f"{gpu.arch.major} {gpu.arch.minor} {gpu.shared_kb} {gpu.warps} {t} {r} {s}\n" for gpu, t, r, s in cases
    )
    answers = subprocess.run([program], input=questions, capture_output=True, text=True, check=True).stdout.split()
    assert len(answers) == len(cases)
    for (gpu, threads, registers, size), answer in zip(cases, answers):
        ours = occupancy(gpu, threads, registers, size).blocks
        assert ours == int(answer), f"{gpu.arch}, {threads} threads, {registers} registers, {size} bytes"


@pytest.mark.parametrize(
    "gpu, threads, registers, shared, blocks, limiters",
    [
        (A100, 1024, 32, 0, 2, ("registers", "warps")),
        (A100, 1024, 33, 0, 1, ("registers",)),  # 40 registers are taken for 33
        (A100, 256, 128, 0, 2, ("registers",)),
        (A100, 256, 32, 40 * 1024, 4, ("shared memory",)),  # 41 KB each, with the system's
        (RTX3090, 32, 32, 0, 16, ("blocks",)),
        (RTX4090, 32, 32, 0, 24, ("blocks",)),
        (RTX3090, 1024, 32, 0, 1, ("warps",)),  # 48 warps hold one block of 32 and no second
        (H100, 128, 255, 0, 2, ("registers",)),
        (RTX4090, 128, 32, 100 * 1024, 0, ("shared memory",)),
    ],
)
def test_known_cases(gpu, threads, registers, shared, blocks, limiters):
    found = occupancy(gpu, threads, registers, shared)
    assert (found.blocks, found.limiters) == (blocks, limiters)
    assert found.warps == blocks * threads // 32
    assert found.share == found.warps / gpu.warps


def test_unknown_compute_capability_is_named():
    assert hardware.select(["8.6", "90"]) == (RTX3090, H100) and hardware.select(None) == GPUS
    with pytest.raises(UserError, match="one of 8.0, 8.6, 8.9, 9.0.*'7.5'"):
        hardware.select(["7.5"])


@pytest.mark.parametrize(
    "needed, capability, runs",
    [
        ("8.0", "8.0", True),
        ("8.0", "9.0", True),
        ("8.0", "12.0", True),  # not by the letters of "12.0"
        ("8.0", "7.5", False),
        ("9.0", "8.9", False),
        ("9.0", "10.0", True),
        ("9.0a", "9.0", True),
        ("9.0a", "10.0", False),  # features with an "a" are of one compute capability alone
        ("9.0a", "8.0", False),
        ("10.0", "9.0", False),
        ("10.0f", "10.3", True),
        ("10.3f", "10.0", False),
        ("10.0f", "12.0", False),  # another family
    ],
)
def test_whose_code_runs_where(needed, capability, runs):
    assert Arch.of(needed).runs_on(capability) is runs


@pytest.mark.parametrize(
    "written, people, nvcc",
    [("8.0", "8.0", "80"), ("80", "8.0", "80"), ((9, 0), "9.0", "90"), ("90a", "9.0a", "90a"), ("9.0a", "9.0a", "90a")]
    + [("12.0", "12.0", "120"), ("103", "10.3", "103"), ("100f", "10.0f", "100f")],
)
def test_a_compute_capability_as_people_and_nvcc_write_it(written, people, nvcc):
    arch = Arch.of(written)
    assert (str(arch), arch.nvcc, arch.exact) == (people, nvcc, people.endswith("a"))
    assert arch == Arch.of(people) == Arch.of(nvcc) == Arch.of(arch) and hash(arch) == hash(Arch.of(nvcc))


@pytest.mark.parametrize("text", ["", "8", "9.0b", "a", "9.00", "sm_90", "9,0", "²0"])
def test_what_is_no_compute_capability(text):
    with pytest.raises(UserError, match="compute capability must .*got"):
        Arch.of(text)


TARGETS = ("50", "75", "80", "80a", "86", "87", "89", "90", "90a", "90f", "100", "100a", "100f", "103", "103a", "103f",
           "110", "110f", "120", "120a", "120f", "121", "121a", "121f", "9", "9000", "x")  # fmt: skip


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.arch.nvcc)
def test_ptxas_takes_the_same_targets(gpu, tmp_path):
    ptxas, path = toolchain.find_tool("ptxas"), tmp_path / "kernel.ptx"
    exact = "a" if gpu.arch >= Arch(9, 0) else ""  # what the driver compiles for
    for target in TARGETS:
        path.write_text(f".version 9.0\n.target sm_{target}\n.address_size 64\n.visible .entry k() {{ ret; }}\n")
        words = [ptxas, f"-arch=sm_{gpu.arch.nvcc}{exact}", path, "-o", "/dev/null"]
        runs = subprocess.run(words, capture_output=True).returncode == 0
        try:
            hardware.check_target(f"sm_{target}", gpu)
            assert runs, target
        except UserError as error:
            assert not runs and str(error).endswith(f"or older), got sm_{target}"), target


def test_compute_capabilities_are_in_order_of_age():
    names = ["12.0", "9.0a", "8.0", "10.0", "9.0"]
    assert [str(arch) for arch in sorted(map(Arch.of, names))] == ["8.0", "9.0", "9.0a", "10.0", "12.0"]
    assert hardware.model("9.0a") is H100 and hardware.model("80") is A100


def test_a_block_can_have_all_shared_memory_but_what_the_system_takes():
    for gpu in GPUS:
        assert occupancy(gpu, 32, 32, gpu.shared_per_block).blocks == 1
        assert occupancy(gpu, 32, 32, gpu.shared_per_block + 1).blocks == 0


def test_shared_room_is_the_most_with_which_so_many_blocks_fit():
    for gpu, blocks in itertools.product(GPUS, range(1, 17)):
        room = hardware.shared_room(gpu, blocks)
        assert occupancy(gpu, 32, None, room).blocks >= blocks > occupancy(gpu, 32, None, room + 1).blocks


# ---- what the stand-in runtime tells programs ------------------------------------------------------------------------

ASKED = r"""
#include <cuda_runtime.h>
#include <vector>
__global__ void kernel() {}
__global__ void with_static() {
  __shared__ volatile int all[1000];
  all[threadIdx.x % 1000] = 1;
}
extern "C" int ask(int most, int step, int threads, int *blocks, int *room) {
  std::vector<int> found, each;
  int status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  for (int bytes = 0; bytes <= most; bytes += step) {
    found.push_back(0);
    status |= cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found.back(), kernel, threads, bytes);
  }
  for (int count = 1; count <= 16; ++count) {
    size_t bytes;
    status |= cudaOccupancyAvailableDynamicSMemPerBlock(&bytes, with_static, count, threads);
    each.push_back(bytes);
  }
  cudaMemcpy(blocks, found.data(), found.size() * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemcpy(room, each.data(), each.size() * sizeof(int), cudaMemcpyHostToDevice);
  return status;
}
extern "C" int cooperate(int grid, int shared) {
  return cudaLaunchCooperativeKernel(kernel, grid, 32, nullptr, shared, nullptr);
}
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    path = tmp_path_factory.mktemp("occupancy") / "asked.cu"
    path.write_text(ASKED)
    return path


@pytest.mark.core(every=5)
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: str(gpu.arch))
@pytest.mark.parametrize("threads", [32, 96])
def test_a_program_is_told_the_same(gpu, threads, asked):
    most, step = gpu.shared_per_block, 61  # bytes: a step beside every unit
    blocks, room = np.zeros(most // step + 1, np.int32), np.zeros(16, np.int32)
    report = cudaemu.run(asked, "ask", [most, step, threads, blocks, room], arch=gpu.arch, compiled_for="8.0")
    assert report.status == 0, report
    assert blocks.tolist() == [occupancy(gpu, threads, None, step * n).blocks for n in range(len(blocks))]
    assert room.tolist() == [max(0, hardware.shared_room(gpu, count) - 4000) for count in range(1, 17)]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: str(gpu.arch))
def test_a_cooperative_launch_has_no_block_too_many(gpu, asked):
    """Also where bytes alone would be enough for one block more, and their units are not."""
    whole = gpu.shared_kb * 1024
    shared = next(
        size for size in range(4096, 40000)
        if occupancy(gpu, 32, None, size).blocks < whole // (size + gpu.shared_system) <= gpu.blocks
    )  # fmt: skip
    fit = occupancy(gpu, 32, None, shared).blocks * gpu.sms
    status = [
        cudaemu.run(asked, "cooperate", [blocks, shared], arch=gpu.arch, compiled_for="8.0").status
        for blocks in (fit, fit + 1)
    ]
    assert status == [0, 720]  # cudaErrorCooperativeLaunchTooLarge
