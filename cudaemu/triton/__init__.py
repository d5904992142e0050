"""Triton's kernels on the emulator: `import cudaemu.triton`, and the CPU is the GPU.

From then on Triton compiles for the emulated GPU, and `kernel[grid](...)` runs on CPU tensors, with counters and the
sanitizer. A device "cuda" is the CPU (torch_cuda.py). `reports` has a `Report` for each launch, `report()` one of all
of them. `use(arch="8.0")` chooses another GPU, `use(sanitize=False)` other options, and `stop()` gives Triton and torch
back what they had. `torch.utils.cpp_extension` compiles extensions for the emulator, too (torch_extensions.py).

The command `cudaemu triton script.py` runs a script that knows nothing of this; so does the environment variable
TRITON_DEFAULT_BACKEND=cudaemu (cudaemu/triton_backend).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.utils.cpp_extension
import triton
import triton.testing
from triton._C.libtriton import nvidia
from triton.backends import backends
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.driver import driver as triton_driver
from triton.runtime.jit import JITFunction

from cudaemu import torch_cuda, torch_extensions
from cudaemu.errors import UserError
from cudaemu.options import COMPILING, Options
from cudaemu.report import Report, joined
from cudaemu.terminal import say

try:
    from cudaemu.triton.driver import Backend, Device, Driver
except ImportError as error:  # of names that older Tritons do not have
    raise UserError(
        f"Triton must be 3.9 or newer, got {triton.__version__}. PyTorch's builds for CUDA ask for an older one, its "
        "build for the CPU for none: pip install torch --index-url https://download.pytorch.org/whl/cpu"
    ) from error

__all__ = ["clear", "report", "reports", "stop", "use"]

DEFAULTS = Options(arch="9.0")
SETTLED = tuple(name for name in COMPILING if name != "arch")  # options that Triton's kernels do not have

reports: list[Report] = []  # of each launch, in order
_active: list[_Activation] = []


class _Activation:
    """What was put into Triton's place, and what has to be put back."""

    def __init__(self, options: Options, tune: str) -> None:
        self.options, self.tune = options, tune
        self.before: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        self.device = Device(self.options, torch_cuda.start(self.options.gpu), reports)
        self.nvidia = backends["nvidia"]
        backends["nvidia"] = type(self.nvidia)(Backend, Driver)
        self.driver = triton_driver._active
        triton_driver.set_active(Driver(self.device))
        self._put(Autotuner, "prune_configs", self._chooser(Autotuner.prune_configs))
        self._put(triton.testing, "do_bench", _once)
        self._put(triton.testing, "do_bench_cudagraph", _once)
        self._put(triton.testing.Mark, "run", _no_benchmark)
        self._put(nvidia.cublas, "CublasLt", _Blas)
        self._put(torch.utils.cpp_extension, "load", torch_extensions.load)
        self._put(torch.utils.cpp_extension, "load_inline", torch_extensions.load_inline)
        self._put(torch_extensions, "options", self.device.options)
        self._put(torch_extensions, "reports", reports)
        _forget_kernels()

    def stop(self) -> None:
        _forget_kernels()  # the driver unloads them
        for owner, name, value in reversed(self.before):
            setattr(owner, name, value)
        triton_driver._active = self.driver
        backends["nvidia"] = self.nvidia

    def _put(self, owner: Any, name: str, value: Any) -> None:
        self.before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _chooser(self, before: Any) -> Any:
        """Autotuning: of the configurations, the first one that compiles and fits the GPU."""

        def prune(tuner: Autotuner, kwargs: dict[str, Any]) -> list[Config]:
            configs = list(before(tuner, kwargs))
            if len(configs) < 2 or self.tune == "all":
                return configs
            for number, config in enumerate(configs, 1):
                if self._fits(tuner, config, kwargs):
                    which = f"configuration {number} of {len(configs)}, the first that fits"
                    say(f"cudaemu: {tuner.base_fn.__name__} is not tuned here, but run in {which}: {config}")
                    return [config]
            return configs

        return prune

    def _fits(self, tuner: Autotuner, config: Config, kwargs: dict[str, Any]) -> bool:
        from triton.compiler.errors import CompileTimeAssertionFailure
        from triton.runtime.errors import OutOfResources

        named = {**kwargs, **config.all_kwargs()}
        if config.pre_hook is not None:
            config.pre_hook({**tuner.nargs, **named})
        self.device.dry = True
        try:
            tuner.fn.run(*tuner.nargs.values(), **named)
        except (OutOfResources, CompileTimeAssertionFailure):
            return False
        finally:
            self.device.dry = False
        return True


class _Blas:
    """Triton's own door to cuBLAS, which its tutorials compare with."""

    def __init__(self, _workspace: Any) -> None: ...

    def matmul(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """c = a @ b.T"""
        c.copy_(a.float() @ b.float().T)


def _forget_kernels() -> None:
    """Kernels that were compiled for another device, or would be launched on one, and how much shared memory it has."""
    from triton.compiler.compiler import max_shared_mem
    from triton.runtime.jit import _triton_jit_function_registry

    max_shared_mem.cache_clear()
    for function in list(_triton_jit_function_registry.values()):
        if isinstance(function, JITFunction):
            function.device_caches.clear()


def _once(fn: Any, *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any) -> Any:
    """do_bench: run it once. There are no times here."""
    fn()
    return [np.nan] * len(quantiles) if quantiles is not None else [np.nan] if return_mode == "all" else np.nan


def _no_benchmark(mark: Any, *_: Any, **__: Any) -> None:
    """Mark.run of triton.testing.perf_report."""
    say(f"cudaemu: the benchmark {mark.fn.__name__} is left out: the emulator has no times")


def use(tune: str = "first", **options: Any) -> None:
    """Make the emulator Triton's device, or change how it runs kernels.

    `arch`: the compute capability (default: "9.0", an H100 with all that is its own). The other options are those of
    `cudaemu.Options` that concern a run: `sanitize`, `counters`, `threads`, `multiprocessors`, `on_finding`, ...
    `tune`: "first": a kernel with `triton.autotune` is run in the first of its configurations that compiles and fits;
    "all": in each of them, and then once more in the first. UserError for an option that is none or that concerns
    compiling."""
    for name in SETTLED:
        if name in options:
            raise UserError(f"{name} is an option for CUDA sources, and Triton compiles kernels by itself")
    if tune not in ("first", "all"):
        raise UserError(f"tune must be 'first' or 'all', got {tune!r}")
    made = _Activation(DEFAULTS.replace(**options), tune)
    _end()
    _active.append(made)
    made.start()


def stop() -> None:
    """Give Triton and torch back what they had before."""
    _end()
    torch_cuda.stop()


def _end() -> None:
    while _active:
        _active.pop().stop()


def report() -> Report:
    """One report of all launches so far."""
    return joined(reports)


def clear() -> None:
    """Forget all reports: the next one begins here."""
    reports.clear()


if os.environ.get("TRITON_DEFAULT_BACKEND") == "cudaemu":
    triton_driver.active  # noqa: B018  # Triton's own way to the emulator: cudaemu/triton_backend
else:
    use()
