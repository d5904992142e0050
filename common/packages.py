"""Packages of others that the course can do without, and uses where they are installed."""

from __future__ import annotations

import importlib.metadata

CUTE = "flash-attn-4"  # the flash-attention project's kernels in CuTe DSL; a run keeps its version under this name
TRITON = (3, 9)  # the least of its versions that the emulator runs


def version(package: str) -> str | None:
    """That of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_triton() -> bool:
    """Whether Triton is installed, and new enough for the emulator."""
    found = version("triton")
    return found is not None and tuple(int(part) for part in found.split(".")[:2]) >= TRITON
