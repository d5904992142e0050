"""What Python and C++ both have is the same: numbers and layouts of the machine, requests of the stand-in runtime."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from cudaemu import engine
from cudaemu.process import HERE, Request

FIELDS = [(name, kind) for name, kind in engine._Spec._fields_ if name != "kept"]


@pytest.mark.parametrize(
    "name, value, differs",
    [
        ("ELEMENTS", {**engine.ELEMENTS, "u4": 9, "b1": 8}, "Element.B1, Element.U4"),
        ("ELEMENTS", {**engine.ELEMENTS, "e3m2": 11}, "Element.E3M2"),
        ("TRACE", np.dtype([(name, "u8") for name in engine.TRACE.names]), "TraceRow, TraceRow.addr"),
        ("COUNTERS", np.dtype([(name, "u8") for name in reversed(engine.COUNTERS.names)]), "Counters.bytes"),
        ("_Spec", type("_Spec", (ctypes.Structure,), {"_fields_": FIELDS}), "LaunchSpec, .*LaunchSpec.kept"),
    ],
)
def test_what_differs_is_named_when_the_machine_is_loaded(monkeypatch, name, value, differs):
    monkeypatch.setattr(engine, name, value)
    with pytest.raises(RuntimeError, match=f"must agree, and differ in {differs}"):
        engine.library.__wrapped__()


def test_requests_have_the_runtimes_numbers():
    (body,) = re.findall(r"enum class Request : uint32_t \{(.*?)\};", (HERE / "channel.h").read_text(), re.DOTALL)
    names = re.findall(r"^  (\w+)( = 1)?,", body, re.MULTILINE)
    assert names[0] == ("HELLO", " = 1") and "=" not in body.replace("HELLO = 1", "")
    assert {name: number for number, (name, _) in enumerate(names, 1)} == dict(Request.__members__)
