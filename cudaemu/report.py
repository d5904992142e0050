"""The report of a run in the emulator: findings of the sanitizer, counters, and the trace of executed accesses."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cudaemu import arrays, cpp, findings
from cudaemu.compiler.symbols import readable, short
from cudaemu.errors import CheckFailed
from cudaemu.kernel import CATEGORIES, COUNTERS, SPACES, Chain, Dim, KernelInfo, Place
from cudaemu.memory import AddressMap, Allocation
from cudaemu.process import HostFinding, library_of
from cudaemu.timeline import Timeline
from cudaemu.trace import Access, Space
from cudaemu.units import MMA, WGMMA

# ncu's names of the hardware counters that ours equal; CAVEATS in common/measure/ncu.py lists the exceptions.
METRICS = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "wgmma_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
    "cp_async_sectors": "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "instructions.ldmatrix": "smsp__inst_executed_op_ldsm.sum",
    "instructions.cp.async": "smsp__inst_executed_op_ldgsts.sum",
    f"instructions.{MMA.category}": "sm__inst_executed_pipe_tensor_op_hmma.sum",
}
# What the hardware's counter includes: cp.async is a global load to it (though not a store to shared memory).
INCLUDED = {
    "global_load_requests": "cp_async_requests",
    "global_load_sectors": "cp_async_sectors",
    f"instructions.{MMA.category}": f"instructions.{WGMMA.category}",
}


@dataclass
class Counters:
    """What a launch, a run or a source line executed. METRICS names the hardware's counter where there is an equal one.

    `instructions` counts instructions per warp by kind ("fma", "integer", "load.global", ...). A *request* is one
    memory instruction of one warp, its *bytes* are what its active threads asked for; *sectors* are the 32-byte pieces
    of global memory that it touches; *wavefronts* are the passes over the banks of shared memory that it takes,
    *conflicts* those beyond the fewest that its width allows. `ldmatrix` counts as a shared load. `cp.async` has its
    own names, and its sectors are those that L2 sends: once for each sector of shared memory that they go to. So do
    bulk copies (TMA): a load's bytes are those that it writes to shared memory, in all blocks of a multicast, including
    the fill outside the tensor; its sectors are those that it reads, of each row of the box, once.
    `wgmma_bytes` are those of its operands in shared memory, which are in no other counter; `wgmma_wavefronts`, its
    passes over the banks, are one for each 128 of them. `tensor_flops` are 2·M·N·K of each instruction of the tensor
    cores. Accesses of any kind to the shared memory of another block of the cluster count as `cluster`, and nowhere
    else.
    """

    instructions: Counter[str] = field(default_factory=Counter)
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_load_bytes: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    global_store_bytes: int = 0
    shared_load_requests: int = 0
    shared_load_wavefronts: int = 0
    shared_load_conflicts: int = 0
    shared_load_bytes: int = 0
    shared_store_requests: int = 0
    shared_store_wavefronts: int = 0
    shared_store_conflicts: int = 0
    shared_store_bytes: int = 0
    local_load_requests: int = 0
    local_load_bytes: int = 0
    local_store_requests: int = 0
    local_store_bytes: int = 0
    cp_async_requests: int = 0
    cp_async_sectors: int = 0
    cp_async_bytes: int = 0
    bulk_load_requests: int = 0
    bulk_load_sectors: int = 0
    bulk_load_bytes: int = 0
    bulk_store_requests: int = 0
    bulk_store_sectors: int = 0
    bulk_store_bytes: int = 0
    wgmma_bytes: int = 0
    tensor_flops: int = 0
    cluster_requests: int = 0
    cluster_bytes: int = 0

    def __iadd__(self, other: Counters) -> Counters:
        self.instructions.update(other.instructions)
        for name in _FIELDS[1:]:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def flat(self) -> dict[str, int]:
        """Everything under one name each: "instructions" (all), "instructions.fma", ..., "global_load_sectors", ..."""
        numbers = {name: getattr(self, name) for name in _FIELDS[1:]}
        kinds = {f"instructions.{kind}": count for kind, count in sorted(self.instructions.items())}
        numbers["wgmma_wavefronts"] = self.wgmma_wavefronts
        return {"instructions": self.instructions.total(), **kinds, **numbers}

    @property
    def wgmma_wavefronts(self) -> int:
        """One for each core matrix that it reads: 8 rows of 16 bytes, which lie in different banks in every layout."""
        return self.wgmma_bytes // 128

    def __getitem__(self, name: str) -> int:
        if name.startswith("instructions."):
            return self.instructions[name.removeprefix("instructions.")]
        return self.instructions.total() if name == "instructions" else getattr(self, name)


_LISTS = re.compile(r"\{([^{},]+, [^{},]+)(?:, [^{},]+){3,}\}")  # of registers, longer than a vector
_FIELDS = tuple(item.name for item in fields(Counters))
_NUMBERS = frozenset(_FIELDS[1:])


@dataclass(frozen=True)
class Finding:
    """A broken rule: the first of the `count` times at this line."""

    kind: str  # "out of bounds global", "misaligned", "uninitialised shared read", "shared race" ...
    message: str
    kernel: str
    block: Dim
    thread: Dim
    file: str
    line: int  # in the kernel, or in a lambda of it: of the call, if the instruction was inlined from elsewhere
    ptx: str
    count: int = 1
    call_line: int = 0  # of the lambda, if the line is in one
    inner_line: int = 0  # the place of the code, if it was inlined from another function
    inner_file: str = ""  # ... of another file
    caller_file: str = ""  # of a kernel of a library: the place in the host code that called it
    caller_line: int = 0

    def __str__(self) -> str:
        where = f"{Path(self.file).name}:{self.line}" if self.file else "PTX"
        called = f" (called at line {self.call_line})" if self.call_line else ""
        inner = f"{Path(self.inner_file).name}:" if self.inner_file else "line "
        called += f" (in a function, {inner}{self.inner_line})" if self.inner_line else ""
        lines = [
            f"{self.kind}: {self.message}",
            f"    at {where}{called}, {short(self.kernel)}, block {self.block} thread {self.thread}",
        ]
        if library := library_of(self.file):
            called = f", called at {Path(self.caller_file).name}:{self.caller_line}" if self.caller_line else ""
            lines.append(f"    in {library}{called}")
        quoted = [(self.caller_file, self.caller_line), (self.file, self.call_line), (self.file, self.line)]
        for file, line in [*quoted, (self.inner_file or self.file, self.inner_line)]:
            if line and (text := linecache.getline(file, line).strip()):
                lines.append(f"    {line:>4} | {text}")
        lines.append("     PTX | " + _LISTS.sub(r"{\1, ...}", self.ptx))
        if self.count > 1:
            lines.append(f"    and {self.count - 1} more of this kind at this line")
        return "\n".join(lines)

    @property
    def source(self) -> tuple[object, ...]:
        """The kind and the line of the source, which all instances of a template share. A library's kernel may have a
        single line, which calls all of the user's code."""
        inner = (self.inner_file, self.inner_line) if library_of(self.file) else ()
        return self.kind, self.file, self.call_line, self.line or self.ptx, *inner

    @property
    def where(self) -> tuple[object, ...]:
        """The key that merges findings: an unrolled loop breaks a rule at many instructions of one line, and a template
        in many instances."""
        return (*self.source, self.kernel.partition("<")[0])

    def more(self, count: int) -> Finding:
        """This finding, `count` times more."""
        return replace(self, count=self.count + count)


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `code[pc]` says what instruction a trace row's `pc` is, and from which line it comes."""

    kernel: str
    grid: Dim
    block: Dim
    shared: int  # bytes per block, static and dynamic
    _sums: Sums = field(repr=False)
    code: Sequence[Place] = field(repr=False)

    @property
    def counters(self) -> Counters:
        """What it has executed and moved."""
        return self._sums.total

    @property
    def executed(self) -> set[Chain]:
        """Where the instructions are that it, or a launch with the same counters, has executed: for each the chain of
        (file, line) from its own place to the kernel's, through the calls that were inlined. `code` has all."""
        return {place.path for place, ran in zip(self.code, self._sums.ran.tolist()) if ran}


@dataclass(frozen=True)
class Trace:
    """Which accesses to record: of which blocks (linear indices; None: all), and at most how many."""

    blocks: range | None = None
    max_rows: int = 4_000_000


@dataclass
class Report:
    """The result of a run.

    `status` is what the launcher returned (a cudaError_t) or a program's exit status, `error` its text. `lines` holds
    the counters of each line of the source, keyed by (file, line). `trace` is a structured array, one row per thread
    and access: `launch`, `block` and `thread` (linear), `seq` (of the memory instruction within its warp), `pc`,
    `space`, `kind`, `size` (bytes) and `addr` (shared: offset in the block's shared memory; cluster: in that of another
    block, whose rank in the cluster, plus one, is in the bits from 24 on); `accesses`, `writers` and `source` read it.
    `notes` do not count as findings, unless the run is strict (Options.strict): races that look harmless, because what
    is written is what was there; mbarriers that a thread initialised for TMA without a fence; and the like.
    """

    status: int
    error: str
    launches: list[Launch]
    counters: Counters
    lines: dict[tuple[str, int], Counters]
    findings: list[Finding | HostFinding]
    trace: np.ndarray
    seconds: float
    tensors: dict[str, Allocation] = field(repr=False)  # the allocation of each tensor argument, by its name
    arena: AddressMap = field(repr=False)
    notes: list[Finding | HostFinding] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline, repr=False)  # of the blocks that Options.events names
    outcome: str = ""  # how it ended, if it was not a launcher: a program, a kernel, a function that threw
    result: Any = None  # what a function of a PyTorch extension returned

    @property
    def ok(self) -> bool:
        """Whether the run ended with status 0 and without findings."""
        return self.status == 0 and not self.findings

    def __str__(self) -> str:
        blocks = [str(finding) for finding in self.findings]
        if self.status:
            blocks.append(self.outcome or f"the launcher returned CUDA error {self.status}: {self.error}")
        blocks = blocks or ["no findings"]
        return "\n\n".join([*blocks, *(f"note: {note}" for note in self.notes)])

    def raise_if_findings(self) -> None:
        """CheckFailed with the report, if there is anything to report."""
        if not self.ok:
            raise CheckFailed(str(self))

    def source(self, row: np.void) -> Place:
        """The instruction of a trace row, with its source line."""
        return self.launches[int(row["launch"])].code[int(row["pc"])]

    def accesses(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The trace's accesses to the tensor `name`: its rows, and for each the (flat) index of its first element."""
        place = self.tensors[name]
        rows = self.trace[self.trace["space"] == Space.GLOBAL]
        offset = rows["addr"].astype(np.int64) - place.base
        inside = (offset >= 0) & (offset < place.size)
        return rows[inside], offset[inside] // place.itemsize

    def element(self, row: np.void) -> str:
        """What a trace row accessed: "C[3, 17]", or "shared + 128"."""
        if row["space"] == Space.GLOBAL:
            return self.arena.describe(int(row["addr"]))
        return f"{Space(row['space']).name.lower()} + {row['addr']}"

    def writers(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The last writer of each element of the tensor `name`: linear block and thread, in its shape; -1 for none."""
        place = self.tensors[name]
        item = place.itemsize
        rows, first = self.accesses(name)
        stores = np.isin(rows["kind"], (Access.STORE, Access.ATOMIC, Access.BULK_STORE))
        for number, launch in enumerate(self.launches):  # WMMA rows are of loads and of stores
            is_store = np.array([CATEGORIES[place.category].stores for place in launch.code])
            stores |= (rows["kind"] == Access.WMMA) & (rows["launch"] == number) & is_store[rows["pc"] % len(is_store)]
        rows, first = rows[stores], first[stores]
        block = np.full(place.size // item, -1, np.int64)
        thread = block.copy()
        for size in np.unique(rows["size"]):
            same = rows["size"] == size
            for step in range(max(1, int(size) // item)):
                block[first[same] + step], thread[first[same] + step] = rows["block"][same], rows["thread"][same]
        shape = place.shape
        return block.reshape(shape), thread.reshape(shape)


class Sums:
    """What a launch has counted, by what the kernel's instructions are counted as; counters are made of it when
    they are asked for. Launches of a kernel that have counted the same share one."""

    def __init__(self, kernel: KernelInfo, keys: np.ndarray, rows: np.ndarray):
        """`keys`: number in the kernel's groups * len(SPACES) + space; `rows`: for each of them, a row of counters and
        the operations of tensor cores."""
        self.kernel, self.keys, self.rows = kernel, keys, rows
        self.ran = np.zeros(len(kernel.instructions), bool)  # which instructions, in any of the launches
        self.launches = 0

    @cached_property
    def total(self) -> Counters:
        """Of one launch."""
        return self.count()[0]

    def count(self, times: int = 1) -> tuple[Counters, dict[tuple[str, int], Counters]]:
        """The counters of so many launches: of all, and of each source line."""
        total = Counters()
        lines: dict[tuple[str, int], Counters] = {}
        groups = self.kernel.groups
        for (key, where), row in zip((divmod(each, len(SPACES)) for each in self.keys.tolist()), self.rows.tolist()):
            sums = {name: times * number for name, number in zip(_COLUMNS, row)}
            if not sums["warps"]:
                continue
            file, line, kind = groups.keys[key]
            category = CATEGORIES[CATEGORIES[kind].spaces[where] if groups.generic[key] else kind]
            for counters in (total, lines.setdefault((file, line), Counters())):
                counters.instructions[kind] += sums["warps"]
                counters.tensor_flops += sums["flops"]
                counters.cluster_requests += sums["cluster_requests"]
                counters.cluster_bytes += sums["cluster_bytes"]
                if category.memory:
                    for name in ("requests", "sectors", "wavefronts", "conflicts", "bytes"):
                        if (field_ := f"{category.memory}_{name}") in _NUMBERS:
                            setattr(counters, field_, getattr(counters, field_) + sums[name])
        return total, lines


_COLUMNS = (*(COUNTERS.names or ()), "flops")


def add_up(table: np.ndarray, kernel: KernelInfo, known: dict[object, Sums]) -> Sums:
    """The engine's counters per instruction, added up; one of the `known` if that has counted the same."""
    groups = kernel.groups
    rows = np.empty((len(table), len(_COLUMNS)), np.uint64)
    rows[:, :-1] = table.view(np.uint64).reshape(len(table), -1)
    np.multiply(rows[:, 0], kernel.flops, out=rows[:, -1])
    keys, order, starts = groups.firsts, groups.order, groups.starts
    if groups.has_generic:
        space = np.where(table["sectors"] > 0, 0, np.where(table["wavefronts"] > 0, 1, 2))
        number = groups.number * len(SPACES) + space * groups.generic[groups.number]
        order = np.argsort(number, kind="stable")
        keys, starts = np.unique(number[order], return_index=True)
    sums = np.add.reduceat(rows[order], starts, axis=0)
    name = kernel.handle, keys.tobytes(), sums.tobytes()
    found = known.get(name)
    if found is None:
        found = known[name] = Sums(kernel, keys, sums)
    found.launches += 1
    found.ran |= table["warps"] > 0
    return found


class _Memory(findings.Memory):
    """Addresses in the words of the tensors and of the source's variables."""

    def __init__(self, kernel: KernelInfo, arena: AddressMap, source: str, defines: Mapping[str, str]):
        super().__init__(kernel, ())
        self.arena, self.source, self.defines = arena, source, defines

    def globally(self, address: int, size: int) -> str:
        found = self.arena.find(address)
        past = self.past(address, size, found.base + found.size) if found else ""
        where = self.arena.describe(address)
        outside = where[0].isdigit() or where.startswith("just ")  # "8 bytes past the end of C"
        return f"{findings.count(size)}{', ' if outside else ' at '}{where}{past}"

    def of_the_host(self, address: int) -> bool:
        found = self.arena.find(address)
        return found is not None and found.mapped

    def variable(self, name: str, start: int, size: int, offset: int) -> str:
        plain = readable(name)
        if plain.startswith("element ") and offset == start:
            return plain
        if not size:
            member = arrays.member(self.source, self.kernel.name, plain, offset - start, self.defines)
            if member is not None:
                return member
        shape = arrays.shape(self.source, self.kernel.name, plain, size, self.defines)
        inside = not size or offset < start + size
        return plain + shape.index(offset - start) if shape and inside else f"{plain} + {offset - start}"

    def at(self, address: int) -> str:
        return super().at(address) if address & findings.SHARED_WINDOW else self.arena.describe(address)


def shared_names(
    kernel: KernelInfo, arena: AddressMap, defines: Mapping[str, str] | None = None
) -> Callable[[int, int], str]:
    """What the source calls an offset in shared memory ("" if it does not tell), at the instruction `pc`."""
    return lambda offset, pc: _Memory(kernel, arena, kernel.instructions[pc].file, defines or {}).named(offset)


def explain(
    found: findings.Violation,
    kernel: KernelInfo,
    arena: AddressMap,
    defines: Mapping[str, str] | None = None,
    caller: tuple[str, int] = ("", 0),
) -> Finding:
    """A finding of the machine in the names of the source, which was compiled with these macros. `caller`: the place in
    the host code that launched the kernel, if the kernel is a library's."""
    place = found.place
    memory = _Memory(kernel, arena, place.file, defines or {})
    file, inner = _inner(place)
    return Finding(
        *(found.kind, findings.explain(found, memory), readable(found.kernel), found.block, found.thread),
        *(place.file, place.own_line, place.text, found.count),
        place.line if place.line != place.own_line else 0,
        *(inner, "" if file == place.file else file),
        *(caller if library_of(place.file) else ("", 0)),
    )


def _inner(place: Place) -> tuple[str, int]:
    """The place of an instruction's code in the user's own functions, if that is not in the kernel itself."""
    for file, line in place.chain:
        if (file, line) == (place.file, place.own_line):
            break
        if not library_of(file) and not _in_assembly(file, line):
            return file, line
    return "", 0


def _in_assembly(file: str, line: int) -> bool:
    """Whether a line is part of an asm statement, for which the PTX itself says more."""
    code = cpp.code("".join(linecache.getlines(file)))
    return any(line in lines for lines in cpp.statements(code, "asm|__asm__"))


def joined(parts: list[Report]) -> Report:
    """One report of several: launches in order, findings merged by their place, counters added."""
    total, lines = Counters(), dict[tuple[str, int], Counters]()
    findings: dict[tuple[object, ...], Finding | HostFinding] = {}
    notes: dict[tuple[object, ...], Finding | HostFinding] = {}
    line = Timeline()
    for part in parts:
        total += part.counters
        for where, counters in part.lines.items():
            lines.setdefault(where, Counters()).__iadd__(counters)
        for found, merged in ((part.findings, findings), (part.notes, notes)):
            for each in found:
                earlier = merged.get(each.where)
                merged[each.where] = each if earlier is None else earlier.more(each.count)
        line.spans += part.timeline.spans
        line.left_out += part.timeline.left_out
    last = parts[-1] if parts else None
    return Report(
        status=last.status if last else 0,
        error=last.error if last else "",
        launches=[launch for part in parts for launch in part.launches],
        counters=total,
        lines=lines,
        findings=list(findings.values()),
        trace=np.concatenate([part.trace for part in parts]) if parts else np.empty(0),
        seconds=sum(part.seconds for part in parts),
        tensors={},
        arena=last.arena if last else AddressMap(),
        notes=list(notes.values()),
        timeline=line,
        outcome=last.outcome if last else "",
    )
