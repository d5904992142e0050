"""The function `attention`: what it takes, what it launches, what it refuses.

What it hands to a launcher is checked without a GPU and without the emulator: a stand-in computes from the addresses,
sizes and strides that a launch is given. The kernels themselves are checked in test_sdpa.py.
"""

from __future__ import annotations

import ctypes
import itertools

import hypothesis
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

import kernels
from common.gpu import signature
from common.stage import Kernel
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from kernels import attention
from kernels.library import attention as module
from tests.launches import Notes, anew, from_four_threads, on_a_usual_host, within

STAGE = kernels.load("16")


# ---- a launcher that computes from the launch's arguments ------------------------------------------------------------


class StandIn(Notes):
    """Computes in fp64 what the kernel would, from memory and numbers alone, and keeps a list of the launches."""

    def __init__(self, kernel: Kernel, launches: list):
        super().__init__(kernel, launches)
        self.dtype, self.head_dim = kernel.torch_dtype, kernel.variants["HEAD_DIM"]
        self.is_causal = bool(kernel.variants["CAUSAL"])

    def function(self, packed: bytes) -> int:
        super().function(packed)
        self.run(**self.launches[-1])
        return 0

    def tensor(self, address: int, shape: tuple, strides: tuple) -> Tensor:
        assert address % 16 == 0 and not any(stride % 8 for size, stride in zip(shape, strides) if size > 1)
        length = 1 + sum((size - 1) * stride for size, stride in zip((*shape, self.head_dim), (*strides, 1)))
        memory = (ctypes.c_char * (length * 2)).from_address(address)
        return torch.frombuffer(memory, dtype=self.dtype).as_strided((*shape, self.head_dim), (*strides, 1))

    def run(self, Q, K, V, O, LSE, partial_O, partial_LSE, B, H, H_KV, N, N_KV, splits, scale, stream, **strides):  # noqa: E741
        assert scale > 0 and stream == 0 and (splits > 1) == (partial_O != 0) == (partial_LSE != 0)
        if splits > 1:  # both lie in memory that may be written, one behind the other
            assert partial_LSE - partial_O == splits * B * H * N * self.head_dim * 4
            ctypes.memset(partial_O, 255, splits * B * H * N * (self.head_dim + 1) * 4)
        along = {name: tuple(strides[f"{name}_{axis}"] for axis in ("batch", "head", "row")) for name in "qkvo"}
        q, o = (self.tensor(a, (B, H, N), along[name]) for a, name in ((Q, "q"), (O, "o")))
        k, v = (self.tensor(a, (B, H_KV, N_KV), along[name]) for a, name in ((K, "k"), (V, "v")))
        result, lse = exact(q, k, v, self.is_causal, scale)
        o.copy_(result)
        if LSE:
            memory = (ctypes.c_char * (B * H * N * 4)).from_address(LSE)
            torch.frombuffer(memory, dtype=torch.float32).view(B, H, N).copy_(lse)


def exact(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(O, LSE) in fp64; a row whose scores are all -inf has 0 and -inf."""
    k, v = (each.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    scores = q.double() @ k.mT * scale
    if is_causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None] == -torch.inf, 0.0, (scores - lse[..., None]).exp())
    return weights @ v, lse


@pytest.fixture
def launches(monkeypatch, cpu_as_gpu) -> list[dict]:
    """The launches of `attention` on CPU tensors, each computed by a stand-in."""
    found: list[dict] = []

    def built(dtype, device, head_dim, is_causal, few):
        kernel = STAGE.kernel(dtype, {"HEAD_DIM": head_dim, "CAUSAL": int(is_causal)})
        return kernel, StandIn(kernel, found)

    monkeypatch.setattr(module, "_built", built)
    monkeypatch.setattr(module, "_plans", anew(module._plans))
    return found


def inputs(
    b: int = 1, h: int = 2, n: int = 5, d: int = 64, *, h_kv: int | None = None, n_kv: int = 7, dtype=torch.float16
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(b * 1000003 + h * 10007 + n * 101 + n_kv)
    shapes = (b, h, n, d), (b, h_kv or h, n_kv, d), (b, h_kv or h, n_kv, d)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def close(o: Tensor, q: Tensor, k: Tensor, v: Tensor, **options) -> bool:
    """Whether O is what torch's own attention has, to the rounding of the dtype."""
    options.pop("return_lse", None)
    want = torch_sdpa(q.double(), k.double(), v.double(), **options)
    return (
        o.shape == q.shape
        and o.dtype == q.dtype
        and o.stride() == torch.empty_like(q).stride()
        and bool(((o.double() - want).abs() <= 2e-2 * want.abs().clamp(min=0.1)).all())
    )


def test_it_is_found_where_people_look():
    assert attention is kernels.attention is module.attention and STAGE.function == "attention"
    with pytest.raises(AttributeError, match="no attribute 'attentio'"):
        kernels.attentio  # noqa: B018


@pytest.mark.parametrize("capability, number", [("8.0", "16"), ("9.0", "h7"), ("10.0", "16")])
def test_each_gpu_gets_the_stage_that_is_made_for_it(monkeypatch, capability, number):
    """The CPU and few queries get stage 16. The launchers of both take the same arguments."""
    monkeypatch.setattr(module.gpu, "capability", lambda device=None: Arch.of(capability))
    gpu = torch.device("cuda", 0)
    own = module._stage(gpu, few=False)
    assert own is kernels.load(number) and module._stage(torch.device("cpu"), few=False) is STAGE
    assert module._stage(gpu, few=True) is STAGE
    taken = [(signature(each.source, each.symbol), each.torch_dtypes, each.alignment) for each in (own, STAGE)]
    assert taken[0] == taken[1] and own.variants["HEAD_DIM"] == STAGE.variants["HEAD_DIM"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"return_lse": True}], ids=str)
def test_it_means_what_torch_means(launches, dtype, d, options):
    q, k, v = inputs(2, 3, 5, d, n_kv=7, dtype=dtype)
    out = attention(q, k, v, **options)
    o, lse = out if isinstance(out, tuple) else (out, None)
    assert close(o, q, k, v, **options) and len(launches) == 1
    if lse is not None:
        want = exact(q, k, v, False, d**-0.5)[1]
        assert lse.shape == (2, 3, 5) and lse.dtype == torch.float32 and (lse - want).abs().max() < 1e-5


@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_heads_may_share_keys(launches, group):
    q, k, v = inputs(1, 2 * group, 3, h_kv=2)
    assert close(attention(q, k, v, enable_gqa=True), q, k, v, enable_gqa=True)
    assert (launches[0]["H"], launches[0]["H_KV"]) == (2 * group, 2)


LAYOUTS = {
    "[B, N, H, D] transposed": (lambda b, h, n, d: torch.randn(b, n, h, d).transpose(1, 2), True),
    "one of three in [B, N, 3, H, D]": (lambda b, h, n, d: torch.randn(b, n, 3, h, d)[:, :, 1].transpose(1, 2), True),
    "every other row": (lambda b, h, n, d: torch.randn(b, h, 2 * n, d)[:, :, ::2], True),
    "rows of a longer buffer": (lambda b, h, n, d: torch.randn(b, h, n + 9, d)[:, :, 4 : n + 4], True),
    "all heads alike": (lambda b, h, n, d: torch.randn(b, 1, n, d).expand(b, h, n, d), True),
    "all batches and rows alike": (lambda b, h, n, d: torch.randn(1, h, 1, d).expand(b, h, n, d), True),
    "rows 8 elements longer": (lambda b, h, n, d: torch.randn(b, h, n, d + 8)[..., :d], True),
    "rows 1 element longer": (lambda b, h, n, d: torch.randn(b, h, n, d + 1)[..., :d], False),
    "begins 2 bytes late": (lambda b, h, n, d: torch.randn(b * h * n * d + 1)[1:].view(b, h, n, d), False),
    "columns before rows": (lambda b, h, n, d: torch.randn(b, h, d, n).transpose(2, 3), False),
    "every other column": (lambda b, h, n, d: torch.randn(b, h, n, 2 * d)[..., ::2], False),
}


@pytest.mark.parametrize("which", ["q", "k", "v", "all"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides_are_right_and_most_cost_no_copy(launches, layout, which):
    """A view that is read in place is handed on as it is: its address, its strides."""
    make, in_place = LAYOUTS[layout]
    torch.manual_seed(0)
    tensors = dict(zip("qkv", inputs(2, 3, 6, 64, n_kv=10)))
    for name, tensor in tensors.items():
        if which in (name, "all"):
            source = make(*tensor.shape)  # made in fp32: the view has to be made again of 16 bits
            base = source._base if source._base is not None else source
            view = base.half().as_strided(source.shape, source.stride(), source.storage_offset())
            tensors[name] = view
    q, k, v = tensors.values()
    o = attention(q, k, v)
    assert close(o, q, k, v)
    (launch,) = launches
    for name, tensor in tensors.items():
        same = launch[name.upper()] == tensor.data_ptr()
        assert same == (in_place or which not in (name, "all")) or (not in_place and layout == "begins 2 bytes late")
    aligned = "begins" not in layout
    if in_place or (aligned and which not in ("q", "all")):
        assert launch["O"] == o.data_ptr()


def test_views_with_odd_strides_along_axes_of_one_are_read_in_place(launches):
    base = torch.randn(64 * 4 + 3).half()
    q = base.as_strided((1, 1, 2, 64), (3, 5, 64, 1))
    k = v = base.as_strided((1, 1, 1, 64), (1, 1, 7, 1))
    assert close(attention(q, k, v), q, k, v) and launches[0]["Q"] == launches[0]["K"] == base.data_ptr()


@pytest.mark.parametrize("scale", [-0.125, -3.0, 0.0, -0.0, 1e-50, -1e-50, 1e-44, 2, 0.5])
@pytest.mark.parametrize("is_causal", [False, True])
def test_scales_of_every_sign(launches, scale, is_causal):
    """A kernel takes scales above 0: a negative one turns q round, and 0 makes it 0."""
    q, k, v = inputs()
    before = q.clone()
    out = attention(q, k, v, scale=scale, is_causal=is_causal)
    want = exact(q, k, v, is_causal, float(scale))[0]  # torch's flash kernel has NaN for 0 with a mask
    assert torch.allclose(out.double(), want, atol=2e-3) and torch.equal(q, before)


def test_few_queries_split_the_keys_into_scratch_memory(launches):
    q, k, v = inputs(1, 8, 1, 128, h_kv=2, n_kv=2000)
    o, lse = attention(q, k, v, enable_gqa=True, return_lse=True)
    assert close(o, q, k, v, enable_gqa=True) and launches[0]["splits"] > 1
    assert (lse - exact(q, k, v, False, 128**-0.5)[1]).abs().max() < 1e-5
    assert torch.equal(attention(q, k, v, enable_gqa=True), o) and launches[1]["splits"] > 1 and not launches[1]["LSE"]


@pytest.mark.parametrize("shape", [(0, 2, 5), (2, 0, 5), (2, 3, 0)])
def test_nothing_comes_of_nothing(launches, shape):
    b, h, n = shape
    q, k, v = torch.zeros(b, h, n, 64).half(), torch.zeros(b, h, 7, 64).half(), torch.zeros(b, h, 7, 64).half()
    o, lse = attention(q, k, v, return_lse=True)
    assert o.shape == q.shape and lse.shape == shape and not launches


def test_without_keys_all_is_zero_as_torch_has_it(launches):
    q, k, v = inputs(n_kv=0)
    o, lse = attention(q, k, v, return_lse=True)
    assert torch.equal(o, torch_sdpa(q, k, v)) and not o.any() and (lse == -torch.inf).all() and not launches


# ---- random calls ----------------------------------------------------------------------------------------------------


def test_random_calls_launch_what_they_mean(launches):
    st = hypothesis.strategies
    axis = st.integers(1, 3)
    view = st.sampled_from(["dense", *LAYOUTS])

    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
    @hypothesis.given(
        *(axis, axis, axis, st.integers(1, 70), st.integers(1, 90), st.sampled_from([64, 128])),
        *(st.tuples(view, view, view), st.booleans(), st.booleans(), st.none() | st.floats(-2, 2)),
        st.sampled_from([torch.float16, torch.bfloat16]),
    )
    def each(b, h_kv, group, n, n_kv, d, views, is_causal, return_lse, scale, dtype):
        made = []
        for name, count, heads in zip(views, (n, n_kv, n_kv), (h_kv * group, h_kv, h_kv)):
            tensor = (LAYOUTS[name][0] if name in LAYOUTS else torch.randn)(b, heads, count, d)
            base = tensor if tensor._base is None else tensor._base
            made.append(base.to(dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
        q, k, v = made
        out = attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=True, return_lse=return_lse)
        o, lse = out if return_lse else (out, None)
        want, want_lse = exact(q, k, v, is_causal, d**-0.5 if scale is None else scale)
        assert o.stride() == torch.empty_like(q).stride()
        assert torch.allclose(o.double(), want, atol=2e-2, rtol=2e-2)
        assert lse is None or torch.allclose(lse.double(), want_lse, atol=1e-4, rtol=1e-5)

    each()


def test_random_arguments_are_taken_or_refused_in_words():
    """What torch's own attention cannot take is refused, too, and nothing else than a UserError is raised."""
    st = hypothesis.strategies
    sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 64, 80, 128]), min_size=3, max_size=5).map(tuple)
    usual = st.tuples(st.integers(1, 2), st.sampled_from([2, 4]), st.integers(1, 5), st.sampled_from([64, 128]))
    dtypes = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int8])
    flags = st.sampled_from([False, True])
    scales = st.one_of(st.none(), st.floats(), st.integers(-(10**60), 10**60), st.just("1"), st.just(True))

    @hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
    @hypothesis.given(usual | sizes, usual | sizes, usual | sizes, dtypes, st.none() | dtypes, flags, scales, flags)
    def each(of_q, of_k, of_v, dtype, other, is_causal, scale, enable_gqa):
        q, k, v = (torch.zeros(shape, dtype=dtype, device="meta") for shape in (of_q, of_k, of_v))
        k = k if other is None else k.to(other)
        try:
            module.check(module.Arguments(q, k, v, is_causal, scale, enable_gqa))
        except UserError as error:
            words = str(error).removeprefix("attention: ").split()
            assert str(error).startswith("attention: ") and words[0].removesuffix("'s") in ("q", "k", "v", "scale")
            return
        out = torch_sdpa(q, k, v, is_causal=is_causal, scale=scale and float(scale), enable_gqa=enable_gqa)
        taken = attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        assert taken.shape == out.shape and taken.dtype == out.dtype and taken.device == out.device

    each()


# ---- what is refused -------------------------------------------------------------------------------------------------

Q, K, V = inputs()
REFUSED = {
    "list": (([1.0], K, V), {}, "q must .*list"),
    "list of keys": ((Q, [1.0], V), {}, "k must .*list"),
    "three axes": ((Q[0], K, V), {}, r"q must be \[B, H, N, D\], got \[2, 5, 64\]"),
    "fp32": (
        (Q.float(), K.float(), V.float()),
        {},
        "q must .*torch.float32.*q.half",
    ),
    "two dtypes": ((Q, K.bfloat16(), V), {}, "k must .*dtype.*got torch.bfloat16"),
    "two dtypes, q": ((Q.bfloat16(), K, V), {}, "k must .*dtype.*got torch.float16"),
    "two dtypes, v": ((Q, K, V.float()), {}, "v must .*dtype"),
    "D": ((Q[..., :32], K[..., :32], V[..., :32]), {}, "q's last dimension must .*got 32"),
    "D of k": (
        (Q, K[..., :32], V),
        {},
        r"k must .*D = 64, got \[1, 2, 7, 32\]",
    ),
    "batch": ((Q, K.expand(3, 2, 7, 64), V.expand(3, 2, 7, 64)), {}, "k must be .* with q's B = 1"),
    "v unlike k": ((Q, K, V[:, :, :3]), {}, r"v must .*shape.*got \[1, 2, 3, 64\]"),
    "heads": ((Q, K[:, :1], V[:, :1]), {}, "k must .*2 heads, got 1.*enable_gqa"),
    "heads of q": ((Q[:, :1], K, V), {}, "k must .*1 heads, got 2.*enable_gqa"),
    "groups": (
        (Q, K.repeat(1, 2, 1, 1), V.repeat(1, 2, 1, 1)),
        {"enable_gqa": True},
        "heads must be a multiple.*got 2 and 4",
    ),
    "no heads of k": (
        (Q, K[:, :0], V[:, :0]),
        {"enable_gqa": True},
        "heads must be a multiple.*got 2 and 0",
    ),
    "device": ((Q, K.to("meta"), V), {}, "k must .*device.*got one on meta"),
    "device of q": ((Q.to("meta"), K, V), {}, "k must .*device.*got one on cpu"),
    "device of v": ((Q, K, V.to("meta")), {}, "v must .*device.*got one on meta"),
    "sparse": ((Q.to_sparse(), K, V), {}, "q must .*torch.sparse_coo"),
    "flag": ((Q, K, V), {"is_causal": 1}, r"is_causal must .*int \(1\)"),
    "other flag": ((Q, K, V), {"return_lse": None}, "return_lse must .*NoneType"),
    "scale of words": ((Q, K, V), {"scale": "0.1"}, "scale must .*got str"),
    "scale of a tensor": ((Q, K, V), {"scale": torch.ones(())}, "scale must .*got Tensor"),
    "infinite scale": ((Q, K, V), {"scale": float("inf")}, "scale .*must be finite.*inf"),
    "scale of NaN": ((Q, K, V), {"scale": float("nan")}, "scale .*must be finite.*nan"),
    "large scale": ((Q, K, V), {"scale": 3e38}, "scale .*must be finite"),
    "huge scale": ((Q, K, V), {"scale": 10**400}, "scale .*must be finite"),
    "grad": (
        (Q, K, V.clone().requires_grad_()),
        {},
        r"no backward.*v.detach\(\).*no_grad\(\)",
    ),
}


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("tensors, options, message", REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_named(launches, tensors, options, message, warm):
    if warm:
        attention(Q, K, V)
    for _ in range(2):
        with pytest.raises(UserError, match=message) as error:
            attention(*tensors, **options)
        assert isinstance(error.value, ValueError) and len(launches) == warm


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused(launches, layout):
    nested = torch.nested.as_nested_tensor([V[0]], layout=layout)
    with pytest.raises(UserError, match="v must .*nested"):
        attention(Q, K, nested)


def test_without_grad_parameters_may_be_used(launches):
    q = torch.nn.Parameter(Q.clone())
    with pytest.raises(UserError, match="no backward.* q "):
        attention(q, K, V)
    with torch.no_grad():
        assert torch.equal(attention(q, K, V), attention(Q, K, V))
    assert torch.equal(attention(torch.nn.Parameter(Q, requires_grad=False), K, V), attention(Q, K, V))


def test_inside_a_vmap(launches):
    for _ in range(2):
        with pytest.raises(UserError, match="no rule for torch.func: q "):
            torch.func.vmap(lambda q: attention(q, K, V))(Q.expand(3, *Q.shape))
        attention(Q, K, V)


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_call_is_worked_out_once(launches, monkeypatch):
    attention(Q, K, V)
    monkeypatch.setattr(module, "check", lambda *_: pytest.fail("checked again"))
    monkeypatch.setattr(module, "Call", lambda *_: pytest.fail("planned again"))
    assert torch.equal(attention(Q, K, V), attention(Q.clone(), K.clone(), V.clone()))
    with pytest.raises(pytest.fail.Exception):  # what the plan depends on is in its key
        attention(Q, K, V, is_causal=True)


def test_a_plan_serves_calls_of_its_kind_alone(launches):
    """Those that differ in one thing, in turn; REFUSED has those that no plan may serve."""
    shifted = torch.empty(K.numel() + 1, dtype=K.dtype)[1:].view(K.shape).copy_(K)
    kinds = [
        ((Q, K, V), {}),
        ((Q, shifted, V), {}),  # copied, and so are q and v
        ((Q, K, V), {"is_causal": True}),
        ((Q, K, V), {"scale": 0.5}),
        ((Q, K, V), {"scale": -0.5}),
        ((Q, K, V), {"return_lse": True}),
        ((Q, K[:, :1], V[:, :1]), {"enable_gqa": True}),
    ]
    for _ in range(3):
        for tensors, options in kinds:
            out = attention(*tensors, **options)
            o, *lse = out if isinstance(out, tuple) else (out,)
            assert close(o, *tensors, **options) and len(lse) == options.get("return_lse", False)
            launch = launches.pop()
            assert (launch["Q"] == Q.data_ptr()) == (tensors[1] is not shifted and options.get("scale", 1) > 0)
            assert (launch["LSE"] != 0) == bool(lse) and not launches
    assert len(module._plans) == len(kinds)
    with pytest.raises(UserError, match="enable_gqa=True"):
        attention(Q, K[:, :1], V[:, :1])


def test_plans_are_not_kept_without_end(launches, monkeypatch):
    monkeypatch.setattr("common.calls.KEPT", 3)
    for n in range(1, 9):
        attention(*inputs(n=n))
        assert 1 <= len(module._plans) <= 3


def test_what_a_call_costs_the_host(monkeypatch, launches):
    """All but the launch; of a call that was planned before, and of one whose number of keys is new, as in decoding."""
    kernel = STAGE.kernel("fp16", {"HEAD_DIM": 64})
    built = kernel, Notes(kernel, launches)  # once, as _built keeps it
    monkeypatch.setattr(module, "_built", lambda *_: built)
    assert within(60, lambda: attention(Q, K, V)), "on a slow machine; a fast one takes a tenth of it"
    q, k, _ = inputs(1, 32, 1, n_kv=6000)
    lengths = itertools.cycle(range(5000, 5040))

    def step():
        module._plans.clear()
        length = next(lengths)
        attention(q, k[:, :, :length], k[:, :, :length])

    assert within(500, step), "on a slow machine; a fast one takes a tenth of it"


# ---- torch.compile ---------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        o = attention(q * 1.5, k, v, is_causal=True)
        o, lse = attention(o, k, v, scale=-0.2, return_lse=True)
        return o + 1, lse


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_takes_it_whole(launches, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(Block(), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for n in (5, 6, 7):
        q, k, v = inputs(2, 2, n)
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
        for got, want in zip(compiled(q, k, v), Block()(q, k, v), strict=True):
            assert torch.equal(got, want) and got.stride() == want.stride()
    assert len(launches) == 3 * 4


@pytest.mark.parametrize("dynamic", [None, True])
def test_torch_compile_takes_any_scale(launches, dynamic):
    """One that it has as a symbol, too."""
    torch._dynamo.reset()
    run = lambda scale: attention(Q, K, V, scale=scale)  # noqa: E731
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for scale in (0.5, 0.25, -0.125, 2):
        assert torch.equal(compiled(scale), run(scale))


def test_torch_compile_says_what_does_not_fit():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: attention(q, k, v), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="q's last dimension must .* 32"):
        compiled(Q[..., :32], K[..., :32], V[..., :32])
    with pytest.raises(Exception, match="no backward.* q "):
        compiled(Q.clone().requires_grad_(), K, V)


@pytest.mark.parametrize(
    "options", [{}, {"return_lse": True, "is_causal": True}, {"enable_gqa": True, "scale": -2.0}], ids=str
)
def test_the_operator_keeps_the_rules_of_operators(launches, options):
    q, k, v = inputs(2, 4, h_kv=2 if "enable_gqa" in options else 4)
    for each in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        torch.library.opcheck(torch.ops.gpu_kernels_course.attention.default, (each, k, v), options)


def test_fake_and_meta_tensors_have_shapes_and_no_values(launches):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, 5, 64, dtype=torch.half) for _ in range(3))
        o, lse = attention(q, k, v, return_lse=True)
        assert o.shape == q.shape and lse.shape == (1, 2, 5) and lse.dtype == torch.float32
        with pytest.raises(UserError, match="v must have k's shape"):
            attention(q, k, v[:, :, :3])
    meta = attention(*(each.to("meta") for each in (Q, K, V)))
    assert meta.device.type == "meta" and meta.shape == Q.shape and not launches


def test_modes_see_the_operator(launches):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Look():
        attention(Q, K, V)
    assert "gpu_kernels_course.attention.default" in seen and len(launches) == 1


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def on_device(*tensors: Tensor) -> list[Tensor]:
    return [tensor.cuda() for tensor in tensors]


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("shape", [(1, 32, 1024, 64, 1024), (4, 16, 512, 128, 512), (1, 32, 1, 128, 8192)], ids=str)
def test_a_call_costs_the_host_twenty_microseconds_on_the_gpu(shape):
    b, h, n, d, n_kv = shape
    q, k, v = on_device(*inputs(b, h, n, d, n_kv=n_kv))
    assert on_a_usual_host(lambda: attention(q, k, v)) <= 20


@pytest.mark.gpu
def test_torch_compile_on_the_gpu():
    torch._dynamo.reset()
    q, k, v = on_device(*inputs(2, 4, 200, n_kv=300))
    try:
        torch.compile(lambda x: x * 2)(q)
    except Exception as error:  # no compiler, or no Python.h, for Triton
        pytest.skip(f"torch.compile cannot compile here: {str(error).splitlines()[0]}")
    compiled = torch.compile(Block(), fullgraph=True)
    for got, want in zip(compiled(q, k, v), Block()(q, k, v), strict=True):
        assert torch.equal(got, want)


@pytest.mark.gpu
def test_graphs_streams_and_threads_on_the_gpu():
    q, k, v = on_device(*inputs(1, 8, 1, 128, h_kv=2, n_kv=3000))
    run = lambda: attention(q, k, v, enable_gqa=True, return_lse=True)  # noqa: E731
    want, want_lse = run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = run()
    o.zero_()
    graph.replay()
    assert torch.equal(o, want) and torch.equal(lse, want_lse)
    v.mul_(2)
    graph.replay()
    assert torch.allclose(o, want * 2, rtol=0, atol=2**-23)  # exact, but for what fp16 holds with less than 11 bits
    v.mul_(0.5)

    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late = q * 1  # behind the sleep: the kernel must wait for it
        out, _ = attention(late, k, v, enable_gqa=True, return_lse=True)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(out, want)
    assert torch.allclose(attention(q, k, v, enable_gqa=True), want, atol=2**-11)  # parts weighed a little differently

    assert all(torch.equal(each, want) for each in from_four_threads(lambda: run()[0]))


@pytest.mark.full
@pytest.mark.parametrize("warm", [False, True])
def test_views_that_negate_and_tensors_without_memory(warm):
    q, k, v = (torch.randn(1, 1, 16, 64, generator=torch.Generator().manual_seed(n)).half() for n in range(3))
    want = attention(q, k, v)
    if not warm:
        module._plans.clear()
    assert torch.equal(attention(torch._neg_view(-q), k, torch._neg_view(-v)), want)
    q = q.clone()  # (in memory that NumPy has not seen)
    q.untyped_storage().resize_(0)
    with pytest.raises(UserError, match="q must be a tensor with memory, got .*emptied"):
        attention(q, k, v)
