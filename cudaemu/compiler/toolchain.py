"""The compilers: where nvcc and g++ are, and what is built with them, once, into a cache.

Every product is a directory in the cache, named by a hash of all that went into it (sources, flags, compiler release),
filled in a temporary place and then renamed: a product is there whole or not at all, also when several processes want
it at once. It lists its files with their hashes; one that is damaged is built again.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cudaemu.errors import UserError

NVCC_HELP = """no CUDA compiler found. Install one from pip (no GPU and no system toolkit needed):
    pip install "cuda-toolkit[nvcc,cccl]" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
or point CUDA_HOME to a toolkit, or put nvcc on the PATH"""
CXX_HELP = """no C++ compiler found. Install one:
    apt install g++        (Debian, Ubuntu; elsewhere: GCC's C++ compiler)
or point CXX to one"""
TOOL_HELP = """no {name} found. Install it from pip:
    pip install "cuda-toolkit[nvcc,cccl]" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"""


OLDEST_NVCC = (13, 0)  # the oldest that is tested
MANIFEST, FAILURE = ".manifest", ".failure"  # in a product's folder: hashes of its files; why it could not be built


class ToolFailed(UserError):
    """A tool's word on its input: as long as the input is the same, it will say the same."""


@dataclass(frozen=True)
class Nvcc:
    """One CUDA compiler. `home` is the toolkit it belongs to (a CUDA_HOME), `release` its release, such as "13.0"."""

    path: Path
    home: Path
    release: str

    @property
    def include(self) -> Path:
        return self.home / "include"

    @property
    def lib(self) -> Path:
        return next((lib for lib in (self.home / "lib64", self.home / "lib") if lib.is_dir()), self.home / "lib")


def cache_dir() -> Path:
    """Where everything that is built is kept: KERNELS_CACHE, or gpu-kernels-course in the user's cache folder.

    UserError if there can be no such folder."""
    asked = os.environ.get("KERNELS_CACHE")
    try:
        path = Path(asked or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-kernels-course")
        path = path.absolute()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        reason = getattr(error, "strerror", None) or error
        raise _unusable(asked or "the user's cache folder", reason) from error
    return path


def _unusable(path: object, reason: object) -> UserError:
    return UserError(f"the cache {path} cannot be used: {reason}\nSet KERNELS_CACHE to a folder that can be written")


def find_nvcc() -> Nvcc:
    """The CUDA compiler of CUDA_HOME, of the PATH or of the pip packages, in that order; UserError if there is none."""
    home = os.environ.get("CUDA_HOME")
    path = (home and shutil.which("nvcc", path=f"{home}/bin")) or shutil.which("nvcc") or _pip_tool("nvcc")
    if path is None:
        raise UserError(NVCC_HELP)
    return describe_nvcc(Path(path))


@lru_cache
def describe_nvcc(path: Path) -> Nvcc:
    """The release and the toolkit of the nvcc at `path`, which may be a wrapper script or a symbolic link."""
    elsewhere = "Point CUDA_HOME to another toolkit, or take this one off the PATH"
    try:
        said = run([path, "--version"])
    except UserError as error:
        raise UserError(f"{path} --version fails: {error}\n{elsewhere}") from error
    release = re.search(r"release (\d+)\.(\d+)", said)
    if release is None:
        raise UserError(f"{path} does not say which CUDA release it is: is it nvcc?\n{elsewhere}")
    if (int(release[1]), int(release[2])) < OLDEST_NVCC:
        oldest = ".".join(map(str, OLDEST_NVCC))
        raise UserError(
            f"{path} is of CUDA {release[1]}.{release[2]}, and cudaemu needs {oldest} or newer\n{elsewhere}"
        )
    home = path.resolve().parent.parent
    if not (home / "include" / "cuda_runtime.h").exists():
        top = re.search(r"^#\$ TOP=(.+)$", run([path, "--dryrun", "-x", "cu", "-c", os.devnull]), re.MULTILINE)
        home = Path(top[1]).resolve() if top else home
    return Nvcc(path, home, f"{release[1]}.{release[2]}")


def find_cxx() -> str:
    """Path of the host C++ compiler: CXX, or g++; UserError if there is none."""
    wanted = os.environ.get("CXX")
    path = shutil.which(wanted or "g++")
    if path is None:
        raise UserError(f"CXX is '{wanted}', which is no program; " + CXX_HELP if wanted else CXX_HELP)
    return path


def find_tool(name: str, nvcc: Nvcc | None = None) -> str:
    """Path of a tool of the toolkit: beside nvcc, on the PATH, or from the pip packages; UserError if there is none."""
    nvcc = nvcc or find_nvcc()
    path = shutil.which(name, path=str(nvcc.home / "bin")) or shutil.which(name) or _pip_tool(name)
    if path is None:
        raise UserError(TOOL_HELP.format(name=name))
    return path


def disassemble(path: Path) -> str:
    """The SASS of a cubin, as `cuobjdump -sass` prints it."""
    return _listing(path, "cuobjdump", "-sass")


def disassemble_with_lines(path: Path) -> str:
    """The SASS of a cubin with the source lines, through inlined calls, as `nvdisasm -gi` prints it."""
    return _listing(path, "nvdisasm", "-gi", "-c")


def _listing(cubin: Path, name: str, *flags: str) -> str:
    """What a tool prints of a cubin: kept, since nvdisasm takes half a second to start, however short the code is."""
    tool = find_tool(name)

    def build(out: Path) -> None:
        (out / "listing").write_text(run([tool, *flags, cubin]))

    key = [hashlib.sha256(cubin.read_bytes()).hexdigest(), tool, _version(tool), *flags]
    return (cached("listing", key, build) / "listing").read_text()


@lru_cache
def _version(tool: str) -> str:
    return run([tool, "--version"])


def compile_cxx(source: Path, flags: Sequence[str], product: str, after: Sequence[str] = ()) -> Path:
    """Compile one C++ source with the host compiler; the path of the product (a file name) in the cache.

    `flags` stand before the source, `after` behind it, where the libraries belong."""
    cxx = find_cxx()

    def build(out: Path) -> None:
        run([cxx, *flags, source, *after, "-o", out / product])

    key = [*source_texts(source), cxx, release(cxx), *flags, *after, product]
    if "-march=native" in flags:  # the cache may be shared by machines with different processors
        key.append(_host_processor(cxx))
    return cached(Path(product).stem, key, build) / product


@lru_cache
def release(cxx: str) -> str:
    """The release of the host compiler."""
    return run([cxx, "-dumpfullversion"])


@lru_cache
def _host_processor(cxx: str) -> str:
    """What the compiler takes this machine's processor for, in macros: --help=target is as wide as the terminal."""
    return run([cxx, "-march=native", "-dM", "-E", "-x", "c++", os.devnull])


def cached(kind: str, key: Sequence[object], build: Callable[[Path], None], keep_failures: bool = False) -> Path:
    """The cache's directory for `key` (everything that the product depends on), filled by `build(directory)` if new.

    With `keep_failures` a ToolFailed of the build is kept, too, and raised again without another try. UserError if the
    cache cannot be written."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode(errors="surrogateescape")).hexdigest()[:20]
    final = cache_dir() / f"{kind}-{digest}"
    if not _whole(final):
        try:
            _fill(final, kind, build, keep_failures)
        except OSError as error:
            raise _unusable(final.parent, error.strerror or error) from error
    try:
        raise ToolFailed((final / FAILURE).read_text())
    except OSError:  # the usual case: there was none
        return final


def _fill(final: Path, kind: str, build: Callable[[Path], None], keep_failures: bool) -> None:
    with open(final.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process builds, the others wait for it
        _verified.pop(final, None)
        if _whole(final):
            return
        temporary = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=final.parent))
        try:
            try:
                build(temporary)
            except ToolFailed as failure:
                if not keep_failures:
                    raise
                for path in temporary.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                (temporary / FAILURE).write_text(str(failure))
            files = {str(path.relative_to(temporary)): _file_hash(path) for path in _files(temporary)}
            (temporary / MANIFEST).write_text(json.dumps(files))
            if final.is_symlink() or final.exists():  # damaged
                discarded = temporary.with_name(temporary.name + "-old")
                final.rename(discarded)
                shutil.rmtree(discarded, ignore_errors=True) if discarded.is_dir() else discarded.unlink()
            temporary.rename(final)
            _verified[final] = _sizes(final, files)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


_verified: dict[Path, dict[str, int]] = {}  # products whose hashes this process has compared: file -> size
_LARGE = 64 << 20  # bytes; files beyond are compared by their size alone (a toolkit from pip)


def _whole(product: Path) -> bool:
    """Whether a product is there as it was built: every file by its hash once per process, then by its size."""
    try:
        known = _verified.get(product)
        if known is not None:
            if _sizes(product, known) == known:
                return True
            del _verified[product]
        files = json.loads((product / MANIFEST).read_text())
        if any(_file_hash(product / name) != wanted for name, wanted in files.items()):
            return False
        _verified[product] = _sizes(product, files)
        return True
    except (OSError, ValueError, AttributeError):
        return False


def _sizes(folder: Path, files: Iterable[str]) -> dict[str, int]:
    return {name: os.stat(folder / name).st_size for name in files}


def _files(folder: Path) -> list[Path]:
    """All that a product consists of, but for large trees: of those the files at the top."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return found if len(found) < 1000 else [path for path in folder.iterdir() if path.is_file()]


def _file_hash(path: Path) -> str:
    size = path.stat().st_size
    if size > _LARGE:
        return str(size)
    return hashlib.sha256(path.read_bytes()).hexdigest()


# What a tool says when the trouble is not in its input.
_PASSING = (
    r"No space left|[Nn]o such file|cannot open|internal|out of memory|cannot allocate|"
    r"[Kk]illed|terminated|Segmentation"
)


def run(command: Sequence[object], cwd: Path | None = None) -> str:
    """Run a tool; its output, stderr included. UserError with that output if it fails: a ToolFailed if it is the tool's
    word on its input, and not a lack of memory, of room on the disk or of a file."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, cwd=cwd
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{words[0]} does not run: {getattr(error, 'strerror', None) or error}") from error
    if done.returncode:
        raise failure(words[0], done.returncode, done.stdout)
    return done.stdout


def failure(tool: str, code: int, said: str) -> UserError:
    """What a tool's failure is, with what it printed: see `run`."""
    said = said.strip()
    final = said and code > 0 and not re.search(_PASSING, said)
    return (ToolFailed if final else UserError)(said or f"{tool} failed with exit status {code}")


def define_flags(defines: Mapping[str, str] | None) -> list[str]:
    """The macros as the compiler's -D takes them."""
    return [f"-D{name}={value}" for name, value in (defines or {}).items()]


def read(source: Path) -> str:
    """The text of a source file; UserError if it cannot be read."""
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read {source}: {reason}") from error


def source_texts(source: Path, seen: set[Path] | None = None, folders: Sequence[Path] = ()) -> list[str]:
    """The text of a source and of what it includes from its own folder or from `folders`."""
    seen = set() if seen is None else seen
    if source in seen:
        return []
    seen.add(source)
    try:
        text = source.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from error
    texts = [text]
    for bracket, name in _includes(text):
        for folder in (*([source.parent] if bracket == '"' else ()), *folders):
            if (path := folder / name).is_file():
                texts += source_texts(path.resolve(), seen, folders)
                break
    return texts


@lru_cache(maxsize=256)  # kernels are launched many times
def _includes(text: str) -> list[tuple[str, str]]:
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', text, re.MULTILINE)


def asks_for_capability(source: Path) -> bool:
    """Whether a source, or a header beside it, asks what it is compiled for."""
    return any(re.search(r"__CUDA_(MINIMUM_)?ARCH|\bNV_(IF|DISPATCH)_", text) for text in source_texts(source))


def _pip_tool(name: str) -> str | None:
    """A tool of NVIDIA's pip packages: site-packages/nvidia/cu13/bin/..., the newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    homes = [home for root in (spec and spec.submodule_search_locations) or () for home in Path(root).glob("cu*")]
    homes.sort(key=lambda home: int("".join(filter(str.isdigit, home.name)) or 0), reverse=True)
    return next((tool for home in homes if (tool := shutil.which(name, path=str(home / "bin")))), None)
