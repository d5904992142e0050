"""The sanitizer: correct kernels are clean, and each way of breaking one is found at its line, block and thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from common import emulator, toolchain
from common.problem import TORCH_DTYPES

ROOT = Path(__file__).parents[2]


def mutant(name: str, text: str) -> Path:
    """A file with this text that stays: what is compiled from it is found in the cache the next time."""
    folder = toolchain.cache_dir() / "tests"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.cu"
    if not path.exists() or path.read_text() != text:
        temporary = path.with_name(f"{name}.{id(text)}")
        temporary.write_text(text)
        temporary.rename(path)
    return path


def gemm(source: Path, shape: tuple[int, int, int], dtype: str = "fp32", *, misalign: int = 0, **options):
    """A launcher's report, its C, and what C should be."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(1)
    kind = TORCH_DTYPES[dtype]
    a = torch.randn(m * k + misalign, generator=generator).to(kind)[misalign:].view(m, k)
    b = torch.randn(k, n, generator=generator).to(kind)
    c = torch.full((m, n), torch.nan, dtype=kind)
    cpp = {"fp16": "half", "bf16": "__nv_bfloat16", "fp32": "float"}[dtype]
    report = emulator.run(
        source,
        "launch_gemm",
        [a, b, c, m, n, k, None],
        names=["A", "B", "C", "M", "N", "K", "stream"],
        defines={"DTYPE": cpp, **options.pop("defines", {})},
        outputs=["C"],
        **options,
    )
    return report, c, a.double() @ b.double()


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("stage", ["01_naive", "02_block_tile", "03_thread_tile"])
def test_correct_kernels_are_clean(stage, dtype):
    source = ROOT / "kernels" / stage / "kernel.cu"
    report, c, expected = gemm(source, (256, 128, 32) if stage == "03_thread_tile" else (70, 45, 40), dtype)
    assert report.ok, report
    assert str(report) == "no findings"
    tolerance = {"fp16": 2e-3, "bf16": 2e-2, "fp32": 1e-5}[dtype]
    assert (c.double() - expected).norm() <= tolerance * expected.norm()


@dataclass(frozen=True)
class Break:
    """Occurrence `which` of `old` replaced by `new` in a stage, and what must come of it: a finding of this kind, at a
    line that contains `at`, whose message says `says`."""

    stage: str
    old: str
    new: str
    kind: str
    at: str
    says: str
    which: int = 0


BARRIER = "__syncthreads();"
BREAKS = {
    "trailing barrier removed, tiles": Break(
        "02_block_tile", BARRIER, ";", "shared race", "A_tile[thread_row][thread_col] =", "A_tile", which=1
    ),
    "trailing barrier removed, registers": Break(
        "03_thread_tile", BARRIER, ";", "shared race", "A_tile[col + v][row] =", "A_tile", which=1
    ),
    "barrier after the store removed": Break(
        "02_block_tile", BARRIER, ";", "shared race", "sum += float(A_tile", "read"
    ),
    "row index off in the epilogue": Break(
        "02_block_tile",
        "C[(size_t)row * N + col] =",
        "C[(size_t)(row + 1) * N + col] =",
        "out of bounds global",
        "C[(size_t)(row + 1)",
        "past the end of C",
    ),
    "guard of a load removed": Break(
        "02_block_tile",
        "row < M && a_col < K ? A[",
        "a_col < K ? A[",
        "out of bounds global",
        "a_col < K ? A[",
        "past the end of A",
    ),
    "one warp skips a barrier": Break(
        "02_block_tile", BARRIER, f"if (thread / 32 != 3) {BARRIER}", "barrier divergence", BARRIER, "barrier"
    ),
    "read past the tile": Break(
        "02_block_tile",
        "float(B_tile[k][thread_col])",
        "float((&B_tile[0][0])[(k + (slice >= 64)) * BLOCK_N + thread_col])",
        "out of bounds shared",
        "(&B_tile[0][0])",
        "beyond",
    ),
    "tile not filled": Break(
        "03_thread_tile",
        "chunk < B_CHUNKS",
        "chunk < B_CHUNKS - 1",
        "uninitialised shared read",
        "&B_tile[k][thread_col]);",
        "B_tile",
    ),
    "accumulator in the output": Break(
        "02_block_tile", "= Element(sum);", "+= Element(sum);", "uninitialised global read", "+= Element(sum)", "C["
    ),
    "one thread skips a barrier": Break(
        "02_block_tile", BARRIER, f"if (thread != 40) {BARRIER}", "barrier divergence", BARRIER, "barrier"
    ),
}


def broken(case: Break) -> str:
    """The stage's kernel, broken."""
    parts = (ROOT / "kernels" / case.stage / "kernel.cu").read_text().split(case.old)
    assert len(parts) > case.which + 1, f"{case.stage} has no '{case.old}' any more: choose another way to break it"
    return case.old.join(parts[: case.which + 1]) + case.new + case.old.join(parts[case.which + 1 :])


def mutated(name: str) -> Path:
    return mutant("break_" + name.replace(" ", "_").replace(",", ""), broken(BREAKS[name]))


@pytest.mark.parametrize("name", BREAKS)
def test_breaks_are_found(name):
    case = BREAKS[name]
    source = mutated(name)
    text = source.read_text().splitlines()
    shape = (256, 128, 32) if case.stage == "03_thread_tile" else (70, 45, 96)
    report, _, _ = gemm(source, shape)
    assert not report.ok
    found = [finding for finding in report.findings if finding.kind == case.kind]
    assert found, f"not found, but: {report}"
    lines = {number for number, line in enumerate(text, 1) if case.at in line}
    assert lines & {finding.line for finding in found}, f"expected at {lines}: {report}"
    (first, *_) = (finding for finding in found if finding.line in lines)
    assert Path(first.file) == source and first.kernel == "gemm_kernel"
    assert case.says in first.message, first
    blocks = 3 * 2 if case.stage == "02_block_tile" else 2
    threads = 1024 if case.stage == "02_block_tile" else 256
    assert first.block[0] < blocks and first.block[1:] == (0, 0)
    assert first.thread[0] < threads and first.thread[1:] == (0, 0)
    assert first.count >= 1
    shown = str(report)
    assert f"{source.name}:{first.line}" in shown and text[first.line - 1].strip() in shown


def test_the_first_thread_out_of_bounds_is_named():
    """70 x 45 in tiles of 32 x 32: with every row one too low, block 4 (tile row 2) has rows 64 ... 69 -> 70 is out."""
    report, _, _ = gemm(mutated("row index off in the epilogue"), (70, 45, 96), threads=1)
    (finding,) = report.findings
    assert finding.block == (4, 0, 0) and finding.thread == (5 * 32, 0, 0)  # row 69 of C, column 0
    assert "just past the end of C" in finding.message
    assert report.status == 700  # cudaErrorIllegalAddress, as on a GPU


def test_misaligned_pointer():
    """A view that starts one element in: stage 03 loads 16 bytes at a time."""
    source = ROOT / "kernels" / "03_thread_tile" / "kernel.cu"
    report, _, _ = gemm(source, (128, 128, 16), "fp16", misalign=4)
    (finding,) = report.findings
    assert finding.kind == "misaligned" and "A[0, 0]" in finding.message and "16" in finding.message
    assert finding.block == (0, 0, 0) and finding.thread == (0, 0, 0)
    assert "const Chunk a =" in source.read_text().splitlines()[finding.line - 1]
    assert report.status == 716  # cudaErrorMisalignedAddress


def test_findings_do_not_depend_on_the_number_of_cores():
    source = mutated("barrier after the store removed")
    one, two = (gemm(source, (70, 45, 96), threads=threads)[0] for threads in (1, 2))
    assert one.findings == two.findings
    assert one.counters == two.counters


def test_null_pointer_and_sanitizer_off():
    source = ROOT / "kernels" / "01_naive" / "kernel.cu"
    out = torch.zeros(32, 32)
    args = [None, out, out, 32, 32, 32, None]
    names = ["A", "B", "C", "M", "N", "K", "stream"]
    for sanitize in (True, False):  # what would kill the process is stopped in any case
        report = emulator.run(source, "launch_gemm", args, names=names, defines={"DTYPE": "float"}, sanitize=sanitize)
        (finding,) = report.findings
        assert finding.kind == "null pointer" and report.status == 700
