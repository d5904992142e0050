"""nvcc's passes over a source, the host's and the device's, at the same time.

nvcc runs its tools one after the other: preprocessor and cudafe++ for the host code, preprocessor and cicc for the
device code, then the host compiler over what cudafe++ wrote. The passes need nothing of each other but a common name
for the file. So nvcc is asked what it would run (--dryrun), and the passes run side by side. What comes out, products
and complaints, is what nvcc makes of the same command; a plan of another form than that is left to nvcc.
Both read of the headers only what the source needs (headers.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cudaemu.compiler import headers, toolchain
from cudaemu.errors import UserError


@dataclass(frozen=True)
class _Plan:
    """What nvcc would run, as commands of the shell: its passes, first the one of whose errors nvcc would tell, and
    what puts their products together."""

    environment: Mapping[str, str]
    passes: Sequence[Sequence[str]]
    after: Sequence[str]


def compile_source(command: Sequence[object], folder: Path) -> str:
    """Run `command` in `folder`: an nvcc that compiles one .cu file there for one architecture, -c or -cubin, with
    --keep. What the tools print.

    UserError with their output if one fails, as from toolchain.run."""
    plan = _plan(command, folder)
    if plan is None:
        return toolchain.run(command, cwd=folder)
    # What does not compile with the needed part of its headers is compiled with all of them, or told why it does not.
    for whole in (False, True):
        with _Tools(folder, {**os.environ, **plan.environment}) as tools:
            code, said = _run(tools, plan, folder, whole)
        if tools.stopped:
            raise UserError("the compilation was interrupted")
        if code == 0:
            return said
    if code > 128 or not said.strip():  # a tool that was ended, for which nvcc has words of its own
        return toolchain.run(command, cwd=folder)
    raise toolchain.failure(str(command[0]), code, said)


def interrupt() -> None:
    """Stop what other threads compile: there it ends in a UserError."""
    for tools in list(_Tools.at_work):
        tools.stop()


def _run(tools: _Tools, plan: _Plan, folder: Path, whole: bool) -> tuple[int, str]:
    """Exit status and output of the whole plan, with the whole headers or what is needed of them."""
    flags: list[str] = []  # for what comes after the passes

    def done(commands: Sequence[str]) -> tuple[int, str]:
        """Of one pass: the preprocessor's command is the first."""
        words = shlex.split(commands[0])
        found = None if whole else headers.preprocess(words, folder)
        if found is None:
            return tools.run(*commands)
        (folder / words[words.index("-o") + 1]).write_text(found.text, encoding="utf-8")
        flags.extend(found.flags)
        return tools.run(*commands[1:])

    first, *others = plan.passes
    with ThreadPoolExecutor() as pool:
        try:
            running = [pool.submit(done, each) for each in others]
            code, said = done(first)
            if code != 0:
                tools.end()
            for each in running if code == 0 else ():
                code, more = each.result()
                said += more
        except BaseException:
            tools.stop()
            raise
    for command in plan.after:
        if code == 0:
            told = flags if _kind(command) == "-c" else []
            code, more = tools.run(" ".join([command, *told]))
            said += more
    return code, said


def _plan(command: Sequence[object], folder: Path) -> _Plan | None:
    """What `command` would run; None if those are other steps than are known here."""
    try:
        said = toolchain.run([*command, "--dryrun"], cwd=folder)
    except UserError:
        return None  # it will say why when it runs
    environment, tools = {}, {}
    for line in said.splitlines():
        if not line.startswith("#$ "):
            continue
        text = line.removeprefix("#$ ").rstrip()
        if assignment := re.fullmatch(r"(\w+)=(.*)", text):
            environment[assignment[1]] = assignment[2]
        elif (kind := _kind(text)) in tools:
            return None
        else:
            tools[kind] = text
    host, after = ["-E host", "cudafe++"], ["fatbinary", "-c"]
    device = ["-E device", "cicc", *(["ptxas"] if "ptxas" in tools else [])]  # that for 9.0 has a look at the PTX
    order = list(tools)
    if order == device:
        passes, after = [device], []
    elif order == [*host, *device, *after]:
        passes = [host, device]
    elif order == [*device, after[0], *host, after[1]]:
        passes = [device, host]
    else:
        return None
    if len(passes) == 2:
        named = re.search(r'--module_id_file_name "([^"]*)"', tools["cudafe++"])
        if named is None or named[0] not in tools["cicc"]:
            return None
        # The tool that runs first would write the name by which both know the file's own variables and kernels.
        source = (folder / named[1]).with_suffix(".cu")
        digest, name = hashlib.sha256(source.read_bytes()).hexdigest(), re.sub(r"\W", "_", source.name)
        (folder / named[1]).write_text(f"_{digest[:8]}_{len(name)}_{name}_{digest[8:16]}")
        for kind in ("cudafe++", "cicc"):
            tools[kind] = tools[kind].replace(" --gen_module_id_file ", " ")
    return _Plan(environment, [[tools[kind] for kind in each] for each in passes], [tools[kind] for kind in after])


def _kind(command: str) -> str:
    """Which of nvcc's tools a command of its plan runs, and for what."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    name = Path(words[0]).name if words else ""
    if name in ("cudafe++", "cicc", "ptxas", "fatbinary"):
        return name
    if "-E" in words:
        return "-E host" if words[-1].endswith(".cpp4.ii") else "-E device"
    return "-c" if "-c" in words else command


class _Tools:
    """Runs commands of the shell in one folder, from several threads, until somebody ends it."""

    at_work: ClassVar[set[_Tools]] = set()

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.stopped = self._ended = False
        self._folder, self._environment = folder, environment
        self._running: set[subprocess.Popen] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> _Tools:
        self.at_work.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.at_work.remove(self)

    def run(self, *commands: str) -> tuple[int, str]:
        """Exit status and output of the commands one after the other, up to the first that fails.

        The shell goes from one to the next: this process may be busy with something else."""
        with self._lock:
            if self._ended:
                return 1, ""
            process = subprocess.Popen(
                ["/bin/sh", "-c", " && ".join(commands)],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # a group of its own, which can be ended as one
            )
            self._running.add(process)
        with process:
            try:
                said, _ = process.communicate()
            except BaseException:
                self.stop()
                raise
            finally:
                with self._lock:
                    self._running.remove(process)
        return process.returncode, said

    def end(self) -> None:
        """End what runs, and run nothing more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """The same, though nothing failed."""
        self.stopped = True
        self.end()
