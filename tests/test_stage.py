"""Stages and kernels: what can be asked for, what is refused before a launch, and a call as of a torch function."""

from __future__ import annotations

import re
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import kernels
from common import accuracy, course, gpu, terminal, torch_private
from common.stage import Macro, Prepared, Stage, macros
from cudaemu.errors import UserError
from tests.launches import Notes, anew

NAIVE, BLOCK_TILE, THREAD_TILE = (kernels.load(number) for number in (1, 2, 3))


def test_macros_come_from_the_source(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("#ifndef STAGES \n#define STAGES 3  // tiles in flight\n#endif\n#define OTHER 1\n")
    assert macros(source) == {"STAGES": Macro("3", "tiles in flight")}
    assert macros(NAIVE.source)["COALESCED"].default == "1"
    source.write_text("#ifndef A\r\n#define A 3\r\n#endif\r\n")
    assert macros(source) == {"A": Macro("3", "")}


def test_defines_and_labels():
    kernel = NAIVE.kernel("bf16", {"COALESCED": 0})
    assert kernel.defines == {"DTYPE": "__nv_bfloat16", "COALESCED": "0"}
    assert (kernel.label, kernel.short) == ("01_naive bf16 COALESCED=0", "bf16 COALESCED=0")
    assert (NAIVE.kernel().label, NAIVE.kernel().short) == ("01_naive fp16", "fp16")


def test_settings_say_what_is_computed_and_other_variants_how():
    stage = next(stage for stage in kernels.ladder() if "B_TRANSPOSED" in stage.variants)
    turned, other = stage.kernel("fp16", {"B_TRANSPOSED": 1}), stage.kernel("fp16", {"STAGES": 2})
    assert turned.settings == {"B_TRANSPOSED": 1} and turned.default and turned.changed
    assert other.settings == {"B_TRANSPOSED": 0} and not other.default


def test_ceilings_are_named_by_unit_and_dtype():
    assert NAIVE.kernel("fp16").ceiling == "FMA fp32"
    assert [kernels.load("05").kernel(dtype).ceiling for dtype in ("fp16", "bf16")] == [
        "mma.sync fp16",
        "mma.sync bf16",
    ]


def test_kernels_cover_each_dtype_and_each_value():
    labels = [kernel.label for kernel in NAIVE.kernels()]
    assert labels == [f"01_naive {d}{v}" for d in ("fp16", "bf16", "fp32") for v in ("", " COALESCED=0")]


def test_variants_that_say_what_is_computed_are_combined_in_one_dtype():
    for stage in course.everything():
        told = [name for name in stage.variants if name in stage.spec.settings]
        assert list(stage.together) == (told if len(told) > 1 else []), stage.name
    both = [kernel.short for kernel in kernels.load("16").kernels() if kernel.variants["HEAD_DIM"] == 64]
    assert both == ["fp16 HEAD_DIM=64", "fp16 HEAD_DIM=64 CAUSAL=1", "bf16 HEAD_DIM=64"]
    assert len(kernels.load("16").kernels(["fp16"], fixed={"CAUSAL": 1})) == 3


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


@pytest.mark.parametrize("value", [2, True, "1", 1.0])
def test_variant_values_are_whole_numbers_of_the_list(value):
    with pytest.raises(UserError, match="COALESCED must be one of 0, 1"):
        NAIVE.kernel(variants={"COALESCED": value})


@pytest.mark.parametrize(
    "shape, message",
    [
        ((1000, 128, 16), "M must be a multiple of 128, got 1000 (896 and 1024"),
        ((128, 100, 17), "got 100 (128 is nearest); K must be a multiple of 16, got 17 (16 and 32"),
        ((0, 128, 16), "03_thread_tile: M must be at least 1"),
    ],
)
def test_shapes_that_a_stage_cannot_take(shape, message):
    with pytest.raises(UserError) as error:
        THREAD_TILE.kernel().check_shape(*shape)
    assert message in str(error.value)


def test_multiple_may_be_a_macro(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("#ifndef BLOCK_K\n#define BLOCK_K 16  // depth\n#endif\n")
    stage = Stage("kernels.01_naive", "", variants={"BLOCK_K": (16, 32)}, multiples={"K": "BLOCK_K"})
    stage.kernel(source=source).check_shape(1, 1, 48)
    with pytest.raises(UserError, match="K .*multiple of 32.* 48"):
        stage.kernel(variants={"BLOCK_K": 32}, source=source).check_shape(1, 1, 48)


def test_a_stage_adds_shapes_to_those_of_its_problem():
    stage = Stage("kernels.01_naive", "", multiples={"M": 64}, test_shapes={"taken": (64, 1, 9), "not": (65, 1, 9)})
    shapes = stage.kernel(source=NAIVE.source).test_shapes()
    assert shapes["taken"] == (64, 1, 9) and "not" not in shapes and len(shapes) > 2


def test_limits_in_a_line():
    assert NAIVE.limits == "fp16, bf16, fp32; any size"
    assert THREAD_TILE.limits == "fp16, bf16, fp32; M and N multiples of 128; K a multiple of 16"
    newer = Stage("kernels.01_naive", "", dtypes=("fp16",), min_arch="9.0a")
    assert newer.limits == "fp16; any size; compute capability 9.0a"


def test_what_a_stage_is_compiled_for():
    """Newer GPUs run a stage's code as it is compiled for them; "a" is for one compute capability alone."""
    older, exact = (Stage("kernels.01_naive", "", min_arch=arch) for arch in ("8.0", "9.0a"))
    assert older.target("9.0").nvcc == "90" and exact.target("9.0").nvcc == "90a"
    for other in ("8.0", "10.0"):
        with pytest.raises(UserError, match=f"01_naive needs .*9.0a, got {other}"):
            exact.target(other)


def test_source_without_dtype_has_one_type(tmp_path):
    source = tmp_path / "mine.cu"
    source.write_text("// only half\n")
    assert [kernel.dtype for kernel in BLOCK_TILE.kernels(source=source)] == ["fp16"]
    with pytest.raises(UserError, match="must declare the macro DTYPE"):
        BLOCK_TILE.kernel("fp32", source=source)


def test_source_that_is_not_there():
    with pytest.raises(UserError, match="nowhere.cu: there is no such file"):
        BLOCK_TILE.kernel(source=Path("nowhere.cu"))


# A call.

SQUARE = torch.zeros(4, 4)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls them beta
    CSR = SQUARE.to_sparse_csr()


@pytest.mark.parametrize(
    "a, b, message",
    [
        (SQUARE, SQUARE.half(), "B must .*dtype.*got torch.float16"),
        (
            SQUARE.double(),
            SQUARE.double(),
            "dtype must be one of .*got torch.float64",
        ),
        (SQUARE.t()[:2], SQUARE, r"pass A.contiguous\(\)"),
        (SQUARE, torch.zeros(5, 4), r"A \[4, 4\] and B \[5, 4\]"),
        (torch.zeros(4), torch.zeros(4), r"A \[4\] and B \[4\]"),
        (SQUARE.to("meta"), SQUARE.to("meta"), "A must .*meta"),
        (SQUARE, SQUARE.to("meta"), "B must .*meta"),
        (SQUARE, [[1.0]], "B must .*list"),
        ([[1.0]], SQUARE, "A must .*list"),
        (torch.zeros(0, 4), SQUARE, "M must be at least 1, got 0"),
        (SQUARE.requires_grad_(False).clone().requires_grad_(), SQUARE, r"no backward.*A.detach\(\)"),
        (SQUARE, SQUARE.clone().requires_grad_(), r"no backward.* B .*torch.no_grad\(\)"),
        (CSR, SQUARE, "A must .*torch.sparse_csr"),
        (SQUARE, SQUARE.to_sparse(), "B must .*torch.sparse_coo"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_tensors_that_a_stage_cannot_take(a, b, message, warm, monkeypatch):
    """Also if a call with good tensors of that kind went before, and all was found out then."""
    monkeypatch.setitem(NAIVE.__dict__, "_calls", anew(NAIVE._calls))
    if warm:
        NAIVE(SQUARE, SQUARE)
    with pytest.raises(UserError, match=message):
        NAIVE(a, b)


def test_tensors_inside_a_vmap(monkeypatch):
    monkeypatch.setitem(NAIVE.__dict__, "_calls", anew(NAIVE._calls))
    for _ in range(2):
        with pytest.raises(UserError, match="no rule for torch.func: A "):
            torch.func.vmap(NAIVE)(torch.zeros(2, 4, 4), torch.zeros(2, 4, 4))
        NAIVE(SQUARE, SQUARE)


def emptied() -> torch.Tensor:
    """Four by four elements, and no memory."""
    tensor = torch.zeros(4, 4)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NAIVE(emptied(), SQUARE), "A must .*memory.*emptied"),
        (lambda: NAIVE(SQUARE, FakeTensorMode().from_tensor(SQUARE)), "B must .*memory.*FakeTen"),
        (lambda: torch.func.functionalize(lambda a: NAIVE(a, SQUARE))(SQUARE), "no rule for torch.func"),
        (lambda: make_fx(lambda a: NAIVE(a, SQUARE))(SQUARE), "outside make_fx"),
        (lambda: NAIVE(torch.nested.nested_tensor([SQUARE, SQUARE]), SQUARE), "A must .*nested"),
    ],
    ids=["emptied", "fake", "functional", "traced", "nested"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_values_of_their_own(call, message, warm, monkeypatch):
    """They gave numbers from nowhere, or errors of torch's insides."""
    monkeypatch.setitem(NAIVE.__dict__, "_calls", anew(NAIVE._calls))
    if warm:
        NAIVE(SQUARE, SQUARE)
    with pytest.raises(UserError, match=message):
        call()


def test_views_that_negate_are_what_they_show(monkeypatch):
    monkeypatch.setitem(NAIVE.__dict__, "_calls", anew(NAIVE._calls))
    for a in (-SQUARE, torch._neg_view(SQUARE), -SQUARE):
        assert torch.equal(NAIVE(a, torch.eye(4)), -SQUARE)


def test_compiled_code_calls_a_stage_as_it_is():
    double = torch.compile(lambda a, b: 2 * NAIVE(a, b), backend="eager")
    assert torch.equal(double(SQUARE, torch.eye(4)), 2 * SQUARE)


def test_stages_can_be_keys():
    assert {NAIVE: 1}[kernels.load("01")] == 1


def test_without_grad_what_requires_it_may_be_used():
    a = torch.ones(4, 4, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(NAIVE(a, torch.eye(4)), torch.ones(4, 4))
    assert not NAIVE(a.detach(), SQUARE).requires_grad


def test_defaults_of_torch_change_nothing():
    """CPU tensors are computed on the CPU, and LSE and scratch memory are fp32, whatever others make."""
    a, q = torch.ones(4, 4), torch.zeros(1, 1, 1, 64).half()
    with torch.device("meta"):
        assert torch.equal(NAIVE(a, a), a.new_full((4, 4), 4))
    torch.set_default_dtype(torch.float16)
    try:
        o, lse = kernels.attention(q, q, q, return_lse=True)
        scratch = kernels.load("16").spec.scratch((1, 1, 1, 1, 2000, 64), {"CAUSAL": 0, "splits": 2})
    finally:
        torch.set_default_dtype(torch.float32)
    assert o.dtype == torch.float16 and lse.dtype == torch.float32
    assert {each.dtype for each in scratch if each is not None} == {torch.float32}


def test_number_of_tensors():
    for inputs in ((SQUARE,), (SQUARE,) * 3, ()):
        with pytest.raises(UserError, match=r"takes 2 tensors \(A, B\)"):
            NAIVE(*inputs)


@pytest.mark.parametrize("value", [True, 2, "0"])
def test_variants_of_a_call_are_checked(value):
    NAIVE(SQUARE, SQUARE, COALESCED=1)
    with pytest.raises(UserError, match="COALESCED must be one of 0, 1"):
        NAIVE(SQUARE, SQUARE, COALESCED=value)
    with pytest.raises(UserError, match="'COALESCE'.*'COALESCED'"):
        NAIVE(SQUARE, SQUARE, COALESCE=1)


def test_alignment_is_asked_for_where_it_matters():
    a, b = torch.zeros(128 * 16 + 1)[1:].view(128, 16), torch.zeros(16, 128)
    NAIVE.check_tensors((a, b))
    for _ in range(2):
        with pytest.raises(UserError, match=r"multiple of 16: pass A.clone\(\)"):
            THREAD_TILE(a, b)
        THREAD_TILE(a.clone(), b)


@pytest.mark.parametrize("dtype", NAIVE.dtypes)
def test_call_runs_the_stage(dtype: str):
    kernel = NAIVE.kernel(dtype)
    instance = accuracy.make(kernel, (40, 33, 20))
    out = NAIVE(*instance.inputs, COALESCED=0)
    assert out.dtype == instance.inputs[0].dtype and out.shape == (40, 33)
    accuracy.verify(kernel, instance, (out,))


def test_a_kernel_is_resolved_once(monkeypatch):
    """Later calls read no file, look no module up and ask for no compiler, be the shape a new one or not."""
    NAIVE(SQUARE, SQUARE)
    monkeypatch.setattr(Stage, "kernel", lambda *_: pytest.fail("resolved again"))
    monkeypatch.setattr("common.stage.macros", lambda *_: pytest.fail("read again"))
    assert torch.equal(NAIVE(SQUARE, SQUARE), SQUARE)
    assert torch.equal(NAIVE(torch.eye(5), torch.ones(5, 3)), torch.ones(5, 3))


def test_kinds_of_calls_are_not_remembered_without_end(monkeypatch):
    monkeypatch.setitem(NAIVE.__dict__, "_calls", anew(NAIVE._calls))
    monkeypatch.setattr("common.calls.KEPT", 3)
    for size in range(1, 9):
        NAIVE(torch.eye(size), torch.eye(size))
        assert 1 <= len(NAIVE._calls) <= 3


def test_what_a_call_costs_besides_the_emulator(monkeypatch, cpu_as_gpu):
    """The whole way of a call but the launch takes microseconds: on a GPU it is all that there is."""
    a = torch.zeros(64, 64)
    monkeypatch.setitem(NAIVE.__dict__, "_calls", anew(NAIVE._calls))
    NAIVE(a, a)
    (call,) = NAIVE._calls.values()
    launches: list[dict] = []
    launcher = Notes(call.kernel, launches)
    monkeypatch.setattr(call, "launch", launcher.bind(a.device, [64, 64, 64], call.outputs))
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            NAIVE(a, a)
        best = min(best, (time.perf_counter() - start) / 100)
    assert len(launches) == 2000 and launches[0]["A"] == launches[0]["B"] == a.data_ptr()
    assert best < 100e-6, "on a slow machine; a fast one takes a tenth of it"


def test_without_a_gpu_a_call_says_nothing_it_was_asked_for_the_cpu(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "_announced", set())
    monkeypatch.setattr("common.stage.SLOW", 600.0)
    NAIVE(SQUARE, SQUARE)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["a stage", "matmul"])
def test_a_call_that_takes_long_says_why(capsys, monkeypatch, name):
    """The machine, or the first call's compilation, may be slow: `SLOW` is what the test makes it."""
    a = torch.zeros(8, 8).half()
    call, label = {"a stage": (NAIVE, "01_naive"), "matmul": (kernels.matmul, "hopper_matmul")}[name]
    monkeypatch.setattr("common.stage.SLOW", 600.0)
    call(a, a)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("common.stage.SLOW", 0.0)
    call(a, a)
    assert re.fullmatch(f"{label} fp16 runs in the emulator: .*\\n", capsys.readouterr().err)


@pytest.mark.parametrize("shape, split", [((1, 2, 2, 256, 300, 128), True), ((16, 16, 16, 128, 128, 128), False)])
def test_a_call_allocates_what_the_launcher_writes(cpu_as_gpu, shape, split):
    """Outputs as the problem has them, and scratch memory in one piece, of which each tensor has its own part."""
    stage = kernels.load("16")
    kernel, spec = stage.kernel(), stage.spec
    inputs, launches = spec.inputs(shape, "fp16", kernel.variants), []
    (like,) = spec.outputs(shape, "fp16", kernel.variants)
    call = Prepared(kernel, Notes(kernel, launches), inputs[0].device, shape, inputs, (like,))
    (o,) = call(inputs, [tensor.data_ptr() for tensor in inputs])
    assert (o.shape, o.stride(), o.dtype) == (like.shape, like.stride(), like.dtype)
    assert o.device == like.device and not o.requires_grad
    (launch,) = launches
    names = spec.tensor_names(kernel.variants)
    assert [launch[name] for name in names[:4]] == [tensor.data_ptr() for tensor in (*inputs, o)]
    chosen = kernel.choices(shape, torch.device("cpu"))
    numbers = spec.scalars(shape, chosen, (*inputs, o))
    assert {name: launch[name] for name in numbers} == pytest.approx(numbers, rel=1e-6) and launch["stream"] == 0
    lse, wanted, _ = spec.scratch(shape, chosen, "cpu")
    partial_o, partial_lse = launch["partial_O"], launch["partial_LSE"]
    assert lse is None and launch["LSE"] == 0 and (wanted is not None) == split == (launch["splits"] > 1)
    if split:
        assert wanted.nbytes <= partial_lse - partial_o and not (partial_lse - partial_o) % gpu.ALIGNMENT
    else:
        assert partial_o == partial_lse == 0


@pytest.fixture
def noted(monkeypatch, cpu_as_gpu) -> list[dict]:
    """The launches of stage 16's calls on CPU tensors, none of which does anything."""
    stage, launches = kernels.load("16"), []

    class Kernels(dict):
        def __missing__(self, key):
            dtype, _, *variants = key
            kernel = stage.kernel(dtype, dict(variants[: len(variants) // 2]))  # their types follow
            return kernel, Notes(kernel, launches)

    monkeypatch.setitem(stage.__dict__, "_calls", anew(stage._calls))
    monkeypatch.setitem(stage.__dict__, "_kernels", Kernels())
    return launches


def attention_inputs(dtype=torch.float16, b=1, h=4, h_kv=2, n=3, n_kv=200, d=64) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype) for shape in ((b, h, n, d), (b, h_kv, n_kv, d), (b, h_kv, n_kv, d))]


def rows_apart(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack((tensor, tensor), dim=3)[:, :, :, 0]


def test_a_call_is_that_of_its_own_inputs_whatever_went_before(noted):
    """Kinds of calls that differ in one thing each, three times in turn: what was kept of one serves no other."""
    stage, plain = kernels.load("16"), attention_inputs()
    kinds = [plain, attention_inputs(torch.bfloat16)]
    kinds += [
        attention_inputs(**{axis: size}) for axis, size in zip(("b", "h", "h_kv", "n", "n_kv"), (2, 6, 1, 5, 129))
    ]
    kinds += [attention_inputs(d=128)]
    kinds += [[rows_apart(t) if i == which else t for i, t in enumerate(plain)] for which in range(3)]
    for _ in range(3):
        for inputs in kinds:
            o = stage(*inputs)
            launch = noted.pop()
            kernel = stage.kernel({torch.float16: "fp16", torch.bfloat16: "bf16"}[o.dtype], stage.spec.implied(inputs))
            chosen = kernel.choices(stage.spec.shape(inputs, kernel.variants), torch.device("cpu"))
            numbers = stage.spec.scalars(stage.spec.shape(inputs, kernel.variants), chosen, (*inputs, o))
            assert {name: launch[name] for name in numbers} == pytest.approx(numbers, rel=1e-6)
            assert [launch[name] for name in ("Q", "K", "V", "O")] == [t.data_ptr() for t in (*inputs, o)]
            assert (o.dtype, o.shape, launch["LSE"]) == (inputs[0].dtype, inputs[0].shape, 0)
    assert len(stage._calls) == len(kinds) and not noted


def test_what_no_call_can_take_is_refused_before_anything_is_launched_warm_or_not(noted):
    stage, (q, k, v) = kernels.load("16"), attention_inputs()
    shifted = torch.zeros(k.numel() + 1, dtype=k.dtype)[1:].view(k.shape)
    for _ in range(2):
        for inputs, message in (
            ((q, shifted, v), r"multiple of 16: pass K.clone\(\)"),
            ((q, k, v.clone().requires_grad_()), "no backward.* V "),
            ((q, k.bfloat16(), v), "K must have Q's dtype"),
            ((q, k, v[:, :, :-1]), "K and V "),
            ((q, k.to("meta"), v), "got one on meta"),
            ((q.transpose(2, 3), k, v), "strides"),
        ):
            with pytest.raises(UserError, match=message):
                stage(*inputs)
        assert not noted
        stage(q, k, v)
        noted.clear()


def test_calls_from_several_threads_share_nothing(noted, monkeypatch):
    """Each has outputs and scratch memory of its own, as long as it launches."""
    stage, busy, lock = kernels.load("16"), set(), threading.Lock()
    allocate, tensors = torch_private.empty_strided("cpu"), {}

    def empty_strided(*kind):
        tensor = allocate(*kind)
        tensors[tensor.data_ptr()] = weakref.ref(tensor)
        return tensor

    monkeypatch.setattr(torch_private, "empty_strided", lambda device_type: empty_strided)
    note = Notes.function

    def function(self, packed):
        note(self, packed)
        launch = self.launches[-1]
        mine = [launch[name] for name in ("O", "partial_O", "partial_LSE")]
        with lock:
            assert not busy & {*mine}
            busy.update(mine)
        time.sleep(1e-4)  # others call meanwhile
        assert tensors[launch["partial_O"]]() is not None, "freed before all was launched"
        with lock:
            busy.difference_update(mine)
        return 0

    monkeypatch.setattr(Notes, "function", function)
    kinds = [attention_inputs(n=n, n_kv=n_kv) for n, n_kv in ((1, 2000), (2, 2000), (3, 1000), (3, 1500))]

    def work(inputs) -> list[torch.Tensor]:
        return [stage(*inputs) for _ in range(50)]

    with ThreadPoolExecutor(len(kinds)) as pool:
        for inputs, found in zip(kinds, pool.map(work, kinds)):
            assert all(o.shape == inputs[0].shape for o in found) and len({o.data_ptr() for o in found}) == 50
    assert len(noted) == 50 * len(kinds) and all(launch["splits"] > 1 for launch in noted)
