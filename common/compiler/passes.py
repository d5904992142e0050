"""nvcc's two passes over a source, the host's and the device's, at the same time.

nvcc runs its tools one after the other: preprocessor and cudafe++ for the host code, preprocessor and cicc for the
device code, then the host compiler over what cudafe++ wrote. The passes need nothing of each other but a common name
for the file. So nvcc is asked what it would run (--dryrun), and the passes run side by side. What comes out, products
and complaints, is what nvcc makes of the same command; a plan of another form than that is left to nvcc.

What the host compiler then reads is nearly all headers: cudafe++ writes out whatever the source includes in front of
the source. Sources that include the same share that text, and so it is compiled once, and kept in the cache.
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

from common.compiler import toolchain
from common.errors import UserError

MARKER = re.compile(rb'^# \d+ "([^"\n]*)"((?: \d)*)$', re.MULTILINE)  # the file and the line of the lines below
SYSTEM = b" 3"  # a marker's flag for system headers
HEADERS = "headers.h"


@dataclass(frozen=True)
class _Plan:
    """What nvcc would run, as commands of the shell: the passes, first the one of whose errors nvcc would tell; what
    joins their products; and what compiles the host code."""

    environment: Mapping[str, str]
    passes: tuple[Sequence[str], Sequence[str]]
    join: str
    compile: str
    by_gcc: bool  # not clang

    @property
    def folders(self) -> tuple[bytes, ...]:
        """The toolkit's include folders, as the preprocessor names them."""
        words = shlex.split(self.environment.get("INCLUDES", ""))
        return tuple(f"{word.removeprefix('-I')}/".encode() for word in words if word.startswith("-I"))


def compile_source(command: Sequence[object], folder: Path) -> None:
    """Run `command` in `folder`: an nvcc that compiles one .cu file there for one architecture, -c, with --keep.

    UserError with its output if it fails, as from toolchain.run."""
    plan = _plan(command, folder)
    if plan is None:
        toolchain.run(command, cwd=folder)
        return
    with _Tools(folder, {**os.environ, **plan.environment}) as tools:
        code, said = _run(tools, plan, folder)
    if tools.stopped:
        raise UserError("the compilation was interrupted")
    if code > 128 or (code and not said.strip()):  # a tool that was ended, for which nvcc has words of its own
        toolchain.run(command, cwd=folder)
    elif code:
        raise toolchain.failure(str(command[0]), code, said)


def interrupt() -> None:
    """Stop what other threads compile: there it ends in a UserError."""
    for tools in list(_Tools.at_work):
        tools.stop()


def _run(tools: _Tools, plan: _Plan, folder: Path) -> tuple[int, str]:
    """Exit status and output of the whole plan."""
    first, second = plan.passes
    with ThreadPoolExecutor(1) as pool:
        try:
            other = pool.submit(tools.run, *second)
            code, said = tools.run(*first)
            if code == 0:
                code, more = other.result()
                said += more
            else:
                tools.end()
        except BaseException:
            tools.stop()
            raise
    if code == 0:
        code, more = tools.run(plan.join)
        said += more
    if code == 0:
        code, more = _compile_host(tools, plan, folder)
        said += more
    return code, said


def _plan(command: Sequence[object], folder: Path) -> _Plan | None:
    """What `command` would run; None if that is not the two passes and what follows them."""
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
    host, device, after = ("-E host", "cudafe++"), ("-E device", "cicc"), ("fatbinary", "-c")
    order = tuple(tools)
    if order == (*host, *device, *after):
        passes = host, device
    elif order == (*device, after[0], *host, after[1]):
        passes = device, host
    else:
        return None
    named = re.search(r'--module_id_file_name "([^"]*)"', tools["cudafe++"])
    if named is None or named[0] not in tools["cicc"]:
        return None
    # The tool that runs first would write the name by which both know the file's own variables and kernels.
    source = (folder / named[1]).with_suffix(".cu")
    digest, name = hashlib.sha256(source.read_bytes()).hexdigest(), re.sub(r"\W", "_", source.name)
    (folder / named[1]).write_text(f"_{digest[:8]}_{len(name)}_{name}_{digest[8:16]}")
    for kind in ("cudafe++", "cicc"):
        tools[kind] = tools[kind].replace(" --gen_module_id_file ", " ")
    one, two = ([tools[kind] for kind in each] for each in passes)
    by_gcc = "--gnu_version" in tools["cudafe++"] and "--clang" not in tools["cudafe++"]
    return _Plan(environment, (one, two), tools[after[0]], tools[after[1]], by_gcc)


def _kind(command: str) -> str:
    """Which of nvcc's tools a command of its plan runs, and for what."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    name = Path(words[0]).name if words else ""
    if name in ("cudafe++", "cicc", "fatbinary"):
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


# ---- the host compiler, and the headers that it need not read again --------------------------------------------------


def _compile_host(tools: _Tools, plan: _Plan, folder: Path) -> tuple[int, str]:
    """The plan's last command, without the headers if they have been met before."""
    words = shlex.split(plan.compile)
    if plan.by_gcc and "-o" in words and "$" not in plan.compile and "-include" not in words:
        path = folder / words[words.index("-o") - 1]
        text = path.read_bytes()
        at = _end_of_headers(text, plan.folders)
        compiled = _compiled_headers(text[:at], words) if at else None
        if compiled is not None:
            path.write_bytes(text[at:])
            code, said = tools.run(f"{plan.compile} -include {shlex.quote(str(compiled))}")
            if code == 0:
                return code, said
            path.write_bytes(text)
    return tools.run(plan.compile)


def _end_of_headers(text: bytes, folders: tuple[bytes, ...]) -> int:
    """Where the lines of the toolkit's and the system's headers, with which the text begins, end; 0 if it has none."""
    begun = False
    for marker in MARKER.finditer(text):
        name, flags = marker.groups()
        if SYSTEM in flags or name.startswith(folders):
            begun = True
        elif begun:
            return marker.start()
    return 0


def _compiled_headers(text: bytes, words: Sequence[str]) -> Path | None:
    """The header file with that text, compiled for use with the host compiler's command `words`.

    None if the text is met for the first time: what no other source includes is not worth it."""
    out = words.index("-o")
    swapped = {words[out - 1]: HEADERS, words[out + 1]: f"{HEADERS}.gch", "c++": "c++-header"}
    command = [swapped.get(word, word) for word in words if word != "-c"]
    key = [hashlib.sha256(text).hexdigest(), *command, toolchain.release(command[0])]
    digest = hashlib.sha256("\0".join(key).encode(errors="surrogateescape")).hexdigest()[:20]
    met = toolchain.cache_dir() / f"headers-{digest}.met"
    if not met.exists():
        met.touch()
        return None

    def build(out: Path) -> None:
        (out / HEADERS).write_bytes(text)
        toolchain.run(command, cwd=out)

    try:
        return toolchain.cached("headers", key, build, keep_failures=True) / HEADERS
    except UserError:
        return None
