"""A product and what follows it, in one kernel and in two: what is timed, what is judged."""

from __future__ import annotations

import pytest
import torch

import kernels
from common.measure import fused
from common.results import measured, runs
from cudaemu.errors import UserError


@pytest.fixture
def by_torch(monkeypatch):
    """kernels.matmul on the CPU, with torch's answer for fp16: the emulator would take a while."""

    def matmul(a, b, *, bias=None, activation=None, residual=None):
        product = a.float() @ b.float()
        return (product if bias is None else fused.after(product, bias.float(), residual.float())).half()

    monkeypatch.setattr(kernels, "matmul", matmul)


def test_all_ways_compute_what_they_say(by_torch):
    made = fused.ways(64, fused.after, device="cpu")
    assert list(made) == [fused.ALONE, fused.ONE, fused.TWO]
    for call, right in made.values():
        assert (call().float() - right).norm() <= fused.NEAR * right.norm()


def test_a_wrong_way_is_not_timed(by_torch, monkeypatch):
    ways = fused.ways
    monkeypatch.setattr(fused, "ways", lambda size, second: ways(size, second, device="cpu"))
    with pytest.raises(UserError, match=f"{fused.TWO}.*off by"):
        fused.measure(64, lambda product, bias, residual: fused.after(product, bias, 0 * residual))


def test_a_run_is_a_table(monkeypatch, tmp_path):
    ms = {fused.ALONE: 0.2, fused.ONE: 0.21, fused.TWO: 0.23}
    rows = [
        {"name": name, "size": 4096, "clock": {}, "ms": {"median": each, "p20": each, "p80": each, "n": 9}}
        for name, each in ms.items()
    ]
    head = {"schema": runs.SCHEMA, "kind": "fused", "command": "c", "date": "2026-11-24T00:00:00+00:00", "commit": "0"}
    run = head | {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13", "torch": "2", "rows": rows}
    saved = runs.load(runs.save(run, tmp_path / "fused.json")) | {"file": "fused.json"}
    monkeypatch.setattr(measured, "runs", lambda kind, only: [saved] if kind == "fused" else [])
    assert "| 4096 | 200.0 µs | 210.0 µs | 230.0 µs | 20.0 µs | 1.10 |" in measured.fused_table()


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fused.main([]) == 2
    assert "need a GPU" in capsys.readouterr().err
