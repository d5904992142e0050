"""Sources of exercises as files that stay: what is compiled from them is found in the cache the next time."""

from __future__ import annotations

from pathlib import Path

from common import course
from common.practice.exercises import Exercise
from tests.cudaemu.sources import source


def start(exercise: Exercise) -> Path:
    """What a reader begins with: mostly the text of a broken kernel, or the kernel of the stage before."""
    before = course.previous(exercise.stage) if exercise.stage else None
    if before and exercise.start == before.source.read_text():
        return before.source
    return source(exercise.start, exercise.solution.stem)


def edited(exercise: Exercise, old: str, new: str) -> Path:
    """Our solution, with one piece that stands there once put otherwise."""
    text = exercise.solution.read_text()
    assert text.count(old) == 1, f"{exercise.solution} has {text.count(old)} times: {old}"
    return source(text.replace(old, new), exercise.solution.stem)
