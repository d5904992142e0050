"""`matmul(a, b)`: a product with what often follows it, as a torch function.

On a GPU of compute capability 9.0, and on the CPU, where the emulator runs it, it is the library's kernel
hopper_matmul; other GPUs, and shapes that TMA cannot read, take stage 11 and torch for what follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common import course, torch_private
from common.calls import Plan, Plans, Values, check_grad, check_memory, check_places, check_tensors
from common.gpu import Launcher
from common.stage import Kernel
from cudaemu.errors import UserError

stage = course.load("hopper_matmul")

DTYPES = stage.torch_dtypes
ROW_BYTES = stage.alignment
PAIR_BYTES = 4  # two neighbours of the bias are read at once
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2}


class Arguments(NamedTuple):
    """Of `matmul`: five tensors, then the others."""

    a: Tensor
    b: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    out: Tensor | None = None
    activation: str | None = None
    out_dtype: torch.dtype | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name: a, b and those of the others that were given."""
        named: Iterable[tuple[str, Any]] = zip(self._fields[:5], self)
        return {name: each for name, each in named if each is not None or name in ("a", "b")}

    @property
    def result(self) -> torch.dtype:
        """The dtype of the result."""
        return self.out.dtype if self.out is not None else self.out_dtype or self.a.dtype


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
    out: [M, N], of a's dtype or torch.float32, written and returned; its elements must not share memory with
    the inputs, nor with each other.
    out_dtype: of a new result, a's dtype or torch.float32; default a's.

    The sum is accumulated in fp32 and rounded once, at the end; where stage 11 computes (another GPU, N or K no
    multiple of 8), the product is rounded before the rest is added. Returns [M, N]. There is no backward.
    UserError (a ValueError) names the argument that does not fit."""
    tensors, values = (a, b, bias, residual, out), (activation, out_dtype)
    if torch_private.is_compiling() or torch_private.dispatch_modes():
        return _dispatch(Arguments._make((*tensors, *values)))
    for each in tensors:
        if each is not None and (type(each) is not Tensor or each.requires_grad and torch.is_grad_enabled()):
            return _dispatch(Arguments._make((*tensors, *values)))
    if torch_private.dual_level() >= 0:
        given = Arguments._make((*tensors, *values)).tensors
        check_tensors("matmul", given)
        check_grad("matmul", given)
    return _plans.call(tensors, values)


def _prepare(tensors: Sequence[Any], values: Values) -> Plan[Tensor]:
    """The plan of such a call. UserError for what does not fit."""
    given = Arguments._make((*tensors, *values))
    check(given)
    if given.a.device.type == "meta":
        return lambda tensors, _: _like(Arguments._make((*tensors, *values)))
    check_memory("matmul", given.tensors)
    return Call(given)


class Call:
    """One kind of call: what is copied first, the kernel, its numbers."""

    def __init__(self, given: Arguments):
        a, b, bias, residual, out = given[:5]
        (m, k), n = a.shape, b.shape[1]
        self.shape, self.device, self.activation, self.dtype = (m, n, k), a.device, given.activation, given.result
        self.lengths = [0 if each is None else _length(each) for each in given[:5]]
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
            bias is not None and (bias.stride(0) != 1 or bias.data_ptr() % PAIR_BYTES != 0 or bias.is_neg()),
            residual is not None and not _in_place(residual),
        )
        self.direct = out is None or _in_place(out)
        self.numbers = {
            "M": m, "N": n, "K": k,
            "a_row": k if self.copied[0] or m < 2 else a.stride(0),
            "b_row": n if self.copied[1] else b.stride(int(self.turned)),
            "c_row": out.stride(0) if out is not None and self.direct and m > 1 else n,
            "residual_row": residual.stride(0) if residual is not None and not self.copied[3] and m > 1 else n,
            "activation": ACTIVATIONS[given.activation],
        }  # fmt: skip
        chosen = self.kernel.choices(self.shape, self.device)
        self.numbers |= {name: chosen[name] for name in ("choice", "room")}
        self.launch: Callable[..., object] | None = None
        self.empty_strided = torch_private.empty_strided(self.device.type)
        if launcher is not None:
            scratch = stage.spec.scratch(self.shape, chosen, "meta")[-1:]
            self.launch = launcher.bind(self.device, list(self.numbers.values()), scratch=scratch)

    def __call__(self, tensors: Sequence[Tensor | None], addresses: Sequence[int]) -> Tensor:
        out = tensors[-1]
        if out is not None:
            self._apart(addresses)
        if self.empty or not self.fused:
            return self._by_torch(*tensors)
        if True in self.copied:
            copied = (*self.copied, False)  # out is not
            tensors = [_copy(each) if new and each is not None else each for each, new in zip(tensors, copied)]
            addresses = [0 if each is None else each.data_ptr() for each in tensors]
        c = out if out is not None and self.direct else self._new()
        if self.launch is not None:
            a, b, bias, residual, _ = addresses
            self.launch(a, b, c.data_ptr(), bias, residual)
        else:
            self._emulate(tensors, c)
        return c if out is None or c is out else out.copy_(c)

    def _apart(self, addresses: Sequence[int]) -> None:
        """UserError if `out` shares memory with an input."""
        *inputs, out = zip(Arguments._fields, addresses, self.lengths)
        for name, begin, length in inputs:
            if out[1] < begin + length and begin < out[1] + out[2]:
                raise UserError(f"matmul: out must not share memory with {name}")

    def _new(self) -> Tensor:
        m, n, _ = self.shape
        if self.device.index is None or self.device.index == torch_private.current_device():
            return self.empty_strided((m, n), (n, 1), self.dtype)
        return torch.empty((m, n), dtype=self.dtype, device=self.device)

    def _emulate(self, tensors: Sequence[Any], c: Tensor) -> None:
        a, b, bias, residual, _ = tensors
        changed = {"bias": bias, "residual": residual, **self.numbers}
        self.kernel.emulate_call([a, b.t() if self.turned else b], [c], changed)

    def _by_torch(self, a: Any, b: Any, bias: Tensor | None, residual: Tensor | None, out: Tensor | None) -> Tensor:
        """What it cannot compute: an empty product is zeros; any other is stage 11, and torch does the rest."""
        m, n, k = self.shape
        if self.empty:
            c = torch.zeros((m, n), dtype=torch.float32, device=self.device)
        else:
            portable = course.load("11")
            rest = -k % int(portable.multiples["K"])  # zeros add nothing
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


_plans: Plans[Tensor] = Plans(_prepare, ROW_BYTES)


@lru_cache
def _built(dtype: str, device: torch.device, **settings: int) -> tuple[Kernel, Launcher | None]:
    """The kernel for such a call; no launcher: it is emulated."""
    kernel = stage.kernel(dtype, settings)
    return kernel, kernel.launcher(device) if device.type == "cuda" else None


def _in_place(tensor: Tensor) -> bool:
    """Whether TMA can read or write it where it lies."""
    size = tensor.element_size()
    rows = tensor.shape[0] < 2 or tensor.stride(0) * size % ROW_BYTES == 0 and tensor.stride(0) >= tensor.shape[1]
    return tensor.stride(1) == 1 and rows and tensor.data_ptr() % ROW_BYTES == 0 and not tensor.is_neg()


def _length(tensor: Tensor) -> int:
    """The bytes from its first element to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _copy(tensor: Tensor) -> Tensor:
    """A contiguous copy at a new address: `contiguous` would return a tensor that is only misaligned."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _like(given: Arguments) -> Tensor:
    """A result with no values, or `out`."""
    shape = (given.a.shape[0], given.b.shape[1])
    return given.out if given.out is not None else given.a.new_empty(shape, dtype=given.result)


# ---- what is refused -------------------------------------------------------------------------------------------------


def check(given: Arguments) -> None:
    """UserError that names the argument that does not fit, and what would fit."""
    a, b, _, _, out, *_ = given
    tensors = given.tensors
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
    check_values(given)
    check_out(out)


def check_out(out: Tensor | None) -> None:
    """UserError if elements of `out` share memory. torch.compile can trace it."""
    if out is None or out.dim() != 2 or out.numel() < 2:
        return
    (m, n), (row, column) = out.shape, out.stride()
    if row > (n - 1) * column and (n < 2 or column > 0) or column > (m - 1) * row and (m < 2 or row > 0):
        return  # row after row, or column after column
    unit = math.gcd(int(row), int(column))  # torch.compile's have none
    if unit == 0 or m * unit > column and n * unit > row:  # column / unit rows down is row / unit columns along
        raise UserError(f"matmul: out must have elements that share no memory, got the strides {(row, column)}")


def check_values(given: Arguments) -> None:
    """UserError for what is to follow the product, or a dtype of the result, that there is not. torch.compile can trace
    it."""
    out, out_dtype, results = given.out, given.out_dtype, (given.a.dtype, torch.float32)
    if given.activation not in tuple(ACTIVATIONS):
        raise UserError(f"matmul: activation must be None, 'relu' or 'gelu', got {given.activation!r}")
    if out_dtype is not None and out_dtype not in results:
        raise UserError(f"matmul: out_dtype must be {results[0]} or {results[1]}, got {out_dtype}")
    if out is not None and out.dtype not in results:
        raise UserError(f"matmul: out must be {results[0]} or {results[1]}, got {out.dtype}")
    if out is not None and out_dtype not in (None, out.dtype):
        raise UserError(f"matmul: out_dtype must be out's dtype, {out.dtype}, or None; got {out_dtype}")


# ---- the operator ----------------------------------------------------------------------------------------------------


def _dispatch(given: Arguments) -> Tensor:
    check_tensors("matmul", given.tensors)
    check_grad("matmul", given.tensors)
    check_values(given)
    check_out(given.out)
    wanted = given.out_dtype if given.out is None else given.out.dtype
    a, b, bias, residual, *_ = given
    made = torch.ops.gpu_kernels_course.matmul(a, b, bias, given.activation, residual, wanted)
    return made if given.out is None else given.out.copy_(made)


OPERATOR = ("a", "b", "bias", "activation", "residual", "out_dtype")  # its arguments


@torch.library.custom_op(
    "gpu_kernels_course::matmul",
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor? bias=None, str? activation=None, Tensor? residual=None, "
    "ScalarType? out_dtype=None) -> Tensor",
)
def _operator(*arguments: Any) -> Tensor:
    given = Arguments(**dict(zip(OPERATOR, arguments)))
    return _plans.call(given[:5], given[5:])


def _check_tangents(a: Tensor, b: Tensor, bias: Tensor | None = None, _: Any = None, *more: Any) -> None:
    check_grad("matmul", Arguments(a, b, bias, *more[:1]).tensors)


torch_private.before_autograd(torch.ops.gpu_kernels_course.matmul.default, _check_tangents)


@_operator.register_fake
def _fake(*arguments: Any) -> Tensor:
    given = Arguments(**dict(zip(OPERATOR, arguments)))
    check(given)
    return _like(given)
