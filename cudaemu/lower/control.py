"""Branches, calls, exits, and what has no effect here."""

from __future__ import annotations

from collections.abc import Sequence

from cudaemu.lower.core import (
    FRAME_HEADER,
    Constant,
    Def,
    Form,
    Frame,
    FrameBytes,
    Kind,
    Lowered,
    Lowering,
    Raw,
    Source,
    Unsupported,
    rule,
    slot_bytes,
)
from cudaemu.ptx import Function, Name, Operand, PtxError, Register, Variable, Vector


@rule("bra")
def _bra(lowering: Lowering, form: Form) -> Lowered:
    lowered = Lowered("bra", kind=Kind.BRANCH)
    lowering.fixes.append((lowered, lowering.frame, _label(form, form.operand(0))))
    return lowered


def _label(form: Form, operand: Operand) -> int:
    name = operand.name if isinstance(operand, Name) else str(operand)
    index = form.instruction.scope.label(name)
    if index is None:
        raise PtxError(f"the label {name} is not there: {form.instruction.text}")
    return index


@rule("brx")
def _brx(lowering: Lowering, form: Form) -> Lowered:
    name = form.operand(1)
    labels = form.instruction.scope.table(name.name) if isinstance(name, Name) else None
    if not labels:
        raise Unsupported("its table of branch targets is not there")
    index = lowering.use(form.operand(0), 4, "u32")
    table: list[int] = []
    lowering.tables.append(table)
    lowering.table_fixes.append((table, lowering.frame, [_label(form, Name(label)) for label in labels]))
    return Lowered("brx", [index], kind=Kind.TABLE, target=len(lowering.tables) - 1)


@rule("ret", "exit")
def _ret(lowering: Lowering, form: Form) -> Lowered:
    frame = lowering.frame
    if form.base == "exit" or frame.own and frame.unit.entry:
        return Lowered("exit", kind=Kind.EXIT)
    if frame.own:
        return Lowered("return", kind=Kind.RETURN)
    lowered = Lowered("bra", kind=Kind.BRANCH)
    lowering.fixes.append((lowered, frame, len(frame.function.instructions)))
    return lowered


@rule("trap")
def _trap(lowering: Lowering, form: Form) -> Lowered:
    return Lowered("trap", kind=Kind.TRAP)


@rule(
    *["brkpt", "prefetch", "prefetchu", "discard", "applypriority", "pmevent"],
)
def _nothing(lowering: Lowering, form: Form) -> Lowered:
    return Lowered()


@rule("griddepcontrol")
def _griddepcontrol(lowering: Lowering, form: Form) -> Lowered:
    action = form.choose("wait", "launch_dependents")
    return Lowered(f"griddepcontrol.{action}")


# ---- calls ----


@rule("call")
def _call(lowering: Lowering, form: Form) -> Lowered | None:
    operands = list(form.operands)
    results = _listed(operands)
    if results is not None:
        operands.pop(0)
    target = operands.pop(0) if operands else None
    if not isinstance(target, (Name, Register)):
        raise Unsupported("it names no function")
    results, arguments = results or (), _listed(operands) or ()
    if isinstance(target, Register):
        _call_out_of_line(lowering, form, target, arguments, results)
        return None
    function = lowering.module.functions.get(target.name)
    if function is None or not function.defined:
        return _call_built_in(lowering, target.name, arguments, results)
    formals = (*function.params, *function.results)
    if len(formals) != len(arguments) + len(results):
        raise Unsupported(f"{target.name} takes another number of parameters")
    for formal, actual in zip(formals, (*arguments, *results), strict=True):
        if isinstance(formal, Variable) and not isinstance(actual, Variable):
            raise Unsupported(f"{target.name} takes its parameters in .param variables")
    if target.name in lowering.out_of_line:
        _call_out_of_line(lowering, form, function, arguments, results)
    else:
        _expand(lowering, form, function, arguments, results)
    return None


def _listed(operands: Sequence[Operand]) -> tuple[Operand, ...] | None:
    """The elements of the first operand, if that is a list."""
    return operands[0].elements if operands and isinstance(operands[0], Vector) else None


def _skip(lowering: Lowering, form: Form, function: Function) -> Frame | None:
    """`@p call`: a branch over all that the call becomes. What comes after it is the end of the frame returned."""
    if form.instruction.guard is None:
        return None
    after = Frame(function, lowering.frame.unit, False)
    skip = Lowered("bra", kind=Kind.BRANCH)
    lowering.finish(skip, guarded=True)
    skip.negated = not skip.negated
    lowering.fixes.append((skip, after, 0))
    return after


def _expand(
    lowering: Lowering, form: Form, function: Function, arguments: Sequence[Operand], results: Sequence[Operand]
) -> None:
    """Expand the function here: its parameters are the caller's variables or registers themselves."""
    frame = Frame(function, lowering.frame.unit, False)
    after = _skip(lowering, form, function)
    if after is None:
        lowering.finish(Lowered())
    copies = []
    for formal, actual in zip((*function.params, *function.results), (*arguments, *results), strict=True):
        if isinstance(formal, Register):
            inner = frame.registers[formal] = Register(formal.name, formal.type)
            copies.append((inner, actual, formal in function.results))
        else:
            assert isinstance(actual, Variable)
            frame.variables[formal] = lowering.actual(actual)

    def copy(to: Def | Raw, source: Source, width: int) -> None:
        name = f"mov.b{8 * width}" if width else "mov.pred"
        lowering.finish(Lowered(name, [to, source] + [source] * (not width), category="move"))

    for inner, actual, is_result in copies:
        if not is_result:
            copy(Def(inner), lowering.use(actual, slot_bytes(inner), inner.type), slot_bytes(inner))
    here = lowering.instruction_at
    lowering.expand(frame)
    lowering.instruction_at = here
    for inner, actual, is_result in copies:
        if is_result:
            copy(lowering.define(actual, slot_bytes(inner)), inner, slot_bytes(inner))
    if after is not None:
        after.end = len(lowering.code)


def _call_out_of_line(
    lowering: Lowering,
    form: Form,
    target: Function | Register,
    arguments: Sequence[Operand],
    results: Sequence[Operand],
) -> None:
    """Push a frame onto the thread's stack, with the arguments in it, and fetch the results from it afterwards. What is
    to be saved of the caller's registers, `encode` knows."""
    unit = lowering.frame.unit
    variables = _variables((*results, *arguments), "it does not pass its parameters in .param variables")
    after = _skip(lowering, form, lowering.frame.function)
    offset, places = FRAME_HEADER, []
    for variable in variables:
        offset = -(-offset // variable.align) * variable.align
        places.append(offset)
        offset += variable.size
    for variable, place in zip(variables[len(results) :], places[len(results) :], strict=True):
        base, at = _place(lowering, variable)
        to = lowering.stack, FrameBytes(unit, place)
        lowering.finish(Lowered("copy.local", [base, Raw(at), *to, Raw(variable.size)]))
    lowering.finish(Lowered("save", [lowering.stack, FrameBytes(unit)]))
    stack = Def(lowering.stack), lowering.stack
    if isinstance(target, Function):
        call = Lowered("call", [*stack, FrameBytes(unit)], kind=Kind.CALL)
        lowering.unit_fixes.append((call, target))
    else:
        pointer = lowering.use(target, 8, "u64")
        call = Lowered("call", [*stack, FrameBytes(unit), pointer], kind=Kind.CALL_POINTER)
    lowering.finish(call)
    lowering.finish(Lowered("restore", [lowering.stack, FrameBytes(unit)]))
    for variable, place in zip(variables[: len(results)], places, strict=False):
        base, at = _place(lowering, variable)
        source = lowering.stack, FrameBytes(unit, place)
        lowering.finish(Lowered("copy.local", [*source, base, Raw(at), Raw(variable.size)]))
    if after is not None:
        after.end = len(lowering.code)


def _variables(operands: Sequence[Operand], otherwise: str) -> list[Variable]:
    """All of them; Unsupported with that reason if there is anything else."""
    found = [operand for operand in operands if isinstance(operand, Variable)]
    if len(found) < len(operands):
        raise Unsupported(otherwise)
    return found


def _place(lowering: Lowering, variable: Variable) -> tuple[Source, int]:
    """A variable of the frame: base and offset in local memory."""
    at = lowering.address_of(variable)
    return (lowering.stack, at) if lowering.on_stack(variable) else (Constant(8, 0), at)


# Functions of CUDA's device runtime: how many parameters and results.
BUILT_IN = {"vprintf": (2, 1), "malloc": (1, 1), "free": (1, 0), "__assertfail": (5, 0)}


def _call_built_in(lowering: Lowering, name: str, arguments: Sequence[Operand], results: Sequence[Operand]) -> Lowered:
    if name not in BUILT_IN:
        raise Unsupported(f"the function {name} is not defined in this module")
    variables = _variables((*arguments, *results), f"{name} takes other parameters")
    if (len(arguments), len(results)) != BUILT_IN[name]:
        raise Unsupported(f"{name} takes other parameters")
    places = [lowering.address_of(variable) for variable in variables]
    base = lowering.stack if lowering.on_stack(variables[0]) else Constant(8, 0)
    return Lowered(name.strip("_"), [base, *map(Raw, places)])
