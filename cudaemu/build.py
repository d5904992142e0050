"""A CUDA source compiled for the emulator: its host code against the stand-in runtime, its device code as PTX."""

from __future__ import annotations

import linecache
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from cudaemu import cpp, extension, features, link, missing
from cudaemu.compiler import cache, toolchain
from cudaemu.compiler.symbols import demangle, readable
from cudaemu.errors import BadOption, NotCompiled, ToolFailed, UserError
from cudaemu.hardware import Arch
from cudaemu.process import HERE

RUNTIME, CALL = HERE / "runtime.cpp", HERE / "call.h"
HEADERS = HERE / "libraries"  # of the libraries that there are stand-ins for, where the toolkit's own are not installed
STAND_INS = {"cublas": "cublas_v2.h", "curand": "curand.h"}  # by the beginning of the names of its functions: a header
WRAPPER = "emulator_source"  # the translation unit that includes the source; those of further sources have a number
COMPILED, LINKED = (".cu", ".cpp", ".cc", ".cxx", ".c"), (".o", ".a", ".so")  # files that a program may consist of
# Libraries that the stand-ins are in place of; -lineinfo is none.
_HERE = re.compile(r"-l(cuda|cudart|cublas|cublasLt|curand)(_static)?|-lineinfo")
_RELOCATABLE = re.compile(r"-dc|-?-rdc=true|--relocatable-device-code=true|--device-c")


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
    parts: Sequence[str] = ()  # the PTX of each file, if there are several
    relocatable: bool = False  # whether they refer to each other

    @property
    def exported(self) -> list[str]:
        """The functions of the host code that C could call, including main."""
        said = toolchain.run(["nm", "-D", "--defined-only", self.so])
        names = re.findall(r"^\w+ T (\w+)$", said, re.MULTILINE)
        return [name for name in names if not name.startswith(("_", "emulator_"))]

    @property
    def exports_launcher(self) -> bool:
        return "emulator_call_launcher" in toolchain.run(["nm", "-D", "--defined-only", self.so])

    @property
    def has_main(self) -> bool:
        return "main" in self.exported


def with_kernels(host: Build, other: Build) -> Build:
    """The host code of one source with the kernels of another, which it launches by the names that its own have.

    A namespace, or another type of a parameter that has as many bytes, makes no difference. ToolFailed if one is
    missing."""
    there, ptx = _entries(other.ptx), other.ptx
    for name, sizes in _entries(host.ptx).items():
        if there.get(name) == sizes:
            continue
        alike = [each for each in there if readable(each) == readable(name) and there[each] == sizes]
        if len(alike) != 1:
            kernels = ", ".join(map(demangle, there)) or "none"
            raise ToolFailed(f"{other.source} must have the kernel {demangle(name)}, got {kernels}")
        ptx = re.sub(rf"(?<![\w$]){re.escape(alike[0])}(?![\w$])", name.replace("\\", ""), ptx)
    return replace(host, ptx=ptx, parts=())


def _entries(ptx: str) -> dict[str, list[int]]:
    """The kernels that a PTX defines, each with the sizes of its parameters in bytes."""
    found = {}
    for name, params in re.findall(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?", ptx):
        each = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)[^,\[]*(?:\[(\d+)\])?", params)
        found[name] = [int(bits) // 8 * int(count or 1) for bits, count in each]
    return found


def runtime_object(nvcc: toolchain.Nvcc) -> Path:
    """The stand-in CUDA runtime, compiled if this is the first time."""
    includes = [f"-I{folder}" for folder in (*nvcc.older, nvcc.include)]
    return toolchain.compile_cxx(RUNTIME, ["-c", "-O1", "-std=c++17", "-fPIC", *includes], "runtime.o")


def stand_in(nvcc: toolchain.Nvcc, library: str) -> Path:
    """The stand-in for one of CUDA's libraries, compiled if this is the first time: of "cublas", host/cublas.cpp."""
    includes = [f"-I{folder}" for folder in (HEADERS / library, *nvcc.older, nvcc.include)]
    flags = ["-c", "-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden", *includes]
    return toolchain.compile_cxx(HERE / f"{library}.cpp", flags, f"{library}.o")


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
    others: Sequence[Path | str] = (),
) -> Build:
    """Compile a source for the emulator: its host code, linked to the stand-in runtime, and its PTX for the
    compute capability `arch`.

    `others` are further files of the program: sources of CUDA, C++ and C, objects and libraries. `call` is the function
    that shall be called from outside, `instances` are kernels of templates to be compiled though nothing in the source
    launches them ("scale<float>"); `flags` and `include` folders go to nvcc.
    UserError with the compiler's own message if it does not compile."""
    nvcc, cxx, source = nvcc or toolchain.find_nvcc(), toolchain.find_cxx(), source.resolve()
    arch = Arch.of(arch)
    if '"' in str(source) or "\n" in str(source):
        raise UserError(f"{source}: a path with quotes or line breaks cannot be included")
    folders = _folders(include)
    texts = toolchain.source_texts(source, folders=folders)
    linecache.checkcache()  # reports quote what is compiled now, not what the file was in an earlier run
    more = _files(others)
    every = texts + [
        text for file in more if file.suffix in COMPILED for text in toolchain.source_texts(file, None, folders)
    ]
    is_extension = extension.is_extension(every)
    if is_extension:
        folders.append(extension.HEADERS)
        flags = [*extension.FLAGS, *(flag for flag in flags if flag not in extension.FLAGS)]
    relocatable = any(map(_RELOCATABLE.fullmatch, flags))
    options = _options(flags, defines, arch, [*folders, *nvcc.older])
    for library, header in STAND_INS.items():
        if not any((folder / header).is_file() for folder in (*nvcc.older, nvcc.include)):
            options += ["-I", str(HEADERS / library)]
    libraries = [flag for flag in flags if flag.startswith(("-l", "-L")) and not _HERE.fullmatch(flag)]
    libraries += ["-fopenmp"] if any("-fopenmp" in flag for flag in flags) else []
    wrapper = [f'#include "{source}"']
    if call is not None:
        if not re.fullmatch(r"[A-Za-z_]\w*(::\w+)*", call):
            raise UserError(f"the function must be named by an identifier, got '{call}'")
        if is_extension and not re.search(rf'extern\s*"C"[^;{{]*\b{call}\s*\(', texts[0]):
            wrapper += [] if extension.has_module(every) else [f"EMULATOR_FUNCTION({call})"]
        else:
            wrapper += [f'#include "{CALL}"', f"EMULATOR_CALL({call})"]
    wrapper += [f"__attribute__((used)) static auto *emulator_use_{n} = &{text};" for n, text in enumerate(instances)]
    runtime = runtime_object(nvcc)

    def compile_more(out: Path, number: int, file: Path) -> None:
        """One of the other sources."""
        kept = ["--keep", "--keep-dir", ".", "-MD", "-MF", f"read{number}.d"]
        unit = file
        if file.suffix == ".cu":
            unit = out / f"{WRAPPER}{number}.cu"
            unit.write_text(f'#include "{file}"\n')
        words = [word for word in options if file.suffix != ".c" or not re.match(r"--?std\b", word)]
        toolchain.run([nvcc.path, "-ccbin", cxx, *words, *kept, "-c", unit, "-o", f"{number}.o"], cwd=out)

    def build(out: Path) -> None:
        (out / f"{WRAPPER}.cu").write_text("\n".join(wrapper) + "\n", encoding="utf-8", errors="surrogateescape")
        # The stand-in's symbols stay inside: a process may well have the real runtime loaded.
        (out / "hide").write_text("{ local: cuda*; __cuda*; cu[A-Z]*; };\n", encoding="ascii")
        kept = ["--keep", "--keep-dir", ".", "-MD", "-MF", "read.d"]
        compiled = [(number, file) for number, file in enumerate(more, 1) if file.suffix in COMPILED]
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [pool.submit(compile_more, out, *each) for each in compiled]
                toolchain.run(
                    [nvcc.path, "-ccbin", cxx, *options, *kept, "-c", f"{WRAPPER}.cu", "-o", "kernel.o"], cwd=out
                )
                for job in jobs:
                    job.result()
        except UserError as error:
            # Without the list of what a unit reads nothing would tell that its failure is mended.
            lists = [out / "read.d", *(out / f"read{number}.d" for number, _ in compiled)]
            if not all(each.exists() for each in lists):
                for each in out.glob("*.d"):
                    each.unlink()
            said = _explained(_of_ptxas(error, out), source, call, nvcc)
            if is_extension and "does not export" not in str(said):
                said = type(said)(extension.explain(str(said), texts[0]))
            raise type(said)(_cut(str(said))) from error
        script = "-Wl,--version-script=hide,-z,defs"
        try:
            objects = ["kernel.o", *(f"{number}.o" for number, _ in compiled), *given]
            if relocatable:
                objects.append(_registration(objects, cxx, out))
            system = [runtime, *_stand_ins(objects, nvcc, out), *libraries, "-lpthread", "-ldl", "-lm", "-lrt"]
            # Libraries may change, those of g++ do not.
            depfile = ["-Wl,--dependency-file=link.d"] if libraries or given else []
            toolchain.run([cxx, "-shared", script, *depfile, *objects, *system, "-o", "kernel.so"], cwd=out)
        except UserError as error:
            raise _unlinked(error, source, libraries) from error
        units = [WRAPPER, *(f"{WRAPPER}{number}" for number, file in compiled if file.suffix == ".cu")]
        parts = [(out / f"{unit}.ptx").read_text(errors="replace") for unit in units]
        called = [source.name, *(file.name for _, file in compiled if file.suffix == ".cu")]
        (out / "kernel.ptx").write_text(link.link(parts, called, relocatable))
        for number, part in enumerate(parts if len(parts) > 1 else ()):
            (out / f"part{number}.ptx").write_text(part)
        for path in out.iterdir():
            if not re.fullmatch(r"kernel\.(so|ptx)|part\d+\.ptx|.*\.d", path.name):
                path.unlink()

    given = [file for file in more if file.suffix in LINKED]
    key = [source, *more, *wrapper, *toolchain.identity(cxx, nvcc), runtime, *options, *libraries]
    key += toolchain.option_files(flags)
    if more or relocatable:
        key += [_REGISTER, LINKER.read_text()]
    named = [f"lib{flag[2:]}.{kind}" for flag in libraries if flag.startswith("-l") for kind in ("so", "a")]
    out = cache.get("kernel", key, build, toolchain.search_folders(flags) + folders, named)
    parts = [path.read_text(errors="replace") for path in sorted(out.glob("part*.ptx"))]
    made = out / "kernel.so", _ptx(out), source, arch, nvcc, dict(defines or {}), is_extension
    return Build(*made, parts, relocatable)


@lru_cache(maxsize=8)  # megabytes each
def _ptx(product: Path) -> str:
    """The PTX of a product: one object for all its runs, so that dictionaries find it without comparing the text."""
    return (product / "kernel.ptx").read_text(encoding="utf-8", errors="replace")


def _files(others: Sequence[Path | str]) -> list[Path]:
    """The other files of a program. UserError for one that is not there, or of no kind that can be linked."""
    files = [Path(file).expanduser().resolve() for file in others]
    for file in files:
        if not file.is_file():
            raise BadOption(f"cannot read {file}: " + ("it is a folder" if file.is_dir() else "there is no such file"))
        if file.suffix not in (*COMPILED, *LINKED):
            raise BadOption(f"{file}: a program's files must end in {', '.join((*COMPILED, *LINKED))}")
    return files


def _stand_ins(objects: Sequence[object], nvcc: toolchain.Nvcc, out: Path) -> list[Path]:
    """The stand-ins for the libraries whose functions are called. What they were made of counts as read."""
    said = toolchain.run(["nm", "-u", *(each for each in objects if not str(each).endswith(".so"))], cwd=out)
    made = []
    for library in STAND_INS:
        if re.search(rf"\bU {library}\w", said):
            made.append(stand_in(nvcc, library))
            names = [HERE / f"{library}.cpp", *HERE.glob("*.h"), *HEADERS.glob("*/*.h")]
            words = " ".join(str(name).replace(" ", "\\ ") for name in names)
            (out / f"{library}.d").write_text(f"kernel.so: {words}\n", encoding="utf-8", errors="surrogateescape")
    return made


_REGISTER = "void {}(void (*callback)(void **), void *, void *, void *) {{ callback(emulator_linked()); }}\n"
LINKER = Path(link.__file__)


def _registration(objects: Sequence[object], cxx: str, out: Path) -> str:
    """An object with what nvcc's linker would make for relocatable device code: for each file, the function by which it
    registers its kernels and variables."""
    said = toolchain.run(["nm", "-u", *objects], cwd=out)
    names = sorted(set(re.findall(r"\b__cudaRegisterLinkedBinary\w+", said)))
    code = 'extern "C" {\nvoid **emulator_linked();\n' + "".join(map(_REGISTER.format, names)) + "}\n"
    (out / "registration.cpp").write_text(code)
    toolchain.run([cxx, "-c", "-fPIC", "registration.cpp", "-o", "registration.o"], cwd=out)
    return "registration.o"


def _folders(include: Sequence[Path | str]) -> list[Path]:
    """The folders of headers; those that are not there are left out, as compilers do."""
    folders = [folder for each in include if (folder := Path(each).expanduser().resolve()).is_dir()]
    for folder in folders:
        if "," in str(folder):
            raise BadOption(
                f"an include folder must have no comma in its name, as nvcc splits its arguments there, got {folder}"
            )
    return folders


# nvcc's options that choose its input or output, or only ask for information.
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
            raise BadOption(
                f"{flag}: the compute capability must be set by arch (--arch 9.0), not by the compiler's flags"
            )
        if re.match(_OUTPUTS, flag) and not _RELOCATABLE.fullmatch(flag):
            raise BadOption(f"{flag}: the emulator itself chooses what nvcc makes of a file")
    standard = [] if any(re.match(r"--?std\b", flag) for flag in flags) else ["-std=c++17"]
    # Of the host's code alone: with -O3 its compiler takes half as long again, for code that launches kernels.
    level = [] if any(re.match(r"-O\d|--optimize", flag) for flag in flags) else ["-O1"]
    lines = (
        []
        if any(re.match(r"-lineinfo|--generate-line-info|-G$|--device-debug", flag) for flag in flags)
        else ["-lineinfo"]
    )
    own = [flag for flag in flags if not flag.startswith(("-l", "-L")) or flag.startswith("-lineinfo")]
    own = ["-rdc=true" if _RELOCATABLE.fullmatch(flag) else flag for flag in own]
    includes = [word for folder in folders for word in ("-I", str(folder))]
    target = [
        "-D__EMULATOR__=1",
        "-gencode",
        f"arch=compute_{arch.nvcc},code=compute_{arch.nvcc}",
        "-Xcompiler",
        "-fPIC,-g1",
        "--cudart=none",
    ]
    # Last, so that headers of the user's own win.
    samples = ["-isystem", str(toolchain.SAMPLES)]
    return [*level, *lines, *standard, *target, *toolchain.define_flags(defines), *includes, *own, *samples]


LONGEST = 400  # characters of a line of an error: those of macros are the whole expanded function


def _cut(said: str) -> str:
    """Messages of compilers without the ends of very long lines, and the marks below these."""
    lines = [line for line in said.splitlines() if len(line) <= LONGEST or line.strip() != "^"]
    return "\n".join(line if len(line) <= LONGEST else f"{line[:LONGEST]} ..." for line in lines)


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
            return ToolFailed(f"{call} of {source} must be a function, got a template: name the instance to call")
        return ToolFailed(f"{source} must have one function {call}, got several: rename the one to call")
    if "separate compilation mode" in said:
        return ToolFailed(f"{said}\n{link.no_dynamic_parallelism(source.name)}")
    if not re.search(r"\berror\b", said):  # nvcc's own trouble, not the source's
        return UserError(f"{nvcc.path} (CUDA {nvcc.release}) failed: {said}")
    hints = missing.explained(said, nvcc.cuda or nvcc.release)
    return type(error)("\n".join([said, *hints])) if hints else error


def _unlinked(error: UserError, source: Path, libraries: Sequence[str]) -> UserError:
    places: dict[str, str] = {}
    for file, line, name in re.findall(r"(?:(\S+):(\d+)|\S*): undefined reference to `([^']+)'", str(error)):
        places.setdefault(name, f"{name} ({Path(file).name}:{line})" if line else name)
    absent = sorted(places)
    known = missing.library(absent)
    cuda = [name for name in absent if re.match(r"_*(cuda|cu[A-Z])", name)]
    if known:
        said = f"{source} calls {', '.join(places[name] for name in absent)}.\n{known}"
    elif cuda:
        instead = "leave the call out (#ifndef __EMULATOR__), or run the program on a GPU"
        said = f"{source} calls {', '.join(places[name] for name in cuda)}, which the emulator does not have: {instead}"
    elif absent:
        said = (
            f"{source} uses {', '.join(places[name] for name in absent)}, which it does not define: name the "
            "program's other files as well, as in cudaemu a.cu b.cu c.cpp, and libraries of the host with -l in flags"
        )
    elif "relocation truncated" in str(error):
        said = f"{source}: its __device__ variables must take less than 2 GB together; larger ones need cudaMalloc"
    else:
        return error
    return NotCompiled(said) if libraries else ToolFailed(said)  # another version of a library may have it


# ---- inline PTX: nvcc copies it unchecked, so ptxas must accept it ---------------------------------------------------


CHECK_SECONDS, CHECK_BYTES = 300, 8 << 30  # what ptxas may take for it: a thousandth is usual
SECONDS_FOR_WORDS = 2  # that it may go on when the emulator has refused the code: it may say better why

_accepted: set[Path] = set()  # builds that this process has checked before


class PtxCheck:
    """ptxas' check of a source's inline assembly, in the background: nvcc does not check it.

    `with PtxCheck(build):` around a run: at its end, also one that the emulator could not make sense of, UserError with
    the source's line if ptxas refuses the code."""

    def __init__(self, build: Build):
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._end: Callable[[], None] | None = None  # ends ptxas
        self._in_vain = False  # nobody waits for its answer any more
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
            self._thread.join(None if error is None else SECONDS_FOR_WORDS)
            if self._thread.is_alive():
                self._in_vain = True
                if self._end is not None:
                    self._end()
                return
        if self._error is not None:
            raise self._error from None

    def _check(self) -> None:
        try:
            check_ptx(self._build, self._started)
            _accepted.add(self._build.so)
        except BaseException as error:
            self._error = error

    def _started(self, end: Callable[[], None]) -> None:
        self._end = end
        if self._in_vain:
            end()


def check_ptx(build: Build, started: Callable[[Callable[[], None]], None] | None = None) -> None:
    """UserError with the source's line if ptxas refuses a build's PTX; accepted builds are not checked again."""
    ptxas = toolchain.find_tool("ptxas", build.nvcc)
    separately = ["-c"] if build.relocatable else []
    for text in build.parts or [build.ptx]:

        def assemble(out: Path, text: str = text) -> None:
            (out / "kernel.ptx").write_text(text, encoding="utf-8")
            words = [ptxas, *separately, "-O0", f"-arch=sm_{build.arch.nvcc}", "kernel.ptx", "-o", os.devnull]
            try:
                toolchain.run(words, cwd=out, seconds=CHECK_SECONDS, memory=CHECK_BYTES, started=started)
            except ToolFailed as error:
                raise ToolFailed(_in_source(str(error), text)) from error
            (out / "kernel.ptx").unlink()

        cache.get("ptxas", [text, build.arch.nvcc, ptxas, build.nvcc.version, *separately], assemble)


def _own_assembly(ptx: str, nvcc: toolchain.Nvcc) -> bool:
    """Whether there is inline assembly that does not come from the toolkit's own headers."""
    toolkit = {number for number, path in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', ptx, re.MULTILINE)
               if path.startswith(tuple(map(str, (nvcc.home, nvcc.include, *nvcc.older))))}  # fmt: skip
    for piece in ptx.split("// begin inline asm")[:-1]:
        at = piece.rfind("\t.loc\t")
        if at < 0 or piece[at:].split(None, 2)[1] not in toolkit:
            return True
    return False


def _of_ptxas(error: UserError, out: Path) -> UserError:
    """What nvcc passed on from ptxas, which it may run itself, with the source's lines."""
    named = re.search(r"ptxas \./(\w+\.ptx), line", str(error))
    ptx = out / named[1] if named else None
    return ToolFailed(_in_source(str(error), toolchain.read(ptx))) if ptx and ptx.exists() else error


def _in_source(said: str, ptx: str) -> str:
    """ptxas's messages with the source's lines in place of the PTX's, one where an inlined function has it several
    times, and which targets have what it does not find."""
    lines = ptx.splitlines()
    ends = list(accumulate(len(line) for line in ptx.splitlines(keepends=True)))
    out: dict[str, str] = {}
    hints = []
    for message in re.findall(r"ptxas .*|.*: error.*|.*: fatal.*", said) or [said]:
        at = re.search(r"line (\d+);\s*(.*)", message)
        if at is None:
            continue
        number = min(int(at[1]), len(lines))
        where = features.source_line(ptx, ends[number - 1] - 1)
        refused = f"{where}: ptxas refuses the inline assembly: {at[2]}"
        out.setdefault(refused, f"{refused}\n    PTX | {lines[number - 1].strip()}")
        if re.search(r"not supported on|requires \.target", at[2]) and (feature := features.of(lines[number - 1])):
            hints.append(feature.needs)
    return "\n".join([*out.values(), *dict.fromkeys(hints)]) or said
