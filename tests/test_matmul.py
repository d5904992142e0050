"""The problem matmul, and `kernels.matmul` with what a person might give it."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu

import kernels
from common import accuracy, problem
from cudaemu.errors import UserError
from kernels import attention, matmul
from kernels.library import matmul as module
from kernels.library.hopper_matmul import choices
from kernels.library.hopper_matmul.choices import CHOICES
from tests.launches import Notes, anew, from_four_threads, on_a_usual_host, within

SPEC = problem.load("matmul")
DTYPES = (torch.float16, torch.bfloat16)


def make(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def expected(
    a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str | None = None, residual: Tensor | None = None
) -> Tensor:
    c = a.double() @ b.double()
    c = c if bias is None else c + bias.double()
    c = c.relu() if activation == "relu" else gelu(c) if activation == "gelu" else c
    return c if residual is None else c + residual.double()


def assert_right(c: Tensor, want: Tensor, depth: int = 256) -> None:
    """Rounded once; fp32 results as near as tensor cores add: each 16 products cut off less than a unit of the sum."""
    unit = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: max(depth / 16, 16) * 2.0**-24}[c.dtype]
    assert c.shape == want.shape and (c.double() - want).abs().max() <= 1.01 * unit * max(1.0, want.abs().max().item())


@pytest.mark.core(every=12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_what_follows_a_product(dtype, activation, out_dtype):
    a, b, bias, residual = (make(*shape, dtype=dtype) for shape in ((72, 40), (40, 136), (136,), (72, 136)))
    c = matmul(a, b, bias=bias, activation=activation, residual=residual, out_dtype=out_dtype)
    assert c.dtype == (out_dtype or dtype)
    assert_right(c, expected(a, b, bias, activation, residual))


def test_each_part_alone():
    a, b, bias, residual = make(16, 24), make(24, 64), make(64), make(16, 64)
    for options in ({}, {"bias": bias}, {"activation": "relu"}, {"residual": residual}):
        assert_right(matmul(a, b, **options), expected(a, b, **options))


@pytest.mark.full
def test_the_weight_of_a_linear_layer_is_read_in_place(monkeypatch):
    a, weight = make(40, 72), make(64, 72)
    used = []
    stage = kernels.load("hopper_matmul")
    real = type(stage.kernel()).emulate
    monkeypatch.setattr(
        type(stage.kernel()),
        "emulate",
        lambda self, *args, **more: used.append(self.label) or real(self, *args, **more),
    )
    assert_right(matmul(a, weight.t()), expected(a, weight.t()))
    assert used == ["hopper_matmul fp16 B_TRANSPOSED=1"]


def test_strides_and_misaligned_tensors():
    wide_a, wide_b, wide_c = make(40, 96), make(80, 128), torch.full((40, 128), torch.nan, dtype=torch.float16)
    a, b = wide_a[:, 8:88], wide_b[:, 64:]
    assert_right(matmul(a, b), expected(a, b))
    assert matmul(a, b, out=wide_c[:, 8:72]).data_ptr() == wide_c[:, 8:72].data_ptr()
    assert_right(wide_c[:, 8:72], expected(a, b))
    assert wide_c[:, :8].isnan().all() and wide_c[:, 72:].isnan().all()
    odd = wide_a[:, 3:83]
    assert_right(matmul(odd, b), expected(odd, b))
    late_a, late_b = make(40 * 80 + 1)[1:].view(40, 80), make(80 * 64 + 1)[1:].view(80, 64)  # contiguous all the same
    late_c = make(40 * 64 + 1)[1:].view(40, 64)
    assert_right(matmul(late_a, late_b, residual=late_c), expected(late_a, late_b, residual=late_c))
    turned = make(80, 40).t()
    assert_right(matmul(turned, b, out=torch.empty(64, 40, dtype=torch.float16).t()), expected(turned, b))


def test_addends_that_do_not_begin_at_pairs_are_copied():
    a, b, bias, residual = make(16, 24), make(24, 64), make(130), make(16, 71)
    for options in ({"bias": bias[1:65]}, {"bias": bias[1:129:2]}, {"bias": bias[2:66]}, {"residual": residual[:, 7:]}):
        assert_right(matmul(a, b, **options), expected(a, b, **options))


@pytest.mark.core(every=7)
@pytest.mark.parametrize("choice", range(len(CHOICES)))
def test_what_follows_a_product_with_every_tile(choice):
    """Each choice of the launcher adds to each column what belongs to it, at the edges too."""
    stage = kernels.load("hopper_matmul")
    a, b, bias, residual = make(136, 72), make(72, 328), make(328), make(136, 328)
    c = torch.full((136, 328), torch.nan, dtype=a.dtype)
    room = {"room": 36, "sums": torch.empty(36, 128, 128)}
    changed = {"bias": bias, "residual": residual, "activation": 2, "choice": choice, **room}
    stage.kernel("fp16").emulate((a, b), (c,), changed=changed).raise_if_findings()
    assert_right(c, expected(a, b, bias, "gelu", residual))


@pytest.mark.full
def test_a_deep_product_is_split_over_more_blocks_than_a_cluster_has():
    """Each has memory for its own sums; once all have written theirs, each adds a share, with what follows."""
    a, b, bias, residual = make(392, 16392), make(16392, 520), make(520), make(392, 520)
    assert_right(matmul(a, b, bias=bias, activation="gelu", residual=residual), expected(a, b, bias, "gelu", residual))
    report = kernels.load("hopper_matmul").kernel("fp16").emulate((a, b), (torch.empty(392, 520, dtype=a.dtype),))
    assert [launch.kernel.partition("<")[0] for launch in report.launches] == ["gemm_kernel"]
    assert report.launches[0].grid[0] == 4 * 3 * 11  # of 128 × 256, in 11 parts


@pytest.mark.full
@pytest.mark.parametrize(
    ("shape", "old", "new"),
    [
        ((150, 128, 128), "residual[i][x / 2], ACTIVATION", "residual[i][0], ACTIVATION"),
        ((150, 128, 128), "0.14224837f", "0.12224837f"),
        ((128, 136, 128), "row * arguments.residual_row]", "row * arguments.N]"),
        ((300, 136, 336), "arguments.bias || arguments.residual", "arguments.bias && arguments.residual"),
        ((300, 136, 336), "A, M, K, a_row, min", "A, M, K, K, min"),
        ((300, 136, 336), "arguments.C, M, N, arguments.c_row", "arguments.C, M, N, N"),
    ],
    ids=["row of the residual", "GELU", "its pitch", "bias alone", "pitch of A", "pitch of C"],
)
def test_a_check_sees_what_follows_a_product_and_strides(edited, shape, old, new):
    """Of a reader's version, which no test of `kernels.matmul` knows."""
    stage = kernels.load("hopper_matmul")
    kernel = stage.kernel("fp16", source=edited(stage, (old, new)))
    (pattern,) = SPEC.patterns_at(shape, kernel.multiples, kernel.variants)
    assert "wrong result" in accuracy.check(kernel, shape, "emulator", pattern=pattern).report


@pytest.mark.core(every=2)
@pytest.mark.parametrize("transposed", [0, 1])
def test_copies_that_a_pair_of_blocks_shares(transposed):
    """Also where the lower block of a pair has no row of C."""
    kernel = kernels.load("hopper_matmul").kernel("fp16", {"B_TRANSPOSED": transposed})
    a, b = make(264, 136), make(136, 328)
    for choice, name in enumerate(CHOICES):
        if "shared" not in name:
            continue
        c = torch.full((264, 328), torch.nan, dtype=a.dtype)
        report = kernel.emulate((a, b.t().contiguous() if transposed else b), (c,), changed={"choice": choice})
        report.raise_if_findings()
        assert_right(c, expected(a, b))
        rows, columns = (int(number) for number in name.partition(",")[0].split(" × "))
        assert report.launches[0].grid[0] == 2 * -(-264 // (2 * rows)) * -(-328 // columns)


@pytest.mark.parametrize(
    "shape",
    [
        (512, 512, 512), (1536, 1536, 64), (1536, 1536, 520), (64, 1024, 1024), (192, 256, 8192),
        (64, 520, 264), (1304, 1304, 264), (64, 1304, 8200),
    ],
)  # fmt: skip
def test_the_notebook_estimates_as_the_launcher_does(shape, monkeypatch):
    """`estimates` repeats its arithmetic: the least one is what the launcher takes."""
    monkeypatch.setattr(choices, "H200", {1: 132, 2: 66, 4: 33, 8: 16})  # the emulator has no GPCs
    kernel = kernels.load("hopper_matmul").kernel("fp16")
    m, n, k = shape
    a, b, c = make(m, k), make(k, n), torch.empty(m, n, dtype=torch.float16)
    room = choices.choose(shape, {}, 132)["room"]
    least = CHOICES.index(min(choices.estimates(shape)).name)
    ran = []
    for choice in (-1, least):
        changed = {"choice": choice, "room": room, "sums": torch.empty(max(room, 1), 128, 128)}
        ran.append(kernel.emulate((a, b), (c,), changed=changed, sanitize=False).launches[0].kernel)
    assert ran[0] == ran[1]


@pytest.mark.core(every=2)
@pytest.mark.parametrize(("k", "n", "sharers"), [(256, 3008, 1), (264, 3000, 2)])
def test_copies_are_shared_where_rows_straddle_lines(k, n, sharers):
    """Of 128 bytes: by the launcher's estimate a row then takes as long as two lines."""
    a, b = make(3000, k), make(k, n)
    report = kernels.load("hopper_matmul").kernel("fp16").emulate((a, b), (torch.empty(3000, n, dtype=a.dtype),))
    assert f", {sharers}>" in report.launches[0].kernel


def test_gelu_of_what_is_not_finite_is_torchs():
    a = torch.tensor([[torch.inf], [-torch.inf], [torch.nan], [0.0], [6e4], [-6e4], [-3.0]]).half().expand(7, 8) / 8
    c = matmul(a, torch.ones(8, 8).half(), activation="gelu")
    assert_right(c[3:], torch.nn.functional.gelu(a[3:].double().sum(1, keepdim=True)).expand(4, 8))
    assert c[0].isposinf().all() and c[1:3].isnan().all()


def test_other_sizes_are_stage_11s():
    a, b, bias = make(13, 20), make(20, 33), make(33)
    c = matmul(a, b, bias=bias, activation="relu")
    assert c.dtype == a.dtype and (c.double() - expected(a, b, bias, "relu")).abs().max() < 0.02


@pytest.mark.parametrize("m, n, k", [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_nothing(m, n, k):
    bias = make(n)
    c = matmul(make(m, k), make(k, n), bias=bias)
    assert torch.equal(c, bias.expand(m, n))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"a": [1]}, "a must be a torch tensor"),
        ({"b": None}, "b must be a torch tensor, got NoneType"),
        ({"a": torch.eye(8).half().to_sparse()}, "a must be a dense tensor"),
        ({"b": torch.nested.nested_tensor([torch.ones(8, 8)], layout=torch.jagged)}, "b must be a dense tensor"),
        ({"a": make(8)}, "a must be a matrix"),
        ({"a": make(8, 8).float()}, "a must .*got torch.float32"),
        ({"b": make(8, 8, dtype=torch.bfloat16)}, "b must have a's dtype"),
        ({"b": make(16, 8)}, "as many rows as a has columns, 8"),
        ({"bias": make(9)}, r"bias must be \[8\], got \[9\]"),
        ({"residual": make(8, 16)}, r"residual must be \[8, 8\]"),
        ({"out": make(8, 16)}, r"out must be \[8, 8\]"),
        ({"out": make(8, 8).double()}, "out must .*got torch.float64"),
        ({"activation": "silu"}, "activation must .*'silu'"),
        ({"out_dtype": torch.float64}, "out_dtype must be"),
        ({"out": make(8, 8), "out_dtype": torch.float32}, "out_dtype must be out's dtype"),
        ({"a": make(8, 8).requires_grad_()}, "no backward"),
    ],
)
def test_bad_input_is_named(change, said):
    arguments = {"a": make(8, 8), "b": make(8, 8), **change}
    with pytest.raises(UserError, match=said):
        matmul(**arguments)


def test_transforms_are_refused():
    b = make(8, 8)
    with pytest.raises(UserError, match="no rule for torch.func: a must be a plain tensor"):
        torch.vmap(lambda a: matmul(a, b))(make(2, 8, 8))


def test_out_must_lie_apart():
    a, b = make(8, 8), make(8, 8)
    for out in (a, b[:8]):
        with pytest.raises(UserError, match="share memory"):
            matmul(a, b, out=out)


def test_elements_of_out_must_lie_apart():
    """A small matrix with every pair of strides: what is refused is what has two elements in one place."""
    for m, n, row, column in itertools.product(range(1, 5), range(1, 5), range(8), range(8)):
        out = torch.empty(64).as_strided((m, n), (row, column))
        places = {row * i + column * j for i in range(m) for j in range(n)}
        with nullcontext() if len(places) == m * n else pytest.raises(UserError, match="share no memory"):
            module.check_out(out)


@pytest.mark.parametrize("strides", [(4, 1), (1, 4), (0, 1), (8, 0), (12, 8)])
def test_out_with_rows_that_overlap_is_refused(strides):
    a, b, out = make(8, 8), make(8, 8), torch.zeros(200, dtype=torch.half)
    calls = {
        "a call": lambda: matmul(a, b, out=out.as_strided((8, 8), strides)),
        "a parameter": lambda: matmul(torch.nn.Parameter(a, False), b, out=out.as_strided((8, 8), strides)),
        "compiled": lambda: torch.compile(matmul, backend="eager")(a, b, out=out.as_strided((8, 8), strides)),
    }
    for call in calls.values():
        with pytest.raises(UserError, match="out must have elements that share no memory"):
            call()
    assert not out.any(), "nothing was launched"


def test_it_is_an_operator():
    a, b, bias = make(16, 8), make(8, 16), make(16)
    torch.library.opcheck(torch.ops.gpu_kernels_course.matmul.default, (a, b, bias, "relu", None, None))
    fake = torch.empty(16, 8, dtype=torch.float16, device="meta")
    assert matmul(fake, torch.empty(8, 24, dtype=torch.float16, device="meta")).shape == (16, 24)


def test_what_a_call_costs_the_host(monkeypatch, cpu_as_gpu):
    """All but the launch, of a call that was planned before."""
    monkeypatch.setattr(module, "_plans", anew(module._plans))
    kernel, launches = kernels.load("hopper_matmul").kernel("fp16"), []
    built = kernel, Notes(kernel, launches)
    monkeypatch.setattr(module, "_built", lambda *_, **__: built)
    a, b, bias, residual = make(64, 128), make(128, 256), make(256), make(64, 256)
    c = matmul(a, b, bias=bias, activation="gelu", residual=residual)
    noted = {"M": 64, "N": 256, "K": 128, "activation": 2, "C": c.data_ptr(), "bias": bias.data_ptr()}
    assert noted.items() <= launches[0].items()
    assert within(60, lambda: matmul(a, b)), "on a slow machine; a fast one takes a tenth of it"
    assert within(60, lambda: matmul(a, b, bias=bias, activation="gelu", residual=residual))


def test_its_problem_is_gemms():
    assert SPEC.like(problem.load("gemm"), (8, 16, 24)) == (8, 16, 24)
    out = SPEC.outputs((2, 3, 4), "bf16", {"FP32_OUT": 1})[0]
    assert out.dtype == torch.float32 and SPEC.bytes((2, 8, 4), "bf16", {"FP32_OUT": 1}) == 2 * (8 + 32) + 4 * 16
    with pytest.raises(UserError, match="multiples of 16 bytes"):
        SPEC.check_layout("A", make(8, 12)[:, :8])


@pytest.mark.parametrize("warm", [False, True])
def test_views_that_negate_and_tensors_without_memory(warm):
    a, b = make(16, 32), make(32, 16)
    if warm:
        matmul(a, b)
    assert_right(matmul(torch._neg_view(-a), b), expected(a, b))
    out = torch.empty(16, 16, dtype=a.dtype)
    assert matmul(a, torch._neg_view(-b), out=out) is out
    assert_right(out, expected(a, b))
    a = a.clone()  # (in memory that NumPy has not seen)
    a.untyped_storage().resize_(0)
    with pytest.raises(UserError, match="a must be a tensor with memory, got .*emptied"):
        matmul(a, b)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def on_device(*tensors: Tensor) -> list[Tensor]:
    return [tensor.cuda() for tensor in tensors]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "m, n, k", [(1, 8, 8), (13, 20, 33), (16, 4096, 4096), (200, 328, 1000), (512, 512, 8192), (3000, 2056, 520)]
)
def test_sizes_on_the_gpu(m, n, k, dtype):
    a, b, bias, residual = (make(*shape, dtype=dtype) for shape in ((m, k), (k, n), (n,), (m, n)))
    want = expected(a, b, bias, "gelu", residual)
    a, b, bias, residual = on_device(a, b, bias, residual)
    for weight in (b, b.t().contiguous().t()):
        for out_dtype in (dtype, torch.float32):
            c = matmul(a, weight, bias=bias, activation="gelu", residual=residual, out_dtype=out_dtype).cpu()
            if n % 8 or k % 8:  # stage 11 rounds the product first
                assert (c.double() - want).abs().max() <= 2.0**-8 * want.abs().max()
            else:
                assert_right(c, want, k)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [4096, 16384])  # the second in two kernels
def test_graphs_streams_and_threads_on_the_gpu(k):
    a, b = on_device(make(64, k), make(k, 512))
    want = matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = matmul(a, b)
    c.zero_()
    graph.replay()
    assert torch.equal(c, want)

    stream = torch.cuda.Stream()
    late = a * 1  # its kernel is loaded
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        late = a * 1  # after the sleep, a fifth of a second: the kernel must wait for it
        out = matmul(late, b)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(out, want)

    assert all(torch.equal(each, want) for each in from_four_threads(lambda: matmul(a, b)))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [256, 1024, 2056])
def test_it_waits_for_attention_that_lets_it_begin_early_on_the_gpu(n):
    """(Behind another product it is right without the wait, too, on an H200.)"""
    x, weight, k, v = on_device(make(n, 1024), make(1024, 1024) / 4, make(1, 16, n, 64), make(1, 16, n, 64, seed=1))

    def chain(between):
        y = x
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # so long that launches wait in a row for their turn
        for _ in range(30):
            o = attention(y.view(1, n, 16, 64).transpose(1, 2), k, v)
            between()
            y = matmul(o.transpose(1, 2).reshape(n, 1024), weight)
            between()
        return y

    want = chain(torch.cuda.synchronize)
    assert want.isfinite().all() and want.any() and torch.equal(chain(lambda: None), want)


@pytest.mark.gpu
def test_torch_compile_on_the_gpu():
    torch._dynamo.reset()
    a, b, bias = on_device(make(64, 128), make(128, 256), make(256))
    try:
        torch.compile(lambda x: x * 2)(a)
    except Exception as error:  # no compiler, or no Python.h, for Triton
        pytest.skip(f"torch.compile cannot compile here: {str(error).splitlines()[0]}")
    run = lambda x: matmul(x * 2, b, bias=bias, activation="relu") + 1  # noqa: E731
    assert torch.equal(torch.compile(run, fullgraph=True)(a), run(a))


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (16, 4096, 4096)], ids=str)
def test_a_call_costs_the_host_fifteen_microseconds_on_the_gpu(shape):
    m, n, k = shape
    a, b = on_device(make(m, k), make(k, n))
    assert on_a_usual_host(lambda: matmul(a, b)) <= 15
