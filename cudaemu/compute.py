"""What CUDA's libraries compute on device memory, by NumPy, whose matmul is a BLAS: the products and vectors of cuBLAS.

The stand-ins for libraries (host/cublas.cpp, curand.cpp) check arguments and put work into streams. What is here looks
at operands as the machine looks at a kernel's accesses, computes, and marks results as written. Matrices lie column by
column, so an operand is seen as (batches, columns, rows): what NumPy calls the transpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cudaemu.memory import NEAR_NULL, AddressMap, Allocation
from cudaemu.randoms import Generator

Array = np.ndarray[Any, Any]
READS, WRITES, ON_HOST, POINTERS = 1, 2, 4, 8  # of host/library.h
ILLEGAL_ADDRESS, MISALIGNED = 700, 716  # of cudaError_t


class Fault(Exception):
    """An access that ends the work with an error of the device."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


# ---- types -----------------------------------------------------------------------------------------------------------


class Format(NamedTuple):
    """A type of elements. `stored`: the NumPy type with its bytes, `computed`: the one that is computed with."""

    stored: type
    computed: type
    widen: Callable[[Array], Array]
    narrow: Callable[[Array], Array]


def _plain(kind: type) -> Format:
    return Format(kind, kind, lambda bits: bits, lambda values: values.astype(kind))


def _from_bf16(bits: Array) -> Array:
    widened: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return widened


def _to_bf16(values: Array) -> Array:
    """Rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


@lru_cache
def _fp8_values(mantissa: int, bias: int) -> Array:
    """What the codes from 0 to 0x7f of an fp8 mean, by IEEE's rules; e4m3 has but one NaN, and no infinity."""
    codes = np.arange(128)
    exponent, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    if mantissa == 3:
        values[127] = np.nan
    else:
        values[124:] = [np.inf, np.nan, np.nan, np.nan]
    return values.astype(np.float32)


def _fp8(mantissa: int, bias: int) -> Format:
    def widen(bits: Array) -> Array:
        values: Array = _fp8_values(mantissa, bias)[bits & 0x7F]
        return np.where(bits & 0x80, -values, values)

    def narrow(values: Array) -> Array:
        """Rounded to nearest, ties to even; beyond the largest finite one: that."""
        finite = _fp8_values(mantissa, bias)
        finite = finite[np.isfinite(finite)].astype(np.float64)
        middles = (finite[1:] + finite[:-1]) / 2
        size = np.abs(values.astype(np.float64))
        codes = np.searchsorted(middles, size, side="left")
        tie = (codes < len(middles)) & (middles[np.minimum(codes, len(middles) - 1)] == size)
        codes = np.where(np.isnan(size), 0x7F, codes + (tie & (codes % 2 == 1)))
        return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)

    return Format(np.uint8, np.float32, widen, narrow)


def _whole(kind: type) -> Format:
    """Integers: a floating-point result is rounded, and kept within the type's range."""
    limits = np.iinfo(kind)

    def narrow(values: Array) -> Array:
        if values.dtype.kind in "iu":
            return values.astype(kind)
        return np.clip(np.rint(values), limits.min, limits.max).astype(kind)

    return Format(kind, kind, lambda bits: bits, narrow)


# By the number of the cudaDataType.
TYPES = {
    0: _plain(np.float32),
    1: _plain(np.float64),
    2: Format(np.float16, np.float32, lambda bits: bits.astype(np.float32), lambda values: values.astype(np.float16)),
    3: _whole(np.int8),
    4: _plain(np.complex64),
    5: _plain(np.complex128),
    8: _whole(np.uint8),
    10: _whole(np.int32),
    12: _whole(np.uint32),
    14: Format(np.uint16, np.float32, _from_bf16, _to_bf16),
    24: _whole(np.int64),
    26: _whole(np.uint64),
    28: _fp8(3, 7),
    29: _fp8(2, 15),
}


def to_tf32(values: Array) -> Array:
    """Rounded to the 10 bits of TF32's fraction, to nearest, ties away from zero (cvt.rna)."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


# ---- operands --------------------------------------------------------------------------------------------------------


@dataclass
class Operand:
    """What host/library.h says of it. `steps`: in elements, as `shape`; `places`: the addresses of the matrices."""

    name: str
    type: int
    how: int
    shape: tuple[int, int, int]
    steps: tuple[int, int, int]
    at: int
    places: Sequence[int]
    value: bytes  # of a scalar of the host

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return int(np.dtype(TYPES[self.type].stored).itemsize)

    @property
    def of_each(self) -> tuple[int, int, int]:
        """The shape of what lies at each place."""
        return (1, *self.shape[1:]) if self.how & POINTERS else self.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The steps in bytes."""
        return tuple(step * self.size for step in self.steps)


class Work:
    """One call's work. `found` takes the kind and the words of a finding; `reads` and `sets`, address and size of
    memory that may hold undefined values; `marked`: whether kernels mark what they write; `kept`: the program's
    generators of random numbers."""

    def __init__(
        self,
        call: str,
        arena: AddressMap,
        operands: Sequence[Operand],
        numbers: Sequence[int],
        found: Callable[[str, str], None],
        reads: Callable[[int, int], None] | None,
        sets: Callable[[int, int], None] | None,
        marked: bool,
        kept: dict[int, Generator],
    ):
        self.call, self.arena, self.numbers, self.found = call, arena, numbers, found
        self.operands = {each.name: each for each in operands}
        self.reads, self.sets, self.marked, self.kept = reads, sets, marked, kept
        self.results = b""

    def has(self, name: str) -> bool:
        return name in self.operands

    def read(self, name: str, mask: Array | None = None) -> Array:
        """The values of an operand, (batches, columns, rows), in the type that is computed with. `mask`: those that
        are used."""
        operand = self.operands[name]
        of = TYPES[operand.type]
        if operand.how & ON_HOST:
            return of.widen(np.frombuffer(operand.value, of.stored).reshape(1, 1, 1))
        self._look_at_pointers(operand)
        pieces = []
        for place in operand.places:
            allocation = self._inside(operand, place, "reads")
            self._written(operand, place, allocation, mask)
            self._tell(self.reads, operand, place)
            pieces.append(of.widen(_view(operand, place, allocation)))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def scalar(self, name: str) -> Any:
        return self.read(name)[0, 0, 0]

    def write(self, name: str, values: Array, mask: Array | None = None) -> None:
        """Store values of an operand's shape, or those under the mask."""
        operand = self.operands[name]
        of = TYPES[operand.type]
        narrowed = of.narrow(np.broadcast_to(values, operand.shape))
        if operand.how & ON_HOST:
            self.results += narrowed.astype(of.stored).tobytes()
            return
        self._look_at_pointers(operand)
        allocations = [self._inside(operand, place, "writes") for place in operand.places]
        for number, (place, allocation) in enumerate(zip(operand.places, allocations)):
            view = _view(operand, place, allocation)
            part = narrowed[number : number + 1] if operand.how & POINTERS else narrowed
            if mask is None:
                view[...] = part
            else:
                np.copyto(view, part, where=mask)
            self._mark(operand, place, allocation, mask)
            if mask is None:
                self._tell(self.sets, operand, place)

    def _look_at_pointers(self, operand: Operand) -> None:
        """The array of addresses itself."""
        if operand.how & POINTERS:
            count = operand.shape[0]
            array = Operand(f"{operand.name}array", 26, READS, (1, 1, count), (0, 0, 1), operand.at, [operand.at], b"")
            self._written(array, operand.at, self._inside(array, operand.at, "reads"), None)

    def _inside(self, operand: Operand, place: int, verb: str) -> Allocation | None:
        """The allocation that has all of what is at a place. Fault, and a finding, if there is none."""
        shape, strides = operand.of_each, operand.strides
        if not all(shape):
            return None
        reach = [(extent - 1) * stride for extent, stride in zip(shape, strides)]
        low = place + sum(min(each, 0) for each in reach)
        end = place + sum(max(each, 0) for each in reach) + operand.size
        found = self.arena.find(low)
        if found is None or end > found.base + found.size:
            index, address = self._first_outside(operand, place)
            what = self.arena.describe(address)
            null = address < NEAR_NULL
            said = f"{self.call} {verb} {_element(operand, index)}, {operand.size} bytes at {what}"
            self.found("null pointer" if null else "out of bounds global", said)
            raise Fault(ILLEGAL_ADDRESS)
        if any(address % operand.size for address in (place, *(place + stride for stride in strides))):
            said = (
                f"{self.call} {verb} {operand.name}, elements of {operand.size} bytes, at {self.arena.describe(place)}"
            )
            self.found("misaligned", said)
            raise Fault(MISALIGNED)
        return found

    def _first_outside(self, operand: Operand, place: int) -> tuple[tuple[int, ...], int]:
        """The first element, column by column, that no allocation has all of, and its address."""
        known: Allocation | None = None
        for batch, column in np.ndindex(operand.of_each[:2]):
            start = place + batch * operand.strides[0] + column * operand.strides[1]
            rows = start + np.arange(operand.of_each[2], dtype=np.int64) * operand.strides[2]
            known = known or self.arena.find(int(rows[0]))
            outside = np.ones(len(rows), bool)
            if known is not None:
                outside = (rows < known.base) | (rows + operand.size > known.base + known.size)
            if outside.any():
                row = int(outside.argmax())
                return (batch, column, row), int(rows[row])
        raise RuntimeError("all elements are inside")

    def _written(self, operand: Operand, place: int, allocation: Allocation | None, mask: Array | None) -> None:
        """A finding if an element that is read was never written, not even in part."""
        if not self.marked or allocation is None or not len(allocation.marks) or allocation.marks[0]:
            return
        marks = _bytes(operand, place, allocation, allocation.marks[1:])
        unwritten = ~marks.any(axis=-1)
        if mask is not None:
            unwritten &= mask
        if count := int(unwritten.sum()):
            index = np.unravel_index(int(unwritten.argmax()), unwritten.shape)
            address = place + sum(int(i) * stride for i, stride in zip(index, operand.strides))
            said = (
                f"{self.call} reads {operand.name}, of which {count:,} of {unwritten.size:,} elements were never "
                f"written: the first is {_element(operand, index)}, at {self.arena.describe(address)}"
            )
            self.found("uninitialised global read", said)

    def _mark(self, operand: Operand, place: int, allocation: Allocation | None, mask: Array | None) -> None:
        if allocation is None or not len(allocation.marks) or allocation.marks[0]:
            return
        marks = _bytes(operand, place, allocation, allocation.marks[1:])
        if mask is None and marks.size == allocation.size:
            allocation.marks[0] = 1
        else:
            np.copyto(marks, 1, where=True if mask is None else mask[..., None])

    def _tell(self, to: Callable[[int, int], None] | None, operand: Operand, place: int) -> None:
        """Name all memory that lies together there, by address and size."""
        (batches, columns, rows), (by_batch, by_column, by_row) = operand.of_each, operand.strides
        if to is None:
            return
        if by_column == operand.size != by_row:
            columns, rows, by_column, by_row = rows, columns, by_row, by_column
        together = rows * operand.size if by_row == operand.size else operand.size
        for batch, column in np.ndindex(batches, columns):
            start = place + batch * by_batch + column * by_column
            for row in range(rows if by_row != operand.size else min(rows, 1)):
                to(start + row * by_row, together)


def _view(operand: Operand, place: int, allocation: Allocation | None) -> Array:
    """An operand's elements, as they are stored."""
    stored = TYPES[operand.type].stored
    if allocation is None:
        return np.empty(operand.of_each, stored)
    return np.lib.stride_tricks.as_strided(
        allocation.data[place - allocation.base :][: operand.size].view(stored), operand.of_each, operand.strides
    )


def _bytes(operand: Operand, place: int, allocation: Allocation, marks: Array) -> Array:
    """The marks of an operand's bytes."""
    shape, strides = (*operand.of_each, operand.size), (*operand.strides, 1)
    return np.lib.stride_tricks.as_strided(marks[place - allocation.base :], shape, strides)


def _element(operand: Operand, index: Sequence[Any]) -> str:
    """An element as the call's documentation names it: of a matrix by row and column, counted from 0."""
    batch, column, row = index
    if operand.shape == (1, 1, 1):
        return operand.name
    text = f"{operand.name}[{row}]" if operand.shape[1] == 1 else f"row {row}, column {column} of {operand.name}"
    return text + (f" of matrix {batch}" if operand.shape[0] > 1 and not operand.how & POINTERS else "")


# ---- products --------------------------------------------------------------------------------------------------------

NONE, TRANSPOSED, CONJUGATED = 0, 1, 2  # cublasOperation_t
_INTEGER, _FAST = (72, 73), {74: np.float16, 75: "bf16", 77: "tf32"}  # of cublasComputeType_t


def _op(columns: Array, operation: int) -> Array:
    """op(X), column by column, of X, column by column."""
    if operation == NONE:
        return columns
    turned: Array = columns.swapaxes(1, 2)
    return np.conj(turned) if operation == CONJUGATED else turned


def _as_fast(values: Array, compute: int) -> Array:
    """Operands as the compute type has them."""
    if compute not in _FAST or values.dtype not in (np.float32, np.complex64):
        return values
    if values.dtype == np.complex64:
        parts = np.ascontiguousarray(values).view(np.float32)
        return _as_fast(parts, compute).view(np.complex64)
    kind = _FAST[compute]
    if kind == "tf32":
        return to_tf32(values)
    return _from_bf16(_to_bf16(values)) if kind == "bf16" else values.astype(np.float16).astype(np.float32)


def _times(a: Array, b: Array, compute: int) -> Array:
    """op(A) op(B), column by column, of both column by column; summed up in the compute type."""
    if compute in _INTEGER:  # exact: the sums are below 2 ** 53
        exact: Array = np.matmul(b.astype(np.float64), a.astype(np.float64)).astype(np.int64).astype(np.int32)
        return exact
    if a.dtype.kind == "i":
        a, b = a.astype(np.float32), b.astype(np.float32)
    product: Array = np.matmul(_as_fast(b, compute), _as_fast(a, compute))
    return product


ROOT, CUBE = math.sqrt(2 / math.pi), 0.044715  # of GELU by tanh (Hendrycks, Gimpel: arXiv:1606.08415)


def _gelu(x: Array) -> Array:
    value: Array = 0.5 * x * (1 + np.tanh(ROOT * (x + CUBE * x**3)))
    return value


def _gelu_slope(x: Array) -> Array:
    tanh = np.tanh(ROOT * (x + CUBE * x**3))
    slope: Array = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * ROOT * (1 + 3 * CUBE * x**2)
    return slope


RELU, BIAS, D_RELU, BIAS_GRADIENT, GELU, D_GELU, AUX = 2, 4, 8, 16, 32, 64, 128  # bits of cublasLtEpilogue_t
GRADIENT_A, GRADIENT_B = 256, 512


def _gemm(work: Work) -> None:
    """D = epilogue(alpha op(A) op(B) + beta C + bias), with the scales of fp8."""
    compute, op_a, op_b, epilogue = work.numbers
    alpha, beta = work.read("alpha"), work.read("beta")  # of a vector, one for each row
    out = "D" if work.has("D") else "C"
    result: Array = np.zeros(work.operands[out].shape, np.float32 if compute not in _INTEGER else np.int32)
    a = b = None
    if alpha.any():
        a, b = work.read("A"), work.read("B")
        result = _times(_op(a, op_a), _op(b, op_b), compute)
        for scale in ("A scale", "B scale"):
            if work.has(scale):
                result = result * work.scalar(scale)
        result = result * alpha
    if beta.any():
        c = work.read("C")
        result = result + beta * (c * work.scalar("C scale") if work.has("C scale") else c)
    if epilogue & BIAS:
        result = result + work.read("bias")
    if epilogue & (RELU | D_RELU) and epilogue & AUX and work.has("aux"):
        if epilogue & RELU:
            bits = np.packbits(result > 0, axis=2, bitorder="little")
            work.write("aux", bits)
        else:
            on = np.unpackbits(work.read("aux"), axis=2, bitorder="little", count=result.shape[2])
            result = result * on
    if epilogue & RELU:
        result = np.where(result < 0, result.dtype.type(0), result)
    if epilogue & GELU:
        if epilogue & AUX:
            work.write("aux", result)
        result = _gelu(result)
    if epilogue & D_GELU:
        result = result * _gelu_slope(work.read("aux"))
    if epilogue & BIAS_GRADIENT:
        work.write("bias", result.sum(axis=1, keepdims=True))
    if epilogue & GRADIENT_A and a is not None:
        work.write("bias", _op(a, op_a).sum(axis=1, keepdims=True))
    if epilogue & GRADIENT_B and b is not None:
        work.write("bias", _op(b, op_b).sum(axis=2, keepdims=True).swapaxes(1, 2))
    if work.has("D amax"):
        work.write("D amax", np.abs(result).max())
    if work.has("D scale"):
        result = result * work.scalar("D scale")
    work.write(out, result)


def _triangle(size: int, upper: int, diagonal: bool = True) -> Array:
    """Which elements of a square matrix are in one of its triangles, column by column."""
    ones = np.ones((size, size), bool)
    return (np.tril(ones, 0 if diagonal else -1) if upper else np.triu(ones, 0 if diagonal else 1))[None]


def _geam(work: Work) -> None:
    op_a, op_b = work.numbers
    alpha, beta = work.scalar("alpha"), work.scalar("beta")
    result: Array = np.zeros((1, 1, 1), TYPES[work.operands["C"].type].computed)
    if alpha != 0:
        result = result + alpha * _op(work.read("A"), op_a)
    if beta != 0:
        result = result + beta * _op(work.read("B"), op_b)
    work.write("C", result)


def _dgmm(work: Work) -> None:
    (right,) = work.numbers
    x = work.read("x")
    work.write("C", work.read("A") * (x.swapaxes(1, 2) if right else x))


def _syrk(work: Work) -> None:
    upper, op, compute = work.numbers
    mask = _triangle(work.operands["C"].shape[2], upper)
    alpha, beta = work.scalar("alpha"), work.scalar("beta")
    result: Array = np.zeros(mask.shape, TYPES[work.operands["C"].type].computed)
    if alpha != 0:
        a = _op(work.read("A"), op)
        result = alpha * _times(a, a.swapaxes(1, 2), compute)
    if beta != 0:
        result = result + beta * work.read("C", mask)
    work.write("C", result, mask)


def _symm(work: Work) -> None:
    right, upper, compute = work.numbers
    alpha, beta = work.scalar("alpha"), work.scalar("beta")
    result: Array = np.zeros((1, 1, 1), TYPES[work.operands["C"].type].computed)
    if alpha != 0:
        mask = _triangle(work.operands["A"].shape[2], upper)
        half = np.where(mask, work.read("A", mask), 0)
        whole = half + np.where(np.eye(half.shape[1], dtype=bool), 0, half.swapaxes(1, 2))
        b = work.read("B")
        result = alpha * (_times(b, whole, compute) if right else _times(whole, b, compute))
    if beta != 0:
        result = result + beta * work.read("C")
    work.write("C", result)


def _triangular(work: Work, upper: int, op: int, unit: int) -> Array:
    """op(A) of a triangular A, row by row."""
    mask = _triangle(work.operands["A"].shape[2], upper, not unit)
    a = np.where(mask, work.read("A", mask), 0)
    if unit:
        a = a + np.eye(a.shape[1], dtype=a.dtype)
    matrix: Array = _op(a, op)[0].T
    return matrix


def _trmm(work: Work) -> None:
    right, upper, op, unit, compute = work.numbers
    alpha = work.scalar("alpha")
    result: Array = np.zeros((1, 1, 1), TYPES[work.operands["C"].type].computed)
    if alpha != 0:
        a, b = _triangular(work, upper, op, unit).T[None], work.read("B")
        result = alpha * (_times(b, a, compute) if right else _times(a, b, compute))
    work.write("C", result)


def _trsm(work: Work) -> None:
    """op(A) X = alpha B, or X op(A) = alpha B: row after row."""
    right, upper, op, unit = work.numbers
    alpha = work.scalar("alpha")
    if alpha == 0:
        return work.write("B", np.zeros((1, 1, 1), TYPES[work.operands["B"].type].computed))
    a, x = _triangular(work, upper, op, unit), alpha * work.read("B")[0].T
    a, x = (a.T, x.T.copy()) if right else (a, x.copy())
    lower = bool(upper) == (op != NONE) if not right else bool(upper) == (op == NONE)
    order = range(len(a)) if lower else range(len(a) - 1, -1, -1)
    for row in order:
        known = slice(0, row) if lower else slice(row + 1, None)
        x[row] = (x[row] - a[row, known] @ x[known]) / a[row, row]
    return work.write("B", (x if right else x.T)[None])


# ---- vectors, and a matrix with them ---------------------------------------------------------------------------------


def _gemv(work: Work) -> None:
    op, compute = work.numbers
    alpha, beta = work.scalar("alpha"), work.scalar("beta")
    result: Array = np.zeros((1, 1, 1), TYPES[work.operands["y"].type].computed)
    if alpha != 0:
        result = alpha * _times(_op(work.read("A"), op), work.read("x"), compute)
    if beta != 0:
        result = result + beta * work.read("y")
    work.write("y", result)


def _ger(work: Work) -> None:
    (conjugated,) = work.numbers
    if (alpha := work.scalar("alpha")) != 0:
        y = work.read("y").swapaxes(1, 2)
        work.write("A", work.read("A") + alpha * work.read("x") * (y.conj() if conjugated else y))


def _axpy(work: Work) -> None:
    if (alpha := work.scalar("alpha")) != 0:
        work.write("y", work.read("y") + alpha * work.read("x"))


def _scal(work: Work) -> None:
    work.write("x", work.scalar("alpha") * work.read("x"))


def _copy(work: Work) -> None:
    work.write("y", work.read("x"))


def _swap(work: Work) -> None:
    x, y = work.read("x").copy(), work.read("y").copy()
    work.write("x", y)
    work.write("y", x)


def _rot(work: Work) -> None:
    c, s, x, y = work.scalar("c"), work.scalar("s"), work.read("x"), work.read("y")
    x, y = c * x + s * y, c * y - np.conj(s) * x
    work.write("x", x)
    work.write("y", y)


def _dot(work: Work) -> None:
    (conjugated,) = work.numbers
    x = work.read("x")
    work.write("result", np.matmul(x.conj() if conjugated else x, work.read("y").swapaxes(1, 2)))


def _nrm2(work: Work) -> None:
    x = work.read("x")
    x = np.abs(x.astype(np.complex128 if np.iscomplexobj(x) else np.float64))
    most = x.max(initial=0)
    work.write("result", most * np.sqrt(np.square(x / most).sum()) if 0 < most < np.inf else most)


def _sizes(x: Array) -> Array:
    """|x| as BLAS has it: of a complex number, the sum of both parts' sizes."""
    return np.abs(x.real) + np.abs(x.imag) if np.iscomplexobj(x) else np.abs(x)


def _asum(work: Work) -> None:
    work.write("result", _sizes(work.read("x")).sum())


def _iamax(work: Work) -> None:
    """The first of the largest, or smallest, counted from 1."""
    (smallest,) = work.numbers
    sizes = _sizes(work.read("x"))
    work.write("result", np.int32((sizes.argmin() if smallest else sizes.argmax()) + 1))


def _random(work: Work) -> None:
    """The next numbers of a generator. A state that is set up anew has a number of its own."""
    number, kind, seed, offset, order, dimensions, distribution, *parameters, exponential = work.numbers
    if number not in work.kept:
        mask = (1 << 64) - 1
        work.kept[number] = Generator(kind, seed & mask, offset & mask, order, dimensions)
    mean, deviation = np.array(parameters, np.int64).view(np.float64)
    count = work.operands["outputPtr"].shape[2]
    work.write("outputPtr", work.kept[number].numbers(distribution, count, mean, deviation, bool(exponential)))


OPERATIONS: dict[str, Callable[[Work], None]] = {
    "gemm": _gemm,
    "geam": _geam,
    "dgmm": _dgmm,
    "syrk": _syrk,
    "symm": _symm,
    "trmm": _trmm,
    "trsm": _trsm,
    "gemv": _gemv,
    "ger": _ger,
    "axpy": _axpy,
    "scal": _scal,
    "copy": _copy,
    "swap": _swap,
    "rot": _rot,
    "dot": _dot,
    "nrm2": _nrm2,
    "asum": _asum,
    "iamax": _iamax,
    "random": _random,
}


def run(operation: str, work: Work) -> int:
    """Do it: 0, or the cudaError_t of the fault that ended it."""
    try:
        with np.errstate(all="ignore"):
            OPERATIONS[operation](work)
    except Fault as fault:
        return fault.code
    return 0
