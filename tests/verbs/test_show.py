"""The verb `show`: figures into files."""

from __future__ import annotations

import pytest

import kernels

PNG = b"\x89PNG\r\n\x1a\n"
STAGE = "kernels.02_block_tile"


def test_files_are_written_and_their_paths_printed(command, tmp_path):
    status, out, _ = command(STAGE, "show", "sectors", "--dtype", "fp32", "--output", tmp_path)
    assert status == 0
    assert sorted(out.split()) == sorted(str(path) for path in tmp_path.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {f"02_block_tile-fp32-sectors-{t}.png" for t in "ABC"}
    assert all(path.read_bytes().startswith(PNG) for path in tmp_path.iterdir())


def test_one_file_is_written_by_its_suffix(command, tmp_path):
    target = tmp_path / "c.svg"
    assert command(STAGE, "show", "threads", "--tensor", "C", "--output", target).status == 0
    assert "<svg" in target.read_text()


@pytest.mark.core(every=2)
@pytest.mark.parametrize("stage", [kernels.load("12"), kernels.load("16")], ids=lambda stage: stage.name)
def test_problems_with_other_tensors_are_drawn_as_well(command, tmp_path, stage):
    """Small pictures of a shape that the problem chose; tensors are called as the problem calls them."""
    for figure in ("footprint", "copies", "rhythm"):
        assert command(stage.package, "show", figure, "--output", tmp_path).status == 0
    names = {path.stem.removeprefix(f"{stage.name}-fp16-") for path in tmp_path.iterdir()}
    assert {"footprint", "copies-Q", "copies-K", "copies-V", "rhythm"} <= names
    assert all(2_000 < path.stat().st_size < 300_000 for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("threads", "--tensor", "Q"),
        ("threads", "--output", "x.png"),  # several figures, one file
        ("registers",),  # one output per thread: nothing to draw
        ("threads", "--lane", "32"),
        ("threads", "--warp", "32"),
        ("threads", "--block", "4"),
        ("threads", "--block", "-1"),
        ("threads", "--block", "99999999999"),
        ("threads", "--output", "x.PNG"),
        ("threads", "--output", "x.pdf"),
        ("threads", "--sizes", "64", "128"),
        ("threads", "--output", "/dev/null/figures"),
    ],
)
def test_what_cannot_be_shown_is_refused(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = command(STAGE, "show", *words)
    assert status == 2 and err.startswith("error: ") and "Traceback" not in err
    assert not list(tmp_path.iterdir()) or "several" in err
