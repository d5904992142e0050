"""The main loop of a kernel in machine code: when fragments are loaded and when they are used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Patch, Rectangle

from common.figures.draw import CONFLICT, HUES, Picture, bare, picture, styled
from cudaemu.compiler import sass
from cudaemu.compiler.sass import Instruction
from cudaemu.errors import UserError
from cudaemu.hardware import Arch

if TYPE_CHECKING:
    from common.stage import Kernel


@dataclass(frozen=True)
class Load:
    """One ldmatrix of the main loop: its place and that of its first use, and the tensor instructions between them."""

    place: int
    use: int
    between: int
    transposed: bool  # ldmatrix.trans


@dataclass(frozen=True)
class Loop:
    """The main loop of a kernel in machine code: the places of the instructions that move or multiply, in order."""

    mma: tuple[int, ...]
    loads: tuple[Load, ...]
    copies: tuple[int, ...]
    barriers: tuple[int, ...]
    length: int


_KINDS = {"HMMA": "mma", "LDSM": "loads", "LDGSTS": "copies", "BAR": "barriers"}


def main_loop(instructions: Sequence[Instruction], turns: int = 1) -> Loop:
    """The loop with the most tensor instructions, `turns` times, in its steady state. UserError if there is none.

    An ldmatrix's first use is the first tensor instruction that reads one of the registers it wrote.
    """
    body = [i for i in sass.main_loop(instructions) if i.opcode.split(".")[0] in _KINDS]
    if not body:
        raise UserError("this kernel has no loop with tensor instructions")
    places: dict[str, list[int]] = {kind: [] for kind in _KINDS.values()}
    transposed: dict[int, bool] = {}  # of a load, by its place
    first_use: dict[int, int] = {}  # likewise
    writer: dict[int, int] = {}  # which load wrote a register
    for place, i in enumerate(body * (turns + 1)):  # one more turn, in which the last loads are used
        kind = _KINDS[i.opcode.split(".")[0]]
        places[kind].append(place)
        registers = [int(n) for n in re.findall(r"\bR(\d+)", i.text)]
        if kind == "mma":
            for base, count in ((registers[1], 4), (registers[2], 2)):
                for register in range(base, base + count):
                    if register in writer:
                        first_use.setdefault(writer[register], place)
        elif kind == "loads":
            transposed[place] = ".MT" in i.opcode
            writer |= dict.fromkeys(range(registers[0], registers[0] + int(i.opcode.rsplit(".", 1)[1])), place)
    length = len(body) * turns
    loads = []
    for place, use in first_use.items():
        if place < length:
            loads.append(Load(place, use, sum(place < mma < use for mma in places["mma"]), transposed[place]))
    shown = {kind: tuple(at for at in places[kind] if at < length) for kind in ("mma", "copies", "barriers")}
    return Loop(loads=tuple(sorted(loads, key=lambda load: load.place)), length=length, **shown)


def sass_loop(kernel: Kernel, arch: str | Arch = "9.0", function: str = "", turns: int = 1) -> Loop:
    """The main loop of a kernel compiled for `arch`: of the function whose (mangled) name has `function` in it."""
    functions = sass.functions(kernel.source, kernel.defines, kernel.stage.target(arch))
    found = [code for name, code in functions.items() if function in name]
    if not found:
        raise UserError(f"{kernel.label} has the functions {', '.join(functions)}, none with '{function}'")
    return main_loop(found[0], turns)


def fragments(loops: Mapping[str, Loop], operands: tuple[str, str] = ("ldmatrix", "ldmatrix.trans")) -> Picture:
    """When fragments are loaded and when they are first used, in the order of one warp's instructions.

    `operands` are the names of what `ldmatrix` and what `ldmatrix.trans` bring."""
    lanes = {name: _lanes(loop.loads) for name, loop in loops.items()}
    heights = [max(lanes[name]) + 5 for name in loops]
    takeaway = "Copies and ldmatrix between a barrier and the next mma: " + ", ".join(
        f"{max(min(at for at in (*loop.mma, loop.length) if at > barrier) - barrier for barrier in loop.barriers) - 1} "
        f"in {name}"
        for name, loop in loops.items()
    )
    with styled():
        figure = picture(12, 0.75 + sum(0.1 * h + 0.4 for h in heights), takeaway)
        panels = figure.subplots(len(loops), 1, height_ratios=heights, squeeze=False, sharex=True)[:, 0]
        end = max(max(loop.length, *(load.use for load in loop.loads)) for loop in loops.values())
        for axes, (name, loop) in zip(panels, loops.items()):
            for load, lane in zip(loop.loads, lanes[name]):
                hue = CONFLICT if not load.between else HUES[4 if load.transposed else 0]
                long = load.use - load.place
                axes.add_patch(Rectangle((load.place, lane + 4.1), long, 0.8, linewidth=0, facecolor=hue))
            axes.vlines(np.array(loop.mma) + 0.5, 0.1, 1.3, color="#777777", linewidth=1.8)
            axes.vlines(np.array(loop.copies) + 0.5, 1.8, 3.0, color="#C09000", linewidth=2)
            for at in loop.barriers:
                axes.axvline(at + 0.5, color="#CC3311", linewidth=1.4, zorder=4)
            axes.set_xlim(-1, end + 1)
            axes.set_ylim(max(lanes[name]) + 5.2, -0.2)
            axes.set_yticks([0.7, 2.4, 4.5 + max(lanes[name]) / 2], ["mma", "copies", "fragments"])
            between = np.median([load.between for load in loop.loads])
            axes.set_title(f"{name}: from an ldmatrix to its first use the warp begins {between:.0f} mma (median)")
            bare(axes)
        panels[-1].set_xlabel("the warp's ldmatrix, mma, copies and barriers, in the order of the machine code")
        figure.legend(
            handles=[
                Patch(color=HUES[0], label=f"{operands[0]}: from ldmatrix to first mma"),
                Patch(color=HUES[4], label=f"{operands[1]}: likewise"),
                Patch(color=CONFLICT, label="no mma between load and use"),
                Patch(color="#C09000", label="copy"),
                Patch(color="#CC3311", label="barrier"),
            ],
            loc="outside lower left",
            ncols=5,
        )
    return figure


def _lanes(loads: Sequence[Load]) -> list[int]:
    """For each bar the first line that is free where it begins."""
    free: list[int] = []
    lanes = []
    for load in loads:
        lane = next((n for n, until in enumerate(free) if until <= load.place), len(free))
        free[lane:] = [load.use, *free[lane + 1 :]]
        lanes.append(lane)
    return lanes
