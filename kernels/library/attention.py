"""`attention(q, k, v)`: attention as a torch function, equal to torch's scaled_dot_product_attention.

On a GPU of compute capability 9.0 it is stage h7, except for few queries. For these, on other GPUs, and on the CPU,
where the emulator runs it, it is stage 16. A call costs the host some microseconds: all that follows from the inputs'
dtypes, shapes and strides is worked out once and kept as a plan, and a call allocates the output and launches.
torch.compile, fake tensors and dispatch modes use the same computation as an operator,
torch.ops.gpu_kernels_course.attention.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common import course, gpu, tiles, torch_private
from common.calls import Plan, Plans, Values, check_grad, check_memory, check_places, check_tensors
from common.gpu import Launcher
from common.stage import Kernel, Prepared, Stage
from cudaemu.errors import UserError

stage = course.load("16")

FEW_QUERIES = 64  # of a head, or of heads that share keys: stage 16 is then as fast as memory, and costs the host less

DTYPES = stage.torch_dtypes
HEAD_DIMS = stage.variants["HEAD_DIM"]
ROW_BYTES = stage.alignment  # each row begins at a multiple of so many
LOG2_E = math.log2(math.e)


class Arguments(NamedTuple):
    """Of `attention`, in the order of its operator."""

    q: Tensor
    k: Tensor
    v: Tensor
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    return_lse: bool = False


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q · kᵀ · scale) · v for each head, as torch.nn.functional.scaled_dot_product_attention has it.

    q: [B, H, N, D]; k and v: [B, H_KV, N_KV, D]; fp16 or bf16, D 64 or 128, all on one CUDA device, or on the CPU,
    where the emulator computes. Any strides: tensors are read in place if their last dimension is contiguous and their
    rows begin at multiples of 16 bytes, as those of a [B, N, H, D] tensor transposed do, and copied first otherwise.

    is_causal: query i sees keys 0 to i, as torch's mask (not one that ends at the last key).
    scale: any finite number; 1 / √D if None.
    enable_gqa: H may be a multiple of H_KV; head h then reads the keys of head h // (H / H_KV).
    return_lse: return (O, LSE); LSE is log Σ exp of each query's scores, [B, H, N], fp32, natural logarithm. It takes a
    little longer, and where keys are split over blocks O may differ in its last bit.

    Returns O, [B, H, N, D], of q's dtype and, as torch.empty_like, of its layout. A query that sees no key, or whose
    scores are all -inf, has O = 0 and LSE = -inf; a score of inf or NaN makes both NaN. There is no backward.
    UserError (a ValueError) names the argument that does not fit."""
    tensors, values = (q, k, v), (is_causal, scale, enable_gqa, return_lse)
    if torch_private.is_compiling() or torch_private.dispatch_modes() or not (type(q) is type(k) is type(v) is Tensor):
        return _dispatch(Arguments._make((*tensors, *values)))
    if (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled():
        return _dispatch(Arguments._make((*tensors, *values)))
    if torch_private.dual_level() >= 0:
        check_tensors("attention", dict(zip("qkv", tensors)))
        check_grad("attention", dict(zip("qkv", tensors)))
    outputs = _plans.call(tensors, values)
    return (outputs[0], outputs[1]) if return_lse else outputs[0]


def _prepare(tensors: Sequence[Tensor], values: Values) -> Plan[Sequence[Tensor]]:
    """The plan of such a call, which returns O, and LSE if it was asked for. UserError for what does not fit."""
    given = Arguments._make((*tensors, *values))
    check(given)
    if given.q.device.type == "meta":
        return lambda tensors, _: _like(Arguments._make((*tensors, *values)))
    check_memory("attention", {"q": given.q, "k": given.k, "v": given.v})
    kept = Call(given)
    return kept.prepared if kept.plain else kept


class Call:
    """One kind of call: what is copied first, the prepared kernel, how O lies."""

    def __init__(self, given: Arguments):
        q, k, v = tensors = given[:3]
        b, h, n, d = q.shape
        h_kv, n_kv = k.shape[1:3]
        device, like_q = q.device, torch.empty_like(q, device="meta")
        self.device, self.strides, self.return_lse = device, like_q.stride(), given.return_lse  # strides of O
        self.plain = False
        self.nothing = q.numel() == 0 or n_kv == 0  # no query, or no key to see
        if self.nothing:
            return
        scale = d**-0.5 if given.scale is None else given.scale
        magnitude = ctypes.c_float(abs(scale)).value
        self.factor = 0.0 if magnitude == 0 else -1.0 if scale < 0 else None  # of q: the kernel takes scales above 0
        unaligned = any(each.data_ptr() % ROW_BYTES for each in tensors)
        self.copied = [unaligned or each.is_neg() or not _in_place(each) for each in tensors]
        self.turned = not _in_place(like_q)  # the kernel cannot write O as q lies
        self.plain = not (any(self.copied) or self.turned) and self.factor is None
        few = n * (h // h_kv) <= FEW_QUERIES
        kernel, launcher = _built(DTYPES[q.dtype], device, d, given.is_causal, few)
        dense = self.copied[0] or self.factor is not None, *self.copied[1:]
        read = [torch.empty(t.shape, device="meta") if new else t for t, new in zip(tensors, dense)]
        o = torch.empty(q.shape, dtype=q.dtype, device="meta") if self.turned else like_q
        lse = torch.empty((b, h, n), dtype=torch.float32, device="meta") if given.return_lse else None
        shape, changed = (b, h, h_kv, n, n_kv, d), {"scale": magnitude or 1.0}
        self.prepared = Prepared(kernel, launcher, device, shape, read, (o,), (lse,), changed)

    def __call__(self, tensors: Sequence[Tensor], addresses: Sequence[int]) -> Sequence[Tensor]:
        if self.nothing:
            lse = torch.full(tensors[0].shape[:3], -math.inf, dtype=torch.float32, device=self.device)
            return [torch.zeros_like(tensors[0]), lse][: 1 + self.return_lse]
        q, k, v = (_dense(each) if copied else each for each, copied in zip(tensors, self.copied))
        if self.factor is not None:
            q = torch.mul(q, self.factor, out=torch.empty(q.shape, dtype=q.dtype, device=q.device))
        o, *more = self.prepared((q, k, v), (q.data_ptr(), k.data_ptr(), v.data_ptr()))
        if self.turned:
            o = torch.empty_strided(o.shape, self.strides, dtype=o.dtype, device=self.device).copy_(o)
        return [o, *more]


_plans: Plans[Sequence[Tensor]] = Plans(_prepare, ROW_BYTES)


@lru_cache
def _built(
    dtype: str, device: torch.device, head_dim: int, is_causal: bool, few: bool
) -> tuple[Kernel, Launcher | None]:
    """The kernel for such a call, with the tile shapes that are best on the device; no launcher: it is emulated."""
    settings = {"HEAD_DIM": head_dim, "CAUSAL": int(is_causal)}
    own = _stage(device, few)
    on_gpu = device.type == "cuda" and own.unfit is None
    chosen = tiles.choice(own, settings, device) if on_gpu else {}
    kernel = own.kernel(dtype, {**settings, **chosen})
    return kernel, kernel.launcher(device) if on_gpu else None


def _stage(device: torch.device, few: bool) -> Stage:
    """The stage that computes on such a device: the one with instructions of its own, if it has those and there are
    more than FEW_QUERIES."""
    here = gpu.capability(device) if device.type == "cuda" and not few else None
    if here is None:
        return stage
    hopper = course.load("h7")  # computes the same, for launchers with the same arguments
    return hopper if hopper.arch.runs_on(here) else stage


def _in_place(tensor: Tensor) -> bool:
    """Whether a kernel can read or write a tensor where it lies, if it begins at a multiple of ROW_BYTES."""
    sizes, strides, elements = tensor.shape, tensor.stride(), ROW_BYTES // tensor.element_size()
    return strides[3] == 1 and all(not strides[axis] % elements or sizes[axis] <= 1 for axis in (0, 1, 2))


def _dense(tensor: Tensor) -> Tensor:
    """A copy without gaps, row after row."""
    return tensor.clone(memory_format=torch.contiguous_format)


# ---- what is refused -------------------------------------------------------------------------------------------------


def check(given: Arguments) -> None:
    """UserError that names the argument that does not fit, and what would fit."""
    q, k, v, _, scale, enable_gqa, _ = given
    tensors = {"q": q, "k": k, "v": v}
    check_tensors("attention", tensors)
    check_places("attention", tensors, ("cpu", "cuda", "meta"))
    for name, tensor in tensors.items():
        if tensor.dim() != 4:
            raise UserError(f"attention: {name} must be [B, H, N, D], got {list(tensor.shape)}")
    if q.dtype not in DTYPES:
        allowed = " or ".join(map(str, DTYPES))
        raise UserError(f"attention: q must be {allowed}, got {q.dtype}; pass q.half() or q.bfloat16()")
    b, h, _, d = q.shape
    if d not in HEAD_DIMS:
        raise UserError(f"attention: q's last dimension must be {' or '.join(map(str, HEAD_DIMS))}, got {d}")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise UserError(f"attention: {name} must have q's dtype, {q.dtype}; got {tensor.dtype}")
        if tensor.shape[0] != b or tensor.shape[3] != d:
            raise UserError(
                f"attention: {name} must be [B, H_KV, N_KV, D] with q's B = {b} and D = {d}, got {list(tensor.shape)}"
            )
    if v.shape != k.shape:
        raise UserError(f"attention: v must have k's shape, {list(k.shape)}; got {list(v.shape)}")
    h_kv = k.shape[1]
    if h_kv != h and not enable_gqa:
        raise UserError(
            f"attention: k must have q's {h} heads, got {h_kv}; where heads share keys, pass enable_gqa=True"
        )
    if h_kv != h and (h_kv == 0 or h % h_kv):
        raise UserError(f"attention: q's heads must be a multiple of k's under enable_gqa=True, got {h} and {h_kv}")
    check_types(given)
    try:
        finite = scale is None or math.isfinite(ctypes.c_float(float(scale) * LOG2_E).value)
    except OverflowError:
        finite = False
    if not finite:
        raise UserError(f"attention: scale times log2(e) must be finite in fp32, got scale={scale}")


def check_types(given: Arguments) -> None:
    """UserError for a flag that is no bool and a scale that is no number. torch.compile can trace it."""
    scale = given.scale
    for name in ("is_causal", "enable_gqa", "return_lse"):
        flag = getattr(given, name)
        if not isinstance(flag, bool):
            raise UserError(f"attention: {name} must be a bool, got {type(flag).__name__} ({flag!r})")
    number = (
        scale is None or isinstance(scale, (int, float)) or hasattr(scale, "__float__")
    )  # torch.compile's have none
    if not number or isinstance(scale, (bool, str, Tensor)):
        raise UserError(f"attention: scale must be a number or None, got {type(scale).__name__} ({scale!r})")


# ---- the operator ----------------------------------------------------------------------------------------------------


def _dispatch(given: Arguments) -> Tensor | tuple[Tensor, Tensor]:
    tensors = {"q": given.q, "k": given.k, "v": given.v}
    check_tensors("attention", tensors)
    check_grad("attention", tensors)
    check_types(given)
    o, lse = torch.ops.gpu_kernels_course.attention(*given)
    return (o, lse) if given.return_lse else o


@torch.library.custom_op(
    "gpu_kernels_course::attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None, bool enable_gqa=False, "
    "bool return_lse=False) -> (Tensor, Tensor)",
    tags=(torch.Tag.needs_exact_strides,),  # O lies as q does
)
def _operator(*arguments: Any) -> tuple[Tensor, Tensor]:
    """(O, LSE); LSE is empty if it was not asked for: an operator has a fixed number of outputs."""
    given = Arguments(*arguments)
    o, *lse = _plans.call(given[:3], given[3:])
    return o, lse[0] if lse else given.q.new_empty(0, dtype=torch.float32)


def _check_tangents(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> None:
    check_grad("attention", {"q": q, "k": k, "v": v})


torch_private.before_autograd(torch.ops.gpu_kernels_course.attention.default, _check_tangents)


@_operator.register_fake
def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    given = Arguments(*arguments)
    check(given)
    o, *lse = _like(given)
    return o, lse[0] if lse else given.q.new_empty(0, dtype=torch.float32)


def _like(given: Arguments) -> list[Tensor]:
    """O, and LSE if it is asked for: tensors like them, with no values."""
    q = given.q
    return [torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)][: 1 + given.return_lse]
