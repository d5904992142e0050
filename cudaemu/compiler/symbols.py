"""The names of the object code's functions and variables, as a person reads them."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache

UNNAMED = "(anonymous namespace)::"


@lru_cache(maxsize=4096)
def demangle(symbol: str) -> str:
    """The declaration behind a mangled C++ name, as libstdc++ has it; another name as it is."""
    if not symbol.startswith("_Z"):
        return symbol
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return symbol
    function.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = function(symbol.encode(), None, None, ctypes.byref(status))
    if not text:
        return symbol
    found = ctypes.string_at(text).decode()
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(text)
    return found


@lru_cache(maxsize=4096)
def readable(symbol: str) -> str:
    """The name in the source of a mangled kernel, with its template arguments, or of a mangled variable of one.

    "_Z6kernelPf" -> "kernel"; "_Z4gemmILi64ELb1EEvPf" -> "gemm<64, true>"; "_ZZ6kernelPfE4tile" -> "tile".
    """
    text = demangle(symbol)
    if text == symbol:
        return symbol
    depth = start = 0
    for at, char in enumerate(text):
        if depth == 0:
            if char == "(" and not _scope(text, at):  # the parameters
                return text[start:at]
            if char == " ":  # behind the type of what it returns
                start = at + 1
            elif text[max(0, at - 2) : at] == "::":
                start = at
        depth += (char in "<([{") - (char in ">)]}")
    return text[start:]


def qualified(symbol: str) -> str:
    """The name of a mangled function with its namespaces, but for those that have no name, and without its arguments.

    "_ZN3gpu4gemmILi64EEEvPf" -> "gpu::gemm"."""
    name = readable(symbol).partition("<")[0]
    found = re.search(rf"(?:\w+::)*{re.escape(name)}(?=[<(]|$)", demangle(symbol).replace(UNNAMED, ""))
    return found[0] if found else name


def _scope(text: str, at: int) -> bool:
    """Whether the bracket that opens at `at` closes before a "::": "(anonymous namespace)::", "kernel(int*)::tile"."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            return text.startswith("::", end + 1)
    return False
