"""What fits, what binds: occupancy, waves, warps in flight, FLOP and bytes."""

from __future__ import annotations

import random
from fractions import Fraction

from common import problem
from common.figures import layout, machine
from common.figures.draw import plural
from common.practice.drills.question import Question, drill
from cudaemu import hardware


@drill("occupancy", "how many blocks an SM holds", "mid")
def _occupancy(chance: random.Random) -> Question:
    gpu = chance.choice(hardware.GPUS)
    while True:
        threads = chance.choice([64, 96, 128, 160, 192, 256, 288, 384, 512, 1024])
        registers = chance.choice([24, 32, 40, 48, 64, 72, 80, 96, 100, 112, 128, 150, 168, 200, 232, 255])
        shared = chance.choice([0, 0, 8, 16, 24, 32, 40, 48, 64, 72, 96, 100, 113, 160, 200]) * 1024
        found = hardware.occupancy(gpu, threads, registers, shared)
        if found.blocks and shared <= gpu.shared_per_block:
            break
    each = {
        "registers": hardware.occupancy(gpu, threads, registers, 0).blocks,
        "shared memory": hardware.occupancy(gpu, threads, None, shared).blocks,
        f"{gpu.warps} warps and {gpu.blocks} blocks": hardware.occupancy(gpu, threads, None, 0).blocks,
    }
    return Question(
        f"Compute capability {gpu.arch} ({gpu.devices}): 65,536 registers, {gpu.shared_kb} KB of shared memory, "
        f"{gpu.warps} warps and {gpu.blocks} blocks per SM. Blocks of {threads} threads, {registers} registers per "
        f"thread, {shared // 1024} KB of shared memory per block. How many blocks does an SM hold?",
        {"blocks": found.blocks},
        "A warp's registers come in units of 256, on its quarter of the SM; each block takes 1 KB of shared memory "
        "more. Room by " + ", ".join(f"{name}: {count}" for name, count in each.items())
        + f". {found.warps} of {gpu.warps} warps; first to end: {', '.join(found.limiters)}.",
        figure=lambda: machine.residents(gpu, threads, [shared], {"here": registers}),
    )  # fmt: skip


@drill("waves", "waves of blocks, and how full the last one is", "mid")
def _waves(chance: random.Random) -> Question:
    gpu, per_sm = chance.choice(hardware.GPUS), chance.choice([1, 1, 2, 2, 3, 4])
    tile, size = chance.choice([(128, 128), (128, 256), (256, 128), (64, 128)]), 1024 * chance.randrange(1, 9)
    blocks, at_once = (size // tile[0]) * (size // tile[1]), gpu.sms * per_sm
    waves = -(-blocks // at_once)
    return Question(
        f"C of {size} × {size} in tiles of {tile[0]} × {tile[1]}, a block each; {gpu.sms} SMs hold {per_sm} each. "
        "All blocks take the same time. How many waves is that, and how many blocks has the last one?",
        {"waves": waves, "last": blocks - (waves - 1) * at_once},
        f"{blocks:,} blocks, {at_once:,} at a time: {blocks / at_once:.2f} waves take the time of {waves}, so "
        f"{blocks / at_once / waves:.0%} of it is used.",
    )


@drill("flight", "how many warps a latency needs in flight", "mid")
def _flight(chance: random.Random) -> Question:
    latency, rate = chance.choice([24, 32, 200, 280, 400, 660, 800]), chance.choice([12, 16, 20, 32, 40, 64, 128])
    width, each = chance.choice([4, 8, 16]), chance.choice([1, 1, 2, 4])
    flying = latency * rate
    warp = width * layout.WARP * each
    return Question(
        f"A level of memory has a latency of {latency} clocks and delivers {rate} bytes per clock and SM. Each warp "
        f"has {plural(each, 'load')} of {width} bytes per lane in flight. How many bytes must be in flight on an SM "
        "for the full rate, and how many warps is that at least?",
        {"bytes": flying, "warps": -(-flying // warp)},
        f"Little's law: {latency} · {rate} = {flying:,} bytes; a warp has {warp:,} in flight.",
    )


@drill("bounds", "FLOP, bytes, and which of them binds", "mid")
def _bounds(chance: random.Random) -> Question:
    peak, bandwidth = chance.choice([20, 60, 300, 600, 900]), chance.choice([1, 2, 3, 4])  # TFLOP/s, TB/s
    if chance.random() < 0.7:
        spec, axes = problem.load("gemm"), ([1, 8, 16, 64, 512, 1024, 4096], *[[512, 1024, 2048, 4096, 8192]] * 2)
        what = "C[M,N] = A[M,K]·B[K,N] with M = {}, N = {}, K = {}, all in fp16"
    else:
        spec, axes = problem.load("attention"), ([1, 4, 8], [8, 16, 32], [256, 1024, 4096], [64, 128])
        what = "Attention without a mask, fused, B = {}, H = {}, N = {}, D = {}, all in fp16"
    shape = tuple(chance.choice(sizes) for sizes in axes)
    flops, moved = spec.flops(shape, {}), spec.bytes(shape, "fp16", {})
    ridge = Fraction(peak, bandwidth)
    binds = "arithmetic" if Fraction(flops, moved) > ridge else "memory"
    times = flops / peak * 1e-6, moved / bandwidth * 1e-6  # microseconds
    return Question(
        f"{what.format(*shape)}, each input read and the output written once. A GPU does {peak} TFLOP/s and "
        f"moves {bandwidth} TB/s. How many million FLOP, how many million bytes, and which binds: arithmetic or "
        "memory? (1 % off is right.)",
        {"FLOP": Fraction(flops, 10**6), "bytes": Fraction(moved, 10**6), "bound": binds},
        f"{times[0]:,.3g} µs of arithmetic, {times[1]:,.3g} µs of memory; {flops / moved:,.3g} FLOP per byte, the "
        f"ridge is at {float(ridge):,.3g}.",
        near=True,
    )
