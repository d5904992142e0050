"""Tensor cores, and the matrices in shared memory that feed them."""

from __future__ import annotations

import re

from cudaemu import units
from cudaemu.lower.core import (
    ABSENT,
    SPACES,
    Constant,
    Form,
    Given,
    Kind,
    Lowered,
    Lowering,
    Raw,
    Unsupported,
    rule,
)
from cudaemu.lower.warp import EVERYONE
from cudaemu.ptx import SINK, Immediate, Vector

# Elements of A and B: their numbers in tensor.cpp.
ELEMENTS = {
    "f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "e4m3": 5, "e5m2": 6, "s4": 7, "u4": 8, "b1": 9, "f64": 10,
    "e2m3": 11, "e3m2": 12, "e2m1": 13, "e2m1_in_8": 14,
}  # fmt: skip
BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "s4": 4, "u4": 4, "b1": 1, "f64": 64,
    "e2m3": 8, "e3m2": 8, "e2m1": 4, "e2m1_in_8": 8,
}  # fmt: skip
FLOATS, INTEGERS = ("f16", "bf16", "tf32", "e4m3", "e5m2"), ("s8", "u8", "s4", "u4")
SMALL = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")  # any of them times any: kind::f8f6f4 and kind::mxf8f6f4
# Rows and depth of a product with 8 columns, and the types of its sums.
MMA = {
    "f16": ({(16, 8), (16, 16)}, ("f32", "f16")),
    "bf16": ({(16, 8), (16, 16)}, ("f32",)),
    "tf32": ({(16, 4), (16, 8)}, ("f32",)),
    "e4m3": ({(16, 16), (16, 32)}, ("f32", "f16")),
    "e5m2": ({(16, 16), (16, 32)}, ("f32", "f16")),
    "s8": ({(8, 16), (16, 16), (16, 32)}, ("s32",)),
    "u8": ({(8, 16), (16, 16), (16, 32)}, ("s32",)),
    "s4": ({(8, 32), (16, 32), (16, 64)}, ("s32",)),
    "u4": ({(8, 32), (16, 32), (16, 64)}, ("s32",)),
    "b1": ({(8, 128), (16, 128), (16, 256)}, ("s32",)),
    "f64": ({(8, 4), (16, 4), (16, 8), (16, 16)}, ("f64",)),
}
# Of mma.sp: the depths, of which A has half.
SPARSE = {
    "f16": (16, 32), "bf16": (16, 32), "tf32": (8, 16), "s8": (32, 64), "u8": (32, 64), "s4": (64, 128),
    "u4": (64, 128), "e4m3": (64,), "e5m2": (64,),
}  # fmt: skip
# Products with scales: depth, and by the scales' type how many scales a row or a column may have.
SCALED: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "kind::mxf8f6f4": (32, {"ue8m0": (1,)}),
    "kind::mxf4": (64, {"ue8m0": (2,)}),
    "kind::mxf4nvf4": (64, {"ue8m0": (2, 4), "ue4m3": (4,)}),
}
SCALES = ("ue8m0", "ue4m3")  # their numbers in tensor.cpp
# The types of the sums of a wgmma, by that of A.
WGMMA = {
    "f16": ("f32", "f16"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f32", "f16"), "e5m2": ("f32", "f16"),
    "s8": ("s32",), "u8": ("s32",), "b1": ("s32",),
}  # fmt: skip
WMMA_SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16", "m16n16k8", "m8n8k4", "m8n8k32", "m8n8k128")
# Shapes whose fragments and products are those of mma, and their types of A and B.
WMMA_OF_MMA = {"m8n8k4": ("f64",), "m8n8k32": ("s4", "u4"), "m8n8k128": ("b1",)}


def _sizes(shape: str) -> tuple[int, int, int]:
    """ "m16n8k16" -> (16, 8, 16)"""
    m, n, k = map(int, re.findall(r"\d+", shape))
    return m, n, k


@rule("ldmatrix", "stmatrix")
def _matrix(lowering: Lowering, form: Form) -> Lowered:
    """`ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {…}, [a]`; `stmatrix` has its operands the other way round.
    Of 8 bits: `ldmatrix.….m16n16.x2.trans.shared.b8`, `….m8n16.x4.shared.b8x16.b6x16_p32`; `stmatrix.….m16n8.x4.….b8`.
    """
    load = form.base == "ldmatrix"
    registers, where = (form.elements(0), form.operand(1)) if load else (form.elements(1), form.operand(0))
    count = int(form.choose("x1", "x2", "x4")[1:])
    shape, trans, type_ = form.choose("m8n8", "m16n16", "m8n16", "m16n8"), form.has("trans"), form.parts[-1]
    bits = {"b16": 16, "b8": 8, "b6x16_p32": 6, "b4x16_p64": 4}.get(type_, 0)
    packed = bits in (4, 6) and form.parts[-2] == "b8x16"
    known = {
        "m8n8": type_ == "b16",
        "m16n16": load and trans and count < 4 and (packed or type_ == "b8"),
        "m8n16": load and not trans and packed,
        "m16n8": not load and trans and type_ == "b8",
    }
    count *= 2 if shape == "m16n16" else 1
    if not known[shape] or len(registers) != count:
        raise Unsupported("matrices of this shape and this type are not known")
    base, offset, wide = lowering.address(where, form.space)
    slots = [lowering.define(element, 4) if load else lowering.use(element, 4, "b32") for element in registers]
    mode = wide | (form.space == "generic") << 1
    out = [base, Raw(offset), Raw(mode), Raw(count), Raw(int(trans)), Raw(bits), *slots]
    name = form.base if bits == 16 else f"{form.base}.b8"
    return Lowered(name, out, kind=Kind.TOGETHER, target=EVERYONE, access=16 if bits in (8, 16) else 4)


@rule("movmatrix")
def _movmatrix(lowering: Lowering, form: Form) -> Lowered:
    out = [lowering.define(form.operand(0), 4), lowering.use(form.operand(1), 4, "b32")]
    return Lowered("movmatrix", out, kind=Kind.TOGETHER, target=EVERYONE)


def _alike(a: str, b: str) -> bool:
    return any({a, b} <= set(kinds) for kinds in ({"s8", "u8"}, {"s4", "u4"}, {"e4m3", "e5m2"})) or a == b


@rule("mma")
def _mma(lowering: Lowering, form: Form) -> Lowered:
    """`mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c`; of bits: `….s32.b1.b1.s32.xor.popc`; of any two
    types of 4 to 8 bits: `….kind::f8f6f4.f32.e2m1.e4m3.f32`. With `.sp` A is sparse: `d, a, b, c, data, selector`."""
    if form.has("block_scale"):
        return _mma_scaled(lowering, form)
    bits, sparse = form.parts[-1] == "popc", form.has("sp", "sp::ordered_metadata")
    types = form.parts[:-2] if bits else form.parts
    to, a, b, c = types[-4:] if len(types) > 5 else ("",) * 4
    shape = next((match for part in form.parts if (match := re.fullmatch(r"m(\d+)n8k(\d+)", part))), None)
    rows, depth = (int(shape[1]), int(shape[2])) if shape else (0, 0)
    shapes, sums = MMA.get(a, ((), ()))
    known, alike = (rows == 16 and depth in SPARSE.get(a, ()) if sparse else (rows, depth) in shapes), _alike(a, b)
    if form.has("kind::f8f6f4"):
        known, alike, sums = (rows, depth) == (16, 64 if sparse else 32), {a, b} <= set(SMALL), ("f32", "f16")
        a, b = _in_bytes(a), _in_bytes(b)
    if not known or not alike or ".row.col" not in form.instruction.opcode:
        raise Unsupported("mma of this shape and these types is not known")
    if to not in sums or c not in sums or (a == "b1") != bits:
        raise Unsupported("its accumulators are not known")
    width = 8 if a == "f64" else 4
    counts = (
        rows * 8 // 32 // (2 if to == "f16" else 1),
        *(size * BITS[a] // (8 * width) // 32 for size in (rows * depth // (2 if sparse else 1), 8 * depth)),
        rows * 8 // 32 // (2 if c == "f16" else 1),
    )
    vectors = [form.elements(n) for n in range(4)]
    if tuple(map(len, vectors)) != counts or len(form.operands) != (6 if sparse else 4):
        raise Unsupported("its operands have another number of registers")
    kinds = ("f64" if a == "f64" else "b32", "b32", c if c in ("f32", "f64") else "b32")
    d = [lowering.define(element, width) for element in vectors[0]]
    first, second, third = (
        [lowering.use(element, width, kind) for element in vector]
        for vector, kind in zip(vectors[1:], (kinds[0], kinds[0], kinds[2]), strict=True)
    )
    flag = form.parts[-2] == "xor" if bits else form.has("satfinite")
    numbers = (rows, depth, ELEMENTS[a], ELEMENTS[b], int(to == "f16"), int(c == "f16"), int(flag))
    flops = units.MMA.share(rows, 8, depth)
    integers = a in INTEGERS
    if sparse:
        lanes = counts[1] // (2 if BITS[a] >= 16 else 1)  # of four, that have metadata
        selector = form.number(5)
        if not 0 <= selector < 4 // lanes:
            raise Unsupported(f"its selector must be less than {4 // lanes}, got {selector}")
        out = [*map(Raw, (*numbers, selector)), *d, *first, lowering.use(form.operand(4), 4, "b32"), *second, *third]
        name = "mma.sp.s32" if integers else "mma.sp.f32"
        return Lowered(name, out, kind=Kind.TOGETHER, target=EVERYONE, flops=flops // 2)
    name = "mma.f64" if a == "f64" else "mma.b1" if bits else "mma.s32" if integers else "mma.f32"
    out = [*map(Raw, numbers), *d, *first, *second, *third]
    return Lowered(name, out, kind=Kind.TOGETHER, target=EVERYONE, flops=flops)


def _in_bytes(type_: str) -> str:
    """An element's type where each has a byte."""
    return "e2m1_in_8" if type_ == "e2m1" else type_


def _mma_scaled(lowering: Lowering, form: Form) -> Lowered:
    """`mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 d, a, b, c,
    scales of A, {byte, lanes}, scales of B, {byte, lane}`"""
    kind = form.choose(*SCALED)
    depth, scales = SCALED[kind]
    to, a, b, c, type_ = form.parts[-5:] if len(form.parts) > 5 else ("",) * 5
    default = {"kind::mxf8f6f4": "scale_vec::1X", "kind::mxf4": "scale_vec::2X"}.get(kind)
    parts = int(form.choose("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", default=default)[-2])
    elements = SMALL if depth == 32 else ("e2m1",)
    if {"sp", "sp::ordered_metadata"} & set(form.parts):
        raise Unsupported("products of sparse matrices with scales are not emulated")
    if not {a, b} <= set(elements) or not form.has(f"m16n8k{depth}") or parts not in scales.get(type_, ()):
        raise Unsupported("mma of this shape and these types is not known")
    if (to, c) != ("f32", "f32") or len(form.operands) != 8:
        raise Unsupported("its accumulators are not known")
    a, b = (_in_bytes(a), _in_bytes(b)) if depth == 32 else (a, b)
    vectors = [form.elements(n) for n in range(4)]
    selectors = [form.elements(n) for n in (5, 7)]
    scales_of = [form.elements(n) for n in (4, 6)]  # CUTLASS has them in braces
    if tuple(map(len, (*vectors, *selectors, *scales_of))) != (4, 4, 2, 4, 2, 2, 1, 1):
        raise Unsupported("its operands have another number of registers")
    for pair, lanes in zip(selectors, (2, 4), strict=True):
        for operand, allowed in zip(pair, (range(0, 4, parts), range(lanes)), strict=True):
            if isinstance(operand, Immediate) and operand.value not in allowed:
                raise Unsupported(f"a selector must be one of {', '.join(map(str, allowed))}, got {operand.value}")
    d = [lowering.define(element, 4) for element in vectors[0]]
    first, second = ([lowering.use(element, 4, "b32") for element in vectors[n]] for n in (1, 2))
    third = [lowering.use(element, 4, "f32") for element in vectors[3]]
    for side, (word,), pair in zip((first, second), scales_of, selectors, strict=True):
        side.append(lowering.use(word, 4, "b32"))
        side += [lowering.use(operand, 2, "u16") for operand in pair]
    numbers = (16, depth, ELEMENTS[a], ELEMENTS[b], 0, 0, 0, SCALES.index(type_), parts)
    out = [*map(Raw, numbers), *d, *first, *second, *third]
    flops = units.MMA.share(16, 8, depth)
    return Lowered("mma.scaled", out, kind=Kind.TOGETHER, target=EVERYONE, flops=flops)


@rule("wgmma")
def _wgmma(lowering: Lowering, form: Form) -> Lowered:
    """`wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 d, a-desc, b-desc, scale-d, imm-scale-a, imm-scale-b,
    imm-trans-a, imm-trans-b`, or with A in registers, then without imm-trans-a; and fence, commit_group, wait_group."""
    what = form.choose("mma_async", "fence", "commit_group", "wait_group")
    if what == "wait_group":
        return Lowered("wgmma.wait_group", [Raw(form.number(0))], kind=Kind.WGMMA_WAIT)
    if what != "mma_async":
        return Lowered(f"wgmma.{what}", kind=Kind.TOGETHER, target=EVERYONE)
    bits = form.parts[-1] == "popc"
    # ptxas takes .satfinite at the end, too, as CUTLASS has it.
    to, a, b = [part for part in (form.parts[:-2] if bits else form.parts) if part != "satfinite"][-3:]
    shape = next((match for part in form.parts if (match := re.fullmatch(r"m64n(\d+)k(\d+)", part))), None)
    columns, depth = (int(shape[1]), int(shape[2])) if shape else (0, 0)
    sums = WGMMA.get(a, ())
    widths = range(8, 257, 8) if a in FLOATS else [8, 16, 24, *range(32, 257, 16)]
    known = columns in widths and depth * BITS.get(a, 0) == 256 and _alike(a, b) and (a == "b1") == bits
    if not known or form.has("sp"):
        raise Unsupported("wgmma of this shape and these types is not known")
    if to not in sums or bits and form.parts[-2] != "and":
        raise Unsupported("its accumulators are not known")
    in_registers = isinstance(form.operand(1), Vector)
    d, rows = form.elements(0), form.elements(1) if in_registers else ()
    transposes = 0 if a not in ("f16", "bf16") else 1 if in_registers else 2
    scales = [form.number(n) for n in (4, 5)] if a in FLOATS else []
    transposed = [form.number(6 + n) for n in range(transposes)]
    wanted = (columns // (4 if to == "f16" else 2), 4 if in_registers else 0, 4 + len(scales) + transposes)
    if (len(d), len(rows), len(form.operands)) != wanted or SINK in d:
        raise Unsupported("it has other operands than the emulator expects")
    if any(scale not in (-1, 1) for scale in scales) or any(flag not in (0, 1) for flag in transposed):
        raise Unsupported("a factor must be 1 or -1, and a matrix transposed or not: 1 or 0")
    scale = lowering.use(form.operand(3), 0)
    flags = int(scales.count(-1) == 1) | int(transposes == 2 and transposed[0]) << 1
    flags |= int(transposes > 0 and transposed[-1]) << 2 | int(form.has("satfinite")) << 3 | int(bits) << 4
    size = (columns, 8 if bits else depth)
    descriptors = [ABSENT if in_registers else lowering.use(form.operand(1), 8, "b64")]
    descriptors.append(lowering.use(form.operand(2), 8, "b64"))
    kind = "f32" if to == "f32" else "b32"
    slots: list[Given] = [lowering.define(element, 4) for element in d]
    slots += [lowering.use(element, 4, "b32") for element in rows]
    if not (isinstance(scale, Constant) and not scale.value):
        slots += [lowering.use(element, 4, kind) for element in d]
    name = "wgmma.f32" if a in FLOATS else "wgmma.s32"
    counts = (*size, ELEMENTS[a], ELEMENTS[b], int(to == "f16"), flags, len(d), len(rows))
    out = [*map(Raw, counts), scale, *descriptors, *slots]
    flops = units.WGMMA.share(64, columns, depth)
    return Lowered(name, out, kind=Kind.TOGETHER, target=EVERYONE, access=16, flops=flops)


@rule("setmaxnreg")
def _setmaxnreg(lowering: Lowering, form: Form) -> Lowered:
    """`setmaxnreg.inc.sync.aligned.u32 232`"""
    registers = form.number(0)
    if registers % 8 or not 24 <= registers <= 256:
        raise Unsupported(f"its registers must be a multiple of 8 from 24 to 256, got {registers}")
    return Lowered("setmaxnreg", [Raw(registers)], kind=Kind.TOGETHER, target=EVERYONE)


@rule("wmma")
def _wmma(lowering: Lowering, form: Form) -> Lowered:
    """`wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {…}, [p], stride`, `wmma.mma.….row.col.m16n16k16.f32.f32 d,
    a, b, c`, `wmma.store.d.….row.m16n16k16.shared.f32 [p], {…}, stride`. Counted as what ptxas makes of them: see
    tensor.cpp."""
    name = form.choose(*WMMA_SHAPES)
    shape = WMMA_SHAPES.index(name)
    what = form.choose("load", "store", "mma")
    if what == "mma":
        return _wmma_mma(lowering, form, name, shape)
    load = what == "load"
    where, registers = (form.operand(1), form.elements(0)) if load else (form.operand(0), form.elements(1))
    operand = {"a": 0, "b": 1, "c": 2, "d": 2}[form.choose("a", "b", "c", "d")]
    space, type_ = form.space, form.parts[-1]
    if space not in ("generic", "global", "shared"):
        raise Unsupported("wmma takes its fragments from global and shared memory")
    element = ELEMENTS.get({"f32": "tf32", "s32": "tf32"}.get(type_, type_), len(ELEMENTS))
    known = ("f16", "f32", "s32") if operand == 2 else WMMA_OF_MMA.get(name, ("f16", "bf16", "tf32", "s8", "u8"))
    if name == "m8n8k4":
        known = ("f64",)
    if (type_ if operand == 2 else {"f32": "tf32"}.get(type_, type_)) not in known:
        raise Unsupported("wmma of this type is not known")
    base, offset, wide = lowering.address(where, space)
    width = 8 if type_ == "f64" else 4
    slots = [lowering.define(r, width) if load else lowering.use(r, width, f"b{8 * width}") for r in registers]
    stride = lowering.use(form.operand(2), 4, "u32") if len(form.operands) > 2 else ABSENT
    halves = type_ == "f16"
    numbers = (wide, SPACES[space], shape, operand, element, int(form.has("col")), int(halves))
    by_rows = operand < 2 and type_ in ("f16", "bf16") and space == "shared"
    kind = "ldmatrix" if by_rows else f"{what}.{space}"
    access = 16 if by_rows else 2 if operand == 2 and halves else 1 if type_ in ("s8", "u8") else width
    out = [base, Raw(offset), *map(Raw, numbers), stride, Raw(len(slots)), *slots]
    machine = f"wmma.{what}" if width == 4 else f"wmma.{what}.f64"
    made = Lowered(machine, out, kind=Kind.TOGETHER, target=EVERYONE, category=kind)
    if space in ("shared", "generic"):
        made.access = access
    if space in ("global", "generic"):
        made.global_load, made.global_store = (access, 0) if load else (0, access)
    return made


def _wmma_mma(lowering: Lowering, form: Form, name: str, shape: int) -> Lowered:
    types = [part for part in form.parts[form.parts.index(name) + 1 :] if part not in ("satfinite", "rn")]
    if len(types) not in (2, 4):
        raise Unsupported("it has other types than the emulator expects")
    to, c = types[0], types[-1]
    a, b = types[1:3] if len(types) == 4 else ("f16", "f16")
    if name in WMMA_OF_MMA:
        return _of_mma(lowering, form, name, types)
    integers = a in ("s8", "u8") and b in ("s8", "u8")
    if not integers and (a != b or a not in ("f16", "bf16", "tf32")) or "s32" in (to, c) and not integers:
        raise Unsupported("wmma of these types is not known")
    vectors = [form.elements(n) for n in range(4)]
    slots: list[Given] = [lowering.define(register, 4) for register in vectors[0]]
    slots += [lowering.use(register, 4, "b32") for vector in vectors[1:] for register in vector]
    flags = (int(to == "f16"), int(c == "f16"), int(form.has("satfinite")))
    numbers = (shape, ELEMENTS[a], ELEMENTS[b], *flags, *(len(vector) for vector in vectors[:3]))
    machine = "wmma.mma.s32" if integers else "wmma.mma"
    m, n, k = _sizes(name)
    flops = units.MMA.share(m, n, k) // 2  # it counts as two mma
    return Lowered(machine, [*map(Raw, numbers), *slots], kind=Kind.TOGETHER, target=EVERYONE, flops=flops)


def _of_mma(lowering: Lowering, form: Form, name: str, types: list[str]) -> Lowered:
    """Fragments of doubles, of 4 bits and of one are those of mma.m8n8k…, and so is the product."""
    to, a, b, c = types if len(types) == 4 else ("",) * 4
    vectors = [form.elements(n) for n in range(4)]
    if not {a, b} <= set(WMMA_OF_MMA[name]) or to != c or to not in MMA[a][1]:
        raise Unsupported("wmma of these types is not known")
    if tuple(map(len, vectors)) != (2, 1, 1, 2):
        raise Unsupported("its operands have another number of registers")
    width, kind = (8, "f64") if a == "f64" else (4, "b32")
    slots: list[Given] = [lowering.define(register, width) for register in vectors[0]]
    slots += [lowering.use(register, width, kind) for vector in vectors[1:] for register in vector]
    flag = form.has("xor") if a == "b1" else form.has("satfinite")
    m, n, k = _sizes(name)
    numbers = (m, k, ELEMENTS[a], ELEMENTS[b], 0, 0, int(flag))
    machine = {"f64": "mma.f64", "b1": "mma.b1"}.get(a, "mma.s32")
    flops = units.MMA.share(m, n, k)
    return Lowered(machine, [*map(Raw, numbers), *slots], kind=Kind.TOGETHER, target=EVERYONE, flops=flops)
