"""The parts of lowering: the program under construction, operands, and the rules, one per PTX mnemonic.

A rule reads an instruction through `Form`, which handles missing parts: PTX that no rule expects raises `Unsupported`,
never another exception. That makes the instruction an `unknown` one, which ends the kernel only if it is executed.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

from cudaemu.lower.description import Description
from cudaemu.ptx import (
    BYTES,
    SINK,
    Address,
    Function,
    Immediate,
    Instruction,
    Location,
    Name,
    Not,
    Operand,
    Pair,
    Pattern,
    PtxError,
    PtxModule,
    Register,
    Scope,
    Special,
    Variable,
    Vector,
)


class Flag(IntEnum):
    """Bits of an instruction's flags, as FLAGS of vm.h; engine.library() compares them."""

    FTZ = 1
    SAT = 2
    RELU = 16
    NOT_PRED = 64
    ONE_MASK = 128
    ANYWHERE = 256
    STRONG = 512
    ACQUIRE = 1024
    RELEASE = 2048
    SPIN = 4096
    SIGNAL = 8192
    PAST_L1 = 16384
    OF_BLOCK = 32768
    READ_ONLY = 2097152
    TRACKED = 65536
    TENTATIVE = 131072
    DEPENDENT = 262144
    SPECULATED = 524288
    MAY_PAD = 1048576
    OF_TILE = 4194304


class Kind(IntEnum):
    """What the scheduler has to do with an instruction, as KINDS of vm.h; engine.library() compares them."""

    PLAIN = 0
    BRANCH = 1
    TABLE = 2
    EXIT = 3
    BARRIER = 4
    UNKNOWN = 5
    TRAP = 6
    CLOCK = 7
    CALL = 8
    CALL_POINTER = 9
    RETURN = 10
    TOGETHER = 11
    CLUSTER_WAIT = 12
    WGMMA_WAIT = 13


ROUND = {"rn": 0, "rz": 1 << 2, "rm": 2 << 2, "rp": 3 << 2}
NONE = 0xFFFFFFFF


def numbered(names: str, first: int = 0) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split(), first)}


# Numbers of the registers that are constants of a frame, as in vm/special.cpp; engine.library() compares them.
SPECIALS = numbered(
    "%tid.x %tid.y %tid.z %ntid.x %ntid.y %ntid.z %ctaid.x %ctaid.y %ctaid.z %nctaid.x %nctaid.y %nctaid.z %laneid "
    "%warpid %nwarpid %lanemask_eq %lanemask_le %lanemask_lt %lanemask_ge %lanemask_gt %dynamic_smem_size "
    "%total_smem_size %smid %nsmid %gridid %envreg1 %envreg2 %clusterid.x %clusterid.y %clusterid.z %nclusterid.x "
    "%nclusterid.y %nclusterid.z %cluster_ctaid.x %cluster_ctaid.y %cluster_ctaid.z %cluster_nctaid.x "
    "%cluster_nctaid.y %cluster_nctaid.z %cluster_ctarank %cluster_nctarank %is_explicit_cluster",
    first=1,
)
CLOCKS = ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")
SPACES = {"global": 0, "const": 0, "shared": 1, "local": 2, "generic": 3, "cluster": 4}
HALVES = ("f16", "bf16", "f16x2", "bf16x2")
PACKED = ("u16x2", "s16x2")

# Generic addresses: as in vm.h.
FUNCTION_WINDOW = 4 << 56
AROUND_SHIFT = 26  # in the shape of a load or a store: see memory.cpp
STACK_BYTES = 16 << 10  # per thread, in programs that call through pointers or recursively
FRAME_HEADER = 16  # of a call: where it returns to, and the frame below


class Unsupported(Exception):
    """This instruction, in this form, has no handler: why."""


@dataclass(eq=False)
class Constant:
    width: int  # bytes per lane; 0 for a predicate
    value: int = 0
    special: str = ""


@dataclass(eq=False)
class Raw:
    """A plain number among the operands."""

    value: int


@dataclass(eq=False)
class FrameBytes:
    """A plain number among the operands: bytes of a unit's frame, known when all of it is lowered."""

    unit: Unit
    extra: int = 0


@dataclass(eq=False)
class Def:
    """A destination."""

    register: Register


Source: TypeAlias = Register | Constant
Settled: TypeAlias = Source | Raw | FrameBytes  # an operand of the machine
Given: TypeAlias = Settled | Def  # ... from a rule
ABSENT = Raw(NONE)  # an operand that is not there


@dataclass(eq=False, slots=True)
class Lowered:
    """One instruction of the program, and where it came from."""

    name: str = "nop"
    given: Sequence[Given] = ()  # its operands, from a rule
    flags: int = 0
    kind: Kind = Kind.PLAIN
    target: int | Source = 0  # BRANCH, CALL: pc; TABLE: table; TOGETHER: the member mask
    category: str = ""  # "": as the machine describes the instruction
    access: int = 0  # bytes of shared memory that one thread touches at once
    global_store: int = 0  # bytes of global memory that one thread writes at once
    global_load: int = 0  # ... or reads
    flops: int = 0  # of tensor cores, for one warp
    guard: Register | None = None
    negated: bool = False
    text: str = ""
    location: Location | None = None
    problem: str = ""  # why it is unknown
    about: Description = field(init=False, repr=False)  # from encode on
    # What `settle` makes of the operands. All of one template share `others`.
    operands: list[Settled] = field(default_factory=list)
    writes: list[Register] = field(default_factory=list)
    sources: list[Register] = field(default_factory=list)
    others: list[Constant | Raw | FrameBytes] = field(default_factory=list)  # the target may be one of the constants

    def settle(self) -> None:
        """Take the operands from a rule."""
        self.writes = [operand.register for operand in self.given if isinstance(operand, Def)]
        self.sources = [operand for operand in self.given if isinstance(operand, Register)]
        self.operands = [operand.register if isinstance(operand, Def) else operand for operand in self.given]
        self.others = [operand for operand in self.operands if not isinstance(operand, Register)]
        self.given = ()
        if isinstance(self.target, Constant):
            self.others.append(self.target)
            self.flags |= Flag.ONE_MASK * (self.kind == Kind.TOGETHER)

    @property
    def place(self) -> int:
        """Its target, if that is a place in the program, or a table."""
        assert isinstance(self.target, int)
        return self.target

    def number(self, place: int) -> int:
        """The plain number among its operands."""
        operand = self.operands[place]
        assert isinstance(operand, Raw)
        return operand.value

    @property
    def reads(self) -> list[Register]:
        """The registers that it needs, whatever for."""
        if self.guard is None and not isinstance(self.target, Register):
            return self.sources
        return [*self.sources, *(each for each in (self.target, self.guard) if isinstance(each, Register))]


class Template:
    """What the instructions of a pattern become, whatever their registers are."""

    def __init__(self, blanks: Sequence[Register], lowered: Lowered):
        self.lowered, self.shapes = lowered, tuple(map(_shape, lowered.given))
        lowered.settle()
        numbers: dict[Settled, int] = {value: number for number, value in enumerate((*blanks, *lowered.others))}
        self.operands = [numbers[operand] for operand in lowered.operands]  # of the registers and the others
        self.writes = [numbers[register] for register in lowered.writes]
        self.sources = [numbers[register] for register in lowered.sources]

    def filled(self, registers: Sequence[Register], guard: Register | None, instruction: Instruction) -> Lowered:
        made = self.lowered
        values = [*registers, *made.others]
        return Lowered(
            made.name,
            (),
            made.flags,
            made.kind,
            made.target,
            made.category,
            made.access,
            made.global_store,
            made.global_load,
            made.flops,
            guard,
            instruction.negated,
            instruction.text,
            instruction.location,
            "",
            [values[number] for number in self.operands],
            [registers[number] for number in self.writes],
            [registers[number] for number in self.sources],
            made.others,
        )


class Header(NamedTuple):
    """Of a program: a word each, as ProgramHeader of launch.cpp has them; engine.library() compares the two."""

    instructions: int
    frame_bytes: int
    local_bytes: int
    static_shared: int  # bytes
    granule_log2: int  # of the shadow of shared memory
    constants: int  # how many
    table_words: int  # of all tables
    predicates: int  # where they begin in the frame; then its registers of 2, 4, 8, 16 bytes
    registers_2: int
    registers_4: int
    registers_8: int
    registers_16: int
    entry: int  # pc
    local_static: int  # bytes of local memory below the stack
    stack: int  # where its place is in the frame, or ~0
    fences: int  # whether there are any
    global_granule_log2: int  # of the smallest store to global memory
    global_access_log2: int  # of the smallest access
    registers: int  # of a thread at launch, or 0
    functions: int  # how many


@dataclass
class Program:
    """A kernel, ready for the machine. `words`, `functions`, `constants`, `tables`, `flows`: see vm_program in
    launch.cpp."""

    name: str
    instructions: list[Lowered]
    names: list[str]
    words: array[int]
    header: Header
    functions: array[int]
    constants: array[int]
    tables: array[int]
    flows: array[int]
    static_shared: int
    shared: list[tuple[str, int, int]]  # names, offsets and sizes of the shared variables, in order


@dataclass(eq=False)
class Unit:
    """Code that is entered at its beginning: the kernel, or a function that is called through a pointer or recursively.

    Other functions are expanded where they are called. A unit's frame in local memory is where the kernel's begins, or
    wherever its thread's stack has grown to."""

    function: Function
    entry: bool
    frame_bytes: int = 0  # local variables, parameters, saved registers
    begin: int = 0  # its instructions
    end: int = 0


class Frame:
    """One expansion of a function: that of a unit, or a call within it."""

    def __init__(self, function: Function, unit: Unit, own: bool):
        self.function, self.unit = function, unit
        self.own = own  # the unit's function itself: its registers and variables are the originals
        self.registers: dict[Register, Register] = {}
        self.variables: dict[Variable, Variable] = {}  # formal -> actual parameter, local variable -> its copy
        self.pc: list[int] = []  # of each PTX instruction
        self.end = 0


class Form:
    """An instruction as the rules read it."""

    def __init__(self, instruction: Instruction):
        self.instruction = instruction
        self.parts = instruction.opcode.split(".")
        self.base = self.parts[0]
        self.operands = list(instruction.operands)

    def has(self, *parts: str) -> bool:
        return any(part in self.parts for part in parts)

    def operand(self, index: int) -> Operand:
        if index >= len(self.operands):
            raise Unsupported("an operand is missing")
        return self.operands[index]

    def type(self, index: int = -1) -> str:
        """The part at that place, which has to be a type."""
        name = self.parts[index] if -len(self.parts) <= index < len(self.parts) else ""
        if name not in BYTES:
            raise Unsupported(f"'{name}' is not a type")
        return name

    def choose(self, *names: str, default: str | None = None) -> str:
        """The first part that is one of these."""
        for part in self.parts[1:]:
            if part in names:
                return part
        if default is None:
            raise Unsupported(f"it has none of {', '.join(names[:6])}")
        return default

    def number(self, index: int) -> int:
        operand = self.operand(index)
        if not isinstance(operand, Immediate) or not isinstance(operand.value, int):
            raise Unsupported("an operand that must be a number is none")
        return operand.value

    def pair(self, index: int) -> tuple[Operand, Operand]:
        """`%r|%p`; the second is the sink if there is none."""
        operand = self.operand(index)
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, SINK)

    def elements(self, index: int) -> tuple[Operand, ...]:
        """A vector's elements, or the operand alone."""
        operand = self.operand(index)
        return operand.elements if isinstance(operand, Vector) else (operand,)

    @property
    def space(self) -> str:
        """ "cluster": shared memory of any block of the cluster."""
        for part in self.parts[1:]:
            name = part.split("::")[0]
            if name in ("global", "shared", "local", "param", "const"):
                return "cluster" if part == "shared::cluster" else name
        return "generic"


RULES: dict[str, Callable[[Lowering, Form], Lowered | None]] = {}
Rule = TypeVar("Rule", bound="Callable[[Lowering, Form], Lowered | None]")


def rule(*mnemonics: str) -> Callable[[Rule], Rule]:
    """The rule of these mnemonics. If all its operands are registers and numbers, an instruction has to become the same
    everywhere: see `template`."""

    def enter(function: Rule) -> Rule:
        for mnemonic in mnemonics:
            RULES[mnemonic] = function
        return function

    return enter


_SLOT_BYTES = {name: 2 if size == 1 else size for name, size in BYTES.items()}


def slot_bytes(register: Register) -> int:
    """Bytes per lane of a register's slot; 0 for a predicate. A byte lies in 16 bits."""
    return _SLOT_BYTES[register.type]


def immediate_bits(operand: Immediate, type_: str, width: int) -> int:
    value, hexadecimal = operand.value, {"f32": ("<I", "<f", 4), "f64": ("<Q", "<d", 8)}.get(operand.notation)
    wanted = {4: "<f", 8: "<d"}.get(width)
    if wanted and (hexadecimal or type_ in ("f32", "f64") or operand.notation == "decimal"):
        if hexadecimal and isinstance(value, int):
            stored, read, size = hexadecimal
            value &= (1 << 8 * size) - 1
            if size == width:
                return value
            value = struct.unpack(read, struct.pack(stored, value))[0]
        try:
            return int.from_bytes(struct.pack(wanted, float(value)), "little")
        except OverflowError:
            raise Unsupported(f"{value} does not fit into {type_}") from None
    if not isinstance(value, int):
        raise Unsupported(f"{value} is not an integer")
    return value & ((1 << 8 * width) - 1)


def symbols(operands: Iterable[Operand]) -> Iterator[Variable | Name]:
    """All that the operands name."""
    for operand in operands:
        if isinstance(operand, Address):
            operand = operand.base
        if isinstance(operand, (Variable, Name)):
            yield operand
        elif isinstance(operand, Vector):
            yield from symbols(operand.elements)


def unsigned(type_: str) -> str:
    return f"u{type_[1:]}" if type_[0] in "sb" and type_[1:].isdigit() else type_


def is_float(type_: str) -> bool:
    return type_ in ("f32", "f64") or type_ in HALVES


class Lowering:
    """One kernel on its way. `addresses`: where the module's variables are, and what stands for its functions.
    `machine`: the machine's instructions."""

    def __init__(
        self, module: PtxModule, function: Function, addresses: Mapping[str, int], machine: Mapping[str, Description]
    ):
        self.module, self.function, self.addresses, self.machine = module, function, addresses, machine
        self.code: list[Lowered] = []
        self.tables: list[list[int]] = []
        self.units: list[Unit] = []
        self.offsets: dict[Variable, int] = {}  # within the unit's frame; parameters of the kernel; shared memory
        self.static_shared = 0
        self.carry = Register("%cc", "pred")
        self.stack = Register("%stack", "b64")  # where the frame of the unit begins that the thread is in
        self.true = Constant(0, 1)
        self.open: list[str] = []  # functions that are being expanded
        self.fixes: list[tuple[Lowered, Frame, int]] = []
        self.table_fixes: list[tuple[list[int], Frame, list[int]]] = []
        self.unit_fixes: list[tuple[Lowered, Function]] = []
        self.templates: dict[Pattern, Template | None] = {}
        self.calls = reach(module, function)
        self.reached = [module.functions[name] for name in self.calls]
        self.out_of_line = self.find_out_of_line()
        self.lay_out_params()
        self.lay_out_shared()
        self.frame = Frame(function, Unit(function, True), True)

    # ---- which functions, and how they are called ----

    def find_out_of_line(self) -> set[str]:
        """The functions that are called through pointers, and those that call themselves, directly or not."""
        pointers = any(None in calls for calls in self.calls.values())
        names = set(self.module.pointed_at) if pointers else set()
        calls = {name: {each for each in called if each is not None} for name, called in self.calls.items()}
        for name in calls:
            waiting, seen = list(calls[name]), set()
            while waiting:
                other = waiting.pop()
                if other not in seen:
                    seen.add(other)
                    waiting += calls.get(other, ())
            if name in seen:
                names.add(name)
        return names & calls.keys()

    # ---- memory ----

    def lay_out_params(self) -> None:
        self.params: list[tuple[str, int, int, int]] = []  # name, size, align, offset
        offset = 0
        for variable in self.function.arguments:
            offset = -(-offset // variable.align) * variable.align
            self.offsets[variable] = offset
            self.params.append((variable.name, variable.size, variable.align, offset))
            offset += variable.size
        self.param_bytes = offset

    def lay_out_shared(self) -> None:
        named, dynamic = shared_variables(self.reached)
        offset = 0
        for variable in named:
            offset = -(-offset // variable.align) * variable.align
            self.offsets[variable] = offset
            offset += variable.size
        align = max((variable.align for variable in dynamic), default=1)
        self.static_shared = -(-offset // align) * align
        for variable in dynamic:
            self.offsets[variable] = self.static_shared

    def local(self, variable: Variable) -> int:
        """Where a local variable lies in its unit's frame."""
        if variable not in self.offsets:
            unit = self.frame.unit
            offset = -(-unit.frame_bytes // variable.align) * variable.align
            self.offsets[variable] = offset
            unit.frame_bytes = offset + variable.size
        return self.offsets[variable]

    def on_stack(self, variable: Variable) -> bool:
        """Its address is relative to the stack."""
        return variable.space in ("local", "param") and not self.frame.unit.entry

    def address_of(self, variable: Variable) -> int:
        """Address within the variable's space; an absolute one for global and const."""
        if variable.space in ("global", "const"):
            if variable.name not in self.addresses:
                raise PtxError(f"'{variable.name}' is declared but nowhere defined")
            return self.addresses[variable.name]
        if variable.space == "shared":
            return self.offsets[variable]
        return self.local(self.actual(variable))

    def actual(self, variable: Variable) -> Variable:
        """A formal parameter's argument; a local variable's copy in this expansion of its function."""
        if self.frame.own:
            return variable
        copy = Variable(variable.name, variable.space, variable.align, variable.size, variable.type)
        return self.frame.variables.setdefault(variable, copy)

    # ---- operands ----

    def register(self, register: Register) -> Register:
        if self.frame.own:
            return register
        copy = self.frame.registers.get(register)
        if copy is None:
            copy = self.frame.registers[register] = Register(register.name, register.type)
        return copy

    def define(self, operand: Operand, width: int) -> Def | Raw:
        if operand is SINK or operand == SINK:
            return ABSENT
        if not isinstance(operand, Register):
            raise Unsupported("its destination is not a register")
        if slot_bytes(operand) != width:
            raise Unsupported(f"its destination has {8 * slot_bytes(operand)} bits instead of {8 * width}")
        return Def(self.register(operand))

    def predicate(self, operand: Operand) -> Def | Raw:
        return self.define(operand, 0)

    def use(self, operand: Operand, width: int, type_: str = "") -> Source:
        """A source of `width` bytes per lane; 0 for a predicate."""
        if isinstance(operand, Register):
            if slot_bytes(operand) != width:
                raise Unsupported(f"{operand.name} has {8 * slot_bytes(operand)} bits instead of {8 * width}")
            return self.register(operand)
        if isinstance(operand, Immediate):
            return Constant(width, immediate_bits(operand, type_, width) if width else int(operand.value != 0))
        if isinstance(operand, Special):
            return self.special(operand.name, width)
        if isinstance(operand, Name):
            if operand.name not in self.module.functions:
                raise Unsupported(f"'{operand.name}' is neither a register nor a variable")
            return Constant(width, self.addresses.get(operand.name, 0))
        base, offset = (operand.base, operand.offset) if isinstance(operand, Address) else (operand, 0)
        if not isinstance(base, Variable):
            raise Unsupported("one of its operands has no meaning here")
        at = self.address_of(base) + offset
        if not self.on_stack(base):
            return Constant(width, at)
        address = Register("%address", "b64")  # known only when the function runs
        self.finish(Lowered("add.u64", [Def(address), self.stack, Constant(8, at)]))
        if width == 8:
            return address
        narrow = Register("%address", "b32")
        self.finish(Lowered("cvt.u32.u64", [Def(narrow), address], category="integer"))
        return narrow

    @staticmethod
    def special(name: str, width: int) -> Constant:
        if name.startswith("%pm") or name.endswith(".w") or name.startswith("%envreg") and name not in SPECIALS:
            return Constant(width, 0)
        if name not in SPECIALS:
            raise Unsupported(f"the special register {name} is not known")
        return Constant(width, 0, name)

    def negatable(self, operand: Operand) -> tuple[Source, int]:
        """A source predicate, and the flag that negates it."""
        if isinstance(operand, Not):
            return self.use(operand.operand, 0), Flag.NOT_PRED
        return self.use(operand, 0), 0

    def address(self, operand: Operand | None, space: str) -> tuple[Source, int, bool]:
        """Base (a use), offset, whether the base has 64 bits."""
        if not isinstance(operand, Address):
            raise Unsupported("its address is not in brackets")
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            if slot_bytes(base) not in (4, 8):
                raise Unsupported("its address has neither 32 nor 64 bits")
            return self.use(base, slot_bytes(base)), offset & 0xFFFFFFFF, slot_bytes(base) == 8
        if isinstance(base, Immediate):
            if not isinstance(base.value, int):
                raise Unsupported("its address is not an integer")
            return Constant(8, base.value + offset), 0, True
        if isinstance(base, Variable):
            if space == "generic" and base.space not in ("global", "const"):
                raise Unsupported("a generic address cannot name a variable of another space")
            at = self.address_of(base) + offset
            return (self.stack, at & 0xFFFFFFFF, True) if self.on_stack(base) else (Constant(8, at), 0, True)
        if isinstance(base, Name):
            raise PtxError(f"'{base.name}' is not declared")
        raise Unsupported("its address is neither a register nor a variable")

    # ---- the whole kernel ----

    def lower(self) -> None:
        """All units: functions before those that call them, so that threads come together before they return."""
        for function in reversed(self.reached):
            if function.name in self.out_of_line and function is not self.function:
                self.unit(Unit(function, False, FRAME_HEADER))
        self.unit(Unit(self.function, True))
        for lowered, frame, index in self.fixes:
            lowered.target = frame.pc[index] if index < len(frame.pc) else frame.end
        for table, frame, indices in self.table_fixes:
            table.extend(frame.pc[index] if index < len(frame.pc) else frame.end for index in indices)
        begins = {unit.function.name: unit.begin for unit in self.units}
        for lowered, function in self.unit_fixes:
            lowered.target = begins[function.name]

    def unit(self, unit: Unit) -> None:
        self.units.append(unit)
        unit.begin = len(self.code)
        frame = Frame(unit.function, unit, True)
        if not unit.entry:  # results, then parameters, where the caller puts and takes them
            self.frame = frame
            unit.frame_bytes += lay_out_call(unit.function.results, unit.function.params, self.offsets)
        self.expand(frame)
        last = self.code[-1].location if len(self.code) > unit.begin else None
        name, kind = ("exit", Kind.EXIT) if unit.entry else ("return", Kind.RETURN)
        self.code.append(Lowered(name, kind=kind, text="ret;", location=last))
        unit.end = len(self.code)

    def expand(self, frame: Frame) -> None:
        outer, self.frame = self.frame, frame
        self.open.append(frame.function.name)
        for instruction in frame.function.instructions:
            frame.pc.append(len(self.code))
            if filled := self.from_template(instruction):
                self.code.append(filled)
                continue
            before = len(self.code)
            self.instruction_at = instruction
            try:
                lowered = self.instruction(instruction)
                if lowered is not None:
                    self.check(lowered)
            except Unsupported as problem:
                del self.code[before:]
                lowered = Lowered("unknown", kind=Kind.UNKNOWN, problem=str(problem))
            if lowered is not None:
                self.finish(lowered, guarded=True)
        frame.end = len(self.code)
        self.open.pop()
        self.frame = outer

    def finish(self, lowered: Lowered, guarded: bool = False) -> None:
        """Append to the program, as part of the instruction that is being lowered."""
        instruction = self.instruction_at
        if guarded and instruction.guard is not None:
            lowered.guard, lowered.negated = self.register(instruction.guard), instruction.negated
        lowered.text, lowered.location = instruction.text, instruction.location
        lowered.settle()
        self.code.append(lowered)

    def from_template(self, instruction: Instruction) -> Lowered | None:
        """What becomes of an instruction whose pattern has a template."""
        registers, guard = instruction.registers, instruction.guard
        if not registers:
            return None
        pattern = instruction.pattern
        if pattern not in self.templates:
            made = template(pattern)
            wrong = made is None or self.mismatch(made.lowered, made.shapes)
            self.templates[pattern] = None if wrong else made
        found = self.templates[pattern]
        if found is None:
            return None
        if not self.frame.own:
            registers = [self.register(register) for register in registers]
            guard = guard and self.register(guard)
        return found.filled(registers, guard, instruction)

    def instruction(self, instruction: Instruction) -> Lowered | None:
        form = Form(instruction)
        if form.base not in RULES:
            raise Unsupported("the emulator does not know this instruction")
        return RULES[form.base](self, form)

    def check(self, lowered: Lowered) -> None:
        """Unsupported if the machine has no such handler, or one that takes other operands."""
        if wrong := self.mismatch(lowered, tuple(map(_shape, lowered.given))):
            raise Unsupported(wrong)

    def mismatch(self, lowered: Lowered, shapes: tuple[str, ...]) -> str:
        if lowered.kind not in (Kind.PLAIN, Kind.CLOCK, Kind.TOGETHER):
            return ""
        described = self.machine.get(lowered.name)
        return mismatch(described and described.operands, shapes)


@lru_cache(1 << 14)
def template(pattern: Pattern) -> Template | None:
    """None if the lowering of such an instruction depends on its place, or if it is an error, which names its
    registers."""
    if ".param" in pattern.opcode:  # in a kernel it is one space, in a function another
        return None
    nowhere = Lowering(PtxModule(), Function("", True), {}, {})
    nowhere.instruction_at = Instruction(pattern, pattern.blanks, None, False, None, "", Scope(None))
    try:
        lowered = nowhere.instruction(nowhere.instruction_at)
    except (Unsupported, PtxError):
        return None
    if lowered is None or nowhere.code or isinstance(lowered.target, Register):
        return None
    named = {operand.register if isinstance(operand, Def) else operand for operand in lowered.given}
    if not {each for each in named if isinstance(each, Register)} <= {*pattern.blanks}:
        return None  # one of the kernel's own: the carry
    return Template(pattern.blanks, lowered)


def _shape(operand: Given) -> str:
    """An operand as signatures spell it: d4, s8, n; - if it is absent."""
    if isinstance(operand, Def):
        return _DEFINED[operand.register.type]
    if isinstance(operand, Register):
        return _USED[operand.type]
    if isinstance(operand, Constant):
        return f"s{operand.width}"
    return "-" if operand is ABSENT else "n"


_DEFINED, _USED = ({name: f"{what}{size}" for name, size in _SLOT_BYTES.items()} for what in "ds")


@lru_cache(1 << 14)
def mismatch(signature: str | None, shapes: tuple[str, ...]) -> str:
    """Why a handler of this signature cannot take such operands; nothing if it can."""
    if signature is None:
        return "the emulator does not know this form of it"
    place = 0
    for wanted in signature.split():
        kind, optional, repeated = wanted.rstrip("?+"), "?" in wanted, "+" in wanted
        taken = 0
        while place < len(shapes) and (repeated or not taken):
            shape = shapes[place]
            fits = (
                (shape == "-" and (optional or kind == "n"))
                or shape == kind
                or (kind[1:] == "*" and shape[0] == kind[0])
            )
            if not fits:
                break
            place, taken = place + 1, taken + 1
        if not taken and not repeated:
            return "one of its operands is missing, or of another kind than the emulator expects"
    return "" if place == len(shapes) else "it has other operands than the emulator expects"


def reach(module: PtxModule, start: Function) -> dict[str, list[str | None]]:
    """The function and all that it may call, and what each of them calls: names, None for a pointer. Once one calls
    through a pointer, it may call all whose address the module takes."""
    found: dict[str, list[str | None]] = {}
    waiting = [start]
    while waiting:
        function = waiting.pop()
        if function.name in found or not function.defined:
            continue
        called = [call_target(each) for each in function.instructions if each.pattern.base == "call"]
        found[function.name] = called
        waiting += [module.functions[name] for name in called if name is not None and name in module.functions]
        if None in called:
            waiting += [module.functions[name] for name in module.pointed_at]
    return found


def call_target(instruction: Instruction) -> str | None:
    """The name of the function that a call names; None if it goes through a pointer."""
    for operand in instruction.operands:
        if isinstance(operand, Name):
            return operand.name
        if isinstance(operand, Register):
            return None
    return ""


def lay_out_call(
    results: Iterable[Variable | Register], params: Iterable[Variable | Register], offsets: dict[Variable, int]
) -> int:
    """Where results and parameters lie in the frame of a call, after its header; returns their bytes."""
    offset = FRAME_HEADER
    for variable in (*results, *params):
        if not isinstance(variable, Variable):
            raise PtxError(
                "a function that is called through a pointer, or calls itself, takes its parameters in .param"
            )
        offset = -(-offset // variable.align) * variable.align
        offsets[variable] = offset
        offset += variable.size
    return offset - FRAME_HEADER


def shared_variables(functions: list[Function]) -> tuple[list[Variable], list[Variable]]:
    """The shared variables that the functions name: static ones in the order of their places, and dynamic ones, which
    share theirs after them."""
    found = dict.fromkeys(
        variable
        for function in functions
        for variable in (
            *(variable for variable in function.variables if variable.space == "shared"),
            *(
                word
                for instruction in function.instructions
                if not instruction.registers
                for word in symbols(instruction.operands)
                if isinstance(word, Variable) and word.space == "shared"
            ),
        )
    )
    static = [variable for variable in found if not variable.extern and variable.size]
    return sorted(static, key=lambda v: -v.align), [variable for variable in found if variable not in static]
