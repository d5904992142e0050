"""Sources of the tests, as files that stay: what is compiled from them is found in the cache the next time."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from common.compiler import toolchain


def source(text: str, name: str) -> Path:
    """A file NAME.cu of the cache with this text."""
    folder = toolchain.cache_dir() / "tests"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.cu"
    if not path.exists() or path.read_text() != text:
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    return path
