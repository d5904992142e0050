"""A launcher that notes what it is called with, in place of a GPU's (with the fixture cpu_as_gpu, on CPU tensors)."""

from __future__ import annotations

import struct

from common import gpu
from common.stage import Kernel


class Notes(gpu.Launcher):
    """Appends the arguments of each launch, {name: number}, to `launches`, and does nothing else."""

    def __init__(self, kernel: Kernel, launches: list[dict]):
        self.parameters, self.launches = gpu.signature(kernel.source, kernel.stage.symbol), launches

    def function(self, packed: bytes) -> int:
        values = struct.unpack("".join(gpu.TYPES[kind] for kind in self.parameters.values()), packed)
        self.launches.append(dict(zip(self.parameters, values)))
        return 0
