"""The driver that TRITON_DEFAULT_BACKEND=cudaemu names: see this package."""

from __future__ import annotations

import atexit
import os
import shlex
from typing import Any

from triton.backends.driver import DriverBase

from cudaemu.triton_backend import is_chosen


class Door(DriverBase):  # type: ignore[misc]
    """Triton makes one, and gets the emulator's driver."""

    @classmethod
    def is_active(cls) -> bool:
        return is_chosen()

    def __new__(cls) -> Any:
        from triton.runtime.driver import driver

        import cudaemu.triton  # noqa: F401  # comes here by itself where nothing has imported it before

        if driver._active is None:
            end = start_script("triton", args)
            atexit.register(lambda: end(0))
        return driver._active


Door.__abstractmethods__ = frozenset()  # as in compiler.py

if is_chosen():
    from cudaemu import hardware, torch_cuda
    from cudaemu.__main__ import start_script, triton_options

    args = triton_options(shlex.split(os.environ.get("CUDAEMU_TRITON", "")))
    torch_cuda.start(hardware.model(args.arch))  # a script names the device "cuda" before it asks Triton for anything
