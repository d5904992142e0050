"""Bounds: counts over rates, of the right profile and GPU; no recorded run is faster than its own."""

from __future__ import annotations

import pytest

from common.results import plot, runs, tables
from common.results.bound import Bounds
from common.results.runs import Record
from tests.results.recorded import row, run

SMS, MHZ = 100, 1000.0  # 1e11 clocks of an SM per second
SIZE = 4096
TOLERANCE = 0.02  # of a measured time: clocks are sampled


def ceilings(**changed: float) -> dict:
    """A ceiling run of round numbers."""
    per_clock = {"mma.sync fp16": 2048.0, "wgmma fp16": 4096.0, "FMA fp32": 256.0, "exp2": 16.0, "ALU": 64.0}
    rates = {"shared load": 128.0, "shared store": 128.0, "ldmatrix": 128.0, "ldmatrix + cp.async": 128.0}
    rates |= {"L1 requests": 0.5, "L1 broadcasts": 1.0}
    rows = [
        {"key": key, "name": key, "value": 1.0, "unit": "TFLOP/s", "per_clock": {"value": changed.get(key, value)}}
        for key, value in per_clock.items()
    ]
    rows += [
        {"key": key, "name": key, "value": changed.get(key, value), "unit": "byte/clock/SM"}
        for key, value in rates.items()
    ]
    rows += [
        {"key": key, "name": key, "value": value, "unit": "TB/s"}
        for key, value in {"L2": 4.0, "DRAM read": 2.0, "DRAM copy": 1.5}.items()
    ]
    return run(*rows, kind="ceiling", sms=SMS, highest_mhz=2 * MHZ, file="rates.json")


COUNTERS = {  # each takes another time: 1 ms is 1e8 clocks of an SM
    "instructions.mma": 1e8 * 2048 / 4096 * 8,  # 8 ms
    "shared_load_wavefronts": 2e8,
    "shared_store_wavefronts": 1e8,  # 3 ms with the loads
    "cp_async_sectors": 4e8,  # 1e8 wavefronts more: 1 ms
}
METRICS = {
    "instructions": 4 * 1e8 * 1.5,  # 1.5 ms
    "instructions, FMA pipe": 4 * 1e8 * 2.5,
    "instructions, ALU pipe": 2 * 1e8 * 0.5,
    "instructions, XU pipe": 0.5 * 1e8 * 0.6,
    "L1 wavefronts, tags, global loads": 1e8 * 1.2,
    "L2 → L1": 4e9 * 2.2,
    "tensor pipe busy": 61.0,
    "issue slots busy": 17.0,
    "FMA pipe busy": 5.0,
    "achieved occupancy": 12.4,
    "stall: barrier": 0.5,
    "stall: memory queue full (MIO)": 3.0,
    "stall: not selected": 9.0,
    "stall: long scoreboard (global, local memory)": 1.25,
    "stall: branch": 0.01,
}
LEAST = {
    "tensor cores (mma.sync)": 8.0,
    "shared memory and L1": 4.0,
    "FMA pipe": 2.5,
    "L2 → SMs": 2.2,
    "issue slots": 1.5,
    "L1 look-ups": 1.2,
    "XU pipe (exp2)": 0.6,
    "ALU pipe": 0.5,
    "device memory": 3 * SIZE**2 * 2 / 2e12 * 1e3,
}


def profile(name: str = "09_swizzle", counters: dict | None = None, metrics: dict | None = None, **more) -> dict:
    """A row of a profile run."""
    made = row(name, 1.0, **more)
    pairs = {key: {"emulator": None, "ncu": value, "metric": "m"} for key, value in (counters or COUNTERS).items()}
    return made | {"counters": pairs, "metrics": METRICS | (metrics or {})}


@pytest.fixture
def bound_of(record):
    """bound_of(row, profile row, ceilings): the bound of the only row of a run."""

    def make(measured: dict, counted: dict | None = None, rates: dict | None = None, **head):
        record("bench", run(measured, **head))
        record("profile", run(counted or profile(), kind="profile"))
        record("ceiling", rates or ceilings())
        (found,) = runs.recorded(kind="bench")
        return Bounds().of(found)

    return make


def measured(ms: float, **more) -> dict:
    return row("09_swizzle", 2 * SIZE**3 / ms / 1e9, sm_mhz={"median": 900.0, "min": 700.0, "max": MHZ, "n": 9}, **more)


def test_each_resource_takes_what_is_needed_over_what_there_is(bound_of):
    bound = bound_of(measured(10.0))
    assert {need.resource: need.ms for need in bound.needs} == pytest.approx(LEAST)
    assert [need.resource for need in bound.needs] == sorted(LEAST, key=lambda name: -LEAST[name])
    assert bound.ms == pytest.approx(8.0) and bound.share == pytest.approx(0.8)
    assert bound.mhz == MHZ  # the highest clock that was seen: none can have been faster


@pytest.mark.parametrize("together, wavefronts", [(128.0, 4e8), (130.0, 4e8), (190.0, 3e8)])
def test_copies_count_as_wavefronts_if_they_take_turns_with_loads(bound_of, together, wavefronts):
    bound = bound_of(measured(10.0), rates=ceilings(**{"ldmatrix + cp.async": together}))
    (need,) = (need for need in bound.needs if need.resource == "shared memory and L1")
    assert need.count == wavefronts


def test_wavefronts_of_l1_take_the_same_path(bound_of):
    bound = bound_of(measured(10.0), profile(metrics={"L1 wavefronts, data": 7e8}))
    (need,) = (need for need in bound.needs if need.resource == "shared memory and L1")
    assert need.count == 8e8 and bound.needs[0].resource == "tensor cores (mma.sync)"


def test_a_kernel_of_fmas_has_no_tensor_work_whatever_ncu_counts(bound_of):
    bound = bound_of(measured(10.0, limit="FMA fp32"), profile(metrics={"instructions, FMA pipe": 4 * 1e8 * 9}))
    assert bound.needs[0].resource == "FMA pipe" and bound.ms == pytest.approx(9.0)
    assert "tensor cores (mma.sync)" not in [need.resource for need in bound.needs]
    assert bound.busy == {"FMA pipe": 5.0, "issue slots": 17.0}


def test_a_kernel_of_wgmma_has_a_ceiling_of_its_own(bound_of):
    """What its instructions do is not in their number: the computation says how many operations there are."""
    bound = bound_of(measured(20.0, limit="wgmma fp16"), rates=ceilings(**{"wgmma fp16": 4096.0}))
    (need,) = (need for need in bound.needs if need.resource.startswith("tensor cores"))
    assert (need.resource, need.count, need.rate) == ("tensor cores (wgmma)", 2 * SIZE**3, 4096.0)
    assert need.ms == pytest.approx(2 * SIZE**3 / 4096 / 1e11 * 1e3)
    assert bound.busy == {"tensor pipe": 61.0, "issue slots": 17.0}


def test_the_longest_stalls_are_those_of_warps_that_could_not_run(bound_of):
    bound = bound_of(measured(10.0))
    assert bound.stalls() == [
        ("memory queue full (MIO)", 3.0),
        ("long scoreboard (global, local memory)", 1.25),
        ("barrier", 0.5),
    ]
    assert bound.busy == {"tensor pipe": 61.0, "issue slots": 17.0}


def test_without_a_clock_the_gpus_highest_counts(bound_of):
    row = measured(10.0)
    del row["sm_mhz"]
    needs = {need.resource: need.ms for need in bound_of(row).needs}
    assert needs["tensor cores (mma.sync)"] == pytest.approx(4.0) and needs["L2 → SMs"] == pytest.approx(2.2)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "08_multi_stage"},
        {"size": 2048},
        {"dtype": "bf16"},
        {"variants": {"STAGES": 4}},
        {"settings": {"CAUSAL": 1}},
    ],
    ids=str,
)
def test_counts_are_those_of_the_same_kernel_at_the_same_size(bound_of, other):
    assert bound_of(measured(10.0), profile(**{"name": "09_swizzle", **other})) is None


def test_counts_and_rates_are_those_of_the_same_gpu(bound_of):
    assert bound_of(measured(10.0), gpu="NVIDIA A100") is None


def test_a_reader_s_own_kernel_has_no_bound(bound_of):
    (mine,) = run(measured(10.0, source="mine.cu"))["rows"]
    bound_of(measured(10.0))
    assert Bounds().of(Record(run(mine), mine)) is None


def test_what_is_missing_is_named(record):
    name = {"name": "09_swizzle", "part": "gemm", "dtype": "fp16"}
    verdict = lambda: tables.verdict("gemm", "09_swizzle", "fp16", "4096")  # noqa: E731
    assert verdict() == "*No run of 09_swizzle fp16 at 4096 is recorded yet.*"
    record("bench", run(measured(10.0)))
    assert "`python -m common.measure.ceiling --json" in verdict()
    record("ceiling", ceilings())
    assert "`python -m kernels.09_swizzle profile --dtype fp16 --sizes 4096 --json" in verdict()
    counted = profile()
    del counted["metrics"]["instructions"]  # as recorded before they were counted
    record("profile", run(counted, kind="profile"))
    assert "`python -m kernels.09_swizzle profile" in verdict()
    record("profile", run(profile(), kind="profile"))
    (found,) = runs.recorded(kind="bench", **name)
    assert Bounds().missing(found) == "" and Bounds().of(found)


def test_the_verdict_says_what_binds_how_near_and_what_is_waited_for(bound_of):
    bound_of(measured(10.0, power_w={"median": 612.3}))
    text = tables.verdict("gemm", "09_swizzle", "fp16", "4096")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert cells[0] == ["fp16, 4096", "needs", "there is", "least time", "of the measured"]
    assert cells[2] == ["tensor cores (mma.sync)", "1.64 TFLOP", "2,048 per clock and SM", "8 ms", "80%"]
    assert ["L2 → SMs", "8.8 GB", "4 TB/s", "2.2 ms", "22%"] in cells
    assert "ALU pipe" in text and "device memory" not in text  # 5 % of the time and more
    assert "**Bound: 8 ms by tensor cores (mma.sync). Measured: 10 ms = 80% of the bound** (13.7 TFLOP/s)." in text
    assert "memory queue full (MIO) 3.00, long scoreboard (global, local memory) 1.25, barrier 0.50." in text
    assert "Busy: tensor pipe 61 % of the time, issue slots 17 % of the time, occupancy 12 %." in text
    assert "SM clock 700 to 1000 MHz (the bound takes the highest), power 612 W." in text
    assert "times [bench.json], counts [profile.json], rates [ceiling.json]" in text
    table = tables.TABLES["bounds"]("gemm", "fp16", "4096")
    line = "| 09_swizzle | tensor cores (mma.sync) | 8 ms | 10 ms | 80% | memory queue full 3.0, long scoreboard 1.2, "
    assert line + "barrier 0.5 |" in table
    assert "[bench.json], [profile.json], [ceiling.json]." in table
    assert "80.0% |" in tables.TABLES["ladder"]("gemm", "fp16", "4096")


def test_needs_stand_side_by_side_and_the_last_time_is_not_told(record):
    """That is to be predicted. What is 5 % of the first one's time and more is shown, for both."""
    earlier = measured(20.0) | {"name": "08_multi_stage"}
    record("bench", run(earlier, measured(10.0)))
    record("ceiling", ceilings())
    more = profile(name="08_multi_stage")
    more["counters"] = {**more["counters"], "shared_store_wavefronts": {"ncu": 12e8}}
    record("profile", run(profile(), more, kind="profile"))
    text = tables.needs("gemm", ("08_multi_stage", "09_swizzle"), "fp16", "4096")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert cells[0] == ["least time, fp16, 4096", "08_multi_stage", "09_swizzle"]
    assert cells[2] == ["shared memory and L1", "15 ms", "4 ms"] and cells[3][1:] == ["8 ms", "8 ms"]
    assert ["issue slots", "1.5 ms", "1.5 ms"] in cells and "ALU pipe" not in text
    assert cells[-1] == ["measured", "20 ms", "below"]
    assert "[profile.json]" in text and "[ceiling.json]" in text
    missing = tables.needs("gemm", ("08_multi_stage", "07_cp_async"), "fp16", "4096")
    assert missing == "*No run of 07_cp_async fp16 at 4096 is recorded yet.*"


def test_a_warp_s_time_is_shared_out_whole_and_clocks_do_not_depend_on_power(bound_of):
    """0.5 + 3 + 9 + 1.25 + 0.01 warps wait while one issues; 2 ms at 1.5 GHz are 3 million clocks."""
    bound = bound_of(measured(10.0), profile(metrics={"duration": 2e6, "SM clock": 1.5e9}))
    assert sum(bound.waits().values()) == pytest.approx(1) and bound.waits()["barrier"] == pytest.approx(0.5 / 14.76)
    assert bound.clocks == pytest.approx(3e6)
    text = tables.waits("gemm", ("09_swizzle",), "fp16", "4096")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert cells[2] == ["not selected", "61%"] and ["issuing", "7%"] in cells and "barrier" not in text
    assert cells[-3:] == [
        ["**tensor pipe busy**", "61%"],
        ["**issue slots busy**", "17%"],
        ["**clocks of an SM**", "3,000,000"],
    ]
    assert "No run of 07_cp_async" in tables.waits("gemm", ("09_swizzle", "07_cp_async"), "fp16", "4096")


def test_in_clocks_the_power_limit_has_no_say(bound_of):
    """8 ms of products at 1 GHz, 12.5 million clocks in all, timed at 10 ms: 64 % of the bound, at 1.25 GHz."""
    bound_of(measured(10.0), profile(metrics={"duration": 2e7, "SM clock": 0.625e9}))
    text = tables.in_clocks("gemm", ("09_swizzle",), "fp16")
    assert "| 09_swizzle, 4096 | 8,000,000 | 12,500,000 | 64% | 1.25 GHz |" in text
    assert tables.in_clocks("gemm", ("08_multi_stage",), "fp16") == tables.NOTHING
    assert tables.in_clocks("gemm", ("09_swizzle",), "fp16", settings={"HEAD_DIM": 64}) == tables.NOTHING


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (1.374e11, "FLOP", "137 GFLOP"),
        (1.61e9, "byte", "1.61 GB"),
        (3.37e7, "wavefronts", "33.7 M wavefronts"),
        (12.0, "byte", "12 B"),
        (12.0, "wavefronts", "12 wavefronts"),
    ],
)
def test_quantities_are_short(value, unit, text):
    assert tables.quantity(value, unit) == text


def test_no_recorded_run_is_faster_than_its_bound():
    """Of all runs in docs/results: a kernel that beats its bound shows that the bound, or a count, is wrong."""
    bounds = Bounds()
    found = [b for made in runs.runs(kind="bench") for r in runs.records(made) if (b := bounds.of(r)) is not None]
    if not found:
        pytest.skip("no profile with all that a bound needs is recorded yet")
    assert len({bound.record.row["name"] for bound in found}) > 1
    faster = {
        f"{bound.record.run['file']}: {bound.record.row['label']} {bound.record.row['size']}": bound.share
        for bound in found
        if bound.share > 1 + TOLERANCE
    }
    assert faster == {}


# ---- as a figure ----


def test_a_stage_stands_below_the_roofs_of_its_levels(bound_of):
    """Its intensities are its FLOP over what each level delivered; roofs rise with the measured rates to the peak."""
    bound = bound_of(measured(10.0))
    axes = plot.roofline([bound], "a title").axes[0]
    flop = 2 * SIZE**3
    points = sorted(float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() in "os^")
    device = 3 * SIZE**2 * 2  # each matrix once
    assert points == pytest.approx([flop / (4e8 * 128), flop / (4e9 * 2.2), flop / device])
    speed = flop / 10e-3 / 1e12
    slopes = {line.get_label().split(":")[0]: line.get_xydata()[-1] for line in axes.lines if ":" in line.get_label()}
    peak = 2048 * SMS * 2 * MHZ * 1e6 / 1e12
    ridges = {"shared memory and L1": 128 * SMS * 2 * MHZ * 1e6, "L2 → SMs": 4e12, "device memory": 2e12}
    assert set(slopes) == set(ridges)
    for name, (x, y) in slopes.items():
        assert y == pytest.approx(min(peak, x * ridges[name] / 1e12))
    assert "09" in [text.get_text() for text in axes.texts]
    assert all(line.get_ydata()[0] == pytest.approx(speed) for line in axes.lines if line.get_marker() in "os^")
