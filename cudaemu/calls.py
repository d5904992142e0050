"""The ways into the emulator that call something: a launcher, a kernel, a function of an extension, a program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cudaemu import engine, extension, hardware
from cudaemu.arguments import kernel_types, parameter_names, source_text
from cudaemu.build import Build, PtxCheck, compile_host
from cudaemu.compiler.symbols import readable
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from cudaemu.process import Ended, Host, HostFinding, ParameterType, runner
from cudaemu.report import Finding, Report, Trace
from cudaemu.session import MAX_BLOCK, MAX_GRID, Progress, Session, check_launch, dimension, loaded


def run(
    source: Path,
    symbol: str,
    args: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    defines: Mapping[str, str] | None = None,
    arch: str | Arch = "8.0",
    compiled_for: str | Arch | None = None,
    multiprocessors: int | None = None,
    outputs: Sequence[str] = (),
    counters: bool = True,
    sanitize: bool = True,
    trace: Trace | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    flags: Sequence[str] = (),
    include: Sequence[Path | str] = (),
    patience: float | None = 60,
) -> Report:
    """Call the launcher `symbol` of a source in the emulator.

    `args` are the launcher's, in its order: contiguous CPU tensors and NumPy arrays, which are copied to guarded memory
    and back; numbers; bytes or ctypes structures for structures; None for a null pointer and for the stream. They are
    checked against the launcher's own parameter types. `names`: what reports call them (default: the source's names).
    `defines` are macros for the compiler, `flags` and `include` folders go to it as they are, `arch` is the compute
    capability whose limits hold, `compiled_for` the one to compile for (default: the same), of which newer GPUs run the
    code, too; `multiprocessors` is how many the GPU has (default: as many as the largest of `arch`). Tensors named in
    `outputs` start uninitialised: a kernel that reads what it has not written is reported. `trace` asks for the
    executed memory accesses, `threads` limits the cores.

    The launcher runs in a process of its own: whatever its host code does, it ends in a report. `patience` is how many
    seconds it may go on without calling CUDA. A stream that the launcher takes is not the default stream; a launch on
    the default stream then is a finding.

    UserError if the source does not compile, has no such launcher, does not take such arguments, or uses an instruction
    that the emulator does not know."""
    source, gpu = Path(source), hardware.model(arch)
    if multiprocessors is not None:
        if multiprocessors < 1:
            raise UserError(f"a GPU has at least 1 multiprocessor, not {multiprocessors}")
        gpu = replace(gpu, sms=multiprocessors)
    target = Arch.of(compiled_for or arch)
    if not target.runs_on(gpu.arch):
        raise UserError(f"code for compute capability {target} does not run on a GPU of {gpu.arch}")
    build = compile_host(source, defines, target, call=symbol, flags=flags, include=include)
    options = {"counters": counters, "sanitize": sanitize, "trace": trace, "progress": progress, "threads": threads}
    return call_launcher(build, symbol, args, gpu, names, outputs, patience, options)


def prepare(source: Path, symbol: str, *, defines: Mapping[str, str] | None = None, arch: str | Arch = "8.0") -> None:
    """Compile what `run` needs for that source, so that it finds it ready; what is wrong with it, `run` will say."""
    with suppress(UserError):
        compile_host(Path(source), defines, arch, call=symbol)
        engine.library()
        runner()


def call_launcher(
    build: Build,
    symbol: str,
    args: Sequence[Any],
    gpu: hardware.Gpu,
    names: Sequence[str] | None,
    outputs: Sequence[str],
    patience: float | None,
    options: Mapping[str, Any],
) -> Report:
    """`run` with a source that is compiled already; `options` are the session's."""
    if names is not None and len(names) != len(args):
        raise ValueError(f"{len(args)} arguments with {len(names)} names")
    with PtxCheck(build), loaded(build.ptx) as module:
        session = Session(module, gpu, source=str(build.source), defines=build.defines, **options)

        def pack(types: list[ParameterType]) -> bytes:
            called = names or parameter_names(source_text(build.source), symbol, len(types))
            return b"".join(session.pack(args, types, called, outputs, f"{build.source}: {symbol}"))

        ended = Host(build.so, gpu, session, pack, patience=patience).run()
        session.arena.download()
        return session.report(*_outcome(ended))


def call_extension(
    build: Build,
    function: str,
    args: Sequence[Any],
    gpu: hardware.Gpu,
    outputs: Sequence[str],
    patience: float | None,
    options: Mapping[str, Any],
) -> Report:
    """Call a function of a PyTorch extension; what it returns is in the report's `result`."""
    result: list[Any] = []
    torch = sys.modules.get("torch") if any("torch" in type(arg).__module__ for arg in args) else None
    with PtxCheck(build), loaded(build.ptx) as module:
        session = Session(module, gpu, source=str(build.source), defines=build.defines, **options)
        arena = session.arena

        def upload(name: str, array: Any) -> int:
            session.tensors[name] = arena.upload(name, array, initialised=name not in outputs)
            return session.tensors[name].base

        def pack(parameters: str | None) -> bytes:
            if parameters is None:
                raise UserError(f"{build.source} has no function {function} that its PYBIND11_MODULE names")
            return extension.pack(args, parameters, function, upload)

        def fetch(address: int, size: int) -> bytes:
            place = arena.find(address)
            return place.data[address - place.base :][:size].tobytes() if place else b""

        ended = Host(
            build.so,
            gpu,
            session,
            argv=(function,),
            patience=patience,
            extension=pack,
            returned=lambda data: result.append(extension.unpack(data, fetch, torch)),
        ).run()
        arena.download()
        status, error, outcome = _outcome(ended)
        report = session.report(status, error, outcome or (f"{function} threw: {error}" if status else ""))
        report.result = result[0] if result else None
        return report


def _outcome(ended: Ended) -> tuple[int, str, str]:
    """Status, error and outcome of a launcher's report, with CUDA's reason where one is known."""
    if ended.status is None:
        return 999, (why := "the host code did not return"), why
    reasons = [why for code, why in ended.refusals if code == ended.status]
    return ended.status, ": ".join([ended.error, *reasons[-1:]]) if ended.status else "", ""


def program(
    source: Path,
    argv: Sequence[str] = (),
    *,
    defines: Mapping[str, str] | None = None,
    arch: str | Arch = "8.0",
    counters: bool = True,
    sanitize: bool = True,
    trace: Trace | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    flags: Sequence[str] = (),
    include: Sequence[Path | str] = (),
    patience: float | None = None,
    leaks: bool = False,
    own_terminal: bool = False,
    on_finding: Callable[[Finding | HostFinding], None] | None = None,
    on_refusal: Callable[[int, str], None] | None = None,
    into: list[Session] | None = None,
) -> Report:
    """Run a whole CUDA program, a source with a `main`, with the arguments `argv`; the rest is as in `run`.

    The report's `status` is the program's exit status, 128 + the signal's number if one ended it. `leaks`: memory that
    is never freed is a finding too, if the program has come to its end and nothing else was found. `own_terminal`: the
    program reads and writes this process's streams. `on_finding` and `on_refusal` (a cudaError_t and its reason) hear
    of each at once; `into` gets the session, which has what there is even if this raises."""
    source, gpu = Path(source), hardware.model(arch)
    build = compile_host(source, defines, arch, flags=flags, include=include)
    if not build.has_main:
        functions = ", ".join(build.exported) or "none that could be called from outside"
        raise UserError(
            f"{source} has no main: a program has one. Its functions ({functions}) and kernels can be called "
            "from Python: see docs/emulator.md, emulator.load"
        )
    with PtxCheck(build), loaded(build.ptx) as module:
        session = Session(
            module,
            gpu,
            counters=counters,
            sanitize=sanitize,
            trace=trace,
            progress=progress,
            threads=threads,
            on_finding=on_finding,
            source=str(source),
            defines=defines,
        )
        if into is not None:
            into.append(session)
        name = str(source.with_suffix(""))
        host = Host(build.so, gpu, session, None, (name, *argv), own_terminal, patience, refused=on_refusal)
        ended = host.run()
        if leaks and not session.findings and not ended.crashed:
            host.find_leaks()
        code = 128 - ended.code if ended.code < 0 else ended.code
        ending = f"the program ended with status {code}" if code else ""
        return session.report(code, ending, ending)


def run_ptx(
    ptx: str,
    kernel: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int,
    args: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    shared: int = 0,
    arch: str | Arch = "9.0",
    outputs: Sequence[str] = (),
    counters: bool = True,
    sanitize: bool = True,
    trace: Trace | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Report:
    """Launch one kernel of a PTX module, with `shared` bytes of dynamic shared memory; the rest is as in `run`.

    UserError for a launch that no GPU of compute capability `arch` would take."""
    options = {"counters": counters, "sanitize": sanitize, "trace": trace, "progress": progress, "threads": threads}
    return launch_kernel(ptx, kernel, grid, block, args, hardware.model(arch), names, shared, outputs, options)


def launch_kernel(
    ptx: str,
    kernel: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int,
    args: Sequence[Any],
    gpu: hardware.Gpu,
    names: Sequence[str] | None,
    shared: int,
    outputs: Sequence[str],
    options: Mapping[str, Any],
) -> Report:
    """One launch of a kernel by its name in the PTX, without host code."""
    if names is not None and len(names) != len(args):
        raise ValueError(f"{len(args)} arguments with {len(names)} names")
    grids, blocks = dimension(grid, "grid", MAX_GRID), dimension(block, "block", MAX_BLOCK)
    with loaded(ptx) as module:
        session = Session(module, gpu, **options)
        info = module.module.kernel(kernel)
        label = readable(kernel)
        if refused := check_launch(label, blocks, shared, info.static_shared, info.max_threads, gpu):
            raise UserError(refused)
        types = kernel_types(kernel, module.module.parameter_types(kernel))
        called = names or [f"argument {position + 1}" for position in range(len(types))]
        params = bytearray(info.param_bytes)
        packed = session.pack(args, types, called, outputs, label)
        for (_, size, _, offset), value in zip(info.params, packed):
            params[offset : offset + size] = value.ljust(size, b"\0")
        result = session.execute(kernel, grids, blocks, shared, bytes(params))
        print(result.output, end="")
        session.arena.download()
        ending = f"the launch of {label} ended with CUDA error {result.code}" if result.code else ""
        return session.report(result.code, ending, ending)


def executable_lines(
    source: Path,
    defines: Mapping[str, str] | None = None,
    arch: str | Arch = "8.0",
    symbol: str | None = None,
    file: Path | None = None,
) -> dict[str, frozenset[int]]:
    """Each kernel of a source, by its readable name, and the lines of that file, or of another `file`, that have code
    in it; kernels of the same name, in several namespaces, count as one.

    `symbol`: the launcher that a run calls; naming it saves compiling the source once more."""
    found: dict[str, frozenset[int]] = {}
    path = str((file or source).resolve())
    with loaded(compile_host(source, defines, arch, call=symbol).ptx) as module:
        for name in module.module.kernel_names:
            lines = frozenset(line for where, line in module.module.lines(name) if where == path)
            found[readable(name)] = lines | found.get(readable(name), frozenset())
    return found
