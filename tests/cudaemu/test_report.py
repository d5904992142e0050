"""What a run reports: counters per launch and line, the trace of accesses, errors that name the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu import engine
from cudaemu.errors import CheckFailed, UserError
from cudaemu.findings import NOTES
from cudaemu.report import Finding
from cudaemu.trace import Access, Space
from tests.cudaemu.sources import source

ROOT = Path(__file__).parents[2]
NAMES = ["A", "B", "C", "M", "N", "K", "stream"]
M, N, K = 64, 96, 8


def naive(coalesced: int = 1, **options) -> cudaemu.Report:
    a, b, c = torch.randn(M, K), torch.randn(K, N), torch.empty(M, N)
    source = ROOT / "kernels" / "01_naive" / "kernel.cu"
    defines = {"DTYPE": "float", "COALESCED": str(coalesced)}
    return cudaemu.run(source, "launch_gemm", [a, b, c, M, N, K, None], names=NAMES, defines=defines, **options)


@pytest.mark.parametrize(("coalesced", "load_sectors", "store_sectors"), [(1, 1 + 4, 4), (0, 32 + 1, 32)])
def test_counters_are_what_the_addresses_say(coalesced, load_sectors, store_sectors):
    """Per k a warp reads one row of A (rows of 32 bytes: a sector each) and one row of B (32 neighbours: 4 sectors)."""
    report = naive(coalesced)
    warps = M * N // 32
    counters = report.counters
    assert counters["global_load_requests"] == counters["instructions.load.global"] == warps * K * 2
    assert counters["global_load_sectors"] == warps * K * load_sectors
    assert counters["global_load_bytes"] == M * N * K * 2 * 4
    assert counters["global_store_requests"] == warps and counters["global_store_bytes"] == M * N * 4
    assert counters["global_store_sectors"] == warps * store_sectors
    assert counters["instructions.fma"] == warps * K
    assert counters["shared_load_wavefronts"] == counters["local_load_bytes"] == 0


def test_lines_add_up_to_the_run():
    report = naive()
    total = cudaemu.Counters()
    for counters in report.lines.values():
        total += counters
    assert total == report.counters == report.launches[0].counters
    text = (ROOT / "kernels" / "01_naive" / "kernel.cu").read_text().splitlines()
    loads = {line for (_, line), counters in report.lines.items() if counters["global_load_requests"]}
    assert [text[line - 1].strip() for line in loads] == ["sum += float(*a) * float(*b);"]


def test_every_metric_is_a_counter():
    flat = naive().counters.flat()
    assert {name for name in cudaemu.METRICS if not name.startswith("instructions.")} <= set(flat)
    assert flat["instructions"] == sum(count for name, count in flat.items() if name.startswith("instructions."))


def test_trace_tells_who_touched_which_element():
    report = naive(trace=cudaemu.Trace())
    rows, element = report.accesses("A")
    assert np.all(np.bincount(element, minlength=M * K) == N)  # every element of A is read N times
    assert set(rows["kind"]) == {Access.LOAD} and set(rows["size"]) == {4}
    row, column = np.indices((M, N))
    block, thread = report.writers("C")
    assert np.array_equal(block, row // 32 * (N // 32) + column // 32)
    assert np.array_equal(thread, row % 32 * 32 + column % 32)
    assert np.all(report.writers("A")[0] == -1)
    (store, *_) = (
        row for row in report.trace if row["kind"] == Access.STORE and row["block"] == 4 and row["thread"] == 33
    )
    assert report.element(store) == "C[33, 33]"
    assert report.source(store).text.startswith("st.global")
    assert report.source(store).file.endswith("01_naive/kernel.cu")


def test_trace_of_some_blocks_and_of_so_many_rows():
    report = naive(trace=cudaemu.Trace(blocks=range(1, 3)))
    assert set(report.trace["block"]) == {1, 2}
    assert len(report.trace) == 2 * 1024 * (2 * K + 1)
    assert len(naive(trace=cudaemu.Trace(max_rows=1000)).trace) == 1000
    assert len(naive().trace) == 0


def test_wide_stores_have_one_writer_per_element():
    a, b, c = torch.randn(128, 16).half(), torch.randn(16, 128).half(), torch.zeros(128, 128).half()
    source = ROOT / "kernels" / "03_thread_tile" / "kernel.cu"
    report = cudaemu.run(source, "launch_gemm", [a, b, c, 128, 128, 16, None], names=NAMES, trace=cudaemu.Trace())
    block, thread = report.writers("C")
    assert np.all(block == 0)
    assert np.array_equal(np.bincount(thread.ravel()), np.full(256, 64))
    assert np.all(thread.reshape(128, 32, 4) == thread[:, ::4, None])  # four neighbours by one thread
    shared = report.trace[report.trace["space"] == Space.SHARED]
    assert shared["addr"].max() < report.launches[0].shared == 2 * 16 * 128 * 4


def test_switches():
    report = naive(counters=False)
    assert report.ok and report.counters["instructions"] == 0 and not report.lines
    seen = []
    assert naive(progress=lambda done, blocks: seen.append((done, blocks))).counters == naive(threads=1).counters
    assert seen[-1] == (6, 6)


def test_findings_raise_with_the_report():
    report = naive(outputs=["A"])
    with pytest.raises(
        CheckFailed, match=r"(?s)uninitialised global read: 4 bytes at A\[0, 0\].*kernel\.cu:\d+, gemm_kernel"
    ):
        report.raise_if_findings()
    naive().raise_if_findings()


def test_the_document_has_every_finding():
    text = (ROOT / "docs" / "emulator.md").read_text().partition("## What it checks")[2]
    table = text.partition("| Finding |")[2].partition("\n\n")[0]
    named = [cell.strip() for row in table.splitlines() for cell in row.split("|")[1:2]]
    also = {
        "out of bounds shared": "shared",
        "out of bounds local": "local",
        "uninitialised shared read": "shared read",
    }
    kinds = {problem.kind for problem in engine.problems()} - set(NOTES)
    assert not {kind for kind in kinds if not any(f"`{also.get(kind, kind)}`" in cell for cell in named)}


def test_an_unknown_instruction_is_an_error_at_its_line():
    path = source(
        "#include <cuda_runtime.h>\n"
        "__global__ void kernel(int *out) {\n"
        '  asm("vshl.u32.u32.u32.clamp.add %0, %1, %2, %3;" : "=r"(*out) : "r"(1), "r"(2), "r"(3));\n'
        "}\n"
        'extern "C" cudaError_t launch(int *out) { kernel<<<1, 1>>>(out); return cudaGetLastError(); }\n',
        "unknown",
    )
    with pytest.raises(UserError, match=r"unknown\.cu:3: .*`vshl\..*docs/emulator\.md"):
        cudaemu.run(path, "launch", [torch.zeros(1, dtype=torch.int32)], names=["out"])


def test_a_long_list_of_registers_is_cut():
    """That of a wgmma has up to 128; the finding has all of them, and what is printed names two."""
    place = ("kind", "message", "k", (0, 0, 0), (0, 0, 0), "", 0)
    long = "wgmma.mma_async {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, %rd1, %rd2, p, 1, 1, 0, 0"
    finding = Finding(*place, long)
    assert finding.ptx == long
    assert str(finding).endswith("PTX | wgmma.mma_async {%f1, %f2, ...}, %rd1, %rd2, p, 1, 1, 0, 0")
    vector = "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]"
    assert str(Finding(*place, vector)).endswith(vector)


def test_host_memory_in_a_kernel_is_called_that():
    text = """
#include <cstdlib>
__global__ void write(int *p) { *p = 1; }
extern "C" int launch(int wild) {
  int *p = wild ? (int *)0x612345678000 : (int *)malloc(128);
  write<<<1, 1>>>(p);
  return 0;
}
"""
    library = cudaemu.load(text)
    for wild, said in ((0, "which is host memory"), (1, "at address 0x612345678000 (not the device's)")):
        (finding,) = library.call("launch", wild).findings
        assert finding.kind == "out of bounds global" and said in finding.message
