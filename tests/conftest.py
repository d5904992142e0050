"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from common.cli import main


class Outcome(NamedTuple):
    """What a command line did."""

    status: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line in this process: command("kernels.01_naive", "test", "--dtype", "fp16")."""

    def call(package: str, *argv: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main(package, [str(word) for word in argv])
        return Outcome(exit.value.code, *capsys.readouterr())

    return call
