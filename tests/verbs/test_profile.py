from __future__ import annotations

import functools
import io
import os
import sys
from argparse import ArgumentParser

import pytest
import torch
from rich.console import Console

import kernels
from common import count, profile, results
from common.emulator.report import INCLUDED, METRICS
from common.errors import UserError

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
def ncu(tmp_path, monkeypatch):
    def install(behaviour=""):
        path = tmp_path / "ncu"
        path.write_text(FAKE_NCU.format(python=sys.executable, behaviour=behaviour))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_ncus_table_is_read():
    first, second = profile.parse(RAW)
    assert first["gpu__time_duration.sum"] == 12345
    assert first["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 2**20
    assert "Kernel Name" not in first
    assert second["lts__t_sector_hit_rate.pct"] == 10
    with pytest.raises(UserError, match="no table; it said:\n.*Disconnected"):
        profile.parse("==PROF== Disconnected")


def test_sums_are_added_over_launches_and_ratios_are_those_of_the_longest():
    values = profile.totals(profile.parse(RAW))
    assert values["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 2**20 + 24
    assert values["lts__t_sector_hit_rate.pct"] == 87.5
    with pytest.raises(UserError, match="no kernel launch"):
        profile.totals([])


def test_counters_stand_beside_each_other_by_name():
    pairs = profile.compare({"global_load_sectors": 1048576, "instructions.fma": 5}, profile.parse(RAW)[0])
    assert pairs == {
        "global_load_sectors": {
            "emulator": 1048576,
            "ncu": 1048576,
            "metric": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        }
    }
    assert profile.compare(None, profile.parse(RAW)[0])["global_load_sectors"]["emulator"] is None


def test_tensor_instructions_are_compared_only_if_there_are_any():
    measured = {METRICS["instructions.mma"]: 64.0, METRICS["instructions.ldmatrix"]: 16.0}
    assert set(profile.compare({"instructions.mma": 64}, measured)) == {"instructions.mma", "instructions.ldmatrix"}
    assert set(profile.compare({"instructions.mma": 0}, measured)) == {"instructions.ldmatrix"}
    assert set(profile.compare(None, measured)) == {"instructions.mma", "instructions.ldmatrix"}


# What ncu measured on an H200 where it differs (256 x 256 x 256, fp16): stage -> counter -> value
MEASURED = {
    "02": {"shared_load_wavefronts": 655360},
    "05": {"shared_store_wavefronts": 3572, "shared_store_conflicts": 500},
    "07": {"global_load_requests": 768, "global_load_sectors": 14336},
    "09": {"shared_load_wavefronts": 8198, "shared_load_conflicts": 6},
    "10": {"shared_load_wavefronts": 13079, "shared_load_conflicts": 23, "instructions.cp.async": 2688},
}
COPIES = {"global_load_sectors", "shared_load_wavefronts", "shared_load_conflicts", "instructions.cp.async"}
# stage -> counters that a caveat allows to differ; all others have to be equal
ALLOWED = {
    "01": set(),
    "02": {"shared_load_wavefronts", "shared_store_wavefronts", "shared_store_conflicts"},
    "03": {"shared_load_wavefronts", "shared_store_wavefronts", "shared_store_conflicts"},
    "04": {"shared_load_wavefronts", "shared_load_conflicts", "shared_store_wavefronts", "shared_store_conflicts"},
    "05": {"shared_store_wavefronts", "shared_store_conflicts"},
    "06": {"shared_store_wavefronts", "shared_store_conflicts"},
    "07": COPIES,
    "08": COPIES,
    "09": COPIES,
    "10": COPIES,
}
SIZE = 256


@functools.cache
def emulated(name):
    kernel = kernels.load(name).kernel("fp16")
    return count.emulate(kernel, (SIZE,) * 3, sanitize=False).counters.flat()


def unexplained(counts, **changed):
    """What is reported as different without a reason if ncu counts as the emulator, but for `changed`."""
    own = {key: counts.get(key, 0) + counts.get(INCLUDED.get(key, ""), 0) for key in METRICS} | changed
    pairs = profile.compare(counts, {METRICS[key]: float(value) for key, value in own.items()})
    return {key for key, pair in pairs.items() if pair["emulator"] != pair["ncu"] and "why" not in pair}


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_is_equal_or_explained(name):
    assert unexplained(emulated(name)) == set()
    assert unexplained(emulated(name), **MEASURED[name]) == set()


@pytest.mark.parametrize("name", ALLOWED)
def test_a_wrong_model_would_be_seen(name):
    """One more or one less is a difference, but for the counters with a caveat; those have limits, up and down."""
    counts = emulated(name)
    for key in METRICS:
        value = counts.get(key, 0) + counts.get(INCLUDED.get(key, ""), 0)
        if key == "instructions.mma" and not value:
            continue
        off = {change for change in (value - 1, value + 1) if key in unexplained(counts, **{key: change})}
        assert (len(off) < 2) == (key in ALLOWED[name]), key
        beyond = 2 * value + counts["shared_store_wavefronts"] + counts["shared_load_wavefronts"] // 100 + 1
        assert key in unexplained(counts, **{key: beyond})
        assert key in unexplained(counts, **{key: value // 8 - 1})


def test_the_table_names_the_reasons():
    counts = {"instructions.store.shared": 768, "shared_store_wavefronts": 3072}
    measured = {METRICS["shared_store_wavefronts"]: 3572.0, METRICS["shared_store_conflicts"]: 500.0}
    pairs = profile.compare(counts, measured)
    row = {"label": "05", "shape": dict.fromkeys("MNK", 256), "metrics": {}, "counters": pairs}
    console = Console(file=io.StringIO(), width=160)
    console.print(profile.tables(row, "NVIDIA H200")[0])
    out = " ".join(console.file.getvalue().split())
    assert "-14.0% (1)" in out and "-100.0% (1)" in out and out.count("(1) the hardware adds arbitration") == 1


def test_the_table_says_how_many_counters_agree():
    row = {
        "label": "01_naive fp16",
        "shape": dict.fromkeys("MNK", 256),
        "metrics": {"L2 hit rate": 87.5, "stall: barrier": 1.25},
        "counters": {
            "a": {"emulator": 8, "ncu": 8, "metric": "m.a"},
            "b": {"emulator": 11, "ncu": 10, "metric": "m.b"},
            "zero": {"emulator": 0, "ncu": 0, "metric": "m.z"},
        },
    }
    console = Console(file=io.StringIO(), width=160)
    for table in profile.tables(row, "NVIDIA H200"):
        console.print(table)
    out = " ".join(console.file.getvalue().split())
    assert "1 of 2 counters equal (NVIDIA H200)" in out
    assert "+10.0%" in out and "m.z" not in out
    assert "87.5 %" in out and "1.25 warps per issue" in out


def test_metrics_that_this_ncu_does_not_know_are_left_out_and_named(ncu):
    ncu()
    launches, unknown = profile.collect(["python", "x"], ["gpu__time_duration.sum", "lts__t_sector_hit_rate.pct"])
    assert launches == [{"ID": 0.0, "gpu__time_duration.sum": 1024.0}]
    assert unknown == ["lts__t_sector_hit_rate.pct"]


@pytest.mark.parametrize("behaviour, message", [("forbidden", "administrators only"), ("broken", "status 7.*\n.*boom")])
def test_what_ncu_complains_about_is_passed_on(ncu, behaviour, message):
    ncu(behaviour)
    with pytest.raises(UserError, match=message):
        profile.collect(["python", "x"], ["gpu__time_duration.sum"])


def test_the_launch_command_names_the_very_kernel(tmp_path):
    kernel = kernels.load("01").kernel("bf16", {"COALESCED": 0})
    words = profile.launch_command(kernel, (256, 128, 64), seed=3)
    assert words[1:4] == ["-m", "common.profile", "01_naive"]
    assert words[words.index("--dtype") + 1] == "bf16"
    assert words[words.index("--sizes") + 1] == "256x128x64"
    assert "COALESCED=0" in words and words[words.index("--seed") + 1] == "3"


def test_every_metric_is_asked_for_once():
    asked = profile.metrics()
    assert len(asked) == len(set(asked))
    assert "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum" in asked
    assert "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio" in asked


def parse(*words):
    parser = ArgumentParser()
    profile.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_to_do_and_shows_what_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    with pytest.raises(UserError, match="No GPU: .*\nno ncu found(.|\n)*`count`"):
        profile.run(kernels.load("01"), parse())
    assert capsys.readouterr().out == ""
    row = {
        "name": "01_naive",
        "label": "01_naive fp16",
        "number": 1,
        "problem": "gemm",
        "dtype": "fp16",
        "variants": {},
        "default": True,
        "source": None,
        "shape": dict.fromkeys("MNK", 256),
        "metrics": {"L2 hit rate": 87.5},
        "counters": {"global_load_sectors": {"emulator": 8, "ncu": 8, "metric": "m"}},
    }
    results.save(
        {
            "schema": 1,
            "kind": "profile",
            "command": "",
            "date": "2026-11-21T00:00:00+00:00",
            "commit": "abc",
            "gpu": "NVIDIA H200",
            "rows": [row],
        },
        tmp_path / "profile.json",
    )
    with pytest.raises(UserError):
        profile.run(kernels.load("01"), parse())
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 counters equal (recorded, not measured now: NVIDIA H200, 2026-11-21)" in out


def _has_ncu_and_gpu():
    return torch.cuda.is_available() and profile._has_ncu()


@pytest.mark.skipif(not _has_ncu_and_gpu(), reason="needs a GPU and ncu")
@pytest.mark.parametrize("name", ALLOWED)
def test_emulator_and_hardware_count_the_same(name, tmp_path):
    """But for CAVEATS, within their limits."""
    path = tmp_path / "profile.json"
    words = ("--dtype", "fp16", "--sizes", str(SIZE), "--json", str(path))
    assert profile.run(kernels.load(name), parse(*words)) == 0
    (row,) = results.load(path)["rows"]
    different = {
        key: (pair["emulator"], pair["ncu"])
        for key, pair in row["counters"].items()
        if pair["emulator"] != pair["ncu"] and "why" not in pair
    }
    assert not different, "counter: (emulator, ncu)"
