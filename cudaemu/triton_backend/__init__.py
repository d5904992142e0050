"""Triton's own door for other backends: TRITON_DEFAULT_BACKEND=cudaemu, and a script that knows nothing of the emulator
runs on it, in this process and in those that it starts.

Triton imports `compiler` and `driver` of each installed backend when it is imported (entry points `triton.backends`),
so both do nothing, and import little, unless the variable names this one. CUDAEMU_TRITON has options of the command
`cudaemu triton`, as in CUDAEMU_TRITON="--arch 8.0 --lines".
"""

from __future__ import annotations

import os


def is_chosen() -> bool:
    return os.environ.get("TRITON_DEFAULT_BACKEND") == "cudaemu"
