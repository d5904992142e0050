"""Python values as C++ arguments: checked against the parameters' types and packed into bytes."""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cudaemu import cpp
from cudaemu.compiler.symbols import demangle
from cudaemu.dtypes import BY_CPP, DTYPES, PAIRS
from cudaemu.errors import UserError
from cudaemu.process import ParameterType

_PTX_KINDS = {"f32": "f", "f64": "f", "pred": "b"}


def is_tensor(value: Any) -> bool:
    """Whether a value is memory to pass: a torch tensor or a NumPy array (of any rank)."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def pack(value: Any, kind: ParameterType, name: str) -> bytes:
    """A number, None, bytes or ctypes structure as the parameter's bytes. UserError if the type does not fit."""
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        value = value.item()
    if isinstance(value, (bytes, bytearray, memoryview, ctypes.Structure, ctypes.Array, ctypes.Union, np.void)):
        data = value.tobytes() if isinstance(value, np.void) else bytes(value)
        if len(data) != kind.size:
            raise UserError(f"{name} must be a {kind.name} of {kind.size} bytes, got {len(data)}")
        return data
    number = isinstance(value, (int, float))
    if kind.kind == "S" or kind.kind == "p":
        if value is None:
            return bytes(kind.size)
        what = "None, the default stream" if kind.kind == "S" else "a tensor, an array or None, for a pointer"
        raise UserError(f"{name} must be {what}, got {_told(value)}")
    if kind.kind in "sueb" or (kind.kind == "?" and isinstance(value, int)):
        if not isinstance(value, int):
            raise UserError(f"{name} must be an int, for {kind.name}, got {_told(value)}")
        low, high = (-(1 << 8 * kind.size - 1), (1 << 8 * kind.size - 1) - 1)
        if kind.kind in "ub":
            low, high = 0, 1 if kind.kind == "b" else (1 << 8 * kind.size) - 1
        elif kind.kind in "e?":
            high = (1 << 8 * kind.size) - 1
        if not low <= value <= high:
            raise UserError(f"{name} must fit {kind.name}, got {value}")
        return (value & ((1 << 8 * kind.size) - 1)).to_bytes(kind.size, "little")
    if kind.kind == "f":
        if not number:
            raise UserError(f"{name} must be a number, for {kind.name}, got {_told(value)}")
        try:
            return struct.pack("<f" if kind.size == 4 else "<d", value)
        except OverflowError:
            raise UserError(f"{name} must fit {kind.name}, got {value}") from None
    if number and kind.name in DTYPES["float16"].cpp:
        return bytes(np.float16(value).tobytes())
    if number and kind.name in DTYPES["bfloat16"].cpp:
        return _bfloat16(float(value))
    if kind.kind == "?":
        raise UserError(f"{name} must be {kind.size} bytes, since the PTX does not say their type, got {_told(value)}")
    raise UserError(
        f"{name} must be bytes or a ctypes.Structure, for a {kind.name} of {kind.size} bytes, got {_told(value)}"
    )


def check_array(array: Any, kind: ParameterType, name: str) -> None:
    """UserError if a tensor or an array does not fit the parameter's pointer type."""
    if kind.kind == "?":
        if kind.size != 8:
            raise UserError(f"{name} must be a number, of {kind.size} bytes, got {_told(array)}")
        return
    if kind.kind != "p":
        raise UserError(
            f"{name} must be a number, for {kind.name}, got {_told(array)} (pass one of its elements: .item())"
        )
    dtype = str(array.dtype).removeprefix("torch.")
    size = array.itemsize if isinstance(array, np.ndarray) else array.element_size()
    fits = True
    if kind.pointee == "f":
        fits = dtype == {4: "float32", 8: "float64"}.get(kind.pointee_size)
    elif kind.pointee in "sueb":
        whole = "int" in dtype or dtype in ("bool", "bits8")
        raw = kind.pointee_size < 4 and not dtype.startswith(
            "float32"
        )  # bits of fp16, bf16, fp8 as unsigned short, char
        fits = size == kind.pointee_size and (whole or raw)
    elif kind.pointee == "c":
        element = re.sub(r"\b(const|volatile)\b|\*", "", kind.name).strip()
        row = BY_CPP.get(element)
        other = row is not None and dtype != row.name and dtype in DTYPES and DTYPES[dtype].kind == "c"
        cut = kind.pointee_size and array.size * size % kind.pointee_size if isinstance(array, np.ndarray) else 0
        fits = not other and (row is None or size == row.size) and not cut
    if not fits:
        raise UserError(f"{name} must fit {kind.name}, got an array of {dtype}")
    if isinstance(array, np.ndarray) and not array.flags.writeable and not kind.constant:
        raise UserError(f"{name} must be writable, for {kind.name}, got a read-only array")


def _told(value: Any) -> str:
    if is_tensor(value):
        return f"an array of {str(value.dtype).removeprefix('torch.')}"
    return f"{type(value).__name__} {value!r}" if isinstance(value, (int, float, str)) else f"a {type(value).__name__}"


def _bfloat16(value: float) -> bytes:
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if value == value:  # NaN keeps its bits
        bits += 0x7FFF + (bits >> 16 & 1)
    return (bits >> 16 & 0xFFFF).to_bytes(2, "little")


# ---- what a kernel takes, by its mangled name and its PTX ------------------------------------------------------------


def kernel_types(symbol: str, params: Sequence[tuple[str, int]]) -> list[ParameterType]:
    """The types of a kernel's parameters: from its mangled name where it has one; the PTX has only (type, size)."""
    texts = parameter_list(demangle(symbol)) if symbol.startswith("_Z") else []
    if len(texts) != len(params):
        texts = [""] * len(params)
    return [_kernel_type(text, ptx_type, size) for text, (ptx_type, size) in zip(texts, params)]


def _kernel_type(text: str, ptx_type: str, size: int) -> ParameterType:
    if text.endswith("*") and not text.endswith("(*"):
        to = re.sub(r"\b(const|volatile)\b", "", text[:-1]).strip()
        constant = re.search(r"\bconst\s*\*$", text) is not None
        pointee, pointee_size = ("p", 0) if to.endswith("*") else _plain(to)
        return ParameterType("p", pointee, constant, size, pointee_size, text)
    kind, plain_size = _plain(text)
    if plain_size == size:
        return ParameterType(kind, "", False, size, 0, text)
    if text:
        return ParameterType("c", "", False, size, 0, text)
    kind = _PTX_KINDS.get(ptx_type, "?")
    return ParameterType(kind, "", False, size, 0, {"f32": "float", "f64": "double"}.get(ptx_type, f".{ptx_type}"))


def _plain(text: str) -> tuple[str, int]:
    """Kind and size, as ParameterType has them, of a type as the demangler spells it; size 0: not known."""
    if text in BY_CPP:
        return BY_CPP[text].kind, BY_CPP[text].size
    return "v" if text == "void" else "c", PAIRS.get(text, 0)


def parameter_list(declaration: str) -> list[str]:
    """The parameters of a demangled function: "void k<2>(float*, int)" -> ["float*", "int"]."""
    opening = next((at for at, mark in enumerate(declaration) if mark == "(" and _last(declaration, at)), None)
    return [] if opening is None else cpp.arguments(declaration, opening)


def _last(declaration: str, opening: int) -> bool:
    """Whether the bracket that opens there closes last."""
    return cpp.closing(declaration, opening) == declaration.rfind(")")


def parameter_names(source: str, function: str, count: int) -> list[str]:
    """The names of a function's parameters in the source, for reports; "argument 1" ... if they cannot be read."""
    bare = re.sub(r"<.*", "", function).rpartition("::")[2]
    for parameters in cpp.parameter_lists(cpp.code(source), bare):
        names = [each.name for each in parameters]
        if len(names) == count and all(names):
            return names
    return [f"argument {position + 1}" for position in range(count)]


def source_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
