"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from common.cli import main
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
def edited(tmp_path: Path) -> Callable[..., Path]:
    """A reader's own version of a stage's kernel.cu: edited(stage, ("old", "new"), ...)."""

    def write(stage: Stage, *edits: tuple[str, str], name: str = "mine.cu") -> Path:
        text = stage.source.read_text()
        for old, new in edits:
            assert old in text, f"{stage.name} has no '{old}'"
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
