"""docs/api.md, the reference of the package cudaemu, from its signatures and docstrings.

python -m docs.api    # writes it; a test holds the page to the code
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import cudaemu

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# cudaemu: the Python API

`python -m docs.api` makes this page from the docstrings. [emulator.md](emulator.md) shows how it is
used. Errors that a user can fix are `cudaemu.UserError`, a `ValueError`.
"""
FUNCTIONS = ("run", "load", "program", "run_ptx", "prepare", "executable_lines")
CLASSES = (
    "Options",
    "Library",
    "Report",
    "Finding",
    "HostFinding",
    "Launch",
    "Counters",
    "Trace",
    "Events",
    "Timeline",
    "Span",
)
ERRORS = ("UserError", "CheckFailed")


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Functions"]
    for name in FUNCTIONS:
        parts += [f"### {name}", _code(name, getattr(cudaemu, name)), _text(getattr(cudaemu, name))]
    parts.append("## Classes")
    for name in CLASSES:
        parts += [f"### {name}", *_of_class(getattr(cudaemu, name))]
    parts.append("## Errors")
    for name in ERRORS:
        parts += [f"### {name}", _text(getattr(cudaemu, name))]
    parts += [
        "## METRICS",
        "The hardware's counter, as ncu names it, of each that has an equal one.",
        _metrics(),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _metrics() -> str:
    rows = [f"| `{name}` | `{metric}` |" for name, metric in cudaemu.METRICS.items()]
    return "| counter | metric |\n| --- | --- |\n" + "\n".join(rows)


def _of_class(kind: type) -> Iterator[str]:
    yield _text(kind)
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    if rows := list(_fields(kind, tree)):
        yield "| field | default | |\n| --- | --- | --- |\n" + "\n".join(rows)
    for method in tree.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
            found = inspect.getattr_static(kind, method.name)
            name = f"{kind.__name__}.{method.name}"
            if isinstance(found, property):
                yield f"`{name}: {ast.unparse(method.returns) if method.returns else 'Any'}`: {_line(found)}"
            else:
                yield _code(name, found)
                yield _text(found)


def _fields(kind: type, tree: ast.ClassDef) -> Iterator[str]:
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    for item, after in zip(tree.body, [*tree.body[1:], None]):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        if item.target.id.startswith("_"):
            continue
        comment = lines[item.lineno - 1].partition("  # ")[2]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            comment = str(after.value.value)
        default = ast.unparse(item.value) if item.value else ""
        if made := re.search(r"default_factory=(\w+)", default):
            default = f"{made[1]}()"
        default = "" if default.startswith("field(") else default
        shown = f"`{item.target.id}: {ast.unparse(item.annotation)}`".replace("|", "\\|")
        yield f"| {shown} | {default and f'`{default}`'} | {' '.join(comment.split()).replace('|', chr(92) + '|')} |"


def _code(name: str, function: object) -> str:
    assert callable(function)
    signature = inspect.signature(function)
    shown = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    lines = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=shown)))
    if len(name + lines) > 100:
        inside, _, returned = lines[1:].rpartition(") -> ")
        pieces = re.split(r", (?=[a-z_*]+\b(?::|,)|\*,)", inside)
        lines = "(\n" + "".join(f"    {piece},\n" for piece in pieces) + f") -> {returned}"
    return f"```python\n{name}{lines}\n```"


def _text(of: object) -> str:
    said = inspect.getdoc(of)
    assert said, f"{of} has no docstring"
    return said


def _line(of: object) -> str:
    return " ".join(_text(of).split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
