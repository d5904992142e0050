"""The shapes of shared arrays, read from the source: PTX knows their bytes only.

`__shared__ half tile[STAGES][M + PAD];` has its extents from constants of the file, from macros, or from the kernel's
template arguments, which its mangled name spells out. A shape is used only if its size is what the PTX says. Dynamic
shared memory that a kernel looks at as a structure, `Tiles *ring = reinterpret_cast<Tiles *>(shared)`, has the
structure's members, which are used only if all of it is understood.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cudaemu import cpp
from cudaemu.dtypes import size_of


@dataclass(frozen=True)
class Shape:
    """Of an array: the extents of its axes but the first, and the bytes of an element."""

    inner: tuple[int, ...]
    element: int

    def index(self, offset: int) -> str:
        """The element at a byte: "[3][17]", and what is left over: "[3][17] + 2 bytes"."""
        number, rest = divmod(offset, self.element)
        axes: list[int] = []
        for extent in reversed(self.inner):
            number, position = divmod(number, extent)
            axes.insert(0, position)
        text = "".join(f"[{axis}]" for axis in (number, *axes))
        return f"{text} + {rest} byte{'s' * (rest > 1)}" if rest else text


_DECLARATION = re.compile(r"__shared__([^;{}()]*(?:\([^()]*\)[^;{}()]*)*);")
_CONSTANT = re.compile(r"\b(?:constexpr|const)\s+[\w:]+(?:\s+[\w:]+)*?\s+(\w+\s*=\s*[^;{}]+?)\s*[;}]")
_ENUM = re.compile(r"\benum\b[^{;]*\{([^}]*)\}")
_STRUCTURE = re.compile(r"(?:template\s*<([^<>]*)>\s*)?\b(struct|class|union)\s+(\w+)\s*\{([^{}]*)\}")
_MEMBER = re.compile(r"(?:alignas\s*\(([^()]*)\)\s*)?([A-Za-z_]\w*(?:\s+\w+)*?)\s+(\w+)\s*((?:\[[^\[\]]*\]\s*)*)")
_VIEW = re.compile(r"[&*]\s*(\w+)\s*=\s*(\*?)\s*reinterpret_cast<\s*(\w+)\s*\*\s*>\s*\(\s*(\w+)\s*\)\s*;")
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([^;]+);")


@dataclass
class _Source:
    """The constants and types of a file, as text."""

    constants: dict[str, str] = field(default_factory=dict)
    structures: dict[str, list[tuple[str, list[str], str]]] = field(default_factory=dict)  # kind, parameters, body
    views: dict[str, set[tuple[str, str, str]]] = field(default_factory=dict)  # array -> name, "*" or "", structure
    templates: dict[str, list[str]] = field(default_factory=dict)  # function -> names of its parameters
    arrays: dict[str, list[tuple[str, list[str]]]] = field(default_factory=dict)  # name -> (type, extents) of each


@lru_cache(maxsize=16)
def _read(path: str, _changed: float) -> _Source:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _Source()
    found = _Source(constants=cpp.defines(text))
    text = cpp.code(text)
    for statement in _CONSTANT.findall(text):
        for name, value in re.findall(r"(\w+)\s*=\s*((?:[^,()]|\([^()]*\))+)", statement):
            found.constants[name] = value
    for body in _ENUM.findall(text):
        for name, value in re.findall(r"(\w+)\s*=\s*([^,]+)", body):
            found.constants[name] = value
    for kernel in cpp.kernels(text):
        if kernel.template:
            found.templates[kernel.name] = [each.name for each in kernel.template]
    for name, type_ in _ALIAS.findall(text):
        found.constants[name] = type_
    for parameters, kind, name, body in _STRUCTURE.findall(text):
        names = [cpp.parameter(part).name for part in cpp.split(parameters)]
        found.structures.setdefault(name, []).append((kind, names, body))
    for name, whole, structure, array in _VIEW.findall(text):
        found.views.setdefault(array, set()).add((name, whole, structure))
    for declaration in _DECLARATION.findall(text):
        kind = re.sub(r"\balignas\s*\([^()]*\)|__align__\s*\([^()]*\)|\b(?:extern|volatile|static)\b", " ", declaration)
        declarators = re.findall(r"(\w+)\s*((?:\[[^\[\]]*\]\s*)+)", kind)
        type_ = " ".join(kind[: kind.index(declarators[0][0])].split()) if declarators else ""
        for name, extents in declarators:
            found.arrays.setdefault(name, []).append((type_, re.findall(r"\[([^\[\]]*)\]", extents)))
    return found


_OPERATIONS: dict[type, Callable[..., int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def _type(name: str, constants: Mapping[str, str | int]) -> str:
    """A type by its own name: that of `using Element = DTYPE;` with `#define DTYPE half` is half."""
    for _ in range(8):
        meaning = constants.get(name)
        if not isinstance(meaning, str):
            break
        name = meaning.strip()
    return name


def _evaluate(text: str, constants: Mapping[str, str | int], depth: int = 0) -> int | None:
    """A constant expression of C++; None if it is not one of integers that are known."""
    if depth > 20:
        return None
    if match := re.fullmatch(r"([^?]+)\?([^:]+):(.+)", text.strip().removeprefix("(").removesuffix(")")):
        condition = _evaluate(match[1], constants, depth + 1)
        return None if condition is None else _evaluate(match[2 if condition else 3], constants, depth + 1)
    sizes = re.sub(r"sizeof\s*\(\s*([\w ]+?)\s*\)", lambda m: str(size_of(_type(m[1], constants)) or m[0]), text)
    python = re.sub(r"(?<=\d)[uUlL]+\b", "", sizes).replace("/", "//").replace("&&", " and ").replace("||", " or ")
    try:
        tree = ast.parse(python.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return int(node.value)
        if isinstance(node, ast.Name):
            known = constants.get(node.id)
            number = known if isinstance(known, int) else _evaluate(known, constants, depth + 1) if known else None
            if number is None:
                raise ValueError
            return number
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATIONS:
            return int(_OPERATIONS[type(node.ops[0])](value(node.left), value(node.comparators[0])))
        raise ValueError

    try:
        return value(tree)
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def template_arguments(kernel: str) -> list[int | None]:
    """The template arguments in a mangled name that are numbers, by their place; None for the others."""
    match = re.match(r"_Z\d+\w*?I((?:L[a-z]n?\d+E|[^LE]|\d+[A-Za-z_]\w*?)+?)E", kernel)
    if not match:
        return []
    arguments = re.findall(r"L[a-z](n?)(\d+)E|(\d+)(?=[A-Za-z_])|([a-z])", match[1])
    out: list[int | None] = []
    for negative, number, *_ in arguments:
        out.append((-1 if negative else 1) * int(number) if number else None)
    return out


def _source(path: str) -> _Source:
    try:
        return _read(path, Path(path).stat().st_mtime)
    except OSError:
        return _Source()


def _constants(source: _Source, kernel: str, defines: Mapping[str, str] | None) -> dict[str, str | int]:
    """The constants of a file as they are in a kernel (mangled or not), its template arguments among them."""
    constants: dict[str, str | int] = {**source.constants, **(defines or {})}
    for function, parameters in source.templates.items():
        if re.match(rf"_Z{len(function)}{function}I", kernel):
            values = template_arguments(kernel)
            constants |= {
                parameter: value for parameter, value in zip(parameters, values, strict=False) if value is not None
            }
    return constants


def shape(path: str, kernel: str, name: str, size: int, defines: Mapping[str, str] | None = None) -> Shape | None:
    """The shape of the shared array `name` of a kernel (both mangled or not), which has `size` bytes (0: dynamic); None
    if the source does not tell."""
    source = _source(path)
    constants = _constants(source, kernel, defines)
    for type_, extents in source.arrays.get(name, ()):
        inner = [_evaluate(extent, constants) for extent in extents[1:]]
        if None in inner or 0 in inner:
            continue
        axes = tuple(extent for extent in inner if extent)
        first = _evaluate(extents[0], constants) if extents[0].strip() else None
        element = size_of(_type(type_, constants))
        row = 1
        for extent in axes:
            row *= extent
        if element is None and first and size and size % (first * row) == 0:
            element = size // (first * row)
        if (
            element
            and (not size or size % (row * element) == 0)
            and (not first or not size or first * row * element == size)
        ):
            return Shape(axes, element)
    return None


def member(path: str, kernel: str, name: str, offset: int, defines: Mapping[str, str] | None = None) -> str | None:
    """What a byte of the dynamic shared array `name` is to a kernel that looks at it as a structure, or as several:
    "tiles.by_warp[2][1]", "ring[2].A[3][16]". None if the source does not tell."""
    source = _source(path)
    if len(source.views.get(name, ())) != 1:
        return None
    ((variable, whole, type_),) = source.views[name]
    constants = _constants(source, kernel, defines)
    layout = _layout(source, type_, constants)
    if layout is None:
        return None
    index, offset = divmod(offset, layout.size)
    if whole and index:
        return None
    inner = layout.member(offset)
    return f"{variable}{'' if whole else f'[{index}]'}.{inner}" if inner else None


@dataclass(frozen=True)
class _Layout:
    """A structure, or (no members) an element of an array."""

    size: int
    alignment: int
    members: tuple[tuple[int, int, str, Shape, _Layout], ...] = ()  # arrays: first byte, last, name, shape, element

    def member(self, offset: int) -> str:
        """What is at a byte of it, "" for a gap."""
        for first, last, called, shape_, element in self.members:
            if first <= offset < last:
                within = (offset - first) % element.size
                if not element.members:
                    return called + shape_.index(offset - first)
                return f"{called}{shape_.index(offset - first - within)}.{element.member(within)}".removesuffix(".")
        return ""


def _layout(source: _Source, type_: str, constants: Mapping[str, str | int]) -> _Layout | None:
    """A type's layout, if it is a structure of arrays of such or of numbers, or a number. None if there is anything in
    it that is not understood."""
    if size := size_of(_type(type_, constants)):
        return _Layout(size, size)
    name, _, arguments = _type(type_, constants).partition("<")
    if len(source.structures.get(name.strip(), ())) != 1:
        return None
    ((kind, parameters, body),) = source.structures[name.strip()]
    values = [_evaluate(argument, constants) for argument in cpp.split(arguments.removesuffix(">"))]
    if kind == "union" or len(values) != len(parameters) or None in values:
        return None
    known: dict[str, str | int] = {**constants, **{key: n for key, n in zip(parameters, values) if n is not None}}
    members: list[tuple[int, int, str, Shape, _Layout]] = []
    end, alignment = 0, 1
    for statement in filter(None, map(str.strip, body.split(";"))):
        if statement.startswith("static "):
            continue  # its constants are those of the file
        match = _MEMBER.fullmatch(statement)
        element = _layout(source, match[2], known) if match else None
        extents = [_evaluate(extent, known) for extent in re.findall(r"\[([^\[\]]*)\]", match[4])] if match else []
        align = _evaluate(match[1], known) if match and match[1] else 1
        if not match or not element or not align or not extents or not all(extents):
            return None
        sizes = [extent for extent in extents if extent]
        align = max(align, element.alignment)
        first = -(-end // align) * align
        end = first + element.size * math.prod(sizes)
        alignment = max(alignment, align)
        members.append((first, end, match[3], Shape(tuple(sizes[1:]), element.size), element))
    return _Layout(-(-end // alignment) * alignment, alignment, tuple(members)) if members else None
