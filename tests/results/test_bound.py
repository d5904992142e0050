"""Bounds: counts over rates, of the right profile and GPU; no recorded run is faster than its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.results import markdown, plot, runs
from common.results.bound import Bounds
from common.results.documents import TABLES
from common.results.runs import Record
from cudaemu.errors import UserError
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
        for key, value in {"L2": 4.0, "L2, TMA": 3.0, "L2, TMA, twice": 8.0, "DRAM read": 2.0, "DRAM copy": 1.5}.items()
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
    """A row whose launches took `ms` at 1 GHz, as counted around them: clocks are 10⁶ · ms."""
    clock = {"ghz": MHZ / 1e3, "min": 0.9, "max": 1.1, "clocks": ms * 1e-3 * MHZ * 1e6}
    return row("09_swizzle", 2 * SIZE**3 / ms / 1e9, **{"clock": clock, "limited_by": {"power cap": 0.25}} | more)


def test_each_resource_takes_what_is_needed_over_what_there_is(bound_of):
    bound = bound_of(measured(10.0))
    assert {need.resource: need.clocks for need in bound.needs} == pytest.approx(in_clocks(LEAST))
    assert [need.resource for need in bound.needs] == sorted(LEAST, key=lambda name: -LEAST[name])
    assert bound.clocks == pytest.approx(8e6) and bound.share == pytest.approx(0.8)


def in_clocks(ms: dict[str, float]) -> dict[str, float]:
    return {name: each * 1e-3 * MHZ * 1e6 for name, each in ms.items()}


def test_the_problem_s_bound_counts_its_own_operations_only(bound_of):
    """However many the kernel does; at the rate of the tensor cores for a kernel of FMAs, too."""
    least = 2 * SIZE**3 / 2048 / SMS
    bound = bound_of(measured(10.0))
    assert bound.problem == pytest.approx(least) and Bounds().of_problem(bound.record) == pytest.approx(least / 10e6)
    assert bound_of(measured(10.0, limit="FMA fp32")).problem == pytest.approx(least)
    assert bound_of(measured(10.0, limit="wgmma fp16")).problem == pytest.approx(least / 2)
    (library,) = run(row("cuBLAS", 100.0, role="peer"))["rows"]
    assert Bounds().of_problem(Record(bound.record.run, library)) is None


def test_a_table_names_the_rates_of_its_problem_s_bounds(bound_of):
    """A stage whose instruction is another one has another rate; a library has none."""
    records = [bound_of(measured(10.0, limit=limit)).record for limit in ("FMA fp32", "mma.sync fp16", "wgmma fp16")]
    (library,) = run(row("cuBLAS", 100.0, role="peer"))["rows"]
    said = Bounds().rates_of_problem([*records[:2], Record(records[0].run, library)])
    assert said == "\nThe problem's bound is at 2,048 FLOP per clock and SM (mma.sync fp16)."
    records[2].row["name"] = "h1_wgmma"
    assert (
        Bounds()
        .rates_of_problem(records)
        .endswith(" (mma.sync fp16: 09_swizzle), 4,096 FLOP per clock and SM (wgmma fp16: h1_wgmma).")
    )
    assert Bounds().rates_of_problem([Record(records[0].run, library)]) == ""


def test_without_a_rate_of_its_unit_the_problem_has_no_bound(bound_of):
    slow = ceilings()
    slow["rows"] = [each for each in slow["rows"] if not each["key"].startswith(("wgmma", "mma"))]
    assert bound_of(measured(10.0), rates=slow).problem is None


def test_without_a_rate_of_wgmma_its_kernels_have_no_bound_at_all(bound_of):
    slow = ceilings()
    slow["rows"] = [each for each in slow["rows"] if not each["key"].startswith("wgmma")]
    bound = bound_of(measured(10.0), rates=slow)
    wgmma = Record(bound.record.run, bound.record.row | {"limit": "wgmma fp16"})
    assert Bounds().of(wgmma) is None and "wgmma fp16" in Bounds().missing(wgmma)


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
    assert bound.needs[0].resource == "FMA pipe" and bound.clocks == pytest.approx(9e6)
    assert "tensor cores (mma.sync)" not in [need.resource for need in bound.needs]
    assert bound.busy == {"FMA pipe": 5.0, "issue slots": 17.0}


def test_a_kernel_of_wgmma_has_a_ceiling_of_its_own(bound_of):
    """What its instructions do is not in their number: the computation says how many operations there are."""
    bound = bound_of(measured(20.0, limit="wgmma fp16"), rates=ceilings(**{"wgmma fp16": 4096.0}))
    (need,) = (need for need in bound.needs if need.resource.startswith("tensor cores"))
    assert (need.resource, need.count, need.rate) == ("tensor cores (wgmma)", 2 * SIZE**3, 4096.0)
    assert need.clocks == pytest.approx(2 * SIZE**3 / 4096 / SMS)
    (need,) = (need for need in bound.needs if need.resource == "L2 → SMs")
    assert need.rate == 8e12  # TMA's best; that of loads would be 4
    assert bound.busy == {"tensor pipe": 61.0, "issue slots": 17.0}


def test_the_longest_stalls_are_those_of_warps_that_could_not_run(bound_of):
    bound = bound_of(measured(10.0))
    assert bound.stalls() == [
        ("memory queue full (MIO)", 3.0),
        ("long scoreboard (global, local memory)", 1.25),
        ("barrier", 0.5),
    ]
    assert bound.busy == {"tensor pipe": 61.0, "issue slots": 17.0}


def test_rows_of_before_clocks_were_counted_are_compared_with_those_of_ncu(bound_of):
    """9 ms at 1.5 GHz; L2 has a pace of its own, so that a launch of more clocks needs more of them for it."""
    row = measured(10.0)
    del row["clock"]
    bound = bound_of(row, profile(metrics={"duration": 9e6, "SM clock": 1.5e9}))
    assert bound.measured == pytest.approx(13.5e6) and bound.share == pytest.approx(8e6 / 13.5e6)
    needs = {need.resource: need.clocks for need in bound.needs}
    assert needs["tensor cores (mma.sync)"] == pytest.approx(8e6) and needs["L2 → SMs"] == pytest.approx(2.2 * 1.5e6)
    assert bound_of(row).measured == pytest.approx(10e-3 * 2 * MHZ * 1e6)  # nothing is known: the GPU's highest clock
    assert Bounds().of_problem(bound.record) is None


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
    verdict = lambda: TABLES["verdict"]("09_swizzle", "fp16", "4096")  # noqa: E731
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
    bound_of(measured(10.0))
    text = TABLES["verdict"]("09_swizzle", "fp16", "4096")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert cells[0] == ["fp16, 4096", "needs", "there is", "fewest clocks", "of the measured"]
    assert cells[2] == ["tensor cores (mma.sync)", "1.64 TFLOP", "2,048 per clock and SM", "8,000,000", "80%"]
    assert ["L2 → SMs", "8.8 GB", "4 TB/s", "2,200,000", "22%"] in cells
    assert "ALU pipe" in text and "device memory" not in text  # 5 % of the clocks and more
    said = "**Bound: 8,000,000 clocks by tensor cores (mma.sync). Measured: 10,000,000; the bound is 80% of that.**"
    assert f"{said} The problem's own bound is 671,089: 7%." in text
    assert "Time: 10 ms, 13.7 TFLOP/s, at 1.000 GHz; limited by: power cap 25%." in text
    assert "memory queue full (MIO) 3.00, long scoreboard (global, local memory) 1.25, barrier 0.50." in text
    assert "Busy: tensor pipe 61 % of the time, issue slots 17 % of the time, occupancy 12 %." in text
    assert "times [bench.json], counts [profile.json], rates [ceiling.json]" in text
    table = markdown.TABLES["bounds"]("gemm", "fp16", "4096")
    line = "| 09_swizzle | tensor cores (mma.sync) | 8,000,000 | 10,000,000 | 80% | 7% | memory queue full 3.0, "
    assert line + "long scoreboard 1.2, barrier 0.5 |" in table
    assert "[bench.json], [profile.json], [ceiling.json]." in table
    assert "| 6.7% |" in markdown.TABLES["ladder"]("gemm", "fp16", "4096")


def test_needs_stand_side_by_side_and_the_last_time_is_not_told(record):
    """That is to be predicted. What is 5 % of the first one's time and more is shown, for both."""
    earlier = measured(20.0) | {"name": "08_multi_stage"}
    record("bench", run(earlier, measured(10.0)))
    record("ceiling", ceilings())
    more = profile(name="08_multi_stage")
    more["counters"] = {**more["counters"], "shared_store_wavefronts": {"ncu": 12e8}}
    record("profile", run(profile(), more, kind="profile"))
    text = TABLES["needs"]("08_multi_stage", "09_swizzle", size="4096")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert cells[0] == ["fewest clocks, fp16, 4096", "08_multi_stage", "09_swizzle"]
    assert cells[2] == ["shared memory and L1", "15,000,000", "4,000,000"] and cells[3][1:] == ["8,000,000"] * 2
    assert ["issue slots", "1,500,000", "1,500,000"] in cells and "ALU pipe" not in text
    assert cells[-1] == ["measured", "20,000,000", "below"]
    assert "[profile.json]" in text and "[ceiling.json]" in text
    missing = TABLES["needs"]("08_multi_stage", "07_cp_async", size="4096")
    assert missing == "*No run of 07_cp_async fp16 at 4096 is recorded yet.*"


def test_a_warp_s_time_is_shared_out_whole(bound_of):
    """0.5 + 3 + 9 + 1.25 + 0.01 warps wait while one issues; 2 ms at 1.5 GHz are 3 million clocks."""
    bound = bound_of(measured(10.0), profile(metrics={"duration": 2e6, "SM clock": 1.5e9}))
    assert sum(bound.waits().values()) == pytest.approx(1) and bound.waits()["barrier"] == pytest.approx(0.5 / 14.76)
    text = TABLES["waits"]("09_swizzle", size="4096")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert cells[2] == ["not selected", "61%"] and ["issuing", "7%"] in cells and "barrier" not in text
    assert cells[-3:] == [
        ["**tensor pipe busy**", "61%"],
        ["**issue slots busy**", "17%"],
        ["**clocks of an SM**", "3,000,000"],
    ]
    assert "No run of 07_cp_async" in TABLES["waits"]("09_swizzle", "07_cp_async", size="4096")


def test_stages_are_compared_in_clocks_size_by_size(record):
    """At a lower clock the same clocks take longer: that is no step."""
    slow = {"ghz": 0.5, "min": 0.5, "max": 0.5, "clocks": 12e6}
    rows = [measured(24.0, clock=slow, limited_by={}) | {"name": "08_multi_stage"}, measured(10.0)]
    rows.append(rows[0] | {"name": "11_any_shape"})
    record("bench", run(*rows, empty={"median": 0.0021, "p20": 0.002, "p80": 0.0022, "n": 9}))
    record("profile", run(profile(), kind="profile"))
    record("ceiling", ceilings())
    text = TABLES["in_clocks"]("08_multi_stage", "09_swizzle")
    assert "| 08_multi_stage, 4096 | 12,000,000 | – | 6% | – | – | 0.500 GHz | nothing |" in text
    line = "| 09_swizzle, 4096 | 10,000,000 | 1.200 | 7% | 8,000,000 | 80% | 1.000 GHz | power cap 25% |"
    assert line in text and "An empty kernel took 2.1 µs" in text
    assert TABLES["in_clocks"]("07_cp_async") == markdown.NOTHING
    assert "| 11_any_shape, 4096 | 12,000,000 |" in TABLES["in_clocks"]("11_any_shape")
    assert TABLES["in_clocks"]("11_any_shape", B_TRANSPOSED="1") == markdown.NOTHING
    with pytest.raises(UserError, match="09_swizzle has no variant 'HEAD_DIM'"):
        TABLES["in_clocks"]("09_swizzle", HEAD_DIM="64")


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
    assert markdown.quantity(value, unit) == text


def test_no_recorded_run_is_faster_than_its_bound():
    """Of all runs in docs/results: a kernel that beats its bound shows that the bound, or a count, is wrong."""
    bounds = Bounds()
    found = [b for made in runs.runs(kind="bench") for r in runs.records(made) if (b := bounds.of(r)) is not None]
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
    device = 3 * SIZE**2 * 2  # each matrix once, where ncu did not count it
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


def test_marks_share_a_label_only_where_they_lie_upon_each_other(bound_of):
    bound = bound_of(measured(10.0))
    row = bound.record.row | {"name": "10_other"}
    twice = tuple(replace(need, count=2 * need.count) for need in bound.needs)

    def labels(**changed) -> set[str]:
        other = replace(bound, record=Record(bound.record.run, row | changed.pop("row", {})), **changed)
        texts = {text.get_text() for text in plot.roofline([bound, other], "a title").axes[0].texts}
        return {text for text in texts if text[:2] in ("09", "10")}

    assert labels() == {"09, 10"}
    assert labels(needs=twice) == {"09", "10"}
    assert labels(row={"tflops": 2 * row["tflops"]}) == {"09", "10"}
