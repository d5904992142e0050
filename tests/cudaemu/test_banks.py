"""The models of shared memory against what a GPU counted, pattern by pattern."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cudaemu
from common.figures import layout
from common.measure import ncu
from docs.hardware.banks import (
    METRICS,
    OPERATIONS,
    PROBE,
    RECORD,
    SOURCE_BYTES,
    TABLE_SECTORS,
    Pattern,
    measure,
    patterns,
    read,
    recorded,
)
from tests.cudaemu.sources import source

PATTERNS = {f"{pattern.operation}: {pattern.name}": pattern for pattern in patterns()}


@pytest.fixture(scope="module")
def emulated() -> dict[str, dict[str, int]]:
    """Every pattern launched once in the emulator, by the very program that is measured."""
    x, y = torch.zeros(SOURCE_BYTES, dtype=torch.uint8), torch.zeros(32, dtype=torch.int32)
    counted = {}
    for name, pattern in PATTERNS.items():
        arguments = [torch.tensor(row, dtype=torch.int32) for row in (pattern.to, pattern.source)]
        arguments += [x, y, OPERATIONS.index(pattern.operation)]
        names = ["to", "source", "x", "y", "operation"]
        report = cudaemu.run(source(PROBE, "banks"), "launch", arguments, names=names, sanitize=False)
        counted[name] = {counter: report.counters[counter] for counter in METRICS if report.counters[counter]}
    return counted


def modelled(pattern: Pattern) -> dict[str, int]:
    """What common/figures/layout.py says."""
    lanes = np.array([lane for lane, at in enumerate(pattern.to) if at >= 0])
    to, source = np.array(pattern.to)[lanes], np.array(pattern.source)[lanes]
    if pattern.operation.startswith("copy"):
        found = {"cp_async_sectors": len(layout.copied_sectors(source[source >= 0], to[source >= 0]))}
    else:
        verb = pattern.operation.split()[0]
        served = layout.wavefronts(to, pattern.size, lanes, load=verb == "load")
        found = {f"shared_{verb}_wavefronts": served.count, f"shared_{verb}_conflicts": served.conflicts}
    return {counter: count for counter, count in found.items() if count}


def test_every_pattern_is_recorded():
    assert list(recorded()) == list(PATTERNS), f"measure again: python -m docs.hardware.banks writes {RECORD.name}"


@pytest.mark.full
def test_the_emulator_counts_what_the_gpu_counted(emulated):
    wrong = {name: (emulated[name], found) for name, found in recorded().items() if emulated[name] != found}
    assert not wrong, "pattern: (emulator, GPU)"


def test_the_figures_show_what_the_gpu_counted():
    wrong = {
        name: (modelled(pattern), recorded()[name])
        for name, pattern in PATTERNS.items()
        if modelled(pattern) != recorded()[name]
    }
    assert not wrong, "pattern: (layout, GPU)"


def test_what_ncu_counts_is_read():
    """Launch by launch; the sectors of the tables, which each launch reads too, are taken off."""
    launches = []
    for name, found in recorded().items():
        counts = dict.fromkeys(METRICS, 0) | found
        counts["cp_async_sectors"] += TABLE_SECTORS * (1 + name.startswith("copy"))
        launches.append(ncu.Launch("probe", {METRICS[counter]: float(n) for counter, n in counts.items()}))
    assert read(launches) == recorded()


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(not ncu.available(), reason="needs ncu")
def test_a_gpu_agrees():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("recorded for compute capability 9.0")
    assert measure() == recorded()
