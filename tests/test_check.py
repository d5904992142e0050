"""The check: what it lets pass, what it does not, and what it says then."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import kernels
from common import check
from common.errors import CheckFailed
from common.stage import Kernel

NAIVE, BLOCK_TILE = kernels.load(1), kernels.load(2)
SHAPE = (96, 80, 64)


def computed(kernel: Kernel, shape=SHAPE):
    """Inputs, and the output as a right kernel would leave it: summed in fp32 term by term, rounded once."""
    (a, b), (c,) = check.prepare(kernel, shape)
    total = torch.zeros(c.shape)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1].float() * b[k : k + 1].float()
    c.copy_(total)
    return (a, b), c


@pytest.mark.parametrize("dtype", NAIVE.dtypes)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 2), (3, 1, 5), SHAPE, (64, 64, 2048)])
def test_a_sequential_sum_is_right(dtype, shape):
    kernel = NAIVE.kernel(dtype)
    inputs, c = computed(kernel, shape)
    (accuracy,) = check.verify(kernel, inputs, (c,))
    assert accuracy.ok and accuracy.error <= accuracy.limit and accuracy.wrong == 0


def one_element_off(a, b, c):
    c[5, 7] *= 1.05


def one_element_nan(a, b, c):
    c[95, 79] = torch.nan


def one_element_infinite(a, b, c):
    c[0, 0] = torch.inf


def one_row_moved(a, b, c):
    c[10] = c[11].clone()


def last_term_left_out(a, b, c):
    c -= (a[:, -1:].float() * b[-1:].float()).to(c.dtype)


def summed_in_sixteen_bits(a, b, c):
    total = torch.zeros_like(c)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    c.copy_(total)


def inputs_rounded_to_tf32(a, b, c):
    c.copy_(torch.matmul(*((x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for x in (a, b))))


ANY_DTYPE = (one_element_off, one_element_nan, one_element_infinite, one_row_moved, last_term_left_out)


@pytest.mark.parametrize(
    "dtype, spoil",
    [
        *((dtype, spoil) for dtype in NAIVE.dtypes for spoil in ANY_DTYPE),
        ("fp16", summed_in_sixteen_bits),
        ("bf16", summed_in_sixteen_bits),
        ("fp32", inputs_rounded_to_tf32),
    ],
)
def test_what_is_wrong_does_not_pass(dtype, spoil):
    kernel = NAIVE.kernel(dtype)
    inputs, c = computed(kernel)
    spoil(*inputs, c)
    (accuracy,) = check.measure(kernel, inputs, (c,))
    assert not accuracy.ok


def test_an_output_that_nobody_wrote_is_wrong_everywhere():
    kernel = NAIVE.kernel()
    inputs, outputs = check.prepare(kernel, SHAPE)
    (accuracy,) = check.measure(kernel, inputs, outputs)
    assert accuracy.wrong == accuracy.total == math.prod(outputs[0].shape) and math.isnan(accuracy.error)


def test_measured_error_is_the_relative_frobenius_error():
    kernel = NAIVE.kernel("fp32")
    inputs, c = computed(kernel)
    reference = inputs[0].double() @ inputs[1].double()
    c.copy_(reference * 1.5)
    worst = (0.5 * reference).abs().max() / reference.square().mean().sqrt()
    (accuracy,) = check.measure(kernel, inputs, (c,))
    assert accuracy.error == pytest.approx(0.5, rel=1e-6)
    assert accuracy.worst == pytest.approx(worst.item(), rel=1e-6)


def test_sixteen_bit_limit_is_twice_the_error_of_torch():
    kernel = NAIVE.kernel("fp16")
    inputs, c = computed(kernel)
    a, b = (x.double() for x in inputs)
    rounded = (inputs[0].float() @ inputs[1].float()).half().double()
    (accuracy,) = check.measure(kernel, inputs, (c,))
    assert accuracy.limit == pytest.approx(2 * ((rounded - a @ b).norm() / (a @ b).norm()).item(), rel=1e-6)


def test_inputs_depend_on_the_seed_alone():
    kernel = NAIVE.kernel()
    first, again, other = (check.prepare(kernel, SHAPE, seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][:64, :64], first[1][:64, :64])


# A reader's own file, broken in one place.


def mine(tmp_path: Path, stage, *edits: tuple[str, str]) -> Path:
    text = stage.source.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "mine.cu"
    path.write_text(text)
    return path


TEST = ("test", "--device", "emulator", "--dtype", "fp16", "--sizes", "40x70x33", "--source")


def test_an_untouched_copy_passes(command, tmp_path):
    status, out, _ = command(NAIVE.package, *TEST, mine(tmp_path, NAIVE))
    assert status == 0 and "2 of 2 checks passed (emulator, sanitizer on; seed 0)" in out


def test_a_wrong_element_is_traced_to_its_thread(command, tmp_path):
    store = "C[(size_t)row * N + col] = Element(sum"
    source = mine(tmp_path, NAIVE, (store, f"{store} + (row == 33 && col == 66)"))
    status, out, _ = command(NAIVE.package, *TEST, source)
    assert status == 1
    assert out.count("1 of 2800 elements are wrong") == 2 and "2 of 2 checks failed" in out
    # Row 33 lies in the second row of tiles, column 66 in the third of its three: block 5, row 1 and column 2 of it.
    named = [line.split(maxsplit=5) for line in out.splitlines() if line.split()[:2] == ["33", "66"]]
    assert [words[4:] for words in named] == [["5", "34 (warp 1, lane 2)"], ["5", "65 (warp 2, lane 1)"]]
    assert all(float(got) == pytest.approx(float(want) + 1, abs=0.05) for _, _, got, want, *_ in named)


def test_an_element_that_is_not_written_is_called_so(command, tmp_path):
    guard = "if (row >= M || col >= N"
    source = mine(tmp_path, NAIVE, (guard, f"{guard} || row == 39"))
    status, out, _ = command(NAIVE.package, *TEST, source)
    assert status == 1
    assert "70 of 2800 elements are wrong" in out and "never written" in out


def test_a_race_fails_even_if_the_result_is_right(command, tmp_path):
    barrier = "__syncthreads();  // everybody waits for all readers"
    source = mine(tmp_path, BLOCK_TILE, (barrier, "// everybody waits for all readers"))
    status, out, _ = command(BLOCK_TILE.package, *TEST, source)
    assert status == 1
    assert "the sanitizer found" in out and "race" in out and "mine.cu:" in out


def test_a_source_that_does_not_compile(command, tmp_path):
    source = mine(tmp_path, NAIVE, ("float sum = 0.0f;", "float sun = 0.0f;"))
    line = source.read_text().splitlines().index("    sum += float(*a) * float(*b);") + 1
    status, _, err = command(NAIVE.package, *TEST, source)
    assert status == 2
    assert f'mine.cu({line}): error: identifier "sum" is undefined' in err and "Traceback" not in err


def test_a_source_without_the_launcher(command, tmp_path):
    source = mine(tmp_path, NAIVE, ("launch_gemm", "launch_mine"))
    status, _, err = command(NAIVE.package, *TEST, source)
    assert status == 2
    assert "launch_gemm" in err and "mine.cu" in err and "Traceback" not in err


def test_a_launch_that_cuda_refuses(command, tmp_path):
    source = mine(tmp_path, NAIVE, ("<<<grid, THREADS, 0, stream>>>", "<<<grid, 2048, 0, stream>>>"))
    status, _, err = command(NAIVE.package, *TEST, source)
    assert status == 2
    assert "01_naive fp16" in err and "invalid argument" in err and "Traceback" not in err


def test_verify_raises_with_the_report():
    kernel = NAIVE.kernel()
    inputs, c = computed(kernel)
    c[2, 3] = 1000
    with pytest.raises(CheckFailed, match=r"01_naive fp16, 96x80x64: wrong result\n.*1 of 7680 elements are wrong"):
        check.verify(kernel, inputs, (c,))


def test_the_summary_names_every_kernel_and_size(command):
    status, out, _ = command(NAIVE.package, "test", "--device", "emulator", "--dtype", "fp32", "--sizes", "33", "1x2x3")
    assert status == 0
    assert all(f"01_naive fp32{variant}" in out for variant in ("", " COALESCED=0"))
    assert "33x33x33" in out and "1x2x3" in out and "4 of 4 checks passed" in out
