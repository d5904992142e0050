"""wgmma: its products in all shapes, types and layouts, against NumPy; and what the sanitizer finds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cudaemu.warpgroups import FENCE, WAIT, Layout, encode, listed, place, run, store, zero

WIDE = [*range(8, 257, 8)]
NARROW = [8, 16, 24, *range(32, 257, 16)]  # of integers
SUMS = {"f16": ("f32", "f16"), "e4m3": ("f32", "f16"), "e5m2": ("f32", "f16"), "s8": ("s32",), "u8": ("s32",)}
HERE, AWAY = Layout(), Layout(start=96 << 10)
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}


def numbers(rng: np.random.Generator, type_: str, *shape: int) -> np.ndarray:
    """Small ones, whose sums are exact in any type."""
    return rng.integers(0 if type_ == "u8" else -3, 4, shape).astype(np.float64)


def fragment(a: np.ndarray, type_: str) -> np.ndarray:
    """A as the registers of 128 threads have it: 4 words for each."""
    bits = encode(a, type_)
    per = 4 // bits.itemsize
    thread, register, element = np.meshgrid(np.arange(128), np.arange(4), np.arange(per), indexing="ij")
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (register % 2)
    column = thread % 4 * per + element + 4 * per * (register // 2)
    return np.ascontiguousarray(bits[row, column]).view(np.uint32).reshape(128, 4)


def multiply(
    a_type: str, b_type: str = "", columns: int = 64, to: str = "f32", *, a: Layout | None = HERE, b: Layout = AWAY,
    scale: str = "1", factors: tuple[int, int] = (1, 1), times: int = 1, start: int = 0,
):  # fmt: skip
    """D (64 × columns), what it must be, and the launch. `a`: None if it is in registers. D starts with `start`."""
    rng, b_type = np.random.default_rng(0), b_type or a_type
    left, right = (numbers(rng, type_, rows, DEPTH[a_type]) for type_, rows in ((a_type, 64), (b_type, columns)))
    memory = np.full(160 << 10, 0xAA, np.uint8)
    if a is not None:
        place(encode(left, a_type), a, memory)
    place(encode(right, b_type), b, memory)
    halves = to == "f16"
    count = columns // (4 if halves else 2)
    out = np.zeros((64, columns), {"f32": np.float32, "f16": np.float16, "s32": np.int32}[to])
    first = np.array([start, start], out.dtype).view(np.uint32)[0]
    body = "".join(f"mov.b32 %d{n}, {first};" for n in range(count))
    body += "mad.wide.u32 %rd7, %r0, 16, %rd2; ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%rd7];" if a is None else ""
    body += f"mov.u64 %rd8, {0 if a is None else a.descriptor(64)}; mov.u64 %rd9, {b.descriptor(columns)};"
    rest = [scale]
    if to != "s32":
        rest += map(str, factors)
    if a_type in ("f16", "bf16"):
        rest += [str(int(layout.transposed)) for layout in (a, b) if layout is not None]
    name = f"m64n{columns}k{DEPTH[a_type]}.{to}.{a_type}.{b_type}"
    first = "%rd8" if a is not None else listed("a", 4)
    body += "setp.eq.u32 %p1, 0, 0; setp.ne.u32 %p2, 0, 0;" + FENCE
    body += f"wgmma.mma_async.sync.aligned.{name} {listed('d', count)}, {first}, %rd9, {', '.join(rest)};" * times
    body += WAIT + store(count, columns, halves)
    result = run(body, memory, out, *([fragment(left, a_type)] if a is None else []))
    sign = factors[0] * factors[1]
    expected = sign * times * (left @ right.T) + (start if scale in ("1", "%p1") else 0)
    if scale in ("0", "%p2"):
        expected = sign * (left @ right.T)
    return out.astype(np.float64), expected, result


def check(*args, **options) -> None:
    out, expected, result = multiply(*args, **options)
    assert result.findings == [], result.findings
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("columns", WIDE)
def test_every_width(columns):
    check("f16", columns=columns)
    check("bf16", columns=columns, a=None)


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(
    ("a_type", "b_type"),
    [(t, t) for t in DEPTH] + [("e4m3", "e5m2"), ("e5m2", "e4m3"), ("s8", "u8"), ("u8", "s8")],
)
def test_types(a_type, b_type, in_registers):
    for to in SUMS.get(a_type, ("f32",)):
        for columns in (8, 16, 96, 256):
            for swizzle in (0, 32, 64, 128):
                a = None if in_registers else Layout(swizzle)
                check(a_type, b_type, columns, to, a=a, b=Layout(swizzle, start=65536), times=2, start=3)


LAYOUTS = [
    # K-major
    Layout(0), Layout(0, leading=4096, stride=128), Layout(0, leading=16384, stride=2064), Layout(0, start=48),
    Layout(32), Layout(32, stride=1280), Layout(64), Layout(64, advance=32), Layout(64, stride=4096, advance=32),
    Layout(128), *(Layout(128, start=1024, advance=at) for at in (32, 64, 96)), Layout(128, stride=2048, advance=64),
    # M- or N-major
    Layout(0, True), Layout(0, True, leading=128, stride=256), Layout(0, True, leading=4096, stride=144),
    *(Layout(swizzle, True, start=2048) for swizzle in (32, 64, 128)),
    Layout(32, True, leading=256, stride=8192), Layout(64, True, leading=1024, stride=512),
    Layout(128, True, leading=8192, stride=1024), Layout(128, True, leading=1024, stride=8192),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_layouts(layout):
    for columns in (8, 64, 96):
        check("f16", columns=columns, a=AWAY, b=layout)
    check("bf16", columns=256, a=AWAY, b=Layout(128, layout.transposed))
    check("f16", columns=16, a=layout, b=AWAY)
    if not layout.transposed:
        for type_ in ("tf32", "e4m3", "s8"):
            check(type_, columns=48, to="s32" if type_ == "s8" else "f32", a=layout, b=AWAY)
            check(type_, columns=48, to="s32" if type_ == "s8" else "f32", a=AWAY, b=layout)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_pattern_that_begins_elsewhere_has_a_base_offset(swizzle):
    """The swizzle is that of the address, less the base offset: see the record of the H200."""
    pattern = 8 * swizzle
    here, there = Layout(swizzle), Layout(swizzle, start=3 * 128)
    rng = np.random.default_rng(0)
    left, right = numbers(rng, "f16", 64, 16), numbers(rng, "f16", 8, 16)
    memory = np.zeros(64 << 10, np.uint8)
    place(encode(left, "f16"), Layout(start=32768), memory)
    shifted = np.zeros_like(memory)
    place(encode(right, "f16"), here, shifted)
    memory[3 * 128 : 3 * 128 + pattern] = shifted[:pattern]
    base = 3 & (swizzle // 16 - 1)
    out = np.zeros((64, 8), np.float32)
    body = (
        zero(4)
        + f"mov.u64 %rd8, {Layout(start=32768).descriptor(64)}; mov.u64 %rd9, {there.descriptor(8) | base << 49};"
    )
    body += (
        f"{FENCE} wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {listed('d', 4)}, %rd8, %rd9, 1, 1, 1, 0, 0; {WAIT}"
    )
    result = run(body + store(4, 8, False), memory, out)
    assert result.findings == [], result.findings
    np.testing.assert_array_equal(out, left @ right.T)


@pytest.mark.parametrize("scale", ["0", "1", "%p1", "%p2"])
@pytest.mark.parametrize("factors", [(1, 1), (-1, 1), (1, -1), (-1, -1)])
def test_factors(scale, factors):
    check("f16", columns=24, scale=scale, factors=factors, start=5)
    check("tf32", columns=24, scale=scale, factors=factors, start=5, a=None)


def test_unset_accumulators_are_fine_if_they_are_not_added():
    def found(scale: str) -> list[str]:
        body = f"mov.u64 %rd8, {Layout().descriptor(64)}; setp.ne.u32 %p2, 0, 0; setp.eq.u32 %p1, 0, 0; {FENCE}"
        body += f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {listed('d', 4)}, %rd8, %rd8, {scale}, 1, 1, 0, 0;"
        result = run(body + WAIT + store(4, 8, False), np.zeros(4096, np.uint8), np.zeros((64, 8), np.float32))
        return [finding.kind for finding in result.findings]

    assert found("0") == found("%p2") == []
    assert found("1") == found("%p1") == ["undefined value"]


def test_integers_saturate():
    memory = np.zeros(8192, np.uint8)
    place(np.full((64, 32), 127, np.uint8), Layout(), memory)
    place(np.full((8, 32), 127, np.uint8), Layout(start=4096), memory)
    for name, expected in (("", 2147483647 + 32 * 127 * 127 - 2**32), (".satfinite", 2147483647)):
        body = "".join(f"mov.b32 %d{n}, 2147483647;" for n in range(4))
        body += f"mov.u64 %rd8, {Layout().descriptor(64)}; mov.u64 %rd9, {Layout(start=4096).descriptor(8)}; {FENCE}"
        body += f"wgmma.mma_async.sync.aligned.m64n8k32{name}.s32.s8.s8 {listed('d', 4)}, %rd8, %rd9, 1; {WAIT}"
        out = np.zeros((64, 8), np.int32)
        result = run(body + store(4, 8, False), memory, out)
        assert result.findings == [] and set(out.flat) == {expected}


def test_bits():
    rng = np.random.default_rng(0)
    left, right = (rng.integers(0, 2**32, (rows, 8), np.uint32) for rows in (64, 16))
    memory = np.zeros(8192, np.uint8)
    place(left, Layout(), memory)
    place(right, Layout(start=4096), memory)
    body = f"mov.u64 %rd8, {Layout().descriptor(64)}; mov.u64 %rd9, {Layout(start=4096).descriptor(16)}; {FENCE}"
    body += f"wgmma.mma_async.sync.aligned.m64n16k256.s32.b1.b1.and.popc {listed('d', 8)}, %rd8, %rd9, 0; {WAIT}"
    out = np.zeros((64, 16), np.int32)
    result = run(body + store(8, 16, False), memory, out)
    assert result.findings == []
    expected = [[sum(int(x & y).bit_count() for x, y in zip(a, b, strict=True)) for b in right] for a in left]
    np.testing.assert_array_equal(out, expected)


def test_the_warps_of_two_warpgroups():
    """Each warpgroup has a product of its own."""
    rng = np.random.default_rng(0)
    left, right = numbers(rng, "f16", 128, 16), numbers(rng, "f16", 32, 16)
    memory = np.zeros(8192, np.uint8)
    place(encode(left, "f16"), Layout(), memory)
    place(encode(right, "f16"), Layout(start=4096), memory)
    second = Layout(start=2048).descriptor(64)
    body = f"""mov.u64 %rd8, {Layout().descriptor(64)}; setp.ge.u32 %p3, %r0, 128; @%p3 mov.u64 %rd8, {second};
        mov.u64 %rd9, {Layout(start=4096).descriptor(32)}; {FENCE}
        wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {listed("d", 16)}, %rd8, %rd9, 0, 1, 1, 0, 0; {WAIT}"""
    out = np.zeros((128, 32), np.float32)
    result = run(body + store(16, 32, False), memory, out, threads=256)
    assert result.findings == [], result.findings
    np.testing.assert_array_equal(out, left @ right.T)


SMALL = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
COMMIT = "wgmma.commit_group.sync.aligned;"


def groups(keep: int, wrong: bool = False):
    rng = np.random.default_rng(0)
    left, right = numbers(rng, "f16", 64, 16), numbers(rng, "f16", 8, 16)
    memory = np.zeros(8192, np.uint8)
    place(encode(left, "f16"), Layout(), memory)
    place(encode(right, "f16"), Layout(start=4096), memory)
    out = np.full((64, 8), 99, np.float32)
    places = {"a": Layout().descriptor(64), "b": Layout(start=4096).descriptor(8)}
    body = "mov.u64 %rd8, {a}; mov.u64 %rd9, {b};".format(**places) + FENCE
    for first in (0, 4):
        body += f"{SMALL} {listed('d', 4, first)}, %rd8, %rd9, 0, 1, 1, 0, 0; {COMMIT}"
    body += f"wgmma.wait_group.sync.aligned {keep};"
    if wrong:  # store those of the second
        body += "".join(f"mov.b32 %d{n}, %d{n + 4};" for n in range(4))
    result = run(zero(8) + body + store(4, 8, False) + "wgmma.wait_group.sync.aligned 0;", memory, out)
    return out, left @ right.T, result


def test_a_wait_for_all_but_the_last_group():
    out, expected, result = groups(1)
    assert result.findings == [], result.findings
    np.testing.assert_array_equal(out, expected)


def test_what_is_not_waited_for_has_not_come():
    out, _, _ = groups(1, wrong=True)
    assert not out.any()


@pytest.mark.parametrize(
    "instruction",
    [
        "m64n12k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd8, %rd9, 1, 1, 1, 0, 0;",
        "m64n8k16.f16.bf16.bf16 {%d0, %d1}, %rd8, %rd9, 1, 1, 1, 0, 0;",
        "m64n8k16.f32.f16.f16 {%d0, %d1, %d2}, %rd8, %rd9, 1, 1, 1, 0, 0;",
        "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd8, %rd9, 1, 2, 1, 0, 0;",
        "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd8, %rd9, 1, 1, 1, 0;",
        "m64n8k16.f32.f16.bf16 {%d0, %d1, %d2, %d3}, %rd8, %rd9, 1, 1, 1, 0, 0;",
        "m64n8k8.f32.tf32.tf32 {%d0, %d1, %d2, %d3}, %rd8, %rd9, 1, 1, 1, 0, 0;",
        "m64n40k32.s32.s8.s8 {%d0, %d1, %d2, %d3}, %rd8, %rd9, 1;",
    ],
)
def test_what_is_no_wgmma(instruction):
    body = f"mov.u64 %rd8, 0; mov.u64 %rd9, 0; wgmma.mma_async.sync.aligned.{instruction}"
    result = run(body, np.zeros(4096, np.uint8), np.zeros(1, np.float32))
    assert [finding.kind for finding in result.findings] == ["unknown instruction"], result.findings
