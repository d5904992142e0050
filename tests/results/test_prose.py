"""Numbers in sentences: each sentence is made of the record that it speaks of, and stands so in the page."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable

import pytest

from common.measure.any_scores import OURS
from common.results import runs
from common.results.bound import Bound, Bounds
from common.results.measured import flight_table
from common.results.runs import Record

PAGES: dict[str, Callable[[], Iterable[str]]] = {}


def page(path: str) -> Callable[[Callable[[], Iterable[str]]], Callable[[], Iterable[str]]]:
    """Register what a page must say: a function that makes its sentences from records."""

    def register(sentences: Callable[[], Iterable[str]]) -> Callable[[], Iterable[str]]:
        PAGES[path] = sentences
        return sentences

    return register


@pytest.mark.parametrize("path", PAGES)
def test_its_sentences_have_the_numbers_of_the_records(path: str):
    text = _words(path)
    assert [each for each in PAGES[path]() if each not in text] == []


def _words(path: str) -> str:
    """What a page says, without line ends and links' targets."""
    text = (runs.ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n".join("".join(source) for source in cells)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def timed(file: str, name: str, size: str, dtype: str = "fp16", changed: bool = False, **macros: int) -> Record:
    """The row of docs/results/FILE.json for a stage with these macros, or for a library; `changed`: that of the copy of
    its source that was timed with it."""
    run = runs.load(runs.RESULTS / f"{file}.json")
    rows = [row for row in run["rows"] if (row["name"], row["size"], row["dtype"]) == (name, size, dtype)]
    rows = [row for row in rows if bool(row.get("source")) == changed]
    wanted = [row for row in rows if macros.items() <= row.get("variants", row["settings"]).items()]
    assert wanted, f"{file}.json has no row of {name} at {size}"
    return Record(run, next((row for row in wanted if row.get("default")), wanted[0]))


def ms(record: Record) -> float:
    return record.row["ms"]["median"]


def clocks(record: Record) -> float:
    assert record.clocks
    return record.clocks


def gain(before: Record, after: Record) -> float:
    """How many times fewer clocks."""
    return clocks(before) / clocks(after)


def bound(name: str) -> Bound:
    """What a stage of Part I needs and took at 4096."""
    found = Bounds().of(timed("ladder-gemm", name, "4096"))
    assert found
    return found


def metric(name: str, key: str) -> float:
    """What ncu measured of a stage of Part I at 4096."""
    return bound(name).profile.row["metrics"][key]


def need(name: str, resource: str) -> float:
    """The fewest clocks for what a stage of Part I needs of a resource at 4096."""
    return next(each.clocks for each in bound(name).needs if each.resource == resource)


def apart(name: str, size: str) -> tuple[int, int]:
    """In how many recorded benches on an H200 the clocks of a stage's default kernel were counted, and by how many per
    cent the most exceed the fewest."""
    benches = [run for path in sorted(runs.RESULTS.glob("*.json")) if (run := runs.load(path))["kind"] == "bench"]
    rows = [r for run in benches for r in runs.records(run, name=name, size=size, dtype="fp16", default=True)]
    counted = [r.clocks for r in rows if r.clocks and r.run["gpu"] == "NVIDIA H200"]
    return len(counted), round(100 * (max(counted) / min(counted) - 1))


def more(record: Record, than: Record) -> int:
    """Per cent more clocks."""
    return round(100 * (clocks(record) / clocks(than) - 1))


PRODUCTS = 4096**3 / 32  # multiplications of a warp


@page("notebooks/01_naive.ipynb")
def _naive():
    scattered, coalesced = (timed("variants-01", "01_naive", "4096", COALESCED=value) for value in (0, 1))
    least = bound("01_naive")
    slots, look_ups = (100 * need("01_naive", each) / least.measured for each in ("issue slots", "L1 look-ups"))
    runs_, percent = apart("01_naive", "4096")
    yield f"worth a factor of {gain(scattered, coalesced):.0f} in clocks"
    yield f"was predicted to take 271 ms, and took {ms(scattered):.0f}"
    yield f"4.29 G look-ups / 0.9955 / 132 = {need('01_naive', 'L1 look-ups') / 1e6:.1f} M clocks"
    yield f"measured nearly {math.ceil(least.measured / 1e6)} M"
    yield f"almost the same time, {slots:.0f} to {look_ups:.0f} %"
    yield f"a warp executes {metric('01_naive', 'instructions') / PRODUCTS:.1f} instructions"
    waits = metric("01_naive", "stall: long scoreboard (global, local memory)")
    yield f"So {waits:.2f} *warps per issued instruction* are {waits:.2f} clocks"
    yield f"the {runs_} of these runs that counted clocks lie within {percent} %"


@page("notebooks/02_block_tile.ipynb")
def _block_tile():
    took = timed("ladder-gemm", "02_block_tile", "4096")
    costs = [
        more(*(timed("one-barrier-02", "02_block_tile", size, changed=changed) for changed in (True, False)))
        for size in ("4096", "2048")
    ]
    yield f"measured nearly {math.ceil(clocks(took) / 1e6)} M** ({took.row['tflops']:.1f} TFLOP/s)"
    yield f"({metric('02_block_tile', 'instructions') / PRODUCTS:.1f} instructions per multiplication)"
    yield f"It takes {costs[0]} to {costs[1]} % more clocks"


@page("notebooks/03_thread_tile.ipynb")
def _thread_tile():
    before, after = "02_block_tile", "03_thread_tile"
    shared = need(before, "shared memory and L1") / need(after, "shared memory and L1")
    instructions = metric(before, "instructions") / metric(after, "instructions")
    fp32 = [timed("ladder-gemm-fp32", name, "4096", "fp32") for name in (before, after)]
    squares = [
        gain(*(timed("neighbours-03", after, size, changed=changed) for changed in (True, False)))
        for size in ("2048", "4096")
    ]
    yield f"measured {clocks(timed('ladder-gemm', after, '4096')) / 1e6:.1f} M."
    yield f"Of 100 instructions {100 * metric(after, 'instructions, FMA pipe') / metric(after, 'instructions'):.0f} go"
    yield f"to the issue slots, {need(after, 'issue slots') / 1e6:.2f} M clocks"
    yield f"fall by a factor of {shared:.1f} and instructions by {instructions:.1f}"
    yield f"no conversions, the step is worth × {ms(fp32[0]) / ms(fp32[1]):.2f} in time"
    yield f"{squares[0]:.2f} × faster at 2048 and {squares[1]:.2f} × at 4096, in clocks"


@page("notebooks/04_wmma.ipynb")
def _wmma():
    old = timed("variants-04", "03_thread_tile", "4096")
    both, narrow, shallow, default = (
        timed("variants-04", "04_wmma", "4096", BLOCK_N=n, BLOCK_K=k)
        for n, k in ((128, 16), (128, 32), (256, 16), (256, 32))
    )
    yield f"measured {clocks(timed('ladder-gemm', '04_wmma', '4096')) / 1e6:.2f}.**"
    yield f"for shared memory, {need('04_wmma', 'shared memory and L1') / 1e6:.2f} million"
    yield f"WMMA with 16-bit tiles is worth × {gain(old, both):.2f}"
    yield f"the deep slice first is × {gain(both, narrow):.2f}, and the wide tile × {gain(narrow, default):.2f}"
    yield f"(`BLOCK_K=16`, {clocks(shallow) / 1e6:.2f} million clocks in the same record)"
    yield f"is × {gain(both, shallow):.2f}, and the deep slice × {gain(shallow, default):.2f}"


@page("notebooks/05_mma_ptx.ipynb")
def _mma_ptx():
    before, after = (timed("ladder-gemm-bf16", name, "4096", "bf16") for name in ("04_wmma", "05_mma_ptx"))
    counted = [metric(name, "instructions") / 1e6 for name in ("05_mma_ptx", "04_wmma")]
    yield f"in bf16 × {ms(before) / ms(after):.2f} in time and × {gain(before, after):.2f} in clocks"
    yield f"({clocks(before) / 1e6:.2f} to {clocks(after) / 1e6:.2f} million at 4096)"
    yield f"the hardware counts {counted[0]:.0f} million after {counted[1]:.0f}"


@page("notebooks/06_padding.ipynb")
def _padding():
    before, after = (timed("ladder-gemm", name, "4096") for name in ("05_mma_ptx", "06_padding"))
    largest = sum(each.clocks for each in bound("06_padding").needs[:3])
    yield f"**Predicted {clocks(before) / 1e6:.2f} − 1.27 = {clocks(before) / 1e6 - 1.27:.2f} million clocks"
    yield f"measured {clocks(after) / 1e6:.2f}: × {gain(before, after):.1f}"
    yield f"one after the other, take {largest / 1e6:.2f} million clocks"


@page("notebooks/07_cp_async.ipynb")
def _cp_async():
    names = "06_padding", "07_cp_async"
    before, after = (timed("ladder-gemm", name, "4096") for name in names)
    waits = [100 * bound(name).waits()["long scoreboard (global, local memory)"] for name in names]
    took = [clocks(before) / 1e6, clocks(after) / 1e6]
    through = [
        more(*(timed("through-l1-07_cp_async", name, size) for name in reversed(names)))
        for size in ("2048", "4096", "8192")
    ]
    swizzled = [timed("through-l1-09_swizzle", "09_swizzle", "4096", changed=changed) for changed in (True, False)]
    yield f"measured × {gain(before, after):.2f}.**"
    yield f"from {waits[0]:.0f} % of {took[0]:.2f} to {waits[1]:.0f} % of {took[1]:.2f} million"
    yield f"{metric('07_cp_async', 'L2 → L1') / 1e9:.2f} GB came from L2 at 4096"
    yield f"in 06 it was {metric('06_padding', 'L2 → L1') / 1e9:.2f} GB"
    yield f"`.cg` takes {min(through)} to {max(through)} % more"
    yield f"{swizzled[0].row['tflops']:.0f} TFLOP/s with `.ca`, {swizzled[1].row['tflops']:.0f} with `.cg`, at 4096"


@page("notebooks/08_multi_stage.ipynb")
def _multi_stage():
    name, turns = "08_multi_stage", 512 * 128 / 132
    before, after = (timed("ladder-gemm", each, "4096") for each in ("07_cp_async", name))
    left = clocks(before) * (1 - round(bound("07_cp_async").waits()["long scoreboard (global, local memory)"], 2))
    fetched = need("07_cp_async", "L2 → SMs") / turns
    rings = [[timed("variants-08", name, size, STAGES=count) for count in (2, 5)] for size in ("4096", "8192")]
    slower = [more(five, two) for two, five in rings]
    through = [
        gain(*(timed("through-l1-08_multi_stage", name, size, changed=changed) for changed in (False, True)))
        for size in ("2048", "4096", "8192")
    ]
    gains = [round(100 * (each - 1)) for each in through]
    waits = [
        more(*(timed("wait-for-all-08", name, size, changed=changed) for changed in (True, False)))
        for size in ("4096", "8192")
    ]
    yield f"remain: {left / 1e6:.2f} million, × {clocks(before) / left:.2f}"
    yield f"predicted are {round(left / turns, -1):,.0f} per turn"
    yield f"as in 07, are {round(fetched, -1):.0f} per slice. That leaves {round(left / turns - fetched, -2):.0f}"
    yield f"measured {clocks(after) / 1e6:.2f}: × {gain(before, after):.1f}, not"
    assert all(abs(ms(five) / ms(two) - 1) < 0.0125 for two, five in rings)
    yield f"five take as long as two, to 1 %, and {slower[0]} to {slower[1]} % more clocks"
    yield f"It is {gains[0]} % faster at 2048"
    spread = [apart(name, size)[1] for size in ("4096", "8192")]
    yield f"the gain, {gains[1]} and {gains[2]} % of the clocks"
    yield f"recorded runs of 08 differ by, {spread[0]} and {spread[1]} %"
    yield f"in clocks {waits[0]} and {waits[1]} % (`docs/results/wait-for-all-08.json`)"


@page("notebooks/00_the_machine.ipynb")
def _machine():
    rows = [line.strip("| ").split(" | ") for line in flight_table().splitlines() if line.startswith(("| L2", "| dev"))]
    yield f"With 16-byte loads {rows[0][-1]} or {rows[1][-1]} warps can"


def _beside_triton(problem: str, ours: str, theirs: str, counted: Callable[[Record], float] = ms) -> list[str]:
    """How many times as much theirs takes, at each size."""
    run = runs.load(runs.RESULTS / "triton.json")
    rows = [Record(run, row) for row in run["rows"] if row["problem"] == problem]
    one, two = ([counted(each) for each in rows if each.row["name"] == name] for name in (ours, theirs))
    return [f"{after / before:.2f}" for before, after in zip(one, two, strict=True)]


def _cycles(record: Record) -> float:
    return ms(record) * record.row["clock"]["ghz"]


@page("notebooks/t1_triton_matmul.ipynb")
def _triton_product():
    names = "product", "kernels.matmul"
    pointers, descriptors = (_beside_triton(*names, f"Triton, {by}") for by in ("pointers", "descriptors"))
    counted = _beside_triton(*names, "Triton, descriptors", _cycles)
    assert descriptors[1] == descriptors[2]
    yield f"{descriptors[1]} times as long as `kernels.matmul` at 2048 and at 4096, and {descriptors[3]} times at 8192"
    yield f"in clocks it is {counted[2]} times at 4096 and {counted[3]} at 8192"
    yield f"With pointers it takes {pointers[1]}, {pointers[2]} and {pointers[3]} times as long"
    yield f"At 1024 they take {descriptors[0]} and {pointers[0]} times as long"


@page("notebooks/t2_triton_attention.ipynb")
def _triton_attention():
    descriptors = "Triton, descriptors"
    taken, counted = (_beside_triton("attention", "kernels.attention", descriptors, each) for each in (ms, _cycles))
    slower = _beside_triton("attention", descriptors, "Triton, pointers")
    yield f"Triton takes {taken[0]}, {taken[1]} and {taken[2]} times as long as `kernels.attention`"
    yield f"in clocks it is {counted[0]}, {counted[1]} and {counted[2]} times"
    yield f"longer: {slower[0]}, {slower[1]} and {slower[2]} times as long as with descriptors"


@page("README.md")
def _readme():
    def speeds(file: str, name: str, sizes: Iterable[str], **settings: int) -> list[float]:
        return [timed(file, name, size, **settings).row["tflops"] for size in sizes]

    def ratios(file: str, name: str, other: str, sizes: Iterable[str], **settings: int) -> list[float]:
        both = (speeds(file, each, sizes, **settings) for each in (name, other))
        return [a / b for a, b in zip(*both, strict=True)]

    products = "4096", "8192"
    slower = [
        1 - before / after
        for before, after in zip(*(speeds(f"ladder-{each}", "cuBLAS", products) for each in ("hopper", "gemm")))
    ]
    yield "in Part III's run cuBLAS is {:.0f} and {:.0f} % slower".format(*(100 * each for each in slower))
    share = ratios("ladder-gemm", "11_any_shape", "cuBLAS", ["8192"])[0]
    yield f"stage 11 has {100 * share:.0f} % of the speed of cuBLAS"
    yield f"it has {_of_problem('ladder-gemm', '11_any_shape'):.0f} %."
    yield "Stage 16 is {:.2f} and {:.2f} times as fast".format(
        *ratios("ladder-attention", "16_final", "FA2", ("4096", "16384"), HEAD_DIM=128)
    )
    yield "`kernels.matmul` is {:.2f} and {:.2f} times as fast as cuBLAS".format(
        *ratios("ladder-hopper", "hopper_matmul", "cuBLAS", products)
    )
    yield f"of what `wgmma` allows it has {_of_problem('ladder-hopper', 'hopper_matmul'):.0f} % at 8192"
    faster = _slower_than_h7("FA-CuTe", 128)
    yield "it is {:.0f}, {:.0f} and {:.0f} % faster than FA-CuTe".format(*(100 * (each - 1) for each in faster))
    wide, narrow = _shares(128), _shares(64)
    said = "h7 is {:.2f} times as fast as the better of cuDNN and FA-CuTe", "and {:.2f} times at least"
    yield from (text.format(each) for text, each in zip(said, wide, strict=True))
    yield "at D = 64 it is {:.2f} times, and {:.2f} at least".format(*narrow)


@page("docs/performance.md")
def _attention_on_hopper():
    for library in ("cuDNN", "FA-CuTe"):
        times = [each for d in (128, 64) for each in _slower_than_h7(library, d)]
        yield f"{library} {'takes ' * (library == 'cuDNN')}{min(times):.2f} to {max(times):.2f} times"
    wide, narrow = _shares(128), _shares(64)
    yield f"D = 128 it is {wide[0]:.2f} times as fast"
    yield f"and {wide[1]:.2f} times at least; at D = 64 {narrow[0]:.2f} times, and {narrow[1]:.2f} at least"


def _slower_than_h7(library: str, head_dim: int) -> list[float]:
    """How many times h7's time a library takes without a mask, on equal inputs, at N = 1024, 4096 and 16384."""
    rows = runs.load(runs.RESULTS / f"variants-h7-{head_dim}.json")["rows"]
    plain = [row for row in rows if not row["settings"].get("CAUSAL")]
    ours = [row["ms"]["median"] for row in plain if row["name"] == "h7_flash_attention_3" and row["default"]]
    theirs = [row["ms"]["median"] for row in plain if row["name"] == library]
    return [after / before for before, after in zip(ours, theirs, strict=True)]


def _shares(head_dim: int) -> tuple[float, float]:
    """How many times as fast as the better library attention is on all kinds of scores: geometric mean, least."""
    cases: dict[tuple, dict[str, float]] = {}
    for row in runs.load(runs.RESULTS / "scores.json")["rows"]:
        if row["head_dim"] == head_dim:
            case = cases.setdefault(tuple(row[name] for name in ("dtype", "causal", "size", "scores")), {})
            case[row["name"]] = row["ms"]["median"]
    found = [min(ms for name, ms in each.items() if name != OURS) / each[OURS] for each in cases.values()]
    return statistics.geometric_mean(found), min(found)


def _of_problem(file: str, name: str) -> float:
    share = Bounds().of_problem(timed(file, name, "8192"))
    assert share
    return 100 * share
