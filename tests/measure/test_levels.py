"""The memory levels: what the kernels read and chase, held to the emulator, their loops to the machine code."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from types import SimpleNamespace

import pytest
import torch

import cudaemu
from common import gpu
from common.measure import levels
from common.results import runs
from cudaemu import Report
from cudaemu.compiler import sass
from cudaemu.errors import UserError

BLOCKS = 3
WORDS = torch.arange(3 * (64 << 10) // 4, dtype=torch.int32) * 2654435 + 1  # of global memory, no two alike
LANES = 32


def launch(source, symbol: str, arch: str = "9.0", **arguments) -> tuple[Report, dict[str, torch.Tensor]]:
    """One launcher in the emulator; a number for a tensor is so many words of 64 bits. What the tensors hold after."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    names = list(gpu.signature(source, symbol))
    values = [{**arguments, "stream": None}[name] for name in names]
    report = cudaemu.run(source, symbol, values, names=names, arch=arch, sanitize=False)
    assert report.status == 0, report.error
    return report, tensors


def results(threads: int, blocks: int = BLOCKS) -> dict[str, torch.Tensor]:
    return {
        "sink": torch.zeros(threads * blocks, dtype=torch.int32),
        "stamps": torch.zeros(blocks, levels.STAMP, dtype=torch.int64),
    }


def wrapped(sums: torch.Tensor) -> torch.Tensor:
    """64-bit sums as 32 bits hold them."""
    return sums.to(torch.int64).bitwise_and(0xFFFFFFFF).sub(1 << 31).bitwise_xor(-(1 << 31)).to(torch.int32)


def check_stamps(stamps: torch.Tensor) -> None:
    run = levels.Run(stamps)
    assert stamps[:, 0].tolist() == list(range(len(stamps)))
    run.check()
    assert (stamps[:, 4] >= stamps[:, 3]).all() and (stamps[:, 3] > 0).all()


@pytest.mark.parametrize("ldmatrix", (0, 1))
def test_shared_memory_is_read_in_full_and_without_conflicts(ldmatrix):
    steps = 17
    report, made = launch(levels.RATES, "launch_shared", ldmatrix=ldmatrix, **results(512), blocks=BLOCKS, steps=steps)
    filling = report.counters["shared_store_wavefronts"]  # the tile, and nothing else, is written
    assert filling * 128 == BLOCKS * 32 * 1024
    assert report.counters["shared_load_wavefronts"] * 128 == BLOCKS * steps * levels.SHARED_STEP
    assert report.counters["shared_load_conflicts"] == 0
    check_stamps(made["stamps"])
    # Rows 4·warp + 4·step …, all words of a row at once; ldmatrix hands out words of rows in another order.
    row = torch.arange(64 * LANES * 4).view(64, LANES, 4).sum(2)
    seen = [
        row[[(4 * warp + 4 * step + r) % 64 for step in range(steps) for r in range(4)]].sum(0) for warp in range(16)
    ]
    expected = torch.stack(seen).flatten()
    sums = made["sink"].view(BLOCKS, 512)
    if ldmatrix:
        assert sums.view(BLOCKS, 16, LANES).sum(2).tolist() == [expected.view(16, LANES).sum(1).tolist()] * BLOCKS
    else:
        assert sums.tolist() == [expected.tolist()] * BLOCKS


def test_shared_memory_is_written_in_full_and_without_conflicts():
    steps = 5
    report, made = launch(levels.RATES, "launch_shared_store", **results(512), blocks=BLOCKS, steps=steps)
    assert report.counters["shared_store_wavefronts"] * 128 == BLOCKS * steps * levels.SHARED_STEP
    assert report.counters["shared_store_conflicts"] == 0
    word = torch.arange(16)[:, None] * 4 * LANES * 4 + torch.arange(LANES) * 4
    expected = 4 * (steps - 1 + 3 * word + 1 + 2 + 3)
    assert made["sink"].view(BLOCKS, 512).tolist() == [expected.flatten().tolist()] * BLOCKS
    check_stamps(made["stamps"])


def test_copies_run_beside_ldmatrix_until_it_is_done():
    steps, copied = 64, torch.zeros(1, dtype=torch.int32)
    arguments = {**results(512, 1), "memory": WORDS.clone(), "words": 1024, "steps": steps, "loads": 1}
    report, made = launch(levels.RATES, "launch_both", **arguments, copied=copied)
    polls = report.counters["shared_load_wavefronts"] * 128 - steps * levels.SHARED_STEP // 2
    assert 0 < polls < steps * levels.SHARED_STEP // 2
    assert report.counters["cp_async_sectors"] * 32 == int(made["copied"]) * 512 > 0
    arguments["loads"] = 0
    report, made = launch(levels.RATES, "launch_both", **arguments, copied=copied)
    assert int(made["copied"]) * 512 == steps * levels.SHARED_STEP // 2
    assert report.counters["instructions.ldmatrix"] == 0
    check_stamps(made["stamps"])


@pytest.mark.parametrize(("wide", "broadcast"), ((1, 0), (0, 0), (0, 1)))
def test_l1_is_read_half_by_half(wide, broadcast):
    steps = 5
    arguments = {"wide": wide, "broadcast": broadcast, **results(levels.THREADS), "memory": WORDS.clone()}
    report, made = launch(levels.RATES, "launch_l1", **arguments, blocks=BLOCKS, steps=steps)
    requests = BLOCKS * (steps + 2) * levels.L1_HALF // (512 if wide else 128)
    assert report.counters["global_load_requests"] == requests
    assert report.counters["global_load_sectors"] == requests * (16 if wide else 1 if broadcast else 4)
    words = 4 if wide else 1
    halves = WORDS.view(BLOCKS, 2, -1, levels.THREADS, words).to(torch.int64).sum((2, 4))
    if broadcast:
        halves = halves.view(BLOCKS, 2, -1, LANES)[..., :1].expand(-1, -1, -1, LANES).reshape(BLOCKS, 2, -1)
    expected = halves[:, [step % 2 for step in range(steps)]].sum(1)
    assert made["sink"].view(BLOCKS, -1).equal(wrapped(expected))
    check_stamps(made["stamps"])


@pytest.mark.parametrize(("cluster", "alike"), ((1, 1), (1, 2), (2, 1), (2, 2)))
def test_tma_brings_every_block_its_chunks_from_l2(cluster, alike):
    """Each of them whole, though in a cluster every block sends a share of it."""
    chunks, steps, blocks = 8, 19, 4
    memory = torch.arange(chunks * levels.TMA_CHUNK // 4, dtype=torch.int32) * 3
    made = {"sink": torch.zeros(blocks, dtype=torch.int32), "stamps": torch.zeros(blocks, levels.STAMP).to(torch.int64)}
    arguments = {"cluster": cluster, **made, "memory": memory.view(torch.uint8), "chunks": chunks}
    arguments |= {"alike": alike, "blocks": blocks, "steps": steps}
    report, made = launch(levels.HOPPER, "launch_tma", arch="9.0a", **arguments)
    groups = blocks // cluster // alike
    words = memory.view(chunks, -1)[:, 0]
    seen = [
        sum(int(words[(block // cluster // alike + step * (groups | 1)) % chunks]) for step in range(steps))
        for block in range(blocks)
    ]
    assert made["sink"].tolist() == seen
    assert report.counters["bulk_load_bytes"] == blocks * steps * levels.TMA_CHUNK
    assert report.counters["bulk_load_sectors"] * 32 * cluster == blocks * steps * levels.TMA_CHUNK
    check_stamps(made["stamps"])


def chunk(number: int, chunks: int, step: int) -> int:
    return (number + step * (BLOCKS | 1)) % chunks


def test_l2_and_device_memory_are_swept_chunk_by_chunk():
    chunks, steps, warm = 4, 6, 2
    memory = torch.arange(chunks * levels.CHUNK // 4, dtype=torch.int32)
    sizes = {"words": len(memory) // 4, "blocks": BLOCKS, "steps": steps, "warm": warm}
    report, made = launch(levels.RATES, "launch_sweep", **results(levels.THREADS), memory=memory, **sizes)
    assert report.counters["global_load_sectors"] * 32 == BLOCKS * (steps + warm) * levels.CHUNK
    parts = memory.view(chunks, -1, levels.THREADS, 4).to(torch.int64).sum((1, 3))
    order = [[chunk(block, chunks, step) for step in range(steps)] for block in range(BLOCKS)]
    assert len(set(order[0][:chunks])) == chunks  # every chunk before one comes again
    expected = torch.stack([parts[each].sum(0) for each in order])
    assert made["sink"].view(BLOCKS, -1).equal(wrapped(expected))
    check_stamps(made["stamps"])


def test_device_memory_is_copied():
    chunks, steps = 4, 2
    half = torch.arange(chunks * levels.CHUNK // 4, dtype=torch.int32)
    memory = torch.cat([half, torch.zeros_like(half)])
    stamps = torch.zeros(BLOCKS, levels.STAMP, dtype=torch.int64)
    sizes = {"words": len(half) // 4, "blocks": BLOCKS, "steps": steps}
    report, made = launch(levels.RATES, "launch_copy", stamps=stamps, memory=memory, **sizes)
    moved = report.counters["global_load_sectors"] * 32
    assert moved == BLOCKS * steps * levels.CHUNK and moved < report.counters["global_store_sectors"] * 32 + 1
    assert made["memory"][len(half) :].equal(half)
    check_stamps(made["stamps"])


def following(line: int, lines: int) -> int:
    return (1664525 * line + 1013904223) % lines


def reached(links: int, lines: int) -> int:
    line = 0
    for _ in range(links):
        line = following(line, lines)
    return line


def longs(count: int = 1) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int64)


def test_the_chain_visits_every_line():
    lines = 128
    assert {reached(links, lines) for links in range(lines)} == set(range(lines))


@pytest.mark.parametrize("cold", (False, True))
@pytest.mark.parametrize(("through_l1", "page"), ((1, 0), (0, 8192)))
def test_lines_are_chased_in_the_chain_s_order(through_l1, page, cold):
    stride, lines, warm, links = 256, 512, 5, 256
    push = {"filler": torch.ones(64, dtype=torch.int8) if cold else None, "filled": 64 if cold else 0}
    arguments = {"through_l1": through_l1, "memory": torch.zeros(stride * lines, dtype=torch.int8), "stride": stride}
    arguments |= {"lines": lines, "page": page, "warm": warm, "links": links, **push}
    report, made = launch(levels.LATENCIES, "launch_chase", **arguments, clocks=longs(), last=longs())
    assert int(made["last"]) == reached(warm + links, lines) * stride
    touched = stride * lines // page if page else 0
    assert report.counters["global_load_requests"] == warm + links + touched
    if cold:
        assert not made["filler"].any()


def test_lines_that_are_read_alone_point_to_themselves():
    stride, lines, links = 256, 8, 128
    arguments = {"memory": torch.zeros(stride * lines, dtype=torch.int8), "stride": stride, "lines": lines}
    report, made = launch(
        levels.LATENCIES, "launch_slices", **arguments, links=links, clocks=longs(lines) - 1, last=longs()
    )
    assert int(made["last"]) == (lines - 1) * stride
    assert report.counters["global_load_requests"] == lines * (links + 1)
    assert (made["clocks"] >= 0).all()


@pytest.mark.full
def test_chains_of_instructions_are_chains():
    links = 2 * levels.LINKS
    report, made = launch(levels.LATENCIES, "launch_shared", links=links, clocks=longs(), last=longs())
    assert int(made["last"]) == reached(links, 256) * 128
    assert report.counters["shared_load_requests"] == links
    result = torch.zeros(LANES)
    _, made = launch(levels.LATENCIES, "launch_fma", links=links, clocks=longs(), result=result)
    assert made["result"][0] == pytest.approx(2.0)  # x -> x/2 + 1
    _, made = launch(levels.LATENCIES, "launch_shuffle", links=links, clocks=longs(), result=result)
    assert made["result"].tolist() == [31.0] * LANES  # the last lane's value has come to all
    _, made = launch(levels.LATENCIES, "launch_mma", links=links, clocks=longs(), result=result)
    assert made["result"].tolist() == [4.0 * 16 * links] * LANES
    report, _ = launch(levels.LATENCIES, "launch_barrier", links=links, clocks=longs())
    assert report.counters["instructions.barrier"] == 8 * (links + 1)
    report, _ = launch(levels.LATENCIES, "launch_empty", count=3)
    assert len(report.launches) == 3


LOOPS = {  # function -> what the loop that is timed consists of, beside a few instructions that count and add up
    (levels.RATES, "shared_load_kernelILb0E"): {"LDS.128": 4},
    (levels.RATES, "shared_load_kernelILb1E"): {"LDSM.16.M88.4": 4},
    (levels.RATES, "shared_store_kernel"): {"STS.128": 4},
    (levels.RATES, "both_kernel"): {"LDGSTS.E.BYPASS.128": 16},
    (levels.RATES, "l1_kernelI5uint4Lb0E"): {"LDG.E.128": 2},
    (levels.RATES, "l1_kernelIjLb0E"): {"LDG.E": 8},
    (levels.RATES, "l1_kernelIjLb1E"): {"LDG.E": 8},
    (levels.RATES, "sweep_kernel"): {"LDG.E.128": 8},
    (levels.RATES, "copy_kernel"): {"LDG.E.128": 8, "STG.E.128": 8},
    (levels.LATENCIES, "chase_kernelILb1E"): {"LDG.E.64": levels.LINKS},
    (levels.LATENCIES, "chase_kernelILb0E"): {"LDG.E.64.STRONG.GPU": levels.LINKS},
    (levels.LATENCIES, "slices_kernel"): {"LDG.E.64.STRONG.GPU": levels.LINKS},
    (levels.LATENCIES, "shared_kernel"): {"LDS": levels.LINKS},
    (levels.LATENCIES, "barrier_kernel"): {"BAR.SYNC.DEFER_BLOCKING": levels.LINKS},
    (levels.LATENCIES, "fma_kernel"): {"FFMA": levels.LINKS},
    (levels.LATENCIES, "shuffle_kernel"): {"SHFL.DOWN": levels.LINKS},
    (levels.LATENCIES, "mma_kernel"): {"HMMA.16816.F32": levels.LINKS},
}


@pytest.mark.parametrize(
    ("place", "wanted"), LOOPS.items(), ids=lambda each: each[1] if isinstance(each, tuple) else ""
)
def test_the_loops_in_the_machine_code(place, wanted):
    """Nothing is left out, taken out of the loop or added: what is measured is what the table of the file says."""
    source, name = place
    (code,) = (code for function, code in machine_code(source).items() if name in function)
    found = [Counter(instruction.opcode for instruction in loop) for loop in loops(code)]
    least = Counter(wanted)
    (loop,) = (each for each in found if least <= each and sum(each.values()) <= 3 * sum(wanted.values()) + 30)
    kinds = ("LD", "ST", "BAR", "SHFL", "HMMA", "FFMA", "ATOM")
    others = {opcode: count for opcode, count in loop.items() if opcode.startswith(kinds) and opcode not in wanted}
    allowed = {"LDS", "LDGDEPBAR"} if name == "both_kernel" else set()  # it looks whether the readers are done
    assert all(loop[opcode] == count for opcode, count in wanted.items()) and set(others) <= allowed, loop


@lru_cache
def machine_code(source) -> dict[str, list[sass.Instruction]]:
    return sass.functions(source, {}, "90")


def loops(code: list[sass.Instruction]) -> list[list[sass.Instruction]]:
    """The instructions of each loop without a loop inside, from the target of a jump back to the jump."""
    jumps = [(int(each.text.split()[-1], 16), each.address) for each in code if each.opcode == "BRA"]
    back = [(to, jump) for to, jump in jumps if to < jump]
    inner = [(a, b) for a, b in back if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in back)]
    return [[each for each in code if a <= each.address <= b] for a, b in inner]


# ---- what is made of the kernels' stamps -----------------------------------------------------------------------------

SMS, MHZ, L2_MB = 16, 1600, 12
SPEEDS = {  # launcher -> what a GPU is made to look like that does so much per clock and SM
    "launch_shared": 125.0,
    "launch_shared_store": 120.0,
    "launch_both": 110.0,
    "launch_l1": 64.0,
    "launch_sweep": 40.0,
    "launch_copy": 20.0,
    "launch_tma": 25.0,
}
CLOCKS = {  # launcher -> clocks per link
    "launch_fma": 4.0,
    "launch_shuffle": 24.0,
    "launch_mma": 33.0,
    "launch_barrier": 30.0,
    "launch_shared": 29.0,
    "launch_slices": 270.0,
    "launch_chase": 600.0,
}


@pytest.fixture
def fake_levels(monkeypatch):
    """Levels of a GPU that keeps to SPEEDS and CLOCKS; nothing is launched. `calls`: launchers and their arguments."""
    calls: list[tuple[str, tuple]] = []

    def note(stamps: torch.Tensor, blocks: int, clocks: float) -> None:
        for block in range(blocks):
            begun = 1000 + block
            stamps[block] = torch.tensor([block, 5, 5 + clocks, begun, begun + clocks * 1e3 / MHZ])

    def call(name: str, *arguments) -> None:
        calls.append((name, arguments))
        if name == "launch_shared" and len(arguments) > 3:
            _, _, stamps, blocks, steps = arguments
            note(stamps, blocks, steps * 32 * 1024 / SPEEDS[name])
        elif name == "launch_shared_store":
            _, stamps, blocks, steps = arguments
            note(stamps, blocks, steps * 32 * 1024 / SPEEDS[name])
        elif name == "launch_both":
            _, stamps, _, _, steps, loads, copied = arguments
            copied.fill_(steps * 32)  # half a step's rows, as the other half of the warps would do in the same time
            note(stamps, 1, steps * 512 * 32 * (1 + loads) / SPEEDS[name])
        elif name == "launch_l1":
            wide, broadcast, _, stamps, _, blocks, steps = arguments
            note(stamps, blocks, steps * 32 * 1024 / (SPEEDS[name] if wide else 72.0 if broadcast else 96.0))
        elif name == "launch_sweep":
            _, stamps, _, _, blocks, steps, _ = arguments
            note(stamps, blocks, steps * 128 * 1024 / SPEEDS[name])
        elif name == "launch_tma":
            cluster, _, stamps, _, _, alike, blocks, steps = arguments
            assert blocks % (cluster * alike) == 0 and SMS - blocks < cluster * alike
            note(stamps, blocks, steps * levels.TMA_CHUNK / SPEEDS[name] / cluster)
        elif name == "launch_copy":
            stamps, _, _, blocks, steps = arguments
            note(stamps, blocks, 2 * steps * 128 * 1024 / SPEEDS[name])
        elif name == "launch_slices":
            *_, lines, links, clocks, _ = arguments
            clocks.copy_(torch.linspace(200, 2 * CLOCKS[name] - 200, lines) * links)
        elif name == "launch_chase":
            _, _, _, _, _, _, links, _, _, clocks, _ = arguments
            clocks[0] = links * CLOCKS[name]
        elif name != "launch_empty":
            links, clocks, *_ = arguments
            clocks.fill_(int(links * CLOCKS[name]))

    names = {*SPEEDS, *CLOCKS, "launch_empty"}
    properties = SimpleNamespace(multi_processor_count=SMS, L2_cache_size=L2_MB << 20)
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda other: 2.5)
    monkeypatch.setattr(levels, "call", call)
    monkeypatch.setattr(levels, "load", lambda source: SimpleNamespace(**{name: name for name in names}))
    monkeypatch.setattr(levels, "DEVICE", "cpu")
    monkeypatch.setattr(levels, "has_tma", lambda: True)
    monkeypatch.setattr(levels, "LARGEST", 64 << 20)
    monkeypatch.setattr(levels.nvml, "current", lambda: SimpleNamespace(sm_clock=lambda: 1755.0))
    for name, value in {
        "get_device_properties": lambda _: properties,
        "current_device": lambda: 0,
        "mem_get_info": lambda: (256 << 20, 1 << 30),
        "synchronize": lambda: None,
        "Event": lambda enable_timing: event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    made = levels.Levels()
    made.calls = calls
    return made


def test_rates_are_what_was_moved_over_the_clocks_it_took(fake_levels):
    found = {row["key"]: row for row in fake_levels.rows()}
    rate = {key: row["value"] for key, row in found.items()}
    assert rate["shared load"] == rate["ldmatrix"] == pytest.approx(125, rel=1e-3)
    assert rate["shared store"] == pytest.approx(120, rel=1e-3)
    assert rate["ldmatrix + cp.async"] == pytest.approx(110, rel=1e-3)
    assert found["ldmatrix + cp.async"]["parts"] == pytest.approx({"ldmatrix": 55, "cp.async": 55}, rel=1e-3)
    assert found["cp.async"]["parts"]["ldmatrix"] == 0
    assert rate["L1"] == pytest.approx(64, rel=1e-3) and rate["L1 requests"] == pytest.approx(96 / 128, rel=1e-3)
    assert rate["L1 broadcasts"] == pytest.approx(72 / 128, rel=1e-3)
    assert found["L2"]["per_clock"]["value"] == pytest.approx(40, rel=1e-3)
    assert rate["L2"] == pytest.approx(40 * SMS * MHZ * 1e6 / 1e12, rel=1e-3)
    assert found["L2, TMA"]["per_clock"]["value"] == pytest.approx(25, rel=1e-3)
    assert found["L2, TMA, each chunk to 2 SMs by multicast"]["per_clock"]["value"] == pytest.approx(50, rel=1e-3)
    assert rate["L2, one SM"] == pytest.approx(40 * MHZ * 1e6 / 1e12, rel=1e-3)
    assert rate["DRAM read"] == pytest.approx(40 * SMS * MHZ * 1e6 / 1e12, rel=0.01)
    assert rate["DRAM copy"] == pytest.approx(20 * SMS * MHZ * 1e6 / 1e12, rel=0.01)
    assert found["L2"]["sm_mhz"]["median"] == pytest.approx(MHZ, rel=1e-3)
    for key in ("FMA", "shuffle", "mma", "barrier", "shared"):
        (row,) = (row for row in found.values() if row["key"] in (f"latency {key}", f"latency {key}.sync"))
        assert row["value"] == CLOCKS[f"launch_{key.lower()}"] and row["unit"] == "clocks"
    assert rate["latency L2"] == pytest.approx(270, rel=1e-3)
    assert rate["latency L2 nearest"] == pytest.approx(200) and rate["latency L2 farthest"] == pytest.approx(340)
    assert rate["latency DRAM"] == 600 and found["latency DRAM"]["sm_mhz"]["median"] == 1755.0
    assert rate["launch"] == 2.5
    assert "latency DRAM page" not in found  # 64 MB have not enough pages
    assert len(found) == levels.COUNT - 1
    runs.validate(
        {
            **dict.fromkeys(("command", "commit"), ""),
            "schema": runs.SCHEMA,
            "kind": "ceiling",
            "date": "2026-11-21",
            "rows": list(found.values()),
        }
    )


def test_nothing_outside_the_memory_is_asked_for(fake_levels):
    list(fake_levels.rows())
    room = fake_levels.memory.numel() * 4
    assert {"launch_both", "launch_l1"} <= {name for name, _ in fake_levels.calls}
    for name, arguments in fake_levels.calls:
        if name == "launch_both":
            assert arguments[3] % 1024 == 0 and arguments[3] * levels.WORD <= room and arguments[4] % 4 == 0
        elif name == "launch_l1":
            assert room >= SMS * 2 * levels.L1_HALF
        elif name == "launch_sweep":
            assert arguments[3] & (arguments[3] - 1) == 0 and arguments[3] * levels.WORD <= room
        elif name == "launch_tma":
            assert arguments[4] & (arguments[4] - 1) == 0 and arguments[4] * levels.TMA_CHUNK <= room
        elif name == "launch_copy":
            assert 2 * arguments[2] * levels.WORD <= room
        elif name == "launch_slices":
            assert arguments[1] * arguments[2] <= room and arguments[1] % 8 == 0
        elif name == "launch_chase":
            _, _, stride, lines, page, warm, links, *_ = arguments
            assert stride * lines <= room and lines & (lines - 1) == 0 and links % levels.LINKS == 0 < links
            assert page == 0 or page > stride
            assert not page or links <= lines  # no line twice: the second time it would be in L2


def test_too_little_memory_is_an_error(fake_levels, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100 << 20, 1 << 30))
    with pytest.raises(UserError, match="100 MB "):
        levels.Levels()


def test_blocks_that_share_an_sm_are_refused():
    stamps = torch.tensor([[0, 1, 2, 1, 2], [1, 1, 2, 1, 2]])
    levels.Run(stamps).check()
    stamps[1, 0] = 0
    with pytest.raises(UserError, match="two blocks shared an SM"):
        levels.Run(stamps).check()


def test_a_launcher_that_fails_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    with pytest.raises(UserError, match="CUDA error 700"):
        levels.call(lambda *_: 700, torch.zeros(1), 1, None)


@pytest.mark.alone
@pytest.mark.gpu
def test_levels_are_slower_the_farther_away_they_are_on_the_gpu():
    found = {row["key"]: row["value"] for row in levels.Levels().rows()}
    assert 64 < found["shared load"] <= 128 and 64 < found["ldmatrix"] <= 128
    near = ("latency FMA", "latency shared", "latency L2 nearest", "latency L2", "latency L2 farthest", "latency DRAM")
    assert [found[key] for key in near] == sorted(found[key] for key in near)
    assert found["L2"] > found["DRAM read"] > found["L2, one SM"]
    assert not levels.has_tma() or found["L2, TMA, each chunk to 2 SMs by multicast"] > found["DRAM read"]
