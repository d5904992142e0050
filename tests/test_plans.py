"""Calls that are kept by their kind: a value equal to one that was taken before is none of its kind unless its type is
the same, be it an argument of a function, of its operator or of a stage."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

import kernels
from common.stage import Prepared
from cudaemu.errors import UserError
from tests.launches import Notes, anew


class Word(str):
    """A string of another type."""


ONES = (True, 1, 1.0, np.True_, np.int64(1), np.float64(1), np.float32(1), Fraction(1), 1 + 0j)
VALUES = (*ONES, *(type(one)(0) for one in ONES), None, "relu", Word("relu"), np.str_("relu"), torch.float16)
EQUAL = [
    (one, other) for one, other in itertools.permutations(VALUES, 2) if type(one) is not type(other) and one == other
]


@pytest.fixture
def forget(monkeypatch, cpu_as_gpu) -> Callable[[], None]:
    """Forgets the calls of all functions and stages; no call launches anything."""
    modules = [importlib.import_module(name) for name in ("kernels.library.attention", "kernels.library.matmul")]
    naive = kernels.load("01")
    for module, stage in zip(modules, (kernels.load("16"), kernels.load("hopper_matmul"))):
        kernel = stage.kernel("fp16")
        built = kernel, Notes(kernel, [])
        monkeypatch.setattr(module, "_built", lambda *_, built=built, **__: built)
    monkeypatch.setattr(Prepared, "_emulate", lambda call, inputs: call.outputs)

    def clear() -> None:
        for module in modules:
            monkeypatch.setattr(module, "_plans", anew(module._plans))
        monkeypatch.setitem(naive.__dict__, "_calls", anew(naive._calls))
        monkeypatch.setitem(naive.__dict__, "_kernels", {})

    return clear


def half(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float16)


Q, A = half(1, 2, 4, 128), half(16, 16)
PARAMETERS = [torch.nn.Parameter(each, requires_grad=False) for each in (Q, A)]  # these go by way of the operator
OPERATOR = " by the operator"
ARGUMENTS: dict[str, Callable] = {
    **{
        f"attention {name}{way}": lambda value, q=q, name=name: kernels.attention(q, Q, Q, **{name: value})
        for name in ("is_causal", "scale", "enable_gqa", "return_lse")
        for way, q in (("", Q), (OPERATOR, PARAMETERS[0]))
    },
    **{
        f"matmul {name}{way}": lambda value, a=a, name=name: kernels.matmul(a, A, **{name: value})
        for name in ("activation", "out_dtype")
        for way, a in (("", A), (OPERATOR, PARAMETERS[1]))
    },
    "a stage's variant": lambda value: kernels.load("01")(A, A, COALESCED=value),
}


def outcome(call: Callable, value: object) -> str:
    try:
        out = call(value)
    except UserError as error:
        return str(error)
    return f"taken: {len(out) if isinstance(out, tuple) else out.dtype}"


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if OPERATOR in name])
def test_the_operator_s_way_takes_and_refuses_the_same(forget, name):
    for value in VALUES:
        told = []
        for each in (name, name.removesuffix(OPERATOR)):
            forget()
            told.append(outcome(ARGUMENTS[each], value))
        assert told[0] == told[1], repr(value)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_equal_value_of_another_type_is_taken_or_refused_as_if_it_came_first(forget, name):
    call, alone = ARGUMENTS[name], {}
    for value in VALUES:
        forget()
        alone[type(value), value] = outcome(call, value)
    wrong = []
    for one, other in EQUAL:
        forget()
        outcome(call, one)
        if (after := outcome(call, other)) != alone[type(other), other]:
            wrong.append(f"{other!r} after {one!r}: {after}; alone: {alone[type(other), other]}")
    assert not wrong, "\n".join(wrong)


def test_values_of_equal_meaning_are_among_those_that_are_tried():
    assert {type(one) for one in ONES} == {type(other) for pair in EQUAL for other in pair if other == 1}
    assert len(EQUAL) > 100
