"""Arithmetic, bits, comparisons, moves and conversions."""

from __future__ import annotations

from collections.abc import Sequence

from cudaemu.lower.core import (
    ABSENT,
    CLOCKS,
    HALVES,
    PACKED,
    ROUND,
    Constant,
    Def,
    Flag,
    Form,
    Kind,
    Lowered,
    Lowering,
    Raw,
    Source,
    Unsupported,
    is_float,
    numbered,
    rule,
    slot_bytes,
    unsigned,
)
from cudaemu.ptx import BYTES, Immediate, Operand, Register, Special, Vector

# Which outcomes are true: 1 less, 2 equal, 4 greater, 8 unordered.
RELATIONS = numbered("lt eq le gt ne ge num nan ltu equ leu gtu neu geu", first=1)
RELATIONS |= {"lo": 1, "ls": 3, "hi": 4, "hs": 6}
COMBINE = {"and": 1, "or": 2, "xor": 3}

CVT_TYPES = numbered("s8 u8 s16 u16 s32 u32 s64 u64 f16 bf16 f32 f64 tf32")
CVT_MODES = numbered("rn rz rm rp rna rni rzi rmi rpi")
CVT_QUICK = frozenset(
    [
        "f32.f16",
        "f32.bf16",
        "f16.f32",
        "bf16.f32",
        "f32.s32",
        "f32.u32",
        "f64.f32",
        "f32.f64",
        "s64.s32",
        "u64.u32",
        "u32.u64",
        "u32.u16",
        "s32.s16",
        "u16.u32",
        "u64.u16",
    ]
)
FP8_PAIRS = ("e4m3x2", "e5m2x2")
SMALL_PAIRS = ("e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2")
HALF_PAIRS = ("f16x2", "bf16x2")


def float_flags(parts: list[str]) -> int:
    flags = Flag.FTZ * ("ftz" in parts) | Flag.SAT * ("sat" in parts) | Flag.RELU * ("relu" in parts)
    for part in parts:
        flags |= ROUND.get(part, 0)
    return flags


def simple(
    lowering: Lowering,
    name: str,
    operands: Sequence[Operand],
    widths: list[int],
    types: list[str],
    flags: int = 0,
    extra: tuple[int, ...] = (),
) -> Lowered:
    """First operand defined, the others used."""
    if not operands or len(operands) != len(widths):
        raise Unsupported(f"it has {len(operands)} operands instead of {len(widths)}")
    target = lowering.define(operands[0], widths[0])
    rest = zip(operands[1:], widths[1:], types[1:], strict=True)
    sources = [lowering.use(operand, width, type_) for operand, width, type_ in rest]
    return Lowered(name, [target, *sources, *map(Raw, extra)], flags)


@rule(
    *[
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
    ]
)
def _arithmetic(lowering: Lowering, form: Form) -> Lowered:
    base, type_, count = form.base, form.parts[-1], len(form.operands)
    if base in ("add", "sub", "mad") and form.has("cc"):
        return _carry(lowering, form)
    if type_ == "f32x2":
        return simple(lowering, f"{base}.f32x2", form.operands, [8] * count, ["b64"] * count, float_flags(form.parts))
    if type_ in PACKED:
        name = ".".join([base, *(["relu"] if form.has("relu") else []), "u16x2" if base == "add" else type_])
        return simple(lowering, name, form.operands, [4] * count, ["b32"] * count)
    width = BYTES[form.type()]
    if is_float(type_):
        if base == "div" and form.has("approx"):
            base = "div.approx"
        if type_ in ("f32", "f64") and len(form.parts) > 2 and form.parts[-2] in HALVES:
            raise Unsupported("mixed precision is not known")
        base = {"mad": "fma"}.get(base, base)
        if base in ("min", "max") and count == 4:
            base += "3"
        modifiers = [part for part in ("NaN", "xorsign", "abs") if form.has(part) and part != form.base]
        name = ".".join([base, *modifiers, type_])
        flags = float_flags(form.parts[1:-1])
        return simple(lowering, name, form.operands, [width] * count, [type_] * count, flags)
    kind = form.choose("lo", "hi", "wide", default="")
    if form.has("sat"):
        name = ".".join([base, *filter(None, [kind]), "sat", type_])
        return simple(lowering, name, form.operands, [width] * count, [type_] * count)
    signless = base in ("add", "sub", "neg") or kind == "lo" and base in ("mul", "mad")
    name = ".".join(
        filter(None, [base, kind, "relu" if form.has("relu") else "", unsigned(type_) if signless else type_])
    )
    widths = [width] * count
    if kind == "wide":
        widths = [2 * width, width, width] + [2 * width] * (base == "mad")
    return simple(lowering, name, form.operands, widths, [type_] * len(widths))


@rule("addc", "subc", "madc")
def _carry(lowering: Lowering, form: Form) -> Lowered:
    base, type_, count = form.base.removesuffix("c"), form.type(), len(form.operands)
    if base == "mad":
        name = f"madc.{form.choose('hi', 'lo')}.{type_}"
    else:
        name = f"{base}c.{unsigned(type_)}"
    lowered = simple(lowering, name, form.operands, [BYTES[type_]] * count, [type_] * count)
    carried = lowering.carry if form.base in ("addc", "subc", "madc") else ABSENT
    lowered.given = [*lowered.given, carried, Def(lowering.carry) if form.has("cc") else ABSENT]
    return lowered


@rule("and", "or", "xor", "not", "cnot")
def _bitwise(lowering: Lowering, form: Form) -> Lowered:
    type_, count = form.type(), len(form.operands)
    if type_ == "pred":
        out = [lowering.predicate(form.operand(0)), *(lowering.use(operand, 0) for operand in form.operands[1:])]
        if len(out) == 2:
            out.append(out[1])
        return Lowered(f"{form.base}.pred", out)
    return simple(lowering, f"{form.base}.{unsigned(type_)}", form.operands, [BYTES[type_]] * count, [type_] * count)


@rule("shl", "shr")
def _shift(lowering: Lowering, form: Form) -> Lowered:
    type_ = form.type()
    width = BYTES[type_]
    name = f"{form.base}.{unsigned(type_) if form.base == 'shl' or type_[0] == 'b' else type_}"
    return simple(lowering, name, form.operands, [width, width, 4], [type_, type_, "u32"])


@rule("bfe", "bfi", "brev", "popc", "clz", "bfind", "bmsk", "szext")
def _fields(lowering: Lowering, form: Form) -> Lowered:
    base, type_ = form.base, form.type()
    width = BYTES[type_]
    if base in ("bmsk", "szext"):
        return simple(lowering, form.instruction.opcode, form.operands, [4, 4, 4], ["", "u32", "u32"])
    type_ = unsigned(type_) if type_[0] == "b" else type_
    name = f"{base}.shiftamt.{type_}" if form.has("shiftamt") else f"{base}.{type_}"
    widths = {"bfe": [width, width, 4, 4], "bfi": [width, width, width, 4, 4], "brev": [width, width]}.get(
        base, [4, width]
    )
    return simple(lowering, name, form.operands, widths, [type_] * len(widths))


@rule("fns")
def _nth_set(lowering: Lowering, form: Form) -> Lowered:
    return simple(lowering, "fns.b32", form.operands, [4] * 4, ["b32", "b32", "b32", "s32"])


@rule("shf")
def _funnel(lowering: Lowering, form: Form) -> Lowered:
    return simple(lowering, form.instruction.opcode, form.operands, [4] * 4, ["b32"] * 4)


@rule("prmt")
def _permute(lowering: Lowering, form: Form) -> Lowered:
    modes = ("b32", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    if form.parts[-1] not in modes:
        raise Unsupported(f"'{form.parts[-1]}' is none of its modes")
    return simple(lowering, "prmt.b32", form.operands, [4] * 4, ["b32"] * 4, extra=(modes.index(form.parts[-1]),))


@rule("lop3")
def _lop3(lowering: Lowering, form: Form) -> Lowered:
    if form.parts[1:] != ["b32"]:
        raise Unsupported("lop3 with a predicate is not known")
    table = form.number(4) & 255
    return simple(lowering, "lop3.b32", form.operands[:4], [4] * 4, ["b32"] * 4, extra=(table,))


@rule("dp4a", "dp2a")
def _dot(lowering: Lowering, form: Form) -> Lowered:
    return simple(lowering, form.instruction.opcode, form.operands, [4] * 4, ["u32"] * 4)


VIDEO = ("add", "sub", "absdiff", "min", "max", "avrg")


@rule(*(f"v{what}{count}" for what in (*VIDEO, "set") for count in (2, 4)))
def _video(lowering: Lowering, form: Form) -> Lowered:
    """`vabsdiff4.u32.u32.u32.add d, a, b, c`: on the bytes or halves of a and b; `.add` sums them up, onto c."""
    what, lanes = form.base[1:-1], int(form.base[-1])
    types = [part for part in form.parts[1:] if part in ("u32", "s32")]
    if len(types) != (2 if what == "set" else 3) or len(form.operands) != 4:
        raise Unsupported("it has other types or operands than the emulator expects")
    relation = RELATIONS[form.choose(*RELATIONS)] if what == "set" else 0
    signs = [int(type_ == "s32") for type_ in types]
    out_signed, a_signed, b_signed = (0, *signs) if what == "set" else signs
    operation = (*VIDEO, "set").index(what)
    extra = (operation, lanes, a_signed, b_signed, out_signed, int(form.has("sat")), int(form.has("add")), relation)
    return simple(lowering, "video", form.operands, [4] * 4, ["b32"] * 4, extra=extra)


@rule("testp")
def _testp(lowering: Lowering, form: Form) -> Lowered:
    kinds = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    type_ = form.type()
    what = kinds.index(form.choose(*kinds))
    out = [lowering.predicate(form.operand(0)), lowering.use(form.operand(1), BYTES[type_], type_), Raw(what)]
    return Lowered(f"testp.{type_}", out)


def _comparison(lowering: Lowering, form: Form, type_: str, mode: int, first: Def | Raw, second: Def | Raw) -> Lowered:
    relation = RELATIONS[form.choose(*RELATIONS)]
    combine = next((COMBINE[part] for part in form.parts[2:] if part in COMBINE), 0)
    width = BYTES[type_]
    name = f"compare.{unsigned(type_) if type_[0] == 'b' and type_ not in HALVES else type_}"
    flags = Flag.FTZ * form.has("ftz")
    third: Source | Raw = ABSENT
    if combine:
        third, negate = lowering.negatable(form.operand(3))
        flags |= negate
    sources = [lowering.use(form.operand(n), width, type_) for n in (1, 2)]
    return Lowered(name, [Raw(mode), first, second, *sources, Raw(combine), third, Raw(relation)], flags)


@rule("setp")
def _setp(lowering: Lowering, form: Form) -> Lowered:
    first, second = (lowering.predicate(operand) for operand in form.pair(0))
    return _comparison(lowering, form, form.type(), 0, first, second)


# What `set` writes for true, by the type: 1 all ones, 2 1.0f, otherwise the bits.
SET_MODES = {
    "u32": 1, "s32": 1, "f32": 2, "f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80, "u16": 0xFFFF,
    "s16": 0xFFFF,
}  # fmt: skip


@rule("set")
def _set(lowering: Lowering, form: Form) -> Lowered:
    to, type_ = form.type(-2), form.type()
    if to not in SET_MODES:
        raise Unsupported(f"a truth value of type {to} is not known")
    mode = 0xFFFF if type_.endswith("x2") and SET_MODES[to] == 1 else SET_MODES[to]
    return _comparison(lowering, form, type_, mode, lowering.define(form.operand(0), BYTES[to]), ABSENT)


@rule("selp")
def _selp(lowering: Lowering, form: Form) -> Lowered:
    type_ = form.type()
    width = BYTES[type_]
    predicate, negate = lowering.negatable(form.operand(3))
    sources = [lowering.use(form.operand(n), width, type_) for n in (1, 2)]
    out = [lowering.define(form.operand(0), width), *sources, predicate]
    return Lowered(f"selp.b{8 * width}", out, negate)


@rule("slct")
def _slct(lowering: Lowering, form: Form) -> Lowered:
    type_, by = form.type(-2), form.type()
    width = BYTES[type_]
    name = f"slct.b{8 * width}.{by}"
    return simple(lowering, name, form.operands, [width] * 3 + [4], [type_] * 3 + [by])


@rule("mov")
def _mov(lowering: Lowering, form: Form) -> Lowered:
    type_ = form.type()
    to, source = form.operand(0), form.operand(1)
    if isinstance(source, Special) and source.name in CLOCKS:
        width = BYTES[type_]
        name = f"{source.name[1:].removesuffix('64')}.b{8 * width}"
        return Lowered(name, [lowering.define(to, width)], kind=Kind.CLOCK)
    if type_ == "pred":
        out = [lowering.predicate(to), lowering.use(source, 0)]
        return Lowered("mov.pred", [*out, out[1]])
    width = BYTES[type_]
    if isinstance(source, Vector) and not isinstance(to, Vector):
        part = _part(width, source)
        uses = [lowering.use(element, max(part, 2), type_) for element in source.elements]
        return Lowered("pack", [lowering.define(to, width), Raw(part), Raw(len(uses)), *uses])
    if isinstance(to, Vector) and not isinstance(source, Vector):
        part = _part(width, to)
        parts = [lowering.define(element, max(part, 2)) for element in to.elements]
        return Lowered("unpack", [lowering.use(source, width, type_), Raw(part), Raw(len(parts)), *parts])
    return Lowered(f"mov.b{8 * width}", [lowering.define(to, width), lowering.use(source, width, type_)])


def _part(width: int, vector: Vector) -> int:
    """Bytes of each element of a vector that makes up `width` bytes."""
    count = len(vector.elements)
    if count not in (2, 4) or width < count:
        raise Unsupported(f"{8 * width} bits are not made of {count} parts")
    return width // count


def _cvt_pack(lowering: Lowering, form: Form) -> Lowered:
    """`cvt.pack.sat.u8.s32.b32 d, a, b, c`: two integers, saturated, below bits of c; or `….s16.s32 d, a, b`."""
    to, source = form.parts[form.parts.index("sat") + 1 :][:2]
    if to[0] not in "us" or to[1:] not in ("2", "4", "8", "16") or source != "s32":
        raise Unsupported(f"a conversion from {source} to {to} is not known")
    operands = [*form.operands, Immediate(0, "int")][:4]
    return simple(lowering, f"cvt.pack.{to}", operands, [4] * 4, ["b32", "s32", "s32", "b32"])


@rule("cvt")
def _cvt(lowering: Lowering, form: Form) -> Lowered:
    to, source = (form.parts[n] if len(form.parts) > 2 else "" for n in (-2, -1))
    flags = Flag.FTZ * form.has("ftz") | Flag.SAT * form.has("sat", "satfinite") | Flag.RELU * form.has("relu")
    mode = form.choose(*CVT_MODES, default="")
    if form.has("pack"):
        return _cvt_pack(lowering, form)
    if {to, source} & {"f32", "f16x2"} and (to in FP8_PAIRS or source in FP8_PAIRS):
        return _cvt_fp8(lowering, form, to, source, flags)
    if to in SMALL_PAIRS or source in SMALL_PAIRS:
        return _cvt_small(lowering, form, to, source, flags)
    if to in HALF_PAIRS and source == "f32" and mode in CVT_MODES:
        sources = [lowering.use(form.operand(n), 4, "f32") for n in (1, 2)]
        numbers = Raw(CVT_TYPES[to[:-2]]), Raw(CVT_MODES[mode])
        return Lowered("cvt.pair", [lowering.define(form.operand(0), 4), *sources, *numbers], flags)
    if to not in CVT_TYPES or source not in CVT_TYPES or len(form.operands) != 2:
        raise Unsupported(f"a conversion from {source} to {to} is not known")
    target_bytes, source_bytes = (
        slot_bytes(operand) if isinstance(operand, Register) else max(2, BYTES[type_])
        for operand, type_ in zip(form.operands, (to, source), strict=True)
    )
    if target_bytes < BYTES[to] or source_bytes < BYTES[source]:
        raise Unsupported("its register is too narrow")
    if is_float(to) and target_bytes != BYTES[to] or is_float(source) and source_bytes != BYTES[source]:
        raise Unsupported("a floating register must have the size of its type")
    out = [lowering.define(form.operand(0), target_bytes), lowering.use(form.operand(1), source_bytes, source)]
    exactly = target_bytes == BYTES[to] and source_bytes == BYTES[source]
    if not flags and f"{to}.{source}" in CVT_QUICK and mode in ("", "rn") and exactly:
        return Lowered(f"cvt.{to}.{source}", out)
    if (to, source, mode, flags) == ("tf32", "f32", "rna", 0):
        return Lowered("cvt.rna.tf32.f32", out)
    how = (CVT_TYPES[to], CVT_TYPES[source], CVT_MODES.get(mode, len(CVT_MODES)), target_bytes, source_bytes)
    return Lowered("cvt", out + [Raw(number) for number in how], flags)


def _cvt_fp8(lowering: Lowering, form: Form, to: str, source: str, flags: int) -> Lowered:
    """Pairs of 8-bit floats, from f32 (two operands), from f16x2, and to f16x2."""
    name = f"cvt.{to}.{source}"
    widths = {"f32": [2, 4, 4], "f16x2": [2, 4]}.get(source, [4, 2])
    return simple(lowering, name, form.operands, widths, ["f32"] * len(widths), flags)


def _cvt_small(lowering: Lowering, form: Form, to: str, source: str, flags: int) -> Lowered:
    """Pairs of 4, 6 and 8 bits, and of scales: from f32 (two operands) or a pair of halves, or to one of halves."""
    bf16 = int("bf16x2" in (to, source))
    if to in HALF_PAIRS and source in SMALL_PAIRS:
        name, widths, small = "cvt.widen", [4, 2], source
    elif to in SMALL_PAIRS and source in ("f32", *HALF_PAIRS):
        name = "cvt.small.f32" if source == "f32" else "cvt.small.halves"
        widths, small = [2, 4, 4] if source == "f32" else [2, 4], to
    else:
        raise Unsupported(f"a conversion from {source} to {to} is not known")
    mode = form.choose("rn", "rz", "rp")
    if mode not in ({"rz", "rp"} if to == "ue8m0x2" else {"rn", "rz"}) or (small == "ue8m0x2" and source == "f16x2"):
        raise Unsupported(f"a conversion from {source} to {to} with .{mode} is not known")
    extra = (SMALL_PAIRS.index(small), CVT_MODES[mode], bf16)
    return simple(lowering, name, form.operands, widths, ["b32"] * len(widths), flags, extra)


@rule("createpolicy")
def _createpolicy(lowering: Lowering, form: Form) -> Lowered:
    return Lowered("mov.b64", [lowering.define(form.operand(0), 8), Constant(8, 0)])
