"""What notebooks show besides figures: quotes, tables, verdicts, made of the files as they are."""

from __future__ import annotations

import pytest

import kernels
from common import notebook
from common.errors import UserError


@pytest.mark.parametrize("stage", kernels.ladder(), ids=lambda stage: stage.name)
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
    assert one.count("__syncthreads") == 1 and f"`kernels/{stage.name}/kernel.cu`, lines " in one
    several = notebook.quote(stage, 'extern "C"', "\n}").data
    assert several.rstrip("`\n").endswith("}") and "return cudaGetLastError();" in several
    for start, end in (("nowhere to be found", None), ('extern "C"', "nowhere to be found")):
        with pytest.raises(UserError, match="has no line with"):
            notebook.quote(stage, start, end)
    with pytest.raises(UserError, match="has the phases 1, 2, 3, 4, not 9"):
        notebook.phase(stage, 9)


def test_the_header_is_the_files_own():
    stage = kernels.load("03")
    text = notebook.header(stage).data
    assert "Stage 03" in text and "Thread map" in text and "#include" not in text and "//" not in text


def test_the_diff_is_folded_below_its_size():
    text = notebook.diff(kernels.load("02")).data
    assert "<b>01_naive → 02_block_tile</b>: +" in text and text.count("<details>") == 1


def test_counters_stand_side_by_side_and_two_with_their_change():
    naive, block = kernels.load("01"), kernels.load("02")
    text = notebook.counters([naive, block], (64, 64, 64)).data
    assert "| 64 | 01_naive fp16 | 02_block_tile fp16 | change |" in text and "÷" in text
    text = notebook.counters([naive, block, naive], (64, 64, 64), ("instructions.fma",)).data
    assert "change" not in text and text.count("8,192") == 3


def test_a_check_says_what_is_right_and_what_is_not(edited):
    stage = kernels.load("01")
    assert notebook.check(stage, (40, 33, 20), dtypes=("fp16",)).data.count("| ok |") == 1
    store = "C[(size_t)row * N + col] = Element(sum"
    broken = edited(stage, (store, f"{store} + (row == 33)"))
    text = notebook.check(stage, (40, 33, 20), dtypes=("fp16",), source=broken).data
    assert "**wrong**" in text and "wrong result" in text


def test_recorded_tables_name_their_files_as_such():
    text = notebook.ladder("gemm", "fp16", "4096").data
    assert "| 01_naive |" in text and "`docs/results/" in text and "](" not in text
    assert "COALESCED=0" in notebook.variants(kernels.load("01"), "COALESCED", "4096").data
    assert "| counter, size |" in notebook.profile(kernels.load("01")).data
    assert "| dtype, size |" in notebook.speed(kernels.load("03")).data


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


def test_the_map_of_the_course_has_every_stage():
    text = notebook.stages().data
    assert all(f"`{stage.name}`" in text for stage in kernels.ladder())
    assert "H200" in notebook.limits().data
