"""Fixtures that all tests share."""

from __future__ import annotations

import hashlib
import io
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from rich.console import Console, RenderableType

from common.cli import main
from common.compiler import toolchain
from common.stage import Stage


class Outcome(NamedTuple):
    """What a command line did."""

    status: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line in this process: command("kernels.01_naive", "test", "--dtype", "fp16")."""

    def call(package: str, *argv: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main(package, [str(word) for word in argv])
        return Outcome(exit.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def edited() -> Callable[..., Path]:
    """A reader's own version of a stage's kernel.cu: edited(stage, ("old", "new"), ...).

    The same text is the same file: what is compiled from it is found in the cache by the next test and the next day."""

    def write(stage: Stage, *edits: tuple[str, str]) -> Path:
        text = stage.source.read_text()
        for old, new in edits:
            assert old in text, f"{stage.name} has no '{old}'"
            text = text.replace(old, new)
        folder = toolchain.cache_dir() / "tests" / hashlib.sha256(text.encode()).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "mine.cu"
        if not path.exists():
            temporary = folder / f"{os.getpid()}.cu"
            temporary.write_text(text)
            temporary.rename(path)
        return path

    return write


@pytest.fixture
def parse() -> Callable[..., Namespace]:
    """The options of a verb as the command line would read them: parse(bench, "--sizes", "64")."""

    def call(verb: ModuleType, *words: object) -> Namespace:
        parser = ArgumentParser()
        verb.add_arguments(parser)
        return parser.parse_args([str(word) for word in words])

    return call


def shown(printable: RenderableType, width: int = 80) -> str:
    """What a terminal of `width` columns shows of a table, lines without the blanks at their ends."""
    console = Console(file=io.StringIO(), width=width)
    console.print(printable)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
