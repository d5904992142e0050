"""`matmul(a, b)`: a product with what often follows it, as a torch function.

On a GPU of compute capability 9.0, and on the CPU, where the emulator runs it, it is stage h5; other GPUs, and shapes
that TMA cannot read, take stage 11 and torch for what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from common import course, torch_private
from common.calls import Kept, check_grad, check_memory, check_places, check_tensors
from common.gpu import Launcher
from common.stage import Kernel
from cudaemu.errors import UserError

stage = course.load(__package__.rpartition(".")[2])
portable = course.load("11")

DTYPES = stage.torch_dtypes
ROW_BYTES = stage.alignment
PAIR_BYTES = 4  # two neighbours of the bias are read at once
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2}


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """activation(a @ b + bias) + residual.

    a: [M, K], b: [K, N]; fp16 or bf16, both of one dtype, on one CUDA device, or on the CPU, where the emulator
    computes. b may be the transpose of a contiguous [N, K], as torch.nn.Linear's weight.t() is; it is read in place.
    So is any tensor with rows (of b, or of b.t()) that begin at multiples of 16 bytes; others are copied first.

    bias: [N]; residual: [M, N]; both of a's dtype.
    activation: None, "relu" or "gelu" (the exact one, torch's default).
    out: [M, N], of a's dtype or torch.float32, written and returned; it must not share memory with the inputs.
    out_dtype: of a new result, a's dtype or torch.float32; default a's.

    The sum is accumulated in fp32 and rounded once, at the end; where stage 11 computes (another GPU, N or K no
    multiple of 8), the product is rounded before the rest is added. Returns [M, N]. There is no backward.
    UserError (a ValueError) names the argument that does not fit."""
    for each in (a, b, bias, residual, out):
        if each is not None and type(each) is not Tensor:
            return _dispatch(a, b, bias, activation, residual, out, out_dtype)
    if torch.compiler.is_compiling() or torch_private.dispatch_modes():
        return _dispatch(a, b, bias, activation, residual, out, out_dtype)
    if torch.is_grad_enabled():
        for each in (a, b, bias, residual, out):
            if each is not None and each.requires_grad:
                named = {"a": a, "b": b, "bias": bias, "residual": residual, "out": out}
                check_grad("matmul", {name: tensor for name, tensor in named.items() if tensor is not None})
    return _run(a, b, bias, activation, residual, out, out_dtype)


def _run(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    try:
        more = [None if each is None else _kind(each) for each in (bias, residual, out)]
        key = (_kind(a), _kind(b), *more, activation, out_dtype)
    except (AttributeError, RuntimeError):  # None, a sparse or a nested tensor, one inside a vmap: they have no address
        check(a, b, bias, activation, residual, out, out_dtype)
        raise
    plan = _plans.get(key)
    if plan is None:  # refused calls are not kept, so a call that is found needs no check
        check(a, b, bias, activation, residual, out, out_dtype)
        if a.device.type == "meta":
            return _result(a, b, out, out_dtype)
        given = {"a": a, "b": b, "bias": bias, "residual": residual, "out": out}
        check_memory("matmul", {name: each for name, each in given.items() if each is not None})
        if any(each is not None and each.is_neg() for each in given.values()):
            bias, residual = (each if each is None else each.resolve_neg() for each in (bias, residual))
            wanted = out_dtype if out is None else out.dtype
            made = _run(a.resolve_neg(), b.resolve_neg(), bias, activation, residual, None, wanted)
            return made if out is None else out.copy_(made)
        plan = _plans[key] = Plan(a, b, bias, activation, residual, out, out_dtype)
    if out is not None:
        _apart(out, {"a": a, "b": b, "bias": bias, "residual": residual})
    return plan(a, b, bias, residual, out)


def _kind(tensor: Tensor) -> tuple:
    address = tensor.data_ptr()
    there = address % ROW_BYTES if address else None
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), there, tensor.is_neg()


def _apart(out: Tensor, inputs: dict[str, Tensor | None]) -> None:
    begin, end = _span(out)
    for name, each in inputs.items():
        if each is not None and begin < _span(each)[1] and _span(each)[0] < end:
            raise UserError(f"matmul: out must not share memory with {name}")


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of its first byte and of the byte after its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size() if tensor.numel() else begin


class Plan:
    """One kind of call: what is copied first, the kernel, its numbers."""

    def __init__(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        activation: str | None,
        residual: Tensor | None,
        out: Tensor | None,
        out_dtype: torch.dtype | None,
    ):
        (m, k), n = a.shape, b.shape[1]
        self.shape, self.device, self.activation = (m, n, k), a.device, activation
        self.dtype = out.dtype if out is not None else out_dtype or a.dtype
        self.empty = m == 0 or n == 0 or k == 0
        self.turned = not _in_place(b) and _in_place(b.t())  # as [N, K]
        chunk = ROW_BYTES // a.element_size()
        on_gpu = a.device.type == "cuda"
        self.fused = n % chunk == 0 and k % chunk == 0 and (not on_gpu or stage.unfit is None)
        if self.empty or not self.fused:
            return
        settings = {"B_TRANSPOSED": int(self.turned), "FP32_OUT": int(self.dtype == torch.float32)}
        self.kernel, launcher = _built(DTYPES[a.dtype], a.device, **settings)
        self.copied = (
            not _in_place(a),
            not (self.turned or _in_place(b)),
            residual is not None and not _in_place(residual),
            bias is not None and (bias.stride(0) != 1 or bias.data_ptr() % PAIR_BYTES != 0),
        )
        self.direct = out is None or _in_place(out)
        self.numbers = {
            "M": m, "N": n, "K": k,
            "a_row": k if self.copied[0] or m < 2 else a.stride(0),
            "b_row": n if self.copied[1] else b.stride(int(self.turned)),
            "c_row": out.stride(0) if out is not None and self.direct and m > 1 else n,
            "residual_row": residual.stride(0) if residual is not None and not self.copied[2] and m > 1 else n,
            "activation": ACTIVATIONS[activation],
        }  # fmt: skip
        chosen = self.kernel.choices(self.shape, self.device)
        self.numbers |= {name: chosen[name] for name in ("choice", "room")}
        self.launch: Callable[..., object] | None = None
        self.empty_strided = torch_private.empty_strided(self.device.type)
        if launcher is not None:
            scratch = stage.spec.scratch(self.shape, chosen, "meta")[-1:]
            self.launch = launcher.bind(self.device, list(self.numbers.values()), scratch=scratch)

    def __call__(
        self, a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor | None
    ) -> Tensor:
        if self.empty or not self.fused:
            return self._by_torch(a, b, bias, residual, out)
        a = _copy(a) if self.copied[0] else a
        b = _copy(b) if self.copied[1] else b
        if bias is not None and self.copied[3]:
            bias = _copy(bias)
        if residual is not None and self.copied[2]:
            residual = _copy(residual)
        c = out if out is not None and self.direct else self._new()
        if self.launch is not None:
            more = 0 if bias is None else bias.data_ptr(), 0 if residual is None else residual.data_ptr()
            self.launch(a.data_ptr(), b.data_ptr(), c.data_ptr(), *more)
        else:
            self._emulate((a, b, c, bias, residual))
        return c if out is None or c is out else out.copy_(c)

    def _new(self) -> Tensor:
        m, n, _ = self.shape
        if self.device.index is None or self.device.index == torch_private.current_device():
            return self.empty_strided((m, n), (n, 1), self.dtype)
        return torch.empty((m, n), dtype=self.dtype, device=self.device)

    def _emulate(self, tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]) -> None:
        a, b, c, bias, residual = tensors
        changed = {"bias": bias, "residual": residual, **self.numbers}
        self.kernel.emulate([a, b.t() if self.turned else b], [c], changed=changed).raise_if_findings()

    def _by_torch(
        self, a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor | None
    ) -> Tensor:
        """What h5 cannot compute: an empty product is zeros; any other is stage 11, and torch does the rest."""
        m, n, _ = self.shape
        if self.empty:
            c = torch.zeros((m, n), dtype=torch.float32, device=self.device)
        else:
            rest = -self.shape[2] % int(portable.multiples["K"])  # zeros add nothing
            a, b = torch.nn.functional.pad(a, (0, rest)), torch.nn.functional.pad(b, (0, 0, 0, rest))
            product = portable(a.contiguous(), b.contiguous())
            assert isinstance(product, Tensor)
            c = product.float()
        if bias is not None:
            c += bias
        c = torch.relu_(c) if self.activation == "relu" else c
        c = torch.nn.functional.gelu(c) if self.activation == "gelu" else c
        if residual is not None:
            c += residual
        return c.to(self.dtype) if out is None else out.copy_(c)


_plans: Kept[Plan] = Kept()


@lru_cache
def _built(dtype: str, device: torch.device, **settings: int) -> tuple[Kernel, Launcher | None]:
    """The kernel for such a call; no launcher: it is emulated."""
    kernel = stage.kernel(dtype, settings)
    return kernel, kernel.launcher(device) if device.type == "cuda" else None


def _in_place(tensor: Tensor) -> bool:
    """Whether TMA can read or write it where it lies."""
    size = tensor.element_size()
    rows = tensor.shape[0] < 2 or tensor.stride(0) * size % ROW_BYTES == 0 and tensor.stride(0) >= tensor.shape[1]
    return tensor.stride(1) == 1 and rows and tensor.data_ptr() % ROW_BYTES == 0


def _copy(tensor: Tensor) -> Tensor:
    """A contiguous copy at a new address: `contiguous` would return a tensor that is only misaligned."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _result(a: Tensor, b: Tensor, out: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    return out if out is not None else a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)


# ---- what is refused -------------------------------------------------------------------------------------------------


def check(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    """UserError that names the argument that does not fit, and what would fit."""
    tensors = {"a": a, "b": b}
    tensors |= {n: each for n, each in (("bias", bias), ("residual", residual), ("out", out)) if each is not None}
    check_tensors("matmul", tensors)
    check_places("matmul", tensors, ("cpu", "cuda", "meta"))
    for name in ("a", "b"):
        if tensors[name].dim() != 2:
            raise UserError(f"matmul: {name} must be a matrix, got {list(tensors[name].shape)}")
    if a.dtype not in DTYPES:
        allowed = " or ".join(map(str, DTYPES))
        raise UserError(f"matmul: a must be {allowed}, got {a.dtype}; pass a.half() or a.bfloat16()")
    for name in ("b", "bias", "residual"):
        if name in tensors and tensors[name].dtype != a.dtype:
            raise UserError(f"matmul: {name} must have a's dtype, {a.dtype}; got {tensors[name].dtype}")
    if a.shape[1] != b.shape[0]:
        raise UserError(f"matmul: b must have as many rows as a has columns, {a.shape[1]}; got {list(b.shape)}")
    m, n = a.shape[0], b.shape[1]
    for name, shape in (("bias", [n]), ("residual", [m, n]), ("out", [m, n])):
        if name in tensors and list(tensors[name].shape) != shape:
            raise UserError(f"matmul: {name} must be {shape}, got {list(tensors[name].shape)}")
    if activation not in ACTIVATIONS:
        raise UserError(f"matmul: activation must be None, 'relu' or 'gelu', got {activation!r}")
    results = (a.dtype, torch.float32)
    if out_dtype is not None and out_dtype not in results:
        raise UserError(f"matmul: out_dtype must be {results[0]} or {results[1]}, got {out_dtype}")
    if out is not None and out.dtype not in results:
        raise UserError(f"matmul: out must be {results[0]} or {results[1]}, got {out.dtype}")
    if out is not None and out_dtype not in (None, out.dtype):
        raise UserError(f"matmul: out_dtype must be out's dtype, {out.dtype}, or None; got {out_dtype}")
    if out is not None and m > 1 and n > 1 and 0 in out.stride():
        raise UserError("matmul: out must not be expanded: its elements share memory")


# ---- the operator ----------------------------------------------------------------------------------------------------


def _dispatch(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    tensors = {"a": a, "b": b, "bias": bias, "residual": residual, "out": out}
    given = {name: each for name, each in tensors.items() if each is not None}
    check_tensors("matmul", given)
    check_grad("matmul", given)
    wanted = out_dtype if out is None else out.dtype
    made = torch.ops.gpu_kernels_course.matmul(a, b, bias, activation, residual, wanted)
    return made if out is None else out.copy_(made)


@torch.library.custom_op(
    "gpu_kernels_course::matmul",
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor? bias=None, str? activation=None, Tensor? residual=None, "
    "ScalarType? out_dtype=None) -> Tensor",
)
def _operator(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return _run(a, b, bias, activation, residual, None, out_dtype)


@_operator.register_fake
def _fake(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check(a, b, bias, activation, residual, None, out_dtype)
    return _result(a, b, None, out_dtype)
