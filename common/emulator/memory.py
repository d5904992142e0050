"""Device memory without a device: guarded allocations in this process, and the stand-in runtime that hands them out.

A device address is an address of this process. Every allocation has a mapping of its own with a red zone on either
side; the engine checks each access against the table of allocations, and the red zones see to it that an access that
misses one by less than RED_ZONE bytes cannot land in another. Behind each byte stands one that says whether the byte
was ever written.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.resources import Gpu

RED_ZONE = 1 << 20  # bytes; never touched, so never backed by memory
ALIGNMENT = 512  # bytes, as cudaMalloc and torch align
POISON = 0xFF  # what uninitialised memory holds: NaN in every floating type

INVALID_VALUE, UNKNOWN = 1, 999  # cudaErrorInvalidValue, cudaErrorUnknown


@dataclass(eq=False)
class Allocation:
    """Device memory of one tensor, of one cudaMalloc or of one module variable."""

    name: str
    base: int
    data: np.ndarray  # uint8: the bytes
    written: np.ndarray  # uint8, per byte: 0 = never written
    tensor: Tensor | None = None
    mapping: mmap.mmap | None = field(default=None, repr=False)  # None: the engine's own memory

    @property
    def size(self) -> int:
        return len(self.data)

    def describe(self, address: int) -> str:
        """What lies at an address in or around this allocation: "C[3, 17]", "8 bytes past the end of C"."""
        offset = address - self.base
        if offset < 0:
            return f"{-offset} bytes before the start of {self.name}"
        if offset >= self.size:
            past = offset - self.size
            return f"{past} bytes past the end of {self.name}" if past else f"just past the end of {self.name}"
        if self.tensor is None:
            return f"{self.name} + {offset} bytes"
        index = np.unravel_index(offset // self.tensor.element_size(), tuple(self.tensor.shape))
        return f"{self.name}[{', '.join(map(str, index))}]"


class Arena:
    """All allocations of a run."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []

    def allocate(self, name: str, size: int, offset: int = 0) -> Allocation:
        """`size` bytes of uninitialised memory that start `offset` bytes after an address aligned to ALIGNMENT."""
        mapping = mmap.mmap(-1, 2 * RED_ZONE + ALIGNMENT + size)
        room = np.frombuffer(mapping, dtype=np.uint8)
        start = -(-(room.ctypes.data + RED_ZONE) // ALIGNMENT) * ALIGNMENT - room.ctypes.data + offset % ALIGNMENT
        data = room[start : start + size]
        data[:] = POISON
        allocation = Allocation(name, room.ctypes.data + start, data, np.zeros(size, np.uint8), None, mapping)
        self.allocations.append(allocation)
        return allocation

    def upload(self, name: str, tensor: Tensor, initialised: bool = True) -> Allocation:
        """Copy a CPU tensor in. A tensor that is passed twice is one allocation; a view keeps its misalignment.

        ValueError if the tensor is not on the CPU or not contiguous."""
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError(f"{name} is not a contiguous tensor on the CPU")
        for known in self.allocations:
            same = known.tensor is not None and known.tensor.data_ptr() == tensor.data_ptr()
            if same and known.size >= tensor.nbytes > 0:
                return known
        allocation = self.allocate(name, tensor.nbytes, tensor.storage_offset() * tensor.element_size())
        allocation.tensor = tensor
        allocation.data[:] = _bytes(tensor)
        allocation.written[:] = initialised
        return allocation

    def adopt(self, name: str, address: int, size: int) -> None:
        """Enter memory that the engine owns: a variable of the module."""
        data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        self.allocations.append(Allocation(name, address, data, np.ones(size, np.uint8)))

    def download(self) -> None:
        """Copy every tensor back."""
        for allocation in self.allocations:
            if allocation.tensor is not None:
                _bytes(allocation.tensor)[:] = allocation.data

    def find(self, address: int) -> Allocation | None:
        """The allocation that an address lies in."""
        return next((a for a in self.allocations if a.base <= address < a.base + a.size), None)

    def nearest(self, address: int) -> Allocation | None:
        """The allocation that an address lies in or, within the red zone, next to."""
        by_distance = [(max(a.base - address, address - a.base - a.size, 0), a) for a in self.allocations]
        near = [(distance, i) for i, (distance, _) in enumerate(by_distance) if distance < RED_ZONE]
        return self.allocations[min(near)[1]] if near else None

    def describe(self, address: int) -> str:
        """An address in words."""
        allocation = self.nearest(address)
        if allocation is None:
            return "a null pointer" if address < 4096 else f"address {address:#x}, far from every tensor"
        return allocation.describe(address)


def _bytes(tensor: Tensor) -> np.ndarray:
    """A contiguous CPU tensor's memory as uint8, shared."""
    if not tensor.numel():
        return np.empty(0, np.uint8)
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


# ---- the stand-in runtime: mirrors of the structures in runtime.cpp ----


class _Device(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int)
        for name in (
            *("major", "minor", "multiprocessors", "l2_bytes"),
            *("shared_per_block", "shared_per_multiprocessor"),
            *("threads_per_multiprocessor", "blocks_per_multiprocessor"),
        )
    ]


_u64, _size, _Three = ctypes.c_uint64, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint)
_Launch = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, _Three, _Three, _Three, _size, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
)
_Allocate = ctypes.CFUNCTYPE(_u64, _size)
_Release = ctypes.CFUNCTYPE(ctypes.c_int, _u64)
_Fill = ctypes.CFUNCTYPE(ctypes.c_int, _u64, ctypes.c_int, _size)
_Copy = ctypes.CFUNCTYPE(ctypes.c_int, _u64, _u64, _size)
_Symbol = ctypes.CFUNCTYPE(_u64, ctypes.c_char_p)


class _Callbacks(ctypes.Structure):
    _fields_ = [
        ("launch", _Launch),
        ("allocate", _Allocate),
        ("release", _Release),
        ("fill", _Fill),
        ("copy", _Copy),
        ("symbol", _Symbol),
    ]


@dataclass(frozen=True)
class LaunchRequest:
    """What a `<<<>>>` asked for. `arguments` are the addresses of the kernel's arguments, valid during the launch."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared: int  # dynamic, bytes
    cooperative: bool
    arguments: ctypes.Array


# Multiprocessors and L2 bytes of the largest part in GPUS' column of devices: a launcher may size its grid by them.
_PARTS = {"80": (108, 40 << 20), "86": (82, 6 << 20), "89": (128, 72 << 20), "90": (132, 50 << 20)}


def multiprocessors(gpu: Gpu) -> int:
    """How many multiprocessors the GPU that is modelled has."""
    return _PARTS[gpu.arch][0]


def resident_blocks(gpu: Gpu, threads: int, shared: int) -> int:
    """How many blocks of `threads` threads and `shared` bytes the GPU holds at a time. Registers are not known here."""
    by_shared = gpu.shared_kb * 1024 // (shared + gpu.shared_system)
    return max(1, min(gpu.blocks, gpu.warps // -(-threads // 32), by_shared)) * multiprocessors(gpu)


class Runtime:
    """One kernel's shared object, its calls answered from an arena; `launch` runs a kernel, returns a cudaError_t."""

    def __init__(self, so: Path, gpu: Gpu, arena: Arena, launch: Callable[[LaunchRequest], int]):
        self.library = ctypes.CDLL(str(so), mode=ctypes.RTLD_LOCAL)
        self.arena, self.launch = arena, launch
        self.error: BaseException | None = None  # what a callback raised
        self._allocated = 0
        self._device = _Device(
            *divmod(int(gpu.arch), 10),
            *_PARTS[gpu.arch],
            *(gpu.shared_per_block, gpu.shared_kb * 1024),
            *(gpu.warps * 32, gpu.blocks),
        )
        guard = self._guard
        self._callbacks = _Callbacks(  # kept: ctypes frees what nobody holds
            _Launch(guard(self._launch, UNKNOWN)),
            _Allocate(guard(self._allocate, 0)),
            _Release(guard(self._release, UNKNOWN)),
            _Fill(guard(self._fill, UNKNOWN)),
            _Copy(guard(self._copy, UNKNOWN)),
            _Symbol(guard(self._symbol, 0)),
        )
        self.library.emulator_error_string.restype = ctypes.c_char_p
        self.library.emulator_reset(ctypes.byref(self._device), ctypes.byref(self._callbacks))

    def describe(self, kernel: str, static_shared: int, local: int, max_threads: int) -> None:
        """Tell the runtime what the PTX says of a kernel."""
        self.library.emulator_describe(
            kernel.encode(), _size(static_shared), _size(local), ctypes.c_uint(max_threads or 1024)
        )

    def call(self, symbol: str, arguments: Sequence[object]) -> int:
        """Call an exported launcher: what it returns. Raises what a callback raised; AttributeError: no such symbol."""
        function = getattr(self.library, symbol)
        function.restype = ctypes.c_int
        status = function(*arguments)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return status

    def error_string(self, status: int) -> str:
        return self.library.emulator_error_string(status).decode()

    def _guard(self, function: Callable[..., int], failure: int) -> Callable[..., int]:
        """ctypes prints and drops what a callback raises: keep it, and fail."""

        def guarded(*arguments: object) -> int:
            if self.error is not None:
                return failure
            try:
                return function(*arguments)
            except BaseException as error:  # a KeyboardInterrupt must come out at the other end, too
                self.error = error
                return failure

        return guarded

    def _launch(self, kernel, grid, block, cluster, shared, cooperative, arguments) -> int:
        sizes = (tuple(size[:3]) for size in (grid, block, cluster))
        return self.launch(LaunchRequest(kernel.decode(), *sizes, shared, bool(cooperative), arguments))

    def _allocate(self, size: int) -> int:
        self._allocated += 1
        return self.arena.allocate(f"cudaMalloc {self._allocated}", size).base

    def _release(self, address: int) -> int:
        found = next((a for a in self.arena.allocations if a.base == address), None)
        if found is None or found.tensor is not None:
            return INVALID_VALUE
        self.arena.allocations.remove(found)
        return 0

    def _symbol(self, name: bytes) -> int:
        return next((a.base for a in self.arena.allocations if a.name == name.decode()), 0)

    def _device_range(self, address: int, size: int) -> tuple[Allocation, slice] | None:
        found = self.arena.find(address)
        if found is None or address + size > found.base + found.size:
            return None
        return found, slice(address - found.base, address - found.base + size)

    def _fill(self, address: int, value: int, size: int) -> int:
        place = self._device_range(address, size)
        if place is None:
            return INVALID_VALUE if size else 0
        allocation, where = place
        allocation.data[where] = value & 0xFF
        allocation.written[where] = 1
        return 0

    def _copy(self, to: int, source: int, size: int) -> int:
        target, origin = self._device_range(to, size), self._device_range(source, size)
        for place, address in ((target, to), (origin, source)):
            if place is None and self.arena.nearest(address) is not None:
                return INVALID_VALUE  # it starts at an allocation but does not fit
        ctypes.memmove(to, source, size)
        if target is not None:
            target[0].written[target[1]] = 1 if origin is None else origin[0].written[origin[1]]
        return 0
