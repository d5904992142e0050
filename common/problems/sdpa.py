"""Attention as programs call it: any lengths, heads and strides, a causal mask, log Σ exp, split keys.

The meaning is that of torch.nn.functional.scaled_dot_product_attention: Q [B, H, N, D], K and V [B, H_KV, N_KV, D],
heads of Q that share one of K in a row; with CAUSAL, query i sees keys 0 to i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

from common.dtypes import torch_dtype
from common.problem import Choose, Drawn, Problem, Request, Shape, Tensors, Tolerance, Variants, whole_number
from common.problems.attention import FACTORS, WIDE, Attention, flash
from cudaemu.errors import UserError

# H, H_KV and N: alone, packed (also where that does not divide a tile), grouped with too many queries to be packed.
HEADS_AND_QUERIES = (
    (3, 3, 1), (3, 1, 20), (7, 1, 9), (4, 2, 150), (1, 1, 200), (14, 2, 5), (3, 1, 70), (2, 2, 64),
)  # fmt: skip
SECTION = 40 << 20  # bytes of K and V of heads that stages run together under a causal mask, at least four of them
ORDERS = ((0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2))  # of batches, heads and rows in memory
DRAWN = ("normal", "huge", "low", "abyss", "summit", "rising", "apart", "absent")  # inputs
GAPS = (0, 8, 40)  # elements between rows


class Sdpa(Attention):
    name = "sdpa"
    axes = ("B", "H", "H_KV", "N", "N_KV", "D")
    settings = ("HEAD_DIM", "CAUSAL")
    scratch_names = ("LSE", "partial_O", "partial_LSE")
    extra_names = ("LSE",)
    patterns = (*Attention.patterns, "absent", "strided")
    pattern_says = {
        **Attention.pattern_says,
        "absent": "scores of -inf, in the last head all of them: there O is 0 and LSE -inf",
        "strided": "each tensor has strides of its own",
    }

    def output_names(self, variants: Variants) -> tuple[str, ...]:
        return ("O",)

    def output_axes(self, variants: Variants) -> tuple[tuple[str, ...], ...]:
        return (("batch", "head", "query", "col"), ("batch", "head", "query"))

    def parse(self, text: str, variants: Variants) -> Shape:
        parts = text.lower().split("x")
        if len(parts) == 5:
            return (*(whole_number(part, f"each size in '{text}'") for part in parts), variants["HEAD_DIM"])
        try:
            b, h, n, d = super().parse(text, variants)
        except UserError:
            raise UserError(
                "a size must be a number, such as 4096 for N = N_KV = 4096, BxHxN, or BxHxH_KVxNxN_KV such as "
                f"1x32x8x1x8192, got '{text}'"
            ) from None
        return b, h, h, n, n, d

    def format(self, shape: Shape) -> str:
        b, h, h_kv, n, n_kv, d = shape
        same = h == h_kv and n == n_kv
        return super().format((b, h, n, d)) if same else f"{b}x{h}x{h_kv}x{n}x{n_kv}"

    def check(self, shape: Shape, variants: Variants) -> None:
        b, h, h_kv, n, n_kv, d = shape
        super().check((b, h, n, d), variants)
        if h % h_kv:
            raise UserError(f"H, the heads of Q, must be a multiple of H_KV, those of K and V; got {h} and {h_kv}")

    def like(self, other: Problem, shape: Shape) -> Shape:
        if len(shape) == len(self.axes):
            return shape
        b, h, n, d = shape
        return b, h, h, n, n, d

    def bench_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        return tuple(self.parse(str(n), variants) for n in (1024, 4096, 16384))

    def tune_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        long = ("1024", "4096")
        decoding = () if variants.get("CAUSAL") else ("1x32x8x1x8192", "16x32x8x1x8192")
        return tuple(self.parse(text, variants) for text in (*long, *decoding))

    def emulator_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        return tuple((b, h, h, n, n, d) for b, h, n, d in super().emulator_shapes(variants))

    def test_shapes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, Shape]:
        d = variants["HEAD_DIM"]
        shapes = {
            "one query, one key": (1, 1, 1, 1, 1),
            "a small tile, whole": (1, 1, 1, 64, 256),
            "whole tiles, several heads and blocks": (1, 2, 2, 256, 192),
            "queries ragged": (1, 1, 1, 150, 128),
            "keys ragged, fewer than queries": (1, 1, 1, 128, 70),
            "grouped heads, few queries: packed, keys split over blocks": (2, 4, 1, 3, 700),
            "a small tile, grouped heads with too many queries to be packed": (1, 2, 1, 50, 128),
            **(
                {"heads beyond one section": (1, 5, 1, 64, SECTION // (5 * 4 * d) + 1)}
                if variants.get("CAUSAL")
                else {}
            ),
            "more tiles than any ring holds, ragged": (1, 1, 1, 200, 401),
            "grouped heads, many queries": (2, 4, 2, 100, 200),
        }
        return {why: (*shape, d) for why, shape in shapes.items()}

    def patterns_at(self, shape: Shape, multiples: Mapping[str, int], variants: Variants) -> tuple[str, ...]:
        """Strides also where heads share a tile of queries and blocks the keys: there others compute addresses. And
        where there are many parts, each has to correct those before it."""
        found, (_, h, h_kv, _, _, _) = super().patterns_at(shape, multiples, variants), shape
        if len(found) == 1 and h > h_kv:
            return *found, "strided"
        return (*found, "rising") if shape in self.wide_shapes(multiples, variants).values() else found

    def wide_shapes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, Shape]:
        """So many keys that what combines their parts goes round several times, too."""
        return {"keys beyond 16 bits, in many parts": (1, 1, 1, 1, WIDE, variants["HEAD_DIM"])}

    def far_inputs(
        self, multiples: Mapping[str, int], variants: Variants
    ) -> dict[str, tuple[tuple[Shape, Shape], ...]]:
        """Batches have strides of their own. Keys beyond 16 bits are among `wide_shapes`, where they are split."""
        what, heads = next(iter(super().far_inputs(multiples, variants).items()))
        batches = tuple(((h, b, n, d), part) for (b, h, n, d), part in heads)
        return {what: heads, "batches beyond 2³² elements": batches}

    def figure_shape(self, multiples: Mapping[str, int], variants: Variants) -> Shape:
        return 1, 1, 1, 256, 256, variants["HEAD_DIM"]

    def shape(self, inputs: Sequence[Tensor], variants: Variants) -> Shape:
        q, k, v = inputs
        fits = q.dim() == k.dim() == 4 and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
        if not fits:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(self.input_names, inputs))
            raise UserError(f"Q must be [B, H, N, D], K and V [B, H_KV, N_KV, D]; got {shapes}")
        b, h, n, d = q.shape
        return b, h, k.shape[1], n, k.shape[2], d

    def input_shapes(self, shape: Shape, variants: Variants) -> tuple[Shape, Shape, Shape]:
        b, h, h_kv, n, n_kv, d = shape
        return (b, h, n, d), (b, h_kv, n_kv, d), (b, h_kv, n_kv, d)

    def draw(self, request: Request) -> Tensors:
        make = {"absent": _absent, "strided": _strided}.get(request.pattern)
        return make(*super().draw(request._replace(pattern="normal"))) if make else super().draw(request)

    def outputs(self, shape: Shape, dtype: str, variants: Variants, device: str | torch.device = "cpu") -> Tensors:
        b, h, _, n, _, d = shape
        return (torch.empty((b, h, n, d), dtype=torch_dtype(dtype), device=device),)

    def outputs_for(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        """O lies as Q does."""
        return (torch.empty_like(inputs[0]),)

    def scratch(
        self, shape: Shape, variants: Variants, device: str | torch.device = "cpu"
    ) -> tuple[Tensor | None, ...]:
        return None, *parts(shape, variants.get("splits", 1), device)

    def scalars(self, shape: Shape, variants: Variants, tensors: Sequence[Tensor]) -> dict[str, int | float]:
        b, h, h_kv, n, n_kv, d = shape
        strides = {
            f"{name}_{axis}": tensor.stride(position)
            for name, tensor in zip("qkvo", tensors)
            for position, axis in enumerate(("batch", "head", "row"))
        }
        sizes = {"B": b, "H": h, "H_KV": h_kv, "N": n, "N_KV": n_kv}
        return {**sizes, **strides, "splits": variants.get("splits", 1), "scale": self.scale(shape)}

    def check_layout(self, name: str, tensor: Tensor) -> None:
        if tensor.dim() == 4 and (
            tensor.stride(3) != 1
            or any(stride % 8 and size > 1 for size, stride in zip(tensor.shape[:3], tensor.stride()))
        ):
            raise UserError(
                f"{name} must have contiguous rows that begin at multiples of 8 elements, got the strides "
                f"{tensor.stride()}: pass {name}.contiguous()"
            )

    def reference(self, inputs: Sequence[Tensor], variants: Variants) -> Tensors:
        q, k, v = inputs
        group = q.shape[1] // k.shape[1]
        out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
        hidden = _hidden(q, k, variants)
        scale = self.scale(self.shape(inputs, variants))
        for batch in range(q.shape[0]):  # by head: N × N scores in fp64 take memory
            for head in range(q.shape[1]):
                scores = q[batch, head].double() @ k[batch, head // group].double().mT * scale
                scores.masked_fill_(hidden, -torch.inf)
                lse[batch, head] = torch.logsumexp(scores, dim=-1)
                weights = torch.softmax(scores, dim=-1).masked_fill_(lse[batch, head, :, None] == -torch.inf, 0)
                out[batch, head] = weights @ v[batch, head // group].double()
        return out, lse

    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        """O as in Attention.baseline; LSE from fp32 scores."""
        q, k, v = inputs
        scale = self.scale(self.shape(inputs, variants))
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
        hidden = _hidden(q, k, variants)
        lse = torch.empty(q.shape[:3], device=q.device)
        for batch in range(q.shape[0]):  # by head: N × N scores take memory
            for head in range(q.shape[1]):
                scores = (q[batch, head].float() @ k[batch, head].float().mT).masked_fill_(hidden, -torch.inf)
                torch.logsumexp(scores.mul_(scale), dim=-1, out=lse[batch, head])
        if q.is_cuda and not (variants.get("CAUSAL") and q.shape[2] != k.shape[2]):
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                o = torch_sdpa(q, k, v, scale=scale, is_causal=bool(variants.get("CAUSAL")))
            if o.isfinite().all():  # its kernels have NaN where all scores of a tile are -inf
                return o, lse
        return flash((q.float() @ k.float().mT).masked_fill_(hidden, -torch.inf), v, scale, q.dtype), lse

    def tolerances(
        self, inputs: Sequence[Tensor], dtype: str, variants: Variants, references: Tensors
    ) -> tuple[Tolerance, ...]:
        """Those of O as everywhere; but a unit in the last place of the largest score is that fraction of a weight, and
        an element may be as far off: of few rows, torch's furthest is near by chance.

        LSE is an fp32 sum of weights that are right to 22 bits, and a maximum that was scaled and rounded: some units
        in the last place of the largest LSE. More by how tensor cores add: they align D products and the sums on the
        way to the largest, and cut each off half a unit after its last place or later (Fasi et al., "Numerical behavior
        of NVIDIA tensor cores", 2021), all in the same direction where all products have one sign."""
        o, lse = super().tolerances(inputs, dtype, variants, references)
        finite = references[1][references[1].isfinite()].abs()
        unit = max(1.0, finite.amax().item() if len(finite) else 0.0) * 2.0**-23
        cut = inputs[0].shape[-1] / 2  # units, at most; half as many in the mean
        count = references[1].numel()
        whole, element = (4 + cut / 2) * unit * math.sqrt(count), (16 + cut) * unit
        furthest = unit * torch.where(inputs[2].isfinite(), inputs[2], 0).abs().amax().item() if len(finite) else 0.0
        return o._replace(element=max(o.element, furthest)), type(lse)(max(lse.whole, whole), max(lse.element, element))

    def other_launches(
        self, inputs: Sequence[Tensor], variants: Variants
    ) -> dict[str, Mapping[str, Tensor | int | float | None]]:
        """Asked for LSE; and another scale, where that is cheap."""
        q = inputs[0]
        lse = torch.full(q.shape[:3], torch.nan, device=q.device)
        return {"with LSE": {"LSE": lse}, **super().other_launches(inputs, variants)}

    def any_launch(
        self, choose: Choose, multiples: Mapping[str, int], dtype: str, variants: Variants, seed: int = 0
    ) -> Drawn:
        """Each tensor has strides of its own; those of an axis of size 1 may be anything."""
        h, h_kv, n = choose("H, H_KV and N", HEADS_AND_QUERIES)
        n_kv, tile = choose("N_KV", (1, 70, 128, 200, 401)), 64
        shape = (choose("B", (1, 2)), h, h_kv, n, n_kv, variants["HEAD_DIM"])
        pattern = choose("inputs", DRAWN)
        inputs, scaled = self.with_scale(
            self.inputs(shape, dtype, variants, seed=seed, pattern=pattern), choose("scale", FACTORS)
        )
        tensors = {**dict(zip(self.input_names, inputs)), "O": self.outputs(shape, dtype, variants)[0]}
        changed = dict(scaled)
        for name, tensor in tensors.items():
            strides = _strides(choose, name, tensor)
            tensors[name] = _laid(tensor, strides)
            changed |= {name: _laid(changed[name], strides)} if name in changed else {}
        if choose("LSE", (False, True)):
            changed["LSE"] = torch.full(shape[:1] + (h, n), torch.nan)
        tiles = -(-n_kv // tile)
        # Of a logit below -1e9 fp32 has no room for log Σ exp: parts of different sizes would weigh the same.
        whole = variants.get("CAUSAL") or pattern == "abyss"
        splits = 1 if whole else choose("splits", (1, 2, tiles + 3, 2 * tiles, 3))
        partial_o, partial_lse = parts(shape, splits, "cpu")
        changed |= {"splits": splits, "partial_O": partial_o, "partial_LSE": partial_lse}
        o = tensors.pop("O")
        return Drawn(tuple(tensors.values()), (o,), changed)

    def refused(self, arguments: Mapping[str, Any], variants: Variants) -> dict[str, Mapping[str, Any]]:
        found = super().refused(arguments, variants)
        partial_o, partial_lse = torch.empty(1 << 16), torch.empty(1 << 10)
        two = {"splits": 2, "partial_O": partial_o, "partial_LSE": partial_lse}
        found |= {f"splits = {splits}": {"splits": splits} for splits in (0, -1)}
        found |= {f"splits = 2 without {name}": {**two, name: None} for name in self.scratch_names[1:]}
        if variants.get("CAUSAL"):
            found["splits = 2 under a causal mask"] = two
        found["H = 3 and H_KV = 2"] = {"H": 3, "H_KV": 2}
        for name in "qkvo":  # two batches, heads, rows of each: no stride is left out
            several = {"B": 2, "H": 2, "H_KV": 2, "N": 2, "N_KV": 2}
            strides = {f"{name}_{axis}": 8 * arguments[f"{name}_row"] + 4 for axis in ("batch", "head", "row")}
            found |= {
                f"{stride} = {size}, no multiple of 8": {**several, stride: size} for stride, size in strides.items()
            }
        return found

    def flops(self, shape: Shape, variants: Variants) -> int:
        b, h, _, n, n_kv, d = shape
        return 4 * b * h * n * n_kv * d // (2 if variants.get("CAUSAL") else 1)

    def bytes(self, shape: Shape, dtype: str, variants: Variants) -> int:
        b, h, h_kv, n, n_kv, d = shape
        return (2 * b * h * n * d + 2 * b * h_kv * n_kv * d) * torch_dtype(dtype).itemsize


def _absent(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """Keys whose scores are -inf, as if they were not there: two thirds of those that a causal mask leaves, the first
    ones; the last head has no others."""
    q[..., 0] = 1
    k[:, :, : (min(q.shape[2], k.shape[2]) * 2 + 2) // 3, 0] = -torch.inf
    k[:, -1, :, 0] = -torch.inf
    return q, k, v


def _strided(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The same values, each tensor with strides of its own, as views of typical layouts."""
    q = q.transpose(1, 2).contiguous().transpose(1, 2)  # [B, N, H, D]
    k = torch.stack((k, k.neg()), dim=3)[:, :, :, 0]  # every other row
    return q, k, v.transpose(0, 2).contiguous().transpose(0, 2)  # [N_KV, H_KV, B, D]


def _strides(choose: Choose, name: str, tensor: Tensor) -> tuple[int, ...]:
    """Strides of a [B, H, N, D] tensor that a kernel takes."""
    apart = tensor.shape[3] + choose(f"{name}, elements between rows", GAPS)
    strides = [0, 0, 0, 1]
    for axis in reversed(choose(f"{name}, order in memory", ORDERS)):
        strides[axis], apart = apart, apart * tensor.shape[axis]
    if choose(f"{name}, strides of axes of size 1", ("as they are", "1")) == "1":
        strides = [1 if size == 1 else stride for size, stride in zip(tensor.shape, strides)]
    return tuple(strides)


def _laid(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The same values with these strides; nobody may use what lies between them."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides))
    return tensor.new_full((length,), torch.nan).as_strided(tensor.shape, strides).copy_(tensor)


def _hidden(q: Tensor, k: Tensor, variants: Variants) -> Tensor:
    """[N, N_KV]: the scores that the causal mask hides."""
    n, n_kv = q.shape[2], k.shape[2]
    hidden = torch.zeros((n, n_kv), dtype=torch.bool, device=q.device)
    return torch.ones_like(hidden).triu_(1) if variants.get("CAUSAL") else hidden


def parts(shape: Shape, splits: int, device: str | torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Memory for the results of each part of the keys, partial_O and partial_LSE; none is needed for one part."""
    if splits == 1:
        return None, None
    b, h, _, n, _, d = shape
    lse = torch.empty((splits, b, h, n), dtype=torch.float32, device=device)
    return lse.new_empty((splits, b, h, n, d)), lse


problem = Sdpa()


@lru_cache(maxsize=1024)
def best_splits(blocks: int, tiles: int, slots: int) -> int:
    """The number of parts of the keys with the least time in the model: blocks run in waves of `slots`, as many as fit
    on the GPU, and each takes as long as its tiles of keys, and two more for beginning, ending and combining. Of equal
    ones the largest: more blocks of a wave read."""

    def time(splits: int) -> int:
        return -(-blocks * splits // slots) * (-(-tiles // splits) + (2 if splits > 1 else 0))

    return min(range(1, min(tiles, 2 * slots) + 1), key=lambda splits: (time(splits), -splits))
