"""`practice diagnose`: what binds a kernel, from its counters alone, before seeing its code.

    python -m kernels practice diagnose                        ten cases in the terminal
    python -m kernels practice diagnose --seed 7 --sheet FILE.md     a sheet, and its key

Each case is a pair of recorded kernels of one run: the times prove that the change helps. Nothing here is typed in but
words and the counters that the emulator recomputes (a test does); times and what ncu said come from docs/results.
"""

from __future__ import annotations

import argparse
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import course, terminal
from common.figures.draw import plural
from common.practice.drills.asking import ask, whole
from common.practice.drills.question import COUNT, Question
from common.practice.drills.sheets import sheet
from common.results import runs
from common.results.runs import RESULTS
from cudaemu.errors import UserError

SUMMARY = "what binds a kernel, from its recorded counters; each answer is proved by a variant that was timed"
CAUSES = {  # what binds: what to change
    "sectors": "lanes that are neighbours read neighbours, 16 bytes each where possible",
    "reuse": "load each value less often: larger tiles, or a copy in shared memory",
    "registers": "more results per thread, so that each value read from shared memory is used more often",
    "units": "give the products to another unit: tensor cores instead of FMA",
    "conflicts": "other places in shared memory: padding, or XOR",
    "flight": "more loads under way at a time: several per thread, a deeper ring, copies that nobody waits for at once",
    "chain": "begin what the next step needs before this one is done",
    "barrier": "load what is needed behind a barrier before it, or meet fewer barriers: deeper slices",
    "occupancy": "fewer registers per thread, and more warps",
    "issue": "fewer instructions beside the products: addresses outside the loop, copies by TMA",
    "order": "blocks that run at the same time work on neighbouring tiles",
    "blocks": "smaller tiles, or a tile's sum split over several blocks, so that every SM has work",
    "tail": "tiles of another size, of which the last round is nearly full",
    "twice": "read the row once and keep it in registers",
    "phases": "let the softmax of one part run while the tensor cores multiply another",
}
WORDS = {
    "sectors": "a request of a warp touches too many sectors",
    "reuse": "the same values are fetched from L1 and L2 again and again",
    "registers": "reads of shared memory, too many for each product",
    "units": "the FMA units are as busy as they get",
    "conflicts": "lanes meet in the banks of shared memory",
    "flight": "too few bytes are under way from memory",
    "chain": "each step waits for the result of the one before",
    "barrier": "all warps wait at a barrier, and then for the first loads behind it",
    "occupancy": "registers leave room for too few warps to hide what they wait for",
    "issue": "instructions that do not multiply",
    "order": "L2 and memory: blocks that run together share little of what they read",
    "blocks": "too few blocks for the SMs",
    "tail": "of several rounds of blocks, the last one leaves many SMs without work",
    "twice": "memory's bandwidth, for bytes that were read before",
    "phases": "tensor cores stand still during the softmax",
}
NEAR = ({"barrier", "chain"}, {"blocks", "tail"}, {"occupancy", "registers"})  # too alike for one question
METRICS = (  # of a profile, those that a case shows
    *("registers per thread", "achieved occupancy", "issue slots busy", "FMA pipe busy", "tensor pipe busy"),
    *("shared-memory wavefronts, of peak", "L1 hit rate", "L2 hit rate", "device memory, of peak"),
)
STALLS = 3  # of the reasons to wait, the largest


@dataclass(frozen=True)
class Case:
    """One pair: `run` has `before` and `after` at `size`; `profile` has ncu's figures of `before`.

    `about` says what a reader is told besides. `counters`: the emulator's, of `kernel` at `shape`, before, after."""

    cause: str
    run: str
    size: str
    before: str
    after: str
    about: str = ""
    profile: str = ""
    kernel: tuple[str, Mapping[str, int], Mapping[str, int]] | None = None  # stage, variants before, and after
    shape: tuple[int, ...] = (256, 256, 256)
    counters: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    more: str = ""  # what else differs

    @property
    def milliseconds(self) -> tuple[float, float]:
        """Recorded medians, before and after."""
        found = _rows(self.run)
        before, after = (_row(found, label, self.size)["ms"]["median"] for label in (self.before, self.after))
        return before, after

    @property
    def factor(self) -> float:
        before, after = self.milliseconds
        return before / after


def _rows(run: str) -> list[runs.Row]:
    rows: list[runs.Row] = runs.load(RESULTS / f"{run}.json")["rows"]
    return rows


def _row(rows: list[runs.Row], label: str, size: str) -> runs.Row:
    return next(row for row in rows if row.get("label", row["name"]) == label and (not size or row["size"] == size))


GEMM, ATTENTION = "a matrix product in fp16", "attention forward in fp16, heads of 128"
TILES = "tiles of 128 × 256 for a block, 132 SMs"
FP16 = {name: f"{name} fp16" for name in course.names()}  # as rows of runs are called
_01, _02, _03, _04, _05, _06, _07, _08, _09, _10, _11, _12, _13, _14, _15, _16, *_HOPPER = FP16.values()
_H1, _H2, _H3, _H4, _H5, _H6, _H7, *_ = _HOPPER
_MATMUL = next(f"{name} fp16" for name in course.library() if name.endswith("matmul"))


def _banks(requests: int, before: int, after: int, conflicts: int) -> dict[str, tuple[int, int]]:
    """Counters of a case of bank conflicts."""
    return {
        "shared_load_requests": (requests, requests),
        "shared_load_wavefronts": (before, after),
        "shared_load_conflicts": (conflicts, 0),
    }


ROWS = "Blocks take the tiles of C row by row, over its whole width."
RING = "Asynchronous copies into a ring of two tiles: one is under way while one is multiplied. "

CASES = (
    Case("sectors", "variants-01", "4096", f"{_01} COALESCED=0", _01, GEMM,
         kernel=("01", {"COALESCED": 0}, {"COALESCED": 1}),
         counters={"global_load_requests": (1_048_576, 1_048_576), "global_load_sectors": (17_301_504, 1_572_864)}),
    Case("reuse", "one-barrier-02", "4096", _01, _02, GEMM, "profile-gemm"),
    Case("registers", "neighbours-03", "4096", _02, _03, GEMM, "profile-gemm", more="loads are 128 bits wide, too"),
    Case("units", "variants-04", "4096", _03, _04, GEMM, "profile-gemm"),
    Case("conflicts", "variants-06", "4096", f"{_06} PADDING=0", _06, GEMM,
         kernel=("06", {"PADDING": 0}, {"PADDING": 8}),
         counters=_banks(2048, 49152, 8192, 40960)),
    Case("conflicts", "variants-06", "4096", _05, _06, GEMM, "profile-gemm"),
    Case("conflicts", "variants-08", "4096", f"{_08} PADDING=0", _08, GEMM,
         kernel=("08", {"PADDING": 0}, {"PADDING": 8}),
         counters=_banks(2048, 49152, 8192, 40960)),
    Case("conflicts", "variants-09", "8192", f"{_09} SWIZZLE=0", _09, GEMM,
         kernel=("09", {"SWIZZLE": 0}, {"SWIZZLE": 1}),
         counters=_banks(2048, 49152, 8192, 40960)),
    Case("conflicts", "variants-10", "4096", f"{_10} SWIZZLE=0", _10, GEMM,
         kernel=("10", {"SWIZZLE": 0}, {"SWIZZLE": 1}),
         counters=_banks(2176, 52224, 8704, 43520)),
    Case("flight", "variants-08", "4096", _07, _08, GEMM, "profile-gemm"),
    Case("chain", "variants-10", "4096", _09, _10, GEMM, "profile-gemm",
         more="addresses are computed outside the loop; with PREFETCH=0, which has only that, it is 1.20 × of 09"),
    Case("barrier", "variants-10", "4096", f"{_10} PREFETCH=0", _10,
         f"{GEMM}. The machine code has 8 ldmatrix between the barrier and the next mma. "),
    Case("barrier", "steps-10", "4096", f"{_10} BLOCK_K=32 DOUBLE_BUFFER=0 SERPENTINE=0",
         f"{_10} DOUBLE_BUFFER=0 SERPENTINE=0",
         f"{GEMM}. Slices of 32 in depth, a ring of three; behind each barrier a warp loads its first fragments. ",
         more="three slices of 64 are twice as many bytes in flight; where fragments are loaded before the barrier "
              "(DOUBLE_BUFFER=1), the same change is worth 1.04 ×"),
    Case("flight", "variants-10", "4096", f"{_10} STAGES=2", _10, f"{GEMM}. {RING}"),
    Case("flight", "variants-h1", "4096", f"{_H1} STAGES=2", f"{_H1} STAGES=3", f"{GEMM}, by wgmma. {RING}"),
    Case("flight", "variants-h2", "4096", f"{_H2} STAGES=2", _H2, f"{GEMM}, by wgmma and TMA. {RING}"),
    Case("flight", "variants-h3", "4096", f"{_H3} STAGES=2", _H3, f"{GEMM}, by wgmma; one warp only copies. {RING}"),
    Case("order", "variants-h4", "8192", f"{_H4} GROUP_M=1", _H4, f"{GEMM}. {ROWS}"),
    Case("order", "variants-h2", "8192", f"{_H2} GROUP_M=1", _H2, f"{GEMM}. {ROWS}"),
    Case("order", "variants-h5", "2560", f"{_MATMUL} GROUP_M=1", _MATMUL, f"{GEMM}. {ROWS}"),
    Case("blocks", "tiles-11", "512", f"{_11} TILE_N=256", _11, f"{GEMM}: {TILES}. "),
    Case("blocks", "tiles-11", "1024", f"{_11} TILE_N=256", _11, f"{GEMM}: {TILES}. "),
    Case("blocks", "widths-h5", "1792", f"{_MATMUL} (trials/widths.patch)", _MATMUL,
         f"{GEMM}, by wgmma: C has 98 tiles of 128 × 256, 132 SMs. "),
    Case("tail", "widths-h5", "2560", f"{_MATMUL} (trials/widths.patch)", _MATMUL,
         f"{GEMM}, by wgmma: C has 200 tiles of 128 × 256, and 132 SMs take one at a time. ",
         more="the kernel chooses 378 tiles of 96 × 192: three rounds of 132, 95 % full, and not two, 76 % full"),
    Case("blocks", "uses-h5", "512x512x16384", _H4, _MATMUL,
         f"{GEMM}: C has 512 × 512 elements, K is 16,384; 132 SMs. ",
         more="the latter has clusters and other tiles as well"),
    Case("registers", "variants-15-128", "4096", f"{_15} WARP_Q=16", _15,
         f"{ATTENTION}. A warp has 16 queries, and reads all of K and V from shared memory for them. "),
    Case("registers", "tried-16-128", "16384", f"{_16} MAX_WARP_Q=16", _16,
         f"{ATTENTION}. A warp has 16 queries, and reads all of K and V from shared memory for them. "),
    Case("registers", "variants-15-128", "4096", _13, _15, ATTENTION, "profile-attention-128",
         more="the rescaling of O is skipped where the maximum stays; alone that is the case of LAZY_RESCALE"),
    Case("issue", "variants-15-128", "4096", f"{_15} LAZY_RESCALE=0", _15,
         f"{ATTENTION}. O is multiplied by a factor for each tile of keys, also where that is 1. "),
    Case("issue", "variants-h7-128", "16384", f"{_H7} LAZY_RESCALE=0", _H7,
         f"{ATTENTION}, by wgmma. O is multiplied by a factor for each tile of keys, also where that is 1. "),
    Case("issue", "variants-h2", "4096", _H1, _H2, f"{GEMM}, by wgmma", "profile-hopper",
         more="the ring's barriers are mbarriers"),
    Case("occupancy", "variants-h7-64", "16384", f"{_H7} HEAD_DIM=64 MAX_WARPGROUPS=2", f"{_H7} HEAD_DIM=64",
         "attention forward in fp16, heads of 64, by wgmma. A block for each SM: two warpgroups multiply and weigh, "
         "with 240 registers a thread. ",
         more="three warpgroups have 160 registers; and a block has 192 queries, not 128, for which it copies K and V"),
    Case("phases", "variants-h7-128", "4096", _H6, _H7, f"{ATTENTION}, by wgmma", "profile-hopper-attention-128",
         more="three warpgroups instead of two, and persistent blocks"),
    Case("phases", "variants-h7-128", "4096", f"{_H7} PING_PONG=0", _H7,
         f"{ATTENTION}, by wgmma. Three warpgroups, which multiply and compute exponentials when they like. "),
    Case("phases", "variants-h7-128", "16384", f"{_H7} SCORES_AHEAD=0", _H7,
         f"{ATTENTION}, by wgmma. A warpgroup asks for the next scores after the softmax of these. "),
    Case("flight", "first-kernels", "", "reduce_shuffle", "reduce_bandwidth",
         "The sum of 134 million floats, a grid-stride loop, 4 bytes per lane, one load of a thread at a time. "),
    Case("twice", "first-kernels", "", "softmax", "softmax_registers",
         "Softmax of 16,384 rows of 4,096 floats, a warp per row: one pass for maximum and sum, one for the result. "),
    Case("twice", "first-kernels", "", "layer_norm", "layer_norm_registers",
         "Layer normalisation of 16,384 rows of 4,096 floats, a block per row: mean, squared distances, result. "),
    Case("chain", "first-kernels", "", "scan_look_back", "scan_tiles",
         "Prefix sums of 67 million ints in one launch: a block looks back at the blocks before it, one at a time. ",
         more="32 times as many elements per block"),
)  # fmt: skip


def evidence(case: Case) -> str:
    """What a reader is shown: the time, what ncu said or the emulator counts, and no code."""
    before, _ = case.milliseconds
    row = _row(_rows(case.run), case.before, case.size)
    gpu = runs.load(RESULTS / f"{case.run}.json")["gpu"]
    about = case.about[0].upper() + case.about[1:].rstrip(". ")
    lines = [f"{about}. Size {row['size']}: {before * 1000:,.0f} µs on {gpu}."]
    if case.profile:
        metrics: Mapping[str, Any] = _row(_rows(case.profile), case.before, case.size)["metrics"]
        lines += [f"  {name}: {metrics[name]:,g}" + ("" if "registers" in name else " %") for name in METRICS]
        stalls = sorted(((value, name) for name, value in metrics.items() if name.startswith("stall: ")), reverse=True)
        lines.append("  warps wait, clocks per instruction:")
        lines += [f"    {name.removeprefix('stall: ')}: {value:g}" for value, name in stalls[:STALLS]]
    if case.counters:
        lines.append(f"  counted at {'x'.join(map(str, case.shape))}:")
        lines += [f"    {name.replace('_', ' ')}: {counts[0]:,}" for name, counts in case.counters.items()]
    return "\n".join(lines)


def proof(case: Case) -> str:
    """The change, and the two times that show what it is worth."""
    before, after = (each * 1000 for each in case.milliseconds)
    said = f"Change: {CAUSES[case.cause]}. {case.before}: {before:,.0f} µs; {case.after}: {after:,.0f} µs, "
    said += f"{case.factor:.2f} × as fast (docs/results/{case.run}.json)."
    for name, counts in case.counters.items():
        said += f" {name.replace('_', ' ').capitalize()}: {counts[0]:,}, then {counts[1]:,}."
    return said + (f" Not alone: {case.more}." if case.more else "")


def question(case: Case, chance: random.Random) -> Question:
    """Four causes to choose from, no two of them too alike."""
    options = [case.cause]
    while len(options) < 4:
        cause = chance.choice(list(CAUSES))
        if not any(each == cause or {each, cause} in NEAR for each in options):
            options.append(cause)
    chance.shuffle(options)
    letter = "abcd"[options.index(case.cause)]
    listed = "\n".join(f"  {each}) {WORDS[option]}" for each, option in zip("abcd", options))
    return Question(
        f"{evidence(case)}\nWhat binds? (Say what you would change, too.)\n{listed}", {"": letter}, proof(case)
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=whole, metavar="N", help="the same cases again (default: others)")
    parser.add_argument("--count", type=whole, default=COUNT, metavar="N", help=f"how many (default: {COUNT})")
    parser.add_argument("--sheet", type=Path, metavar="FILE.md", help="write them to a file, the key beside it")


def run(args: argparse.Namespace) -> int:
    """Ask in the terminal, or write a sheet."""
    if not 1 <= args.count <= len(CASES):
        raise UserError(f"--count must be 1 to {len(CASES)}, got {args.count}")
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    chance = random.Random(seed)
    asked = [question(case, chance) for case in chance.sample(CASES, args.count)]
    if args.sheet:
        for path in sheet("diagnose", seed, asked, args.sheet):
            terminal.out.print(f"written: {path}", markup=False, soft_wrap=True)
        return 0
    terminal.out.print(f"{plural(len(asked), 'case')}, --seed {seed}. An empty line skips one, q ends.", markup=False)
    ask(asked)
    return 0
