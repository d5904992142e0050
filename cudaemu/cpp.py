"""Reads parameters, kernels and macros from C++ source without a compiler, for reports and calls.

`code` leaves what is code, each character in its place, so that brackets can be matched and words searched in it.
Nothing here changes what is compiled: the user's source as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_HIDDEN = re.compile(
    r"""(?P<comment> //(?:\\\r?\n|[^\n])* | /\*.*?(?:\*/|\Z))
    | (?P<literal> (?<!\w)(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"
                 | "(?:\\.|[^"\\\n])*"
                 | (?<!\w)(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')""",  # a quote between digits, 1'000, begins nothing
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\r?\n|[^\n])*", re.MULTILINE)
_GUARDED = re.compile(
    r"^#ifndef[ \t]+(\w+)[ \t]*\r?\n#define[ \t]+\1[ \t]+(\S+)(?:[ \t]+// *([^\r\n]*))?[ \t]*\r?\n#endif", re.MULTILINE
)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+((?:\\\r?\n|[^\n])*)", re.MULTILINE)
_ANGLE = re.compile(r"(?<!<)<(?![<=])")  # neither a shift nor a launch
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_WORDS_OF_TYPES = frozenset(
    ("auto", "bool", "char", "const", "double", "float", "int", "long", "short", "signed", "unsigned", "void")
)
_WITH_ARGUMENTS = frozenset(  # what may come before a function's name and has brackets of its own
    ("__launch_bounds__", "__cluster_dims__", "__block_size__", "__maxnreg__", "__attribute__", "alignas", "decltype")
)


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


@lru_cache(maxsize=32)
def without_comments(text: str) -> str:
    """The text with blanks in place of comments."""
    return _HIDDEN.sub(lambda found: _blank(found[0]) if found["comment"] else found[0], text)


@lru_cache(maxsize=32)
def code(text: str) -> str:
    """The text with blanks in place of comments, preprocessor lines and all that is in quotes."""

    def hide(found: re.Match[str]) -> str:
        inside = _blank(found[0])
        return inside if found["comment"] else f"{found[0][0]}{inside[1:-1]}{found[0][-1]}"

    return _DIRECTIVE.sub(lambda found: _blank(found[0]), _HIDDEN.sub(hide, text))


def closing(text: str, at: int) -> int:
    """Where the bracket at `at`, one of ( [ { <, closes in code; the text's length if it does not.

    < and > are brackets only if the one at `at` is <, and then not inside other brackets."""
    angles = text[at] == "<"
    expected = ""  # the closing brackets that are due, the next one last
    for position in range(at, len(text)):
        character = text[position]
        if character in "([{" or (character == "<" and angles and expected in ("", ">" * len(expected))):
            expected += _CLOSING[character]
        elif character == ";" and angles:
            break
        elif character in ")]}" or (character == ">" and expected[-1:] == ">" and text[position - 1] != "-"):
            if expected[-1:] != character:
                return len(text)
            expected = expected[:-1]
            if not expected:
                return position
    return len(text)


def split(text: str) -> list[str]:
    """The parts of code between the commas that are outside all brackets; none of them is empty."""
    parts, start, at = [], 0, 0
    while at < len(text):
        character = text[at]
        if character in "([{" or _ANGLE.match(text, at):
            end = closing(text, at)
            if end < len(text):  # a "<" that does not close compares
                at = end
        elif character == ",":
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def arguments(text: str, opening: int) -> list[str]:
    """What is between the bracket at `opening` and the one that closes it, split at its commas; [] for (void)."""
    parts = split(text[opening + 1 : closing(text, opening)])
    return [] if parts == ["void"] else parts


class Parameter(NamedTuple):
    """A parameter of a function, `const half *A` or `int n = 3`."""

    type: str  # "const half *"
    name: str  # "" if it has none


def parameter(text: str) -> Parameter:
    """A parameter as it is declared, without its default."""
    declared = re.split(r"(?<![=!<>])=(?!=)", text, maxsplit=1)[0].strip()
    if found := re.fullmatch(r"(.*\(\s*[*&]\s*)(\w+)(\s*\)\s*\(.*\).*)", declared, re.DOTALL):
        return Parameter(_one_line(found[1] + found[3]), found[2])
    found = re.fullmatch(r"(.*?)(\w*)((?:\s*\[[^\]]*\])*)", declared, re.DOTALL)
    type_, name, extents = found.groups() if found else (declared, "", "")
    if not type_.strip() or type_.rstrip().endswith("::") or name in _WORDS_OF_TYPES:
        return Parameter(_one_line(declared), "")
    return Parameter(_one_line(type_ + extents), name)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def parameter_lists(text: str, function: str) -> Iterator[list[Parameter]]:
    """The parameters wherever code declares or calls a function: a call's arguments have no names."""
    for found in re.finditer(rf"\b{re.escape(function)}\s*\(", text):
        yield [parameter(part) for part in arguments(text, found.end() - 1)]


class KernelDeclaration(NamedTuple):
    """A __global__ function, as the source declares it."""

    name: str
    parameters: list[Parameter]
    template: list[Parameter]  # [Parameter("int", "TILE"), Parameter("typename", "T")]; none: it is no template


def kernels(text: str) -> list[KernelDeclaration]:
    """The __global__ functions that code declares or defines."""
    found = []
    for word in re.finditer(r"\b__global__\b", text):
        begin = max(text.rfind(end, 0, word.start()) for end in ";{}") + 1
        head = re.search(r"\btemplate\s*<", text[begin : word.start()])
        template = [parameter(part) for part in arguments(text, begin + head.end() - 1)] if head else []
        at = word.end()
        while step := re.compile(r"[\s*&]*(\w+)\s*(\()?").match(text, at):
            at = step.end()
            if step[2] is None:
                continue
            if step[1] in _WITH_ARGUMENTS:
                at = closing(text, at - 1) + 1
                continue
            found.append(KernelDeclaration(step[1], [parameter(part) for part in arguments(text, at - 1)], template))
            break
    return found


def exported(text: str, function: str) -> list[Parameter] | None:
    """The parameters of `extern "C" cudaError_t FUNCTION(...)` in code; None if it does not have that."""
    found = re.search(rf'extern\s+"."\s+cudaError_t\s+{re.escape(function)}\s*\(', text)
    return found and [parameter(part) for part in arguments(text, found.end() - 1)]


def statements(text: str, words: str) -> Iterator[range]:
    """The lines, from 1, of each statement of code `WORD ... (...)`; `words` is a pattern, "asm|__asm__"."""
    for found in re.finditer(rf"\b(?:{words})\b[^(){{}};]*\(", text):
        first = text.count("\n", 0, found.start()) + 1
        yield range(first, first + text.count("\n", found.start(), closing(text, found.end() - 1)) + 1)


def defines(text: str) -> dict[str, str]:
    """The macros without parameters of a source, as they are defined first."""
    found: dict[str, str] = {}
    for name, value in _DEFINE.findall(without_comments(text)):
        found.setdefault(name, " ".join(re.sub(r"\\\r?\n", " ", value).split()))
    return found


def guarded_macros(text: str) -> dict[str, tuple[str, str]]:
    """Default and help of each macro that can be set from outside: `#ifndef NAME / #define NAME value  // help /
    #endif`."""
    plain = without_comments(text)
    return {m[1]: (m[2], (m[3] or "").strip()) for m in _GUARDED.finditer(text) if plain[m.start()] == "#"}
