"""A project whose docs/results is empty."""

from __future__ import annotations

import pytest

from common.results import documents, runs


@pytest.fixture
def record(tmp_path, monkeypatch):
    """record("name", run) puts a run into docs/results/name.json."""
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    for module in (runs, documents):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "RESULTS", folder)
    return lambda name, made: runs.save(made, folder / f"{name}.json")
