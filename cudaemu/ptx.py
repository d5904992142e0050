"""Read PTX text: variables, functions, instructions, and for each instruction the source line it came from.

The grammar is the one of the PTX ISA manual, chapters 4 and 5, as far as nvcc and inline assembly use it: nested
``{ }`` scopes with their own registers and labels (so the same label may stand in many scopes), vectors, pairs
``%r|%p``, the sink ``_``, several statements on a line. What an instruction does is known to `lower`, not here.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

from cudaemu.errors import UserError

_TYPES = {
    0: "pred", 1: "b8 u8 s8", 2: "b16 u16 s16 f16 bf16", 4: "b32 u32 s32 f32 f16x2 bf16x2 tf32",
    8: "b64 u64 s64 f64 f32x2", 16: "b128",
}  # fmt: skip
BYTES = {name: size for size, names in _TYPES.items() for name in names.split()}
_BLANKS = {name: f"%{name}" for name in BYTES}  # the placeholder for a register of that type in a pattern


_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")


class PtxError(UserError):
    """PTX that cannot be read, or that the emulator does not understand."""


class Register:
    """One declared register. Identity is the object: two scopes may use one name."""

    __slots__ = ("blank", "name", "type")

    def __init__(self, name: str, type: str):
        self.name, self.type, self.blank = name, type, _BLANKS[type]

    @property
    def bytes(self) -> int:
        return BYTES[self.type]

    def __repr__(self) -> str:
        return f"{self.name}.{self.type}"


class Symbol(NamedTuple):
    """In an initial value, an address: of a name, so many bytes on; with a mask, one byte of it."""

    name: str
    addend: int
    generic: bool
    mask: int | None


@dataclass(eq=False)
class Variable:
    """A named piece of memory; `offset` or address is set by the layout."""

    name: str
    space: str  # global, const, shared, local, param
    align: int
    size: int  # bytes; 0 for `extern .shared x[]`
    type: str
    initial: list[Immediate | Symbol] = field(default_factory=list)
    extern: bool = False


@dataclass(frozen=True)
class Immediate:
    value: int | float  # a Python float only for decimal notation; 0f… and 0d… keep their bits
    notation: str  # "int", "f32", "f64", "decimal"


@dataclass(frozen=True)
class Special:
    name: str  # "%tid.x"


@dataclass(frozen=True)
class Vector:
    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    base: Operand
    offset: int
    extra: tuple[Operand, ...] = ()  # tensor coordinates, as in [map, {x, y}]


@dataclass(frozen=True)
class Pair:
    first: Operand  # %r of %r|%p
    second: Operand


@dataclass(frozen=True)
class Not:
    operand: Operand


@dataclass(frozen=True)
class Name:
    """A label, function or symbol that is declared elsewhere."""

    name: str
    offset: int = 0


Operand: TypeAlias = Register | Variable | Immediate | Special | Vector | Address | Pair | Not | Name
SINK = Name("_")


class Location(NamedTuple):
    file: int
    line: int
    call_file: int = 0  # the place in the outermost function into which this was inlined
    call_line: int = 0
    own_line: int = 0  # in the same file: the place in that function's own code, through the lambdas that it calls
    chain: tuple[tuple[int, int], ...] = ()  # file and line, from here out to that function, if it was inlined


class Pattern:
    """Opcode and operands of an instruction; or of many, if they have nothing but registers and numbers as operands and
    differ in their registers alone. A kernel of thousands of instructions has some fifty of these patterns: each is
    read, and lowered, once."""

    __slots__ = ("base", "blanks", "opcode", "operands")

    def __init__(self, opcode: str, operands: list[Operand], blanks: Sequence[Register] = ()):
        self.opcode = opcode  # "ld.global.nc.v4.u32"
        self.base = opcode.split(".", 1)[0]
        self.operands = operands
        self.blanks = blanks  # the placeholders for the registers among the operands, in the order of the text

    def filled(self, registers: Sequence[Register]) -> list[Operand]:
        """The operands, with those registers."""
        of = dict(zip(self.blanks, registers))

        def fill(operand: Operand) -> Operand:
            if isinstance(operand, Register):
                return of.get(operand, operand)
            if isinstance(operand, Vector):
                return Vector(tuple(map(fill, operand.elements)))
            if isinstance(operand, Address):
                return Address(fill(operand.base), operand.offset, tuple(map(fill, operand.extra)))
            if isinstance(operand, Pair):
                return Pair(fill(operand.first), fill(operand.second))
            return Not(fill(operand.operand)) if isinstance(operand, Not) else operand

        return [fill(operand) for operand in self.operands]


class Instruction:
    """`registers`: what goes into the blanks of the pattern."""

    __slots__ = ("guard", "location", "negated", "pattern", "registers", "scope", "text")

    def __init__(
        self,
        pattern: Pattern,
        registers: Sequence[Register],
        guard: Register | None,
        negated: bool,
        location: Location | None,
        text: str,
        scope: Scope,
    ):
        self.pattern, self.registers, self.guard, self.negated = pattern, registers, guard, negated
        self.location, self.text, self.scope = location, text, scope

    @property
    def opcode(self) -> str:
        return self.pattern.opcode

    @property
    def operands(self) -> list[Operand]:
        return self.pattern.filled(self.registers) if self.registers else self.pattern.operands


class Scope:
    def __init__(self, parent: Scope | None):
        self.parent = parent
        self.names: dict[str, Register | Variable] = {}
        self.labels: dict[str, int] = {}
        self.tables: dict[str, list[str]] = {}  # .branchtargets

    def find(self, name: str) -> Register | Variable | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def label(self, name: str) -> int | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None

    def table(self, name: str) -> list[str] | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tables:
                return scope.tables[name]
            scope = scope.parent
        return None


@dataclass
class Function:
    """A function of a module. Its body is read on demand."""

    name: str
    entry: bool
    params: list[Variable | Register] = field(default_factory=list)
    results: list[Variable | Register] = field(default_factory=list)
    max_threads: int | None = None
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)  # maxntid, reqntid, minnctapersm, …
    defined: bool = False
    text: str = ""  # of the body
    read: Callable[[Function], tuple[list[Instruction], list[Variable]]] = field(
        default=lambda _: ([], []), repr=False, compare=False
    )

    @property
    def arguments(self) -> list[Variable]:
        """The parameters that are memory: a kernel's all are, a function's may be registers."""
        return [param for param in self.params if isinstance(param, Variable)]

    @cached_property
    def body(self) -> tuple[list[Instruction], list[Variable]]:
        return self.read(self)

    def forget(self) -> None:
        """The body, which takes a hundred times the memory of its text: it is parsed again each time."""
        self.__dict__.pop("body", None)

    @property
    def instructions(self) -> list[Instruction]:
        return self.body[0]

    @property
    def variables(self) -> list[Variable]:
        """The .shared, .local and .param ones of the body."""
        return self.body[1]


@dataclass
class PtxModule:
    version: str = ""
    target: str = ""
    files: dict[int, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    @cached_property
    def pointed_at(self) -> list[str]:
        """The functions whose address is taken: in code, or in the initial value of a variable."""
        values = (value for variable in self.variables.values() for value in variable.initial)
        names = {value.name for value in values if isinstance(value, Symbol)}
        for function in self.functions.values():
            for instruction in function.instructions:
                if instruction.registers or instruction.opcode.startswith("call"):
                    continue  # of a call, the first name is called, the last one may be a prototype
                names |= {operand.name for operand in instruction.operands if isinstance(operand, Name)}
        return [name for name, function in self.functions.items() if name in names and function.defined]


_LAST_WORDS = re.compile(r'//[^\n"]*$', re.M)  # a comment at the end of a line, with nothing quoted in it
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
_SPACE = re.compile(r"\s+")
_NAME = r"[A-Za-z_$%][\w$]*"
_LABEL = re.compile(rf"({_NAME})\s*:(?!:)")
_LOC = re.compile(
    r"\.loc[ \t]+(\d+)[ \t]+(\d+)(?:[^\n]*\bfunction_name[ \t]+([\w$]+)[^\n]*\binlined_at[ \t]+(\d+)[ \t]+(\d+))?[^\n]*"
)
_STRING = re.compile(r"^([\w$]+):\s*\n((?:\s*\.b8 [\d, ]+\n)+)", re.MULTILINE)
_LAMBDA = re.compile(r"U[lL]\w*?E\d*_cl")  # operator() of a lambda, mangled
_FILE = re.compile(r'\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"[^\n]*')
_BRACES = re.compile(r'\{[^{}"\n]*\}|[{}]|"(?:[^"\\]|\\.)*"')  # the first: both of a vector
_MARKS = re.compile(r"[,{}()\[\]]")
_NO_MARKS = r"[^{}()\[\]]*"
# The text between commas, if there are no brackets in brackets.
_PIECE = re.compile(rf"(?:[^,{{}}()\[\]]+|\{{{_NO_MARKS}\}}|\[{_NO_MARKS}\]|\({_NO_MARKS}\))+")
# A .loc, or an instruction as nvcc writes most of them: no label, no parentheses.
_USUAL = re.compile(rf"\s*(?:(\.loc(?!al)[^\n]*)|((?:@(!?)({_NAME})\s+)?([a-z][\w.]*)\s+([^;:()\s][^;:()]*));)")
_WORD = re.compile(r"([%$A-Za-z_](?<!\w.)[\w$]*)")  # but not the letters of 0x1F
_BLANK = re.compile(r"%(\w+)")
_INSTRUCTION = re.compile(rf"(?:@(!?)\s*({_NAME})\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
_INT = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_HEX_FLOAT = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]+)$")
_DECIMAL = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$")
_SUM = re.compile(rf"({_NAME}(?:\.[a-z]\w*)?)\s*([-+])\s*(.+)$")
_GENERIC = re.compile(r"generic\s*\(\s*(.*)\)")
_DECLARATION = re.compile(
    rf"(?P<words>(?:\.align\s+\d+\s+|\.(?!align\b)[a-z]\w*(?:::\w+)?\s+)*)(?P<name>{_NAME})"
    r"(?P<dims>(?:\s*\[\s*\w*\s*\])*)\s*(?:=\s*(?P<init>.*))?$",
    re.S,
)
_SPACES = ("global", "const", "shared", "local", "param")
_ATTRIBUTE = re.compile(r"\.attribute\s*\([^()]*\)")  # of variables: .managed, .unified; nothing that matters here

DEEPEST = 100  # brackets in brackets; nvcc writes two
MOST_REGISTERS = 1 << 20  # of one declaration; nvcc's largest kernels declare some ten thousand
MOST_ALIGNMENT = 1 << 16
# Bytes of one variable, by its space: beyond all that a GPU has.
MOST_BYTES = {"global": 1 << 38, "const": 1 << 16, "shared": 1 << 18, "local": 1 << 19, "param": 1 << 15}


def integer(text: str) -> int:
    """The value of an integer constant; PtxError if it is none."""
    text = text.strip().removesuffix("U").replace(" ", "")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    try:
        return sign * (int(digits, 8) if re.fullmatch(r"0[0-9]+", digits) else int(digits, 0))
    except ValueError:
        raise PtxError(f"a number that cannot be read: {text[:40]}") from None


def split(text: str) -> list[str]:
    """Split at the commas outside every bracket. RecursionError for more than DEEPEST of them in another."""
    if not text.strip():
        return []
    if "[" not in text and "{" not in text and "(" not in text:
        return [part.strip() for part in text.split(",")]
    pieces = _PIECE.findall(text)
    if ",".join(pieces) == text:  # the usual case
        return [piece.strip() for piece in pieces]
    parts, depth, start = [], 0, 0
    for mark in _MARKS.finditer(text):
        character = mark[0]
        if character in "{[(":
            depth += 1
            if depth > DEEPEST:
                raise RecursionError
        elif character in "}])":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : mark.start()].strip())
            start = mark.end()
    parts.append(text[start:].strip())
    return parts


# Shared memory that the compiler keeps for cooperative groups of several warps, and its size (their memory.h).
RESERVED, RESERVED_BYTES = "%reserved_smem_offset_1", 288


class _Parser:
    def __init__(self, text: str):
        self.text = _LAST_WORDS.sub(" ", text)
        if "//" in self.text or "/*" in self.text:
            self.text = _COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)
        self.position = 0
        self.module = PtxModule()
        self.root = Scope(None)
        debug = self.text.find(".section\t.debug_str")
        self.lambdas = {  # labels of their names
            label
            for label, data in (_STRING.findall(self.text, debug) if debug >= 0 else ())
            if _LAMBDA.search(
                bytes(int(x) & 255 for x in re.findall(r"\d+", data.replace(".b8", ""))).decode(errors="replace")
            )
        }

    def fail(self, message: str) -> PtxError:
        line = self.text.count("\n", 0, self.position) + 1
        place = _LOC.match(self.text, self.text.rfind("\t.loc\t", 0, self.position) + 1)
        file = re.search(rf'^\s*\.file\s+{place[1]}\s+"([^"]*)"', self.text, re.MULTILINE) if place else None
        source = f" ({file[1].rpartition('/')[2]}:{place[2]})" if place and file else ""
        return PtxError(f"PTX line {line}{source}: {message}")

    def skip(self) -> bool:
        """Move to the next character that counts; False at the end."""
        match = _SPACE.match(self.text, self.position)
        if match:
            self.position = match.end()
        return self.position < len(self.text)

    def until(self, mark: str) -> str:
        end = self.text.find(mark, self.position)
        if end < 0:
            raise self.fail(f"'{mark}' is missing")
        piece = self.text[self.position : end]
        self.position = end + len(mark)
        return piece

    def line(self) -> str:
        end = self.text.find("\n", self.position)
        end = len(self.text) if end < 0 else end
        piece = self.text[self.position : end]
        self.position = end
        return piece

    def _skip_lines(self) -> bool:
        """As skip_block, of a block as compilers write it: nothing quoted, and its last brace begins a line."""
        start, depth = self.position, 0
        while (end := self.text.find("\n}", start) + 2) > 1:
            if any(self.text.find(word, start, end) >= 0 for word in ('"', ".entry", ".func", ".section")):
                return False
            depth += self.text.count("{", start, end) - self.text.count("}", start, end)
            start = end
            if depth == 0:
                self.position = end
                return True
        return False

    def skip_block(self) -> None:
        if self._skip_lines():
            return
        depth = 0
        for match in _BRACES.finditer(self.text, self.position):
            mark = match[0]
            depth += (mark == "{") - (mark == "}")
            if depth == 0 and mark[-1] == "}":
                self.position = match.end()
                return
        raise self.fail("a block is not closed")

    # ---- module level ----

    def parse(self) -> PtxModule:
        if RESERVED in self.text:
            for variable in self.declaration(f".shared .align 8 .b8 {RESERVED}[{RESERVED_BYTES}]", self.root):
                self.module.variables[variable.name] = variable
        while self.skip():
            if self.text.startswith(".file", self.position):
                self.file()
            elif self.text.startswith(".section", self.position):
                self.until("{")
                self.position -= 1
                self.skip_block()
            elif match := re.compile(r"\.(version|target|address_size)\b").match(self.text, self.position):
                value = self.line().partition(match[1])[2].strip()
                if match[1] == "version":
                    self.module.version = value
                elif match[1] == "target":  # there may be several, and the module needs all of them
                    self.module.target = f"{self.module.target} {value}".strip()
            elif re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?:entry|func)\b").match(
                self.text, self.position
            ):
                self.function()
            elif self.text.startswith((".loc", "@@"), self.position):
                self.line()
            elif self.text[self.position] == "." and not self.text.startswith((".alias", ".pragma"), self.position):
                for variable in self.declaration(self.until(";"), self.root):
                    self.module.variables[variable.name] = variable
            else:
                self.until(";")
        return self.module

    def file(self) -> None:
        match = _FILE.match(self.text, self.position)
        if match is None:
            raise self.fail("a .file directive that cannot be read")
        self.module.files[int(match[1])] = re.sub(r"\\(.)", r"\1", match[2])
        self.position = match.end()

    def declaration(self, text: str, scope: Scope) -> list[Variable]:
        """`.shared .align 4 .b8 x[16], y[4]` and so on; enters the names in the scope."""
        variables = []
        words: list[str] | None = None
        for part in split(_ATTRIBUTE.sub(" ", text)):
            match = _DECLARATION.match(part.strip())
            if match is None:
                raise self.fail(f"a declaration that cannot be read: {part.strip()[:80]}")
            if words is None:  # the attributes are before the first name only
                words = re.findall(r"\.align\s+\d+|\.\w+", match["words"])
            space = next((word[1:] for word in words if word[1:] in _SPACES), "global")
            type_ = next((word[1:] for word in words if word[1:] in BYTES), "b8")
            count = int(next((word[2:] for word in words if re.fullmatch(r"\.v\d", word)), 1))
            align = next((integer(word[6:]) for word in words if re.match(r"\.align\s", word)), BYTES[type_] * count)
            if not 0 < align <= MOST_ALIGNMENT or align & (align - 1):
                raise self.fail(f"an alignment must be a power of two up to {MOST_ALIGNMENT}, got {align}")
            size = BYTES[type_] * count
            initial = self.initialiser(match["init"], type_) if match["init"] else []
            for dimension in re.findall(r"\[\s*(\w*)\s*\]", match["dims"]):
                size *= integer(dimension) if dimension else len(initial)
            if size > MOST_BYTES[space]:
                raise self.fail(f"{match['name']} has {size} bytes, more than .{space} memory holds")
            variable = Variable(match["name"], space, align, size, type_, initial, ".extern" in words)
            scope.names[variable.name] = variable
            variables.append(variable)
        return variables

    def initialiser(self, text: str, type_: str) -> list[Immediate | Symbol]:
        values: list[Immediate | Symbol] = []
        for item in split(text.strip().strip("{}")) if "{" in text else [text.strip()]:
            if item.startswith("{"):
                values += self.initialiser(item, type_)
                continue
            number = self.number(item)
            if number is not None:
                values.append(number)
                continue
            match = re.fullmatch(
                rf"(?:(0x[0-9a-fA-F]+)\s*\()?\s*(generic\s*\(\s*)?({_NAME})\s*\)?\s*(?:\+\s*(\d+))?\s*\)?", item
            )
            if match is None:
                raise self.fail(f"an initial value that cannot be read: {item}")
            mask = int(match[1], 16) if match[1] else None
            if mask == 0:
                raise self.fail(f"an initial value that cannot be read: {item}")
            values.append(Symbol(match[3], int(match[4] or 0), match[2] is not None, mask))
        return values

    # ---- functions ----

    def header(self) -> str:
        """The text before the next parameters or body."""
        start = self.position
        while self.position < len(self.text) and self.text[self.position] not in "({;":
            self.position += 1
        return self.text[start : self.position]

    def function(self) -> None:
        header = self.header()
        entry = ".entry" in header
        scope = Scope(self.root)
        results: list[Variable | Register] = []
        if not entry and not re.search(rf"\.func\s+(?:\.noreturn\s+)?{_NAME}\s*$", header.strip()):
            results = self.parameters(scope)  # .func (results) name
            header = self.header()
        named = re.search(rf"({_NAME})\s*$", header)
        if named is None or not self.skip():
            raise self.fail("a function without a name or a body")
        name = named[1]
        params = self.parameters(scope) if self.text[self.position] == "(" else []
        if entry and not all(isinstance(param, Variable) for param in params):
            raise self.fail(f"{name}, a kernel with parameters in registers")
        known = self.module.functions.get(name)
        function = known if known is not None and not known.defined else Function(name, entry)
        function.params, function.results = params, results
        self.module.functions[name] = function
        while self.skip() and self.text[self.position] == ".":  # .maxntid 256, 1, 1 and its like
            match = re.compile(r"\.(\w+)[^\n{;.]*").match(self.text, self.position)
            if match is None:
                raise self.fail(f"a directive that cannot be read: {self.line()[:60]}")
            function.directives[match[1]] = tuple(int(value) for value in re.findall(r"\b\d+\b", match[0]))
            self.position = match.end()
        for directive in ("maxntid", "reqntid"):
            if directive in function.directives:
                product = 1
                for extent in function.directives[directive]:
                    product *= extent
                function.max_threads = product
        start = self.position
        mark = self.text[start : start + 1]
        if mark == ";":
            self.position += 1
            return
        if mark != "{":
            raise self.fail(f"the body of {name} is missing")
        self.skip_block()
        function.defined = True
        function.text = self.text[start : self.position]
        function.read = lambda function: self.read(start + 1, function.name, scope)

    def parameters(self, scope: Scope) -> list[Variable | Register]:
        if not self.skip() or self.text[self.position] != "(":
            raise self.fail("parameters are missing")
        start = self.position + 1
        depth = 0
        for match in re.compile(r"[()]").finditer(self.text, self.position):
            position = match.start()
            depth += 1 if match[0] == "(" else -1
            if depth == 0:
                break
        else:
            raise self.fail("parameters are not closed")
        self.position = position + 1
        found: list[Variable | Register] = []
        for part in split(self.text[start:position]):
            if part.startswith(".reg"):
                found += self.registers(part[4:], scope)[:1]
            else:
                found += self.declaration(part, scope)
        return found

    def registers(self, text: str, scope: Scope) -> list[Register]:
        match = re.match(r"\s*((?:\.\w+\s*)+)(?=[%A-Za-z_$])(.*)", text, re.S)
        if match is None:
            raise self.fail(f"registers that cannot be read: {text[:60]}")
        words = re.findall(r"\.(\w+)", match[1])
        type_ = next((word for word in words if word in BYTES), None)
        if type_ is None:
            raise self.fail(f"a register type that is not known: {match[1]}")
        found: list[Register] = []
        for part in split(match[2]):
            many = re.fullmatch(rf"({_NAME})\s*<\s*(\d+)\s*>", part)
            if many is None and not re.fullmatch(_NAME, part):
                raise self.fail(f"registers that cannot be read: {part[:60]}")
            if many and int(many[2]) > MOST_REGISTERS:
                got = f"{int(many[2]):,}"
                raise self.fail(f"{many[1]} must be at most {MOST_REGISTERS:,} registers in the emulator, got {got}")
            names = [f"{many[1]}{index}" for index in range(int(many[2]))] if many else [part]
            registers = [Register(name, type_) for name in names]
            scope.names.update(zip(names, registers))
            found += registers
        return found

    @contextmanager
    def shallow(self) -> Iterator[None]:
        """Text that is nested deeper than DEEPEST, or than Python's stack, is an error of the text."""
        try:
            yield
        except RecursionError:
            raise self.fail("brackets or operators are nested too deeply") from None

    def read(self, start: int, name: str, scope: Scope) -> tuple[list[Instruction], list[Variable]]:
        """The instructions and the variables of the function whose body begins there."""
        with self.shallow():
            return self.body(start, name, scope)

    def body(self, start: int, name: str, scope: Scope) -> tuple[list[Instruction], list[Variable]]:
        text, location, outer = self.text, None, []
        self.position = start
        self.inlined: dict[tuple[int, int], tuple[tuple[int, int, str], ...]] = {}  # place -> its chain of calls
        self.located: dict[str, Location] = {}  # .loc lines, as long as that holds
        code: list[Instruction] = []
        variables: list[Variable] = []
        while True:
            if usual := _USUAL.match(text, self.position):
                if line := usual[1]:
                    location = self.located.get(line)
                    if location is None:
                        location = self.located[line] = self.locate(line)
                    self.position = usual.end()
                    continue
                if instruction := self.usual(usual, scope, location):
                    code.append(instruction)
                    self.position = usual.end()
                    continue
            if not self.skip():
                raise self.fail(f"{name} is not closed")
            character = text[self.position]
            if character == "{":
                outer.append(scope)
                scope = Scope(scope)
                self.position += 1
            elif character == "}":
                self.position += 1
                if not outer:
                    break
                scope = outer.pop()
            elif character == ";":
                self.position += 1
            elif character == ".":
                if text.startswith(".reg", self.position):
                    self.registers(self.until(";")[4:], scope)
                elif text.startswith(".file", self.position):
                    self.file()
                elif text.startswith((".local", ".shared", ".param", ".global", ".const", ".extern"), self.position):
                    variables += self.declaration(self.until(";"), scope)
                elif text.startswith(".pragma", self.position):
                    self.until(";")
                else:
                    raise self.fail(f"a directive that is not known: {self.line()[:60]}")
            elif match := _LABEL.match(text, self.position):
                self.position = match.end()
                self.skip()
                if text.startswith((".branchtargets", ".calltargets"), self.position):
                    scope.tables[match[1]] = split(re.sub(r"^\.\w+", "", self.until(";")).strip())
                elif text.startswith(".callprototype", self.position):
                    self.until(";")
                else:
                    scope.labels[match[1]] = len(code)
            else:
                code.append(self.instruction(self.until(";"), scope, location))
        return code, variables

    def locate(self, text: str) -> Location:
        """A chain of inlined calls is written outermost first, and each .loc names its caller's place only, the one
        written last: a template may call itself, so that the same place is in a chain twice, in two functions."""
        match = _LOC.match(text)
        if match is None:
            self.skip()
            raise self.fail("a .loc directive that cannot be read")
        file, line, call_file, call_line = (int(number or 0) for number in match.group(1, 2, 4, 5))
        if not call_file:
            return Location(file, line, file, line, line)
        here = (file, line, match[3])  # a place, and the function that it is in
        callers = self.inlined.get((call_file, call_line)) or ((call_file, call_line, ""),)
        chain = callers[callers.index(here) :] if here in callers else (here, *callers)  # from the inside
        if self.inlined.get((file, line)) != chain:
            self.inlined[file, line] = chain
            self.located.clear()
        own = place = chain[-1][:2]
        for file_, line_, function in reversed(chain[:-1]):
            if function not in self.lambdas or file_ != own[0]:
                break
            own = (file_, line_)
        return Location(file, line, *place, own[1], tuple((file_, line_) for file_, line_, _ in chain))

    @staticmethod
    def usual(match: re.Match[str], scope: Scope, location: Location | None) -> Instruction | None:
        """The instruction, if its operands are registers of this scope, and numbers."""
        _, text, negated, guard, opcode, operands = match.groups()
        if operands[0] == "$":  # a label
            return None
        known = scope.names
        pieces = _WORD.split(operands)  # every other one is a word
        registers: list[Any] = [known.get(word) or scope.find(word) for word in pieces[1::2]]
        predicate = scope.find(guard) if guard else None
        if not registers or isinstance(predicate, Variable) or guard and predicate is None:
            return None
        try:
            pieces[1::2] = [register.blank for register in registers]
        except AttributeError:  # a word that is not a register
            return None
        pattern = _pattern(f"{opcode} {''.join(pieces)}")
        if pattern is None:
            return None
        return Instruction(pattern, registers, predicate, negated == "!", location, " ".join(text.split()), scope)

    def instruction(self, text: str, scope: Scope, location: Location | None) -> Instruction:
        match = _INSTRUCTION.match(text)
        if match is None:
            raise self.fail(f"a statement that cannot be read: {text.strip()[:80]}")
        guard = scope.find(match[2]) if match[2] else None
        if isinstance(guard, Variable) or match[2] and guard is None:
            raise self.fail(f"{match[2]} is not a predicate")
        words = " ".join(text.split())
        opcode = match[3]
        known = scope.names  # the usual operand is a register of its own scope
        operands = [known.get(part) or self.operand(part, scope) for part in split(match[4])]
        return Instruction(Pattern(opcode, operands), (), guard, match[1] == "!", location, words, scope)

    # ---- operands ----

    @staticmethod
    def number(text: str) -> Immediate | None:
        if _INT.match(text):
            return Immediate(integer(text), "int")
        if match := _HEX_FLOAT.match(text):
            bits = int(match[3], 16)
            wide = match[2] in "dD"
            if match[1]:
                bits ^= 1 << (63 if wide else 31)
            return Immediate(bits, "f64" if wide else "f32")
        if _DECIMAL.match(text):
            return Immediate(float(text), "decimal")
        return None

    def operand(self, text: str, scope: Scope) -> Operand:
        first = text[:1]
        if first == "%" or first.isalpha() or first in "_$":
            if (found := scope.find(text)) is not None:
                return found
            if text == "_":
                return SINK
            if "|" in text:
                left, right = text.split("|", 1)
                return Pair(self.operand(left.strip(), scope), self.operand(right.strip(), scope))
            if ("+" in text or "-" in text) and (match := _SUM.match(text)):
                base, offset = self.operand(match[1], scope), self.offset(match[3], match[2])
                return Address(base, offset) if not isinstance(base, Name) else Name(base.name, offset)
            if first == "%":
                return Special(text)
            if text == "WARP_SZ":
                return Immediate(32, "int")
            if match := _GENERIC.fullmatch(text):
                return self.operand(match[1], scope)
            return Name(text)
        if first == "[":
            inner = split(text[1:-1])
            base = self.operand(inner[0], scope) if inner else Immediate(0, "int")
            extra = tuple(self.operand(part, scope) for part in inner[1:])
            if isinstance(base, Address):
                return Address(base.base, base.offset, extra)
            if isinstance(base, Name):
                return Address(Name(base.name), base.offset, extra)
            return Address(base, 0, extra)
        if first == "{":
            return Vector(tuple(self.operand(part, scope) for part in split(text[1:-1])))
        if first == "(":
            inside = text[1:-1].strip()
            number = self.number(inside)
            return number if number is not None else Vector(tuple(self.operand(part, scope) for part in split(inside)))
        if first == "!":
            return Not(self.operand(text[1:].strip(), scope))
        number = self.number(text)
        if number is None:
            raise self.fail(f"an operand that cannot be read: {text}")
        return number

    @staticmethod
    def offset(text: str, sign: str) -> int:
        value = sum(integer(piece) for piece in re.findall(r"[-+]?\s*\w+", text))
        return -value if sign == "-" else value


@lru_cache(1 << 14)
def _pattern(text: str) -> Pattern | None:
    """The pattern `add.s32 %b32, %b32, 4`; None if anything but registers and numbers is among the operands."""
    blanks: list[Register] = []

    def number(match: re.Match[str]) -> str:
        blanks.append(Register(f"%{len(blanks)}", match[1]))
        return blanks[-1].name

    scope = Scope(None)
    try:
        numbered = _BLANK.sub(number, text)
        scope.names.update((blank.name, blank) for blank in blanks)
        instruction = _Parser("").instruction(numbered, scope, None)
    except (
        KeyError,
        PtxError,
        RecursionError,
    ):  # parsing the instruction itself can report what is wrong, and where
        return None
    found = [operand for operand in leaves(instruction.operands) if not isinstance(operand, Immediate)]
    return Pattern(instruction.opcode, instruction.operands, blanks) if found == blanks else None


def leaves(operands: Iterable[Operand]) -> Iterator[Operand]:
    """What stands in the operands, in the order of the text: registers, numbers, names."""
    for operand in operands:
        if isinstance(operand, Vector):
            yield from leaves(operand.elements)
        elif isinstance(operand, Address):
            yield from leaves((operand.base, *operand.extra))
        elif isinstance(operand, Pair):
            yield from leaves((operand.first, operand.second))
        elif isinstance(operand, Not):
            yield from leaves((operand.operand,))
        else:
            yield operand


def parse(text: str, lazily: bool = False) -> PtxModule:
    """Parse a PTX module. Raises `PtxError` (a `UserError`) that names the line of the PTX; `lazily`: a function's body
    is read, and can be wrong, only when it is needed."""
    parser = _Parser(text)
    with parser.shallow():
        module = parser.parse()
    for function in () if lazily else module.functions.values():
        _ = function.body
    return module


def shared_bytes(module: PtxModule, function: Function) -> int:
    """Bytes of the shared variables that a function and those that it calls name with their size; without reading
    bodies."""
    shared = {name: variable for name, variable in module.variables.items() if variable.space == "shared"}
    reached, waiting = {function.name}, [function]
    named: list[Variable] = []

    def found(names: Iterable[str], text: str) -> list[str]:
        return [name for name in names if name in text and re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text)]

    while waiting:
        text = waiting.pop().text
        for declaration in re.findall(r"(?<=\s)\.shared\b[^;]*", text):
            named += _Parser("").declaration(declaration, Scope(None))
        named += (shared[name] for name in found(shared, text) if shared[name] not in named)
        for name in found(module.functions.keys() - reached, text):
            reached.add(name)
            waiting.append(module.functions[name])
    sized = [variable for variable in named if variable.size and not variable.extern]
    offset = 0
    for variable in sorted(sized, key=lambda variable: -variable.align):
        offset = -(-offset // variable.align) * variable.align + variable.size
    align = max((variable.align for variable in named if variable not in sized), default=1)
    return -(-offset // align) * align


def initial_bytes(variable: Variable, address_of: Callable[[str], int]) -> bytes:
    """The bytes that a variable starts with, but for the zeros that follow; `address_of(name)` gives the address of a
    symbol that it points to."""
    out = bytearray()
    width = BYTES[variable.type]
    for value in variable.initial:
        if isinstance(value, Immediate):
            if isinstance(value.value, float):
                finite = width != 4 or abs(value.value) < 2.0**128
                number = value.value if finite else math.copysign(math.inf, value.value)
                out += struct.pack("<f" if width == 4 else "<d", number)[:width].ljust(width, b"\0")
            else:
                out += (value.value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
            continue
        address = address_of(value.name) + value.addend
        if value.mask is not None:  # 0xFF00(symbol): one byte of the address
            shift = (value.mask & -value.mask).bit_length() - 1
            address = (address & value.mask) >> shift
        out += (address & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return bytes(out[: variable.size])
