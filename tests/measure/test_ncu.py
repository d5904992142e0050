"""ncu: its tables read, its complaints passed on, its counters beside the emulator's."""

from __future__ import annotations

import functools
import os
import sys

import pytest

import kernels
from common import counts, course
from common.measure import ncu, shared_loads
from common.measure.ncu import Launch
from common.results import runs
from common.results.runs import Record
from common.stage import Stage
from cudaemu import Trace
from cudaemu.errors import UserError
from cudaemu.report import INCLUDED, METRICS

RAW = """\
==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "gemm_kernel" - 0: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"gpu__time_duration.sum","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","lts__t_sector_hit_rate.pct"
"","","","","","","","","","","","ns","sector","%"
"0","4242","python3.12","127.0.0.1","gemm_kernel(const __half *, const __half *, __half *, int, int, int)",\
"1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","12,345","1,048,576","87.5"
"1","4242","python3.12","127.0.0.1","reduce(float *)","1","7","(256, 1, 1)","(1, 1, 1)","0","9.0","2000","24","10"
"""

FAKE_NCU = """#!{python}
import sys
words = sys.argv[1:]
log = words[words.index("--log-file") + 1]
asked = words[words.index("--metrics") + 1].split(",")
assert words[words.index("--clock-control") + 1] == "none" and words[words.index("--profile-from-start") + 1] == "off"
if "{behaviour}" == "forbidden":
    open(log, "w").write("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters")
    sys.exit(1)
if "{behaviour}" == "broken":
    print("Traceback: boom", file=sys.stderr)
    sys.exit(7)
if "lts__t_sector_hit_rate.pct" in asked:
    open(log, "w").write("==ERROR== Failed to find metric lts__t_sector_hit_rate.pct")
    sys.exit(1)
command = words[words.index("--log-file") + 2:]
head = ",".join('"' + name + '"' for name in ["ID", *asked])
row = ",".join('"' + value + '"' for value in ["0", *["1,024"] * len(asked)])
open(log, "w").write("==PROF== " + " ".join(command) + "\\n" + head + "\\n" + row + "\\n")
"""


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    def install(behaviour=""):
        path = tmp_path / "ncu"
        path.write_text(FAKE_NCU.format(python=sys.executable, behaviour=behaviour))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_the_table_is_read():
    first, second = ncu.parse(RAW)
    assert first.kernel.startswith("gemm_kernel(") and second.kernel == "reduce(float *)"
    assert first.values["gpu__time_duration.sum"] == 12345
    assert first.values["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 2**20
    assert "Kernel Name" not in first.values
    assert second.values["lts__t_sector_hit_rate.pct"] == 10
    with pytest.raises(UserError, match="no table; it said:\n.*Disconnected"):
        ncu.parse("==PROF== Disconnected")


def test_sums_are_added_over_launches_and_ratios_are_those_of_the_longest():
    values = ncu.totals(ncu.parse(RAW))
    assert values["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 2**20 + 24
    assert values["lts__t_sector_hit_rate.pct"] == 87.5
    with pytest.raises(UserError, match="no kernel launch"):
        ncu.totals([])


def test_metrics_that_this_ncu_does_not_know_are_left_out_and_named(fake_ncu):
    fake_ncu()
    launches, unknown = ncu.collect(["python", "x"], ["gpu__time_duration.sum", "lts__t_sector_hit_rate.pct"])
    assert launches == [Launch("", {"ID": 0.0, "gpu__time_duration.sum": 1024.0})]
    assert unknown == ["lts__t_sector_hit_rate.pct"]


@pytest.mark.parametrize("behaviour, message", [("forbidden", "administrators only"), ("broken", "status 7.*\n.*boom")])
def test_what_ncu_complains_about_is_passed_on(fake_ncu, behaviour, message):
    fake_ncu(behaviour)
    with pytest.raises(UserError, match=message):
        ncu.collect(["python", "x"], ["gpu__time_duration.sum"])


def test_every_metric_is_asked_for_once():
    asked = ncu.metrics()
    assert len(asked) == len(set(asked))
    assert "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum" in asked
    assert "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio" in asked


# ---- beside the emulator ----


def test_counters_stand_beside_each_other_by_name():
    first = ncu.parse(RAW)[0].values
    pairs = ncu.compare({"global_load_sectors": 1048576, "instructions.fma": 5}, first)
    metric = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
    assert pairs == {"global_load_sectors": {"emulator": 1048576, "ncu": 1048576, "metric": metric}}
    assert ncu.compare(None, first)["global_load_sectors"]["emulator"] is None


def test_tensor_instructions_are_compared_only_if_there_are_any():
    measured = {METRICS["instructions.mma"]: 64.0, METRICS["instructions.ldmatrix"]: 16.0}
    assert set(ncu.compare({"instructions.mma": 64}, measured)) == {"instructions.mma", "instructions.ldmatrix"}
    assert set(ncu.compare({"instructions.mma": 0}, measured)) == {"instructions.ldmatrix"}
    assert set(ncu.compare(None, measured)) == {"instructions.mma", "instructions.ldmatrix"}


def test_tensor_instructions_of_several_kernels_may_be_miscounted():
    """16_final's second kernel, which combines parts, has none, but 3 HFMA2.MMA in its machine code."""
    metric = METRICS["instructions.mma"]
    assert "why" in ncu.compare({"instructions.mma": 64, ncu.LAUNCHES: 2}, {metric: 104.0})["instructions.mma"]
    assert "why" not in ncu.compare({"instructions.mma": 64, ncu.LAUNCHES: 1}, {metric: 104.0})["instructions.mma"]
    assert "why" not in ncu.compare({"instructions.mma": 64, ncu.LAUNCHES: 2}, {metric: 63.0})["instructions.mma"]


def test_copies_under_a_predicate_may_be_miscounted_and_only_those():
    own = {"cp_async_requests": 8, "cp_async_sectors": 64, "instructions.cp.async": 8}
    sectors, copies = METRICS["cp_async_sectors"], METRICS["instructions.cp.async"]
    assert "why" in ncu.compare(own, {sectors: 16.0, copies: 12.0})["cp_async_sectors"]
    assert "why" not in ncu.compare(own, {sectors: 16.0, copies: 8.0})["cp_async_sectors"]


def test_what_ptxas_merged_is_compared_as_it_was_merged():
    key = "shared_load_wavefronts"
    given, merged = {key: 1000, "instructions.load.shared": 1000}, {key: 600}
    (pair,) = ncu.compare(given, {METRICS[key]: 600.0}, merged).values()
    assert (pair["emulator"], pair["code"], pair["why"]) == (1000, 600, ncu.MERGED)
    for other in (1000, 601, 599):
        (pair,) = ncu.compare(given, {METRICS[key]: float(other)}, merged).values()
        assert pair["code"] == 600 and "why" not in pair
    (pair,) = ncu.compare(given, {METRICS[key]: 1000.0}, {key: 1000}).values()
    assert "code" not in pair and "why" not in pair
    copies = given | {"cp_async_requests": 1}
    (pair,) = ncu.compare(copies, {METRICS[key]: 603.0}, merged).values()
    assert pair["code"] == 600 and pair["why"].startswith(ncu.MERGED + "; now and then"), "both reasons"


# What an H200 counted in other runs than the recorded ones (256 x 256 x 256, fp16): stage -> counter -> value
MEASURED = {
    "02": {"shared_load_wavefronts": 655360},
    "05": {"shared_store_wavefronts": 3572, "shared_store_conflicts": 500},
    "07": {"global_load_requests": 768, "global_load_sectors": 14336},
    "09": {"shared_load_wavefronts": 8198, "shared_load_conflicts": 6},
}
STORES = {"shared_store_wavefronts", "shared_store_conflicts"}
LOADS = {"shared_load_wavefronts", "shared_load_conflicts"}
COPIES = {"global_load_sectors", "instructions.cp.async"}
ALLOWED: dict[str, set[str]] = {  # stage -> counters that a caveat allows to differ; all others have to be equal
    "01": set(),
    **dict.fromkeys(("02", "03", "04", "05", "06"), STORES | LOADS),
    **dict.fromkeys(("07", "08", "09", "10"), COPIES | LOADS),
}


@functools.cache
def emulated(name: str) -> tuple[dict[str, int], dict[str, int]]:
    """The counters of a stage, and those that ptxas changes, at the smallest size of its problem."""
    kernel = kernels.load(name).kernel()
    shape = kernel.stage.spec.emulator_shapes(kernel.variants)[0]
    report = counts.emulate(kernel, shape, sanitize=False, arch="9.0", trace=Trace(blocks=range(1)))
    merged = shared_loads.merged(kernel, report, "9.0")
    assert merged is not None
    return {**report.counters.flat(), ncu.LAUNCHES: len(report.launches)}, merged


def expected(name: str) -> dict[str, int]:
    """What ncu should count, by our names."""
    counted, merged = emulated(name)
    return {key: counted.get(key, 0) + counted.get(INCLUDED.get(key, ""), 0) for key in METRICS} | merged


def different(pairs: dict[str, dict]) -> dict[str, tuple[int, int]]:
    """The pairs that differ without a reason: counter -> (expected, ncu)."""
    found = {key: (pair.get("code", pair["emulator"]), pair["ncu"]) for key, pair in pairs.items()}
    return {key: (ours, theirs) for key, (ours, theirs) in found.items() if ours != theirs and "why" not in pairs[key]}


def unexplained(name: str, **changed: int) -> set[str]:
    """What is reported as different without a reason if ncu counts what is expected, but for `changed`."""
    counted, merged = emulated(name)
    measured = {METRICS[key]: float(value) for key, value in (expected(name) | changed).items()}
    return set(different(ncu.compare(counted, measured, merged)))


@pytest.mark.core(every=2)
@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_is_equal_or_explained(name: str):
    assert unexplained(name) == set()
    assert unexplained(name, **MEASURED[name]) == set()


def test_merged_loads_are_foretold_to_the_last_one():
    """02_block_tile: four halves of A, the same for all lanes, are one load of 8 bytes and one wavefront."""
    counted, merged = emulated("02")
    assert counted["shared_load_wavefronts"] == counted["shared_load_requests"] == 1048576
    assert merged == {"shared_load_wavefronts": 655360, "shared_load_conflicts": 0}


@pytest.mark.core(every=12)
@pytest.mark.parametrize("stage", course.everything(), ids=lambda stage: stage.name)
def test_a_wrong_model_would_be_seen(stage):
    """One more or one less is a difference, but for the counters with a caveat; those have limits, up and down."""
    name = stage.number
    counted, _ = emulated(name)
    for key, value in expected(name).items():
        if key == "instructions.mma" and not value:
            continue
        off = {change for change in (value - 1, value + 1) if key in unexplained(name, **{key: change})}
        if name in ALLOWED:
            assert (len(off) < 2) == (key in ALLOWED[name]), key
        beyond = 2 * value + counted["shared_store_wavefronts"] + counted["shared_load_wavefronts"] // 100 + 1
        assert key in unexplained(name, **{key: beyond})
        assert key in unexplained(name, **{key: value // 8 - 1})


RECORDED = [Record(run, row) for run in runs.runs(kind="profile") for row in run["rows"]]
NOT_RECORDED: dict[str, str] = {  # stage -> why ncu has counted no kernel like today's; this list may only shrink
    "16_final": "made shorter on 2026-11-28; record.sh counts-attention-128 counts-attention-64",
    "h5_final": "a lesson of its own since 2026-11-28; record.sh counts-hopper",
    "h8_fp8": "two files since 2026-11-28; record.sh counts-hopper-attention-128 counts-hopper-attention-64",
}


@pytest.mark.core(every=24)
@pytest.mark.parametrize("stage", course.everything(), ids=lambda stage: stage.name)
def test_recorded_counters_are_what_the_kernels_of_today_should_count(stage: Stage):
    """Of a kernel that has changed since, nothing can be said: it is profiled again, or is in NOT_RECORDED."""
    kernel, compared = stage.kernel(), 0
    shape = stage.spec.emulator_shapes(kernel.variants)[0]
    counted, merged = emulated(stage.number)
    for row in (record.row for record in RECORDED):
        what = row["name"], row["dtype"], row["variants"], tuple(row["shape"].values())
        if what != (stage.name, kernel.dtype, kernel.variants, shape):
            continue
        pairs = ncu.compare(counted, {pair["metric"]: pair["ncu"] for pair in row["counters"].values()}, merged)
        if any(pair["emulator"] != row["counters"][key]["emulator"] for key, pair in pairs.items()):
            continue
        compared += 1
        assert not different(pairs), "counter: (expected, ncu)"
        if counted["bulk_load_bytes"] and not counted["global_load_sectors"]:  # what comes, comes by TMA
            assert counted["bulk_load_bytes"] == row["metrics"]["L2 → L1"]
        if counted["wgmma_wavefronts"] and not counted["global_load_sectors"]:
            _data_path_is_accounted_for(counted, row["metrics"]["L1 wavefronts, data"])
    assert bool(compared) != (stage.name in NOT_RECORDED), f"python -m {stage.package} profile, on a GPU"


def _data_path_is_accounted_for(counted: dict[str, int], measured: float) -> None:
    """What takes L1's data path beside loads from global memory: operands of wgmma, loads and stores of shared memory,
    shuffles, a wavefront each, and stores of our fragments, eight rows of one sector. Copies and mbarriers are the
    rest."""
    shared = sum(counted[f"{kind}_wavefronts"] for kind in ("wgmma", "shared_load", "shared_store"))
    known = shared + counted.get("instructions.shuffle", 0) + counted["global_store_sectors"]
    assert known <= measured <= 1.05 * known
