"""From PTX to the virtual machine's program: one kernel, flat, one machine instruction for each PTX instruction.

- Instructions that differ in their registers alone are lowered once: what a rule makes of their pattern is a template.
- Calls are inlined; parameters of calls are in local memory. Only functions that are called through a pointer, or
recursively, are really called, with a stack.
- Registers get slots in the warp's frame by live ranges (linear scan), so that the frame of a large unrolled kernel
  stays small enough for the cache. Liveness is a property of one thread's path, and slots are arrays over the lanes:
  sharing a slot is as safe under divergence as without.
- Immediates, addresses and special registers are constants of the frame, written once per launch or block.

An instruction without a handler does not fail here: it becomes an `unknown` one, which ends the kernel only if it is
executed.
"""

from __future__ import annotations

from collections.abc import Mapping

from cudaemu.lower import arithmetic, control, memory, tensor, texture, warp  # noqa: F401, they enter their rules
from cudaemu.lower.core import Lowering, Program, shared_variables
from cudaemu.lower.description import Description
from cudaemu.lower.encode import encode
from cudaemu.ptx import Function, PtxModule

__all__ = ["lower", "shared_variables"]


def lower(
    module: PtxModule,
    function: Function,
    addresses: Mapping[str, int],
    machine: Mapping[str, Description],
    wary: bool = False,
    tiles: bool = False,
) -> tuple[Program, list[tuple[str, int, int, int]], int]:
    """The program of one kernel, its parameters (name, size, alignment, offset) and their bytes together.

    `addresses`: where the module's .global and .const variables are, and what points to its functions. `machine`:
    its instructions. `wary`: global memory may hold undefined values. `tiles`: several threads may
    hold the same element of a tile (encode.py). Raises `PtxError` for a module that contradicts itself."""
    lowering = Lowering(module, function, addresses, machine)
    lowering.lower()
    return encode(lowering, wary, tiles), lowering.params, lowering.param_bytes
