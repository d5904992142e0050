"""What the project uses of torch that is private: it is there, and what takes its place does the same."""

from __future__ import annotations

import importlib.util
import re
from functools import reduce
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad

import kernels
from common import torch_private
from cudaemu.errors import UserError

PRIVATE = (
    "_C._dynamo.guards._empty_strided_cpu",
    "_C._dynamo.guards._empty_strided_cuda",
    "_C._len_torch_dispatch_stack",
    "_C._functorch.is_functorch_wrapped_tensor",
    "_C._cuda_getDevice",
    "_C._cuda_getCurrentRawStream",
    "_C._AutoDispatchBelowAutograd",
    "_C._after_autograd_keyset",
)
SQUARE = torch.ones(4, 4)


@pytest.mark.parametrize("path", PRIVATE)
def test_this_torch_still_has_it(path):
    """If not, calls take microseconds longer: find the new name, or remove it from common/torch_private.py."""
    missing = object()
    found = reduce(lambda where, name: getattr(where, name, missing), path.split("."), torch)
    if found is missing and "_cuda_" in path and not torch.backends.cuda.is_built():
        name = path.rpartition(".")[2]  # a build for the CPU has no such function, but declares it
        found = re.search(rf"^def {name}\(", (Path(torch.__file__).parent / "_C/__init__.pyi").read_text(), re.M)
    assert found is not missing and found is not None, f"torch {torch.__version__} has no torch.{path}"


def test_nothing_else_is_private():
    root = Path(__file__).resolve().parent.parent
    own = Path(torch_private.__file__)
    uses = re.compile(r"\btorch(?:\.\w+)*\._[a-z]\w*|\btorch\._C\b")
    files = [path for top in ("common", "cudaemu", "kernels") for path in (root / top).rglob("*.py")]
    files.remove(own)
    files.remove(root / "cudaemu" / "torch_cuda.py")  # the emulator's own, which test_triton.py runs
    assert not [f"{path}: {found[0]}" for path in files if (found := uses.search(path.read_text()))]
    assert set(re.findall(r"_C\.[\w.]+", own.read_text())) == {re.sub("_(cpu|cuda)$", "_", path) for path in PRIVATE}


@pytest.fixture
def public(monkeypatch) -> ModuleType:
    """torch_private as it is where torch has none of it, for all that uses it."""
    spec = importlib.util.spec_from_file_location("torch_public", torch_private.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as absent:  # torch itself needs some of it
        for path in PRIVATE:
            owner, _, name = path.rpartition(".")
            patch = monkeypatch if name.startswith("_empty_strided") else absent
            patch.delattr(reduce(getattr, owner.split("."), torch), name, raising=False)
        spec.loader.exec_module(module)
    for name in ("empty_strided", "dispatch_modes", "known_modes", "is_transformed"):
        monkeypatch.setattr(torch_private, name, getattr(module, name))
    return module


def test_memory_is_the_same(public):
    kind = (4, 3), (1, 4), torch.bfloat16
    with torch.device("meta"):  # another default changes nothing
        made = public.empty_strided("cpu")(*kind)
    like = torch.empty_strided(*kind[:2], dtype=kind[2])
    assert (made.shape, made.stride(), made.dtype, made.device) == (like.shape, like.stride(), like.dtype, like.device)


def test_the_device_and_the_stream_are_asked_for(public, monkeypatch):
    assert public.current_device is torch.cuda.current_device
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=100 + device))
    assert public.current_stream(3) == 103


@pytest.mark.gpu
def test_the_device_and_the_stream_are_the_same_on_the_gpu():
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch_private.current_device() == torch.cuda.current_device()
        assert torch_private.current_stream(0) == torch.cuda.current_stream(0).cuda_stream != 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.jacfwd])
@pytest.mark.parametrize("name", ["is_transformed", "_is_transformed"])
def test_tensors_inside_transforms_are_known(name, transform):
    is_transformed, seen = getattr(torch_private, name), []

    def function(x):
        seen.append(is_transformed(x))
        return x.sum()

    transform(function)(SQUARE[0])
    assert seen == [True]
    plain = (SQUARE, torch.nn.Parameter(SQUARE), SQUARE.t(), SQUARE.to("meta"), SQUARE.to_sparse())
    assert not any(is_transformed(tensor) for tensor in plain)


@pytest.mark.core(every=5)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script", "ignore:.*performance drop")
@pytest.mark.parametrize("name", ["attention", "matmul", "attention_fp8", "01_naive", "the operator"])
def test_tangents_are_refused(name):
    """However a tensor got one: a result without it would be wrong and say nothing."""
    like = torch.ones(2, 2, 128, 64).half() if name != "matmul" else torch.ones(8, 8).half()
    calls = {
        "attention": lambda x: kernels.attention(like, like, x),
        "matmul": lambda x: kernels.matmul(like, like, residual=x),
        "attention_fp8": lambda x: kernels.attention_fp8(like, like, x),
        "01_naive": lambda x: kernels.load("01")(x[0, 0, :64], x[0, 0, :64]),
        "the operator": lambda x: torch.ops.gpu_kernels_course.attention(x, like, like)[0],
    }
    call, said = calls[name], pytest.raises((UserError, torch._dynamo.exc.TorchRuntimeError), match="forward-mode")
    with forward_ad.dual_level():
        for context in (torch.enable_grad, torch.no_grad):
            with said, context():
                call(forward_ad.make_dual(like, like))
        with said:
            torch.compile(call, backend="eager")(forward_ad.make_dual(like, like))
    if name in ("attention_fp8", "01_naive"):  # no operators: refused in any transform
        said = pytest.raises(UserError, match="no rule for torch.func|not a torch operator|forward-mode")
    with said:
        torch.func.jvp(call, (like,), (like,))
    with said:
        torch.func.linearize(call, like)
    if name == "the operator":
        with said:
            torch.func.jvp(torch.vmap(call), (like[None],), (like[None],))


def test_calls_are_the_same_without_any_of_it(public):
    """A stage and `attention`, each through what takes the place. (torch loops over an operator inside a vmap.)"""
    naive, q = kernels.load("01"), torch.randn(1, 2, 3, 64, generator=torch.Generator().manual_seed(0)).half()
    assert public.dispatch_modes() > 0  # every call is one of the operator
    found = kernels.attention(q, q, q, return_lse=True)
    with pytest.raises(UserError, match="no rule for torch.func"):
        torch.func.vmap(naive)(SQUARE[None], SQUARE[None])
    assert torch.equal(naive(SQUARE, SQUARE), SQUARE * 4)
    torch_private.dispatch_modes = lambda: 0
    for got, want in zip(found, kernels.attention(q, q, q, return_lse=True), strict=True):
        assert torch.equal(got, want)
