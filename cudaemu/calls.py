"""The calls into the emulator: of a launcher, a kernel, a function of an extension, a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from cudaemu import engine, extension, terminal
from cudaemu.arguments import is_tensor, kernel_types, parameter_names, source_text
from cudaemu.build import Build, PtxCheck, compile_host, with_kernels
from cudaemu.compiler import toolchain
from cudaemu.compiler.symbols import readable
from cudaemu.errors import NotCompiled, UserError
from cudaemu.kernel import Configuration
from cudaemu.options import DEFAULTS, Options, check_text, check_words
from cudaemu.process import Ended, Host, ParameterType, runner
from cudaemu.report import Report
from cudaemu.session import MAX_BLOCK, MAX_GRID, Session, check_launch, dimension, loaded

DEFAULTS_OF_PTX = Options(arch="9.0")
FUNCTION_TIMEOUT = 60.0  # seconds; see Options.timeout


def run(
    source: Path | str,
    symbol: str,
    args: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    outputs: Sequence[str] = (),
    again: Sequence[Sequence[Any]] = (),
    repeat: Sequence[Any] | None = None,
    memory: Mapping[str, Any] | None = None,
    options: Options = DEFAULTS,
    **changes: Any,
) -> Report:
    """Call the launcher `symbol` of a source.

    `args` are the launcher's, in its order: contiguous CPU tensors and NumPy arrays, which are copied to guarded memory
    and back; numbers; bytes or ctypes structures for structures; None for a null pointer and for the stream. They are
    checked against the launcher's parameter types. `names`: their names in reports (default: the source's). Tensors
    named in `outputs` start uninitialised: a kernel that reads what it has not written is reported. `again`: arguments
    of further calls, one after the other in the same process, so that they meet what earlier calls have left in
    variables of the host and of the device; the first call that returns an error is the last. `repeat`: arguments as in
    the last call, of the same sizes; when that has returned, its launches run once more, without the host code, in the
    same memory with these contents: what the kernels themselves compute of them is in these arrays then. `memory` is as
    in `run_ptx`. `options` say how the source is compiled and run; fields of Options may be given as keywords, too:
    `arch="9.0"`.

    The launcher runs in a process of its own: whatever its host code does, there is a report. A stream that the
    launcher takes is not the default stream, so a launch on the default stream is a finding.

    UserError if the source does not compile, has no such launcher, does not take such arguments, or uses an instruction
    that the emulator does not know."""
    check_text("symbol", symbol, "the name of a launcher")
    options = options.replace(**changes)
    build = compiled(Path(source), options, call=symbol)
    return call_launcher(build, symbol, args, options, names, outputs, again, memory, repeat)


def prepare(source: Path | str, symbol: str, *, options: Options = DEFAULTS, **changes: Any) -> None:
    """Compile what `run` needs with these options, so that it starts at once. Errors are ignored here: `run` raises
    them."""
    with suppress(UserError):
        compiled(Path(source), options.replace(**changes), call=symbol)
        engine.library()
        runner()


_builds: ContextVar[dict[str, Build] | None] = ContextVar("_builds", default=None)


@contextmanager
def compiled_once() -> Iterator[None]:
    """Within it a source is what it is at its first run: its files, a thousand headers among them, are not looked at
    again, which takes as long as a small launch."""
    token = _builds.set({})
    try:
        yield
    finally:
        _builds.reset(token)


def compiled(source: Path, options: Options, call: str | None = None, instances: Sequence[str] = ()) -> Build:
    """The source, compiled with these options: see `compile_host`."""
    words = (source, options.macros, options.target, options.cuda, call, instances)
    key = repr((*words, options.flags, options.include, options.sources))
    builds = _builds.get()
    if builds is not None and key in builds:
        return builds[key]
    build = compile_host(
        source,
        options.macros,
        options.target,
        toolchain.find_nvcc(options.cuda),
        call=call,
        instances=instances,
        flags=options.flags,
        include=options.include,
        others=options.sources,
    )
    if builds is not None:
        builds[key] = build
    return build


@contextmanager
def session_of(ptx: str, options: Options, source: Path | str = "the source", tiles: bool = False) -> Iterator[Session]:
    """A session with that PTX, as the options say. `tiles`: see engine.Module."""
    with loaded(ptx, tiles) as module:
        yield Session(
            module,
            options.gpu,
            counters=options.counters,
            sanitize=options.sanitize,
            strict=options.strict,
            trace=options.trace,
            events=options.events,
            progress=options.progress,
            threads=options.threads,
            on_finding=options.on_finding,
            source=str(source),
            defines=options.macros,
            blocks=options.blocks,
            refused_launch=options.refused_launch,
        )


def call_launcher(
    build: Build,
    symbol: str,
    args: Sequence[Any],
    options: Options,
    names: Sequence[str] | None = None,
    outputs: Sequence[str] = (),
    again: Sequence[Sequence[Any]] = (),
    memory: Mapping[str, Any] | None = None,
    repeat: Sequence[Any] | None = None,
) -> Report:
    """`run` with a source that is compiled already."""
    for each in (args, *again, *([] if repeat is None else [repeat])):
        _check_names(names, each, outputs)
    with PtxCheck(build), session_of(build.ptx, options, build.source) as session:
        _share(session, memory)

        def pack(given: Sequence[Any], types: list[ParameterType]) -> bytes:
            called = names or parameter_names(source_text(build.source), symbol, len(types))
            return b"".join(session.pack(given, types, called, outputs, f"{build.source}: {symbol}"))

        packs: list[Callable[[list[ParameterType]], bytes]] = [partial(pack, each) for each in (args, *again)]
        if repeat is not None:

            def pack_last(
                types: list[ParameterType], last: Callable[[list[ParameterType]], bytes] = packs[-1]
            ) -> bytes:
                packed = last(types)
                session.record()
                return packed

            packs[-1] = pack_last
        timeout = options.timeout or FUNCTION_TIMEOUT
        ended = Host(build.so, options.gpu, session, packs, timeout=timeout, refused=options.on_refusal).run()
        session.download()
        report = session.report(*_outcome(ended))
        if repeat is not None and not report.status:
            session.repeat([*zip((args, *again)[-1], repeat)])
        return report


def call_extension(
    build: Build, function: str, args: Sequence[Any], options: Options, outputs: Sequence[str] = ()
) -> Report:
    """Call a function of a PyTorch extension; what it returns is in the report's `result`."""
    result: list[Any] = []
    torch = sys.modules.get("torch") if any("torch" in type(arg).__module__ for arg in args) else None
    with PtxCheck(build), session_of(build.ptx, options, build.source) as session:
        arena = session.arena

        def upload(name: str, array: Any) -> int:
            session.tensors[name] = arena.upload(name, array, initialised=name not in outputs)
            return session.tensors[name].base

        def pack(parameters: str | None) -> bytes:
            if parameters is None:
                raise UserError(f"{build.source} has no function {function} in its PYBIND11_MODULE")
            return extension.pack(args, parameters, function, upload)

        def fetch(address: int, size: int) -> bytes:
            place = arena.find(address)
            session.read_by_host(address, size)
            return arena.bytes_of(place, address - place.base, size).tobytes() if place else b""

        ended = Host(
            build.so,
            options.gpu,
            session,
            argv=(function,),
            timeout=options.timeout or FUNCTION_TIMEOUT,
            refused=options.on_refusal,
            extension=pack,
            returned=lambda data: result.append(extension.unpack(data, fetch, torch)),
        ).run()
        session.download()
        status, error, outcome = _outcome(ended)
        report = session.report(status, error, outcome or (f"{function} threw: {error}" if status else ""))
        report.result = result[0] if result else None
        return report


def _check_names(names: Sequence[str] | None, args: Sequence[Any], outputs: Sequence[str]) -> None:
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise UserError(f"args must be a list of arguments, got {args!r}")
    check_words("outputs", outputs, "a list of names of arguments")
    if names is not None:
        check_words("names", names, "a list of names, one for each argument")
    if names is not None and len(names) != len(args):
        raise UserError(f"names must have one name for each of the {len(args)} arguments, got {len(names)}")


def _outcome(ended: Ended) -> tuple[int, str, str]:
    """Status, error and outcome of a launcher's report, with CUDA's reason where one is known."""
    if ended.status is None:
        return 999, (why := "the host code did not return"), why
    reasons = [why for code, why in ended.refusals if code == ended.status]
    return ended.status, ": ".join([ended.error, *reasons[-1:]]) if ended.status else "", ""


def program(
    source: Path | str,
    argv: Sequence[str] = (),
    *,
    kernels: Path | str | None = None,
    own_terminal: bool = False,
    options: Options = DEFAULTS,
    **changes: Any,
) -> Report:
    """Run a whole CUDA program, a source with a `main`, with the arguments `argv`.

    `kernels`: another source, whose kernels are launched in place of those of the same names in `source`; its host code
    is compiled, but does not run.

    The report's `status` is the program's exit status, 128 + the signal's number if one ended it. `own_terminal`: the
    program reads and writes this process's streams. `options` and `changes` are as in `run`.

    UserError if the source does not compile, has no `main`, or uses an instruction that the emulator does not know."""
    check_words("argv", argv, "a list of the program's arguments, each a text or a path", str, os.PathLike)
    source, options = Path(source), options.replace(**changes)
    command = (str(source.with_suffix("")), *map(str, argv))
    if kernels is None:
        return run_program(compiled(source, options), command, options, own_terminal)
    theirs = compiled(Path(kernels), options)
    with PtxCheck(theirs):
        return run_program(with_kernels(compiled(source, options), theirs), command, options, own_terminal)


def run_program(
    build: Build, command: Sequence[str], options: Options, own_terminal: bool, into: list[Session] | None = None
) -> Report:
    """`program` with a source that is compiled already and all of main's argv; `into` gets the session, which has the
    launches so far even if this raises."""
    if not build.has_main:
        functions = ", ".join(build.exported) or "none with external linkage"
        raise NotCompiled(
            f"{build.source} must have a main() to be a program. Its functions ({functions}) and kernels can be "
            "called from Python: cudaemu.load"
        )
    with PtxCheck(build), session_of(build.ptx, options, build.source) as session:
        if into is not None:
            into.append(session)
        timeout, refused = options.timeout, options.on_refusal
        host = Host(build.so, options.gpu, session, (), command, own_terminal, timeout, refused=refused)
        ended = host.run()
        if options.leaks and not session.findings and not ended.crashed:
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
    shared: int = 0,
    names: Sequence[str] | None = None,
    outputs: Sequence[str] = (),
    memory: Mapping[str, Any] | None = None,
    options: Options = DEFAULTS_OF_PTX,
    **changes: Any,
) -> Report:
    """Launch one kernel of a PTX module, by its name there, with `shared` bytes of dynamic shared memory.

    `grid` and `block` are one to three sizes. `memory` is memory of this process that the kernel may touch where it
    is, nothing copied: names for reports, and for each a contiguous NumPy array, a CPU tensor, or (address, bytes). Its
    addresses, in `args` or within structures, are whole numbers. So a framework's runtime can pass its own buffers. The
    rest is as in `run`, except the options of compiling. UserError for a launch, or for a `.target` of the module, that
    no GPU of compute capability `arch` accepts."""
    check_text("ptx", ptx, "the text of a PTX module")
    check_text("kernel", kernel, "the name of a kernel")
    changed = options.replace(**changes)
    return launch_kernel(ptx, kernel, grid, block, args, changed, names, shared, outputs, memory)


def launch_kernel(
    ptx: str,
    kernel: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int,
    args: Sequence[Any],
    options: Options,
    names: Sequence[str] | None,
    shared: int,
    outputs: Sequence[str],
    memory: Mapping[str, Any] | None = None,
) -> Report:
    """`run_ptx` with settled options."""
    _check_names(names, args, outputs)
    grids, blocks = dimension(grid, "grid", MAX_GRID), dimension(block, "block", MAX_BLOCK)
    with session_of(ptx, options) as session:
        info = session.module.kernel(kernel)
        label = readable(kernel)
        if refused := check_launch(label, blocks, shared, info.static_shared, info.max_threads, options.gpu):
            raise UserError(refused)
        types = kernel_types(kernel, session.module.parameter_types(kernel))
        called = names or [f"argument {position + 1}" for position in range(len(types))]
        _share(session, memory)
        params = bytearray(info.param_bytes)
        packed = session.pack(args, types, called, outputs, label)
        for (_, size, _, offset), value in zip(info.params, packed):
            params[offset : offset + size] = value.ljust(size, b"\0")
        result = session.execute(Configuration(kernel, grids, blocks, shared, bytes(params)), printed=terminal.show)
        session.download()
        ending = f"the launch of {label} ended with CUDA error {result.code}" if result.code else ""
        return session.report(result.code, ending, ending)


def _share(session: Session, memory: Mapping[str, Any] | None) -> None:
    for name, place in (memory or {}).items():
        _check_memory(name, place)
        session.arena.share(name, place)


def _check_memory(name: str, place: object) -> None:
    pair = isinstance(place, tuple) and len(place) == 2 and all(isinstance(n, int) and n > 0 for n in place)
    if not pair and not is_tensor(place):
        raise UserError(f"memory[{name!r}] must be a NumPy array, a CPU tensor or (address, bytes), got {place!r}")


def executable_lines(
    source: Path | str,
    *,
    symbol: str | None = None,
    file: Path | None = None,
    options: Options = DEFAULTS,
    **changes: Any,
) -> dict[str, frozenset[int]]:
    """Each kernel of a source, by its readable name, and the lines of that file, or of another `file`, that have code
    in it; kernels of the same name, in several namespaces, count as one.

    `symbol`: the launcher that a run calls; naming it saves compiling the source once more."""
    source, options = Path(source), options.replace(**changes)
    found: dict[str, frozenset[int]] = {}
    path = str((file or source).resolve())
    with loaded(compiled(source, options, call=symbol).ptx) as module:
        for name in module.module.kernel_names:
            lines = frozenset(line for where, line in module.module.lines(name) if where == path)
            found[readable(name)] = lines | found.get(readable(name), frozenset())
    return found
