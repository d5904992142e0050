"""From PTX to the virtual machine's program: one kernel, flat, one machine instruction for each PTX instruction.

- Calls are expanded where they stand (device code has no recursion worth emulating); parameters of calls lie in local
  memory.
- Registers get slots in the warp's frame by live ranges (linear scan), so that the frame of a large unrolled kernel
  stays small enough for the cache. Liveness is a property of one thread's path, and slots are arrays over the lanes:
  sharing a slot is as safe under divergence as without.
- Immediates, addresses and special registers are constants of the frame, written once per launch or block.

An instruction without a handler does not fail here: it becomes an `unknown` one, which ends the kernel only if it is
executed.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from common.emulator.ptx import (
    BYTES,
    SINK,
    Address,
    Function,
    Immediate,
    Instruction,
    Location,
    Name,
    Not,
    Pair,
    PtxError,
    PtxModule,
    Register,
    Special,
    Variable,
    Vector,
)

# Flags and kinds: those of vm.h.
FTZ, SAT, RELU, NOT_PRED, ONE_MASK, WARP_BARRIER, STRONG, ACQUIRE, RELEASE = 1, 2, 16, 64, 128, 256, 512, 1024, 2048
ROUND = {"rn": 0, "rz": 1 << 2, "rm": 2 << 2, "rp": 3 << 2}
PLAIN, BRANCH, TABLE, EXIT, BARRIER, UNKNOWN, TRAP, CLOCK, TOGETHER = range(9)
NONE = 0xFFFFFFFF


def _numbered(names: str, first: int = 0) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split(), first)}


SPECIALS = _numbered(
    "%tid.x %tid.y %tid.z %ntid.x %ntid.y %ntid.z %ctaid.x %ctaid.y %ctaid.z %nctaid.x %nctaid.y %nctaid.z %laneid "
    "%warpid %nwarpid %lanemask_eq %lanemask_le %lanemask_lt %lanemask_ge %lanemask_gt %dynamic_smem_size "
    "%total_smem_size %smid %nsmid %gridid %envreg1 %envreg2",
    first=1,
)
CLUSTER_OF_ONE = {"%clusterid": "%ctaid", "%nclusterid": "%nctaid"}  # a launch without clusters: each block is its own
CLOCKS = ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")
SPACES = {"global": 0, "const": 0, "shared": 1, "local": 2}

# Which outcomes are true: 1 less, 2 equal, 4 greater, 8 unordered.
RELATIONS = _numbered("lt eq le gt ne ge num nan ltu equ leu gtu neu geu", first=1)
RELATIONS |= {"lo": 1, "ls": 3, "hi": 4, "hs": 6}
COMBINE = {"and": 1, "or": 2, "xor": 3}
HALVES = ("f16", "bf16", "f16x2", "bf16x2")

CVT_TYPES = _numbered("s8 u8 s16 u16 s32 u32 s64 u64 f16 bf16 f32 f64 tf32")
CVT_MODES = _numbered("rn rz rm rp rna rni rzi rmi rpi")
CVT_QUICK = frozenset(
    "f32.f16 f32.bf16 f16.f32 bf16.f32 f32.s32 f32.u32 f64.f32 f32.f64 s64.s32 u64.u32 u32.u64 u32.u16 s32.s16 "
    "u16.u32 u64.u16".split()
)


class Unsupported(Exception):
    """This instruction, in this form, has no handler."""


@dataclass(frozen=True)
class Constant:
    width: int  # bytes per lane; 0 for a predicate
    value: int = 0
    special: str = ""


@dataclass(frozen=True)
class Raw:
    """A plain number among the operands."""

    value: int


@dataclass
class Def:
    register: Register


@dataclass
class Lowered:
    """One instruction of the program, and where it came from."""

    name: str = "nop"
    operands: list = field(default_factory=list)  # Def, Register or Constant (a use), Raw
    flags: int = 0
    kind: int = PLAIN
    target: object = 0  # BRANCH: pc; TABLE: table; TOGETHER: the member mask (a use)
    category: str = "move"
    access: int = 0  # bytes of shared memory that one thread touches at once
    guard: Register | None = None
    negated: bool = False
    text: str = ""
    location: Location | None = None
    problem: str = ""  # why it is unknown


@dataclass
class Program:
    """A kernel, ready for the machine. `words`, `header`, `constants`, `tables`: see vm_program in engine.cpp."""

    name: str
    instructions: list[Lowered]
    names: list[str]
    words: array
    header: array
    constants: array
    tables: array
    static_shared: int
    shared: list[tuple[str, int]]  # names and offsets of the shared variables, in order


class _Frame:
    """One expansion of a function: the entry, or a call."""

    def __init__(self, function: Function, entry: bool):
        self.function, self.entry = function, entry
        self.registers: dict[Register, Register] = {}
        self.variables: dict[Variable, Variable] = {}  # formal -> actual parameter
        self.pc: list[int] = []  # of each PTX instruction
        self.end = 0


class _Lowering:
    def __init__(self, module: PtxModule, function: Function, addresses: dict[str, int]):
        self.module, self.function, self.addresses = module, function, addresses
        self.code: list[Lowered] = []
        self.tables: list[list[int]] = []
        self.offsets: dict[Variable, int] = {}
        self.local_bytes = 0
        self.static_shared = 0
        self.carry = Register("%cc", "pred")
        self.true = Constant(0, 1)
        self.frame: _Frame = _Frame(function, True)
        self.stack: list[str] = []
        self.fixes: list[tuple[Lowered, _Frame, int]] = []
        self.table_fixes: list[tuple[list[int], _Frame, list[int]]] = []
        self.lay_out_params()
        self.lay_out_shared()

    # ---- memory ----

    def lay_out_params(self) -> None:
        self.params: list[tuple[str, int, int, int]] = []  # name, size, align, offset
        offset = 0
        for variable in self.function.params:
            offset = -(-offset // variable.align) * variable.align
            self.offsets[variable] = offset
            self.params.append((variable.name, variable.size, variable.align, offset))
            offset += variable.size
        self.param_bytes = offset

    def lay_out_shared(self) -> None:
        """Static variables first, those of the module that the kernel's functions name; then the dynamic part, which
        all `extern` arrays share."""
        named: list[Variable] = []
        dynamic: list[Variable] = []
        seen: set[str] = set()

        def visit(function: Function) -> None:
            if function.name in seen:
                return
            seen.add(function.name)
            named.extend(variable for variable in function.variables if variable.space == "shared")
            for instruction in function.instructions:
                for word in _symbols(instruction.operands):
                    if (
                        isinstance(word, Variable)
                        and word.space == "shared"
                        and word not in named
                        and word not in dynamic
                    ):
                        (dynamic if word.extern or word.size == 0 else named).append(word)
                    elif isinstance(word, Name) and word.name in self.module.functions:
                        visit(self.module.functions[word.name])

        visit(self.function)
        dynamic += [variable for variable in named if variable.extern or variable.size == 0]
        named = [variable for variable in named if variable not in dynamic]
        offset = 0
        for variable in sorted(named, key=lambda v: -v.align):
            offset = -(-offset // variable.align) * variable.align
            self.offsets[variable] = offset
            offset += variable.size
        align = max((variable.align for variable in dynamic), default=1)
        self.static_shared = -(-offset // align) * align
        for variable in dynamic:
            self.offsets[variable] = self.static_shared

    def local(self, variable: Variable) -> int:
        if variable not in self.offsets:
            offset = -(-self.local_bytes // variable.align) * variable.align
            self.offsets[variable] = offset
            self.local_bytes = offset + variable.size
        return self.offsets[variable]

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
        if self.frame.entry:
            return variable
        copy = Variable(variable.name, variable.space, variable.align, variable.size, variable.type)
        return self.frame.variables.setdefault(variable, copy)

    # ---- operands ----

    def register(self, register: Register) -> Register:
        if self.frame.entry:
            return register
        return self.frame.registers.setdefault(register, Register(register.name, register.type))

    def define(self, operand, width: int):
        if operand is SINK or operand == SINK:
            return Raw(NONE)
        if not isinstance(operand, Register):
            raise Unsupported("its destination is not a register")
        if slot_bytes(operand) != width:
            raise Unsupported(f"its destination has {8 * slot_bytes(operand)} bits instead of {8 * width}")
        return Def(self.register(operand))

    def predicate(self, operand):
        return self.define(operand, 0)

    def use(self, operand, width: int, type_: str = ""):
        """A source of `width` bytes per lane; 0 for a predicate."""
        if isinstance(operand, Register):
            if slot_bytes(operand) != width:
                raise Unsupported(f"{operand.name} has {8 * slot_bytes(operand)} bits instead of {8 * width}")
            return self.register(operand)
        if isinstance(operand, Immediate):
            return Constant(width, immediate_bits(operand, type_, width) if width else int(operand.value != 0))
        if isinstance(operand, Special):
            return self.special(operand.name, width)
        if isinstance(operand, Variable):
            return Constant(width, self.address_of(operand))
        if isinstance(operand, Address) and isinstance(operand.base, Variable):
            return Constant(width, self.address_of(operand.base) + operand.offset)
        if isinstance(operand, Name):
            raise Unsupported(f"'{operand.name}' is neither a register nor a variable")
        raise Unsupported("one of its operands has no meaning here")

    @staticmethod
    def special(name: str, width: int) -> Constant:
        family, _, axis = name.partition(".")
        if family in CLUSTER_OF_ONE:
            name = f"{CLUSTER_OF_ONE[family]}.{axis}"
        if family in ("%cluster_nctaid", "%cluster_nctarank"):
            return Constant(width, 1)
        if family in ("%cluster_ctaid", "%cluster_ctarank") or family.startswith("%pm") or name.endswith(".w"):
            return Constant(width, 0)
        if family.startswith("%envreg") and name not in SPECIALS:
            return Constant(width, 0)
        if name in ("%is_explicit_cluster",):
            return Constant(0, 0)
        if name not in SPECIALS:
            raise Unsupported(f"the special register {name} is not known")
        return Constant(width, 0, name)

    def negatable(self, operand) -> tuple[object, int]:
        """A source predicate, and the flag that negates it."""
        if isinstance(operand, Not):
            return self.use(operand.operand, 0), NOT_PRED
        return self.use(operand, 0), 0

    def address(self, operand, space: str) -> tuple[object, int, bool]:
        """Base (a use), offset, whether the base has 64 bits."""
        if not isinstance(operand, Address):
            raise Unsupported("its address is not in brackets")
        if isinstance(operand.base, Register):
            wide = operand.base.bytes == 8
            return self.use(operand.base, 8 if wide else 4), operand.offset & 0xFFFFFFFF, wide
        if isinstance(operand.base, (Variable, Immediate)):
            at = self.address_of(operand.base) if isinstance(operand.base, Variable) else operand.base.value
            if (
                space == "generic"
                and isinstance(operand.base, Variable)
                and operand.base.space not in ("global", "const")
            ):
                raise Unsupported("a generic address cannot name a variable of another space")
            return Constant(8, at + operand.offset), 0, True
        if isinstance(operand.base, Name):
            raise PtxError(f"'{operand.base.name}' is not declared")
        raise Unsupported("its address is neither a register nor a variable")

    # ---- the whole kernel ----

    def lower(self) -> Program:
        self.expand(self.frame)
        self.code.append(
            Lowered(
                "exit",
                kind=EXIT,
                category="control",
                text="ret;",
                location=self.code[-1].location if self.code else None,
            )
        )
        for lowered, frame, index in self.fixes:
            lowered.target = frame.pc[index] if index < len(frame.pc) else frame.end
        for table, frame, indices in self.table_fixes:
            table.extend(frame.pc[index] if index < len(frame.pc) else frame.end for index in indices)
        return _encode(self)

    def expand(self, frame: _Frame) -> None:
        outer, self.frame = self.frame, frame
        if frame.function.name in self.stack:
            raise PtxError(f"{frame.function.name} calls itself: the emulator has no recursion")
        self.stack.append(frame.function.name)
        for instruction in frame.function.instructions:
            frame.pc.append(len(self.code))
            before = len(self.code)
            try:
                lowered = self.instruction(instruction)
            except Unsupported as problem:
                del self.code[before:]
                lowered = Lowered("unknown", kind=UNKNOWN, category="other", problem=str(problem))
            if lowered is not None:
                self.finish(lowered, instruction)
        frame.end = len(self.code)
        self.stack.pop()
        self.frame = outer

    def finish(self, lowered: Lowered, instruction: Instruction) -> None:
        if instruction.guard is not None:
            lowered.guard, lowered.negated = self.register(instruction.guard), instruction.negated
        lowered.text, lowered.location = instruction.text, instruction.location
        if lowered.kind == TOGETHER and isinstance(lowered.target, Constant):
            lowered.flags |= ONE_MASK
        self.code.append(lowered)

    def instruction(self, instruction: Instruction) -> Lowered | None:
        parts = instruction.opcode.split(".")
        rule = RULES.get(parts[0])
        if rule is None:
            raise Unsupported("the emulator does not know this instruction")
        try:
            return rule(self, parts, instruction.operands, instruction)
        except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise Unsupported("the emulator does not know this form of the instruction") from error


def slot_bytes(register: Register) -> int:
    """Bytes per lane of a register's slot; 0 for a predicate. A byte lies in 16 bits."""
    return {1: 2}.get(register.bytes, register.bytes)


def immediate_bits(operand: Immediate, type_: str, width: int) -> int:
    value = operand.value
    if (
        operand.notation == "decimal"
        or (operand.notation == "f64" and type_ == "f32")
        or (operand.notation == "int" and type_ in ("f32", "f64"))
    ):
        number = struct.unpack("<d", struct.pack("<Q", value))[0] if operand.notation == "f64" else float(value)
        return int.from_bytes(struct.pack("<f" if width == 4 else "<d", number), "little")
    if operand.notation == "f32" and width == 8:
        return int.from_bytes(struct.pack("<d", struct.unpack("<f", struct.pack("<I", value))[0]), "little")
    return int(value) & ((1 << 8 * width) - 1)


def _symbols(operands):
    for operand in operands:
        if isinstance(operand, (Variable, Name)):
            yield operand
        elif isinstance(operand, Address):
            yield from _symbols((operand.base,))
        elif isinstance(operand, Vector):
            yield from _symbols(operand.elements)


# ---- rules: one per PTX mnemonic ----

RULES: dict[str, Callable] = {}


def rule(*mnemonics: str):
    def enter(function):
        for mnemonic in mnemonics:
            RULES[mnemonic] = function
        return function

    return enter


def unsigned(type_: str) -> str:
    return (
        {"s": "u", "b": "u"}.get(type_[0], type_[0]) + type_[1:] if type_[0] in "sb" and type_[1:].isdigit() else type_
    )


def is_float(type_: str) -> bool:
    return type_ in ("f32", "f64") or type_ in HALVES


def category(type_: str) -> str:
    return "half" if type_ in HALVES else "float" if type_ in ("f32", "f64") else "integer"


def float_flags(parts: list[str]) -> int:
    flags = FTZ * ("ftz" in parts) | SAT * ("sat" in parts) | RELU * ("relu" in parts)
    for part in parts:
        flags |= ROUND.get(part, 0)
    return flags


def simple(
    lowering: _Lowering,
    name: str,
    operands,
    widths: list[int],
    types: list[str],
    flags: int = 0,
    category_: str = "integer",
    extra=(),
) -> Lowered:
    """First operand defined, the others used."""
    out = [lowering.define(operands[0], widths[0])]
    out += [
        lowering.use(operand, width, type_)
        for operand, width, type_ in zip(operands[1:], widths[1:], types[1:], strict=True)
    ]
    return Lowered(name, out + [Raw(value) for value in extra], flags, category=category_)


@rule(
    "add",
    "sub",
    "mul",
    "div",
    "rem",
    "abs",
    "neg",
    "min",
    "max",
    "fma",
    "mad",
    "sad",
    "copysign",
    "rcp",
    "sqrt",
    "rsqrt",
    "ex2",
    "lg2",
    "sin",
    "cos",
    "tanh",
    "mul24",
    "mad24",
)
def _arithmetic(lowering, parts, operands, _):
    base, type_ = parts[0], parts[-1]
    if base in ("add", "sub", "mad") and "cc" in parts:
        return _carry(lowering, parts, operands, _)
    width = BYTES[type_]
    if is_float(type_):
        if base == "div" and "approx" in parts:
            base = "div.approx"
        if type_ in ("f32", "f64") and len(parts) > 2 and parts[-2] in HALVES:
            raise Unsupported("mixed precision is not known")
        base = {"mad": "fma"}.get(base, base)
        modifiers = [part for part in ("NaN", "xorsign", "abs") if part in parts[1:]]
        name = ".".join([base, *modifiers, type_])
        kind = "fma" if base == "fma" and category(type_) == "float" else category(type_)
        return simple(
            lowering, name, operands, [width] * len(operands), [type_] * len(operands), float_flags(parts[1:-1]), kind
        )
    kind = next((part for part in ("lo", "hi", "wide") if part in parts), "")
    if type_ in ("u16x2", "s16x2"):
        raise Unsupported("packed 16-bit integers are not known")
    if "sat" in parts:
        return simple(
            lowering,
            ".".join([base, *filter(None, [kind]), "sat", type_]),
            operands,
            [width] * len(operands),
            [type_] * len(operands),
        )
    signless = base in ("add", "sub", "neg") or kind == "lo" and base in ("mul", "mad")
    name = ".".join(filter(None, [base, kind, unsigned(type_) if signless else type_]))
    widths = [width] * len(operands)
    if kind == "wide":
        widths[0] = 2 * width
        if base == "mad":
            widths[3] = 2 * width
    return simple(lowering, name, operands, widths, [type_] * len(operands))


@rule("addc", "subc", "madc")
def _carry(lowering, parts, operands, _):
    base = parts[0].rstrip("c") if parts[0] != "madc" else "mad"
    type_ = parts[-1]
    width = BYTES[type_]
    if base == "mad":
        name = f"madc.{'hi' if 'hi' in parts else 'lo'}.{type_}"
    else:
        name = f"{base}c.{unsigned(type_)}"
    lowered = simple(lowering, name, operands, [width] * len(operands), [type_] * len(operands))
    lowered.operands.append(lowering.carry if parts[0].endswith("c") else Raw(NONE))
    lowered.operands.append(Def(lowering.carry) if "cc" in parts else Raw(NONE))
    return lowered


@rule("and", "or", "xor", "not", "cnot")
def _bitwise(lowering, parts, operands, _):
    type_ = parts[-1]
    if type_ == "pred":
        out = [lowering.predicate(operands[0]), *(lowering.use(operand, 0) for operand in operands[1:])]
        return Lowered(f"{parts[0]}.pred", out + [out[1]] * (3 - len(out)), category="predicate")
    width = BYTES[type_]
    return simple(lowering, f"{parts[0]}.{unsigned(type_)}", operands, [width] * len(operands), [type_] * len(operands))


@rule("shl", "shr")
def _shift(lowering, parts, operands, _):
    type_ = parts[-1]
    width = BYTES[type_]
    name = f"{parts[0]}.{unsigned(type_) if parts[0] == 'shl' or type_[0] == 'b' else type_}"
    return simple(lowering, name, operands, [width, width, 4], [type_, type_, "u32"])


@rule("bfe", "bfi", "brev", "popc", "clz", "bfind", "bmsk", "szext")
def _fields(lowering, parts, operands, _):
    base, type_ = parts[0], parts[-1]
    width = BYTES[type_]
    if base in ("bmsk", "szext"):
        return simple(lowering, ".".join(parts), operands, [4, 4, 4], ["", "u32", "u32"])
    type_ = unsigned(type_) if type_[0] == "b" else type_
    name = f"{base}.shiftamt.{type_}" if "shiftamt" in parts else f"{base}.{type_}"
    widths = {"bfe": [width, width, 4, 4], "bfi": [width, width, width, 4, 4], "brev": [width, width]}.get(
        base, [4, width]
    )
    return simple(lowering, name, operands, widths, [type_] * len(widths))


@rule("shf")
def _funnel(lowering, parts, operands, _):
    return simple(lowering, ".".join(parts), operands, [4] * 4, ["b32"] * 4)


@rule("prmt")
def _permute(lowering, parts, operands, _):
    modes = ("b32", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    return simple(lowering, "prmt.b32", operands, [4] * 4, ["b32"] * 4, extra=[modes.index(parts[-1])])


@rule("lop3")
def _lop3(lowering, parts, operands, _):
    if parts[1] != "b32":
        raise Unsupported("lop3 with a predicate is not known")
    return simple(lowering, "lop3.b32", operands[:4], [4] * 4, ["b32"] * 4, extra=[operands[4].value & 255])


@rule("dp4a", "dp2a")
def _dot(lowering, parts, operands, _):
    return simple(lowering, ".".join(parts), operands, [4] * 4, ["u32"] * 4)


@rule("testp")
def _testp(lowering, parts, operands, _):
    what = ("finite", "infinite", "number", "notanumber", "normal", "subnormal").index(parts[1])
    out = [lowering.predicate(operands[0]), lowering.use(operands[1], BYTES[parts[-1]], parts[-1]), Raw(what)]
    return Lowered(f"testp.{parts[-1]}", out, category="predicate")


def _comparison(lowering, parts, operands, type_: str, mode: int, first, second) -> Lowered:
    relation = next(part for part in parts[1:] if part in RELATIONS)
    combine = next((COMBINE[part] for part in parts[2:] if part in COMBINE), 0)
    width = BYTES[type_]
    name = f"compare.{unsigned(type_) if type_[0] == 'b' and type_ not in HALVES else type_}"
    flags = FTZ * ("ftz" in parts)
    third: object = Raw(NONE)
    if combine:
        third, negate = lowering.negatable(operands[3])
        flags |= negate
    out = [
        Raw(mode),
        first,
        second,
        lowering.use(operands[1], width, type_),
        lowering.use(operands[2], width, type_),
        Raw(combine),
        third,
        Raw(RELATIONS[relation]),
    ]
    return Lowered(name, out, flags, category="predicate")


@rule("setp")
def _setp(lowering, parts, operands, _):
    target = operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, SINK)
    return _comparison(lowering, parts, operands, parts[-1], 0, lowering.predicate(first), lowering.predicate(second))


@rule("set")
def _set(lowering, parts, operands, _):
    to, type_ = parts[-2], parts[-1]
    mode = {
        "u32": 1,
        "s32": 1,
        "f32": 2,
        "f16": 0x3C00,
        "f16x2": 0x3C00,
        "bf16": 0x3F80,
        "bf16x2": 0x3F80,
        "u16": 0xFFFF,
        "s16": 0xFFFF,
    }[to]
    if type_.endswith("x2") and mode == 1:
        mode = 0xFFFF
    return _comparison(lowering, parts, operands, type_, mode, lowering.define(operands[0], BYTES[to]), Raw(NONE))


@rule("selp")
def _selp(lowering, parts, operands, _):
    type_ = parts[-1]
    width = BYTES[type_]
    predicate, negate = lowering.negatable(operands[3])
    out = [
        lowering.define(operands[0], width),
        lowering.use(operands[1], width, type_),
        lowering.use(operands[2], width, type_),
        predicate,
    ]
    return Lowered(f"selp.b{8 * width}", out, negate, category="predicate")


@rule("slct")
def _slct(lowering, parts, operands, _):
    type_, by = parts[-2], parts[-1]
    width = BYTES[type_]
    return simple(
        lowering,
        f"slct.b{8 * width}.{by}",
        operands,
        [width, width, width, 4],
        [type_, type_, type_, by],
        category_="predicate",
    )


@rule("mov")
def _mov(lowering, parts, operands, _):
    type_ = parts[-1]
    to, source = operands
    if isinstance(source, Special) and source.name in CLOCKS:
        width = BYTES[type_]
        return Lowered(f"{source.name[1:].removesuffix('64')}.b{8 * width}", [lowering.define(to, width)], kind=CLOCK)
    if type_ == "pred":
        out = [lowering.predicate(to), lowering.use(source, 0)]
        return Lowered("mov.pred", [*out, out[1]], category="predicate")
    width = BYTES[type_]
    if isinstance(source, Vector) and not isinstance(to, Vector):
        part = width // len(source.elements)
        uses = [lowering.use(element, max(part, 2), type_) for element in source.elements]
        return Lowered("pack", [lowering.define(to, width), Raw(part), Raw(len(uses)), *uses])
    if isinstance(to, Vector) and not isinstance(source, Vector):
        part = width // len(to.elements)
        return Lowered(
            "unpack",
            [
                lowering.use(source, width, type_),
                Raw(part),
                Raw(len(to.elements)),
                *(lowering.define(element, max(part, 2)) for element in to.elements),
            ],
        )
    return Lowered(f"mov.b{8 * width}", [lowering.define(to, width), lowering.use(source, width, type_)])


@rule("cvt")
def _cvt(lowering, parts, operands, _):
    to, source = parts[-2], parts[-1]
    flags = FTZ * ("ftz" in parts) | SAT * ("sat" in parts or "satfinite" in parts) | RELU * ("relu" in parts)
    mode = next((part for part in parts[1:-2] if part in CVT_MODES), "")
    if to in ("f16x2", "bf16x2") and source == "f32":
        out = [
            lowering.define(operands[0], 4),
            lowering.use(operands[1], 4, "f32"),
            lowering.use(operands[2], 4, "f32"),
        ]
        return Lowered("cvt.pair", [*out, Raw(CVT_TYPES[to[:-2]]), Raw(CVT_MODES[mode])], flags, category="conversion")
    target_bytes, source_bytes = (
        slot_bytes(operand) if isinstance(operand, Register) else max(2, BYTES[type_])
        for operand, type_ in zip(operands, (to, source), strict=True)
    )
    if target_bytes < BYTES[to] or source_bytes < BYTES[source]:
        raise Unsupported("its register is too narrow")
    if is_float(to) and target_bytes != BYTES[to] or is_float(source) and source_bytes != BYTES[source]:
        raise Unsupported("a floating register must have the size of its type")
    out = [lowering.define(operands[0], target_bytes), lowering.use(operands[1], source_bytes, source)]
    if (
        not flags
        and f"{to}.{source}" in CVT_QUICK
        and mode in ("", "rn")
        and target_bytes == BYTES[to]
        and source_bytes == BYTES[source]
    ):
        return Lowered(f"cvt.{to}.{source}", out, category="conversion")
    if (to, source, mode, flags) == ("tf32", "f32", "rna", 0):
        return Lowered("cvt.rna.tf32.f32", out, category="conversion")
    numbers = (CVT_TYPES[to], CVT_TYPES[source], CVT_MODES.get(mode, len(CVT_MODES)), target_bytes, source_bytes)
    return Lowered("cvt", out + [Raw(number) for number in numbers], flags, category="conversion")


@rule("cvta")
def _cvta(lowering, parts, operands, _):
    space = next(
        (
            part.split("::")[0]
            for part in parts
            if part.split("::")[0] in ("global", "const", "shared", "local", "param")
        ),
        None,
    )
    if space is None:
        raise Unsupported("its state space is not known")
    width = BYTES[parts[-1]]
    window = {"global": 0, "const": 0, "shared": 1, "local": 2, "param": 3}[space]
    if space == "param" and not lowering.frame.entry:
        window = 2
    out = [lowering.define(operands[0], width), lowering.use(operands[1], width, "u64")]
    return Lowered(
        "cvta",
        [*out, Raw(window), Raw(int("to" in parts)), Raw(int(width == 8)), Raw(int(width == 8))],
        category="integer",
    )


@rule("isspacep")
def _isspacep(lowering, parts, operands, _):
    window = {"global": 0, "const": 0, "shared": 1, "local": 2, "param": 3}[parts[1].split("::")[0]]
    return Lowered(
        "isspacep",
        [lowering.predicate(operands[0]), lowering.use(operands[1], 8, "u64"), Raw(window)],
        category="predicate",
    )


def _space(parts: list[str]) -> str:
    for part in parts[1:]:
        name = part.split("::")[0]
        if name in ("global", "shared", "local", "param", "const"):
            return name
    return "generic"


@rule("ld", "ldu")
def _ld(lowering, parts, operands, _):
    return _memory(lowering, parts, operands[1], operands[0], load=True)


@rule("st")
def _st(lowering, parts, operands, _):
    return _memory(lowering, parts, operands[0], operands[1], load=False)


def _memory(lowering: _Lowering, parts: list[str], where, what, load: bool) -> Lowered:
    space, type_ = _space(parts), parts[-1]
    size = BYTES[type_]
    count = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    elements = list(what.elements) if isinstance(what, Vector) else [what]
    if len(elements) != count:
        raise Unsupported("its vector has another length than it says")
    widths = {slot_bytes(element) for element in elements if isinstance(element, Register)} or {max(2, size)}
    if len(widths) != 1:
        raise Unsupported("its vector mixes register sizes")
    (width,) = widths
    if width < size:
        raise Unsupported("its register is too narrow")
    kind = f"{'load' if load else 'store'}.{'global' if space == 'const' else space}"
    machine = {"const": "global"}.get(space, space)
    if space == "param":
        kind = "move"
        if not (lowering.frame.entry and _is_kernel_parameter(lowering, where)):
            machine = "local"  # a parameter of a call
    base, offset, wide = lowering.address(where, machine)
    shape = size | count << 8 | width << 16 | (type_[0] == "s") << 24 | wide << 25
    registers = [
        lowering.define(element, width) if load else lowering.use(element, width, type_) for element in elements
    ]
    access = size * count if machine in ("shared", "generic") else 0
    out = [base, Raw(offset), Raw(shape), *registers]
    return Lowered(f"{'ld' if load else 'st'}.{machine}", out, memory_order(parts), category=kind, access=access)


def memory_order(parts: list[str]) -> int:
    """Flags of an access: is it meant for other threads to see (`volatile`, `relaxed` and up, past the caches)?"""
    order = ACQUIRE * ("acquire" in parts) | RELEASE * ("release" in parts) | (ACQUIRE | RELEASE) * ("acq_rel" in parts)
    return order | STRONG * (order != 0 or not {"volatile", "relaxed", "mmio", "cv", "wt"}.isdisjoint(parts))


def _is_kernel_parameter(lowering: _Lowering, where: Address) -> bool:
    return not isinstance(where.base, Variable) or where.base in lowering.function.params


@rule("atom", "red")
def _atom(lowering, parts, operands, _):
    space, type_ = _space(parts), parts[-1]
    operation = next(
        part for part in parts[1:-1] if part in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    )
    if any(part in ("v2", "v4", "v8") for part in parts):
        raise Unsupported("vector atomics are not known")
    width = BYTES[type_]
    if not is_float(type_) and (operation not in ("min", "max") or type_[0] == "b"):
        type_ = unsigned(type_)
    target: object = Raw(NONE)
    if parts[0] == "atom":
        target, operands = lowering.define(operands[0], width), operands[1:]
    base, offset, wide = lowering.address(operands[0], space)
    code = {**SPACES, "generic": 3}[space] | wide << 8
    out = [target, base, Raw(offset), Raw(code), lowering.use(operands[1], width, type_)]
    out.append(lowering.use(operands[2], width, type_) if operation == "cas" else Raw(NONE))
    access = width if space in ("shared", "generic") else 0
    polls = STRONG * (target != Raw(NONE))
    return Lowered(f"atom.{operation}.{type_}", out, memory_order(parts) | polls, category="atomic", access=access)


# ---- lanes together ----

EVERYONE = Constant(4, 0xFFFFFFFF)


def _lanes_meet(lowering, lowered: Lowered, parts: list[str], members) -> Lowered:
    """`.sync`: the lanes that the mask names; before PTX 6.0, whichever are here."""
    if "sync" in parts:
        lowered.kind, lowered.target = TOGETHER, lowering.use(members[0], 4, "b32")
    return lowered


@rule("shfl")
def _shfl(lowering, parts, operands, _):
    mode = ("up", "down", "bfly", "idx").index(next(part for part in parts if part in ("up", "down", "bfly", "idx")))
    target = operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, SINK)
    out = [
        lowering.define(first, 4),
        lowering.predicate(second),
        *(lowering.use(operand, 4, "b32") for operand in operands[1:4]),
        Raw(mode),
    ]
    return _lanes_meet(lowering, Lowered("shfl", out, category="shuffle"), parts, operands[4:])


@rule("vote")
def _vote(lowering, parts, operands, _):
    mode = ("ballot", "all", "any", "uni").index(
        next(part for part in parts if part in ("ballot", "all", "any", "uni"))
    )
    predicate, negate = lowering.negatable(operands[1])
    target = lowering.predicate(operands[0]) if mode else lowering.define(operands[0], 4)
    vote = Lowered("vote", [target, predicate, Raw(mode)], negate, category="vote")
    return _lanes_meet(lowering, vote, parts, operands[2:])


@rule("match")
def _match(lowering, parts, operands, _):
    width = BYTES[parts[-1]]
    target = operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, SINK)
    out = [
        lowering.define(first, 4),
        lowering.predicate(second),
        lowering.use(operands[1], width, parts[-1]),
        Raw(int("all" in parts)),
    ]
    return Lowered(
        f"match.b{8 * width}", out, kind=TOGETHER, target=lowering.use(operands[2], 4, "b32"), category="vote"
    )


@rule("redux")
def _redux(lowering, parts, operands, _):
    operation, type_ = parts[2], parts[-1]
    name = f"redux.{operation}.{type_ if operation in ('min', 'max') else unsigned(type_)}"
    out = [lowering.define(operands[0], 4), lowering.use(operands[1], 4, type_)]
    return Lowered(name, out, kind=TOGETHER, target=lowering.use(operands[2], 4, "b32"), category="shuffle")


@rule("elect")
def _elect(lowering, parts, operands, _):
    target = operands[0]
    out = [lowering.define(target.first, 4), lowering.predicate(target.second)]
    return Lowered("elect", out, kind=TOGETHER, target=lowering.use(operands[1], 4, "b32"), category="vote")


@rule("activemask")
def _activemask(lowering, parts, operands, _):
    return Lowered("activemask", [lowering.define(operands[0], 4)], category="vote")


@rule("bar", "barrier")
def _bar(lowering, parts, operands, _):
    if "warp" in parts:
        members = lowering.use(operands[0], 4, "b32")
        return Lowered("bar.warp", flags=WARP_BARRIER, kind=TOGETHER, target=members, category="barrier")
    if "cluster" in parts:
        raise Unsupported("clusters are not known")
    aligned = int(parts[0] == "bar" or "aligned" in parts)
    if "red" in parts:
        what = 2 + ("popc", "and", "or").index(next(part for part in parts if part in ("popc", "and", "or")))
        target = lowering.define(operands[0], 4) if what == 2 else lowering.predicate(operands[0])
        predicate, flags = lowering.negatable(operands[-1])
        count = lowering.use(operands[2], 4, "u32") if len(operands) == 4 else Raw(NONE)
        out = [lowering.use(operands[1], 4, "u32"), count, Raw(what), target, predicate, Raw(aligned)]
        return Lowered("barrier", out, flags, BARRIER, category="barrier")
    count = lowering.use(operands[1], 4, "u32") if len(operands) > 1 else Raw(NONE)
    what = int("arrive" in parts)
    return Lowered(
        "barrier",
        [lowering.use(operands[0], 4, "u32"), count, Raw(what), Raw(NONE), Raw(NONE), Raw(aligned)],
        kind=BARRIER,
        category="barrier",
    )


# ---- tensor cores, and what feeds them ----

ELEMENTS = {"f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4}
WMMA_SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16", "m16n16k8")


def _elements(operand) -> tuple:
    return operand.elements if isinstance(operand, Vector) else (operand,)


@rule("ldmatrix", "stmatrix")
def _matrix(lowering, parts, operands, _):
    """`ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {…}, [a]`; `stmatrix` has its operands the other way round."""
    load = parts[0] == "ldmatrix"
    registers, where = operands if load else reversed(operands)
    count = int(next(part[1:] for part in parts if part in ("x1", "x2", "x4")))
    if "m8n8" not in parts or parts[-1] != "b16" or len(_elements(registers)) != count:
        raise Unsupported("only matrices of 8 × 8 elements of 16 bits are known")
    space = _space(parts)
    base, offset, wide = lowering.address(where, space)
    slots = [
        lowering.define(element, 4) if load else lowering.use(element, 4, "b32") for element in _elements(registers)
    ]
    out = [base, Raw(offset), Raw(wide | (space == "generic") << 1), Raw(count), Raw(int("trans" in parts)), *slots]
    return Lowered(parts[0], out, kind=TOGETHER, target=EVERYONE, category=parts[0], access=16)


@rule("movmatrix")
def _movmatrix(lowering, parts, operands, _):
    return Lowered(
        "movmatrix",
        [lowering.define(operands[0], 4), lowering.use(operands[1], 4, "b32")],
        kind=TOGETHER,
        target=EVERYONE,
        category="shuffle",
    )


@rule("mma")
def _mma(lowering, parts, operands, _):
    """`mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c`"""
    to, a, b, c = parts[-4:]
    shape = next(part for part in parts if part.startswith("m16n8k"))
    depth = int(shape[6:])
    per = 4 // (4 if a == "tf32" else BYTES[a])
    if (
        depth not in {1: (4, 8), 2: (8, 16), 4: (16, 32)}[per]
        or "row" not in parts
        or "col" not in parts
        or any(part in parts for part in ("sp", "xor", "popc"))
    ):
        raise Unsupported("this shape is not known")
    if to not in (("s32",) if per == 4 else ("f32", "f16")) or c not in (("s32",) if per == 4 else ("f32", "f16")):
        raise Unsupported("its accumulators are not known")
    counts = (2 if to == "f16" else 4, depth // (2 * per), depth // (4 * per), 2 if c == "f16" else 4)
    vectors = [_elements(operand) for operand in operands]
    if tuple(map(len, vectors)) != counts:
        raise Unsupported("its operands have another number of registers")
    slots = [lowering.define(element, 4) for element in vectors[0]]
    slots += [lowering.use(element, 4, "f32" if c == "f32" else "b32") for vector in vectors[1:] for element in vector]
    numbers = (depth, ELEMENTS[a], ELEMENTS[b], int(to == "f16"), int(c == "f16"), int("satfinite" in parts))
    return Lowered(
        "mma.s32" if per == 4 else "mma.f32",
        [*map(Raw, numbers), *slots],
        kind=TOGETHER,
        target=EVERYONE,
        category="mma",
    )


@rule("wmma")
def _wmma(lowering, parts, operands, _):
    """`wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {…}, [p], stride`, `wmma.mma.….row.col.m16n16k16.f32.f32 d,
    a, b, c`, `wmma.store.d.….row.m16n16k16.shared.f32 [p], {…}, stride`. Counted as what ptxas makes of them: see
    tensor.cpp."""
    shape = WMMA_SHAPES.index(next(part for part in parts if part.startswith("m") and part[1:2].isdigit()))
    if parts[1] == "mma":
        types = parts[parts.index(WMMA_SHAPES[shape]) + 1 :]
        to, c = types[0], types[-1]
        element = types[1] if len(types) == 4 else "f16"
        vectors = [_elements(operand) for operand in operands]
        slots = [lowering.define(register, 4) for register in vectors[0]]
        slots += [lowering.use(register, 4, "b32") for vector in vectors[1:] for register in vector]
        numbers = (shape, ELEMENTS[element], int(to == "f16"), int(c == "f16"), len(vectors[1]), len(vectors[2]))
        return Lowered("wmma.mma", [*map(Raw, numbers), *slots], kind=TOGETHER, target=EVERYONE, category="mma")
    load = parts[1] == "load"
    (where, registers) = (operands[1], operands[0]) if load else (operands[0], operands[1])
    space, type_, operand = _space(parts), parts[-1], "abcd".index(parts[2]) % 3
    operand = 2 if parts[2] in "cd" else operand
    base, offset, wide = lowering.address(where, space)
    slots = [
        lowering.define(register, 4) if load else lowering.use(register, 4, "b32") for register in _elements(registers)
    ]
    stride = lowering.use(operands[2], 4, "u32") if len(operands) > 2 else Raw(NONE)
    element = ELEMENTS.get({"f32": "tf32"}.get(type_, type_))
    if element is None or element > 2 or (operand == 2 and type_ not in ("f16", "f32")):
        raise Unsupported("this type is not known")
    numbers = (wide, {**SPACES, "generic": 3}[space], shape, operand, element, int("col" in parts), int(type_ == "f16"))
    by_rows = operand < 2 and type_ != "tf32" and space == "shared"
    kind = "ldmatrix" if by_rows else f"{'load' if load else 'store'}.{space}"
    access = 16 if by_rows else 2 if operand == 2 and type_ == "f16" else 4
    out = [base, Raw(offset), *map(Raw, numbers), stride, Raw(len(slots)), *slots]
    return Lowered(
        f"wmma.{parts[1]}",
        out,
        kind=TOGETHER,
        target=EVERYONE,
        category=kind,
        access=access if space in ("shared", "generic") else 0,
    )


@rule("cp")
def _cp(lowering, parts, operands, _):
    name = ".".join(parts)
    if name == "cp.async.commit_group":
        return Lowered(name, category="control")
    if name == "cp.async.wait_all":
        return Lowered(name, category="control")
    if name == "cp.async.wait_group":
        return Lowered(name, [Raw(operands[0].value)], category="control")
    if parts[:2] != ["cp", "async"] or parts[2] not in ("ca", "cg"):
        raise Unsupported("of the asynchronous copies, only cp.async.ca and cp.async.cg are known")
    to, to_offset, to_wide = lowering.address(operands[0], "shared")
    source, source_offset, source_wide = lowering.address(operands[1], "global")
    size, flags = operands[2].value, 0
    if size not in (4, 8, 16) or (parts[2] == "cg" and size != 16):
        raise Unsupported(f"a copy of {size} bytes does not exist")
    take: object = Raw(NONE)
    ignore: object = Raw(NONE)
    for extra in operands[3:]:
        if isinstance(extra, Not) or (isinstance(extra, Register) and extra.type == "pred"):
            ignore, flags = lowering.negatable(extra)
        elif not (isinstance(extra, Register) and extra.bytes == 8):  # 64 bits: a cache policy
            take = lowering.use(extra, 4, "u32")
    out = [
        to,
        Raw(to_offset),
        Raw(int(to_wide)),
        source,
        Raw(source_offset),
        Raw(int(source_wide)),
        Raw(size),
        take,
        ignore,
        Raw(int(parts[2] == "cg")),
    ]
    return Lowered("cp.async", out, flags, category="cp.async", access=size)


# ---- control ----


@rule("bra")
def _bra(lowering, parts, operands, instruction):
    index = instruction.scope.label(operands[0].name)
    if index is None:
        raise PtxError(f"the label {operands[0].name} is not there: {instruction.text}")
    lowered = Lowered("bra", kind=BRANCH, category="control")
    lowering.fixes.append((lowered, lowering.frame, index))
    return lowered


@rule("brx")
def _brx(lowering, parts, operands, instruction):
    labels = instruction.scope.table(operands[1].name)
    table: list[int] = []
    lowering.tables.append(table)
    lowering.table_fixes.append((table, lowering.frame, [instruction.scope.label(label) for label in labels]))
    return Lowered(
        "brx", [lowering.use(operands[0], 4, "u32")], kind=TABLE, target=len(lowering.tables) - 1, category="control"
    )


@rule("ret", "exit")
def _ret(lowering, parts, operands, _):
    if parts[0] == "exit" or lowering.frame.entry:
        return Lowered("exit", kind=EXIT, category="control")
    lowered = Lowered("bra", kind=BRANCH, category="control")
    lowering.fixes.append((lowered, lowering.frame, len(lowering.frame.function.instructions)))
    return lowered


@rule("trap", "brkpt")
def _trap(lowering, parts, operands, _):
    return (
        Lowered("trap", kind=TRAP if parts[0] == "trap" else PLAIN, category="control")
        if parts[0] == "trap"
        else Lowered(category="control")
    )


@rule("membar", "fence")
def _fence(lowering, parts, operands, _):
    return Lowered("fence", flags=STRONG, category="control")


@rule("nanosleep")
def _nanosleep(lowering, parts, operands, _):
    flags = STRONG  # whoever sleeps in a loop waits for others
    return Lowered("nanosleep", [lowering.use(operands[0], 4, "u32")], flags, category="control")


@rule(
    "prefetch",
    "prefetchu",
    "discard",
    "applypriority",
    "pmevent",
    "griddepcontrol",
    "setmaxnreg",
)
def _nothing(lowering, parts, operands, _):
    return Lowered(category="control")


@rule("createpolicy")
def _createpolicy(lowering, parts, operands, _):
    return Lowered("mov.b64", [lowering.define(operands[0], 8), Constant(8, 0)])


@rule("call")
def _call(lowering, parts, operands, instruction):
    """Expand the function here: its parameters are the caller's variables or registers themselves."""
    results: tuple = ()
    if isinstance(operands[0], Vector):
        results, operands = operands[0].elements, operands[1:]
    if not isinstance(operands[0], Name):
        raise Unsupported("indirect calls are not known")
    function = lowering.module.functions.get(operands[0].name)
    arguments = operands[1].elements if len(operands) > 1 and isinstance(operands[1], Vector) else ()
    if function is None or not function.defined:
        if operands[0].name == "vprintf":
            places = [lowering.local(lowering.actual(variable)) for variable in (*arguments, *results)]
            return Lowered("printf", [Raw(place) for place in places], category="other")
        if operands[0].name == "__assertfail":
            return Lowered("trap", kind=TRAP, category="control")
        raise Unsupported(f"the function {operands[0].name} is not defined in this module")
    frame, after = _Frame(function, False), _Frame(function, False)
    if instruction.guard is not None:  # @p call: branch over the body
        skip = Lowered("bra", kind=BRANCH, category="control")
        skip.guard, skip.negated = lowering.register(instruction.guard), not instruction.negated
        skip.text, skip.location = instruction.text, instruction.location
        lowering.code.append(skip)
        lowering.fixes.append((skip, after, 0))
    else:
        lowering.finish(Lowered(category="control"), instruction)
    copies = []
    for formal, actual in zip((*function.params, *function.results), (*arguments, *results), strict=True):
        if isinstance(formal, Register):
            inner = frame.registers[formal] = Register(formal.name, formal.type)
            copies.append((inner, actual, formal in function.results))
        else:
            frame.variables[formal] = lowering.actual(actual)
    for inner, actual, is_result in copies:
        if not is_result:
            width = slot_bytes(inner)
            lowering.finish(
                Lowered(
                    f"mov.b{8 * width}" if width else "mov.pred",
                    [Def(inner), lowering.use(actual, width, inner.type)] + [Raw(0)] * (not width),
                ),
                _unguarded(instruction),
            )
    lowering.expand(frame)
    for inner, actual, is_result in copies:
        if is_result:
            width = slot_bytes(inner)
            lowering.finish(
                Lowered(
                    f"mov.b{8 * width}" if width else "mov.pred",
                    [lowering.define(actual, width), inner] + [Raw(0)] * (not width),
                ),
                _unguarded(instruction),
            )
    after.end = len(lowering.code)
    return None


def _unguarded(instruction: Instruction) -> Instruction:
    return Instruction(
        instruction.opcode, instruction.operands, None, False, instruction.location, instruction.text, instruction.scope
    )


# ---- slots and encoding ----


def _uses(lowered: Lowered):
    for operand in lowered.operands:
        if isinstance(operand, Register):
            yield operand
    if isinstance(lowered.target, Register):
        yield lowered.target
    if lowered.guard is not None:
        yield lowered.guard


def _live_ranges(code: list[Lowered], tables: list[list[int]]) -> dict[Register, tuple[int, int]]:
    """First and last instruction of each register's life, in program order, loops included."""
    starts = {0}
    for pc, lowered in enumerate(code):
        if lowered.kind == BRANCH:
            starts |= {lowered.target, pc + 1}
        elif lowered.kind == TABLE:
            starts |= {*tables[lowered.target], pc + 1}
        elif lowered.kind == EXIT:
            starts.add(pc + 1)
    bounds = sorted(start for start in starts if start < len(code)) + [len(code)]
    block_at = {start: number for number, start in enumerate(bounds[:-1])}
    number_of: dict[Register, int] = {}
    reads, writes, successors = [], [], []
    first: dict[Register, int] = {}
    last: dict[Register, int] = {}
    for begin, end in zip(bounds, bounds[1:], strict=False):
        read = written = 0
        for pc in range(begin, end):
            lowered = code[pc]
            for register in _uses(lowered):
                bit = 1 << number_of.setdefault(register, len(number_of))
                if not written & bit:
                    read |= bit
                first.setdefault(register, pc)
                last[register] = pc
            for operand in lowered.operands:
                if isinstance(operand, Def):
                    register = operand.register
                    bit = 1 << number_of.setdefault(register, len(number_of))
                    if lowered.guard is None:
                        written |= bit
                    elif not written & bit:
                        read |= bit  # what the guard leaves must be kept
                    first.setdefault(register, pc)
                    last[register] = pc
        tail = code[end - 1]
        following = []
        if tail.kind == BRANCH:
            following.append(block_at[tail.target])
        if tail.kind == TABLE:
            following += [block_at[pc] for pc in tables[tail.target]]
        if not (tail.kind in (BRANCH, EXIT) and tail.guard is None) and end in block_at:
            following.append(block_at[end])
        reads.append(read)
        writes.append(written)
        successors.append(following)
    live_in = list(reads)
    changed = True
    while changed:
        changed = False
        for block in range(len(reads) - 1, -1, -1):
            out = 0
            for follower in successors[block]:
                out |= live_in[follower]
            new = reads[block] | out & ~writes[block]
            if new != live_in[block]:
                live_in[block], changed = new, True
    registers = list(number_of)
    for block, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        out = 0
        for follower in successors[block]:
            out |= live_in[follower]
        for bits, pc in ((live_in[block], begin), (out, end - 1)):
            while bits:
                low = bits & -bits
                register = registers[low.bit_length() - 1]
                first[register], last[register] = min(first[register], pc), max(last[register], pc)
                bits ^= low
    return {register: (first[register], last[register]) for register in registers}


def _encode(lowering: _Lowering) -> Program:
    code = lowering.code
    ranges = _live_ranges(code, lowering.tables)
    # Linear scan, one pool of slots per width. A slot is free after the last use: destinations never overlap sources.
    by_start = sorted(ranges, key=lambda register: ranges[register])
    slots: dict[Register, int] = {}
    free: dict[int, list[int]] = {0: [], 2: [], 4: [], 8: [], 16: []}
    count = dict.fromkeys(free, 0)
    active: list[tuple[int, int, int]] = []  # last, width, slot
    for register in by_start:
        begin, end = ranges[register]
        still = []
        for item in active:
            if item[0] < begin:
                free[item[1]].append(item[2])
            else:
                still.append(item)
        active = still
        width = slot_bytes(register)
        if free[width]:
            slot = free[width].pop()
        else:
            slot, count[width] = count[width], count[width] + 1
        slots[register] = slot
        active.append((end, width, slot))

    constants: dict[Constant, int] = {lowering.true: 0}
    for lowered in code:
        for operand in (*lowered.operands, lowered.target):
            if isinstance(operand, Constant):
                constants.setdefault(
                    Constant(operand.width, operand.value & (1 << 8 * max(operand.width, 1)) - 1, operand.special), 0
                )
    # The frame: predicates, then 16-, 32-, 64-, 128-bit registers, each width followed by its constants.
    offset = 0
    base: dict[int, int] = {}
    table: list[int] = []
    for width in free:
        unit = 32 * width if width else 4
        base[width] = offset
        offset += count[width] * unit
        for constant in constants:
            if constant.width == width:
                constants[constant] = offset
                table += [offset, width, SPECIALS.get(constant.special, 0), constant.value]
                offset += unit
        offset = -(-offset // 64) * 64

    def place(operand) -> int:
        if isinstance(operand, Raw):
            return operand.value & 0xFFFFFFFF
        if isinstance(operand, Def):
            operand = operand.register
        if isinstance(operand, Register):
            width = slot_bytes(operand)
            return base[width] + slots[operand] * (32 * width if width else 4)
        return constants[Constant(operand.width, operand.value & (1 << 8 * max(operand.width, 1)) - 1, operand.special)]

    names: dict[str, int] = {}
    words = array("I")
    always = constants[lowering.true]
    for lowered in code:
        guard = place(lowered.guard) if lowered.guard is not None else always
        target = lowered.target if isinstance(lowered.target, int) else place(lowered.target)
        words.extend(
            (
                names.setdefault(lowered.name, len(names)),
                guard,
                0xFFFFFFFF if lowered.negated else 0,
                lowered.flags,
                lowered.kind,
                target,
                len(lowered.operands),
                *map(place, lowered.operands),
            )
        )
    tables = array("I")
    for entries in lowering.tables:
        tables.extend((len(entries), *entries))
    granule = min((lowered.access for lowered in code if lowered.access), default=16)
    header = array(
        "I",
        (
            len(code),
            offset,
            lowering.local_bytes,
            lowering.static_shared,
            int(math.log2(min(granule, 16))),
            len(table) // 4,
            len(tables),
            *base.values(),
        ),
    )
    return Program(
        lowering.function.name,
        code,
        list(names),
        words,
        header,
        array("Q", table),
        tables,
        lowering.static_shared,
        sorted(
            ((v.name, offset) for v, offset in lowering.offsets.items() if v.space == "shared"),
            key=lambda pair: pair[1],
        ),
    )


def lower(
    module: PtxModule, function: Function, addresses: dict[str, int]
) -> tuple[Program, list[tuple[str, int, int, int]], int]:
    """The program of one kernel, its parameters (name, size, alignment, offset) and their bytes together.

    `addresses`: where the module's .global and .const variables are. Raises `PtxError` for a module that contradicts
    itself."""
    lowering = _Lowering(module, function, addresses)
    program = lowering.lower()
    return program, lowering.params, lowering.param_bytes
