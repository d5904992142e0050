"""The compilers: where nvcc, its tools and g++ are, which builds of them these are, and how they are run."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from cudaemu import interrupts
from cudaemu.compiler import cache
from cudaemu.errors import ToolFailed, UserError
from cudaemu.terminal import hold_standard_descriptors

NVCC_HELP = """no CUDA compiler found. Install one from pip (no GPU and no system toolkit needed; x86-64 and aarch64):
    pip install "cuda-toolkit[nvcc,cccl]" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
or point CUDA_HOME to a toolkit, or put nvcc on the PATH. PTX needs no compiler of CUDA: cudaemu.run_ptx"""
CXX_HELP = """no C++ compiler found. Install one:
    apt install g++        (Debian, Ubuntu; elsewhere: GCC's C++ compiler, or clang++)
or point CXX to one of C++17"""
OLDER_HELP = """no headers of CUDA {cuda} found. Install them from pip, beside the compiler:
    pip install nvidia-cuda-runtime-cu{cuda} nvidia-cuda-cccl-cu{cuda}"""
TOOL_HELP = """no {name} found. Install it from pip:
    pip install "cuda-toolkit[nvcc,cccl]" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"""


SAMPLES = Path(__file__).resolve().parents[1] / "host" / "samples"  # headers that programs of cuda-samples include

SCRIPT = 64 << 10  # bytes: of a compiler, a smaller file is a script, of which no version tells
OLDEST_NVCC = (13, 0)  # the oldest that is tested
# What nvcc runs and reads that is not in the list of files that it read: their sizes tell one build from another.
PARTS = ("bin/cudafe++", "bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc",
         "include/crt/host_runtime.h")  # fmt: skip
# What nvcc and the host's compiler take from the environment.
ENVIRONMENT = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
               "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH")  # fmt: skip


@dataclass(frozen=True)
class Nvcc:
    """One CUDA compiler. `home` is the toolkit it belongs to (a CUDA_HOME), `release` its release, such as "13.0", and
    `version` its own version text, down to the build number. `older` are folders with the headers of an older CUDA,
    `cuda`, in place of its own."""

    path: Path
    home: Path
    release: str
    version: str = field(default="", repr=False)
    older: tuple[Path, ...] = ()
    cuda: str = ""

    @property
    def include(self) -> Path:
        return self.home / "include"

    @property
    def lib(self) -> Path:
        return next((lib for lib in (self.home / "lib64", self.home / "lib") if lib.is_dir()), self.home / "lib")


def find_nvcc(cuda: str | None = None) -> Nvcc:
    """The CUDA compiler of CUDA_HOME, of the PATH or of the pip packages, in that order; UserError if there is none.

    `cuda`: with the headers of that older CUDA, "12", of the pip packages; UserError if they are not there."""
    home = os.environ.get("CUDA_HOME")
    path = (home and shutil.which("nvcc", path=f"{home}/bin")) or shutil.which("nvcc") or _pip_tool("nvcc")
    if path is None:
        raise UserError(NVCC_HELP)
    nvcc = describe_nvcc(Path(path))
    return nvcc if cuda is None else replace(nvcc, older=_older_headers(cuda), cuda=cuda)


def _older_headers(cuda: str) -> tuple[Path, ...]:
    """The headers of CUDA's runtime, and those of Thrust, CUB and libcu++, of pip's packages for an older CUDA."""
    found = tuple(
        next((folder for root in _pip_roots() if (folder := root / part / "include").joinpath(named).is_file()), None)
        for part, named in (("cuda_runtime", "cuda_runtime_api.h"), ("cuda_cccl", "cub/version.cuh"))
    )
    folders = tuple(folder for folder in found if folder)
    if len(folders) < len(found):
        raise UserError(OLDER_HELP.format(cuda=cuda))
    said = re.search(r"#define CUDART_VERSION +(\d+)\d{3}\b", read(folders[0] / "cuda_runtime_api.h"))
    if said is None or said[1] != cuda:
        raise UserError(f"{folders[0]} must have the headers of CUDA {cuda}, got {said[1] if said else 'another'}")
    return folders


@lru_cache
def describe_nvcc(path: Path) -> Nvcc:
    """The release and the toolkit of the nvcc at `path`, which may be a wrapper script or a symbolic link."""
    elsewhere = "Point CUDA_HOME to another toolkit, or take this one off the PATH"
    try:
        said = run([path, "--version"], seconds=ASKED_SECONDS)
    except UserError as error:
        raise UserError(f"{path} --version fails: {error}\n{elsewhere}") from error
    release = re.search(r"release (\d+)\.(\d+)", said)
    if release is None:
        raise UserError(f"{path} does not say which CUDA release it is: is it nvcc?\n{elsewhere}")
    if (int(release[1]), int(release[2])) < OLDEST_NVCC:
        oldest = ".".join(map(str, OLDEST_NVCC))
        raise UserError(f"{path} must be of CUDA {oldest} or newer, got {release[1]}.{release[2]}\n{elsewhere}")
    home = path.resolve().parent.parent
    if not (home / "include" / "cuda_runtime.h").exists():
        top = re.search(r"^#\$ TOP=(.+)$", _dry_run(path), re.MULTILINE)
        home = Path(top[1]).resolve() if top else home
    return Nvcc(path, home, f"{release[1]}.{release[2]}", said)


def _dry_run(nvcc: Path) -> str:
    """What nvcc would do; UserError, which names the host compiler if that is missing."""
    try:
        return run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], seconds=ASKED_SECONDS)
    except UserError:
        find_cxx()
        raise


def find_cxx() -> str:
    """Path of the host C++ compiler: CXX, or else g++ or clang++; UserError if there is none."""
    wanted = os.environ.get("CXX")
    paths = filter(None, map(shutil.which, [wanted] if wanted else ["g++", "clang++"]))
    path = next(paths, None)
    if path is None:
        raise UserError(f"CXX must be a program, got '{wanted}'; " + CXX_HELP if wanted else CXX_HELP)
    if "__GNUG__" not in _macros(path):
        what = "CXX" if wanted else Path(path).name
        raise UserError(f"{what} must be a C++ compiler such as g++, got '{wanted or path}'")
    return path


def is_clang(cxx: str) -> bool:
    return "__clang__" in _macros(cxx)


@lru_cache
def _macros(cxx: str, *flags: str) -> str:
    """The macros that a C++ compiler begins with; nothing if the program does not take g++'s options, or not these."""
    try:
        return run([cxx, *flags, "-dM", "-E", "-x", "c++", os.devnull], seconds=ASKED_SECONDS)
    except UserError:
        return ""


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
        (out / "listing").write_text(run([tool, *flags, cubin]), encoding="utf-8")

    key = [hashlib.sha256(cubin.read_bytes()).hexdigest(), tool, _version(tool)]
    return (cache.get("listing", [*key, *flags], build) / "listing").read_text(encoding="utf-8")


def compile_cxx(
    source: Path,
    flags: Sequence[str],
    product: str,
    after: Sequence[str] = (),
    building: Callable[[], None] | None = None,
) -> Path:
    """Compile one C++ source with the host compiler; the path of the product (a file name) in the cache.

    `flags` go before the source, `after` goes after it, where the libraries belong; -march=native becomes what this
    compiler has for that. `building` is called if it is compiled now.
    UserError with the compiler's own message if it does not compile."""
    cxx = find_cxx()
    key: list[object] = [source]
    if "-march=native" in flags:
        native, processor = _host_processor(cxx)
        flags = [each for flag in flags for each in (native if flag == "-march=native" else [flag])]
        key.append(processor)  # the cache may be shared by machines with different ones

    def build(out: Path) -> None:
        if building is not None:
            building()
        run([cxx, *flags, "-MD", "-MF", out / "read.d", source, *after, "-o", out / product])

    key += [*identity(cxx), *flags, *after, product]
    return cache.get(Path(product).stem, key, build, search_folders(flags)) / product


def identity(cxx: str, nvcc: Nvcc | None = None) -> list[str]:
    """Which compilers these are, and what they take from the environment: part of the key of what they make."""
    read = [name for name in ENVIRONMENT if nvcc is not None or not name.startswith("NVCC_")]
    words = [cxx, _version(cxx, "-v"), _script(cxx), *(os.environ.get(name, "") for name in read), *_named_files(read)]
    if nvcc is not None:
        words += [str(nvcc.path), nvcc.version, *(f"{part} {_size(nvcc.home / part)}" for part in PARTS)]
        words += [_script(nvcc.path), _script(nvcc.path.resolve().with_name("nvcc.profile"))]
    return words


def _script(path: str | Path) -> str:
    """A hash of a small file, such as a script that calls a compiler with options of its own; else its size."""
    size = _size(Path(path))
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if 0 < size < SCRIPT else str(size)


def _named_files(variables: Sequence[str]) -> list[str]:
    """Hashes of the files of options that the environment names."""
    return option_files([os.environ.get(name, "") for name in variables])


def option_files(flags: Sequence[str]) -> list[str]:
    """Hashes of the files that flags name, as --options-file=FILE does, and of those that are named there."""
    todo, found = [piece for word in flags for piece in _pieces(word)], dict[str, str]()
    while todo:
        path = todo.pop()
        if path not in found and os.path.isabs(path) and os.path.isfile(path) and _size(Path(path)) < SCRIPT:
            text = Path(path).read_bytes()
            found[path] = hashlib.sha256(text).hexdigest()
            todo += _pieces(os.fsdecode(text))
    return sorted(found.values())


def _pieces(words: str) -> list[str]:
    """What may be a path in a flag, or in a variable with flags or paths."""
    return [words, *re.split(r"[\s,:=@]", words)]


def search_folders(flags: Sequence[str]) -> list[Path]:
    """The folders among the compilers' flags and in their environment: there they look for what a source includes."""
    words = [*flags, *(os.environ.get(name, "") for name in ENVIRONMENT)]
    pieces = [piece for word in words for piece in _pieces(word)]
    options = r"^-(-?include-path|-?system-include|-?library-path|isystem|iquote|idirafter|I|L)=?"
    names = {re.sub(options, "", each) for each in pieces}
    return [Path(name) for name in sorted(names) if os.path.isabs(name) and os.path.isdir(name)]


@lru_cache
def _version(tool: str, flag: str = "--version") -> str:
    return run([tool, flag], seconds=ASKED_SECONDS)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _host_processor(cxx: str) -> tuple[list[str], str]:
    """The flags by which the compiler makes code for the processor that it detects, and that processor, in macros
    (--help=target depends on the terminal's width). Nothing if it detects none: one for other machines."""
    found = ((flag, _macros(cxx, flag)) for flag in ("-march=native", "-mcpu=native"))
    return next((([flag], macros) for flag, macros in found if macros), ([], ""))


# A tool's error about its input names the place: "kernel.cu(3): error", "main.cpp:3:1: error", "kernel.ptx, line 3;
# error".
_ABOUT_INPUT = re.compile(r"(\(\d+\)|:\d+|, line \d+)\s*[:;]\s*((fatal |catastrophic )?error\b|fatal\s*:)", re.I)
# What a tool prints when its input is not at fault, though it may name a place, too.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS,
            errno.EACCES, errno.EPERM, errno.EINTR, errno.ETXTBSY, errno.ESTALE, errno.EFBIG)  # fmt: skip
_TROUBLE = re.compile(
    r"memory allocation|out of memory|memory exhausted|bad_alloc|internal (compiler )?error|signal \d|killed|"
    r"time limit|" + "|".join(re.escape(os.strerror(number)) for number in _PASSING),
    re.IGNORECASE,
)

TOOL_SECONDS, TOOL_BYTES = 1800, 32 << 30  # limits of a tool on time and, if the machine has more, on memory
ASKED_SECONDS = 60  # ... for asking its version only
# A tool in a process group of its own, which ends when the pipe on its standard input closes: this process holds the
# other end until it dies. $1: seconds of a processor; $2: KiB of addresses.
_LIFELINE = """(ulimit -t "$1" && ulimit -v "$2") 2>/dev/null && ulimit -t "$1" && ulimit -v "$2"
shift 2
exec 3<&0 0</dev/null
{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 &
"$@" 3<&-
status=$?
kill -KILL $!
exit $status"""


def run(
    command: Sequence[object],
    cwd: Path | None = None,
    seconds: float = TOOL_SECONDS,
    memory: int = TOOL_BYTES,
    started: Callable[[Callable[[], None]], None] | None = None,
) -> str:
    """Run a tool with empty input, for at most `seconds`, with at most `memory` bytes, and no longer than this process
    lives; returns its output, stderr included. `started` gets a function that ends it, for another thread.

    UserError with that output if it fails; ToolFailed if the output names a place in the input, and the failure would
    repeat: no signal, and no lack of time, memory or the like."""
    words = [str(word) for word in command]
    memory = min(memory, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4)
    if shutil.which(words[0]) is None:
        raise UserError(f"{words[0]} does not run: there is no such program")
    limits = [str(int(seconds)), str(memory >> 10)]
    hold_standard_descriptors()
    try:
        with subprocess.Popen(
            ["/bin/sh", "-c", _LIFELINE, "sh", *limits, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            cwd=cwd,
            env={**os.environ, "TMPDIR": str(cwd)} if cwd else None,  # what a tool that is ended leaves there goes, too
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            timer = threading.Timer(seconds, _end_group, [process])
            timer.daemon = True
            timer.start()
            end = partial(_end_group, process)
            try:
                if started is not None:
                    started(end)
                with interrupts.ending(end):
                    said = process.stdout.read()
                    status = process.wait()
            except BaseException:
                _end_group(process)
                raise
            finally:
                timer.cancel()
    except (OSError, ValueError) as error:
        raise UserError(f"{words[0]} does not run: {getattr(error, 'strerror', None) or error}") from error
    if status == 0:
        return said
    said = said.strip()
    signalled = status < 0 or SIGNALLED < status < SIGNALLED + signal.NSIG
    if signalled:
        limited = f"it may take {seconds:.0f} s and {memory >> 20:,} MB"
        said = f"{said}\n{words[0]} was ended by signal {abs(status) % SIGNALLED}; {limited}".strip()
    on_input = not signalled and _ABOUT_INPUT.search(said) and not _TROUBLE.search(said)
    raise (ToolFailed if on_input else UserError)(said or f"{words[0]} failed with exit status {status}")


SIGNALLED = 128  # a shell's exit status for what a signal ended: this, and the signal's number


def _end_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def define_flags(defines: Mapping[str, str] | None) -> list[str]:
    """The macros as the compiler's -D takes them."""
    return [f"-D{name}={value}" for name, value in (defines or {}).items()]


def read(source: Path) -> str:
    """The text of a source file; UserError if it cannot be read."""
    check_file(source)
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read {source}: {reason}") from error


def check_file(path: Path) -> None:
    """UserError unless `path` is a file: reading a pipe empties it, and a device may have no end."""
    if not path.is_file():
        other = "it must be a plain file" if path.exists() else "there is no such file"
        what = "it is a folder" if path.is_dir() else other
        raise UserError(f"cannot read {path}: {what}")


def source_texts(source: Path, seen: set[Path] | None = None, folders: Sequence[Path] = ()) -> list[str]:
    """The text of a source and of what it includes from its own folder or from `folders`, at a first look: what a build
    has read is known from the build (cache.py)."""
    seen = set() if seen is None else seen
    if source in seen:
        return []
    seen.add(source)
    check_file(source)
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from error
    texts = [text]
    for bracket, name in _includes(text):
        for folder in (*([source.parent] if bracket == '"' else ()), *folders):
            if (path := folder / name).is_file():
                texts += source_texts(path.resolve(), seen, folders)
                break
    return texts


def foreign_files(source: Path) -> list[Path]:
    """The files that the preprocessor reads for a CUDA source beside headers of CUDA and of the C++ compiler, by its
    own list, for host code and for device code."""
    nvcc, cxx = find_nvcc(), find_cxx()
    found: dict[Path, None] = {}
    for more in ("", ",-U__CUDA_ARCH__"):
        words = [nvcc.path, "-ccbin", cxx, "-E", "-isystem", SAMPLES, "-Xcompiler", f"-v,-H{more}"]
        words += [source, "-o", os.devnull]
        try:
            said = run(words, cwd=source.parent, seconds=ASKED_SECONDS)
        except UserError as error:  # what it has read before it stopped
            said = str(error)
        searched = re.search(r"^#include <\.\.\.> search starts here:\n(.*?)^End of search", said, re.DOTALL | re.M)
        folders = [Path(line.strip()).resolve() for line in searched[1].splitlines()] if searched else []
        for name in re.findall(r"^[.!]+x? (/?\S.*)$", said, re.MULTILINE):
            path = (source.parent / name).resolve()
            if path.is_file() and not any(path.is_relative_to(folder) for folder in folders):
                found[path] = None
    return list(found)


@lru_cache(maxsize=256)  # kernels are launched many times
def _includes(text: str) -> list[tuple[str, str]]:
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', text, re.MULTILINE)


def _pip_roots() -> list[Path]:
    """Where NVIDIA's pip packages are: site-packages/nvidia, of each folder that Python imports from."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(root) for root in (spec and spec.submodule_search_locations) or ()]


def _pip_tool(name: str) -> str | None:
    """A tool of NVIDIA's pip packages: site-packages/nvidia/cu13/bin/..., the newest CUDA first."""
    homes = [home for root in _pip_roots() for home in root.glob("cu[0-9]*")]
    homes.sort(key=lambda home: int("".join(filter(str.isdigit, home.name)) or 0), reverse=True)
    return next((tool for home in homes if (tool := shutil.which(name, path=str(home / "bin")))), None)
