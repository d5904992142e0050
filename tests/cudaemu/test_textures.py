"""Textures, surfaces and CUDA arrays: what a probe says of them, and what is wrong with a kernel that uses them."""

from __future__ import annotations

import io
import itertools
import math
import re
from contextlib import redirect_stdout

import numpy as np
import pytest

import cudaemu
from tests.cudaemu.sources import HARDWARE, source

PROBE = HARDWARE / "texture_probe.cu"
LINE = [1, 2, 4, 8]
PLACES = [-4.75, -1.5, -0.5, -0.125, 0, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.625, 3.5, 3.75, 4, 4.5, 7.25, 9]


@pytest.fixture(scope="module")
def said():
    output = io.StringIO()
    with redirect_stdout(output):
        report = cudaemu.program(PROBE)
    assert report.ok, report
    lines = output.getvalue().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def test_it_is_what_a_gpu_said(said):
    recorded = PROBE.with_suffix(".txt").read_text().splitlines()
    assert [f"{name}: {text}" for name, text in said.items()] == recorded


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def texel(values: np.ndarray, index: tuple[int, ...], mode: str, normalized: bool, border: float) -> float:
    """The guide's address modes, on whole texels."""
    at = []
    for i, size in zip(index, values.shape):
        if mode == "border" and not 0 <= i < size:
            return border
        if mode == "wrap" and normalized:
            i %= size
        elif mode == "mirror" and normalized:
            i %= 2 * size
            i = min(i, 2 * size - 1 - i)
        at.append(min(max(i, 0), size - 1))
    return float(values[tuple(at)])


def sampled(values: np.ndarray, place: tuple[float, ...], linear: bool, *how) -> float:
    """The guide's formulas, axes in the order of the array."""
    if not linear:
        return texel(values, tuple(math.floor(x) for x in place), *how)
    low = [math.floor(x - 0.5) for x in place]
    share = [x - 0.5 - i for x, i in zip(place, low)]
    total = 0.0
    for corner in itertools.product((0, 1), repeat=len(place)):
        weight = math.prod(s if up else 1 - s for s, up in zip(share, corner))
        total += weight * texel(values, tuple(i + up for i, up in zip(low, corner)), *how)
    return total


@pytest.mark.parametrize("mode", ["wrap", "clamp", "mirror", "border"])
@pytest.mark.parametrize("filtering", ["point", "linear"])
@pytest.mark.parametrize("units", ["texels", "normalized"])
def test_address_modes_and_filters_along_a_line(said, units, filtering, mode):
    line = np.array(LINE)
    expected = [sampled(line, (x,), filtering == "linear", mode, units == "normalized", 7.0) for x in PLACES]
    if (filtering, mode) == ("linear", "border"):  # a line is the edge of a plane
        expected = [(x + 7) / 2 for x in expected]
    assert numbers(said[f"1d {units} {filtering} {mode}"]) == expected


AT = [(0.5, 0.5), (1.25, 2.75), (2, 2), (3.75, 0.25), (-1, 5), (1.5, 1.75), (0, 1), (2.5, 3.5)]
PLANE = np.array([k * k for k in range(16)]).reshape(4, 4)


@pytest.mark.parametrize("filtering", ["point", "linear"])
def test_planes_and_volumes(said, filtering):
    linear = filtering == "linear"
    plane = [sampled(PLANE, (y, x), linear, "clamp", False, 7.0) for x, y in AT]
    assert numbers(said[f"2d {filtering}"]) == plane
    volume = np.array([k * k % 32 for k in range(27)]).reshape(3, 3, 3)
    flat = [x for pair in AT for x in pair]
    places = [tuple(flat[3 * n : 3 * n + 3]) for n in range(5)]
    expected = [sampled(volume, (z, y, x), linear, "border", False, 7.0) for x, y, z in places]
    assert numbers(said[f"3d {filtering}"]) == expected


def test_gather_has_the_four_texels_around_a_point(said):
    found = np.array(numbers(said["gather"])).reshape(8, 4)
    for (x, y), texels in zip(AT, found):
        i, j = math.floor(x - 0.5), math.floor(y - 0.5)
        corners = [(j + 1, i), (j + 1, i + 1), (j, i + 1), (j, i)]
        assert list(texels) == [texel(PLANE, corner, "clamp", False, 7.0) for corner in corners]


def test_fractions_have_eight_bits(said):
    assert said["fractions"].endswith("256 steps")
    assert {256 * x % 1 for x in numbers(said["fractions from 0"])} == {0}


def test_formats_layers_and_plain_memory(said):
    assert numbers(said["layers"]) == [1024 + 32, 4 + 32, 64 + 32, 1024 + 32, 1024 + 32, 1024 + 32]
    colours = np.array([[0, 1, 127, 255], [128, 64, 32, 16], [255, 255, 0, 0], [3, 5, 7, 9]]) / 255
    between = [(colours[0] + colours[1]) / 2, 0.25 * colours[1] + 0.75 * colours[2]]
    wanted = np.concatenate([colours, between]).ravel()
    wanted[16:] = np.floor(wanted[16:] * 65535 + 0.5) / 65535
    assert np.allclose(numbers(said["uchar4 as float"]), wanted, rtol=0, atol=1e-7)
    shorts = np.array([-32768, 32767, 1, -1, 100, -100, 0, 16384]) / 32767
    assert np.allclose(numbers(said["short2 as float"]), np.maximum(shorts, -1), rtol=0, atol=1e-7)
    assert said["short2"] == "-32768,32767 1,-1 100,-100 0,16384"
    assert said["fetch"] == "0 0 10 11 12 13 0 0"


def test_surfaces_read_zeros_outside_or_the_edge(said):
    read, written = (numbers(part) for part in said["surface"].split("|"))
    assert read[:6] == [0, 4, 5, 6, 7, 0] and read[8:14] == [0, 0, 1, 2, 3, 3]
    assert written == [*range(8), 100, 101, 102, 103, *range(12, 16)]


def test_what_is_refused(said):
    assert said["three channels"] == "cudaErrorInvalidChannelDescriptor"
    assert said["filtered integers"] == "cudaErrorInvalidFilterSetting"
    assert said["normalized 32 bits"] == "cudaErrorInvalidNormSetting"
    assert said["beyond the array"] == "cudaErrorInvalidValue"


KERNELS = r"""
#include <cstdio>
#include <cstdlib>
__global__ void read(cudaTextureObject_t t, float *out) {
  out[threadIdx.x] = tex2D<float>(t, threadIdx.x + 0.5f, 0.5f);
}
__global__ void write(cudaSurfaceObject_t s) { surf2Dwrite(1.0f, s, int(4 * threadIdx.x), 0); }
int main(int argc, char **argv) {
  const int what = atoi(argv[1]);
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaArray_t array;
  cudaMallocArray(&array, &format, 32, 4, cudaArraySurfaceLoadStore);
  float line[32] = {}, *out;
  cudaMalloc(&out, sizeof line);
  if (what != 1) cudaMemcpy2DToArray(array, 0, 0, line, sizeof line, sizeof line, 1, cudaMemcpyHostToDevice);
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc how = {};
  cudaTextureObject_t texture;
  cudaCreateTextureObject(&texture, &resource, &how, nullptr);
  cudaSurfaceObject_t surface;
  cudaCreateSurfaceObject(&surface, &resource);
  if (what == 2) cudaDestroyTextureObject(texture);
  if (what == 3) cudaFreeArray(array);
  if (what == 4) write<<<1, 33>>>(surface);
  else if (what == 5) write<<<2, 32>>>(surface), read<<<1, 32>>>(texture, out);
  else read<<<1, 32>>>(texture, out);
}
"""


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        (1, "uninitialised global read", "cudaMalloc"),
        (2, "no texture", "destroyed"),
        (3, "out of bounds global", "freed"),
        (4, "out of bounds surface", "4 bytes"),
        (5, "same value written", ""),
    ],
)
def test_what_is_found(what, kind, message):
    report = cudaemu.program(source(KERNELS, "textures"), [str(what)])
    found = [*report.findings, *report.notes]
    assert [each.kind for each in found] == [kind], report
    assert message in found[0].message and re.search("read|write", found[0].kernel)
