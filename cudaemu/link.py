"""Several files' PTX as one module: what nvlink does for a program of several sources.

Without relocatable device code each file's device code is separate: names that two files have are renamed in the
second. With it the files share what is not static, and nvcc has made each file's static names unique.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cudaemu.compiler.symbols import OF_FILE, readable
from cudaemu.errors import ToolFailed

_HEAD = re.compile(r"^\.(version|target|address_size)\b.*\n", re.MULTILINE)
_SYMBOL = re.compile(
    r"^((?:\.(?:visible|extern|weak|common)\s+)*)\.(func|entry|global|const)\b"  # words, kind
    r"(?:[^;{(=\n]|\([^()]*\)\s*(?=[\w$]))*?"  # alignment, type; a function's results
    r"([A-Za-z_$][\w$]*)\s*(?=[;\[=({\n]|$)",
    re.MULTILINE,
)
_DYNAMIC_PARALLELISM = re.compile(r"\b(__cudaCDP2|cuda)LaunchDevice")


def link(parts: Sequence[str], names: Sequence[str], relocatable: bool) -> str:
    """One module of the PTX of several files, which are called by these names.

    ToolFailed if something is missing, or there twice, or if a kernel launches another one."""
    for text, name in zip(parts, names):
        if _DYNAMIC_PARALLELISM.search(text):
            raise ToolFailed(no_dynamic_parallelism(name))
    if len(parts) == 1:
        return parts[0]
    symbols = [[(match[3], match[1], match) for match in _SYMBOL.finditer(text)] for text in parts]
    owners: dict[str, int] = {}  # of what is defined, the file that has it
    doubles: list[set[str]] = [set() for _ in parts]  # what a file defines and another one before it has defined
    for number, found in enumerate(symbols):
        for name, words, match in found:
            if ".extern" in words or _is_declaration(parts[number], match):
                continue
            if owners.setdefault(name, number) == number:
                continue
            doubles[number].add(name)
            if relocatable and ".weak" not in words:
                raise ToolFailed(f"{readable(name)} is defined twice, in {names[owners[name]]} and in {names[number]}")
    linked = []
    for number, (text, found) in enumerate(zip(parts, symbols)):
        for name, words, match in reversed(found):  # from the end, so that places stay
            if ".extern" not in words or not (name in owners or match[2] != "func" or name.startswith("_Z")):
                continue  # the device's own, such as vprintf
            if name not in owners or not relocatable:
                hint = "" if relocatable else "; if another file does, device code needs -rdc=true (--flags=-rdc=true)"
                raise ToolFailed(f"{names[number]} uses {readable(name)}, which it does not define{hint}")
            text = text[: match.start()] + text[text.index(";", match.end()) + 1 :]
        if not relocatable:
            for name in doubles[number]:
                text = re.sub(rf"(?<![\w$%.]){re.escape(name)}(?![\w$])", rf"\g<0>{OF_FILE}{number}", text)
        linked.append(_renumbered(text, number))
    versions = [re.search(r"^\.version.*", text, re.MULTILINE) for text in parts]
    newest = max((found[0] for found in versions if found), key=lambda text: [int(n) for n in re.findall(r"\d+", text)])
    head = "".join(found[0] for found in _HEAD.finditer(parts[0]) if found[1] != "version")
    return f"{newest}\n{head}" + "\n".join(_HEAD.sub("", text) for text in linked)


def no_dynamic_parallelism(name: str) -> str:
    """The error for a file with a kernel that launches another one."""
    return (
        f"{name} uses dynamic parallelism (a kernel launches a kernel), which the emulator does not have: launch the "
        "inner kernel from the host, or let the outer one do its work in a loop"
    )


def _is_declaration(text: str, match: re.Match[str]) -> bool:
    """Whether a function has no body here."""
    end = re.compile(r"[{;]").search(text, match.end())
    return match[2] == "func" and end is not None and end[0] == ";"


def _renumbered(text: str, number: int) -> str:
    """With numbers of files, and labels of what debuggers read, that no other part has."""
    step = 100_000 * number
    text = re.sub(r"^(\s*\.file\s+)(\d+)", lambda m: f"{m[1]}{int(m[2]) + step}", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s*\.loc\s+)(\d+)", lambda m: f"{m[1]}{int(m[2]) + step}", text, flags=re.MULTILINE)
    text = re.sub(r"(\binlined_at\s+)(\d+)", lambda m: f"{m[1]}{int(m[2]) + step}", text)
    return text.replace("$L__info_string", f"$L{number}__info_string")
