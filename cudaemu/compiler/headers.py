"""What a source needs of its headers.

In front of a kernel of three lines nvcc's tools read forty thousand lines of headers, the host's compiler as many, and
that takes most of their time. So the headers that a source begins with are preprocessed once, split into declarations
and kept in the cache; and a source gets those that it names, those that these name, and so on. A name is all that
counts: of a name that is met, every declaration stays that may be meant there (in no namespace, in that around, in one
that is named, too), so that overloads and specialisations are chosen among the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cudaemu.compiler import toolchain
from cudaemu.errors import UserError

# What cicc and cudafe++ write into the code: launches for <<<...>>>, and an end for what is of the device alone.
WRITTEN = ("__cudaPushCallConfiguration", "cudaLaunchKernel", "dim3", "uint3", "exit", "free")
# The host's code is followed by headers of the toolkit's own, which use what stands before them: the first includes the
# second, where those functions of CUDA's are that the host's libraries lack, and that includes the third.
RUNTIME, FUNCTIONS, MATH = "crt/host_runtime.h", "crt/common_functions.h", "crt/math_functions.hpp"
WITHOUT_FUNCTIONS = "-D__COMMON_FUNCTIONS_H__"  # as if it had been read
LIST = re.compile(r"\bfor *\([^;()]*: *\{")  # for (int x : {1, 2}) does not name initializer_list

ALL = "all.cu"
TOOLKITS = re.compile("_*(CUDA|NV)")  # the macros with which nvcc calls the preprocessor
INCLUDE = re.compile(r'\s*#[ \t]*include[ \t]*(?:<([^>\n]+)>|"([^"\n]+)")[ \t]*(?:\n|$)')
COMMENT = re.compile(r"\s*(?://[^\n]*(?:\n|$)|/\*.*?\*/)", re.DOTALL)
PRAGMA_ONCE = re.compile(r"\s*#[ \t]*pragma[ \t]+once[ \t]*(?:\n|$)")
MARKER = re.compile(r'# (\d+) "([^"\n]*)"((?: \d)*)$')  # line and file of what is below, and flags
DIRECTIVES = ("#define ", "#undef ")
MARKER_OF_ALL = re.compile(f'^# \\d+ "{re.escape(ALL)}".*\n', re.MULTILINE)
MARKERS = re.compile(f"^{MARKER.pattern}", re.MULTILINE)
FILE = re.compile(r'^# \d+ "([^"<\n]+)"', re.MULTILINE)
ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:el)?if(?:n?def)?\b((?:.*\\\n)*.*)$", re.MULTILINE)
OF_NEXT = re.compile(r"\b(nv_exec_check_disable|hd_warning_disable)\b")  # pragmas that are of the next declaration
STRING = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
NAME = re.compile(rf"{STRING}|([A-Za-z_]\w*)")
SUFFIX = re.compile(r"""(?:["']|\b\d[\w.']*?)([A-Za-z_]\w*)""")  # of a literal
TOKEN = re.compile(rf"^[ \t]*#.*$|{STRING}|[A-Za-z_]\w*|\[\[|\]\]|::|[=!<>]=|[{{}}();<>:=,]", re.MULTILINE)
PAIRS = {
    opening: re.compile(rf"^[ \t]*#.*$|{STRING}|(?P<open>{re.escape(opening)})|(?P<close>{re.escape(closing)})", re.M)
    for opening, closing in (("{", "}"), ("(", ")"), ("[[", "]]"))
}
BRACE, PARENTHESIS = re.compile(r"\s*\{"), re.compile(r"\s*\(")
END = re.compile(r"[{;]")
OPERATOR = re.compile(r"\s*\(\s*\)|[^(]*")
ASSERTION = "static_assert"  # as a name: of those that name something
KINDS = ("class", "struct", "union", "enum")
SKIPPED = 60  # fewer lines that are left out are left empty: a marker is no shorter
FLAGS_OF_SYSTEM = (" 3", " 4")
# In front of parentheses that have nothing to do with what is declared.
ASIDE = set(
    re.findall(r"\w+", "__attribute__ alignas __declspec decltype noexcept throw asm __asm __asm__ __typeof __typeof__")
)
KEYWORDS = ASIDE | set(
    re.findall(
        r"\w+",
        """auto bool char char16_t char32_t class const constexpr default delete double enum explicit extern false float
        for friend if inline int long mutable namespace new nullptr operator private protected public register return
        short signed sizeof static static_assert struct template this thread_local true typedef typename union unsigned
        using virtual void volatile wchar_t while __inline__ __inline __extension__ __restrict __restrict__ __const""",
    )
)


class Piece(NamedTuple):
    """A stretch of the headers' text: a declaration, or what holds declarations together."""

    begin: int
    end: int
    place: str  # the marker for its first line
    names: str  # what it declares, with spaces between; nothing: always needed
    uses: str  # the names in it
    within: str  # the namespaces around it


@dataclass(frozen=True, eq=False)
class Header:
    """The text that one header adds."""

    text: str
    pieces: list[Piece]
    by_name: Mapping[str, list[int]]

    def stretch(self, wanted: set[int]) -> str:
        """The text of some of its pieces, each where it was."""
        out, file, line, last = [], "", 0, 0
        for number in sorted(wanted):
            begin, end, place, *_ = self.pieces[number]
            text = self.text[begin:end]
            if text.lstrip()[0] == "#" and "\n" not in text.strip():  # a pragma may stand in a place with others
                out.append(f"\n{text}")
                file = ""
                continue
            _, at, now = place.split(" ", 2)
            column = begin - self.text.rfind("\n", 0, begin) - 1
            if (file, line) == (now, int(at)):
                out.append(" " * (begin - last))
            elif file == now and line < int(at) < line + SKIPPED:
                out.append("\n" * (int(at) - line) + " " * column)
            else:
                out.append(f"\n{place}\n" + " " * column)
            out.append(text)
            file, line, last = now if "\n#" not in text else "", int(at) + text.count("\n"), end
        return "".join([*out, "\n"])


@dataclass(frozen=True)
class Headers:
    """Headers that sources begin with, preprocessed one after the other."""

    headers: Sequence[Header]
    macros: Path | None = None  # what they define; None: there are no headers
    conditions: frozenset[str] = frozenset()  # the names that their text depends on, if they are macros
    files: frozenset[str] = frozenset()  # those that they consist of
    counted: int = 0  # what the preprocessor's counter has come to

    def in_front_of(self, source: str, name: str, more: Collection[str]) -> str:
        """A preprocessed source, whose name is `name`, behind what it needs."""
        return f'# 1 "{name}"\n{self.needed(source, more)}{source}'

    def needed(self, source: str, more: Collection[str]) -> str:
        """The part of the headers that a preprocessed source and the names `more` need."""
        wanted = [{n for n, piece in enumerate(header.pieces) if not piece.names} for header in self.headers]
        # Names, and the outermost of the namespaces in which they stand; None: any may be known by another name there.
        named = {*_names(source), *(f'""{name}' for name in SUFFIX.findall(source)), *more}
        ask: list[tuple[set[str], str | None]] = [(named, None), ({*WRITTEN, "std"}, "")]
        for header, always in zip(self.headers, wanted):
            ask += [(set(header.pieces[n].uses.split()), header.pieces[n].within.partition(" ")[0]) for n in always]
        while ask:
            names, place = ask.pop()
            names.discard(ASSERTION)
            for header, found in zip(self.headers, wanted):
                for number in {n for name in names & header.by_name.keys() for n in header.by_name[name]} - found:
                    piece = header.pieces[number]
                    around = piece.within.split()
                    outermost = around[0] if around else ""
                    if (
                        outermost in ("", place)
                        or outermost in names
                        or (place is None and not names.isdisjoint(around))
                    ):
                        found.add(number)
                        ask.append((set(piece.uses.split()), outermost))
        # What is asserted of declarations that are all there.
        declared = set().union(*(header.by_name for header in self.headers))
        there = {name for h, found in zip(self.headers, wanted) for n in found for name in h.pieces[n].names.split()}
        for header, found in zip(self.headers, wanted):
            for number in header.by_name.get(ASSERTION, ()):
                if declared & {*header.pieces[number].uses.split()} <= there:
                    found.add(number)
        return "".join(header.stretch(found) for header, found in zip(self.headers, wanted))


class Preprocessed(NamedTuple):
    """A source for its compiler, and what the host's compiler has to be told if it comes to it."""

    text: str
    flags: Sequence[str]


def preprocess(command: Sequence[str], folder: Path) -> Preprocessed | None:
    """What the preprocessor's `command`, run in `folder`, would write into its -o, with no more of the headers than is
    needed. None if it has to be run: its headers may not be the toolkit's, or it has other work to do."""
    words = _joined(command)
    if words.count("-include") != 1 or any(word.startswith(("-M", "-imacros", "@")) for word in words):
        return None
    at, runtime = words.index("-o"), words.index("-include")
    name, flags = words[at - 1], [*words[:runtime], *words[runtime + 2 : at - 1], *words[at + 2 :]]
    *own, toolkit = [Path(word[2:]) for word in flags if word.startswith("-I")] or [Path()]
    leading = tuple(dict.fromkeys([words[runtime + 1], *_leading(folder / name, own)]))
    if any((each / words[runtime + 1]).exists() for each in own):
        return None
    # A macro that is not among what the headers' text depends on need not be told to them.
    macros = {word: re.split("[=(]", word[2:])[0] for word in flags if word[:2] in ("-D", "-U")}
    told = {word for word, macro in macros.items() if TOOLKITS.match(macro)}
    try:
        while headers := of(tuple(word for word in flags if word in told or word not in macros), leading):
            felt = {word for word, macro in macros.items() if macro in headers.conditions} - told
            if not felt:
                source = toolchain.run([*flags, "-imacros", headers.macros, name, "-o", "-"], cwd=folder)
                if "\ufffd" in source:  # not UTF-8
                    return None
                more = {"std", "initializer_list"} if LIST.search(source) else set()
                if "__CUDA_ARCH__" in macros.values():
                    return Preprocessed(headers.in_front_of(source, name, more), [])
                more |= _following(toolkit, RUNTIME)
                text = headers.in_front_of(source, name, more)
                plain = tuple(word for word in flags if word not in macros)
                if _functions(plain, toolkit).isdisjoint(_names(text)):
                    return Preprocessed(text, [WITHOUT_FUNCTIONS])
                return Preprocessed(headers.in_front_of(source, name, more | _following(toolkit, MATH)), [])
            told |= felt
    except (UserError, OSError, ValueError):
        pass  # the command will say what is wrong; or its output is not as gcc writes it
    return None


def _joined(command: Sequence[str]) -> list[str]:
    """The words of a command, -D NAME as -DNAME and the like."""
    words = list(command)
    for at in reversed(range(len(words) - 1)):
        if words[at] in ("-D", "-U", "-I"):
            words[at : at + 2] = ["".join(words[at : at + 2])]
    return words


@lru_cache
def _following(include: Path, header: str) -> frozenset[str]:
    """The names in a header that follows the host's code."""
    raw = (include / header).read_text(errors="replace")
    return frozenset(_names(re.sub(r"//[^\n]*|/\*.*?\*/", "", raw, flags=re.DOTALL)))


@lru_cache
def _functions(flags: tuple[str, ...], include: Path) -> frozenset[str]:
    """The functions that FUNCTIONS, and thus MATH, defines behind the host's code."""
    header = include / FUNCTIONS

    def build(out: Path) -> None:
        inside = ["-D__CUDA_INTERNAL_COMPILATION__", "-D__CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__"]
        text = toolchain.run([*flags, *inside, header, "-o", "-"])
        defined = [piece.names for piece in _pieces(text) if "{" in text[piece.begin : piece.end]]
        (out / "names").write_text(" ".join(defined))

    key = [*flags, header, (include / MATH).read_text(errors="replace"), toolchain.release(flags[0]), _SELF]
    return frozenset((toolchain.cached("functions", key, build) / "names").read_text().split())


def _leading(path: Path, folders: Sequence[Path], within: Sequence[Path] = ()) -> Iterator[str]:
    """The headers in angle brackets with which a source begins, or the file that it begins with: one beside it, or one
    that angle brackets find in `folders`, which is read anew each time."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return
    at = 0
    while True:
        while skipped := COMMENT.match(text, at) or PRAGMA_ONCE.match(text, at):
            at = skipped.end()
        include = INCLUDE.match(text, at)
        if include is None:
            return
        name = include[1] or include[2]
        own = next((each / name for each in ([path.parent] if include[2] else folders) if (each / name).exists()), None)
        if own is not None and own not in within:
            yield from _leading(own, folders, [*within, path])
        if own is not None or include[2]:
            return
        yield name
        at = include.end()


_SELF = Path(__file__).read_text()  # what it makes of a header is kept for itself alone


@lru_cache(maxsize=64)
def of(flags: tuple[str, ...], names: tuple[str, ...]) -> Headers | None:
    """The headers `names` as the preprocessor with these flags reads them, one after the other.

    None if one of them would be read again by a source that includes it again."""
    *others, name = names
    before = of(flags, tuple(others)) if others else Headers([])
    if before is None:
        return None

    def build(out: Path) -> None:
        # The preprocessor's counter goes on: names are made of it.
        count = "#if __COUNTER__\n#endif\n" * before.counted
        (out / ALL).write_text(f"{count}#include <{name}>\n__COUNTER__\n")
        known = [] if before.macros is None else ["-imacros", before.macros]
        said = toolchain.run([*flags, *known, "-dD", ALL, "-o", "-"], cwd=out)
        (out / ALL).unlink()
        *lines, counted = said[said.rindex(f'# 1 "{ALL}"\n') :].rstrip().split("\n")
        macros = _definitions(lines)
        text = "\n".join("" if line.startswith(DIRECTIVES) else line for line in [*lines, ""])
        files = {*FILE.findall(text)} - before.files - {ALL}
        each = [Path(file).read_text(errors="replace") for file in sorted(files)]
        conditions = {name for one in each for line in CONDITION.findall(one) for name in _names(line)}
        conditions.update(_names(text), *map(_names, macros))
        earlier = "" if before.macros is None else before.macros.read_text()
        (out / "macros.h").write_text("\n".join([earlier, *macros, ""]))
        (out / "text").write_text("" if any(map(ONCE.search, each)) else MARKER_OF_ALL.sub("", text))
        (out / "conditions").write_text("\n".join(before.conditions | conditions))
        (out / "files").write_text("\n".join(before.files | files))
        (out / "counted").write_text(str(int(counted)))

    environment = [os.environ.get(name, "") for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")]
    kept = toolchain.cached("headers", [*flags, *names, toolchain.release(flags[0]), *environment, _SELF], build)
    if not (text := (kept / "text").read_text()):
        return None
    conditions, files = (frozenset((kept / each).read_text().split("\n")) for each in ("conditions", "files"))
    counted = int((kept / "counted").read_text())
    return Headers([*before.headers, _header(text)], kept / "macros.h", conditions, files, counted)


def _definitions(lines: Iterable[str]) -> list[str]:
    """The definitions of macros in the preprocessor's output, and whether they are from the system's headers: what
    comes of such a macro is marked."""
    out, system, noted = [], "", ""
    for line in lines:
        if marker := MARKER.match(line):
            system = " 3" if " 3" in marker[3] else ""
        elif line.startswith(DIRECTIVES):
            if system != noted:
                out.append(f'# 1 "macros.h"{system}')
                noted = system
            out.append(line)
    return [*out, '# 1 "macros.h"'] if noted else out


@lru_cache(maxsize=256)
def _header(text: str) -> Header:
    """The text of one header, which is most often the same whatever the flags, and what comes before it."""

    def build(out: Path) -> None:
        (out / "pieces").write_text(json.dumps(_pieces(text)))

    digest = hashlib.sha256(text.encode()).hexdigest()
    found = json.loads((toolchain.cached("header", [digest, _SELF], build) / "pieces").read_text())
    pieces = [Piece(*each) for each in found]
    by_name: dict[str, list[int]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        for name in piece.names.split():
            by_name[name].append(number)
    return Header(text, pieces, dict(by_name))


def _names(text: str) -> list[str]:
    return [name for name in NAME.findall(text) if name]


def _type(parameter: str) -> list[str]:
    """The names of a function's parameter, without its own."""
    named = re.fullmatch(r"(.*[\w>&*])\s*\b\w+[\s)]*", parameter, re.DOTALL)
    return [] if named is None else [name for name in _names(named[1]) if name not in ("const", "struct")]


# ---- the declarations ------------------------------------------------------------------------------------------------


def _pieces(text: str) -> list[Piece]:
    """The text of preprocessed headers in declarations."""
    out: list[Piece] = []
    around: list[Sequence[str]] = []  # the names of each namespace that is open, none for extern "C"
    namespaces: set[str] = set()
    file, flags, line, counted = "", "", 1, 0
    at = 0
    while token := TOKEN.search(text, at):
        (begin, at), word = token.span(), token[0]
        within = " ".join(name for each in around for name in each)
        names = uses = ""
        opened = None
        if word.lstrip()[0] == "#":
            if marker := MARKER.match(word):
                line, file, flags = int(marker[1]), marker[2], marker[3]
                counted = at + 1
                continue
        elif word == "}":
            del around[-1:]
        if word not in (";", "}") and (word.lstrip()[0] != "#" or OF_NEXT.search(word)):
            declaration = _Declaration(text, begin)
            at, opened = declaration.end, declaration.opens
            names, uses = " ".join(declaration.names), " ".join(declaration.uses)
        line, counted = line + text.count("\n", counted, begin), begin
        system = "".join(flag for flag in FLAGS_OF_SYSTEM if flag in flags)
        out.append(Piece(begin, at, f'# {line} "{file}"{system}', names, uses, within))
        if opened is not None:
            around.append(opened)
            namespaces.update(opened)
        for marker in MARKERS.finditer(text, begin, at):  # within the declaration
            line, counted = int(marker[1]), marker.end() + 1
    # struct std::pair declares nothing that is called std.
    plain = ((each, " ".join(name for name in each.names.split() if name not in namespaces)) for each in out)
    return [each._replace(names=names) if names else each for each, names in plain]


class _Declaration:
    """The declaration that begins at a place: where it ends, what it declares, what it names.

    `opens` are the names of a namespace that begins here, none of them for extern "C" {."""

    def __init__(self, text: str, begin: int):
        self._text = text
        self.opens: Sequence[str] | None = None
        self.names: set[str] = set()  # none: always needed
        self.uses: set[str] = set()
        head: list[str] = []  # the words outside of brackets
        declared: list[str] = []
        arguments = ""
        parameters: set[str] = set()  # of a template
        kind = before = named = scope = ""
        angle = 0
        calls = assigned = tail = braces = False  # what has been met: parentheses, =, : behind them, braces
        literal: list[str] = []  # of an operator: "text"sv
        own: list[str] = []  # the class that an operator is of
        at = begin
        while token := TOKEN.search(text, at):
            word, at = token[0], token.end()
            if word[0] == '"':
                if head[-1:] == ["extern"] and (opening := BRACE.match(text, at)):
                    at, self.opens = opening.end(), []
                    break
            elif word[0] == "'" or word.lstrip()[0] == "#":
                pass
            elif word == "template":
                at = self._parameters(at, parameters)
            elif word in ASIDE and (opening := PARENTHESIS.match(text, at)):
                at = self._closing("(", opening.end())
            elif word == "namespace" and head in ([], ["inline"]):
                end = END.search(text, at)
                at = end.end() if end else len(text)
                if end and end[0] == "{":
                    self.opens = [name for name in _names(text[token.end() : at]) if name not in KEYWORDS]
                head.append(word)
                break
            elif word[0].isalpha() or word[0] == "_":
                if word == "operator":
                    symbol = OPERATOR.match(text, at)
                    at = symbol.end() if symbol else at
                    head += [word, *_names(symbol[0] if symbol else "")]
                    own = [scope] if before == "::" else []
                    if symbol and symbol[0].lstrip().startswith('""'):
                        literal = _names(symbol[0])
                elif not tail:
                    head.append(word)
                    if word in KINDS and not calls:
                        kind = kind or word
                    elif braces or before in KINDS:  # behind the braces, or what it is called
                        declared.append(word)
                before = word
            elif word == "(":
                at = self._closing(word, at)
                if not tail and not assigned:
                    declared.append(before)
                    arguments += text[token.end() : at]
                calls, before = calls or not assigned, ")"
            elif word == "[[":
                at = self._closing(word, at)
            elif word in (";", ",", "="):
                if not (calls or assigned or tail or angle):
                    declared.append(before)
                if word == ";":
                    break
                assigned, before = word == "=" or (assigned and (calls or angle > 0)), word
            elif word == "<":
                angle += 1
                if angle == 1:
                    named = before
            elif word == ">" and angle:
                angle -= 1
                if angle == 0:
                    before = named
            elif word == ":":
                tail, before = tail or calls or kind != "", word
            elif word == "{":
                inner = at
                at = self._closing(word, at)
                initialises = tail and before not in (")", "}", ":")  # a member, in front of the function's body
                if calls and not assigned and not initialises:
                    break
                if not kind and not calls and not assigned:
                    declared.append(before)
                if kind == "enum":
                    declared += _names(text[inner:at])
                before, braces, tail = "}", True, tail and calls
            elif word == "}":
                at = token.start()
                break
            else:
                if word == "::" and not angle:
                    scope, word = before, kind if kind and declared[-1:] == [before] else word  # class outer::name
                before = word
        self.end = at
        if self.opens is not None:
            return
        self.uses = {*_names(text[begin:at])} - KEYWORDS
        if literal:
            self.names = {f'""{name}' for name in literal}
            return
        if "operator" in head:  # found by the types that it is for
            types = [name for part in arguments.split(",") for name in _type(part) or _names(part)]
            declared = [] if {"new", "delete"} & {*head} else [*own, *types]
        elif "static_assert" in head and self.uses:
            self.names = {ASSERTION}
            return
        elif {"static_assert", "namespace"} & {*head}:
            declared = []
        elif "typedef" in head:
            declared += _names(arguments)
        self.names = {name for name in declared if name.isidentifier()} - KEYWORDS - parameters

    def _closing(self, opening: str, at: int) -> int:
        """Behind the bracket that closes what was opened just before `at`."""
        depth = 1
        for bracket in PAIRS[opening].finditer(self._text, at):
            depth += bool(bracket["open"]) - bool(bracket["close"])
            if depth == 0:
                return bracket.end()
        return len(self._text)

    def _parameters(self, at: int, names: set[str]) -> int:
        """Behind the template's parameters, which begin at `at`; their names."""
        depth = 0
        last = ""
        while token := TOKEN.search(self._text, at):
            word, at = token[0], token.end()
            if word in ("(", "{"):
                at = self._closing(word, at)
            elif word == "<":
                depth += 1
            elif word in (">", ",", "="):
                if last:
                    names.add(last)
                depth -= word == ">"
                if depth == 0:
                    break
            elif depth == 0:
                return token.start()  # an explicit instantiation
            last = word if word[0].isalpha() or word[0] == "_" else ""
        names -= KEYWORDS
        return at
