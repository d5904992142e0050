"""The machine's findings in words. vm/vm.h lists the problems and says which of them end a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cudaemu.compiler.symbols import readable
from cudaemu.kernel import KernelInfo, Place, Region

NOBODY = 0xFFFFFFFF  # no other thread, or several; no other place
SAME_BLOCK = (1 << 64) - 1
# The kinds of those that are no findings.
NOTES = ("same value written", "mbarrier without a fence", "tile within a pattern", "replicas differ")
PASSED_ON = "UNDEFINED_STORE"  # the problem that is a finding only if the host reads what was written
SHARED_WINDOW, LOCAL_WINDOW = 1 << 56, 2 << 56  # vm.h: generic addresses of these memories have this bit
WINDOW_MASK = 0xFF << 56
RANK_SHIFT, MOST_RANKS = 24, 255  # Cluster in block.h: what an address of another block's shared memory has above this


class Problem(NamedTuple):
    """One of the problems of vm.h. `code`: the cudaError_t with which the launch ends, 0 if it goes on."""

    name: str
    kind: str
    code: int


@dataclass(frozen=True)
class Violation:
    """Something that a kernel must not do, as the machine reports it: the first time at an instruction, and how often.
    report.Finding puts it in the names of the source.

    What `address` and `size` are depends on the problem: mostly bytes that were touched. `other_thread` and
    `other_place` are those of the earlier access of a race, or of the other place of a divergence; `other_kernel` and
    `launches_ago` say in which launch before this one, if it was in another."""

    problem: str
    kind: str
    kernel: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    place: Place
    count: int
    address: int
    size: int
    fatal: bool
    other_thread: tuple[int, int, int] | None
    other_block: tuple[int, int, int] | None  # None: the same
    other_place: Place | None
    other_kernel: str = ""
    launches_ago: int = 0
    dynamic_shared: int = 0  # bytes that the launch gave each block
    message: str = ""

    def __str__(self) -> str:
        where = f"{self.place.file}:{self.place.own_line}" if self.place.line else "PTX"
        times = f" ({self.count} times)" if self.count > 1 else ""
        who = f"{self.kernel}, block {self.block}, thread {self.thread}"
        return f"{self.kind}: {self.message}{times}\n  {who}\n  {where}: {self.place.text}"

    @property
    def someone(self) -> str:
        block = f" of block {self.other_block}" if self.other_block else ""
        return f"thread {self.other_thread}{block}" if self.other_thread else "several threads"

    @property
    def missing(self) -> str:
        return "with no barrier of the cluster" if self.other_block else "with no barrier"

    @property
    def unordered(self) -> str:
        """What is missing between two accesses to global memory."""
        if self.other_block:
            return "and nothing orders the two: no atomic, no fence and flag, no end of a kernel between them"
        return "with no barrier, and no fence and flag, between them"

    @property
    def there(self) -> str:
        """The place of the other one, as an ending: " at line 12"."""
        if self.other_place is None:
            return ""
        line = self.other_place.own_line
        return f" at line {line}" if line else f" by '{self.other_place.text}'"


def count(size: int) -> str:
    return "1 byte" if size == 1 else f"{size} bytes"


def placed(address: int) -> tuple[int, str]:
    """The offset of an address of shared memory, and in whose it is if it names a block of the cluster."""
    rank, offset = address >> RANK_SHIFT, address & ((1 << RANK_SHIFT) - 1)
    return (offset, f" of the block of rank {rank - 1} in the cluster") if 0 < rank < MOST_RANKS else (address, "")


def signed(offset: int) -> int:
    """An offset in shared or local memory: one before the beginning is a large number."""
    return offset - (1 << 32) if offset >> 31 else offset


class Memory:
    """Names for addresses, from the machine's own knowledge alone. `report` has better ones."""

    def __init__(self, kernel: KernelInfo, regions: Sequence[Region]):
        self.kernel, self.regions = kernel, regions

    def globally(self, address: int, size: int) -> str:
        """`size` bytes at an address of global memory."""
        return f"{count(size)} at 0x{address:x}, {self.nearest(address, size)}"

    def of_the_host(self, address: int) -> bool:
        """Whether the program's host code may write there, too."""
        return False

    @staticmethod
    def past(address: int, size: int, end: int) -> str:
        """How many of them are past the end of the allocation in which they begin."""
        return f", {address + size - end} of them past its end" if address + size > end else ""

    def nearest(self, address: int, size: int) -> str:
        if not self.regions:
            return "where nothing is allocated"
        nearest = min(self.regions, key=lambda a: max(a.base - address, address + size - a.base - a.size, 0))
        beyond = address - nearest.base - nearest.size
        if address + size <= nearest.base:
            return f"{nearest.base - address} bytes before {nearest.name}"
        if beyond >= 0:
            return f"{beyond} bytes after the end of {nearest.name} ({nearest.size} bytes)"
        past = self.past(address, size, nearest.base + nearest.size)
        return f"byte {address - nearest.base} of {nearest.name} ({nearest.size} bytes){past}"

    def shared(self, offset: int) -> str:
        """A byte of shared memory: the block's own, or that of a block of its cluster."""
        offset, whose = placed(offset)
        known = self.named(offset)
        return f"byte {offset} of {'the ' * bool(whose)}shared memory{whose}" + (f" ({known})" if known else "")

    def named(self, offset: int) -> str:
        """The variable at an offset of shared memory, "" if there is none."""
        found = next((variable for variable in reversed(self.kernel.shared) if variable[1] <= offset), None)
        return self.variable(*found, offset) if found else ""

    def variable(self, name: str, start: int, size: int, offset: int) -> str:
        """That byte, as one of the variable that begins at `start`."""
        return f"{name} + {offset - start}"

    def generically(self, address: int, size: int) -> str:
        """`size` bytes at a generic address."""
        if address & WINDOW_MASK == SHARED_WINDOW:
            return f"{count(size)} at {self.shared(address & ~SHARED_WINDOW)}"
        if address & WINDOW_MASK == LOCAL_WINDOW:
            return f"{count(size)} at offset {signed(address & ~LOCAL_WINDOW)} of the thread's local memory"
        return self.globally(address, size)

    def at(self, address: int) -> str:
        """Whatever lies at an address of shared (generic) or global memory."""
        return (
            self.shared(address - SHARED_WINDOW)
            if address & WINDOW_MASK == SHARED_WINDOW
            else self.globally(address, 1)
        )


def _waiting(f: Violation, at: Memory) -> str:
    what = f" at {at.at(f.address)}," if f.address else ""
    message = (
        f"a loop waits here for another value{what} that no thread will write: all other threads wait too, or have "
        "ended"
    )
    if f.address and at.of_the_host(f.address):
        message += "; what the host writes during a launch comes too late here, because a launch ends before it returns"
    if f.size:
        message += f"; {f.size} blocks have not begun, because the GPU cannot hold that many at a time"
    return message


def _undefined(f: Violation, what: str) -> str:
    lanes = "in one lane" if f.address == 1 else f"in {f.address} lanes" if f.address else "in shared memory"
    if f.other_place is not None and f.other_place.text.startswith("shfl"):
        return (
            f"{what} holds, {lanes}, the undefined result of the shuffle{f.there} from a lane that takes no part in it"
        )
    read = f.other_place is not None and f.other_place.text.startswith("ld")
    how = "read with what lies beside it" if read else "stored"
    stored = f" ({how}{f.there}{'' if read else ', and read from memory'})" if f.other_place is not None else ""
    return f"{what} holds, {lanes}, a value that was never set{stored}"


def _undefined_operand(f: Violation) -> str:
    what = ("operand A", "operand B", "operand C")[f.size]
    hint = f.size == 2 and f.other_place is None
    return _undefined(f, f"{what} of this product of matrices") + (
        ": is the accumulator not zeroed first (fill_fragment, or = {})?" if hint else ""
    )


def _shared_race(f: Violation, at: Memory, here: str, there: str) -> str:
    """`there`: what the other thread did, if it is not the same. A wait for an mbarrier counts as an atomic, and only
    looks."""
    waits = ("mbarrier.try_wait", "mbarrier.test_wait")
    here, there = (
        "waited for" if place and place.text.startswith(waits) else did
        for place, did in ((f.place, here), (f.other_place, there or here))
    )
    other = "by" if here == there else f"{there} by"
    return f"{at.shared(f.address)} is {here} here and {other} {f.someone}{f.there}, {f.missing} between them"


def _global_race(f: Violation, at: Memory, here: str, there: str) -> str:
    other = f"{there} by".lstrip()
    return f"{at.globally(f.address, f.size)} are {here} here and {other} {f.someone}{f.there}, {f.unordered}"


def _read_only(f: Violation, at: Memory, here: str, there: str) -> str:
    load = f.place if here.startswith("read") else f.other_place
    texture = load is not None and load.text.startswith(("tex", "tld4"))
    by = "the texture fetch" if texture else "ld.global.nc (__ldg, or a pointer that is const and __restrict__)"
    return (
        f"{at.globally(f.address, f.size)} are {here}, and {f.someone} {there} them{f.there} in this launch: {by} is "
        "for memory that no thread writes while the kernel runs, and may see what was there before"
    )


def _early(f: Violation, at: Memory, here: str, there: str) -> str:
    other, kernel = f"{there} by".lstrip(), readable(f.other_kernel)
    race = f"{at.globally(f.address, f.size)} are {here} here and {other} {f.someone}{f.there} of {kernel}"
    if f.launches_ago == 1:
        return (
            f"{race}, the launch before, which may still run: this one may begin early (programmatic dependent "
            "launch); before this access it needs cudaGridDependencySynchronize() (griddepcontrol.wait)"
        )
    return (
        f"{race}, {f.launches_ago} launches before, which may still run: the launches since then began early "
        "(programmatic dependent launch), and one of them ended, or let the next one begin, without "
        "cudaGridDependencySynchronize() (griddepcontrol.wait)"
    )


def _outside(f: Violation, what: str) -> str:
    where = "before" if f.address >> 31 else "beyond"
    return f"{count(f.size)} at offset {signed(f.address)}, {where} {what}"


def _given(f: Violation, at: Memory) -> str:
    """How much shared memory the block has, as an ending."""
    static = at.kernel.static_shared
    return f": {static} bytes that the kernel declares, and {f.dynamic_shared} dynamic ones of the launch"


def _outside_shared(f: Violation, at: Memory) -> str:
    offset, whose = placed(f.address)
    if not whose:
        return _outside(f, "the block's shared memory") + _given(f, at)
    return f"{count(f.size)} at offset {offset}, beyond the shared memory{whose}; or there is no block of that rank"


NO_MAP = (  # why a copy has no tensor map: NoMap of bulk.cpp
    "no tensor map is there: it must be made by cuTensorMapEncodeTiled, which must have returned 0, or of zeros by "
    "tensormap.replace",
    "the tensor map must be in the kernel's parameters (const __grid_constant__ CUtensorMap), in constant or in global "
    "memory; here it is in the thread's local memory, or in shared memory",
    "the tensor map must have as many dimensions as the copy has coordinates",
    "the emulator does not have interleaved layouts",
    "the type of the tensor must have this reduction",
    "a field of the tensor map has a value that it cannot have, by tensormap.replace: a box is 1 to 256 elements, an "
    "element stride 1 to 8, the address and the strides are multiples of 16 bytes",
)


def _gone(f: Violation, at: Memory) -> str:
    return (
        f"{count(f.size)} at {at.shared(f.address)}: {_block(f)} has ended, and its shared memory with it; a barrier "
        "of the cluster before its end would keep it alive"
    )


def _no_map(f: Violation, at: Memory) -> str:
    return NO_MAP[f.size] + (f" ({at.globally(f.address, 128)})" if f.address else "")


def _swizzle(size: int) -> str:
    return f"with a swizzle of {size} bytes" if size > 16 else "with no swizzle"


def _absent(f: Violation) -> str:
    return f"lanes of the mask 0x{f.address:08x} are not here: only 0x{f.size:08x} are"


def in_groups(place: Place) -> bool:
    """Whether the code is CUDA's own of co-operative groups."""
    return "/cooperative_groups" in place.inner_file


def _block(f: Violation) -> str:
    return f"block {f.other_block}" if f.other_block else "the block itself"


MESSAGES: dict[str, Callable[[Violation, Memory], str]] = {
    "GLOBAL_BOUNDS": lambda f, at: at.globally(f.address, f.size),
    "SHARED_BOUNDS": lambda f, at: _outside_shared(f, at),
    "SHARED_PAST_END": lambda f, at: (
        f"{count(f.size)} at {at.shared(f.address)}, past the end of the block's shared memory{_given(f, at)}; "
        "hardware does not notice, because it allocates shared memory in units of 128 bytes"
    ),
    "LOCAL_BOUNDS": lambda f, at: _outside(f, f"the thread's {at.kernel.local_bytes} bytes of local memory"),
    "NO_TEXTURE": lambda f, at: (
        f"the handle {f.address:#x} is not a texture object (for surfaces: a surface object), or it was destroyed"
    ),
    "SURFACE_BOUNDS": lambda f, at: (
        f"{count(f.size)} of a surface, outside its array, which is {at.at(f.address)}; x is in bytes"
    ),
    "NULL_POINTER": lambda f, at: at.globally(f.address, f.size),
    "MISALIGNED": lambda f, at: f"{at.generically(f.address, f.size)}: the address is not a multiple of {f.size}",
    "GLOBAL_UNINITIALISED": lambda f, at: f"{at.globally(f.address, f.size)}, which was never written",
    "SHARED_UNINITIALISED": lambda f, at: f"{count(f.size)} at {at.shared(f.address)}, which was never written",
    "RACE_READ_AFTER_WRITE": lambda f, at: _shared_race(f, at, "read", "written"),
    "RACE_WRITE_AFTER_READ": lambda f, at: _shared_race(f, at, "written", "read"),
    "RACE_WRITE_AFTER_WRITE": lambda f, at: _shared_race(f, at, "written", ""),
    "GLOBAL_READ_AFTER_WRITE": lambda f, at: _global_race(f, at, "read", "written"),
    "GLOBAL_WRITE_AFTER_READ": lambda f, at: _global_race(f, at, "written", "read"),
    "GLOBAL_WRITE_AFTER_WRITE": lambda f, at: _global_race(f, at, "written", ""),
    "READ_ONLY_WRITTEN": lambda f, at: _read_only(f, at, "read here", "wrote"),
    "READ_ONLY_EARLIER": lambda f, at: _read_only(f, at, "written here", "read"),
    "EARLY_READ_AFTER_WRITE": lambda f, at: _early(f, at, "read", "written"),
    "EARLY_WRITE_AFTER_READ": lambda f, at: _early(f, at, "written", "read"),
    "EARLY_WRITE_AFTER_WRITE": lambda f, at: _early(f, at, "written", ""),
    "SAME_VALUE": lambda f, at: (
        f"{at.globally(f.address, f.size)} are written here, and touched by {f.someone}{f.there}, {f.unordered}; but "
        "it writes the value that was there already, which does no harm"
    ),
    "REPLICAS_DIFFER": lambda f, at: (
        f"{f.someone} and this one hold the same element of a tile, and store it to {at.shared(f.address)}, with "
        "different values: in a sum of products the last bits may depend on the thread; which one stays is not defined"
    ),
    "UNDEFINED_PRODUCT": lambda f, at: _undefined_operand(f),
    "UNDEFINED_ADDRESS": lambda f, at: _undefined(f, "the address"),
    "UNDEFINED_BRANCH": lambda f, at: _undefined(f, "the condition"),
    "UNDEFINED_PRINT": lambda f, at: _undefined(f, f"argument {f.size} after this printf's text"),
    "UNDEFINED_STORE": lambda f, at: _undefined(f, "what is written to memory"),
    "UNDEFINED_ATOMIC": lambda f, at: _undefined(f, "an operand of this atomic"),
    "BARRIER_DIVERGENCE": lambda f, at: (
        f"barrier {f.address}: threads of the block wait at different barriers, here and{f.there} ({f.someone})"
    ),
    "BARRIER_SKIPPED": lambda f, at: (
        f"barrier {f.address}: threads wait here, and {f.someone} misses it and ends; all threads "
        "of a block must reach a barrier, unless they have returned before"
    ),
    "BARRIER_DEADLOCK": lambda f, at: (
        f"barrier {f.address}: {f.size} threads have arrived and wait, and no other thread can come"
    ),
    "CLUSTER_DEADLOCK": lambda f, at: (
        f"the cluster's barrier: threads wait here, and {f.address} of the cluster have neither arrived nor exited, "
        "and cannot reach it"
    ),
    "CLUSTER_TWICE": lambda f, at: (
        "the cluster's barrier: the thread arrives here again before it has waited for its first arrival"
    ),
    "CLUSTER_NOT_ARRIVED": lambda f, at: "the cluster's barrier: the thread waits here without having arrived",
    "MBARRIER_COUNT": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)} must be initialised for 1 to 1,048,575 arrivals, got {f.size}"
    ),
    "MBARRIER_NOT_THERE": lambda f, at: (
        f"there is no mbarrier at {at.shared(f.address)}: none was initialised there, or it is no longer valid"
    ),
    "MBARRIER_NOT_FENCED": lambda f, at: (
        f"this copy completes on the mbarrier at {at.shared(f.address)}, which {f.someone} initialised{f.there}: after "
        "that, and before the barrier, that thread needs fence.mbarrier_init, or fence.proxy.async"
    ),
    "MBARRIER_FULL": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)}: more arrivals in this phase than it was initialised for"
    ),
    "MBARRIER_AT_ONCE": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)}: lanes of this warp arrive here together, and they are more than the "
        f"phase lacks: it was initialised{f.there} for fewer arrivals"
    ),
    "DEADLOCK_BROUGHT": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)}, before the deadlock: copies have brought {f.size} of the bytes that "
        "this phase expects, and this copy was the last"
    ),
    "DEADLOCK_OVERRUN": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)}, before the deadlock: this arrival ended a phase, and no thread had "
        f"yet waited for the phase before it ({f.size} {'phase' if f.size == 1 else 'phases'} in all): do more threads "
        f"arrive than it was initialised for{f.there}, or do they arrive too early?"
    ),
    "DEADLOCK_STALE": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)}, before the deadlock: this thread's wait passed here without waiting "
        f"({f.size} {'time' if f.size == 1 else 'times'}): the parity named a phase that had ended, and for which the "
        "thread had waited before; if the next phase was meant, the parity is wrong"
    ),
    "DEADLOCK_MBARRIER": lambda f, at: (
        f"a thread waits here for a phase of the mbarrier at {at.shared(f.address & 0xFFFFFFFF)} that will not end: "
        f"arrivals missing: {f.size} of the {f.address >> 32} for which {f.someone} initialised it{f.there}; all other "
        "threads wait too, or have ended"
    ),
    "DEADLOCK_BYTES": lambda f, at: (
        f"a thread waits here for a phase of the mbarrier at {at.shared(f.address)} that will not end: {f.size} bytes "
        f"are expected that no copy brings; the last expect_tx was by {f.someone}{f.there}"
    ),
    "DEADLOCK_EXCESS": lambda f, at: (
        f"a thread waits here for a phase of the mbarrier at {at.shared(f.address)} that will not end: copies have "
        f"brought {f.size} bytes more than were expected (expect_tx), the last one by {f.someone}{f.there}"
    ),
    "BARRIER_TURNS": lambda f, at: (
        f"barrier {f.address}: {f.someone}{f.there} arrived when it was last complete, and nothing orders this thread "
        "after that: it may come first, and be counted instead of another"
    ),
    "MBARRIER_INIT_RACE": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)} is used here and initialised by {f.someone}{f.there}, {f.missing} "
        "between them: this thread may come first, and find no mbarrier yet"
    ),
    "MBARRIER_BYTES": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)} must expect at most 1,048,575 bytes at a time, got {f.size} more"
    ),
    "MBARRIER_EARLY": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)}: a thread arrives here for the next phase, and no thread has waited "
        "for the end of this one, which lacks only the bytes of copies: if they come later, this is one "
        "arrival too many"
    ),
    "MBARRIER_ELSEWHERE": lambda f, at: (
        f"the mbarrier at {at.shared(f.address)}: "
        + (
            "this instruction is for one's own block (.shared::cta); for that of another it needs .shared::cluster"
            if f.size
            else "it is another block's, and only its own threads can wait for it, initialise it or let it end"
        )
    ),
    "WGMMA_BOUNDS": lambda f, at: (
        "the wgmma reads "
        + _outside(f, "the block's shared memory")
        + ": the start or an offset of a descriptor is wrong"
    ),
    "WGMMA_PATTERN": lambda f, at: (
        f"{'A' if f.size >> 16 else 'B'} begins at {at.shared(f.address)}; with a swizzle of {f.size & 0xFFFF} bytes "
        f"it must begin in the first row of a pattern, which repeats every {8 * (f.size & 0xFFFF)} bytes"
    ),
    "WARPGROUP_INCOMPLETE": lambda f, at: (
        f"all four warps of a warpgroup must execute this together, and {f.address} of them "
        f"{'does' if f.address == 1 else 'do'}; the number of the first of the four is a multiple of 4"
    ),
    "WARPGROUP_APART": lambda f, at: (
        "all four warps of a warpgroup must execute the same instruction here, with the same descriptors; "
        + (f"{f.someone} has others" if f.other_place == f.place else f"{f.someone} executes another{f.there}")
    ),
    "REGISTERS_EXCEEDED": lambda f, at: (
        f"the warps of the block have asked for {f.address} registers in all, and the launch gave them {f.size}"
    ),
    "WGMMA_REGISTER_READ": lambda f, at: (
        f"an accumulator of the wgmma{f.there} is read here, and the warp has not waited for that (wgmma.wait_group)"
    ),
    "WGMMA_REGISTER_WRITTEN": lambda f, at: (
        f"a register of the wgmma{f.there} is written here, and the warp has not waited for that (wgmma.wait_group)"
    ),
    "WGMMA_OPERAND_WRITTEN": lambda f, at: (
        f"{at.shared(f.address)} is written here while the wgmma{f.there} may still read it: before this, its warp "
        "must have waited for it (wgmma.wait_group), and then synchronised with this thread (a barrier)"
    ),
    "WGMMA_SWIZZLE": lambda f, at: (
        f"{at.shared(f.address)} is read here {_swizzle(f.size & 0xFFFF)}, as the descriptor says, and {f.someone} "
        f"copied it there{f.there} {_swizzle(16 << (f.size >> 16))}, as the tensor map says"
    ),
    "WGMMA_NO_WAIT": lambda f, at: "the kernel ends, and the warp has not waited for this wgmma (wgmma.wait_group)",
    "WGMMA_NO_FENCE": lambda f, at: (
        f"registers of this wgmma have been used{f.there}, with no wgmma.fence in between"
        if f.other_place
        else "there is no wgmma.fence before the first wgmma"
    ),
    "NO_PROXY_FENCE": lambda f, at: (
        f"{at.shared(f.address)} is read here by the async proxy, and {f.someone} wrote it{f.there} by an ordinary "
        "write: after that, and before the barrier, that thread needs fence.proxy.async"
    ),
    "REFILL_NOT_FENCED": lambda f, at: (
        f"{at.shared(f.address)} is written here by the async proxy, and {f.someone} touched it{f.there} by an "
        "ordinary access: after that, and before the barrier, that thread needs fence.proxy.async by PTX's text "
        "(disputed: many kernels do without)"
    ),
    "BULK_SIZE": lambda f, at: f"a bulk copy must have a multiple of 16 bytes, got {f.size}",
    "BULK_PLACE": lambda f, at: f"{at.at(f.address)} must be at a multiple of {f.size} bytes for this copy",
    "BULK_CORNER": lambda f, at: (
        f"the first coordinate must be a multiple of 16 bytes, got {signed(f.address)} elements of {f.size} bytes"
    ),
    "BULK_NEGATIVE": lambda f, at: (
        f"the coordinates of a tensor that is stored to must not be negative, got {signed(f.address)} in dimension "
        f"{f.size}; a load fills what is outside, but a store does not clip on that side"
    ),
    "SWIZZLE_OFFSET": lambda f, at: (
        f"{at.shared(f.address)}: a tile with this swizzle must begin at a multiple of {f.size} bytes, after which its "
        "pattern repeats: the swizzle follows the bits of the address, not the rows of the tile"
        + (f", as which {f.someone} reads it{f.there}" if f.other_place else "")
    ),
    "SWIZZLE_UNCLEAR": lambda f, at: (
        f"{at.shared(f.address)}: a tile with this swizzle begins at no multiple of {f.size} bytes, after which its "
        "pattern repeats: the swizzle follows the bits of the address, not the rows of the tile. That is right if "
        + (f"{f.someone}, which reads it{f.there}," if f.other_place else "the code that writes it")
        + " takes these bits into account, which cannot be seen from its accesses"
    ),
    "TENSOR_MAP": lambda f, at: _no_map(f, at),
    "BULK_IN_FLIGHT": lambda f, at: (
        f"{at.shared(f.address)} is touched while the bulk copy of {f.someone}{f.there} is in flight: this thread has "
        "not waited for its mbarrier, nor synchronised with one that has"
    ),
    "BULK_OTHER_PHASE": lambda f, at: (
        f"{at.shared(f.address)} is touched while the bulk copy of {f.someone}{f.there} is in flight: this thread's "
        "wait for its mbarrier was for an earlier phase (the other parity), and passed at once"
    ),
    "BULK_WAITED_ELSEWHERE": lambda f, at: (
        f"{at.shared(f.address)} is touched while the bulk copy of {f.someone}{f.there} is in flight: this thread's "
        f"last wait was for the mbarrier at {at.shared(f.size)}, and passed at once, for a phase that was over before "
        "(is the parity wrong?); for the copy's own mbarrier it has not waited, nor synchronised with a thread that has"
    ),
    "BULK_STILL_READS": lambda f, at: (
        f"{at.shared(f.address)} is written here, and the bulk copy of {f.someone}{f.there} may still read it: before "
        "this, that thread must wait for it (cp.async.bulk.wait_group.read, or its mbarrier), and synchronise with this"
        " one"
    ),
    "BULK_STILL_WRITES": lambda f, at: (
        f"{at.globally(f.address, f.size)} are touched here, and the bulk copy of {f.someone}{f.there} may not have "
        "written them yet: before this, that thread must wait for it (cp.async.bulk.wait_group, without .read), and "
        "synchronise with this one" + ("; or two tiles have the same place" if ".bulk" in f.place.text else "")
    ),
    "BULK_AT_EXIT": lambda f, at: (
        f"the thread ends, and this copy may not have read its {f.size} bytes from {at.shared(f.address)} yet: "
        "without cp.async.bulk.wait_group(.read) before that, the block's shared memory may be gone first"
    ),
    "BULK_AFTER_EXIT": lambda f, at: (
        f"{_block(f)} has ended, and this copy may still {'write to' if f.size else 'read'} its shared memory, at "
        f"{at.shared(f.address)}: no thread has waited for its mbarrier"
    ),
    "BULK_UNEXPECTED": lambda f, at: (
        f"the phase of the mbarrier at {at.shared(f.address)} ends before the {f.size} bytes of this copy have come: "
        f"fewer were expected (expect_tx, last by {f.someone}{f.there}) than copies bring, or this copy began before "
        "the phase that it is for"
    ),
    "CANCEL_AGAIN": lambda f, at: (
        "this block has already seen that a clusterlaunchcontrol.try_cancel failed: what another one does is undefined"
    ),
    "BLOCK_GONE": lambda f, at: _gone(f, at),
    "MBARRIER_GONE": lambda f, at: _gone(f, at),
    "BLOCK_MAY_END": lambda f, at: (
        f"{at.shared(f.address)}: nothing keeps {_block(f)} from ending before this access; a barrier of the cluster "
        "after it would"
    ),
    "BLOCK_NOT_STARTED": lambda f, at: (
        f"{count(f.size)} at {at.shared(f.address)}: nothing makes sure that {_block(f)} has started; a barrier of the "
        "cluster before this access would"
    ),
    "WARP_DIVERGENCE": lambda f, at: _absent(f) + (f"; {f.someone} waits{f.there}" if f.other_place else ""),
    "WARP_MET_APART": lambda f, at: (
        f"{_absent(f)}; some of them were{f.there} when the others came here, and the two counted as one meeting: all "
        "lanes of the mask must come to each place, or none"
    ),
    "OUTSIDE_MASK": lambda f, at: f"the mask 0x{f.address:08x} leaves out lanes that execute this: 0x{f.size:08x}",
    "DEADLOCK_MEMORY": _waiting,
    "DEADLOCK_BARRIER": lambda f, at: (
        f"barrier {f.address}: {f.size} threads have arrived and wait for others, which wait elsewhere and will not "
        "come"
    ),
    "ENDLESS": lambda f, at: (
        "this loop never ends: it returns with the same values in all registers, and reads no memory"
    ),
    "WATCHDOG": lambda f, at: (
        f"the block has done the work of {f.address:,} instructions: it never ends, or is too much work for the "
        "emulator"
    ),
    "UNKNOWN_INSTRUCTION": lambda f, at: f"the emulator cannot execute it: {f.place.problem}",
    "STACK_OVERFLOW": lambda f, at: (
        f"the functions that are called here need more than the {f.address} bytes of stack that a thread has"
    ),
    "WILD_CALL": lambda f, at: (
        f"0x{f.address:x} is the address of no function that this kernel can call"
        if f.size
        else "the return address has been overwritten: an access to a local array was out of bounds"
    ),
    "BAD_FREE": lambda f, at: f"free of {at.globally(f.address, f.size)}: no allocation of malloc begins there",
    "ASSERTION": lambda f, at: "an assertion does not hold",
    "TRAP": lambda f, at: (
        "the kernel trapped"
        + ("; grid.sync() needs a co-operative launch (cudaLaunchCooperativeKernel)" if in_groups(f.place) else "")
    ),
    "COPY_IN_FLIGHT": lambda f, at: (
        f"{at.shared(f.address)} is touched while the cp.async of {f.someone}{f.there} is still in flight"
    ),
}


def explain(finding: Violation, memory: Memory) -> str:
    """A finding's message, with `memory`'s names for addresses."""
    return MESSAGES[finding.problem](finding, memory)
