"""Triton's kernels in the emulator: values, reports, faults at the Python line, and no findings where there is no
fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch


pytest.importorskip("triton", reason="Triton is not installed: pip install triton (a gigabyte)")

from cudaemu import CheckFailed, UserError  # noqa: E402
from cudaemu import triton as device  # noqa: E402
from tests.cudaemu import triton_faults as faults  # noqa: E402

NAMES = [kernel.__name__ for kernel in faults.KERNELS]


@pytest.fixture(autouse=True)
def emulator():
    device.use()
    device.reports.clear()
    yield
    device.use()


@pytest.mark.full
@pytest.mark.parametrize("arch", ["8.0", "9.0", "12.0"])
@pytest.mark.parametrize("name", NAMES)
def test_right_kernels_have_no_findings(name, arch):
    device.use(arch=arch)
    got, expected = faults.run(name)
    assert torch.allclose(got, expected, atol=2e-2, rtol=2e-2)
    assert not device.report().findings, device.report()


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_race_is_found_at_its_line(name):
    faults.run(name, faults.RACE)
    found = device.report().findings
    assert found and {each.kind for each in found} == {"global race"}, device.report()
    assert {each.line for each in found} <= faults.lines(faults.KERNELS[NAMES.index(name)], "race"), device.report()


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_mask_too_wide_is_found_at_its_line(name):
    with pytest.raises(CheckFailed, match="out of bounds"):
        faults.run(name, faults.BOUNDS)
    (found,) = device.report().findings
    assert found.kind == "out of bounds global" and not device.report().ok
    assert found.line in faults.lines(faults.KERNELS[NAMES.index(name)], "bounds"), device.report()


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_unset_memory_is_found_at_its_line(name):
    faults.run(name, unset=True)
    found = device.report().findings
    assert {each.kind for each in found} == {"uninitialised global read"}, device.report()
    assert {each.line for each in found} <= faults.lines(faults.KERNELS[NAMES.index(name)], "unset"), device.report()
