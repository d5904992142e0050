"""Each broken kernel is found: the kind, line, block and thread, in words; and the unbroken ones are clean."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from common import emulator
from tests.emulator import broken

CASES = {case.name: case for case in broken.every()}
STAGES = sorted({case.target for case in CASES.values() if case.target.name == "kernel.cu"})


def run(path, arguments: Sequence[str], defines) -> emulator.Report:
    """On one core, so that it is always the same block and thread that comes first."""
    return emulator.program(path, arguments, defines=defines, threads=1, counters=False, patience=60)


def test_there_are_many_of_all_kinds():
    assert len(CASES) >= 50
    targets = {case.target.parent.name for case in CASES.values()}
    assert {f"{number:02}" for number in range(1, 17)} <= {name[:2] for name in targets}
    assert len({case.target for case in CASES.values() if case.target.parent.name == "examples"}) >= 10
    assert len({case.fields["Finds"] for case in CASES.values()}) >= 12


@pytest.mark.parametrize("name", CASES)
def test_it_is_found(name):
    case = CASES[name]
    report = run(case.program, case.arguments, case.defines)
    found = [finding for finding in report.findings if finding.kind == case.fields["Finds"]]
    assert found, f"{name}: {case.what}\n{report}"
    assert case.lines, f"no line has '{case.fields['Line']}'"
    here = [finding for finding in found if {finding.line, finding.call_line} & case.lines]
    assert here, f"expected at {case.lines}: {report}"
    (first, *_) = here
    assert (case.fields["Block"], case.fields["Thread"]) == tuple(
        " ".join(map(str, place)) for place in (first.block, first.thread)
    ), first
    assert case.fields["Says"] in first.message, first


@pytest.mark.parametrize("stage", STAGES, ids=lambda path: path.parent.name)
def test_unbroken_it_is_clean(stage):
    """The very programs, with the arguments of all the patches. (test_examples.py runs the examples.)"""
    text = stage.read_text()
    path = broken.program(text, stage, f"un_{stage.parent.name}")
    for arguments, defines in {
        (tuple(c.arguments), tuple(c.defines.items())) for c in CASES.values() if c.target == stage
    }:
        report = run(path, arguments, dict(defines))
        assert not report.findings, f"{arguments}: {report}"
