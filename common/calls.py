"""What the calls of stages and of functions such as `attention` share: plans by their kind, and checks of tensors.

A check names its `owner`, the function that was called. torch is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cudaemu.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 4096  # kinds of calls
Result = TypeVar("Result")
Values = tuple[Any, ...]  # the arguments of a call that are no tensors
Kind = tuple[object, ...]  # of a call: what a plan may depend on
Plan = Callable[[Sequence[Any], Sequence[int]], Result]  # is called with the tensors and their addresses


class Plans(dict[Kind, Plan[Result]]):
    """A function whose calls are worked out once for each kind: a plan is kept, and serves all calls of its kind.

    The kind is what a plan may depend on. Of each tensor: dtype, device, shape, strides, how far from a multiple of
    `alignment` bytes it begins, whether it has memory and is a lazily negated view. Of each other argument: its value
    and its type, for True equals 1 and 1.0, and need not be taken where they are.

    `prepare(tensors, values)` checks the arguments and returns the plan. What it refuses is not kept, so a call whose
    plan is found needs no check. When there are KEPT plans, all are dropped."""

    def __init__(self, prepare: Callable[[Sequence[Any], Values], Plan[Result]], alignment: int):
        super().__init__()
        self.prepare, self.alignment = prepare, alignment

    def call(self, tensors: Sequence[Tensor | None], values: Values = ()) -> Result:
        alignment, addresses, kind = self.alignment, [], [*values, *map(type, values)]
        try:
            for each in tensors:
                if each is None:
                    addresses.append(0)
                    kind.append(None)
                    continue
                address = each.data_ptr()
                begins = address % alignment if address else None
                addresses.append(address)
                kind.append((each.dtype, each.device, each.shape, each.stride(), begins, each.is_neg()))
            plan = self[tuple(kind)]
        except KeyError:
            plan = self.prepare(tensors, values)
            if len(self) >= KEPT:
                self.clear()
            self[tuple(kind)] = plan
        except (AttributeError, RuntimeError, TypeError):
            self.prepare(tensors, values)  # which says what has no address, or cannot be compared
            raise
        return plan(tensors, addresses)


def check_tensors(owner: str, tensors: Mapping[str, object]) -> None:
    """UserError unless all are dense torch tensors. torch.compile can trace it, and `check_grad`."""
    import torch

    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise UserError(f"{owner}: {name} must be a torch tensor, got {type(tensor).__name__}")
        if tensor.is_nested:
            raise UserError(f"{owner}: {name} must be a dense tensor, got a nested one")
        if tensor.layout != torch.strided:
            raise UserError(f"{owner}: {name} must be a dense tensor, got the layout {tensor.layout}")


def check_memory(owner: str, tensors: Mapping[str, Tensor]) -> None:
    """UserError if one has elements but no memory: its storage was emptied, or it has none, like a fake tensor."""
    import torch

    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or not tensor.numel():
            continue
        try:
            missing = not tensor.data_ptr()
        except RuntimeError:
            missing = True
        if missing:
            plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
            what = "one whose storage has been emptied" if plain else f"a {type(tensor).__name__}"
            raise UserError(f"{owner}: {name} must be a tensor with memory, got {what}")


def check_grad(owner: str, tensors: Mapping[str, Tensor]) -> None:
    """UserError if autograd would record the call, or forward-mode differentiation would go through it: there is no
    derivative."""
    import torch
    from torch.autograd import forward_ad

    for name, tensor in tensors.items():
        # What torch.compile traces has tangents of its own; they are seen when the operator is called.
        if not torch.compiler.is_compiling() and forward_ad.unpack_dual(tensor, level=0).tangent is not None:
            raise UserError(
                f"{owner} has no forward-mode derivative, and {name} has a tangent: pass {name} without it, "
                f"torch.autograd.forward_ad.unpack_dual({name}).primal"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise UserError(
                f"{owner} has no backward, and {name} requires grad: pass {name}.detach(), or call it under "
                "torch.no_grad()"
            )


def check_places(owner: str, tensors: Mapping[str, Tensor], device_types: Sequence[str]) -> None:
    """UserError unless all are on one device, of one of these types, and outside torch.func's transforms."""
    from common import torch_private

    first, *_ = tensors
    device = tensors[first].device
    for name, tensor in tensors.items():
        if torch_private.is_transformed(tensor):
            raise UserError(
                f"{owner} has no rule for torch.func: {name} must be a plain tensor, got one inside a vmap, grad, jvp "
                "or functionalize"
            )
        if tensor.device.type not in device_types:
            raise UserError(f"{owner}: {name} must be a CUDA or CPU tensor, got one on {tensor.device}")
        if tensor.device != device:
            raise UserError(f"{owner}: {name} must be on {first}'s device, {device}; got one on {tensor.device}")
