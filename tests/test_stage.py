"""Stages and kernels: what can be asked for, and what is refused before anything is launched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from common import check, problem
from common.errors import UserError
from common.stage import Macro, Stage, macros

NAIVE, BLOCK_TILE, THREAD_TILE = (kernels.load(number) for number in (1, 2, 3))


def test_stages_are_found_by_number_and_name():
    assert [stage.number for stage in kernels.ladder()] == list(range(1, len(kernels.ladder()) + 1))
    assert kernels.load(3) is kernels.load("3") is kernels.load("03") is kernels.load("03_thread_tile") is THREAD_TILE
    assert THREAD_TILE.previous is BLOCK_TILE and NAIVE.previous is None


@pytest.mark.parametrize("wanted, hint", [("03_thred_tile", "Did you mean '03_thread_tile'?"), (99, "01_naive, 02")])
def test_unknown_stage_lists_the_stages(wanted, hint):
    with pytest.raises(UserError) as error:
        kernels.load(wanted)
    assert hint in str(error.value)


def test_previous_stays_within_the_problem():
    other = Stage(package="kernels.04_other", title="other", idea="", problem="attention")
    assert other.previous is None


def test_listing_stages_imports_no_torch():
    code = "import sys, kernels; kernels.ladder(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(kernels.__file__).parent.parent)


def test_macros_come_from_the_source(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("#ifndef STAGES\n#define STAGES 3  // tiles in flight\n#endif\n#define OTHER 1\n")
    assert macros(source) == {"STAGES": Macro("3", "tiles in flight")}
    assert macros(NAIVE.source)["COALESCED"].default == "1"


def test_defines_and_label():
    kernel = NAIVE.kernel("bf16", {"COALESCED": 0})
    assert kernel.defines == {"DTYPE": "__nv_bfloat16", "COALESCED": "0"}
    assert kernel.label == "01_naive bf16 COALESCED=0"
    assert NAIVE.kernel().label == "01_naive fp16"


def test_kernels_cover_each_dtype_and_each_value():
    labels = [kernel.label for kernel in NAIVE.kernels()]
    assert labels == [f"01_naive {d}{v}" for d in ("fp16", "bf16", "fp32") for v in ("", " COALESCED=0")]


@pytest.mark.parametrize(
    "dtype, variants, message",
    [
        ("fp8", {}, "03_thread_tile has no dtype 'fp8'"),
        (None, {"COALESCED": 1}, "03_thread_tile has no variant 'COALESCED'"),
    ],
)
def test_unknown_dtype_and_variant(dtype, variants, message):
    with pytest.raises(UserError, match=message):
        THREAD_TILE.kernel(dtype, variants)


def test_variant_value_out_of_range():
    with pytest.raises(UserError, match="01_naive takes COALESCED = 0, 1"):
        NAIVE.kernel(variants={"COALESCED": 2})


@pytest.mark.parametrize(
    "shape, message",
    [
        ((1000, 128, 16), "03_thread_tile needs M a multiple of 128: nearest to 1000 are 896 and 1024"),
        ((128, 100, 17), "N a multiple of 128: nearest to 100 is 128; K a multiple of 16: nearest to 17 are 16 and 32"),
        ((0, 128, 16), "03_thread_tile needs M >= 1, not 0"),
    ],
)
def test_shapes_that_a_stage_cannot_take(shape, message):
    with pytest.raises(UserError) as error:
        THREAD_TILE.kernel().check_shape(*shape)
    assert message in str(error.value)


def test_multiple_may_be_a_macro(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("#ifndef BLOCK_K\n#define BLOCK_K 16  // depth\n#endif\n")
    stage = Stage("kernels.01_naive", "", "", variants={"BLOCK_K": (16, 32)}, multiples={"K": "BLOCK_K"})
    stage.kernel(source=source).check_shape(1, 1, 48)
    with pytest.raises(UserError, match="K a multiple of 32: nearest to 48 are 32 and 64"):
        stage.kernel(variants={"BLOCK_K": 32}, source=source).check_shape(1, 1, 48)


def test_source_without_dtype_has_one_type(tmp_path):
    source = tmp_path / "mine.cu"
    source.write_text("// only half\n")
    assert [kernel.dtype for kernel in BLOCK_TILE.kernels(source=source)] == ["fp16"]
    with pytest.raises(UserError, match="no macro DTYPE"):
        BLOCK_TILE.kernel("fp32", source=source)


def test_source_that_is_not_there():
    with pytest.raises(UserError, match="nowhere.cu: No such file"):
        BLOCK_TILE.kernel(source=Path("nowhere.cu"))


@pytest.mark.parametrize(
    "a, b, message",
    [
        (torch.zeros(4, 4), torch.zeros(4, 4).half(), "one dtype on one device"),
        (torch.zeros(4, 4).double(), torch.zeros(4, 4).double(), "takes torch.float16, torch.bfloat16, torch.float32"),
        (torch.zeros(4, 4).t()[:2], torch.zeros(4, 4), r"pass A.contiguous\(\)"),
        (torch.zeros(4, 4), torch.zeros(5, 4), r"A \[4, 4\] and B \[5, 4\]"),
        (torch.zeros(4), torch.zeros(4), r"A \[4\] and B \[4\]"),
        (torch.zeros(4, 4, device="meta"), torch.zeros(4, 4, device="meta"), "CUDA or CPU tensors, not meta"),
        (torch.zeros(4, 4), [[1.0]], "B is a torch tensor, not list"),
        (torch.zeros(0, 4), torch.zeros(4, 4), "M >= 1, not 0"),
    ],
)
def test_tensors_that_a_stage_cannot_take(a, b, message):
    with pytest.raises(UserError, match=message):
        NAIVE(a, b)


def test_number_of_tensors():
    with pytest.raises(UserError, match=r"takes 2 tensors \(A, B\)"):
        NAIVE(torch.zeros(4, 4))


def test_alignment_is_asked_for_where_it_matters():
    a, b = torch.zeros(128 * 16 + 1)[1:].view(128, 16), torch.zeros(16, 128)
    assert problem.check_tensors(NAIVE, (a, b)) == "fp32"
    with pytest.raises(UserError, match=r"multiple of 16; pass A.clone\(\)"):
        THREAD_TILE(a, b)


@pytest.mark.parametrize("dtype", NAIVE.dtypes)
def test_call_runs_the_stage(dtype):
    inputs = NAIVE.spec.inputs((40, 33, 20), dtype)
    out = NAIVE(*inputs, COALESCED=0)
    assert out.dtype == inputs[0].dtype and out.shape == (40, 33)
    check.verify(NAIVE.kernel(dtype), inputs, (out,))


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "tf32"])
def test_b_may_be_given_transposed(dtype):
    spec = NAIVE.spec
    straight, turned = {"B_TRANSPOSED": 0}, {"B_TRANSPOSED": 1}
    a, b = spec.inputs((5, 7, 3), dtype)
    a_again, b_turned = spec.inputs((5, 7, 3), dtype, variants=turned)
    assert torch.equal(a, a_again) and torch.equal(b_turned, b.t()) and b_turned.is_contiguous()
    assert spec.shape((a, b), straight) == spec.shape((a, b_turned), turned) == (5, 7, 3)
    for results in (spec.reference, spec.magnitude):
        assert torch.equal(results((a, b), straight)[0], results((a, b_turned), turned)[0])
    torch.testing.assert_close(spec.baseline((a, b_turned), dtype, turned), spec.baseline((a, b), dtype, straight))
    (peer,) = spec.peers(dtype, turned).values()
    torch.testing.assert_close(peer(a, b_turned), a @ b)
    with pytest.raises(UserError, match=r"here B is given as \[N, K\]"):
        spec.shape((a, b), turned)


def test_the_yardstick_of_tf32_rounds_the_inputs():
    one = torch.tensor([[1.0 + 2.0**-11 + 2.0**-20]])  # lies just above the middle of two TF32 numbers
    assert NAIVE.spec.baseline((one, torch.ones(1, 1)), "tf32", {})[0].item() == 1 + 2.0**-10
    assert NAIVE.spec.baseline((one, torch.ones(1, 1)), "fp32", {})[0].item() == one.item()
