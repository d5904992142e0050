"""The attention of the course in Triton: online softmax over tiles of keys, P in registers, a causal mask if asked for.

    cudaemu triton examples/triton/attention.py --lines    in the emulator; on a GPU with a plain python

notebooks/t2_triton_attention.ipynb reads it.
"""

from __future__ import annotations

import itertools
import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def tile_of(X, head, first, N, ROWS: tl.constexpr, D: tl.constexpr, TMA: tl.constexpr):
    """ROWS × D of a head from row `first` on, zeros where it ends: by a tensor descriptor, or by pointers."""
    if TMA:
        x = X.load([head, first, 0]).reshape(ROWS, D)
    else:
        row = first + tl.arange(0, ROWS)[:, None]
        x = tl.load(X + (head * N + row) * D + tl.arange(0, D)[None, :], mask=row < N, other=0.0)
    return x


@triton.jit
def attend(
    o, total, m, q, K, V, head, rows, first, last, N, scale_log2, D: tl.constexpr, BLOCK_KV: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """The tiles of keys from `first` to `last`: O, the sum of weights and the maximum m of each row, after them."""
    for key in tl.range(first, last, BLOCK_KV, num_stages=STAGES):
        # 2. The scores of this tile, in base 2. What a query must not see is -inf.
        k = tile_of(K, head, key, N, BLOCK_KV, D, TMA)
        s = tl.dot(q, k.T) * scale_log2
        if MASKED:
            keys = key + tl.arange(0, BLOCK_KV)[None, :]
            seen = keys < N
            if CAUSAL:
                seen = seen & (keys <= rows)
            s = tl.where(seen, s, -float("inf"))
        # 3. Online softmax: the maximum may have grown; then what was added up so far counts less.
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        less = tl.exp2(m - new)
        total = total * less + tl.sum(p, 1)
        m = new
        # 4. O += P · V
        v = tile_of(V, head, key, N, BLOCK_KV, D, TMA)
        o = tl.dot(p.to(v.dtype), v, o * less[:, None])
    return o, total, m


@triton.jit
def attention_kernel(
    Q, K, V, Out, N, scale_log2, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr,
    CAUSAL: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """O = softmax(Q · Kᵀ · scale) · V of each head, all [heads, N, D]: one tile of queries of one head per program."""
    # 1. My queries, and nothing seen so far.
    tile, head = tl.program_id(0), tl.program_id(1)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)[:, None]
    q = tile_of(Q, head, tile * BLOCK_Q, N, BLOCK_Q, D, TMA)
    o = tl.zeros((BLOCK_Q, D), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    m = tl.full((BLOCK_Q,), -float("inf"), tl.float32)
    # Whole tiles of keys that all my queries see; then those that need a mask.
    end, whole = N, N // BLOCK_KV * BLOCK_KV
    if CAUSAL:
        end = tl.minimum(N, (tile + 1) * BLOCK_Q)
        whole = tl.minimum(whole, tile * BLOCK_Q // BLOCK_KV * BLOCK_KV)
    o, total, m = attend(
        o, total, m, q, K, V, head, rows, 0, whole, N, scale_log2, D, BLOCK_KV, CAUSAL, False, STAGES, TMA
    )
    o, total, m = attend(
        o, total, m, q, K, V, head, rows, whole, end, N, scale_log2, D, BLOCK_KV, CAUSAL, True, STAGES, TMA
    )
    # 5. Divide, round and store.
    o = (o / total[:, None]).to(q.dtype)
    if TMA:
        Out.store([head, tile * BLOCK_Q, 0], o.reshape(1, BLOCK_Q, D))
    else:
        tl.store(Out + (head * N + rows) * D + tl.arange(0, D)[None, :], o, mask=rows < N)


def attention(q, k, v, o, block_q=128, block_kv=64, causal=False, stages=2, warps=4, tma=False):
    """Launch it on contiguous [B, H, N, D]: o is written. What Triton compiled is returned."""
    batch, heads, n, d = q.shape
    tensors = [q, k, v, o]
    if tma:
        tiles = ([1, rows, d] for rows in (block_q, block_kv, block_kv, block_q))
        tensors = [TensorDescriptor.from_tensor(x.view(-1, n, d), tile) for x, tile in zip(tensors, tiles)]
    grid = (triton.cdiv(n, block_q), batch * heads)
    sizes = {"D": d, "BLOCK_Q": block_q, "BLOCK_KV": block_kv, "CAUSAL": causal, "STAGES": stages, "TMA": tma}
    return attention_kernel[grid](*tensors, n, d**-0.5 * math.log2(math.e), **sizes, num_warps=warps)


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for n, causal, tma in itertools.product((256, 200), (False, True), (False, True)):
        q, k, v = (torch.randn(1, 2, n, 64, device=device).half() for _ in range(3))
        o = torch.full_like(q, torch.nan)
        attention(q, k, v, o, causal=causal, tma=tma)
        exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
        off = (o.double() - exact).norm() / exact.norm()
        print(f"N = {n}{', causal' * causal}{', descriptors' * tma}: relative error {float(off):.1e}")
        assert off < 1e-3
