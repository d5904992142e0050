"""The compilers: where nvcc and g++ are, and what is built with them, once, into a cache.

Every product is a directory in the cache, named by a hash of all that went into it (sources, flags, compiler release),
filled in a temporary place and then renamed: a product is there whole or not at all, also when several processes want
it at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from common.errors import UserError

NVCC_HELP = """no CUDA compiler found. Install one from pip (no GPU and no system toolkit needed):
    pip install "cuda-toolkit[nvcc,cccl,cuobjdump]"
or point CUDA_HOME to a toolkit, or put nvcc on the PATH"""
CXX_HELP = """no C++ compiler found. Install one:
    apt install g++        (Debian, Ubuntu; elsewhere: GCC's C++ compiler)
or point CXX to one"""
CUOBJDUMP_HELP = """no cuobjdump found. Install it from pip:
    pip install "cuda-toolkit[nvcc,cccl,cuobjdump]\""""

RUNTIME = Path(__file__).parent / "emulator" / "runtime.cpp"


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


@dataclass(frozen=True)
class Build:
    """A kernel source compiled for the emulator: the host code as a shared object, the device code as PTX."""

    so: Path
    ptx: str


@dataclass(frozen=True)
class Cubin:
    """A kernel source compiled for one GPU. `log` is what `ptxas -v` said: registers, spills, shared memory."""

    path: Path
    log: str


def cache_dir() -> Path:
    """Where everything that is built is kept: KERNELS_CACHE, or gpu-kernels-course in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-kernels-course"
    path = Path(os.environ.get("KERNELS_CACHE") or default)
    path.mkdir(parents=True, exist_ok=True)
    return path


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
    release = re.search(r"release (\d+\.\d+)", run([path, "--version"]))
    if release is None:
        raise UserError(f"{path} does not say which CUDA release it is: is it nvcc?")
    home = path.resolve().parent.parent
    if not (home / "include" / "cuda_runtime.h").exists():
        top = re.search(r"^#\$ TOP=(.+)$", run([path, "--dryrun", "-x", "cu", "-c", os.devnull]), re.MULTILINE)
        home = Path(top[1]).resolve() if top else home
    return Nvcc(path, home, release[1])


def find_cxx() -> str:
    """Path of the host C++ compiler: CXX, or g++; UserError if there is none."""
    wanted = os.environ.get("CXX")
    path = shutil.which(wanted or "g++")
    if path is None:
        raise UserError(f"CXX is '{wanted}', which is no program; " + CXX_HELP if wanted else CXX_HELP)
    return path


def find_cuobjdump(nvcc: Nvcc | None = None) -> str:
    """Path of cuobjdump: beside nvcc, on the PATH, or from the pip packages; UserError if there is none."""
    nvcc = nvcc or find_nvcc()
    path = shutil.which("cuobjdump", path=str(nvcc.home / "bin")) or shutil.which("cuobjdump") or _pip_tool("cuobjdump")
    if path is None:
        raise UserError(CUOBJDUMP_HELP)
    return path


def compile_host(
    source: Path, defines: Mapping[str, str] | None = None, arch: str = "80", nvcc: Nvcc | None = None
) -> Build:
    """Compile a kernel for the emulator: its host code, linked to the stand-in runtime, and its PTX for compute_`arch`.

    UserError with the compiler's own message if it does not compile."""
    nvcc, cxx, source = nvcc or find_nvcc(), find_cxx(), source.resolve()
    flags = ["-O3", "-lineinfo", "-std=c++17", *_define_flags(defines)]
    flags += ["-gencode", f"arch=compute_{arch},code=compute_{arch}", "-shared", "-Xcompiler", "-fPIC", "--cudart=none"]
    runtime = compile_cxx(RUNTIME, ["-c", "-O1", "-std=c++17", "-fPIC", f"-I{nvcc.include}"], "runtime.o")

    def build(out: Path) -> None:
        # The stand-in's symbols stay inside: a process may well have the real runtime loaded.
        (out / "hide").write_text("{ local: cuda*; __cuda*; };\n")
        keep = ["--keep", "--keep-dir", out]
        link = [runtime, "-Xlinker", f"--version-script={out / 'hide'},-z,defs"]
        try:
            run([nvcc.path, "-ccbin", cxx, *flags, *keep, source, *link, "-o", out / "kernel.so"])
        except UserError as error:
            if missing := sorted(set(re.findall(r"undefined reference to `(\w+)'", str(error)))):
                raise UserError(f"{source} calls {', '.join(missing)}, which the emulator does not have") from error
            raise
        (ptx,) = out.glob("*.ptx")
        ptx.rename(out / "kernel.ptx")
        for path in out.iterdir():
            if path.name not in ("kernel.so", "kernel.ptx"):
                path.unlink()

    out = cached("kernel", [source, *source_texts(source), nvcc.path, nvcc.release, runtime, *flags], build)
    return Build(out / "kernel.so", (out / "kernel.ptx").read_text())


def cubin(source: Path, defines: Mapping[str, str] | None = None, arch: str = "80", nvcc: Nvcc | None = None) -> Cubin:
    """Compile a kernel's device code for the GPUs of compute capability `arch` ("80", "90a" ...), as a GPU build would.

    UserError with the compiler's own message if it does not compile."""
    nvcc, cxx, source = nvcc or find_nvcc(), find_cxx(), source.resolve()
    flags = ["-O3", "-lineinfo", "-std=c++17", *_define_flags(defines), f"-arch=sm_{arch}", "-Xptxas=-v", "-cubin"]

    def build(out: Path) -> None:
        log = run([nvcc.path, "-ccbin", cxx, *flags, source, "-o", out / "kernel.cubin"])
        (out / "kernel.log").write_text(log)

    out = cached("cubin", [source, *source_texts(source), nvcc.path, nvcc.release, *flags], build)
    return Cubin(out / "kernel.cubin", (out / "kernel.log").read_text())


def disassemble(path: Path) -> str:
    """The SASS of a cubin, as `cuobjdump -sass` prints it."""
    return run([find_cuobjdump(), "-sass", path])


def compile_cxx(source: Path, flags: Sequence[str], product: str) -> Path:
    """Compile one C++ source with the host compiler; the path of the product (a file name) in the cache."""
    cxx = find_cxx()

    def build(out: Path) -> None:
        run([cxx, *flags, source, "-o", out / product])

    key = [*source_texts(source), cxx, _told(cxx, "-dumpfullversion"), *flags, product]
    if "-march=native" in flags:  # the cache may be shared by machines with different processors
        key.append(_told(cxx, "-march=native", "-Q", "--help=target"))
    return cached(Path(product).stem, key, build) / product


def cached(kind: str, key: Sequence[object], build: Callable[[Path], None]) -> Path:
    """The cache's directory for `key` (everything that the product depends on), filled by `build(directory)` if new."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).hexdigest()[:20]
    final = cache_dir() / f"{kind}-{digest}"
    if final.is_dir():
        return final
    with open(final.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process builds, the others wait for it
        if not final.is_dir():
            temporary = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=final.parent))
            try:
                build(temporary)
                temporary.rename(final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return final


def run(command: Sequence[object]) -> str:
    """Run a tool; its output, stderr included. UserError with that output if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise UserError(f"{words[0]} does not run: {error.strerror}") from error
    if done.returncode:
        raise UserError(done.stdout.strip() or f"{Path(words[0]).name} failed with exit status {done.returncode}")
    return done.stdout


@lru_cache
def _told(*command: str) -> str:
    """What a tool says of itself; it is asked once."""
    return run(command)


def _define_flags(defines: Mapping[str, str] | None) -> list[str]:
    return [f"-D{name}={value}" for name, value in (defines or {}).items()]


def source_texts(source: Path, seen: set[Path] | None = None) -> list[str]:
    """The text of a source and of what it includes by a quoted name."""
    seen = set() if seen is None else seen
    if source in seen:
        return []
    seen.add(source)
    try:
        text = source.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from error
    included = (source.parent / name for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE))
    return [text, *(part for path in included if path.is_file() for part in source_texts(path.resolve(), seen))]


def _pip_tool(name: str) -> str | None:
    """A tool of NVIDIA's pip packages: site-packages/nvidia/cu13/bin/..., the newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    homes = [home for root in (spec and spec.submodule_search_locations) or () for home in Path(root).glob("cu*")]
    homes.sort(key=lambda home: int("".join(filter(str.isdigit, home.name)) or 0), reverse=True)
    return next((tool for home in homes if (tool := shutil.which(name, path=str(home / "bin")))), None)
