"""Hopper's machinery: descriptors, bytes of an mbarrier, setmaxnreg, clusters, split K."""

from __future__ import annotations

import random
from collections.abc import Sequence

from common.figures.draw import plural
from common.practice.drills.question import Question, drill

ELEMENTS = {"fp16": 2, "bf16": 2, "fp32": 4, "e4m3": 1}  # bytes
DEPTH = 32  # bytes of K that a wgmma takes
ROWS = 8  # of a pattern of the swizzle
REGISTERS = 1 << 16  # of an SM
LEAST, MOST_REGISTERS, UNIT = 24, 240, 8  # of setmaxnreg, as these questions have it


def step_of(name: str, swizzled: int, rows: int, depth: int, transposed: bool, step: int) -> tuple[int, int, int]:
    """What the descriptor of the n-th wgmma of a tile has in its fields, in bytes: start, leading, stride.

    The tile begins at 0, in boxes whose rows are as long as the swizzle. Rows of the operand lie along K: `rows` of
    them, and `depth` is within a box. `transposed`: rows of a box lie along M or N, and a box has `depth` of them."""
    if not transposed:
        return step * DEPTH, 16, ROWS * swizzled
    return step * DEPTH // ELEMENTS[name] * swizzled, depth * swizzled, ROWS * swizzled


@drill("descriptors", "what a wgmma descriptor says, and what lies under a swizzle", "senior")
def _descriptors(chance: random.Random) -> Question:
    if chance.random() < 0.5:
        return _under_swizzle(chance)
    transposed = chance.random() < 0.5
    name = chance.choice(["fp16", "bf16"] if transposed else ["fp16", "bf16", "e4m3"])
    swizzled = 128 if transposed else chance.choice([64, 128, 128])
    size = ELEMENTS[name]
    rows, depth = chance.choice([64, 128, 192, 256]), chance.choice([32, 64, 128]) if transposed else swizzled // size
    each = DEPTH // size
    step = chance.randrange(1, depth // each)
    start, leading, stride = step_of(name, swizzled, rows, depth, transposed, step)
    about = f"under the {swizzled}-byte swizzle; the tile begins at byte 0 of shared memory."
    if transposed:
        text = (
            f"B, {depth} × {rows} (k × n) in {name}, n contiguous, lies in boxes of {depth} rows × {swizzled // size} "
            f"columns, one after the other, {about} The wgmma multiplies {each} k at a time, with B transposed by its "
            f"descriptor. What are start address, leading and stride offset, in bytes, of the product of k = "
            f"{step * each} to {step * each + each - 1}, for all {rows} columns?"
        )
        why = (
            f"Each k is a row of {swizzled} bytes: {step * each} · {swizzled} = {start:,}. Leading: from a box of "
            f"columns to the next, {depth} · {swizzled} = {leading:,}. Stride: from 8 rows to the next 8, {stride:,}."
        )
        return Question(text, {"start": start, "leading": leading, "stride": stride}, why)
    text = (
        f"A, {rows} × {depth} in {name}, k contiguous: rows of {swizzled} bytes, {about} The wgmma multiplies {each} k "
        f"at a time. What are start address and stride offset, in bytes, in the descriptor of the product of k = "
        f"{step * each} to {step * each + each - 1}?"
    )
    why = (
        f"k is within a row: {step} · {DEPTH} bytes on, before the swizzle, which the hardware applies to the address. "
        f"Stride: from 8 rows to the next 8, 8 · {swizzled} = {stride:,}. The leading offset is not used."
    )
    return Question(text, {"start": start, "stride": stride}, why)


def _under_swizzle(chance: random.Random) -> Question:
    name = chance.choice(["fp16", "fp16", "fp32", "e4m3"])
    size = ELEMENTS[name]
    row, chunk, within = chance.randrange(1, 64), chance.randrange(8), chance.randrange(16 // size) * size
    offset = row * 128 + chunk * 16 + within
    column = ((chunk ^ row % 8) * 16 + within) // size
    return Question(
        f"TMA has written a box of 64 rows × {128 // size} columns of {name} with the 128-byte swizzle to a multiple "
        f"of 1,024 bytes. Which row and column lie {offset:,} bytes from the beginning of the tile?",
        {"row": row, "column": column},
        f"{offset:,} = {row} · 128 + {chunk} · 16 + {within}: row {row}, chunk {chunk} as it lies, which is chunk "
        f"{chunk} ^ {row % 8} = {chunk ^ row % 8} of the row; {chunk ^ row % 8} · {16 // size} + {within // size} = "
        f"{column}.",
    )


@drill("expect-tx", "how many bytes an mbarrier must expect", "mid")
def _expect(chance: random.Random) -> Question:
    name = chance.choice(["fp16", "fp16", "bf16", "fp32", "e4m3"])
    size = ELEMENTS[name]
    columns, rows = 128 // size, chance.choice([16, 32, 64, 128, 192, 256])
    count = chance.choice([1, 1, 2, 4])
    width, height = chance.randrange(4, 40) * 32, chance.randrange(70, 900)
    edge = chance.choice(["inside", "right", "below", "corner", "far"])
    x = chance.randrange(max(1, width // columns - 1)) * columns
    y = chance.randrange(2) * rows
    if edge in ("right", "corner"):
        x = max(0, width - columns // 2)
    if edge in ("below", "corner"):
        y = height - chance.randrange(1, min(rows, height))
    if edge == "far":
        x = -(-width // columns) * columns
    if edge == "inside":
        height = max(height, y + rows)
    copies = "A thread copies one box" if count == 1 else f"A thread copies {count} boxes, to {count} places,"
    each = rows * columns * size
    return Question(
        f"A tensor map of {height} × {width} in {name}, boxes of {rows} rows × {columns} columns. {copies} from row "
        f"{y}, column {x} on, by TMA, all on one mbarrier. How many bytes must expect_tx announce?",
        {"bytes": each * count},
        f"{rows} · {columns} · {size} = {each:,} bytes a box"
        + (f", {count} of them" if count > 1 else "")
        + ". What lies beyond the tensor is filled in, and counts like the rest: the whole box.",
    )


def consumers_registers(launched: int, producers: int, consumers: int, kept: int) -> tuple[int, int]:
    """Registers that each thread of the consumers can have, and how many of the block's are left over."""
    warpgroup = 128
    free = launched * warpgroup * (producers + consumers) - kept * warpgroup * producers
    each = min(free // (warpgroup * consumers) // UNIT * UNIT, MOST_REGISTERS)
    return each, free - each * warpgroup * consumers


@drill("setmaxnreg", "how many registers consumers can take", "mid")
def _setmaxnreg(chance: random.Random) -> Question:
    while True:
        producers, consumers = chance.choice([1, 1, 1, 2]), chance.randrange(1, 4)
        kept = chance.choice(range(LEAST, 64 + 1, UNIT))
        threads = 128 * (producers + consumers)
        most = min(REGISTERS // threads // UNIT * UNIT, 168)
        launched = chance.choice(range(most - 40, most + 1, UNIT))
        each, left = consumers_registers(launched, producers, consumers, kept)
        if kept < launched < each and (each < MOST_REGISTERS or chance.random() < 0.2):
            break
    blocks = plural(producers, "producer warpgroup") + " and " + plural(consumers, "consumer warpgroup")
    return Question(
        f"A block of {blocks}; each thread was launched with {launched} registers. The producers execute "
        f"setmaxnreg.dec {kept}. What is the largest number, a multiple of 8 and at most {MOST_REGISTERS}, that all "
        f"consumers can take with setmaxnreg.inc, and how many of the block's registers are left over then?",
        {"registers": each, "left": left},
        f"The block has {launched} · {threads} = {launched * threads:,}, no matter how many the SM has. Less {kept} · "
        f"{128 * producers} for the producers that is {launched * threads - kept * 128 * producers:,}, for "
        f"{128 * consumers} threads {(launched * threads - kept * 128 * producers) / (128 * consumers):.1f} each; down "
        f"to a multiple of 8, at most {MOST_REGISTERS}: {each}.",
    )


def clusters_at_once(multiprocessors: Sequence[int], per_sm: int, size: int) -> int:
    """How many clusters of that many blocks run at a time: each within a GPC, of so many multiprocessors."""
    return sum(each * per_sm // size for each in multiprocessors)


@drill("clusters", "how many clusters fit on GPCs", "senior")
def _clusters(chance: random.Random) -> Question:
    gpcs, per_sm, size = chance.randrange(5, 9), chance.choice([1, 1, 1, 2]), chance.choice([2, 4, 4, 6, 8])
    counts = sorted((chance.choice([14, 16, 16, 16, 17, 18, 18]) for _ in range(gpcs)), reverse=True)
    fit = clusters_at_once(counts, per_sm, size)
    free = sum(counts) * per_sm - fit * size
    listed = ", ".join(map(str, counts[:-1])) + f" and {counts[-1]}"
    most = "one block" if per_sm == 1 else f"{per_sm} blocks"
    return Question(
        f"A GPU has GPCs with {listed} SMs, and an SM holds {most} of a kernel. The blocks of a cluster run in one "
        f"GPC. How many clusters of {size} blocks run at a time, and for how many blocks is there room left that no "
        "cluster can use?",
        {"clusters": fit, "left": free},
        " + ".join(f"{each * per_sm // size}" for each in counts)
        + f" = {fit}: each GPC by itself, rounded down; {sum(counts) * per_sm} - {fit} · {size} = {free}. "
        "(cudaOccupancyMaxActiveClusters tells a GPU's own number.)",
    )


def share(slices: int, splits: int, rank: int) -> tuple[int, int]:
    """The first slice of a block that shares them with others, and how many it has: the library's rule."""
    first = slices * rank // splits
    return first, slices * (rank + 1) // splits - first


@drill("split-k", "which slices of a tile a block has", "mid")
def _split_k(chance: random.Random) -> Question:
    splits, depth = chance.choice([2, 3, 4, 6, 8]), chance.choice([32, 64, 64, 128])
    k, rank = 8 * chance.randrange(splits * depth // 8, 1025), chance.randrange(splits)
    slices = -(-k // depth)
    first, count = share(slices, splits, rank)
    return Question(
        f"K = {k}, slices of {depth}; {splits} blocks share the slices of a tile: block r has those from ⌊n · r / "
        f"{splits}⌋ to ⌊n · (r + 1) / {splits}⌋ - 1 of all n. How many slices are there, which is the first of block "
        f"{rank}, and how many has it?",
        {"slices": slices, "first": first, "count": count},
        f"n = ⌈{k} / {depth}⌉ = {slices}, the last one filled up with zeros if it is not whole; {slices} · {rank} / "
        f"{splits} = {slices * rank / splits:.2f}, {slices} · {rank + 1} / {splits} = "
        f"{slices * (rank + 1) / splits:.2f}.",
    )
