"""Sources that are written as PyTorch extensions: torch::Tensor in, torch::Tensor out, as `load_inline` takes them.

They are compiled with stand-ins for PyTorch's headers (host/extension/), in which a tensor is memory of the emulated
device: nvcc compiles them quickly, where the real ones take half a minute at every change. They have what a learner's
extension uses; for anything else `explain` says what to do instead.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudaemu import cpp
from cudaemu.arguments import is_tensor
from cudaemu.dtypes import DTYPES
from cudaemu.errors import UserError
from cudaemu.process import HERE

HEADERS = HERE / "extension"
FLAGS = ("--expt-relaxed-constexpr",)  # what PyTorch's builder of extensions passes to nvcc
_INCLUDES = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](torch|ATen|c10|pybind11)/', re.MULTILINE)


def is_extension(texts: Sequence[str]) -> bool:
    """Whether a source includes PyTorch's headers."""
    return any(_INCLUDES.search(text) for text in texts)


def has_module(texts: Sequence[str]) -> bool:
    """Whether a source names the functions for Python itself (PYBIND11_MODULE, TORCH_LIBRARY)."""
    return any(re.search(r"^\s*(PYBIND11_MODULE|TORCH_LIBRARY\w*)\s*\(", text, re.MULTILINE) for text in texts)


def explain(error: str, text: str) -> str:
    """What to do if the stand-in headers do not have what a source uses: the launcher to write, for this source."""
    lines = [
        error,
        "",
        "The emulator compiles PyTorch extensions with small stand-ins for PyTorch's headers: tensors with their",
        "data, sizes and dtypes, copies and views, TORCH_CHECK, AT_DISPATCH_..., accessors, torch::empty and the like;",
        "no arithmetic on tensors. Put code that needs more, and its includes, between #ifndef __EMULATOR__ and",
        "#endif, and add a launcher:",
    ]
    for kernel in cpp.kernels(cpp.code(text)):
        name, parameters = kernel.name, [_launchers(each, kernel) for each in kernel.parameters]
        declared = ", ".join([*parameters, "int blocks", "int threads", "cudaStream_t stream"])
        names = ", ".join(each.name for each in kernel.parameters)
        lines += [
            "",
            f'extern "C" cudaError_t launch_{name}({declared}) {{',
            f"  {name}<<<blocks, threads, 0, stream>>>({names});",
            "  return cudaGetLastError();",
            "}",
        ]
    return "\n".join(lines)


def _launchers(parameter: cpp.Parameter, kernel: cpp.KernelDeclaration) -> str:
    """A kernel's parameter as one of its launcher, which is not a template: for float."""
    types = "|".join(re.escape(each.name) for each in kernel.template if each.type in ("typename", "class"))
    plain = parameter.type.replace("__restrict__", "").rstrip()
    plain = re.sub(rf"\b(?:{types})\b", "float", plain) if types else plain
    return f"{plain}{'' if plain.endswith('*') else ' '}{parameter.name}"


def pack(values: Sequence[Any], parameters: str, function: str, upload: Callable[[str, Any], int]) -> bytes:
    """The arguments of a function as its stub reads them; `parameters` are its "kind type" lines, `upload` copies an
    array to the device and says where to. UserError if one does not fit."""
    kinds = [line.partition(" ")[0] for line in parameters.splitlines()]
    types = [_readable(line.partition(" ")[2]) for line in parameters.splitlines()]
    if len(values) != len(kinds):
        raise UserError(f"{function} takes {len(kinds)} arguments ({', '.join(types)}), got {len(values)}")
    packed = []
    for position, (value, kind, type_) in enumerate(zip(values, kinds, types), 1):
        packed.append(_pack(value, kind, type_, f"argument {position}", upload))
    return b"".join(packed)


def _pack(value: Any, kind: str, type_: str, name: str, upload: Callable[[str, Any], int]) -> bytes:
    if kind[0] == "O":
        return b"\0" if value is None else b"\1" + _pack(value, kind[1], type_, name, upload)
    if isinstance(value, np.generic):
        value = value.item()
    if kind == "T" and is_tensor(value):
        dtype = str(value.dtype).removeprefix("torch.")
        number = DTYPES[dtype].scalar_type if dtype in DTYPES else None
        if number is None:
            raise UserError(f"{name} must have a dtype with a torch::ScalarType here, got an array of {dtype}")
        sizes = list(value.shape)
        address = upload(name, value)
        return struct.pack(f"=QiI{len(sizes)}q", address, number, len(sizes), *sizes)
    if kind == "L" and isinstance(value, (list, tuple)) and all(map(is_tensor, value)):
        parts = [_pack(one, "T", type_, f"{name}[{at}]", upload) for at, one in enumerate(value)]
        return struct.pack("=I", len(parts)) + b"".join(parts)
    if kind == "b" and isinstance(value, (bool, int)) or kind == "s" and isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return struct.pack("=q", value)
    elif kind == "f" and isinstance(value, (int, float)):
        return struct.pack("=d", value)
    elif kind == "t" and isinstance(value, str):
        return struct.pack("=I", len(value.encode())) + value.encode()
    raise UserError(f"{name} must be a {type_}, got {value!r:.60}")


def unpack(data: bytes, fetch: Callable[[int, int], bytes], torch: Any) -> Any:
    """The result that a function's stub wrote; `fetch(address, bytes)` reads the device's memory. Tensors come as
    PyTorch's if `torch` is the module, else as NumPy's (bfloat16: its bits, as uint16)."""
    return _Result(data, fetch, torch).value()


class _Result:
    def __init__(self, data: bytes, fetch: Callable[[int, int], bytes], torch: Any):
        self.data, self.at, self.fetch, self.torch = data, 0, fetch, torch

    def raw(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def take(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("=" + layout, self.raw(struct.calcsize("=" + layout)))

    def value(self) -> Any:
        kind = self.take("c")[0].decode()
        if kind in "TC":
            return self.tensor(kind == "C")
        if kind in "LP":
            values = [self.value() for _ in range(self.take("I")[0])]
            return tuple(values) if kind == "P" else values
        if kind == "N":
            return None
        (number,) = self.take("d" if kind == "f" else "q")
        return bool(number) if kind == "b" else number

    def tensor(self, of_host: bool) -> Any:
        address, code, rank = self.take("QiI")
        sizes, strides = self.take(f"{rank}q"), self.take(f"{rank}q")
        element = next(each for each in DTYPES.values() if each.scalar_type == code)
        dtype = np.dtype(element.numpy)
        empty = 0 in sizes
        last = 0 if empty else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
        data = self.raw(last * dtype.itemsize) if of_host else self.fetch(address, last * dtype.itemsize)
        flat = np.frombuffer(bytearray(data), dtype)
        steps = [stride * dtype.itemsize for stride in strides]
        array = np.zeros(sizes, dtype) if empty else np.lib.stride_tricks.as_strided(flat, sizes, steps).copy()
        if self.torch is None:
            return array
        tensor = self.torch.from_numpy(array)
        return tensor.view(getattr(self.torch, element.name)) if element.bits else tensor


def _readable(text: str) -> str:
    named = re.search(r"T = (.*?)(?:;.*)?\]$", text)
    return re.sub(r"\b(at|c10|std)::|__cxx11::", "", named[1] if named else text).replace(
        "basic_string<char>", "string"
    )
