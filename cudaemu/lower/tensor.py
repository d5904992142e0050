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
from cudaemu.ptx import SINK, Vector

# Elements of A and B: their numbers in tensor.cpp.
ELEMENTS = {
    "f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "e4m3": 5, "e5m2": 6, "s4": 7, "u4": 8, "b1": 9, "f64": 10,
}  # fmt: skip
BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "s4": 4, "u4": 4, "b1": 1, "f64": 64,
}  # fmt: skip
FLOATS, INTEGERS = ("f16", "bf16", "tf32", "e4m3", "e5m2"), ("s8", "u8", "s4", "u4")
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
    """`ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {…}, [a]`; `stmatrix` has its operands the other way round."""
    load = form.base == "ldmatrix"
    registers, where = (form.elements(0), form.operand(1)) if load else (form.elements(1), form.operand(0))
    count = int(form.choose("x1", "x2", "x4")[1:])
    if not form.has("m8n8") or form.parts[-1] != "b16" or len(registers) != count:
        raise Unsupported("only matrices of 8 × 8 elements of 16 bits are known")
    base, offset, wide = lowering.address(where, form.space)
    slots = [lowering.define(element, 4) if load else lowering.use(element, 4, "b32") for element in registers]
    mode = wide | (form.space == "generic") << 1
    out = [base, Raw(offset), Raw(mode), Raw(count), Raw(int(form.has("trans"))), *slots]
    return Lowered(form.base, out, kind=Kind.TOGETHER, target=EVERYONE, access=16)


@rule("movmatrix")
def _movmatrix(lowering: Lowering, form: Form) -> Lowered:
    out = [lowering.define(form.operand(0), 4), lowering.use(form.operand(1), 4, "b32")]
    return Lowered("movmatrix", out, kind=Kind.TOGETHER, target=EVERYONE)


@rule("mma")
def _mma(lowering: Lowering, form: Form) -> Lowered:
    """`mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c`; of bits: `….s32.b1.b1.s32.xor.popc`"""
    bits = form.parts[-1] == "popc"
    types = form.parts[:-2] if bits else form.parts
    to, a, b, c = types[-4:] if len(types) > 5 else ("",) * 4
    shape = next((match for part in form.parts if (match := re.fullmatch(r"m(\d+)n8k(\d+)", part))), None)
    shapes, sums = MMA.get(a, ((), ()))
    rows, depth = (int(shape[1]), int(shape[2])) if shape else (0, 0)
    alike = any({a, b} <= set(kinds) for kinds in ({"s8", "u8"}, {"s4", "u4"}, {"e4m3", "e5m2"})) or a == b
    if (rows, depth) not in shapes or not alike or ".row.col." not in form.instruction.opcode or form.has("sp"):
        if form.has("sp") or form.has("sp::ordered_metadata"):
            raise Unsupported("products of sparse matrices (mma.sp) are not emulated")
        raise Unsupported("mma of this shape and these types is not known")
    if to not in sums or c not in sums or (a == "b1") != bits:
        raise Unsupported("its accumulators are not known")
    width = 8 if a == "f64" else 4
    counts = (
        rows * 8 // 32 // (2 if to == "f16" else 1),
        *(size * BITS[a] // (8 * width) // 32 for size in (rows * depth, 8 * depth)),
        rows * 8 // 32 // (2 if c == "f16" else 1),
    )
    vectors = [form.elements(n) for n in range(4)]
    if tuple(map(len, vectors)) != counts or len(form.operands) != 4:
        raise Unsupported("its operands have another number of registers")
    kinds = ("f64" if a == "f64" else "b32", "b32", c if c in ("f32", "f64") else "b32")
    slots: list[Given] = [lowering.define(element, width) for element in vectors[0]]
    slots += [
        lowering.use(element, width, kind)
        for vector, kind in zip(vectors[1:], (kinds[0], kinds[0], kinds[2]), strict=True)
        for element in vector
    ]
    flag = form.parts[-2] == "xor" if bits else form.has("satfinite")
    numbers = (rows, depth, ELEMENTS[a], ELEMENTS[b], int(to == "f16"), int(c == "f16"), int(flag))
    name = "mma.f64" if a == "f64" else "mma.b1" if bits else "mma.f32" if a in FLOATS else "mma.s32"
    flops = units.MMA.share(rows, 8, depth)
    return Lowered(name, [*map(Raw, numbers), *slots], kind=Kind.TOGETHER, target=EVERYONE, flops=flops)


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
    alike = any({a, b} <= set(kinds) for kinds in ({"s8", "u8"}, {"e4m3", "e5m2"})) or a == b
    known = columns in widths and depth * BITS.get(a, 0) == 256 and alike and (a == "b1") == bits
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
