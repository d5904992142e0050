"""Loads, stores, atomics, addresses, and copies that run by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from cudaemu.lower.core import (
    ABSENT,
    AROUND_SHIFT,
    SPACES,
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
    rule,
    slot_bytes,
    unsigned,
)
from cudaemu.lower.warp import EVERYONE
from cudaemu.ptx import BYTES, SINK, Address, Not, Operand, Register, Variable

WINDOWS = {"global": 0, "const": 0, "shared": 1, "local": 2, "param": 3, "cluster": 4}
VECTORS = {"v2": 2, "v4": 4, "v8": 8}


def memory_order(form: Form) -> int:
    """Flags of an access: is it meant for other threads to see (`volatile`, `relaxed` and up, past the caches)?"""
    order = Flag.ACQUIRE * form.has("acquire", "acq_rel") | Flag.RELEASE * form.has("release", "acq_rel")
    strong = order != 0 or form.has("volatile", "relaxed", "mmio", "cv", "wt")
    order |= Flag.SPIN * (order != 0 or form.has("relaxed"))
    return order | Flag.STRONG * strong | Flag.PAST_L1 * form.has("cg") | Flag.OF_BLOCK * form.has("cta")


@rule("ld", "ldu")
def _ld(lowering: Lowering, form: Form) -> Lowered:
    return _access(lowering, form, form.operand(1), form.elements(0), load=True)


@rule("st")
def _st(lowering: Lowering, form: Form) -> Lowered:
    if form.has("async"):
        return _send(lowering, form)
    return _access(lowering, form, form.operand(0), form.elements(1), load=False)


def _access(lowering: Lowering, form: Form, where: Operand, elements: Sequence[Operand], load: bool) -> Lowered:
    space, type_ = form.space, form.type()
    size = BYTES[type_]
    count = VECTORS[form.choose(*VECTORS, default="")] if form.has(*VECTORS) else 1
    if len(elements) != count or not size or size * count > 32:
        raise Unsupported("its vector has another length than it says")
    widths = {slot_bytes(element) for element in elements if isinstance(element, Register)} or {max(2, size)}
    if len(widths) != 1:
        raise Unsupported("its vector mixes register sizes")
    (width,) = widths
    if width < size:
        raise Unsupported("its register is too narrow")
    category = "move" if space == "param" else ""
    machine = {"const": "global"}.get(space, space)
    if space == "param" and not _is_kernel_parameter(lowering, where):
        machine = "local"  # a parameter of a call
    base, offset, wide = lowering.address(where, machine)
    around = (size * count).bit_length() - 1 if type_[0] != "f" else 0
    shape = size | count << 8 | width << 16 | (type_[0] == "s") << 24 | wide << 25 | around << AROUND_SHIFT
    registers = [
        lowering.define(element, width) if load else lowering.use(element, width, type_) for element in elements
    ]
    access = size * count if machine in ("shared", "generic", "cluster") else 0
    out = [base, Raw(offset), Raw(shape), *registers]
    flags = memory_order(form)
    globally = size * count if machine in ("global", "generic") else 0
    flags |= Flag.MAY_PAD * (count > 1 and type_[0] != "f")
    if load:
        flags |= Flag.READ_ONLY * form.has("nc")
        return Lowered(f"ld.{machine}", out, flags, category=category, access=access, global_load=globally)
    flags |= Flag.SIGNAL * (flags & Flag.STRONG != 0)
    return Lowered(f"st.{machine}", out, flags, category=category, access=access, global_store=globally)


def _is_kernel_parameter(lowering: Lowering, where: Operand) -> bool:
    if not isinstance(where, Address) or not isinstance(where.base, Variable):
        return lowering.frame.own and lowering.frame.unit.entry
    return where.base in lowering.function.params


OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@rule("atom", "red")
def _atom(lowering: Lowering, form: Form) -> Lowered:
    if form.has("async"):
        return _send(lowering, form)
    space, type_, operation = form.space, form.type(), form.choose(*OPERATIONS)
    width, operands = BYTES[type_], list(form.operands)
    count = VECTORS[form.choose(*VECTORS, default="")] if form.has(*VECTORS) else 1
    if not is_float(type_) and (operation not in ("min", "max") or type_[0] == "b"):
        type_ = unsigned(type_)
    targets: list[Def | Raw] = [ABSENT] * count
    if form.base == "atom":
        targets = [lowering.define(element, width) for element in form.elements(0)]
        operands = operands[1:]
    if len(operands) < 2 + (operation == "cas") or len(targets) != count:
        raise Unsupported("an operand is missing")
    base, offset, wide = lowering.address(operands[0], space)
    code = SPACES.get(space, SPACES["generic"]) | wide << 8
    flags = memory_order(form) | Flag.STRONG * any(target is not ABSENT for target in targets)
    flags |= Flag.SIGNAL * (operation in ("exch", "cas"))
    access = width if space in ("shared", "generic", "cluster") else 0
    store = width if space in ("global", "generic") else 0
    if count > 1:
        values = getattr(operands[1], "elements", ())
        if len(values) != count:
            raise Unsupported("its vector has another length than it says")
        out = [base, Raw(offset), Raw(code), Raw(count), *targets, *(lowering.use(v, width, type_) for v in values)]
        name = f"atom.{operation}.vector.{type_}"
        return Lowered(name, out, flags, access=access, global_store=store)
    out = [targets[0], base, Raw(offset), Raw(code), lowering.use(operands[1], width, type_)]
    out.append(lowering.use(operands[2], width, type_) if operation == "cas" else ABSENT)
    name = f"atom.{operation}.{type_}"
    return Lowered(name, out, flags, access=access, global_store=store)


@rule("membar", "fence")
def _fence(lowering: Lowering, form: Form) -> Lowered:
    if form.has("proxy") and form.parts[form.parts.index("proxy") + 1 :][:1] in (["async"], ["async::generic"]):
        return Lowered("fence.proxy.async")
    if form.has("mbarrier_init"):
        return Lowered("fence.mbarrier_init", [], Flag.STRONG)
    return Lowered("fence", [Raw(int(not form.has("cta")))], Flag.STRONG)


@rule("cvta")
def _cvta(lowering: Lowering, form: Form) -> Lowered:
    if form.space not in WINDOWS:
        raise Unsupported("its state space is not known")
    width, window = BYTES[form.type()], WINDOWS[form.space]
    if form.space == "param" and not (lowering.frame.own and lowering.frame.unit.entry):
        window = WINDOWS["local"]
    out = [lowering.define(form.operand(0), width), lowering.use(form.operand(1), width, "u64")]
    numbers = (window, int(form.has("to")), int(width == 8), int(width == 8))
    return Lowered("cvta", [*out, *map(Raw, numbers)])


@rule("isspacep")
def _isspacep(lowering: Lowering, form: Form) -> Lowered:
    if form.space not in WINDOWS:
        raise Unsupported("its state space is not known")
    out = [lowering.predicate(form.operand(0)), lowering.use(form.operand(1), 8, "u64"), Raw(WINDOWS[form.space])]
    return Lowered("isspacep", out)


@rule("mapa")
def _mapa(lowering: Lowering, form: Form) -> Lowered:
    """`mapa.shared::cluster.u32 d, a, rank`, or with generic addresses."""
    width = BYTES[form.type()]
    address, rank = lowering.use(form.operand(1), width, form.type()), lowering.use(form.operand(2), 4, "u32")
    out = [lowering.define(form.operand(0), width), address, rank, Raw(int(width == 8))]
    return Lowered("mapa", out)


@rule("getctarank")
def _getctarank(lowering: Lowering, form: Form) -> Lowered:
    width = BYTES[form.type()]
    out = [lowering.define(form.operand(0), 4), lowering.use(form.operand(1), width, form.type()), Raw(int(width == 8))]
    return Lowered("getctarank", out)


CHANGES = (
    "init", "inval", "arrive", "arrive.expect_tx", "arrive_drop", "arrive_drop.expect_tx", "expect_tx", "complete_tx",
)  # fmt: skip


@rule("mbarrier")
def _mbarrier(lowering: Lowering, form: Form) -> Lowered:
    """`mbarrier.arrive.release.cta.shared::cta.b64 state, [m], count`, `mbarrier.try_wait.parity.shared.b64 p, [m],
    parity, hint` and the like."""
    what, operands = form.choose("test_wait", "try_wait", *CHANGES), list(form.operands)
    if what in ("test_wait", "try_wait"):
        base, offset, wide = lowering.address(operands[1], form.space)
        parity = lowering.use(form.operand(2), 4, "u32") if form.has("parity") else ABSENT
        state = ABSENT if form.has("parity") else lowering.use(form.operand(2), 8, "b64")
        where = [base, Raw(offset), Raw(wide | SPACES[form.space] << 8)]
        flags = Flag.STRONG | Flag.ACQUIRE * (not form.has("relaxed"))
        out = [lowering.predicate(operands[0]), *where, parity, state]
        return Lowered("mbarrier.test", out, flags, access=8)
    arrives = what in ("arrive", "arrive_drop")
    if arrives and form.has("expect_tx"):
        what += ".expect_tx"
    target = lowering.define(operands.pop(0), 8) if arrives and not isinstance(operands[0], Address) else ABSENT
    base, offset, wide = lowering.address(operands[0], form.space)
    count = lowering.use(operands[1], 4, "u32") if len(operands) > 1 else ABSENT
    where = [base, Raw(offset), Raw(wide | SPACES[form.space] << 8)]
    flags = (Flag.STRONG | Flag.SIGNAL) * (what != "init") | Flag.RELEASE * (arrives and not form.has("relaxed"))
    out = [target, *where, Raw(CHANGES.index(what)), count]
    return Lowered("mbarrier", out, flags, access=8)


# Of bulk copies: the numbers of bulk.cpp. A tensor's copies have the type of its map.
BULK_REDUCTIONS = ("", "add", "min", "max", "inc", "dec", "and", "or", "xor")
BULK_TYPES = {"u32": 2, "b32": 2, "s32": 3, "u64": 4, "b64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
TO_SHARED, TO_GLOBAL, WITHIN_CLUSTER = range(3)


def _bulk(lowering: Lowering, form: Form) -> Lowered:
    """`cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [d], [map, {x, y}], [m]`,
    `cp.async.bulk.global.shared::cta.bulk_group [d], [s], bytes`, `cp.reduce.async.bulk...` and the like."""
    if form.has("commit_group"):
        return Lowered("bulk.commit")
    if form.has("wait_group"):
        return Lowered("bulk.wait", [Raw(form.number(0)), Raw(int(form.has("read")))])
    tensor, operands = form.has("tensor"), list(form.operands)
    others = ("im2col", "im2col::w", "im2col::w::128", "tile::gather4", "tile::scatter4", "cp_mask", "cta_group::2")
    if form.has(*others):
        raise Unsupported(f"of the copies of tensors, only those of tiles are known, not {form.choose(*others)}")
    if form.has("prefetch"):
        return Lowered()
    spaces = [part.split("::")[0] for part in form.parts if part.split("::")[0] in ("shared", "global")]
    if len(spaces) != 2 or len(operands) < 2:
        raise Unsupported("a bulk copy names where from and where to")
    action = TO_GLOBAL if spaces[0] == "global" else TO_SHARED if spaces[1] == "global" else WITHIN_CLUSTER
    tile, other = (operands[1], operands[0]) if action == TO_GLOBAL else operands[:2]
    operands = operands[2:]
    size = ABSENT if tensor or not operands else lowering.use(operands.pop(0), 4, "u32")
    kind = 0
    if form.parts[1] == "reduce":
        operation = form.choose(*BULK_REDUCTIONS[1:])
        if not tensor and form.type() not in BULK_TYPES:
            raise Unsupported(f"a reduction of {form.type()} is not known")
        kind = BULK_REDUCTIONS.index(operation) | (0 if tensor else BULK_TYPES[form.type()] << 8)

    def place(operand: Operand | None, space: str) -> list[Source | Raw]:
        base, offset, wide = lowering.address(operand, space)
        return [base, Raw(offset), Raw(int(wide))]

    out = [Raw(action), Raw(kind), *place(tile, "shared"), *place(other, "generic" if tensor else spaces[-1]), size]
    coordinates: list[Source] = []
    if tensor:
        (vector,) = getattr(other, "extra", ()) or (None,)
        coordinates = [lowering.use(each, 4, "s32") for each in getattr(vector, "elements", ())]
        if f"{len(coordinates)}d" not in form.parts:
            raise Unsupported("it has another number of coordinates than it says")
    out += [ABSENT] * 3 if action == TO_GLOBAL else place(operands.pop(0) if operands else None, "shared")
    multicast = form.has("multicast::cluster") and operands
    out += [lowering.use(operands.pop(0), 2, "u16") if multicast else ABSENT, *coordinates]
    category = ("bulk.load", "bulk.store", "bulk.cluster")[action]
    writes = 2 if action == TO_GLOBAL else 0
    return Lowered("bulk", out, category=category, access=16, global_store=writes, global_load=2)


def _send(lowering: Lowering, form: Form) -> Lowered:
    """`st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [d], {a, b}, [m]`, and `red.async` likewise."""
    type_, elements = form.type(), form.elements(1)
    count = VECTORS[form.choose(*VECTORS, default="")] if form.has(*VECTORS) else 1
    size = BYTES[type_]
    if form.space not in ("cluster", "generic") or not form.has("mbarrier::complete_tx::bytes"):
        raise Unsupported("of the asynchronous stores, only those that complete on an mbarrier are known")
    if len(elements) != count or size not in (4, 8) or size * count > 16:
        raise Unsupported("its elements are not known")
    kind = 0
    if form.base == "red":
        kind = BULK_REDUCTIONS.index(form.choose(*BULK_REDUCTIONS[1:])) | BULK_TYPES[type_] << 8
    places = []
    for operand in (form.operand(0), form.operand(2)):
        base, offset, wide = lowering.address(operand, "shared" if form.space == "cluster" else "generic")
        places += [base, Raw(offset), Raw(int(wide))]
    values = [lowering.use(element, size, type_) for element in elements]
    return Lowered("bulk.send", [Raw(kind), Raw(size), *places, *values], access=size)


@rule("clusterlaunchcontrol")
def _cluster_launch(lowering: Lowering, form: Form) -> Lowered:
    """`clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128
    [to], [m]`, `….query_cancel.is_canceled.pred.b128 p, answer`, `….query_cancel.get_first_ctaid::x.b32.b128 d, answer`
    and, of all three coordinates, `….get_first_ctaid.v4.b32.b128 {x, y, z, _}, answer`."""
    if form.has("try_cancel"):
        if not form.has("mbarrier::complete_tx::bytes") or form.space not in ("shared", "generic"):
            raise Unsupported("it completes on an mbarrier of one's own block")
        places: list[Source | Raw] = []
        for operand in (form.operand(0), form.operand(1)):
            base, offset, wide = lowering.address(operand, form.space)
            places += [base, Raw(offset), Raw(int(wide))]
        return Lowered("cancel", [*places, Raw(int(form.has("multicast::cluster::all")))], access=16)
    answer = lowering.use(form.operand(1), 16, "b128")
    if form.has("is_canceled"):
        return Lowered("cancel.granted", [lowering.predicate(form.operand(0)), answer])
    axes = ("get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z")
    asked = form.choose("get_first_ctaid", *axes)
    wanted = form.elements(0)[:3] if asked not in axes else [SINK] * axes.index(asked) + [form.operand(0)]
    to = [lowering.define(operand, 4) for operand in (*wanted, SINK, SINK)[:3]]
    return Lowered("cancel.place", [*to, answer])


# Of a tensor map, as tensor_map.h has it: where a field is, its bytes, and those from one dimension's to the next.
MAP_FIELDS = {
    "global_address": (48, 8, 0),
    "rank": (4, 1, 0),  # the operand is the last dimension
    "box_dim": (16, 2, 2),
    "global_dim": (28, 4, 4),
    "global_stride": (64, 8, 8),  # dimension 0 has none
    "element_stride": (10, 1, 1),
    "elemtype": (5, 1, 0),
    "interleave_layout": (6, 1, 0),
    "swizzle_mode": (7, 1, 0),
    "fill_mode": (9, 1, 0),
}
MAP_TYPES = (0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12)  # CUtensorMapDataType, by the number that PTX gives the type


@rule("tensormap")
def _tensormap(lowering: Lowering, form: Form) -> Lowered:
    """`tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [map], dimension, value`, and
    `tensormap.cp_fenceproxy.global.shared::cta...sync.aligned [to], [from], 128`."""
    if form.has("cp_fenceproxy"):
        to, to_offset, to_wide = lowering.address(form.operand(0), "global")
        source, offset, wide = lowering.address(form.operand(1), "shared")
        out = [to, Raw(to_offset), Raw(int(to_wide)), source, Raw(offset), Raw(int(wide))]
        return Lowered("bulk.map", out, kind=Kind.TOGETHER, target=EVERYONE, access=16, global_store=16)
    field, operands = form.choose(*MAP_FIELDS), list(form.operands)
    at, size, step = MAP_FIELDS[field]
    if step:
        at += step * form.number(1)
        del operands[1]
    value: Source
    if field == "elemtype":
        number = form.number(1)
        if number >= len(MAP_TYPES):
            raise Unsupported(f"type {number} of a tensor map is not known")
        value = Constant(4, MAP_TYPES[number])
    else:
        value = lowering.use(operands[1], 8 if size == 8 else 4, "b64" if size == 8 else "b32")
    space = form.space
    base, offset, wide = lowering.address(operands[0], space)
    shape = size | 1 << 8 | (8 if size == 8 else 4) << 16 | wide << 25
    access, globally = (size, 0) if space == "shared" else (size * (space == "generic"), size)
    out = [base, Raw(offset + at), Raw(shape), value]
    return Lowered(f"st.{space}", out, access=access, global_store=globally)


@rule("cp")
def _cp(lowering: Lowering, form: Form) -> Lowered:
    name = form.instruction.opcode
    if form.has("bulk"):
        return _bulk(lowering, form)
    if name in ("cp.async.commit_group", "cp.async.wait_all"):
        return Lowered(name)
    if name == "cp.async.wait_group":
        return Lowered(name, [Raw(form.number(0))])
    if form.parts[2:4] == ["mbarrier", "arrive"]:
        base, offset, wide = lowering.address(form.operand(0), form.space)
        out = [base, Raw(offset), Raw(wide | SPACES[form.space] << 8), Raw(int(form.has("noinc")))]
        return Lowered("mbarrier.copies", out, Flag.STRONG | Flag.SIGNAL, access=8)
    if form.parts[1:2] != ["async"] or form.parts[2:3] not in (["ca"], ["cg"]):
        raise Unsupported("of the asynchronous copies, only cp.async.ca and cp.async.cg are known")
    to, to_offset, to_wide = lowering.address(form.operand(0), "shared")
    source, source_offset, source_wide = lowering.address(form.operand(1), "global")
    size, flags, past_l1 = form.number(2), 0, form.parts[2] == "cg"
    if size not in (4, 8, 16) or (past_l1 and size != 16):
        raise Unsupported(f"a copy of {size} bytes does not exist")
    take: Source | Raw = ABSENT
    ignore: Source | Raw = ABSENT
    for extra in form.operands[3:]:
        if isinstance(extra, Not) or (isinstance(extra, Register) and extra.type == "pred"):
            ignore, flags = lowering.negatable(extra)
        elif not (isinstance(extra, Register) and extra.bytes == 8):  # 64 bits: a cache policy
            take = lowering.use(extra, 4, "u32")
    places = [to, Raw(to_offset), Raw(int(to_wide)), source, Raw(source_offset), Raw(int(source_wide))]
    out = [*places, Raw(size), take, ignore, Raw(int(past_l1))]
    return Lowered("cp.async", out, flags, access=size, global_load=size)
