"""The emulator as Triton's device: what Triton asks its driver for.

Triton compiles a kernel without a GPU, up to PTX, and asks an object, its *driver*, for all that concerns the device:
its properties, how to load a kernel, how to launch one. `Backend` is Triton's own compiler for NVIDIA without its last
step, ptxas; `Launcher` runs a kernel on the memory of CPU tensors, where it is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase, decompose_descriptor, expand_signature, wrap_handle_tensordesc_impl
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import _allocation

from cudaemu import terminal
from cudaemu.calls import session_of
from cudaemu.errors import CheckFailed, UserError
from cudaemu.hardware import Gpu
from cudaemu.kernel import Configuration
from cudaemu.memory import Allocation
from cudaemu.options import Options
from cudaemu.report import Report
from cudaemu.session import MAX_BLOCK, MAX_GRID, Session, dimension
from cudaemu.torch_cuda import GPU, Cuda, allocation

MOST_ADDRESSES = 1 << 16  # of a tensor of 64-bit numbers, which may be addresses of tensors
MAP_ALIGNMENT = 64

_FLOATS = {"fp16": "<e", "fp32": "<f", "f32": "<f", "fp64": "<d"}


class Backend(CUDABackend):  # type: ignore[misc]
    """Triton's compiler without ptxas: what it calls a cubin is the PTX."""

    def add_stages(self, stages: dict[str, Any], options: Any, language: Any) -> None:
        super().add_stages(stages, options, language)
        stages["cubin"] = lambda ptx, _metadata: ptx.encode()

    def hash(self) -> str:
        return f"cudaemu-{super().hash()}"


@dataclass
class Loaded:
    """A kernel's PTX."""

    name: str
    ptx: str


@dataclass(frozen=True)
class TensorMap:
    """What cuTensorMapEncodeTiled makes (vm/tensor_map.h), and the tensor that it describes."""

    data: bytes
    base: Any = None


class Utilities:
    """The driver's functions."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def get_device_properties(self, _device: int = 0) -> dict[str, int]:
        return {
            "max_shared_mem": self.gpu.shared_per_block,
            "max_num_regs": self.gpu.registers,
            "multiprocessor_count": self.gpu.sms,
            "warpSize": 32,
            "sm_clock_rate": 1_000_000,  # kHz: of nothing in particular
            "mem_clock_rate": 1_000_000,
            "mem_bus_width": 1024,
        }

    def load_binary(self, name: str, kernel: bytes, shared: int, _device: int) -> tuple[Loaded, Loaded, int, int, int]:
        """The module, the function, and what ptxas would say, which is not asked: registers (the most that there
        are), spills, the most threads of a block."""
        made = Loaded(name, at_python_lines(kernel.decode()))
        return made, made, self.gpu.registers_per_thread, 0, self.gpu.threads_per_block

    def unload_module(self, _module: Loaded) -> None: ...

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, _device: int) -> None: ...

    def get_default_stream(self, _device: int = 0) -> int:
        return 0

    def is_stream_capturing(self, _stream: int) -> bool:
        return False

    def get_device_capability(self, _device: int = 0) -> tuple[int, int]:
        return self.gpu.arch.major, self.gpu.arch.minor

    def set_printf_fifo_size(self, _size: int) -> None: ...

    def cuOccupancyMaxActiveClusters(self, _function: Loaded, _shared: int, cluster: int) -> int:  # noqa: N802
        return self.gpu.sms // cluster

    def fill_tma_descriptor_tiled(
        self,
        address: int,
        swizzle: int,
        element_size: int,
        element_type: int,
        box: Sequence[int],
        shape: Sequence[int],
        strides: Sequence[int],
        padding: int,
    ) -> TensorMap:
        """A tensor map; sizes and strides, in elements, with the fastest dimension last."""
        rank = len(box)
        pad = [0] * (5 - rank)
        sizes = [each & 0xFFFFFFFF for each in reversed(shape)]
        bytes_ = [0, *(element_size * each for each in reversed(strides[:-1]))]
        head = (0x50414D54, rank - 1, element_type, 0, swizzle, 2, padding)
        packed = struct.pack(
            "<I11Bx5H2x5I6Q",
            *(*head, *[1] * rank, *pad),
            *(*reversed(box), *pad),
            *(*sizes, *pad),
            *(address, *bytes_, *pad),
        )
        return TensorMap(packed.ljust(128, b"\0"))

    def fill_tma_descriptor_im2col(self, *_: Any) -> TensorMap:
        raise UserError("the emulator does not have im2col: copies of tiles work")


@dataclass
class Device:
    """The emulated GPU, and what has run on it."""

    options: Options
    cuda: Cuda
    reports: list[Report] = field(default_factory=list)
    dry: bool = False  # kernels are compiled, not run

    @property
    def gpu(self) -> Gpu:
        return self.options.gpu


class Driver(DriverBase):  # type: ignore[misc]
    """Triton's driver."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.utils = Utilities(device.gpu)
        self.launcher_cls = lambda source, metadata: Launcher(device, source, metadata)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> Any:
        arch = self.device.gpu.arch
        return GPUTarget("cuda", 10 * arch.major + arch.minor, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, _device: int) -> None: ...

    def get_current_stream(self, _device: int = 0) -> int:
        return 0

    def get_device_capability(self, _device: int = 0) -> tuple[int, int]:
        return self.utils.get_device_capability()

    def get_active_torch_device(self) -> torch.device:
        return GPU

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        return str(ty_to_cpp(ty))

    def get_benchmarker(self) -> Callable[..., Any]:
        from triton.testing import do_bench

        return do_bench  # type: ignore[no-any-return]

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(0)

    def clear_cache(self, _cache: torch.Tensor) -> None: ...

    def assemble_tensormap_to_arg(self, _information: Any, args: Any) -> Any:
        return args

    def allocate_default_profile_scratch(self, size: int, _alignment: int, _stream: Any) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int8)


def _descriptor(arg: Any, metadata: Any, _: Any) -> list[Any]:
    """What a kernel is passed for a host's tensor descriptor."""
    if metadata is None:
        return list(decompose_descriptor(arg))
    from triton.backends.nvidia import driver

    if metadata.get("is_im2col"):
        raise UserError("the emulator does not have im2col: copies of tiles work")
    made, *rest = driver.make_tensordesc_arg(arg, metadata, None)
    return [TensorMap(made.data, arg.base), *rest]


class Launcher:
    """Runs one kernel: called by Triton for each launch."""

    def __init__(self, device: Device, source: Any, metadata: Any) -> None:
        self.device, self.metadata = device, metadata
        signature = dict(source.signature)
        descriptors = getattr(metadata, "tensordesc_meta", None)
        names = list(signature)
        self.names = [f"argument {each + 1}" if isinstance(each, int) else str(each) for each in names]
        # Expanded one by one, so that each parameter keeps the name of its argument.
        self.signature = list(signature.values())
        self.expanded = expand_signature(self.signature, descriptors, "nvTmaDesc")
        self.launch = wrap_handle_tensordesc_impl(self._launch, signature, descriptors, _descriptor)
        self.positions = _positions(self.signature, descriptors)

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: Any,
        function: Loaded,
        _packed: Any,
        launch_metadata: Any,
        enter: Any,
        leave: Any,
        *args: Any,
    ) -> None:
        if self.device.dry or x * y * z <= 0:
            return
        if enter is not None:
            enter(launch_metadata)
        self.launch((x, y, z), function, stream, args)
        if leave is not None:
            leave(launch_metadata)

    def _launch(self, grid: tuple[int, int, int], function: Loaded, stream: Any, args: Sequence[Any]) -> None:
        metadata, device = self.metadata, self.device
        ctas = getattr(metadata, "num_ctas", 1)
        blocks = math.prod(grid) * ctas
        scratch = profile = None
        if metadata.global_scratch_size:
            size, alignment = blocks * metadata.global_scratch_size, metadata.global_scratch_align
            scratch = _aligned(_allocation._allocator.get(), size, alignment, stream)
        if metadata.profile_scratch_size:
            allocate = _allocation._profile_allocator.get() if _allocation.has_profile_allocator() else _zeros
            size, alignment = blocks * metadata.profile_scratch_size, metadata.profile_scratch_align
            profile = _aligned(allocate, size, alignment, stream)
        flat = [(self.names[at], kind, value) for at, kind, value in _flat(self.positions, self.expanded, args)]
        flat += [("the scratch memory", "*i8", scratch), ("the profiler's memory", "*i8", profile)]
        with session_of(function.ptx, device.options, "the kernel", tiles=True) as session:
            enter_memory(session, device.cuda, [(name, value) for name, _, value in flat])
            info = session.module.kernel(function.name)
            params = bytearray(info.param_bytes)
            if len(info.params) != len(flat):
                raise UserError(f"{function.name} must have {len(flat)} parameters, got {len(info.params)} in the PTX")
            for (_, size, _, offset), (name, kind, value) in zip(info.params, flat):
                params[offset : offset + size] = packed(name, kind, value, size)
            x, y, z = dimension((grid[0] * ctas, *grid[1:]), "grid", MAX_GRID)
            configuration = Configuration(
                function.name,
                (x, y, z),
                dimension(32 * metadata.num_warps, "block", MAX_BLOCK),
                metadata.shared,
                bytes(params),
                (ctas, 1, 1) if ctas > 1 else None,
                bool(metadata.launch_cooperative_grid),
            )
            result = session.execute(configuration, printed=terminal.show)
            ending = f"the launch of {function.name} ended with CUDA error {result.code}" if result.code else ""
            report = session.report(result.code, ending, ending)
        device.reports.append(report)
        if result.code:
            raise CheckFailed(str(report))


def at_python_lines(ptx: str) -> str:
    """PTX without the lines that LLVM counts in inline assembly: it gives the second line of it the next line of the
    Python source, and so on."""
    kept, inside, said = [], False, False
    for line in ptx.splitlines(keepends=True):
        text = line.strip()
        if text in ("// begin inline asm", "// end inline asm"):
            inside, said = text.startswith("// begin"), False
        elif inside and text.startswith(".loc"):
            if said:
                continue
            said = True
        kept.append(line)
    return "".join(kept)


def _zeros(size: int, _alignment: int, _stream: Any) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int8)


def _aligned(allocate: Callable[[int, int, Any], Any], size: int, alignment: int, stream: Any) -> Any:
    """Memory of an allocator of the program's, which on a GPU is aligned better than on the CPU."""
    made = allocate(size + alignment, alignment, stream)
    return made.reshape(-1).view(torch.int8)[-made.data_ptr() % alignment :][:size]


def _positions(signature: Sequence[Any], descriptors: Any) -> list[int]:
    """Of each expanded entry of a signature, the number of the argument that it comes from."""
    return [number for number, each in enumerate(signature) for _ in expand_signature([each], descriptors, "nvTmaDesc")]


def _flat(positions: Sequence[int], kinds: Sequence[Any], values: Sequence[Any]) -> Iterator[tuple[int, str, Any]]:
    """Argument number, type and value of each parameter, tuples taken apart, constants left out."""
    for at, kind, value in zip(positions, kinds, values):
        if isinstance(kind, tuple):
            yield from ((at, each, inner) for _, each, inner in _flat([at] * len(kind), kind, value))
        elif kind != "constexpr":
            yield at, kind, value


def packed(name: str, kind: str, value: Any, size: int) -> bytes:
    """A value as the bytes of a parameter, as Triton's own launcher has them."""
    if kind == "nvTmaDesc":
        return bytes(value.data)
    if kind.startswith("*"):
        if value is None:
            return bytes(size)
        return int(value if isinstance(value, int) else value.data_ptr()).to_bytes(size, "little")
    if kind in _FLOATS:
        return _rounded(kind, float(value)).ljust(size, b"\0")
    if kind == "bf16":
        return struct.pack("<f", value)[2:].ljust(size, b"\0")
    if kind[0] in "iu" and kind[1:].isdigit():
        return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    raise UserError(f"{name} must be of a type that the emulator knows, got {kind}")


def _rounded(kind: str, value: float) -> bytes:
    try:
        return struct.pack(_FLOATS[kind], value)
    except OverflowError:
        return struct.pack(_FLOATS[kind], math.copysign(math.inf, value))


# ---- memory ----------------------------------------------------------------------------------------------------------


def enter_memory(session: Session, cuda: Cuda, arguments: Sequence[tuple[str, Any]]) -> None:
    """Let the session's kernel touch the memory of these arguments, and no other."""
    storages: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, value in arguments:
        tensor = value.base if isinstance(value, TensorMap) else value
        tensor = getattr(tensor, "base", tensor) if not isinstance(tensor, torch.Tensor) else tensor  # reinterpreted
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            storages.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    for given in storages.values():
        session.arena.enter(allocation(given, cuda.storages))
    for base, size in cuda.storages.named_in(_addresses(given[0][1] for given in storages.values())).items():
        if base not in storages:
            session.arena.enter(Allocation(f"memory at {base:#x}", base, size, mapped=True))


def _addresses(tensors: Any) -> Iterator[int]:
    """What may be addresses in tensors of 64-bit numbers."""
    for tensor in tensors:
        if tensor.dtype in (torch.int64, torch.uint64) and tensor.numel() <= MOST_ADDRESSES:
            yield from (int(each) for each in np.unique(tensor.detach().reshape(-1).view(torch.int64).numpy()) if each)
