"""Packages of others that the course can do without, and uses where they are installed."""

from __future__ import annotations

import importlib.metadata

CUTE = "flash-attn-4"  # the flash-attention project's kernels in CuTe DSL; a run keeps its version under this name


def version(package: str) -> str | None:
    """That of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
