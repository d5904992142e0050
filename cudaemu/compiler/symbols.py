"""Readable names of the object code's functions and variables."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from cudaemu import cpp

UNNAMED = "(anonymous namespace)::"
_PIECE = re.compile(r"_\$_(\d+)$")  # after the name of an array or a structure of which nvcc keeps one element alone
OF_FILE = "$file"  # and a number, after a name that an earlier file of the program has as well


@lru_cache(maxsize=4096)
def demangle(symbol: str) -> str:
    """The demangled C++ declaration, by libstdc++; any other name unchanged."""
    symbol = _plain(symbol)
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
    return re.sub(r"\[abi:\w+\]", "", found)  # with them Numba tells one compilation from another


def _plain(symbol: str) -> str:
    """The name without the suffix that distinguishes static names of several files: nvcc's with -rdc=true, or
    link.py's."""
    symbol = symbol.partition(OF_FILE)[0]
    if (found := re.match(r"__nv_static_(\d+)_", symbol)) and len(symbol) > found.end() + int(found[1]):
        return symbol[found.end() + int(found[1]) + 1 :]
    return symbol


@lru_cache(maxsize=4096)
def readable(symbol: str) -> str:
    """The name in the source of a mangled kernel, with its template arguments, or of a mangled variable of one.

    "_Z6kernelPf" -> "kernel"; "_Z4gemmILi64ELb1EEvPf" -> "gemm<64, true>"; "_ZZ6kernelPfE4tile" -> "tile";
    "_ZZ6kernelPfE4tile_$_1" -> "element 1 of tile"; "_ZZZ4mainENKUliE_clEiE4tile", of a lambda -> "tile".
    """
    if piece := _PIECE.search(symbol):
        return f"element {piece[1]} of {readable(symbol[: piece.start()])}"
    text = demangle(symbol)
    if text == _plain(symbol):
        return text
    start = at = 0
    while at < len(text):
        if text[at] in "<([{":
            end = cpp.closing(text, at)
            call = text.startswith("()", at) and text.endswith("operator", start, at)
            scope = re.compile(r"( const)?::").match(text, end + 1)  # in brackets, or what a function declares
            if text[at] == "(" and not call and not scope:  # the parameters
                return text[start:at]
            at = end
        elif text[at] == " ":  # what came is the type of what it returns
            start = at + 1
        elif text.startswith("::", at):
            start = at + 2
        at += 1
    return text[start:]


SHORT, SHORT_ARGUMENT = 60, 16  # characters of a kernel's name, and of one of its template arguments


def short(name: str) -> str:
    """A short readable name: long template arguments lose their own arguments and namespaces, and the whole fits a
    line."""
    if name.startswith("_Z"):
        return _bare(name)
    if len(name) <= SHORT or "<" not in name:
        return name
    bare, arguments = name.partition("<")[0], cpp.arguments(name, name.index("<"))
    told: list[str] = []
    room = SHORT - len(bare)
    for argument in arguments:
        brief = re.sub(r"<.*", "<...>", argument, flags=re.DOTALL)
        brief = re.sub(r"(\w+::|\(anonymous namespace\)::)+", "", brief)
        brief = brief if len(brief) <= SHORT_ARGUMENT else f"{brief[: SHORT_ARGUMENT - 3]}..."
        if sum(len(each) for each in told) + len(brief) > room:
            return f"{bare}<{', '.join([*told, '...'])}>"
        told.append(brief)
    return f"{bare}<{', '.join(told)}>"


def _bare(symbol: str) -> str:
    """The name in a mangled one that cannot be demangled, as nvcc's may be where a template has a pack of arguments."""
    at, name = 3 if symbol.startswith("_ZN") else 2, symbol
    while found := re.compile(r"\d+").match(symbol, at):
        at = found.end() + int(found[0])
        name = symbol[found.end() : at]
    return name + "<...>" * symbol.startswith("I", at)


def apart(names: Iterable[str]) -> dict[str, str]:
    """Short names of kernels, by their readable ones: equal short names get a number."""
    names = list(names)
    alike = Counter(map(short, names))
    met: Counter[str] = Counter()
    told = {}
    for name in names:
        brief = short(name)
        met[brief] += 1
        told[name] = f"{brief} ({met[brief]} of {alike[brief]})" if alike[brief] > 1 else brief
    return told


def qualified(symbol: str) -> str:
    """The name of a mangled function with its namespaces, but for those that have no name, and without its arguments.

    "_ZN3gpu4gemmILi64EEEvPf" -> "gpu::gemm"."""
    name = readable(symbol).partition("<")[0]
    found = re.search(rf"(?:\w+::)*{re.escape(name)}(?=[<(]|$)", demangle(symbol).replace(UNNAMED, ""))
    return found[0] if found else name
