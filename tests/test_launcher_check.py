"""What no single launch shows: launchers, and kernels far away, that are wrong there alone; and what `test` tries."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kernels
from common import accuracy, course, launcher_check
from common.stage import Kernel, Stage
from common.verbs import test as verb
from cudaemu.hardware import Arch

NAIVE, SPLIT_Q, FINAL = kernels.load("01"), kernels.load("13"), kernels.load("16")
Edited = Callable[..., Path]


def broken(edited: Edited, stage: Stage, *edits: tuple[str, str]) -> Kernel:
    return stage.kernel("fp16", source=edited(stage, *edits))


def said_of_the_launcher(kernel: Kernel) -> str:
    return launcher_check.check(kernel).report


@pytest.mark.core(every=3)
@pytest.mark.parametrize("number", ["01", "05", "12", "h2", "h4", "h6"])
def test_our_own_are_right(number: str):
    kernel = kernels.load(number).kernel()
    assert launcher_check.check(kernel).ok
    far = verb._far(kernel, "emulator")
    assert len(far) == (0 if number == "h4" else 2), "a block of h4 goes over all tiles"
    for sizes in far.values():
        result = launcher_check.check_far(kernel, sizes, "emulator")
        assert result.ok and result.accuracies, result.report


# ---- the launcher ----------------------------------------------------------------------------------------------------


def test_a_status_that_nobody_looks_at(edited: Edited):
    """cudaSuccess, whatever became of the launch: a right result tells nothing of it."""
    report = said_of_the_launcher(broken(edited, NAIVE, ("return cudaGetLastError();", "return cudaSuccess;")))
    assert "nobody looked (cudaGetLastError)" in report and "CUDA error 701: gemm_kernel: launch 1 is refused" in report


@pytest.mark.full
def test_a_status_of_one_of_two_launches_that_nobody_looks_at(edited: Edited):
    """h7's first launch, of the two that split keys take: other sizes take one, and look."""
    unseen = ("if (status != cudaSuccess || splits == 1) return status;", "if (splits == 1) return status;")
    report = said_of_the_launcher(broken(edited, kernels.load("h7"), unseen))
    assert "nobody looked (cudaGetLastError)" in report and "attention_kernel<1>: launch 1 is refused" in report


@pytest.mark.core(every=6)
@pytest.mark.parametrize("stage", course.everything(), ids=lambda stage: stage.name)
def test_pointers_that_are_none_or_not_aligned(stage: Stage):
    """Whoever copies a launcher out has no Python layer to check for him."""
    kernel = stage.kernel()
    shape = min(kernel.test_shapes().values(), key=lambda shape: stage.spec.flops(shape, kernel.variants))
    inputs, outputs = launcher_check.tensors(kernel, shape, 0)
    arguments = {**kernel.arguments(inputs, outputs), "stream": None}
    names = [*stage.spec.input_names, *stage.spec.output_names(kernel.variants)]

    def status(name: str, changed: torch.Tensor | None) -> int:
        options = {"arch": stage.arch, "blocks": launcher_check.NO_BLOCK, "counters": False}
        return kernel.call_launcher({**arguments, name: changed}, **options).status

    invalid_value = 1
    for name in names:
        tensor = arguments[name]
        assert status(name, None) == invalid_value, f"{name}, null"
        if stage.alignment > 1 and tensor.dtype != torch.float32:  # scales
            address = tensor.data_ptr() + stage.alignment // 2
            assert status(name, address.to_bytes(8, "little")) == invalid_value, f"{name}, misaligned"
    for name in stage.spec.given_names:  # may be null; no 16-bit number begins at an odd address
        assert status(name, (inputs[0].data_ptr() + 1).to_bytes(8, "little")) == invalid_value, f"{name}, misaligned"


@pytest.mark.core(every=2)
@pytest.mark.parametrize("rule", ["N % 32", "false"])
def test_a_size_that_is_not_refused(edited: Edited, rule: str):
    report = said_of_the_launcher(broken(edited, SPLIT_Q, ("N % BLOCK_Q || N % BLOCK_KV", rule)))
    assert re.search(r"\bN\b.* 64.* 1x1x96 ", report)


def test_a_launcher_that_takes_more_than_its_stage_may(edited: Edited):
    """Of stage 01 any size is right: a rule that its launcher does not have is none to refuse by."""
    kernel = NAIVE.kernel()
    assert launcher_check.check(replace(kernel, stage=replace(NAIVE, multiples={"M": 32}))).ok


@pytest.mark.full
def test_a_finding_has_nothing_to_do_with_a_size_that_is_not_refused(edited: Edited):
    """A race at every size, those included that the kernel may take though they are no multiple: it was said of the
    launcher that it must refuse them, and told once more for every call. It is told once."""
    barrier = "__syncthreads();  // everybody waits for all readers"
    kernel = broken(edited, kernels.load("02"), (barrier, "// nobody waits"))
    kernel = replace(kernel, stage=replace(kernel.stage, multiples={"M": 64}))
    one, launcher = accuracy.check(kernel, (64, 64, 64), "emulator"), launcher_check.check(kernel)
    assert not one.ok and not launcher.ok
    told = "\n".join(verb.complaints([one, launcher]))
    assert "race" in told and "is not refused" not in told and "called" not in told and "also in 1 other check" in told


def test_two_results_that_are_no_numbers_are_equal(edited: Edited):
    """Never written: not a word of what the first call might have left to the second."""
    report = said_of_the_launcher(broken(edited, NAIVE, ("C[(size_t)row * N + col] = Element(sum);", "")))
    assert "the result is wrong" in report and "third result" not in report and "second result" not in report


@pytest.mark.core(every=4)
@pytest.mark.parametrize(
    "number, edits, said",
    [
        ("h2", [("  CUtensorMap A_map, B_map;", "  static CUtensorMap A_map, B_map;\n  static int calls;"),
                ("cudaError_t status = tensor_map", "cudaError_t status = calls ? cudaSuccess : tensor_map"),
                ("if (status == cudaSuccess) status =", "if (status == cudaSuccess && !calls++) status ="),
                ],
         "with other inputs.*second result is wrong"),
        ("h2", [("  CUtensorMap A_map, B_map;", "  static CUtensorMap A_map, B_map;\n  static const Element *of;\n"
                 "  const bool made = A == of;\n  of = A;"),
                ("cudaError_t status = tensor_map", "cudaError_t status = made ? cudaSuccess : tensor_map"),
                ("if (status == cudaSuccess) status = tensor", "if (status == cudaSuccess && !made) status = tensor")],
         "at the same addresses.*second result is wrong"),
        ("11", [("  const auto kernel =\n      N %", "  static const auto kernel =\n      N %")], "in one process"),
        ("16", [("  const auto kernel =\n      arg", "  static const auto kernel =\n      arg")], "in one process"),
    ],
    ids=["maps of the first call", "maps by address", "kernel of the first size", "attention's"],
)  # fmt: skip
@pytest.mark.full
def test_what_the_first_call_chose(edited: Edited, number: str, edits: list, said: str):
    kernel = broken(edited, kernels.load(number), *edits)
    assert re.search(said, said_of_the_launcher(kernel), re.S)
    assert accuracy.check(kernel, [*kernel.test_shapes().values()][0], "emulator").ok, "a single call is right"


COUNTER = (
    ("__global__ void", "__device__ unsigned handed_out;\n\n__global__ void"),
    (
        "const int tile_m = blockIdx.x / tiles_n;",
        "__shared__ unsigned mine;\n  if (threadIdx.x == 0) mine = atomicAdd(&handed_out, 1);\n  __syncthreads();\n"
        "  const int tile_m = mine / tiles_n;",
    ),
    ("const int tile_n = blockIdx.x % tiles_n;", "const int tile_n = mine % tiles_n;"),
)


def test_what_a_call_leaves_on_the_device(edited: Edited):
    """Tiles that are handed out by a counter, which nobody resets."""
    report = said_of_the_launcher(broken(edited, NAIVE, *COUNTER))
    assert "in one process: the third result is not that of the first call" in report


def test_what_a_call_leaves_on_the_host(edited: Edited):
    """A launch that only the first call prepares, and with that a kernel for the first size alone."""
    launch = "gemm_kernel<<<grid, THREADS, 0, stream>>>"
    once = (launch, "static int room = K;\n  " + launch.replace("THREADS", "K > room ? 2048 : THREADS"))
    report = said_of_the_launcher(broken(edited, NAIVE, once))
    assert "all test sizes launched in one process" in report and "2048 threads per block" in report


@pytest.mark.full
def test_a_call_that_does_not_wait_for_the_one_before(edited: Edited):
    """Its launch may begin before the one ahead of it has ended."""
    waits = "  cudaGridDependencySynchronize();             // the launch before has written what we read"
    report = said_of_the_launcher(broken(edited, kernels.load("hopper_matmul"), (waits, "  //")))
    assert "called twice in a row, for the same output" in report and "race with the kernel before" in report


# ---- far away --------------------------------------------------------------------------------------------------------


@pytest.mark.core(every=4)
@pytest.mark.parametrize(
    "number, wide, narrow, wrong",
    [
        ("01", "C[(size_t)row * N + col]", "C[row * N + col]", "AB"),
        ("01", "A + (size_t)row * K", "A + row * K", "A"),
        ("h1", "B_block[(size_t)(slice * BLOCK_K + row) * N", "B_block[(slice * BLOCK_K + row) * N", "B"),
        ("h2", "C[(size_t)row * N + col]", "C[row * N + col]", "AB"),
    ],
)
def test_products_of_32_bits(edited: Edited, number: str, wide: str, narrow: str, wrong: str):
    kernel = broken(edited, kernels.load(number), (wide, narrow))
    failed = [why for why, sizes in verb._far(kernel, "emulator").items()
              if not launcher_check.check_far(kernel, sizes, "emulator").ok]  # fmt: skip
    assert failed == [f"more than 2³² elements of {name} and C" for name in wrong]


def test_heads_along_an_axis_that_has_no_room_and_keys_in_16_bits(edited: Edited):
    """65,535 blocks along y, at most; and a tile's first key in 16 bits."""
    kernel = broken(
        *(edited, kernels.load("12")),
        ("(size_t)blockIdx.x * BLOCK_Q", "((size_t)blockIdx.y * (N / BLOCK_Q) + blockIdx.x) * BLOCK_Q"),
        ("(size_t)(blockIdx.x / (N / BLOCK_Q))", "(size_t)blockIdx.y"),
        ("<<<blocks, THREADS", "<<<dim3(N / BLOCK_Q, B * H), THREADS"),
        (
            "head + (size_t)(tile / 2) * BLOCK_KV * HEAD_DIM",
            "head + (long long)(short)(tile / 2 * BLOCK_KV) * HEAD_DIM",
        ),
    )
    heads, keys = (
        launcher_check.check_far(kernel, sizes, "emulator") for sizes in verb._far(kernel, "emulator").values()
    )
    assert "524289 blocks along y, at most 65535" in heads.report
    assert "out of bounds global" in keys.report and "1x1x32832" in keys.report


def test_a_kernel_may_number_its_tiles_otherwise(edited: Edited):
    """The last block then does not make the last part: nothing is known of it, and nothing is said."""
    backwards = ("blockIdx.x / tiles_n", "(gridDim.x - 1 - blockIdx.x) / tiles_n")
    kernel = broken(edited, NAIVE, backwards, ("blockIdx.x % tiles_n", "(gridDim.x - 1 - blockIdx.x) % tiles_n"))
    assert not launcher_check.last_is_last(kernel) and not verb._far(kernel, "emulator")
    assert launcher_check.last_is_last(NAIVE.kernel())


def test_a_far_check_needs_room_on_the_gpu(monkeypatch: pytest.MonkeyPatch):
    kernel = kernels.load("12").kernel()
    for gib, found in ((140, 2), (40, 2), (24, 1)):  # four tensors of 8 GiB, and such of some megabytes
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gib=gib: (gib << 30, 200 << 30))
        assert len(verb._far(kernel, "gpu")) == found


# ---- what `test` tries of stage 16 -----------------------------------------------------------------------------------


UNUSUAL = (
    ("const float scale_log2 = scale * LOG2_E;", "const float scale_log2 = 0.08838834764f * LOG2_E;"),
    ("(scale_log2 > 0 &&", "(scale > 0 && scale_log2 > 0 &&"),
    ("+ query * strides.row;", "+ query * (packed == 1 ? strides.row : HEAD_DIM);"),
    ("row_offset(arguments.o, batch, head, query, 1) + col", "(size_t)row * HEAD_DIM + col"),
    ("    sum *= correction;\n", ""),
)


@pytest.mark.full
def test_what_only_unusual_calls_show(edited: Edited):
    """A scale of its own, strides of Q and O where heads are packed, parts that come in several rounds: each has a
    mistake, and what is called as usual is right."""
    kernel = broken(edited, FINAL, *UNUSUAL)
    spec, none = kernel.stage.spec, kernel.multiples
    small, packed, wide = (1, 1, 1, 64, 256, 128), (2, 4, 1, 3, 700, 128), (1, 1, 1, 1, 32769, 128)
    known = [*kernel.test_shapes().values(), *spec.wide_shapes(none, kernel.variants).values()]
    assert {small, packed, wide} < set(known)
    tried = [
        (shape, each) for shape in (small, packed, wide) for each in spec.patterns_at(shape, none, kernel.variants)
    ]
    results = {each: accuracy.check(kernel, each[0], "emulator", pattern=each[1]) for each in tried}
    assert [each for each in tried if results[each].ok] == [(packed, "normal")]
    assert "half of Q at twice the scale: wrong result" in results[small, "normal"].report
    assert (packed, "strided") in tried and (wide, "rising") in tried


def test_the_least_newer_gpu_that_a_source_names(edited: Edited):
    assert verb._newer(FINAL.kernel()) == Arch.of("9.0")
    assert verb._newer(NAIVE.kernel()) is None and verb._newer(kernels.load("h7").kernel()) is None
    early = "#if __CUDA_ARCH__ >= 900\n  cudaGridDependencySynchronize();  // attention_kernel has written all shares\n"
    older = early.replace(">= 900", ">= 750")
    assert verb._newer(broken(edited, FINAL, (early, older))) == Arch.of("9.0"), "the other kernel still asks"


def test_all_of_it_is_part_of_test(command, monkeypatch: pytest.MonkeyPatch):
    """What the verb does with a stage that has everything: nothing is compiled, and each check notes that it was."""
    done: list[tuple[str, ...]] = []

    def note(kernel: Kernel, shape: tuple, device: str, seed: int = 0, pattern: str = "normal", **_) -> accuracy.Result:
        done.append((kernel.short, kernel.stage.spec.format(shape), device, pattern))
        return accuracy.Result(kernel, shape, device, (), ())

    monkeypatch.setattr(Kernel, "prepare", lambda kernel, arch: None)
    monkeypatch.setattr(accuracy, "check", note)
    monkeypatch.setattr(launcher_check, "last_is_last", lambda kernel: True)
    monkeypatch.setattr(launcher_check, "check", lambda kernel, seed: note(kernel, (1,) * 6, "launcher"))
    monkeypatch.setattr(
        launcher_check, "check_far", lambda kernel, sizes, device, seed, why: note(kernel, (1,) * 6, "far")
    )
    built, building = [], verb._building
    monkeypatch.setattr(verb, "_building", lambda builds: built.extend(builds) or building(builds))
    status, *_ = command(FINAL.package, "test", "--device", "emulator")
    assert built[0][1] == Arch.of("9.0"), "what is compiled for no other GPU comes first"
    assert status == 0 and len(done) == len(set(done)) + 1, "twice far: heads and batches"
    assert {
        ("fp16", "2x4x2x100x200", "emulator 9.0", "normal"),
        ("bf16 CAUSAL=1", "2x4x1x3x700", "emulator", "strided"),
        ("fp16", "1x1x1x1x32769", "emulator", "normal"),
        ("fp16", "1x1x1x1x32769", "emulator", "rising"),
        ("fp16 HEAD_DIM=64 CAUSAL=1", "1x2x2x256x192", "emulator", "normal"),
    } <= set(done)
    assert [each[0] for each in done if each[2] in ("launcher", "far")] == ["fp16"] * 3
