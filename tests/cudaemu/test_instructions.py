"""Each instruction of the engine by itself, on edge values, against NumPy or exact arithmetic: see rows.py."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from cudaemu import engine, lower, ptx
from cudaemu.errors import UserError
from tests.cudaemu.rows import (
    ARITHMETIC,
    BITS,
    BLACKWELL,
    BLOCK,
    SENTINEL,
    Row,
    bits_of,
    check,
    edges,
    exact,
    half_of,
    halves,
    launch,
    round_to,
    values_of,
    vector,
)

# ---- integers -------------------------------------------------------------------------------------------------------


def _quotient(a: int, b: int) -> int:  # towards zero; by zero: all ones, as the remainder
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - _quotient(a, b) * b


def _clamp32(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


FIELD = (0, 1, 7, 31, 32, 33, 63, 64, 65, 128, 255)  # positions and lengths of bit fields; PTX defines 0 to 255


def _field(width: int, signed: bool) -> Callable:
    def extract(a: int, position: int, length: int) -> int:
        sign = a >> min(position + length - 1, width - 1) & 1 if signed and length else 0
        bits = [a >> (position + i) & 1 if i < length and position + i < width else sign for i in range(width)]
        return sum(bit << i for i, bit in enumerate(bits))

    return vector(extract)


def _insert(width: int) -> Callable:
    def insert(a: int, b: int, position: int, length: int) -> int:
        for i in range(length):
            if (at := position + i) < width:
                b = b & ~(1 << at) | (a >> i & 1) << at
        return b

    return vector(insert)


def _find(width: int, shift: bool) -> Callable:
    def find(a: int) -> int:
        at = (~a if a < 0 else a).bit_length() - 1
        return at if at < 0 or not shift else width - 1 - at

    return vector(find)


def _truncated24(a: int, signed: bool) -> int:
    a &= 0xFFFFFF
    return a - (1 << 24) if signed and a >> 23 else a


def _permute(mode: str) -> Callable:
    def permute(a: int, b: int, c: int) -> int:
        source = [(b << 32 | a) >> 8 * i & 255 for i in range(8)]
        s = c & 3
        chosen = {
            "": [c >> 4 * i & 7 for i in range(4)],
            "f4e": [s, s + 1, s + 2, s + 3],
            "b4e": [s, (s - 1) % 8, (s - 2) % 8, (s - 3) % 8],
            "rc8": [s] * 4,
            "ecl": [max(s, i) for i in range(4)],
            "ecr": [min(s, i) for i in range(4)],
            "rc16": [0, 1, 0, 1] if s % 2 == 0 else [2, 3, 2, 3],
        }[mode]
        bytes_ = [source[i] for i in chosen]
        if not mode:
            bytes_ = [(255 if byte >> 7 else 0) if c >> 4 * i & 8 else byte for i, byte in enumerate(bytes_)]
        return sum(byte << 8 * i for i, byte in enumerate(bytes_))

    return vector(permute)


def _dot(first: str, second: str, width: int, at: int = 0) -> Callable:
    def parts(value: int, kind: str, bits: int, start: int, count: int) -> list[int]:
        raw = [value >> bits * (start + i) & ((1 << bits) - 1) for i in range(count)]
        return [x - (1 << bits) if kind == "s" and x >> (bits - 1) else x for x in raw]

    count = 32 // width
    return vector(
        lambda a, b, c: (
            c + sum(x * y for x, y in zip(parts(a, first, width, 0, count), parts(b, second, 8, at * count, count)))
        )
    )


def _pack(kind: str) -> Callable:
    bits, signed = int(kind[1:]), kind[0] == "s"
    least = -(1 << bits - 1) if signed else 0

    def pack(a: int, b: int, c: int = 0) -> int:
        high, low = (min(max(x, least), least + (1 << bits) - 1) & (1 << bits) - 1 for x in (a, b))
        return c << 2 * bits | high << bits | low

    return vector(pack)


def _nth_set(mask: int, base: int, n: int) -> int:
    """n is what the row makes of it: -8 to 7."""
    base, n = base & 31, n >> 28
    places = [at for at in (range(base, 32) if n > 0 else range(base, -1, -1)) if mask >> at & 1]
    if n == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    return places[abs(n) - 1] if abs(n) <= len(places) else 0xFFFFFFFF


def _mask(mode: str) -> Callable:
    def mask(position: int, length: int) -> int:
        if mode == "wrap":
            position, length = position & 31, length & 31
        return ((1 << min(length, 32)) - 1) << min(position, 32)

    return vector(mask)


def _extend(mode: str, signed: bool) -> Callable:
    def extend(a: int, width: int) -> int:
        width = width % (1 << 32)
        if mode == "clamp" and width >= 32:
            return a
        width &= 31
        low = a & ((1 << width) - 1)
        return low - (1 << width) if signed and width and low >> (width - 1) else low

    return vector(extend)


def _funnel(direction: str, mode: str) -> Callable:
    def funnel(a: int, b: int, c: int) -> int:
        c = c & 31 if mode == "wrap" else min(c, 32)
        both = b << 32 | a
        return both << c >> 32 if direction == "l" else both >> c

    return vector(funnel)


def _logic(table: int) -> Callable:
    def logic(a: int, b: int, c: int) -> int:
        return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))

    return vector(logic)


COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
TRUTH = "; selp.u32 %d, 1, 0, %p;"  # a predicate as a result


def _packed(function: Callable, count: int, signs: str) -> Callable:
    """A function of the bytes (4) or halves (2) of two registers; `signs`: of the first, of the second, "s" or "u"."""
    bits = 32 // count

    def part(value: int, lane: int, sign: str) -> int:
        field = value >> lane * bits & ((1 << bits) - 1)
        return field - (1 << bits) if sign == "s" and field >> (bits - 1) else field

    def packed(a: int, b: int, *_: int) -> int:
        lanes = [function(part(a, n, signs[0]), part(b, n, signs[1])) for n in range(count)]
        return sum((lane & ((1 << bits) - 1)) << n * bits for n, lane in enumerate(lanes))

    return vector(packed)


def _sum_packed(function: Callable, count: int, signs: str) -> Callable:
    bits = 32 // count
    mask = (1 << bits) - 1
    packed = _packed(function, count, signs)

    def total(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        lanes = packed(a, b)
        return vector(lambda x, y: y + sum(x >> n * bits & mask for n in range(count)))(lanes, c)

    return total


VIDEO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "absdiff": lambda a, b: abs(a - b),
    "min": min,
    "max": max,
    "avrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}


def _packed_rows() -> list[Row]:
    two, three = ("b32",) * 2, ("b32",) * 3
    rows = [Row(f"add.{kind}16x2", "b32", two, _packed(lambda a, b: a + b, 2, kind * 2)) for kind in "us"]
    for name, function in (("min", min), ("max", max)):
        rows += [Row(f"{name}.{kind}16x2", "b32", two, _packed(function, 2, kind * 2)) for kind in "us"]
        relu = lambda a, b, f=function: max(0, f(a, b))  # noqa: E731
        rows.append(Row(f"{name}.relu.s16x2", "b32", two, _packed(relu, 2, "ss")))
        rows.append(Row(f"{name}.relu.s32", "s32", ("s32",) * 2, vector(relu)))
    for count, (name, function) in itertools.product((2, 4), VIDEO.items()):
        opcode = f"v{name}{count}"
        rows.append(Row(f"{opcode}.u32.u32.u32", "b32", three, _packed(function, count, "uu")))
        rows.append(Row(f"{opcode}.s32.s32.u32", "b32", three, _packed(function, count, "su")))
        most = (1 << (32 // count)) - 1
        saturated_ = lambda a, b, f=function, m=most: max(0, min(m, f(a, b)))  # noqa: E731
        rows.append(Row(f"{opcode}.u32.s32.u32.sat", "b32", three, _packed(saturated_, count, "su")))
        low, high = -(most + 1) // 2, most // 2
        saturated_ = lambda a, b, f=function, l=low, h=high: max(l, min(h, f(a, b)))  # noqa: E731, E741
        rows.append(Row(f"{opcode}.s32.s32.s32.sat", "b32", three, _packed(saturated_, count, "ss")))
    for count in (2, 4):
        for name in ("lt", "eq", "ge"):
            compare = lambda a, b, f=COMPARE[name]: int(f(a, b))  # noqa: E731
            rows.append(Row(f"vset{count}.u32.u32.{name}", "b32", three, _packed(compare, count, "uu")))
            rows.append(Row(f"vset{count}.s32.u32.{name}.add", "b32", three, _sum_packed(compare, count, "su")))
        rows.append(Row(f"vabsdiff{count}.u32.u32.u32.add", "b32", three, _sum_packed(VIDEO["absdiff"], count, "uu")))
    return rows


def _integer_rows() -> list[Row]:
    rows = []
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        width, one, two, three = BITS[kind], (kind,), (kind,) * 2, (kind,) * 3
        rows += [
            Row(f"add.{kind}", kind, two, lambda a, b: a + b),
            Row(f"sub.{kind}", kind, two, lambda a, b: a - b),
            Row(f"mul.lo.{kind}", kind, two, lambda a, b: a * b),
            Row(f"mul.hi.{kind}", kind, two, lambda a, b, w=width: a * b >> w),
            Row(f"mad.lo.{kind}", kind, three, lambda a, b, c: a * b + c),
            Row(f"div.{kind}", kind, two, vector(_quotient)),
            Row(f"rem.{kind}", kind, two, vector(_remainder)),
            Row(f"min.{kind}", kind, two, np.minimum),
            Row(f"max.{kind}", kind, two, np.maximum),
            Row(f"sad.{kind}", kind, three, lambda a, b, c: c + abs(a - b)),
            Row(f"shr.{kind}", kind, (kind, "u32"), lambda a, b, w=width: a >> np.minimum(b, w)),
        ]
        rows.append(Row(f"mad.hi.{kind}", kind, three, lambda a, b, c, w=width: (a * b >> w) + c))
        if width < 64:
            wide = f"{kind[0]}{2 * width}"
            rows.append(Row(f"mul.wide.{kind}", wide, two, lambda a, b: a * b))
            rows.append(Row(f"mad.wide.{kind}", wide, (kind, kind, wide), lambda a, b, c: a * b + c))
        if kind[0] == "s":
            rows.append(Row(f"neg.{kind}", kind, one, lambda a: -a))
            rows.append(Row(f"abs.{kind}", kind, one, abs))
        for name, compare in COMPARE.items():
            rows.append(Row(f"setp.{name}.{kind}", "u32", two, compare, f"setp.{name}.{kind} %p, %a, %b" + TRUTH))
        if kind[0] == "u":
            for name, same in UNSIGNED.items():
                rows.append(
                    Row(f"setp.{name}.{kind}", "u32", two, COMPARE[same], f"setp.{name}.{kind} %p, %a, %b" + TRUTH)
                )
        if width >= 32:
            rows += [
                Row(
                    f"bfe.{kind}",
                    kind,
                    (kind, "u32", "u32"),
                    _field(width, kind[0] == "s"),
                    values={1: FIELD, 2: FIELD},
                ),
                Row(f"bfind.{kind}", "u32", one, _find(width, False)),
                Row(f"bfind.shiftamt.{kind}", "u32", one, _find(width, True)),
            ]
    for width in (16, 32, 64):
        kind = f"b{width}"
        one, two = (kind,), (kind,) * 2
        rows += [
            Row(f"and.{kind}", kind, two, lambda a, b: a & b),
            Row(f"or.{kind}", kind, two, lambda a, b: a | b),
            Row(f"xor.{kind}", kind, two, lambda a, b: a ^ b),
            Row(f"not.{kind}", kind, one, lambda a: ~a),
            Row(f"cnot.{kind}", kind, one, lambda a: a == 0),
            Row(f"shl.{kind}", kind, (kind, "u32"), lambda a, b, w=width: a << np.minimum(b, w)),
            Row(f"shr.{kind}", kind, (kind, "u32"), lambda a, b, w=width: a >> np.minimum(b, w)),
            Row(f"mov.{kind}", kind, one, lambda a: a),
            Row(f"setp.eq.{kind}", "u32", two, COMPARE["eq"], f"setp.eq.{kind} %p, %a, %b" + TRUTH),
            Row(
                f"selp.{kind}",
                kind,
                (kind, kind, "s32"),
                lambda a, b, c: np.where(c > 0, a, b),
                f"setp.gt.s32 %p, %c, 0; selp.{kind} %d, %a, %b, %p;",
            ),
            Row(f"slct.{kind}.s32", kind, (kind, kind, "s32"), lambda a, b, c: np.where(c >= 0, a, b)),
            Row(f"slct.{kind}.f32", kind, (kind, kind, "f32"), lambda a, b, c: np.where(c >= 0, a, b)),
        ]
        if width >= 32:
            rows += [
                Row(f"brev.{kind}", kind, one, vector(lambda a, w=width: int(f"{a:0{w}b}"[::-1], 2))),
                Row(f"popc.{kind}", "u32", one, vector(lambda a: a.bit_count())),
                Row(f"clz.{kind}", "u32", one, vector(lambda a, w=width: w - a.bit_length())),
                Row(f"bfi.{kind}", kind, (kind, kind, "u32", "u32"), _insert(width), values={2: FIELD, 3: FIELD}),
            ]
    for kind in ("u32", "s32"):
        signed = kind == "s32"
        product = vector(lambda a, b, s=signed: _truncated24(a, s) * _truncated24(b, s))
        rows += [
            Row(f"mul24.lo.{kind}", kind, (kind,) * 2, product),
            Row(f"mul24.hi.{kind}", kind, (kind,) * 2, lambda a, b, p=product: p(a, b) >> 16),
            Row(f"mad24.lo.{kind}", kind, (kind,) * 3, lambda a, b, c, p=product: p(a, b) + c),
        ]
        rows += [Row(f"szext.{mode}.{kind}", kind, (kind, "u32"), _extend(mode, signed)) for mode in ("clamp", "wrap")]
    rows += [
        Row("add.sat.s32", "s32", ("s32",) * 2, vector(lambda a, b: _clamp32(a + b))),
        Row("sub.sat.s32", "s32", ("s32",) * 2, vector(lambda a, b: _clamp32(a - b))),
        Row("mad.hi.sat.s32", "s32", ("s32",) * 3, vector(lambda a, b, c: _clamp32((a * b >> 32) + c))),
    ]
    rows += [
        Row(f"cvt.pack.sat.{kind}.s32.b32", "b32", ("s32", "s32", "b32"), _pack(kind))
        for kind in ("u2", "s2", "u4", "s4", "u8", "s8")
    ]
    rows += [Row(f"cvt.pack.sat.{kind}.s32", "b32", ("s32", "s32"), _pack(kind)) for kind in ("u16", "s16")]
    rows.append(
        Row(
            "fns.b32",
            "u32",
            ("b32", "b32", "s32"),
            vector(_nth_set),
            "and.b32 %r2, %b, 31; shr.s32 %r4, %c, 28; fns.b32 %d, %a, %r2, %r4;",
        )
    )
    rows += [Row(f"bmsk.{mode}.b32", "b32", ("b32",) * 2, _mask(mode)) for mode in ("clamp", "wrap")]
    rows += [
        Row(f"shf.{direction}.{mode}.b32", "b32", ("b32", "b32", "u32"), _funnel(direction, mode))
        for direction in "lr"
        for mode in ("wrap", "clamp")
    ]
    for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        rows.append(Row(f"prmt.b32.{mode}".rstrip("."), "b32", ("b32",) * 3, _permute(mode)))
    for table in (0x00, 0xFF, 0x96, 0xE8, 0xEA, 0x3C, 0x01):
        rows.append(
            Row(f"lop3.b32 {table:#04x}", "b32", ("b32",) * 3, _logic(table), f"lop3.b32 %d, %a, %b, %c, {table};")
        )
    for first, second in itertools.product("us", repeat=2):
        kinds, result = ("b32", "b32", f"{'s' if 's' in first + second else 'u'}32"), "b32"
        rows.append(Row(f"dp4a.{first}32.{second}32", result, kinds, _dot(first, second, 8)))
        for at, half in enumerate(("lo", "hi")):
            rows.append(Row(f"dp2a.{half}.{first}32.{second}32", result, kinds, _dot(first, second, 16, at)))
    for kind, temporary in (("u32", "%r2"), ("u64", "%w0")):
        two, three, width = (kind,) * 2, (kind,) * 3, BITS[kind]
        rows += [
            Row(
                f"addc.{kind}",
                kind,
                three,
                lambda a, b, c, w=width: c + (a + b >> w),
                f"add.cc.{kind} {temporary}, %a, %b; addc.{kind} %d, %c, 0;",
            ),
            Row(
                f"addc.cc.{kind}",
                kind,
                three,
                lambda a, b, c, w=width: c + (a + b + 0 >> w) + 7 >> w,
                f"add.cc.{kind} {temporary}, %a, %b; addc.cc.{kind} {temporary}, %c, 7; addc.{kind} %d, 0, 0;",
            ),
            Row(  # the carry of a difference says that nothing was borrowed
                f"sub.cc.{kind} and addc",
                kind,
                two,
                lambda a, b: a >= b,
                f"sub.cc.{kind} {temporary}, %a, %b; addc.{kind} %d, 0, 0;",
            ),
            Row(
                f"subc.{kind}",
                kind,
                three,
                lambda a, b, c: c - (a < b),
                f"sub.cc.{kind} {temporary}, %a, %b; subc.{kind} %d, %c, 0;",
            ),
        ]
        for sign in "us":
            for half, shift in (("lo", 0), ("hi", width)):
                name = f"{half}.{sign}{width}"
                rows.append(
                    Row(
                        f"madc.{name}",
                        f"u{width}",
                        (f"{sign}{width}",) * 3,
                        lambda a, b, c, w=width, s=shift: (a * b >> s) + c + 1,
                        f"add.cc.{kind} {temporary}, -1, 1; madc.{name} %d, %a, %b, %c;",
                    )
                )
    for name, operation in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        rows.append(
            Row(
                f"{name}.pred",
                "u32",
                ("s32",) * 2,
                lambda a, b, f=operation: f(a > 0, b > 1).astype(object),
                f"setp.gt.s32 %p, %a, 0; setp.gt.s32 %q, %b, 1; {name}.pred %p, %p, %q" + TRUTH,
            )
        )
        rows.append(
            Row(
                f"setp.gt.{name}.s32",
                "u32",
                ("s32",) * 2,
                lambda a, b, f=operation: f(a > 0, ~(b > 1)).astype(object),
                f"setp.gt.s32 %q, %b, 1; setp.gt.{name}.s32 %p, %a, 0, !%q" + TRUTH,
            )
        )
    rows += [
        Row("not.pred", "u32", ("s32",), lambda a: a <= 0, "setp.gt.s32 %p, %a, 0; not.pred %p, %p" + TRUTH),
        Row("mov.pred", "u32", ("s32",), lambda a: a > 0, "setp.gt.s32 %q, %a, 0; mov.pred %p, %q" + TRUTH),
        Row("setp p|q", "u32", ("s32",) * 2, lambda a, b: a >= b, "setp.lt.s32 %p|%q, %a, %b; selp.u32 %d, 1, 0, %q;"),
        Row("set.lt.u32.s32", "u32", ("s32",) * 2, lambda a, b: np.where(a < b, -1, 0)),
        Row("set.lt.f32.s32", "f32", ("s32",) * 2, lambda a, b: np.where(a < b, 1.0, 0.0)),
        Row("mov.b32 {16, 16}", "b32", ("b16",) * 2, lambda a, b: b << 16 | a, "mov.b32 %d, {%a, %b};"),
        Row("mov.b64 {32, 32}", "b64", ("b32",) * 2, lambda a, b: b << 32 | a, "mov.b64 %d, {%a, %b};"),
        Row(
            "mov.b64 {16 x 4}",
            "b64",
            ("b16",) * 4,
            lambda a, b, c, e: e << 48 | c << 32 | b << 16 | a,
            "mov.b64 %d, {%a, %b, %c, %e};",
        ),
        Row("mov {16, _}, 32", "b16", ("b32",), lambda a: a, "mov.b32 {%d, _}, %a;"),
        Row("mov {_, 16}, 32", "b16", ("b32",), lambda a: a >> 16, "mov.b32 {_, %d}, %a;"),
        Row(
            "mov {32, 32}, 64",
            "b32",
            ("b64",),
            lambda a: (a >> 32) ^ (a & 0xFFFFFFFF),
            "mov.b64 {%r2, %r3}, %a; xor.b32 %d, %r2, %r3;",
        ),
        Row("mov {16 x 4}, 64", "b16", ("b64",), lambda a: a >> 32, "mov.b64 {%h0, %h1, %d, %h2}, %a;"),
        Row(
            "mov.b128",
            "b64",
            ("b64",) * 2,
            lambda a, b: b,
            ".reg .b128 %x, %y; mov.b128 %x, {%a, %b}; mov.b128 %y, %x; mov.b128 {%w0, %d}, %y;",
        ),
    ]
    return rows


# ---- floats ---------------------------------------------------------------------------------------------------------

LOWEST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126}


def flushed(function: Callable, kind: str = "f32") -> Callable:
    """.ftz: subnormal operands and results are zeros of their sign."""

    def flush(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        return np.where(np.abs(x) < LOWEST_NORMAL[kind], np.copysign(0.0, x), x)

    def flushing(*operands: np.ndarray) -> np.ndarray:
        result = function(*(flush(operand).astype(operand.dtype) for operand in operands))
        return flush(values_of(bits_of(result, kind), kind))

    return flushing


def saturated(function: Callable) -> Callable:
    """.sat: into [0, 1]; NaN becomes +0."""

    def saturate(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, np.minimum(x, 1.0), 0.0)

    return lambda *operands: saturate(function(*operands))


def rectified(function: Callable) -> Callable:
    """.relu: what is negative becomes +0; NaN stays."""

    def relu(x: np.ndarray) -> np.ndarray:
        return np.where((x > 0) | np.isnan(x), x, 0.0)

    return lambda *operands: relu(function(*operands))


def lesser(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min: of a NaN and a number the number; -0 is below +0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))


def greater(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))


def or_nan(function: Callable) -> Callable:
    """.NaN: a NaN operand makes a NaN."""
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, function(a, b))


FLOAT_COMPARE = {
    **COMPARE,
    "ne": lambda a, b: (a < b) | (a > b),
    "equ": lambda a, b: (a == b) | np.isnan(a) | np.isnan(b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


def _xor_sign(function: Callable) -> Callable:
    """.xorsign.abs: of the magnitudes, with the product's sign."""

    def signed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.copysign(function(np.abs(a), np.abs(b)), np.where(np.signbit(a) ^ np.signbit(b), -1.0, 1.0))

    return signed


# PTX bounds the error of sin.approx and cos.approx between -2 pi and 2 pi.
ANGLES = [angle for angle in values_of(edges("f32"), "f32") if not abs(angle) > 2 * np.pi or np.isinf(angle)]


def _divide_approximately(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """PTX: a zero for 2^126 < |b| < 2^128, and of an infinite a then a NaN."""
    return np.where(np.abs(b) > 2.0**126, a * np.copysign(np.float32(0), b), a / b)


def _float_rows() -> list[Row]:
    rows = []
    for kind in ("f32", "f64"):
        one, two, three = (kind,), (kind,) * 2, (kind,) * 3
        native = {name: ARITHMETIC[name] for name in ("add", "sub", "mul", "div")}
        rows += [Row(f"{name}.{kind}", kind, two, native[name]) for name in ("add", "sub", "mul")]
        rows.append(Row(f"div.rn.{kind}", kind, two, native["div"]))
        for mode in ("rn", "rz", "rm", "rp"):
            rows += [Row(f"{name}.{mode}.{kind}", kind, two, exact(name, kind, mode)) for name in ("add", "sub", "mul")]
            rows.append(Row(f"fma.{mode}.{kind}", kind, three, exact("fma", kind, mode)))
        rows += [
            Row(f"rcp.rn.{kind}", kind, one, lambda a: 1 / a),
            Row(f"sqrt.rn.{kind}", kind, one, np.sqrt),
            Row(f"neg.{kind}", kind, one, np.negative),
            Row(f"abs.{kind}", kind, one, np.abs),
            Row(f"min.{kind}", kind, two, lesser),
            Row(f"max.{kind}", kind, two, greater),
            Row(f"copysign.{kind}", kind, two, lambda a, b: np.copysign(b, a)),
        ]
        rows += [
            Row(
                f"setp.{name}.{kind}",
                "u32",
                two,
                lambda a, b, f=compare: f(a, b).astype(object),
                f"setp.{name}.{kind} %p, %a, %b" + TRUTH,
            )
            for name, compare in FLOAT_COMPARE.items()
        ]
        normal = {"f32": 2.0**-126, "f64": 2.0**-1022}[kind]
        classes = {
            "finite": np.isfinite,
            "infinite": np.isinf,
            "number": lambda a: ~np.isnan(a),
            "notanumber": np.isnan,
            "normal": lambda a, n=normal: np.isfinite(a) & (np.abs(a) >= n) | (a == 0),  # PTX counts zero as normal
            "subnormal": lambda a, n=normal: (np.abs(a) < n) & (a != 0),
        }
        rows += [
            Row(
                f"testp.{name}.{kind}",
                "u32",
                one,
                lambda a, f=test: f(a).astype(object),
                f"testp.{name}.{kind} %p, %a" + TRUTH,
            )
            for name, test in classes.items()
        ]
    rows += [
        Row("add.ftz.f32", "f32", ("f32",) * 2, flushed(ARITHMETIC["add"])),
        Row("sub.ftz.f32", "f32", ("f32",) * 2, flushed(ARITHMETIC["sub"])),
        Row("mul.ftz.f32", "f32", ("f32",) * 2, flushed(ARITHMETIC["mul"])),
        Row("fma.rn.ftz.f32", "f32", ("f32",) * 3, flushed(exact("fma", "f32"))),
        Row("add.sat.f32", "f32", ("f32",) * 2, saturated(ARITHMETIC["add"])),
        Row("sub.sat.f32", "f32", ("f32",) * 2, saturated(ARITHMETIC["sub"])),
        Row("mul.sat.f32", "f32", ("f32",) * 2, saturated(ARITHMETIC["mul"])),
        Row("fma.rn.sat.f32", "f32", ("f32",) * 3, saturated(exact("fma", "f32"))),
        Row("neg.ftz.f32", "f32", ("f32",), flushed(np.negative)),
        Row("abs.ftz.f32", "f32", ("f32",), flushed(np.abs)),
        Row("min.ftz.f32", "f32", ("f32",) * 2, flushed(lesser)),
        Row("max.ftz.f32", "f32", ("f32",) * 2, flushed(greater)),
        Row("min.NaN.f32", "f32", ("f32",) * 2, or_nan(lesser)),
        Row("max.NaN.f32", "f32", ("f32",) * 2, or_nan(greater)),
        Row("min.xorsign.abs.f32", "f32", ("f32",) * 2, _xor_sign(lesser)),
        Row("max.xorsign.abs.f32", "f32", ("f32",) * 2, _xor_sign(greater)),
        Row(
            "setp.lt.ftz.f32",
            "u32",
            ("f32",) * 2,
            lambda a, b: (np.where(np.abs(a) < 2.0**-126, 0, a) < np.where(np.abs(b) < 2.0**-126, 0, b)).astype(object),
            "setp.lt.ftz.f32 %p, %a, %b" + TRUTH,
        ),
        Row("div.approx.f32", "f32", ("f32",) * 2, _divide_approximately, relative=2.0**-21),
        Row("div.full.f32", "f32", ("f32",) * 2, np.divide, relative=2.0**-21),
        Row("rcp.approx.f32", "f32", ("f32",), lambda a: 1 / a, relative=2.0**-22),
        Row("rcp.approx.ftz.f32", "f32", ("f32",), flushed(lambda a: 1 / a), relative=2.0**-22),
        Row("sqrt.approx.f32", "f32", ("f32",), np.sqrt, relative=2.0**-22),
        Row("rsqrt.approx.f32", "f32", ("f32",), lambda a: 1 / np.sqrt(a.astype(np.float64)), relative=2.0**-22),
        Row("ex2.approx.f32", "f32", ("f32",), lambda a: np.exp2(a.astype(np.float64)), relative=2.0**-22),
        Row("ex2.approx.ftz.f32", "f32", ("f32",), flushed(lambda a: np.exp2(a.astype(np.float64))), relative=2.0**-22),
        Row(
            "lg2.approx.f32",
            "f32",
            ("f32",),
            lambda a: np.log2(a.astype(np.float64)),
            relative=2.0**-22,
            absolute=2.0**-22,
        ),
        Row("sin.approx.f32", "f32", ("f32",), np.sin, absolute=2.0**-20, values={0: ANGLES}),
        Row("cos.approx.f32", "f32", ("f32",), np.cos, absolute=2.0**-20, values={0: ANGLES}),
        Row("tanh.approx.f32", "f32", ("f32",), np.tanh, relative=2.0**-10.9),
    ]
    for name, function in (("min", lesser), ("max", greater)):
        rows.append(Row(f"{name}.NaN.xorsign.abs.f32", "f32", ("f32",) * 2, or_nan(_xor_sign(function))))
    rows += [
        Row("rsqrt.approx.f64", "f64", ("f64",), lambda a: 1 / np.sqrt(a), relative=2.0**-20),
    ]
    for kind in ("f16", "bf16"):
        one, two, three, packed = (kind,), (kind,) * 2, (kind,) * 3, f"{kind}x2"
        scalar = {
            **{name: (two, exact(name, kind)) for name in ("add", "sub", "mul")},
            "fma.rn": (three, exact("fma", kind)),
            "fma.rn.relu": (three, rectified(exact("fma", kind))),
            "neg": (one, np.negative),
            "abs": (one, np.abs),
            "min": (two, lesser),
            "max": (two, greater),
            "min.NaN": (two, or_nan(lesser)),
            "max.NaN": (two, or_nan(greater)),
            "min.xorsign.abs": (two, _xor_sign(lesser)),
            "max.xorsign.abs": (two, _xor_sign(greater)),
        }
        if kind == "f16":
            scalar["fma.rn.sat"] = three, saturated(exact("fma", kind))
            scalar["add.sat"] = two, saturated(ARITHMETIC["add"])
        for name, (operands, function) in scalar.items():
            rows.append(Row(f"{name}.{kind}", kind, operands, function))
            rows.append(Row(f"{name}.{packed}", packed, (packed,) * len(operands), halves(function, kind)))
        for name, compare in FLOAT_COMPARE.items():
            truth = lambda a, b, f=compare: f(a, b).astype(object)  # noqa: E731
            rows.append(Row(f"setp.{name}.{kind}", "u32", two, truth, f"setp.{name}.{kind} %p, %a, %b" + TRUTH))
            rows.append(
                Row(
                    f"setp.{name}.{packed}",
                    "u32",
                    (packed,) * 2,
                    _both(compare, kind),
                    f"setp.{name}.{packed} %p|%q, %a, %b; selp.u32 %d, 1, 0, %p; selp.u32 %r2, 2, 0, %q;"
                    "or.b32 %d, %d, %r2;",
                )
            )
        rows.append(
            Row(
                f"set.gt.{packed}.{packed}", packed, (packed,) * 2, halves(lambda a, b: np.where(a > b, 1.0, 0.0), kind)
            )
        )
        rows.append(
            Row(
                f"set.gtu.{packed}.{packed}",
                packed,
                (packed,) * 2,
                halves(lambda a, b: np.where(a <= b, 0.0, 1.0), kind),
            )
        )
    for kind, ulp in (("f16", 2.0**-9.9), ("bf16", 2.0**-7)):
        packed, ftz = f"{kind}x2", ".ftz" if kind == "bf16" else ""
        exp2, tanh = (lambda a, f=f: f(a.astype(np.float64)) for f in (np.exp2, np.tanh))
        exp2 = flushed(exp2, kind) if ftz else exp2
        for name, function in ((f"ex2.approx{ftz}", exp2), ("tanh.approx", tanh)):
            rows.append(Row(f"{name}.{kind}", kind, (kind,), function, relative=ulp))
            rows.append(Row(f"{name}.{packed}", packed, (packed,), halves(function, kind), relative=ulp))
    return rows


def _both(compare: Callable, kind: str) -> Callable:
    def bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = np.zeros(len(a), np.uint32)
        for position, shift in enumerate((0, 16)):
            out |= compare(half_of(a, shift, kind), half_of(b, shift, kind)).astype(np.uint32) << position
        return out

    return bits


# ---- conversions ----------------------------------------------------------------------------------------------------

ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _limits(kind: str) -> tuple[int, int]:
    width = BITS[kind]
    return (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, (1 << width) - 1)


def _to_integer(kind: str, source: str, mode: str) -> Callable:
    """Rounded, clamped to the type's range; NaN is 0, with 64 bits on either side 1 << (width - 1)."""
    low, high = _limits(kind)
    nan = 1 << (BITS[kind] - 1) if 64 in (BITS[kind], BITS[source]) else 0

    def convert(a: float) -> int:
        if np.isnan(a):
            return nan
        return (high if a > 0 else low) if np.isinf(a) else max(low, min(high, int(ROUND[mode](np.float64(a)))))

    return vector(convert)


def _from_integer(kind: str, mode: str) -> Callable:
    return lambda a: np.array([round_to(Fraction(int(x)), kind, mode) for x in a])


def _narrow(kind: str, mode: str) -> Callable:
    """Float to a smaller float."""

    def convert(a: np.ndarray) -> np.ndarray:
        values = a.astype(np.float64).tolist()
        return np.array(
            [np.copysign(round_to(Fraction(x), kind, mode), x) if np.isfinite(x) and x else x for x in values]
        )

    return convert


def _conversion_rows() -> list[Row]:
    rows = []
    integers = [f"{sign}{width}" for sign in "us" for width in (8, 16, 32, 64)]
    for result, source in itertools.product(integers, repeat=2):
        if result != source:
            rows.append(Row(f"cvt.{result}.{source}", result, (source,), lambda a: a))
            low, high = _limits(result)
            if not (low <= _limits(source)[0] and _limits(source)[1] <= high):
                rows.append(
                    Row(
                        f"cvt.sat.{result}.{source}",
                        result,
                        (source,),
                        vector(lambda a, low=low, high=high: max(low, min(high, a))),
                    )
                )
    for result, source in itertools.product(integers, ("f16", "bf16", "f32", "f64")):
        if source == "bf16" and BITS[result] == 8:
            continue  # no such instruction, nor the other way
        for mode in ROUND:
            rows.append(Row(f"cvt.{mode}.{result}.{source}", result, (source,), _to_integer(result, source, mode)))
    for result, source in itertools.product(("f16", "bf16", "f32", "f64"), integers):
        if result == "bf16" and BITS[source] == 8:
            continue
        for mode in ("rn", "rz", "rm", "rp"):
            rows.append(Row(f"cvt.{mode}.{result}.{source}", result, (source,), _from_integer(result, mode)))
    for result, source in (("f32", "f16"), ("f64", "f16"), ("f32", "bf16"), ("f64", "bf16"), ("f64", "f32")):
        rows.append(Row(f"cvt.{result}.{source}", result, (source,), lambda a: a))
    for result, source, modes in (
        ("f16", "f32", "rn rz"),
        ("bf16", "f32", "rn rz"),
        ("f16", "f64", "rn rz rm rp"),
        ("f32", "f64", "rn rz rm rp"),
    ):
        for mode in modes.split():
            rows.append(Row(f"cvt.{mode}.{result}.{source}", result, (source,), _narrow(result, mode)))
    for kind in ("f16", "bf16"):
        for mode in ("rn", "rz"):

            def pack(a: np.ndarray, b: np.ndarray, k=kind, m=mode) -> np.ndarray:
                high, low = (bits_of(_narrow(k, m)(x), k).astype(np.uint32) for x in (a, b))
                return high << 16 | low

            rows.append(Row(f"cvt.{mode}.{kind}x2.f32", f"{kind}x2", ("f32",) * 2, pack))

        def pack_relu(a: np.ndarray, b: np.ndarray, k=kind) -> np.ndarray:
            high, low = (bits_of(rectified(_narrow(k, "rn"))(x), k).astype(np.uint32) for x in (a, b))
            return high << 16 | low

        rows.append(Row(f"cvt.rn.relu.{kind}x2.f32", f"{kind}x2", ("f32",) * 2, pack_relu))
        rows.append(Row(f"cvt.rn.relu.{kind}.f32", kind, ("f32",), rectified(_narrow(kind, "rn"))))
    for kind in ("f32", "f64"):
        for mode, function in ROUND.items():
            rows.append(Row(f"cvt.{mode}.{kind}.{kind}", kind, (kind,), function))
    rows += [
        Row("cvt.sat.f32.f32", "f32", ("f32",), saturated(lambda a: a)),
        Row("cvt.rn.sat.f32.s32", "f32", ("s32",), saturated(_from_integer("f32", "rn"))),
        Row("cvt.ftz.f32.f16", "f32", ("f16",), lambda a: a),
        Row("cvt.rna.tf32.f32", "b32", ("f32",), _tf32),
        Row(
            "cvt.rna.tf32.f32 of NaNs",
            "b32",
            ("f32",),
            _tf32,
            "cvt.rna.tf32.f32 %d, %a;",
            values={0: np.array(NANS, np.uint32).view(np.float32)},
        ),
    ]
    return rows


# 8-bit floats: torch's type, the largest value, NaN.
FP8 = {"e4m3": (torch.float8_e4m3fn, 448.0, 0x7F), "e5m2": (torch.float8_e5m2, 57344.0, 0x7F)}


def _narrow_fp8(kind: str, relu: bool = False) -> Callable:
    """To the nearest value, the largest one beyond it; NaN stays one."""
    type_, most, nan = FP8[kind]

    def narrow(values: np.ndarray) -> np.ndarray:
        wide = torch.from_numpy(np.asarray(values, np.float32).copy())
        bits = wide.clamp(0.0 if relu else -most, most).to(type_).view(torch.uint8)
        positive = bits & 0x7F if relu else bits  # -0 becomes 0
        return torch.where(wide.isnan(), nan, positive).numpy().astype(np.uint16)

    return narrow


def _widen_fp8(kind: str, to: str, relu: bool, finite: bool = False) -> Callable:
    """A pair of 8 bits each to one of f16 or bf16; `finite`: of an infinity, its largest number."""

    def widen(packed: np.ndarray) -> np.ndarray:
        out = np.zeros(len(packed), np.uint32)
        for shift in (0, 8):
            bits = np.array([int(x) >> shift & 255 for x in packed], np.uint8)
            values = torch.from_numpy(bits).view(FP8[kind][0]).float().numpy()
            values = np.where(np.isnan(values), values, np.maximum(values, 0) + 0.0) if relu else values
            values = (
                np.where(np.isinf(values), np.copysign(float.fromhex("0x1.fep127"), values), values)
                if finite
                else values
            )
            out |= bits_of(values, to).astype(np.uint32) << 2 * shift
        return out

    return widen


EVERY_PAIR = {0: [x | (255 - x) << 8 for x in range(256)]}


def _fp8_rows() -> list[Row]:
    rows = []
    for kind in FP8:
        for relu in (False, True):
            one, name = _narrow_fp8(kind, relu), f"cvt.rn.satfinite{'.relu' * relu}.{kind}x2"
            rows.append(Row(f"{name}.f32", "b16", ("f32",) * 2, lambda a, b, f=one: f(a) << 8 | f(b)))
            rows.append(
                Row(
                    f"{name}.f16x2",
                    "b16",
                    ("f16x2",),
                    lambda a, f=one: f(half_of(a, 16, "f16")) << 8 | f(half_of(a, 0, "f16")),
                )
            )
            opcode = f"cvt.rn{'.relu' * relu}.f16x2.{kind}x2"
            rows.append(Row(opcode, "f16x2", ("b16",), _widen_fp8(kind, "f16", relu), values=EVERY_PAIR))
    return rows


NANS = (0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0x7F802000, 0x7F801FFF, 0xFF800001)  # the last two lose what makes them one


def _tf32(a: np.ndarray) -> np.ndarray:
    """To 10 bits of mantissa, to nearest, ties away from zero; the upper bits of a NaN."""
    bits = a.view(np.uint32)
    return np.where(np.isfinite(a), bits + np.uint32(0x1000), bits) & np.uint32(0xFFFFE000)


# ---- lanes that meet ------------------------------------------------------------------------------------------------


def warps(function: Callable) -> Callable:
    """A function of one warp's values (arrays over its 32 lanes) as one of all."""

    def each(*operands: np.ndarray) -> np.ndarray:
        shaped = [operand.reshape(-1, 32) for operand in operands]
        return np.concatenate([np.asarray(function(*lanes)) for lanes in zip(*shaped)])

    return each


LANE = np.arange(32)


def _shuffle(mode: str, b: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """Source lanes of shfl and whether they are inside, as the manual's pseudo-code has it."""
    segment, clamp = c >> 8 & 31, c & 31
    last = LANE & segment | clamp & ~segment
    source = {"up": LANE - b, "down": LANE + b, "bfly": LANE ^ b, "idx": LANE & segment | b & ~segment}[mode]
    inside = source >= last if mode == "up" else source <= last
    return np.where(inside, source, LANE), inside


def _reduce(operation: Callable) -> Callable:
    return warps(lambda a: np.repeat(operation.reduce(a), 32))


def _warp_rows() -> list[Row]:
    rows = []
    for mode, b, c in itertools.product(
        ("up", "down", "bfly", "idx"), (0, 1, 5, 16, 31, 33), (0, 0x1F, 0x1C03, 0x181F, 0x1000)
    ):
        source, inside = _shuffle(mode, b & 31, c)
        rows.append(
            Row(
                f"shfl.sync.{mode}.b32 {b} {c:#x}",
                "b32",
                ("b32",),
                warps(lambda a, s=source, i=inside: np.where(i, a[s] ^ 1, a[s])),
                f"shfl.sync.{mode}.b32 %d|%p, %a, {b}, {c}, -1; @%p xor.b32 %d, %d, 1;",
                lanes=True,
            )
        )
    positive = "setp.gt.s32 %p, %a, 0;"
    rows += [
        Row(
            "vote.sync.ballot.b32",
            "b32",
            ("s32",),
            warps(lambda a: np.repeat(sum((a > 0).astype(object) << LANE.astype(object)), 32)),
            positive + "vote.sync.ballot.b32 %d, %p, -1;",
            lanes=True,
        ),
        Row(
            "vote.sync.all.pred",
            "u32",
            ("s32",),
            warps(lambda a: np.repeat(np.all(a > 0), 32)),
            positive + "vote.sync.all.pred %p, %p, -1" + TRUTH,
            lanes=True,
        ),
        Row(
            "vote.sync.any.pred",
            "u32",
            ("s32",),
            warps(lambda a: np.repeat(np.any(a > 0), 32)),
            positive + "vote.sync.any.pred %p, %p, -1" + TRUTH,
            lanes=True,
        ),
        Row(
            "vote.sync.uni.pred",
            "u32",
            ("s32",),
            warps(lambda a: np.repeat(len(set(a > 0)) == 1, 32)),
            positive + "vote.sync.uni.pred %p, !%p, -1" + TRUTH,
            lanes=True,
        ),
        Row(
            "vote of odd lanes",
            "b32",
            ("s32",),
            warps(lambda a: np.where(LANE % 2, sum(int(x > 0) << i for i, x in enumerate(a) if i % 2), SENTINEL)),
            positive + "@%odd vote.sync.ballot.b32 %d, %p, 0xaaaaaaaa;",
            lanes=True,
        ),
        Row(
            "activemask.b32",
            "b32",
            ("s32",),
            warps(lambda a: np.where(LANE % 2, 0xAAAAAAAA, SENTINEL)),
            "@%odd activemask.b32 %d;",
            lanes=True,
        ),
        Row(
            "elect.sync",
            "u32",
            ("b32",),
            warps(lambda a: (LANE == 1) * 64 + 1),
            "mov.b32 %d, 1; @%odd elect.sync %r2|%p, 0xaaaaaaaa; and.pred %p, %p, %odd; mov.b32 %d, 1;"
            "@%p mad.lo.u32 %d, %r2, 64, 1;",
            lanes=True,
        ),
    ]
    for width in (32, 64):
        kind = f"b{width}"
        rows += [
            Row(
                f"match.any.sync.{kind}",
                "b32",
                (kind,),
                warps(lambda a: np.array([sum(int(x == y) << i for i, y in enumerate(a)) for x in a], object)),
                f"match.any.sync.{kind} %d, %a, -1;",
                lanes=True,
            ),
            Row(
                f"match.all.sync.{kind}",
                "b32",
                (kind,),
                warps(lambda a: np.repeat(0xFFFFFFFE if len(set(a)) == 1 else 0, 32)),
                f"match.all.sync.{kind} %d|%p, %a, -1; @%p xor.b32 %d, %d, 1;",
                lanes=True,
            ),
        ]
    for name, operation, kinds in (
        ("add", np.add, "u32 s32"),
        ("min", np.minimum, "u32 s32"),
        ("max", np.maximum, "u32 s32"),
        ("and", np.bitwise_and, "b32"),
        ("or", np.bitwise_or, "b32"),
        ("xor", np.bitwise_xor, "b32"),
    ):
        rows += [
            Row(
                f"redux.sync.{name}.{kind}",
                kind,
                (kind,),
                _reduce(operation),
                f"redux.sync.{name}.{kind} %d, %a, -1;",
                lanes=True,
            )
            for kind in kinds.split()
        ]
    return rows


# ---- Blackwell ------------------------------------------------------------------------------------------------------


def _of_magnitudes(function: Callable) -> Callable:
    return lambda *operands: function(*map(np.abs, operands))


def _each_f32(function: Callable) -> Callable:
    """A function of f32, applied to both of a pair."""

    def pairs(*operands: np.ndarray) -> np.ndarray:
        both = [operand.astype(np.uint64).view(np.float32) for operand in operands]
        return bits_of(function(*both), "f32").view(np.uint64)

    return pairs


def _blackwell_rows() -> list[Row]:
    """Of compute capability 10.0 and later. The rules are those of the PTX ISA; no GPU has been asked."""
    rows = []
    for name, function in (("min", lesser), ("max", greater)):
        three = lambda a, b, c, f=function: f(f(a, b), c)  # noqa: E731
        nan = lambda a, b, c, f=three: np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), np.nan, f(a, b, c))  # noqa: E731
        for modifiers, f in (
            ("", three),
            (".ftz", flushed(three)),
            (".NaN", nan),
            (".abs", _of_magnitudes(three)),
            (".NaN.abs", _of_magnitudes(nan)),
        ):
            rows.append(
                Row(f"{name}{modifiers}.f32 of three", "f32", ("f32",) * 3, f, f"{name}{modifiers}.f32 %d, %a, %b, %c;")
            )
        one = lambda a, f=function: functools.reduce(f, a)  # noqa: E731
        reduced = lambda a, f=one: f(a)  # noqa: E731
        or_nan_ = lambda a, f=one: np.float32(np.nan) if np.isnan(a).any() else f(a)  # noqa: E731
        for modifiers, f in (
            ("", reduced),
            (".abs", _of_magnitudes(reduced)),
            (".NaN", or_nan_),
            (".abs.NaN", _of_magnitudes(or_nan_)),
        ):
            opcode = f"redux.sync.{name}{modifiers}.f32"
            repeated = warps(lambda a, f=f: np.repeat(f(a), 32))
            rows.append(Row(opcode, "f32", ("f32",), repeated, f"{opcode} %d, %a, -1;", lanes=True))
    for name, count in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)):
        for mode in ("rn", "rz", "rm", "rp"):
            function = exact(name, "f32", mode)
            rows.append(Row(f"{name}.{mode}.f32x2", "f32x2", ("f32x2",) * count, _each_f32(function)))
        ftz = _each_f32(flushed(exact(name, "f32")))
        rows.append(Row(f"{name}.rn.ftz.f32x2", "f32x2", ("f32x2",) * count, ftz))
    for kind, (values, apart) in _small_formats().items():
        for relu, mode in itertools.product((False, True), ("rn", "rz")):
            suffix = ".relu" * relu
            narrow = _narrow_small(values, relu, mode)
            byte = apart == 4  # the register of a pair of 4 bits is a byte
            into = ".reg .b8 %x, %y;"
            for source, operands in (("f32", ("f32",) * 2), ("f16x2", ("f16x2",)), ("bf16x2", ("bf16x2",))):
                opcode = f"cvt.{mode}.satfinite{suffix}.{kind}x2.{source}"
                arguments = ", ".join(f"%{letter}" for letter in "ab"[: len(operands)])
                if source == "f32":
                    function = lambda a, b, f=narrow, s=apart: f(a) << s | f(b)  # noqa: E731
                else:
                    function = lambda a, f=narrow, s=apart, k=source[:-2]: (  # noqa: E731
                        f(half_of(a, 16, k)) << s | f(half_of(a, 0, k))
                    )
                body = f"{into} {opcode} %x, {arguments}; mov.b16 %d, {{%x, 0}};" if byte else None
                rows.append(Row(opcode, "b16", operands, function, body))
            for half in ("f16", "bf16") if mode == "rn" else ():
                opcode = f"cvt.rn{suffix}.{half}x2.{kind}x2"

                def widen(packed: np.ndarray, v=values, s=apart, r=relu, k=half) -> np.ndarray:
                    out = np.zeros(len(packed), np.uint32)
                    for n in (0, 1):
                        found = v[[int(x) >> s * n & len(v) - 1 for x in packed]]
                        out |= bits_of(np.where(found > 0, found, 0) if r else found, k).astype(np.uint32) << 16 * n
                    return out

                tried = {0: [x | (len(values) - 1 - x) << apart for x in range(len(values))]}
                body = f"{into} mov.b16 {{%x, %y}}, %a; {opcode} %d, %x;" if byte else None
                rows.append(Row(opcode, f"{half}x2", ("b16",), widen, body, values=tried))
    for kind, relu in itertools.product(FP8, (False, True)):
        opcode = f"cvt.rn.satfinite{'.relu' * relu}.{kind}x2.bf16x2"
        one = _narrow_fp8(kind, relu)
        pair = lambda a, f=one: f(half_of(a, 16, "bf16")) << 8 | f(half_of(a, 0, "bf16"))  # noqa: E731
        rows.append(Row(opcode, "b16", ("bf16x2",), pair))
        for finite in (False, True):
            opcode = f"cvt.rn{'.satfinite' * finite}{'.relu' * relu}.bf16x2.{kind}x2"
            widen = _widen_fp8(kind, "bf16", relu, finite)
            rows.append(Row(opcode, "bf16x2", ("b16",), widen, values=EVERY_PAIR))
    for mode, satfinite in itertools.product(("rz", "rp"), (False, True)):
        scale = _scale(mode, satfinite)
        start = f"cvt.{mode}{'.satfinite' * satfinite}.ue8m0x2"
        rows.append(Row(f"{start}.f32", "b16", ("f32",) * 2, lambda a, b, f=scale: f(a) << 8 | f(b)))
        pair = lambda a, f=scale: f(half_of(a, 16, "bf16")) << 8 | f(half_of(a, 0, "bf16"))  # noqa: E731
        rows.append(Row(f"{start}.bf16x2", "b16", ("bf16x2",), pair))

    def widen_scales(packed: np.ndarray) -> np.ndarray:
        out = np.zeros(len(packed), np.uint32)
        for n in (0, 8):
            exponents = np.array([int(x) >> n & 255 for x in packed])
            scales = np.where(exponents == 255, np.nan, 2.0 ** (exponents - 127.0))
            out |= bits_of(scales, "bf16").astype(np.uint32) << 2 * n
        return out

    rows.append(Row("cvt.rn.bf16x2.ue8m0x2", "bf16x2", ("b16",), widen_scales, values=EVERY_PAIR))
    return [replace(row, header=BLACKWELL) for row in rows]


def _small_formats() -> dict[str, tuple[np.ndarray, int]]:
    """The values of each format by their bits, and how many bits a pair's elements are apart."""
    formats = {}
    for kind, exponents, fraction, apart in (("e2m1", 2, 1, 4), ("e2m3", 2, 3, 8), ("e3m2", 3, 2, 8)):
        bias = 2 ** (exponents - 1) - 1
        bits = np.arange(1 << exponents + fraction)
        exponent, part = bits >> fraction, (bits & (1 << fraction) - 1) / 2.0**fraction
        positive = np.where(exponent, (1 + part) * 2.0 ** (exponent - bias), part * 2.0 ** (1 - bias))
        formats[kind] = np.concatenate([positive, -positive]), apart
    return formats


def _narrow_small(values: np.ndarray, relu: bool, mode: str) -> Callable:
    """To the nearest value, a tie to the even one, or (rz) towards zero; the largest one beyond it, and of a NaN."""
    positive = values[: len(values) // 2]

    def narrow(x: float) -> int:
        if np.isnan(x):
            return len(positive) - 1
        magnitude = min(abs(float(x)), positive[-1])
        distance = np.where((mode == "rz") & (positive > magnitude), np.inf, np.abs(positive - magnitude))
        nearest = min(np.flatnonzero(distance == distance.min()), key=lambda bits: bits & 1)
        if relu and not x > 0:
            return 0
        return int(nearest) + len(positive) * bool(np.signbit(x))

    return lambda a: np.array([narrow(x) for x in a], np.uint16)


def _scale(mode: str, satfinite: bool) -> Callable:
    """ue8m0: the exponent of 2^-127 to 2^127 at or next to a value; the sign is dropped."""

    def scale(x: float) -> int:
        if np.isnan(x):
            return 255
        powers = 2.0 ** np.arange(-127.0, 128.0)
        if mode == "rz":
            found = int(np.searchsorted(powers, abs(float(x)), side="right")) - 1
        else:
            found = int(np.searchsorted(powers, abs(float(x)), side="left"))
        found = 255 if np.isinf(x) else max(found, 0)
        return min(found, 254) if satfinite else found

    return lambda a: np.array([scale(x) for x in a], np.uint16)


# ---- memory ---------------------------------------------------------------------------------------------------------

# A slot of 16 bytes per thread: %r3 is its 32-bit shared address, %w3 the generic one.
SLOT = (
    ".shared .align 16 .b8 slots[2048]; mov.u32 %r3, slots; mad.lo.u32 %r3, %r1, 16, %r3; "
    "cvt.u64.u32 %w3, %r3; cvta.shared.u64 %w3, %w3;"
)
# The slot of the block's next thread.
NEXT = (
    "bar.sync 0; and.b32 %r4, %r1, 127; add.u32 %r4, %r4, 1; and.b32 %r4, %r4, 127; mov.u32 %r5, slots;"
    "mad.lo.u32 %r3, %r4, 16, %r5;"
)


def neighbour(function: Callable) -> Callable:
    """What the next thread of the block (around the end) has: of arrays over the block's threads."""

    def following(values: np.ndarray) -> np.ndarray:
        return np.roll(values.reshape(-1, BLOCK), -1, axis=1).ravel()

    return lambda *operands: function(*map(following, operands))


ATOMIC = {
    "add": lambda a, b: a + b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda a, b: b,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda a, b: np.where(a >= b, 0, a + 1),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1),
}
ATOMIC_TYPES = {
    "add": "u32 s32 u64",
    "and": "b32 b64",
    "or": "b32 b64",
    "xor": "b32 b64",
    "exch": "b32 b64",
    "min": "u32 s32 u64 s64",
    "max": "u32 s32 u64 s64",
    "inc": "u32",
    "dec": "u32",
}


def _memory_rows() -> list[Row]:
    rows = []
    for width in (8, 16, 32, 64):  # a store and a load of the next thread's slot
        kind = f"b{width}" if width > 8 else "u8"
        for store, load, address in ((".shared",) * 2 + ("%r3",), ("", ".shared", "%w3")):
            rows.append(
                Row(
                    f"st{store}.{kind} ld{load}.{kind}",
                    kind,
                    (kind,),
                    neighbour(lambda a: a),
                    f"{SLOT} st{store}.{kind} [{address}], %a; {NEXT} ld{load}.{kind} %d, [%r3];",
                    lanes=True,
                )
            )
    for sign in "us":
        for width, wide in ((8, 16), (8, 32), (8, 64), (16, 32), (16, 64), (32, 64)):
            rows.append(
                Row(
                    f"ld.shared.{sign}{width} to {wide}",
                    f"{sign}{wide}",
                    (f"{sign}{width}",),
                    lambda a: a,
                    f"{SLOT} st.shared.{'u8' if width == 8 else f'b{width}'} [%r3], %a;"
                    f"ld.shared.{sign}{width} %d, [%r3];",
                    lanes=True,
                )
            )
    rows += [
        Row(
            "v2.b32",
            "b32",
            ("b32",) * 2,
            neighbour(lambda a, b: a - b),
            f"{SLOT} st.shared.v2.b32 [%r3], {{%a, %b}}; {NEXT} ld.shared.v2.b32 {{%r4, %r5}}, [%r3];"
            "sub.u32 %d, %r4, %r5;",
            lanes=True,
        ),
        Row(
            "v4.b32",
            "b32",
            ("b32",) * 4,
            neighbour(lambda a, b, c, e: a - 3 * b + 5 * c - 7 * e),
            f"{SLOT} st.shared.v4.b32 [%r3], {{%a, %b, %c, %e}}; {NEXT} ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3];"
            "mad.lo.s32 %d, %r5, -3, %r4; mad.lo.s32 %d, %r6, 5, %d; mad.lo.s32 %d, %r7, -7, %d;",
            lanes=True,
        ),
        Row(
            "v4.b16",
            "b16",
            ("b16",) * 4,
            neighbour(lambda a, b, c, e: a - b + c - e),
            f"{SLOT} st.shared.v4.b16 [%r3], {{%a, %b, %c, %e}}; {NEXT} ld.shared.v4.b16 {{%h0, %h1, %h2, %h3}}, [%r3];"
            "sub.u16 %d, %h0, %h1; add.u16 %d, %d, %h2; sub.u16 %d, %d, %h3;",
            lanes=True,
        ),
        Row(
            "v2.b64",
            "b64",
            ("b64",) * 2,
            neighbour(lambda a, b: a - b),
            f"{SLOT} st.shared.v2.b64 [%r3], {{%a, %b}}; {NEXT} ld.shared.v2.b64 {{%w0, %w1}}, [%r3];"
            "sub.u64 %d, %w0, %w1;",
            lanes=True,
        ),
        Row(
            "v2.u8",
            "u16",
            ("u8",) * 2,
            neighbour(lambda a, b: a * 3 + b),
            f"{SLOT} st.shared.v2.u8 [%r3], {{%a, %b}}; {NEXT} ld.shared.v2.u8 {{%h0, %h1}}, [%r3];"
            "mad.lo.u16 %d, %h0, 3, %h1;",
            lanes=True,
        ),
        Row(
            "ld.local st.local",
            "b32",
            ("b32",) * 2,
            lambda a, b: a - b,
            ".local .align 8 .b8 mine[16]; mov.u32 %r2, mine; st.local.b32 [%r2 + 4], %a; st.local.b32 [mine + 8], %b;"
            "ld.local.b32 %r4, [mine + 4]; ld.local.b32 %r5, [%r2 + 8]; sub.u32 %d, %r4, %r5;",
        ),
        Row(
            "local, generic",
            "b32",
            ("b32",) * 2,
            lambda a, b: a - b,
            ".local .align 8 .b8 mine[16]; mov.u64 %w0, mine; cvta.local.u64 %w0, %w0; st.b32 [%w0 + 4], %a;"
            "st.b32 [%w0 + 8], %b;"
            "ld.b32 %r5, [%w0 + 8]; ld.local.b32 %r4, [mine + 4]; sub.u32 %d, %r4, %r5;",
        ),
        Row(
            "isspacep",
            "u32",
            ("b32",),
            lambda a: np.full(len(a), 0b01),
            f"{SLOT} isspacep.shared %p, %w3; isspacep.global %q, %w3; selp.u32 %d, 1, 0, %p; @%q or.b32 %d, %d, 2;",
            lanes=True,
        ),
        Row(
            "isspacep.global",
            "u32",
            ("b32",),
            lambda a: np.full(len(a), 0b10),
            "isspacep.shared %p, %at; isspacep.global %q, %at; selp.u32 %d, 1, 0, %p; @%q or.b32 %d, %d, 2;",
            lanes=True,
        ),
        Row(
            "cvta.to.shared",
            "b32",
            ("b32",),
            lambda a: a,
            f"{SLOT} st.b32 [%w3], %a; cvta.to.shared.u64 %w0, %w3; cvt.u32.u64 %r4, %w0; ld.shared.b32 %d, [%r4];",
            lanes=True,
        ),
        Row(
            "isspacep.local",
            "u32",
            ("b32",),
            lambda a: np.full(len(a), 1),
            ".local .b32 mine; mov.u64 %w0, mine; cvta.local.u64 %w0, %w0; isspacep.local %p, %w0" + TRUTH,
            lanes=True,
        ),
    ]
    for name, function in ATOMIC.items():
        for kind in ATOMIC_TYPES[name].split():
            rows += _atomic(f"{name}.{kind}", kind, (kind, kind), function, "%b")
    for kind in ("b16", "b32", "b64"):
        rows += _atomic(f"cas.{kind}", kind, (kind,) * 3, lambda a, b, c: np.where(a == b, c, a), "%b, %c")
    for kind in ("f32", "f64"):
        rows += _atomic(f"add.{kind}", kind, (kind,) * 2, lambda a, b: a + b, "%b")
    for kind in ("f16", "bf16"):
        rows += _atomic(f"add.noftz.{kind}", kind, (kind,) * 2, exact("add", kind), "%b")
        rows += _atomic(f"add.noftz.{kind}x2", f"{kind}x2", (f"{kind}x2",) * 2, halves(exact("add", kind), kind), "%b")
    return rows


def _atomic(name: str, kind: str, operands: tuple[str, ...], function: Callable, values: str) -> list[Row]:
    bits = f"b{BITS[kind]}"
    start = f"{SLOT} st.shared.{bits} [%r3], %a;"
    return [
        Row(
            f"atom.shared.{name} old",
            kind,
            operands,
            lambda a, *_: a,
            f"{start} atom.shared.{name} %d, [%r3], {values};",
            lanes=True,
        ),
        Row(
            f"atom.{name} new",
            kind,
            operands,
            function,
            f"{start} atom.{name} %d, [%w3], {values}; ld.shared.{bits} %d, [%r3];",
            lanes=True,
        ),
    ]


# ---- matrices -------------------------------------------------------------------------------------------------------

GROUP, QUAD = LANE // 4, LANE % 4  # g and t of the manual's fragment figures


def _matrices(count: int, transposed: bool) -> Callable:
    """ldmatrix: row r of matrix n is the 16 bytes in the slot of lane 8n + r. The registers, weighted and summed."""

    def load(*words: np.ndarray) -> np.ndarray:
        halves = np.array([[int(word) >> shift & 0xFFFF for word in lane for shift in (0, 16)] for lane in zip(*words)])
        total = np.zeros(32, object)
        for n, weight in zip(range(count), (1, 3, 5, 7)):
            matrix = halves[8 * n : 8 * n + 8]
            matrix = matrix.T if transposed else matrix
            total += weight * (matrix[GROUP, 2 * QUAD] | matrix[GROUP, 2 * QUAD + 1] << 16).astype(object)
        return total

    return warps(load)


def _store_matrix(count: int, transposed: bool) -> Callable:
    """stmatrix of registers a, b, c, e, and what lies then in the lane's own slot: its words, weighted and summed."""

    def store(*registers: np.ndarray) -> np.ndarray:
        total = np.zeros(32, object)
        for n in range(count):
            matrix = np.zeros((8, 8), np.int64)
            for half in range(2):
                values = np.array([int(x) >> 16 * half & 0xFFFF for x in registers[n]])
                matrix[(2 * QUAD + half, GROUP) if transposed else (GROUP, 2 * QUAD + half)] = values
            words = (matrix[:, 0::2] | matrix[:, 1::2] << 16).astype(object)
            total[8 * n : 8 * n + 8] = words @ np.array([1, 3, 5, 7], object)
        return total

    return warps(store)


def _matrix_rows() -> list[Row]:
    rows = []
    four = ("b32",) * 4
    for count, transposed in itertools.product((1, 2, 4), (False, True)):
        form = f"sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}"
        for generic in (False, True) if count == 4 else (False,):
            registers = ", ".join(f"%r{4 + n}" for n in range(count))
            weighted = "".join(f"mad.lo.u32 %d, %r{5 + n}, {3 + 2 * n}, %d;" for n in range(count - 1))
            rows.append(
                Row(
                    f"ldmatrix.{form}{' generic' if generic else ''}",
                    "b32",
                    four,
                    _matrices(count, transposed),
                    f"{SLOT} st.shared.v4.b32 [%r3], {{%a, %b, %c, %e}}; bar.warp.sync -1;"
                    f"ldmatrix.{form}{'' if generic else '.shared'}.b16 "
                    f"{{{registers}}}, [{'%w3' if generic else '%r3'}];"
                    f"mov.u32 %d, %r4; {weighted}",
                    lanes=True,
                )
            )
        registers = ", ".join(f"%{letter}" for letter in "abce"[:count])
        rows.append(
            Row(
                f"stmatrix.{form}",
                "b32",
                four,
                _store_matrix(count, transposed),
                f"{SLOT} st.shared.v4.b32 [%r3], {{0, 0, 0, 0}}; bar.warp.sync -1;"
                f"stmatrix.{form}.shared.b16 [%r3], {{{registers}}};"
                "bar.warp.sync -1; ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3]; mad.lo.u32 %d, %r5, 3, %r4;"
                "mad.lo.u32 %d, %r6, 5, %d; mad.lo.u32 %d, %r7, 7, %d;",
                lanes=True,
            )
        )

    def transpose(register: np.ndarray) -> np.ndarray:
        matrix = np.array([[int(x) & 0xFFFF, int(x) >> 16] for x in register]).reshape(8, 8).T
        return (matrix[GROUP, 2 * QUAD] | matrix[GROUP, 2 * QUAD + 1] << 16).astype(object)

    rows.append(Row("movmatrix.sync.aligned.m8n8.trans.b16", "b32", ("b32",), warps(transpose), lanes=True))

    # cp.async: from where the operand lies in global memory to the lane's slot.
    done = "cp.async.commit_group; cp.async.wait_group 0;"
    for kind in ("b32", "b64"):
        rows.append(
            Row(
                f"cp.async.ca {kind}",
                kind,
                (kind,),
                lambda a: a,
                f"{SLOT} cp.async.ca.shared.global [%r3], [%at], {BITS[kind] // 8}; {done} ld.shared.{kind} %d, [%r3];",
                lanes=True,
            )
        )
    aligned = "and.b64 %w0, %at, -16;"
    for cache in ("ca", "cg"):
        rows.append(
            Row(
                f"cp.async.{cache} 16 bytes",
                "b64",
                ("b64",),
                lambda a: np.repeat(a[1::2], 2),
                f"{SLOT} {aligned} cp.async.{cache}.shared.global.L2::128B [%r3], [%w0], 16; cp.async.wait_all;"
                "ld.shared.b64 %d, [%r3 + 8];",
                lanes=True,
            )
        )
    rows += [
        Row(
            "cp.async, source bytes",
            "b32",
            ("b32", "b64"),
            lambda a, b: np.repeat(b[0::2], 2) & ((1 << 8 * np.minimum(a % 17, 4)) - 1),
            f"{SLOT} {aligned} rem.u32 %r2, %a, 17; cp.async.cg.shared.global [%r3], [%w0], 16, %r2;"
            f"{done} ld.shared.b32 %d, [%r3];",
            lanes=True,
        ),
        Row(
            "cp.async, ignored",
            "b64",
            ("b64",),
            lambda a: np.where(np.arange(len(a)) % 2, 0, a),
            f"{SLOT} cp.async.ca.shared.global [%r3], [%at], 8, %odd; {done} ld.shared.b64 %d, [%r3];",
            lanes=True,
        ),
        Row(
            "cp.async, two groups",
            "b32",
            ("b32",) * 2,
            lambda a, b: a - b,
            f"{SLOT} ld.param.u64 %base, [k_param_0]; mad.wide.u32 %w1, %index, 4, %base;"
            "cp.async.ca.shared.global [%r3], [%w1], 4; cp.async.commit_group;"
            "cp.async.ca.shared.global [%r3 + 4], [%at], 4; cp.async.commit_group; cp.async.wait_group 1;"
            "ld.shared.b32 %r4, [%r3]; cp.async.wait_group 0;"
            "ld.shared.b32 %r5, [%r3 + 4]; sub.u32 %d, %r4, %r5;",
            lanes=True,
        ),
    ]
    return rows


# ---- what has no result of its own ----------------------------------------------------------------------------------


def _other_rows() -> list[Row]:
    same = lambda a: a  # noqa: E731
    return [
        Row(
            "fences, hints",
            "b32",
            ("b32",),
            same,
            "mov.b32 %d, %a; membar.cta; membar.gl; fence.acq_rel.gpu; fence.sc.cta; nanosleep.u32 20;"
            "prefetch.global.L2 [%at]; prefetchu.L1 [%at];"
            "applypriority.global.L2::evict_normal [%base], 128; pmevent 1; griddepcontrol.wait;"
            "griddepcontrol.launch_dependents;",
        ),
        Row(
            "cache policy",
            "b32",
            ("b32",),
            same,
            "createpolicy.fractional.L2::evict_last.b64 %w0, 1.0; ld.global.L2::cache_hint.b32 %d, [%at], %w0;",
        ),
        Row(
            "ld.global forms",
            "b32",
            ("b32",),
            same,
            "ldu.global.b32 %r2, [%at]; ld.global.nc.b32 %r3, [%at]; ld.volatile.global.b32 %r4, [%at];"
            "ld.relaxed.gpu.global.b32 %r5, [%at];"
            "and.b32 %d, %r2, %r3; and.b32 %d, %d, %r4; and.b32 %d, %d, %r5; ld.acquire.gpu.global.b32 %r5, [%at];"
            "and.b32 %d, %d, %r5;",
        ),
        Row(
            "red",
            "b32",
            ("u32",) * 2,
            lambda a, b: a + b,
            f"{SLOT} st.shared.b32 [%r3], %a; red.shared.add.u32 [%r3], %b; ld.shared.b32 %d, [%r3];",
            lanes=True,
        ),
        Row(
            "barriers",
            "b32",
            ("b32",),
            neighbour(same),
            f"{SLOT} st.shared.b32 [%r3], %a; barrier.sync.aligned 1, 128; {NEXT} ld.shared.b32 %d, [%r3];"
            "barrier.cta.sync 3;",
            lanes=True,
        ),
        Row(
            "an unused trap",
            "b32",
            ("b32",),
            same,
            "mov.b32 %d, %a; setp.ne.b32 %p, %a, %d; @%p trap; @%p brkpt; @%p exit;",
            lanes=True,
        ),
        Row(
            "clocks",
            "u32",
            ("b32",),
            lambda a: np.full(len(a), 1),
            "mov.u64 %w0, %clock64; mov.u32 %r2, %clock; mov.u32 %r3, %clock_hi; mov.u64 %w1, %globaltimer;"
            "mov.u32 %r4, %globaltimer_lo; mov.u32 %r5, %globaltimer_hi;"
            "mov.u64 %w2, %clock64; setp.ge.u64 %p, %w2, %w0; cvt.u64.u32 %w3, %r5; shl.b64 %w3, %w3, 32;"
            "sub.u64 %w3, %w3, %w1; setp.lt.and.s64 %p, %w3, 10000000000, %p" + TRUTH,
        ),
    ]


# ---- the tests ------------------------------------------------------------------------------------------------------

ROWS = {
    row.name: row
    for rows in (
        _integer_rows,
        _packed_rows,
        _float_rows,
        _conversion_rows,
        _fp8_rows,
        _warp_rows,
        _blackwell_rows,
        _memory_rows,
        _matrix_rows,
        _other_rows,
    )
    for row in rows()
}


@pytest.mark.parametrize("name", ROWS)
def test_instruction(name):
    check(ROWS[name])


# More operands than a row has: test_tensor.py; vectors of atomics: test_engine.py; calls, and CUDA's device runtime:
# test_calls.py.
ELSEWHERE = {f"mma.{kind}" for kind in ("f32", "s32", "b1", "f64")}
ELSEWHERE |= {f"wmma.{what}" for what in ("load", "mma", "mma.s32", "store")}
ELSEWHERE |= {"atom.add.vector.f32"} | {
    f"atom.{operation}.vector.{kind}"
    for operation in ("add", "min", "max")
    for kind in ("f16", "bf16", "f16x2", "bf16x2")
}
ELSEWHERE |= {"copy.local", "save", "restore", "malloc", "free", "vprintf", "assertfail"}
ELSEWHERE |= {"cluster.arrive", "getctarank", "mapa", "ld.cluster", "st.cluster"}  # test_cluster.py
ELSEWHERE |= {"mbarrier", "mbarrier.copies", "mbarrier.test"}  # test_mbarrier.py
ELSEWHERE |= {"atom.cas.u128", "atom.exch.u128"}  # test_engine.py
ELSEWHERE |= {"bulk", "bulk.send", "bulk.map", "bulk.commit", "bulk.wait"}  # test_bulk.py
ELSEWHERE |= {f"wgmma.{what}" for what in ("f32", "s32", "fence", "commit_group", "wait_group")}  # test_wgmma.py
ELSEWHERE |= {"setmaxnreg", "fence.proxy.async"}  # likewise
ELSEWHERE |= {"tex", "suld", "sust"}  # test_textures.py
ELSEWHERE |= {"wmma.load.f64", "wmma.store.f64"}  # test_tensor.py
ELSEWHERE |= {"and.pred.settling", "or.pred.settling"}  # test_order.py
ELSEWHERE |= {f"selp.b{bits}.settling" for bits in (16, 32, 64)}  # test_triton.py
ELSEWHERE |= {"fence.mbarrier_init"}  # test_bulk.py
ELSEWHERE |= {"cancel", "cancel.granted", "cancel.place", "ldmatrix.b8", "stmatrix.b8"}  # test_blackwell.py
ELSEWHERE |= {"mma.scaled", "mma.sp.f32", "mma.sp.s32"}  # likewise
ELSEWHERE |= {"bra", "brx", "call", "return", "unknown", "cluster.wait"}  # the scheduler: test_engine.py, test_calls.py


def test_every_instruction_is_tested():
    """What the machine can do and no row reaches is either untested or dead."""
    reached = set()
    for row in ROWS.values():
        module = ptx.parse(row.ptx())
        reached |= set(lower.lower(module, module.functions["k"], {}, engine.instructions())[0].names)
    assert engine.instructions().keys() - reached == ELSEWHERE


def _mutants(count: int, seed: int) -> Iterator[str]:
    """The rows' PTX with words taken away, doubled, exchanged, or of other types."""
    rng = random.Random(seed)
    texts = [row.ptx() for row in ROWS.values()]
    types = [
        ".u8",
        ".u16",
        ".s32",
        ".u64",
        ".b128",
        ".f16",
        ".f32",
        ".f64",
        ".f16x2",
        ".pred",
        ".tf32",
        ".e4m3x2",
        ".v2",
        ".v4",
        ".sync",
        ".cc",
        ".wide",
        ".sat",
    ]
    odd = [
        "0",
        "-1",
        "1e400",
        "0x1FFFFFFFFFFFFFFFF",
        "0f123456789",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "_",
        "%r1|%p",
        "!%p",
        "%tid.x",
        "k",
        "slots",
    ]
    for _ in range(count):
        text = rng.choice(texts)
        start = text.index("{")
        words = re.split(r"(\s+|[,;{}\[\]()])", text[start:])
        for _ in range(rng.choice([1, 1, 2, 3])):
            at, other = rng.randrange(len(words)), rng.randrange(len(words))
            words[at] = rng.choice([
                "", words[other], words[at] + rng.choice(types), rng.choice(odd), words[at] + " " + words[other],
                re.sub(r"\.\w+", lambda match: rng.choice([rng.choice(types), match[0]]), words[at]),
            ])  # fmt: skip
        yield text[:start] + "".join(words)


def test_nonsense_is_an_error_of_the_text_and_not_of_ours():
    """Whatever can be read is lowered, or refused as PTX that contradicts itself; nothing else is raised."""
    lowered = 0
    for text in _mutants(1500, 1):
        try:
            module = ptx.parse(text)
        except (UserError, ValueError, IndexError):
            continue
        with contextlib.suppress(ptx.PtxError):
            for function in [function for function in module.functions.values() if function.entry and function.defined]:
                lower.lower(module, function, {}, engine.instructions())
                lowered += 1
    assert lowered > 500


# In a function that is expanded, parameters lie in local memory: what becomes of these depends on where they stand.
IN_A_FUNCTION = """
.func (.reg .b32 %q) f(.param .b32 a)
{
.reg .b32 %r<3>;
.reg .b64 %rd<3>;
.reg .pred %p1;
mov.b64 %rd1, a;
cvta.param.u64 %rd2, %rd1;
ld.param.u32 %r1, [%rd1];
ld.u32 %r2, [%rd2];
@!%p1 add.u32 %q, %r1, %r2;
{
.reg .pred %p1;
setp.eq.u32 %p1, %r1, %r2;
@%p1 add.cc.u32 %q, %q, %r1;
@!%p1 addc.u32 %q, %r2, 0f3F800000;
}
ret;
}
.visible .entry k()
{
.reg .b32 %r<2>;
.param .b32 x;
st.param.b32 [x], 7;
call (%r1), f, (x);
ret;
}
"""


def _outcome(text: str) -> str:
    """What is read, and the programs, or what is wrong."""
    try:
        module = ptx.parse(text)
        found = [(i.opcode, i.operands, i.guard, i.negated, i.text) for i in module.functions["k"].instructions]
        program = lower.lower(module, module.functions["k"], {}, engine.instructions())[0]
    except (UserError, ValueError, IndexError, KeyError) as problem:
        return repr(problem)
    places = [(one.text, one.category, one.problem) for one in program.instructions]
    words = program.words, program.header, program.functions, program.constants, program.flows
    return repr((found, places, program.names, *words))


def test_instructions_of_one_pattern_become_what_each_would(monkeypatch):
    rows = list(ROWS.values())[::12]
    texts = [IN_A_FUNCTION, *(row.ptx() for row in rows), *_mutants(200, 2)]
    together = [_outcome(text) for text in texts]
    assert ptx.parse(IN_A_FUNCTION).functions["f"].instructions[2].registers, "nothing had a pattern"
    monkeypatch.setattr(ptx, "_pattern", lambda text: None)
    for text, outcome in zip(texts, together, strict=True):
        assert _outcome(text) == outcome


def test_brackets_go_so_deep_and_no_deeper():
    def nested(depth: int) -> str:
        return ".visible .entry k()\n{\nmov.b32 " + "{" * depth + "1, 2" + "}" * depth + ";\nret;\n}\n"

    assert len(ptx.parse(nested(ptx.DEEPEST)).functions["k"].instructions) == 2
    with pytest.raises(ptx.PtxError, match="PTX line 3: .* nested too deeply"):
        ptx.parse(nested(ptx.DEEPEST + 2))


# Rows that are compared with a GPU without switching lanes off: why.
UNGUARDED = {
    "set.lt.f32.s32": "ptxas 13.0 applies the guard to the integer result and converts to f32 in all lanes (I2FP after"
    " the SEL, in its machine code for sm_90): the lanes that are off get their old bits converted",
}


@pytest.mark.gpu
def test_a_gpu_agrees():
    """What the tables say is what the hardware does."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the tables have instructions of compute capability 9.0")
    wrong = {}
    for name, row in ROWS.items():
        if row.header == BLACKWELL and torch.cuda.get_device_capability() != (10, 0):
            continue  # sm_100a runs there alone
        try:
            check(replace(row, lanes=row.lanes or name in UNGUARDED), launch)
        except AssertionError as error:
            wrong[name] = str(error)
    listed = "\n\n".join(f"{name}: {text}" for name, text in wrong.items())
    assert not wrong, f"{len(wrong)} of {len(ROWS)} differ:\n{listed}"
