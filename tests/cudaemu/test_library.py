"""Kernels and functions of a source called by name from Python, with their types checked."""

from __future__ import annotations

import ctypes
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cudaemu
from cudaemu import build
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from tests.cudaemu.sources import source

TEXT = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdio>
struct Line { double slope; int offset; char name; };
__device__ int calls = 0;
__global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
extern "C" __global__ void plain(double factor, const double *in, double *out, long long n) {
  if (threadIdx.x < n) out[threadIdx.x] = in[threadIdx.x] * factor;
}
__global__ void along(Line line, double *out) { out[threadIdx.x] = line.slope * threadIdx.x + line.offset + line.name; }
__global__ void scalars(bool b, signed char c, unsigned short s, unsigned u, long long l, unsigned long long ul,
                        double d, half h, __nv_bfloat16 g, double *out) {
  out[0] = b, out[1] = c, out[2] = s, out[3] = u, out[4] = l, out[5] = ul, out[6] = d;
  out[7] = float(h), out[8] = float(g);
}
template <typename T, int N> __global__ void fill(T *out, T value) { if (threadIdx.x < N) out[threadIdx.x] = value; }
__global__ void overloaded(int *out) { *out = 1; }
__global__ void overloaded(float *out) { *out = 2; }
namespace inner { namespace { __global__ void hidden(int *out) { *out = 3; } } }
__global__ void __launch_bounds__(64) bounded(int *out) {
  extern __shared__ int s[];
  s[threadIdx.x] = 5;
  out[threadIdx.x] = s[threadIdx.x];
}
__global__ void vectors(const float4 *in, float2 *out) {
  const float4 v = in[threadIdx.x];
  out[threadIdx.x] = make_float2(v.x, v.w);
}
__global__ void print(int n) { printf("printed %d\n", n); }
template __global__ void fill<int, 4>(int *, int);
void use(int *i, float *f) {
  overloaded<<<1, 1>>>(i), overloaded<<<1, 1>>>(f), inner::hidden<<<1, 1>>>(i);
}
cudaError_t twice(float a, const float *x, float *y, int n, cudaStream_t stream) {
  for (int turn = 0; turn < 2; ++turn) saxpy<<<(n + 63) / 64, 64, 0, stream>>>(a, x, y, n);
  return cudaGetLastError();
}
void nothing(double d, long long l, Line line, float *out) {
  float value = d + l + line.offset;
  cudaMemcpy(out, &value, 4, cudaMemcpyHostToDevice);
}
"""


@pytest.fixture(scope="module")
def library():
    return cudaemu.load(source(TEXT, "library"))


class Line(ctypes.Structure):
    _fields_ = [("slope", ctypes.c_double), ("offset", ctypes.c_int), ("name", ctypes.c_char)]


@pytest.mark.parametrize("numbers", [lambda: np.arange(100, dtype=np.float32), lambda: torch.arange(100.0)])
def test_numpy_and_torch(library, numbers):
    x, y = numbers(), numbers()
    report = library.launch("saxpy", 2, 64, 2.0, x, y, 100)
    assert report.ok and np.array_equal(np.asarray(y), 3 * np.arange(100, dtype=np.float32))
    assert report.counters["global_store_bytes"] == 400 and report.launches[0].kernel == "saxpy"


def test_reports_call_the_arguments_by_their_names(library):
    x, y = np.ones(90, np.float32), np.ones(100, np.float32)
    report = library.launch("saxpy", (2,), (64, 1), 2.0, x, y, 100, trace=cudaemu.Trace())
    assert "just past the end of x" in str(report) and report.status == 700
    assert report.tensors.keys() == {"x", "y"} and report.tensors["x"].shape == (90,)
    assert set(report.accesses("x")[1]) <= set(range(90))
    report = library.launch("saxpy", 2, 64, 2.0, np.ones(100, np.float32), y, 100, outputs=["y"])
    assert "y[0], which was never written" in str(report)


def test_an_array_that_cannot_be_written_is_for_const_pointers(library):
    x, y = np.ones(10, np.float32), np.zeros(10, np.float32)
    x.flags.writeable = False
    assert library.launch("saxpy", 1, 32, 1, x, y, 10).ok and y.sum() == 10
    with pytest.raises(UserError, match=r"^y must be writable"):
        library.launch("saxpy", 1, 32, 1, y, x, 10)


def test_every_type_of_number(library):
    out = np.zeros(9)
    values = (True, -3, 65535, 2**32 - 1, -(2**63), 2**63, 0.1, 1.5, -2.25)
    assert library.launch("scalars", 1, 1, *values, out).ok
    assert out.tolist() == list(map(float, values))
    assert library.launch(
        "scalars", 1, 1, False, np.int8(7), np.uint16(8), 9, np.int64(10), 11, np.float32(12), 13, 14, out
    ).ok
    assert out.tolist() == [0, 7, 8, 9, 10, 11, 12, 13, 14]


def test_structures(library):
    out = np.zeros(4)
    expected = [5 + 65 + 2.5 * n for n in range(4)]
    assert library.launch("along", 1, 4, Line(2.5, 5, b"A"), out).ok and out.tolist() == expected
    out[:] = 0
    assert library.launch("along", 1, 4, bytes(Line(2.5, 5, b"A")), out).ok and out.tolist() == expected
    record = np.array([(2.5, 5, b"A")], np.dtype([("s", "f8"), ("o", "i4"), ("n", "S1")], align=True))[0]
    assert library.launch("along", 1, 4, record, out).ok and out.tolist() == expected
    with pytest.raises(UserError, match="^line must .*16 bytes, got 3"):
        library.launch("along", 1, 4, b"abc", out)


def test_vectors_of_elements(library):
    data, out = np.arange(32, dtype=np.float32), np.zeros((8, 2), np.float32)
    assert library.launch("vectors", 1, 8, data, out).ok
    assert np.array_equal(out, data.reshape(8, 4)[:, [0, 3]])


def test_without_a_mangled_name_the_ptx_knows_the_sizes(library):
    data, out = np.arange(4.0), np.zeros(4)
    assert library.launch("plain", 1, 32, 0.5, data, out, 4).ok and out.tolist() == [0, 0.5, 1, 1.5]
    assert library.launch("plain", 1, 32, 2, data, out, 2**33).status == 700  # 64 bits arrive as 64 bits


def test_templates_overloads_namespaces(library):
    out = torch.zeros(8, dtype=torch.int32)
    assert library.launch("fill<int, 4>", 1, 32, out, 7).ok and out.tolist() == [7] * 4 + [0] * 4
    other = torch.zeros(8, dtype=torch.float64)
    assert library.launch("fill<double, 2>", 1, 32, other, 0.5).ok and other.sum() == 1  # nothing in the source uses it
    one = np.zeros(1, np.int32)
    assert library.launch("overloaded(int*)", 1, 1, one).ok and one[0] == 1
    with pytest.raises(UserError, match=r"(?s)several .*overloaded\(int\*\)\s+overloaded\(float\*\)"):
        library.launch("overloaded", 1, 1, one)
    assert library.launch("hidden", 1, 1, one).ok and one[0] == 3
    assert "fill<int, 4>" in library.kernels and "saxpy" in library.kernels


def test_device_output(library, capsys):
    library.launch("print", 1, 1, 12)
    assert capsys.readouterr().out == "printed 12\n"


def test_functions_of_the_host(library, capfd):
    x, y = np.ones(100, np.float32), np.zeros(100, np.float32)
    report = library.call("twice", 3.0, x, y, 100, None)
    assert report.ok and y.sum() == 600 and len(report.launches) == 2
    out = np.zeros(1, np.float32)
    assert library.call("nothing", 0.25, 2**24, Line(1, 3, b"A"), out).ok and out[0] == np.float32(2**24 + 3.25)


ARRAY, INTS = np.zeros(8, np.float32), np.zeros(8, np.int32)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda lib: lib.launch("saxpy", 1, 32, 1.0, ARRAY, ARRAY),
            "saxpy takes 4 arguments .float, float const., float., int., got 3",
        ),
        (
            lambda lib: lib.launch("saxpy", 1, 32, 1.0, ARRAY.astype("f8"), ARRAY, 8),
            "x must fit float const.*float64",
        ),
        (lambda lib: lib.launch("saxpy", 1, 32, 1.0, INTS, ARRAY, 8), "x must .*int32"),
        (
            lambda lib: lib.launch("saxpy", 1, 32, 1.0, ARRAY, ARRAY, 8.0),
            "n must be an int.*float 8.0",
        ),
        (
            lambda lib: lib.launch("saxpy", 1, 32, 1.0, ARRAY, ARRAY, 2**31),
            "n must fit int, got 2147483648",
        ),
        (
            lambda lib: lib.launch("saxpy", 1, 32, "1", ARRAY, ARRAY, 8),
            "a must be a number.*str '1'",
        ),
        (
            lambda lib: lib.launch("saxpy", 1, 32, ARRAY, ARRAY, ARRAY, 8),
            "a must be a number.*array of float32",
        ),
        (lambda lib: lib.launch("saxpy", 1, 32, 1.0, 1234, ARRAY, 8), "x must be .*pointer, got int 1234"),
        (
            lambda lib: lib.launch("saxpy", 1, 32, 1.0, np.zeros((8, 8), np.float32)[:, 0], ARRAY, 8),
            "x must be a contiguous array",
        ),
        (lambda lib: lib.launch("saxpi", 1, 32), "has no kernel saxpi, it has .*saxpy"),
        (lambda lib: lib.launch("fill", 1, 32, ARRAY, 1.0), None),
        (lambda lib: lib.launch("fill<int, x>", 1, 32, INTS, 1), "cannot .* fill<int, x>"),
        (
            lambda lib: lib.launch("bounded", 1, 65, INTS),
            r"65 threads .* 64 \(launch bounds 64\)",
        ),
        (
            lambda lib: lib.launch("bounded", 1, 64, INTS, shared=2**40),
            "dynamic shared memory must .*1099511627776",
        ),
        (lambda lib: lib.launch("bounded", 1, 64, INTS, shared=-1), "dynamic shared memory must .*-1"),
        (lambda lib: lib.launch("bounded", -1, 64, INTS), "grid must .*2,147,483,647 along x, got -1"),
        (lambda lib: lib.launch("bounded", (1, 65536), 64, INTS), "grid must .*65,535 along y, got 65536"),
        (lambda lib: lib.launch("bounded", 1, 0, INTS), "block must .*along x, got 0"),
        (lambda lib: lib.launch("bounded", 1, 5000, INTS), "block must .*1,024 along x, got 5000"),
        (lambda lib: lib.launch("bounded", 1, (8, 8, 8, 8), INTS), "block must be one to three"),
        (lambda lib: lib.launch("bounded", 1.5, 8, INTS), "grid must be one to three"),
        (
            lambda lib: lib.launch("bounded", 1, 8, INTS, threads=-3),
            "threads must be a whole number",
        ),
        (
            lambda lib: lib.launch("bounded", 1, 8, INTS, outputs=["nobody"]),
            "outputs must .*bounded .out.*'nobody'",
        ),
        (lambda lib: lib.call("twice", 3.0, ARRAY, ARRAY, 8, 5), "stream must be None.*int 5"),
        (
            lambda lib: lib.call("twice", 3.0, ARRAY.astype("f8"), ARRAY, 8, None),
            r"x must fit const float\*.*float64",
        ),
        (lambda lib: lib.call("thrice"), "does not export thrice"),
        (lambda lib: lib.call("system(1)"), "identifier.*system"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(library, call, said):
    with pytest.raises((UserError, ValueError)) as error:
        call(library)
    assert said is None or re.search(said, " ".join(str(error.value).split())), error.value


def test_a_text_and_its_header(tmp_path):
    (tmp_path / "size.h").write_text("constexpr int SIZE = 3;\n")
    text = "#include <size.h>\n__global__ void k(int *out) { *out = SIZE * TIMES; }\n"
    out = np.zeros(1, np.int32)
    loaded = cudaemu.load(text, include=[tmp_path], defines={"TIMES": "5"}, flags=["-O1"], arch="9.0")
    assert loaded.launch("k", 1, 1, out).ok and out[0] == 15


PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) { ret; }"


@pytest.mark.parametrize(
    ("grid", "block", "options", "said"),
    [
        (-1, 1, {}, "grid must .*-1"),
        (1, 0, {}, "block must .*got 0"),
        (1, 5000, {}, "block must .*5000"),
        (1, (32, 64), {}, "2048 threads .*1024"),
        (1, 1, {"shared": -1}, "shared memory must .*-1"),
        (1, 1, {"shared": 2**40}, "shared memory must .*1099511627776"),
        (1, 1, {"threads": -3}, "threads must be a whole number"),
    ],
)
def test_run_ptx_refuses_absurd_launches(grid, block, options, said):
    with pytest.raises(UserError, match=said):
        cudaemu.run_ptx(PTX, "k", grid, block, [None], **options)


@pytest.mark.parametrize("arch", ["8.0", "9.0"])  # for 9.0 nvcc itself runs ptxas
def test_instructions_of_hopper_alone_say_which_architecture(arch):
    code = f'// {arch}\n__global__ void k() {{ asm volatile("setmaxnreg.inc.sync.aligned.u32 40;"); }}\n'
    with pytest.raises(UserError) as caught:
        cudaemu.load(code, arch=arch).launch("k", 1, 128)
    said = str(caught.value)
    assert "source.cu(2): ptxas refuses the inline assembly" in said, said
    assert said.endswith('setmaxnreg needs compute capability 9.0a, 10.0a or 12.0a: --arch 9.0a, or arch="9.0a"')


def test_inline_assembly_that_ptxas_refuses(tmp_path):
    """nvcc passes it on unread, and the emulator may understand what the hardware does not have."""
    text = '__global__ void k(int *out) {\n  int v;\n  asm("add.s32 %0, 1, 2, 3;" : "=r"(v));\n  *out = v;\n}\n'
    with pytest.raises(UserError, match=r"source\.cu\(3\): ptxas refuses .*rguments"):
        cudaemu.load(text).launch("k", 1, 1, np.zeros(1, np.int32))
    often = text.replace("  asm(", "#pragma unroll\n  for (int i = 0; i < 4; ++i) asm volatile(")
    with pytest.raises(UserError) as caught:
        cudaemu.load(often).launch("k", 1, 1, np.zeros(1, np.int32))
    assert str(caught.value).count("refuses") == 1, "of a line that is there four times"
    with pytest.raises(UserError, match="PTX line .*|ptxas refuses"):
        cudaemu.load(text.replace("add.s32 %0, 1, 2, 3;", "add.s32 %0 {{{ 1;")).launch("k", 1, 1, np.zeros(1, np.int32))


@pytest.fixture
def ptxas(monkeypatch, tmp_path):
    """ptxas for a kernel with these statements of inline assembly: how often it has run by then."""
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path))
    nvcc, runs, real = toolchain.find_nvcc(), [], toolchain.run
    monkeypatch.setattr(toolchain, "run", lambda *words, **options: runs.append(words) or real(*words, **options))
    head = PTX.partition("{ ret;")[0]

    def check(*statements: str) -> int:
        body = "".join(f"// begin inline asm\n\t{each}\n// end inline asm\n" for each in statements)
        ptx = f"{head}{{ .reg .b32 %r<9>; .reg .b64 %rd<9>;\n{body}ret; }}"
        build.check_ptx(build.Build(Path("k.so"), ptx, Path("k.cu"), Arch(8, 0), nvcc))
        return len(runs)

    return check


def test_ptxas_is_asked_once_about_a_text(ptxas):
    assert ptxas("add.s32 %r1, %r2, 3;") == ptxas("add.s32 %r1, %r2, 3;") == 1
    assert ptxas("add.s32 %r1, %r2, 4;") == 2
    for _ in range(2):  # what it refuses is asked about again: only builds that read files keep failures
        with pytest.raises(UserError, match="ptxas refuses .*here"):
            ptxas("here: bra here;", "here: bra here;")  # a label that is there twice
    assert ptxas("add.s32 %r1, %r2, 4;") == 4


def test_ptxas_is_not_waited_for_when_the_emulator_has_refused_the_code(monkeypatch, tmp_path):
    """It would go on until it has all memory that it may have."""
    slow = tmp_path / "ptxas"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/number\nexec sleep 100\n")
    slow.chmod(0o755)
    monkeypatch.setattr(toolchain, "find_tool", lambda name, nvcc: slow)
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path))
    ptx = "// begin inline asm\n.reg .u32 t<1000000000>;\n// end inline asm\n"
    made = build.Build(Path("slow.so"), ptx, Path("slow.cu"), Arch(8, 0), toolchain.find_nvcc())
    started = time.monotonic()
    with pytest.raises(UserError, match="by the emulator"), build.PtxCheck(made):
        while not (tmp_path / "number").exists():
            time.sleep(0.01)
        raise UserError("refused by the emulator")
    assert time.monotonic() - started < 30
    number = int((tmp_path / "number").read_text())
    while Path(f"/proc/{number}").exists() and "Z" not in Path(f"/proc/{number}/stat").read_text().split()[2]:
        assert time.monotonic() - started < 30
        time.sleep(0.01)


def test_ptxas_is_asked_about_assembly_of_the_source_alone(monkeypatch):
    """The toolkit's own, as in cuda_fp16.h, was accepted when that was released."""
    asked = []
    monkeypatch.setattr(build, "check_ptx", lambda each, _: asked.append(each.source.name))
    kernel = "#include <cuda_fp16.h>\n__global__ void k(half *x) {{ {} x[1] = hexp(x[0]); }}\n"
    for name, own in (("toolkits", ""), ("own", 'int v; asm volatile("mov.s32 %0, 5;" : "=r"(v));')):
        path = source(kernel.format(own), f"assembly_{name}")
        cudaemu.load(path).launch("k", 1, 1, np.zeros(2, np.float16))
    assert asked == ["assembly_own.cu"]


def test_what_numpy_arrays_cost_is_no_chance(library):
    """A fresh array is aligned as cudaMalloc aligns, wherever NumPy has put it; a view keeps its misalignment."""
    sectors = []
    for first in (0, 4, 12, 20):
        place = np.zeros(4096 + 64, np.uint8)
        at = (64 * 2 - place.ctypes.data % 64 + first) % 64
        foreign = np.frombuffer(memoryview(place)[at : at + 400], np.float32)  # at an address that ends in `first`
        assert foreign.ctypes.data % 64 == first and not isinstance(foreign.base, np.ndarray)
        report = library.launch("saxpy", 2, 64, 2.0, foreign, np.zeros(100, np.float32), 100)
        sectors.append(report.counters["global_load_sectors"])
    assert set(sectors) == {26}, "13 of x, 13 of y"
    view = np.zeros(101, np.float32)[1:]
    report = library.launch("saxpy", 2, 64, 2.0, view, np.zeros(100, np.float32), 100)
    assert report.counters["global_load_sectors"] == 26 + 3, "three of four warps cross one more boundary"


# ---- slips ----

SLIPS = {
    "load": lambda library, x: cudaemu.load(None),
    "launch": lambda library, x: library.launch(None, 1, 32, x, 32),
    "call": lambda library, x: library.call(None),
    "names": lambda library, x: library.launch("ones", 1, 32, x, 32, names=5),
    "outputs": lambda library, x: library.launch("ones", 1, 32, x, 32, outputs="x"),
    "run_ptx": lambda library, x: cudaemu.run_ptx(b"text", "ones", 1, 1, []),
    "run": lambda library, x: cudaemu.run(library.source, None, []),
    "args": lambda library, x: cudaemu.run(library.source, "f", None),
    "a number": lambda library, x: cudaemu.program(library.source, [1]),
    "one text": lambda library, x: cudaemu.program(library.source, "12"),
    "NUL": lambda library, x: cudaemu.program(library.source, ["a\\0b".replace("\\0", chr(0))]),
    "no grid": lambda library, x: library.launch("ones", None, 32, x, 32),
    "arch": lambda library, x: cudaemu.load(SLIPPED, arch=None),
}
SLIPPED = """extern "C" __global__ void ones(float *x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }
extern "C" __global__ void next(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x] + 1; }
extern "C" int f() { return 0; }
"""


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_arguments_of_the_wrong_kind_are_named(slip):
    with pytest.raises(UserError, match="must be"):
        slip(cudaemu.load(SLIPPED), np.zeros(32, np.float32))


def test_a_text_may_hold_whatever_python_has():
    assert "ones" in cudaemu.load(f"// \udc80\n{SLIPPED}").kernels


def test_what_overlaps_is_only_read():
    """Each array is a copy of its own: a kernel that writes to what it also reads would give another result."""
    library, x = cudaemu.load(SLIPPED), np.arange(64, dtype=np.float32)
    with pytest.raises(UserError, match="x and y overlap"):
        library.launch("next", 1, 16, x[:16], x[8:24])
    assert np.array_equal(x, np.arange(64))
    library.launch("next", 1, 16, x[:16], x[32:48])
    assert np.array_equal(x[32:48], np.arange(16) + 1)


def shrunk(size: int) -> torch.Tensor:
    tensor = torch.ones(16)
    tensor.untyped_storage().resize_(size)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode() as mode:
        return mode.from_tensor(torch.ones(16))


@pytest.mark.parametrize(
    "tensor, said",
    [
        (shrunk(16), "resized to 16 bytes"),
        (shrunk(0), "fake, functional or emptied"),
        (fake(), "fake, functional or emptied"),
        (torch.nested.nested_tensor([torch.ones(4)]), "dense tensor, got a nested one"),
        (torch._neg_view(torch.ones(16)), "lazy view"),
        (torch.ones(16, requires_grad=True), r"requires grad, .* y.detach\(\)"),
    ],
)
def test_tensors_without_memory_of_their_own(library, tensor, said):
    """Each would give a wrong result, or end Python, without a word."""
    with pytest.raises(UserError, match=f"y .*{said}"):
        library.launch("saxpy", 1, 64, 2.0, torch.ones(16), tensor, 16)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.functionalize])
def test_tensors_inside_a_transform(library, transform):
    def call(y):
        library.launch("saxpy", 1, 64, 2.0, np.ones(16, np.float32), y, 16)
        return y

    with pytest.raises(UserError, match="y must be a tensor with memory of its own"):
        transform(call)(torch.ones(2, 16))


def test_options_beyond_what_a_machine_has(library):
    for option in ("multiprocessors", "threads"):
        with pytest.raises(UserError, match=f"{option} must be a whole number from 1 to"):
            library.launch("saxpy", 1, 1, 2.0, None, None, 0, **{option: 10**12})
