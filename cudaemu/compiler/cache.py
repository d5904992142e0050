"""The cache: products, keyed by the contents of everything that they were built from.

The key of a product is the request: the flags, the tools, the path of the source. Which files a build reads is known
only after it has run, so the build records them: each `*.d` that it leaves in its folder (a depfile, which compilers
write with -MD) lists files that it read. The product is used again if they have the same contents, and if no file has
appeared that the compiler would have found in place of one of them, or for which they ask by __has_include.

    KIND-HASH/            a key
        .lock             held by the process that builds; others wait for it
        HASH/             a product: one for each state of the files that it was built from
            .manifest     hashes of these files, and of the product's own; its time is that of the last use

A product is filled in a temporary folder and then renamed: it is there whole or not at all. One that is damaged is
built again. When they take more than the limit, the least recently used products are removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cudaemu.errors import ToolFailed, UserError

MANIFEST, FAILURE, LOCK, TEMPORARY, DISCARDED = ".manifest", ".failure", ".lock", ".new-", ".old-"
LIMIT = 5.0  # GB
IN_USE = 3600  # seconds: a product that was used within the last hour is never removed to make room
SETTLED = 2_000_000_000  # nanoseconds: a file that is older than this cannot change without changing its times
LARGE = 64 << 20  # bytes: larger files of a product are compared by size alone (a toolkit from pip)

Stat = list[int]  # of a file or a folder: size, times of its last changes, inode
States = dict[str, tuple[str, Stat | None]]  # path -> its hash, and its `Stat` if it is settled


# ---- where it is, and how large --------------------------------------------------------------------------------------


def folder() -> Path:
    """Where everything that is built is kept: CUDAEMU_CACHE, or cudaemu in the user's cache folder.

    UserError if there can be no such folder."""
    asked = os.environ.get("CUDAEMU_CACHE")
    try:
        path = Path(asked or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cudaemu").absolute()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        reason = getattr(error, "strerror", None) or error
        raise _unusable(asked or "in the user's cache folder", reason) from error
    return path


def _unusable(path: object, reason: object) -> UserError:
    return UserError(f"the cache {path} cannot be used: {reason}\nSet CUDAEMU_CACHE to a folder that can be written")


def limit() -> int:
    """Bytes that the products may take: CUDAEMU_CACHE_LIMIT, in GB. UserError if that is not a number above 0."""
    asked = os.environ.get("CUDAEMU_CACHE_LIMIT") or str(LIMIT)
    with suppress(ValueError):
        if 0 < (gigabytes := float(asked)) < 1e9:
            return int(gigabytes * 1e9)
    raise UserError(f"CUDAEMU_CACHE_LIMIT must be a number of gigabytes above 0, got '{asked}'")


def size() -> int:
    """Bytes that all products take."""
    return sum(_size(product) for home in _homes() for product in _products(home))


def clear() -> None:
    """Remove all products, except those of keys for which a process is building one."""
    for home in _homes():
        _remove_home(home)


def trim() -> None:
    """Remove the least recently used products until the others fit the limit; those used in the last hour stay."""
    room = limit()
    for used, product in sorted(((_used(each), each) for home in _homes() for each in _products(home)), reverse=True):
        room -= _size(product)
        if room < 0 and used < time.time() - IN_USE:
            with _lookups(product.parent.parent, fcntl.LOCK_EX):
                if _used(product) == used:
                    _remove(product)
    for home in _homes():
        if not _products(home):
            _remove_home(home, empty=True)


def _trim_once_an_hour() -> None:
    marker = folder() / ".trimmed"
    with suppress(OSError):
        if time.time() - marker.stat().st_mtime < IN_USE:
            return
    marker.touch()
    trim()


def _homes() -> list[Path]:
    """The folders of all keys."""
    return [path for path in _entries(folder()) if (path / LOCK).exists()]


def _products(home: Path) -> list[Path]:
    return [path for path in _entries(home) if not path.name.startswith(".") and (path / MANIFEST).exists()]


def _entries(path: Path) -> list[Path]:
    """The contents of a folder; nothing if it is gone."""
    try:
        return [path / name for name in os.listdir(path)]
    except OSError:
        return []


def _used(product: Path) -> float:
    """When a product was used last; 0 if it is gone."""
    try:
        return (product / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _size(product: Path) -> int:
    found = 0
    for place, _, names in os.walk(product):  # also while another process removes it
        for name in names:
            with suppress(OSError):
                found += os.lstat(os.path.join(place, name)).st_size
    return found


def _remove(path: Path) -> None:
    """Remove a file or a folder, which is there whole until it is gone."""
    with suppress(OSError):
        discarded = Path(tempfile.mkdtemp(prefix=DISCARDED, dir=path.parent))
        path.rename(discarded / path.name)
        shutil.rmtree(discarded, ignore_errors=True)


def _remove_home(home: Path, empty: bool = False) -> None:
    """Remove the folder of a key, or only an `empty` one, unless a process is building there."""
    with suppress(OSError), _building(home, wait=False), _lookups(home.parent, fcntl.LOCK_EX):
        if not empty or not _products(home):
            shutil.rmtree(home, ignore_errors=True)


# ---- products --------------------------------------------------------------------------------------------------------


def get(
    kind: str,
    key: Sequence[object],
    build: Callable[[Path], None],
    search: Iterable[Path] = (),
    names: Iterable[str] = (),
) -> Path:
    """The product for `key`: a folder that `build(folder)` has filled, now or before.

    `search` are folders where the build looks for files that it includes, `names` those of files that it would take
    from there or from beside what it read. If it raises ToolFailed and leaves a depfile, which must list all that it
    read, the failure is kept, and raised again without another try. UserError if the cache cannot be written."""
    home = folder() / f"{kind}-{_digest(map(str, key))}"
    try:
        product = _find(home)
        if product is None:
            with _building(home):
                product = _find(home) or _fill(home, build, search, names)
            _trim_once_an_hour()
    except OSError as error:
        raise _unusable(home.parent, error.strerror or error) from error
    try:
        raise ToolFailed((product / FAILURE).read_text(encoding="utf-8"))
    except OSError:  # the usual case: it did not fail
        return product


def _find(home: Path) -> Path | None:
    """The product of a key for the files as they are now; None if there is none."""
    with _lookups(home.parent, fcntl.LOCK_SH):
        for product in sorted(_products(home), key=_used, reverse=True):
            try:
                manifest = json.loads((product / MANIFEST).read_text(encoding="utf-8"))
                read = {path: (digest, stat) for path, (digest, stat) in manifest["read"].items()}
                states = _unchanged(read, set(manifest["names"]))
                if states is None or not _whole(product, manifest["files"]):
                    continue
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue  # damaged
            with suppress(OSError):  # a cache that others fill can be read only
                if states != read:
                    _write_manifest(product, states, manifest["names"], manifest["files"])
                os.utime(product / MANIFEST)
            return product
    return None


def _fill(home: Path, build: Callable[[Path], None], search: Iterable[Path], names: Iterable[str]) -> Path:
    for left in _entries(home):
        if left.name.startswith((TEMPORARY, DISCARDED)):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
    saved: dict[str, Stat] = {}
    for _ in range(3):
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=home))
        try:
            begun = temporary.stat().st_mtime_ns
            read = _build(build, temporary)
            asked = {*names, *_asked_for(read)}
            states = _states(read, search, asked)
            # A file that was saved during the build may have been read before or after that, so build again.
            before, saved = saved, {path: stat for path in read if (stat := _stat(path)) and max(stat[1:3]) > begun}
            if any(before.get(path) != stat for path, stat in saved.items()):
                continue
            product = home / _digest(f"{path}\0{digest}" for path, (digest, _) in sorted(states.items()))
            files = {str(path.relative_to(temporary)): _file_hash(path) for path in _files(temporary)}
            _write_manifest(temporary, states, sorted(asked), files)
            if product.is_symlink() or product.exists():  # damaged
                _remove(product)
            _verified.pop(product, None)
            temporary.rename(product)
            return product
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    raise UserError(f"{', '.join(saved)} changed during each of several compilations")


def _build(build: Callable[[Path], None], out: Path) -> set[str]:
    """Fill a folder; the files outside of it that were read."""
    failure = None
    try:
        build(out)
    except ToolFailed as error:
        failure = error
    depfiles = list(out.glob("*.d"))
    if failure is not None and not depfiles:
        raise failure
    read = {os.path.join(out, name) for path in depfiles for name in parse_depfile(os.fsdecode(path.read_bytes()))}
    for path in depfiles if failure is None else list(out.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if failure is not None:
        (out / FAILURE).write_text(str(failure), encoding="utf-8", errors="replace")
    return {path for path in read if not os.path.normpath(path).startswith(f"{out}{os.sep}")}


def parse_depfile(text: str) -> list[str]:
    """The files that a depfile's first target depends on: `target: file another\\ file ...`, lines joined by `\\`."""
    rule = re.sub(r"\\\n", " ", text).strip().partition("\n")[0]
    words = re.findall(r"(?:\\.|[^\s\\])+", re.split(r"(?<!\\)\s*:\s", f"{rule} ", maxsplit=1)[-1])
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words]


def _write_manifest(product: Path, read: States, names: Sequence[str], files: Mapping[str, str]) -> None:
    temporary = product / f"{MANIFEST}-{os.getpid()}"
    temporary.write_text(json.dumps({"read": read, "names": names, "files": files}), encoding="utf-8")
    temporary.rename(product / MANIFEST)


# ---- the files that a build reads ------------------------------------------------------------------------------------


def _asked_for(files: Iterable[str]) -> set[str]:
    """The names, of files and of folders above them, that files ask for by __has_include: they may not be there yet."""
    found = set[str]()
    for path in files:
        with suppress(OSError):
            for name in re.findall(rb"""__has_include(?:_next)?\s*\(\s*[<"]([^>"\n]+)[>"]""", Path(path).read_bytes()):
                found.update(os.fsdecode(name).split(os.sep))
    return found


def _states(files: Iterable[str], search: Iterable[Path], names: set[str]) -> States:
    """The states of files, and of every folder in which one may appear that would be found in place of one of them, or
    that has one of the `names`; those that changed last come first."""
    parts, folders, seen = _parts(files) | names, set[str](), set[str]()
    todo = [*{os.path.dirname(path) for path in files}, *map(str, search)]
    while todo:
        path = todo.pop()
        if path in folders or not os.path.isdir(path):
            continue
        folders.add(path)  # as it is spelled: a symbolic link may be made to lead elsewhere
        if (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            todo += [entry.path for entry in os.scandir(path) if entry.name in parts and entry.is_dir()]
    stats = {path: _stat(path) for path in (*files, *folders)}
    parts = _parts(stats) | names
    latest = sorted(stats, key=lambda path: max((stats[path] or [0])[1:3], default=0), reverse=True)
    return {path: (_hash(path, parts), _settled(stats[path])) for path in latest}


def _unchanged(read: States, names: set[str]) -> States | None:
    """These states with each `Stat` as it is now; None if a file or a folder has another hash."""
    parts: set[str] = set()
    found: States = {}
    for path, (digest, known) in read.items():
        stat = _stat(path)
        if stat is None:
            return None
        if stat != known:
            parts = parts or _parts(read) | names
            if _hash(path, parts) != digest:
                return None
            known = _settled(stat)
        found[path] = digest, known
    return found


def _parts(paths: Iterable[str]) -> set[str]:
    """The names of all files and folders on these paths."""
    return {part for path in paths for part in path.split(os.sep)}


def _hash(path: str, parts: set[str]) -> str:
    """Of a file its contents, of a folder those of its names that are `parts` of what was read; "" if it is gone."""
    with suppress(OSError):
        if os.path.isdir(path):
            return _digest(sorted(parts.intersection(os.listdir(path))))
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ""


def _stat(path: str) -> Stat | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _settled(stat: Stat | None) -> Stat | None:
    return stat if stat and max(stat[1:3]) < time.time_ns() - SETTLED else None


# ---- the files of a product ------------------------------------------------------------------------------------------

# Products whose hashes this process has compared: file -> state.
_verified: dict[Path, dict[str, tuple[int, bool]]] = {}


def _whole(product: Path, files: Mapping[str, str]) -> bool:
    """Whether a product is as it was built: every file by its hash once per process, then by its state."""
    known = _verified.get(product)
    if known is None:
        if any(_file_hash(product / name) != wanted for name, wanted in files.items()):
            return False
        _verified[product] = {name: _file_state(product / name) for name in files}
    elif any(_file_state(product / name) != wanted for name, wanted in known.items()):
        del _verified[product]
        return False
    return True


def _files(folder: Path) -> list[Path]:
    """The files of a product; of large trees only those at the top."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return found if len(found) < 1000 else [path for path in folder.iterdir() if path.is_file()]


def _file_hash(path: Path) -> str:
    """A hash of a product's file and of whether it can be executed."""
    size, runs = _file_state(path)
    return "x" * runs + (str(size) if size > LARGE else hashlib.sha256(path.read_bytes()).hexdigest())


def _file_state(path: Path) -> tuple[int, bool]:
    """The size of a product's file, and whether it can be executed."""
    found = os.stat(path)
    return found.st_size, bool(found.st_mode & stat.S_IXUSR)


# ---- locks -----------------------------------------------------------------------------------------------------------


@contextmanager
def _building(home: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a key. BlockingIOError if another process holds it and this one shall not `wait`."""
    with ExitStack() as stack:
        while True:
            try:
                home.mkdir(parents=True, exist_ok=True)
            except FileExistsError:
                if home.exists():  # no folder
                    raise
                continue  # it was there, but is removed before mkdir has looked what it is
            with suppress(FileNotFoundError):  # the key was removed meanwhile, and its lock with it: once more
                lock = stack.enter_context(open(home / LOCK, "w"))
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(home / LOCK)):
                    break
        yield


@contextmanager
def _lookups(root: Path, operation: int) -> Iterator[None]:
    """Look products up (LOCK_SH), or remove some while no process looks any up (LOCK_EX)."""
    with ExitStack() as stack:
        with suppress(OSError):  # a cache that can only be read: nothing is removed from it
            fcntl.flock(stack.enter_context(open(root / LOCK, "w")), operation)
        yield


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:20]
