"""Programmatic dependent launch: what a launch may touch before it has waited for the one before."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import cudaemu
from cudaemu.report import Report

SOURCE = Path(__file__).with_name("dependent.cu")
KIND = "race with the kernel before"
THREADS, N = 128, 512  # of dependent.cu
NEVER, FIRST, ONE_WARP, ONE_WARP_AND_BARRIER, ONE_LANE, ONE_LANE_AND_SYNCWARP, LATE = range(7)


def run(number: int, how: int = 0, **options) -> Report:
    return run_with_versions(number, how, **options)[0]


def run_with_versions(number: int, how: int = 0, arch: str = "9.0", compiled_for: str = "9.0", **options):
    """The report, and the PTX and binary version of a kernel if that is the case that is run."""
    x, y, versions = np.zeros(N, np.float32), np.zeros(N, np.float32), np.zeros(2, np.int32)
    names = ["number", "how", "x", "y", "versions", "stream"]
    values = [number, how, x, y, versions, None]
    report = cudaemu.run(
        SOURCE, "run_case", values, names=names, arch=arch, compiled_for=compiled_for, counters=False, **options
    )
    assert report.status == 0, report
    return report, versions.tolist()


def line(text: str) -> int:
    """The line of dependent.cu with this comment."""
    (found,) = (number for number, each in enumerate(SOURCE.read_text().splitlines(), 1) if each.endswith("// " + text))
    return found


@pytest.mark.parametrize(
    ("number", "how"),
    [
        *((case, how) for case in (0, 1) for how in (FIRST, ONE_WARP_AND_BARRIER, ONE_LANE_AND_SYNCWARP)),
        (2, NEVER),  # without the attribute, a launch waits by itself
        (3, 0),  # what was read before the trigger has been read
        (4, 0),  # and without a trigger, when the blocks have ended
        (6, FIRST),
        (7, FIRST),  # it waited before it let the third begin
        *((8, between) for between in range(5)),
        *((9, 0), (10, 0), (11, 0), (12, 0)),
    ],
)
def test_right_programs_are_clean(number, how):
    assert not run(number, how).findings


@pytest.mark.parametrize(
    ("number", "how", "here", "there", "count", "says"),
    [
        (0, NEVER, "consume reads", "produce writes", N, "read here and written by thread .* of produce, the launch b"),
        (0, ONE_WARP, "consume reads", "produce writes", N * 3 // 4, "before this access it needs"),
        (0, ONE_LANE, "consume reads", "produce writes", N * 31 // 32, "cudaGridDependencySynchronize"),
        (0, LATE, "consume reads", "produce writes", N, "griddepcontrol.wait"),
        (1, NEVER, "consume reads", "produce writes", N, "may still run"),  # its end makes nothing visible
        (4, 1, "overwrites", "read after the trigger", N, "are written here and read by thread"),
        (5, 0, "overwrites", "produce writes", N, "are written here and by thread"),
        (6, NEVER, "consume reads", "produce writes", N, "of produce, 2 launches before"),
        (7, NEVER, "consume reads", "produce writes", N, "of produce, 2 launches before"),
        (7, LATE, "consume reads", "produce writes", N, "of produce, 2 launches before"),
        (13, 10, "consume reads", "produce writes", N, "of produce, 11 launches before"),
    ],
)
def test_an_early_access_is_found(number, how, here, there, count, says):
    report = run(number, how)
    (finding,) = report.findings
    assert (finding.kind, finding.line, finding.count) == (KIND, line(here), count)
    assert f"at line {line(there)} of " in finding.message
    assert re.search(says, finding.message), finding.message


def test_a_wait_that_is_late_covers_what_comes_after_it():
    assert not run(6, LATE).findings  # the second one waits before it ends


def test_of_many_in_a_row_the_oldest_count_as_over():
    assert not run(13, 40).findings


@pytest.mark.parametrize("arch", ["8.0", "8.9"])
def test_older_gpus_do_not_begin_early(arch):
    assert not run(0, NEVER, arch=arch, compiled_for="8.0").findings


def test_older_code_does_not_wait_on_a_newer_gpu():
    """griddepcontrol needs 9.0: code for 8.0 is launched early all the same."""
    assert [finding.kind for finding in run(0, FIRST, compiled_for="8.0").findings] == [KIND]
    assert not run(0, NEVER, sanitize=False).findings


@pytest.mark.parametrize(
    ("arch", "compiled_for", "ptx", "binary"),
    [("8.0", "8.0", 80, 80), ("8.9", "8.0", 80, 80), ("9.0", "8.0", 80, 90), ("9.0", "9.0", 90, 90)],
)
def test_what_a_kernel_was_compiled_for(arch, compiled_for, ptx, binary):
    assert run_with_versions(14, arch=arch, compiled_for=compiled_for)[1] == [ptx, binary]
