from __future__ import annotations

import itertools
import subprocess
from argparse import ArgumentParser

import pytest
from common.resources import GPUS, occupancy, parse_ptxas, select_gpus
from rich.console import Console

import kernels
from common import resources, sass, toolchain
from common.errors import UserError

A100, RTX3090, RTX4090, H100 = GPUS

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
        f"{gpu.capability.replace('.', ' ')} {gpu.shared_kb} {gpu.warps} {t} {r} {s}\n" for gpu, t, r, s in cases
    )
    answers = subprocess.run([program], input=questions, capture_output=True, text=True, check=True).stdout.split()
    assert len(answers) == len(cases)
    for (gpu, threads, registers, size), answer in zip(cases, answers):
        ours = occupancy(gpu, threads, registers, size).blocks
        assert ours == int(answer), f"{gpu.capability}, {threads} threads, {registers} registers, {size} bytes"


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


LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3onePf' for 'sm_80'
ptxas info    : Function properties for _Z3onePf
    408 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 408 bytes cumulative stack size, 16384 bytes smem
ptxas info    : Compile time = 10.1 ms
ptxas info    : Compiling entry function '_Z3twov' for 'sm_80'
ptxas info    : Function properties for _Z3twov
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 352 bytes cmem[0]
"""


def test_ptxas_report_is_read():
    one, two = parse_ptxas(LOG)
    assert (one.kernel, one.registers, one.stack, one.spill_stores, one.spill_loads, one.static_shared) == (
        "_Z3onePf",
        255,
        408,
        12,
        16,
        16384,
    )
    assert (two.kernel, two.registers, two.static_shared, two.stack) == ("_Z3twov", 8, 0, 0)
    with pytest.raises(UserError, match="no kernel"):
        parse_ptxas("ptxas info    : 0 bytes gmem\n")


def test_unknown_compute_capability_is_named():
    assert select_gpus(["8.6", "90"]) == (RTX3090, H100)
    with pytest.raises(UserError, match="'7.5'.*8.0, 8.6, 8.9, 9.0"):
        select_gpus(["7.5"])


def parse(*words):
    parser = ArgumentParser()
    resources.add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_says_what_each_gpu_holds(capsys, monkeypatch):
    monkeypatch.setattr("common.terminal.out", Console(width=200))
    assert resources.run(kernels.load("02"), parse("--arch", "8.6", "9.0", "--dtype", "fp32")) == 0
    lines = capsys.readouterr().out.splitlines()
    (rtx,) = (line for line in lines if "RTX 3090" in line)
    (h100,) = (line for line in lines if "H100" in line)
    assert "1024" in rtx and "8,192" in rtx  # two tiles of 32 × 32 floats
    assert "32/48" in rtx and "67%" in rtx and "warps" in rtx
    assert "64/64" in h100 and "100%" in h100


LISTING = """
\t\tFunction : _Z3onePf
\t.headerflags\t@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM80 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM80)"
        /*0000*/                   MOV R1, c[0x0][0x28] ;                         /* 0x00000a0000017a02 */
                                                                                  /* 0x000fe40000000f00 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;               /* 0x0000000402047981 */
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;               /* 0x000000040c04723c */
        /*0030*/                   LDSM.16.M88.4 R8, [R3] ;                       /* 0x000000000308783b */
        /*0040*/              @UP0 LDS.128 R8, [R3] ;                             /* 0x000000000308783b */
        /*0050*/                   HADD2.F32 R5, -RZ, R4.H0_H0 ;                  /* 0x000000000308783b */
        /*0060*/                   EXIT ;                                         /* 0x000000000000794d */
        /*0070*/                   BRA 0x70;                                      /* 0xfffffff000007947 */
        /*0080*/                   NOP;                                           /* 0x0000000000007918 */
"""


def test_a_listing_is_read_and_sorted_by_kind():
    ((name, instructions),) = sass.parse(LISTING).items()
    assert name == "_Z3onePf"
    assert instructions[1].text == "@!P0 LDG.E.128.CONSTANT R4, [R2.64]"
    assert [i.opcode for i in instructions] == [
        "MOV",
        "LDG.E.128.CONSTANT",
        "HMMA.16816.F32",
        "LDSM.16.M88.4",
        "LDS.128",
        "HADD2.F32",
        "EXIT",
    ]
    assert {group: counter.total() for group, counter in sass.histogram(instructions).items()} == {
        "tensor cores": 1,
        "ldmatrix": 1,
        "shared load": 1,
        "global load": 1,
        "conversion": 1,
        "integer, address": 1,
        "control": 1,
    }
    assert [hex(i.address) for i in sass.select(instructions, "LD[GS]")] == ["0x10", "0x30", "0x40"]


def test_sass_of_a_stage(capsys):
    parser = ArgumentParser()
    sass.add_arguments(parser)
    stage = kernels.load("03")
    assert sass.run(stage, parser.parse_args(["--grep", r"^LDS\.128"])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("64 instructions") and len(lines) == 65  # 4 reads of 128 bits for each of 16 k
    assert sass.run(stage, parser.parse_args([])) == 0
    out = capsys.readouterr().out
    assert "1024 FFMA" in out and "other" not in out  # 64 products for each of 16 k; every opcode has a kind
    with pytest.raises(UserError, match="not a regular expression"):
        sass.run(stage, parser.parse_args(["--grep", "("]))
