"""The first kernels beside torch: what is timed, what is judged; on a GPU also that it is right."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from common import gpu
from common.measure import first_kernels
from common.results import markdown, measured, runs

ROOT = runs.ROOT
NAMES = [make().name for make in first_kernels.all_of_them(scale=1024, device="cpu")]


@pytest.fixture(params=range(len(NAMES)), ids=NAMES)
def small(request) -> first_kernels.First:
    return first_kernels.all_of_them(scale=1024, device="cpu")[request.param]()


def test_every_launcher_and_example_is_there():
    source = first_kernels.SOURCE.read_text()
    assert re.findall(r"cudaError_t launch_(\w+)\(", source) == NAMES
    assert re.findall(r"examples/(\w+)\.cu", source) == NAMES
    assert all((ROOT / "examples" / f"{name}.cu").exists() for name in NAMES)


def test_the_librarys_answer_is_right_and_another_is_not(small):
    """Each output takes the library's own answer; one element that is off is found."""
    for out, right in zip(small.outputs, small.expected()):
        if right is not None:
            out.copy_(right)
    assert first_kernels.wrong(small) is None
    out = small.outputs[0].flatten() if small.outputs[0].is_contiguous() else small.outputs[0]
    out[0] += out.abs().max() + 100
    assert small.name in first_kernels.wrong(small)
    out[0] = torch.nan if out.is_floating_point() else -(10**6)
    assert small.name in first_kernels.wrong(small)


def test_bytes_are_each_input_and_output_once(small):
    scratch = replace(small, extra=(torch.zeros(1000),))
    assert scratch.bytes == small.bytes == sum(t.numel() * t.element_size() for t in (*small.inputs, *small.outputs))


def row(name: str) -> dict:
    times = {"median": 0.5, "p20": 0.4, "p80": 0.6, "n": 10}
    peer = {"name": "torch's", "ms": times | {"median": 1.0}}
    return {"name": name, "size": "8 floats", "bytes": 10**9, "ms": times, "clock": {}, "peer": peer}


def test_a_run_is_a_table(monkeypatch, tmp_path):
    head = {
        "schema": runs.SCHEMA,
        "kind": "first_kernels",
        "command": "c",
        "date": "2026-11-22T00:00:00+00:00",
        "commit": "0",
    }
    run = head | {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13", "torch": "2", "rows": [row("softmax")]}
    saved = runs.load(runs.save(run, tmp_path / "first.json")) | {"file": "first.json"}
    monkeypatch.setattr(measured, "runs", lambda kind, only: [saved] if kind == "first_kernels" else [])
    text = measured.first_kernels_table()
    assert "softmax" in text and "500 µs | 2.00" in text and text.count("2.00") == 2 and "[first.json]" in text
    monkeypatch.setattr(measured, "runs", lambda kind, only: [])
    assert measured.first_kernels_table() == markdown.NOTHING


@pytest.mark.gpu
def test_on_a_gpu_all_of_them_are_right():
    library = gpu.load(first_kernels.SOURCE, {}, gpu.capability() or "8.0", "first kernels")
    for make in first_kernels.all_of_them(scale=256):
        each = make()
        first_kernels.call(library, each)()
        torch.cuda.synchronize()
        assert first_kernels.wrong(each) is None
