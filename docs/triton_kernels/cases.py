"""What the cases of the other files share: how they are declared, compared, and how a kernel's file is loaded."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

Pairs = Iterator[tuple[Any, Any]]


@dataclass
class Case:
    package: str
    name: str
    run: Callable[[], Pairs]
    tolerance: float
    fault: str = ""  # of the kernel itself, if it has one: a piece of the line at which the sanitizer finds it


CASES: list[Case] = []
FOLDERS: dict[str, Path] = {}  # of --path


class NotHere(Exception):
    """The package is not installed, and no checkout of it is named."""


def case(
    package: str, tolerance: float = 1e-4, fault: str = ""
) -> Callable[[Callable[[], Pairs]], Callable[[], Pairs]]:
    def register(function: Callable[[], Pairs]) -> Callable[[], Pairs]:
        name = function.__name__.removeprefix(package.replace("-", "_")).strip("_")
        CASES.append(Case(package, name, function, tolerance, fault))
        return function

    return register


def leaf(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape)).to(dtype).requires_grad_()


def both(kernel: Callable[..., Any], reference: Callable[..., Any], *inputs: Any) -> Pairs:
    """Outputs, and the gradients of all inputs that have one."""
    copies = [
        [
            each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each
            for each in inputs
        ]
        for _ in range(2)
    ]
    outs = [_tuple(f(*given)) for f, given in zip((kernel, reference), copies)]
    yield from zip(*outs)
    grads = [torch.randn_like(out) if out.is_floating_point() else None for out in outs[1]]
    for results in outs:
        torch.autograd.backward(
            [out for out in results if out.requires_grad],
            [grad.to(out.dtype).clone() for out, grad in zip(results, grads) if out.requires_grad],
        )
    for mine, theirs in zip(*copies):
        if isinstance(mine, torch.Tensor) and mine.requires_grad:
            yield mine.grad, theirs.grad


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(each for each in value if each is not None) if isinstance(value, (tuple, list)) else (value,)


def rms(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True, scale: float | None = None
) -> torch.Tensor:
    """Attention of [length, heads, features]; with fewer heads of K and V than of Q, and the last query at the last
    key."""
    more = q.shape[1] // k.shape[1]
    k, v = (each.float().repeat_interleave(more, 1) for each in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q.float(), k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril(k.shape[0] - q.shape[0])
        scores = scores.masked_fill(~seen, -1e30)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)


# ---- files of packages that cannot be imported whole -----------------------------------------------------------------


class _Nothing:
    """What a package's other modules have: a decorator that leaves a function as it is, a base class, an answer that is
    false."""

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, _: Any) -> tuple[()]:
        return ()

    def __or__(self, _: Any) -> _Nothing:
        return self

    __ror__ = __getitem__ = __or__


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


class _Partly(MetaPathFinder, Loader):
    """Imports some files of a package, unchanged. In place of its other modules, those that start a server, ask for a
    GPU's libraries or for fifty other packages, is `_Nothing`, or what is given."""

    def __init__(
        self, package: str, folder: Path, files: Sequence[str], given: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.package, self.folder, self.files, self.given = package, folder, files, given

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != self.package and not name.startswith(f"{self.package}."):
            return None
        file = self.folder / Path(*name.split(".")).with_suffix(".py")
        if file.is_file() and name not in self.given and any(name.startswith(each) for each in self.files):
            return importlib.util.spec_from_file_location(name, file)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self.given.get(module.__name__, {}))


def folder(name: str) -> Path:
    """Of a checkout, or of an unpacked package."""
    if name not in FOLDERS:
        raise NotHere(f"--path {name}=FOLDER")
    return FOLDERS[name]


def part(name: str, package: str, files: Sequence[str], given: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the files of a package be imported whose modules' names begin with one of `files`."""
    where = folder(name)
    if not any(isinstance(each, _Partly) and each.package == package for each in sys.meta_path):
        sys.meta_path.insert(0, _Partly(package, where, files, given))


def file(name: str, path: str) -> Any:
    """A module that is one file of a checkout, without what its outermost level only calls: benchmarks, tests."""
    at = folder(name) / path
    module = f"{name}_{at.stem}".replace("-", "_")
    if module not in sys.modules:
        tree = ast.parse(at.read_text(encoding="utf-8"))
        tree.body = [each for each in tree.body if not isinstance(each, ast.Expr)]
        sys.modules[module] = made = ModuleType(module)
        made.__file__ = str(at)
        exec(compile(tree, str(at), "exec"), vars(made))
    return sys.modules[module]
