"""mamba-ssm: the state-space scans of Mamba 1 and 2, and the norms beside them."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.nn import functional as F

from docs.triton_kernels.cases import Pairs, both, case, leaf, part, rms


def mamba(name: str) -> Any:
    part("mamba", "mamba_ssm", ("mamba_ssm.ops.triton.", "mamba_ssm.utils.torch", "mamba_ssm.utils.determinism"), {})
    return importlib.import_module(f"mamba_ssm.ops.triton.{name}")


def ssm(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any = None, dt_bias: Any = None) -> torch.Tensor:
    """The recurrence of Mamba 2, step by step. x [batch, time, heads, features], dt [batch, time, heads], A and D
    [heads], B and C [batch, time, groups, states]."""
    dt = F.softplus(dt + dt_bias)
    more = x.shape[2] // B.shape[2]
    B, C = B.repeat_interleave(more, 2), C.repeat_interleave(more, 2)
    state, out = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[-1]), []
    for t in range(x.shape[1]):
        decay = (dt[:, t] * A).exp()[..., None, None]
        state = state * decay + torch.einsum("bh,bhp,bhn->bhpn", dt[:, t], x[:, t], B[:, t])
        out.append(torch.einsum("bhpn,bhn->bhp", state, C[:, t]) + D[:, None] * x[:, t])
    y = torch.stack(out, 1)
    return y if z is None else y * F.silu(z)


def _inputs(time: int = 40, heads: int = 2, features: int = 16, groups: int = 1, states: int = 16) -> tuple[Any, ...]:
    A = (-torch.rand(heads) - 0.1).requires_grad_()
    return (
        *(leaf(1, time, heads, features), leaf(1, time, heads), A),
        *(leaf(1, time, groups, states), leaf(1, time, groups, states), leaf(heads)),
        *(leaf(1, time, heads, features), leaf(heads)),
    )


@case("mamba", 1e-2)
def mamba_chunk_scan_combined() -> Pairs:
    def kernel(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, bias: Any) -> Any:
        scan = mamba("ssd_combined").mamba_chunk_scan_combined
        return scan(x, dt, A, B, C, 32, D=D, z=z, dt_bias=bias, dt_softplus=True)

    yield from both(kernel, ssm, *_inputs())


@case("mamba", 1e-3)
def mamba_selective_state_update() -> Pairs:
    heads, features, states = 2, 64, 16
    state = torch.randn(3, heads, features, states)
    x, dt, z = (torch.randn(3, heads, features) for _ in range(3))
    A, bias, D = -torch.rand(heads, features, states), torch.rand(heads, features), torch.randn(heads, features)
    B, C = torch.randn(3, 1, states), torch.randn(3, 1, states)
    step = F.softplus(dt + bias)
    after = state * (step[..., None] * A).exp() + (step * x)[..., None] * B[:, :, None]
    expected = ((after * C[:, :, None]).sum(-1) + D * x) * F.silu(z)
    update = mamba("selective_state_update").selective_state_update
    yield update(state, x, dt, A, B, C, D, z=z, dt_bias=bias, dt_softplus=True), expected
    yield state, after


@case("mamba", 1e-3)
def mamba_chunk_cumsum() -> Pairs:
    dt, A, bias = torch.randn(1, 64, 3), -torch.rand(3), torch.rand(3)
    sums, steps = mamba("ssd_chunk_state")._chunk_cumsum_fwd(dt, A, 32, dt_bias=bias, dt_softplus=True)
    expected = F.softplus(dt + bias).reshape(1, 2, 32, 3).permute(0, 3, 1, 2)
    yield steps, expected
    yield sums, (expected * A[:, None, None]).cumsum(-1)


@case("mamba", 2e-3)
def mamba_bmm_chunk() -> Pairs:
    a, b = torch.randn(1, 64, 2, 32), torch.randn(1, 64, 2, 32)
    expected = torch.einsum("bcigk,bcjgk->bcgij", a.reshape(1, 2, 32, 2, 32), b.reshape(1, 2, 32, 2, 32))
    yield mamba("ssd_bmm")._bmm_chunk_fwd(a, b, 32), expected


@case("mamba", 1e-4)
def mamba_state_passing() -> Pairs:
    def reference(states: Any, decay: Any) -> Any:
        now, out = torch.zeros_like(states[:, 0]), []
        for t in range(states.shape[1]):
            out.append(now)
            now = decay[:, :, t].exp()[..., None] * now + states[:, t]
        return torch.stack(out, 1), now

    states, decay = leaf(1, 4, 2, 48), (-torch.rand(1, 2, 4)).requires_grad_()
    yield from both(mamba("ssd_state_passing").state_passing, reference, states, decay)


@case("mamba")
def mamba_layernorm_gated() -> Pairs:
    yield from both(
        lambda x, w, z: mamba("layernorm_gated").rmsnorm_fn(x, w, None, z=z, eps=1e-6, norm_before_gate=False),
        lambda x, w, z: rms(x * F.silu(z), w),
        *(leaf(9, 128), leaf(128), leaf(9, 128)),
    )


@case("mamba")
def mamba_layer_norm() -> Pairs:
    yield from both(
        lambda x, w, b, r: mamba("layer_norm").layer_norm_fn(x, w, b, residual=r, eps=1e-5, prenorm=True),
        lambda x, w, b, r: (F.layer_norm(x + r, (200,), w, b, 1e-5), x + r),
        *(leaf(9, 200), leaf(200), leaf(200), leaf(9, 200)),
    )


@case("mamba")
def mamba_swiglu() -> Pairs:
    def reference(xy: Any) -> Any:
        return F.silu(xy.chunk(2, -1)[0]) * xy.chunk(2, -1)[1]

    yield from both(mamba("k_activations").swiglu, reference, leaf(7, 200))
