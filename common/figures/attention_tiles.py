"""Attention: the online softmax step by step, which warp reads which part of Q, K, V and P, and what a tile costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from common.figures import layout
from common.figures.draw import (
    CONFLICT,
    FREE,
    GRID,
    HUES,
    INK,
    SHARED_BY_WARPS,
    Picture,
    bare,
    picture,
    plural,
    ranges,
    styled,
)
from cudaemu.compiler import sass
from cudaemu.errors import UserError
from cudaemu.hardware import Arch

if TYPE_CHECKING:
    from common.figures.accesses import Traced
    from common.stage import Kernel
    from cudaemu.compiler.sass import Instruction


# ------------------------------------------------------------------------------------------------- the online softmax


@dataclass(frozen=True)
class Step:
    """What one row's online softmax holds after a tile of scores. Scores are in base 2: a weight is 2^(score - m)."""

    scores: np.ndarray  # of this tile
    m: float  # the largest score so far
    correction: float  # what l and o were multiplied by: 2^(old m - m), 0 for the first tile
    weights: np.ndarray  # 2^(score - m) of this tile
    l: float  # noqa: E741 - the literature's name of the sum of weights
    o: float  # the sum of weights · values


def online(scores: np.ndarray, values: np.ndarray, tile: int) -> list[Step]:
    """The steps of one row: `scores` (base 2) and `values` are arrays of equal length, `tile` keys are taken at a time.

    steps[-1].o / steps[-1].l is the row's attention."""
    m, l, o = -np.inf, 0.0, 0.0  # noqa: E741
    steps = []
    for first in range(0, len(scores), tile):
        s, v = np.asarray(scores[first : first + tile], float), np.asarray(values[first : first + tile], float)
        largest = max(m, s.max())
        correction = float(np.exp2(m - largest))
        weights = np.exp2(s - largest)
        m, l, o = largest, l * correction + weights.sum(), o * correction + float(weights @ v)  # noqa: E741
        steps.append(Step(s, float(m), correction, weights, float(l), float(o)))
    return steps


def online_steps(scores: np.ndarray, values: np.ndarray, tile: int) -> Picture:
    """Tile by tile: the weights as they are known by then, relative to the largest score so far; m, l and o below."""
    steps = online(scores, values, tile)
    weights = np.exp2(np.asarray(scores, float) - np.max(scores))
    exact = float(weights @ np.asarray(values, float) / weights.sum())
    found = steps[-1].o / steps[-1].l
    corrected = sum(step.correction < 1 for step in steps[1:])
    takeaway = (
        f"{plural(len(steps), 'tile')}, {plural(corrected, 'correction')} of what was summed before: "
        f"o / l = {found:.4f}, the same in one pass: {exact:.4f}"
    )
    with styled():
        figure = picture(11, 2.5, takeaway)
        for number, (axes, step) in enumerate(
            zip(figure.subplots(1, len(steps), sharey=True, squeeze=False)[0], steps)
        ):
            seen = np.exp2(np.asarray(scores[: (number + 1) * tile], float) - step.m)
            old = len(seen) - len(step.scores)
            axes.bar(np.arange(len(seen)), seen, color=[HUES[0]] * old + [HUES[1]] * len(step.scores), width=0.85)
            for x, (height, score) in enumerate(zip(seen, scores)):
                axes.text(x, height + 0.02, f"{score:g}", ha="center", va="bottom", fontsize=7, color=INK)
            axes.set_xlim(-0.6, len(scores) - 0.4)
            axes.set_ylim(0, 1.18)
            axes.set_xticks(range(len(scores)))
            axes.set_title(f"tile {number}: keys {ranges(range(old, len(seen)))}")
            axes.set_xlabel(
                f"m = {step.m:g}    earlier sums × {step.correction:.3g}\nl = {step.l:.4f}    o = {step.o:.4f}",
                fontsize=8.5,
                color=INK,
            )
            if not number:
                axes.set_ylabel("weight, 2^(score − m)")
            bare(axes)
        figure.legend(
            handles=[
                Patch(color=HUES[1], label="weights of this tile (the number is the score)"),
                Patch(color=HUES[0], label="weights of earlier tiles, as corrected since"),
            ],
            loc="outside lower left",
            ncols=2,
        )
    return figure


# ------------------------------------------------------------------------------------------------------ who reads what


def read_by(traced: Traced) -> dict[str, np.ndarray]:
    """For Q, K, V, and P if it passes through shared memory: [rows, chunks of 16 bytes, warps], whether a warp reads
    that chunk with `ldmatrix`. Chunks are named by where their copies took them from; those of P, which no copy brings,
    by where they lie in rows of 128 bytes.

    UserError if a chunk of shared memory is filled twice: trace one tile per buffer."""
    origin: dict[int, tuple[str, int]] = {}  # where a chunk landed -> its tensor, its number in it
    for name, place in traced.tensors.items():
        for source, targets in traced.copied():
            for address, target in zip(source.addresses.tolist(), targets.tolist()):
                if place.base <= address < place.base + place.size:
                    if target in origin:
                        raise UserError(f"{traced.label} fills a buffer twice: trace fewer keys")
                    origin[target] = (name, (address - place.base) // 16)
    reads = traced.requests(verb="ldmatrix")
    warps = 1 + max(r.warp for r in reads)
    own = [int(a) for r in reads for a in r.addresses if int(a) not in origin]
    first = min(own, default=0)
    chunks: dict[str, list[tuple[int, int, int]]] = {}
    for request in reads:
        for address in request.addresses.tolist():
            if address in origin:
                name, number = origin[address]
                row, chunk = divmod(number, _chunks(traced, name))
            else:
                name = "P"
                row, chunk = divmod((address - first) // 16, layout.LINE // 16)
            chunks.setdefault(name, []).append((row, chunk, request.warp))
    found = {}
    for name, places in chunks.items():
        rows, columns, readers = np.array(places).T
        found[name] = np.zeros((rows.max() + 1, columns.max() + 1, warps), bool)
        found[name][rows, columns, readers] = True
    return found


def readers(*traced: Traced) -> Picture:
    """One line of panels per kernel: which warps read which part of Q, K, P and V from shared memory, and which warp
    stores which part of O."""
    names = ("Q", "K", "P", "V", "O")
    found = [read_by(one) for one in traced]
    takeaways = []
    for one, parts in zip(traced, found):
        times = {name: parts[name].sum(-1).mean() for name in names if name in parts}
        takeaways.append(f"{_name(one)}: " + ", ".join(f"{name} {count:g}" for name, count in times.items()))
    with styled():
        figure = picture(11, 2.55 * len(traced) + 0.2, f"Warps that read each element. {'; '.join(takeaways)}")
        panels = figure.subplots(len(traced), len(names), squeeze=False)
        for line, one, parts in zip(panels, traced, found):
            stored = _stored(one)
            for axes, name in zip(line, names):
                by = stored if name == "O" else parts.get(name)
                if by is None:
                    axes.set_axis_off()
                    axes.text(0.5, 0.5, f"{name} stays\nin registers", ha="center", va="center", color=INK,
                              transform=axes.transAxes, fontsize=10)  # fmt: skip
                    continue
                _owners(axes, by)
                verb = "stored" if name == "O" else "read"
                warps = f"{by.sum(-1).max()} warps" if by.sum(-1).max() > 1 else "one warp"
                axes.set_title(f"{name}: each {verb} by {warps}")
                rows, columns = {"Q": ("query", "column"), "P": ("query", "key"), "O": ("query", "column")}.get(
                    name, ("key", "column")
                )
                axes.set_xlabel(columns, labelpad=1)
                axes.set_ylabel(rows if name != "Q" else f"{_name(one)}\n\n{rows}", labelpad=1)
        warps = max(by.shape[-1] for parts in found for by in parts.values())
        handles = [Patch(color=HUES[n], label=f"warp {n}") for n in range(warps)]
        handles.append(Patch(color=SHARED_BY_WARPS, label="all of them"))
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))
    return figure


def _name(traced: Traced) -> str:
    return traced.label.split()[0]


def _chunks(traced: Traced, name: str) -> int:
    """Of 16 bytes, in a row of a tensor of 16-bit elements."""
    tensor = traced.tensors[name].array
    assert tensor is not None, "memory of a module's own has no tensor"
    return int(tensor.shape[-1]) * 2 // 16


def _stored(traced: Traced) -> np.ndarray:
    """[rows, chunks, warps] of O: which warp stores it."""
    place = traced.tensors["O"]
    width = _chunks(traced, "O")
    stores = traced.requests("O", verb="store")
    chunk = np.concatenate([(r.addresses - place.base) // 16 for r in stores])
    warp = np.concatenate([np.full(len(r.addresses), r.warp) for r in stores])
    rows, columns = np.divmod(chunk, width)
    found = np.zeros((rows.max() + 1, width, warp.max() + 1), bool)
    found[rows, columns, warp] = True
    return found


def _owners(axes: Axes, by: np.ndarray) -> None:
    """A picture element per chunk, in the hue of the warp, grey if there are several."""
    rows, chunks, _ = by.shape
    image = np.ones((rows, chunks, 3))
    for row in range(rows):
        for chunk in range(chunks):
            mine = np.flatnonzero(by[row, chunk])
            if len(mine):
                colour = HUES[mine[0]] if len(mine) == 1 else SHARED_BY_WARPS
                image[row, chunk] = matplotlib.colors.to_rgb(colour)
    columns = chunks * 8
    axes.imshow(image, extent=(0, columns, rows, 0), interpolation="nearest", aspect="auto")
    axes.set_xticks(np.arange(0, columns + 1, 32))
    axes.set_yticks(np.arange(0, rows + 1, 16))
    axes.grid(color=GRID, linewidth=0.3)
    bare(axes)


# -------------------------------------------------------------------------------------------------- what a tile costs

QUERIES, KEYS = 16, 64  # what a cost is for: one row of mma tiles, against one tile of keys
SCHEDULERS = 4  # of an SM: each runs its own warps, all share the shared memory

# What an instruction of the main loop is for, by the beginning of its text. A score becomes a weight by a product with
# the scale, which all lanes share (a uniform register or a constant), a difference and a power of two.
PURPOSES = (
    ("Q · Kᵀ, P · V", r"HMMA"),
    ("fragments from shared memory", r"LDSM"),
    ("copies", r"LDGSTS|LDGDEPBAR|DEPBAR"),
    ("maxima", r"V?[FH]MNMX|FSETP|SHFL|VOTE|ISETP\.GT\.U32"),  # of scores, or of weights: compared as their bits are
    ("exponentials", r"MUFU|FFMA|FMUL.* (UR|c\[)|FADD.* -"),
    ("sums", r"FADD"),
    ("correction of O", r"FMUL"),
    ("rounding of P", r"F2FP"),
    ("P and maxima through shared memory", r"STS|LDS"),
    ("addresses, loop, barriers", r""),
)
# What an SM does per clock, by the keys of a ceiling run, and for how many threads an instruction needs it.
PIPES = {
    "tensor cores": ("mma.sync fp16", r"HMMA", 2 * 16 * 8 * 16),
    "exp2 (XU)": ("exp2", r"MUFU", 32),
    "FMA pipe": ("FMA fp32", r"FFMA|FADD|FMUL|IMAD", 64),
    "ALU pipe": ("ALU", r"FMNMX|VHMNMX|FSETP|LOP3|IADD3|VIADD|SHF|LEA|ISETP|SEL|FSEL|F2FP|PRMT|PLOP3|MOV", 32),
}
SHARED, ISSUE = "shared memory", "issue slots"
RESOURCES = ("tensor cores", SHARED, "exp2 (XU)", "FMA pipe", "ALU pipe", ISSUE)
WAVEFRONTS = {"LDSM": 4, "LDGSTS": 4, "STS": 1, "LDS": 2}  # of a warp instruction, as these kernels have them


@dataclass(frozen=True)
class Cost:
    """What 16 queries take against 64 keys, in clocks of one of the SM's four schedulers while the other three do the
    same: clocks[resource][purpose]."""

    clocks: Mapping[str, Mapping[str, float]]
    instructions: Mapping[str, int]  # of the machine code, in the main loop, by purpose

    def of(self, resource: str) -> float:
        return sum(self.clocks[resource].values())


def purpose(instruction: Instruction) -> str:
    """What an instruction is for; one that never executes (predicated off) only fills its slot."""
    if instruction.text.startswith("@!PT"):
        return PURPOSES[-1][0]
    text = re.sub(r"^@!?U?P\w+\s+", "", instruction.text)
    return next(name for name, pattern in PURPOSES if re.match(pattern, text))


def cost(
    kernel: Kernel, per_clock: Mapping[str, float], arch: str | Arch = "9.0", function: str = "", seldom: bool = True
) -> Cost:
    """From the machine code of the main loop, at these rates: operations per clock and SM, by the keys of a ceiling run
    ("mma.sync fp16", "exp2", "FMA fp32", "ALU", in bytes "ldmatrix" and "ldmatrix + cp.async"). Copies cost shared
    memory only where the last of these is no more than the one before it: there, copies and loads take turns.

    Instructions after a branch within the loop are counted as if executed; `seldom=False`: except those that `loop`
    leaves out."""
    body = loop(kernel, arch, function, seldom)
    tensor = sum(i.opcode.startswith("HMMA") for i in body)
    # Rows of mma tiles in the loop; the few sums by tensor instructions are not a further row.
    share = 1 / round(tensor * PIPES["tensor cores"][2] / (4 * QUERIES * KEYS * kernel.variants["HEAD_DIM"]))
    turns = per_clock["ldmatrix + cp.async"] < 1.02 * per_clock["ldmatrix"]
    clocks: dict[str, dict[str, float]] = {name: {} for name in RESOURCES}
    for i in body:
        what = purpose(i)

        def add(resource: str, amount: float) -> None:
            clocks[resource][what] = clocks[resource].get(what, 0.0) + amount * share  # noqa: B023

        add(ISSUE, 1)
        for name, (key, pattern, each) in PIPES.items():
            if re.match(pattern, i.opcode):
                add(name, each * SCHEDULERS / per_clock[key])
        free = i.text.startswith("@!PT") or (i.opcode.startswith("LDGSTS") and not turns)
        wavefronts = 0 if free else WAVEFRONTS.get(i.opcode.split(".")[0], 0)
        if wavefronts:
            add(SHARED, wavefronts * layout.LINE * SCHEDULERS / per_clock["ldmatrix"])
    counted = {name: sum(purpose(i) == name for i in body) for name, _ in PURPOSES}
    return Cost(clocks, {name: round(number * share) for name, number in counted.items() if number})


def loop(kernel: Kernel, arch: str | Arch = "9.0", function: str = "", seldom: bool = True) -> list[Instruction]:
    """The main loop of the first instance with `function` in its (mangled) name, in machine code.

    `seldom=False`: without what a warp jumps over unless one of its lanes votes for it, as for new maxima. UserError if
    there is no such instance."""
    functions = sass.functions(kernel.source, kernel.defines, kernel.stage.target(arch))
    found = [code for name, code in functions.items() if function in name]
    if not found:
        raise UserError(f"{kernel.label} has the functions {', '.join(functions)}, none with '{function}'")
    body = sass.main_loop(found[0])
    if seldom:
        return body
    kept: list[Instruction] = []
    voted = ""  # the predicate that the last vote set
    resumed = 0  # the address after what is jumped over
    for i in body:
        if i.address < resumed:
            continue
        vote, over = re.match(r"VOTE\S* (P\d)", i.text), re.match(r"@!(P\d) BRA\b.*\b0x([0-9a-f]+)", i.text)
        if over and over[1] == voted:
            resumed, voted = int(over[2], 16), ""  # the predicate may serve another jump later
        if vote:
            voted = vote[1]
        kept.append(i)
    return kept


COLOURS = dict(zip((name for name, _ in PURPOSES), (FREE, HUES[0], HUES[5], HUES[2], CONFLICT, HUES[4], HUES[3],
                                                    HUES[7], "#BB9955", "#CCCCCC")))  # fmt: skip


def costs(of: Mapping[str, Cost]) -> Picture:
    """What a tile asks of each resource, kernel by kernel: the longest bar is what binds if all else hides."""
    takeaway = "Needed longest: " + ", ".join(
        f"{name}: {resource}, {clocks:,.0f} clocks"
        for name, (resource, clocks) in ((name, hidden(each)) for name, each in of.items())
    )
    with styled():
        figure = picture(11, 0.75 + 0.27 * len(RESOURCES) * len(of) + 0.32 * len(of), takeaway)
        panels = figure.subplots(len(of), 1, sharex=True, squeeze=False)[:, 0]
        most = max(each.of(resource) for each in of.values() for resource in RESOURCES)
        for axes, (name, each) in zip(panels, of.items()):
            for y, resource in enumerate(RESOURCES):
                left = 0.0
                for what, _ in PURPOSES:
                    width = each.clocks[resource].get(what, 0.0)
                    axes.barh(y, width, left=left, color=COLOURS[what], height=0.78)
                    left += width
                axes.text(left, y, f" {left:,.0f}", va="center_baseline", fontsize=8, color=INK)
            axes.set_yticks(range(len(RESOURCES)), RESOURCES)
            axes.set_ylim(len(RESOURCES) - 0.5, -0.5)
            axes.set_xlim(0, 1.08 * most)
            axes.set_title(name)
            bare(axes)
        panels[-1].set_xlabel(
            f"clocks for {QUERIES} queries × {KEYS} keys on each of the {SCHEDULERS} schedulers of an SM"
        )
        used = [
            what for what, _ in PURPOSES if any(what in found for each in of.values() for found in each.clocks.values())
        ]
        handles = [Patch(color=COLOURS[what], label=what) for what in used]
        figure.legend(handles=handles, loc="outside lower left", ncols=5)
    return figure


def hidden(each: Cost) -> tuple[str, float]:
    """(the resource that is needed longest, its clocks): the least that a tile can take."""
    name = max(RESOURCES, key=each.of)
    return name, each.of(name)
