"""One run in the emulator: a device's memory and module, and the results of its launches for the report."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cudaemu import engine, features, terminal, timeline
from cudaemu.arguments import check_array, is_tensor, pack
from cudaemu.compiler.symbols import OF_FILE, qualified, readable
from cudaemu.errors import UserError
from cudaemu.hardware import Arch, Gpu, check_target, occupancy
from cudaemu.kernel import Configuration, Dim, KernelInfo, Region
from cudaemu.memory import Allocation, Arena, raw_bytes
from cudaemu.options import Progress
from cudaemu.process import Device, HostFinding, KernelDescription, ParameterType, Served, library_of
from cudaemu.report import Counters, Finding, Launch, Report, Sums, Trace, add_up, explain, shared_names
from cudaemu.timeline import Events
from cudaemu.trace import TRACE

STATIC_SHARED_LIMIT = 48 << 10  # bytes; ptxas refuses more on every GPU
REFUSED = (701, False, False)  # cudaErrorLaunchOutOfResources
MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)


class _Loaded:
    """A module with its variables in device memory. One run at a time has it."""

    def __init__(self, ptx: str, tiles: bool = False):
        tell_of_lacking(ptx)
        self.arena = Arena()

        def place(name: str, *size: int) -> int:
            return self.arena.place(readable(name), *size)

        self.module = engine.Module(ptx, place, self.arena.zero, tiles)
        if heap := self.module.heap:  # of the machine's own, for malloc in kernels
            self.arena.allocations.append(Allocation(heap.name, heap.base, heap.size, variable=True))

    def close(self) -> None:
        del self.module  # its variables go with the arena
        self.arena.close()


def tell_of_lacking(ptx: str) -> None:
    """Say on stderr what of a module is not emulated. UserError for what its target does not have."""
    for line in features.check(ptx):
        terminal.say(line, "yellow")


_idle: OrderedDict[tuple[str, bool], list[_Loaded]] = OrderedDict()  # ready to be used again, by PTX and `tiles`
_lock = threading.Lock()
_MOST_IDLE = 64


@contextmanager
def loaded(ptx: str, tiles: bool = False) -> Iterator[_Loaded]:
    """A module of that PTX for this run alone, its variables initialised: a free one that was used before, if there is
    one. `tiles`: see engine.Module."""
    with _lock:
        ready = _idle.get((ptx, tiles))
        mine = ready.pop() if ready else None
    mine = mine or _Loaded(ptx, tiles)
    try:
        mine.module.reset()
        yield mine
    finally:
        mine.arena.clear()
        discarded = []
        with _lock:
            _idle.setdefault((ptx, tiles), []).append(mine)
            _idle.move_to_end((ptx, tiles))
            while sum(map(len, _idle.values())) > _MOST_IDLE:
                oldest = next(key for key, free in _idle.items() if free)
                discarded.append(_idle[oldest].pop())
                if not _idle[oldest]:
                    del _idle[oldest]
        for old in discarded:
            old.close()


@dataclass(frozen=True)
class _Recorded:
    """A launch, and what the host has written before it since the launch before: where, and the bytes."""

    configuration: Configuration
    module: engine.Module
    host_writes: list[tuple[Allocation, np.ndarray, np.ndarray]]


class Session(Device):
    """A run: requests come from host code (process.py) or from Python, launches go to the engine."""

    def __init__(
        self,
        module: _Loaded,
        gpu: Gpu,
        *,
        counters: bool = True,
        sanitize: bool = True,
        strict: bool = False,
        trace: Trace | None = None,
        events: Events | None = None,
        progress: Progress | None = None,
        threads: int | None = None,
        on_finding: Callable[[Finding | HostFinding], None] | None = None,
        source: str = "the source",
        defines: Mapping[str, str] | None = None,
        blocks: range | None = None,
        refused_launch: int | None = None,
    ):
        check_target(module.module.target, gpu)
        self.module, self.arena, self.gpu = module.module, module.arena, gpu
        self.loaded: list[engine.Module] = []  # by the program, while it ran
        self.settings = engine.Settings(
            counters=counters,
            sanitize=sanitize,
            strict=strict,
            events=events.blocks if events else None,
            most_events=events.most if events else 0,
            threads=threads,
            progress=progress,
            multiprocessors=gpu.sms,
            blocks=blocks,
        )
        self.refused_launch, self.asked = refused_launch, 0  # launches
        self.trace, self.events, self.on_finding = trace, events, on_finding
        self.source, self.defines = source, defines
        self.stubs = frozenset(map(qualified, self.module.kernel_names))
        self.tensors: dict[str, Allocation] = {}
        self.launches: list[Launch] = []
        self.findings: dict[tuple[object, ...], Finding | HostFinding] = {}
        self.notes: dict[tuple[object, ...], Finding | HostFinding] = {}  # what looks harmless, or may be meant
        self.sums: dict[object, Sums] = {}  # what launches have counted
        self._memory: tuple[int, list[Region]] = (-1, [])
        self.rows: list[np.ndarray] = []
        self.timeline = timeline.Timeline()
        self.stores: dict[int, Finding | HostFinding] = {}  # of values that nobody has set, until the host reads them
        self._latest: KernelInfo | None = None  # the kernel that host code has launched last
        self.before: engine.Past | None = None  # the last launch that host code asked for
        self.recorded: list[_Recorded] | None = None  # the launches from `record` on
        self._seen: dict[int, tuple[Allocation, np.ndarray]] = {}  # memory as the last launch has left it
        self.started = time.monotonic()

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def pack(
        self,
        args: Sequence[Any],
        types: Sequence[ParameterType],
        names: Sequence[str],
        outputs: Sequence[str],
        what: str,
    ) -> list[bytes]:
        """The arguments as the parameters' bytes, tensors and arrays copied to the device.

        UserError if one does not fit."""
        if len(args) != len(types):
            takes = ", ".join(kind.name for kind in types)
            raise UserError(f"{what} takes {len(types)} arguments ({takes}), got {len(args)}")
        for output in outputs:
            if output not in names:
                raise UserError(f"outputs must be among the arguments of {what} ({', '.join(names)}), got '{output}'")
        packed = []
        for arg, kind, name in zip(args, types, names):
            if is_tensor(arg):
                check_array(arg, kind, name)
                self.tensors[name] = self.arena.upload(name, arg, initialised=name not in outputs)
                packed.append(self.tensors[name].base.to_bytes(8, "little"))
            else:
                packed.append(pack(arg, kind, name))
        return packed

    # ---- what host code asks -----------------------------------------------------------------------------------------

    def _module(self, name: str, what: str) -> tuple[engine.Module, str]:
        """The module of a kernel or a variable, and its name there: its own, unless an earlier file has it."""
        number, colon, own = name.partition(":")
        module = self.loaded[int(number.removeprefix("module")) - 1] if colon else self.module
        name = own if colon else name
        there = module.kernel_names if what == "kernel" else module.variables
        return module, name if OF_FILE not in name or name in there else name.partition(OF_FILE)[0]

    def load(self, ptx: str) -> int:
        def place(name: str, size: int, align: int) -> int:
            made = self.arena.allocate(readable(name), max(size, align), initialised=True)
            if made is None:
                raise UserError(f"there is no room for {readable(name)}, {size:,} bytes")
            return made.base

        module = engine.Module(ptx, place)
        check_target(module.target, self.gpu)
        tell_of_lacking(ptx)
        module.undefined = self.module.undefined  # of the memory, which they share
        self.loaded.append(module)
        return len(self.loaded)

    def kernels(self, module: str) -> list[str]:
        return list(self._module(module, "kernel")[0].kernel_names)

    def describe(self, kernel: str) -> KernelDescription | None:
        module, kernel = self._module(kernel, "kernel")
        if kernel not in module.kernel_names:
            return None
        info = module.kernel(kernel)
        if info.static_shared > STATIC_SHARED_LIMIT:
            raise UserError(
                f"{self.source}: {readable(kernel)} declares {info.static_shared} bytes of shared memory; more than "
                f"{STATIC_SHARED_LIMIT} have to be dynamic (extern __shared__), with cudaFuncSetAttribute"
            )
        params = [(offset, size) for _, size, _, offset in info.params]
        return KernelDescription(
            *(info.static_shared, info.local_bytes, info.max_threads or 0, info.param_bytes),
            *(module.ptx_version, params, info.cluster, readable(kernel)),
        )

    def launch(
        self,
        configuration: Configuration,
        printed: Callable[[str], None],
        where: Callable[[], tuple[str, int, str]],
        tells: bool = False,
    ) -> Served:
        before, self.before = self.before if configuration.early else None, None
        self.asked += 1
        if self.asked == self.refused_launch:
            name = readable(configuration.kernel)
            return Served(*REFUSED, refused=f"{name}: launch {self.asked} is refused, as asked for")
        # From this compute capability on, the next launch may be one that begins early.
        keep = self.settings.sanitize and (tells or Arch(9, 0).runs_on(self.gpu.arch))
        module, kernel = self._module(configuration.kernel, "kernel")
        if kernel != configuration.kernel:
            configuration = replace(configuration, kernel=kernel)
        if self.recorded is not None:
            self.recorded.append(_Recorded(configuration, module, self._host_writes()))
        result = self.execute(configuration, module, keep=keep, before=before, printed=printed, where=where)
        if self.recorded is not None:
            self._look()
        self.before = result.past
        self._latest = module.kernel(kernel)
        served = Served(result.code, result.code != 0, bool(self.module.undefined))
        return replace(served, touched=result.past.touched()) if tells and result.past else served

    @property
    def sanitizes(self) -> bool:
        return self.settings.sanitize

    @property
    def meets_host(self) -> bool:  # fences and atomics of system scope are made for it
        return self._latest is not None and any(".sys." in place.text for place in self._latest.instructions)

    def symbol(self, name: str) -> tuple[int, int] | None:
        module, name = self._module(name, "variable")
        variable = module.variables.get(name)
        return (variable.base, variable.size) if variable else None

    def found(self, finding: Finding | HostFinding) -> None:
        earlier = self.findings.get(finding.where)
        self.findings[finding.where] = finding if earlier is None else earlier.more(finding.count)
        if self.on_finding and earlier is None:
            self.on_finding(finding)

    def noted(self, finding: Finding | HostFinding) -> None:
        earlier = self.notes.get(finding.where)
        if self.settings.strict:
            self.found(finding)
        else:
            self.notes[finding.where] = finding if earlier is None else earlier.more(finding.count)

    # What nobody has set, in global memory: it is a finding when the host reads it.

    def read_by_host(self, address: int, size: int) -> None:
        for number in self.module.undefined.stores(address, size):
            if store := self.stores.pop(number, None):
                self.found(store)

    def written_by_host(self, address: int, size: int) -> None:
        self.module.undefined.define(address, size)

    def copied(self, to: int, source: int, size: int) -> None:
        self.module.undefined.copy(to, source, size)

    def download(self) -> None:
        """Copy every tensor and array back."""
        for allocation in self.arena.allocations:
            if allocation.array is not None:
                self.read_by_host(allocation.base, allocation.size)
        self.arena.download()

    # ---- once more, without the host code ----------------------------------------------------------------------------

    def record(self) -> None:
        """From now on, keep what `repeat` needs: the launches, and what the host writes before each."""
        self.recorded, self.arena.held = [], []
        self._look()

    def _look(self) -> None:
        self._seen = {each.base: (each, each.data.copy()) for each in self.arena.allocations if len(each.data)}

    def _host_writes(self) -> list[tuple[Allocation, np.ndarray, np.ndarray]]:
        """Where memory is no longer what the last launch has left, and what is there now."""
        found = []
        for each in self.arena.allocations:
            before = self._seen.get(each.base)
            same = before is not None and before[0] is each
            where = np.flatnonzero(each.data != before[1]) if before and same else np.arange(len(each.data))
            if len(where):
                found.append((each, where, each.data[where].copy()))
        return found

    def repeat(self, contents: Sequence[tuple[Any, Any]]) -> None:
        """Run the recorded launches again where they ran, in memory that no process of the host code has any more.
        `contents`: arguments that they had, and arrays whose contents are there in their place, and which get what the
        kernels have made of them."""
        recorded, self.recorded = self.recorded or [], None
        arena = self.arena
        arena.part()
        at = {arena.upload("", old).base: new for old, new in contents if is_tensor(old)}
        places = [(each, raw_bytes(at[each.base])) for each in arena.allocations if each.base in at]
        for each, data in places:
            each.data[:] = data
        for launch in recorded:
            for each, where, values in launch.host_writes:
                each.data[where] = values
            self.execute(launch.configuration, launch.module)
        for each, data in places:
            data[:] = each.data

    # ---- launches ----------------------------------------------------------------------------------------------------

    def execute(
        self,
        configuration: Configuration,
        module: engine.Module | None = None,
        *,
        keep: bool = False,
        before: engine.Past | None = None,
        printed: Callable[[str], None] | None = None,
        where: Callable[[], tuple[str, int, str]] | None = None,
    ) -> engine.LaunchResult:
        """Run one launch and note what it leaves. `module`: if it is another one than the program's; `keep`, `before`,
        `printed`: of Module.launch; `where` asks for the place in the host code."""
        module = module or self.module
        kernel, grid, block = configuration.kernel, configuration.grid, configuration.block
        info, settings = module.kernel(kernel), self.settings
        if self.trace is not None:
            left = self.trace.max_rows - sum(map(len, self.rows))
            settings = replace(settings, trace=self.trace.blocks or range(math.prod(grid)), trace_rows=left)
        # Registers, which are ptxas's business, are not known here.
        fit = occupancy(self.gpu, math.prod(block), None, info.static_shared + configuration.shared)
        result = module.launch(
            *(configuration, self._regions(), settings),
            resident=max(1, fit.blocks) * self.gpu.sms,
            keep=keep,
            before=before,
            printed=printed,
        )
        told = [*result.findings, *result.notes]
        caller = where()[:2] if where and any(library_of(each.place.file) for each in told) else ("", 0)
        for finding in result.findings:
            if finding.kind == "unknown instruction":
                place = finding.place
                at = f"{place.file}:{place.own_line}: " if place.file else ""
                raise UserError(f"{at}the emulator cannot execute `{place.text}`: {place.problem}")
            self.found(explain(finding, info, self.arena, self.defines, caller))
        for note in result.notes:
            self.noted(explain(note, info, self.arena, self.defines, caller))
        for number, store in result.stores.items():
            self.stores[number] = explain(store, info, self.arena, self.defines, caller)
        for allocation in self.arena.allocations if self.stores else ():
            if allocation.mapped:  # the host may read it whenever it likes
                self.read_by_host(allocation.base, allocation.size)
        sums = add_up(result.counters, info, self.sums)
        if len(result.trace):
            result.trace["launch"] = len(self.launches)
            self.rows.append(result.trace)
        if self.events:
            self.note_events(result, info, self.events)
        shared = info.static_shared + configuration.shared
        self.launches.append(Launch(readable(kernel), grid, block, shared, sums, info.instructions))
        return result

    def _regions(self) -> list[Region]:
        """All memory but the module's variables, which the engine enters by itself: the same list until it changes."""
        if self._memory[0] != self.arena.version:
            regions = [
                Region(a.base, a.size, a.name, *((a.marks[1:], a.marks[:1]) if len(a.marks) else ()))
                for a in self.arena.allocations
                if not a.variable
            ]
            self._memory = self.arena.version, regions
        return self._memory[1]

    def note_events(self, result: engine.LaunchResult, info: KernelInfo, events: Events) -> None:
        name = shared_names(info, self.arena, self.defines)
        spans = timeline.read(result.events, len(self.launches), info.instructions, name)
        unseen = result.total - len(np.unique(result.events["block"]))  # some may never have begun
        ended = " (the launch ended early)" if result.code else ""
        left_out = [f"{unseen:,} of {result.total:,} blocks{ended}"] if unseen else []
        if result.events_left_out:
            left_out.append(f"the last {result.events_left_out:,} events of these blocks")
        self.timeline.add(readable(info.name), spans, left_out)

    def report(self, status: int, error: str, outcome: str = "") -> Report:
        """The report of the run; call it while the memory is still there."""
        total, lines = Counters(), dict[tuple[str, int], Counters]()
        for sums in self.sums.values():
            counted, of_lines = sums.count(sums.launches)
            total += counted
            for line, counters in of_lines.items():
                lines.setdefault(line, Counters()).__iadd__(counters)
        rows = np.concatenate(self.rows) if self.rows else np.empty(0, TRACE)
        places = self.arena.snapshot()
        by_base = {allocation.base: allocation for allocation in places.allocations}
        return Report(
            status,
            error,
            self.launches,
            total,
            lines,
            list(self.findings.values()),
            rows,
            time.monotonic() - self.started,
            {name: by_base[allocation.base] for name, allocation in self.tensors.items()},
            places,
            list(self.notes.values()),
            self.timeline,
            outcome,
        )


def dimension(size: Sequence[int] | int, what: str, limits: Dim) -> Dim:
    """A grid or a block as three sizes. UserError if it is none, or beyond CUDA's limits."""
    sizes = tuple(size) if isinstance(size, Sequence) else (size,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in sizes):
        raise UserError(f"the {what} must be one to three whole numbers, got {size!r}")
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    for axis, n, most in zip("xyz", (x, y, z), limits):
        if not 1 <= n <= most:
            raise UserError(f"the {what} must have 1 to {most:,} along {axis}, got {n}")
    return x, y, z


def check_launch(kernel: str, block: Dim, shared: int, static: int, bounds: int | None, gpu: Gpu) -> str:
    """Why a GPU would refuse a launch, or nothing."""
    threads = block[0] * block[1] * block[2]
    most = min(MAX_THREADS, bounds or MAX_THREADS)
    if threads > most:
        return f"{kernel}: {threads} threads per block, at most {most}" + (
            f" (launch bounds {bounds})" if bounds else ""
        )
    if not isinstance(shared, int) or not 0 <= shared <= gpu.shared_per_block - static:
        return f"{kernel}: dynamic shared memory must be 0 to {gpu.shared_per_block - static:,} bytes, got {shared}"
    return ""
