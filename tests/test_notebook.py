"""What notebooks show besides figures: quotes, tables, verdicts, made of the files as they are."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import kernels
from common import counts, course, notebook
from common.results import runs
from cudaemu.errors import UserError


@pytest.mark.parametrize("stage", course.everything(), ids=lambda stage: stage.name)
def test_phases_are_quoted_whole_and_in_order(stage):
    source = stage.source.read_text()
    last = 0
    for number in range(1, 20):
        try:
            shown = notebook.phase(stage, number).data
        except UserError:
            break
        where, _, code = shown.partition("```cpp\n")
        first, end = (int(word) for word in where.split("lines ")[1].split(":")[0].split("–"))
        lines = source.splitlines()[first - 1 : end]
        assert first > last and f"// {number}. " in lines[0]
        assert [line.strip() for line in code.removesuffix("\n```").splitlines()] == [line.strip() for line in lines]
        last = end
    assert number > 3, "a kernel has numbered phases"


def test_quotes_are_of_the_lines_asked_for():
    stage = kernels.load("02")
    one = notebook.quote(stage, "__syncthreads();  // everybody waits for all writers").data
    assert one.count("__syncthreads") == 1 and f"`kernels/{stage.name}/kernel.cu`, line " in one
    several = notebook.quote(stage, 'extern "C"', "\n}").data
    assert f"`kernels/{stage.name}/kernel.cu`, lines " in several
    assert several.rstrip("`\n").endswith("}") and "return cudaGetLastError();" in several
    for start, end in (("nowhere to be found", None), ('extern "C"', "nowhere to be found")):
        with pytest.raises(UserError, match="has no line with"):
            notebook.quote(stage, start, end)
    with pytest.raises(UserError, match="phases .*1, 2, 3, 4, got 9"):
        notebook.phase(stage, 9)


def test_the_header_is_the_files_own():
    stage = kernels.load("03")
    text = notebook.header(stage).data
    assert "Stage 03" in text and "Thread map" in text and "#include" not in text and "//" not in text


def test_the_diff_is_folded_below_its_size():
    text = notebook.diff(kernels.load("02")).data
    assert "<b>01_naive → 02_block_tile</b>: +" in text and text.count("<details>") == 1


def test_what_is_folded_is_whole_in_plain_text():
    """A reader writes the code first; where nothing can be folded it is shown."""
    stage = kernels.load("02")
    for show in (notebook.header, notebook.diff, partial(notebook.phase, number=1), partial(notebook.quote, start="K")):
        text, folded = show(stage).data, show(stage, fold="our <b>code</b>")
        assert folded.data.startswith("<details><summary>our <b>code</b>") and folded.data.count("</details>") == 1
        code = text[text.index("```") : text.rindex("```")]
        assert code in folded.data and code in repr(folded)
        assert repr(folded).startswith("our code") and "<" not in repr(folded).partition("```")[0]
    assert "<details>" not in notebook.quote(stage, "K").data


@pytest.mark.full
def test_counters_stand_side_by_side_and_two_with_their_change():
    naive, block = kernels.load("01"), kernels.load("02")
    text = notebook.counters([naive, block], (64, 64, 64)).data
    assert "| 64 | 01_naive fp16 | 02_block_tile fp16 | change |" in text and "÷" in text
    text = notebook.counters([naive, block, naive], (64, 64, 64), ("instructions.fma",)).data
    assert "change" not in text and text.count("8,192") == 3
    last = [kernels.load(number).kernel("fp16", {"HEAD_DIM": 64}) for number in ("h7", "h8")]  # of six sizes, and four
    assert notebook.counters(last, (1, 1, 128, 64), ("instructions.wgmma",)).data.startswith("| 1x1x128 |")


def test_a_check_says_what_is_right_and_what_is_not(edited):
    stage = kernels.load("01")
    assert notebook.check(stage, (40, 33, 20), dtypes=("fp16",)).data.count("| ok |") == 1
    store = "C[(size_t)row * N + col] = Element(sum"
    broken = edited(stage, (store, f"{store} + (row == 33)"))
    text = notebook.check(stage, (40, 33, 20), dtypes=("fp16",), source=broken).data
    assert "**wrong**" in text and "wrong result" in text


def test_recorded_tables_name_their_files_as_such():
    text = notebook.recorded("uses", kernels.load("16"), "fp16", "1024", "4096", HEAD_DIM=64).data
    assert text.startswith("| size | time |") and "| × FA2 |" in text and "| 1024 |" in text
    assert text != notebook.recorded("uses", kernels.load("16"), "fp16", "1024", "4096", HEAD_DIM=128).data
    text = notebook.recorded("ladder", "attention", "fp16", "4096", HEAD_DIM=64).data
    assert "| 13_split_q |" in text and "| FA2 |" in text
    text = notebook.recorded("ladder", "gemm", "fp16", "4096").data
    assert "| 01_naive |" in text and "`docs/results/" in text and "](" not in text
    assert "COALESCED=0" in notebook.recorded("variants", kernels.load("01"), "COALESCED", "4096").data
    text = notebook.recorded("variants", kernels.load("11"), "SLICE_BYTES", "2048", B_TRANSPOSED=0).data
    assert "| `SLICE_BYTES=64` |" in text and "B_TRANSPOSED" not in text
    text = notebook.recorded("ragged", kernels.load("11"), "fp16", "2048,2040,2047x2047x2040").data
    assert "| 2040 |" in text and "| 11_any_shape |" in text and "`docs/results/ragged.json`" in text
    assert "| counter, size |" in notebook.recorded("profile", kernels.load("01")).data
    assert "| 13_split_q, fp16 |" in notebook.recorded("speed", kernels.load("13"), HEAD_DIM=64).data
    assert (
        notebook.recorded("speed", kernels.load("13"), HEAD_DIM=64).data
        != notebook.recorded("speed", kernels.load("13")).data
    )
    text = notebook.recorded("speed", kernels.load("03"), "fp32").data
    assert "| 02_block_tile, fp32 |" in text and "| cuBLAS, fp32 |" in text and "| × previous, fp32 |" in text


def test_recorded_comparisons_are_of_the_stages_asked_for():
    before, stage = kernels.load("09"), kernels.load("10")
    text = notebook.recorded("needs", before, stage).data
    assert f"| fewest clocks, fp16, 4096 | {before.name} | {stage.name} |" in text and text.count("| below |") == 1
    text = notebook.recorded("waits", before, stage, size="2048").data
    assert f"| of a warp's time, fp16, 2048 | {before.name} | {stage.name} |" in text and "**tensor pipe busy**" in text
    text = notebook.recorded("in_clocks", before, stage).data
    assert text.index(f"| {stage.name}, 2048 |") < text.index(f"| {before.name}, 8192 |") and "08_" not in text
    text = notebook.recorded("in_clocks", kernels.load("13"), kernels.load("14"), HEAD_DIM=64).data
    assert "| fp16 HEAD_DIM=64 |" in text and "| 14_shared_qkv, 4096 |" in text
    for row in (
        notebook.recorded("predicted", kernels.load("12"), kernels.load("13"), HEAD_DIM=64)
        .data.split("\n\n")[0]
        .splitlines()[2:]
    ):
        took, bound, gap, bound_after, prediction, took_after = (int(x.replace(",", "")) for x in row.split("|")[2:8])
        assert abs(took - bound - gap) <= 1 and abs(bound_after + gap - prediction) <= 1
        assert bound > bound_after and f"{took_after / prediction:.2f} |" in row
    text = notebook.recorded("steps", stage, {"GROUP_M": 1}, {}, "4096").data
    assert text.index(f"| {before.name} |") < text.index("| `GROUP_M=1` |") < text.index("| (default) |")
    assert "`docs/results/" in text and "](" not in text


def test_the_tensor_pipe_is_shown_with_the_longest_waits(monkeypatch, tmp_path):
    stage = kernels.load("h1")
    text = notebook.busy(kernels.load("09"), stage).data
    assert text.index("| 09_swizzle, 4096 |") < text.index("| h1_wgmma, 4096 |") and "`docs/results/profile-" in text
    run = runs.load(runs.RESULTS / "profile-hopper.json")
    row = next(row for row in run["rows"] if row["name"] == stage.name and row["size"] == "4096")
    stalls = {"stall: barrier": 2.0, "stall: dispatch": 1.0, "stall: not selected": 4.0}
    metrics = {"duration": 1e6, "SM clock": 1e9, "tensor pipe busy": 50.0} | stalls
    runs.save(run | {"rows": [row | {"metrics": metrics}]}, tmp_path / "profile.json")
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    text = notebook.busy(stage).data
    assert "| h1_wgmma, 4096 | 1,000,000 | 50% | barrier 25%, dispatch 12% |" in text
    assert "No run recorded" in notebook.busy(kernels.load("09")).data


def test_a_changed_copy_is_shown_beside_the_stage_of_its_run(monkeypatch, tmp_path):
    run = runs.load(runs.RESULTS / "through-l1-08_multi_stage.json")
    row = next(row for row in run["rows"] if row["name"] == "08_multi_stage" and row.get("source") is None)
    half = row | {
        "source": "/tmp/slower.cu",
        "tflops": row["tflops"] / 2,
        "ms": row["ms"] | {"median": 2 * row["ms"]["median"]},
    }
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    assert "not recorded yet" in notebook.beside(kernels.load("08"), "slower-08", "slower").data
    runs.save(run | {"rows": [row, half]}, tmp_path / "slower-08.json")
    text = notebook.beside(kernels.load("08"), "slower-08", "slower").data
    assert f"| {row['size']} |" in text and "| 0.50 (1.00) |" in text and "`docs/results/slower-08.json`" in text
    held = {"ms": row["ms"], "tflops": row["tflops"], "clock": row["clock"]}
    runs.save(run | {"rows": [row, row | {"sustained": held}, half | {"sustained": held}]}, tmp_path / "slower-08.json")
    text = notebook.beside(kernels.load("08"), "slower-08", "slower", in_a_row=True).data
    assert "| 1.00 (1.00) |" in text


def test_what_was_timed_in_turn_is_shown_with_its_clocks(monkeypatch, tmp_path):
    stage, before = kernels.load("h3"), kernels.load("h2")
    run = runs.load(runs.RESULTS / "without-setmaxnreg-h3.json")
    row = next(row for row in run["rows"] if row["name"] == stage.name and row["size"] == "4096")
    clock = row["clock"] | {"clocks": 1234, "ghz": 1.5}
    ours = row | {"ms": {"median": 1.0, "p20": 0.5, "p80": 2.0, "n": 3}, "clock": clock, "limited_by": {}}
    rows = [ours | {"size": "2048"}, ours, ours | {"source": "/tmp/other.cu"}, ours | {"name": before.name}]
    runs.save(run | {"rows": rows}, tmp_path / "some.json")
    monkeypatch.setattr(runs, "RESULTS", tmp_path)

    def ours_alone(row):
        return None if row["source"] else "as it is"

    made = notebook.timed(stage, "some", ("4096",), ours_alone, [before.name]).data
    told = "1.0000 (0.5000 to 2.0000) | 1,234 | 1.50 GHz | nothing |"
    assert made.splitlines()[2:4] == [f"| 4096 | as it is | {told}", f"| 4096 | {before.name} | {told}"]
    assert "`docs/results/some.json`" in made and run["gpu"] in made


def test_runs_of_the_same_kernel_are_compared(monkeypatch, tmp_path):
    stage = kernels.load("09")
    run = runs.load(runs.RESULTS / "ladder-gemm.json")
    row = next(row for row in run["rows"] if row["name"] == stage.name and row["size"] == "4096")
    for times in (1, 2, 3):
        clock = row["clock"] | {"clocks": 1000 + 100 * times}
        slower = row | {"ms": {key: value * times for key, value in row["ms"].items()} | {"n": 3}, "clock": clock}
        runs.save(run | {"rows": [slower]}, tmp_path / f"run{times}.json")
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    text = notebook.repeated(stage, "4096", "64").data
    assert "| 4096, fp16 | 3 |" in text and "| 3.00 | 1.18 |" in text and "64, fp16" not in text
    assert "No run recorded" in notebook.repeated(stage, "64").data


@pytest.fixture
def ceilings(monkeypatch):
    """Rates of round numbers: an mma takes 2 clocks, a wavefront 1, an FMA of a warp a quarter; 100 SMs at 1 GHz."""
    per_clock = {"mma.sync fp16": 2048.0, "FMA fp32": 256.0}
    rows = [{"key": key, "value": 1.0, "unit": "TFLOP/s", "per_clock": {"value": v}} for key, v in per_clock.items()]
    rates = {"shared load": 128.0, "ldmatrix": 128.0, "ldmatrix + cp.async": 128.0}
    rows += [{"key": key, "value": value, "unit": "byte/clock/SM"} for key, value in rates.items()]
    made = {"gpu": "NVIDIA H200", "rows": rows, "sms": 100, "highest_mhz": 1000.0}
    monkeypatch.setattr(notebook, "newest_ceilings", lambda: made)
    return made


def test_the_bound_counts_loads_as_the_machine_code_has_them(ceilings):
    """02 in fp32: for 32 products a warp reads 32 rows of B, and of A 8 times 16 bytes, which take two wavefronts."""
    text = notebook.bound([kernels.load("02").kernel("fp32")], (128, 128, 128)).data
    products, stores = 128**3 // 32, 4 * 4 * 4 * 2 * 32
    shared = products * (32 + 8 * 2) // 32 + stores
    tflops = 2 * 128**3 / shared * 100 * 1e9 / 1e12
    assert f"| {products / 4:,.0f} | {shared:,} | {products / 4 / shared:.0%} | {tflops:.3g} |" in text


def test_the_bound_of_tensor_cores_counts_copies_too(ceilings):
    """A whole tile of 07: 8 clocks of mma per 2 KB that are copied, and the loads that feed them."""
    shape = (128, 256, 64)
    text = notebook.bound([kernels.load("07").kernel("fp16")], shape).data
    counted = counts.emulate(kernels.load("07").kernel("fp16"), shape).counters
    shared = counted["shared_load_wavefronts"] + counted["shared_store_wavefronts"] + counted["cp_async_sectors"] // 4
    assert f"| {counted['instructions.mma'] * 2:,} | {shared:,} |" in text
    assert counted["cp_async_sectors"] // 4 > 0
    ceilings["rows"][-1]["value"] = 250.0  # now copies have a path of their own
    assert (
        f"| {shared - counted['cp_async_sectors'] // 4:,} |"
        in notebook.bound([kernels.load("07").kernel("fp16")], shape).data
    )


def test_a_bound_without_rates_says_what_to_record(monkeypatch):
    monkeypatch.setattr(notebook, "newest_ceilings", lambda: None)
    assert "python -m common.measure.ceiling" in notebook.bound([kernels.load("02").kernel("fp32")], (32, 32, 32)).data


def test_what_a_command_prints_is_quoted():
    stage = kernels.load("02")
    text = notebook.command(stage, "diff", "--context", "0").data
    assert text.startswith("`$ python -m kernels.02_block_tile diff --context 0`") and "+constexpr int BLOCK_K" in text
    with pytest.raises(UserError, match="unrecognized arguments: --fast"):
        notebook.command(stage, "diff", "--fast")


def test_times_are_not_invented_where_there_is_no_gpu(monkeypatch):
    stage = kernels.load("02")
    monkeypatch.setattr(type(stage), "unfit", "No GPU")
    assert notebook.live(stage).data == "*Not timed here (No GPU): times come from recorded runs on a GPU.*"


def test_what_an_sm_has_is_listed_by_generation():
    assert "H200" in notebook.limits().data


def test_a_program_is_run_with_what_the_emulator_says_of_it():
    code = """#include <cstdio>
    __global__ void set(int *x) { x[threadIdx.x + 1] = 1; }
    int main() {
      int *x;
      cudaMalloc(&x, 32 * sizeof(int));
      set<<<1, 32>>>(x);
      printf("%s\\n", cudaGetErrorString(cudaDeviceSynchronize()));
    }"""
    text = notebook.program(code, "sets.cu").data
    assert "an illegal memory access was encountered" in text and "sets.cu:2, set, block (0, 0, 0)" in text
    assert text.index("illegal") < text.index("sets.cu:2") and "/tmp" not in text


ADD = """__global__ void add(int n, const float *x, float *y) {
  int i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}
extern "C" cudaError_t launch(int n, const float *x, float *y) {
  add<<<(n + 31) / 32, 32>>>(n, x, y);
  return cudaGetLastError();
}"""


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("", "", ["**Right**", "`global_load_sectors`: 5, the goal is met."]),
        ("x[i]", "x[n - 1 - i]", ["**Wrong:** 40 of 40", "`y[0]` must be 1, got 40"]),
        ("(n + 31)", "n", ["**Wrong:** 8 of 40", "`y[32]` must be 33, got nan"]),
        ("i < n", "i <= n", ["**Breaks a rule:**", "yours.cu:3"]),
        (" + 1;", " + 1", ["**Does not run.**", "yours.cu(4)"]),
    ],
)
def test_an_exercise_is_judged(old, new, said):
    x, y = torch.arange(40.0), torch.full((40,), torch.nan)
    code = ADD.replace(old, new) if old else ADD
    text = notebook.exercise(code, {"y": x + 1}, {"global_load_sectors": 5}, n=40, x=x, y=y).data
    assert all(words in text for words in said) and ("**Right**" in text) == (said[0] == "**Right**")
    assert ".cache" not in text and "/snippets/" not in text


def test_a_goal_of_an_exercise_that_is_missed_is_named():
    x, y = torch.arange(40.0), torch.full((40,), torch.nan)
    text = notebook.exercise(ADD, {"y": x + 1}, {"global_load_sectors": 4}, n=40, x=x, y=y).data
    assert "**Right**" in text and "a goal is missed" in text and "`global_load_sectors`: 5, goal: 4" in text


def test_what_can_be_practised_after_a_notebook(monkeypatch, tmp_path):
    """Every exercise of the stage, and the interview pages that refer to it."""
    text = notebook.further(kernels.load("06")).data
    assert text.startswith("## Exercises") and "`python -m kernels.06_padding practice` |" in text
    assert "`python -m kernels practice 06-rows` |" in text and "| bug | 2 |" in text and "05-" not in text
    assert "(../docs/interview/03_shared_memory.md)" in text and "16_several_gpus" not in text
    monkeypatch.setattr(notebook, "ROOT", tmp_path)  # without these pages, as in a repository for students
    assert "nterview" not in notebook.further(kernels.load("06")).data


def test_a_roofline_needs_recorded_profiles(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    assert "are recorded yet" in notebook.roofline().data


def test_what_a_tile_costs_needs_recorded_rates(monkeypatch):
    kernel = kernels.load("13").kernel()
    title = notebook.costs(kernel).texts[0].get_text()
    assert title.startswith(f"Needed longest: {kernel.label}: shared memory,")
    monkeypatch.setattr(notebook, "newest_ceilings", lambda: None)
    assert "python -m common.measure.ceiling" in notebook.costs(kernel).data


def test_assembly_is_of_the_code_and_of_the_generation_asked_for():
    code = "__global__ void axpy(float a, float *x) { x[threadIdx.x] = a * x[threadIdx.x] + 1.0f; }"
    ptx, _, machine_code = notebook.assembly(code, "8.0").data.partition("SASS:")
    assert "fma.rn.f32" in ptx and ".reg" not in ptx and "ret;" in ptx
    assert "FFMA" in machine_code and "LDG.E" in machine_code and "axpy" in machine_code
    assert notebook.assembly(code, "9.0").data != notebook.assembly(code, "8.0").data
