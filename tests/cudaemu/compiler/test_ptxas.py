"""What ptxas says of a kernel's resources."""

from __future__ import annotations

import pytest

import kernels
from cudaemu.compiler import ptxas, sass, toolchain
from cudaemu.errors import UserError

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


def test_the_report_is_read():
    one, two = ptxas.parse(LOG)
    assert (one.kernel, one.registers, one.stack) == ("_Z3onePf", 255, 408)
    assert (one.spill_stores, one.spill_loads, one.static_shared) == (12, 16, 16384)
    assert (two.kernel, two.registers, two.static_shared, two.stack) == ("_Z3twov", 8, 0, 0)
    with pytest.raises(UserError, match="no kernel"):
        ptxas.parse("ptxas info    : 0 bytes gmem\n")


@pytest.mark.parametrize("arch", ["86", "90"])
def test_a_cubin_is_nvccs(tmp_path, arch):
    source = tmp_path / "kernel.cu"
    source.write_text("#include <cuda_fp16.h>\n__global__ void kernel(half *x) { x[1] = hexp(x[N]); }\n")
    made = ptxas.cubin(source, {"N": "2"}, arch)
    nvcc = [toolchain.find_nvcc().path, "-O3", "-lineinfo", "-std=c++17", "-DN=2", f"-arch=sm_{arch}", "-cubin"]
    toolchain.run([*nvcc, source, "-o", "whole.cubin"], cwd=tmp_path)
    assert toolchain.disassemble(made.path) == toolchain.disassemble(tmp_path / "whole.cubin")
    (usage,) = ptxas.parse(made.log)
    assert usage.kernel == "_Z6kernelP6__half" and usage.registers > 0


def test_a_stages_cubin_is_nvccs(tmp_path):
    kernel = kernels.load("06").kernel("fp16", {"PADDING": 0})
    made, whole = ptxas.cubin(kernel.source, kernel.defines, "90"), tmp_path / "whole.cubin"
    flags = ["-O3", "-lineinfo", "-std=c++17", *toolchain.define_flags(kernel.defines), "-arch=sm_90", "-Xptxas=-v"]
    log = toolchain.run([toolchain.find_nvcc().path, *flags, "-cubin", kernel.source, "-o", whole])
    assert ptxas.parse(made.log) == ptxas.parse(log)
    listings = [toolchain.disassemble_with_lines(path) for path in (made.path, whole)]
    code, expected = (sass.parse_lines(listing, kernel.source) for listing in listings)
    assert code == expected and len({line for line, _ in next(iter(code.values()))}) > 20


def test_instances_of_a_template_are_told_apart(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text(
        "template <int N, bool ADD> __global__ void kernel(float *x) {\n"
        "  __shared__ float tile[N];\n  tile[threadIdx.x] = x[threadIdx.x];\n  __syncthreads();\n"
        "  x[threadIdx.x] = tile[N - 1 - threadIdx.x] + (ADD ? 1 : 0);\n}\n"
        "template __global__ void kernel<32, true>(float *);\ntemplate __global__ void kernel<64, false>(float *);\n"
        "__global__ void other(float *x) { *x = 1; }\n"
    )
    found = ptxas.usages(source, {}, "80")
    assert {name: usage.static_shared for name, usage in found.items()} == {
        "kernel<32, true>": 128,
        "kernel<64, false>": 256,
        "other": 0,
    }
