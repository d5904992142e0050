"""The stand-in for cuRAND: its numbers against those that NVIDIA's library gave, and what it refuses.

The record: cuRAND 10.4.5's host generators (curandCreateGeneratorHost), which need no GPU, on 2026-11-28. Of integers
and uniform numbers a hash, of normal ones the first two, one in the middle and the last.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import cudaemu
from cudaemu import build
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from cudaemu.randoms import Generator, Xorwow
from tests.cudaemu.sources import source

full = pytest.mark.full
MIXED = [(0, 10), (3, 10), (0, 10), (2, 6000), (4, 9000), (1, 100000)]  # distribution, and how many
RECORD = [  # generator, seed, offset, order, dimensions; calls; what they gave
    (101, 0, 0, 101, 1, [(0, 10000)], ["4472a512328c"]),
    (101, 12345678901234, 123456, 101, 1, MIXED,
     ["7f2950d6c6f2", [-0.53152, 0.468349, 1.07178, 0.188213], "94dcd7f78537", "a8a4fde02595",
      [1.90218, 1.24587, 0.20182, -2.19831], "41a5994f722e"]),
    (101, 7, 0, 103, 1, [(1, 5000)], ["7ef4332f4e7d"]),
    (121, 0, 0, 101, 1, [(0, 90000)], ["3ebdb01224ea"]),
    (121, 12345678901234, 123456, 101, 1, MIXED,
     ["db5736efb470", [-0.226376, -0.484885, -0.809222, 0.711174], "08bb1fb8da15", "f13a6474cd3f",
      [1.858, 1.10339, -1.00508, 0.514994], "aaef4e69a3f2"]),
    (121, 7, 5, 103, 1, [(0, 9000), (2, 9000)], ["465a0cac26a4", "8174f9689f66"]),
    (161, 0, 0, 101, 1, [(0, 270000)], ["2618d2b503b8"]),
    (161, 12345678901234, 123457, 101, 1, [(0, 11), (1, 1000), (3, 1001), (2, 3)],
     ["ad132c192bbb", "869c3f65086e", [-0.381686, 1.56615, -1.3997, -1.02381], "ea50301e0946"]),
    (161, 7, 0, 101, 1, [(2, 100000), (4, 100000)], ["32e84aff3e27", [0.047258, -0.0138509, 0.29253, 0.338214]]),
    (201, 0, 0, 201, 1, [(0, 1000), (1, 1000), (2, 1000), (3, 500)],
     ["c6d9ed131f2e", "fa7e8d251402", "b864e1971460", [-1.03581, 0.385716, 0.998842, -0.0116277]]),
    (201, 0, 77, 201, 32, [(0, 3200), (2, 3200)], ["de30b283b6fd", "93b75d2a947c"]),
]  # fmt: skip


@pytest.mark.core(every=4)
@pytest.mark.parametrize("number", range(len(RECORD)))
def test_numbers_are_those_of_the_library(number):
    *setup, calls, wanted = RECORD[number]
    generator = Generator(*setup)
    for (distribution, count), each in zip(calls, wanted):
        got = generator.numbers(distribution, count, 0.0, 1.0, False)
        assert len(got) == count
        if isinstance(each, str):
            assert hashlib.sha256(got.tobytes()).hexdigest()[:12] == each
        else:
            assert np.allclose(got[[0, 1, count // 2, -1]], each, 1e-5)


@full
@pytest.mark.parametrize("kind", [101, 121, 141, 142, 161, 201])
def test_distributions(kind):
    generator, n = Generator(kind, 5, 0, 101, 1), 200_000
    for distribution in (1, 2):
        x = generator.numbers(distribution, n, 0, 1, False)
        assert x.min() > 0 and x.max() <= 1 and abs(x.mean() - 0.5) < 0.005 and abs(x.var() - 1 / 12) < 0.002
    for distribution in (3, 4):
        x = generator.numbers(distribution, n, 3.0, 2.0, False)
        assert abs(x.mean() - 3) < 0.03 and abs(x.std() - 2) < 0.02
        x = np.log(generator.numbers(distribution, n, 0.5, 0.25, True))
        assert abs(x.mean() - 0.5) < 0.01 and abs(x.std() - 0.25) < 0.01
    x = generator.numbers(5, n, 7.5, 0, False)
    assert x.dtype == np.uint32 and abs(x.mean() - 7.5) < 0.05 and abs(x.var() - 7.5) < 0.2
    bits = generator.numbers(0, n, 0, 1, False)
    assert bits.dtype == np.uint32 and abs(bits.mean() / 2**31 - 1) < 0.01


PROGRAM = r"""
#include <cuda_runtime.h>
#include <curand.h>
#include <cstdio>
int main() {
  curandGenerator_t g, h, q, nothing = nullptr;
  unsigned *x, y[4097], z[8];
  float *f;
  cudaMalloc(&x, sizeof y);
  cudaMalloc(&f, sizeof y);
  printf("%d ", curandCreateGenerator(&g, CURAND_RNG_PSEUDO_DEFAULT));
  printf("%d ", curandSetPseudoRandomGeneratorSeed(g, 7));
  printf("%d ", curandGenerate(g, x, 4097));
  cudaMemcpy(y, x, sizeof y, cudaMemcpyDeviceToHost);
  printf("%u %u %u\n", y[0], y[1], y[4096]);
  curandCreateGeneratorHost(&h, CURAND_RNG_PSEUDO_XORWOW);
  curandSetPseudoRandomGeneratorSeed(h, 7);
  printf("%d ", curandGenerate(h, z, 8));
  printf("%u %u\n", z[0], z[1]);
  curandCreateGenerator(&q, CURAND_RNG_QUASI_SOBOL32);
  curandSetQuasiRandomGeneratorDimensions(q, 3);
  for (int status : {curandGenerateUniform(q, f, 4), curandSetPseudoRandomGeneratorSeed(q, 1),
                     curandGenerate(nothing, x, 1), curandGenerateNormal(g, f, 3, 0, 1),
                     curandCreateGenerator(&nothing, CURAND_RNG_QUASI_SOBOL64)})
    printf("%d ", status);
  printf("%d\n", curandGenerateNormal(g, f, 4096, 0, 1) + curandGeneratePoisson(g, x, 100, 3));
  printf("%d\n", curandGenerateUniform(g, f, 4098));
  printf("%d ", curandGenerateUniform(g, f, 8));
  printf("%d\n", cudaDeviceSynchronize());
}
"""


@full
def test_a_program(capfd):
    """The first numbers of a device's and a host's generator, what is refused, and a write beyond the end."""
    report = cudaemu.program(source(PROGRAM, "curand"))
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "0 0 0 1294048771 1299393676 4136935501" and lines[1] == "0 1294048771 1299393676"
    assert lines[2:] == ["105 103 101 105 103 0", "201", "202 700"]
    (finding,) = report.findings
    assert finding.kind == "out of bounds global" and "curandGenerateUniform writes outputPtr[4097]" in finding.message


KERNELS = r"""
#include <curand_kernel.h>
template <class S>
__global__ void draw(unsigned *bits, float *uniform, float *normal) {
  S state;
  curand_init(7, threadIdx.x, 3, &state);
  bits[threadIdx.x] = curand(&state);
  uniform[threadIdx.x] = curand_uniform(&state);
  normal[threadIdx.x] = curand_normal(&state);
}
extern "C" cudaError_t launch(int kind, unsigned *bits, float *uniform, float *normal) {
  if (kind == 0) draw<curandStateXORWOW_t><<<1, 32>>>(bits, uniform, normal);
  if (kind == 1) draw<curandStateMRG32k3a_t><<<1, 32>>>(bits, uniform, normal);
  if (kind == 2) draw<curandStatePhilox4_32_10_t><<<1, 32>>>(bits, uniform, normal);
  return cudaGetLastError();
}
"""
HAS_HEADER = (toolchain.find_nvcc().include / "curand_kernel.h").is_file()


@full
@pytest.mark.skipif(not HAS_HEADER, reason="curand_kernel.h (nvidia-curand) is not installed")
def test_generators_of_kernels():
    """NVIDIA's own code: XORWOW's lanes are the sequences of its subsequences."""
    arrays = np.zeros(32, np.uint32), np.zeros(32, np.float32), np.zeros(32, np.float32)
    for kind in range(3):
        report = cudaemu.run(source(KERNELS, "curand_kernels"), "launch", [kind, *arrays], counters=False)
        assert report.ok and not report.findings
        assert len(set(arrays[0])) == 32 and 0 < arrays[1].min() <= arrays[1].max() <= 1
        if kind == 0:
            lanes = Xorwow(7, 3 * 4096)
            assert (arrays[0] == lanes.bits(slice(0, 32))).all()
            assert (arrays[1] == lanes.fraction(slice(0, 32))).all()


@full
@pytest.mark.skipif(HAS_HEADER, reason="curand_kernel.h is installed")
def test_a_header_that_is_not_there_is_explained():
    with pytest.raises(UserError, match="pip install nvidia-curand"):
        cudaemu.program(source(KERNELS, "curand_kernels"))


@full
@pytest.mark.skipif(not HAS_HEADER, reason="NVIDIA's own header is not installed")
def test_the_functions_are_declared_as_in_the_header_of_nvidia():
    words = ["-fsyntax-only", "-std=c++17", f"-I{toolchain.find_nvcc().include}", build.HERE / "curand.cpp"]
    toolchain.run([toolchain.find_cxx(), *words])
