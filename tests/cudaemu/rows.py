"""One row, one instruction: run it on the edge values of its types and compare with what NumPy says.

A row says: the PTX opcode, the types of its operands, the type of its result, and what it computes, as a function of
arrays: Python integers (exact, of any size) for integer and bit types, NumPy floats for floating types (bf16 as the
float32 of the same value). The result is wrapped (integers) or rounded to nearest even (floats) to the result's type,
so the functions state the mathematics only. All combinations of the types' edge values are tried, each twice: once in
all lanes, once with every other lane switched off by a predicate. Where PTX defines an instruction for some values of
an operand only, the row lists those: the emulator and GPUs may differ on the others.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch

import cudaemu

np.seterr(all="ignore")

Dim = tuple[int, int, int]

HEADER = ".version 8.3\n.target sm_90\n.address_size 64\n"
BLACKWELL = ".version 9.2\n.target sm_100a\n.address_size 64\n"  # not compared with hardware: there is none
BITS = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64, "f32x2": 64}
BITS |= {f"{kind}{width}": width for kind in "bus" for width in (8, 16, 32, 64)}
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
# Bits of the significand, smallest and largest exponent.
MANTISSA = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}

# ---- edge values ----------------------------------------------------------------------------------------------------


def _integers(width: int) -> list[int]:
    top = 1 << (width - 1)
    pattern = int("6b" * (width // 8), 16)
    values = [0, 1, 2 * top - 1, top, top - 1, 2, 3, 2 * top - 2, top + 1, 5, 7, width - 1, width, width + 1, 100]
    values += [pattern, pattern ^ (2 * top - 1), 255, 77, top >> 1]
    return list(dict.fromkeys(value % (2 * top) for value in values))


def _floats(kind: str) -> list[float]:
    bits, low, high = MANTISSA[kind]
    largest = (2 - 2.0 ** (1 - bits)) * 2.0**high
    tiny, normal = 2.0 ** (low - bits + 1), 2.0**low
    values = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, largest, -largest, tiny, -normal, 0.75, -2.5, 1.5, 3.0]
    values += [normal - tiny, -tiny, 0.5, -0.5, 1 + 2.0 ** (1 - bits), np.pi, -1 / 3, 7.0, 100.25]
    if kind != "f16":  # where conversions to integers and to 16 bits turn over
        values += [2.0**power * sign for power in (31, 32, 63, 64) for sign in (1, -1)]
        values += [65504.0, 65519.996, 65520.0, -65520.0, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0078125, 6.1e-5]
        values += [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8]
        values += [255.5, -128.5, 32767.5, -32768.5, 2147483520.0, 1e-3]
    return values


def edges(kind: str) -> np.ndarray:
    """The edge values of a type as its bits, in an unsigned array."""
    if kind == "f32x2":
        half = edges("f32").astype(np.uint64)
        return half | np.roll(half, 3) << np.uint64(32)
    if kind.endswith("x2"):  # halves from the same edges, paired with a different shift each
        half = edges(kind[:-2]).astype(np.uint32)
        return half | np.roll(half, 3) << 16
    if kind in MANTISSA:
        return bits_of(np.array(_floats(kind)), kind)
    return np.array(_integers(BITS[kind]), dtype=f"u{BITS[kind] // 8}")


# ---- bits <-> values ------------------------------------------------------------------------------------------------


def bits_of(values: np.ndarray, kind: str) -> np.ndarray:
    """Values as the bits of a type: integers wrap, floats round to nearest even, -0.0 keeps its sign."""
    unsigned = f"u{BITS[kind] // 8}"
    if kind in FLOATS:
        return np.asarray(values).astype(FLOATS[kind]).view(unsigned)
    if kind == "bf16":
        wide = np.asarray(values).astype(np.float64)
        unit = 2.0 ** (np.maximum(np.frexp(wide)[1] - 1, -126) - 7)  # of the last bit
        rounded = np.where(np.isfinite(wide), np.rint(wide / unit) * unit, wide).astype(np.float32)
        return (rounded.view(np.uint32) >> 16).astype(np.uint16)
    return np.array([int(value) % (1 << BITS[kind]) for value in np.asarray(values, dtype=object).flat], dtype=unsigned)


def values_of(bits: np.ndarray, kind: str) -> np.ndarray:
    """Bits as values: Python integers, or NumPy floats."""
    if kind in FLOATS:
        return bits.view(FLOATS[kind])
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    width = BITS[kind]
    signed = kind[0] == "s"
    values = (int(x) for x in bits.flat)
    return np.array([x - (1 << width) if signed and x >> (width - 1) else x for x in values], dtype=object)


def round_to(value: Fraction, kind: str, mode: str = "rn") -> float:
    """An exact value rounded to a floating type: rn to nearest even, rz to zero, rm down, rp up."""
    bits, low, high = MANTISSA[kind]
    if value == 0:
        return 0.0
    sign, size, parts = (-1 if value < 0 else 1), abs(value.numerator), value.denominator
    exponent = size.bit_length() - parts.bit_length()
    exponent -= parts << max(exponent, 0) > size << max(-exponent, 0)
    unit = max(exponent, low) - bits + 1  # of the last bit: two to the power of it
    parts <<= max(unit, 0)
    whole, rest = divmod(size << max(-unit, 0), parts)
    up = {
        "rn": rest * 2 > parts or (rest * 2 == parts and whole % 2 == 1),
        "rz": False,
        "rm": sign < 0 and rest > 0,
        "rp": sign > 0 and rest > 0,
    }[mode]
    if (whole + up).bit_length() + unit > high + 1:
        to_infinity = mode == "rn" or mode == ("rp" if sign > 0 else "rm")
        return sign * (np.inf if to_infinity else math.ldexp((1 << bits) - 1, high + 1 - bits))
    return sign * math.ldexp(whole + up, unit)


ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
}


def exact(name: str, kind: str, mode: str = "rn") -> Callable:
    """Arithmetic with one rounding: in fractions, but for what is not finite, or zero, which fp64 gets right."""
    operation = ARITHMETIC[name]

    def function(*operands: np.ndarray) -> np.ndarray:
        wide = [np.asarray(operand, np.float64) for operand in operands]
        out = operation(*wide)
        for position, terms in enumerate(zip(*(operand.tolist() for operand in wide))):
            if name == "fma" and all(map(math.isfinite, terms[:2])) and not math.isfinite(terms[2]):
                out[position] = terms[2]  # though the product overflow in fp64
            if not all(map(math.isfinite, terms)) or (name == "div" and terms[1] == 0):
                continue
            value = operation(*map(Fraction, terms))
            if value:
                out[position] = math.copysign(round_to(value, kind, mode), -1.0 if value < 0 else 1.0)
            elif name in ("add", "sub", "fma"):  # an exact zero: -0 of two -0, and when rounding down but of two +0
                last = -terms[-1] if name == "sub" else terms[-1]
                signs = [np.signbit(terms[0] * terms[1] if name == "fma" else terms[0]), np.signbit(last)]
                out[position] = -0.0 if all(signs) or (mode == "rm" and any([*signs, terms[-1] != 0])) else 0.0
        return out

    return function


# ---- the harness ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One instruction. `body` is PTX if there is more to it than "opcode %d, %a, %b ...;" with %a, %b, %c, %e read and
    %d written; `relative` is the tolerance of an approximate instruction, `absolute` likewise. `values` are those to
    try of an operand, by its position, instead of all edge values of its type."""

    name: str
    result: str
    operands: tuple[str, ...]
    function: Callable[..., np.ndarray]
    body: str | None = None
    relative: float = 0.0
    absolute: float = 0.0
    lanes: bool = False  # lanes work together: all of them are on, always
    header: str = HEADER
    values: Mapping[int, Sequence[float]] = field(default_factory=dict)

    def ptx(self) -> str:
        letters = "abce"[: len(self.operands)]
        body = self.body or f"{self.name} {', '.join('%' + letter for letter in 'd' + letters)};"
        statements = [statement.strip() for statement in body.split(";") if statement.strip()]
        guard = "" if self.lanes else "@%on "
        body = " ".join(f"{'' if statement[0] == '.' else guard}{statement};" for statement in statements)
        kinds = (self.result, *self.operands)
        declare = [f".reg .{_register(kind)} %{letter};" for letter, kind in zip("d" + letters, kinds)]
        read = []
        for position, (letter, kind) in enumerate(zip(letters, self.operands)):
            read.append(f"ld.param.u64 %base, [k_param_{position}];")
            read.append(f"mad.wide.u32 %at, %index, {BITS[kind] // 8}, %base;")
            read.append(f"ld.global.{_storage(kind)} %{letter}, [%at];")
        count = len(self.operands)
        params = ", ".join(f".param .u64 k_param_{position}" for position in range(count + 1))
        return "\n".join(
            [
                self.header,
                f".visible .entry k({params}) {{",
                ".reg .pred %on, %odd, %p, %q; .reg .b16 %h<4>; .reg .f32 %f<4>;",
                ".reg .b32 %r<8>, %index, %lane, %row; .reg .b64 %w<4>, %base, %at;",
                *declare,
                "mov.u32 %index, %ctaid.x; mov.u32 %r0, %ntid.x; mov.u32 %r1, %tid.x;",
                "mad.lo.u32 %index, %index, %r0, %r1;",
                *read,
                f"mov.{_untyped(self.result)} %d, {SENTINEL % (1 << min(BITS[self.result], 32))};",
                "mov.u32 %row, %ctaid.y; and.b32 %lane, %r1, 1;",
                "setp.ne.u32 %odd, %lane, 0; setp.eq.or.u32 %on, %row, 0, %odd;",
                body,
                "mov.u32 %r1, %nctaid.x; mul.lo.u32 %r1, %r1, %r0; mad.lo.u32 %index, %row, %r1, %index;",
                f"ld.param.u64 %base, [k_param_{count}]; mad.wide.u32 %at, %index, {BITS[self.result] // 8}, %base;",
                f"st.global.{_storage(self.result)} [%at], %d; ret; }}",
            ]
        )


SENTINEL = 0x1234ABCD  # what a switched-off lane keeps
BLOCK = 128


def _register(kind: str) -> str:
    return kind if kind in ("f32", "f64") else f"b{max(BITS[kind], 16)}"


def _untyped(kind: str) -> str:
    return f"b{max(BITS[kind], 16)}"


def _storage(kind: str) -> str:
    return f"{'u' if BITS[kind] == 8 else 'b'}{BITS[kind]}"


def _tensor(array: np.ndarray) -> torch.Tensor:
    """An array's bytes as a tensor (torch lacks most unsigned types)."""
    return torch.from_numpy(array.view(np.uint8).copy())


def _operands(row: Row) -> list[np.ndarray]:
    """All combinations of the values to try, padded to whole blocks."""
    kinds = row.operands
    most = {1: 10**6, 2: 60, 3: 14, 4: 8}[len(kinds)]
    tried = [
        bits_of(np.asarray(row.values[position]), kind) if position in row.values else edges(kind)[:most]
        for position, kind in enumerate(kinds)
    ]
    columns = [np.array(column) for column in zip(*itertools.product(*tried))]
    padding = -len(columns[0]) % BLOCK
    padded = (np.pad(column, (0, padding), mode="edge") for column in columns)
    return [column.astype(f"u{BITS[kind] // 8}") for column, kind in zip(padded, kinds)]


def emulate(text: str, grid: Dim, block: int, arguments: Sequence[torch.Tensor]) -> None:
    """Run kernel `k` of a PTX module in the emulator; the tensors come back."""
    arch = "10.0a" if "sm_100a" in text else "9.0"
    cudaemu.run_ptx(text, "k", grid, block, arguments, arch=arch).raise_if_findings()


def launch(text: str, grid: Dim, block: int, arguments: Sequence[torch.Tensor]) -> None:
    """The same on the GPU, through the driver."""
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()

    def call(name: str, *values: object) -> None:
        status = getattr(driver, name)(*values)
        assert status == 0, f"{name} returned {status}"

    copies = [tensor.cuda() for tensor in arguments]
    call("cuModuleLoadData", ctypes.byref(module), text.encode())
    call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
    pointers = [ctypes.c_void_p(copy.data_ptr()) for copy in copies]
    addresses = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(pointer) for pointer in pointers))
    call("cuLaunchKernel", function, *grid, block, 1, 1, 0, None, addresses, None)
    torch.cuda.synchronize()
    call("cuModuleUnload", module)
    for tensor, copy in zip(arguments, copies):
        tensor.copy_(copy)


def check(row: Row, run: Callable = emulate) -> None:
    operands = _operands(row)
    count = len(operands[0])
    unsigned = f"u{BITS[row.result] // 8}"
    out = torch.zeros(2 * count * BITS[row.result] // 8, dtype=torch.uint8)
    run(row.ptx(), (count // BLOCK, 2, 1), BLOCK, [*map(_tensor, operands), out])
    got = out.numpy().view(unsigned).reshape(2, count)

    values = [values_of(operand, kind) for operand, kind in zip(operands, row.operands)]
    expected = np.asarray(row.function(*values))
    assert expected.shape == (count,)
    is_bits = expected.dtype.kind == "u"
    expected = expected.astype(unsigned) if is_bits else bits_of(expected, row.result)
    wrong = np.flatnonzero(~_same(got[0], expected, row))
    shown = []
    for i in wrong[:6]:
        terms = ", ".join(repr(v[i]) for v in values)
        have, want = (f"{x[i]:#x} = {values_of(x[i : i + 1], row.result)[0]!r}" for x in (got[0], expected))
        shown.append(f"{terms} -> {have}, not {want}")
    assert not len(wrong), f"{row.name}: {len(wrong)} of {count} are wrong: \n" + "\n".join(shown)
    if row.lanes:
        return
    odd = np.arange(count) % 2 == 1
    assert np.array_equal(got[1, odd], got[0, odd]), f"{row.name}: a predicate changes the result"
    off = np.uint64(SENTINEL) % np.uint64(1 << min(BITS[row.result], 32))
    assert np.all(got[1, ~odd] == off), f"{row.name}: a lane that is switched off is written"


def _same(got: np.ndarray, expected: np.ndarray, row: Row) -> np.ndarray:
    """Equal bits; for floats also any two NaNs, and for approximate instructions values that are close."""
    same = got == expected
    kind = row.result.removesuffix("x2")
    for shift in (0, BITS[kind]) if row.result.endswith("x2") else (0,):
        if not row.result.startswith(("f", "bf")):
            return same
        parts = ((bits >> np.array(shift, bits.dtype)).astype(f"u{BITS[kind] // 8}") for bits in (got, expected))
        a, b = (values_of(part, kind).astype(float) for part in parts)
        alike = (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))
        if row.relative or row.absolute:
            alike |= np.abs(a - b) <= np.abs(b) * row.relative + row.absolute
        same = alike if shift == 0 else same & alike
    return same


def vector(function: Callable) -> Callable:
    """A function of single values as one of arrays."""
    return lambda *operands: np.array([function(*terms) for terms in zip(*operands)], dtype=object)


def half_of(packed: np.ndarray, shift: int, kind: str) -> np.ndarray:
    return values_of(np.array([int(x) >> shift & 0xFFFF for x in packed], np.uint16), kind)


def halves(function: Callable, kind: str) -> Callable:
    """A function of 16-bit floats, applied to the low and the high half of packed registers."""

    def packed(*operands: np.ndarray) -> np.ndarray:
        out = np.zeros(len(operands[0]), np.uint32)
        for shift in (0, 16):
            parts = [half_of(operand, shift, kind) for operand in operands]
            out |= bits_of(function(*parts), kind).astype(np.uint32) << shift
        return out

    return packed
