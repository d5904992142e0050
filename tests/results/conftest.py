"""A project whose docs/results is empty."""

from __future__ import annotations

import pytest

from common.results import runs, tables


@pytest.fixture
def record(tmp_path, monkeypatch):
    """record("name", run) puts a run into docs/results/name.json."""
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    for module in (runs, tables):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "RESULTS", folder)
    return lambda name, made: runs.save(made, folder / f"{name}.json")
