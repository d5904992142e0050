"""The verb `profile`: one process for all that is asked for, the hardware's counters beside the emulator's."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import defaultdict

import pytest
import torch

import kernels
from common import course
from common.measure import ncu
from common.measure.ncu import Launch
from common.results import runs
from common.verbs import profile
from cudaemu.errors import UserError
from cudaemu.report import METRICS
from tests.printed import shown


def test_launches_are_told_apart_by_what_torch_launches_between_them():
    separator = "void at::native::vectorized_elementwise_kernel<4, ...>(int, ...)"
    assert profile.SEPARATOR in separator
    one, two, three = (Launch(name, {"x": 1.0}) for name in ("gemm_kernel(int)", "split(float *)", "reduce(float *)"))
    mark = Launch(separator, {})
    assert profile.by_job([one, mark, two, three, mark], 2) == [[one], [two, three]]
    assert profile.by_job([mark, one, mark], 2) == [[], [one]]
    for wrong in ([one], [one, mark], [one, mark, two, mark, three, mark]):
        with pytest.raises(UserError, match="of 2 kernels"):
            profile.by_job(wrong, 2)


def test_the_launch_command_names_the_very_kernels(edited):
    mine = edited(kernels.load("02"))
    jobs = [
        (kernels.load("01").kernel("bf16", {"COALESCED": 0}), (256, 128, 64)),
        (kernels.load("02").kernel(source=mine), (64, 64, 64)),
    ]
    words = profile.launch_command(jobs, seed=3)
    assert words[1:3] == ["-m", "common.verbs.profile"] and words[-1] == "3"
    first, second = json.loads(words[3])
    assert first == ["01_naive", "bf16", {"COALESCED": 0}, str(kernels.load("01").source), [256, 128, 64]]
    assert second == ["02_block_tile", "fp16", {}, str(mine), [64, 64, 64]]


def row(counters: dict, metrics: dict) -> dict:
    """A row of a recorded profile."""
    about = {"name": "01_naive", "label": "01_naive fp16", "part": "gemm", "problem": "gemm"}
    case = {"dtype": "fp16", "settings": {}, "shape": dict.fromkeys("MNK", 256), "size": "256"}
    kernel = {"variants": {}, "defaults": {}, "default": True, "source": None}
    return {**about, **case, **kernel, "counters": counters, "metrics": metrics}


def test_tables_say_how_many_counters_agree_and_why_others_do_not():
    counts = {"instructions.store.shared": 768, "shared_store_wavefronts": 3072, "shared_load_wavefronts": 1000}
    measured = {METRICS["shared_store_wavefronts"]: 3572.0, METRICS["shared_store_conflicts"]: 500.0}
    measured |= {METRICS["shared_load_wavefronts"]: 600.0, METRICS["global_load_sectors"]: 7.0}
    pairs = ncu.compare(counts, measured, {"shared_load_wavefronts": 600})
    made = profile.tables(row(pairs, {"L2 hit rate": 87.5, "stall: barrier": 1.25}), "NVIDIA H200")
    text = "\n".join(shown(table) for table in made)
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    out = " ".join(text.split())
    assert "01_naive fp16 256: 1 of 4 counters equal (NVIDIA H200)" in out
    assert "shared_load_wavefronts 600 600 = (1)" in out and f"(1) {ncu.MERGED}" in out
    assert "shared_store_wavefronts 3,072 3,572 -14.0% (2)" in out and "-100.0% (2)" in out
    assert out.count("(2) the hardware adds arbitration") == 1
    assert "without merging: shared_load_wavefronts 1,000" in out
    assert "global_load_sectors 0 7 -100.0% shared_load" in out, "no reason is known"
    assert "L2 hit rate 87.5 %" in out and "stall: barrier 1.25 warps per issue" in out


def test_counters_that_nobody_has_are_left_out():
    pairs = {"zero": {"emulator": 0, "ncu": 0, "metric": "m.z"}, "a": {"emulator": 8, "ncu": 8, "metric": "m.a"}}
    text = shown(profile.tables(row(pairs, {}), "here")[0])
    assert "zero" not in text and "1 of 1 counters equal" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_to_do_and_shows_what_is_recorded(tmp_path, monkeypatch, command):
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    status, out, err = command("kernels.01_naive", "profile")
    assert (status, out) == (2, "") and "No GPU: " in err and "no ncu found" in err and "`count`" in err
    pairs = {"global_load_sectors": {"emulator": 8, "ncu": 8, "metric": "m"}}
    head = {"schema": 2, "kind": "profile", "command": "", "date": "2026-11-21T00:00:00+00:00", "commit": "abc"}
    runs.save(head | {"gpu": "NVIDIA H200", "rows": [row(pairs, {"L2 hit rate": 87.5})]}, tmp_path / "profile.json")
    status, out, err = command("kernels", "profile", "01", "02")
    assert status == 2
    assert "1 of 1 counters equal (recorded, not measured now: NVIDIA H200, 2026-11-21)" in " ".join(out.split())


@pytest.fixture(scope="module")
def profiled(tmp_path_factory) -> dict[str, dict]:
    """{stage: its row of a profile}, of its first kernel at a size that the emulator counts. One run of ncu for
    all stages of a size: most of a run's time is its start."""
    together = defaultdict(list)
    for stage in course.everything():
        kernel = stage.kernel()
        size = stage.spec.format(stage.spec.emulator_shapes(kernel.variants)[0])
        together[kernel.dtype, size].append(stage)
    parser, rows = ArgumentParser(), {}
    profile.add_arguments(parser)
    for (dtype, size), stages in together.items():
        path = tmp_path_factory.mktemp("profile") / "profile.json"
        words = ["--dtype", dtype, "--sizes", size, "--json", str(path)]
        assert profile.run_ladder(stages, parser.parse_args(words)) == 0
        rows |= {row["name"]: row for row in runs.load(path)["rows"]}
    return rows


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(not ncu.available(), reason="needs ncu")
@pytest.mark.parametrize("stage", course.everything(), ids=lambda stage: stage.name)
def test_emulator_and_hardware_count_the_same(stage, profiled):
    """But for CAVEATS, within their limits."""
    different = {
        key: (pair.get("code", pair["emulator"]), pair["ncu"])
        for key, pair in profiled[stage.name]["counters"].items()
        if pair.get("code", pair["emulator"]) != pair["ncu"] and "why" not in pair
    }
    assert not different, "counter: (expected, ncu)"
