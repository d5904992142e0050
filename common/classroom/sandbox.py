"""Runs an untrusted process: a read-only file system, no network, little memory and time.

Bubblewrap isolates it, or else `unshare` of util-linux. Each is tested before it is used, with a command that tries to
break out; where neither works, `walls` says so, and only time, memory and the environment are limited.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import IO

from cudaemu import interrupts
from cudaemu.errors import UserError

_NOT_DUMPABLE = (4, 0)  # prctl(PR_SET_DUMPABLE, 0)
WALLS = (("bubblewrap", "bwrap"), ("unshare", "unshare"))  # and their programs, the better first
SAID = 20_000  # bytes that are kept of what a process prints
KEPT = (  # of the environment
    *("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "VIRTUAL_ENV", "PYTHONPATH"),
    *("CUDAEMU_CACHE", "XDG_CACHE_HOME", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CXX"),
)

# As root of a new user namespace: one small file system to write to, in place of the folder `room`, whose real contents
# are seen at `view`; everything else is read-only, and no capabilities are left. A mount keeps its flags (nodev,
# nosuid, noexec), which a user may not remove.
_UNSHARE = r"""
room=$1 view=$2 bytes=$3; shift 3
mount --bind "$room" "$view" && mount -t tmpfs -o "size=$bytes,mode=700" tmpfs "$room" || exit 125
[ -d /dev/shm ] && mount -t tmpfs -o "size=$bytes" tmpfs /dev/shm
while read -r _ at _ options _; do
  case $at in "$room"|/proc|/proc/*|/sys|/sys/*|/dev|/dev/*) continue;; esac
  kept=$(printf %s "$options" | tr , '\n' | grep -E '^(nodev|nosuid|noexec|noatime|relatime|nodiratime)$' | tr '\n' ,)
  mount -o "remount,bind,${kept}ro" "$at" 2>/dev/null || { [ "$at" = / ] && exit 125; }
done < /proc/self/mounts
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""
# What the process finds in the room: `count` paths of its real contents.
_FILL = """
room=$1 view=$2 count=$3; shift 3
cd "$view" || exit 125
while [ "$count" -gt 0 ]; do cp -a --parents "$1" "$room" || exit 125; shift; count=$((count - 1)); done
cd "$room" && mkdir -p "$TMPDIR" && exec "$@"
"""


@dataclass(frozen=True)
class Limits:
    """What a process may take. `seconds` of the clock; `memory` in bytes, of each process in it; `files` in bytes, of
    all that it writes."""

    seconds: float = 120.0
    memory: int = 8 << 30
    files: int = 1 << 30


@dataclass(frozen=True)
class Ran:
    """How it ended: its exit status (negative: a signal), what it sent, what it printed; `late`: it ran out of time."""

    status: int
    sent: bytes
    said: str
    late: bool


def run(command: Sequence[str], limits: Limits, room: Path, contents: Sequence[str] = (), given: bytes = b"") -> Ran:
    """Run a command in the sandbox. It can write only to the folder `room`: to a temporary file system in its place
    that starts with these `contents` of it; without isolation to the folder itself. `given` is its standard input; what
    it sends to the descriptor $RESULT comes back."""
    name = walls()
    view = Path(tempfile.mkdtemp(prefix="grade-"))
    theirs = -1
    try:
        ours, theirs = os.pipe()
        words = [*command]
        if name:
            fill = ["sh", "-c", _FILL, "sh", str(room), str(view), str(len(contents)), *contents]
            words = [*_wall(name, room, view, limits), *fill, *command]
        environment = {each: os.environ[each] for each in KEPT if each in os.environ}
        environment |= {"TMPDIR": str(room / "tmp" if name else view), "RESULT": str(theirs)}
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
        shutil.rmtree(view, ignore_errors=True)


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


@lru_cache
def walls() -> str:
    """What can isolate a process here: "bubblewrap", "unshare" or, if neither works, ""."""
    for name, program in WALLS:
        if shutil.which(program) and holds(name):
            return name
    return ""


def told() -> str:
    """What is limited, and what is not, in a sentence."""
    if name := walls():
        return f"Each check ran inside {name}: no network, a read-only file system, limits on time, memory and files."
    return (
        "Neither bubblewrap nor unshare works here: checks had limits on time and memory, but could reach the "
        "network and write whatever you can write."
    )


def holds(name: str) -> bool:
    """Whether a file outside cannot be written, one inside can and is not there afterwards, and there is no network."""
    escape = 'echo > "$2/in" && ! echo > "$1/out" && ! grep -v "lo:" /proc/net/dev | grep :'
    with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as room:
        with tempfile.TemporaryDirectory() as view:
            command = [*_wall(name, Path(room), Path(view), Limits()), "sh", "-c", escape, "sh", outside, room]
            try:
                done = subprocess.run(command, capture_output=True, timeout=20)
            except (OSError, subprocess.TimeoutExpired):
                return False
        return done.returncode == 0 and not os.listdir(outside) and not os.listdir(room)


def _wall(name: str, room: Path, view: Path, limits: Limits) -> list[str]:
    """The words before a command that isolate it."""
    if name == "bubblewrap":
        words = (
            "bwrap --ro-bind / / --dev /dev --proc /proc --unshare-all --die-with-parent --new-session --cap-drop ALL"
        )
        places = ["--ro-bind", str(room), str(view), "--size", str(limits.files), "--tmpfs", str(room)]
        return [*words.split(), *places, "--"]
    words = "unshare --map-root-user --mount --net --pid --ipc --uts --fork --kill-child --mount-proc sh -c"
    return [*words.split(), _UNSHARE, "sh", str(room), str(view), str(limits.files)]


def folder_of(path: Path, what: str) -> Path:
    """The folder, if it is one; UserError otherwise."""
    if not path.is_dir():
        raise UserError(f"{what} must be a folder, got {path}")
    return path
