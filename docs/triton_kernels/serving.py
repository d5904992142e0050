"""Kernels of servers, vLLM and SGLang: attention over paged caches, mixtures of experts, LoRA, sampling.

Of a package only the files with the kernels are loaded, unchanged (cases._Partly)."""

from __future__ import annotations

import importlib
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional as F
from triton.language.extra import libdevice

from docs.triton_kernels.cases import Pairs, attend, case, part, rms

HALF = torch.float16


class _Platform:
    """What a server asks about the machine."""

    def __getattr__(self, name: str) -> Any:
        answers = {"is_cuda": True, "is_cuda_alike": True, "fp8_dtype": torch.float8_e4m3fn, "num_compute_units": 132}
        answers["get_device_capability"] = SimpleNamespace(major=9, minor=0)
        return lambda *_, **__: answers.get(name, False)


KV_MODES = ("NONE", "FP8_PER_TENSOR", "INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD", "INT4_PER_TOKEN_HEAD", "NVFP4")
USES_NO_DESCRIPTOR = {"use_tensor_descriptor": lambda *_: False}


def vllm(name: str) -> Any:
    files = (
        *("vllm.v1.attention.ops.triton_", "vllm.v1.attention.ops.prefix_prefill", "vllm.utils.math_utils"),
        *("vllm.model_executor.layers.fused_moe.fused_moe", "vllm.model_executor.layers.lightning_attn"),
        *("vllm.model_executor.layers.quantization.awq_triton", "vllm.model_executor.layers.quantization.utils.int8"),
        *("vllm.model_executor.layers.quantization.utils.fp8_utils", "vllm.model_executor.determinism.batch_invariant"),
        *("vllm.model_executor.kernels.linear.mixed_precision.triton_w4a16", "vllm.v1.attention.ops.chunked_prefill"),
        *("vllm.model_executor.layers.quantization.compressed_tensors.triton_scaled_mm", "vllm.lora.ops.triton_ops."),
        *("vllm.model_executor.layers.mamba.ops.", "vllm.model_executor.layers.rotary_embedding.mrope"),
    )
    vllm_platform = {"current_platform": _Platform()}
    given = {
        "vllm.triton_utils": {
            "tl": tl,
            "triton": triton,
            "HAS_TRITON": True,
            "tldevice": libdevice,
            **USES_NO_DESCRIPTOR,
        },
        "vllm.platforms": vllm_platform,
        "vllm.utils.math_utils": {
            "RCP_LN2": 1.4426950408889634,
            "next_power_of_2": triton.next_power_of_2,
            "cdiv": triton.cdiv,
        },
        "vllm.v1.kv_cache_interface": {
            "KVQuantMode": IntEnum("KVQuantMode", KV_MODES, start=0),
            "is_quantized_kv_cache": lambda _: False,
        },
        "vllm.model_executor.layers.fused_moe.utils": {
            "enable_swap_ab": lambda *_: False,
            "resolve_moe_use_td": lambda: False,
        },
        "vllm.model_executor.layers.quantization.utils.quant_utils": {"get_fp8_min_max": lambda: (-448.0, 448.0)},
        "vllm.utils.mem_utils": {"get_max_shared_memory_bytes": lambda *_: 232448},
        "vllm.utils.platform_utils": {"num_compute_units": lambda *_: 132},
        "vllm.v1.attention.backends.utils": {"PAD_SLOT_ID": -1, "NULL_BLOCK_ID": 0},
    }
    part("vllm", "vllm", files, given)
    return importlib.import_module(f"vllm.{name}")


def sglang(name: str) -> Any:
    files = ("sglang.kernels.ops.attention.", "sglang.kernels.ops.moe.", "sglang.kernels.ops.mamba.")
    given = {
        "sglang.srt.utils": {
            "is_cuda": lambda: True,
            **dict.fromkeys(("is_hip", "is_gfx95_supported", "is_gfx1250_supported", "is_musa"), lambda: False),
            "get_device_core_count": lambda *_: 132,
            "ceil_div": triton.cdiv,
            "cached_triton_kernel": lambda *_: lambda kernel: kernel,
        },
    }
    part("sglang", "sglang", (*files, "sglang.kernels.ops.quantization.awq"), given)
    return importlib.import_module(f"sglang.kernels.ops.{name}")


def paged(lengths: list[int], heads: int, width: int, page: int, dtype: torch.dtype = HALF) -> Any:
    """Keys and values of sequences in pages, [page, place, head, feature], that lie in no order; the table of pages of
    each sequence; and the sequences."""
    pages = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(pages) + 3)[: sum(pages)].to(torch.int32)
    k, v = (torch.randn(sum(pages) + 3, page, heads, width).to(dtype) for _ in range(2))
    table, at = torch.zeros(len(lengths), max(pages), dtype=torch.int32), 0
    sequences = []
    for n, length in enumerate(lengths):
        mine = order[at : at + pages[n]].long()
        table[n, : pages[n]], at = mine, at + pages[n]
        sequences.append([x[mine].reshape(-1, heads, width)[:length] for x in (k, v)])
    return k, v, table, sequences


# ---- vLLM: attention -------------------------------------------------------------------------------------------------


def _vllm_decode(heads: int, kv_heads: int) -> Pairs:
    lengths = [70, 33]
    k, v, table, sequences = paged(lengths, kv_heads, 64, 16)
    q, out, lse = torch.randn(2, heads, 64).half(), torch.empty(2, heads, 64).half(), torch.empty(2, heads)
    logits = torch.empty(2, heads, 4, 65)
    decode = vllm("v1.attention.ops.triton_decode_attention").decode_attention_fwd
    decode(q, k, v, out, lse, table, torch.tensor(lengths, dtype=torch.int32), logits, 4, 0.125, page_size=16)
    for n, (keys, values) in enumerate(sequences):
        yield out[n], attend(q[n : n + 1], keys, values)[0]


@case("vllm", 2e-3)
def vllm_paged_decode() -> Pairs:
    yield from _vllm_decode(2, 2)


@case("vllm", 2e-3)
def vllm_paged_decode_grouped() -> Pairs:
    yield from _vllm_decode(8, 2)


def _packed(lengths: list[int], heads: int, kv_heads: int, width: int = 64) -> Any:
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    q = torch.randn(sum(lengths), heads, width).half()
    k, v = (torch.randn(sum(lengths), kv_heads, width).half() for _ in range(2))
    expected = [attend(*(x[s : s + n] for x in (q, k, v))) for s, n in zip(starts.tolist(), lengths)]
    return q, k, v, starts, torch.tensor(lengths), torch.cat(expected)


@case("vllm", 2e-3)
def vllm_prefill() -> Pairs:
    q, k, v, starts, lengths, expected = _packed([40, 90], 4, 2)
    out = torch.empty_like(q)
    vllm("v1.attention.ops.triton_prefill_attention").context_attention_fwd(
        q, k, v, out, starts.int(), lengths.int(), 90
    )
    yield out, expected


@case("vllm", 2e-3)
def vllm_prefix_prefill() -> Pairs:
    """Queries behind a prefix that is in pages."""
    before, news, heads, width, page = [40, 16], [20, 33], 2, 64, 16
    k_pages, v_pages, table, sequences = paged(before, heads, width, page)
    q, k, v, starts, _, _ = _packed(news, 4, heads)
    k_cache = k_pages.reshape(-1, page, heads, width // 8, 8).permute(0, 2, 3, 1, 4).contiguous()
    v_cache = v_pages.permute(0, 2, 3, 1).contiguous()
    total = torch.tensor([a + b for a, b in zip(before, news)], dtype=torch.int32)
    out, one = torch.empty_like(q), torch.ones(1)
    begins = torch.tensor([0, *news]).cumsum(0).int()
    vllm("v1.attention.ops.prefix_prefill").context_attention_fwd(
        *(q, k, v, out, "auto", k_cache, v_cache, table, begins, total, int(total.max()), max(news), one, one)
    )
    for n, (keys, values) in enumerate(sequences):
        mine = slice(int(starts[n]), int(starts[n]) + news[n])
        yield out[mine], attend(q[mine], torch.cat((keys, k[mine])), torch.cat((values, v[mine])))


@case("vllm", 2e-3)
def vllm_unified_attention() -> Pairs:
    """A batch of one decoding sequence and one in prefill, all keys in pages."""
    lengths, news = [50, 40], [1, 24]
    k, v, table, sequences = paged(lengths, 2, 64, 16)
    q = torch.randn(sum(news), 4, 64).half()
    out, begins = torch.empty_like(q), torch.tensor([0, *news]).cumsum(0).int()
    vllm("v1.attention.ops.triton_unified_attention").unified_attention(
        *(q, k, v, out, begins, max(news), torch.tensor(lengths, dtype=torch.int32), max(lengths)),
        *(0.125, True, (-1, -1), table, 0.0, None, None, None),
    )
    for n, (keys, values) in enumerate(sequences):
        mine = slice(int(begins[n]), int(begins[n + 1]))
        yield out[mine], attend(q[mine], keys, values)


@case("vllm", 1e-3)
def vllm_merge_attn_states() -> Pairs:
    a, b = torch.randn(9, 4, 64).half(), torch.randn(9, 4, 64).half()
    la, lb, out = torch.randn(4, 9), torch.randn(4, 9), torch.empty(9, 4, 64).half()
    lse = torch.empty(4, 9)
    vllm("v1.attention.ops.triton_merge_attn_states").merge_attn_states(out, a, la, b, lb, lse)
    yield lse, torch.logaddexp(la, lb)
    x, y = ((each - torch.logaddexp(la, lb)).exp().T[..., None] for each in (la, lb))
    yield out, x * a.float() + y * b.float()


@case("vllm")
def vllm_reshape_and_cache() -> Pairs:
    k, v = torch.randn(7, 2, 64).half(), torch.randn(7, 2, 64).half()
    k_cache, v_cache = torch.zeros(4, 16, 2, 64).half(), torch.zeros(4, 16, 2, 64).half()
    slots, one = torch.randperm(64)[:7], torch.ones(1)
    write = vllm("v1.attention.ops.triton_reshape_and_cache_flash").triton_reshape_and_cache_flash
    write(k, v, k_cache, v_cache, slots, "auto", one, one)
    yield k_cache.reshape(64, 2, 64)[slots], k
    yield v_cache.reshape(64, 2, 64)[slots], v


@case("vllm", 2e-3)
def vllm_lightning_attention() -> Pairs:
    q, k, v = (torch.randn(1, 2, 128, 64) * 0.3 for _ in range(3))
    slopes = torch.tensor([0.1, 0.02])
    state, expected = torch.zeros(1, 2, 64, 64), []
    for t in range(128):
        state = state * (-slopes).exp()[None, :, None, None] + torch.einsum("bhk,bhv->bhkv", k[:, :, t], v[:, :, t])
        expected.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    out, _ = vllm("model_executor.layers.lightning_attn").lightning_attention(q, k, v, slopes)
    yield out, torch.stack(expected, 2)


# ---- vLLM: experts, LoRA, and kernels that give the same bits for every batch ----------------------------------------


def _routed(tokens: int = 24, experts: int = 4, top: int = 2, block: int = 16) -> Any:
    """For each token its experts and their weights; the tokens sorted by expert and filled up to blocks, as the kernels
    want them."""
    weights, ids = torch.randn(tokens, experts).softmax(-1).topk(top)
    flat, order, of = ids.reshape(-1), [], []
    for expert in range(experts):
        mine = (flat == expert).nonzero().reshape(-1).tolist()
        mine += [flat.numel()] * (-len(mine) % block)
        order += mine
        of += [expert] * (len(mine) // block)
    made = [torch.tensor(each, dtype=torch.int32) for each in (order, of, [len(order)])]
    return weights, ids, *made


CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "num_warps": 4}


def _experts(a: torch.Tensor, b: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.einsum("tk,tenk->ten", a.float(), b.float()[ids]) * weights[..., None]


@case("vllm", 1e-3)
def vllm_fused_moe() -> Pairs:
    weights, ids, order, of, filled = _routed()
    a, b, c = torch.randn(24, 64).half(), torch.randn(4, 96, 64).half(), torch.empty(24, 2, 96).half()
    vllm("model_executor.layers.fused_moe.fused_moe").invoke_fused_moe_triton_kernel(
        *(a, b, c, None, None, weights, order, of, filled, True, 2, dict(CONFIG), tl.float16),
        *(False, False, False, False, False),
    )
    yield c, _experts(a, b, ids, weights)


@case("vllm", 1e-3)
def vllm_fused_moe_fp8_blocks() -> Pairs:
    weights, ids, order, of, filled = _routed()
    a, b = torch.randn(24, 128).to(torch.float8_e4m3fn), torch.randn(4, 64, 128).to(torch.float8_e4m3fn)
    a_scale, b_scale, c = torch.rand(24, 4) + 0.5, torch.rand(4, 2, 4) + 0.5, torch.empty(24, 2, 64).half()
    vllm("model_executor.layers.fused_moe.fused_moe").invoke_fused_moe_triton_kernel(
        *(a, b, c, a_scale, b_scale, weights, order, of, filled, True, 2, dict(CONFIG), tl.float16),
        *(True, False, False, False, False, [32, 32]),
    )
    left = a.float() * a_scale.repeat_interleave(32, 1)
    yield c, _experts(left, b.float() * b_scale.repeat_interleave(32, 1).repeat_interleave(32, 2), ids, weights)


@case("vllm", 1e-3)
def vllm_fused_moe_int4() -> Pairs:
    weights, ids, order, of, filled = _routed()
    a, numbers = torch.randn(24, 128).half(), torch.randint(0, 16, (4, 64, 128))
    b = (numbers[..., ::2] | numbers[..., 1::2] << 4).to(torch.uint8)
    scale, c = (torch.rand(4, 64, 2) + 0.5).half(), torch.empty(24, 2, 64).half()
    kernel = vllm("model_executor.layers.fused_moe.fused_moe").fused_moe_kernel_gptq_awq
    grid = (triton.cdiv(len(order), 16) * 2,)
    kernel[grid](
        *(a, b, c, scale, None, weights, order, of, filled, 64, 128, len(order), 48, *a.stride()),
        *(b.stride(0), b.stride(2), b.stride(1), c.stride(1), c.stride(2)),
        *(scale.stride(0), scale.stride(2), scale.stride(1), 0, 0, 0),
        block_k_diviable=True,
        group_size=64,
        MUL_ROUTED_WEIGHT=True,
        top_k=2,
        SPLIT_K=1,
        **{"compute_type": tl.float16, "has_zp": False, "use_int4_w4a16": True, "use_int8_w8a16": False, **CONFIG},
    )
    yield c, _experts(a, (numbers - 8) * scale.float().repeat_interleave(64, 2), ids, weights)


@case("vllm", 1e-3)
def vllm_batch_invariant_matmul() -> Pairs:
    a, b, bias = torch.randn(70, 96).half(), torch.randn(96, 80).half(), torch.randn(80).half()
    module = vllm("model_executor.determinism.batch_invariant")
    yield module.matmul_persistent(a, b, bias), a.float() @ b.float() + bias.float()


@case("vllm")
def vllm_batch_invariant_rows() -> Pairs:
    module, x, w = vllm("model_executor.determinism.batch_invariant"), torch.randn(9, 300), torch.randn(300)
    yield module.log_softmax(x), x.log_softmax(-1)
    yield module.mean_dim(x, 1), x.mean(1)
    yield module.rms_norm_batch_invariant(x, w, 1e-6), rms(x, w)


# ---- SGLang ----------------------------------------------------------------------------------------------------------


def _sglang_decode(heads: int, kv_heads: int) -> Pairs:
    lengths = [70, 33]
    k, v, table, sequences = paged(lengths, kv_heads, 64, 1)
    q, out = torch.randn(2, heads, 64).half(), torch.empty(2, heads, 64).half()
    begins, where = torch.tensor([0, 70, 103], dtype=torch.int32), torch.cat((table[0, :70], table[1, :33]))
    logits, lse = torch.empty(2, heads, 4, 64), torch.empty(2, heads, 4)
    splits = torch.tensor([4, 2], dtype=torch.int32)
    sglang("attention.decode_attention").decode_attention_fwd(
        *(q, k.squeeze(1), v.squeeze(1), out, begins, where, logits, lse, splits, 4, 0.125, 1.0, 1.0)
    )
    for n, (keys, values) in enumerate(sequences):
        yield out[n], attend(q[n : n + 1], keys, values)[0]


@case("sglang", 2e-3)
def sglang_decode() -> Pairs:
    yield from _sglang_decode(2, 2)


@case("sglang", 2e-3)
def sglang_decode_grouped() -> Pairs:
    yield from _sglang_decode(8, 2)


@case("sglang", 2e-3)
def sglang_prefill() -> Pairs:
    q, k, v, starts, lengths, expected = _packed([40, 90], 4, 2)
    out = torch.empty_like(q)
    sglang("attention.prefill_attention").context_attention_fwd(q, k, v, out, starts.int(), lengths.int(), 90)
    yield out, expected


@case("sglang", 2e-3)
def sglang_extend() -> Pairs:
    before, news = [40, 16], [20, 33]
    k_pages, v_pages, table, sequences = paged(before, 2, 64, 1)
    q, k, v, starts, _, _ = _packed(news, 4, 2)
    out = torch.empty_like(q)
    where = torch.cat((table[0, :40], table[1, :16]))
    begins, of_prefix = torch.tensor([0, 20, 53]), torch.tensor([0, 40, 56])
    sglang("attention.extend_attention").extend_attention_fwd(
        *(q, k, v, out, k_pages.squeeze(1), v_pages.squeeze(1), begins.int(), of_prefix.int(), where),
        *(None, True, None, max(news), 1.0, 1.0),
    )
    for n, (keys, values) in enumerate(sequences):
        mine = slice(int(starts[n]), int(starts[n]) + news[n])
        yield out[mine], attend(q[mine], torch.cat((keys, k[mine])), torch.cat((values, v[mine])))


@case("sglang", 1e-3)
def sglang_merge_state() -> Pairs:
    a, b, la, lb = torch.randn(9, 4, 64), torch.randn(9, 4, 64), torch.randn(9, 4), torch.randn(9, 4)
    out, lse = sglang("attention.merge_state").merge_state_triton(a, la, b, lb)
    yield lse, torch.logaddexp(la, lb)
    yield out, (la - lse).exp()[..., None] * a + (lb - lse).exp()[..., None] * b


@case("sglang", 1e-2)
def sglang_silu_and_mul_masked() -> Pairs:
    x, out, rows = torch.randn(3, 8, 256).bfloat16(), torch.zeros(3, 8, 128).bfloat16(), torch.tensor([8, 3, 0])
    sglang("moe.ep_moe_kernels").silu_and_mul_masked_fwd(x, out, rows.int())
    for n in (0, 1):
        gate, up = x[n, : rows[n]].float().chunk(2, -1)
        yield out[n, : rows[n]], (F.silu(gate).bfloat16() * up.bfloat16()).float()


@case("sglang", 1e-3)
def sglang_moe_sum_reduce() -> Pairs:
    x, out = torch.randn(12, 4, 200).half(), torch.empty(12, 200).half()
    sglang("moe.fused_moe_triton_kernels").moe_sum_reduce_triton(x, out, 1.5)
    yield out, 1.5 * x.float().sum(1)
