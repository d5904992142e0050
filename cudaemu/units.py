"""What multiplies: FMA, and the instructions of tensor cores. Whoever has to tell one from another reads it here."""

from __future__ import annotations

from typing import NamedTuple

from cudaemu.hardware import Arch


class Unit(NamedTuple):
    """Instructions that multiply. `rows`, `columns`, `depth`: of the largest product that one makes of matrices, the
    depth in bits of the operands; 0: it makes none."""

    name: str  # as a stage declares it, and as recorded ceilings begin: "mma.sync fp16"
    category: str  # under which the emulator counts it
    least: Arch  # that has it
    rows: int = 0
    columns: int = 0
    depth: int = 0
    warps: int = 1  # that make a product together, with an instruction each
    background: bool = False  # until a wait; TMA brings its operands
    alone: str = ""  # the type in which it computes, if there is but one
    opcodes: tuple[str, ...] = ()  # how those of the machine code begin

    @property
    def tensor(self) -> bool:
        """Whether it is one of the tensor cores'."""
        return self.rows > 0

    def share(self, m: int, n: int, k: int) -> int:
        """FLOP of one warp's instruction in a product of that shape."""
        return 2 * m * n * k // self.warps

    def flop(self, bits: int) -> int:
        """FLOP of one warp's instruction of the largest shape, of operands with so many bits."""
        return self.share(self.rows, self.columns, self.depth // bits)

    def ceiling(self, dtype: str) -> str:
        """The name of its measured rate with such operands: "mma.sync fp16", "FMA fp32"."""
        return f"{self.name} {self.alone or dtype}"


FMA = Unit("FMA", "fma", Arch(8, 0), alone="fp32")
MMA = Unit("mma.sync", "mma", Arch(8, 0), 16, 8, 256, opcodes=("HMMA", "IMMA", "DMMA", "BMMA", "QMMA"))
WGMMA = Unit(
    "wgmma",
    "wgmma",
    Arch(9, 0, "a"),
    64,
    256,
    256,
    warps=4,
    background=True,
    opcodes=("HGMMA", "IGMMA", "QGMMA", "WARPGROUP"),
)
UNITS = {unit.name: unit for unit in (FMA, MMA, WGMMA)}  # the slower first
TENSOR_UNITS = tuple(unit for unit in UNITS.values() if unit.tensor)
