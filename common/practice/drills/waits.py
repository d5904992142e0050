"""Loops and waits: online softmax, overlap, groups of copies, parities of mbarriers."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np

from common.figures import attention_tiles
from common.practice.drills.question import Question, drill


@drill("softmax", "the next m and l of an online softmax", "mid")
def _softmax(chance: random.Random) -> Question:
    tile, tiles = chance.choice([2, 4]), chance.choice([2, 3])
    scores = np.array([chance.randrange(-3, 6) for _ in range(tile * tiles)])
    steps = attention_tiles.online(scores, np.zeros(len(scores)), tile)
    before, after = steps[-2], steps[-1]
    listed = ", ".join(map(str, scores[-tile:].tolist()))
    return Question(
        f"An online softmax in base 2 (weights are 2^(score - m)) holds m = {before.m:g} and l = {before.l:.10g}. The "
        f"next tile has the scores {listed}. What are m and l then?",
        {"m": Fraction(after.m), "l": Fraction(after.l)},
        f"m = max({before.m:g}, {listed}) = {after.m:g}; l = {before.l:.10g} · 2^({before.m:g} - {after.m:g}) + "
        + " + ".join(f"{weight:.10g}" for weight in after.weights) + f" = {after.l:.10g}.",
        figure=lambda: attention_tiles.online_steps(scores, np.ones(len(scores)), tile),
    )  # fmt: skip


EXPONENTIALS = 16  # of an SM per clock


def tile_clocks(keys: int, head_dim: int, flops: int) -> tuple[int, int]:
    """Clocks of an SM for 64 queries and so many keys: of the products at so many FLOP each, of the exponentials."""
    return 2 * 2 * 64 * keys * head_dim // flops, 64 * keys // EXPONENTIALS


@drill("overlap", "what an attention tile takes if products hide its softmax, and if not", "senior")
def _overlap(chance: random.Random) -> Question:
    name, flops = chance.choice([("fp16", 4096), ("fp16", 4096), ("e4m3", 8192)])
    keys, head_dim = chance.choice([64, 96, 128, 160, 192]), chance.choice([64, 128, 192, 256])
    count = chance.choice([2, 3])
    products, weights = tile_clocks(keys, head_dim, flops)
    alone, least = count * (products + weights), count * max(products, weights)
    binds = "both bind" if products == weights else "products bind" if products > weights else "exponentials bind"
    return Question(
        f"Attention in {name}, D = {head_dim}: a block of {count} warpgroups with 64 queries each, alone on its SM, "
        f"takes a tile of {keys} keys. An SM multiplies {flops:,} FLOP and computes {EXPONENTIALS} exponentials per "
        "clock; count nothing else. How many clocks does the tile take the block if one thing is done at a time, and "
        "how many at least if the two units work at the same time?",
        {"one by one": alone, "at least": least},
        f"Products of a warpgroup: 4 · 64 · {keys} · {head_dim} FLOP / {flops:,} = {products:,} clocks; exponentials: "
        f"64 · {keys} / {EXPONENTIALS} = {weights:,}. One by one: {count} · ({products:,} + {weights:,}) = {alone:,}. "
        f"With both at work: {count} · {max(products, weights):,} = {least:,}; {binds}.",
    )


@drill("groups", "what a cp.async.wait_group lets pass", "mid")
def _groups(chance: random.Random) -> Question:
    stages = chance.randrange(2, 6)
    turn = chance.randrange(1, 12)
    behind = chance.random() < 0.5  # the next copies are committed after the wait, or before it
    committed = stages - 1 + turn + (0 if behind else 1)
    most = committed - turn - 1
    return Question(
        f"A ring of {stages} buffers. The prologue copies slices 0 to {stages - 2} and commits a group for each; every "
        f"turn of the loop commits one more, {'after' if behind else 'before'} its wait. Turn {turn} multiplies slice "
        f"{turn}. What is the largest N for which `cp.async.wait_group N` is enough, and how many groups has the "
        f"thread committed by then?",
        {"N": most, "committed": committed},
        f"{committed} groups, slices 0 to {committed - 1}; slice {turn} is there once at most the {most} newest are "
        "unfinished. The wait speaks for the thread alone: a barrier must follow.",
    )


def full_wait(slice_: int, stages: int) -> tuple[int, int]:
    """The stage of a slice, and the parity with which a consumer waits for its bytes: that of the n-th phase."""
    return slice_ % stages, slice_ // stages % 2


def empty_wait(slice_: int, stages: int) -> tuple[int, int]:
    """The stage of a slice, and the parity with which the producer waits until it may overwrite what was there: that
    of the phase before. On a fresh mbarrier a wait for parity 1 passes at once."""
    return slice_ % stages, slice_ // stages % 2 ^ 1


@drill("parity", "which stage and parity a wait on an mbarrier needs", "senior")
def _parity(chance: random.Random) -> Question:
    stages, slice_ = chance.randrange(2, 8), chance.randrange(0, 40)
    producer = chance.random() < 0.5
    stage, parity = (empty_wait if producer else full_wait)(slice_, stages)
    who = "the producer wait on `empty`, before it copies" if producer else "a consumer wait on `full`, before it reads"
    n = slice_ // stages
    before = "nothing: a fresh mbarrier passes a wait for parity 1" if not n else f"phase {n - 1} of `empty`"
    return Question(
        f"A ring of {stages} stages, each with an mbarrier `full` and an mbarrier `empty`, fresh after mbarrier.init. "
        f"On which stage, and with which parity, must {who} slice {slice_}?",
        {"stage": stage, "parity": parity},
        f"Slice {slice_} is number {n} in its stage. "
        + (f"The producer waits for {before}, parity {parity}." if producer else f"Phase {n}, parity {n} mod 2."),
    )
