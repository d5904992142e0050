"""A CUDA source compiled for the emulator: its host code against the stand-in runtime, its device code as PTX."""

from __future__ import annotations

import linecache
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cudaemu import cpp, extension
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import ToolFailed, UserError
from cudaemu.hardware import Arch
from cudaemu.process import HERE

RUNTIME, CALL = HERE / "runtime.cpp", HERE / "call.h"
WRAPPER = "emulator_source"  # the translation unit that includes the source


@dataclass(frozen=True)
class Build:
    """A source compiled for the emulator: the host code as a shared object, the device code as PTX."""

    so: Path
    ptx: str
    source: Path
    arch: Arch
    nvcc: toolchain.Nvcc = field(repr=False)
    defines: Mapping[str, str] = field(default_factory=dict)
    extension: bool = False  # written as a PyTorch extension

    @property
    def exported(self) -> list[str]:
        """The functions of the host code that C could call, main among them."""
        said = toolchain.run(["nm", "-D", "--defined-only", self.so])
        names = re.findall(r"^\w+ T (\w+)$", said, re.MULTILINE)
        return [name for name in names if not name.startswith(("_", "emulator_"))]

    @property
    def exports_launcher(self) -> bool:
        return "emulator_call_launcher" in toolchain.run(["nm", "-D", "--defined-only", self.so])

    @property
    def has_main(self) -> bool:
        return "main" in self.exported


def compile_host(
    source: Path,
    defines: Mapping[str, str] | None = None,
    arch: str | Arch = "8.0",
    nvcc: toolchain.Nvcc | None = None,
    *,
    call: str | None = None,
    instances: Sequence[str] = (),
    flags: Sequence[str] = (),
    include: Sequence[Path | str] = (),
) -> Build:
    """Compile a source for the emulator: its host code, linked to the stand-in runtime, and its PTX for the
    compute capability `arch`.

    `call` is the function that shall be called from outside, `instances` are kernels of templates to be compiled though
    nothing in the source launches them ("scale<float>"); `flags` and `include` folders go to nvcc.
    UserError with the compiler's own message if it does not compile."""
    nvcc, cxx, source = nvcc or toolchain.find_nvcc(), toolchain.find_cxx(), source.resolve()
    arch = Arch.of(arch)
    if '"' in str(source) or "\n" in str(source):
        raise UserError(f"{source}: a path with quotes or line breaks cannot be included")
    folders = _folders(include)
    texts = toolchain.source_texts(source, folders=folders)
    linecache.checkcache()  # reports quote what is compiled now, not what the file was in an earlier run
    is_extension = extension.is_extension(texts)
    if is_extension:
        folders.append(extension.HEADERS)
    options = _options(flags, defines, arch, folders)
    # The stand-in has what there is of the driver as well.
    link = [flag for flag in flags if flag.startswith(("-l", "-L")) and flag != "-lcuda"]
    link += ["-fopenmp"] if any("-fopenmp" in flag for flag in flags) else []
    wrapper = [f'#include "{source}"']
    if call is not None:
        if not re.fullmatch(r"[A-Za-z_]\w*(::\w+)*", call):
            raise UserError(f"'{call}' is not the name of a function")
        if is_extension and not re.search(rf'extern\s*"C"[^;{{]*\b{call}\s*\(', texts[0]):
            wrapper += [] if extension.has_module(texts[0]) else [f"EMULATOR_FUNCTION({call})"]
        else:
            wrapper += [f'#include "{CALL}"', f"EMULATOR_CALL({call})"]
    wrapper += [f"__attribute__((used)) static auto *emulator_use_{n} = &{text};" for n, text in enumerate(instances)]
    runtime = toolchain.compile_cxx(RUNTIME, ["-c", "-O1", "-std=c++17", "-fPIC", f"-I{nvcc.include}"], "runtime.o")

    def build(out: Path) -> None:
        (out / f"{WRAPPER}.cu").write_text("\n".join(wrapper) + "\n", encoding="utf-8", errors="surrogateescape")
        # The stand-in's symbols stay inside: a process may well have the real runtime loaded.
        (out / "hide").write_text("{ local: cuda*; __cuda*; cuTensorMap*; };\n", encoding="ascii")
        kept = ["--keep", "--keep-dir", ".", "-MD", "-MF", "read.d"]
        try:
            toolchain.run([nvcc.path, "-ccbin", cxx, *options, *kept, "-c", f"{WRAPPER}.cu", "-o", "kernel.o"], cwd=out)
        except UserError as error:
            said = _explained(error, source, call, nvcc)
            if is_extension and "does not export" not in str(said):
                said = type(said)(extension.explain(str(said), texts[0]))
            raise said from error
        script = "-Wl,--version-script=hide,-z,defs"
        try:
            objects = ["kernel.o", runtime, *link, "-lpthread", "-ldl", "-lm", "-lrt"]
            depfile = ["-Wl,--dependency-file=link.d"] if link else []  # libraries may change, those of g++ do not
            toolchain.run([cxx, "-shared", script, *depfile, *objects, "-o", "kernel.so"], cwd=out)
        except UserError as error:
            raise _unlinked(error, source, link) from error
        (out / f"{WRAPPER}.ptx").rename(out / "kernel.ptx")
        for path in out.iterdir():
            if path.name not in ("kernel.so", "kernel.ptx") and path.suffix != ".d":
                path.unlink()

    option_files = [Path(flag).read_bytes() for flag in flags if os.path.isfile(flag)]  # --options-file FILE
    key = [source, *wrapper, *toolchain.identity(cxx, nvcc), runtime, *options, *link, *option_files]
    out = cache.get("kernel", key, build, toolchain.search_folders(flags) + folders)
    return Build(out / "kernel.so", _ptx(out), source, arch, nvcc, dict(defines or {}), is_extension)


@lru_cache(maxsize=8)  # megabytes each
def _ptx(product: Path) -> str:
    """The PTX of a product: one object for all its runs, which dictionaries find without another look at the text."""
    return (product / "kernel.ptx").read_text(encoding="utf-8", errors="replace")


def _folders(include: Sequence[Path | str]) -> list[Path]:
    folders = [Path(folder).expanduser().resolve() for folder in include]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"the include folder {folder} does not exist")
        if "," in str(folder):
            raise UserError(
                f"nvcc splits its arguments at commas: the include folder {folder} cannot have one in its name"
            )
    return folders


# nvcc's options that say what it is to make, of what, or that it is only to answer something.
_OUTPUTS = (
    r"-(c|o|ptx|cubin|fatbin|dc|dw|dlink|rdc.*|lib|link|run|E|M|MM|MD|MMD|MF|MT|x|h|V|optix-ir|ltoir|dryrun|keep|clean)$|"
    r"--(relocatable-device-code|device-c|device-w|device-link|device-debug-link|compile|output-file|ptx|cubin|fatbin|"
    r"optix-ir|ltoir|lib|link|run|preprocess|generate-dependencies|generate-nonsystem-dependencies|x|help|version|"
    r"dryrun|keep|clean-targets)\b"
)


def _options(flags: Sequence[str], defines: Mapping[str, str] | None, arch: Arch, folders: Sequence[Path]) -> list[str]:
    """nvcc's options. What the user sets is not set again: nvcc takes -std and the like only once."""
    for flag in flags:
        if re.match(r"-arch|--gpu-|-gencode|--generate-code|-code\b", flag):
            raise UserError(
                f"{flag}: the compute capability is chosen by arch (--arch 9.0), not by the compiler's flags"
            )
        if re.match(_OUTPUTS, flag):
            raise UserError(f"{flag}: the emulator compiles one file, and says itself what nvcc is to make of it")
    standard = [] if any(re.match(r"--?std\b", flag) for flag in flags) else ["-std=c++17"]
    # Of the host's code alone: with -O3 its compiler takes half as long again, for code that launches kernels.
    level = [] if any(re.match(r"-O\d|--optimize", flag) for flag in flags) else ["-O1"]
    lines = (
        []
        if any(re.match(r"-lineinfo|--generate-line-info|-G$|--device-debug", flag) for flag in flags)
        else ["-lineinfo"]
    )
    own = [flag for flag in flags if not flag.startswith(("-l", "-L")) or flag.startswith("-lineinfo")]
    includes = [word for folder in folders for word in ("-I", str(folder))]
    target = [
        "-D__EMULATOR__=1",
        "-gencode",
        f"arch=compute_{arch.nvcc},code=compute_{arch.nvcc}",
        "-Xcompiler",
        "-fPIC,-g1",
        "--cudart=none",
    ]
    return [*level, *lines, *standard, *target, *toolchain.define_flags(defines), *includes, *own]


def _not_exported(source: Path, call: str) -> UserError:
    return ToolFailed(
        f'{source} does not export {call}: it must define extern "C" cudaError_t {call}(...), '
        "or any function of that name"
    )


def _explained(error: UserError, source: Path, call: str | None, nvcc: toolchain.Nvcc) -> UserError:
    """What nvcc said of the lines that call the launcher, said about the source."""
    said = str(error)
    if call is not None and re.search(rf'{WRAPPER}\.cu\(\d+\): error: (identifier|.*has no member) "', said):
        return _not_exported(source, call)
    if call is not None and re.search(rf"{WRAPPER}\.cu\(\d+\): error: .*(overload|template)", said):
        code = cpp.code(toolchain.read(source))
        if re.search(rf"\btemplate\s*<[^;{{}}]*\b{re.escape(call)}\s*\(", code):
            return ToolFailed(f"{call} of {source} must be a function, got a template: which instance is to be called?")
        return ToolFailed(f"{source} has several functions {call}: name the one to be called differently")
    if not re.search(r"\berror\b", said):  # nvcc's own trouble, not the source's
        return UserError(f"{nvcc.path} (CUDA {nvcc.release}) failed: {said}")
    return error


def _unlinked(error: UserError, source: Path, libraries: Sequence[str]) -> UserError:
    places: dict[str, str] = {}
    for file, line, name in re.findall(r"(?:(\S+):(\d+)|\S*): undefined reference to `([^']+)'", str(error)):
        here = f"line {line}" if Path(file) == source else f"{Path(file).name}:{line}"
        places.setdefault(name, f"{name} ({here})" if line else name)
    missing = sorted(places)
    cuda = [
        name for name in missing if re.match(r"_*(cuda|cu[A-Z]|cublas|cusparse|curand|cufft|cusolver|cudnn|nccl)", name)
    ]
    if cuda:
        said = f"{source} calls {', '.join(places[name] for name in cuda)}, which the emulator does not have"
    elif missing:
        said = (
            f"{source} uses {', '.join(places[name] for name in missing)}, which it does not define: a program is one "
            "file here; include the other .cu files into it, or name libraries of the host with -l in flags"
        )
    elif "relocation truncated" in str(error):
        said = f"{source}: its __device__ variables must take less than 2 GB together; larger ones need cudaMalloc"
    else:
        return error
    return UserError(said) if libraries else ToolFailed(said)  # another version of a library may have it


# ---- inline PTX: what nvcc copies unseen, ptxas must accept ----------------------------------------------------------


CHECK_SECONDS, CHECK_BYTES = 300, 8 << 30  # what ptxas may take for it: a thousandth is usual

_accepted: set[Path] = set()  # builds that this process has asked about before


class PtxCheck:
    """ptxas's word on the inline assembly of a source, asked for in the background: nvcc passes it on unread.

    `with PtxCheck(build):` around a run: at its end, also one that the emulator could not make sense of, UserError with
    the source's line if ptxas refuses the code."""

    def __init__(self, build: Build):
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._build = build
        if build.so not in _accepted and _own_assembly(build.ptx, build.nvcc):
            self._thread = threading.Thread(target=self._check, daemon=True)
            self._thread.start()

    def __enter__(self) -> PtxCheck:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None and not issubclass(kind, UserError):
            return
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error from None

    def _check(self) -> None:
        try:
            check_ptx(self._build)
            _accepted.add(self._build.so)
        except BaseException as error:
            self._error = error


def check_ptx(build: Build) -> None:
    """UserError with the source's line if ptxas refuses a build's PTX; what it has accepted, it is not asked again."""
    ptxas = toolchain.find_tool("ptxas", build.nvcc)

    def assemble(out: Path) -> None:
        (out / "kernel.ptx").write_text(build.ptx, encoding="utf-8")
        try:
            command = [ptxas, "-O0", f"-arch=sm_{build.arch.nvcc}", "kernel.ptx", "-o", os.devnull]
            toolchain.run(command, cwd=out, seconds=CHECK_SECONDS, memory=CHECK_BYTES)
        except ToolFailed as error:
            raise ToolFailed(_in_source(str(error), build.ptx)) from error
        (out / "kernel.ptx").unlink()

    cache.get("ptxas", [build.ptx, build.arch.nvcc, ptxas, build.nvcc.version], assemble)


def _own_assembly(ptx: str, nvcc: toolchain.Nvcc) -> bool:
    """Whether there is inline assembly that does not come from the toolkit's own headers."""
    toolkit = {number for number, path in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', ptx, re.MULTILINE)
               if path.startswith((str(nvcc.home), str(nvcc.include)))}  # fmt: skip
    for piece in ptx.split("// begin inline asm")[:-1]:
        at = piece.rfind("\t.loc\t")
        if at < 0 or piece[at:].split(None, 2)[1] not in toolkit:
            return True
    return False


def _in_source(said: str, ptx: str) -> str:
    """ptxas's messages with the source's lines in place of the PTX's."""
    lines = ptx.splitlines()
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', ptx, re.MULTILINE))
    out = []
    for message in re.findall(r"ptxas .*|.*: error.*|.*: fatal.*", said) or [said]:
        at = re.search(r"line (\d+);\s*(.*)", message)
        if at is None:
            continue
        number = min(int(at[1]), len(lines))
        place = next(
            (m for n in range(number - 1, -1, -1) if (m := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", lines[n]))), None
        )
        where = f"{files.get(place[1], '?')}({place[2]})" if place else f"PTX line {number}"
        out.append(f"{where}: ptxas refuses the inline assembly: {at[2]}\n    PTX | {lines[number - 1].strip()}")
    return "\n".join(dict.fromkeys(out)) or said
