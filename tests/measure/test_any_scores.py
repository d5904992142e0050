"""Attention on scores of many kinds: what is judged before it is timed."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from common.measure import any_scores
from cudaemu.errors import UserError

SHAPE = 1, 2, 64, 64


@pytest.mark.parametrize("causal", [False, True])
def test_errors_are_those_of_the_first_head(causal):
    q, k, v = any_scores.inputs("normal", SHAPE, torch.float32, "cpu")
    right = sdpa(q, k, v, is_causal=causal)
    assert any_scores.error(right, q, k, v, causal) < 1e-6
    assert any_scores.error(1.01 * right, q, k, v, causal) == pytest.approx(0.01, rel=1e-3)


def test_kinds_differ_in_their_scores():
    """The spread of the scores, and where along the keys they are large."""
    spread, later = {}, {}
    for kind in any_scores.KINDS:
        q, k, _ = any_scores.inputs(kind, (1, 8, 512, 64), torch.float32, "cpu")
        scores = q @ k.mT / 8
        spread[kind] = scores.std(-1).mean().item()
        later[kind] = (scores[..., 256:].mean() - scores[..., :256].mean()).item()
    assert spread["normal"] == pytest.approx(1, rel=0.1)
    assert [spread[f"Q and K × {n}"] / spread["normal"] for n in (3, 10)] == pytest.approx([9, 100])
    assert spread["4 channels × 20 in Q, × 10 in K"] > 20 and spread["sigmoid of normal"] < 0.5
    assert later["rising over the keys"] > 5 and later["falling over the keys"] < -5 and abs(later["normal"]) < 0.1


def test_a_wrong_result_is_not_timed(monkeypatch):
    made = any_scores.inputs
    monkeypatch.setattr(any_scores, "inputs", lambda kind, shape, dtype: made(kind, SHAPE, dtype, "cpu"))
    monkeypatch.setattr(any_scores, "LIBRARIES", ("MATH",))
    monkeypatch.setattr(any_scores, "attention", lambda *tensors, is_causal: sdpa(*tensors, is_causal=not is_causal))
    with pytest.raises(UserError, match="normal, fp16, .* ours is off by"):
        any_scores.measure("normal", 64, "fp16", 64, 0)


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert any_scores.main([]) == 2
    assert "need a GPU" in capsys.readouterr().err
