"""Instructions of compute capability 10.x and 12.x, and products of sparse matrices, against NumPy. Layouts are stated
here anew, from the PTX manual; no hardware was asked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import cudaemu
from cudaemu.errors import UserError
from tests.cudaemu.machine import kinds, launch
from tests.cudaemu.test_tensor import braces, c_fragment, load, numbered, packed_a, packed_b, rows_of, store

LANE = np.arange(32)
GROUP, MEMBER = LANE // 4, LANE % 4

# ---- floats of 8 bits and less ----


def _values(exponent: int, fraction: int, infinite: bool = False) -> np.ndarray:
    """The values of a float of so many bits, by its bits; the first half are the positive ones."""
    bits = np.arange(1 << exponent + fraction)
    power, part = bits >> fraction, (bits & (1 << fraction) - 1) / 2.0**fraction
    bias = 2 ** (exponent - 1) - 1
    positive = np.where(power, (1 + part) * 2.0 ** (power - bias), part * 2.0 ** (1 - bias))
    if infinite:
        positive[power == 2**exponent - 1] = [np.inf, np.nan, np.nan, np.nan]
    return np.concatenate([positive, -positive])


E4M3 = _values(4, 3)
E4M3[[127, 255]] = np.nan
VALUES = {
    "e4m3": E4M3,
    "e5m2": _values(5, 2, True),
    "e2m3": _values(2, 3),
    "e3m2": _values(3, 2),
    "e2m1": _values(2, 1),
}
TYPES = sorted(VALUES)


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> np.ndarray:
    """Bits of numbers of that type."""
    finite = np.flatnonzero(np.isfinite(VALUES[kind]) & (np.abs(VALUES[kind]) <= 4096))
    return rng.choice(finite, shape)


def in_bytes(bits: np.ndarray, kind: str) -> np.ndarray:
    """Each in a byte of its own; what pads it is set, too."""
    return bits << 2 | 0xC3 if kind == "e2m1" else bits | (0xC0 if kind in ("e2m3", "e3m2") else 0)


# ---- ldmatrix, stmatrix ----

# Array 1 goes to shared memory, a row of 16 bytes for each lane; array 2 says which row each lane points to: %r8.
FILL = """
    .shared .align 16 .b8 s[1024];
    mov.u32 %r2, s;
    mad.lo.u32 %r3, %r1, 16, %r2;
    mad.wide.u32 %rd20, %r1, 16, %rd1;
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd20];
    st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
    bar.warp.sync -1;
    mad.wide.u32 %rd21, %r1, 4, %rd2;
    ld.global.u32 %r8, [%rd21];
    mad.lo.u32 %r8, %r8, 16, %r2;
"""
FORMATS = {"b8": 8, "b8x16.b6x16_p32": 6, "b8x16.b4x16_p64": 4}


def packed_rows(elements: np.ndarray, bits: int) -> np.ndarray:
    """Rows of 16 elements as 16 bytes each, the first element in the lowest bits; what pads them is set."""
    rows = []
    for row in elements:
        number = sum(int(x) << bits * n for n, x in enumerate(row)) | ((1 << 128) - (1 << 16 * bits)) % (1 << 128)
        rows.append(np.frombuffer(number.to_bytes(16, "little"), np.uint8))
    return np.array(rows)


def words(columns: np.ndarray) -> np.ndarray:
    """[..., 32, 4] bytes as [..., 32] words."""
    return np.ascontiguousarray(columns.astype(np.uint8)).view(np.uint32)[..., 0]


@pytest.mark.parametrize(
    ("shape", "count", "format_"),
    [
        *itertools.product(["m16n16"], (1, 2), FORMATS),
        *itertools.product(["m8n16"], (1, 2, 4), list(FORMATS)[1:]),
    ],
)
def test_ldmatrix_of_bytes(shape, count, format_):
    rng, bits = np.random.default_rng(count), FORMATS[format_]
    elements, order = rng.integers(0, 1 << bits, (32, 16)), rng.permutation(32).astype(np.uint32)
    square = shape == "m16n16"
    c, registers = np.zeros((4, 32), np.uint32), numbered("%r", 10, count * (1 + square))
    opcode = f"ldmatrix.sync.aligned.{shape}.x{count}{'.trans' * square}.shared.{format_}"
    body = FILL + f"{opcode} {braces(registers)}, [%r8];\n" + store(registers)
    assert not launch(body, c, packed_rows(elements, bits), order).findings
    rows, four = elements[order], 4 * MEMBER[:, None] + np.arange(4)
    if square:  # transposed: a lane has 4 neighbours of row g of the transpose, and of row g + 8
        tiles = rows.reshape(2, 16, 16).transpose(0, 2, 1)[:count]
        expected = [words(tile[GROUP[:, None] + 8 * half, four]) for tile in tiles for half in (0, 1)]
    else:
        expected = [words(tile[GROUP[:, None], four]) for tile in rows.reshape(4, 8, 16)[:count]]
    assert np.array_equal(c[: len(registers)], expected) and not c[len(registers) :].any()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_of_bytes(count):
    """A 16 × 8 tile has a word in each lane: rows g and g + 8, two columns; its columns go to memory, 16 bytes each."""
    rng = np.random.default_rng(count)
    tiles = rng.integers(0, 256, (count, 16, 8), np.uint8)
    order = rng.permutation(8 * count).astype(np.uint32)
    rows, columns = GROUP[:, None] + np.array([0, 0, 8, 8]), 2 * MEMBER[:, None] + np.array([0, 1, 0, 1])
    fragments = np.array([words(tile[rows, columns]) for tile in tiles])
    c, where = np.zeros((32, 16), np.uint8), np.resize(order, 32)
    registers = numbered("%r", 10, count)
    opcode = f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8"
    body = f"""{FILL} {load(registers, 3)}
        {opcode} [%r8], {braces(registers)};
        bar.warp.sync -1;
        mad.wide.u32 %rd22, %r1, 16, %rd0;
        ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r3];
        st.global.v4.u32 [%rd22], {{%r4, %r5, %r6, %r7}};"""
    assert not launch(body, c, np.zeros((32, 16), np.uint8), where, fragments).findings
    expected = np.zeros((32, 16), np.uint8)
    expected[order] = tiles.transpose(0, 2, 1).reshape(-1, 16)
    assert np.array_equal(c, expected)


PART = """
    .shared .align 16 .b8 s[512];
    mov.u32 %r2, s;
    mad.lo.u32 %r3, %r1, 16, %r2;
    mov.b64 %rd1, 0x7777777777777777;
    st.shared.b64 [%r3], %rd1;
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.{format} {{%r10}}, [%r3];
    mad.wide.u32 %rd22, %r1, 4, %rd0;
    st.global.u32 [%rd22], %r10;
"""


def test_what_pads_a_row_is_not_read():
    """Of 16 bytes, 16 elements of 4 bits are the first 8; of 6 bits, the first 12."""
    c = np.zeros(32, np.uint32)
    assert not launch(PART.format(format="b4x16_p64"), c).findings and (c == 0x07070707).all()
    assert kinds(launch(PART.format(format="b6x16_p32"), c)) == ["uninitialised shared read"]


# ---- products ----


def product(opcode: str, fragments: list[np.ndarray], more: str = "", extra: tuple[np.ndarray, ...] = ()) -> np.ndarray:
    """D's registers, of those of A, B and C; `more`: operands after them, of which %r50 and up are `extra`."""
    text, names, at = "", [], 10
    for array, fragment in enumerate(fragments, 1):
        names.append(numbered("%r", at, len(fragment)))
        at += len(fragment)
        text += load(names[-1], array)
    for n, _ in enumerate(extra):
        text += load([f"%r{50 + n}"], 4 + n)
    d, floats = np.zeros_like(fragments[2]), len(fragments[2]) == 4 and ".s32" not in opcode
    out, c = numbered("%r", 40, len(d)), names[2]
    if floats:
        text += "".join(f"mov.b32 %f{n}, {name};" for n, name in enumerate(names[2]))
        out, c = numbered("%f", 4, 4), numbered("%f", 0, 4)
    text += f"{opcode} {', '.join(map(braces, (out, names[0], names[1], c)))}{more};"
    if floats:
        text += "".join(f"mov.b32 %r{40 + n}, {name};" for n, name in enumerate(out))
    result = launch(text + store(numbered("%r", 40, len(d))), d, *fragments, *extra)
    assert not result.findings, result.findings
    return d


@pytest.mark.parametrize("accumulator", ["f32", "f16"])
def test_any_small_float_times_any(accumulator):
    kind = {"f32": np.float32, "f16": np.float16}[accumulator]
    for number, (left, right) in enumerate(itertools.product(TYPES, TYPES)):
        rng = np.random.default_rng(number)
        a, b = drawn(rng, left, (16, 32)), drawn(rng, right, (32, 8))
        c = rng.integers(-8, 8, (16, 8)).astype(kind)
        fragments = [packed_a(in_bytes(a, left), 8), packed_b(in_bytes(b, right), 8)]
        opcode = f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.{accumulator}.{left}.{right}.{accumulator}"
        got = product(opcode, [*fragments, c_fragment(c).view(np.uint32)]).view(kind).astype(float)
        terms = VALUES[left][a][:, :, None] * VALUES[right][b][None]
        exact, size = terms.sum(1) + c, np.abs(terms).sum(1) + np.abs(c)
        with np.errstate(over="ignore"):
            expected, unit = c_fragment(exact.astype(kind)).view(kind).astype(float), np.finfo(kind).eps
        alike = np.abs(got - expected) <= 33 * np.finfo(np.float32).eps * spread(size, kind) + unit * np.abs(expected)
        assert (alike | (got == expected)).all(), (left, right)


def spread(values: np.ndarray, kind: type) -> np.ndarray:
    """[16, 8] values in the places of the accumulators, as c_fragment has them."""
    if kind is np.float32:
        return rows_of(values)
    pairs = [np.stack([values[GROUP + 8 * r, 2 * MEMBER + e] for e in (0, 1)], 1) for r in (0, 1)]
    return np.array([pair.ravel() for pair in pairs])


def scales(rng: np.random.Generator, kind: str, size: int) -> np.ndarray:
    """Bytes; what the ones of ue8m0 mean lies near 1."""
    return rng.integers(120, 134, size, np.uint8) if kind == "ue8m0" else rng.integers(1, 127, size, np.uint8)


def scaled(words: np.ndarray, kind: str) -> np.ndarray:
    """[32] words of four scales each as [32, 4] values."""
    parts = words.view(np.uint8).reshape(32, 4)
    return 2.0 ** (parts - 127.0) if kind == "ue8m0" else E4M3[parts & 127]


def check_scaled(kind: str, types: tuple[str, str], parts: int, scale: str, selectors: tuple[int, ...]) -> None:
    """`selectors`: byte and lanes for A, byte and lane for B."""
    depth = 32 if kind == "mxf8f6f4" else 64
    rng = np.random.default_rng(sum(selectors) + parts)
    a, b = drawn(rng, types[0], (16, depth)), drawn(rng, types[1], (depth, 8))
    c = rng.integers(-8, 8, (16, 8)).astype(np.float32)
    data = [scales(rng, scale, 128).view(np.uint32) for _ in "ab"]
    if depth == 32:
        fragments = [packed_a(in_bytes(a, types[0]), 8), packed_b(in_bytes(b, types[1]), 8)]
    else:
        fragments = [packed_a(a, 4), packed_b(b, 4)]
    size = f".scale_vec::{parts}X"
    opcode = (
        f"mma.sync.aligned.m16n8k{depth}.row.col.kind::{kind}.block_scale{size}.f32.{types[0]}.{types[1]}.f32.{scale}"
    )
    a_byte, a_lanes, b_byte, b_lane = selectors
    more = f", %r50, {{{a_byte}, {a_lanes}}}, %r51, {{{b_byte}, {b_lane}}}"
    got = product(opcode, [*fragments, rows_of(c).view(np.uint32)], more, tuple(data)).view(np.float32)
    rows, columns = np.arange(16), np.arange(8)
    of_a = scaled(data[0], scale)[4 * (rows % 8) + 2 * a_lanes + rows // 8][:, a_byte : a_byte + parts]
    of_b = scaled(data[1], scale)[4 * columns + b_lane][:, b_byte : b_byte + parts]
    left = VALUES[types[0]][a] * np.repeat(of_a, depth // parts, 1)
    right = VALUES[types[1]][b] * np.repeat(of_b, depth // parts, 1).T
    exact, size = left @ right + c, np.abs(left) @ np.abs(right) + np.abs(c)
    assert (np.abs(got - rows_of(exact)) <= 65 * np.finfo(np.float32).eps * rows_of(size)).all(), (
        kind,
        types,
        selectors,
    )


def test_scales_of_every_place():
    for selectors in itertools.product(range(4), range(2), range(4), range(4)):
        check_scaled("mxf8f6f4", ("e4m3", "e2m1"), 1, "ue8m0", selectors)
    for selectors in itertools.product((0, 2), range(2), (0, 2), range(4)):
        check_scaled("mxf4", ("e2m1", "e2m1"), 2, "ue8m0", selectors)
        check_scaled("mxf4nvf4", ("e2m1", "e2m1"), 2, "ue8m0", selectors)
    for lanes, lane, scale in itertools.product(range(2), range(4), ("ue8m0", "ue4m3")):
        check_scaled("mxf4nvf4", ("e2m1", "e2m1"), 4, scale, (0, lanes, 0, lane))


@pytest.mark.parametrize("types", list(itertools.product(TYPES, TYPES)), ids="-".join)
@pytest.mark.core(every=8)
def test_scales_of_all_types(types):
    check_scaled("mxf8f6f4", types, 1, "ue8m0", (3, 1, 1, 2))


def test_selectors_in_registers():
    """As nvcc has them that come of an asm's constraint "h"."""
    moves = "mov.b16 %h1, 3; mov.b16 %h2, 1; mov.b16 %h3, 2; mov.b16 %h4, 0;"
    operands = ", %r50, {%h1, %h2}, %r51, {%h3, %h2}"
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 127, (16, 32)), rng.integers(0, 127, (32, 8))
    data = tuple(scales(rng, "ue8m0", 128).view(np.uint32) for _ in "ab")
    fragments = [packed_a(a, 8), packed_b(b, 8), np.zeros((4, 32), np.uint32)]
    opcode = "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0"
    in_registers = product(moves + opcode, fragments, operands, data)
    assert np.array_equal(in_registers, product(opcode, fragments, ", %r50, {3, 1}, %r51, {2, 1}", data))


def test_a_scale_that_is_no_number():
    data = np.full(32, 127 | 255 << 8 | 127 << 16, np.uint32)
    ones = [
        np.full((4, 32), 0x38383838, np.uint32),
        np.full((2, 32), 0x38383838, np.uint32),
        np.zeros((4, 32), np.uint32),
    ]
    opcode = "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0"
    for byte, expected in ((0, 32.0), (1, np.nan)):
        got = product(opcode, ones, f", %r50, {{{byte}, 0}}, %r51, {{2, 0}}", (data, data)).view(np.float32)
        assert np.array_equal(got, np.full((4, 32), expected, np.float32), equal_nan=True)


# ---- clusterlaunchcontrol ----

# Array 0 counts for each block of the grid how often its work was done, array 1 says by which block. %r4: whose work.
START = """
    .shared .align 16 .b8 answer[16]; .shared .align 8 .b64 barrier; .reg .b128 %q;
    mov.u32 %r2, barrier; mov.u32 %r3, answer; mov.u32 %r4, %ctaid.x; mov.u32 %r10, 0;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared.b64 [%r2], 1;
    bar.sync 0;
"""
ASK = """
    @%p0 mbarrier.arrive.expect_tx.shared.b64 %rd10, [%r2], 16;
    @%p0 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], [%r2];
"""
WORK = """
    mad.wide.u32 %rd11, %r4, 4, %rd0; @%p0 red.global.add.u32 [%rd11], 1;
    mad.wide.u32 %rd12, %r4, 4, %rd1; mov.u32 %r5, %ctaid.x; @%p0 st.global.u32 [%rd12], %r5;
"""
WAIT = """
    WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r2], %r10; @!%p1 bra WAIT;
    xor.b32 %r10, %r10, 1;
"""
READ = """
    ld.shared.b128 %q, [%r3];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q;
"""
PLACE = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r4, %q;"
AGAIN = "fence.proxy.async; bar.sync 0; bra LOOP; END: "
STEALS = f"{START} LOOP: {ASK} {WORK} {WAIT} {READ} @!%p2 bra END; {PLACE} {AGAIN}"


def steal(body: str, blocks: int = 12, resident: int = 3, **options):
    done, by = np.zeros(blocks, np.uint32), np.full(blocks, 99, np.uint32)
    result = launch(body, done, by, grid=(blocks,), block=(64,), resident=resident, unwritten=(1,), **options)
    return result, done, by


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_take_over_the_work_of_those_that_wait(threads):
    """The GPU has room for three blocks: these begin with the launch, and the others, in order, when one has ended or
    not at all."""
    result, done, by = steal(STEALS, threads=threads)
    assert not result.findings and result.blocks == 12 and (done == 1).all()
    assert by[:3].tolist() == [0, 1, 2] and set(by[3:]) <= {0, 1, 2}


def test_what_a_block_takes_over_has_not_begun():
    result, done, by = steal(STEALS, resident=100)
    assert not result.findings and (done == 1).all() and by.tolist() == list(range(12)), "there is room for all of them"


def test_who_does_not_go_on_leaves_the_rest_to_others():
    """Each block takes over one other: the next one that waits begins after it."""
    result, done, by = steal(STEALS.replace("bra LOOP;", WORK), threads=1)
    assert not result.findings and (done == 1).all(), result.findings
    assert sorted(np.bincount(by, minlength=12)) == [0] * 6 + [2] * 6


def test_the_place_of_a_block_in_a_grid_of_three_dimensions():
    """Of blocks 13 and 14 there is room for one."""
    body = f"""{START} {ASK} {WAIT} {READ}
        clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r4, %r5, %r6, _}}, %q;
        @%p0 st.global.u32 [%rd0], %r4; @%p0 st.global.u32 [%rd0+4], %r5; @%p0 st.global.u32 [%rd0+8], %r6;"""
    c = np.zeros(3, np.uint32)
    result = launch(body, c, grid=(2, 3, 4), block=(32,), resident=1, blocks=range(13, 15))
    assert not result.findings and c.tolist() == [0, 1, 2]


CLUSTERED = f"""{START} mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, 0;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    LOOP: @%p0 mbarrier.arrive.expect_tx.shared.b64 %rd10, [%r2], 16;
    setp.eq.and.u32 %p3, %r20, 0, %p0;
    @%p3 clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.multicast::cluster::all.b128
        [%rd14], [%rd13];
    {WORK} {WAIT} {READ} @!%p2 bra END; {PLACE} add.u32 %r4, %r4, %r20;
    fence.proxy.async; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; bra LOOP;
    END: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;""".replace(
    "bar.sync 0;",
    """bar.sync 0; cvt.u64.u32 %rd13, %r2; cvta.shared.u64 %rd13, %rd13;
    cvt.u64.u32 %rd14, %r3; cvta.shared.u64 %rd14, %rd14;""",
    1,
)


def test_clusters_are_taken_over_whole_and_all_their_blocks_are_told():
    result, done, by = steal(CLUSTERED, resident=4, cluster=(2,))
    assert not result.findings and (done == 1).all(), result.findings
    assert (by % 2 == np.arange(12) % 2).all() and set(by) == {0, 1, 2, 3}


OVER = f"OVER: {ASK} {WAIT.replace('WAIT', 'TWO')}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param(STEALS.replace(WAIT, ""), "copy in flight", id="the answer is read before it has come"),
        pytest.param(
            STEALS.replace("bar.sync 0; bra", "bra").replace(READ, "bar.sync 0;" + READ),
            "shared race",
            id="or overwritten while others read it",
        ),
        pytest.param(f"{START} {ASK}", "copy in flight", id="its block has ended when it comes"),
        pytest.param(
            STEALS.replace("bra END;", "bra OVER;").replace("END:", OVER), "cancelled launch", id="once too often"
        ),
    ],
)
def test_what_is_found(body, found):
    result, _, _ = steal(body, blocks=6, threads=1)
    assert found in kinds(result), result.findings


def test_the_place_of_no_block_is_undefined():
    """It may be read, as compilers do before they look, but matters not."""
    early = STEALS.replace(f"@!%p2 bra END; {PLACE}", f"{PLACE.replace('%r4', '%r6')} @!%p2 bra END; mov.u32 %r4, %r6;")
    result, done, _ = steal(early)
    assert not result.findings and (done == 1).all()
    used = STEALS.replace("@!%p2 bra END; ", "").replace("bra LOOP; END:", WORK)
    result, _, _ = steal(used, blocks=1)
    assert "undefined value" in kinds(result), result.findings


# ---- mma.sp ----

SPARSE = [
    ("f16", 16, "f32"), ("f16", 32, "f32"), ("f16", 32, "f16"), ("bf16", 16, "f32"), ("bf16", 32, "f32"),
    ("tf32", 8, "f32"), ("tf32", 16, "f32"), ("s8", 32, "s32"), ("u8", 64, "s32"), ("s4", 64, "s32"),
    ("u4", 128, "s32"), ("e4m3", 64, "f32"), ("e5m2", 64, "f16"), ("e2m1", 64, "f32"),
]  # fmt: skip


def compressed(rng: np.random.Generator, depth: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Where the elements of A are that there are, [16, depth / 2], and the bits of each row's metadata."""
    group, bits = (2, 4) if kind == "tf32" else (4, 2)
    pair = 2 if kind in ("s4", "u4") else 1
    columns, metadata = [], []
    for _ in range(16):
        at, word = [], 0
        for n, chunk in enumerate(range(0, depth // pair, group)):
            kept = sorted(rng.choice(group, group // 2, replace=False))
            codes = [0b1110 if kept[0] else 0b0100] if kind == "tf32" else kept
            for e, code in enumerate(codes):
                word |= int(code) << bits * (len(codes) * n + e)
            at += [(chunk + k) * pair + e for k in kept for e in range(pair)]
        columns.append(at)
        metadata.append(word)
    return np.array(columns), np.array(metadata, object)


def metadata_words(rows: np.ndarray, size: int, halves: bool, selector: int) -> np.ndarray:
    """Of each lane, by the manual's figures; what is not asked for is all ones. `size`: bits of a row."""
    out = np.full(32, 0xFFFFFFFF, np.uint64)
    for row, word in enumerate(rows):
        g, below = row % 8, row // 8
        if halves:  # of a register: the lower one for row g, the upper one for row g + 8
            for n in range(size // 16):
                lane = 4 * g + selector * (size // 16) + n
                keep = 0xFFFF << (0 if below else 16)
                out[lane] = int(out[lane]) & keep | (int(word) >> 16 * n & 0xFFFF) << 16 * below
        else:
            for n in range(size // 32):
                out[4 * g + 2 * selector + below + 2 * n] = int(word) >> 32 * n & 0xFFFFFFFF
    return out.astype(np.uint32)


def operand(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, int]:
    """Bits, values, and how many bits an element has."""
    if kind in VALUES:
        bits = drawn(rng, kind, shape)
        return in_bytes(bits, kind), VALUES[kind][bits], 8
    if kind in ("s8", "u8", "s4", "u4"):
        size = int(kind[1])
        low = -(1 << size - 1) if kind[0] == "s" else 0
        values = rng.integers(low, low + (1 << size), shape)
        return values & (1 << size) - 1, values.astype(float), size
    values = rng.integers(-32, 32, shape) / 4  # exact in each of these types
    as_f32 = values.astype(np.float32).view(np.uint32)
    bits = {"f16": values.astype(np.float16).view(np.uint16), "bf16": as_f32 >> 16, "tf32": as_f32}[kind]
    return bits.astype(np.uint64), values, 32 if kind == "tf32" else 16


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("kind", "depth", "accumulator"), SPARSE)
def test_sparse_products(kind, depth, accumulator, ordered):
    rng = np.random.default_rng(depth)
    columns, rows = compressed(rng, depth, kind)
    a_bits, kept, bits = operand(rng, kind, (16, depth // 2))
    b_bits, b, _ = operand(rng, kind, (depth, 8))
    a = np.zeros((16, depth))
    np.put_along_axis(a, columns, kept, 1)
    type_ = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[accumulator]
    c = rng.integers(-8, 8, (16, 8)).astype(type_)
    fragments = [packed_a(a_bits, bits), packed_b(b_bits, bits), c_fragment(c).view(np.uint32)]
    halves, size = bits >= 16, depth // 2 * (4 if kind == "tf32" else 2) // (2 if bits == 4 else 1)
    where = ".kind::f8f6f4" if kind == "e2m1" else ""
    start = f"mma.sp{'::ordered_metadata' * ordered}.sync.aligned.m16n8k{depth}.row.col{where}"
    exact = c_fragment((a @ b + c).astype(type_))
    for selector in range(64 // size):
        words = metadata_words(rows, size, halves, selector)
        got = product(f"{start}.{accumulator}.{kind}.{kind}.{accumulator}", fragments, f", %r50, {selector}", (words,))
        close = np.allclose(got.view(type_), exact.view(type_), rtol=1e-3 if accumulator == "f16" else 1e-5, atol=1e-3)
        assert close, selector


def test_what_is_not_there_is_not_multiplied():
    """A zero of the matrix is none of the product: it makes no NaN with an infinity."""
    columns = np.array([[0, 1, 4, 5, 8, 9, 12, 13]] * 16)
    rows = np.array([0b0100_0100_0100_0100] * 16, object)
    b = np.full((16, 8), np.inf, np.float16)
    b[columns[0]] = 1
    fragments = [
        packed_a(np.full((16, 8), 0x3C00, np.uint64), 16),
        packed_b(b.view(np.uint16), 16),
        np.zeros((4, 32), np.uint32),
    ]
    opcode = "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    got = product(opcode, fragments, ", %r50, 0", (metadata_words(rows, 16, True, 0),))
    assert (got.view(np.float32) == 8).all()


def test_an_undefined_operand_is_named():
    """Of metadata and scales it is the one of A or B to which they belong."""
    accumulators = "{%f0, %f1, %f2, %f3}"
    a, b = braces(numbered("%r", 10, 4)), braces(numbered("%r", 14, 2))
    starts = "".join(f"mov.b32 %r{n}, 0;" for n in range(10, 18)) + "".join(
        f"mov.f32 %f{n}, 0f00000000;" for n in range(4)
    )
    scales = "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0"
    sparse = "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    two = braces(numbered("%r", 10, 2))
    for instruction, operand in (
        (f"{scales} {accumulators}, {a}, {b}, {accumulators}, %r20, {{0, 0}}, %r16, {{0, 0}};", "A"),
        (f"{scales} {accumulators}, {a}, {b}, {accumulators}, %r16, {{0, 0}}, %r20, {{0, 0}};", "B"),
        (f"{sparse} {accumulators}, {two}, {b}, {accumulators}, %r20, 0;", "A"),
        (f"{sparse} {accumulators}, {two}, {{%r14, %r20}}, {accumulators}, %r16, 0;", "B"),
    ):
        (finding,) = launch(starts + instruction, np.zeros(1, np.uint32)).findings
        assert finding.kind == "undefined value" and f" {operand}" in finding.message, finding.message


LAUNCH_CONTROL = """
#include <cuda/ptx>
namespace ptx = cuda::ptx;

__global__ void persistent(int *done) {
  __shared__ alignas(16) __int128 answer;
  __shared__ uint64_t bar;
  if (!threadIdx.x) ptx::mbarrier_init(&bar, 1);
  __syncthreads();
  int block = blockIdx.x, parity = 0;
  for (bool more = true; more; parity ^= 1) {
    if (!threadIdx.x) {
      ptx::fence_proxy_async_generic_sync_restrict(ptx::sem_acquire, ptx::space_cluster, ptx::scope_cluster);
      ptx::clusterlaunchcontrol_try_cancel(&answer, &bar);
      ptx::mbarrier_arrive_expect_tx(ptx::sem_relaxed, ptx::scope_cta, ptx::space_shared, &bar, sizeof answer);
    }
    atomicAdd(&done[block], 1);
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cta, &bar, parity)) {}
    more = ptx::clusterlaunchcontrol_query_cancel_is_canceled(answer);
    if (more) {
      block = ptx::clusterlaunchcontrol_query_cancel_get_first_ctaid_x<int>(answer);
      ptx::fence_proxy_async_generic_sync_restrict(ptx::sem_release, ptx::space_shared, ptx::scope_cluster);
    }
    __syncthreads();
  }
}
"""


@pytest.mark.full
def test_launch_control_of_libcu():
    done = np.zeros(40, np.int32)
    library = cudaemu.load(LAUNCH_CONTROL, arch="10.0", multiprocessors=1)
    report = library.launch("persistent", 40, 512, done)
    assert report.ok and (done == 512).all(), report


SCALED_PRODUCT = """
__global__ void product(const unsigned *a, const unsigned *b, const unsigned *scales, float *d) {
  const unsigned lane = threadIdx.x;
  float c[4] = {};
  asm volatile(
      "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%11, %12}, {%13}, {%14, %15};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[lane]), "r"(a[32 + lane]), "r"(a[64 + lane]), "r"(a[96 + lane]), "r"(b[lane]), "r"(b[32 + lane]),
        "r"(scales[lane]), "h"(short(0)), "h"(short(0)), "r"(scales[lane]), "h"(short(0)), "h"(short(0)));
  for (int n = 0; n < 4; ++n) d[32 * n + lane] = c[n];
}
"""


@pytest.mark.full
@pytest.mark.parametrize(("arch", "error"), [("12.0a", ""), ("12.0", "12.0a"), ("10.0a", "12.0a"), ("9.0a", "12.0a")])
def test_a_product_with_scales_as_cutlass_writes_it(arch, error):
    a, b = np.full((4, 32), 0x38383838, np.uint32), np.full((2, 32), 0x38383838, np.uint32)
    d, scales = np.zeros((4, 32), np.float32), np.full(32, 128, np.uint32)
    if not error:
        report = cudaemu.load(SCALED_PRODUCT, arch=arch).launch("product", 1, 32, a, b, scales, d)
        assert report.ok and (d == 128).all()
        return
    with pytest.raises(UserError, match=rf"block_scale needs compute capability {error}: --arch {error}"):
        cudaemu.load(SCALED_PRODUCT, arch=arch).launch("product", 1, 32, a, b, scales, d)
