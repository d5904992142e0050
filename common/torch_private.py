"""The private functions of torch that the project uses, each with a public function as a fallback.

They save 3 to 4 of the 13 to 20 µs that a call costs the host. A release of torch that lacks one is slower, not broken;
tests/test_torch_private.py says so when that day comes. No other file uses a private name of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Allocate = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]  # of size, strides, dtype


def _private(path: str) -> Any:
    """torch.PATH; None if this torch lacks it, as a build without CUDA lacks what concerns GPUs."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


@lru_cache
def empty_strided(device_type: str) -> Allocate:
    """torch.empty_strided on the current device of a type, "cuda" or "cpu", at a third of its cost to the host."""

    def public(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device_type)

    return _private(f"_C._dynamo.guards._empty_strided_{device_type}") or public


def _current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def _is_transformed(tensor: Tensor) -> bool:
    if type(tensor) is not Tensor or tensor.layout != torch.strided:
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:
        return True
    return False


def dual_level() -> int:
    """How many levels of forward-mode differentiation are open, less one. Without it: there may always be one."""
    level: int = getattr(forward_ad, "_current_level", 0)
    return level


LIBRARIES: list[object] = []  # registrations, which last as long as these


def before_autograd(operator: Any, check: Callable[..., None]) -> None:
    """Call `check` with the arguments of each call of an operator, as autograd sees them: below it, where an operator's
    function runs, tensors have lost their tangents. Without it nothing is checked there."""
    below, keys = _private("_C._AutoDispatchBelowAutograd"), _private("_C._after_autograd_keyset")
    if below is None or keys is None:
        return

    def autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        with below():
            return operator.redispatch(keyset & keys, *args, **kwargs)

    namespace, name = operator.name().split("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    for device in ("CPU", "CUDA", "Meta"):
        library.impl(name, autograd, f"Autograd{device}", with_keyset=True)
    LIBRARIES.append(library)


def outside_graphs(call: Callable[..., Any], *args: Any) -> Any:
    """A call that torch.compile leaves out of its graphs."""
    return torch.compiler.disable(call)(*args)


is_compiling = torch.compiler.is_compiling
# The index of the current GPU.
current_device: Callable[[], int] = _private("_C._cuda_getDevice") or torch.cuda.current_device
# The handle of the current stream of a GPU, by its index. The public function makes an object for each call.
current_stream: Callable[[int], int] = _private("_C._cuda_getCurrentRawStream") or _current_stream
# How many dispatch modes, such as that of fake tensors, want to see operators. Without it: there may always be one.
dispatch_modes: Callable[[], int] = _private("_C._len_torch_dispatch_stack") or (lambda: 1)
# The same, of those that there are for certain.
known_modes: Callable[[], int] = _private("_C._len_torch_dispatch_stack") or (lambda: 0)
# Whether a tensor is inside a vmap, grad or jvp of torch.func, and so has no memory of its own.
is_transformed: Callable[[Tensor], bool] = _private("_C._functorch.is_functorch_wrapped_tensor") or _is_transformed
