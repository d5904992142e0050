"""wgmma: its products in all shapes, types and layouts, against NumPy; and what the sanitizer finds."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cudaemu import engine
from cudaemu.report import add_up
from cudaemu.trace import Access
from tests.cudaemu.machine import launch_kernel
from tests.cudaemu.sources import HARDWARE
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
    wrapped, types = 2147483647 + 32 * 127 * 127 - 2**32, ".s32.s8.s8"
    for name, expected in ((types, wrapped), (".satfinite" + types, 2147483647), (types + ".satfinite", 2147483647)):
        body = "".join(f"mov.b32 %d{n}, 2147483647;" for n in range(4))
        body += f"mov.u64 %rd8, {Layout().descriptor(64)}; mov.u64 %rd9, {Layout(start=4096).descriptor(8)}; {FENCE}"
        body += f"wgmma.mma_async.sync.aligned.m64n8k32{name} {listed('d', 4)}, %rd8, %rd9, 1; {WAIT}"
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


def operands(m: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [m, 16] and B [n, 16] of fp16 numbers, and shared memory that has them at bytes 0 and 4096."""
    rng = np.random.default_rng(0)
    left, right = numbers(rng, "f16", m, 16), numbers(rng, "f16", n, 16)
    memory = np.zeros(8192, np.uint8)
    place(encode(left, "f16"), Layout(), memory)
    place(encode(right, "f16"), Layout(start=4096), memory)
    return left, right, memory


def test_the_warps_of_two_warpgroups():
    """Each warpgroup has a product of its own."""
    left, right, memory = operands(128, 32)
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


def test_a_compiler_may_move_accumulators_before_the_wait():
    """nvcc takes `mov.b32 %r, %f` past `wgmma.wait_group`, whose asm names no register: ptxas sees to it."""
    left, right, memory = operands(64, 8)
    body = f"mov.u64 %rd8, {Layout().descriptor(64)}; mov.u64 %rd9, {Layout(start=4096).descriptor(8)}; {zero(4)}"
    body += f"{FENCE} {SMALL} {listed('d', 4)}, %rd8, %rd9, 0, 1, 1, 0, 0; {COMMIT}"
    body += "".join(f"mov.b32 %r{20 + n}, %d{n};" for n in range(4)) + "wgmma.wait_group.sync.aligned 0;"
    body += "".join(f"mov.b32 %d{n}, %r{20 + n};" for n in range(4))
    out = np.zeros((64, 8), np.float32)
    result = run(body + store(4, 8, False), memory, out)
    assert result.findings == [], result.findings
    np.testing.assert_array_equal(out, left @ right.T)


def groups(keep: int, wrong: bool = False):
    left, right, memory = operands(64, 8)
    out = np.full((64, 8), 99, np.float32)
    places = {"a": Layout().descriptor(64), "b": Layout(start=4096).descriptor(8)}
    body = "mov.u64 %rd8, {a}; mov.u64 %rd9, {b};".format(**places) + FENCE
    for first in (0, 4):
        body += f"{SMALL} {listed('d', 4, first)}, %rd8, %rd9, 0, 1, 1, 0, 0; {COMMIT}"
    body += f"wgmma.wait_group.sync.aligned {keep};"
    first = 4 if wrong else 0  # those of the second
    result = run(zero(8) + body + store(4, 8, False, first) + "wgmma.wait_group.sync.aligned 0;", memory, out)
    return out, left @ right.T, result


def test_a_wait_for_all_but_the_last_group():
    out, expected, result = groups(1)
    assert result.findings == [], result.findings
    np.testing.assert_array_equal(out, expected)


def found(result) -> set[tuple[str, str]]:
    """What was found: kind, and the beginning of the instruction."""
    return {(each.kind, each.place.text.split(",")[0]) for each in result.findings}


def test_what_is_not_waited_for_has_not_come():
    out, expected, result = groups(1, wrong=True)
    assert not np.array_equal(out, expected)
    assert found(result) == {("wgmma in flight", f"st.global.b32 [%rd6 + {at}]") for at in (0, 4, 256, 260)}, (
        result.findings
    )


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


# ---- the sanitizer ---------------------------------------------------------------------------------------------------

OPERANDS = f"mov.u64 %rd8, {HERE.descriptor(64)}; mov.u64 %rd9, {Layout(start=4096).descriptor(8)}; {zero(8)}"
PRODUCT = f"{SMALL} {listed('d', 4)}, %rd8, %rd9, 1, 1, 1, 0, 0;"
OTHER = f"{SMALL} {listed('d', 4, 4)}, %rd8, %rd9, 1, 1, 1, 0, 0;"
TF32 = PRODUCT.replace("m64n8k16.f32.f16.f16", "m64n8k8.f32.tf32.tf32").replace("1, 0, 0;", "1;")
WRITE = "mov.u32 %r20, s; mad.lo.u32 %r20, %r0, 4, %r20;"  # the thread's word of A
PLAIN = "st.shared.u32 [%r20], %r0;"
OWN = "mov.u32 %r20, s; mad.lo.u32 %r20, %r0, 16, %r20; st.shared.v4.u32 [%r20], {%r0, %r0, %r0, %r0};"  # its warp's
BARRIER = "bar.sync 0;"
PROXY = "fence.proxy.async;"
KIND, STORE = PRODUCT.split(",")[0], "st.shared.u32 [%r20]"


def look(body: str, threads: int = 128, before: str = OPERANDS, **options):
    result = run(
        before + body, np.zeros(16384, np.uint8), np.zeros((threads // 2, 8), np.float32), threads=threads, **options
    )
    return found(result), result


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (FENCE + PRODUCT + WAIT + "st.global.b32 [%rd0], %d0;", set()),
        (FENCE + PRODUCT + PRODUCT + WAIT + FENCE + PRODUCT + OTHER + WAIT, set()),
        # accumulators, before they are waited for
        (FENCE + PRODUCT + "st.global.b32 [%rd0], %d0;" + WAIT, {("wgmma in flight", "st.global.b32 [%rd0]")}),
        (FENCE + PRODUCT + "add.f32 %d0, %d5, 0f00000000;" + WAIT, {("wgmma in flight", "add.f32 %d0")}),
        (FENCE + PRODUCT + "mov.b32 %d3, 0;" + WAIT, {("wgmma in flight", "mov.b32 %d3")}),
        (FENCE + PRODUCT + COMMIT + OTHER + COMMIT + "wgmma.wait_group.sync.aligned 1; st.global.b32 [%rd0], %d3;"
         "wgmma.wait_group.sync.aligned 0;", set()),
        (FENCE + PRODUCT + COMMIT + OTHER + COMMIT + "wgmma.wait_group.sync.aligned 1; st.global.b32 [%rd0], %d4;"
         "wgmma.wait_group.sync.aligned 0;", {("wgmma in flight", "st.global.b32 [%rd0]")}),
        # ... and of another shape
        (FENCE + PRODUCT + TF32 + WAIT, {("wgmma in flight", TF32.split(",")[0])}),
        # no fence
        (PRODUCT + WAIT, {("missing wgmma.fence", KIND)}),
        (FENCE + PRODUCT + WAIT + PRODUCT + WAIT, set()),  # nobody else has used the accumulators
        (FENCE + PRODUCT + WAIT + "add.f32 %d0, %d0, %d0;" + PRODUCT + WAIT, {("missing wgmma.fence", KIND)}),
        (FENCE + PRODUCT + WAIT + "add.f32 %d0, %d0, %d0;" + FENCE + PRODUCT + WAIT, set()),
        # no wait
        (FENCE + PRODUCT + COMMIT, {("wgmma in flight", KIND)}),
        (FENCE + PRODUCT + "wgmma.wait_group.sync.aligned 0;", {("wgmma in flight", KIND)}),  # it is in no group
        # operands written before: the proxy's fence, and the barrier
        (WRITE + PLAIN + PROXY + BARRIER + FENCE + PRODUCT + WAIT, set()),
        (WRITE + PLAIN + BARRIER + PROXY + FENCE + PRODUCT + WAIT, set()),
        (WRITE + PLAIN + BARRIER + FENCE + PRODUCT + WAIT, {("missing proxy fence", KIND)}),
        (WRITE + PROXY + PLAIN + BARRIER + FENCE + PRODUCT + WAIT, {("missing proxy fence", KIND)}),
        (WRITE + PLAIN + PROXY + FENCE + PRODUCT + WAIT, {("shared race", KIND)}),
        # a warp reads its own 16 rows of A, and all of B
        (OWN + PROXY + FENCE + PRODUCT + WAIT, set()),
        (OWN + FENCE + PRODUCT + WAIT, {("missing proxy fence", KIND)}),
        (OWN.replace("%r0, 16,", "%r0, -16,").replace("[%r20]", "[%r20 + 2032]") + PROXY + FENCE + PRODUCT + WAIT,
         {("shared race", KIND)}),
        (OWN.replace("[%r20]", "[%r20 + 4096]") + PROXY + FENCE + PRODUCT + WAIT, {("shared race", KIND)}),
        # ... and afterwards
        (WRITE + FENCE + PRODUCT + WAIT + BARRIER + PLAIN, set()),
        (WRITE + FENCE + PRODUCT + PLAIN + WAIT, {("wgmma in flight", STORE)}),
        (WRITE + FENCE + PRODUCT + COMMIT + BARRIER + PLAIN + "wgmma.wait_group.sync.aligned 0;",
         {("wgmma in flight", STORE)}),
        (WRITE + FENCE + PRODUCT + WAIT + PLAIN, set()),  # the warps of a warpgroup wait for the same product
        (WRITE + FENCE + PRODUCT + COMMIT + OTHER + COMMIT + "wgmma.wait_group.sync.aligned 1;" + BARRIER + PLAIN
         + "wgmma.wait_group.sync.aligned 0;", {("wgmma in flight", STORE)}),
    ],
)  # fmt: skip
def test_what_is_found(body, expected):
    kinds, result = look(body)
    assert kinds == expected, result.findings


def test_what_a_finding_says():
    _, result = look(FENCE + PRODUCT + "st.global.b32 [%rd0], %d0;" + WAIT)
    assert result.findings[0].other_place.text.startswith(KIND)
    _, result = look(WRITE + PLAIN + BARRIER + FENCE + PRODUCT + WAIT)
    assert result.findings[0].other_place.text.startswith(STORE) and result.findings[0].address < 512
    _, result = look(WRITE + FENCE + PRODUCT + COMMIT + BARRIER + PLAIN + "wgmma.wait_group.sync.aligned 0;")
    assert all(each.other_place.text.startswith(KIND) for each in result.findings)


@pytest.mark.parametrize("fence", [True, False])
def test_a_copy_of_cp_async_needs_the_proxy_fence_after_its_wait(fence):
    copy = "cp.async.ca.shared.global [%r20], [%rd1], 4; cp.async.commit_group; {} cp.async.wait_group 0; {}"
    body = WRITE + copy.format(*(("", PROXY) if fence else (PROXY, ""))) + BARRIER + FENCE + PRODUCT + WAIT
    assert look(body)[0] == (set() if fence else {("missing proxy fence", KIND)})


@pytest.mark.parametrize("fence", [True, False])
def test_who_waits_for_an_mbarrier_knows_of_the_proxy_fence(fence):
    body = f""".shared .align 8 .b64 m; setp.eq.u32 %p4, %r0, 0; @%p4 mbarrier.init.shared::cta.b64 [m], 128; {BARRIER}
        {WRITE} {PLAIN} {PROXY if fence else ""} mbarrier.arrive.shared::cta.b64 _, [m];
        W: mbarrier.try_wait.parity.shared::cta.b64 %p5, [m], 0; @!%p5 bra W; {FENCE} {PRODUCT} {WAIT}"""
    assert look(body)[0] == (set() if fence else {("missing proxy fence", KIND)})


@pytest.mark.parametrize("wait_first", [True, False])
@pytest.mark.parametrize("who", ["all", "one"])
def test_an_operand_is_given_back_after_the_wait(wait_first, who):
    """Warps 0 to 3 multiply, all of their threads or one of them arrives, warp 4 waits for that and writes."""
    wait, arrive = "wgmma.wait_group.sync.aligned 0;", "mbarrier.arrive.shared::cta.b64 _, [m];"
    if who == "one":
        arrive = "setp.eq.u32 %p6, %r0, 64; @%p6 " + arrive
    body = f""".shared .align 8 .b64 m; setp.eq.u32 %p4, %r0, 0; {BARRIER}
        @%p4 mbarrier.init.shared::cta.b64 [m], {128 if who == "all" else 1}; {BARRIER}
        setp.ge.u32 %p3, %r0, 128; @%p3 bra WRITES;
        {FENCE} {PRODUCT} {COMMIT} {wait + arrive if wait_first else arrive + wait} bra OUT;
        WRITES: setp.ge.u32 %p3, %r0, 160; @%p3 bra OUT;
        W: mbarrier.try_wait.parity.shared::cta.b64 %p5, [m], 0; @!%p5 bra W; mov.u32 %r20, s;
        mad.lo.u32 %r20, %r1, 4, %r20; {PLAIN} OUT:"""
    kinds, result = look(body, threads=256)
    assert kinds == (set() if wait_first else {("wgmma in flight", STORE)}), result.findings


def test_a_wait_is_for_all_warps_of_the_warpgroup():
    """Warp 4 gives an operand back when it has waited, and warp 0 overwrites it. Warps 5 to 7 come late."""
    body = f""".shared .align 8 .b64 m; setp.eq.u32 %p4, %r0, 0; @%p4 mbarrier.init.shared::cta.b64 [m], 1; {BARRIER}
        setp.ge.u32 %p3, %r0, 128; @%p3 bra MULTIPLIES; setp.ge.u32 %p3, %r0, 32; @%p3 bra OUT;
        W: mbarrier.try_wait.parity.shared::cta.b64 %p5, [m], 0; @!%p5 bra W;
        mov.u32 %r21, -1; mov.u32 %r20, s; mad.lo.u32 %r20, %r1, 16, %r20;
        st.shared.v4.u32 [%r20], {{%r21, %r21, %r21, %r21}}; st.shared.v4.u32 [%r20 + 512], {{%r21, %r21, %r21, %r21}};
        st.shared.v4.u32 [%r20 + 1024], {{%r21, %r21, %r21, %r21}}; bra OUT;
        MULTIPLIES: setp.lt.u32 %p3, %r0, 160; mov.u32 %r22, 0; @%p3 bra NOW;
        LATE: add.u32 %r22, %r22, 1; setp.lt.u32 %p6, %r22, 20000; @%p6 bra LATE;
        NOW: {FENCE} {PRODUCT} {WAIT} setp.eq.u32 %p6, %r0, 128; @%p6 mbarrier.arrive.shared::cta.b64 _, [m];
        {store(4, 8, False)} OUT:"""
    out = np.full((128, 8), 99, np.float32)
    result = run(OPERANDS + body, np.zeros(16384, np.uint8), out, threads=256)
    assert result.findings == [], result.findings
    assert not out[64:].any()


def test_what_nobody_wrote():
    body = (
        f".shared .align 1024 .b8 t[4096]; mov.u64 %rd8, {Layout(start=16384).descriptor(64)}; {FENCE} {PRODUCT} {WAIT}"
    )
    kinds, result = look(body)
    assert kinds == {("uninitialised shared read", KIND)} and 16384 <= result.findings[0].address < 18432


def test_what_is_beyond_shared_memory():
    kinds, result = look(f"mov.u64 %rd8, {Layout(start=15360).descriptor(64)}; {FENCE} {PRODUCT} {WAIT}")
    assert kinds == {("out of bounds shared", KIND)} and 16384 <= result.findings[0].address < 18432


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_swizzled_matrix_begins_with_a_pattern(swizzle):
    for start in range(0, 16 * swizzle, 16):
        descriptor = Layout(swizzle, start=start).descriptor(64)
        for base in (0, start // 128 % 8):
            kinds, result = look(f"mov.u64 %rd8, {descriptor | base << 49}; {FENCE} {PRODUCT} {WAIT}")
            right = (start // 128 - base) % (swizzle // 16) == 0
            assert kinds == (set() if right else {("misaligned", KIND)}), (start, base, result.findings)


def test_a_warpgroup_executes_together():
    apart = {("warp divergence", KIND)}
    last = "setp.ge.u32 %p3, %r0, 96;"
    body = FENCE + PRODUCT + WAIT
    assert look(body, threads=64)[0] == apart, "two warps are no warpgroup"
    assert look(last + f"@%p3 bra OUT; {body} OUT:")[0] == apart, "the last warp is not there"
    kinds, result = look(last + f"@%p3 add.u64 %rd8, %rd8, 2; {body}")
    assert kinds == apart and "other" in result.findings[0].message, "another descriptor"
    kinds, result = look(last + f"@%p3 bra ELSE; {body} bra OUT; ELSE: {body} OUT:")
    assert kinds == apart and result.findings[0].other_place is not None, "another instruction"


def test_registers_of_warpgroups():
    def registers(less: int, more: int, blocks: int = 1, warp: int = 0) -> set[str]:
        text = f""".version 8.3
            .target sm_90a
            .address_size 64
            .visible .entry k() .maxntid 256 .minnctapersm {blocks} {{
            .reg .pred %p<2>; .reg .b32 %r<2>;
            mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, {128 + 32 * warp}; @%p0 bra LESS;
            setmaxnreg.inc.sync.aligned.u32 {more}; bra OUT;
            LESS: setmaxnreg.dec.sync.aligned.u32 {less}; OUT: ret; }}"""
        return {each.kind for each in launch_kernel(engine.Module(text), "k", block=(256,)).findings}

    assert registers(24, 232) == registers(40, 216, 2) == set()
    assert registers(40, 224, 2) == {"registers"}
    assert registers(24, 232, 1, warp=1) == {"warp divergence"}
    alone = "setp.ge.u32 %p0, %r0, 32; @%p0 bra OUT; setmaxnreg.dec.sync.aligned.u32 40; OUT:"
    _, result = look(alone)
    assert [each.place.text for each in result.findings] == ["setmaxnreg.dec.sync.aligned.u32 40"], "and no more"
    assert registers(25, 232) == registers(16, 232) == registers(24, 264) == {"unknown instruction"}


# ---- counters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_registers", [True, False])
def test_what_it_counts(in_registers):
    _, _, result = multiply("f16", columns=96, a=None if in_registers else HERE, times=3)
    counted = add_up(result.counters, result.kernel, {}).total
    assert counted["instructions.wgmma"] == 3 * 4
    assert counted.tensor_flops == 3 * 2 * 64 * 96 * 16
    assert counted.wgmma_bytes == 3 * 32 * (96 + (0 if in_registers else 64))
    assert counted.shared_load_bytes == counted.shared_load_wavefronts == 0


def test_what_it_traces():
    """The pieces of 16 bytes that it reads, each once."""
    b = Layout(128, start=4096)
    body = f"{OPERANDS} mov.u64 %rd9, {b.descriptor(40)}; {FENCE}" + PRODUCT.replace("m64n8", "m64n40").replace(
        listed("d", 4), listed("d", 20)
    )
    memory, out = np.zeros(16384, np.uint8), np.zeros((64, 40), np.float32)
    result = run(zero(20) + body + WAIT, memory, out, trace=range(1))
    rows = result.trace[result.trace["kind"] == Access.WGMMA]
    pieces = {at // 16 for each in (HERE.offsets(64, 2), b.offsets(40, 2)) for at in each.flat}
    assert (rows["size"] == 16).all() and sorted(rows["addr"] // 16) == sorted(pieces)


# ---- recorded on an H200 ---------------------------------------------------------------------------------------------


@pytest.mark.core(every=3)
@pytest.mark.parametrize(("probe", "lines"), [("wgmma_layouts", 326), ("wgmma_rounding", 660), ("stmatrix_elect", 8)])
def test_as_on_an_h200(probe, lines):
    """Where descriptors point, swizzled, transposed, with base offsets; the last bit of sums of all types; stmatrix."""
    source = HARDWARE / f"{probe}.cu"
    command = [sys.executable, "-m", "cudaemu", "--arch", "9.0a", "--no-sanitize", "-q", str(source)]
    done = subprocess.run(command, cwd=source.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recorded = source.with_suffix(".txt").read_text().splitlines()
    assert len(recorded) == lines and done.stdout.splitlines() == recorded
