"""What lanes do together: shuffles, votes, barriers."""

from __future__ import annotations

from cudaemu.lower.core import (
    ABSENT,
    Constant,
    Flag,
    Form,
    Kind,
    Lowered,
    Lowering,
    Raw,
    rule,
    unsigned,
)
from cudaemu.ptx import BYTES

EVERYONE = Constant(4, 0xFFFFFFFF)


def together(lowering: Lowering, form: Form, lowered: Lowered, mask: int) -> Lowered:
    """`.sync`: the lanes that the mask names, wherever they execute it; before PTX 6.0, whichever are here."""
    if form.has("sync"):
        lowered.flags |= Flag.ANYWHERE
        lowered.kind, lowered.target = Kind.TOGETHER, lowering.use(form.operand(mask), 4, "b32")
    return lowered


@rule("shfl")
def _shfl(lowering: Lowering, form: Form) -> Lowered:
    modes = ("up", "down", "bfly", "idx")
    first, second = form.pair(0)
    sources = [lowering.use(form.operand(n), 4, "b32") for n in (1, 2, 3)]
    out = [lowering.define(first, 4), lowering.predicate(second), *sources, Raw(modes.index(form.choose(*modes)))]
    return together(lowering, form, Lowered("shfl", out), 4)


@rule("vote")
def _vote(lowering: Lowering, form: Form) -> Lowered:
    modes = ("ballot", "all", "any", "uni")
    mode = modes.index(form.choose(*modes))
    predicate, negate = lowering.negatable(form.operand(1))
    target = lowering.predicate(form.operand(0)) if mode else lowering.define(form.operand(0), 4)
    lowered = Lowered("vote" if mode else "vote.ballot", [target, predicate, Raw(mode)], negate)
    return together(lowering, form, lowered, 2)


@rule("match")
def _match(lowering: Lowering, form: Form) -> Lowered:
    width = BYTES[form.type()]
    first, second = form.pair(0)
    targets = [lowering.define(first, 4), lowering.predicate(second)]
    out = [*targets, lowering.use(form.operand(1), width, form.type()), Raw(int(form.has("all")))]
    return together(lowering, form, Lowered(f"match.b{8 * width}", out), 2)


@rule("redux")
def _redux(lowering: Lowering, form: Form) -> Lowered:
    operation, type_ = form.choose("add", "min", "max", "and", "or", "xor"), form.type()
    modifiers = [part for part in ("abs", "NaN") if form.has(part)]
    type_ = type_ if operation in ("min", "max") else unsigned(type_)
    name = ".".join(["redux", operation, *modifiers, type_])
    out = [lowering.define(form.operand(0), 4), lowering.use(form.operand(1), 4, type_)]
    return together(lowering, form, Lowered(name, out), 2)


@rule("elect")
def _elect(lowering: Lowering, form: Form) -> Lowered:
    first, second = form.pair(0)
    out = [lowering.define(first, 4), lowering.predicate(second)]
    return together(lowering, form, Lowered("elect", out), 1)


@rule("activemask")
def _activemask(lowering: Lowering, form: Form) -> Lowered:
    return Lowered("activemask", [lowering.define(form.operand(0), 4)])


SYNC, ARRIVE = 0, 1
REDUCTIONS = ("popc", "and", "or")


@rule("bar", "barrier")
def _bar(lowering: Lowering, form: Form) -> Lowered:
    if form.has("warp"):
        return together(lowering, form, Lowered("bar.warp"), 0)
    if form.has("cluster") and form.has("wait"):
        return Lowered("cluster.wait", kind=Kind.CLUSTER_WAIT)
    if form.has("cluster"):
        return Lowered("cluster.arrive", [Raw(int(form.has("relaxed")))])
    aligned = Raw(int(form.base == "bar" or form.has("aligned")))
    if form.has("red"):
        what = REDUCTIONS.index(form.choose(*REDUCTIONS))
        target = lowering.predicate(form.operand(0)) if what else lowering.define(form.operand(0), 4)
        predicate, flags = lowering.negatable(form.operands[-1])
        count = lowering.use(form.operand(2), 4, "u32") if len(form.operands) == 4 else ABSENT
        number = lowering.use(form.operand(1), 4, "u32")
        out = [number, count, Raw(2 + what), target, predicate, aligned]
        return Lowered("barrier", out, flags, Kind.BARRIER)
    number = lowering.use(form.operand(0), 4, "u32")
    count = lowering.use(form.operand(1), 4, "u32") if len(form.operands) > 1 else ABSENT
    out = [number, count, Raw(ARRIVE if form.has("arrive") else SYNC), ABSENT, ABSENT, aligned]
    return Lowered("barrier", out, kind=Kind.BARRIER)


@rule("nanosleep")
def _nanosleep(lowering: Lowering, form: Form) -> Lowered:
    flags = Flag.STRONG  # a thread that sleeps in a loop waits for others
    return Lowered("nanosleep", [lowering.use(form.operand(0), 4, "u32")], flags)
