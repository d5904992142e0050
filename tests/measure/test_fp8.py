"""Attention in fp8 with what quantizes: what is timed, what is judged."""

from __future__ import annotations

import pytest
import torch

from common.measure import fp8
from common.results import measured, runs
from common.stage import Kernel
from cudaemu.errors import UserError


@pytest.fixture
def emulated(monkeypatch):
    """Launches in the emulator."""
    monkeypatch.setattr(Kernel, "bind", lambda self, inputs, outputs: lambda: self.emulate(inputs, outputs))


def test_all_ways_are_attention(emulated):
    calls, outputs = fp8.ways((1, 1, 128, 64), device="cpu")
    assert list(calls) == ["h7_flash_attention_3", fp8.BOTH, fp8.ALONE, fp8.QUANTIZE, fp8.PLAIN]
    one, both = outputs.values()
    assert 1e-3 < (one.float() - both.float()).norm() / one.float().norm() < fp8.NEAR[True]


def test_a_wrong_way_is_not_timed(emulated, monkeypatch):
    monkeypatch.setattr(fp8, "NEAR", {False: 4e-3, True: 1e-3})
    with pytest.raises(UserError, match=f"{fp8.BOTH}.*off by"):
        fp8.ways((1, 1, 128, 64), device="cpu")


def test_a_run_is_a_table(monkeypatch, tmp_path):
    names = ("h7_flash_attention_3", fp8.BOTH, fp8.ALONE, fp8.QUANTIZE, fp8.PLAIN)
    rows = [
        {
            "name": name,
            "size": 4096,
            "head_dim": d,
            "flops": 10**11,
            "clock": {},
            "ms": {"median": each, "p20": each, "p80": each, "n": 9},
        }
        for d in (128, 64)
        for name, each in zip(names, (0.2, 0.25, 0.16, 0.08, 0.07))
    ]
    head = {"schema": runs.SCHEMA, "kind": "fp8", "command": "c", "date": "2026-11-24T00:00:00+00:00", "commit": "0"}
    run = head | {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13", "torch": "2", "rows": rows}
    saved = runs.load(runs.save(run, tmp_path / "fp8.json")) | {"file": "fp8.json"}
    monkeypatch.setattr(measured, "runs", lambda kind, only: [saved] if kind == "fp8" else [])
    assert "| 64, 4096 | 500 | 400 | 625 | 0.80 | 1.25 | 80.0 µs | 70.0 µs |" in measured.fp8_table()
    assert "| 64, " not in measured.fp8_table(HEAD_DIM="128")


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fp8.main([]) == 2
    assert "need a GPU" in capsys.readouterr().err
