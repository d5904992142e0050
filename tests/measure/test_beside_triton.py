"""Triton's kernels beside the course's: what is judged before it is timed, and the table."""

from __future__ import annotations

import pytest
import torch

from common.measure import beside_triton
from common.results import measured, runs
from cudaemu.errors import UserError


def test_a_wrong_result_is_not_timed():
    right = torch.ones(4, 4)
    calls = {beside_triton.TORCH: lambda: right, "Triton": lambda: 1.01 * right}
    with pytest.raises(UserError, match="Triton, product 4: off by"):
        beside_triton.measure("product", 4, calls)


def test_a_run_is_a_table(monkeypatch, tmp_path):
    ms = [("torch", 0.2), ("kernels.matmul", 0.21), ("Triton, pointers", 0.23)]
    rows = [
        {"problem": problem, "name": name, "size": 4096, "clock": {}, "ms": {"median": t, "p20": t, "p80": t, "n": 9}}
        for problem in beside_triton.SIZES
        for name, t in ms
    ]
    head = {"schema": runs.SCHEMA, "kind": "triton", "command": "c", "date": "2026-11-24T00:00:00+00:00", "commit": "0"}
    run = head | {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13", "torch": "2", "triton": "3.9.0", "rows": rows}
    saved = runs.load(runs.save(run, tmp_path / "triton.json")) | {"file": "triton.json"}
    monkeypatch.setattr(measured, "runs", lambda kind, only: [saved] if kind == "triton" else [])
    text = measured.triton_table("attention")
    assert text.startswith("| attention | torch | kernels.matmul | Triton, pointers |")
    assert "| 4096 | 200.0 µs | 210.0 µs | 230.0 µs |" in text and "Triton 3.9.0" in text
    assert beside_triton.table(saved)


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert beside_triton.main([]) == 2
    assert "need a GPU" in capsys.readouterr().err
