"""What Python and C++ both have is the same: numbers and layouts of the machine, requests of the stand-in runtime."""

from __future__ import annotations

import ctypes
import re
from collections import namedtuple

import numpy as np
import pytest

from cudaemu import engine
from cudaemu.process import DEVICE, HERE, Request

FIELDS = [(name, kind) for name, kind in engine._Spec._fields_ if name != "kept"]
HEADER = [name for name in engine.core.Header._fields if name != "stack"]


@pytest.mark.parametrize(
    "name, value, differs",
    [
        ("ELEMENTS", {**engine.ELEMENTS, "u4": 9, "b1": 8}, "Element.B1, Element.U4"),
        ("ELEMENTS", {**engine.ELEMENTS, "e3m2": 11}, "Element.E3M2"),
        ("TRACE", np.dtype([(name, "u8") for name in engine.TRACE.names]), "TraceRow, TraceRow.addr"),
        ("COUNTERS", np.dtype([(name, "u8") for name in reversed(engine.COUNTERS.names)]), "Counters.bytes"),
        ("_Spec", type("_Spec", (ctypes.Structure,), {"_fields_": FIELDS}), "(LaunchSpec, )?.*LaunchSpec.kept"),
        ("core.Header", namedtuple("Header", HEADER), "ProgramHeader, .*ProgramHeader.registers, ProgramHeader.stack"),
    ],
)
def test_what_differs_is_named_when_the_machine_is_loaded(monkeypatch, name, value, differs):
    monkeypatch.setattr(f"cudaemu.engine.{name}", value)
    with pytest.raises(RuntimeError, match=f"must agree, and differ in {differs}"):
        engine.library.__wrapped__()


def test_requests_have_the_runtimes_numbers():
    (body,) = re.findall(r"enum class Request : uint32_t \{(.*?)\};", (HERE / "channel.h").read_text(), re.DOTALL)
    names = re.findall(r"^  (\w+)( = 1)?,", body, re.MULTILINE)
    assert names[0] == ("HELLO", " = 1") and "=" not in body.replace("HELLO = 1", "")
    assert {name: number for number, (name, _) in enumerate(names, 1)} == dict(Request.__members__)


def test_the_runtime_reads_the_device_as_it_is_told():
    (body,) = re.findall(r"struct Device \{(.*?)\};", (HERE / "channel.h").read_text(), re.DOTALL)
    lines = re.findall(r"^  (\w+) (.+?);", body, re.MULTILINE)
    types = {"uint64_t": "Q", "int32_t": "i"}
    assert {name: types[kind] for kind, names in lines for name in names.split(", ")} == DEVICE
    assert [name for _, names in lines for name in names.split(", ")] == list(DEVICE)
