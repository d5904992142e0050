"""Kernels for training beside liger-kernel's: flash-attention's, unsloth's, xformers', MegaBlocks' sparse products, cut
cross entropy."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch.nn import functional as F
from triton.language.extra import libdevice

from docs.triton_kernels.cases import NotHere, Pairs, both, case, file, leaf, part, rms

# ---- flash-attention -------------------------------------------------------------------------------------------------


def flash(name: str) -> Any:
    def op(name: str, **_: Any) -> Any:  # of torch.library, for torch.compile
        return lambda function: function

    given = {"flash_attn.utils.library": {"triton_op": op}}
    part("flash-attention", "flash_attn", ("flash_attn.ops.triton.", "flash_attn.utils.torch"), given)
    return importlib.import_module(f"flash_attn.ops.triton.{name}")


@case("flash-attention")
def flash_attention_rotary() -> Pairs:
    x, angle = torch.randn(2, 12, 3, 64), torch.randn(12, 16)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b, rest = x[..., :16], x[..., 16:32], x[..., 32:]
    expected = torch.cat((a * cos - b * sin, a * sin + b * cos, rest), -1)
    yield flash("rotary").apply_rotary(x, angle.cos(), angle.sin()), expected


@case("flash-attention")
def flash_attention_cross_entropy() -> Pairs:
    labels = torch.randint(0, 500, (17,))
    yield from both(
        lambda x: flash("cross_entropy").cross_entropy_loss(x, labels, label_smoothing=0.1)[0],
        lambda x: F.cross_entropy(x, labels, label_smoothing=0.1, reduction="none"),
        leaf(17, 500),
    )


@case("flash-attention")
def flash_attention_layer_norm() -> Pairs:
    yield from both(
        lambda x, w, b, r: flash("layer_norm").layer_norm_fn(x, w, b, residual=r, eps=1e-5, prenorm=True),
        lambda x, w, b, r: (F.layer_norm(x + r, (200,), w, b, 1e-5), x + r),
        *(leaf(9, 200), leaf(200), leaf(200), leaf(9, 200)),
    )


@case("flash-attention")
def flash_attention_rms_norm() -> Pairs:
    yield from both(lambda x, w: flash("layer_norm").rms_norm_fn(x, w, None, eps=1e-6), rms, leaf(9, 200), leaf(200))


# ---- unsloth ---------------------------------------------------------------------------------------------------------


def unsloth(name: str) -> Any:
    def settings(n: int) -> tuple[int, int]:
        return triton.next_power_of_2(n), 4

    shared = {
        "calculate_settings": settings,
        "torch_gpu_device": lambda _: nullcontext(),
        "triton_tanh": libdevice.tanh,
        "triton_cast": triton.language.cast,
        "MAX_FUSED_SIZE": 65536,
        "is_cdna": lambda: False,
        "is_rdna": lambda: False,
        "_num_warps_for_block": lambda _: 4,
    }
    given = {
        "unsloth": {"DEVICE_TYPE": "cuda"},
        "unsloth.kernels.utils": shared,
        "unsloth.device_type": {"DEVICE_COUNT": 1},
    }
    part("unsloth", "unsloth", ("unsloth.kernels.",), given)
    part("unsloth", "transformers", (), {})
    part("unsloth", "unsloth_zoo", (), {"unsloth_zoo.utils": {"Version": lambda _: (9,)}})
    return importlib.import_module(f"unsloth.kernels.{name}")


@case("unsloth")
def unsloth_rms_layernorm() -> Pairs:
    def kernel(x: Any, w: Any) -> Any:
        return unsloth("rms_layernorm").Fast_RMS_Layernorm.apply(x, w, 1e-6, False)

    x, w = leaf(2, 9, 200), torch.randn(200)
    yield from both(kernel, rms, x, w)


@case("unsloth")
def unsloth_layernorm() -> Pairs:
    def kernel(x: Any, w: Any, b: Any) -> Any:
        return unsloth("layernorm").Fast_Layernorm.apply(x, w, b, 1e-5)

    x, w, b = leaf(2, 9, 200), torch.randn(200), torch.randn(200)
    yield from both(kernel, lambda x, w, b: F.layer_norm(x, (200,), w, b, 1e-5), x, w, b)


@case("unsloth")
def unsloth_swiglu() -> Pairs:
    e, g, d = (torch.randn(2, 9, 300) for _ in range(3))
    yield unsloth("swiglu").swiglu_fg_kernel(e, g), F.silu(e) * g
    h, de, dg = F.silu(e) * g, *torch.autograd.functional.vjp(lambda e, g: F.silu(e) * g, (e, g), d)[1]
    made = unsloth("swiglu").swiglu_DWf_DW_dfg_kernel(*(x.view(-1, 300).clone() for x in (d, e, g)))
    yield from zip(made, (h.view(-1, 300), (d * F.silu(e)).view(-1, 300), de.view(-1, 300)))
    yield dg, d * F.silu(e)


@case("unsloth")
def unsloth_geglu() -> Pairs:
    e, g = torch.randn(2, 9, 300), torch.randn(2, 9, 300)
    yield unsloth("geglu").geglu_exact_forward_kernel(e, g), F.gelu(e) * g
    yield unsloth("geglu").geglu_approx_forward_kernel(e, g), F.gelu(e, approximate="tanh") * g


@case("unsloth")
def unsloth_cross_entropy_loss() -> Pairs:
    labels = torch.randint(0, 700, (1, 17))
    yield from both(
        lambda x: unsloth("cross_entropy_loss").Fast_CrossEntropyLoss.apply(1 * x, labels[0], 0, 0),
        lambda x: F.cross_entropy(x, labels[0], reduction="none"),
        leaf(17, 700),
    )


@case("unsloth")
def unsloth_rope_embedding() -> Pairs:
    at = torch.outer(torch.arange(10.0), 1e4 ** (-torch.arange(0, 32) / 32.0))
    cos, sin = at.cos(), at.sin()

    def reference(q: Any) -> Any:
        a, b = q.chunk(2, -1)
        return torch.cat((a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]), -1)

    yield from both(
        lambda q: unsloth("rope_embedding").Fast_RoPE_Embedding.apply(1 * q, cos, sin), reference, leaf(2, 10, 4, 64)
    )


def _grouped(**options: Any) -> Pairs:
    """Products of a mixture of experts: rows of X by the weights of their expert, [experts, N, K]."""
    part("unsloth", "pandas", (), {})  # of the tuning's tables
    sizes, w = torch.tensor([40, 0, 25, 63], dtype=torch.int32), torch.randn(4, 96, 64).half()
    x = torch.randn(128, 64).half()
    module = unsloth("moe.grouped_gemm.interface")
    expected = torch.cat([rows.float() @ w[n].float().T for n, rows in enumerate(x.split(sizes.tolist()))])
    yield module.grouped_gemm_forward(x, w, 1, sizes, **options), expected
    if not options:
        yield module.grouped_gemm_dX(expected.half(), w, torch.arange(128), sizes, 1), _expert_dx(expected, w, sizes)


def _expert_dx(y: torch.Tensor, w: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    rows = y.half().float().split(sizes.tolist())
    return torch.cat([each @ w[n].float() for n, each in enumerate(rows)])


@case("unsloth", 1e-3)
def unsloth_grouped_gemm() -> Pairs:
    yield from _grouped()


@case("unsloth", 1e-3)
def unsloth_grouped_gemm_tma() -> Pairs:
    yield from _grouped(use_tma_load_w=True, use_tma_load_x=True, use_tma_store=True)


# ---- xformers --------------------------------------------------------------------------------------------------------


def xformers(name: str) -> Any:
    given = {
        "xformers.ops._triton.matmul_perf_model": {  # it asks the GPU's driver for clocks
            "early_config_prune": lambda configs, *_, **__: configs,
            "estimate_matmul_time": lambda **_: 1.0,
        },
        "xformers.triton.importing": {"libdevice_find": lambda name: getattr(libdevice, name)},
    }
    part("xformers", "xformers", ("xformers.ops._triton.",), given)
    return importlib.import_module(f"xformers.ops._triton.{name}")


@case("xformers")
def xformers_rmsnorm() -> Pairs:
    x, w = torch.randn(9, 200), torch.randn(200)
    yield xformers("rmsnorm_kernels")._rms_norm_forward(x, w, 1e-6), rms(x, w)


@case("xformers", fault="a = tl.load(")
def xformers_rmsnorm_add() -> Pairs:
    """It stores x and loads it again, with nothing in between that orders lanes: another lane may have stored it."""
    x, y, w = torch.randn(9, 200), torch.randn(9, 200), torch.randn(200)
    expected = rms(x + y, w)
    yield xformers("rmsnorm_kernels")._rms_norm_add_forward(x, y, w, 1e-6), expected
    yield x, x


@case("xformers")
def xformers_index_select_cat() -> Pairs:
    source, index = torch.randn(20, 100), torch.randperm(20)[:9]
    out = torch.empty(9, 100)
    xformers("k_index_select_cat").index_select_cat_fwd(out, source, index)
    yield out, source[index]
    grad = torch.zeros(20, 100)
    xformers("k_index_select_cat").index_select_cat_bwd(grad, index, out)
    yield grad, torch.zeros(20, 100).index_add(0, index, out)


@case("xformers")
def xformers_scaled_index_add() -> Pairs:
    x, source, scaling = torch.randn(8, 5, 64), torch.randn(3, 5, 64), torch.randn(64)
    index = torch.tensor([6, 1, 3])
    expected = x.index_add(0, index, source * scaling, alpha=0.5)
    xformers("k_scaled_index_add").scaled_index_add_fwd(x, index, source, scaling, 0.5)
    yield x, expected


@case("xformers", 1e-3)
def xformers_tiled_matmul() -> Pairs:
    a = [[torch.randn(64, 96).half(), torch.randn(64, 32).half()]]
    b = [[torch.randn(96, 64).half()], [torch.randn(32, 64).half()]]
    c = [[torch.empty(64, 64).half()]]
    xformers("tiled_matmul_kernels")._launch_triton_matmul(a, b, c, [64], [64], [96, 32])
    yield c[0][0], a[0][0].float() @ b[0][0].float() + a[0][1].float() @ b[1][0].float()


# ---- MegaBlocks: products with matrices of which some blocks are there -----------------------------------------------


def _blocks() -> tuple[Any, ...]:
    """A matrix of 3 x 2 blocks of 128 x 128, four of which are there; and how MegaBlocks says which."""
    offsets, columns = torch.tensor([0, 1, 2, 4], dtype=torch.int32), torch.tensor([1, 0, 0, 1], dtype=torch.int16)
    rows = torch.empty(4, dtype=torch.int16)
    stk().row_indices((384, 256), torch.empty(4, 128, 128), offsets, columns, rows)
    data, whole = (0.1 * torch.randn(4, 128, 128)).half(), torch.zeros(384, 256)
    for n in range(4):
        whole[128 * int(rows[n]) :, 128 * int(columns[n]) :][:128, :128] = data[n].float()
    order = torch.argsort(columns.int() * 4 + rows.int())
    columns_t, blocks_t = rows[order], order.to(torch.int32)
    return whole, data, offsets, rows, columns, torch.tensor([0, 2, 4], dtype=torch.int32), columns_t, blocks_t


def stk() -> Any:
    return file("stk", "stk/backend/triton_kernels.py")


@case("stk", 1e-3)
def stk_dsd() -> Pairs:
    whole, data, *where = _blocks()
    right = torch.randn(256, 128).half()
    out = torch.empty(384, 128).half()
    stk().dsd((384, 256), data, where[0], where[1], where[2], *where[3:], False, right, out)
    yield out, whole @ right.float()


@case("stk", 1e-3)
def stk_dds() -> Pairs:
    whole, data, *where = _blocks()
    left, out = torch.randn(128, 384).half(), torch.empty(128, 256).half()
    stk().dds(left, (384, 256), data, where[0], where[1], where[2], *where[3:], False, out)
    yield out, left.float() @ whole


@case("stk", 1e-3)
def stk_sdd() -> Pairs:
    _, data, offsets, rows, columns, *_ = _blocks()
    left, right, out = torch.randn(384, 64).half(), torch.randn(64, 256).half(), torch.empty_like(data)
    stk().sdd(left, right, (384, 256), out, offsets, rows, columns)
    product = left.float() @ right.float()
    for n in range(4):
        yield out[n], product[128 * int(rows[n]) :, 128 * int(columns[n]) :][:128, :128]


# ---- cut cross entropy -----------------------------------------------------------------------------------------------


@case("cut-cross-entropy", 2e-2)
def cut_cross_entropy_linear() -> Pairs:
    try:
        from cut_cross_entropy import linear_cross_entropy
    except ImportError as error:
        raise NotHere from error
    targets = torch.randint(0, 200, (64,))
    yield from both(
        lambda e, c: linear_cross_entropy(e, c, targets, filter_eps=None),
        lambda e, c: F.cross_entropy(e.float() @ c.float().T, targets),
        *(leaf(64, 64, dtype=torch.bfloat16, scale=0.3), leaf(200, 64, dtype=torch.bfloat16, scale=0.3)),
    )
