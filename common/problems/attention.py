"""Attention, O = softmax(Q · Kᵀ · scale) · V per batch and head.

Q, K, V and O are [B, H, N, HEAD_DIM]; scale is 1 / √HEAD_DIM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from common.dtypes import torch_dtype
from common.packages import CUTE, version
from common.problem import FAR, Choose, Drawn, Problem, Request, Shape, Tensors, Tolerance, Variants, whole_number
from cudaemu.errors import UserError

LOG2_E = math.log2(math.e)
BLOCK_Q = 64  # queries: as many as a block of any stage has, and in no stage more than it has
WIDE = 32769  # keys: as many as no 16 bits count
FACTORS = (1.0, 2.0, 0.5)  # of the scale
FEW_SCORES = 128 * 128  # of one head: a launch of so many is cheap
TOKENS, WIDTH = 16384, 2048  # B · N and H · HEAD_DIM of the benchmark's shapes


class Attention(Problem):
    name = "attention"
    part = "attention"
    formula = "O = softmax(Q · Kᵀ · scale) · V"
    axes: tuple[str, ...] = ("B", "H", "N", "D")
    inner_axes = ()  # the softmax needs every key: no axis can be cut short
    settings: tuple[str, ...] = ("HEAD_DIM",)
    input_names: tuple[str, ...] = ("Q", "K", "V")
    slack = 1.5  # whose largest weight is not 1 exactly has it rounded, too
    patterns: tuple[str, ...] = ("normal", "huge", "equal", "dominated", "low", "rising", "falling", "apart")
    pattern_says: Mapping[str, str] = {
        "huge": "scores of up to ±10,000",
        "equal": "the keys of a head are all the same: O is the mean of V",
        "dominated": "each head has one key whose score is far above the others",
        "low": "all scores are far below 0",
        "rising": "scores grow from tile to tile of keys",
        "falling": "scores shrink from tile to tile of keys",
        "apart": "scores grow from tile to tile of keys for eight of 16 queries and shrink for the other eight",
    }

    def output_names(self, variants: Variants) -> tuple[str, ...]:
        return ("O",)

    def output_axes(self, variants: Variants) -> tuple[tuple[str, ...], ...]:
        return (("batch", "head", "query", "col"),)

    def implied(self, inputs: Sequence[Tensor]) -> dict[str, int]:
        return {"HEAD_DIM": inputs[0].shape[-1]} if inputs[0].dim() else {}

    def parse(self, text: str, variants: Variants) -> Shape:
        sizes = tuple(whole_number(part, f"each size in '{text}'") for part in text.lower().split("x"))
        d = variants["HEAD_DIM"]
        if len(sizes) == 1:
            return max(1, TOKENS // sizes[0]), WIDTH // d, sizes[0], d
        if len(sizes) == 3:
            return (*sizes, d)
        if len(sizes) == 4:
            return sizes
        raise UserError(
            f"a size must be a number, such as 4096 for N = 4096 (and B · N = {TOKENS}, H · D = {WIDTH}), or BxHxN "
            f"such as 2x8x1024, got '{text}'"
        )

    def format(self, shape: Shape) -> str:
        b, h, n, d = shape
        return str(n) if (b, h) == (max(1, TOKENS // n), WIDTH // d) else f"{b}x{h}x{n}"

    def like(self, other: Problem, shape: Shape) -> Shape:
        if len(shape) == len(self.axes):
            return shape
        b, h, h_kv, n, n_kv, d = shape
        if (h, n) != (h_kv, n_kv):
            raise UserError(f"a size must have as many heads and keys for K as for Q here, got {other.format(shape)}")
        return b, h, n, d

    def check(self, shape: Shape, variants: Variants) -> None:
        if shape[3] != variants.get("HEAD_DIM", shape[3]):
            raise UserError(f"HEAD_DIM must be {shape[3]}, got {variants['HEAD_DIM']}: --variant HEAD_DIM={shape[3]}")

    def bench_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        return tuple(self.parse(str(n), variants) for n in (1024, 4096, 16384))

    def emulator_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        d = variants["HEAD_DIM"]
        return (1, 2, 256, d), (2, 54 * 128 // d, 256, d)

    def test_shapes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, Shape]:
        tile = multiples.get("N", 1)
        shapes = {
            "one tile": (1, 1, max(64, tile)),
            "several heads, blocks and tiles": (2, 3, max(128, 2 * tile)),
            "more tiles than any ring holds": (1, 1, 5 * max(64, tile)),
        }
        return {why: (*shape, variants["HEAD_DIM"]) for why, shape in shapes.items()}

    def far_inputs(
        self, multiples: Mapping[str, int], variants: Variants
    ) -> dict[str, tuple[tuple[Shape, Shape], ...]]:
        n, d = max(BLOCK_Q, multiples.get("N", 1)), variants["HEAD_DIM"]
        heads, long = FAR // (n * d) + 1, -(-WIDE // n) * n
        every, rows = ((1, heads, n, d), (1, 1, n, d)), ((1, 1, long, d), (1, 1, BLOCK_Q, d))
        keys = (rows[0], rows[0])
        return {
            "more heads than a grid has rows, more than 2³² elements": (every, every, every),
            "keys beyond 16 bits": (rows, keys, keys),
        }

    def figure_shape(self, multiples: Mapping[str, int], variants: Variants) -> Shape:
        return 1, 1, 2 * max(64, multiples.get("N", 1)), variants["HEAD_DIM"]

    def shape(self, inputs: Sequence[Tensor], variants: Variants) -> Shape:
        q, k, v = inputs
        if q.dim() != 4 or q.shape != k.shape or q.shape != v.shape:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(self.input_names, inputs))
            raise UserError(f"Q, K and V must have one shape, [B, H, N, D], got {shapes}")
        b, h, n, d = q.shape
        return b, h, n, d

    def draw(self, request: Request) -> Tensors:
        generator = torch.Generator(request.device).manual_seed(request.seed)
        shapes = self.input_shapes(request.shape, request.variants)
        q, k, v = (torch.randn(each, generator=generator, device=request.device) for each in shapes)
        q, k = PATTERNS[request.pattern](q, k, generator)
        return tuple(tensor.to(torch_dtype(request.dtype)).contiguous() for tensor in (q, k, v))

    def input_shapes(self, shape: Shape, variants: Variants) -> tuple[Shape, Shape, Shape]:
        """The shapes of Q, K and V."""
        return shape, shape, shape

    def outputs(self, shape: Shape, dtype: str, variants: Variants, device: str | torch.device = "cpu") -> Tensors:
        return (torch.empty(self.input_shapes(shape, variants)[0], dtype=torch_dtype(dtype), device=device),)

    def scalars(self, shape: Shape, variants: Variants, tensors: Sequence[Tensor]) -> dict[str, int | float]:
        b, h, n, d = shape
        return {"B": b, "H": h, "N": n, "scale": self.scale(shape)}

    def scale(self, shape: Sequence[int]) -> float:
        """1 / √D, as torch.nn.functional.scaled_dot_product_attention has it."""
        return float(shape[-1] ** -0.5)

    def other_launches(
        self, inputs: Sequence[Tensor], variants: Variants
    ) -> dict[str, Mapping[str, Tensor | int | float | None]]:
        """Another scale, where that is cheap."""
        q, scale = inputs[0], self.scale(inputs[0].shape)
        cheap = q.shape[:2] == (1, 1) and q.shape[2] * inputs[1].shape[2] <= FEW_SCORES
        return {"half of Q at twice the scale": {"Q": q / 2, "scale": scale * 2}} if cheap else {}

    def reference(self, inputs: Sequence[Tensor], variants: Variants) -> Tensors:
        q, k, v = inputs
        out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
        scale = self.scale(q.shape)
        for batch in range(q.shape[0]):  # by head: N × N scores in fp64 take memory
            for head in range(q.shape[1]):
                scores = q[batch, head].double() @ k[batch, head].double().mT * scale
                out[batch, head] = torch.softmax(scores, dim=-1) @ v[batch, head].double()
        return (out,)

    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        """O as torch computes it in 16 bits with fp32 accumulation.

        On a GPU, torch's own FlashAttention. On a CPU its arithmetic, in one step instead of tile by tile: scores and
        softmax in fp32, maximum and scale not in one FMA, weights rounded to 16 bits before they meet V, their sum not
        rounded, O rounded once. (FlashAttention as published has that FMA, and is six times less accurate in fp16 where
        logits reach 1e4; torch builds it with UNFUSE_FMA.)"""
        q, k, v = inputs
        scale = self.scale(q.shape)
        if q.is_cuda:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return (sdpa(q, k, v, scale=scale),)
        scores = q.float() @ k.float().mT
        return (flash(scores, v, scale, q.dtype),)

    def tolerances(
        self, inputs: Sequence[Tensor], dtype: str, variants: Variants, references: Tensors
    ) -> tuple[Tolerance, ...]:
        """As everywhere, but the baseline's furthest element is taken to be no nearer than rounding puts the largest.

        Where one key makes most of an element, the baseline rounds O alone, by half a unit, and whose largest weight is
        not 1 exactly rounds P as well, by 2^-11 of the element in fp16. Such errors, spread evenly, are √3 times less
        over the whole, which has that floor: torch's own error is 0 where each row has one key of weight 1."""
        o, *rest = super().tolerances(inputs, dtype, variants, references)
        half_eps = torch.finfo(torch_dtype(dtype)).eps / 2
        finite = torch.where(references[0].isfinite(), references[0], 0.0)
        largest, norm = finite.abs().amax().item(), finite.norm().item()
        half_a_unit = half_eps * 2 ** math.floor(math.log2(largest)) if largest else 0.0
        whole = max(o.whole, half_eps * norm / math.sqrt(3))
        return Tolerance(whole, max(o.element, half_a_unit + half_eps * largest)), *rest

    def peers(self, dtype: str, variants: Variants) -> dict[str, Callable[..., Tensor]]:
        """What the stages are compared with: FlashAttention-2 and cuDNN as torch has them; `flash_attention_cute` if
        it is installed; attention without fusion, of three kernels (`unfused`); torch's MATH backend, which multiplies
        in fp32 without tensor cores."""
        causal = bool(variants.get("CAUSAL"))

        def with_backend(backend: SDPBackend) -> Callable[..., Tensor]:
            def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                with sdpa_kernel(backend):
                    return sdpa(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

            return attention

        return {
            "FA2": with_backend(SDPBackend.FLASH_ATTENTION),
            "cuDNN": with_backend(SDPBackend.CUDNN_ATTENTION),
            **({"FA-CuTe": partial(flash_attention_cute, causal=causal)} if version(CUTE) else {}),
            "matmul+softmax": partial(unfused, causal=causal),
            "MATH": with_backend(SDPBackend.MATH),
        }

    def sizes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, tuple[int, ...]]:
        tile = max(BLOCK_Q, multiples.get("N", 1))
        return {"B": (1, 2), "H": (1, 3), "N": (tile, 2 * tile, 3 * tile), "D": (variants["HEAD_DIM"],)}

    def any_launch(
        self, choose: Choose, multiples: Mapping[str, int], dtype: str, variants: Variants, seed: int = 0
    ) -> Drawn:
        inputs, outputs, changed = super().any_launch(choose, multiples, dtype, variants, seed)
        inputs, scaled = self.with_scale(inputs, choose("scale", FACTORS))
        return Drawn(inputs, outputs, {**changed, **scaled})

    def with_scale(self, inputs: Tensors, factor: float) -> tuple[Tensors, Mapping[str, Any]]:
        """The inputs, and what changes in a launch with so many times their scale that computes the same: a power of
        two. Q loses the bits that it has no more then."""
        q, *others = inputs
        divided = like(q, q / factor)
        changed = {"Q": divided, "scale": self.scale(q.shape) * factor}
        return (like(q, divided * factor), *others), changed

    def refused(self, arguments: Mapping[str, Any], variants: Variants) -> dict[str, Mapping[str, Any]]:
        found = super().refused(arguments, variants)
        scales = (0.0, -0.5, math.inf, math.nan, 3e38) if "scale" in arguments else ()  # the last: times log2(e)
        return {**found, **{f"scale = {scale}": {"scale": scale} for scale in scales}}

    def flops(self, shape: Shape, variants: Variants) -> int:
        b, h, n, d = shape
        return 4 * b * h * n * n * d

    def bytes(self, shape: Shape, dtype: str, variants: Variants) -> int:
        b, h, n, d = shape
        return 4 * b * h * n * d * torch_dtype(dtype).itemsize


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """These values, which lie as the tensor does."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(values)


def flash_attention_cute(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """The flash-attention project's own kernel for Hopper, in the CuTe DSL: `pip install --pre flash-attn-4`.

    Shapes as torch's SDPA has them. Queries and keys are as many, else its causal mask is not torch's."""
    from flash_attn.cute import flash_attn_func  # takes seconds, and few have it

    out, _ = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal)
    o: Tensor = out.transpose(1, 2)
    return o


def unfused(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Attention of three kernels: a product, a softmax, a product. S and P are in global memory, in the dtype of Q.

    The products are cuBLAS's, on tensor cores with fp32 sums; the scale is a factor of the first. Heads of Q that share
    one of K are rows of one product. A causal mask takes a kernel of its own. Shapes as torch's SDPA has them."""
    batch, heads, n, d = q.shape
    kv_heads, n_kv = k.shape[1:3]
    groups, rows = batch * kv_heads, heads // kv_heads * n
    queries, keys, values = q.reshape(groups, rows, d), k.reshape(groups, n_kv, d), v.reshape(groups, n_kv, d)
    scores = q.new_empty((groups, rows, n_kv)).baddbmm_(queries, keys.mT, beta=0, alpha=1 / math.sqrt(d))
    if causal:
        hidden = torch.ones((n, n_kv), dtype=torch.bool, device=q.device).triu_(1)
        scores.view(groups, -1, n, n_kv).masked_fill_(hidden, -torch.inf)
    return torch.matmul(torch.softmax(scores, dim=-1), values).view(batch, heads, n, d)


def flash(scores: Tensor, v: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """softmax(scores · scale) · V with FlashAttention's roundings; scores are fp32, -inf where masked.

    Rows of nothing but -inf are 0, as torch.nn.functional.scaled_dot_product_attention has them."""
    scale_log2 = torch.tensor(scale, dtype=torch.float32) * LOG2_E
    scaled = scores * scale_log2
    largest = scaled.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = torch.exp2(scaled - largest)
    sums = weights.sum(-1, keepdim=True)
    return (weights.to(dtype).float() @ v.float() / torch.where(sums == 0, 1, sums)).to(dtype)


# ---- inputs on which an online softmax fails if it is careless; sizes are for the default scale ----------------------


def _normal(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return q, k


def _huge(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return q * 55, k * 55  # logits of standard deviation 55² ≈ 3000: the extremes of a few hundred keys reach ±1e4


def _equal(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return q * 55, (k * 55)[:, :, :1].expand_as(k)  # every key is the same: O is the mean of V, whatever the logit


def _dominated(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # One key per head that every query likes by 4 · 8 · √D more than the rest: 256 for D = 64.
    sign = torch.randn(k.shape[3], generator=generator, device=k.device).sign()
    chosen = torch.randint(k.shape[2], k.shape[:2], generator=generator, device=k.device)
    one_hot = torch.nn.functional.one_hot(chosen, k.shape[2])[..., None]
    return q + 4 * sign, torch.where(one_hot > 0, 8 * sign, k)


def _low(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # All logits near -1e4: a kernel that takes 0 for the first maximum gets weights of 0 and divides 0 by 0.
    size = math.sqrt(1e4 / math.sqrt(k.shape[3]))
    return q + size, k - size


def _abyss(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # All logits of a row are one number below -1e9: O is the mean of V. No step of a sum rounds it. Its product with
    # the scale has to be rounded: a product that is not differs from m by a hundred.
    return torch.full_like(q, 195.0 * 2**7), torch.full_like(k, -195.0 * 2**7)


def _summit(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # One key per head is as far above zero as all others are below: O is its value, in whatever parts keys come.
    q, k = _abyss(q, k, generator)
    chosen = torch.randint(k.shape[2], k.shape[:2], generator=generator, device=k.device)
    return q, torch.where(torch.nn.functional.one_hot(chosen, k.shape[2])[..., None] > 0, -k, k)


def _rising(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # Keys that every query likes better from tile to tile, by 4 in 64 keys: each tile corrects all that came before.
    steps = torch.arange(k.shape[2], device=k.device, dtype=k.dtype)[:, None] / 16
    return q + 1, k + steps / math.sqrt(k.shape[3])


def _falling(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    q, k = _rising(q, k, generator)
    return q, k.flip(2)


def _apart(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # Of 16 rows, eight like the keys better from tile to tile, the other eight less: what a warp decides for its two
    # halves of an mma tile, it must have asked both. By 8 in 64 keys: fp16 ends, whatever a kernel allows a weight.
    rows = torch.arange(q.shape[2], device=q.device)
    sign = (rows // 8 + rows // 16) % 2 * 2 - 1
    return q + 2 * sign[:, None], _rising(q, k, generator)[1]


PATTERNS: dict[str, Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]] = {
    "normal": _normal,
    "huge": _huge,
    "equal": _equal,
    "dominated": _dominated,
    "low": _low,
    "abyss": _abyss,
    "summit": _summit,
    "rising": _rising,
    "falling": _falling,
    "apart": _apart,
}

problem = Attention()
