"""The head of a run that is about to be made: what is run, where and when, with which software; and `record`, the main
of what makes one."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch
from rich.console import Group

from common import terminal
from common.measure import nvml
from common.packages import CUTE, version
from common.results import runs
from common.results.runs import ROOT, SCHEMA, Run
from cudaemu.errors import UserError

WRITTEN = ("--json", "--plot", "--trace-events")  # options that name a file which the command writes


def metadata(kind: str) -> Run:
    """Schema, kind, command, date, commit, machine and software; `rows` starts empty."""
    gpu = driver = None
    if torch.cuda.is_available():
        gpu, driver = torch.cuda.get_device_name(), nvml.driver_version()
    commit, dirty = _commit()
    return {
        "schema": SCHEMA,
        "kind": kind,
        "command": command(sys.orig_argv),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "gpu": gpu,
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        CUTE: version(CUTE),
        "python": platform.python_version(),
        "rows": [],
    }


def command(words: Sequence[str]) -> str:
    """A command line as one would type it: `python -m kernels.NN_name bench …`. Of a file that it writes only the name:
    the folder was of that day and machine."""
    typed = [Path(word).name if before in WRITTEN else word for before, word in zip(words, words[1:])]
    return shlex.join(["python", *typed]) if words else ""


def _commit() -> tuple[str, bool | None]:
    """(commit, whether tracked files differ from it); KERNELS_COMMIT is used where the tree has no .git."""
    if given := os.environ.get("KERNELS_COMMIT"):
        return given.removesuffix("-dirty"), given.endswith("-dirty")

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "-uno"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", None


def record(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Run],
    table: Callable[[Run], Group],
    arguments: Sequence[str] | None,
    what: str = "these",
) -> int:
    """Parse the command line, make a run, save it with --json, and show it. The exit status: 2 for what a user can
    mend."""
    parser.add_argument("--json", metavar="FILE", help="save the run")
    options = parser.parse_args(arguments)
    try:
        if not torch.cuda.is_available():
            raise UserError(f"{what} are times: they need a GPU. Recorded ones are in docs/results/")
        run = measure(options)
        if options.json:
            runs.save(run, options.json)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    terminal.out.print(table(run))
    return 0
