"""What Triton looks for in a backend beside its driver: see this package."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend


class Compiler(BaseBackend):  # type: ignore[misc]
    """Of no target: the emulator's takes NVIDIA's place once the driver is made (cudaemu/triton)."""

    @staticmethod
    def supports_target(_target: Any) -> bool:
        return False


Compiler.__abstractmethods__ = frozenset()  # Triton passes over classes with abstract methods, and calls none of them
