"""A CUDA source compiled for the emulator: its host code against the stand-in runtime, its device code as PTX."""

from __future__ import annotations

import linecache
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cudaemu import extension
from cudaemu.compiler import passes, toolchain
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from cudaemu.process import HERE

RUNTIME, CALL = HERE / "runtime.cpp", HERE / "call.h"
WRAPPER = "emulator_source"  # the translation unit that includes the source
ENVIRONMENT = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")


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
    link = [flag for flag in flags if flag.startswith(("-l", "-L"))]
    link += ["-fopenmp"] if any("-fopenmp" in flag for flag in flags) else []
    wrapper = [f'#include "{source}"']
    if call is not None:
        if not re.fullmatch(r"[A-Za-z_]\w*(::\w+)*", call):
            raise UserError(f"'{call}' is not the name of a function")
        if is_extension and not re.search(rf'extern\s*"C"[^;{{]*\b{call}\s*\(', texts[0]):
            wrapper += [] if extension.has_module(texts[0]) else [f"EMULATOR_FUNCTION({call})"]
        else:
            wrapper += [f'#include "{CALL}"', f"EMULATOR_CALL({call})"]
        if len(wrapper) > 1 and not flags and not _names(call, texts, defines):
            raise _not_exported(source, call)
    wrapper += [f"__attribute__((used)) static auto *emulator_use_{n} = &{text};" for n, text in enumerate(instances)]
    runtime = toolchain.compile_cxx(RUNTIME, ["-c", "-O1", "-std=c++17", "-fPIC", f"-I{nvcc.include}"], "runtime.o")

    def build(out: Path) -> None:
        (out / f"{WRAPPER}.cu").write_text("\n".join(wrapper) + "\n")
        # The stand-in's symbols stay inside: a process may well have the real runtime loaded.
        (out / "hide").write_text("{ local: cuda*; __cuda*; };\n")
        compiler = [
            nvcc.path,
            "-ccbin",
            cxx,
            *options,
            "--keep",
            "--keep-dir",
            ".",
            "-c",
            f"{WRAPPER}.cu",
            "-o",
            "kernel.o",
        ]
        try:
            passes.compile_source(compiler, out)
        except UserError as error:
            said = _explained(error, source, call, nvcc)
            if is_extension and "does not export" not in str(said):
                said = type(said)(extension.explain(str(said), texts[0]))
            raise said from error
        script = "-Wl,--version-script=hide,-z,defs"
        try:
            objects = ["kernel.o", runtime, *link, "-lpthread", "-ldl", "-lm", "-lrt"]
            toolchain.run([cxx, "-shared", script, *objects, "-o", "kernel.so"], cwd=out)
        except UserError as error:
            raise _unlinked(error, source) from error
        (out / f"{WRAPPER}.ptx").rename(out / "kernel.ptx")
        for path in out.iterdir():
            if path.name not in ("kernel.so", "kernel.ptx"):
                path.unlink()

    environment = [os.environ.get(name, "") for name in ENVIRONMENT]
    texts += [path.read_text() for path in sorted(extension.HEADERS.rglob("*.h"))] if is_extension else []
    files = [Path(flag).read_bytes() for flag in flags if os.path.isfile(flag)]  # -include FILE, --options-file FILE
    key = [
        source,
        *texts,
        CALL.read_text(),
        *wrapper,
        nvcc.path,
        nvcc.release,
        runtime,
        *options,
        *link,
        *environment,
        *files,
    ]
    out = toolchain.cached("kernel", key, build, keep_failures=True)
    return Build(out / "kernel.so", _ptx(out), source, arch, nvcc, dict(defines or {}), is_extension)


@lru_cache(maxsize=8)  # megabytes each
def _ptx(product: Path) -> str:
    """The PTX of a product: one object for all its runs, which dictionaries find without another look at the text."""
    return (product / "kernel.ptx").read_text(errors="replace")


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


def _options(flags: Sequence[str], defines: Mapping[str, str] | None, arch: Arch, folders: Sequence[Path]) -> list[str]:
    """nvcc's options. What the user sets is not set again: nvcc takes -std and the like only once."""
    for flag in flags:
        if re.match(r"-arch|--gpu-|-gencode|--generate-code|-code\b", flag):
            raise UserError(
                f"{flag}: the compute capability is chosen by arch (--arch 9.0), not by the compiler's flags"
            )
        if re.match(r"-(c|o|ptx|cubin|fatbin|dc|dlink|rdc.*)$|--relocatable-device-code", flag):
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


def _names(function: str, texts: Sequence[str], defines: Mapping[str, str] | None) -> bool:
    """Whether a source could have a function of that name, however it is spelled: a word of its own, or one that macros
    put together."""
    pattern = rf"\b{function.rpartition('::')[2]}\b|##|#[ \t]*include[ \t]+\w"
    return any(re.search(pattern, text) for text in (*texts, *toolchain.define_flags(defines)))


def _not_exported(source: Path, call: str) -> UserError:
    return toolchain.ToolFailed(
        f'{source} does not export {call}: it must define extern "C" cudaError_t {call}(...), '
        "or any function of that name"
    )


def _explained(error: UserError, source: Path, call: str | None, nvcc: toolchain.Nvcc) -> UserError:
    """What nvcc said of the lines that call the launcher, said about the source."""
    said = str(error)
    if call is not None and re.search(rf'{WRAPPER}\.cu\(\d+\): error: (identifier|.*has no member) "', said):
        return _not_exported(source, call)
    if call is not None and re.search(rf"{WRAPPER}\.cu\(\d+\): error: .*(overload|template)", said):
        return toolchain.ToolFailed(f"{source} has several functions {call}: name the one to be called differently")
    if not re.search(r"\berror\b", said):  # nvcc's own trouble, not the source's
        return UserError(f"{nvcc.path} (CUDA {nvcc.release}) failed: {said}")
    return error


def _unlinked(error: UserError, source: Path) -> UserError:
    missing = sorted(set(re.findall(r"undefined reference to `([^']+)'", str(error))))
    cuda = [
        name for name in missing if re.match(r"_*(cuda|cu[A-Z]|cublas|cusparse|curand|cufft|cusolver|cudnn|nccl)", name)
    ]
    if cuda:
        return toolchain.ToolFailed(f"{source} calls {', '.join(cuda)}, which the emulator does not have")
    if missing:
        return toolchain.ToolFailed(
            f"{source} uses {', '.join(missing)}, which it does not define: a program is one file here; "
            "include the other .cu files into it, or name libraries of the host with -l in flags"
        )
    return error


# ---- inline PTX: what nvcc copies unseen, ptxas must accept ----------------------------------------------------------


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
    """UserError with the source's line if ptxas does not take a build's inline assembly: it is asked if a statement is
    one that it has not accepted before, in whatever kernel, with operands of the same types."""
    nvcc, text = build.nvcc, build.ptx
    accepted = False

    def refusal(out: Path, text: str) -> str:
        (out / "kernel.ptx").write_text(text)
        try:
            ptxas = nvcc.home / "bin" / "ptxas"
            toolchain.run([ptxas, "-O0", f"-arch=sm_{build.arch.nvcc}", "kernel.ptx", "-o", os.devnull], cwd=out)
        except UserError as error:
            return str(error)
        return ""

    def assemble(out: Path) -> None:
        nonlocal accepted
        if not accepted:
            # What ptxas refuses in a part it may take in the whole; if not, it gives the lines of the whole.
            if said := refusal(out, _few_kernels(text)) and refusal(out, text):
                raise toolchain.ToolFailed(_in_source(said, text))
            (out / "kernel.ptx").unlink()
        accepted = True
        (out / "accepted").touch()

    for statement in _assembly(text):
        toolchain.cached("ptxas", [statement, build.arch.nvcc, nvcc.path, nvcc.release], assemble)


def _assembly(ptx: str) -> list[str]:
    """The different statements of inline assembly, registers by their types. One that declares something stands for
    the whole text: what it declares must be declared once."""
    found = set()
    statements = [piece.partition("// end inline asm")[0] for piece in ptx.split("// begin inline asm\n")[1:]]
    every = "\0\n".join(statements)  # many, and few of them different: what makes them alike is done to all at once
    every = re.sub(r"//[^\n\0]*|^\s*\.loc\b[^\n\0]*", "", every, flags=re.MULTILINE)
    for statement in set(re.sub(r"(%[a-z]+)\d+", r"\1", every).split("\0")) if statements else ():
        declares = re.search(r"[$\w]\s*:(?!:)|(^|[\s;{}])\.(reg|shared|local|global|const|param|func)\b", statement)
        found.add(ptx if declares else statement.strip())
    return sorted(found)


def _few_kernels(ptx: str) -> str:
    """The PTX with no more of its kernels than it takes to have every statement of inline assembly, short ones first:
    a source that makes many instances of a template has most statements in all of them."""
    met: set[str] = set()
    left_out = []
    for begin, end in sorted(_kernels(ptx), key=lambda place: place[1] - place[0]):
        own = set(_assembly(ptx[begin:end]))
        if own <= met:
            left_out.append((begin, end))
        met |= own
    for begin, end in sorted(left_out, reverse=True):
        ptx = ptx[:begin] + ptx[end:]
    return ptx


def _kernels(ptx: str) -> Iterator[tuple[int, int]]:
    """Where each kernel begins and ends."""
    end = 0
    for head in re.finditer(r"^[ \t]*(?:\.(?:visible|weak)\s+)*\.entry\b", ptx, re.MULTILINE):
        if head.start() < end:
            continue
        depth = 0
        for mark in re.compile(r'[{}]|"(?:[^"\\\n]|\\.)*"|//[^\n]*').finditer(ptx, head.end()):
            depth += {"{": 1, "}": -1}.get(mark[0], 0)
            if mark[0] == "}" and depth == 0:
                end = mark.end()
                yield head.start(), end
                break


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
