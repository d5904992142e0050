"""Runs an untrusted process behind a wall: a root of its own, no network, no other process, little memory and time.

The wall is a program of ours (wall.cpp), for root and for other users alike. Before it is used, a command inside tries
to get out in every way that `ESCAPES` knows; where one works, or the wall cannot be built, `fault` says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import IO

from common.practice.exercises import ROOT
from cudaemu import interrupts
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import UserError

_NOT_DUMPABLE = (4, 0)  # prctl(PR_SET_DUMPABLE, 0)
WALL = Path(__file__).with_name("wall.cpp")
SAID = 20_000  # bytes that are kept of what a process prints
KEPT = (  # of the environment
    *("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "VIRTUAL_ENV", "PYTHONPATH", "CUDAEMU_CACHE"),
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CXX"),
)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
OF_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")


@dataclass(frozen=True)
class Limits:
    """What a process may take. `seconds` of the clock; `memory` in bytes, of each process in it; `files` in bytes, of
    all that it writes."""

    seconds: float = 120.0
    memory: int = 8 << 30
    files: int = 1 << 30


@dataclass(frozen=True)
class Ran:
    """How it ended: its exit status (above 128: a signal's number more), what it sent, what it printed; `late`: it ran
    out of time."""

    status: int
    sent: bytes
    said: str
    late: bool


def run(
    command: Sequence[str],
    limits: Limits,
    room: Path,
    contents: Sequence[str] = (),
    given: bytes = b"",
    course: Mapping[str, Path] | None = None,
    walled: bool = True,
) -> Ran:
    """Run a command behind the wall. It can write only to the folder `room`, which is in memory and starts with these
    `contents` of it, and it finds `course` in the course's root: names there, and what is there. Not `walled`, it finds
    and can write whatever its user can. `given` is its standard input; what it sends to the descriptor $RESULT comes
    back."""
    base = Path(tempfile.mkdtemp(prefix="grade-"))
    theirs = -1
    try:
        ours, theirs = os.pipe()
        words = [*_wall(base, room, contents, limits, course or {}), *command] if walled else [*command]
        environment = {each: os.environ[each] for each in KEPT if each in os.environ}
        environment |= {"TMPDIR": str(room / "tmp" if walled else base), "RESULT": str(theirs), "USER": "student"}
        environment |= {"HOME": str(room / "tmp" if walled else base), "CUDAEMU_CACHE": str(cache.folder())}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        with open(ours, "rb") as result, tempfile.TemporaryFile() as asked:
            asked.write(given)
            asked.seek(0)
            process = subprocess.Popen(
                words, stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                pass_fds=(theirs,), start_new_session=True,
            )  # fmt: skip
            os.close(theirs)
            theirs, late, said = -1, False, bytearray()
            listener = threading.Thread(target=_listen, args=(process.stdout, said), daemon=True)
            listener.start()
            end = partial(_end_group, process.pid)
            try:
                with interrupts.ending(end):
                    process.wait(limits.seconds)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                end()  # processes that it has started end, too
                process.wait()
            os.set_blocking(ours, False)  # a process that left its group may hold the other end
            sent = result.read() or b""
            listener.join(1)
            return Ran(process.returncode, sent, bytes(said).decode(errors="replace"), late)
    finally:
        if theirs >= 0:
            os.close(theirs)
        shutil.rmtree(base, ignore_errors=True)


def _end_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _listen(stream: IO[bytes], said: bytearray) -> None:
    """Reads everything that a process prints and keeps the end of it."""
    with stream:
        while part := os.read(stream.fileno(), 1 << 16):
            said += part
            del said[:-SAID]


def enter(limits: Limits) -> int:
    """Called by the process itself, before it reads any untrusted input: sets its limits, hides its memory and
    descriptors from its children, and returns the descriptor for its result."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))
    processor = int(limits.seconds * (os.cpu_count() or 1)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (processor, processor))
    ctypes.CDLL(None).prctl(*_NOT_DUMPABLE, 0, 0, 0)
    result = int(os.environ.pop("RESULT"))
    os.set_inheritable(result, False)
    return result


# ---- what is inside --------------------------------------------------------------------------------------------------


def _wall(base: Path, room: Path, contents: Sequence[str], limits: Limits, course: Mapping[str, Path]) -> list[str]:
    """The words before a command that put it behind the wall."""
    steps = ["room", str(room), str(limits.files)]
    for path in map(Path, SYSTEM):
        if path.is_symlink():
            steps += ["link", os.readlink(path), str(path)]
        elif path.is_dir():
            steps += ["ro", str(path), str(path)]
    for path in (*(Path("/etc", name) for name in OF_ETC), *_tools(room)):
        if path.exists():
            steps += ["ro", str(path), str(path)]
    for name, path in course.items():
        steps += ["ro", str(path), str(ROOT / name)]
    for name in contents:
        steps += ["copy", str(room), name]
    return [str(_program()), str(base), *steps, "--"]


def _program() -> Path:
    return toolchain.compile_cxx(WALL, ["-O1", "-std=c++17", "-Wno-unused-result"], "wall")


def _tools(room: Path) -> list[Path]:
    """The folders outside of the system's that Python and the compilers are in. None has the course in it, or what is
    built for it."""
    nvcc = toolchain.find_nvcc()
    python = Path(sys.executable)
    links = [python]
    while links[-1].is_symlink():
        links.append(links[-1].parent / os.readlink(links[-1]))
    programs = [
        *links,
        Path(toolchain.find_cxx()),
        Path(toolchain.find_cxx()).resolve(),
        nvcc.path,
        nvcc.path.resolve(),
    ]
    wanted = [Path(sys.prefix), Path(sys.base_prefix), nvcc.home, nvcc.home.resolve()]
    wanted += [Path(os.path.normpath(each.parent.parent)) for each in programs]
    wanted += [Path(each) for each in sys.path if os.path.basename(each) in ("site-packages", "dist-packages")]
    wanted += toolchain.search_folders(())
    kept: list[Path] = []
    for path in sorted(set(wanted), key=lambda each: len(each.parts)):
        hides = any(each.is_relative_to(path) for each in (ROOT, room, Path.home(), Path("/usr")))
        there = any(path.is_relative_to(each) for each in (*map(Path, SYSTEM), *kept))
        ours = path.is_relative_to(ROOT) and not (path / "pyvenv.cfg").exists()
        if path.exists() and not hides and not there and not ours:
            kept.append(path)
    return kept


# ---- whether it holds ------------------------------------------------------------------------------------------------

# What a command inside tries: a name for a report, and Python that raises OSError where the wall holds. `outside` is a
# folder with a file, a socket, a FIFO; `home` is what a home has beside tools, `port` and `name` are of
# servers, `process` is a number, `inside` is the room.
ESCAPES = {
    "a file outside can be read": "open(outside + '/file').read()",
    "a file outside can be written": "open(outside + '/new', 'w')",
    "a home can be read": "[os.stat(each) for each in home] or refused()",
    "a file of passwords is there": "open('/etc/shadow')",
    "a socket outside can be reached": "socket.socket(socket.AF_UNIX).connect(outside + '/socket')",
    "a FIFO outside can be opened": "os.open(outside + '/fifo', os.O_RDWR | os.O_NONBLOCK)",
    "an abstract socket can be reached": "socket.socket(socket.AF_UNIX).connect(chr(0) + name)",
    "a port of this machine can be reached": "socket.create_connection(('127.0.0.1', port), 2)",
    "the network can be reached": "socket.create_connection(('1.1.1.1', 53), 2)",
    "datagrams can be sent": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
    "the kernel can be asked by netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "another process can be seen": "os.stat(f'/proc/{process}/status') if process > 100 else refused()",
    "another process can be ended": "os.kill(process, 0) if process > 100 else refused()",
    "it is root": "refused() if os.getuid() else None",
    "it has capabilities": "has('CapEff') or has('CapBnd') or refused()",
    "it may get privileges": "refused() if 'NoNewPrivs:\\t1' in status else None",
    "system calls are not filtered": "refused() if 'Seccomp:\\t2' in status else None",
    "settings of the kernel can be written": "open('/proc/sys/kernel/core_pattern', 'r+')",
    "the kernel's log can be written": "open('/dev/kmsg', 'w')",
    "/sys is there": "os.listdir('/sys/kernel')",
    "a device can be made": "os.mknod(inside + '/device', 0o20600, os.makedev(1, 3))",
    "files can be made in /dev": "open('/dev/new', 'w')",
    "files can be made in the root": "open('/new', 'w')",
    "the tools can be written": "open(sys.executable, 'r+')",
    "a namespace can be made": "refused() if libc.unshare(0x10000000) else None",
    "something can be mounted": "refused() if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) else None",
    "more can be written than is allowed": "open(inside + '/big', 'wb').write(bytes(size + (1 << 20)))",
}
_TRY = """
import ctypes, json, os, socket, sys
outside, home, name, port, process, inside, size, ways = json.load(sys.stdin)
libc, status = ctypes.CDLL(None), open("/proc/self/status").read()
has = lambda word: int(next(each for each in status.splitlines() if each.startswith(word)).split()[1], 16)
def refused(): raise OSError
open(inside + "/in", "w").write("in")
found = []
for what, way in ways.items():
    try: exec(way)
    except OSError: continue
    found.append(what)
os.write(int(os.environ["RESULT"]), json.dumps(found).encode())
"""
HOLDS = (
    "Each check runs behind a wall: as a user without rights, in a root of its own with tools and nothing else (no "
    "home, no other submission, no solution), without a network or sockets, with limits on time, memory and files."
)
WITHOUT = "Without the wall: checks have limits on time and memory, but submissions can do whatever you can."


@lru_cache
def fault() -> str:
    """Why the wall does not hold here; "" if it does: nothing of `ESCAPES` works."""
    size = 4 << 20
    with ExitStack() as stack:
        outside, room = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        (outside / "file").write_text("outside")
        outside.chmod(0o777)
        os.mkfifo(outside / "fifo", 0o666)
        (outside / "fifo").chmod(0o666)
        name = f"emulator-{os.getpid()}-{threading.get_ident()}"
        served = []
        for kind, address in (
            (socket.AF_UNIX, str(outside / "socket")),
            (socket.AF_UNIX, f"\0{name}"),
            (socket.AF_INET, ("127.0.0.1", 0)),
        ):
            with suppress(OSError):  # a machine without such a network
                server = stack.enter_context(socket.socket(kind))
                server.bind(address)
                server.listen()
                served.append(server)
        (outside / "socket").chmod(0o777)
        port = served[-1].getsockname()[1] if served and served[-1].family == socket.AF_INET else 1
        tools = _tools(room)
        home = [str(each) for each in Path.home().iterdir() if not any(tool.is_relative_to(each) for tool in tools)]
        asked = [str(outside), home, name, port, os.getpid(), str(room), size, ESCAPES]
        try:
            ran = run(
                [sys.executable, "-c", _TRY], Limits(seconds=60, files=size), room, given=json.dumps(asked).encode()
            )
        except (OSError, UserError) as error:
            return str(error)
        try:
            found = json.loads(ran.sent)
        except ValueError:
            return ran.said.strip()[-500:] or f"a command behind it ends with status {ran.status}"
        left = [each.name for each in (*outside.iterdir(), *room.iterdir())]
        found += ["something is left"] if sorted(left) != ["fifo", "file", "socket"] else []
        return "; ".join(found)


def folder_of(path: Path, what: str) -> Path:
    """The folder, if it is one; UserError otherwise."""
    if not path.is_dir():
        raise UserError(f"{what} must be a folder, got {path}")
    return path
