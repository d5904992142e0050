"""The types of elements: one row for each, with its names in PyTorch, NumPy and C++ and its bytes."""

from __future__ import annotations

from typing import NamedTuple


class DType(NamedTuple):
    """A type of elements, "float16"."""

    name: str  # PyTorch's name, and NumPy's if it has the type
    size: int  # bytes
    kind: str  # as in process.ParameterType: b bool, s signed, u unsigned, f floating, c class
    cpp: tuple[str, ...]  # its names in C++, the usual one first
    scalar_type: int | None = None  # the number of c10::ScalarType, if the stand-in for PyTorch's headers has the type
    bits: str = ""  # NumPy's name of a type with the same bytes, if it lacks this one

    @property
    def numpy(self) -> str:
        """The name of the NumPy dtype that holds such elements, or their bits: "uint16" for bfloat16."""
        return self.bits or self.name


DTYPES = {
    row.name: row
    for row in (
        DType("bool", 1, "b", ("bool",), 11),
        DType("int8", 1, "s", ("signed char", "char", "int8_t"), 1),
        DType("uint8", 1, "u", ("unsigned char", "uint8_t", "std::byte"), 0),
        DType("int16", 2, "s", ("short", "int16_t"), 2),
        DType("uint16", 2, "u", ("unsigned short", "uint16_t")),
        DType("int32", 4, "s", ("int", "int32_t"), 3),
        DType("uint32", 4, "u", ("unsigned int", "unsigned", "uint32_t")),
        DType("int64", 8, "s", ("long", "long long", "int64_t"), 4),
        DType("uint64", 8, "u", ("unsigned long", "unsigned long long", "uint64_t")),
        DType("float8_e4m3fn", 1, "c", ("__nv_fp8_e4m3",), 24, bits="uint8"),
        DType("float8_e5m2", 1, "c", ("__nv_fp8_e5m2",), 23, bits="uint8"),
        DType("float16", 2, "c", ("half", "__half"), 5),
        DType("bfloat16", 2, "c", ("__nv_bfloat16", "nv_bfloat16"), 15, bits="uint16"),
        DType("float32", 4, "f", ("float",), 6),
        DType("float64", 8, "f", ("double",), 7),
    )
}
BY_CPP = {spelling: row for row in DTYPES.values() for spelling in row.cpp}
# Bytes of CUDA's vector types.
PAIRS = {f"{spelling}2": 4 for name in ("float16", "bfloat16") for spelling in DTYPES[name].cpp}
_BASES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4}
VECTORS = {**PAIRS, **{f"{base}{n}": n * size for base, size in _BASES.items() for n in (2, 4)}, "double2": 16}


def size_of(cpp: str) -> int | None:
    """The bytes of a type by its name in C++, "half" or "float4"; None for one that has no row."""
    return BY_CPP[cpp].size if cpp in BY_CPP else VECTORS.get(cpp)
