"""The verb `test`: kernels that readers broke, and what it says of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

import pytest

import kernels
from common import accuracy
from common.stage import Kernel
from common.verbs import test as verb
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError

ROOT = Path(__file__).parents[2]

NAIVE, BLOCK_TILE, DOUBLE_BUFFER = kernels.load(1), kernels.load(2), kernels.load(10)
TEST = ("test", "--device", "emulator", "--dtype", "fp16")
SMALL = (*TEST, "--sizes", "40x70x33", "--source")
STORE = "C[(size_t)row * N + col] = Element(sum"


def test_an_untouched_copy_passes(command, edited):
    status, out, _ = command(NAIVE.package, *SMALL, edited(NAIVE))
    assert status == 0 and "2 of 2 checks passed (emulator, sanitizer on; seed 0)" in out


def test_a_wrong_element_is_traced_to_its_thread(command, edited):
    source = edited(NAIVE, (STORE, f"{STORE} + (row == 33 && col == 66)"))
    status, out, _ = command(NAIVE.package, *SMALL, source)
    assert status == 1
    assert out.count("1 of 2800 elements are wrong") == 2 and "2 of 2 checks failed" in out
    # Row 33 lies in the second row of tiles, column 66 in the third of its three: block 5, row 1 and column 2 of it.
    named = [line.split(maxsplit=5) for line in out.splitlines() if line.split()[:2] == ["33", "66"]]
    assert [words[4:] for words in named] == [["5", "34 (warp 1, lane 2)"], ["5", "65 (warp 2, lane 1)"]]
    assert all(float(got) == pytest.approx(float(want) + 1, abs=0.05) for _, _, got, want, *_ in named)


def test_an_element_that_is_not_written_is_called_so(command, edited):
    guard = "if (row >= M || col >= N"
    status, out, _ = command(NAIVE.package, *SMALL, edited(NAIVE, (guard, f"{guard} || row == 39")))
    assert status == 1
    assert "70 of 2800 elements are wrong" in out and "never written" in out


def test_what_the_sanitizer_notes_is_counted(command, edited):
    """Threads beyond the last row compute that row again, and write what is there already."""
    again = (("const int row =", "const int row = min(M - 1, "), ("thread % BLOCK_M);", "thread % BLOCK_M));"))
    source = edited(NAIVE, *again)
    status, out, _ = command(NAIVE.package, *SMALL, source)
    assert status == 0 and "2 of 2 checks passed" in out
    assert "\n1 note: " in out and "same value written: " in out and "mine.cu:65" in out


def test_a_race_fails_even_if_the_result_is_right(command, edited):
    barrier = "__syncthreads();  // everybody waits for all readers"
    source = edited(BLOCK_TILE, (barrier, "// everybody waits for all readers"))
    status, out, _ = command(BLOCK_TILE.package, *SMALL, source)
    assert status == 1
    assert "the sanitizer found" in out and "race" in out and "mine.cu:" in out


LOOP, END = "for (int k = 0; k < K; ++k) {", "  // 3. Round once, at the end.\n"
WIPE = "  for (int k = 1; k < K; ++k) const_cast<Element *>(A)[(size_t)row * K + k] = Element(0.0f);\n"


def test_who_sums_one_product_and_wipes_out_the_others_does_not_get_through(command, edited):
    """A reference that is taken afterwards, of the inputs as the kernel left them, would agree."""
    source = edited(NAIVE, (LOOP, LOOP.replace("k < K", "k < 1")), (END, WIPE + END))
    status, out, _ = command(NAIVE.package, *SMALL, source, "--variant", "COALESCED=1")
    assert status == 1
    assert "wrong result" in out and "the kernel writes to its input A: 1280 elements changed, the first A[0, 1]" in out


def test_who_writes_to_an_input_does_not_get_through_with_a_right_result(command, edited):
    late = "  __syncthreads();\n  if (thread == 0) const_cast<Element *>(B)[5] = Element(7.0f);\n"
    argv = (*TEST, "--sizes", "32x32x40", "--variant", "COALESCED=1", "--source", edited(NAIVE, (END, late + END)))
    status, out, _ = command(NAIVE.package, *argv)
    assert status == 1
    assert "the kernel writes to its input B: 1 element changed, the first B[0, 5]" in out and "wrong result" not in out


@pytest.mark.full
@pytest.mark.parametrize(
    "edit",
    [
        ("sum += float(*a) * float(*b);", "sum += float(Element(float(*a) * float(*b)));"),
        ("Element(sum)", "__float2half_rz(sum)"),
    ],
    ids=["each product rounded", "cut instead of rounded"],
)
def test_careless_rounding_does_not_get_through(command, edited, edit):
    status, out, _ = command(NAIVE.package, *TEST, "--variant", "COALESCED=1", "--source", edited(NAIVE, edit))
    assert status == 1 and "wrong result" in out


@pytest.mark.full
def test_a_refused_launch_is_a_failed_check_and_the_test_goes_on(command, edited):
    """The launcher asks for too many threads at one of the sizes: the others are checked all the same."""
    source = edited(NAIVE, ("<<<grid, THREADS, 0, stream>>>", "<<<grid, M == 150 ? 2048 : THREADS, 0, stream>>>"))
    status, out, err = command(NAIVE.package, *TEST, "--source", source, "--variant", "COALESCED=1", "--details")
    assert status == 1 and err == "" and "Traceback" not in out
    assert "3 of 19 checks failed" in out
    assert "01_naive fp16" in out and "150x128x128: CUDA error" in out
    assert "gemm_kernel: 2048 threads per block, at most 1024" in out  # the kernel, the value, the limit
    verdicts = [line.split()[-1] for line in out.splitlines() if line.startswith("fp16")]
    assert verdicts.count("ok") == 16 and verdicts.index("stopped") == 2


@pytest.mark.full
def test_a_launcher_that_asks_for_more_than_some_gpus_have_fails_there(command, edited):
    source = edited(DOUBLE_BUFFER, ("= STAGES * sizeof(Tiles)", "= (STAGES + 1) * sizeof(Tiles)"))
    status, out, _ = command(DOUBLE_BUFFER.package, *TEST, "--source", source, "--variant", "STAGES=4")
    assert status == 1 and "4 of 13 checks failed" in out
    here, elsewhere = (line.rstrip() for line in out.splitlines() if line.startswith("fp16"))
    assert here.endswith(" ok") and " emulator 8.6 " in elsewhere and elsewhere.endswith("stopped in 4")


@pytest.mark.parametrize(
    "edit, words",
    [
        (("float sum = 0.0f;", "float sun = 0.0f;"), 'mine.cu({line}): error: identifier "sum" is undefined'),
        (("launch_gemm", "launch_mine"), "mine.cu does not export launch_gemm"),
    ],
    ids=["it does not compile", "it has no launcher"],
)
def test_what_cannot_be_run_at_all_is_the_readers_to_mend(command, edited, edit, words):
    source = edited(NAIVE, edit)
    line = next(number for number, text in enumerate(source.read_text().splitlines(), 1) if "sum += " in text)
    status, _, err = command(NAIVE.package, *SMALL, source)
    assert status == 2 and words.format(line=line) in err and "Traceback" not in err


def test_the_summary_names_every_kernel_and_its_worst_check(command):
    argv = ("test", "--device", "emulator", "--dtype", "fp32", "--sizes", "33", "1x2x3")
    status, out, _ = command(NAIVE.package, *argv)
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line.startswith("fp32")]
    assert [row[-5:-3] + row[-1:] for row in rows] == [["emulator", "2", "ok"]] * 2 and "4 of 4 checks passed" in out
    status, out, _ = command(NAIVE.package, *argv, "--details")
    assert status == 0 and "33 " in out and "1x2x3" in out and out.count(" ok") == 4


def test_a_source_without_dtype_is_tested_in_its_one_type(command, edited):
    source = edited(NAIVE, ("#ifndef DTYPE\n#define DTYPE half", "typedef half DTYPE;\n#if 0"))
    argv = ("test", "--device", "emulator", "--sizes", "33", "--source", source, "--variant", "COALESCED=0")
    status, out, err = command(NAIVE.package, *argv)
    assert (status, err) == (0, "") and "1 of 1 checks passed" in out


@pytest.mark.full
def test_coverage_names_the_lines_that_no_check_executed(command, edited):
    """Only the edges of C need the guard's return; and a branch that no size takes is named with its line."""
    odd = "  if (K == 77) {\n    C[0] = Element(0.0f);\n  }\n"
    source = edited(NAIVE, (END, odd + END))
    line = next(number for number, text in enumerate(source.read_text().splitlines(), 1) if "C[0] = " in text)
    status, out, _ = command(NAIVE.package, *TEST, "--coverage", "--source", source, "--variant", "COALESCED=1")
    assert status == 0
    assert "1 line with code that no check executed" in out
    assert [str(line), "fp16", "C[0]", "=", "Element(0.0f);"] in [words.split() for words in out.splitlines()]
    status, out, _ = command(NAIVE.package, *TEST, "--coverage", "--source", source, "--sizes", "32x32x77", "33x32x77",
                             "--variant", "COALESCED=1")  # fmt: skip
    assert "mine.cu: every line with code was executed" in out


def test_lines_count_as_executed_if_any_kernel_executed_them():
    kernel = NAIVE.kernel()
    one, other = (accuracy.check(kernel, shape, "emulator", counters=True) for shape in ((32, 32, 8), (33, 40, 8)))
    assert verb.uncovered([one, other]) == {}
    assert one.lines is not None and 0 not in one.lines
    without = accuracy.check(kernel, (32, 32, 8), "emulator")
    assert without.lines is None and verb.uncovered([without]) == {}


def test_a_source_that_is_watched_is_checked_after_each_change(tmp_path):
    source, barrier = tmp_path / "mine.cu", "__syncthreads();  // everybody waits for all readers"
    text = BLOCK_TILE.source.read_text()
    race, typo = (text.replace(barrier, instead) for instead in ("// everybody waits for all readers", "nonsense();"))
    source.write_text(race)
    words = [*TEST, "--sizes", "64", "--watch", "--source", str(source)]
    command = [sys.executable, "-m", BLOCK_TILE.package, *words]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # not as a job in the background
    ) as process:
        try:
            said = [_round(process.stdout)]
            for text in (typo, f"// every line is one further down\n{race}"):
                (tmp_path / "new.cu").write_text(text)
                (tmp_path / "new.cu").replace(source)  # as editors do
                said.append(_round(process.stdout))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert 'identifier "nonsense" is undefined' in said[1]
    before, after = (re.search(r"mine.cu:(\d+), .*\n +\1 \| (.*)", said[n]) for n in (0, 2))
    assert before and after, said
    assert int(after[1]) == int(before[1]) + 1 and after[2] == before[2], "what is quoted is what was compiled"


@pytest.mark.parametrize("name", ["rich", "torch"])
def test_ctrl_c_ends_a_command_at_once(tmp_path, name):
    """Pressed while a module is imported: when the command starts (rich), and when a compiler is at work (torch), which
    here is a g++ that waits."""
    compiler = tmp_path / "g++"
    real = toolchain.find_cxx()
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-dM*-x*c++*) exec {real} "$@"; esac\ntouch {tmp_path}/begun\nexec sleep 60\n'
    )
    compiler.chmod(0o755)
    wait = f"while not os.path.exists('{tmp_path}/begun'): time.sleep(0.05)\n" if name == "torch" else ""
    press = f"import os, signal, time\n{wait}os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(1)\n"
    (tmp_path / f"{name}.py").write_text(press)
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", BLOCK_TILE.package, *TEST],
        cwd=ROOT,
        env={
            **os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "CUDAEMU_CACHE": str(tmp_path / "cache"),
            "CXX": str(compiler), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert ended.returncode in (130, -signal.SIGINT) and not ended.stdout + ended.stderr, ended
    assert time.monotonic() - began < 30


def _round(stream: TextIO) -> str:
    """What is said up to the line that says when it goes on."""
    said = ""
    for line in stream:
        said += line
        if re.search(r"\d+\.\d s; again when .*mine.cu changes", line):
            return said
    raise AssertionError(said)


def test_the_compiler_is_at_work_before_torch_is_imported():
    script = f"""
import sys
import cudaemu
from common import cli
prepare = cudaemu.prepare
cudaemu.prepare = lambda *what, **how: (print("torch there:", "torch" in sys.modules), prepare(*what, **how))
cli.main({NAIVE.package!r}, {[*TEST, "--sizes", "32", "--variant", "COALESCED=1"]!r})"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch there: False\n") and "1 of 1 checks passed" in done.stdout


def test_what_is_compiled_ahead_is_given_up_when_a_check_raises(monkeypatch):
    """What is being compiled comes to its end, and nothing more is begun."""
    begun, raised = [], threading.Event()

    def prepare(kernel, arch):
        begun.append((kernel, arch))
        assert raised.wait(60)

    monkeypatch.setattr(Kernel, "prepare", prepare)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (kernel,) = NAIVE.kernels(["fp16"], fixed={"COALESCED": 1})
    with pytest.raises(UserError, match="^wrong$"), verb._building([(kernel, "8.0")] * 5):
        threading.Timer(0.2, raised.set).start()
        raise UserError("wrong")
    assert begun == [(kernel, "8.0")]


# ---- what is told, and how often -------------------------------------------------------------------------------------


def test_a_mistake_is_told_once_with_the_number_of_checks_that_have_it(command, edited):
    """One missing barrier breaks every check: it printed thousands of lines."""
    source = edited(BLOCK_TILE, ("__syncthreads();  // everybody waits for all readers", "// nobody waits"))
    argv = (*TEST, "--source", source, "--sizes", "64", "96", "128x64x64")
    status, out, _ = command(BLOCK_TILE.package, *argv)
    assert status == 1 and "3 of 3 checks failed" in out
    lines = re.findall(r"shared race: .*\n    at (mine.cu:\d+)", out)
    assert lines and len(set(lines)) == len(lines) and "also in 2 other checks" in out


def test_a_result_that_is_no_number_is_infinitely_wrong(command, edited):
    """Elements that nobody writes are NaN: the row of the table shows that check, not one that is right."""
    source = edited(NAIVE, (END, "  if (K == 16) return;\n" + END))
    argv = (*TEST, "--sizes", "32x32x16", "32x32x40", "--source", source, "--variant", "COALESCED=1")
    status, out, _ = command(NAIVE.package, *argv)
    (row,) = [line.split() for line in out.splitlines() if line.startswith("fp16")]
    assert status == 1 and row[3] == "nan" and row[-3:] == ["wrong", "in", "1"]


def test_what_was_checked_before_a_compile_failed_is_told(command, monkeypatch):
    done, check = [], accuracy.check

    def once(kernel, *rest, **options):
        if done:
            raise UserError("mine.cu(3): error: nonsense")
        done.append(kernel)
        return check(kernel, *rest, **options)

    monkeypatch.setattr(accuracy, "check", once)
    status, out, err = command(NAIVE.package, *TEST, "--sizes", "33", "40", "--variant", "COALESCED=1")
    assert status == 2 and "error: nonsense" in err and " ok" in out


def test_a_refused_launch_that_nobody_looked_at_is_told(command, edited):
    source = edited(NAIVE, ("<<<grid, THREADS, 0, stream>>>", "<<<grid, 2048, 0, stream>>>"),
                    ("return cudaGetLastError();", "return cudaSuccess;"))  # fmt: skip
    argv = (*SMALL, source, "--variant", "COALESCED=1")
    status, out, _ = command(NAIVE.package, *argv)
    assert status == 1 and "never written" in out
    assert re.search(r"must return CUDA error 1: gemm_kernel: 2048 threads .*got cudaSuccess", out)


@pytest.mark.full
def test_checks_for_a_smaller_gpu_say_so(command, edited):
    source = edited(DOUBLE_BUFFER, ("= STAGES * sizeof(Tiles)", "= (STAGES + 1) * sizeof(Tiles)"))
    _, out, _ = command(DOUBLE_BUFFER.package, *TEST, "--source", source, "--variant", "STAGES=4")
    assert re.search(r"compute capability 8\.6: CUDA error 1: .*at most 101376", out)
    assert "also in 3 other checks" in out
