"""Tensor cores and what feeds them: ldmatrix, mma, wmma, cp.async. Layouts are stated here anew, from the PTX
manual."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu import engine
from cudaemu.build import compile_host
from cudaemu.kernel import Region
from tests.cudaemu.machine import executed, kinds, launch, launch_kernel
from tests.cudaemu.sources import source

LANE = np.arange(32)
GROUP, MEMBER = LANE // 4, LANE % 4


def raw(values: torch.Tensor) -> np.ndarray:
    """A tensor's elements as unsigned integers of their size."""
    size = values.element_size()
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32}[size]
    return values.contiguous().view(signed).numpy().view(f"u{size}")


def braces(registers: list[str]) -> str:
    return "{" + ", ".join(registers) + "}"


def numbered(prefix: str, first: int, count: int) -> list[str]:
    return [f"{prefix}{n}" for n in range(first, first + count)]


def load(registers: list[str], array: int) -> str:
    """Load 32-bit registers from an array [register, lane]."""
    loads = "".join(f"ld.global.b32 {register}, [%rd31+{128 * n}];\n" for n, register in enumerate(registers))
    return f"mad.wide.u32 %rd31, %r1, 4, %rd{array};\n{loads}"


def store(registers: list[str], array: int = 0) -> str:
    """Store 32-bit registers to an array [register, lane]."""
    stores = "".join(f"st.global.b32 [%rd31+{128 * n}], {register};\n" for n, register in enumerate(registers))
    return f"mad.wide.u32 %rd31, %r1, 4, %rd{array};\n{stores}"


# ---- ldmatrix, stmatrix, movmatrix ----

# Array 1, 32 rows of 16 bytes, goes to shared memory with a stride; array 2 says which row each lane points to: %r8.
FILL = """
    .shared .align 16 .b8 s[8192];
    mov.u32 %r2, s;
    mad.lo.u32 %r3, %r1, {stride}, %r2;
    mad.wide.u32 %rd20, %r1, 16, %rd1;
    ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd20];
    st.shared.v4.u32 [%r3], {{%r4, %r5, %r6, %r7}};
    bar.warp.sync -1;
    mad.wide.u32 %rd21, %r1, 4, %rd2;
    ld.global.u32 %r8, [%rd21];
    mad.lo.u32 %r8, %r8, {stride}, %r2;
"""


def matrices(rows: np.ndarray, count: int, trans: bool) -> np.ndarray:
    """What each lane gets of `count` 8 × 8 matrices (rows: [32, 8] u16): [count, 32] u32."""
    tiles = rows.reshape(4, 8, 8)[:count]
    tiles = tiles.transpose(0, 2, 1) if trans else tiles
    return tiles[:, GROUP, 2 * MEMBER] | tiles[:, GROUP, 2 * MEMBER + 1].astype(np.uint32) << 16


@pytest.mark.parametrize(("count", "trans"), list(itertools.product((1, 2, 4), (False, True))))
def test_ldmatrix(count, trans):
    rng = np.random.default_rng(count)
    data, order = rng.integers(0, 1 << 16, (32, 8), dtype=np.uint16), rng.permutation(32).astype(np.uint32)
    c = np.zeros((4, 32), np.uint32)
    registers = numbered("%r", 10, count)
    opcode = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * trans}.shared.b16"
    body = FILL.format(stride=16) + f"{opcode} {braces(registers)}, [%r8];\n" + store(registers)
    assert not launch(body, c, data, order).findings
    assert np.array_equal(c[:count], matrices(data[order], count, trans)) and not c[count:].any()


@pytest.mark.parametrize(("count", "trans"), list(itertools.product((1, 2, 4), (False, True))))
def test_stmatrix_is_its_inverse(count, trans):
    rng = np.random.default_rng(count)
    data, order = rng.integers(0, 1 << 16, (32, 8), dtype=np.uint16), np.arange(32, dtype=np.uint32)
    c = np.zeros((32, 8), np.uint16)
    registers, trans = numbered("%r", 10, count), ".trans" * trans
    result = launch(
        f"""{FILL.format(stride=16)}
        ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {braces(registers)}, [%r8];
        stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r8+4096], {braces(registers)};
        bar.warp.sync -1;
        mad.wide.u32 %rd22, %r1, 16, %rd0;
        setp.lt.u32 %p0, %r1, {8 * count};
        @%p0 ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r3+4096];
        @%p0 st.global.v4.u32 [%rd22], {{%r4, %r5, %r6, %r7}};""",
        c, data, order,
    )  # fmt: skip
    assert not result.findings
    assert np.array_equal(c[: 8 * count], data[: 8 * count])


def test_movmatrix_transposes():
    tile = np.arange(64, dtype=np.uint16).reshape(8, 8)
    c, source = np.zeros(32, np.uint32), tile[GROUP, 2 * MEMBER] | tile[GROUP, 2 * MEMBER + 1].astype(np.uint32) << 16
    launch(load(["%r10"], 1) + "movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10;\n" + store(["%r11"]), c, source)
    assert np.array_equal(c, tile.T[GROUP, 2 * MEMBER] | tile.T[GROUP, 2 * MEMBER + 1].astype(np.uint32) << 16)


@pytest.mark.parametrize(("stride", "wavefronts"), [(16, 4), (80, 4), (128, 32), (64, 16), (144, 4), (32, 8)])
def test_ldmatrix_wavefronts(stride, wavefronts):
    """One pass for each 8 × 8 matrix whose rows lie in different banks; 80 and 128 are ncu's on an H200."""
    c, data, order = np.zeros((4, 32), np.uint32), np.zeros((32, 8), np.uint16), np.arange(32, dtype=np.uint32)
    opcode = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    result = launch(FILL.format(stride=stride) + f"{opcode} {braces(numbered('%r', 10, 4))}, [%r8];", c, data, order)
    assert executed(result, opcode, "wavefronts") == wavefronts
    assert executed(result, opcode, "conflicts") == wavefronts - 4


def test_ldmatrix_needs_what_other_lanes_wrote_to_be_ordered():
    body = FILL.format(stride=16) + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r8];"
    arrays = np.zeros((4, 32), np.uint32), np.zeros((32, 8), np.uint16), np.arange(32, dtype=np.uint32)
    assert not launch(body, *arrays).findings
    assert kinds(launch(body.replace("bar.warp.sync -1;", ""), *arrays)) == ["shared race"]


# ---- mma: elements per register E; A and B by the manual's figures ----


def a_fragment(a: np.ndarray) -> np.ndarray:
    """A [16, K] (1, 2 or 4 bytes per element) as registers [count, 32]."""
    per = 4 // a.itemsize
    registers = []
    for r in range(16 * a.shape[1] // 32 // per):
        row, col = GROUP + 8 * (r % 2), per * MEMBER + 4 * per * (r // 2)
        registers.append(np.stack([a[row, col + e] for e in range(per)], 1).copy().view(np.uint32)[:, 0])
    return np.array(registers)


def b_fragment(b: np.ndarray) -> np.ndarray:
    """B [K, 8] as registers [count, 32]."""
    per = 4 // b.itemsize
    registers = []
    for r in range(8 * b.shape[0] // 32 // per):
        row = per * MEMBER + 4 * per * r
        registers.append(np.stack([b[row + e, GROUP] for e in range(per)], 1).copy().view(np.uint32)[:, 0])
    return np.array(registers)


def c_fragment(c: np.ndarray) -> np.ndarray:
    """C [16, 8] as registers: [4, 32] of 32 bits, or [2, 32] with two halves each."""
    if c.itemsize == 2:
        pairs = [np.stack([c[GROUP + 8 * r, 2 * MEMBER + e] for e in (0, 1)], 1) for r in (0, 1)]
        return np.array([pair.copy().view(np.uint32)[:, 0] for pair in pairs])
    return np.array([c[GROUP + 8 * (i // 2), 2 * MEMBER + i % 2] for i in range(4)])


FLOATS = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "f32": torch.float32}


@pytest.mark.parametrize(
    ("kind", "depth", "accumulator"),
    [("f16", 16, "f32"), ("f16", 8, "f32"), ("f16", 16, "f16"), ("f16", 8, "f16"), ("bf16", 16, "f32"),
     ("bf16", 8, "f32"), ("tf32", 8, "f32"), ("tf32", 4, "f32")],
)  # fmt: skip
def test_mma(kind, depth, accumulator):
    torch.manual_seed(depth)
    a, b = torch.randn(16, depth).to(FLOATS[kind]), torch.randn(depth, 8).to(FLOATS[kind])
    c = torch.randn(16, 8).to(FLOATS[accumulator])
    fragments = a_fragment(raw(a)), b_fragment(raw(b)), c_fragment(raw(c))
    if kind == "tf32":  # 10 bits of mantissa count
        a, b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    d = np.zeros_like(fragments[2])
    names = (
        numbered("%r", 10, len(d)),
        *(numbered("%r", 20 + 10 * n, len(fragment)) for n, fragment in enumerate(fragments)),
    )
    opcode = f"mma.sync.aligned.m16n8k{depth}.row.col.{accumulator}.{kind}.{kind}.{accumulator}"
    loads = "".join(load(name, n + 1) for n, name in enumerate(names[1:]))
    floats = accumulator == "f32"  # its registers are .f32: pass through moves
    moves = "".join(f"mov.b32 %f{n}, {name};" for n, name in enumerate(names[3])) if floats else ""
    back = "".join(f"mov.b32 {name}, %f{n + 8};" for n, name in enumerate(names[0])) if floats else ""
    target, source = (numbered("%f", 8, 4), numbered("%f", 0, 4)) if floats else (names[0], names[3])
    operands = ", ".join(map(braces, (target, names[1], names[2], source)))
    result = launch(f"{loads}{moves}{opcode} {operands};{back}{store(names[0])}", d, *fragments)
    assert not result.findings and executed(result, opcode) == 1
    exact = a.double() @ b.double() + c.double()
    expected = c_fragment(raw(exact.to(FLOATS[accumulator])))
    if accumulator == "f16":
        error = np.abs(d.view(np.float16).astype(float) - expected.view(np.float16).astype(float))
        assert error.max() <= 2**-9  # one unit in the last place of a sum below 8
    else:
        assert np.abs(d.view(np.float32) - expected.view(np.float32)).max() < 1e-5


@pytest.mark.parametrize(("kind", "depth", "saturate"), [("s8", 32, False), ("u8", 16, False), ("s8", 16, True)])
def test_mma_of_integers(kind, depth, saturate):
    rng = np.random.default_rng(depth)
    dtype = {"s8": np.int8, "u8": np.uint8}[kind]
    span = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    a, b = (rng.integers(*span, shape, dtype) for shape in ((16, depth), (depth, 8)))
    c = rng.integers(-(2**31), 2**31 - 1, (16, 8), np.int32)
    sums = a.astype(np.int64) @ b.astype(np.int64) + c
    sums = np.clip(sums, -(2**31), 2**31 - 1) if saturate else sums
    fragments = a_fragment(a), b_fragment(b), c_fragment(c).view(np.uint32)
    d = np.zeros((4, 32), np.uint32)
    names = [numbered("%r", 10 + 10 * n, count) for n, count in enumerate((4, *map(len, fragments)))]
    opcode = f"mma.sync.aligned.m16n8k{depth}.row.col{'.satfinite' * saturate}.s32.{kind}.{kind}.s32"
    loads = "".join(load(name, n + 1) for n, name in enumerate(names[1:]))
    launch(f"{loads}{opcode} {', '.join(map(braces, names))};{store(names[0])}", d, *fragments)
    assert np.array_equal(d.view(np.int32), c_fragment(sums.astype(np.int32)))


# ---- mma of other shapes and types: operands as integers of `bits` bits, by the manual's figures ----


def packed_a(a: np.ndarray, bits: int) -> np.ndarray:
    """A [8 or 16, K] as registers [count, 32] of 32 bits."""
    per, halves = 32 // bits, a.shape[0] // 8
    registers = []
    for r in range(a.size // 32 // per):
        row, col = GROUP + 8 * (r % halves), per * MEMBER + 4 * per * (r // halves)
        registers.append(sum(a[row, col + e].astype(np.uint64) << np.uint64(bits * e) for e in range(per)))
    return np.array(registers).astype(np.uint32)


def packed_b(b: np.ndarray, bits: int) -> np.ndarray:
    per = 32 // bits
    registers = []
    for r in range(b.size // 32 // per):
        row = per * MEMBER + 4 * per * r
        registers.append(sum(b[row + e, GROUP].astype(np.uint64) << np.uint64(bits * e) for e in range(per)))
    return np.array(registers).astype(np.uint32)


def rows_of(c: np.ndarray) -> np.ndarray:
    """C [8 or 16, 8] as registers: two neighbours of each row."""
    return np.array([c[GROUP + 8 * (i // 2), 2 * MEMBER + i % 2] for i in range(c.size // 32)])


def multiply(opcode: str, *fragments: np.ndarray, moved: str = "b32") -> np.ndarray:
    """D's registers, from those of A, B and C. `moved`: of what type the accumulators' registers are."""
    d = np.zeros_like(fragments[2])
    wide = d.dtype.itemsize == 8
    size, letter = (8, "rd") if wide else (4, "r")
    text, names, at = "", [], 10
    for array, fragment in enumerate(fragments, 1):
        here = numbered(f"%{letter}", at, len(fragment))
        names.append(here)
        at += len(here)
        text += f"mad.wide.u32 %rd9, %r1, {size}, %rd{array};"
        text += "".join(f"ld.global.b{8 * size} {x}, [%rd9+{32 * size * n}];\n" for n, x in enumerate(here))
    out = numbered(f"%{letter}", at, len(d))
    if wide:
        text += ".reg .f64 %x<40>;" + "".join(f"mov.b64 %x{x[3:]}, {x};" for x in sum(names, []))
        groups = [[f"%x{x[3:]}" for x in group] for group in (out, *names)]
        text += f"{opcode} {', '.join(map(braces, groups))};"
        text += "".join(f"mov.b64 {x}, %x{x[3:]};" for x in out)
    elif moved == "f32":
        text += ".reg .f32 %x<40>;" + "".join(f"mov.b32 %x{n}, {x};" for n, x in enumerate(names[2]))
        c = numbered("%x", 0, len(d))
        text += f"{opcode} {', '.join(map(braces, (numbered('%x', 20, len(d)), names[0], names[1], c)))};"
        text += "".join(f"mov.b32 {x}, %x{20 + n};" for n, x in enumerate(out))
    else:
        text += f"{opcode} {', '.join(map(braces, (out, *names)))};"
    text += f"mad.wide.u32 %rd9, %r1, {size}, %rd0;"
    text += "".join(f"st.global.b{8 * size} [%rd9+{32 * size * n}], {x};\n" for n, x in enumerate(out))
    result = launch(text, d, *fragments)
    assert not result.findings and executed(result, opcode) == 1
    return d


@pytest.mark.parametrize(
    ("rows", "depth", "a_type", "b_type"),
    [(8, 16, "s8", "s8"), (8, 16, "u8", "s8"), (16, 16, "s8", "u8"), (16, 32, "u8", "s8"), (8, 32, "s4", "s4"),
     (16, 32, "u4", "s4"), (16, 64, "s4", "u4"), (16, 64, "u4", "u4")],
)  # fmt: skip
def test_mma_of_small_integers(rows, depth, a_type, b_type):
    rng = np.random.default_rng(depth)
    bits = int(a_type[1])

    def values(kind: str, shape: tuple[int, int]) -> np.ndarray:
        low = -(1 << bits - 1) if kind[0] == "s" else 0
        return rng.integers(low, low + (1 << bits), shape)

    a, b = values(a_type, (rows, depth)), values(b_type, (depth, 8))
    c = rng.integers(-1000, 1000, (rows, 8))
    opcode = f"mma.sync.aligned.m{rows}n8k{depth}.row.col.s32.{a_type}.{b_type}.s32"
    mask = (1 << bits) - 1
    d = multiply(opcode, packed_a(a & mask, bits), packed_b(b & mask, bits), rows_of(c).astype(np.uint32))
    assert np.array_equal(d.view(np.int32), rows_of(a @ b + c))


@pytest.mark.parametrize(("rows", "depth"), [(8, 128), (16, 128), (16, 256)])
@pytest.mark.parametrize("operation", ["xor", "and"])
def test_mma_of_bits(rows, depth, operation):
    rng = np.random.default_rng(depth)
    a, b, c = rng.integers(0, 2, (rows, depth)), rng.integers(0, 2, (depth, 8)), rng.integers(-9, 9, (rows, 8))
    function = {"xor": np.bitwise_xor, "and": np.bitwise_and}[operation]
    expected = function(a[:, :, None], b[None]).sum(1) + c
    opcode = f"mma.sync.aligned.m{rows}n8k{depth}.row.col.s32.b1.b1.s32.{operation}.popc"
    d = multiply(opcode, packed_a(a, 1), packed_b(b, 1), rows_of(c).astype(np.uint32))
    assert np.array_equal(d.view(np.int32), rows_of(expected))


@pytest.mark.parametrize(("rows", "depth"), [(8, 4), (16, 4), (16, 8), (16, 16)])
def test_mma_of_doubles(rows, depth):
    rng = np.random.default_rng(depth)
    a, b, c = rng.standard_normal((rows, depth)), rng.standard_normal((depth, 8)), rng.standard_normal((rows, 8))
    halves = rows // 8
    registers = np.array([a[GROUP + 8 * (r % halves), MEMBER + 4 * (r // halves)] for r in range(a.size // 32)])
    right = np.array([b[MEMBER + 4 * r, GROUP] for r in range(b.size // 32)])
    opcode = f"mma.sync.aligned.m{rows}n8k{depth}.row.col.f64.f64.f64.f64"
    d = multiply(opcode, *(x.view(np.uint64) for x in (registers, right, rows_of(c))))
    assert np.allclose(d.view(np.float64), rows_of(a @ b + c), rtol=0, atol=1e-14)


@pytest.mark.parametrize("accumulator", ["f32", "f16"])
@pytest.mark.parametrize(
    ("depth", "a_type", "b_type"), [(32, "e4m3", "e4m3"), (32, "e4m3", "e5m2"), (16, "e5m2", "e5m2")]
)
def test_mma_of_8_bit_floats(depth, a_type, b_type, accumulator):
    torch.manual_seed(depth)
    types = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    a, b = torch.randn(16, depth).to(types[a_type]), torch.randn(depth, 8).to(types[b_type])
    c = torch.randn(16, 8).to(FLOATS[accumulator])
    opcode = f"mma.sync.aligned.m16n8k{depth}.row.col.{accumulator}.{a_type}.{b_type}.{accumulator}"
    fragments = (x.view(torch.uint8).numpy() for x in (a, b))
    d = multiply(
        opcode, *map(lambda f, x: f(x, 8), (packed_a, packed_b), fragments), c_fragment(raw(c)), moved=accumulator
    )
    exact = a.double() @ b.double() + c.double()
    expected = c_fragment(raw(exact.to(FLOATS[accumulator])))
    kind = {"f32": np.float32, "f16": np.float16}[accumulator]
    error = np.abs(d.view(kind).astype(float) - expected.view(kind).astype(float)).max()
    assert error <= (1e-5 if accumulator == "f32" else 2**-7)


@pytest.mark.parametrize(
    "opcode",
    ["m16n8k16.row.col.f32.f16.bf16.f32", "m16n8k16.col.row.f32.f16.f16.f32", "m16n8k64.row.col.s32.s8.s8.s32",
     "m8n8k4.row.col.f32.f16.f16.f32", "sp.m16n8k32.row.col.f32.f16.f16.f32", "m16n8k16.row.col.f16.bf16.bf16.f16",
     "m16n8k128.row.col.s32.b1.b1.s32", "m16n8k16"],
)  # fmt: skip
def test_mma_that_does_not_exist_matters_only_if_it_is_reached(opcode):
    accumulators = "{%f0, %f1, %f2, %f3}"
    mma = f"mma.sync.aligned.{opcode} {accumulators}, {{%r2, %r3, %r4, %r5}}, {{%r6, %r7}}, {accumulators};"
    c = np.zeros(32, np.uint32)
    assert not launch(f"setp.eq.u32 %p0, %r0, 99; @%p0 bra ODD; bra END; ODD: {mma} END: mov.u32 %r2, 1;", c).findings
    (finding,) = launch(mma, c).findings
    assert finding.kind == "unknown instruction" and finding.place.text == mma[:-1]
    assert "m16n8k16" in finding.message, "a way round is named"


def test_mma_accumulates_in_place():
    a = torch.ones(16, 16).half()
    d = np.zeros((4, 32), np.uint32)
    tile, parts = "{%f0, %f1, %f2, %f3}", "{%r10, %r11, %r12, %r13}, {%r10, %r11}"
    step = f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {tile}, {parts}, {tile};"
    start = "".join(f"mov.f32 %f{n}, 0f3F000000;" for n in range(4))
    back = "".join(f"mov.b32 %r{20 + n}, %f{n};" for n in range(4))
    body = load(numbered("%r", 10, 4), 1) + start + 3 * step + back + store(numbered("%r", 20, 4))
    launch(body, d, a_fragment(raw(a)))
    assert (d.view(np.float32) == 48.5).all()


# ---- wmma, as nvcc compiles it ----

WMMA = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

template <typename T>
struct Element { using type = T; };  // in memory, of what a fragment holds
template <>
struct Element<wmma::precision::tf32> { using type = float; };

template <typename Layout, int ROWS, int COLUMNS>
constexpr int minor = std::is_same_v<Layout, wmma::row_major> ? COLUMNS : ROWS;

template <int M, int N, int K, typename Part, typename Acc, typename ALayout, typename BLayout, typename CLayout,
          bool B_FROM_GLOBAL>
__device__ void multiply(const typename Element<Part>::type *A, const typename Element<Part>::type *B, const Acc *C,
                         Acc *D) {
  constexpr int a_minor = minor<ALayout, M, K>, b_minor = minor<BLayout, K, N>, c_minor = minor<CLayout, M, N>;
  constexpr int a_stride = a_minor + 8, b_stride = b_minor + 8, c_stride = c_minor + 8, PADDED = 32 * 48;
  constexpr auto c_layout = std::is_same_v<CLayout, wmma::row_major> ? wmma::mem_row_major : wmma::mem_col_major;
  __shared__ __align__(32) typename Element<Part>::type a_tile[PADDED], b_tile[PADDED];
  __shared__ __align__(32) Acc c_tile[PADDED];
  for (int n = threadIdx.x; n < M * K; n += 32) a_tile[n / a_minor * a_stride + n % a_minor] = A[n];
  for (int n = threadIdx.x; n < K * N; n += 32) b_tile[n / b_minor * b_stride + n % b_minor] = B[n];
  for (int n = threadIdx.x; n < M * N; n += 32) c_tile[n / c_minor * c_stride + n % c_minor] = C[n];
  __syncthreads();
  wmma::fragment<wmma::matrix_a, M, N, K, Part, ALayout> a;
  wmma::fragment<wmma::matrix_b, M, N, K, Part, BLayout> b;
  wmma::fragment<wmma::accumulator, M, N, K, Acc> c;
  wmma::load_matrix_sync(a, a_tile, a_stride);
  wmma::load_matrix_sync(b, B_FROM_GLOBAL ? B : b_tile, B_FROM_GLOBAL ? b_minor : b_stride);
  wmma::load_matrix_sync(c, c_tile, c_stride, c_layout);
  wmma::mma_sync(c, a, b, c);
  wmma::store_matrix_sync(c_tile, c, c_stride, c_layout);
  __syncwarp();
  for (int n = threadIdx.x; n < M * N; n += 32) D[n] = c_tile[n / c_minor * c_stride + n % c_minor];
}
"""


WMMAS = [  # shape, type, type of the accumulator, which of A, B, C are column-major, B loaded from global memory
    ((16, 16, 16), "f16", "f32", (0, 0, 0), 0), ((16, 16, 16), "f16", "f16", (1, 1, 1), 1),
    ((32, 8, 16), "f16", "f32", (0, 1, 1), 0), ((8, 32, 16), "f16", "f16", (1, 0, 0), 1),
    ((16, 16, 16), "bf16", "f32", (1, 0, 1), 0), ((8, 32, 16), "bf16", "f32", (0, 1, 0), 0),
    ((32, 8, 16), "bf16", "f32", (0, 0, 0), 1), ((16, 16, 8), "tf32", "f32", (0, 1, 0), 0),
    ((16, 16, 16), "s8", "s32", (0, 0, 0), 0), ((32, 8, 16), "u8", "s32", (1, 1, 1), 1),
    ((8, 32, 16), "s8", "s32", (0, 1, 0), 0),
]  # fmt: skip


def wmma_kernel(number: int) -> str:
    """A kernel k0, k1 ... that multiplies as one of WMMAS says."""
    shape, kind, accumulator, columns, from_global = WMMAS[number]
    types = {"f16": "half", "bf16": "__nv_bfloat16", "tf32": "wmma::precision::tf32", "s8": "signed char",
             "u8": "unsigned char", "f32": "float", "s32": "int"}  # fmt: skip
    layouts = [("wmma::row_major", "wmma::col_major")[by_columns] for by_columns in columns]
    words = [*shape, types[kind], types[accumulator], *layouts, str(bool(from_global)).lower()]
    element, acc = types[kind.replace("tf32", "f32")], types[accumulator]
    return (
        f'extern "C" __global__ void k{number}(const {element} *A, const {element} *B, const {acc} *C, {acc} *D) {{\n'
        f"  multiply<{', '.join(map(str, words))}>(A, B, C, D);\n}}\n"
    )


@pytest.fixture(scope="module")
def wmmas() -> engine.Module:
    text = WMMA + "".join(wmma_kernel(number) for number in range(len(WMMAS)))
    return engine.Module(compile_host(source(text, "wmma")).ptx)


@pytest.mark.parametrize("number", range(len(WMMAS)), ids=lambda number: " ".join(map(str, WMMAS[number])))
def test_wmma(wmmas, number):
    (m, n, k), kind, accumulator, columns, _ = WMMAS[number]
    torch.manual_seed(m)
    if kind in FLOATS:
        a, b = torch.randn(m, k).to(FLOATS[kind]), torch.randn(k, n).to(FLOATS[kind])
        c = torch.randn(m, n).to(FLOATS[accumulator])
    else:
        span, whole = {"s8": (-128, 128), "u8": (0, 256)}[kind], {"s8": torch.int8, "u8": torch.uint8}[kind]
        a, b = (torch.randint(*span, shape, dtype=torch.int32).to(whole) for shape in ((m, k), (k, n)))
        c = torch.randint(-99, 99, (m, n), dtype=torch.int32)
    if kind == "tf32":
        a, b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    tensors = [(x.T if by_columns else x).contiguous() for x, by_columns in zip((a, b, c), columns, strict=True)]
    d = torch.full_like(tensors[2], torch.nan if kind in FLOATS else -1)
    memory = [Region(x.data_ptr(), x.nbytes, "") for x in (*tensors, d)]
    pointers = np.array([x.data_ptr() for x in (*tensors, d)], np.uint64).tobytes()
    result = launch_kernel(wmmas, f"k{number}", params=pointers, memory=memory)
    assert not result.findings, result.findings[0]
    exact = a.double() @ b.double() + c.double()
    error = ((d.T if columns[2] else d).double() - exact).abs().max()
    assert error < {"f32": 2e-5, "f16": 2e-2, "s32": 1}[accumulator]


# ---- cp.async ----

COPY = """
    .shared .align 16 .b8 s[4096];
    mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 16, %r2;
    mad.wide.u32 %rd20, %r0, 16, %rd1; mad.wide.u32 %rd21, %r0, 16, %rd0;
"""
SHOW = "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3]; st.global.v4.u32 [%rd21], {%r4, %r5, %r6, %r7};"


def sixteen(threads: int = 32) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((threads, 16), np.uint8), np.arange(16 * threads).astype(np.uint8).reshape(threads, 16) + 1


@pytest.mark.parametrize(
    ("copy", "kept"),
    [("cg.shared.global [%r3], [%rd20], 16;", 16), ("ca.shared.global [%r3], [%rd20], 16, 16;", 16),
     ("cg.shared.global.L2::128B [%r3], [%rd20], 16, 5;", 5), ("ca.shared::cta.global [%r3], [%rd20], 16, 0;", 0),
     ("ca.shared.global [%r3], [%rd20], 8; cp.async.ca.shared.global [%r3+8], [%rd20+8], 4, 0;"
      "cp.async.ca.shared.global [%r3+12], [%rd20+12], 4, 0;", 8)],
)  # fmt: skip
def test_copies_and_their_zeros(copy, kept):
    c, data = sixteen()
    result = launch(f"{COPY} cp.async.{copy} cp.async.wait_all; {SHOW}", c, data)
    assert not result.findings
    assert np.array_equal(c[:, :kept], data[:, :kept]) and not c[:, kept:].any()


def test_a_source_that_is_ignored_is_not_touched():
    c, data = sixteen()
    far = "setp.ge.u32 %p0, %r0, 9; @%p0 add.s64 %rd20, %rd20, 99984; selp.u32 %r9, 0, 16, %p0;"
    for none in ("%p0", "%r9"):
        copy = f"cp.async.cg.shared.global [%r3], [%rd20], 16, {none}; cp.async.wait_all;"
        result = launch(f"{COPY} {far} {copy} {SHOW}", c, data)
        assert not result.findings
        assert np.array_equal(c[:9], data[:9]) and not c[9:].any()


@pytest.mark.parametrize("kept", [16, 5])
def test_what_a_copy_takes_is_read_whether_it_fills_its_place_or_not(kept):
    c, data = sixteen(64)
    copy = f"cp.async.cg.shared.global [%r3], [%rd20], 16, {kept}; cp.async.wait_all;"
    (unset,) = launch(f"{COPY} {copy}", c, data, unwritten=(1,), block=(64,)).findings
    assert unset.kind == "uninitialised global read" and (unset.size, unset.count) == (kept, 64)
    written = "xor.b32 %r8, %r0, 32; mad.wide.u32 %rd22, %r8, 16, %rd1; st.global.u32 [%rd22], 1;"
    body = f"{COPY} {written} BARRIER {copy}"
    assert set(kinds(launch(body.replace("BARRIER", ""), c, data, block=(64,)))) == {"global race"}
    assert not launch(body.replace("BARRIER", "bar.sync 0;"), c, data, block=(64,)).findings
    partly = "setp.lt.u32 %p0, %r0, 3; selp.u32 %r9, 5, 16, %p0;"
    mixed = launch(f"{COPY} {partly} {copy.replace(f', {kept};', ', %r9;')} {SHOW}", c, data, block=(64,))
    assert not mixed.findings and np.array_equal(c[3:], data[3:]) and not c[:3, 5:].any()


def test_a_copy_is_there_after_its_wait_and_not_before():
    c, data = sixteen()
    second = "cp.async.commit_group; cp.async.cg.shared.global [%r3+2048], [%rd20], 16; cp.async.commit_group;"
    body = f"{COPY} cp.async.cg.shared.global [%r3], [%rd20], 16; {second} cp.async.wait_group KEEP; {SHOW}"
    assert not launch(body.replace("KEEP", "1"), c, data).findings and np.array_equal(c, data)
    c[:] = 0
    assert kinds(launch(body.replace("KEEP", "2"), c, data)) == ["copy in flight"]
    assert (c == 0xFF).all(), "what was there before the copy: nothing"
    uncommitted = f"{COPY} cp.async.cg.shared.global [%r3], [%rd20], 16; cp.async.wait_group 0; {SHOW}"
    assert kinds(launch(uncommitted, c, data)) == ["copy in flight"]


def test_a_wait_is_for_the_thread_itself():
    """Another thread's copy needs the barrier, too."""
    c, data = sixteen(64)
    copy = "cp.async.cg.shared.global [%r3], [%rd20], 16; cp.async.wait_all;"
    body = f"{COPY} {copy} BARRIER xor.b32 %r3, %r3, 512; {SHOW}"
    assert not launch(body.replace("BARRIER", "bar.sync 0;"), c, data, block=(64,)).findings
    assert np.array_equal(c, np.roll(data, 32, axis=0))
    assert "shared race" in kinds(launch(body.replace("BARRIER", ""), c, data, block=(64,)))


def test_a_copy_may_not_overtake_the_readers_of_what_it_replaces():
    """The write may happen at once when the copy is issued, so that is when it is checked."""
    c, data = sixteen(64)
    body = (
        f"{COPY} st.shared.v4.u32 [%r3], {{%r0, %r0, %r0, %r0}}; bar.sync 0; xor.b32 %r8, %r3, 512;"
        "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r8];"
        "BARRIER cp.async.cg.shared.global [%r3], [%rd20], 16; cp.async.wait_all;"
    )
    assert not launch(body.replace("BARRIER", "bar.sync 0;"), c, data, block=(64,)).findings
    result = launch(body.replace("BARRIER", ""), c, data, block=(64,))
    assert any(f.kind == "shared race" and f.place.text.startswith("cp.async.cg") for f in result.findings)


def test_copies_are_counted_on_both_sides():
    c, data = sixteen()
    room = np.zeros(len(data) * 16 + 128, np.uint8)
    start = -room.ctypes.data % 128  # copies go by lines of 128 bytes
    data = room[start : start + len(data) * 16].reshape(-1, 16)
    opcode = "cp.async.cg.shared.global [%r3], [%rd20], 16"
    result = launch(f"{COPY} {opcode}; cp.async.wait_all;", c, data)
    counted = {name: executed(result, opcode, name) for name in ("requests", "wavefronts", "conflicts", "bytes")}
    assert counted == {"requests": 1, "wavefronts": 0, "conflicts": 0, "bytes": 512}
    assert executed(result, opcode, "sectors") == 16
    outside = launch(f"{COPY} add.s64 %rd20, %rd20, 16; {opcode};", c, data)
    assert kinds(outside) == ["out of bounds global"] and outside.findings[0].thread == (31, 0, 0)


DOUBLES = r"""
#include <mma.h>
using namespace nvcuda;
template <class A, class B>
__global__ void product(const double *a, const double *b, const double *c, double *d, int lda, int ldb) {
  __shared__ double tile[64];
  wmma::fragment<wmma::matrix_a, 8, 8, 4, double, A> left;
  wmma::fragment<wmma::matrix_b, 8, 8, 4, double, B> right;
  wmma::fragment<wmma::accumulator, 8, 8, 4, double> sum;
  wmma::load_matrix_sync(left, a, lda);
  wmma::load_matrix_sync(right, b, ldb);
  wmma::load_matrix_sync(sum, c, 8, wmma::mem_row_major);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(tile, sum, 8, wmma::mem_col_major);
  __syncwarp();
  wmma::load_matrix_sync(sum, tile, 8, wmma::mem_col_major);
  wmma::store_matrix_sync(d, sum, 8, wmma::mem_row_major);
}
"""


@pytest.mark.core(every=4)
@pytest.mark.parametrize("rows", ["row", "col"])
@pytest.mark.parametrize("columns", ["row", "col"])
def test_wmma_of_doubles(rows, columns):
    rng = np.random.default_rng(7)
    a, b, c = rng.standard_normal((8, 4)), rng.standard_normal((4, 8)), rng.standard_normal((8, 8))
    d = np.zeros((8, 8))
    stored_a, stored_b = (np.ascontiguousarray(x if how == "row" else x.T) for x, how in ((a, rows), (b, columns)))
    name = f"product<nvcuda::wmma::{rows}_major, nvcuda::wmma::{columns}_major>"
    args = stored_a, stored_b, c, d, stored_a.shape[1], stored_b.shape[1]
    report = cudaemu.load(DOUBLES).launch(name, 1, 32, *args)
    assert report.ok, report
    assert np.allclose(d, a @ b + c, rtol=1e-15, atol=1e-15)
    assert report.counters["instructions.mma"] == 1 and report.counters["tensor_flops"] == 2 * 8 * 8 * 4
