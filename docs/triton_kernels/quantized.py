"""Products of quantized numbers: AWQ and GPTQ's four bits, FP8 and INT8 with scales for blocks, NF4."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import triton

from docs.triton_kernels.cases import Pairs, case, file, part
from docs.triton_kernels.serving import sglang, vllm

FP8 = torch.float8_e4m3fn
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each of eight numbers in a word


def packed(numbers: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight numbers of four bits, side by side, in each 32-bit word."""
    words = numbers.reshape(numbers.shape[0], -1, 8).long()
    made = sum(words[..., n] << 4 * order[n] for n in range(8))
    return torch.as_tensor(made).to(torch.int64).bitwise_and(0xFFFFFFFF).to(torch.uint32).view(torch.int32)


def _four_bits(order: tuple[int, ...]) -> Any:
    """Weights [128, 64] in groups of 64 rows: packed, zeros packed, scales; and what they stand for."""
    numbers, zeros = torch.randint(0, 16, (128, 64)), torch.randint(0, 16, (2, 64))
    scales = (torch.rand(2, 64) + 0.5).half()
    whole = (numbers - zeros.repeat_interleave(64, 0)) * scales.float().repeat_interleave(64, 0)
    return packed(numbers, order), packed(zeros, order), scales, whole


@case("vllm", 1e-3)
def vllm_awq_dequantize() -> Pairs:
    words, zeros, scales, whole = _four_bits(AWQ_ORDER)
    yield vllm("model_executor.layers.quantization.awq_triton").awq_dequantize_triton(words, scales, zeros), whole


@case("vllm", 1e-3)
def vllm_awq_gemm() -> Pairs:
    words, zeros, scales, whole = _four_bits(AWQ_ORDER)
    x = torch.randn(20, 128).half()
    product = vllm("model_executor.layers.quantization.awq_triton").awq_gemm_triton
    yield product(x, words, scales, zeros, 2), x.float() @ whole


@case("sglang", 1e-3)
def sglang_awq_dequantize() -> Pairs:
    words, zeros, scales, whole = _four_bits(AWQ_ORDER)
    yield sglang("quantization.awq_triton").awq_dequantize_triton(words, scales, zeros), whole


@case("vllm", 1e-3)
def vllm_gptq_w4a16_gemm() -> Pairs:
    words, zeros, scales, whole = _four_bits(tuple(range(8)))
    x = torch.randn(20, 128).half()
    product = vllm("model_executor.kernels.linear.mixed_precision.triton_w4a16")._triton_w4a16_gemm_impl
    yield product(x, words, scales, zeros, 64), x.float() @ whole


@case("vllm", 1e-3)
def vllm_scaled_mm_int8() -> Pairs:
    a = torch.randint(-128, 128, (40, 96)).to(torch.int8)
    b = torch.randint(-128, 128, (64, 96)).to(torch.int8).T
    left, right = torch.rand(40, 1) / 100, torch.rand(64, 1) / 100
    product = vllm("model_executor.layers.quantization.compressed_tensors.triton_scaled_mm").triton_scaled_mm
    yield product(a, b, left, right, torch.float16), left * (a.float() @ b.float()) * right.T


@case("vllm", 1e-3)
def vllm_scaled_mm_fp8() -> Pairs:
    a, b = torch.randn(40, 96).to(FP8), torch.randn(64, 96).to(FP8).T
    left, right, bias = torch.rand(40, 1), torch.rand(64, 1), torch.randn(64).half()
    product = vllm("model_executor.layers.quantization.compressed_tensors.triton_scaled_mm").triton_scaled_mm
    expected = left * (a.float() @ b.float()) * right.T + bias.float()
    yield product(a, b, left, right, torch.float16, bias), expected


@case("vllm", 1e-3)
def vllm_block_fp8_matmul() -> Pairs:
    a, b = torch.randn(20, 256).to(FP8), torch.randn(128, 256).to(FP8)
    left, right = torch.rand(20, 2) + 0.5, torch.rand(1, 2) + 0.5
    product = vllm("model_executor.layers.quantization.utils.fp8_utils").w8a8_triton_block_scaled_mm
    expected = (a.float() * left.repeat_interleave(128, 1)) @ (b.float() * right.repeat_interleave(128, 1)).T
    yield product(a, b, left, right, [128, 128], torch.float16), expected


@case("vllm", 1e-2)
def vllm_per_token_quant_int8() -> Pairs:
    x = torch.randn(9, 300)
    q, scale = vllm("model_executor.layers.quantization.utils.int8_utils").per_token_quant_int8(x)
    yield scale, x.abs().amax(-1, keepdim=True) / 127
    yield q, (x / scale).round()


@case("deepseek")
def deepseek_act_quant() -> Pairs:
    x = torch.randn(8, 256)
    y, scale = file("deepseek", "inference/kernel.py").act_quant(x)
    expected = x.reshape(8, 2, 128).abs().amax(-1) / 448
    yield scale, expected
    yield y.float(), (x / expected.repeat_interleave(128, 1)).to(FP8).float()


@case("deepseek")
def deepseek_weight_dequant() -> Pairs:
    x, scale = torch.randn(160, 256).to(FP8), torch.rand(2, 2)
    expected = x.float() * scale.repeat_interleave(128, 0)[:160].repeat_interleave(128, 1)
    before = torch.get_default_dtype()
    yield file("deepseek", "inference/kernel.py").weight_dequant(x, scale).to(before), expected


@case("deepseek", 1e-3)
def deepseek_fp8_gemm() -> Pairs:
    a, b = torch.randn(20, 256).to(FP8), torch.randn(128, 256).to(FP8)
    left, right = torch.rand(20, 2) + 0.5, torch.rand(1, 2) + 0.5
    expected = (a.float() * left.repeat_interleave(128, 1)) @ (b.float() * right.repeat_interleave(128, 1)).T
    yield file("deepseek", "inference/kernel.py").fp8_gemm(a, left, b, right), expected


def torchao(name: str) -> Any:
    given = {"torchao.float8.config": {"e4m3_dtype": FP8}}
    part("torchao", "torchao", ("torchao.prototype.", "torchao.kernel.blockwise"), given)
    return importlib.import_module(f"torchao.{name}")


@case("torchao", 1e-3)
def torchao_int8_mm() -> Pairs:
    a = torch.randint(-128, 128, (40, 96)).to(torch.int8)
    b = torch.randint(-128, 128, (96, 64)).to(torch.int8)
    left, right = torch.rand(40) / 100, torch.rand(64) / 100
    product = torchao("prototype.quantized_training.int8_mm").scaled_int8_mm_cuda
    yield product(a, b, left, right), left[:, None] * (a.float() @ b.float()) * right


@case("torchao", 1e-3)
def torchao_hqq_mixed_mm() -> Pairs:
    """Four-bit weights, two in a byte. N must be a multiple of the tile: scales are read without a mask."""
    numbers = torch.randint(0, 16, (256, 128))  # [N, K]
    a, scales, zeros = torch.randn(32, 128).half(), torch.rand(256, 2).half(), torch.randint(0, 16, (256, 2)).half()
    each = (numbers - zeros.float().repeat_interleave(64, 1)) * scales.float().repeat_interleave(64, 1)
    module = torchao("prototype.hqq.mixed_mm")
    bytes_ = module.pack_2xint4(numbers.T.contiguous().to(torch.uint8))
    made = module.triton_mixed_mm(a, bytes_, scales.T, zeros.T, 64, kernel_type="compute_bound")
    yield made, a.float() @ each.T


@case("torchao", 1e-3)
def torchao_blockwise_fp8_gemm() -> Pairs:
    module = torchao("prototype.blockwise_fp8_training.kernels")
    a, b = torch.randn(128, 256).to(FP8), torch.randn(128, 256).to(FP8).T
    left, right = (torch.rand(2, 128) + 0.5).T, (torch.rand(1, 2) + 0.5).T
    expected = (a.float() * left.repeat_interleave(128, 1)) @ (b.float() * right.repeat_interleave(128, 0))
    kernel, out = module.triton_fp8_gemm_1x128_128x128_kernel, torch.empty(128, 128)

    def grid(meta: Any) -> Any:
        return triton.cdiv(128, meta["BLOCK_SIZE_M"]), triton.cdiv(128, meta["BLOCK_SIZE_N"])

    strided = (each for tensor in (a, b, out, left, right) for each in (tensor, *tensor.stride()))
    kernel[grid](*strided, 128, 128, 256, out_dtype=torch.float32, BLOCK_SIZE_K=128)
    yield out, expected


def bitsandbytes(name: str) -> Any:
    part("bitsandbytes", "bitsandbytes", ("bitsandbytes.backends.triton.kernels",), {})
    return importlib.import_module(f"bitsandbytes.backends.triton.{name}")


NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


@case("bitsandbytes")
def bitsandbytes_nf4() -> Pairs:
    module, x = bitsandbytes("kernels_4bit"), torch.randn(4, 256)
    most, out = torch.empty(16), torch.empty(512, 1, dtype=torch.uint8)
    module.quantize_4bit_blockwise_triton(x, 64, "nf4", 8, most, 1024, out)
    blocks, code = x.reshape(16, 64), torch.tensor(NF4)
    yield most, blocks.abs().amax(1)
    nearest = (blocks / most[:, None])[..., None].sub(code).abs().argmin(-1).reshape(-1, 2)
    yield out.reshape(-1), nearest[:, 0] << 4 | nearest[:, 1]
    back = torch.empty(4, 256)
    module.dequantize_4bit_impl(out, most, 64, "nf4", torch.float32, back)
    yield back, (code[nearest].reshape(16, 64) * most[:, None]).reshape(4, 256)


@case("bitsandbytes")
def bitsandbytes_8_bits() -> Pairs:
    module, x, code = bitsandbytes("kernels_8bit_quant"), torch.randn(1024), torch.linspace(-1, 1, 256)
    out, most = module.quantize_blockwise_triton(x, code, 256)
    scaled = x.reshape(4, 256) / most[:, None]
    yield most, x.reshape(4, 256).abs().amax(1)
    nearest = scaled[..., None].sub(code).abs().argmin(-1)
    yield code[out.long()].reshape(4, 256), code[nearest]
    back = module.dequant_8bit_blockwise(out, most, code, 256, torch.float32)
    yield back, (code[out.long()].reshape(4, 256) * most[:, None]).reshape(-1)
