"""Textures and surfaces: fetches through objects that describe arrays."""

from __future__ import annotations

from cudaemu.lower.core import ABSENT, Flag, Form, Lowered, Lowering, Raw, Source, Unsupported, rule
from cudaemu.ptx import Address, Operand, Register, Vector

GEOMETRIES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}  # their dimensions; a: an array of layers
COMPONENTS = ("r", "g", "b", "a")
BOUNDARIES = ("trap", "clamp", "zero")


def _place(lowering: Lowering, form: Form, operand: Operand, floating: bool) -> tuple[list[Source | Raw], int]:
    """The handle, the layer and the coordinates of `[handle, {x, y}]`; and the shape's bits for them."""
    geometry = form.choose(*GEOMETRIES)
    (vector,) = getattr(operand, "extra", ()) or (None,)
    given = list(vector.elements) if isinstance(vector, Vector) else [vector] if vector is not None else []
    layered, dimensions = geometry[0] == "a", GEOMETRIES[geometry]
    if not isinstance(operand, Address) or not isinstance(operand.base, Register) or operand.offset:
        raise Unsupported("its texture or surface must be an object in a register: CUDA no longer has references")
    if len(given) < layered + dimensions:
        raise Unsupported("it has fewer coordinates than it says")
    layer = lowering.use(given[0], 4, "u32") if layered else ABSENT
    kind = "f32" if floating else "s32"
    coordinates = [lowering.use(each, 4, kind) for each in given[layered : layered + dimensions]]
    places = [layer, *coordinates, *[ABSENT] * (3 - dimensions)]
    return [lowering.use(operand.base, 8, "u64"), *places], dimensions | (not floating) << 4 | layered << 5


@rule("tex", "tld4")
def _tex(lowering: Lowering, form: Form) -> Lowered:
    """`tex.level` and `tex.grad` name a level of a mipmap: arrays here have one only."""
    if form.type(-2) not in ("f32", "u32", "s32") or form.type() not in ("f32", "s32") or not form.has("v4"):
        raise Unsupported("of texture fetches, those of four values of 32 bits are known")
    (handle, *places), shape = _place(lowering, form, form.operand(1), form.type() == "f32")
    if form.base == "tld4":
        shape |= 1 + COMPONENTS.index(form.choose(*COMPONENTS)) << 8
    results = [lowering.define(each, 4) for each in form.elements(0)]
    if len(results) != 4:
        raise Unsupported("its vector has another length than it says")
    return Lowered("tex", [handle, Raw(shape), *places, *results], Flag.READ_ONLY, global_load=1)


@rule("suld", "sust")
def _surface(lowering: Lowering, form: Form) -> Lowered:
    load, type_ = form.base == "suld", form.type(-2)
    if not form.has("b") or type_ not in ("b8", "b16", "b32", "b64"):
        raise Unsupported("of surface accesses, those of plain bits (.b) are known")
    size = int(type_[1:]) // 8
    values = form.elements(0 if load else 1)
    (handle, *places), shape = _place(lowering, form, form.operand(1 if load else 0), False)
    width = max(size, 2)
    boundary = BOUNDARIES.index(form.choose(*BOUNDARIES))
    shape |= size << 12 | width << 16 | len(values) << 20 | boundary << 24
    where = [handle, Raw(shape), *places]
    if load:
        return Lowered("suld", [*where, *(lowering.define(each, width) for each in values)], global_load=size)
    return Lowered("sust", [*where, *(lowering.use(each, width, type_) for each in values)], global_store=size)
