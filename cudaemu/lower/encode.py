"""Slots for registers, and the program as the machine takes it."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Mapping
from itertools import chain

from cudaemu.lower.core import (
    ABSENT,
    AROUND_SHIFT,
    NONE,
    SPECIALS,
    STACK_BYTES,
    Constant,
    Def,
    Flag,
    FrameBytes,
    Header,
    Kind,
    Lowered,
    Lowering,
    Program,
    Raw,
    Settled,
    Unit,
    slot_bytes,
)
from cudaemu.lower.description import ATOMIC, PURE, Description, Effect
from cudaemu.ptx import Function, Register

WIDTHS = (0, 2, 4, 8, 16)  # bytes per lane of a register; 0: a predicate
NO_GRANULE = 32  # nothing is written to global memory
STACK_UNIT = 16  # bytes: frames are a multiple of it


def _unit_size(width: int) -> int:
    """Bytes of a register in the frame."""
    return 32 * width if width else 4


class _Liveness:
    """Which registers are alive where, in one unit. `ranges`: the first and the last instruction of each one's life, in
    the order in which the code names them. Sets of registers are integers, a bit for each that outlives a block."""

    def __init__(self, lowering: Lowering, unit: Unit):
        self.code, self.tables = lowering.code, lowering.tables
        starts = {unit.begin}
        for pc, lowered in enumerate(self.code[unit.begin : unit.end], unit.begin):
            if lowered.kind in (Kind.BRANCH, Kind.TABLE, Kind.EXIT, Kind.RETURN):
                starts.update((*self.after(pc), pc + 1))
        self.bounds = sorted(start for start in starts if start < unit.end) + [unit.end]
        self.block_at = {start: number for number, start in enumerate(self.bounds[:-1])}
        self.ranges: dict[Register, list[int]] = {}
        self.solve()

    def after(self, pc: int) -> list[int]:
        """Where a block that ends here can go on."""
        last = self.code[pc]
        following = list(self.tables[last.place]) if last.kind == Kind.TABLE else []
        if last.kind == Kind.BRANCH:
            following.append(last.place)
        if last.kind not in (Kind.BRANCH, Kind.EXIT, Kind.RETURN) or last.guard is not None:
            following.append(pc + 1)
        return following

    def solve(self) -> None:
        read, written = self.scan()
        self.names = list(set().union(*read))  # by number
        bits = {register: 1 << number for number, register in enumerate(self.names)}
        reads = [sum(bits[register] for register in registers) for registers in read]
        writes = [sum(bits[register] for register in bits.keys() & registers) for registers in written]
        ranges = self.ranges
        following = [
            [self.block_at[pc] for pc in self.after(end - 1) if pc in self.block_at] for end in self.bounds[1:]
        ]
        self.live_in = list(reads)
        changed = True
        while changed:
            changed = False
            for block in range(len(reads) - 1, -1, -1):
                new = reads[block] | self.union(following[block]) & ~writes[block]
                if new != self.live_in[block]:
                    self.live_in[block], changed = new, True
        self.live_out = [self.union(followers) for followers in following]
        # A life begins no later than the first block where the register is alive, and ends no sooner than the last.
        lives = [
            each
            for block, (begin, end) in enumerate(zip(self.bounds, self.bounds[1:], strict=False))
            for each in ((self.live_in[block], begin), (self.live_out[block], end - 1))
        ]
        seen = 0
        for alive, pc in lives:
            for register in self.registers(alive & ~seen):
                ranges[register][0] = min(ranges[register][0], pc)
            seen |= alive
        seen = 0
        for alive, pc in reversed(lives):
            for register in self.registers(alive & ~seen):
                ranges[register][1] = max(ranges[register][1], pc)
            seen |= alive

    def scan(self) -> tuple[list[set[Register]], list[set[Register]]]:
        """What each block takes from those before it, and what it writes; and each register's life as far as
        instructions name it."""
        reads, writes = [], []
        first: dict[Register, int] = {}
        last: dict[Register, int] = {}
        for begin, end in zip(self.bounds, self.bounds[1:], strict=False):
            read: set[Register] = set()
            written: set[Register] = set()
            for pc, lowered in enumerate(self.code[begin:end], begin):
                for register in lowered.reads:
                    last[register] = pc
                    if register not in written:
                        first.setdefault(register, pc)
                        read.add(register)
                for register in lowered.writes:
                    last[register] = pc
                    if register not in written:
                        first.setdefault(register, pc)
                        if lowered.guard is None:
                            written.add(register)
                        else:
                            read.add(register)  # what the guard leaves must be kept
            reads.append(read)
            writes.append(written)
        self.ranges = {register: [pc, last[register]] for register, pc in first.items()}
        return reads, writes

    def union(self, blocks: list[int]) -> int:
        out = 0
        for block in blocks:
            out |= self.live_in[block]
        return out

    def registers(self, bits: int) -> list[Register]:
        found = []
        while bits:
            low = bits & -bits
            found.append(self.names[low.bit_length() - 1])
            bits ^= low
        return found

    def before(self, pc: int) -> set[Register]:
        """The registers that are alive before an instruction."""
        block = max(number for number, start in enumerate(self.bounds[:-1]) if start <= pc)
        live = set(self.registers(self.live_out[block]))
        for at in range(self.bounds[block + 1] - 1, pc - 1, -1):
            lowered = self.code[at]
            if lowered.guard is None:
                live.difference_update(lowered.writes)
            live.update(lowered.reads)
        return live


class _Slots:
    """Linear scan, one pool of slots per width. A slot is free after the last use: destinations never overlap sources.
    Units do not share any, for one runs while another waits for it."""

    def __init__(self) -> None:
        self.of: dict[Register, int] = {}
        self.count = dict.fromkeys(WIDTHS, 0)

    def assign(self, ranges: dict[Register, list[int]]) -> None:
        free: dict[int, list[int]] = {width: [] for width in WIDTHS}
        active: list[tuple[int, int, int]] = []  # last use, width, slot
        for register, (begin, end) in sorted(ranges.items(), key=lambda item: item[1]):
            while active and active[0][0] < begin:
                _, width, slot = heapq.heappop(active)
                free[width].append(slot)
            width = slot_bytes(register)
            if free[width]:
                slot = free[width].pop()
            else:
                slot, self.count[width] = self.count[width], self.count[width] + 1
            self.of[register] = slot
            heapq.heappush(active, (end, width, slot))


def _save_registers(lowering: Lowering, unit: Unit, liveness: _Liveness) -> None:
    """Give the calls of a function that may be entered again what they have to save, and where."""
    begin = unit.frame_bytes = -(-unit.frame_bytes // STACK_UNIT) * STACK_UNIT
    order = {} if unit.entry else {register: number for number, register in enumerate(liveness.ranges)}
    for pc in range(unit.begin, unit.end):
        lowered = lowering.code[pc]
        if lowered.name != "restore":
            continue
        alive = [] if unit.entry else sorted(liveness.before(pc) - {lowering.stack}, key=order.__getitem__)
        save = next(lowering.code[at] for at in range(pc, unit.begin, -1) if lowering.code[at].name == "save")
        save.given = [lowering.stack, Raw(begin), *alive]
        lowered.given = [lowering.stack, Raw(begin), *map(Def, alive)]
        save.settle()
        lowered.settle()
        unit.frame_bytes = max(unit.frame_bytes, begin + 16 * len(alive))


SOON = 256  # instructions


def _mark_tentative_loads(code: list[Lowered]) -> None:
    """A plain load, and soon afterwards an atomic on the same place: `old = *p; do … atomicCAS(p, old, …)`, or a look
    whether an atomic is worth while. Whatever the load sees, the atomic decides."""
    definitions: dict[Register, list[Lowered]] = {}
    for lowered in code:
        for register in lowered.writes:
            definitions.setdefault(register, []).append(lowered)

    def root(base: Settled | None, offset: int) -> tuple[Settled | None, int]:
        """Where an address comes from, through additions of constants, moves and conversions."""
        for _ in range(16):
            made = definitions.get(base, ()) if isinstance(base, Register) else ()
            if len(made) != 1 or made[0].guard is not None:
                break
            source, *more = made[0].operands[1:]
            if made[0].about.effect == Effect.COPIES or made[0].name == "cvta":
                base = source
            elif made[0].name in ("add.u64", "add.u32") and isinstance(more[0], Constant) and not more[0].special:
                base, offset = source, offset + more[0].value
            else:
                break
        if isinstance(base, Constant) and not base.special:
            return None, base.value + offset
        return base, offset & NONE

    atomics: dict[tuple[Settled | None, int], list[int]] = {}
    for pc, lowered in enumerate(code):
        if lowered.about.effect in ATOMIC and lowered.about.effect != Effect.UPDATES_MANY:
            at = lowered.about.source
            atomics.setdefault(root(lowered.operands[at], lowered.number(at + 1)), []).append(pc)
    for pc, lowered in enumerate(code):
        if _is_plain_load(lowered):
            place = root(lowered.operands[0], lowered.number(1))
            if any(pc < at < pc + SOON for at in atomics.get(place, ())):
                lowered.flags |= Flag.TENTATIVE


def _is_plain_load(lowered: Lowered) -> bool:
    """Of registers, from memory that other threads write as well."""
    about = lowered.about
    return about.elements and not about.reads.isdisjoint(EITHER) and not lowered.flags & Flag.STRONG


def _mark_structures(code: list[Lowered], bounds: list[int]) -> set[Register]:
    """What pads a structure is copied with it, by accesses of its own (`ld.shared.v4.u8`). A structure is what a basic
    block accesses side by side from one address. A gap is smaller than the largest piece and comes after a member: a
    piece may be unwritten if something is written around it, in as many bytes as the largest has. Returns what is
    loaded of pieces that may be nothing but a gap."""
    loaded: set[Register] = set()
    for begin, end in zip(bounds, bounds[1:], strict=False):
        accesses: dict[tuple[str, Settled | str, int], list[tuple[int, int, Lowered]]] = {}
        anew: dict[Settled | str, int] = {}  # how often it has become another address
        for lowered in code[begin:end]:
            if lowered.about.elements and "param" not in lowered.about.reads and not lowered.flags & Flag.STRONG:
                address = lowered.operands[0]
                offset, shape = lowered.number(1), lowered.number(2)
                at = offset - ((offset & 1 << 31) << 1)
                size = (shape & 255) * (shape >> 8 & 255)
                base: Settled | str = address
                if isinstance(address, Constant):
                    base, at = address.special, address.value + at
                accesses.setdefault((lowered.name, base, anew.get(base, 0)), []).append((at, size, lowered))
            for register in lowered.writes:
                anew[register] = anew.get(register, 0) + 1
        for pieces in accesses.values():
            pieces.sort(key=lambda piece: piece[0])
            starts = [n for n, (at, _, _) in enumerate(pieces) if not n or at != sum(pieces[n - 1][:2])]
            for first, last in zip(starts, [*starts[1:], len(pieces)], strict=True):
                largest = max(size for _, size, _ in pieces[first:last])
                for _, size, lowered in pieces[first:last]:
                    shape = lowered.number(2)
                    if last - first < 2 or not shape >> AROUND_SHIFT:
                        continue
                    lowered.flags |= Flag.MAY_PAD
                    if size == largest:
                        continue
                    old = lowered.operands[2]
                    around = Raw(shape & (1 << AROUND_SHIFT) - 1 | largest.bit_length() - 1 << AROUND_SHIFT)
                    lowered.operands = [around if operand is old else operand for operand in lowered.operands]
                    lowered.others = [around if operand is old else operand for operand in lowered.others]
                    loaded.update(lowered.writes)
    return loaded


def _drop_unread_results(code: list[Lowered]) -> None:
    """An exchange whose result nobody reads is there for the store's sake: the place may be unwritten."""
    exchanges = [lowered for lowered in code if lowered.about.effect == Effect.OVERWRITES and lowered.writes]
    read = {register for lowered in code for register in lowered.reads}
    for lowered in exchanges:
        if lowered.writes[0] not in read:
            lowered.operands = [ABSENT, *lowered.operands[1:]]
            lowered.writes, lowered.others = [], [*lowered.others, ABSENT]


def _mark_dependent_stores(code: list[Lowered]) -> None:
    """Stores that others wait for, of values that come of what was loaded: those loads are over when they are seen."""
    signals = [
        lowered
        for lowered in code
        if lowered.flags & Flag.SIGNAL and lowered.about.effect in STORING and "global" in lowered.about.writes
    ]
    if not signals:
        return
    readers: dict[Register, list[Lowered]] = {}
    for lowered in code:
        for register in lowered.sources:
            readers.setdefault(register, []).append(lowered)
    reached = [
        register
        for lowered in code
        if lowered.about.effect in LOADING and "param" not in lowered.about.reads
        for register in lowered.writes
    ]
    found: set[Register] = set()
    while reached:
        register = reached.pop()
        if register not in found:
            found.add(register)
            reached += [each for lowered in readers.get(register, ()) for each in lowered.writes]
    for lowered in signals:
        values = lowered.operands[lowered.about.values :]
        if any(value in found for value in values if isinstance(value, Register)):
            lowered.flags |= Flag.DEPENDENT


def _mark_speculated_loads(code: list[Lowered], liveness: _Liveness, machine: Mapping[str, Description]) -> None:
    """Loads that the compiler has moved above a short-circuit: a block ends in a branch on `a or b`, b depends on a
    load, and where a is true the branch goes to where nothing that depends on the load is alive. The sanitizer's note
    of such a load waits for the predicate, which becomes a SETTLING one (memory.cpp)."""
    for begin, end in zip(liveness.bounds, liveness.bounds[1:], strict=False):
        branch = code[end - 1]
        if branch.kind != Kind.BRANCH or branch.guard is None:
            continue
        made = [pc for pc in range(begin, end - 1) if branch.guard in code[pc].writes]
        at = made[-1] if made else begin
        decides = code[at]
        if decides.name not in ("or.pred", "and.pred") or decides.guard is not None:
            continue
        taken = (decides.name == "or.pred") != branch.negated  # if the other predicate decides
        follower = liveness.block_at.get(branch.place if taken else end)
        alive = set() if follower is None else set(liveness.registers(liveness.live_in[follower]))
        first, second = (_behind(code, begin, at, end, operand) for operand in (1, 2))
        for other, loads, others in ((1, first, second), (0, second, first)):
            # What the source reads before it, is read in any case.
            if loads and min(loads) > max(others, default=-1) and not alive & set().union(*loads.values()):
                numbers = [Raw(other), *map(Raw, loads)]
                decides.name += ".settling"
                decides.about = machine[decides.name]
                decides.operands = [*decides.operands, *numbers]
                decides.others = [*decides.others, *numbers]
                for pc in loads:
                    code[pc].flags |= Flag.SPECULATED
                break


def _mark_unused_loads(code: list[Lowered], liveness: _Liveness, machine: Mapping[str, Description]) -> None:
    """A small tile's elements are held by several threads each: all of them load, one of them stores. And a tile is
    loaded whole where `tl.where` takes a part. Where a load's value comes, within a basic block with nothing that
    orders threads, to nothing but values of stores with guards and selections, nothing depends on it in a lane that no
    guard lets store and that selects the other value: the sanitizer's note of it waits for these, which become
    SETTLING ones (memory.cpp)."""
    for block, (begin, end) in enumerate(zip(liveness.bounds, liveness.bounds[1:], strict=False)):
        loads = [pc for pc in range(begin, end) if _is_plain_load(code[pc]) and "global" in code[pc].about.reads]
        if not loads:
            continue
        uses = _Uses(code, begin, end, set(liveness.registers(liveness.live_out[block])))
        for pc in loads:
            load = code[pc]
            if load.flags & Flag.SPECULATED or not (found := uses.settling(pc)):
                continue
            load.flags |= Flag.SPECULATED | Flag.OF_TILE
            its_pc = Raw(pc)
            for at, numbers in found:
                use, more = code[at], [its_pc, *map(Raw, numbers)]
                if use.name in SELECTIONS:
                    use.name += ".settling"
                    use.about = machine[use.name]
                use.operands = [*use.operands, *more]
                use.others = [*use.others, *more]


SELECTIONS = ("selp.b16", "selp.b32", "selp.b64")
UNORDERED = PURE | {Effect.LOADS, Effect.STORES, Effect.NOTHING, Effect.EXCHANGES, Effect.OBSERVES, Effect.MULTIPLIES}
Settling = list[tuple[int, tuple[int, ...]]]


class _Uses:
    """Who uses what, in a basic block."""

    def __init__(self, code: list[Lowered], begin: int, end: int, alive: set[Register]):
        self.code, self.alive = code, alive
        self.readers: dict[Register, list[int]] = {}
        self.orders: list[int] = []
        for pc in range(begin, end):
            for register in dict.fromkeys(code[pc].reads):
                self.readers.setdefault(register, []).append(pc)
            if code[pc].about.effect not in UNORDERED:
                self.orders.append(pc)

    def settling(self, pc: int) -> Settling | None:
        """The stores and selections to which the value of a load comes, each with the elements that do (bits), and of a
        selection, which source it is and whether it is the last one on the way. None if the value comes to anything
        else, or past something that orders threads."""
        load = self.code[pc]
        found: Settling = []
        for number, register in enumerate(load.operands[3:]):
            if isinstance(register, Register):
                uses = self.of(register, 1 << number, pc, load, True)
                if uses is None:
                    return None
                found += uses
        past = next((at for at in self.orders if at > pc), len(self.code))
        return None if any(at > past for at, _ in found) else found

    def of(self, register: Register, element: int, pc: int, load: Lowered, alone: bool) -> Settling | None:
        """Those of a register that has a value since `pc`; None if it is used for anything else, or not at all.
        `alone`: so far nothing else has used the value."""
        if register in self.alive:
            return None
        found: Settling = []
        readers = [at for at in self.readers.get(register, ()) if at > pc]
        alone = alone and len(readers) == 1
        for at in readers:
            use = self.code[at]
            if register in (use.guard, use.target):
                return None
            sources = [place for place, each in enumerate(use.operands) if each == register]
            if use.name.removesuffix(".settling") in SELECTIONS and sources in ([1], [2]):
                further = self.of(use.writes[0], element, at, load, True) if alone else None
                found += [(at, (element, int(sources == [2]), int(not further))), *(further or ())]
            elif use.about.effect in PURE:
                for result in use.writes:
                    further = self.of(result, element, at, load, alone)
                    if further is None:
                        return None
                    found += further
            elif use.about.effect is Effect.STORES and use.about.elements and min(sources) >= 3:
                everywhere = use.guard is None or (use.guard == load.guard and use.negated == load.negated)
                if everywhere or use.flags & Flag.STRONG:
                    return None
                found.append((at, (element,)))
            else:
                return None
        return found or None


def _behind(code: list[Lowered], begin: int, at: int, end: int, operand: int) -> dict[int, set[Register]]:
    """The loads between `begin` and `at` that come to that operand of it and to nothing else in the block, with all
    that comes of them."""
    loads: dict[int, set[Register]] = {}
    for pc in range(at - 1, begin - 1, -1):
        lowered = code[pc]
        if lowered.kind != Kind.PLAIN or lowered.about.effect not in PURE and lowered.about.effect != Effect.LOADS:
            break  # from here on another thread may have written
        if not _is_plain_load(lowered) or lowered.guard:
            continue
        values = set(lowered.writes)
        for after in code[pc + 1 : end - 1]:
            if after is code[at]:
                continue
            if values.intersection(after.reads):
                if after.about.effect not in PURE:
                    break
                values.update(after.writes)
        else:
            if code[at].operands[operand] in values:
                loads[pc] = values
    return loads


EITHER = ("global", "shared")  # memory through which what is undefined is followed
LOADING, STORING = ATOMIC | {Effect.LOADS}, ATOMIC | {Effect.STORES}
PASSING = LOADING | {Effect.TRANSFERS}


def _followed(spaces: frozenset[str]) -> tuple[str, ...]:
    """Which of these it is; the cluster's is somebody's shared memory."""
    return tuple(memory for memory in EITHER if memory in spaces or memory == "shared" and "cluster" in spaces)


def _undefined(
    code: list[Lowered], kinds: Mapping[str, Description], unset: set[Register], local: bool, wary: bool
) -> set[Register]:
    """The registers that may hold something undefined: those that may never have been set, what local memory and
    shuffles give, and what is computed from these, also through memory. `wary`: global memory holds some already."""
    bring = {  # something undefined, whatever they are given
        name
        for name, about in kinds.items()
        if about.rule in ("SHUFFLED", "ANSWERED") or "local" in about.reads and (local or about.reads == {"local"})
    }
    reached: list[Register | str] = [
        *unset, *(register for lowered in code if lowered.name in bring for register in lowered.writes)
    ]  # fmt: skip
    if wary:
        reached.append("global")
    readers: dict[Register | str, list[Lowered]] = {}
    sources = {name: _followed(about.reads) for name, about in kinds.items() if about.effect in PASSING}
    targets = {name: _followed(about.writes) for name, about in kinds.items()}
    for lowered in code if reached else ():
        for register in lowered.reads:
            readers.setdefault(register, []).append(lowered)
        if lowered.name in sources:
            for memory in sources[lowered.name]:
                readers.setdefault(memory, []).append(lowered)
    found: set[Register | str] = set()
    while reached:
        holder = reached.pop()
        if holder in found:
            continue
        found.add(holder)
        if isinstance(holder, str):
            for lowered in readers.get(holder, ()):
                reached += lowered.writes
                if lowered.about.effect == Effect.TRANSFERS:
                    reached += targets[lowered.name]
            continue
        for lowered in readers.get(holder, ()):
            about = lowered.about
            if about.effect is Effect.STORES:
                reached += targets[lowered.name]
            if not about.reports:
                reached += lowered.writes
    return {each for each in found if not isinstance(each, str)}


def _multiplied(code: list[Lowered]) -> set[Register]:
    """The accumulators of wgmma, and its operands in registers."""
    products = [lowered for lowered in code if lowered.about.effect == Effect.MULTIPLIES_LATER]
    return {each for lowered in products for each in (*lowered.writes, *lowered.sources) if slot_bytes(each) == 4}


def _registers(function: Function) -> int:
    """Of a thread at launch, as ptxas chooses them where there is a setmaxnreg; 0 if it ignores that."""
    most, blocks = function.max_threads, function.directives.get("minnctapersm", (0,))[0]
    return 65536 // (most * blocks) // 8 * 8 if most and blocks else 0


def _key(constant: Constant) -> tuple[int, int, str]:
    return constant.width, constant.value & (1 << 8 * max(constant.width, 1)) - 1, constant.special


def encode(lowering: Lowering, wary: bool = False, tiles: bool = False) -> Program:
    code, machine = lowering.code, lowering.machine
    kinds = {name: machine[name] for name in {lowered.name for lowered in code}}
    effects = {about.effect for about in kinds.values()}
    for lowered in code:
        lowered.about = kinds[lowered.name]
        lowered.category = lowered.category or lowered.about.category
    if not effects.isdisjoint(ATOMIC):
        _mark_tentative_loads(code)
    _mark_dependent_stores(code)
    for lowered in code if tiles else ():
        to_shared = lowered.about.effect is Effect.STORES and "shared" in lowered.about.writes
        lowered.flags |= Flag.OF_TILE * (to_shared or lowered.category == "bulk.store")
    if Effect.OVERWRITES in effects:
        _drop_unread_results(code)
    slots = _Slots()
    ranges: list[dict[Register, list[int]]] = []
    unset: set[Register] = set()
    gaps: set[Register] = set()
    for unit in lowering.units:
        liveness = _Liveness(lowering, unit)
        _save_registers(lowering, unit, liveness)
        liveness.ranges.pop(lowering.stack, None)
        _mark_speculated_loads(code, liveness, machine)
        if tiles:
            _mark_unused_loads(code, liveness, machine)
        if Effect.MULTIPLIES_LATER in effects:  # in the background: no other register has the slot of one of these
            for register in _multiplied(code[unit.begin : unit.end]):
                liveness.ranges[register] = [unit.begin, unit.end]
        ranges.append(liveness.ranges)
        unset |= liveness.before(unit.begin) - {lowering.stack}
        gaps |= _mark_structures(code, liveness.bounds)
    local = any(unit.frame_bytes for unit in lowering.units)
    undefined = _undefined(code, kinds, unset | gaps, local, wary)
    for lives in ranges:
        for which in (False, True):  # what may be undefined has slots of its own
            slots.assign({register: life for register, life in lives.items() if (register in undefined) == which})

    distinct = {id(lowered.others): lowered.others for lowered in code}
    first: list[Constant | Raw | FrameBytes] = [lowering.true]
    others = dict.fromkeys(chain(first, *distinct.values()))
    keys = {each: _key(each) for each in others if isinstance(each, Constant)}
    constants = dict.fromkeys(keys.values(), 0)  # width, value, name of a special register -> place
    # The frame: predicates, then 16-, 32-, 64-, 128-bit registers, each width followed by its constants; the stack.
    calls = not {Kind.CALL, Kind.CALL_POINTER}.isdisjoint(lowered.kind for lowered in code)
    offset, stack = 0, NONE
    base: dict[int, int] = {}
    table: list[int] = []
    for width in WIDTHS:
        base[width] = offset
        offset += slots.count[width] * _unit_size(width)
        for constant in constants:
            if constant[0] == width:
                constants[constant] = offset
                table += [offset, width, SPECIALS.get(constant[2], 0), constant[1]]
                offset += _unit_size(width)
        if width == 8 and calls:
            stack = offset
            offset += _unit_size(8)
        offset = -(-offset // 64) * 64

    def number(operand: Constant | Raw | FrameBytes) -> int:
        if isinstance(operand, Raw):
            return operand.value & NONE
        if isinstance(operand, FrameBytes):
            return -(-operand.unit.frame_bytes // STACK_UNIT) * STACK_UNIT + operand.extra
        return constants[keys[operand]]

    places: dict[Settled | None, int] = {None: constants[keys[lowering.true]], lowering.stack: stack}
    for register, slot in slots.of.items():
        places[register] = base[slot_bytes(register)] + slot * _unit_size(slot_bytes(register))
    places.update((operand, number(operand)) for operand in others)

    flows = array("I")
    if undefined:
        flows.extend((int(local), len(unset), *sorted(places[register] for register in unset)))
    for pc, lowered in enumerate(code if undefined else ()):
        named = [*lowered.writes, *lowered.sources]
        if not undefined.isdisjoint(named) or lowered.guard in undefined:
            lowered.flags |= Flag.TRACKED
            flows.extend((pc, len(lowered.writes), len(lowered.sources), *(places[register] for register in named)))

    names: dict[str, int] = {}
    words = array("I")
    for lowered in code:
        name, target = names.setdefault(lowered.name, len(names)), lowered.target
        target = target if isinstance(target, int) else places[target]
        guard, negated = places[lowered.guard], NONE if lowered.negated else 0
        words.extend((name, guard, negated, lowered.flags, lowered.kind, target, len(lowered.operands)))
        words.extend([places[operand] for operand in lowered.operands])
    tables = array("I")
    for entries in lowering.tables:
        tables.extend((len(entries), *entries))
    entry = lowering.units[-1]
    begins = {unit.function.name: unit.begin for unit in lowering.units[:-1]}
    functions = array("I", [begins.get(name, NONE) for name in lowering.module.functions])
    local_bytes = -(-entry.frame_bytes // STACK_UNIT) * STACK_UNIT if calls else entry.frame_bytes
    granule = min({lowered.access for lowered in code} - {0}, default=16)
    stores = {lowered.global_store for lowered in code} - {0}
    touched = stores | {lowered.global_load for lowered in code} - {0}
    orders = Flag.ACQUIRE | Flag.RELEASE
    ordered = "fence" in names or any(flags & orders for flags in {lowered.flags for lowered in code})
    header = Header(
        instructions=len(code),
        frame_bytes=offset,
        local_bytes=local_bytes + (STACK_BYTES if calls else 0),
        static_shared=lowering.static_shared,
        granule_log2=int(math.log2(min(granule, 16))),
        constants=len(table) // 4,
        table_words=len(tables),
        predicates=base[0],
        registers_2=base[2],
        registers_4=base[4],
        registers_8=base[8],
        registers_16=base[16],
        entry=entry.begin,
        local_static=local_bytes,
        stack=stack,
        fences=int(ordered),
        global_granule_log2=int(math.log2(min(stores))) if stores else NO_GRANULE,
        global_access_log2=int(math.log2(min(touched))) if touched else NO_GRANULE,
        registers=_registers(lowering.function),
        functions=len(functions),
    )
    shared = [(v.name, at, v.size) for v, at in lowering.offsets.items() if v.space == "shared"]
    return Program(
        lowering.function.name,
        code,
        list(names),
        words,
        header,
        functions,
        array("Q", table),
        tables,
        flows,
        lowering.static_shared,
        sorted(shared, key=lambda item: item[1]),
    )
